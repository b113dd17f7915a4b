/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of KV caches as text: accepted ones, one message for each mistake, and files' lengths. */
#include "kv_layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void accepted(void **state)
{
	/* the text, and the form in which it is printed */
	static const char *const good[][2] = {
		{ "bf16 k2 l32 t256 h8 d128", NULL },     { "fp16 t256 k2 h8 d128", NULL },
		{ "bf16 p* k2 t16 h8 d128", NULL },       { "bf16 t* k2 h8 d128 @28", NULL },
		{ "bf16 l61 t256 d576", NULL },           { "bf16 p4 l2 k2 h8 t16 d64", NULL },
		{ "  bf16  t16   d16 ", "bf16 t16 d16" }, { "bf16 t0001 d16 @0", "bf16 t1 d16" },
		{ "bf16 t1048576 d1024 @1048576", NULL }, { "fp16 t* d64 @safetensors", NULL },
	};
	char error[KVC_KV_LAYOUT_ERROR], text[KVC_KV_LAYOUT_TEXT];
	struct kvc_kv_layout l, again;

	(void)state;
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		*error = 0;
		assert_int_equal(kvc_kv_layout_parse(good[i][0], &l, error), 0);
		assert_string_equal(error, "");
		kvc_kv_layout_print(&l, text);
		assert_string_equal(text, good[i][1] ? good[i][1] : good[i][0]);
		assert_int_equal(kvc_kv_layout_parse(text, &again, error), 0);
		assert_int_equal(again.naxes, l.naxes);
		assert_int_equal(kvc_kv_layout_check(&l, NULL), 0);
	}
	kvc_kv_layout_parse("bf16 p* k2 t16 h8 d128 @28", &l, error);
	assert_int_equal(kvc_kv_layout_axis(&l, 'p'), 0);
	assert_int_equal(kvc_kv_layout_axis(&l, 'h'), 8);
	assert_int_equal(kvc_kv_layout_axis(&l, 'l'), 1);
	assert_int_equal(kvc_kv_layout_vector(&l), 256);
	assert_int_equal(l.at, 28);
}

/* The header of safetensors: its length, then its text. */
static void located(void **state)
{
	static const struct {
		uint64_t header;
		uint32_t at; /* 0: refused */
	} files[] = { { 2, 10 }, { 72, 80 }, { (1 << 20) - 8, 1 << 20 }, { (1 << 20) - 7, 0 },
		      { 0, 0 },  { 1, 0 },   { UINT64_MAX, 0 },          { 1ull << 32, 0 } };
	struct kvc_kv_layout l, plain;
	uint64_t n;

	(void)state;
	for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
		uint64_t first = htole64(files[i].header);
		bool good = files[i].at;

		kvc_kv_layout_parse("bf16 t* d64 @safetensors", &l, NULL);
		assert_int_equal(kvc_kv_layout_fit(&l, 1 << 21, &n), -EINVAL);
		assert_int_equal(kvc_kv_layout_locate(&l, (uint8_t *)&first, 7), -EINVAL);
		assert_int_equal(kvc_kv_layout_locate(&l, (uint8_t *)&first, 8),
				 good ? 0 : -EINVAL);
		assert_int_equal(kvc_kv_layout_fit(&l, 1 << 21, &n), good ? 0 : -EINVAL);
		if (!good)
			continue;
		assert_int_equal(l.at, files[i].at);
		assert_int_equal(n, ((1 << 21) - l.at) / 128);
		assert_int_equal(kvc_kv_layout_check(&l, NULL), 0);
	}
	kvc_kv_layout_parse("bf16 t* d64 @28", &plain, NULL);
	assert_int_equal(kvc_kv_layout_locate(&plain, NULL, 0), 0);
	assert_int_equal(plain.at, 28);
}

/* Each mistake has a message of its own, and the result is not touched. */
static void mistakes(void **state)
{
	static const char *const bad[][2] = {
		{ "", "the type of the elements is bf16 or fp16" },
		{ "fp8 t16 d16", "'fp8': the type" },
		{ "k2 t16 d16", "'k2': the type" },
		{ "bf16", "give the axes after the type" },
		{ "bf16 x3 d16", "'x3': an axis is one of" },
		{ "bf16 T16 d16", "'T16': an axis is one of" },
		{ "bf16 t d16", "'t': give the axis t a size" },
		{ "bf16 t0 d16", "'t0': give the axis t a size" },
		{ "bf16 t-1 d16", "'t-1': give the axis t a size" },
		{ "bf16 t1k d16", "'t1k': give the axis t a size" },
		{ "bf16 t99999999999 d16", "give the axis t a size" },
		{ "bf16 t1048577 d16", "the size of the axis t is above 1048576" },
		{ "bf16 t16 t16 d16", "the axis t occurs twice" },
		{ "bf16 t16 d16 d16", "the last axis must be d" },
		{ "bf16 d16 t16", "the last axis must be d" },
		{ "bf16 t16 h8", "the last axis must be d" },
		{ "bf16 k2 t* d16", "'t*': only the first axis can be free" },
		{ "bf16 h* t16 d16", "'h*': only the first axis can be free" },
		{ "bf16 t16 d*", "'d*': only the first axis can be free" },
		{ "bf16 k3 t16 d16", "'k3': the axis k is keys and values" },
		{ "bf16 t16 d15", "'d15': a vector has 16 to 1024 elements" },
		{ "bf16 t16 d1025", "'d1025': a vector has" },
		{ "bf16 k2 h8 d128", "add an axis of tokens" },
		{ "bf16 l65536 k2 t16 d16", "the product of k, l and h is above 65536" },
		{ "bf16 p1048576 t1048576 d16", "the product of the sizes is too large" },
		{ "bf16 k2 l2 p2 t2 h2 d16 d16", "there are at most 6 axes" },
		{ "bf16 t16 d16\n", "letters, digits, spaces, * and @ only" },
		{ "bf16 t16 d16 @", "'@': give the number of bytes" },
		{ "bf16 t16 d16 @x", "'@x': give the number of bytes" },
		{ "bf16 t16 d16 @1048577", "the offset after @ is above" },
		{ "bf16 @4 t16 d16", "'t16': @ is the last word" },
		{ "bf16 t16 d16 @1 @2", "'@2': @ is the last word" },
	};
	char error[KVC_KV_LAYOUT_ERROR], text[2 * KVC_KV_LAYOUT_TEXT];
	struct kvc_kv_layout l, was;

	(void)state;
	memset(&l, 0x55, sizeof l);
	was = l;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		*error = 0;
		assert_int_equal(kvc_kv_layout_parse(bad[i][0], &l, error), -EINVAL);
		if (!strstr(error, bad[i][1]))
			print_message("%s: %s\n", bad[i][0], error);
		assert_non_null(strstr(error, bad[i][1]));
		assert_null(strchr(error, '\n'));
		assert_memory_equal(&l, &was, sizeof l);
	}
	memset(text, ' ', sizeof text - 1);
	text[sizeof text - 1] = 0;
	assert_int_equal(kvc_kv_layout_parse(text, &l, error), -EINVAL);
	assert_non_null(strstr(error, "at most 95 characters"));
}

static void lengths(void **state)
{
	static const struct {
		const char *layout;
		uint64_t size, vectors; /* 0: a file of this size does not have the layout */
	} t[] = {
		{ "bf16 k2 t16 h2 d16", 2048, 64 },
		{ "bf16 k2 t16 h2 d16", 2047, 0 },
		{ "bf16 k2 t16 h2 d16", 2048 + 4096, 64 },
		{ "bf16 k2 t16 h2 d16", 2048 + 4097, 0 },
		{ "bf16 k2 t16 h2 d16 @28", 2048, 0 },
		{ "bf16 k2 t16 h2 d16 @28", 2076, 64 },
		{ "bf16 k2 t16 h2 d16 @28", 28, 0 },
		{ "bf16 t* k2 h2 d16", 127, 0 },
		{ "bf16 t* k2 h2 d16", 128, 4 },
		{ "bf16 t* k2 h2 d16", 300, 8 },
		{ "bf16 t* k2 h2 d16 @20", 300, 8 },
		{ "bf16 t* k2 h2 d16", 0, 0 },
		{ "bf16 t* d16", 1ull << 50, 1ull << 45 },
		{ "bf16 p1048576 t65536 d1024", 1ull << 47, 1ull << 36 },
	};
	char error[KVC_KV_LAYOUT_ERROR];
	struct kvc_kv_layout l;

	(void)state;
	for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
		uint64_t vectors = 0;

		assert_int_equal(kvc_kv_layout_parse(t[i].layout, &l, error), 0);
		assert_int_equal(kvc_kv_layout_fit(&l, t[i].size, &vectors),
				 t[i].vectors ? 0 : -EINVAL);
		assert_true(vectors == t[i].vectors);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(accepted),
		cmocka_unit_test(located),
		cmocka_unit_test(mistakes),
		cmocka_unit_test(lengths),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
