/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcachefs without a mount: layouts against a naive index, RoPE against doubles, bad input. */
#include "kvcachefs.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* The element's place by plain nested arrays, written out for each format from its name. */
static uint64_t naive(int f, const struct kvcachefs_paged *p, uint32_t l, uint32_t kv, uint64_t slot, uint32_t h, uint32_t e, uint32_t *pointer)
{
	uint64_t NB = p->blocks, NL = p->layers, BS = p->block_size, NH = p->heads, HS = p->head_size, b = slot / BS, s = slot % BS;

	*pointer = l;
	switch (f) {
	case 0: *pointer = 0; return ((((b * NL + l) * 2 + kv) * BS + s) * NH + h) * HS + e;
	case 1: return (((kv * NB + b) * BS + s) * NH + h) * HS + e;
	case 2: return (((b * 2 + kv) * BS + s) * NH + h) * HS + e;
	case 3: return (b * BS + s) * HS + e;
	case 4: *pointer = (uint32_t)(kv * NL + l); return (slot * NH + h) * HS + e;
	case 5: return slot * HS + e;
	case 6: return (((kv * NB + b) * NH + h) * BS + s) * HS + e;
	case 7: return (((b * 2 + kv) * NH + h) * BS + s) * HS + e;
	case 8: *pointer = 0; return ((((b * NL + l) * 2 + kv) * NH + h) * BS + s) * HS + e;
	case 9: *pointer = (uint32_t)(kv * NL + l); return ((b * BS + s) * NH + h) * HS + e;
	default: return (((b * NH + h) * BS + s) * 2 + kv) * HS + e;
	}
}

static void layouts(void **state)
{
	unsigned seed = (unsigned)time(NULL);

	(void)state;
	print_message("seed %u\n", seed);
	for (int f = 0; f < KVCACHEFS_FORMATS; f++)
		for (uint32_t elem = 1; elem <= 4; elem *= 2)
			for (int by_block = 0; by_block < 2; by_block++) {
				bool mla = f == KVCACHEFS_NL_X_NB_BS_HS || f == KVCACHEFS_NL_X_NBBS_ONE_HS;
				struct kvcachefs_paged p = { .format = (enum kvcachefs_format)f, .layers = 3, .heads = mla ? 1 : 2, .head_size = 5, .block_size = 4,
							     .blocks = 6, .elem = elem, .device = -1 };
				uint64_t kvs = mla ? 1 : 2, size = 3 * kvs * p.blocks * p.block_size * p.heads * p.head_size * elem, file;
				uint8_t *cache = malloc(size * 6), *again = malloc(size * 6), *out;
				void *pointers[6], *pointers2[6];
				int64_t slots[9], blocks[3] = { 4, -1, 1 };
				struct kvcachefs_tokens t = by_block ? (struct kvcachefs_tokens){ .block_ids = blocks, .n = 3, .skip = 1 } :
								      (struct kvcachefs_tokens){ .slots = slots, .n = 9, .skip = 2 };
				uint64_t n = by_block ? 12 : 9, at = 0;

				for (int i = 0; i < 9; i++)
					slots[i] = i == 5 ? -1 : (i * 7 + 3) % 24;
				for (int i = 0; i < 6; i++) {
					pointers[i] = cache + i * size;
					pointers2[i] = again + i * size;
				}
				for (uint64_t i = 0; i < size * 6; i++)
					cache[i] = (uint8_t)rand_r(&seed);
				p.pointers = pointers;
				file = kvcachefs_file_size(&p, 2, &t);
				assert_int_equal(file, kvs * 2 * n * p.heads * p.head_size * elem);
				out = malloc(file);
				assert_int_equal(kvcachefs_gather(&p, 1, 2, &t, out), 0);
				for (uint32_t kv = 0; kv < kvs; kv++)
					for (uint32_t l = 1; l < 3; l++)
						for (uint64_t i = 0; i < n; i++)
							for (uint32_t h = 0; h < p.heads; h++)
								for (uint32_t e = 0; e < p.head_size; e++, at += elem) {
									int64_t slot = by_block ? (blocks[i / 4] < 0 ? -1 : blocks[i / 4] * 4 + (int64_t)(i % 4)) : slots[i];
									uint32_t which;
									uint8_t zero[4] = { 0 };

									if (i < t.skip || slot < 0) {
										assert_memory_equal(out + at, zero, elem);
										continue;
									}
									uint64_t off = naive(f, &p, l, kv, (uint64_t)slot, h, e, &which);

									assert_memory_equal(out + at, (uint8_t *)pointers[which] + off * elem, elem);
								}
				/* and back into another cache: what was given is there, nothing else is touched */
				memcpy(again, cache, size * 6);
				for (uint64_t i = 0; i < file; i++)
					out[i] ^= 0x5a;
				p.pointers = pointers2;
				assert_int_equal(kvcachefs_scatter(&p, 1, 2, &t, out), 0);
				uint64_t changed = 0;

				for (uint64_t i = 0; i < size * 6; i++)
					changed += again[i] != cache[i];
				assert_int_equal(changed, kvs * 2 * (by_block ? 7 : 6) * p.heads * p.head_size * elem);
				uint8_t *back = malloc(file);

				assert_int_equal(kvcachefs_gather(&p, 1, 2, &t, back), 0);
				at = file / n / kvs / 2; /* one token */
				for (uint64_t i = 0; i < file; i++) {
					uint64_t token = i / at % n;
					bool there = token >= t.skip && (by_block ? blocks[token / 4] >= 0 : slots[token] >= 0);

					assert_int_equal(back[i], there ? out[i] : 0);
				}
				free(back);
				free(out);
				free(cache);
				free(again);
			}
}

static void refused(void **state)
{
	uint8_t cache[4096], out[4096];
	void *pointers[2] = { cache, cache };
	int64_t slot = 16, fine = 3;
	struct kvcachefs_paged good = { .format = KVCACHEFS_NL_X_TWO_NB_BS_NH_HS, .layers = 2, .heads = 1, .head_size = 8, .block_size = 4, .blocks = 4, .elem = 2,
					.pointers = pointers, .device = -1 }, p;
	struct kvcachefs_tokens t = { .slots = &fine, .n = 1 };

	(void)state;
	memset(out, 9, sizeof out);
	assert_int_equal(kvcachefs_gather(&good, 0, 1, &t, out), 0);
	memset(out, 9, sizeof out);
#define BAD(err, change)                                                        \
	do {                                                                    \
		p = good;                                                       \
		t = (struct kvcachefs_tokens){ .slots = &fine, .n = 1 };        \
		uint32_t layer = 0, n = 1;                                      \
		change;                                                         \
		assert_int_equal(kvcachefs_gather(&p, layer, n, &t, out), err); \
		assert_true(*kvcachefs_error());                                \
		(void)layer;                                                    \
		(void)n;                                                        \
	} while (0)
	BAD(-EINVAL, p.format = (enum kvcachefs_format)11);
	BAD(-EINVAL, p.layers = 0);
	BAD(-EINVAL, p.elem = 3);
	BAD(-EINVAL, p.pointers = NULL);
	BAD(-EINVAL, p.blocks = UINT64_MAX);
	BAD(-EINVAL, (p.head_size = UINT32_MAX, p.heads = UINT32_MAX, p.block_size = 1u << 30));
	BAD(-EINVAL, p.block_stride = 1);
	BAD(-EINVAL, (p.format = KVCACHEFS_NL_X_NB_BS_HS, p.heads = 2));
	BAD(-EINVAL, p.device = 0);
	BAD(-EINVAL, t.slots = NULL);
	BAD(-EINVAL, t.block_ids = &fine);
	BAD(-ERANGE, t.slots = &slot);
	BAD(-ERANGE, (t.slots = NULL, t.block_ids = &slot));
	BAD(-ERANGE, t.skip = 2);
	BAD(-ERANGE, layer = 2);
	BAD(-ERANGE, (layer = 1, n = 2));
	BAD(-ERANGE, n = 0);
	for (size_t i = 0; i < sizeof out; i++)
		assert_int_equal(out[i], 9); /* nothing was written */
}

static void rope(void **state)
{
	enum { N = 7, H = 3, D = 64 };
	static float keys[N * H * D], moved[N * H * D];
	unsigned seed = 5;

	(void)state;
	for (int interleaved = 0; interleaved < 2; interleaved++)
		for (uint32_t dims = 32; dims <= D; dims += 32) {
			struct kvcachefs_rope r = { .theta = 500000, .dims = dims, .interleaved = interleaved, .delta = 131071, .type = KVCACHEFS_F32 };

			for (int i = 0; i < N * H * D; i++)
				keys[i] = (float)(rand_r(&seed) % 2001 - 1000) / 250;
			memcpy(moved, keys, sizeof keys);
			assert_int_equal(kvcachefs_rope_shift(&r, moved, N, H, D), 0);
			for (int k = 0; k < N * H; k++)
				for (uint32_t i = 0; i < dims / 2; i++) {
					uint32_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + dims / 2;
					double angle = 131071.0 * pow(500000.0, -2.0 * i / dims), x = keys[k * D + (int)a], y = keys[k * D + (int)b];

					assert_true(fabs(moved[k * D + (int)a] - (x * cos(angle) - y * sin(angle))) < 1e-5);
					assert_true(fabs(moved[k * D + (int)b] - (y * cos(angle) + x * sin(angle))) < 1e-5);
				}
			for (int k = 0; k < N * H; k++) /* the rest of a head stays */
				assert_memory_equal(moved + k * D + dims, keys + k * D + dims, (D - dims) * sizeof(float));
			/* there and back */
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
		double angle = 77 * pow(10000, -2.0 * i / D), want = keys[i] * cos(angle) - keys[i + D / 2] * sin(angle);
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

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(layouts), cmocka_unit_test(refused),
					    cmocka_unit_test(rope) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
