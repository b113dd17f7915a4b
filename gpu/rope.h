/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sines and cosines of rotations, cached by their parameters; and fp8, with the same arithmetic on
 * the host and in the kernels.
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
 * e4m3fn: 3 bits of mantissa, bias 7, all ones is NaN. e5m2: 2 bits of mantissa, bias 15,
 * infinities and NaNs as in IEEE 754.
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

/*
 * Rounds to nearest, ties to even. Numbers that are too large become the largest finite number
 * (CUDA's satfinite).
 */
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
	/* below the smallest normal number the steps stay the same (subnormals) */
	e = e - 1 < 1 - bias ? 1 - bias : e - 1;
	return (uint8_t)(sign |
			 (((e + bias) << mant) + (int)rintf(ldexpf(a, mant - e)) - (1 << mant)));
}

struct kvcachefs_rotation {
	uint32_t first, dims;
	double *v; /* cos and sin of each pair */
};

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(hidden)
/* Checks a rotation. head_size: elements of the key. Returns 0, -EINVAL or -ERANGE. */
int kvcachefs_rope_check(const struct kvcachefs_rope *r, uint32_t head_size);
/*
 * Gets the sines and cosines of a checked rotation, which kvcachefs_rotation_put releases. Returns
 * 0 or -ENOMEM.
 */
int kvcachefs_rotation_get(const struct kvcachefs_rope *r, uint32_t head_size,
			   const struct kvcachefs_rotation **out);
void kvcachefs_rotation_put(const struct kvcachefs_rotation *t);
/* How often sines and cosines were computed, for tests. */
unsigned long kvcachefs_rotations_made(void);
/* Rotates n heads; `width` is the distance from one head to the next in elements. */
void kvcachefs_rotate(const struct kvcachefs_rotation *t, const struct kvcachefs_rope *r,
		      void *keys, size_t n, size_t width);
#pragma GCC visibility pop
static inline uint32_t kvcachefs_float_size(enum kvcachefs_float type)
{
	return type == KVCACHEFS_F32 ? 4 : type <= KVCACHEFS_BF16 ? 2 : 1;
}
#ifdef __cplusplus
}
#endif

#endif
