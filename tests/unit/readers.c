/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog's readers: each CPU has one; a walk over a whole table leaves all of them to lookups,
 * and none of their statements scans a table. A restart reads many inodes with few statements.
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

/* During a walk, all readers are free. */
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

/* The filter is filled while other threads hold every reader. */
static void filter_needs_no_reader(void **state)
{
	struct kvc_catalog *c = make();
	bool filled = false;

	(void)state;
	for (unsigned i = 0; i < c->readers; i++)
		pthread_mutex_lock(&c->reader[i].lock);
	assert_int_equal(kvc_filter_start(c), 0);
	for (int i = 0; i < 600 && !filled; i++) {
		filled = kvc_name_absent(c, 1, kvc_name_hash("absent"));
		usleep(filled ? 0 : 100000);
	}
	assert_true(filled);
	for (unsigned i = 0; i < c->readers; i++)
		pthread_mutex_unlock(&c->reader[i].lock);
	kvc_filter_stop(c);
	kvc_catalog_lock(c);
	assert_false(kvc_name_absent(c, 1, kvc_name_hash("f2")));
	assert_true(kvc_name_absent(c, 1, kvc_name_hash("absent")));
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

/* A walk over the keys of one prefix does not read keys of other prefixes. */
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

/* Returns how often the readers have run a statement since the last call. */
static int runs(struct kvc_catalog *c)
{
	int n = 0;

	for (unsigned i = 0; i < c->readers; i++)
		for (int s = 0; s < ST_COUNT; s++)
			if (c->reader[i].st[s])
				n += sqlite3_stmt_status(c->reader[i].st[s], SQLITE_STMTSTATUS_RUN,
							 1);
	return n;
}

static void same_as_one_by_one(struct kvc_catalog *c, const struct kvc_peeked_object *p)
{
	struct kvc_place place[KVC_TIERS];
	struct kvc_chunk_row chunk = { 0 };
	struct kvc_object_row o = { 0 };
	struct kvc_row r;

	assert_int_equal(p->is.node, !kvc_row_get(c, p->is.ino, &r));
	if (!p->is.node)
		return;
	assert_memory_equal(&p->is.row, &r, sizeof r);
	assert_int_equal(p->folder_parent, r.parent == 1 ? 1 : 0);
	kvc_object_get(c, p->is.ino, &o);
	assert_int_equal(p->is.object.gen, o.gen);
	assert_int_equal(p->is.object.size, o.size);
	assert_int_equal(p->is.object.lower, o.lower);
	assert_int_equal(kvc_place_get(c, p->is.ino, place), 0);
	for (unsigned t = 0; t < KVC_TIERS; t++) {
		assert_int_equal(p->is.place[t].gen, place[t].gen);
		assert_int_equal(p->is.place[t].where.at, place[t].where.at);
	}
	kvc_chunk_get(c, r.chunk, &chunk);
	assert_int_equal(p->chunk.id, chunk.id);
	assert_int_equal(p->chunk.last_ns, chunk.last_ns);
}

/*
 * Files that are their own chunk, in the chunk of their folder, and without a chunk; objects in no,
 * one or two tiers.
 */
static void add_objects(struct kvc_catalog *c)
{
	for (uint64_t ino = 2; ino < 2 + FILES; ino++) {
		const struct kvc_object_row o = { .gen = ino % 5, .size = ino, .lower = ino % 2 };
		const struct kvc_place p = { .gen = ino % 5, .where.at = 9 * ino };
		const struct kvc_chunk_row chunk = { .id = ino, .last_ns = 3 * ino };
		struct kvc_row r;

		if (ino % 3)
			assert_int_equal(kvc_object_put(c, ino, &o), 0);
		if (ino % 4 == 1)
			assert_int_equal(kvc_place_put(c, ino, 1, &p), 0);
		if (ino % 6)
			assert_int_equal(kvc_chunk_put(c, &chunk), 0);
		assert_int_equal(kvc_row_get(c, ino, &r), 0);
		if (ino % 100 < 50)
			/* the file itself; its folder; a folder that does not exist */
			r.chunk = r.parent = 10 + ino / 100;
		assert_int_equal(kvc_row_put(c, &r, NULL), 0);
	}
	for (uint64_t ino = 10; ino < 21; ino++)
		assert_int_equal(kvc_row_del(c, ino, NULL), 0);
}

/*
 * Reading many inodes at once returns the same as reading each, with few statements; uncommitted
 * changes are detected.
 */
static void many_at_once(void **state)
{
	struct kvc_catalog *c = make();
	static struct kvc_peeked_object v[FILES + 50];
	const size_t n = FILES + 50;
	struct kvc_row r;
	int statements;

	(void)state;
	kvc_catalog_lock(c);
	kvc_catalog_still(c, true);
	add_objects(c);
	assert_int_equal(kvc_catalog_commit(c), 0);
	runs(c);
	for (size_t i = 0; i < n; i++) /* one inode occurs twice, some do not exist */
		v[i].is.ino = 2 + i - (i > 500);
	assert_int_equal(kvc_peek_objects(c, v, n), 0);
	assert_true((statements = runs(c)) > 0);
	print_message("%d statements for %zu inodes\n", statements, n);
	assert_in_range(statements, 1, n / 20);
	for (size_t i = 0; i < n; i++) {
		assert_true(kvc_peeked_object_holds(c, &v[i]));
		same_as_one_by_one(c, &v[i]);
	}
	for (size_t i = 0; i < 100; i++) /* distant inode numbers */
		v[i].is.ino = 2 + i * 10;
	assert_int_equal(kvc_peek_objects(c, v, 100), 0);
	for (size_t i = 0; i < 100; i++)
		same_as_one_by_one(c, &v[i]);
	assert_true(v[90].is.node && kvc_peeked_object_holds(c, &v[90]));
	assert_int_equal(kvc_row_get(c, v[90].is.ino, &r), 0);
	r.size++;
	assert_int_equal(kvc_row_put(c, &r, NULL), 0);
	assert_false(kvc_peeked_object_holds(c, &v[90]));
	assert_int_equal(kvc_chunk_del(c, v[80].is.row.chunk), 0);
	assert_false(kvc_peeked_object_holds(c, &v[80]));
	assert_int_equal(kvc_catalog_commit(c), 0);
	assert_false(kvc_peeked_object_holds(c, &v[70]));
	kvc_catalog_still(c, false);
	kvc_catalog_unlock(c);
	end(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_for_each_cpu),       cmocka_unit_test(walks_take_no_reader),
		cmocka_unit_test(filter_needs_no_reader), cmocka_unit_test(only_walks_scan),
		cmocka_unit_test(prefixes_are_apart),     cmocka_unit_test(many_at_once),
	};

	return cmocka_run_group_tests_name("readers", tests, NULL, NULL);
}
