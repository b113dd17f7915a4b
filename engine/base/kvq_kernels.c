/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops of kvq over the vectors of a block (kvq_kernels.h). The loops are written once, for the
 * compiler to vectorize, and compiled for each instruction set. The bits of the result are part of
 * the format, so the pragmas forbid to fuse multiplications and additions, which AVX-512 and other
 * CPUs have instructions for. Nothing here depends on the order in which the compiler adds: each
 * sum has its own lane.
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

typedef float lanes __attribute__((vector_size(64)));
typedef float lanes8 __attribute__((vector_size(32)));
typedef float lanes4 __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(64)));
typedef uint16_t elements16 __attribute__((vector_size(32)));

/* Loads sixteen elements. */
ALWAYS void lanes_load(lanes *to, const element *x, bool half)
{
	elements16 e;
	words w;

	memcpy(&e, x, sizeof e);
	w = __builtin_convertvector(e, words);
	if (half)
		*to = (lanes)((words)((lanes)((w & 0x7fff) << 13) * 0x1p112f) | (w & 0x8000) << 16);
	else
		*to = (lanes)(w << 16);
}

/* Loads the elements that remain at the end of a vector; the other lanes are zero. */
ALWAYS void lanes_load_rest(lanes *to, const element *x, uint32_t n, bool half)
{
	element e[LANES] = { 0 };

	memcpy(e, x, 2 * (size_t)n);
	lanes_load(to, e, half);
}

ALWAYS float lanes_sum(const lanes *l)
{
	lanes8 low, high;
	lanes4 a, b;

	memcpy(&low, l, sizeof low);
	memcpy(&high, (const char *)l + sizeof low, sizeof high);
	low += high;
	memcpy(&a, &low, sizeof a);
	memcpy(&b, (const char *)&low + sizeof a, sizeof b);
	a += b;
	return (a[0] + a[2]) + (a[1] + a[3]);
}

ALWAYS bool finite_loop(const struct kvc_kvq_block *b, const element *x, bool half)
{
	uint16_t mask = half ? 0x7c00 : 0x7f80, bad = 0;

	for (size_t i = 0; i < (size_t)b->vectors * b->d; i++)
		bad |= (uint16_t)-((x[i] & mask) == mask);
	return !bad;
}

ALWAYS float squares_of(const element *x, uint32_t d, bool half)
{
	lanes sum = { 0 }, f;
	uint32_t i = 0;

	for (; i + LANES <= d; i += LANES) {
		lanes_load(&f, x + i, half);
		sum += f * f;
	}
	if (i < d) {
		lanes_load_rest(&f, x + i, d - i, half);
		sum += f * f;
	}
	return lanes_sum(&sum);
}

ALWAYS void sums_loop(struct kvc_kvq_block *b, const element *x, uint32_t d, bool half)
{
	memset(b->members, 0, b->classes * sizeof *b->members);
	for (uint32_t v = 0; v < b->vectors; v++, x += d) {
		uint16_t c = b->of[v];

		if (c >= KVC_KVQ_ALONE) {
			b->energy[v] = squares_of(x, d, half);
			continue;
		}
		float *restrict first = b->first + (size_t)c * d;
		float *restrict sum = b->sum + (size_t)c * d;
		float *restrict squares = b->squares + (size_t)c * d;

		if (!b->members[c]++) {
			for (uint32_t i = 0; i < d; i++) {
				first[i] = value_of(half, x[i]);
				sum[i] = squares[i] = 0;
			}
			continue;
		}
		for (uint32_t i = 0; i < d; i++) {
			float f = value_of(half, x[i]) - first[i];

			sum[i] += f;
			squares[i] += f * f;
		}
	}
}

ALWAYS uint8_t symbol_of(float y, uint32_t *escapes)
{
	float c = y > -127.0f ? y : -127.0f;

	c = c < 127.0f ? c : 127.0f;
	*escapes += c != y;
	return c == y ? (uint8_t)bits_of(c + ROUND) : KVC_KVQ_ESCAPE;
}

ALWAYS uint32_t quantise_loop(struct kvc_kvq_block *b, const element *x, uint32_t d, bool half)
{
	uint8_t *restrict shared = b->sym, *restrict alone = b->sym + (size_t)b->in_classes * d;
	uint32_t escapes = 0;

	for (uint32_t v = 0; v < b->vectors; v++, x += d) {
		uint16_t c = b->of[v];

		if (c >= KVC_KVQ_ALONE) {
			float inverse = 1.0f / b->vector_step[v];

			for (uint32_t i = 0; i < d; i++)
				alone[i] = symbol_of(value_of(half, x[i]) * inverse, &escapes);
			alone += d;
			continue;
		}
		const float *restrict mean = b->mean + (size_t)c * d;
		const float *restrict inverse = b->inverse + (size_t)c * d;

		for (uint32_t i = 0; i < d; i++)
			shared[i] = symbol_of((value_of(half, x[i]) - mean[i]) * inverse[i],
					      &escapes);
		shared += d;
	}
	return escapes;
}

ALWAYS void dequantise_loop(const struct kvc_kvq_block *b, element *restrict y, uint32_t d,
			    bool half)
{
	const uint8_t *restrict shared = b->sym;
	const uint8_t *restrict alone = b->sym + (size_t)b->in_classes * d;

	for (uint32_t v = 0; v < b->vectors; v++, y += d) {
		uint16_t c = b->of[v];

		if (c >= KVC_KVQ_ALONE) {
			float step = b->vector_step[v];

			for (uint32_t i = 0; i < d; i++)
				y[i] = element_of(half, step * (float)(int8_t)alone[i]);
			alone += d;
			continue;
		}
		const float *restrict mean = b->mean + (size_t)c * d;
		const float *restrict step = b->step + (size_t)c * d;

		for (uint32_t i = 0; i < d; i++)
			y[i] = element_of(half, mean[i] + step[i] * (float)(int8_t)shared[i]);
		shared += d;
	}
}

/*
 * fp8: a code has a sign, four bits of exponent and three of mantissa. The vector's scale is the
 * exponent that code 0 would have; codes 1 to 7, of that exponent, are not used, and code 0 is
 * zero. The codes are the upper bits of the elements, so only integers are needed. `shift` is the
 * number of lost bits of the mantissa.
 */
ALWAYS void fp8_encode_loop(struct kvc_kvq_block *b, const element *x, uint8_t *scale, uint32_t d,
			    bool half)
{
	const int shift = half ? 7 : 4, mantissa = half ? 10 : 7;
	uint8_t *restrict sym = b->sym;

	for (uint32_t v = 0; v < b->vectors; v++, x += d, sym += d) {
		uint16_t most = 0, sub;
		int e;

		for (uint32_t i = 0; i < d; i++) {
			uint16_t a = x[i] & 0x7fff;

			most = a > most ? a : most;
		}
		/* the largest exponent after rounding must be the code's largest */
		e = ((most + (1 << (shift - 1))) >> mantissa) - 15;
		e = e > 0 ? e : 0;
		scale[v] = (uint8_t)e;
		sub = (uint16_t)(e << mantissa);
		for (uint32_t i = 0; i < d; i++) {
			uint16_t a = x[i] & 0x7fff;
			uint16_t r = (uint16_t)(a + (1 << (shift - 1)) - 1 + (a >> shift & 1));
			uint16_t code = r > sub ? (uint16_t)((uint16_t)(r - sub) >> shift) : 0;

			code = code > 127 ? 127 : code;
			code = code < 8 ? 0 : code;
			sym[i] = (uint8_t)(code | (x[i] >> 8 & 0x80));
		}
	}
}

ALWAYS void fp8_decode_loop(const struct kvc_kvq_block *b, const uint8_t *scale,
			    element *restrict y, uint32_t d, bool half)
{
	const int shift = half ? 7 : 4, mantissa = half ? 10 : 7;
	const uint8_t *restrict sym = b->sym;

	for (uint32_t v = 0; v < b->vectors; v++, y += d, sym += d) {
		uint16_t sub = (uint16_t)(scale[v] << mantissa);

		for (uint32_t i = 0; i < d; i++) {
			uint16_t code = sym[i] & 127;
			uint16_t a = code ? (uint16_t)((code << shift) + sub) : 0;

			y[i] = (uint16_t)((a & 0x7fff) | (uint16_t)(sym[i] & 0x80) << 8);
		}
	}
}

/* mean: of each channel, or NULL for 0. */
ALWAYS void measure_vector(struct kvc_kvq_block *b, uint32_t v, const element *x, const element *y,
			   const float *mean, uint32_t d, bool half)
{
	lanes error = { 0 }, energy = { 0 }, f, g, m;
	uint32_t i = 0;

	for (; i + LANES <= d; i += LANES) {
		lanes_load(&f, x + i, half);
		lanes_load(&g, y + i, half);
		g = f - g;
		error += g * g;
		if (mean) {
			memcpy(&m, mean + i, sizeof m);
			f -= m;
		}
		energy += f * f;
	}
	if (i < d) {
		lanes_load_rest(&f, x + i, d - i, half);
		lanes_load_rest(&g, y + i, d - i, half);
		g = f - g;
		error += g * g;
		if (mean) {
			m = (lanes){ 0 };
			memcpy(&m, mean + i, (d - i) * sizeof *mean);
			f -= m;
		}
		energy += f * f;
	}
	b->error[v] = lanes_sum(&error);
	b->energy[v] = lanes_sum(&energy);
}

/* Counts symbols 0 of elements that are neither 0 nor decoded to the same value. */
ALWAYS uint32_t lost_loop(const struct kvc_kvq_block *b, const element *x, const element *y,
			  uint32_t *nonzero, uint32_t d)
{
	const uint8_t *shared = b->sym, *alone = b->sym + (size_t)b->in_classes * d;
	uint32_t lost = 0, some = 0;

	for (uint32_t v = 0; v < b->vectors; v++, x += d, y += d) {
		const uint8_t **at = b->of[v] >= KVC_KVQ_ALONE ? &alone : &shared, *sym = *at;

		*at += d;
		for (uint32_t i = 0; i < d; i++) {
			lost += (uint32_t)((sym[i] == 0) & (x[i] != y[i]) & ((x[i] & 0x7fff) != 0));
			some += (x[i] & 0x7fff) != 0;
		}
	}
	*nonzero = some;
	return lost;
}

ALWAYS uint32_t measure_loop(struct kvc_kvq_block *b, const element *x, const element *y,
			     uint32_t *nonzero, uint32_t d, bool half)
{
	const element *px = x, *py = y;
	size_t elements = (size_t)b->vectors * d;
	uint32_t zeros = 0;

	for (uint32_t v = 0; v < b->vectors; v++, px += d, py += d) {
		uint16_t c = b->of[v];

		if (c < KVC_KVQ_ALONE) {
			measure_vector(b, v, px, py, b->mean + (size_t)c * d, d, half);
			continue;
		}
		measure_vector(b, v, px, py, NULL, d, half);
		/* the squares of all elements are too small for a float */
		if (b->energy[v] == 0)
			for (uint32_t i = 0; i < d; i++)
				if (px[i] & 0x7fff)
					b->error[v] = float_of(0x7f800000);
	}
	for (size_t i = 0; i < elements; i++)
		zeros += b->sym[i] == 0;
	/* counting the lost elements takes longer, and they are no more than the zeros */
	*nonzero = (uint32_t)elements;
	return zeros <= elements / 2 ? 0 : lost_loop(b, x, y, nonzero, d);
}

/*
 * The functions of an instruction set. The size of most vectors is known to the compiler, and so is
 * the type.
 */
#define SIZED(loop, d, half, ...)                                                          \
	((half) ? ((d) == 128 ? loop(__VA_ARGS__, 128, true) : loop(__VA_ARGS__, d, true)) \
		: ((d) == 128 ? loop(__VA_ARGS__, 128, false) : loop(__VA_ARGS__, d, false)))

#define KERNELS(set, attribute)                                                          \
	attribute static bool finite_##set(const struct kvc_kvq_block *b, const void *x) \
	{                                                                                \
		return finite_loop(b, x, b->half);                                       \
	}                                                                                \
	attribute static void sums_##set(struct kvc_kvq_block *b, const void *x)         \
	{                                                                                \
		SIZED(sums_loop, b->d, b->half, b, x);                                   \
	}                                                                                \
	attribute static uint32_t quantise_##set(struct kvc_kvq_block *b, const void *x) \
	{                                                                                \
		return SIZED(quantise_loop, b->d, b->half, b, x);                        \
	}                                                                                \
	attribute static void dequantise_##set(const struct kvc_kvq_block *b, void *y)   \
	{                                                                                \
		SIZED(dequantise_loop, b->d, b->half, b, y);                             \
	}                                                                                \
	attribute static void fp8_encode_##set(struct kvc_kvq_block *b, const void *x,   \
					       uint8_t *scale)                           \
	{                                                                                \
		SIZED(fp8_encode_loop, b->d, b->half, b, x, scale);                      \
	}                                                                                \
	attribute static void fp8_decode_##set(const struct kvc_kvq_block *b,            \
					       const uint8_t *scale, void *y)            \
	{                                                                                \
		SIZED(fp8_decode_loop, b->d, b->half, b, scale, y);                      \
	}                                                                                \
	attribute static uint32_t measure_##set(struct kvc_kvq_block *b, const void *x,  \
						const void *y, uint32_t *nonzero)        \
	{                                                                                \
		return SIZED(measure_loop, b->d, b->half, b, x, y, nonzero);             \
	}                                                                                \
	static const struct kvc_kvq_kernels kernels_##set = {                            \
		#set,                                                                    \
		finite_##set,                                                            \
		sums_##set,                                                              \
		quantise_##set,                                                          \
		dequantise_##set,                                                        \
		fp8_encode_##set,                                                        \
		fp8_decode_##set,                                                        \
		measure_##set,                                                           \
	};

KERNELS(plain, )
#ifdef __x86_64__
KERNELS(avx2, __attribute__((target("avx2"))))
KERNELS(avx512, __attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl"))))
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
