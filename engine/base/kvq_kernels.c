/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops of kvq over the vectors of a block (kvq_kernels.h). The loops are written once, for the
 * compiler to vectorize, and compiled for each instruction set. The bits of the result are part of
 * the format, so the pragmas keep the compiler from fusing a multiplication and an addition, for
 * which AVX-512 and other instruction sets have one instruction. Nothing here depends on the order
 * in which the compiler adds: each sum has its own lane.
 */
#pragma GCC optimize("O3", "no-math-errno", "no-trapping-math", "fp-contract=off")
#ifdef __clang__
#pragma clang fp contract(off)
#endif
#include "kvq_kernels.h"

#include <string.h>

#define LANES 16u
#define ALWAYS static inline __attribute__((always_inline))
/* 1.5 * 2^23: adding it to a float of a small value leaves the rounded value in the lowest bits */
#define ROUND 12582912.0f

/* elements may be at odd addresses, and are stored little endian */
typedef uint16_t element __attribute__((aligned(1), may_alias));

ALWAYS float float_of(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, 4);
	return f;
}

ALWAYS uint32_t bits_of(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, 4);
	return bits;
}

ALWAYS float value_of(bool half, uint16_t x)
{
	if (half) /* also right for subnormal numbers: the multiplication normalizes them */
		return float_of(bits_of(float_of((uint32_t)(x & 0x7fff) << 13) * 0x1p112f) |
				(uint32_t)(x & 0x8000) << 16);
	return float_of((uint32_t)x << 16);
}

ALWAYS uint16_t half_of(float f)
{
	uint32_t u = bits_of(f), a = u & 0x7fffffff;
	/* rounded as a normal number, and as a subnormal one by an addition that aligns it */
	uint32_t normal = (a + 0xfff + (a >> 13 & 1) - (112u << 23)) >> 13;
	uint32_t small = bits_of(float_of(a) + 0.5f) - 0x3f000000u;
	uint32_t h = a < 0x38800000u ? small : normal;

	h = a >= 0x47800000u ? 0x7c00u : h;
	return (uint16_t)(h | (u >> 16 & 0x8000));
}

ALWAYS uint16_t element_of(bool half, float f)
{
	uint32_t u = bits_of(f);

	return half ? half_of(f) : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float kvc_kvq_kernels_value(bool half, uint16_t bits)
{
	return value_of(half, bits);
}

uint16_t kvc_kvq_kernels_element(bool half, float value)
{
	return element_of(half, value);
}

/*
 * Vectors are processed in sixteen lanes: two halves of eight, which are registers of AVX2. Lanes
 * are passed by address, because the ABI for values depends on the instruction set.
 */
typedef float floats __attribute__((vector_size(32)));
typedef int32_t integers __attribute__((vector_size(32)));
typedef uint32_t words __attribute__((vector_size(32)));
typedef float floats4 __attribute__((vector_size(16)));
typedef uint16_t elements8 __attribute__((vector_size(16)));
typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef uint8_t bytes32 __attribute__((vector_size(32)));
typedef uint16_t elements16 __attribute__((vector_size(32)));
typedef uint64_t longs __attribute__((vector_size(32)));

#define HALF 8u /* lanes of a half */

/* The tables of a class. For a lone vector, mean is NULL and all steps are equal. */
struct scale {
	const float *mean, *step, *inverse;
	float one_step, one_inverse;
};

/* Sums over the lanes of a vector; beyond: not 0 in a lane that has an element beyond 127 steps. */
struct loss_lanes {
	floats error[2], energy[2];
	words beyond;
};

#define SET plain
#define TARGET
#define WIDE 0
#include "kvq_loops.h"
#ifdef __x86_64__
#define SET avx2
#define TARGET __attribute__((target("avx2")))
#define WIDE 1
#include "kvq_loops.h"
#define SET avx512
#define TARGET __attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl")))
#define WIDE 1
#include "kvq_loops.h"
#endif

const struct kvc_kvq_kernels *kvc_kvq_kernels_get(unsigned i)
{
	const struct kvc_kvq_kernels *can[3];
	unsigned n = 0;

#ifdef __x86_64__
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
		can[n++] = &kernels_avx512;
	if (__builtin_cpu_supports("avx2"))
		can[n++] = &kernels_avx2;
#endif
	can[n++] = &kernels_plain;
	return i < n ? can[i] : NULL;
}
