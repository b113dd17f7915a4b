/* SPDX-License-Identifier: Apache-2.0 */
/* Options, sizes and policies. */
#include "options.h"
#include "policy.h"
#include "util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void defaults_and_values(void **state)
{
	struct kvc_options o;
	char error[256];

	(void)state;
	kvc_options_init(&o);
	assert_int_equal(o.cpu_bytes, 1ull << 30);
	assert_int_equal(o.settle_ms, 200);
	assert_int_equal(o.write, KVC_THROUGH);
	assert_int_equal(o.disk, 1);
	assert_int_equal(kvc_options_check(&o, error), 0);
	assert_int_equal(kvc_options_parse(&o,
					   "cpu=1.5G,policy=mru,write=back,keep_pool,ro,nosuid,"
					   "passthrough=off,x-systemd.automount",
					   error),
			 0);
	assert_int_equal(o.cpu_bytes, 3ull << 29);
	assert_string_equal(kvc_policy_names[o.policy], "mru");
	assert_int_equal(o.write, KVC_BACK);
	assert_int_equal(o.keep_pool, 1);
	assert_int_equal(o.admit, KVC_ADMISSION_ALL);
	assert_int_equal(o.daily_bytes, 0);
	assert_int_equal(kvc_options_parse(&o, "admit=twice,daily=50G", error), 0);
	assert_int_equal(o.admit, KVC_ADMISSION_TWICE);
	assert_int_equal(o.daily_bytes, 50ull << 30);
	assert_int_equal(o.passthrough, KVC_OFF);
	assert_string_equal(o.generic, "ro,nosuid");
	assert_int_equal(kvc_options_parse(&o, "numa=bind:0;1", error), 0);
	assert_string_equal(o.numa, "bind:0;1");
	assert_int_equal(o.atime, KVC_ATIME_OPENS);
	assert_int_equal(kvc_options_parse(&o, "relatime,noatime", error), 0);
	assert_int_equal(o.atime, KVC_ATIME_NEVER);
	assert_int_equal(kvc_options_parse(&o, "relatime", error), 0);
	assert_int_equal(o.atime, KVC_ATIME_RELATIVE);
	assert_string_equal(o.generic, "ro,nosuid");
}

/*
 * Options that an fstab line of another filesystem may have, and remount, which is handled
 * elsewhere.
 */
static void of_fstab(void **state)
{
	static const char *const taken[] = {
		"defaults",
		"_netdev",
		"_rnetdev",
		"nofail",
		"group",
		"nogroup",
		"users",
		"lazytime",
		"nolazytime",
		"silent",
		"loud",
		"diratime",
		"iversion",
		"norelatime",
		"x-systemd.requires=network-online.target",
		"X-mount.mkdir",
		"X-mount.mode=0755",
		"comment=a word",
		"uhelper=udisks2",
		"helper=kvcachefs",
		"context=\"system_u:object_r:container_file_t:s0:c1,c2\"",
		"fscontext=system_u:object_r:fusefs_t:s0",
		"rootcontext=a:b:c:s0",
		"defcontext=\"a:b:c:s0\"",
	};
	static const char *const bad[] = {
		"context", "context=", "context=a\"b", "lazytimes", "y-mount.mkdir", "remount",
	};
	struct kvc_options o, fresh;
	char error[256], text[256];

	(void)state;
	kvc_options_init(&fresh);
	for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
		o = fresh;
		snprintf(text, sizeof text, "rw,%s,settle=77", taken[i]);
		assert_int_equal(kvc_options_parse(&o, text, error), 0);
		assert_int_equal(o.settle_ms, 77);
		if (!strstr(taken[i], "context"))
			assert_string_equal(o.generic, "rw");
		else if (*o.generic && strlen(o.generic) > 2) /* SELinux is on */
			assert_non_null(strstr(o.generic, "=\""));
	}
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		o = fresh;
		assert_int_not_equal(kvc_options_parse(&o, bad[i], error), 0);
		assert_memory_equal(&o, &fresh, sizeof o);
	}
	assert_non_null(strstr(error, "reload"));
}

static void refused(void **state)
{
	static const char *const bad[] = {
		"cpu",
		"cpu=",
		"cpu=x",
		"cpu=1",
		"cpu=-5G",
		"cpu=1e9",
		"cpu=99999999T",
		"high=0",
		"high=101",
		"high=5x",
		"policy=",
		"policy=LRU",
		"keep_pool=2",
		"unknown",
		"unknown=1",
		"settle=-1",
		"commit=0",
		"commit=41",
		"deadline=99999999999999999999",
		"disk=1",
		"admit=once",
		"daily=",
		"daily=-1",
	};
	struct kvc_options o, before;
	char error[256];

	(void)state;
	kvc_options_init(&o);
	before = o;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		char text[128];

		*error = 0;
		snprintf(text, sizeof text, "settle=77,%s", bad[i]);
		assert_int_not_equal(kvc_options_parse(&o, text, error), 0);
		assert_true(strlen(error) > 10 && !strchr(error, '\n'));
		assert_memory_equal(&o, &before, sizeof o); /* no option of the list was applied */
	}
	assert_int_equal(kvc_options_parse(&o, "low=90,high=90", error), 0);
	assert_int_not_equal(kvc_options_check(&o, error), 0);
}

static void sizes(void **state)
{
	char buf[32];
	uint64_t n;

	(void)state;
	assert_int_equal(kvc_size_parse("4096", &n), 0);
	assert_int_equal(n, 4096);
	assert_int_equal(kvc_size_parse("2k", &n), 0);
	assert_int_equal(n, 2048);
	assert_int_equal(kvc_size_parse("1TiB", &n), 0);
	assert_int_equal(n, 1ull << 40);
	assert_int_not_equal(kvc_size_parse("", &n), 0);
	assert_int_not_equal(kvc_size_parse("1GB", &n), 0);
	assert_int_not_equal(kvc_size_parse("0x10", &n), 0);
	assert_int_not_equal(kvc_size_parse("99999999999T", &n), 0);
	assert_int_equal(kvc_size_parse("4gib", &n), 0);
	assert_int_equal(n, 4ull << 30);
	assert_int_equal(kvc_size_parse("1.5Gi", &n), 0);
	assert_int_equal(n, 3ull << 29);
	assert_int_not_equal(kvc_size_parse("4 G", &n), 0);
	assert_int_not_equal(kvc_size_parse("4Gigs", &n), 0);
	assert_string_equal(kvc_size_text(1536ull << 20, buf), "1.5 GiB");
}

static void times(void **state)
{
	static const struct {
		const char *text;
		unsigned unit_ms;
		uint64_t n;
	} right[] = {
		{ "90", 1000, 90 },      { "90s", 1000, 90 },        { "10m", 1000, 600 },
		{ "10min", 1000, 600 },  { "10minutes", 1000, 600 }, { "2h", 1000, 7200 },
		{ "1hour", 1000, 3600 }, { "7d", 1000, 604800 },     { "4weeks", 1000, 2419200 },
		{ "250", 1, 250 },       { "250ms", 1, 250 },        { "10s", 1, 10000 },
		{ "1m", 1, 60000 },
	};
	static const char *const wrong[] = {
		"",
		"m",
		"-1",
		"1.5h",
		"10M",
		"10 min",
		"1y",
		"1mo",
		"0x1",
		"1h30",
		"999999999999999999w",
	};
	uint64_t n;

	(void)state;
	for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
		assert_int_equal(kvc_time_parse(right[i].text, right[i].unit_ms, &n), 0);
		assert_int_equal(n, right[i].n);
	}
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
		assert_int_not_equal(kvc_time_parse(wrong[i], 1000, &n), 0);
	assert_int_not_equal(kvc_time_parse("500ms", 1000, &n), 0);
}

/* The message says what to write instead. */
static void instead(void **state)
{
	static const char *const pairs[][2] = {
		{ "cpu=4GB", "option cpu: '4GB' is not a size; write 4G (4 GiB)" },
		{ "cpu=16 GiB", "option cpu: '16 GiB' is not a size; write 16G (16 GiB)" },
		{ "cpu=1.5tb", "option cpu: '1.5tb' is not a size; write 1.5T (1.5 TiB)" },
		{ "cpu=lots", "option cpu: 'lots' is not a size; give a number with K, M, G or T" },
		{ "cpu=99999999T", "option cpu: '99999999T' is too large for a size" },
		{ "save=500ms", "option save: '500ms' is not a time; the smallest unit here is a "
				"second" },
		{ "deadline=10 s", "option deadline: '10 s' is not a time; write 10s" },
		{ "deadline=10S", "option deadline: '10S' is not a time; give a whole number" },
		{ "deadline=2h", "option deadline: '2h' is out of range; give a value from 1 to "
				 "3600000 ms" },
	};
	struct kvc_options o;
	char error[256];

	(void)state;
	kvc_options_init(&o);
	for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
		assert_int_not_equal(kvc_options_parse(&o, pairs[i][0], error), 0);
		if (strncmp(error, pairs[i][1], strlen(pairs[i][1])) != 0)
			fail_msg("%s: %s", pairs[i][0], error);
	}
	assert_int_equal(kvc_options_parse(&o, "cpu=4GiB,deadline=10s,save=5min", error), 0);
	assert_int_equal(o.cpu_bytes, 4ull << 30);
	assert_int_equal(o.deadline_ms, 10000);
	assert_int_equal(o.save_s, 300);
}

static void ranks(void **state)
{
	struct kvc_access old = { 1000000000000000000, 1000000000000000000, 5 }, new = {
		1000000001000000000,
		1000000009000000000,
		1,
	};
	int64_t a[4], b[4];

	(void)state;
	for (int i = 0; i < 4; i++) {
		a[i] = kvc_policy_table[i].rank(&old);
		b[i] = kvc_policy_table[i].rank(&new);
	}
	assert_string_equal(kvc_policy_names[0], "lru");
	assert_true(a[0] < b[0]); /* lru: the older is evicted first */
	assert_true(a[1] < b[1]); /* fifo */
	assert_true(a[2] > b[2]); /* lfu: the less used is evicted first */
	assert_true(a[3] > b[3]); /* mru */
	old.hits = new.hits = UINT64_MAX;
	assert_true(kvc_policy_table[2].rank(&old) < kvc_policy_table[2].rank(&new) &&
		    kvc_policy_table[2].rank(&old) > 0);
}

static void name_hashes(void **state)
{
	(void)state;
	assert_true(kvc_name_hash("") >= 16);
	assert_true(kvc_name_hash("a") != kvc_name_hash("b"));
	assert_true(kvc_name_hash("layer") < 1ull << 62);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_and_values),
		cmocka_unit_test(of_fstab),
		cmocka_unit_test(refused),
		cmocka_unit_test(sizes),
		cmocka_unit_test(times),
		cmocka_unit_test(instead),
		cmocka_unit_test(ranks),
		cmocka_unit_test(name_hashes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
