/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RoPE compared with doubles: every way to state a rotation, parts of heads, all types. Frequencies
 * compared with those of transformers, fp8 with PyTorch's. A rotation is computed once.
 */
#include "kvcachefs_layout.h"
#include "kvcachefs_rope.h"
#include "rope.h"

#include <errno.h>
#include <math.h>
#include <openssl/sha.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void rope(void **state)
{
	enum { N = 7, H = 3, D = 64 };
	static float keys[N * H * D], moved[N * H * D];
	unsigned seed = 5;

	(void)state;
	for (int interleaved = 0; interleaved < 2; interleaved++)
		for (uint32_t dims = 32; dims <= D; dims += 32) {
			struct kvcachefs_rope r = {
				.theta = 500000,
				.dims = dims,
				.interleaved = interleaved,
				.delta = 131071,
				.type = KVCACHEFS_F32,
			};

			for (int i = 0; i < N * H * D; i++)
				keys[i] = (float)(rand_r(&seed) % 2001 - 1000) / 250;
			memcpy(moved, keys, sizeof keys);
			assert_int_equal(kvcachefs_rope_shift(&r, moved, N, H, D), 0);
			for (int k = 0; k < N * H; k++)
				for (uint32_t i = 0; i < dims / 2; i++) {
					uint32_t a = interleaved ? 2 * i : i,
						 b = interleaved ? 2 * i + 1 : i + dims / 2;
					double angle = 131071.0 * pow(500000.0, -2.0 * i / dims),
					       x = keys[k * D + (int)a], y = keys[k * D + (int)b];

					assert_true(fabs(moved[k * D + (int)a] -
							 (x * cos(angle) - y * sin(angle))) < 1e-5);
					assert_true(fabs(moved[k * D + (int)b] -
							 (y * cos(angle) + x * sin(angle))) < 1e-5);
				}
			for (int k = 0; k < N * H; k++) /* the rest of a head is unchanged */
				assert_memory_equal(moved + k * D + dims, keys + k * D + dims,
						    (D - dims) * sizeof(float));
			/* forward and back */
			r.delta = -r.delta;
			assert_int_equal(kvcachefs_rope_shift(&r, moved, N, H, D), 0);
			for (int i = 0; i < N * H * D; i++)
				assert_true(fabsf(moved[i] - keys[i]) < 1e-4f);
		}
	/* 16-bit types: within half a unit in the last place of the double result */
	uint16_t b16[D], f16[D];
	struct kvcachefs_rope r = { .theta = 10000, .delta = 77, .type = KVCACHEFS_BF16 };

	for (int i = 0; i < D; i++) {
		float f = (float)(i - 31) / 8;
		uint32_t u;
		_Float16 h = (_Float16)f;

		memcpy(&u, &f, 4);
		b16[i] = (uint16_t)(u >> 16);
		memcpy(&f16[i], &h, 2);
		keys[i] = f;
	}
	assert_int_equal(kvcachefs_rope_shift(&r, b16, 1, 1, D), 0);
	r.type = KVCACHEFS_F16;
	assert_int_equal(kvcachefs_rope_shift(&r, f16, 1, 1, D), 0);
	for (int i = 0; i < D / 2; i++) {
		double angle = 77 * pow(10000, -2.0 * i / D),
		       want = keys[i] * cos(angle) - keys[i + D / 2] * sin(angle);
		uint32_t u = (uint32_t)b16[i] << 16;
		_Float16 h;
		float f;

		memcpy(&f, &u, 4);
		memcpy(&h, &f16[i], 2);
		assert_true(fabs(f - want) <= fabs(want) / 256 + 1e-6);
		assert_true(fabs((double)h - want) <= fabs(want) / 2048 + 1e-4);
	}
	r.dims = 63;
	assert_int_equal(kvcachefs_rope_shift(&r, f16, 1, 1, D), -EINVAL);
	r = (struct kvcachefs_rope){ .theta = 0 };
	assert_int_equal(kvcachefs_rope_shift(&r, f16, 1, 1, D), -EINVAL);
}

/* Frequencies and tables; MLA's last 64 of 576; forward and back. */
static void ways(void **state)
{
	enum { N = 5, D = 576, FIRST = 512, DIMS = 64, ROWS = 300 };
	static float keys[N * D], moved[N * D], table[ROWS * DIMS];
	double freq[DIMS / 2];
	unsigned seed = 9;

	(void)state;
	assert_int_equal(kvcachefs_rope_yarn(10000, DIMS, 40, 32, 1, 4096, freq), 0);
	for (int i = 0; i < ROWS; i++)
		/* an engine's table, which includes YaRN's factor */
		for (int k = 0; k < DIMS / 2; k++) {
			table[i * DIMS + k] = (float)(1.37 * cos(i * freq[k]));
			table[i * DIMS + DIMS / 2 + k] = (float)(1.37 * sin(i * freq[k]));
		}
	for (int interleaved = 0; interleaved < 2; interleaved++)
		for (int by_table = 0; by_table < 2; by_table++)
			for (int64_t delta = -299; delta <= 299; delta += 46) {
				struct kvcachefs_rope r = {
					.first = FIRST,
					.interleaved = interleaved,
					.delta = delta,
					.type = KVCACHEFS_F32,
					.rows = ROWS,
				};

				if (by_table)
					r.cos_sin = table;
				else
					r.inv_freq = freq;
				for (int i = 0; i < N * D; i++)
					keys[i] = (float)(rand_r(&seed) % 2001 - 1000) / 250;
				memcpy(moved, keys, sizeof keys);
				assert_int_equal(kvcachefs_rope_shift(&r, moved, N, 1, D), 0);
				for (int n = 0; n < N; n++) {
					assert_memory_equal(moved + n * D, keys + n * D,
							    FIRST * sizeof(float));
					for (int i = 0; i < DIMS / 2; i++) {
						int a = n * D + FIRST + (interleaved ? 2 * i : i),
						    b = interleaved ? a + 1 : a + DIMS / 2;
						double angle = (double)delta * freq[i];

						assert_true(fabs(moved[a] -
								 (keys[a] * cos(angle) -
								  keys[b] * sin(angle))) < 1e-5);
						assert_true(fabs(moved[b] -
								 (keys[b] * cos(angle) +
								  keys[a] * sin(angle))) < 1e-5);
					}
				}
			}
	struct kvcachefs_rope bad = {
		.first = FIRST, .delta = ROWS, .type = KVCACHEFS_F32, .rows = ROWS, .cos_sin = table
	};

	assert_int_equal(kvcachefs_rope_shift(&bad, moved, N, 1, D), -ERANGE);
	bad.delta = INT64_MIN;
	assert_int_equal(kvcachefs_rope_shift(&bad, moved, N, 1, D), -ERANGE);
	bad.delta = 1;
	bad.theta = 10000; /* two ways */
	assert_int_equal(kvcachefs_rope_shift(&bad, moved, N, 1, D), -EINVAL);
	bad.theta = 0;
	bad.dims = 66;
	assert_int_equal(kvcachefs_rope_shift(&bad, moved, N, 1, D), -EINVAL);
	bad.dims = 0;
	bad.first = D;
	assert_int_equal(kvcachefs_rope_shift(&bad, moved, N, 1, D), -EINVAL);
	bad.first = FIRST;
	bad.type = (enum kvcachefs_float)5;
	assert_int_equal(kvcachefs_rope_shift(&bad, moved, N, 1, D), -EINVAL);
}

/* The values of transformers 5 for Llama-3.1 and DeepSeek-V3, which it computes in floats. */
static void scaled(void **state)
{
	static const struct {
		int i;
		double f;
	} llama[] = { { 0, 1.0 },
		      { 1, 0.8146172165870667 },
		      { 20, 0.016560440883040428 },
		      { 28, 0.0032114461064338684 },
		      { 30, 0.0013718936825171113 },
		      { 32, 0.0005248460220173001 },
		      { 35, 9.556212171446532e-05 },
		      { 36, 7.784655463183299e-05 },
		      { 40, 3.428102354519069e-05 },
		      { 63, 3.068925877869333e-07 } },
	  yarn[] = { { 0, 1.0 },
		     { 5, 0.23713736236095428 },
		     { 10, 0.05623412877321243 },
		     { 11, 0.039006926119327545 },
		     { 14, 0.012447956018149853 },
		     { 17, 0.0035619973205029964 },
		     { 20, 0.0007905694073997438 },
		     { 23, 3.333803397254087e-05 },
		     { 24, 2.499999936844688e-05 },
		     { 31, 3.3338035336782923e-06 } };
	double f[64];

	(void)state;
	assert_int_equal(kvcachefs_rope_llama3(500000, 128, 8, 1, 4, 8192, f), 0);
	for (int i = 0; i < 10; i++)
		assert_true(fabs(f[llama[i].i] - llama[i].f) <= llama[i].f * 1e-5);
	assert_int_equal(kvcachefs_rope_yarn(10000, 64, 40, 32, 1, 4096, f), 0);
	for (int i = 0; i < 10; i++)
		assert_true(fabs(f[yarn[i].i] - yarn[i].f) <= yarn[i].f * 1e-5);
	assert_int_equal(kvcachefs_rope_llama3(500000, 127, 8, 1, 4, 8192, f), -EINVAL);
	assert_int_equal(kvcachefs_rope_llama3(500000, 128, 0, 1, 4, 8192, f), -EINVAL);
	assert_int_equal(kvcachefs_rope_llama3(500000, 128, 8, 4, 4, 8192, f), -EINVAL);
	assert_int_equal(kvcachefs_rope_yarn(NAN, 64, 40, 32, 1, 4096, f), -EINVAL);
	assert_int_equal(kvcachefs_rope_yarn(10000, 64, 40, 32, 1, INFINITY, f), -EINVAL);
}

static void hash_is(const uint8_t *p, size_t n, const char *want)
{
	uint8_t sum[32];
	char hex[65];

	SHA256(p, n, sum);
	kvcachefs_hex(sum, 32, hex);
	assert_string_equal(hex, want);
}

static void fp8(void **state)
{
	static uint8_t e4m3[20000], e5m2[20000];

	(void)state;
	for (int b = 0; b < 256; b++)
		for (int e = 0; e < 2; e++) {
			float f = kvcachefs_from_fp8((uint8_t)b, e);

			if (isnan(f))
				assert_int_equal(kvcachefs_to_fp8(f, e) & 0x7f, 0x7f);
			else if (!isinf(f)) /* each finite number is unchanged */
				assert_int_equal(kvcachefs_to_fp8(f, e), b);
		}
	assert_true(kvcachefs_from_fp8(0x01, false) == 0.001953125f &&
		    kvcachefs_from_fp8(0x7e, false) == 448 &&
		    isnan(kvcachefs_from_fp8(0xff, false)));
	assert_true(kvcachefs_from_fp8(0x7b, true) == 57344 &&
		    isinf(kvcachefs_from_fp8(0x7c, true)) && isnan(kvcachefs_from_fp8(0x7d, true)));
	assert_int_equal(kvcachefs_to_fp8(1e30f, false), 0x7e);
	assert_int_equal(kvcachefs_to_fp8(-INFINITY, true), 0xfb);
	assert_int_equal(kvcachefs_to_fp8(1e-30f, false), 0);
	assert_int_equal(kvcachefs_to_fp8(-1e-30f, true), 0x80);
	/*
	 * PyTorch 2.13's results for these numbers (clamped to 448 for e4m3fn, which has no
	 * infinity)
	 */
	for (int i = 0; i < 20000; i++) {
		float x = (float)(i - 10000) * 0.0437f;

		e4m3[i] = kvcachefs_to_fp8(x, false);
		e5m2[i] = kvcachefs_to_fp8(x, true);
	}
	hash_is(e4m3, sizeof e4m3,
		"1688099b62b0d24460db41dd40e740dc33a726cb6dcb5fdc6ab895713583a11a");
	hash_is(e5m2, sizeof e5m2,
		"e97961a1695bc05bf4d5dabfdf423bdd78cf7dc5b5d4a33d4770d4dfba7643fb");
	/* a rotation: the fp8 number nearest to the double's result */
	for (int e = 0; e < 2; e++) {
		struct kvcachefs_rope r = {
			.theta = 10000,
			.delta = 1234,
			.type = e ? KVCACHEFS_E5M2 : KVCACHEFS_E4M3,
		};
		uint8_t keys[64], moved[64];

		for (int i = 0; i < 64; i++)
			keys[i] = moved[i] = kvcachefs_to_fp8((float)(i - 31) / 8, e);
		assert_int_equal(kvcachefs_rope_shift(&r, moved, 1, 1, 64), 0);
		for (int i = 0; i < 32; i++) {
			double angle = 1234 * pow(10000, -2.0 * i / 64),
			       x = kvcachefs_from_fp8(keys[i], e),
			       y = kvcachefs_from_fp8(keys[i + 32], e);

			assert_int_equal(moved[i],
					 kvcachefs_to_fp8((float)(x * cos(angle) - y * sin(angle)),
							  e));
			assert_int_equal(moved[i + 32],
					 kvcachefs_to_fp8((float)(y * cos(angle) + x * sin(angle)),
							  e));
		}
	}
}

/*
 * The same rotation is not computed again, whichever caller asks and wherever the numbers are
 * stored. More rotations than the table holds still work.
 */
static void kept(void **state)
{
	float keys[64];
	double a[32], b[32];
	struct kvcachefs_rope r = { .inv_freq = a, .delta = 17 };
	unsigned long before;

	(void)state;
	memset(keys, 0, sizeof keys);
	for (int i = 0; i < 32; i++)
		a[i] = b[i] = 1.0 / (i + 3);
	before = kvcachefs_rotations_made();
	for (int i = 0; i < 10; i++) {
		r.inv_freq = i % 2 ? a : b;
		assert_int_equal(kvcachefs_rope_shift(&r, keys, 1, 1, 64), 0);
	}
	assert_int_equal(kvcachefs_rotations_made(), before + 1);
	a[31] = 5; /* another table at the same address */
	r.inv_freq = a;
	assert_int_equal(kvcachefs_rope_shift(&r, keys, 1, 1, 64), 0);
	assert_int_equal(kvcachefs_rotations_made(), before + 2);
	for (r.delta = 1000; r.delta < 1200; r.delta++)
		assert_int_equal(kvcachefs_rope_shift(&r, keys, 1, 1, 64), 0);
	assert_int_equal(kvcachefs_rotations_made(), before + 202);
	const struct kvcachefs_rotation *held[100];

	for (int i = 0; i < 100; i++) { /* all referenced at once */
		r.delta = 5000 + i;
		assert_int_equal(kvcachefs_rotation_get(&r, 64, &held[i]), 0);
	}
	for (int i = 0; i < 100; i++) {
		assert_true(held[i]->v[0] == cos((5000 + i) * a[0]));
		kvcachefs_rotation_put(held[i]);
	}
}

/* The same numbers as frequencies, as a table's row and as theta are different rotations. */
static void ways_apart(void **state)
{
	double half = 0.5, row[2] = { 0.25, 0.75 };
	float table[4 * 4];
	const struct kvcachefs_rope v[] = {
		{ .theta = half, .dims = 2, .delta = 3 },
		{ .inv_freq = &half, .dims = 2, .delta = 3 },
		{ .inv_freq = row, .dims = 4, .delta = 3 },
		{ .cos_sin = table, .rows = 4, .dims = 4, .delta = 3 },
	};
	const double angle[] = { 3, 1.5, 0.75 }; /* of the first pair */
	const struct kvcachefs_rotation *t[4];

	(void)state;
	memset(table, 0, sizeof table);
	memcpy(table + 12, row, sizeof row);
	for (int i = 0; i < 4; i++)
		assert_int_equal(kvcachefs_rotation_get(&v[i], 4, &t[i]), 0);
	for (int i = 0; i < 3; i++)
		assert_true(t[i]->v[0] == cos(angle[i]) && t[i]->v[1] == sin(angle[i]));
	/* the row's numbers, scaled to length 1 */
	for (int i = 0; i < 2; i++) {
		double c = table[12 + i], s = table[14 + i], length = hypot(c, s);

		assert_true(t[3]->v[2 * i] == (length > 0 ? c / length : 1));
		assert_true(t[3]->v[2 * i + 1] == (length > 0 ? s / length : 0));
	}
	for (int i = 0; i < 4; i++)
		kvcachefs_rotation_put(t[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rope), cmocka_unit_test(ways), cmocka_unit_test(scaled),
		cmocka_unit_test(fp8),  cmocka_unit_test(kept), cmocka_unit_test(ways_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
