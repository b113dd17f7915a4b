/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns of a rotation, kept by value; and fp8, by the same arithmetic on the host and in the
 * kernels.
 */
#ifndef KVCACHEFS_ROPE_H
#define KVCACHEFS_ROPE_H

#include "priv.h"

#include <math.h>

#ifdef __CUDACC__
#define KVCACHEFS_BOTH __host__ __device__
#else
#define KVCACHEFS_BOTH
#endif

/*
 * e4m3fn: 3 bits of mantissa, bias 7, all ones is NaN. e5m2: 2 bits, bias 15, infinities and NaNs
 * as IEEE has them.
 */
static inline KVCACHEFS_BOTH float kvcachefs_from_fp8(uint8_t b, bool e5m2)
{
	int mant = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, e = (b & 0x7f) >> mant,
	    m = b & ((1 << mant) - 1);
	float v;

	if (e5m2 ? e == 31 : (b & 0x7f) == 0x7f)
		v = e5m2 && !m ? INFINITY : NAN;
	else
		v = e ? ldexpf((float)((1 << mant) + m), e - bias - mant)
		      : ldexpf((float)m, 1 - bias - mant);
	return b >> 7 ? -v : v;
}

/* To nearest, ties to even; too large a number is the largest (CUDA's satfinite). */
static inline KVCACHEFS_BOTH uint8_t kvcachefs_to_fp8(float v, bool e5m2)
{
	int mant = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, e;
	float a = fabsf(v), most = e5m2 ? 57344.f : 448.f;
	uint8_t sign = signbit(v) ? 0x80 : 0;

	if (v != v)
		return sign | 0x7f;
	if (a >= most)
		return sign | (e5m2 ? 0x7b : 0x7e);
	if (a == 0)
		return sign;
	frexpf(a, &e);
	e = e - 1 < 1 - bias ? 1 - bias : e - 1; /* below that, steps stay as large */
	return (uint8_t)(sign |
			 (((e + bias) << mant) + (int)rintf(ldexpf(a, mant - e)) - (1 << mant)));
}

struct kvcachefs_turns {
	uint32_t first, dims;
	double *v; /* cos and sin of each pair */
};

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(hidden)
/* 0, -EINVAL or -ERANGE. head_size: elements of the key. */
int kvcachefs_rope_check(const struct kvcachefs_rope *r, uint32_t head_size);
/* The turns of a rotation that was checked; given back by put. -ENOMEM. */
int kvcachefs_turns_get(const struct kvcachefs_rope *r, uint32_t head_size,
			const struct kvcachefs_turns **out);
void kvcachefs_turns_put(const struct kvcachefs_turns *t);
/* How often turns were computed, for tests. */
unsigned long kvcachefs_turns_made(void);
/* n heads, `width` elements from one to the next. */
void kvcachefs_turn(const struct kvcachefs_turns *t, const struct kvcachefs_rope *r, void *keys,
		    size_t n, size_t width);
#pragma GCC visibility pop
static inline uint32_t kvcachefs_float_size(enum kvcachefs_float type)
{
	return type == KVCACHEFS_F32 ? 4 : type <= KVCACHEFS_BF16 ? 2 : 1;
}
#ifdef __cplusplus
}
#endif

#endif
