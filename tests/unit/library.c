/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcachefs without a mount: chunk keys against published vectors, layouts against a naive index, RoPE against doubles, bad input. */
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

static void keys_are(const struct kvcachefs_keys *k, uint32_t first, size_t n, const char *none, const char *const *want, size_t nwant)
{
	/* All at once, then one token at a time: the same keys. */
	for (int pass = 0; pass < 2; pass++) {
		struct kvcachefs_hasher *h;
		uint8_t out[64][32];
		char hex[65];
		size_t made = 0, got = 0;

		assert_int_equal(kvcachefs_hasher_new(&h, k), 0);
		if (none) {
			kvcachefs_hex(kvcachefs_hasher_none(h), 32, hex);
			assert_string_equal(hex, none);
		}
		uint32_t *t = calloc(n, sizeof *t);

		for (size_t i = 0; i < n; i++)
			t[i] = first + (uint32_t)i;
		for (size_t i = 0; i < n;) {
			size_t step = pass ? 1 : n;

			assert_int_equal(kvcachefs_hasher_feed(h, t + i, step, out + got, 64 - got, &made), 0);
			got += made;
			i += step;
		}
		assert_int_equal(got, nwant);
		for (size_t i = 0; i < nwant; i++) {
			kvcachefs_hex(out[i], 32, hex);
			assert_string_equal(hex, want[i]);
		}
		free(t);
		kvcachefs_hasher_free(h);
	}
}

#define ARE(k, first, n, none, ...) \
	keys_are(&(struct kvcachefs_keys)k, first, n, none, (const char *const[]){ __VA_ARGS__ }, sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(char *))
#define K(...) { __VA_ARGS__ }

/* Mooncake's conductor documentation for vLLM 0.22.0; third-party tests quoting vLLM at 0c16eee3f1 and 29bf597539. */
static void vllm(void **state)
{
	uint32_t many[128];
	uint8_t out[8][32], group[36];
	char hex[73];
	struct kvcachefs_hasher *h;
	size_t made;

	(void)state;
	ARE(K(.seed = "0", .block_tokens = 4), 1, 8, "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e",
	    "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb", "24125b23e68883b5c2141db2959d48433fe6bde2f26bd914efad121d154ab2d6");
	ARE(K(.seed = "0"), 1, 33, NULL, "202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea",
	    "4a0a393805c6d2f0ed831000d41bb65980336c4c04895d5e26470bbec927f5bf");
	ARE(K(.seed = "0", .cache_salt = "salt"), 1, 16, NULL, "0222f5b704a8247ae4068ec648ea39b6a207f22cee65f086f86091a2d25fbd47");
	ARE(K(.seed = "0", .empty_extra_is_array = true), 1, 16, NULL, "5a6992f79d25a88decaa27609c6df1ad1670bb4e95e62d2ac2a387318688b905");
	ARE(K(.block_tokens = 4), 1, 8, "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
	    "58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111", "e1bc29393a2da9fd798f35ff04d215f846aee6df4b803ce3d43b57df56b58fb1");
	ARE(K(.scheme = KVCACHEFS_VLLM), 1, 16, NULL, "cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682");
	for (uint32_t i = 0; i < 128; i++)
		many[i] = (i * 7919 + 13) % 152064;
	assert_int_equal(kvcachefs_hasher_new(&h, &(struct kvcachefs_keys){ .block_tokens = 128 }), 0);
	assert_int_equal(kvcachefs_hasher_feed(h, many, 128, out, 8, &made), 0);
	assert_int_equal(made, 1);
	kvcachefs_hex(out[0], 32, hex);
	assert_string_equal(hex, "3c922374e6fe67f3c64e75b88a3b8bd6185b538f7019674b72aefbf8dd8754f8");
	kvcachefs_group_key(out[0], 258, group);
	kvcachefs_hex(group, 36, hex);
	assert_string_equal(hex + 64, "00000102");
	assert_int_equal(kvcachefs_hasher_feed(h, many, 128, out, 0, &made), -ENOSPC); /* nothing taken: */
	assert_int_equal(kvcachefs_hasher_feed(h, many, 127, out, 0, &made), 0);
	kvcachefs_hasher_free(h);
	assert_int_equal(kvcachefs_hasher_new(&h, &(struct kvcachefs_keys){ .seed = "0", .block_tokens = 4 }), 0);
	assert_int_equal(kvcachefs_hasher_feed(h, (uint32_t[]){ 1, 2, 3, 4 }, 4, out, 8, &made), 0);
	assert_true(kvcachefs_key_int(out[0]) == 2164874634404590027ull);
	kvcachefs_hasher_free(h);
}

static int embeds(void *arg, uint64_t block, uint8_t sha[32])
{
	(void)arg;
	memset(sha, 7, 32);
	return block == 1;
}

/* Extra keys: order and place. Held against CBOR written by hand and hashed by the library's own recipe with `none` as parent. */
static void extras(void **state)
{
	static const struct kvcachefs_mm mm[] = { { "image-a", 2, 5 } }; /* touches blocks 0 and 1 of 4 tokens */
	struct kvcachefs_keys all = { .block_tokens = 4, .lora_name = "lora", .mm = mm, .nmm = 1, .cache_salt = "s", .embeds = embeds };
	struct kvcachefs_keys plain = { .block_tokens = 4 };
	struct kvcachefs_hasher *a, *b;
	uint8_t x[4][32], y[4][32];
	uint32_t t[12] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 };
	size_t n;

	(void)state;
	assert_int_equal(kvcachefs_hasher_new(&a, &all), 0);
	assert_int_equal(kvcachefs_hasher_new(&b, &plain), 0);
	assert_int_equal(kvcachefs_hasher_feed(a, t, 12, x, 4, &n), 0);
	assert_int_equal(n, 3);
	assert_int_equal(kvcachefs_hasher_feed(b, t, 12, y, 4, &n), 0);
	for (int i = 0; i < 3; i++)
		assert_memory_not_equal(x[i], y[i], 32);
	kvcachefs_hasher_free(a);
	/* a change in any of them changes the block it belongs to, and not those before */
	for (int which = 0; which < 4; which++) {
		struct kvcachefs_keys other = all;
		static const struct kvcachefs_mm later[] = { { "image-a", 5, 2 } };

		if (which == 0)
			other.lora_name = "lorb";
		if (which == 1)
			other.cache_salt = "t";
		if (which == 2)
			other.mm = later;
		if (which == 3)
			other.embeds = NULL;
		assert_int_equal(kvcachefs_hasher_new(&a, &other), 0);
		assert_int_equal(kvcachefs_hasher_feed(a, t, 12, y, 4, &n), 0);
		if (which == 3)
			assert_memory_equal(x[0], y[0], 32);
		else
			assert_memory_not_equal(x[0], y[0], 32);
		assert_memory_not_equal(x[1], y[1], 32);
		kvcachefs_hasher_free(a);
	}
	kvcachefs_hasher_free(b);
}

static void others(void **state)
{
	/* The BLAKE3 team's test_vectors.json: input byte i is i % 251. */
	static const struct {
		size_t len;
		const char *hash;
	} b3[] = {
		{ 0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262" },
		{ 1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213" },
		{ 1023, "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11" },
		{ 1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7" },
		{ 1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444" },
		{ 2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a" },
		{ 2049, "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030" },
		{ 31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47" },
	};
	uint8_t in[31744], out[32];
	char hex[65];
	uint32_t t[16];

	(void)state;
	for (size_t i = 0; i < sizeof in; i++)
		in[i] = (uint8_t)(i % 251);
	for (size_t i = 0; i < sizeof b3 / sizeof b3[0]; i++) {
		kvcachefs_blake3(in, b3[i].len, out);
		kvcachefs_hex(out, 32, hex);
		assert_string_equal(hex, b3[i].hash);
	}
	ARE(K(.scheme = KVCACHEFS_LMCACHE_BLAKE3), 0, 512, "7e3eff9ef7613a50340eb12677ee03b83ac759fcba9bb32705f07248d56d473b",
	    "084547b6c40ed5b05ba8cd0305db5bf74d5617673948d9ed193ab7d6cbc484d4", "e5ffee45c2b9db326814c9692dc594369887ba3b0df5761817820b60f864c8e0");
	ARE(K(.scheme = KVCACHEFS_SGLANG, .block_tokens = 16), 1, 16, NULL, "77d735ce838418aa151bd96b5b1e78ee63860892e0a95c00fe34178442be9b07");
	for (uint32_t i = 0; i < 16; i++)
		t[i] = i + 1;
	assert_int_equal(kvcachefs_example_folder(t, 16, 0, NULL, 0, hex), 0);
	assert_string_equal(hex, "de98b0f7ffb9598372b2cd3a11f29e03");
	/* tokens beyond the last whole block do not count */
	assert_int_equal(kvcachefs_example_folder((uint32_t[]){ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 99 }, 17, 16, NULL, 0, hex), 0);
	assert_string_equal(hex, "de98b0f7ffb9598372b2cd3a11f29e03");
}

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
	struct kvcachefs_hasher *h;

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
	assert_int_equal(kvcachefs_hasher_new(&h, &(struct kvcachefs_keys){ .scheme = (enum kvcachefs_scheme)9 }), -EINVAL);
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
	const struct CMUnitTest tests[] = { cmocka_unit_test(vllm), cmocka_unit_test(extras), cmocka_unit_test(others), cmocka_unit_test(layouts),
					    cmocka_unit_test(refused), cmocka_unit_test(rope) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
