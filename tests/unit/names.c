/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File names: names that engines wrote are parsed and built again; names that cannot be expressed
 * are refused; and mutations of valid names are refused or build the same path again.
 */
#include "kvcachefs_names.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define SHA "cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682"
#define FS KVCACHEFS_NAME_LMCACHE_FS
#define DISK KVCACHEFS_NAME_LMCACHE_DISK
#define L2 KVCACHEFS_NAME_LMCACHE_L2
#define SGL KVCACHEFS_NAME_SGLANG_FILE
#define VLLM KVCACHEFS_NAME_VLLM_FS

/* `lossy`: the path does not show which characters of the model were slashes. */
static const struct {
	enum kvcachefs_naming as;
	bool lossy;
	struct kvcachefs_name n;
	const char *path;
} good[] = {
	{ FS,
	  false,
	  { .model = "meta-llama/Llama-3.1-8B",
	    .key = "b8a960cfcc69e7a5",
	    .world_size = 1,
	    .dtype = "bfloat16" },
	  "meta-llama-SEP-Llama-3.1-8B@1@0@b8a960cfcc69e7a5@bfloat16.data" },
	{ FS,
	  false,
	  { .model = "m",
	    .key = "-1f",
	    .world_size = 8,
	    .worker = 7,
	    .dtype = "fp8_e4m3fn",
	    .has_layer = true,
	    .layer = 31,
	    .tags = "user%a/b@t%" },
	  "m@8@7@-1f@fp8_e4m3fn@31@user%a-SEP-b@t%.data" },
	{ FS,
	  false,
	  { .model = "m", .key = "0", .world_size = 1, .dtype = "half", .tags = "x%1" },
	  "m@1@0@0@half@x%1.data" },
	{ DISK,
	  true,
	  { .model = "org/m",
	    .key = "3c1723fd6b22dbd",
	    .world_size = 2,
	    .worker = 1,
	    .dtype = "float" },
	  "org-m@2@1@3c1723fd6b22dbd@float.pt" },
	{ L2,
	  false,
	  { .model = "/tmp/m1", .key = SHA, .kv_rank = 0x01000100 },
	  "-SEP-tmp-SEP-m1@0x01000100@0@" SHA ".data" },
	{ L2,
	  false,
	  { .model = "m",
	    .key = "00ff",
	    .kv_rank = 0x08050401,
	    .group = 27,
	    .salt = "s\xc3\xa4lz" },
	  "m@0x08050401@1b@00ff@s\xc3\xa4lz.data" },
	{ SGL,
	  true,
	  { .model = "Qwen/Qwen3-8B", .key = SHA, .tp_size = 1 },
	  SHA "_Qwen-Qwen3-8B_0_1.bin" },
	{ SGL,
	  false,
	  { .model = "a_b",
	    .key = SHA,
	    .tp_rank = 3,
	    .tp_size = 8,
	    .pp_size = 2,
	    .pp_rank = 1,
	    .cp_rank = 1,
	    .cp_size = 4 },
	  SHA "_a_b_3_8_2_1_cp1_4.bin" },
	{ SGL, false, { .model = "DeepSeek-V3", .key = SHA, .mla = true }, SHA "_DeepSeek-V3.bin" },
	{ SGL,
	  false,
	  { .model = "DeepSeek-V3", .key = SHA, .mla = true, .pp_size = 2 },
	  SHA "_DeepSeek-V3_2_0.bin" },
	{ SGL,
	  false,
	  { .model = "D",
	    .key = SHA,
	    .mla = true,
	    .pool = "deepseek_v4_c4_indexer",
	    .tp_size = 4,
	    .dcp_rank = 1,
	    .dcp_size = 2,
	    .page = 128 },
	  SHA ".deepseek_v4_c4_indexer_D_tp4_dcp1_2_page128.bin" },
	{ SGL,
	  false,
	  { .model = "D",
	    .key = SHA,
	    .mla = true,
	    .pool = "mamba",
	    .tp_rank = 3,
	    .tp_size = 4,
	    .dcp_rank = 1,
	    .dcp_size = 2,
	    .page = 64 },
	  SHA ".mamba_D_3_4_tp4_dcp1_2_page64.bin" },
	/* a model that ends like a rank and its size */
	{ SGL,
	  false,
	  { .model = "m_1_4", .key = SHA, .mla = true, .tp_size = 4, .dcp_size = 2, .page = 64 },
	  SHA "_m_1_4_tp4_dcp0_2_page64.bin" },
	{ SGL, false, { .key = SHA, .tp_rank = 1, .tp_size = 2 }, SHA "__1_2.bin" },
	{ VLLM,
	  true,
	  { .model = "Qwen/Qwen3-8B", .key = SHA, .config = "1a2b3c4d5e6f" },
	  "Qwen_Qwen3-8B_1a2b3c4d5e6f_r0/cd7/c5_g0/" SHA ".bin" },
	{ VLLM,
	  false,
	  { .model = "my_model_r1",
	    .key = "6ba7d7fc1608e5f0a4612b1b0c87458f",
	    .config = "000000000000",
	    .rank = 12,
	    .group = 3 },
	  "my_model_r1_000000000000_r12/6ba/7d_g3/6ba7d7fc1608e5f0a4612b1b0c87458f.bin" },
};
enum { GOOD = sizeof good / sizeof good[0] };

static void there_and_back(void **state)
{
	(void)state;
	for (int i = 0; i < GOOD; i++) {
		char path[KVCACHEFS_PATH_MAX];
		struct kvcachefs_name n, want = good[i].n;

		assert_int_equal(kvcachefs_name_build(good[i].as, &good[i].n, path), 0);
		assert_string_equal(path, good[i].path);
		assert_int_equal(kvcachefs_name_parse(good[i].as, path, &n), 0);
		if (good[i].lossy)
			memcpy(want.model, n.model, sizeof n.model);
		assert_memory_equal(&n, &want, sizeof n);
		for (int as = 0; as < KVCACHEFS_NAMINGS;
		     as++) /* no other naming accepts the path */
			if (as != (int)good[i].as)
				assert_int_equal(kvcachefs_name_parse((enum kvcachefs_naming)as,
								      path, &n),
						 -EINVAL);
	}
}

static void refused(void **state)
{
	static const struct {
		enum kvcachefs_naming as;
		const char *path;
	} bad[] = {
		{ FS, "" },
		{ FS, ".data" },
		{ FS, "m@1@0@ff@bfloat16" },
		{ FS, "m@1@0@ff@bfloat16.tmp" },
		{ FS, "m@1@0@ff@int4.data" },
		{ FS, "m@1@1@ff@half.data" },
		{ FS, "m@01@0@ff@half.data" },
		{ FS, "m@1@0@FF@half.data" },
		{ FS, "m@1@0@@half.data" },
		{ FS, "m@1@0@ff@half@tag.data" },
		{ FS, "m@1@0@ff@half@.data" },
		{ FS, "m@1@0@ff@half@a%@.data" },
		{ FS, "m/x@1@0@ff@half.data" },
		{ FS, "m@99999999999@0@ff@half.data" },
		{ FS, "m@1@0@ff@half@7@8.data" },
		{ DISK, "m@1@0@ff@half.data" },
		{ L2, "m@01000100@0@ff.data" },
		{ L2, "m@0x1000100@0@ff.data" },
		{ L2, "m@0x01000100@00@ff.data" },
		{ L2, "m@0x01000100@0@f.data" },
		{ L2, "m@0x01000100@0@ff@.data" },
		{ L2, "m@0x01000100@0@ff@a@b.data" },
		{ L2, "m@0x01000100@0@ff@a\\b.data" },
		{ SGL, SHA ".bin" },
		{ SGL, SHA "m_0_1.bin" },
		{ SGL, "x" SHA "_m_0_1.bin" },
		{ SGL, SHA ".nopool_m_0_1.bin" },
		{ SGL, SHA "_m_0_1.bin.tmp" },
		{ SGL, SHA "_m/n_0_1.bin" },
		{ SGL, SHA "_m_tp4_dcp2_2_page128.bin" },
		{ VLLM, "m_1a2b3c4d5e6f_r0/cd7/c5_g0/ed7c51bc.bin" },
		{ VLLM, "m_1a2b3c4d5e6f_r0/cd7/51_g0/cd7c51bc.bin" },
		{ VLLM, "m_1a2b3c4d5e6f/cd7/c5_g0/cd7c51bc.bin" },
		{ VLLM, "/m_1a2b3c4d5e6f_r0/cd7/c5_g0/cd7c51bc.bin" },
		{ VLLM, "_1a2b3c4d5e6f_r0/cd7/c5_g0/cd7c51bc.bin" },
		{ VLLM, "m_1a2b3c4d5e6f_r0/cd7/c5_g0/cd7c51bc.bin_12.tmp" },
		{ KVCACHEFS_NAMINGS, "x" },
	};
	char path[KVCACHEFS_PATH_MAX] = "untouched";
	struct kvcachefs_name n, before;

	(void)state;
	memset(&n, 0x5a, sizeof n);
	before = n;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		if (kvcachefs_name_parse(bad[i].as, bad[i].path, &n) != -EINVAL)
			fail_msg("taken: %s", bad[i].path);
		assert_true(*kvcachefs_error());
	}
	assert_memory_equal(&n, &before, sizeof n);
#define NOT(err, as, ...)                                                                         \
	assert_int_equal(kvcachefs_name_build(as, &(struct kvcachefs_name){ __VA_ARGS__ }, path), \
			 err);                                                                    \
	assert_true(*kvcachefs_error())
	NOT(-EINVAL, FS, .key = "ff");
	NOT(-EINVAL, FS, .model = "a@b", .key = "ff");
	NOT(-EINVAL, FS, .model = "m", .key = "fg");
	NOT(-EINVAL, FS, .model = "m", .key = "ff", .dtype = "bf16");
	NOT(-EINVAL, FS, .model = "m", .key = "ff", .worker = 1);
	NOT(-EINVAL, FS, .model = "m\n", .key = "ff");
	NOT(-EINVAL, FS, .model = "m", .key = "ff", .tags = "a");
	NOT(-EINVAL, L2, .model = "m", .key = "ff", .salt = "a/b");
	NOT(-EINVAL, L2, .model = "m", .key = "fff");
	NOT(-EINVAL, SGL, .model = "m", .key = "ff");
	NOT(-EINVAL, SGL, .model = "m", .key = SHA, .pool = "kv");
	NOT(-EINVAL, SGL, .model = "m", .key = SHA, .tp_rank = 2, .tp_size = 2);
	NOT(-EINVAL, SGL, .model = "m", .key = SHA, .dcp_size = 2, .page = 64);
	NOT(-EINVAL, VLLM, .model = "m", .key = SHA);
	NOT(-EINVAL, VLLM, .model = "m", .key = SHA, .config = "123456789ABC");
	struct kvcachefs_name longer = { .key = "ff" };

	memset(longer.model, 'm', 255);
	assert_int_equal(kvcachefs_name_build(FS, &longer, path), -ENAMETOOLONG);
	memset(longer.model, '/', 255); /* five bytes each */
	assert_int_equal(kvcachefs_name_build(L2, &longer, path), -ENAMETOOLONG);
	assert_string_equal(path, "untouched");
	memset(&n, 0, sizeof n);
	assert_int_equal(kvcachefs_name_set(&n, "tp_size", "12"), 0);
	assert_int_equal(kvcachefs_name_set(&n, "kv_rank", "0x01000100"), 0);
	assert_int_equal(kvcachefs_name_set(&n, "layer", "0"), 0);
	assert_int_equal(kvcachefs_name_set(&n, "mla", "true"), 0);
	assert_true(n.tp_size == 12 && n.kv_rank == 0x01000100 && n.has_layer && n.mla);
	assert_int_equal(kvcachefs_name_set(&n, "tp_size", "x"), -EINVAL);
	assert_int_equal(kvcachefs_name_set(&n, "tp_size", "4294967296"), -EINVAL);
	assert_int_equal(kvcachefs_name_set(&n, "mla", "maybe"), -EINVAL);
	assert_int_equal(kvcachefs_name_set(&n, "config", "1234567890123"), -EINVAL);
	assert_int_equal(kvcachefs_name_set(&n, "nothing", "1"), -EINVAL);
}

/*
 * Random bytes are changed, cut, doubled and joined. Each result is refused, or is a path that
 * builds the same path again.
 */
static void mutations(void **state)
{
	static const char likely[] = "@_/.-%0123456789abcfrgxptd";
	unsigned seed = (unsigned)time(NULL), taken = 0;

	(void)state;
	print_message("seed %u\n", seed);
	for (int round = 0; round < 200000; round++) {
		const char *from = good[rand_r(&seed) % GOOD].path,
			   *other = good[rand_r(&seed) % GOOD].path;
		char path[1024], again[KVCACHEFS_PATH_MAX], *exact;
		size_t len = strlen(from), cut = (size_t)rand_r(&seed) % (len + 1);
		struct kvcachefs_name n;

		snprintf(path, sizeof path, "%s", from);
		if (round % 5 == 0)
			snprintf(path + cut, sizeof path - cut, "%s",
				 other + (size_t)rand_r(&seed) % strlen(other));
		for (int k = rand_r(&seed) % 4; k-- && *path;)
			path[(size_t)rand_r(&seed) % strlen(path)] =
				rand_r(&seed) % 4
					? likely[(size_t)rand_r(&seed) % (sizeof likely - 1)]
					: (char)(1 + rand_r(&seed) % 255);
		if (round % 7 == 0)
			path[(size_t)rand_r(&seed) % (strlen(path) + 1)] = 0;
		/* exact size, so that a sanitizer detects a read past the end */
		exact = strdup(path);
		for (int as = 0; as < KVCACHEFS_NAMINGS; as++) {
			if (kvcachefs_name_parse((enum kvcachefs_naming)as, exact, &n))
				continue;
			taken++;
			assert_int_equal(kvcachefs_name_build((enum kvcachefs_naming)as, &n, again),
					 0);
			assert_string_equal(again, path);
		}
		free(exact);
	}
	assert_true(taken > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(there_and_back),
		cmocka_unit_test(refused),
		cmocka_unit_test(mutations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
