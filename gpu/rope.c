/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RoPE on the host, and the sines and cosines for host and device. They are cached in a small table
 * under one lock, found by their parameters: delta, dims, the kind (enum way), and theta, the
 * frequencies or the table's row. If the table is full, the least recently used unreferenced entry
 * is replaced.
 */
#include "rope.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define KEPT 64

/* The kind of a rotation's parameters. The same bytes mean different rotations for different kinds.
 */
enum way { THETA, FREQUENCIES, TABLE };

struct kept {
	struct kvcachefs_rotation t; /* must be first: a pointer to it is a pointer to the entry */
	unsigned users;
	bool listed;
	uint64_t used;
	int64_t delta;
	enum way way;
	size_t len;
	uint8_t *of; /* its parameters */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *kept[KEPT];
static uint64_t now;
static unsigned long made;

KVCACHEFS_FREE_IN_CHILD(lock)

static uint32_t dims_of(const struct kvcachefs_rope *r, uint32_t head_size)
{
	return r->dims ? r->dims : head_size - r->first;
}

static uint64_t distance(int64_t delta)
{
	return delta < 0 ? -(uint64_t)delta : (uint64_t)delta;
}

int kvcachefs_rope_check(const struct kvcachefs_rope *r, uint32_t head_size)
{
	int ways = (r->theta != 0) + (r->inv_freq != NULL) + (r->cos_sin != NULL);

	if ((unsigned)r->type > KVCACHEFS_E5M2)
		return kvcachefs_fail(-EINVAL, "unknown element type %d", (int)r->type);
	if (r->first >= head_size || dims_of(r, head_size) % 2 ||
	    dims_of(r, head_size) > head_size - r->first)
		return kvcachefs_fail(
			-EINVAL,
			"a rotation of %u elements from element %u does not fit a head of %u",
			dims_of(r, head_size), r->first, head_size);
	if (ways != 1)
		return kvcachefs_fail(
			-EINVAL,
			"a rotation needs exactly one of a theta, frequencies and a table");
	if (!r->inv_freq && !r->cos_sin && (!(r->theta > 0) || !isfinite(r->theta)))
		return kvcachefs_fail(-EINVAL, "%g is not a valid base of a rotation", r->theta);
	if (r->cos_sin && distance(r->delta) >= r->rows)
		return kvcachefs_fail(
			-ERANGE, "the table of %llu positions does not have a rotation by %lld",
			(unsigned long long)r->rows, (long long)r->delta);
	return 0;
}

static enum way way_of(const struct kvcachefs_rope *r)
{
	return r->cos_sin ? TABLE : r->inv_freq ? FREQUENCIES : THETA;
}

static const void *made_of(const struct kvcachefs_rope *r, uint32_t dims, size_t *len)
{
	if (r->cos_sin) {
		*len = dims * sizeof(float);
		return r->cos_sin + distance(r->delta) * dims;
	}
	if (r->inv_freq) {
		*len = dims / 2 * sizeof(double);
		return r->inv_freq;
	}
	*len = sizeof r->theta;
	return &r->theta;
}

static void rotation_compute(const struct kvcachefs_rope *r, uint32_t dims, double *v)
{
	uint32_t half = dims / 2;

	for (uint32_t i = 0; i < half; i++) {
		double angle, length, c, s;

		if (r->cos_sin) {
			const float *row = r->cos_sin + distance(r->delta) * dims;

			c = row[i];
			s = r->delta < 0 ? -row[i + half] : row[i + half];
			length = hypot(c, s);
			v[2 * i] = length > 0 ? c / length : 1;
			v[2 * i + 1] = length > 0 ? s / length : 0;
			continue;
		}
		/* in double: positions reach millions, and a float's angle would be noise there */
		angle = (double)r->delta *
			(r->inv_freq ? r->inv_freq[i] : pow(r->theta, -2.0 * i / dims));
		v[2 * i] = cos(angle);
		v[2 * i + 1] = sin(angle);
	}
}

static void rotation_free(struct kept *k)
{
	if (k) {
		free(k->t.v);
		free(k->of);
		free(k);
	}
}

static struct kept *rotation_find_locked(const struct kvcachefs_rope *r, uint32_t dims,
					 const void *of, size_t len)
{
	for (int i = 0; i < KEPT; i++) {
		struct kept *k = kept[i];

		if (k && k->delta == r->delta && k->t.first == r->first && k->t.dims == dims &&
		    k->way == way_of(r) && k->len == len && !memcmp(k->of, of, len)) {
			k->users++;
			k->used = ++now;
			return k;
		}
	}
	return NULL;
}

/*
 * Stores the entry in a free place, or in the place of the least recently used unreferenced entry.
 * If there is no such place, the entry is not cached and only its user has it.
 */
static void rotation_store_locked(struct kept *k)
{
	int at = -1;

	for (int i = 0; i < KEPT; i++) {
		if (!kept[i]) {
			at = i;
			break;
		}
		if (!kept[i]->users && (at < 0 || kept[i]->used < kept[at]->used))
			at = i;
	}
	if (at < 0)
		return;
	rotation_free(kept[at]);
	kept[at] = k;
	k->listed = true;
	k->used = ++now;
}

int kvcachefs_rotation_get(const struct kvcachefs_rope *r, uint32_t head_size,
			   const struct kvcachefs_rotation **out)
{
	uint32_t dims = dims_of(r, head_size);
	size_t len;
	const void *of = made_of(r, dims, &len);
	struct kept *k, *other;

	pthread_mutex_lock(&lock);
	k = rotation_find_locked(r, dims, of, len);
	pthread_mutex_unlock(&lock);
	if (k) {
		*out = &k->t;
		return 0;
	}
	k = calloc(1, sizeof *k);
	if (!k || !(k->t.v = malloc(dims * sizeof(double) + 1)) || !(k->of = malloc(len + 1))) {
		rotation_free(k);
		return kvcachefs_fail(-ENOMEM, "out of memory");
	}
	k->t.first = r->first;
	k->t.dims = dims;
	k->delta = r->delta;
	k->way = way_of(r);
	k->len = len;
	memcpy(k->of, of, len);
	rotation_compute(r, dims, k->t.v);
	k->users = 1;
	pthread_mutex_lock(&lock);
	made++;
	other = rotation_find_locked(r, dims, of, len); /* another thread was faster */
	if (!other)
		rotation_store_locked(k);
	pthread_mutex_unlock(&lock);
	if (other) {
		rotation_free(k);
		k = other;
	}
	*out = &k->t;
	return 0;
}

void kvcachefs_rotation_put(const struct kvcachefs_rotation *t)
{
	struct kept *k = (struct kept *)(uintptr_t)t;
	bool gone;

	if (!t)
		return;
	pthread_mutex_lock(&lock);
	gone = !--k->users && !k->listed;
	pthread_mutex_unlock(&lock);
	if (gone)
		rotation_free(k);
}

unsigned long kvcachefs_rotations_made(void)
{
	unsigned long n;

	pthread_mutex_lock(&lock);
	n = made;
	pthread_mutex_unlock(&lock);
	return n;
}

static float get(const uint8_t *p, enum kvcachefs_float type)
{
	uint32_t u = 0;
	float f;

	if (type >= KVCACHEFS_E4M3)
		return kvcachefs_from_fp8(*p, type == KVCACHEFS_E5M2);
	if (type == KVCACHEFS_F16) {
		_Float16 h;

		memcpy(&h, p, 2);
		return (float)h;
	}
	memcpy((uint8_t *)&u + (type == KVCACHEFS_BF16 ? 2 : 0), p, type == KVCACHEFS_BF16 ? 2 : 4);
	memcpy(&f, &u, 4);
	return f;
}

/* Rounds to nearest, ties to even. */
static void set(uint8_t *p, enum kvcachefs_float type, float f)
{
	uint32_t u;

	if (type >= KVCACHEFS_E4M3) {
		*p = kvcachefs_to_fp8(f, type == KVCACHEFS_E5M2);
		return;
	}
	if (type == KVCACHEFS_F16) {
		_Float16 h = (_Float16)f;

		memcpy(p, &h, 2);
		return;
	}
	memcpy(&u, &f, 4);
	if (type == KVCACHEFS_BF16) {
		if ((u & 0x7fffffff) <= 0x7f800000) /* not for a NaN */
			u += 0x7fff + (u >> 16 & 1);
		u >>= 16;
		memcpy(p, &u, 2);
	} else {
		memcpy(p, &u, 4);
	}
}

void kvcachefs_rotate(const struct kvcachefs_rotation *t, const struct kvcachefs_rope *r,
		      void *keys, size_t n, size_t width)
{
	size_t elem = kvcachefs_float_size(r->type), half = t->dims / 2;

	for (size_t k = 0; k < n; k++) {
		uint8_t *head = (uint8_t *)keys + (k * width + t->first) * elem;

		for (size_t i = 0; i < half; i++) {
			uint8_t *a = head + (r->interleaved ? 2 * i : i) * elem,
				*b = head + (r->interleaved ? 2 * i + 1 : i + half) * elem;
			double x = get(a, r->type), y = get(b, r->type), c = t->v[2 * i],
			       s = t->v[2 * i + 1];

			set(a, r->type, (float)(x * c - y * s));
			set(b, r->type, (float)(y * c + x * s));
		}
	}
}

int kvcachefs_rope_shift(const struct kvcachefs_rope *r, void *keys, size_t n, uint32_t heads,
			 uint32_t head_size)
{
	const struct kvcachefs_rotation *t;
	int err = kvcachefs_rope_check(r, head_size);

	if (!err)
		err = kvcachefs_rotation_get(r, head_size, &t);
	if (err)
		return err;
	kvcachefs_rotate(t, r, keys, n * heads, head_size);
	kvcachefs_rotation_put(t);
	return 0;
}

/* ---- Frequencies with the scaling of models ---- */

static int check_scaling(double theta, uint32_t dims, double factor, double a, double b,
			 double original)
{
	if (!(theta > 1) || !dims || dims % 2 || !(factor > 0) || !(a > 0) || !(b > 0) || a == b ||
	    !(original > 0) || !isfinite(theta + factor + a + b + original))
		return kvcachefs_fail(-EINVAL,
				      "frequencies of base %g, %u dimensions, factor %g, %g and "
				      "%g, %g positions are not valid",
				      theta, dims, factor, a, b, original);
	return 0;
}

int kvcachefs_rope_llama3(double theta, uint32_t dims, double factor, double low, double high,
			  double original, double *out)
{
	int err = check_scaling(theta, dims, factor, low, high, original);

	for (uint32_t i = 0; !err && i < dims / 2; i++) {
		double f = pow(theta, -2.0 * i / dims), wave = 2 * M_PI / f,
		       smooth = (original / wave - low) / (high - low);

		/* long waves are stretched, short ones are not, and those between partly */
		if (wave > original / low)
			out[i] = f / factor;
		else if (wave < original / high)
			out[i] = f;
		else
			out[i] = (1 - smooth) * f / factor + smooth * f;
	}
	return err;
}

/* Returns the dimension whose pair rotates `turns` times over the original positions. */
static double turns_dimension(double turns, uint32_t dims, double theta, double original)
{
	return dims * log(original / (turns * 2 * M_PI)) / (2 * log(theta));
}

int kvcachefs_rope_yarn(double theta, uint32_t dims, double factor, double beta_fast,
			double beta_slow, double original, double *out)
{
	int err = check_scaling(theta, dims, factor, beta_fast, beta_slow, original);
	double low, high;

	if (err)
		return err;
	low = fmax(floor(turns_dimension(beta_fast, dims, theta, original)), 0);
	high = fmin(ceil(turns_dimension(beta_slow, dims, theta, original)), dims - 1);
	if (low == high)
		high += 0.001;
	for (uint32_t i = 0; i < dims / 2; i++) {
		double f = pow(theta, -2.0 * i / dims),
		       ramp = fmin(fmax((i - low) / (high - low), 0), 1);

		out[i] = f / factor * ramp + f * (1 - ramp);
	}
	return 0;
}
