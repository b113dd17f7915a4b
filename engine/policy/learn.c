/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learns the value of chunks (learn.h) with a logistic model of the hazard: the chance h that a
 * chunk in age bucket b (its age is the time since its last access) is accessed before it leaves
 * the bucket,
 *
 *     z = base[b] + rhythm[b - 2 log2(gap)] + cell[gap, b] + score,    h = 1 / (1 + e^-z),
 *
 * where gap is the usual gap between accesses (cell is indexed by its class). A cell learns slowly,
 * and corrects the sum of base and rhythm. The score is a sum of weights of the facts that were
 * known at the last access: one weight of each set, by the class of a fact, and one weight for each
 * number, multiplied by it.
 *
 * A run of chunks with equal facts is one example: a record, which waits in the queue of its bucket
 * of age. The weight of an example is proportional to the square root of its number of chunks
 * relative to the mean length of a request, so that the model depends neither on the size of chunks
 * nor on single long prompts. A record that leaves a bucket without an access is an example with
 * y = 0, and moves to the next queue. A record that is accessed is an example with y = 1, and is
 * finished. Each example is one step of gradient descent on the logarithmic loss, in which each
 * weight has its own rate, which decreases with the number of examples that it has seen. There are
 * at most RECORDS records; beyond that the oldest is discarded, which does not bias the model: up
 * to its age nothing was left out.
 *
 * The index for all gap classes, scores and ages is a table; one gap class of it is computed again
 * every few requests.
 */
#include "learn_priv.h"

#include "array.h"

#include <math.h>
#include <string.h>

#define RECORDS 262144u
#define BUCKETS_FIRST 1024u
#define RATE .3f
#define RATE_FIRST 10.f  /* value of `seen` before the first example */
#define RATE_FACT 20.f   /* larger for facts, because each of their classes sees fewer examples */
#define BASE_FIRST -4.f  /* before anything is learned */
#define COUNT_FIRST 2.8f /* prior: chunks with many accesses will have more */
#define WEIGHT 5.f       /* weight of an example that is a whole request of mean length */
/*
 * A gap class of the table is computed again after at least SLICE ticks and SLICE_LEARNED examples:
 * after fewer, the result would be nearly the same.
 */
#define SLICE 8
#define SLICE_LEARNED 16
#define ADVANCE_MOST 4096 /* records that one request looks at; the next goes on */
#define RATE_CELL 200.f
#define LANES 4
#define NUMBER_VECTORS 4 /* vectors with numbers; the last one also has two sets */
#define VECTORS 7        /* NUMBERS, SETS and a cell, padded with zeros */
_Static_assert(NUMBERS == 4 * LANES - 2 && SETS == 2 * LANES + 2, "the vectors of a sum");
#define NO_CLASS (CLASSES - 1) /* a class that age and rhythm do not use: its weight stays 0 */

/*
 * A sum's terms are in vectors of LANES, and stay in registers: in memory, the machine would wait
 * for single numbers to arrive before it could read them as vectors.
 */
typedef float lanes __attribute__((vector_size(16)));
typedef int32_t lane_bits __attribute__((vector_size(16)));

/* The inputs of a sum: a chunk's numbers, padded with ones for two sets, and its class per set. */
struct inputs {
	lanes number[NUMBER_VECTORS];
	uint8_t class[SETS];
	unsigned cell;
};

static uint8_t count_class(unsigned n)
{
	return n <= 3     ? (uint8_t)n
	       : n <= 5   ? 4
	       : n <= 8   ? 5
	       : n <= 15  ? 6
	       : n <= 31  ? 7
	       : n <= 127 ? 8
			  : 9;
}

static uint8_t length_class(unsigned n)
{
	static const unsigned upto[] = { 0, 1, 2, 3, 4, 6, 9, 14, 22, 36, 64, 128 };
	uint8_t c = 0;

	while (c < sizeof upto / sizeof *upto && n > upto[c])
		c++;
	return c;
}

float kvc_learn_log2_age(uint32_t ticks)
{
	return ticks < 2 ? 0 : log2f((float)ticks) - 1;
}

uint8_t kvc_learn_gap(float log2_age)
{
	int c = log2_age < 0 ? 0 : 1 + (int)(log2_age * 1.5f);

	return (uint8_t)kvc_min((uint64_t)c, KVC_GAPS - 1);
}

static uint8_t length_class_of(const struct kvc_learn *l, unsigned n)
{
	return l->length_class[kvc_min(n, LENGTHS - 1)];
}

static float log4_of(const struct kvc_learn *l, unsigned n)
{
	return kvc_learn_index_log2(&l->index, n) * .25f;
}

/* The order of the numbers is that of their names in learn_save.c. */
static void numbers_of(const struct kvc_learn *l, const struct kvc_facts *f, bool first, lanes *x)
{
	float fresh = log4_of(l, 1u + f->fresh), length = log4_of(l, f->length);
	float all_known = !f->fresh, gap = f->gap / 12.f, deepest;

	if (first) {
		deepest = f->continues ? log4_of(l, (unsigned)kvc_min(kvc_max(f->deepest, 1), 64))
				       : 0;
		x[0] = (lanes){ 1, 0, deepest, fresh };
		x[1] = (lanes){ 0, length, f->tail, f->continues };
		x[2] = (lanes){ 0, 0, 0, gap };
	} else {
		x[0] = (lanes){ 0, log4_of(l, f->count), 0, 0 };
		x[1] = (lanes){ fresh, length, 0, 0 };
		x[2] = (lanes){ f->kids > 1, log4_of(l, 1u + f->kids), gap, 0 };
	}
	x[3] = (lanes){ all_known, f->count == 2, 1, 1 };
}

static void inputs_of(const struct kvc_learn *l, const struct kvc_facts *f, struct inputs *x)
{
	bool first = f->count == 1;
	uint8_t fresh = length_class_of(l, f->fresh);

	x->class[0] = l->count_class[f->count];
	x->class[1] = (uint8_t)(fresh + 13 * (first ? f->continues : 2));
	x->class[2] = f->tail ? first ? 1 : 2 : 0;
	x->class[3] = first ? l->count_class[f->deepest]
			    : (uint8_t)(10 + l->count_class[f->count] + (f->fresh ? 10 : 0));
	x->class[4] = length_class_of(l, f->length);
	x->class[5] = first ? 0 : (uint8_t)(1 + kvc_min(f->kids, 7) + (f->fresh ? 8 : 0));
	x->class[6] = l->length_class[f->distance];
	x->class[OUTLOOK] = f->outlook;
	numbers_of(l, f, first, x->number);
}

static unsigned cell_of(unsigned gap, int age)
{
	return gap * KVC_AGES + (unsigned)age;
}

/* Reads the weights of a sum, or what they have seen. */
static inline void read_terms(const float *number, const float *const set[SETS], float cell,
			      lanes *v)
{
	for (int i = 0; i < NUMBER_VECTORS - 1; i++)
		memcpy(&v[i], number + LANES * i, sizeof *v);
	number += LANES * (NUMBER_VECTORS - 1);
	v[3] = (lanes){ number[0], number[1], *set[0], *set[1] };
	v[4] = (lanes){ *set[2], *set[3], *set[4], *set[5] };
	v[5] = (lanes){ *set[6], *set[7], *set[8], *set[9] };
	v[6] = (lanes){ cell, 0, 0, 0 };
}

static inline void write_terms(float *number, float *const set[SETS], float *cell, const lanes *v)
{
	for (int i = 0; i < NUMBER_VECTORS - 1; i++)
		memcpy(number + LANES * i, &v[i], sizeof *v);
	number += LANES * (NUMBER_VECTORS - 1);
	number[0] = v[3][0];
	number[1] = v[3][1];
	for (int i = 0; i < SETS; i++)
		*set[i] = v[3 + (i + 2) / LANES][(i + 2) % LANES];
	*cell = v[6][0];
}

/* The factors of the weights: the numbers; 1 for a set and for the cell. */
static inline void factors_of(const struct inputs *in, lanes *x)
{
	for (int i = 0; i < NUMBER_VECTORS; i++)
		x[i] = in->number[i];
	x[4] = x[5] = (lanes){ 1, 1, 1, 1 };
	x[6] = (lanes){ 1, 0, 0, 0 };
}

static inline float sum_terms(const lanes *w, const lanes *x)
{
	lanes s = { 0 };

	for (int i = 0; i < VECTORS; i++)
		s += w[i] * x[i];
	return s[0] + s[1] + (s[2] + s[3]);
}

uint8_t kvc_learn_score(const struct kvc_learn *l, const struct kvc_facts *f)
{
	const float *set[SETS];
	lanes w[VECTORS], x[VECTORS];
	struct inputs in;
	float s;

	inputs_of(l, f, &in);
	in.class[AGE] = in.class[RHYTHM] = NO_CLASS;
	for (int i = 0; i < SETS; i++)
		set[i] = &l->set[i].w[in.class[i]];
	read_terms(l->number.w, set, l->cells.w[CELLS], w);
	factors_of(&in, x);
	s = (sum_terms(w, x) - SCORE_LOW) / SCORE_STEP;
	return s < 0 ? 0 : s >= KVC_SCORES ? KVC_SCORES - 1 : (uint8_t)s;
}

/*
 * Learns from one example. error (times RATE) and curve: the first and second derivative of the
 * loss with respect to z.
 */
static void learn_example(struct kvc_learn *l, const struct record *r, int age, bool used)
{
#define ALL(n) { n, n, n, n }
#define N RATE_FIRST
#define F RATE_FACT
	static const lanes first[VECTORS] = { ALL(N),
					      ALL(N),
					      ALL(N),
					      { N, N, F, F },
					      ALL(F),
					      { F, F, N, N },
					      { RATE_CELL, 1, 1, 1 } };
#undef N
#undef F
#define N SEEN_MAX_NUMBER
#define S SEEN_MAX
	static const lanes most[VECTORS] = { ALL(N), ALL(N), ALL(N),        { N, N, S, S },
					     ALL(S), ALL(S), { S, 0, 0, 0 } };
#undef N
#undef S
#undef ALL
	lanes w[VECTORS], seen[VECTORS], x[VECTORS];
	float p, error, curve, *set_w[SETS], *set_seen[SETS];
	struct inputs in;

	l->learned++;
	inputs_of(l, &r->facts, &in);
	in.class[AGE] = (uint8_t)age;
	in.class[RHYTHM] = l->rhythm[r->facts.gap][age];
	in.cell = cell_of(r->facts.gap, age);
	for (int i = 0; i < SETS; i++) {
		set_w[i] = &l->set[i].w[in.class[i]];
		set_seen[i] = &l->set[i].seen[in.class[i]];
	}
	read_terms(l->number.w, (const float *const *)set_w, l->cells.w[in.cell], w);
	read_terms(l->number.seen, (const float *const *)set_seen, l->cells.seen[in.cell], seen);
	factors_of(&in, x);
	p = 1 / (1 + expf(-sum_terms(w, x)));
	error = RATE * (p - (float)used) * r->weight;
	curve = p * (1 - p) * r->weight;
	for (int i = 0; i < VECTORS; i++) {
		lanes now = seen[i] + curve * x[i] * x[i];
		lane_bits over = now > most[i];

		seen[i] = (lanes)(((lane_bits)most[i] & over) | ((lane_bits)now & ~over));
		w[i] -= error * x[i] / (seen[i] + first[i]);
	}
	write_terms(l->number.w, set_w, &l->cells.w[in.cell], w);
	write_terms(l->number.seen, set_seen, &l->cells.seen[in.cell], seen);
}

/* Records */

static void queue_record(struct kvc_learn *l, int age, uint32_t i)
{
	l->record[i].queue = NONE;
	l->record[i].age = (unsigned)age & (KVC_AGES - 1);
	if (l->first[age] == NONE)
		l->first[age] = i;
	else
		l->record[l->last[age]].queue = i;
	l->last[age] = i;
}

static uint32_t bucket_number(const struct kvc_learn *l, uint64_t id)
{
	uint32_t hash = (uint32_t)(id * 0x9e3779b97f4a7c15u >> 40);
	uint32_t b = hash & (2 * l->level - 1);

	return b < l->nbuckets ? b : hash & (l->level - 1);
}

static uint32_t *record_bucket(const struct kvc_learn *l, uint64_t id)
{
	return &l->bucket[bucket_number(l, id)];
}

static void unchain_record(struct kvc_learn *l, uint32_t i)
{
	uint32_t *at = record_bucket(l, l->record[i].id);

	while (*at != i)
		at = &l->record[*at].bucket;
	*at = l->record[i].bucket;
}

static void unhash_record(struct kvc_learn *l, uint32_t i)
{
	unchain_record(l, i);
	l->record[i].id = 0;
	if (l->first[l->record[i].age] == i)
		l->waits &= ~(1u << l->record[i].age);
}

/* Removes the first record of a queue and returns it. */
static uint32_t dequeue_record(struct kvc_learn *l, int age)
{
	uint32_t i = l->first[age];

	l->first[age] = l->record[i].queue;
	l->waits &= ~(1u << age);
	return i;
}

static void free_record(struct kvc_learn *l, uint32_t i)
{
	l->record[i].queue = l->free;
	l->free = i;
}

static int grow_records(struct kvc_learn *l)
{
	uint32_t capacity = l->capacity ? l->capacity * 2 : 4096, *bucket;
	struct record *r = kvc_array_grow(l->record, capacity * sizeof *r);

	if (!r)
		return -ENOMEM;
	l->record = r;
	bucket = kvc_array_grow(l->bucket, capacity * sizeof *bucket);
	if (!bucket)
		return -ENOMEM;
	l->bucket = bucket;
	l->capacity = capacity;
	for (; l->nbuckets < BUCKETS_FIRST; l->nbuckets++)
		bucket[l->nbuckets] = NONE;
	l->level = kvc_max(l->level, BUCKETS_FIRST);
	return 0;
}

/*
 * Adds a bucket and moves records from one other bucket to it: the table grows with each record
 * instead of being made again, which would take too long under the caller's lock.
 */
static void add_bucket(struct kvc_learn *l)
{
	uint32_t from = l->nbuckets - l->level, i = l->bucket[from];
	uint32_t *stay = &l->bucket[from], *move = &l->bucket[l->nbuckets++];

	while (i != NONE) {
		uint32_t **to = bucket_number(l, l->record[i].id) == from ? &stay : &move;

		**to = i;
		*to = &l->record[i].bucket;
		i = l->record[i].bucket;
	}
	*stay = *move = NONE;
	if (l->nbuckets == 2 * l->level)
		l->level *= 2;
}

/*
 * The record is the next that will be discarded: loads its hash bucket, and the record after it,
 * for which this is done next time.
 */
static void expect_discard(const struct kvc_learn *l, uint32_t i)
{
	if (i == NONE)
		return;
	__builtin_prefetch(record_bucket(l, l->record[i].id));
	if (l->record[i].queue != NONE)
		__builtin_prefetch(&l->record[l->record[i].queue]);
}

uint32_t kvc_learn_take_record(struct kvc_learn *l)
{
	uint32_t i = l->free;

	if (i != NONE) {
		l->free = l->record[i].queue;
		return i;
	}
	if (l->used < l->capacity || (l->capacity < RECORDS && !grow_records(l))) {
		if (l->used == l->nbuckets)
			add_bucket(l);
		return l->used++;
	}
	for (int age = KVC_AGES - 1; age >= 0; age--)
		if (l->first[age] != NONE) {
			i = dequeue_record(l, age);
			expect_discard(l, l->first[age]);
			if (l->record[i].id)
				unhash_record(l, i);
			return i;
		}
	return NONE;
}

void kvc_learn_put_record(struct kvc_learn *l, uint32_t i, const struct record *r, int age)
{
	uint32_t *at = record_bucket(l, r->id);

	l->record[i] = *r;
	l->record[i].bucket = *at;
	l->record[i].turn = ++l->turns & TURNS;
	*at = i;
	queue_record(l, age, i);
}

static uint32_t find_record(struct kvc_learn *l, uint64_t id)
{
	uint32_t i = l->nbuckets ? *record_bucket(l, id) : NONE;

	while (i != NONE && l->record[i].id != id)
		i = l->record[i].bucket;
	return i;
}

void kvc_learn_expect(const struct kvc_learn *l, const uint64_t *id, uint32_t n)
{
	if (!l->nbuckets)
		return;
	for (uint32_t i = 0; i < n; i++)
		__builtin_prefetch(record_bucket(l, id[i]));
	for (uint32_t i = 0; i < n; i++)
		if (*record_bucket(l, id[i]) != NONE)
			__builtin_prefetch(&l->record[*record_bucket(l, id[i])]);
}

void kvc_learn_drop_record(struct kvc_learn *l, uint64_t id)
{
	uint32_t i = find_record(l, id);

	if (i != NONE)
		unhash_record(l, i);
}

void kvc_learn_track(struct kvc_learn *l, uint64_t id, const struct kvc_facts *f, uint32_t now,
		     uint32_t chunks)
{
	struct record r = { .id = id, .facts = *f, .since = now };
	uint32_t i = kvc_learn_take_record(l);

	r.weight = WEIGHT * sqrtf((float)(chunks / l->length));
	if (i != NONE)
		kvc_learn_put_record(l, i, &r, 0);
}

void kvc_learn_tell(struct kvc_learn *l, uint64_t id, uint8_t outlook)
{
	uint32_t i = find_record(l, id);

	if (i != NONE)
		l->record[i].facts.outlook = outlook;
}

void kvc_learn_rename(struct kvc_learn *l, uint64_t from, uint64_t to)
{
	uint32_t i = find_record(l, from), *at;

	if (i == NONE || find_record(l, to) != NONE)
		return;
	unchain_record(l, i);
	at = record_bucket(l, to);
	l->record[i].id = to;
	l->record[i].bucket = *at;
	*at = i;
}

uint8_t kvc_learn_score_told(const struct kvc_learn *l, uint8_t score, uint8_t from, uint8_t to)
{
	const float *w = l->set[OUTLOOK].w;
	float s = (float)score + roundf((w[to] - w[from]) / SCORE_STEP);

	return s < 0 ? 0 : s >= KVC_SCORES ? KVC_SCORES - 1 : (uint8_t)s;
}

void kvc_learn_length(struct kvc_learn *l, uint32_t chunks)
{
	l->lengths += l->lengths < LENGTH_OF;
	l->length += (chunks - l->length) / l->lengths;
	l->length = l->length < 1 ? 1 : l->length > LENGTH_MOST ? LENGTH_MOST : l->length;
}

void kvc_learn_used(struct kvc_learn *l, uint64_t id, uint32_t now)
{
	uint32_t i = find_record(l, id), age;

	if (i == NONE)
		return;
	age = (uint32_t)kvc_max(now - l->record[i].since, 1);
	learn_example(l, &l->record[i],
		      (int)kvc_min((uint64_t)(2 * kvc_learn_log2_age(age) + 1e-6f), KVC_AGES - 1),
		      true);
	unhash_record(l, i);
}

/*
 * Consecutive buckets of age through which a chunk is held entirely or not at all. used: the chance
 * that it is accessed in them; held: the mean time that it is held; unused: the chance that it is
 * not accessed by their end.
 */
struct stretch {
	float used, held, unused;
};

/*
 * Computes the index for one score and all ages: the best ratio, over all ends, of the chance that
 * the chunk is accessed before that end to the mean time for which it is held. Each bucket adds to
 * both, weighted with the chance that the chunk was not accessed before. The best end is found from
 * the last bucket backwards: a stretch absorbs the next one as long as that raises its own ratio.
 */
static void make_row_of_score(float *row, float (*h)[KVC_SCORES], const float *length, int score)
{
	struct stretch after[KVC_AGES], s;
	int n = 0;

	for (int b = KVC_AGES - 1; b >= 0; b--) {
		float chance = h[b][score];

		s = (struct stretch){ chance, length[b] * (1 - chance / 2), 1 - chance };
		for (; n && after[n - 1].used * s.held >= s.used * after[n - 1].held; n--) {
			s.used += s.unused * after[n - 1].used;
			s.held += s.unused * after[n - 1].held;
			s.unused *= after[n - 1].unused;
		}
		row[b] = s.used / s.held;
		after[n++] = s;
	}
	row[KVC_AGES] = row[KVC_AGES - 1];
}

/* Position of a chunk of this age in its rhythm: 20 is one usual gap after its last access. */
static uint8_t rhythm_of(uint8_t gap, int age)
{
	int r;

	if (!gap)
		return 0;
	r = (int)floorf((float)age - (float)(gap - 1) / .75f + .5f) + 20;
	return (uint8_t)(r < 1 ? 1 : r > RHYTHMS - 1 ? RHYTHMS - 1 : r);
}

/* Computes the index of this gap class from the current weights. */
static void make_row(struct kvc_learn *l, uint8_t gap)
{
	float h[KVC_AGES][KVC_SCORES], length[KVC_AGES];

	for (int b = 0; b < KVC_AGES; b++) {
		float odds = expf(-l->set[AGE].w[b] - l->set[RHYTHM].w[l->rhythm[gap][b]] -
				  l->cells.w[cell_of(gap, b)]);

		length[b] = (float)(l->edge[b + 1] - l->edge[b]);
		for (int s = 0; s < KVC_SCORES; s++)
			h[b][s] = 1 / (1 + odds * l->odds[s]);
	}
	for (int s = 0; s < KVC_SCORES; s++)
		make_row_of_score(l->index.of[gap][s], h, length, s);
}

/* True if the first record of this queue has to stay in it, as far as is known without reading it.
 */
static inline bool first_waits(const struct kvc_learn *l, int age, uint32_t now)
{
	return (l->waits & 1u << age) && now - l->waits_since[age] < l->edge[age + 1];
}

void kvc_learn_advance(struct kvc_learn *l, uint32_t now)
{
	uint32_t most = ADVANCE_MOST;

	for (int age = KVC_AGES - 2; age >= 0; age--)
		if (l->first[age] != NONE && !first_waits(l, age, now))
			__builtin_prefetch(&l->record[l->first[age]]);

	for (int age = KVC_AGES - 2; age >= 0; age--)
		while (l->first[age] != NONE && most) {
			struct record *r = &l->record[l->first[age]];

			most--;
			if (first_waits(l, age, now))
				break;
			if (r->queue != NONE) /* the next record of this queue */
				__builtin_prefetch(&l->record[r->queue]);
			if (r->id && now - r->since < l->edge[age + 1]) {
				l->waits |= 1u << age;
				l->waits_since[age] = r->since;
				break;
			}
			if (!r->id) {
				free_record(l, dequeue_record(l, age));
				continue;
			}
			learn_example(l, r, age, false);
			queue_record(l, age + 1, dequeue_record(l, age));
		}
	for (; most && l->first[KVC_AGES - 1] != NONE && !l->record[l->first[KVC_AGES - 1]].id;
	     most--)
		free_record(l, dequeue_record(l, KVC_AGES - 1));
	if (now - l->row_at >= SLICE && l->learned >= SLICE_LEARNED) {
		l->row_at = now;
		l->learned = 0;
		make_row(l, (uint8_t)l->slice);
		l->slice = (l->slice + 1) % KVC_GAPS;
	}
}

struct kvc_learn *kvc_learn_new(void)
{
	struct kvc_learn *l = calloc(1, sizeof *l);

	if (!l)
		return NULL;
	l->free = NONE;
	l->length = LENGTH_FIRST;
	for (int b = 0; b < KVC_AGES; b++) {
		l->set[AGE].w[b] = BASE_FIRST;
		l->edge[b] = b ? pow(2, 1 + b * .5) : 0;
		l->first[b] = l->last[b] = NONE;
	}
	l->edge[KVC_AGES] = pow(2, 1 + KVC_AGES * .5);
	l->number.w[1] = COUNT_FIRST;
	for (unsigned n = 0; n <= UINT8_MAX; n++)
		l->count_class[n] = count_class(n);
	for (unsigned n = 0; n < LENGTHS; n++)
		l->length_class[n] = length_class(n);
	for (int s = 0; s < KVC_SCORES; s++)
		l->odds[s] = expf(-SCORE_LOW - SCORE_STEP * (float)s);
	for (unsigned n = 1; n < KVC_LOGS; n++)
		l->index.log2[n] = log2f((float)n);
	for (int gap = 0; gap < KVC_GAPS; gap++) {
		for (int age = 0; age < KVC_AGES; age++)
			l->rhythm[gap][age] = rhythm_of((uint8_t)gap, age);
		make_row(l, (uint8_t)gap);
	}
	return l;
}

void kvc_learn_free(struct kvc_learn *l)
{
	if (!l)
		return;
	kvc_array_free(l->record);
	kvc_array_free(l->bucket);
	free(l);
}

const struct kvc_index *kvc_learn_index(const struct kvc_learn *l)
{
	return &l->index;
}

uint64_t kvc_learn_bytes(const struct kvc_learn *l)
{
	return sizeof *l + l->capacity * (sizeof *l->record + sizeof *l->bucket);
}
