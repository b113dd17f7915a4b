/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of kvq (kvq.h): their head and tables, the steps, the check of the loss, and the checks of
 * the decoder. kvq_kernels.c has the loops over elements.
 *
 * A coded block, little endian:
 *
 *   head        struct head below, KVC_KVQ_HEAD bytes
 *   edges       the bytes before the first vector, then those after the last one
 *   classes     for each class d means (2 bytes, of the elements' type) and d steps (1 byte)
 *   steps       1 byte for each other vector
 *   escapes     2 bytes for each symbol 0x80, in the order of the block
 *   symbols     of all classes in the order of the block, then those of the other vectors
 *
 * The layout and the place of the first vector determine the classes, so the decoder computes them
 * as the encoder did. A step is 5 bits of exponent and 3 of mantissa, from 2^-24 to almost 2^8.
 */
/* no multiplication and addition are fused, so that every CPU computes the same steps */
#pragma GCC optimize("fp-contract=off")
#ifdef __clang__
#pragma clang fp contract(off)
#endif
#include "kvq.h"

#include "kvq_kernels.h"

#include <endian.h>
#include <math.h>
#include <string.h>

#define SETTINGS 3u
#define ESCAPES_PART 16u /* a setting is useless if it has more escapes than elements / 16 */
#define BOUND 0.45f      /* relative error, in steps; for a normal distribution it is 0.29 */
#define FP8_BOUND 0.07f  /* rounding to four significant bits gives at most 1/16 */

const char *const kvc_kvq_names[] = { "kvq-high", "kvq-mid", "kvq-low", "fp8", NULL };

struct head {
	uint8_t element, method, setting, naxes;
	uint32_t before;  /* bytes before the first vector */
	uint32_t vectors; /* whole vectors */
	uint32_t escapes;
	uint32_t symbols_len;   /* stored length of the symbols */
	uint32_t error, energy; /* of struct kvc_kvq_loss, as bits of floats */
	uint32_t zero;
	uint64_t first; /* number of the first vector in the layout */
	struct {
		uint8_t name, zero[3];
		uint32_t size;
	} axis[KVC_KV_AXES];
};
_Static_assert(sizeof(struct head) == KVC_KVQ_HEAD, "the head is part of the format");

enum { QUANTISED, FP8, METHODS };

/* The steps of the codes: for keys, and for values. */
static const struct {
	float key, value;
} coarseness[KVC_KVQ_CODES] = {
	[KVC_KVQ_HIGH] = { 1 / 16.0f, 1 / 8.0f },
	[KVC_KVQ_MID] = { 1 / 8.0f, 1 / 4.0f },
	[KVC_KVQ_LOW] = { 1 / 4.0f, 1 / 2.0f },
};

struct kvc_kvq {
	const struct kvc_kvq_kernels *kernels;
	struct kvc_kv_layout layout;
	enum kvc_kvq_code code; /* of the encoder */
	int method;
	bool value_classes; /* values have classes, too: kvc_kvq_means */
	unsigned setting;
	const uint8_t *in;         /* the block to encode, or the coded block */
	size_t len, before, bytes; /* length of the block; bytes before the vectors, and in them */
	uint64_t first;
	uint32_t alone, escapes;
	const uint8_t *edges, *tables, *steps, *raw; /* parts of the coded block, when decoding */
	uint8_t values[KVC_KVQ_CLASSES];             /* whether a class has values */
	/* for each combination of k, l and h: its vectors, those so far, and its current class */
	uint16_t count[KVC_KV_KEYS_MAX], seen[KVC_KV_KEYS_MAX], current[KVC_KV_KEYS_MAX];
	struct kvc_kvq_block b;
};

struct kvc_kvq *kvc_kvq_new(void)
{
	struct kvc_kvq *q = malloc(sizeof *q);

	if (q)
		q->kernels = kvc_kvq_kernels_get(0);
	return q;
}

void kvc_kvq_free(struct kvc_kvq *q)
{
	free(q);
}

size_t kvc_kvq_memory(void)
{
	return sizeof(struct kvc_kvq);
}

void kvc_kvq_wipe(struct kvc_kvq *q)
{
	explicit_bzero(&q->b, sizeof q->b);
}

bool kvc_kvq_use(struct kvc_kvq *q, unsigned kernels)
{
	const struct kvc_kvq_kernels *k = kvc_kvq_kernels_get(kernels);

	q->kernels = k ? k : q->kernels;
	return k != NULL;
}

static float step_of(uint8_t code)
{
	uint32_t bits = ((uint32_t)code << 20) + ((127u - 24) << 23);
	float f;

	memcpy(&f, &bits, 4);
	return f;
}

/* Returns the nearest step. A NaN becomes the largest one. */
static uint8_t step_code(float f)
{
	uint32_t bits;
	int64_t n;

	memcpy(&bits, &f, 4);
	n = ((int64_t)bits + (1 << 19) - (int64_t)((127u - 24) << 23)) >> 20;
	return (uint8_t)(n < 0 ? 0 : n > 255 ? 255 : n);
}

/* Sets of[] to the number of the combination of k, l and h of each vector, and counts them. */
static void number_keys(struct kvc_kvq *q, uint32_t keys)
{
	const struct kvc_kv_layout *l = &q->layout;
	uint32_t weight[KVC_KV_AXES] = { 0 }, digit[KVC_KV_AXES], key = 0, w = 1;
	int last = l->naxes - 2;
	uint64_t rest = q->first;

	/* k has the largest weight, so that all values have higher numbers than all keys */
	for (const char *names = "hlk"; *names; names++)
		for (int i = 0; i <= last; i++)
			if (l->axis[i].name == *names) {
				weight[i] = w;
				w *= l->axis[i].size;
			}
	for (int i = last; i >= 0; i--) {
		digit[i] = l->axis[i].size ? (uint32_t)(rest % l->axis[i].size) : 0;
		rest = l->axis[i].size ? rest / l->axis[i].size : 0;
		key += digit[i] * weight[i];
	}
	memset(q->count, 0, keys * sizeof *q->count);
	memset(q->seen, 0, keys * sizeof *q->seen);
	for (uint32_t v = 0; v < q->b.vectors; v++) {
		q->b.of[v] = (uint16_t)key;
		q->count[key]++;
		for (int i = last; i >= 0; i--) {
			key += weight[i];
			if (++digit[i] != l->axis[i].size)
				break;
			key -= weight[i] * digit[i];
			digit[i] = 0;
		}
	}
}

/* Assigns each vector to a class, or marks it as a lone vector (kvq_kernels.h). */
static void divide(struct kvc_kvq *q)
{
	uint32_t half = kvc_kv_layout_axis(&q->layout, 'l') * kvc_kv_layout_axis(&q->layout, 'h');
	uint32_t keys = half * kvc_kv_layout_axis(&q->layout, 'k');
	struct kvc_kvq_block *b = &q->b;

	b->classes = b->in_classes = 0;
	if (q->method == FP8) {
		memset(b->of, 0xff, b->vectors * sizeof *b->of);
		q->alone = b->vectors;
		return;
	}
	number_keys(q, keys);
	for (uint32_t v = 0; v < b->vectors; v++) {
		uint32_t key = b->of[v], nth = q->seen[key]++;
		bool value = key >= half;

		if (nth % KVC_KVQ_CLASS_MAX == 0) {
			q->current[key] = value ? KVC_KVQ_ALONE_VALUE : KVC_KVQ_ALONE;
			if (q->count[key] - nth >= KVC_KVQ_TOKENS && (!value || q->value_classes)) {
				q->values[b->classes] = value;
				q->current[key] = (uint16_t)b->classes++;
			}
		}
		b->of[v] = q->current[key];
		b->in_classes += b->of[v] < KVC_KVQ_ALONE;
	}
	q->alone = b->vectors - b->in_classes;
}

/* Sets the members that depend on the layout and on the place of the block. */
static void place(struct kvc_kvq *q, size_t len, size_t before, uint32_t vectors)
{
	q->len = len;
	q->before = before;
	q->b.vectors = vectors;
	q->b.d = q->layout.axis[q->layout.naxes - 1].size;
	q->b.half = q->layout.element == KVC_KV_FP16;
	q->bytes = (size_t)vectors * kvc_kv_layout_vector(&q->layout);
	divide(q);
}

/* Finds the whole vectors of a block. Returns false if it has none. */
static bool locate(struct kvc_kvq *q, const struct kvc_kv_layout *l, uint64_t vectors, uint64_t off,
		   size_t len)
{
	uint64_t vector = kvc_kv_layout_vector(l), end, first;

	if (off + len <= l->at || len > KVC_KVQ_BLOCK)
		return false;
	first = off > l->at ? (off - l->at + vector - 1) / vector : 0;
	end = kvc_min((off + len - l->at) / vector, vectors);
	if (first >= end)
		return false;
	q->layout = *l;
	q->first = first;
	place(q, len, (size_t)(l->at + first * vector - off), (uint32_t)(end - first));
	return true;
}

/* Returns whether the elements that `sums` has read, and their squares, are finite. */
static bool sums_finite(const struct kvc_kvq_block *b)
{
	float bad = 0; /* becomes NaN, because the product of 0 and an infinity is NaN */

	for (size_t i = 0; i < (size_t)b->classes * b->d; i++)
		bad += 0 * b->squares[i];
	for (uint32_t v = 0; v < b->vectors; v++)
		bad += b->of[v] < KVC_KVQ_ALONE ? 0 : 0 * b->energy[v];
	return bad == 0;
}

unsigned kvc_kvq_start(struct kvc_kvq *q, enum kvc_kvq_code code, const struct kvc_kv_layout *l,
		       uint64_t vectors, uint64_t off, const uint8_t *in, size_t len)
{
	q->code = code;
	q->method = code == KVC_KVQ_FP8 ? FP8 : QUANTISED;
	q->value_classes = false;
	q->in = in;
	if (!locate(q, l, vectors, off, len))
		return 0;
	if (q->method == FP8)
		return q->kernels->finite(&q->b, in + q->before);
	q->kernels->sums(&q->b, in + q->before);
	return sums_finite(&q->b) ? SETTINGS : 0;
}

void kvc_kvq_means(struct kvc_kvq *q, const struct kvc_kv_layout *l, uint64_t vectors, uint64_t off,
		   const uint8_t *in, size_t len, double mean[2], double all[2])
{
	const struct kvc_kvq_block *b = &q->b;

	q->method = QUANTISED;
	q->value_classes = true;
	if (!locate(q, l, vectors, off, len) || !q->kernels->finite(&q->b, in + q->before))
		return;
	q->kernels->sums(&q->b, in + q->before);
	for (uint32_t c = 0; c < b->classes; c++)
		for (size_t i = (size_t)c * b->d; i < (size_t)(c + 1) * b->d; i++) {
			double n = b->members[c], first = b->first[i], sum = b->sum[i];
			double m = first + sum / n;

			mean[q->values[c]] += n * m * m;
			all[q->values[c]] += b->squares[i] + 2 * first * sum + n * first * first;
		}
}

/* Returns the size of a step of this setting, relative to the deviation of the elements. */
static float coarse(const struct kvc_kvq *q, uint16_t of)
{
	float c = of == KVC_KVQ_ALONE_VALUE ? coarseness[q->code].value : coarseness[q->code].key;

	/* without means of channels, keys need finer steps for the same error of attention */
	if (of == KVC_KVQ_ALONE)
		c /= 2;
	return c / (float)(1u << q->setting);
}

/*
 * Computes means and steps of class c, and writes them to `table`. Returns false if a mean is not
 * finite.
 */
static bool class_table(struct kvc_kvq *q, uint32_t c, uint8_t *table)
{
	struct kvc_kvq_block *b = &q->b;
	size_t d = b->d, at = c * d;
	float *mean = b->mean + at, *step = b->step + at, *inverse = b->inverse + at;
	float scale = 1.0f / b->members[c], rms;
	double total = 0;

	for (size_t i = 0; i < d; i++) {
		float m = b->sum[at + i] * scale, var = b->squares[at + i] * scale - m * m;
		uint16_t e = kvc_kvq_kernels_element(b->half, b->first[at + i] + m);

		mean[i] = kvc_kvq_kernels_value(b->half, e);
		if (!isfinite(mean[i]))
			return false;
		e = htole16(e);
		memcpy(table + 2 * i, &e, 2);
		step[i] = var > 0 ? var : 0; /* the variance, until the next loop */
		total += step[i];
	}
	rms = sqrtf((float)(total / (double)d));
	for (size_t i = 0; i < d; i++) {
		uint8_t code = step_code(coarse(q, 0) * sqrtf(sqrtf(step[i]) * rms));

		table[2 * d + i] = code;
		step[i] = step_of(code);
		inverse[i] = 1.0f / step[i];
	}
	return true;
}

static void vector_steps(struct kvc_kvq *q, uint8_t *steps)
{
	struct kvc_kvq_block *b = &q->b;

	for (uint32_t v = 0; v < b->vectors; v++)
		if (b->of[v] >= KVC_KVQ_ALONE) {
			float rms = sqrtf(b->energy[v] / (float)b->d);

			*steps = step_code(coarse(q, b->of[v]) * rms);
			b->vector_step[v] = step_of(*steps++);
		}
}

/*
 * Copies the stored elements to the places of the symbols 0x80. Returns the number of these
 * symbols, or escapes + 1 if there are more.
 */
static uint32_t escapes_get(const struct kvc_kvq *q, uint8_t *to)
{
	const struct kvc_kvq_block *b = &q->b;
	const uint8_t *shared = b->sym, *alone = b->sym + (size_t)b->in_classes * b->d;
	uint32_t n = 0;

	for (uint32_t v = 0; v < b->vectors; v++) {
		const uint8_t **sym = b->of[v] >= KVC_KVQ_ALONE ? &alone : &shared, *at = *sym;

		*sym += b->d;
		while ((at = memchr(at, KVC_KVQ_ESCAPE, (size_t)(*sym - at)))) {
			if (n == q->escapes)
				return n + 1;
			memcpy(to + 2 * ((size_t)v * b->d + b->d - (size_t)(*sym - at)),
			       q->raw + 2 * (size_t)n, 2);
			n++;
			at++;
		}
	}
	return n;
}

static void head_put(const struct kvc_kvq *q, uint8_t *out)
{
	struct head h = {
		.element = q->layout.element,
		.method = (uint8_t)q->method,
		.setting = (uint8_t)q->setting,
		.naxes = q->layout.naxes,
		.before = htole32((uint32_t)q->before),
		.vectors = htole32(q->b.vectors),
		.escapes = htole32(q->escapes),
		.first = htole64(q->first),
	};

	for (int i = 0; i < q->layout.naxes; i++) {
		h.axis[i].name = (uint8_t)q->layout.axis[i].name;
		h.axis[i].size = htole32(q->layout.axis[i].size);
	}
	memcpy(out, &h, sizeof h);
}

/* Returns the length of all parts between the head and the symbols. */
static size_t parts_len(const struct kvc_kvq *q)
{
	return q->len - q->bytes + 3 * (size_t)q->b.classes * q->b.d + q->alone +
	       2 * (size_t)q->escapes;
}

size_t kvc_kvq_encode(struct kvc_kvq *q, unsigned setting, uint8_t *out, size_t capacity,
		      const uint8_t **sym, size_t *nsym, uint8_t *back)
{
	const uint8_t *x = q->in + q->before;
	uint8_t *y = back + q->before;
	struct kvc_kvq_block *b = &q->b;
	size_t elements = q->bytes / 2, after = q->len - q->before - q->bytes;
	uint8_t *edges = out + KVC_KVQ_HEAD, *table = edges + q->before + after;
	uint8_t *steps = table + 3 * (size_t)b->classes * b->d;

	q->setting = setting;
	q->escapes = 0;
	if (KVC_KVQ_HEAD + parts_len(q) + 2 * (elements / ESCAPES_PART) > capacity)
		return 0;
	memcpy(edges, q->in, q->before);
	memcpy(edges + q->before, x + q->bytes, after);
	memcpy(back, edges, q->before);
	memcpy(y + q->bytes, edges + q->before, after);
	if (q->method == FP8) {
		q->kernels->fp8_encode(b, x, steps);
		q->kernels->fp8_decode(b, steps, y);
		q->kernels->measure(b, x, y);
	} else {
		for (uint32_t c = 0; c < b->classes; c++, table += 3 * (size_t)b->d)
			if (!class_table(q, c, table))
				return 0;
		vector_steps(q, steps);
		q->escapes = q->kernels->quantise(b, x, y, steps + q->alone,
						  (uint32_t)elements / ESCAPES_PART);
		if (q->escapes > elements / ESCAPES_PART)
			return 0;
	}
	head_put(q, out);
	*sym = b->sym;
	*nsym = elements;
	return KVC_KVQ_HEAD + parts_len(q);
}

void kvc_kvq_finish(const struct kvc_kvq *q, uint8_t *out, size_t symbols_len)
{
	uint32_t n = htole32((uint32_t)symbols_len);

	(void)q;
	memcpy(out + offsetof(struct head, symbols_len), &n, 4);
}

/*
 * Whether the error of a class, or of a lone vector (`of`), is within its bound, which is relative
 * to the size of a step, or fixed for fp8. False if the error or the energy is not a number.
 */
static bool within(const struct kvc_kvq *q, double error, double energy, uint16_t of)
{
	double bound = q->method == FP8 ? FP8_BOUND : BOUND * coarse(q, of);

	return isfinite(energy) && error <= bound * bound * energy;
}

/* Whether the squares of a vector are all too small for a float, but the vector is not zero. */
static bool vanishing(const struct kvc_kvq *q, uint32_t v)
{
	const uint8_t *x = q->in + q->before + 2 * (size_t)v * q->b.d;
	uint8_t any = 0;

	if (q->b.energy[v] > 0)
		return false;
	for (uint32_t i = 0; i < q->b.d; i++)
		any |= (uint8_t)(x[2 * i] | (x[2 * i + 1] & 0x7f));
	return any;
}

/* Whether at most half of the elements that are not zero were lost. */
static bool most_kept(const struct kvc_kvq *q, const uint8_t *back)
{
	uint32_t nonzero, lost;

	/* counting the lost elements takes longer, and they are no more than the zeros */
	if (q->b.zeros <= q->bytes / 2 / 2)
		return true;
	lost = q->kernels->lost(&q->b, q->in + q->before, back + q->before, &nonzero);
	return lost <= nonzero / 2;
}

bool kvc_kvq_judge(struct kvc_kvq *q, const uint8_t *back, uint8_t *out, struct kvc_kvq_loss *loss)
{
	struct kvc_kvq_block *b = &q->b;
	double class_error[KVC_KVQ_CLASSES], class_energy[KVC_KVQ_CLASSES];
	double error = 0, energy = 0;
	uint32_t bits[2];

	memset(class_error, 0, b->classes * sizeof *class_error);
	memset(class_energy, 0, b->classes * sizeof *class_energy);
	for (uint32_t v = 0; v < b->vectors; v++) {
		error += b->error[v];
		energy += b->energy[v];
		if (b->of[v] < KVC_KVQ_ALONE) {
			class_error[b->of[v]] += b->error[v];
			class_energy[b->of[v]] += b->energy[v];
		} else if (!within(q, b->error[v], b->energy[v], b->of[v]) || vanishing(q, v)) {
			return false;
		}
	}
	for (uint32_t c = 0; c < b->classes; c++)
		if (!within(q, class_error[c], class_energy[c], 0))
			return false;
	if (!most_kept(q, back))
		return false;
	loss->error = (float)error;
	loss->energy = (float)energy;
	for (int i = 0; i < 2; i++) {
		memcpy(&bits[i], i ? &loss->energy : &loss->error, 4);
		bits[i] = htole32(bits[i]);
	}
	memcpy(out + offsetof(struct head, error), bits, sizeof bits);
	return true;
}

/* Checks a head from outside, and decodes it. */
static int head_get(const uint8_t *in, size_t stored, struct head *h, struct kvc_kv_layout *l)
{
	if (stored < KVC_KVQ_HEAD)
		return -EBADMSG;
	memcpy(h, in, sizeof *h);
	if (h->method >= METHODS || h->naxes > KVC_KV_AXES || h->zero)
		return -EBADMSG;
	*l = (struct kvc_kv_layout){ .element = h->element, .naxes = h->naxes };
	for (int i = 0; i < KVC_KV_AXES; i++) {
		if (h->axis[i].zero[0] | h->axis[i].zero[1] | h->axis[i].zero[2] ||
		    (i >= h->naxes && (h->axis[i].name || h->axis[i].size)))
			return -EBADMSG;
		if (i < h->naxes) {
			l->axis[i].name = (char)h->axis[i].name;
			l->axis[i].size = le32toh(h->axis[i].size);
		}
	}
	h->before = le32toh(h->before);
	h->vectors = le32toh(h->vectors);
	h->escapes = le32toh(h->escapes);
	h->symbols_len = le32toh(h->symbols_len);
	h->first = le64toh(h->first);
	return kvc_kv_layout_check(l, NULL) ? -EBADMSG : 0;
}

int kvc_kvq_open(struct kvc_kvq *q, const uint8_t *in, size_t stored, size_t len, uint8_t **sym,
		 size_t *nsym, const uint8_t **from, size_t *from_len)
{
	size_t vector, elements;
	struct head h;
	int err = head_get(in, stored, &h, &q->layout);

	if (err)
		return err;
	vector = kvc_kv_layout_vector(&q->layout);
	if (len > KVC_KVQ_BLOCK || stored > KVC_KVQ_BLOCK || !h.vectors || h.before > len ||
	    h.vectors > (len - h.before) / vector)
		return -EBADMSG;
	elements = h.vectors * vector / 2;
	q->method = h.method;
	q->value_classes = false;
	q->first = h.first;
	q->escapes = h.escapes;
	if (h.escapes > elements || h.symbols_len > elements)
		return -EBADMSG;
	place(q, len, h.before, h.vectors);
	if (KVC_KVQ_HEAD + parts_len(q) + h.symbols_len != stored)
		return -EBADMSG;
	q->edges = in + KVC_KVQ_HEAD;
	q->tables = q->edges + (len - q->bytes);
	q->steps = q->tables + 3 * (size_t)q->b.classes * q->b.d;
	q->raw = q->steps + q->alone;
	*sym = q->b.sym;
	*nsym = elements;
	*from = in + (stored - h.symbols_len);
	*from_len = h.symbols_len;
	return 0;
}

/* Reads the tables of classes and the steps of vectors. Returns 0 or -EBADMSG. */
static int tables_get(struct kvc_kvq *q)
{
	struct kvc_kvq_block *b = &q->b;
	const uint8_t *table = q->tables, *steps = q->steps;
	size_t d = b->d;

	for (uint32_t c = 0; c < b->classes; c++, table += 3 * d)
		for (size_t i = 0; i < d; i++) {
			uint16_t e;

			memcpy(&e, table + 2 * i, 2);
			b->mean[c * d + i] = kvc_kvq_kernels_value(b->half, le16toh(e));
			b->step[c * d + i] = step_of(table[2 * d + i]);
			if (!isfinite(b->mean[c * d + i]))
				return -EBADMSG;
		}
	for (uint32_t v = 0; v < b->vectors; v++)
		if (b->of[v] >= KVC_KVQ_ALONE)
			b->vector_step[v] = step_of(*steps++);
	return 0;
}

int kvc_kvq_decode(struct kvc_kvq *q, uint8_t *out)
{
	uint8_t *y = out + q->before;
	size_t after = q->len - q->before - q->bytes;

	memcpy(out, q->edges, q->before);
	memcpy(y + q->bytes, q->edges + q->before, after);
	if (q->method == FP8) {
		if (q->escapes)
			return -EBADMSG;
		q->kernels->fp8_decode(&q->b, q->steps, y);
		return 0;
	}
	if (tables_get(q))
		return -EBADMSG;
	q->kernels->dequantise(&q->b, y);
	if (q->escapes && escapes_get(q, y) != q->escapes)
		return -EBADMSG;
	return 0;
}

int kvc_kvq_describe(const uint8_t *in, size_t stored, struct kvc_kv_layout *l, bool *fp8,
		     struct kvc_kvq_loss *loss)
{
	struct kvc_kv_layout layout;
	struct head h;
	int err = head_get(in, stored, &h, &layout);
	uint32_t bits[2] = { le32toh(h.error), le32toh(h.energy) };
	struct kvc_kvq_loss read;

	if (err)
		return err;
	memcpy(&read.error, &bits[0], 4);
	memcpy(&read.energy, &bits[1], 4);
	if (!(read.error >= 0 && isfinite(read.error) && read.energy >= 0 && isfinite(read.energy)))
		return -EBADMSG;
	if (l)
		*l = layout;
	if (fp8)
		*fp8 = h.method == FP8;
	if (loss)
		*loss = read;
	return 0;
}
