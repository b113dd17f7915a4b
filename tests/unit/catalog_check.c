/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of fsck: each kind of damage to the rows of a catalog is reported, is not changed
 * without `mend`, and is repaired with it, so that the next check finds nothing.
 */
#include "catalog_check.h"
#include "catalog_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* In the root: a folder that is a chunk, with a file that has a copy in a tier; and a link. */
static const char sound[] =
	"INSERT INTO names(parent, hash, name, ino, kind) VALUES(1, 70, 'chunk', 10, 16384), "
	"(10, 71, 'file', 11, 32768), (1, 72, 'link', 12, 40960);"
	"INSERT INTO nodes(" ROW_COLUMNS ") VALUES(10, 16877, 0, 0, 2, 0, 0, 5, 5, 5, 5, 1, 0, 0), "
	"(11, 33188, 0, 0, 1, 4096, 8, 5, 5, 5, 5, 10, 10, 0), "
	"(12, 41471, 0, 0, 1, 4, 0, 5, 5, 5, 5, 1, 12, 0);"
	"UPDATE nodes SET nlink = 3 WHERE ino = 1;"
	"INSERT INTO targets(ino, target) VALUES(12, 'file');"
	"INSERT INTO xattrs(ino, name, value) VALUES(1, 'user.a', 'b');"
	"INSERT INTO objects(ino, gen, size, sum, lower) VALUES(11, 1, 4096, NULL, 1);"
	"INSERT INTO placements(ino, tier, gen, at, len, hi, codec, key) "
	"VALUES(11, 0, 1, 0, 8192, 0, 0, 0);"
	"INSERT INTO chunks(id, created_ns, last_ns, hits, rank, pin_until_ns, ttl_s, expires_ns, "
	"policy, quota) VALUES(10, 5, 5, 0, 0, 0, 0, 0, 0, 0)";

/* The first error that the damage causes; and a query that is true after the repair. */
static const struct damage {
	const char *damage, *error, *mended;
} damages[] = {
	{ "DELETE FROM nodes WHERE ino = 1", "there is no root folder",
	  "SELECT count(*) = 4 AND (SELECT mode = 16877 AND nlink = 3 AND parent = 1 AND chunk = 0 "
	  "AND container = 1 AND mtime_ns > 5 FROM nodes WHERE ino = 1) AND (SELECT count(*) FROM "
	  "names) = 3 AND (SELECT count(*) FROM xattrs) = 1 FROM nodes" },
	{ "INSERT INTO names(parent, hash, name, ino, kind) VALUES(1, 77, 'x', 99, 32768)",
	  "name 1/x points at inode 99, which is not there", "SELECT count(*) = 3 FROM names" },
	{ "UPDATE names SET parent = 11 WHERE ino = 12", "name link is in inode 11, which is no",
	  "SELECT count(*) = 0 FROM nodes WHERE ino = 12" },
	{ "DELETE FROM names WHERE ino = 11", "inode 11 has no name",
	  "SELECT count(*) = 0 FROM nodes WHERE ino = 11" },
	{ "UPDATE names SET kind = 40960 WHERE ino = 11",
	  "name file of inode 11 is of another kind",
	  "SELECT kind = 32768 FROM names WHERE ino = 11" },
	{ "UPDATE nodes SET nlink = 4 WHERE ino = 11", "inode 11 has 1 names and counts 4",
	  "SELECT nlink = 1 FROM nodes WHERE ino = 11" },
	{ "UPDATE nodes SET nlink = 4 WHERE ino = 1", "folder 1 has 1 folders in it and counts 4",
	  "SELECT nlink = 3 FROM nodes WHERE ino = 1" },
	{ "UPDATE nodes SET parent = 4 WHERE ino = 10", "folder 10 does not know its parent",
	  "SELECT parent = 1 FROM nodes WHERE ino = 10" },
	{ "UPDATE objects SET sum = zeroblob(2000)", "the sum of object 11 is 2000 bytes long",
	  "SELECT sum IS NULL FROM objects" },
	{ "UPDATE placements SET sum = zeroblob(2000)",
	  "the sum of a placement of inode 11 is 2000", "SELECT lower = 0 FROM objects" },
	{ "INSERT INTO objects(ino, gen, size, sum, lower) VALUES(99, 1, 1, NULL, 0)",
	  "object 99 has no file", "SELECT count(*) = 1 FROM objects" },
	{ "DELETE FROM objects", "file 11 has no object",
	  "SELECT gen = 0 AND lower = 0 FROM objects WHERE ino = 11" },
	{ "UPDATE placements SET ino = 99", "a placement of inode 99 in tier 0 has no object",
	  "SELECT lower = 0 FROM objects" },
	{ "UPDATE placements SET gen = 2", "a placement of inode 11 in tier 0 is of generation 2",
	  "SELECT count(*) = 0 FROM placements" },
	{ "UPDATE objects SET lower = 0", "object 11 says that a tier has it: 0, and 1 do",
	  "SELECT lower = 1 FROM objects" },
	{ "UPDATE xattrs SET ino = 99", "attribute user.a of inode 99 has no node",
	  "SELECT count(*) = 0 FROM xattrs" },
	{ "UPDATE targets SET ino = 99", "link target of inode 99 has no node",
	  "SELECT count(*) = 0 FROM targets" },
	{ "UPDATE chunks SET quota = 7", "chunk 10 counts to the quota of model 7, which has none",
	  "SELECT quota = 0 FROM chunks" },
	{ "DELETE FROM chunks", "the chunk of inode 11 is not known",
	  "SELECT id = 10 AND last_ns = 5 FROM chunks" },
};

static struct {
	unsigned n, mended;
	char first[400];
} found;

static void add(void *arg, bool mended, const char *what)
{
	(void)arg;
	if (!found.n++)
		snprintf(found.first, sizeof found.first, "%s", what);
	found.mended += mended;
}

static void check(struct kvc_catalog *c, bool mend, const char *when)
{
	memset(&found, 0, sizeof found);
	if (kvc_check_rules(c, mend, add, NULL))
		fail_msg("%s: the check fails: %s", when, sqlite3_errmsg(c->w.db));
	assert_int_equal(found.mended, mend ? found.n : 0);
}

static void run(struct kvc_catalog *c, const char *sql)
{
	if (sqlite3_exec(c->w.db, sql, NULL, NULL, NULL))
		fail_msg("%s: %s", sql, sqlite3_errmsg(c->w.db));
}

static bool holds(struct kvc_catalog *c, const char *query)
{
	sqlite3_stmt *st;
	bool yes;

	if (sqlite3_prepare_v2(c->w.db, query, -1, &st, NULL))
		fail_msg("%s: %s", query, sqlite3_errmsg(c->w.db));
	yes = sqlite3_step(st) == SQLITE_ROW && sqlite3_column_int(st, 0);
	sqlite3_finalize(st);
	return yes;
}

static void each_rule(void **state)
{
	const char *tmp = getenv("KV_CASE_TMP");
	char dir[256], path[300], error[512] = "";
	struct kvc_catalog *c;

	(void)state;
	snprintf(dir, sizeof dir, "%s/checkXXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/catalog.sqlite", dir);
	assert_int_equal(kvc_catalog_create(path), 0);
	if (kvc_catalog_open(&c, path, error))
		fail_msg("%s", error);
	kvc_catalog_lock(c);
	run(c, sound);
	check(c, false, "sound");
	assert_string_equal(found.first, "");
	for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
		const struct damage *d = &damages[i];

		run(c, "BEGIN");
		run(c, d->damage);
		check(c, false, d->error);
		if (strncmp(found.first, d->error, strlen(d->error)))
			fail_msg("%s: found instead: %s", d->error, found.first);
		assert_false(holds(c, d->mended));
		check(c, true, d->error);
		if (!holds(c, d->mended))
			fail_msg("%s: the repair is wrong", d->error);
		check(c, false, d->error);
		if (found.n)
			fail_msg("%s: after the repair: %s", d->error, found.first);
		run(c, "ROLLBACK");
	}
	kvc_catalog_unlock(c);
	assert_int_equal(kvc_catalog_close(c), 0);
	unlink(path);
	rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(each_rule) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
