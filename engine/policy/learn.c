/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See learn.h. A logistic model of the hazard: the chance h that a chunk of age bucket b, not used
 * so far since its last use, is used before it leaves the bucket,
 *
 *     z = base[b] + rhythm[b - 2 log2(gap)] + score,    h = 1 / (1 + e^-z),
 *
 * where the score is a sum of weights of what was known at the last use: one weight a class
 * (one_hot) and one a number (linear).
 *
 * A run of chunks with equal facts is one example: a record, which waits in the queue of its age's
 * bucket. When it leaves a bucket unused, that is learned (y = 0) and it goes to the next queue;
 * when it is used, that is learned (y = 1) and it is over. Each is a step down the gradient of the
 * logarithmic loss, each weight with a rate of its own that falls with what it has seen. There are
 * RECORDS of them at most; past that the oldest is let go of, which is no lie: up to that age
 * nothing was left out.
 *
 * The index of all gap classes, scores and ages is a table; one gap class of it is made anew every
 * few requests.
 */
#include "learn.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define RECORDS 262144u
#define NONE UINT32_MAX
#define CLASSES 64 /* values of a fact at most */
#define ONE_HOT 7
#define LINEAR 14
#define RHYTHMS 51
#define RATE .3f
#define RATE_BASE 10.f   /* seen before anything was, as it were */
#define RATE_CLASS 20.f  /* the same, of classes, of which each sees less */
#define SEEN_MAX 200.f   /* more does not make a weight slower: loads change */
#define BASE_FIRST -4.f  /* before anything is learned */
#define COUNT_FIRST 2.8f /* the more uses, the more to come */
#define SCORE_LOW -9.f
#define SCORE_STEP .125f
#define SLICE 8          /* requests from one gap class of the table to the next */
#define SAVED 65536u     /* records that are saved, at most */
#define RECORD_BYTES 29  /* of one of them */
#define WEIGHT_MOST 1e6f /* what is beyond was not learned here */
#define INDEX_MOST 16.f

struct weight {
	float w, seen;
};

struct record {
	uint64_t id; /* 0: it is over, and goes when it is the first of its queue */
	struct kvc_facts facts;
	uint32_t since; /* the request that used it */
	float weight;
	uint32_t queue, bucket; /* the next one of each; of a free one: the next free */
};

struct kvc_learn {
	struct weight base[KVC_AGES], rhythm[RHYTHMS];
	struct weight one_hot[ONE_HOT][CLASSES], linear[LINEAR];
	struct kvc_index index;
	double edge[KVC_AGES + 1]; /* where a bucket of ages begins */
	struct record *record;
	uint32_t room, used, nrecords, free;
	uint32_t *bucket, nbuckets; /* by id; a power of two */
	uint32_t first[KVC_AGES], last[KVC_AGES];
	uint32_t slice;
};

/* What goes into a score. */
struct inputs {
	uint8_t class[ONE_HOT];
	float number[LINEAR];
};

static float sigmoid(float z)
{
	return 1 / (1 + expf(-z));
}

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

uint8_t kvc_learn_gap(float log2_gap)
{
	int c = log2_gap < 0 ? 0 : 1 + (int)(log2_gap * 1.5f);

	return (uint8_t)kvc_min((uint64_t)c, KVC_GAPS - 1);
}

/* Where in its rhythm is a chunk of this age: 20 is one gap after its use. */
static int rhythm_of(uint8_t gap, int age)
{
	int r;

	if (!gap)
		return 0;
	r = (int)floorf((float)age - (float)(gap - 1) / .75f + .5f) + 20;
	return r < 1 ? 1 : r > RHYTHMS - 1 ? RHYTHMS - 1 : r;
}

static float log4_of(const struct kvc_learn *l, unsigned n)
{
	return kvc_index_log2(&l->index, n) * .25f;
}

static void inputs_of(const struct kvc_learn *l, const struct kvc_facts *f, struct inputs *x)
{
	bool first = f->count == 1;

	x->class[0] = count_class(f->count);
	x->class[1] = (uint8_t)(length_class(f->fresh) + 13 * (first ? f->continues : 2));
	x->class[2] = f->tail ? first ? 1 : 2 : 0;
	x->class[3] = first ? count_class(f->deepest)
			    : (uint8_t)(10 + count_class(f->count) + (f->fresh ? 10 : 0));
	x->class[4] = length_class(f->length);
	x->class[5] = first ? 0 : (uint8_t)(1 + kvc_min(f->kids, 7) + (f->fresh ? 8 : 0));
	x->class[6] = length_class(f->distance);
	memset(x->number, 0, sizeof x->number);
	x->number[5] = log4_of(l, f->length);
	x->number[12] = !f->fresh;
	x->number[13] = f->count == 2;
	if (first) {
		x->number[0] = 1;
		x->number[2] = f->continues
				       ? log4_of(l, (unsigned)kvc_min(kvc_max(f->deepest, 1), 64))
				       : 0;
		x->number[3] = log4_of(l, 1u + f->fresh);
		x->number[6] = f->tail;
		x->number[7] = f->continues;
		x->number[11] = f->gap / 12.f;
	} else {
		x->number[1] = log4_of(l, f->count);
		x->number[4] = log4_of(l, 1u + f->fresh);
		x->number[8] = f->kids > 1;
		x->number[9] = log4_of(l, 1u + f->kids);
		x->number[10] = f->gap / 12.f;
	}
}

static float sum(const struct kvc_learn *l, const struct inputs *x)
{
	float s = 0;

	for (int i = 0; i < ONE_HOT; i++)
		s += l->one_hot[i][x->class[i]].w;
	for (int i = 0; i < LINEAR; i++)
		s += l->linear[i].w * x->number[i];
	return s;
}

uint8_t kvc_learn_score(const struct kvc_learn *l, const struct kvc_facts *f)
{
	struct inputs x;
	float s;

	inputs_of(l, f, &x);
	s = (sum(l, &x) - SCORE_LOW) / SCORE_STEP;
	return s < 0 ? 0 : s >= KVC_SCORES ? KVC_SCORES - 1 : (uint8_t)s;
}

/* error and curve: the first and second derivative of the loss by z. */
static void step(struct weight *w, float error, float curve, float x, float first)
{
	w->seen += curve * x * x;
	if (w->seen > SEEN_MAX)
		w->seen = SEEN_MAX;
	w->w -= RATE * error * x / (w->seen + first);
}

static void learn(struct kvc_learn *l, const struct record *r, int age, bool used)
{
	struct weight *rhythm = &l->rhythm[rhythm_of(r->facts.gap, age)];
	struct inputs x;
	float p, error, curve;

	inputs_of(l, &r->facts, &x);
	p = sigmoid(l->base[age].w + rhythm->w + sum(l, &x));
	error = (p - (float)used) * r->weight;
	curve = p * (1 - p) * r->weight;
	step(&l->base[age], error, curve, 1, RATE_BASE);
	step(rhythm, error, curve, 1, RATE_BASE);
	for (int i = 0; i < ONE_HOT; i++)
		step(&l->one_hot[i][x.class[i]], error, curve, 1, RATE_CLASS);
	for (int i = 0; i < LINEAR; i++)
		if (x.number[i] != 0)
			step(&l->linear[i], error, curve, x.number[i], RATE_BASE);
}

/* Records */

static void push(struct kvc_learn *l, int age, uint32_t i)
{
	l->record[i].queue = NONE;
	if (l->first[age] == NONE)
		l->first[age] = i;
	else
		l->record[l->last[age]].queue = i;
	l->last[age] = i;
}

static uint32_t *bucket_of(struct kvc_learn *l, uint64_t id)
{
	/* it was mixed when it was made an id of */
	return &l->bucket[(id * 0x9e3779b97f4a7c15u >> 40) & (l->nbuckets - 1)];
}

static void unhash(struct kvc_learn *l, uint32_t i)
{
	uint32_t *at = bucket_of(l, l->record[i].id);

	while (*at != i)
		at = &l->record[*at].bucket;
	*at = l->record[i].bucket;
	l->record[i].id = 0;
}

/* Takes the first of a queue off it. */
static uint32_t shift(struct kvc_learn *l, int age)
{
	uint32_t i = l->first[age];

	l->first[age] = l->record[i].queue;
	return i;
}

static void give_back(struct kvc_learn *l, uint32_t i)
{
	l->record[i].queue = l->free;
	l->free = i;
}

static int more_records(struct kvc_learn *l)
{
	uint32_t room = l->room ? l->room * 2 : 4096, *bucket;
	struct record *r = realloc(l->record, room * sizeof *r);

	if (!r)
		return -ENOMEM;
	l->record = r;
	bucket = malloc(room * sizeof *bucket);
	if (!bucket)
		return -ENOMEM;
	free(l->bucket);
	l->bucket = bucket;
	l->nbuckets = l->room = room;
	memset(bucket, 0xff, room * sizeof *bucket);
	for (uint32_t i = 0; i < l->used; i++)
		if (r[i].id) {
			uint32_t *at = bucket_of(l, r[i].id);

			r[i].bucket = *at;
			*at = i;
		}
	return 0;
}

/* A record that is in no queue, or NONE. */
static uint32_t take_record(struct kvc_learn *l)
{
	uint32_t i = l->free;

	if (i != NONE) {
		l->free = l->record[i].queue;
		return i;
	}
	if (l->used < l->room || (l->room < RECORDS && !more_records(l)))
		return l->used++;
	for (int age = KVC_AGES - 1; age >= 0; age--)
		if (l->first[age] != NONE) {
			i = shift(l, age);
			if (l->record[i].id)
				unhash(l, i);
			return i;
		}
	return NONE;
}

void kvc_learn_track(struct kvc_learn *l, uint64_t id, const struct kvc_facts *f, uint32_t now,
		     uint32_t chunks)
{
	uint32_t i = take_record(l), *at;

	if (i == NONE)
		return;
	l->record[i] = (struct record){ .id = id, .facts = *f, .since = now };
	l->record[i].weight = sqrtf((float)chunks);
	at = bucket_of(l, id);
	l->record[i].bucket = *at;
	*at = i;
	push(l, 0, i);
}

void kvc_learn_used(struct kvc_learn *l, uint64_t id, uint32_t now)
{
	uint32_t i = l->nbuckets ? *bucket_of(l, id) : NONE, age;

	while (i != NONE && l->record[i].id != id)
		i = l->record[i].bucket;
	if (i == NONE)
		return;
	age = (uint32_t)kvc_max(now - l->record[i].since, 1);
	learn(l, &l->record[i],
	      (int)kvc_min((uint64_t)(2 * log2f((float)age) + 1e-6f), KVC_AGES - 1), true);
	unhash(l, i);
}

static void make_row(struct kvc_learn *l, uint8_t gap);

void kvc_learn_advance(struct kvc_learn *l, uint32_t now)
{
	for (int age = KVC_AGES - 2; age >= 0; age--)
		while (l->first[age] != NONE) {
			struct record *r = &l->record[l->first[age]];

			if (r->id && now - r->since < l->edge[age + 1])
				break;
			if (!r->id) {
				give_back(l, shift(l, age));
				continue;
			}
			learn(l, r, age, false);
			push(l, age + 1, shift(l, age));
		}
	while (l->first[KVC_AGES - 1] != NONE && !l->record[l->first[KVC_AGES - 1]].id)
		give_back(l, shift(l, KVC_AGES - 1));
	if (now % SLICE == 0) {
		make_row(l, (uint8_t)l->slice);
		l->slice = (l->slice + 1) % KVC_GAPS;
	}
}

/* The index */

/*
 * With the chance to be unused up to bucket t known for all t, the points (time held, chance used),
 * summed up from the first bucket on, are a curve; the best ratio from a bucket on is the steepest
 * line from its point to a later one, and goes to the next corner of the curve's upper hull.
 */
static void make_row(struct kvc_learn *l, uint8_t gap)
{
	float z[KVC_AGES];

	for (int b = 0; b < KVC_AGES; b++)
		z[b] = l->base[b].w + l->rhythm[rhythm_of(gap, b)].w;
	for (int s = 0; s < KVC_SCORES; s++) {
		double held[KVC_AGES + 1] = { 0 }, used[KVC_AGES + 1] = { 0 }, unused = 1;
		float *row = l->index.of[gap][s];
		int hull[KVC_AGES + 1], n = 0;

		for (int b = 0; b < KVC_AGES; b++) {
			double h = sigmoid(z[b] + SCORE_LOW + SCORE_STEP * (float)s);
			double d = l->edge[b + 1] - l->edge[b];

			used[b + 1] = used[b] + unused * h;
			held[b + 1] = held[b] + unused * d * (1 - h / 2);
			unused = fmax(unused * (1 - h), 1e-200);
		}
		hull[n++] = KVC_AGES;
		for (int b = KVC_AGES - 1; b >= 0; b--) {
#define SLOPE(to) ((used[to] - used[b]) / (held[to] - held[b]))
			double best = SLOPE(hull[n - 1]), next;

			for (; n > 1 && (next = SLOPE(hull[n - 2])) >= best; n--)
				best = next;
			row[b] = (float)best;
#undef SLOPE
			hull[n++] = b;
		}
		row[KVC_AGES] = row[KVC_AGES - 1];
	}
}

const struct kvc_index *kvc_learn_index(const struct kvc_learn *l)
{
	return &l->index;
}

/* What it has learned, for people */

/* The end of what was written, as snprintf counts. */
static size_t put_text(char *to, size_t room, size_t at, const char *format, ...)
{
	va_list args;
	int n;

	if (at >= room)
		return at;
	va_start(args, format);
	n = vsnprintf(to + at, room - at, format, args);
	va_end(args);
	return at + (n > 0 ? (size_t)n : 0);
}

/* by: what its place stands for: its number, or a name. */
static size_t put_weights(char *to, size_t room, size_t at, const char *name,
			  const struct weight *w, int n, const char *const *by)
{
	at = put_text(to, room, at, "%s", name);
	for (int i = 0; i < n; i++) {
		char nr[16];

		snprintf(nr, sizeof nr, "%d", i);
		if (w[i].seen > 0)
			at = put_text(to, room, at, " %s:%.2f", by ? by[i] : nr, (double)w[i].w);
	}
	return put_text(to, room, at, "\n");
}

void kvc_learn_text(const struct kvc_learn *l, char *to, size_t room)
{
	static const char *const classes[ONE_HOT] = {
		"weights_uses",   "weights_fresh", "weights_tail",     "weights_deepest",
		"weights_length", "weights_kids",  "weights_distance",
	};
	static const char *const numbers[LINEAR] = {
		"new",     "uses",  "deepest", "new_fresh", "used_fresh", "length",    "new_tail",
		"goes_on", "forks", "kids",    "used_gap",  "new_gap",    "all_known", "second",
	};
	size_t at = 0;

	*to = 0;
	at = put_weights(to, room, at, "weights_age", l->base, KVC_AGES, NULL);
	at = put_weights(to, room, at, "weights_rhythm", l->rhythm, RHYTHMS, NULL);
	at = put_weights(to, room, at, "weights", l->linear, LINEAR, numbers);
	for (int i = 0; i < ONE_HOT; i++)
		at = put_weights(to, room, at, classes[i], l->one_hot[i], CLASSES, NULL);
}

/* What survives */

static void save_weights(struct kvc_out *o, const struct weight *w, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		kvc_out_float(o, w[i].w);
		kvc_out_float(o, w[i].seen);
	}
}

static void load_weights(struct kvc_in *in, struct weight *w, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		w[i].w = kvc_in_float(in);
		w[i].seen = kvc_in_float(in);
		in->bad |= fabsf(w[i].w) > WEIGHT_MOST || w[i].seen < 0 || w[i].seen > SEEN_MAX;
	}
}

static void save_record(struct kvc_out *o, const struct record *r, int age)
{
	const struct kvc_facts *f = &r->facts;
	const uint8_t small[] = {
		f->count, f->deepest,  f->kids,      f->gap,
		f->tail,  f->distance, f->continues, (uint8_t)age,
	};

	kvc_out_64(o, r->id);
	kvc_out_32(o, r->since);
	kvc_out_float(o, r->weight);
	kvc_out_32(o, (uint32_t)f->fresh << 16 | f->length);
	kvc_out_bytes(o, small, sizeof small);
}

static void load_record(struct kvc_learn *l, struct kvc_in *in)
{
	uint64_t id = kvc_in_64(in);
	struct record r = { .id = id, .since = kvc_in_32(in) };
	struct kvc_facts *f = &r.facts;
	uint32_t i, both;
	uint8_t age;

	r.weight = kvc_in_float(in);
	both = kvc_in_32(in);
	f->fresh = (uint16_t)(both >> 16);
	f->length = (uint16_t)both;
	f->count = kvc_in_8(in);
	f->deepest = kvc_in_8(in);
	f->kids = kvc_in_8(in);
	f->gap = kvc_in_8(in);
	f->tail = kvc_in_8(in);
	f->distance = kvc_in_8(in);
	f->continues = kvc_in_8(in);
	age = kvc_in_8(in);
	if (!id || !(r.weight >= 0 && r.weight <= WEIGHT_MOST) || f->gap >= KVC_GAPS ||
	    f->tail > 1 || f->distance > 2 || f->continues > 1 || age >= KVC_AGES)
		in->bad = true;
	if (in->bad || (i = take_record(l)) == NONE)
		return;
	r.bucket = *bucket_of(l, id);
	l->record[i] = r;
	*bucket_of(l, id) = i;
	push(l, age, i);
}

void kvc_learn_save(const struct kvc_learn *l, struct kvc_out *o)
{
	uint32_t waiting = 0, skip;

	kvc_out_32(o, l->slice);
	save_weights(o, l->base, KVC_AGES);
	save_weights(o, l->rhythm, RHYTHMS);
	for (int i = 0; i < ONE_HOT; i++)
		save_weights(o, l->one_hot[i], CLASSES);
	save_weights(o, l->linear, LINEAR);
	for (int gap = 0; gap < KVC_GAPS; gap++)
		for (int s = 0; s < KVC_SCORES; s++)
			for (int b = 0; b <= KVC_AGES; b++)
				kvc_out_float(o, l->index.of[gap][s][b]);
	for (int age = 0; age < KVC_AGES; age++)
		for (uint32_t i = l->first[age]; i != NONE; i = l->record[i].queue)
			waiting += l->record[i].id != 0;
	skip = waiting > SAVED ? waiting - SAVED : 0;
	kvc_out_32(o, waiting - skip);
	for (int age = KVC_AGES - 1; age >= 0; age--) /* the oldest first */
		for (uint32_t i = l->first[age]; i != NONE; i = l->record[i].queue)
			if (l->record[i].id && !skip)
				save_record(o, &l->record[i], age);
			else
				skip -= l->record[i].id != 0;
}

void kvc_learn_load(struct kvc_learn *l, struct kvc_in *in)
{
	l->slice = kvc_in_32(in);
	in->bad |= l->slice >= KVC_GAPS;
	load_weights(in, l->base, KVC_AGES);
	load_weights(in, l->rhythm, RHYTHMS);
	for (int i = 0; i < ONE_HOT; i++)
		load_weights(in, l->one_hot[i], CLASSES);
	load_weights(in, l->linear, LINEAR);
	for (int i = 0; i < KVC_GAPS * KVC_SCORES * (KVC_AGES + 1); i++) {
		float x = kvc_in_float(in);

		in->bad |= !(x >= 0 && x <= INDEX_MOST);
		l->index.of[i / (KVC_AGES + 1) / KVC_SCORES][i / (KVC_AGES + 1) % KVC_SCORES]
			   [i % (KVC_AGES + 1)] = x;
	}
	for (uint32_t n = kvc_in_count(in, SAVED, RECORD_BYTES); n && !in->bad; n--)
		load_record(l, in);
}

/* Its life */

struct kvc_learn *kvc_learn_new(void)
{
	struct kvc_learn *l = calloc(1, sizeof *l);

	if (!l)
		return NULL;
	l->free = NONE;
	for (int b = 0; b < KVC_AGES; b++) {
		l->base[b].w = BASE_FIRST;
		l->edge[b] = b ? pow(2, b * .5) : 0;
		l->first[b] = l->last[b] = NONE;
	}
	l->edge[KVC_AGES] = pow(2, KVC_AGES * .5);
	l->linear[1].w = COUNT_FIRST;
	for (unsigned n = 1; n < KVC_LOGS; n++)
		l->index.log2[n] = log2f((float)n);
	for (int gap = 0; gap < KVC_GAPS; gap++)
		make_row(l, (uint8_t)gap);
	return l;
}

void kvc_learn_free(struct kvc_learn *l)
{
	if (!l)
		return;
	free(l->record);
	free(l->bucket);
	free(l);
}

uint64_t kvc_learn_bytes(const struct kvc_learn *l)
{
	return sizeof *l + l->room * (sizeof *l->record + sizeof *l->bucket);
}
