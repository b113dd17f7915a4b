/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog's schema, and the check of a file against it. A catalog file is untrusted: anyone who
 * can write it can plant triggers, views, generated columns or indexes with expressions, which
 * SQLite would run. Therefore every connection is restricted, and every object of the file is
 * compared with kvc_schema before it is used.
 */
#include "catalog_priv.h"

#include "quote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* maximum length of our statements in bytes; a longer statement is foreign */
#define STATEMENT 1024
#define SHOWN 20 /* maximum number of foreign objects that a check without -y lists */

/*
 * Tables with a key of several columns are WITHOUT ROWID, with the key columns first. `names` is
 * ordered by the hash of the name, which is readdir's cookie. objects_unplaced lets recovery find,
 * without a scan, the objects that only the pool has. A chunk's policy and quota are those of its
 * model, so that victims are found in order without reading folders. gone_until and chunks_pinned
 * find expired and pinned rows without a scan.
 */
const char *const kvc_schema =
	"CREATE TABLE meta(key TEXT PRIMARY KEY NOT NULL, value TEXT) WITHOUT ROWID;"
	"CREATE TABLE names(parent INTEGER NOT NULL, hash INTEGER NOT NULL, name TEXT NOT NULL, "
	"ino INTEGER NOT NULL,"
	" kind INTEGER NOT NULL, PRIMARY KEY(parent, hash, name)) WITHOUT ROWID;"
	"CREATE INDEX names_ino ON names(ino);"
	"CREATE TABLE nodes(ino INTEGER PRIMARY KEY, mode INTEGER NOT NULL, uid INTEGER NOT NULL, "
	"gid INTEGER NOT NULL,"
	" nlink INTEGER NOT NULL, size INTEGER NOT NULL, blocks INTEGER NOT NULL, atime_ns INTEGER "
	"NOT NULL,"
	" mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, btime_ns INTEGER NOT NULL, parent "
	"INTEGER NOT NULL,"
	" chunk INTEGER NOT NULL, container INTEGER NOT NULL DEFAULT 0);"
	"CREATE TABLE targets(ino INTEGER PRIMARY KEY, target TEXT NOT NULL);"
	"CREATE TABLE objects(ino INTEGER PRIMARY KEY, gen INTEGER NOT NULL, size INTEGER NOT "
	"NULL, sum BLOB,"
	" lower INTEGER NOT NULL, decoded INTEGER NOT NULL DEFAULT 0);"
	"CREATE INDEX objects_unplaced ON objects(ino) WHERE lower = 0;"
	"CREATE TABLE placements(ino INTEGER NOT NULL, tier INTEGER NOT NULL, gen INTEGER NOT "
	"NULL, at INTEGER NOT NULL,"
	" len INTEGER NOT NULL, hi INTEGER NOT NULL, codec INTEGER NOT NULL, key INTEGER NOT NULL, "
	"sum BLOB, raw BLOB, error INTEGER NOT NULL DEFAULT 0, worst INTEGER NOT NULL DEFAULT 0,"
	" PRIMARY KEY(ino, tier)) WITHOUT ROWID;"
	"CREATE TABLE gone(at INTEGER NOT NULL, hi INTEGER NOT NULL, until_ns INTEGER NOT NULL, "
	"PRIMARY KEY(at, hi)) WITHOUT ROWID;"
	"CREATE INDEX gone_until ON gone(until_ns);"
	"CREATE TABLE xattrs(ino INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, "
	"PRIMARY KEY(ino, name)) WITHOUT ROWID;"
	"CREATE TABLE chunks(id INTEGER PRIMARY KEY, created_ns INTEGER NOT NULL, last_ns INTEGER "
	"NOT NULL,"
	" hits INTEGER NOT NULL, rank INTEGER NOT NULL, pin_until_ns INTEGER NOT NULL, ttl_s "
	"INTEGER NOT NULL,"
	" expires_ns INTEGER NOT NULL, policy INTEGER NOT NULL, quota INTEGER NOT NULL,"
	" parent INTEGER NOT NULL DEFAULT 0, facts INTEGER NOT NULL DEFAULT 0,"
	" pool_facts INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,"
	" tenant INTEGER NOT NULL DEFAULT 0);"
	"CREATE INDEX chunks_rank ON chunks(policy, rank, id);"
	"CREATE INDEX chunks_quota ON chunks(quota, rank, id) WHERE quota > 0;"
	"CREATE INDEX chunks_tenant ON chunks(tenant, rank, id) WHERE tenant > 0;"
	"CREATE INDEX chunks_expire ON chunks(expires_ns) WHERE expires_ns > 0;"
	"CREATE INDEX chunks_pinned ON chunks(id) WHERE pin_until_ns > 0;"
	"INSERT INTO meta(key, value) VALUES('format', '" KVC_CATALOG_FORMAT "');";

/*
 * Maximum length of a row in bytes. SQLite reports an error for a longer row before it allocates
 * memory. Our longest row has the value of an attribute (64 KiB) and a name.
 */
#define ROW_MOST (1 << 20)

int kvc_schema_restrict(sqlite3 *db)
{
	static const int on[] = { SQLITE_DBCONFIG_DEFENSIVE }, off[] = {
		SQLITE_DBCONFIG_TRUSTED_SCHEMA,        SQLITE_DBCONFIG_ENABLE_TRIGGER,
		SQLITE_DBCONFIG_ENABLE_VIEW,           SQLITE_DBCONFIG_WRITABLE_SCHEMA,
		SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION,
	};
	int rc = 0;

	sqlite3_limit(db, SQLITE_LIMIT_LENGTH, ROW_MOST);
	for (size_t i = 0; i < sizeof on / sizeof on[0] && !rc; i++)
		rc = sqlite3_db_config(db, on[i], 1, NULL);
	for (size_t i = 0; i < sizeof off / sizeof off[0] && !rc; i++)
		rc = sqlite3_db_config(db, off[i], 0, NULL);
	return rc ?: sqlite3_exec(db, "PRAGMA cell_size_check=ON", NULL, NULL, NULL);
}

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/*
 * Copies a statement to `to` with single spaces and no space next to punctuation. Returns its
 * length, or 0 if it is longer than any statement of kvc_schema.
 */
static size_t normalize(const char *sql, size_t len, char to[STATEMENT])
{
	static const char marks[] = "(),=<>";
	bool gap = false;
	size_t n = 0;

	for (size_t i = 0; i < len; i++) {
		if (is_space(sql[i])) {
			gap = true;
			continue;
		}
		if (n + 2 >= STATEMENT || !sql[i])
			return 0;
		if (gap && n && !strchr(marks, to[n - 1]) && !strchr(marks, sql[i]))
			to[n++] = ' ';
		gap = false;
		to[n++] = sql[i];
	}
	to[n] = 0;
	return n;
}

/* Copies the next CREATE statement of kvc_schema, normalized. False: none is left. */
static bool next_statement(const char **at, char to[STATEMENT])
{
	const char *end;

	for (; (end = strchr(*at, ';')); *at = end + 1) {
		if (!normalize(*at, (size_t)(end - *at), to) || strncmp(to, "CREATE ", 7))
			continue;
		*at = end + 1;
		return true;
	}
	return false;
}

/* Does the statement create this object? */
static bool creates(const char *statement, const char *type, const char *name)
{
	char start[128];
	int n = snprintf(start, sizeof start, "%s %s%s",
			 strcmp(type, "table") ? "CREATE INDEX" : "CREATE TABLE", name,
			 strcmp(type, "table") ? " ON " : "(");

	return n < (int)sizeof start && !strncmp(statement, start, (size_t)n);
}

enum fit { UNKNOWN, ALTERED, FITS }; /* not in kvc_schema; with another definition; the same */

static enum fit fit_statement(const char *type, const char *name, const char *have)
{
	const char *list = kvc_schema;
	char ours[STATEMENT];

	while (next_statement(&list, ours))
		if (creates(ours, type, name))
			return strcmp(have, ours) ? ALTERED : FITS;
	return UNKNOWN;
}

/* st: type, name and sql of an object of the file. */
static enum fit fit_object(sqlite3_stmt *st)
{
	static const char automatic[] = "sqlite_autoindex_";
	const char *type = (const char *)sqlite3_column_text(st, 0),
		   *name = (const char *)sqlite3_column_text(st, 1),
		   *sql = (const char *)sqlite3_column_text(st, 2);
	char have[STATEMENT] = "";

	if (!type || !name || (strcmp(type, "table") && strcmp(type, "index")))
		return UNKNOWN;
	/* SQLite makes the index of a primary key; the definition of the table contains it */
	if (!sql && !strcmp(type, "index") && !strncmp(name, automatic, sizeof automatic - 1))
		return FITS;
	if (!sql || !normalize(sql, (size_t)sqlite3_column_bytes(st, 2), have))
		have[0] = 0;
	return fit_statement(type, name, have);
}

/*
 * The first foreign object after `skip` others. find_foreign returns 1 if it found one, 0 if not,
 * or a negative SQLite code. *ours: number of our objects before it.
 */
struct foreign {
	enum fit fit;
	char type[16], name[256];
};

static int find_foreign(sqlite3 *db, unsigned skip, struct foreign *f, unsigned *ours)
{
	sqlite3_stmt *st;
	int rc = sqlite3_prepare_v2(db, "SELECT type, name, sql FROM main.sqlite_schema", -1, &st,
				    NULL);

	if (rc)
		return -rc;
	*ours = 0;
	while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
		f->fit = fit_object(st);
		*ours += f->fit == FITS && sqlite3_column_type(st, 2) != SQLITE_NULL;
		if (f->fit == FITS || skip-- > 0)
			continue;
		snprintf(f->type, sizeof f->type, "%s",
			 (const char *)sqlite3_column_text(st, 0) ?: "object");
		snprintf(f->name, sizeof f->name, "%s",
			 (const char *)sqlite3_column_text(st, 1) ?: "");
		break;
	}
	sqlite3_finalize(st);
	return rc == SQLITE_ROW ? 1 : rc == SQLITE_DONE ? 0 : -rc;
}

static void describe(const struct foreign *f, char text[400])
{
	snprintf(text, 400,
		 f->fit == ALTERED ? "the %s %s has an unexpected definition"
				   : "the %s %s was not created by kvcachefs",
		 f->type, f->name);
}

/* Does the table meta have our definition? Then it can be read without running foreign SQL. */
static bool meta_fits(sqlite3 *db)
{
	sqlite3_stmt *st = NULL;
	bool fits = !sqlite3_prepare_v2(
			    db,
			    "SELECT type, name, sql FROM main.sqlite_schema WHERE name = 'meta'",
			    -1, &st, NULL) &&
		    sqlite3_step(st) == SQLITE_ROW && fit_object(st) == FITS;

	sqlite3_finalize(st);
	return fits;
}

int kvc_schema_format(sqlite3 *db, const char *path, char *error)
{
	static const char get[] = "SELECT value FROM meta WHERE key = 'format'";
	unsigned long have, known = strtoul(KVC_CATALOG_FORMAT, NULL, 10);
	const char *format = NULL;
	sqlite3_stmt *st = NULL;
	int err = 0;

	if (meta_fits(db) && !sqlite3_prepare_v2(db, get, -1, &st, NULL) &&
	    sqlite3_step(st) == SQLITE_ROW)
		format = (const char *)sqlite3_column_text(st, 0);
	have = format ? strtoul(format, NULL, 10) : known;
	if (have != known) {
		snprintf(error, 512,
			 "the catalog %s has format %.20s, but this kvcachefs supports only format "
			 "%lu; %s",
			 path, format, known,
			 have > known ? "use a newer kvcachefs"
				      : "create a new store with mkfs.kvcachefs --force");
		kvc_quote_one_line(error); /* the format may be any text */
		err = -EPROTO;
	}
	sqlite3_finalize(st);
	return err;
}

int kvc_schema_compare(sqlite3 *db, bool whole, char why[400])
{
	const char *list = kvc_schema;
	char statement[STATEMENT];
	unsigned ours, wanted = 0;
	struct foreign f;
	int found = find_foreign(db, 0, &f, &ours);

	if (found < 0)
		return -found;
	while (next_statement(&list, statement))
		wanted++;
	if (found)
		describe(&f, why);
	else if (whole && ours != wanted)
		snprintf(why, 400, "%u of its %u tables and indexes are missing",
			 ours < wanted ? wanted - ours : 0, wanted);
	else
		return SQLITE_OK;
	return SQLITE_CORRUPT;
}

/*
 * Drops a foreign object. Returns 0 or an SQLite code. A table of ours with another definition
 * stays: only a rebuild helps.
 */
static int drop_object(sqlite3 *db, const struct foreign *f)
{
	static const char *const types[] = { "trigger", "view", "index", "table" };
	char *sql = NULL;
	int rc = SQLITE_ERROR;

	if (f->fit == ALTERED && strcmp(f->type, "index"))
		return rc;
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
		if (!strcmp(f->type, types[i]))
			sql = sqlite3_mprintf("DROP %s main.\"%w\"", types[i], f->name);
	if (sql)
		rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
	sqlite3_free(sql);
	return rc;
}

/*
 * Reports indexes of kvc_schema that are missing, and makes them if `mend`. If a CREATE INDEX
 * statement cannot be prepared, its name is in use: find_foreign has reported that object.
 */
static int check_indexes(sqlite3 *db, bool mend, kvc_found_fn *fn, void *arg)
{
	const char *list = kvc_schema;
	char sql[STATEMENT], text[400];
	sqlite3_stmt *st;
	int rc, left = 0;

	while (next_statement(&list, sql)) {
		if (strncmp(sql, "CREATE INDEX ", 13) || sqlite3_prepare_v2(db, sql, -1, &st, NULL))
			continue;
		rc = mend ? sqlite3_step(st) : SQLITE_DONE;
		sqlite3_finalize(st);
		snprintf(text, sizeof text, "the index %.*s is missing",
			 (int)strcspn(sql + 13, " "), sql + 13);
		fn(arg, mend && rc == SQLITE_DONE, text);
		left += !mend || rc != SQLITE_DONE;
	}
	return left ? -EBADMSG : 0;
}

int kvc_schema_check(sqlite3 *db, bool mend, kvc_found_fn *fn, void *arg)
{
	struct foreign f;
	unsigned left = 0, ours;
	char text[400];
	int found;

	while (left < SHOWN && (found = find_foreign(db, left, &f, &ours)) > 0) {
		bool gone = mend && !drop_object(db, &f);

		describe(&f, text);
		fn(arg, gone, text);
		left += !gone;
	}
	return left ? -EBADMSG : check_indexes(db, mend, fn, arg);
}
