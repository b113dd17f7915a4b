/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcachefs without a mount: layouts compared with independent code, and invalid input. */
#include "kvcachefs_gpu.h"
#include "kvcachefs_layout.h"
#include "kvcachefs_rope.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const uint32_t widths[3] = { 2, 1, 2 };

/*
 * The place of an element by plain nested arrays, written out for each format from its name. B:
 * distance between blocks.
 */
static uint64_t naive(int f, const struct kvcachefs_paged *p, uint32_t l, uint32_t kv,
		      uint64_t slot, uint32_t h, uint32_t e, uint32_t *pointer)
{
	uint64_t NB = p->blocks, NL = p->layers, BS = p->block_size, NH = p->heads,
		 HS = p->head_size, b = slot / BS, s = slot % BS;
	uint64_t B = p->block_stride, all = BS * NH * HS, vals = HS - 4 / p->elem;

	*pointer = l;
	switch (f) {
	case 0:
		*pointer = 0;
		return b * (B ? B : NL * 2 * all) + (((l * 2 + kv) * BS + s) * NH + h) * HS + e;
	case 1: return (kv * NB + b) * (B ? B : all) + (s * NH + h) * HS + e;
	case 2: return b * (B ? B : 2 * all) + ((kv * BS + s) * NH + h) * HS + e;
	case 3:
	case 5: return b * (B ? B : all) + s * HS + e;
	case 4:
	case 9:
		*pointer = (uint32_t)(kv * NL + l);
		return b * (B ? B : all) + (s * NH + h) * HS + e;
	case 6:
	case 15: return (kv * NB + b) * (B ? B : all) + (h * BS + s) * HS + e;
	case 7: return b * (B ? B : 2 * all) + ((kv * NH + h) * BS + s) * HS + e;
	case 8:
		*pointer = 0;
		return b * (B ? B : NL * 2 * all) + (((l * 2 + kv) * NH + h) * BS + s) * HS + e;
	case 10:
	case 12: return b * (B ? B : 2 * all) + ((h * BS + s) * 2 + kv) * HS + e;
	case 11:
	case 13: return b * (B ? B : 2 * all) + ((s * NH + h) * 2 + kv) * HS + e;
	case 14:
		return b * (B ? B : all) +
		       (e < vals ? s * vals + e : BS * vals + s * (HS - vals) + e - vals);
	case 16: *pointer = l * 2 + kv; return b * (B ? B : all) + (s * NH + h) * HS + e;
	case 17: {
		uint32_t i = 0;

		for (; e >= widths[i]; i++)
			e -= widths[i];
		*pointer = l * 3 + i;
		return b * (p->plane_stride[i] ? p->plane_stride[i] : BS * widths[i]) +
		       s * widths[i] + e;
	}
	case 18: return b * (B ? B : all) + (s * NH + h) * HS + e;
	case 19:
		*pointer = 0;
		return b * (B ? B : NL * 2 * all) + (((l * NH + h) * BS + s) * 2 + kv) * HS + e;
	case 20:
		*pointer = 0;
		return b * (B ? B : NL * 2 * all) + (((l * BS + s) * NH + h) * 2 + kv) * HS + e;
	case 21: return (h * NB + b) * (B ? B : 2 * BS * HS) + (s * 2 + kv) * HS + e;
	case 22:
		*pointer = 0;
		return b * (B ? B : NL * 2 * all) + (((h * NL + l) * BS + s) * 2 + kv) * HS + e;
	}
	return UINT64_MAX;
}

static bool is_single(int f) /* one head */
{
	return f == KVCACHEFS_NL_X_NB_BS_HS || f == KVCACHEFS_NL_X_NBBS_ONE_HS ||
	       f == KVCACHEFS_NL_X_NB_BSV_BSS || f == KVCACHEFS_NL_X_NP_X_NB_BS_ONE_HS;
}

static bool can_fuse(int f)
{
	return (f >= KVCACHEFS_NL_X_NB_NH_BS_TWO_HS && f <= KVCACHEFS_NL_X_NB_BS_NH_CS) ||
	       f >= KVCACHEFS_NB_NL_NH_BS_CS;
}

static int64_t slot_of(const struct kvcachefs_tokens *t, uint32_t block_size, uint64_t i)
{
	if (t->slots)
		return t->slots[i];
	if (t->block_ids[i / block_size] < 0)
		return -1;
	return t->block_ids[i / block_size] * (int64_t)block_size + (int64_t)(i % block_size);
}

/* One format and shape; the memory at each pointer is large enough for all of them. */
static void layout(int f, uint32_t elem, bool by_block, bool padded, bool fused,
		   uint32_t block_size, unsigned *seed)
{
	enum { POINTERS = 9 };
	const uint32_t NB = 24 / block_size;
	struct kvcachefs_paged p = {
		.format = (enum kvcachefs_format)f,
		.layers = 3,
		.heads = is_single(f) ? 1 : 2,
		.head_size = 5,
		.block_size = block_size,
		.blocks = NB,
		.elem = elem,
		.device = -1,
		.fused = fused,
	};
	uint32_t kvs = is_single(f) || f == KVCACHEFS_NL_X_NB_BS_NH_HS ? 1 : 2,
		 outer = fused ? 1 : kvs, inner = fused ? kvs : 1;
	uint64_t capacity = (6ull * block_size * 2 * 5 + 3) * NB * 2 * elem,
		 n = by_block ? 3 * block_size : 9, at = 0, changed = 0, moved = 0;
	uint8_t *cache = malloc(capacity * POINTERS), *again = malloc(capacity * POINTERS), *out,
		*back;
	void *pointers[POINTERS], *pointers2[POINTERS];
	int64_t slots[9], blocks[3] = { 4, -1, 1 };
	struct kvcachefs_tokens t =
		by_block ? (struct kvcachefs_tokens){ .block_ids = blocks, .n = 3, .skip = 1 }
			 : (struct kvcachefs_tokens){ .slots = slots, .n = 9, .skip = 2 };

	if (f == KVCACHEFS_NL_X_NP_X_NB_BS_ONE_HS) {
		p.planes = 3;
		memcpy(p.plane_width, widths, sizeof widths);
		for (int i = 0; i < 3 && padded; i++)
			p.plane_stride[i] = block_size * widths[i] + (uint64_t)i * 3;
	} else if (padded) {
		p.block_stride = 6ull * block_size * p.heads * 5 + 3;
	}
	for (int i = 0; i < 9; i++)
		slots[i] = i == 5 ? -1 : (i * 7 + 3) % 24;
	for (int i = 0; i < POINTERS; i++) {
		pointers[i] = cache + (uint64_t)i * capacity;
		pointers2[i] = again + (uint64_t)i * capacity;
	}
	for (uint64_t i = 0; i < capacity * POINTERS; i++)
		cache[i] = (uint8_t)rand_r(seed);
	uint64_t file = kvcachefs_file_size(&p, 2, &t);

	p.pointers = pointers;
	assert_int_equal(file, kvs * 2 * n * p.heads * p.head_size * elem);
	out = malloc(file);
	back = malloc(file);
	assert_int_equal(kvcachefs_gather(&p, 1, 2, &t, out), 0);
	for (uint32_t o = 0; o < outer; o++)
		for (uint32_t l = 1; l < 3; l++)
			for (uint64_t i = 0; i < n; i++)
				for (uint32_t h = 0; h < p.heads; h++)
					for (uint32_t in = 0; in < inner; in++)
						for (uint32_t e = 0; e < p.head_size;
						     e++, at += elem) {
							int64_t slot = slot_of(&t, block_size, i);
							uint32_t which;
							uint8_t zero[4] = { 0 };

							if (i < t.skip || slot < 0) {
								assert_memory_equal(out + at, zero,
										    elem);
								continue;
							}
							uint64_t off =
								naive(f, &p, l, fused ? in : o,
								      (uint64_t)slot, h, e, &which);

							assert_true(which < POINTERS &&
								    (off + 1) * elem <= capacity);
							assert_memory_equal(
								out + at,
								(uint8_t *)pointers[which] +
									off * elem,
								elem);
							moved += elem;
						}
	/* and back into another cache: the loaded bytes arrive, and nothing else changes */
	memcpy(again, cache, capacity * POINTERS);
	for (uint64_t i = 0; i < file; i++)
		out[i] ^= 0x5a;
	p.pointers = pointers2;
	assert_int_equal(kvcachefs_scatter(&p, 1, 2, &t, out), 0);
	for (uint64_t i = 0; i < capacity * POINTERS; i++)
		changed += again[i] != cache[i];
	assert_int_equal(changed, moved);
	assert_int_equal(kvcachefs_gather(&p, 1, 2, &t, back), 0);
	at = file / n / outer / 2; /* one token */
	for (uint64_t i = 0; i < file; i++) {
		uint64_t token = i / at % n;
		bool there = token >= t.skip &&
			     (by_block ? blocks[token / block_size] >= 0 : slots[token] >= 0);

		assert_int_equal(back[i], there ? out[i] : 0);
	}
	free(back);
	free(out);
	free(cache);
	free(again);
}

static void layouts(void **state)
{
	unsigned seed = (unsigned)time(NULL);
	enum kvcachefs_format found;

	(void)state;
	print_message("seed %u\n", seed);
	for (int f = 0; f < KVCACHEFS_FORMATS; f++) {
		for (uint32_t elem = 1; elem <= 4; elem *= 2)
			for (int by_block = 0; by_block < 2; by_block++)
				for (int padded = 0; padded < 2; padded++)
					for (int fused = 0; fused <= can_fuse(f); fused++)
						for (uint32_t block_size = 1; block_size <= 4;
						     block_size += 3)
							layout(f, elem, by_block,
							       padded && block_size > 1, fused,
							       block_size, &seed);
		assert_int_equal(kvcachefs_format_find(
					 kvcachefs_format_name((enum kvcachefs_format)f), &found),
				 0);
		assert_int_equal(found, f);
	}
	assert_string_equal(kvcachefs_format_name(KVCACHEFS_TWO_X_NL_X_NB_BS_NH_HS),
			    "TWO_X_NL_X_NB_BS_NH_HS");
	assert_null(kvcachefs_format_name(KVCACHEFS_FORMATS));
	assert_int_equal(kvcachefs_format_find("NL", &found), -EINVAL);
}

/*
 * The bytes that LMCache's own arithmetic gives (csrc/cuda/mem_kernels.cu, page_buffer_offset and
 * key_value_offset) for its fused formats.
 */
static void lmcache_bytes(void **state)
{
	enum { L = 2, NB = 3, BS = 4, NH = 2, HS = 8, T = 5, HS2 = 2 * HS, ROW = NH * HS2 };
	static uint16_t cache[L][NB * BS * ROW], out[L * T * ROW];
	void *pointers[L] = { cache[0], cache[1] };
	int64_t slots[T] = { 9, 2, 11, 0, 5 };
	struct kvcachefs_tokens t = { .slots = slots, .n = T };

	(void)state;
	for (int l = 0; l < L; l++)
		for (int i = 0; i < NB * BS * ROW; i++)
			cache[l][i] = (uint16_t)(i * 3 + l * 7777);
	for (int f = KVCACHEFS_NL_X_NB_NH_BS_TWO_HS; f <= KVCACHEFS_NL_X_NB_BS_NH_CS; f++) {
		bool hnd = f == KVCACHEFS_NL_X_NB_NH_BS_TWO_HS || f == KVCACHEFS_NL_X_NB_NH_BS_CS;
		struct kvcachefs_paged p = {
			.format = (enum kvcachefs_format)f,
			.layers = L,
			.heads = NH,
			.head_size = HS,
			.block_size = BS,
			.blocks = NB,
			.elem = 2,
			.pointers = pointers,
			.device = -1,
			.fused = true,
		};

		assert_int_equal(kvcachefs_file_size(&p, L, &t), sizeof out);
		assert_int_equal(kvcachefs_gather(&p, 0, L, &t, out), 0);
		for (int l = 0; l < L; l++)
			for (int i = 0; i < T; i++)
				for (int k = 0; k < ROW; k++) {
					int64_t block = slots[i] / BS, in = slots[i] % BS;
					int64_t at = hnd ? block * (NH * BS * HS2) +
								     k / HS2 * BS * HS2 + in * HS2 +
								     k % HS2
							 : block * (BS * ROW) + in * ROW + k;

					assert_int_equal(out[(l * T + i) * ROW + k], cache[l][at]);
				}
	}
}

static void refused(void **state)
{
	uint8_t cache[4096], out[4096];
	void *pointers[2] = { cache, cache };
	int64_t slot = 16, fine = 3;
	struct kvcachefs_paged good = { .format = KVCACHEFS_NL_X_TWO_NB_BS_NH_HS,
					.layers = 2,
					.heads = 1,
					.head_size = 8,
					.block_size = 4,
					.blocks = 4,
					.elem = 2,
					.pointers = pointers,
					.device = -1 },
			       p;
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
	BAD(-EINVAL, p.format = KVCACHEFS_FORMATS);
	BAD(-EINVAL, p.fused = true);
	BAD(-EINVAL, (p.format = KVCACHEFS_NL_X_NB_BSV_BSS, p.heads = 1, p.head_size = 2));
	BAD(-EINVAL, p.format = KVCACHEFS_NL_X_NP_X_NB_BS_ONE_HS); /* no planes */
	BAD(-EINVAL, (p.format = KVCACHEFS_NL_X_NP_X_NB_BS_ONE_HS, p.planes = 5));
	BAD(-EINVAL,
	    (p.format = KVCACHEFS_NL_X_NP_X_NB_BS_ONE_HS, p.planes = 1, p.plane_width[0] = 7));
	BAD(-EINVAL, (p.format = KVCACHEFS_NL_X_NP_X_NB_BS_ONE_HS, p.planes = 1,
		      p.plane_width[0] = 8, p.block_stride = 64));
	BAD(-EINVAL, (p.format = KVCACHEFS_NL_X_NP_X_NB_BS_ONE_HS, p.planes = 1,
		      p.plane_width[0] = 8, p.plane_stride[0] = 31));
	BAD(-EINVAL, p.layers = 1u << 21);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layouts),
		cmocka_unit_test(lmcache_bytes),
		cmocka_unit_test(refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
