/* SPDX-License-Identifier: Apache-2.0 */
/* The suggestion for a mistyped option or command. */
#include "near.h"
#include "options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *nearest(const char *word)
{
	static const char *const names[] = {
		"status", "stats", "stat",   "top",       "ls",
		"log",    "evict", "events", "keep_pool", "passthrough"
	};
	struct kvc_near n = { .word = word };

	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		kvc_near_try(&n, names[i]);
	return n.best ?: "";
}

static void mistakes(void **state)
{
	(void)state;
	assert_string_equal(nearest("staus"), "status");   /* missing */
	assert_string_equal(nearest("statuus"), "status"); /* added */
	assert_string_equal(nearest("stitus"), "status");  /* changed */
	assert_string_equal(nearest("tsatus"), "status");  /* exchanged */
	assert_string_equal(nearest("EVICT"), "evict");
	assert_string_equal(nearest("keep-pool"), "keep_pool");
	assert_string_equal(nearest("pass"), "passthrough"); /* its beginning */
	assert_string_equal(nearest("pasthruogh"), "passthrough");
	assert_string_equal(nearest("sl"), "ls");
	assert_string_equal(nearest("lgo"), "log");
}

static void nothing_near(void **state)
{
	char text[96] = "x", error[256], longer[400];
	struct kvc_near n = { .word = "wrong" };
	struct kvc_options o;

	(void)state;
	assert_string_equal(nearest(""), "");
	assert_string_equal(nearest("s"), "");
	assert_string_equal(nearest("xy"), "");
	assert_string_equal(nearest("mount"), "");
	assert_string_equal(nearest("nothing"), "");
	memset(longer, 's', sizeof longer);
	longer[sizeof longer - 1] = 0;
	assert_string_equal(nearest(longer), "");
	assert_string_equal(kvc_near_text(&n, text), "");
	kvc_options_init(&o);
	assert_int_not_equal(kvc_options_parse(&o, "nothing_like_this=1", error), 0);
	assert_null(strstr(error, "did you mean"));
}

static void in_messages(void **state)
{
	static const char *const pairs[][2] = {
		{ "polcy=lru", "unknown option 'polcy' (did you mean 'policy'?); " },
		{ "keep-pool", "(did you mean 'keep_pool'?)" },
		{ "nosiud", "(did you mean 'nosuid'?)" },
		{ "no_atime", "(did you mean 'noatime'?)" },
		{ "x=1,allow-other", "unknown option 'x'; " },
		{ "allow-other", "(did you mean 'allow_other'?)" },
	};
	char error[256], text[96];
	struct kvc_near n = { .word = "yess", .prefix = "--" };
	struct kvc_options o;

	(void)state;
	kvc_options_init(&o);
	for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
		assert_int_not_equal(kvc_options_parse(&o, pairs[i][0], error), 0);
		if (!strstr(error, pairs[i][1]))
			fail_msg("%s: %s", pairs[i][0], error);
	}
	kvc_near_try(&n, "yes");
	assert_string_equal(kvc_near_text(&n, text), " (did you mean '--yes'?)");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mistakes),
		cmocka_unit_test(nothing_near),
		cmocka_unit_test(in_messages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
