/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunk keys compared with published vectors, and with the keys that the engines' own code (vLLM
 * 0.32, LMCache 0.5.6, SGLang 0.5.23; PYTHONHASHSEED=0 unless noted) printed for the same tokens.
 */
#include "kvcachefs_keys.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CBOR KVCACHEFS_VLLM_SHA256_CBOR

static void keys_are(const struct kvcachefs_keys *k, uint32_t first, size_t n, const char *none,
		     const char *const *want, size_t nwant)
{
	/* All at once, then one token at a time: the same keys. */
	for (int pass = 0; pass < 2; pass++) {
		struct kvcachefs_hasher *h;
		uint8_t out[64 * KVCACHEFS_KEY_MAX];
		char hex[KVCACHEFS_TEXT_MAX];
		size_t made = 0, got = 0, len;

		assert_int_equal(kvcachefs_hasher_new(&h, k), 0);
		len = kvcachefs_hasher_key_len(h);
		if (none) {
			kvcachefs_hasher_text(h, kvcachefs_hasher_none(h), hex);
			assert_string_equal(hex, none);
		}
		uint32_t *t = calloc(n, sizeof *t);

		for (size_t i = 0; i < n; i++)
			t[i] = first + (uint32_t)i;
		for (size_t i = 0; i < n;) {
			size_t step = pass ? 1 : n;

			assert_int_equal(kvcachefs_hasher_feed(h, t + i, step, out + got * len,
							       64 - got, &made),
					 0);
			got += made;
			i += step;
		}
		assert_int_equal(got, nwant);
		for (size_t i = 0; i < nwant; i++) {
			kvcachefs_hasher_text(h, out + i * len, hex);
			assert_string_equal(hex, want[i]);
		}
		free(t);
		kvcachefs_hasher_free(h);
	}
}

#define ARE(k, first, n, none, ...)                                                               \
	keys_are(&(struct kvcachefs_keys)k, first, n, none, (const char *const[]){ __VA_ARGS__ }, \
		 sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(char *))
#define K(...) { __VA_ARGS__ }

/*
 * Mooncake's conductor documentation for vLLM 0.22.0; third-party tests quoting vLLM at 0c16eee3f1
 * and 29bf597539.
 */
static void vllm(void **state)
{
	uint32_t many[128];
	uint8_t out[8][32], group[36];
	char hex[73];
	struct kvcachefs_hasher *h;
	size_t made;

	(void)state;
	ARE(K(.scheme = CBOR, .seed = "0", .block_tokens = 4), 1, 8,
	    "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e",
	    "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb",
	    "24125b23e68883b5c2141db2959d48433fe6bde2f26bd914efad121d154ab2d6");
	ARE(K(.scheme = CBOR, .seed = "0"), 1, 33, NULL,
	    "202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea",
	    "4a0a393805c6d2f0ed831000d41bb65980336c4c04895d5e26470bbec927f5bf");
	ARE(K(.scheme = CBOR, .seed = "0", .cache_salt = "salt"), 1, 16, NULL,
	    "0222f5b704a8247ae4068ec648ea39b6a207f22cee65f086f86091a2d25fbd47");
	ARE(K(.scheme = CBOR, .seed = "0", .empty_extra_is_array = true), 1, 16, NULL,
	    "5a6992f79d25a88decaa27609c6df1ad1670bb4e95e62d2ac2a387318688b905");
	ARE(K(.scheme = CBOR, .block_tokens = 4), 1, 8,
	    "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
	    "58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111",
	    "e1bc29393a2da9fd798f35ff04d215f846aee6df4b803ce3d43b57df56b58fb1");
	ARE(K(.scheme = CBOR), 1, 16, NULL,
	    "cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682");
	for (uint32_t i = 0; i < 128; i++)
		many[i] = (i * 7919 + 13) % 152064;
	assert_int_equal(kvcachefs_hasher_new(&h, &(struct kvcachefs_keys){ .scheme = CBOR,
									    .block_tokens = 128 }),
			 0);
	assert_int_equal(kvcachefs_hasher_feed(h, many, 128, out, 8, &made), 0);
	assert_int_equal(made, 1);
	kvcachefs_hex(out[0], 32, hex);
	assert_string_equal(hex,
			    "3c922374e6fe67f3c64e75b88a3b8bd6185b538f7019674b72aefbf8dd8754f8");
	kvcachefs_group_key(out[0], 32, 258, group);
	kvcachefs_hex(group, 36, hex);
	assert_string_equal(hex + 64, "00000102");
	assert_int_equal(kvcachefs_hasher_feed(h, many, 128, out, 0, &made),
			 -ENOSPC); /* no token was consumed, as the next call shows */
	assert_int_equal(kvcachefs_hasher_feed(h, many, 127, out, 0, &made), 0);
	kvcachefs_hasher_free(h);
	assert_int_equal(kvcachefs_hasher_new(&h, &(struct kvcachefs_keys){ .scheme = CBOR,
									    .seed = "0",
									    .block_tokens = 4 }),
			 0);
	for (uint32_t i = 0; i < 8; i++)
		many[i] = i + 1;
	assert_int_equal(kvcachefs_hasher_feed(h, many, 8, out, 8, &made), 0);
	assert_true(made == 2 && kvcachefs_key_int(out[0], 32) == 2164874634404590027ull &&
		    kvcachefs_key_int(out[1], 32) == 17270480062156288726ull);
	kvcachefs_hasher_free(h);
	assert_int_equal(kvcachefs_hasher_new(&h, &(struct kvcachefs_keys){ .scheme = CBOR,
									    .seed = "0" }),
			 0);
	for (uint32_t i = 0; i < 16; i++)
		many[i] = i + 1;
	assert_int_equal(kvcachefs_hasher_feed(h, many, 16, out, 8, &made), 0);
	assert_true(made == 1 && kvcachefs_key_int(out[0], 32) == 3236607068019569386ull);
	kvcachefs_hasher_free(h);
}

static int embeds(void *arg, uint64_t block, uint8_t sha[32])
{
	(void)arg;
	memset(sha, 7, 32);
	return block == 1;
}

static int embeds_first(void *arg, uint64_t block, uint8_t sha[32])
{
	return embeds(arg, block + 1, sha);
}

/*
 * Extra keys: a change of one changes the keys of its block and of later blocks. The keys are those
 * of vLLM for untagged and tagged extra keys.
 */
static void extras(void **state)
{
	static const struct kvcachefs_mm mm[] = { { "image-a", 2,
						    5 } }; /* touches blocks 0 and 1 of 4 tokens */
	struct kvcachefs_keys all = {
		.scheme = CBOR,
		.block_tokens = 4,
		.lora_name = "lora",
		.mm = mm,
		.nmm = 1,
		.cache_salt = "s",
		.embeds = embeds,
	};
	struct kvcachefs_keys plain = { .scheme = CBOR, .block_tokens = 4 };
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
	/*
	 * a change of an extra key changes the keys of its block and later ones, not of earlier
	 * ones
	 */
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
	/* keys of vLLM's own code: untagged and tagged; here block 0 has embeddings */
	static const struct kvcachefs_mm img[] = { { "img", 2, 5 } };
	struct kvcachefs_keys k = {
		.scheme = CBOR,
		.seed = "0",
		.block_tokens = 4,
		.lora_name = "ad",
		.lora_path = "/p",
		.mm = img,
		.nmm = 1,
		.cache_salt = "s",
		.embeds = embeds_first,
	};

	keys_are(&k, 1, 8, NULL,
		 (const char *const[]){
			 "8a689e756676ebbb6f9f232a63be45acaa6c9debb8629cd46e310eac7f372da2",
			 "d61fb622479ff808fce9544340ab1ceef2bd7933932c1d81f604569840f9e331" },
		 2);
	k.tagged_extra = true;
	keys_are(&k, 1, 4, NULL,
		 (const char *const[]){
			 "8f29aef1007aca96c707fbc764a7f5fd52d9e2c6879feb8642d9b8faf036ef47" },
		 1);
	/* an empty salt means no salt */
	ARE(K(.scheme = CBOR, .seed = "0", .cache_salt = ""), 1, 16, NULL,
	    "202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea");
	/* SGLang's namespace */
	ARE(K(.scheme = KVCACHEFS_SGLANG, .block_tokens = 16, .cache_salt = "s"), 1, 16,
	    "c825a7fb5423c8a6cc5990d09f8ca69181b05fdffd804c10db403e9e52699f6b",
	    "b8caf258f0a7421e13a29e32fcd5b0629487450258992ca54aa7bd0943584205");
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
	ARE(K(.scheme = KVCACHEFS_LMCACHE_MP_BLAKE3), 0, 512,
	    "7e3eff9ef7613a50340eb12677ee03b83ac759fcba9bb32705f07248d56d473b",
	    "084547b6c40ed5b05ba8cd0305db5bf74d5617673948d9ed193ab7d6cbc484d4",
	    "e5ffee45c2b9db326814c9692dc594369887ba3b0df5761817820b60f864c8e0");
	ARE(K(.scheme = KVCACHEFS_SGLANG, .block_tokens = 16), 1, 32, NULL,
	    "77d735ce838418aa151bd96b5b1e78ee63860892e0a95c00fe34178442be9b07",
	    "1170426cf2449cebf4d17f087ce5bb43b6a910ce91b3f40922868e913e8ee91d");
	ARE(K(.scheme = KVCACHEFS_SGLANG, .block_tokens = 1), 0, 1, NULL,
	    "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119");
	for (uint32_t i = 0; i < 16; i++)
		t[i] = i + 1;
	assert_int_equal(kvcachefs_example_folder(t, 16, 0, NULL, 0, hex), 0);
	assert_string_equal(hex, "de98b0f7ffb9598372b2cd3a11f29e03");
	/* tokens beyond the last whole block do not count */
	assert_int_equal(kvcachefs_example_folder((uint32_t[]){ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,
								12, 13, 14, 15, 16, 99 },
						  17, 16, NULL, 0, hex),
			 0);
	assert_string_equal(hex, "de98b0f7ffb9598372b2cd3a11f29e03");
}

/* The hashes over pickle and XXH3, and LMCache's folds of all four. */
static void hashes(void **state)
{
	char hex[KVCACHEFS_TEXT_MAX];
	uint8_t out[2 * KVCACHEFS_KEY_MAX];
	uint32_t t[522];
	size_t made;
	static const struct {
		enum kvcachefs_scheme vllm, lmcache, mp;
		const char *none, *first, *second, *fold_none, *fold_first, *fold_second, *rest;
	} v[] = {
		{ KVCACHEFS_VLLM_SHA256, KVCACHEFS_LMCACHE_SHA256, KVCACHEFS_LMCACHE_MP_SHA256,
		  "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c",
		  "bea72b7d33de03c1aa715efbb492d0e0d3801f00c1f985756896072ae8b31325",
		  "2744667f6645310ff670b0c5d7c64987ffa5940de5a549f17d92dcbb5b559e31",
		  "1973e23848344dc4", "a8ff4c2f0c4657fa", "27d757e52fa4414b", "ca9d80238854ebf6" },
		{ KVCACHEFS_VLLM_SHA256_CBOR, KVCACHEFS_LMCACHE_SHA256_CBOR,
		  KVCACHEFS_LMCACHE_MP_SHA256_CBOR,
		  "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e",
		  "202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea",
		  "4a0a393805c6d2f0ed831000d41bb65980336c4c04895d5e26470bbec927f5bf",
		  "4e1195df020de59e", "b8a960cfcc69e7a5", "cc309e143d545625", "7c7318f3c77ae8dd" },
		{ KVCACHEFS_VLLM_XXHASH, KVCACHEFS_LMCACHE_XXHASH, KVCACHEFS_LMCACHE_MP_XXHASH,
		  "6fb31cc38bba6066183f7f2104b9c051", "6ba7d7fc1608e5f0a4612b1b0c87458f",
		  "dbd92304eaa08219c5cf8f4ce18166b6", "6fb31cc38bba6066", "3b6ad0d2f8095e86",
		  "a95b96a6d8483d70", "9e5e9eb21170645c" },
		{ KVCACHEFS_VLLM_XXHASH_CBOR, KVCACHEFS_LMCACHE_XXHASH_CBOR,
		  KVCACHEFS_LMCACHE_MP_XXHASH_CBOR, "1ebe36576dcb573f26b99533a20aaeca",
		  "c2d7a75070fc6d6b0c3fb0af456c1009", "93add93233ea572fb2e2b1685bac6f8d",
		  "1ebe36576dcb573f", "b67e66d5b9fb6317", "3c1723fd6b22dbd", "2afd95ec84b3c653" },
	};

	(void)state;
	for (uint32_t i = 0; i < 522; i++)
		t[i] = i;
	for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
		struct kvcachefs_hasher *h;

		ARE(K(.scheme = v[i].vllm, .seed = "0"), 1, 33, v[i].none, v[i].first, v[i].second);
		ARE(K(.scheme = v[i].mp, .seed = "0", .block_tokens = 16), 1, 33, v[i].none,
		    v[i].first, v[i].second);
		ARE(K(.scheme = v[i].lmcache, .seed = "0"), 0, 513, v[i].fold_none, v[i].fold_first,
		    v[i].fold_second);
		/* tokens that fill no chunk have a key, which does not change the hasher */
		assert_int_equal(
			kvcachefs_hasher_new(&h, &(struct kvcachefs_keys){ .scheme = v[i].lmcache,
									   .seed = "0" }),
			0);
		assert_int_equal(kvcachefs_hasher_rest(h, out), -ENODATA);
		assert_int_equal(kvcachefs_hasher_feed(h, t, 300, out, 2, &made), 0);
		assert_int_equal(kvcachefs_hasher_rest(h, out), 0);
		assert_int_equal(kvcachefs_hasher_feed(h, t + 300, 222, out, 2, &made), 0);
		assert_int_equal(made, 1);
		kvcachefs_hasher_text(h, out, hex);
		assert_string_equal(hex, v[i].fold_second);
		assert_int_equal(kvcachefs_hasher_rest(h, out), 0);
		kvcachefs_hasher_text(h, out, hex);
		assert_string_equal(hex, v[i].rest);
		kvcachefs_hasher_free(h);
	}
	/* the caller gives NONE_HASH: the digest, or the fold */
	memcpy(out, (uint8_t[]){ 0x4e, 0x11, 0x95, 0xdf, 0x02, 0x0d, 0xe5, 0x9e }, 8);
	memset(out + 8, 0xaa, 24);
	for (size_t n = 8; n <= 32; n += 24)
		ARE(K(.scheme = KVCACHEFS_LMCACHE_SHA256_CBOR, .none = out, .none_len = n), 0, 256,
		    "4e1195df020de59e", "b8a960cfcc69e7a5");
}

static void segments(void **state)
{
	static const struct {
		uint32_t tokens[11], n, sep[3], nsep;
		size_t made, at[4][2];
		const char *key[4];
	} v[] = {
		{ { 1, 2, 3, 9, 9, 4, 5, 9, 9, 9, 6 },
		  11,
		  { 9, 9 },
		  2,
		  4,
		  { { 0, 3 }, { 5, 7 }, { 9, 9 }, { 11, 12 } },
		  { "ec23df6146715abf", "bdb36ff39728243a", "7de659766610f1b3",
		    "b61cbb6f06fa8da4" } },
		{ { 9, 9, 1 },
		  3,
		  { 9, 9 },
		  2,
		  2,
		  { { 0, 0 }, { 2, 3 } },
		  { "7de659766610f1b3", "960acdb52c1b6363" } },
		{ { 5, 5, 5 },
		  3,
		  { 5, 5 },
		  2,
		  3,
		  { { 0, 0 }, { 2, 2 }, { 4, 4 } },
		  { "7de659766610f1b3", "7de659766610f1b3", "7de659766610f1b3" } },
		{ { 1, 2 }, 2, { 7, 7, 7 }, 3, 1, { { 0, 2 } }, { "befbe47ae6d99411" } },
	};
	struct kvcachefs_segment out[4];
	struct kvcachefs_hasher *h;
	uint32_t t[200];
	uint64_t sums[200], want;
	char hex[KVCACHEFS_TEXT_MAX];
	size_t made;

	(void)state;
	assert_int_equal(kvcachefs_hasher_new(&h,
					      &(struct kvcachefs_keys){
						      .scheme = KVCACHEFS_LMCACHE_SHA256_CBOR,
						      .seed = "0" }),
			 0);
	for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
		assert_int_equal(kvcachefs_segments(h, v[i].tokens, v[i].n, v[i].sep, v[i].nsep,
						    out, 4, &made),
				 0);
		assert_int_equal(made, v[i].made);
		for (size_t k = 0; k < made; k++) {
			assert_int_equal(out[k].start, v[i].at[k][0]);
			assert_int_equal(out[k].end, v[i].at[k][1]);
			kvcachefs_hasher_text(h, out[k].key, hex);
			assert_string_equal(hex, v[i].key[k]);
		}
	}
	assert_int_equal(kvcachefs_segments(h, v[0].tokens, 11, v[0].sep, 2, out, 3, &made),
			 -ENOSPC);
	assert_int_equal(made, 4);
	assert_int_equal(kvcachefs_segments(h, v[0].tokens, 11, v[0].sep, 0, out, 4, &made),
			 -EINVAL);
	kvcachefs_hasher_free(h);
	assert_int_equal(
		kvcachefs_hasher_new(&h, &(struct kvcachefs_keys){ .scheme = KVCACHEFS_SGLANG }),
		0);
	assert_int_equal(kvcachefs_segments(h, v[0].tokens, 11, v[0].sep, 2, out, 4, &made),
			 -EINVAL);
	kvcachefs_hasher_free(h);
	/* fingerprints: computed with Python's integers; then each window by its definition */
	for (uint32_t i = 0; i < 200; i++)
		t[i] = i + 1;
	assert_int_equal(kvcachefs_fingerprints(t, 6, 4, sums), 0);
	assert_true(sums[0] == 0xf9792455c84f1fe2 && sums[1] == 0xd73f2815c3c0edde &&
		    sums[2] == 0xb5052bd5bf32bbda);
	for (uint32_t i = 0; i < 200; i++)
		t[i] = i * 2654435761u;
	assert_int_equal(kvcachefs_fingerprints(t, 200, 37, sums), 0);
	for (size_t at = 0; at + 37 <= 200; at++) {
		want = 0;
		for (size_t i = 0; i < 37; i++) {
			uint64_t term = t[at + i];

			for (size_t k = i; k < 36; k++)
				term *= 0x9E3779B97F4A7C15;
			want += term;
		}
		assert_true(sums[at] == want);
	}
	assert_int_equal(kvcachefs_fingerprints(t, 5, 6, sums), -EINVAL);
	assert_int_equal(kvcachefs_fingerprints(t, 5, 0, sums), -EINVAL);
}

/* Options that a scheme does not support are refused, with a reason. */
static void refused(void **state)
{
	static const struct kvcachefs_mm mm = { "x", 0, 1 };
	enum kvcachefs_scheme s;
	struct kvcachefs_hasher *h;

	(void)state;
#define NOT(...)                                                                            \
	assert_int_equal(kvcachefs_hasher_new(&h, &(struct kvcachefs_keys){ __VA_ARGS__ }), \
			 -EINVAL);                                                          \
	assert_true(*kvcachefs_error())
	NOT(.scheme = KVCACHEFS_SCHEMES);
	NOT(.block_tokens = 1u << 25);
	NOT(.scheme = KVCACHEFS_VLLM_SHA256, .lora_name = "x");
	assert_non_null(strstr(kvcachefs_error(), "pickle"));
	NOT(.scheme = KVCACHEFS_VLLM_SHA256, .cache_salt = "x");
	NOT(.scheme = KVCACHEFS_VLLM_SHA256, .embeds = embeds);
	NOT(.scheme = KVCACHEFS_VLLM_XXHASH, .seed = "0", .mm = &mm, .nmm = 1);
	NOT(.scheme = KVCACHEFS_LMCACHE_SHA256_CBOR, .lora_name = "x");
	NOT(.scheme = KVCACHEFS_LMCACHE_MP_BLAKE3, .cache_salt = "x");
	NOT(.scheme = KVCACHEFS_VLLM_SHA256_CBOR, .extra_key = "x");
	NOT(.scheme = KVCACHEFS_LMCACHE_SHA256_CBOR, .empty_extra_is_array = true);
	NOT(.scheme = KVCACHEFS_VLLM_XXHASH); /* its NONE_HASH is random */
	NOT(.scheme = KVCACHEFS_LMCACHE_MP_XXHASH_CBOR);
	NOT(.scheme = KVCACHEFS_VLLM_SHA256, .none = "12345678", .none_len = 8);
	for (int i = 0; i < KVCACHEFS_SCHEMES; i++) {
		assert_int_equal(
			kvcachefs_scheme_find(kvcachefs_scheme_name((enum kvcachefs_scheme)i), &s),
			0);
		assert_int_equal(s, i);
	}
	assert_null(kvcachefs_scheme_name(KVCACHEFS_SCHEMES));
	assert_int_equal(kvcachefs_scheme_find("vllm", &s), -EINVAL);
	assert_non_null(strstr(kvcachefs_error(), "sglang"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(vllm),   cmocka_unit_test(extras),   cmocka_unit_test(others),
		cmocka_unit_test(hashes), cmocka_unit_test(segments), cmocka_unit_test(refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
