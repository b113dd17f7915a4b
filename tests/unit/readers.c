/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog's readers: each CPU has one; a walk over a whole table leaves all of them to lookups,
 * and no statement of theirs scans a table.
 */
#include "catalog_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FILES 1000

static char dir[256], path[300];

static struct kvc_catalog *make(void)
{
	const char *tmp = getenv("KV_CASE_TMP");
	struct kvc_catalog *c;
	char error[512];

	snprintf(dir, sizeof dir, "%s/readersXXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/catalog.sqlite", dir);
	assert_int_equal(kvc_catalog_create(path), 0);
	assert_int_equal(kvc_catalog_open(&c, path, error), 0);
	kvc_catalog_lock(c);
	for (uint64_t ino = 2; ino < 2 + FILES; ino++) {
		const struct kvc_row r = {
			.ino = ino, .mode = S_IFREG | 0644, .nlink = 1, .parent = 1, .chunk = ino
		};
		const struct kvc_place p = { .gen = 1, .where.at = ino };
		char name[32];

		snprintf(name, sizeof name, "f%u", (unsigned)ino);
		assert_int_equal(kvc_row_put(c, &r, NULL), 0);
		assert_int_equal(kvc_name_put(c, 1, name, ino, S_IFREG), 0);
		assert_int_equal(kvc_place_put(c, ino, 0, &p), 0);
	}
	assert_int_equal(kvc_catalog_commit(c), 0);
	kvc_catalog_unlock(c);
	return c;
}

static void end(struct kvc_catalog *c)
{
	static const char *const names[] = { "catalog.sqlite", "catalog.sqlite-mark" };
	char name[400];

	assert_int_equal(kvc_catalog_close(c), 0);
	for (size_t i = 0; i < 2; i++) {
		snprintf(name, sizeof name, "%s/%s", dir, names[i]);
		unlink(name);
	}
	assert_int_equal(rmdir(dir), 0);
}

static void one_for_each_cpu(void **state)
{
	struct kvc_catalog *c = make();

	(void)state;
	assert_int_equal(c->readers,
			 kvc_max(KVC_READERS_MIN, kvc_min(KVC_READERS_MAX, kvc_cpus())));
	for (unsigned i = 0; i <= c->readers; i++)
		assert_non_null(c->reader[i].db);
	end(c);
}

/* During a walk, all readers can be had at the same time. */
static int all_are_free(void *arg, uint64_t ino, const struct kvc_place *p)
{
	struct kvc_catalog *c = arg;

	(void)ino;
	(void)p;
	for (unsigned i = 0; i < c->readers; i++)
		assert_int_equal(pthread_mutex_trylock(&c->reader[i].lock), 0);
	for (unsigned i = 0; i < c->readers; i++)
		pthread_mutex_unlock(&c->reader[i].lock);
	return 0;
}

static void walks_take_no_reader(void **state)
{
	struct kvc_catalog *c = make();

	(void)state;
	kvc_catalog_lock(c);
	assert_int_equal(kvc_place_each(c, 0, all_are_free, c), 0);
	kvc_catalog_unlock(c);
	end(c);
}

/* The filter is filled while others hold every reader. */
static void filter_needs_no_reader(void **state)
{
	struct kvc_catalog *c = make();
	bool filled = false;

	(void)state;
	for (unsigned i = 0; i < c->readers; i++)
		pthread_mutex_lock(&c->reader[i].lock);
	assert_int_equal(kvc_filter_start(c), 0);
	for (int i = 0; i < 600 && !filled; i++) {
		filled = !kvc_filter_stale(c->filter);
		usleep(filled ? 0 : 100000);
	}
	assert_true(filled);
	for (unsigned i = 0; i < c->readers; i++)
		pthread_mutex_unlock(&c->reader[i].lock);
	kvc_filter_stop(c);
	kvc_catalog_lock(c);
	assert_false(kvc_name_absent(c, 1, "f2"));
	assert_true(kvc_name_absent(c, 1, "absent"));
	kvc_catalog_unlock(c);
	end(c);
}

/* Does the plan of a statement read all of a table or of an index? */
static bool scans(struct kvc_catalog *c, const char *sql)
{
	char text[2048];
	sqlite3_stmt *st;
	bool any = false;

	snprintf(text, sizeof text, "EXPLAIN QUERY PLAN %s", sql);
	assert_int_equal(sqlite3_prepare_v2(c->w.db, text, -1, &st, NULL), SQLITE_OK);
	while (sqlite3_step(st) == SQLITE_ROW)
		any |= !strncmp((const char *)sqlite3_column_text(st, 3), "SCAN ", 5);
	sqlite3_finalize(st);
	return any;
}

static void only_walks_scan(void **state)
{
	static const struct {
		enum kvc_statement s;
		const char *name, *sql;
	} all[] = {
#define X(name, sql) { ST_##name, #name, sql },
		KVC_STATEMENTS(X)
#undef X
	};
	struct kvc_catalog *c = make();
	unsigned asked = 0;

	(void)state;
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		bool walk = all[i].s == ST_PLACE_EACH || all[i].s == ST_USES_INODES ||
			    all[i].s == ST_USES_ATTRS;

		if (strncmp(all[i].sql, "SELECT", 6) != 0)
			continue;
		asked++;
		if (scans(c, all[i].sql) != walk)
			fail_msg("%s: %s", all[i].name, walk ? "no scan" : "a scan");
	}
	assert_true(asked > 20);
	end(c);
}

/* A walk over the keys of one prefix does not look at the keys of others. */
static void prefixes_are_apart(void **state)
{
	struct kvc_catalog *c = make();
	char key[64], value[16];
	int steps = 0;

	(void)state;
	kvc_catalog_lock(c);
	for (unsigned i = 0; i < FILES; i++) {
		snprintf(key, sizeof key, "pin:%u", i);
		assert_int_equal(kvc_meta_set(c, key, "1"), 0);
	}
	assert_int_equal(kvc_meta_set(c, "layers:1", "2"), 0);
	assert_int_equal(kvc_catalog_commit(c), 0);
	snprintf(key, sizeof key, "layers:");
	assert_int_equal(kvc_meta_next(c, "layers:", key, value, sizeof value), 0);
	assert_string_equal(key, "layers:1");
	assert_int_equal(kvc_meta_next(c, "layers:", key, value, sizeof value), -ENOENT);
	for (unsigned i = 0; i < c->readers; i++)
		if (c->reader[i].st[ST_META_EACH])
			steps += sqlite3_stmt_status(c->reader[i].st[ST_META_EACH],
						     SQLITE_STMTSTATUS_VM_STEP, 0);
	kvc_catalog_unlock(c);
	print_message("%d steps\n", steps);
	assert_true(steps > 0 && steps < FILES);
	end(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_for_each_cpu),       cmocka_unit_test(walks_take_no_reader),
		cmocka_unit_test(filter_needs_no_reader), cmocka_unit_test(only_walks_scan),
		cmocka_unit_test(prefixes_are_apart),
	};

	return cmocka_run_group_tests_name("readers", tests, NULL, NULL);
}
