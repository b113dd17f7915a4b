/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See catalog_check.h. A rule is a query that returns one line for each error, and a statement that
 * repairs all of these errors; tests/unit/catalog_check.c has a case for each.
 */
#include "catalog_check.h"

#include "catalog_priv.h"
#include "library.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IS_FILE "(n.mode & 61440) = 32768"
#define IS_FOLDER "(n.mode & 61440) = 16384"
/* A file of O_TMPFILE that was not linked when its daemon was killed: the next mount removes it. */
#define UNNAMED(ino) "EXISTS (SELECT 1 FROM meta WHERE key = printf('unnamed:%x', " ino "))"

/* The daemon was killed while it dropped the chunk: the next mount removes the remaining files. */
#define DROPPING(chunk) "EXISTS (SELECT 1 FROM meta WHERE key = printf('dropping:%x', " chunk "))"

static const struct rule {
	const char *find, *mend; /* mend: NULL: kvc_catalog_insert_root() repairs it */
} rules[] = {
	{ "SELECT 'there is no root folder' WHERE NOT EXISTS (SELECT 1 FROM nodes WHERE ino = 1)",
	  NULL },
	{ "SELECT printf('name %d/%s points at inode %d, which is not there', parent, name, ino) "
	  "FROM names"
	  " WHERE ino NOT IN (SELECT ino FROM nodes)",
	  "DELETE FROM names WHERE ino NOT IN (SELECT ino FROM nodes)" },
	{ "SELECT printf('name %s is in inode %d, which is no folder', name, parent) FROM names"
	  " WHERE parent NOT IN (SELECT n.ino FROM nodes n WHERE " IS_FOLDER
	  ") AND NOT " DROPPING("parent"),
	  "DELETE FROM names WHERE parent NOT IN (SELECT n.ino FROM nodes n WHERE " IS_FOLDER ")" },
	{ "SELECT printf('inode %d has no name', ino) FROM nodes WHERE ino <> 1 AND ino NOT IN "
	  "(SELECT ino FROM names) AND NOT " UNNAMED("ino"),
	  "DELETE FROM nodes WHERE ino <> 1 AND ino NOT IN (SELECT ino FROM names) AND "
	  "NOT " UNNAMED("ino") },
	{ "SELECT printf('name %s of inode %d is of another kind than its node', name, m.ino) FROM "
	  "names m JOIN nodes n ON n.ino = m.ino"
	  " WHERE m.kind <> (n.mode & 61440)",
	  "UPDATE names SET kind = (SELECT n.mode & 61440 FROM nodes n WHERE n.ino = names.ino)"
	  " WHERE kind <> (SELECT n.mode & 61440 FROM nodes n WHERE n.ino = names.ino)" },
	{ "SELECT printf('inode %d has %d names and counts %d', n.ino, (SELECT count(*) FROM names "
	  "m WHERE m.ino = n.ino), n.nlink)"
	  " FROM nodes n WHERE NOT " IS_FOLDER
	  " AND n.nlink <> (SELECT count(*) FROM names m WHERE m.ino = n.ino)",
	  "UPDATE nodes AS n SET nlink = (SELECT count(*) FROM names m WHERE m.ino = n.ino)"
	  " WHERE NOT " IS_FOLDER
	  " AND n.nlink <> (SELECT count(*) FROM names m WHERE m.ino = n.ino)" },
	{ "SELECT printf('folder %d has %d folders in it and counts %d links', n.ino,"
	  " (SELECT count(*) FROM names m WHERE m.parent = n.ino AND m.kind = 16384), n.nlink) "
	  "FROM nodes n WHERE " IS_FOLDER " AND n.nlink <> 2 + (SELECT count(*) FROM names m WHERE "
	  "m.parent = n.ino AND m.kind = 16384)",
	  "UPDATE nodes AS n SET nlink = 2 + (SELECT count(*) FROM names m WHERE m.parent = n.ino "
	  "AND m.kind = 16384) WHERE " IS_FOLDER },
	{ "SELECT printf('folder %d does not know its parent', n.ino) FROM nodes n WHERE " IS_FOLDER
	  " AND n.ino <> 1 AND n.parent <> (SELECT m.parent FROM names m WHERE m.ino = n.ino LIMIT "
	  "1)",
	  "UPDATE nodes AS n SET parent = (SELECT m.parent FROM names m WHERE m.ino = n.ino LIMIT "
	  "1) WHERE " IS_FOLDER " AND n.ino <> 1"
	  " AND EXISTS (SELECT 1 FROM names m WHERE m.ino = n.ino)" },
	/* length() does not read the blob: schema.c limits what is read */
	{ "SELECT printf('the sum of object %d is %d bytes long', ino, length(sum)) FROM objects "
	  "WHERE length(sum) > 1000",
	  "UPDATE objects SET sum = NULL WHERE length(sum) > 1000" },
	{ "SELECT printf('the sum of a placement of inode %d is %d bytes long', ino, length(sum)) "
	  "FROM placements WHERE length(sum) > 1000",
	  "DELETE FROM placements WHERE length(sum) > 1000" },
	{ "SELECT printf('object %d has no file', ino) FROM objects o WHERE NOT EXISTS"
	  " (SELECT 1 FROM nodes n WHERE n.ino = o.ino AND " IS_FILE ")",
	  "DELETE FROM objects WHERE NOT EXISTS (SELECT 1 FROM nodes n WHERE n.ino = objects.ino "
	  "AND " IS_FILE ")" },
	{ "SELECT printf('file %d has no object', n.ino) FROM nodes n WHERE " IS_FILE
	  " AND n.ino NOT IN (SELECT ino FROM objects)",
	  "INSERT INTO objects(ino, gen, size, sum, lower) SELECT n.ino, 0, 0, NULL, 0 FROM nodes "
	  "n WHERE " IS_FILE " AND n.ino NOT IN (SELECT ino FROM objects)" },
	{ "SELECT printf('a placement of inode %d in tier %d has no object', ino, tier) FROM "
	  "placements WHERE ino NOT IN (SELECT ino FROM objects)",
	  "DELETE FROM placements WHERE ino NOT IN (SELECT ino FROM objects)" },
	{ "SELECT printf('a placement of inode %d in tier %d is of generation %d and the object of "
	  "%d', p.ino, p.tier, p.gen, o.gen)"
	  " FROM placements p JOIN objects o ON o.ino = p.ino WHERE p.gen <> o.gen",
	  "DELETE FROM placements WHERE gen <> (SELECT o.gen FROM objects o WHERE o.ino = "
	  "placements.ino)" },
	{ "SELECT printf('object %d says that a tier has it: %d, and %d do', o.ino, o.lower, "
	  "(SELECT count(*) FROM placements p WHERE p.ino = o.ino))"
	  " FROM objects o WHERE o.lower <> EXISTS (SELECT 1 FROM placements p WHERE p.ino = "
	  "o.ino)",
	  "UPDATE objects AS o SET lower = EXISTS (SELECT 1 FROM placements p WHERE p.ino = o.ino)"
	  " WHERE o.lower <> EXISTS (SELECT 1 FROM placements p WHERE p.ino = o.ino)" },
	{ "SELECT printf('attribute %s of inode %d has no node', name, ino) FROM xattrs WHERE ino "
	  "NOT IN (SELECT ino FROM nodes)",
	  "DELETE FROM xattrs WHERE ino NOT IN (SELECT ino FROM nodes)" },
	{ "SELECT printf('link target of inode %d has no node', ino) FROM targets WHERE ino NOT IN "
	  "(SELECT ino FROM nodes)",
	  "DELETE FROM targets WHERE ino NOT IN (SELECT ino FROM nodes)" },
	{ "SELECT printf('chunk %d counts to the quota of model %d, which has none', id, quota) "
	  "FROM chunks"
	  " WHERE quota <> 0 AND NOT EXISTS (SELECT 1 FROM meta WHERE key = printf('quota:%x', "
	  "quota))",
	  "UPDATE chunks SET quota = 0 WHERE quota <> 0 AND NOT EXISTS (SELECT 1 FROM meta WHERE "
	  "key = printf('quota:%x', quota))" },
	{ "SELECT printf('the chunk of inode %d is not known', n.ino) FROM nodes n JOIN objects o "
	  "ON o.ino = n.ino"
	  " WHERE o.lower = 1 AND n.chunk NOT IN (SELECT id FROM chunks) AND NOT " UNNAMED(
		  "n.ino") " AND NOT " DROPPING("n.chunk"),
	  "INSERT OR IGNORE INTO chunks(id, created_ns, last_ns, hits, rank, pin_until_ns, ttl_s, "
	  "expires_ns, policy, quota)"
	  " SELECT n.chunk, max(n.mtime_ns, 0), max(n.mtime_ns, 0), 0, 0, 0, 0, 0, 0, 0 FROM nodes "
	  "n "
	  "JOIN objects o ON o.ino = n.ino"
	  " WHERE o.lower = 1 AND n.chunk NOT IN (SELECT id FROM chunks)" },
};

/*
 * Converts an SQLite error. -EBADMSG: the database was read and is damaged. Any other errno may be
 * temporary.
 */
static int errno_of(sqlite3 *db, int rc)
{
	int os = db ? sqlite3_system_errno(db) : 0;

	switch (rc & 0xff) {
	case SQLITE_OK: return 0;
	case SQLITE_ERROR:  /* a table or a column is missing */
	case SQLITE_TOOBIG: /* a row longer than any that the daemon writes */
	case SQLITE_CORRUPT:
	case SQLITE_NOTADB: return -EBADMSG;
	case SQLITE_NOMEM: return -ENOMEM;
	case SQLITE_FULL: return -ENOSPC;
	case SQLITE_BUSY:
	case SQLITE_LOCKED: return -EBUSY;
	default: return os > 0 ? -os : -EIO;
	}
}

/* integrity_check reports unreadable pages like damage. Does the text report an unreadable page? */
static bool reports_unread_page(const char *text)
{
	static const char word[] = "unable to get the page. error code=";
	bool any = strstr(text, "failed to get page") != NULL;

	for (const char *p = text; !any && (p = strstr(p, word));) {
		p += sizeof word - 1;
		any = (strtoul(p, NULL, 10) & 0xff) != SQLITE_CORRUPT;
	}
	return any;
}

/*
 * Runs a query and reports its lines to fn. Returns the number of lines, or a negative errno, which
 * the caller reports.
 */
static int report_lines(sqlite3 *db, const char *sql, const char *fine, bool mended,
			kvc_found_fn *fn, void *arg)
{
	sqlite3_stmt *st;
	int n = 0, rc = sqlite3_prepare_v2(db, sql, -1, &st, NULL);

	if (rc)
		return errno_of(db, rc);
	while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
		const char *text = (const char *)sqlite3_column_text(st, 0);

		if (text && fine && !strcmp(text, fine))
			continue;
		if (fine && text && reports_unread_page(text)) {
			sqlite3_finalize(st);
			return -EIO;
		}
		fn(arg, mended, text ? text : "?");
		n++;
	}
	sqlite3_finalize(st);
	return rc == SQLITE_DONE ? n : errno_of(db, rc);
}

/*
 * Can the whole file be read? SQLite does not always distinguish damage from read errors, so this
 * is checked first.
 */
static int readable(const char *path, const char *tail)
{
	char name[1300];
	KVC_MEM char *buf = malloc(1 << 20);
	KVC_FD int fd = -1;
	ssize_t n;

	snprintf(name, sizeof name, "%s%s", path, tail);
	fd = kvc_open_own(name, O_RDONLY);
	if (fd < 0 || !buf)
		return fd < 0 ? -errno : -ENOMEM;
	while ((n = read(fd, buf, 1 << 20)) > 0 || (n < 0 && errno == EINTR))
		;
	return n < 0 ? -errno : 0;
}

static const char has_tables[] =
	"SELECT 'table ' || column1 || ' is missing' FROM (VALUES('meta'), ('names'), ('nodes'), "
	"('targets'), ('objects'), ('placements'), ('gone'), ('xattrs'), ('chunks')) WHERE column1 "
	"NOT IN (SELECT name FROM sqlite_master WHERE type = 'table')";

/* db is open. */
static int check_pages(sqlite3 *db, bool mend, kvc_found_fn *fn, void *arg)
{
	int n = kvc_schema_check(db, mend, fn, arg), rc;

	if (n)
		return n;
	n = report_lines(db, "PRAGMA integrity_check(20)", "ok", false, fn, arg);
	if (n == -EBADMSG)
		fn(arg, false, sqlite3_errmsg(db));
	if (n > 0 && mend) {
		rc = sqlite3_exec(db, "REINDEX", NULL, NULL, NULL);
		if (rc && rc != SQLITE_CONSTRAINT && errno_of(db, rc) != -EBADMSG)
			return errno_of(db, rc);
		n = rc ? 1 : report_lines(db, "PRAGMA integrity_check(1)", "ok", false, fn, arg);
		if (!n)
			fn(arg, true, "the catalog's indexes are rebuilt");
	}
	if (n)
		return n < 0 ? n : -EBADMSG;
	n = report_lines(db, has_tables, NULL, false, fn, arg);
	return n < 0 ? n : n ? -EBADMSG : 0;
}

/* Checks the database, and the log if it exists. */
static int both_readable(const char *path)
{
	int err = readable(path, ""), log = err ? 0 : readable(path, "-wal");

	return err ?: log == -ENOENT ? 0 : log;
}

int kvc_check_meta(const char *path, int (*fn)(void *arg, const char *key, const char *value),
		   void *arg)
{
	sqlite3 *db = NULL;
	sqlite3_stmt *st = NULL;
	int err = both_readable(path), rc;

	if (err)
		return err;
	rc = kvc_conn_open_read(path, &db)
		     ?: sqlite3_prepare_v2(db, "SELECT key, value FROM meta", -1, &st, NULL);
	while (!rc && !err && (rc = sqlite3_step(st)) == SQLITE_ROW) {
		const char *key = (const char *)sqlite3_column_text(st, 0),
			   *value = (const char *)sqlite3_column_text(st, 1);

		rc = 0;
		err = key && value ? fn(arg, key, value) : 0;
	}
	err = err ?: rc == SQLITE_DONE ? 0 : errno_of(db, rc);
	sqlite3_finalize(st);
	sqlite3_close(db);
	return err;
}

int kvc_check_format(const char *path, char *error)
{
	sqlite3 *db = NULL;
	int err = 0;

	/* kvc_check_pages reports a database that cannot be opened */
	if (!both_readable(path) && !kvc_conn_open_read(path, &db))
		err = kvc_schema_format(db, path, error);
	sqlite3_close(db);
	return err;
}

/*
 * The log is kept. After a failed sync it must not be copied into the database before it is synced
 * again, and only the connections of kvc_catalog_open() can do that (wal_sync.c).
 */
int kvc_check_pages(const char *path, bool mend, kvc_found_fn *fn, void *arg)
{
	sqlite3 *db = NULL;
	int err = both_readable(path), rc;

	if (err == -ENOENT) {
		fn(arg, false, "the catalog is missing");
		return -EBADMSG;
	}
	if (!err && mend)
		err = kvc_wal_restart_repair(path);
	if (err)
		return err;
	rc = mend ? sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL)
			     ?: kvc_schema_restrict(db)
			     ?: sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL)
		  : kvc_conn_open_read(path, &db);
	err = rc ? errno_of(db, rc) : check_pages(db, mend, fn, arg);
	if (rc && err == -EBADMSG)
		fn(arg, false, sqlite3_errmsg(db));
	sqlite3_close(db);
	return err;
}

/*
 * Makes the next mount count what users have (usage.c). It must run before the repairs: once the
 * rows are correct, no later run would do it.
 */
static const char *const uncounted = "DELETE FROM meta WHERE key IN ('usage', 'models')";

/*
 * The repair is prepared even if it is not needed: a wrong statement makes each run of fsck fail,
 * and no error is reported as repaired before the repair was compiled.
 */
static int check_rule(sqlite3 *db, const struct rule *r, bool mend, kvc_found_fn *fn, void *arg)
{
	sqlite3_stmt *st = NULL;
	int n, rc = r->mend ? sqlite3_prepare_v2(db, r->mend, -1, &st, NULL) : SQLITE_OK;

	if (rc)
		return errno_of(db, rc);
	n = report_lines(db, r->find, NULL, mend, fn, arg);
	if (n > 0 && mend) {
		rc = sqlite3_exec(db, uncounted, NULL, NULL, NULL);
		if (!rc && st)
			rc = sqlite3_step(st) == SQLITE_DONE ? 0 : sqlite3_errcode(db);
		else if (!rc)
			rc = kvc_catalog_insert_root(db);
	}
	n = n < 0 ? n : errno_of(db, rc);
	sqlite3_finalize(st);
	return n;
}

int kvc_check_rules(struct kvc_catalog *c, bool mend, kvc_found_fn *fn, void *arg)
{
	int err = kvc_catalog_flush(c, 0);

	pthread_mutex_lock(&c->writer);
	for (size_t i = 0; i < sizeof rules / sizeof rules[0] && !err; i++)
		err = check_rule(c->w.db, &rules[i], mend, fn, arg);
	pthread_mutex_unlock(&c->writer);
	return err;
}

/* Completes drops, as names/chunk_drop_recover.c does at the next mount. */
static const char *const finish[] = {
	"CREATE TEMP TABLE dropped AS SELECT n.ino FROM nodes n JOIN names m ON m.ino = n.ino AND "
	"m.parent = n.chunk WHERE " IS_FILE " AND " DROPPING("n.chunk"),
	"DELETE FROM names WHERE ino IN (SELECT ino FROM dropped)",
	"DELETE FROM objects WHERE ino IN (SELECT ino FROM dropped)",
	"DELETE FROM placements WHERE ino IN (SELECT ino FROM dropped)",
	"DELETE FROM xattrs WHERE ino IN (SELECT ino FROM dropped)",
	"DELETE FROM nodes WHERE ino IN (SELECT ino FROM dropped)",
	"DELETE FROM meta WHERE key GLOB 'dropping:*' OR key IN ('usage', 'models')",
	"DROP TABLE dropped",
};

static int count_into(void *arg, int columns, char **value, char **name)
{
	(void)columns;
	(void)name;
	*(uint64_t *)arg = value[0] ? strtoull(value[0], NULL, 10) : 0;
	return 0;
}

int kvc_check_drops(struct kvc_catalog *c, bool mend, uint64_t *chunks)
{
	int err = kvc_catalog_flush(c, 0), rc = 0;

	if (err)
		return err;
	pthread_mutex_lock(&c->writer);
	rc = sqlite3_exec(c->w.db, "SELECT count(*) FROM meta WHERE key GLOB 'dropping:*'",
			  count_into, chunks, NULL);
	if (!rc && mend && *chunks) {
		rc = sqlite3_exec(c->w.db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
		for (size_t i = 0; i < sizeof finish / sizeof finish[0] && !rc; i++)
			rc = sqlite3_exec(c->w.db, finish[i], NULL, NULL, NULL);
		rc = rc ?: sqlite3_exec(c->w.db, "COMMIT", NULL, NULL, NULL);
	}
	err = rc ? kvc_sql_errno(c->w.db, rc) : 0;
	if (rc)
		sqlite3_exec(c->w.db, "ROLLBACK", NULL, NULL, NULL);
	pthread_mutex_unlock(&c->writer);
	return err;
}

int kvc_check_placed_bytes(struct kvc_catalog *c, unsigned tier, uint64_t *bytes)
{
	sqlite3_stmt *st;
	int err = kvc_catalog_flush(c, 0);

	if (err)
		return err;
	pthread_mutex_lock(&c->writer);
	err = sqlite3_prepare_v2(c->w.db,
				 "SELECT ifnull(sum(len), 0) FROM placements WHERE tier = ?", -1,
				 &st, NULL)
		      ? errno_of(c->w.db, sqlite3_errcode(c->w.db))
		      : 0;
	if (!err) {
		sqlite3_bind_int(st, 1, (int)tier);
		err = sqlite3_step(st) == SQLITE_ROW
			      ? 0
			      : errno_of(c->w.db, sqlite3_errcode(c->w.db)) ?: -EIO;
		*bytes = kvc_sql_u64(st, 0);
	}
	sqlite3_finalize(st);
	pthread_mutex_unlock(&c->writer);
	return err;
}

int kvc_check_unplace(struct kvc_catalog *c, uint64_t ino, unsigned tier)
{
	struct kvc_object_row o;
	struct kvc_place left[KVC_TIERS];
	/* the next mount counts the bytes of models again */
	int err = kvc_meta_del(c, "models") ?: kvc_place_del(c, ino, tier);

	err = err ?: kvc_object_get(c, ino, &o) ?: kvc_place_get(c, ino, left);
	if (err)
		return err;
	o.lower = false;
	for (unsigned t = 0; t < KVC_TIERS; t++)
		o.lower |= left[t].gen && left[t].gen == o.gen;
	return kvc_object_put(c, ino, &o);
}

struct kvc_library kvc_catalog_library(void)
{
	return (struct kvc_library){ "SQLite", sqlite3_libversion(),
				     (const void *)sqlite3_libversion };
}
