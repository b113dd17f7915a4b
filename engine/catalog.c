/* SPDX-License-Identifier: Apache-2.0 */
/* The catalog's connection, schema, transactions and statements. See catalog.h; rows are in catalog_rows.c. */
#include "catalog_priv.h"

#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FORMAT "4"

/*
 * Tables keyed by more than a number are WITHOUT ROWID with the key columns first. `names` is ordered by the hash of
 * the name, which is readdir's cookie. objects_unplaced lets recovery find what only the pool has without a scan.
 * A chunk's policy and quota are those of its model, so that victims are found in order without looking at the tree.
 */
const char *const kvc_schema =
	"CREATE TABLE meta(key TEXT PRIMARY KEY NOT NULL, value TEXT) WITHOUT ROWID;"
	"CREATE TABLE names(parent INTEGER NOT NULL, hash INTEGER NOT NULL, name TEXT NOT NULL, ino INTEGER NOT NULL,"
	" kind INTEGER NOT NULL, PRIMARY KEY(parent, hash, name)) WITHOUT ROWID;"
	"CREATE INDEX names_ino ON names(ino);"
	"CREATE TABLE nodes(ino INTEGER PRIMARY KEY, mode INTEGER NOT NULL, uid INTEGER NOT NULL, gid INTEGER NOT NULL,"
	" nlink INTEGER NOT NULL, size INTEGER NOT NULL, blocks INTEGER NOT NULL, atime_ns INTEGER NOT NULL,"
	" mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, btime_ns INTEGER NOT NULL, parent INTEGER NOT NULL,"
	" chunk INTEGER NOT NULL, container INTEGER NOT NULL DEFAULT 0);"
	"CREATE TABLE targets(ino INTEGER PRIMARY KEY, target TEXT NOT NULL);"
	"CREATE TABLE objects(ino INTEGER PRIMARY KEY, gen INTEGER NOT NULL, size INTEGER NOT NULL, sum BLOB,"
	" lower INTEGER NOT NULL);"
	"CREATE INDEX objects_unplaced ON objects(ino) WHERE lower = 0;"
	"CREATE TABLE placements(ino INTEGER NOT NULL, tier INTEGER NOT NULL, gen INTEGER NOT NULL, at INTEGER NOT NULL,"
	" len INTEGER NOT NULL, hi INTEGER NOT NULL, codec INTEGER NOT NULL, key INTEGER NOT NULL, sum BLOB, PRIMARY KEY(ino, tier)) WITHOUT ROWID;"
	"CREATE TABLE gone(at INTEGER NOT NULL, hi INTEGER NOT NULL, until_ns INTEGER NOT NULL, PRIMARY KEY(at, hi)) WITHOUT ROWID;"
	"CREATE TABLE xattrs(ino INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY(ino, name)) WITHOUT ROWID;"
	"CREATE TABLE chunks(id INTEGER PRIMARY KEY, created_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL,"
	" hits INTEGER NOT NULL, rank INTEGER NOT NULL, pin_until_ns INTEGER NOT NULL, ttl_s INTEGER NOT NULL,"
	" expires_ns INTEGER NOT NULL, policy INTEGER NOT NULL, quota INTEGER NOT NULL);"
	"CREATE INDEX chunks_rank ON chunks(policy, rank, id);"
	"CREATE INDEX chunks_quota ON chunks(quota, rank, id) WHERE quota > 0;"
	"CREATE INDEX chunks_expire ON chunks(expires_ns) WHERE expires_ns > 0;"
	"INSERT INTO meta VALUES('format', '" FORMAT "');";

static const char *const texts[] = {
#define X(name, sql) sql,
	KVC_STATEMENTS(X)
#undef X
};

static int to_errno(int rc)
{
	switch (rc & 0xff) {
	case SQLITE_NOMEM: return -ENOMEM;
	case SQLITE_FULL: return -ENOSPC;
	case SQLITE_CORRUPT:
	case SQLITE_NOTADB: return -EBADMSG;
	case SQLITE_CANTOPEN: return -ENOENT;
	default: return -EIO;
	}
}

static int trouble(struct kvc_catalog *c, const char *what, int rc)
{
	if (!c->logged)
		kvc_error("catalog: %s: %s", what, sqlite3_errmsg(c->db));
	c->logged = true;
	return to_errno(rc);
}

sqlite3_stmt *kvc_sql(struct kvc_catalog *c, enum kvc_statement s, const char *types, ...)
{
	sqlite3_stmt *st = c->st[s];
	va_list ap;
	int rc;

	if (!st) {
		rc = sqlite3_prepare_v3(c->db, texts[s], -1, SQLITE_PREPARE_PERSISTENT, &c->st[s], NULL);
		if (rc) {
			trouble(c, texts[s], rc);
			return NULL;
		}
		st = c->st[s];
	}
	va_start(ap, types);
	for (int i = 1; *types; types++, i++)
		switch (*types) {
		case 'i':
			sqlite3_bind_int64(st, i, va_arg(ap, sqlite3_int64));
			break;
		case 's':
			sqlite3_bind_text(st, i, va_arg(ap, const char *), -1, SQLITE_STATIC);
			break;
		case 'b': {
			const void *p = va_arg(ap, const void *);
			size_t n = va_arg(ap, size_t);

			if (p)
				sqlite3_bind_blob(st, i, p, (int)n, SQLITE_STATIC);
			else
				sqlite3_bind_null(st, i);
			break;
		}
		}
	va_end(ap);
	return st;
}

int kvc_sql_step(struct kvc_catalog *c, sqlite3_stmt *st)
{
	int rc = st ? sqlite3_step(st) : SQLITE_ERROR;

	if (rc == SQLITE_ROW)
		return 1;
	if (rc == SQLITE_DONE)
		return 0;
	return st ? trouble(c, sqlite3_sql(st), rc) : -EIO;
}

void kvc_sql_done(sqlite3_stmt *st)
{
	if (st)
		sqlite3_reset(st);
}

int kvc_sql_finish(struct kvc_catalog *c, sqlite3_stmt *st)
{
	int err = kvc_sql_step(c, st);

	kvc_sql_done(st);
	return err < 0 ? err : 0;
}

static int settings(sqlite3 *db)
{
	return sqlite3_exec(db,
			    "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=0;"
			    "PRAGMA cache_spill=OFF; PRAGMA cache_size=-65536; PRAGMA temp_store=MEMORY;",
			    NULL, NULL, NULL);
}

int kvc_catalog_create(const char *path)
{
	sqlite3 *db = NULL;
	char sql[512];
	uint64_t now = kvc_now_ns();
	int rc = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);

	if (!rc)
		rc = settings(db);
	if (!rc)
		rc = sqlite3_exec(db, "BEGIN", NULL, NULL, NULL);
	if (!rc)
		rc = sqlite3_exec(db, kvc_schema, NULL, NULL, NULL);
	snprintf(sql, sizeof sql,
		 "INSERT INTO nodes VALUES(1, %d, %u, %u, 2, 0, 0, %llu, %llu, %llu, %llu, 1, 0, 1);"
		 "COMMIT; PRAGMA wal_checkpoint(TRUNCATE);",
		 S_IFDIR | 0755, getuid(), getgid(), (unsigned long long)now, (unsigned long long)now,
		 (unsigned long long)now, (unsigned long long)now);
	if (!rc)
		rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
	if (rc)
		kvc_error("cannot make the catalog %s: %s", path, sqlite3_errmsg(db));
	sqlite3_close(db);
	return rc ? to_errno(rc) : 0;
}

/*
 * From format 3, which had chunks by depth: folders with folders in them, and those with too many files for a chunk, are
 * containers, and the latter's files chunks of their own.
 */
static const char *const from_3 =
	"BEGIN IMMEDIATE;"
	"ALTER TABLE nodes ADD COLUMN container INTEGER NOT NULL DEFAULT 0;"
	"UPDATE nodes SET container = 1 WHERE ino = 1 OR ino IN (SELECT parent FROM names WHERE kind = 16384);"
	"CREATE TEMP TABLE large AS SELECT parent AS ino FROM names WHERE kind = 32768 GROUP BY parent HAVING count(*) > 1024;"
	"UPDATE nodes SET container = 1 WHERE ino IN (SELECT ino FROM large);"
	"INSERT OR IGNORE INTO chunks SELECT n.ino, c.created_ns, c.last_ns, c.hits, c.rank, c.pin_until_ns, c.ttl_s, c.expires_ns, c.policy,"
	" c.quota FROM large JOIN names d ON d.parent = large.ino JOIN nodes n ON n.ino = d.ino AND n.chunk = large.ino"
	" JOIN chunks c ON c.id = large.ino;"
	"UPDATE nodes SET chunk = ino WHERE chunk IN (SELECT ino FROM large);"
	"DELETE FROM chunks WHERE id IN (SELECT ino FROM large);"
	"DROP TABLE large;"
	"UPDATE meta SET value = '4' WHERE key = 'format';"
	"COMMIT;";

/* For a rebuild, which knows nothing of how files came but their birth times: the same limits as in unit.c. */
static const char *const by_birth =
	"UPDATE nodes SET container = 1 WHERE ino = 1 OR ino IN (SELECT parent FROM names WHERE kind = 16384);"
	"CREATE TEMP TABLE whole AS SELECT n.parent AS ino FROM names n JOIN nodes m ON m.ino = n.ino JOIN nodes d ON d.ino = n.parent"
	" WHERE n.kind = 32768 AND d.container = 0 GROUP BY n.parent"
	" HAVING count(*) <= 1024 AND max(m.btime_ns) - min(m.btime_ns) <= 60000000000;"
	"UPDATE nodes SET container = 1 WHERE mode & 61440 = 16384 AND ino NOT IN (SELECT ino FROM whole);"
	"INSERT OR REPLACE INTO chunks SELECT w.ino, min(c.created_ns), max(c.last_ns), max(c.hits), max(c.rank), 0, 0, 0, 0, 0"
	" FROM whole w JOIN names n ON n.parent = w.ino JOIN chunks c ON c.id = n.ino GROUP BY w.ino;"
	"DELETE FROM chunks WHERE id IN (SELECT n.ino FROM whole w JOIN names n ON n.parent = w.ino);"
	"UPDATE nodes SET chunk = parent WHERE parent IN (SELECT ino FROM whole) AND mode & 61440 = 32768;"
	"DROP TABLE whole;";

int kvc_catalog_group(struct kvc_catalog *c)
{
	int rc = sqlite3_exec(c->db, by_birth, NULL, NULL, NULL);

	return rc ? trouble(c, "grouping files by their birth", rc) : 0;
}

static int migrate(struct kvc_catalog *c, const char *format)
{
	int rc;

	if (strcmp(format, "3"))
		return -EPROTO;
	kvc_info("the catalog has format 3 and is brought to " FORMAT);
	rc = sqlite3_exec(c->db, from_3, NULL, NULL, NULL);
	if (rc)
		sqlite3_exec(c->db, "ROLLBACK", NULL, NULL, NULL);
	return rc ? to_errno(rc) : 0;
}

int kvc_catalog_open(struct kvc_catalog **out, const char *path, char *error)
{
	struct kvc_catalog *c = calloc(1, sizeof *c);
	char format[16] = "";
	int rc, err = 0;

	if (!c)
		return -ENOMEM;
	pthread_mutex_init(&c->lock, NULL);
	atomic_store(&c->txn, 1);
	c->logged = true; /* what goes wrong here is told by the caller */
	rc = sqlite3_open_v2(path, &c->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
	if (!rc)
		rc = settings(c->db);
	if (!rc)
		rc = sqlite3_open_v2(path, &c->checkpointer, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
	if (!rc)
		sqlite3_exec(c->checkpointer, "PRAGMA wal_autocheckpoint=0; PRAGMA synchronous=NORMAL;", NULL, NULL, NULL);
	if (!rc) {
		sqlite3_busy_timeout(c->db, 2000);
		err = kvc_meta_get(c, "format", format, sizeof format);
		if (!err && strcmp(format, FORMAT) && (err = migrate(c, format)) == -EPROTO) {
			snprintf(error, 512, "the catalog %s has format %s and this kvcachefs knows " FORMAT "; %s", path, format,
				 strtoul(format, NULL, 10) < strtoul(FORMAT, NULL, 10) ? "make the store anew (mkfs.kvcachefs --force)" :
											   "use a newer one");
		}
	}
	if (!rc && !err)
		err = kvc_sql_finish(c, kvc_sql(c, ST_BEGIN, ""));
	if (!rc && !err && (sqlite3_file_control(c->db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &c->wal) || !c->wal || !c->wal->pMethods))
		err = -EIO;
	if (rc || (err && err != -EPROTO)) {
		snprintf(error, 512, "the catalog %s cannot be used: %s; run fsck.kvcachefs on the store", path, sqlite3_errmsg(c->db));
		err = rc ? to_errno(rc) : err;
	}
	if (err) {
		kvc_catalog_close(c);
		return err;
	}
	c->logged = false;
	*out = c;
	return 0;
}

void kvc_catalog_rollback(struct kvc_catalog *c)
{
	sqlite3_exec(c->db, "ROLLBACK", NULL, NULL, NULL);
}

int kvc_catalog_close(struct kvc_catalog *c)
{
	int err = 0;

	if (!sqlite3_get_autocommit(c->db))
		err = kvc_sql_finish(c, kvc_sql(c, ST_COMMIT, ""));
	for (int i = 0; i < ST_COUNT; i++)
		sqlite3_finalize(c->st[i]);
	sqlite3_close(c->checkpointer);
	sqlite3_close(c->db); /* the last connection: SQLite moves the log into the database */
	pthread_mutex_destroy(&c->lock);
	free(c);
	return err;
}

void kvc_catalog_lock(struct kvc_catalog *c)
{
	pthread_mutex_lock(&c->lock);
}

void kvc_catalog_unlock(struct kvc_catalog *c)
{
	pthread_mutex_unlock(&c->lock);
}

uint64_t kvc_catalog_txn(struct kvc_catalog *c)
{
	return atomic_load(&c->txn);
}

int kvc_catalog_commit(struct kvc_catalog *c)
{
	int err = 0;

	if (!sqlite3_get_autocommit(c->db))
		err = kvc_sql_finish(c, kvc_sql(c, ST_COMMIT, ""));
	if (err)
		return err;
	c->logged = false;
	atomic_fetch_add(&c->txn, 1);
	return kvc_sql_finish(c, kvc_sql(c, ST_BEGIN, ""));
}

int kvc_catalog_sync(struct kvc_catalog *c)
{
	return c->wal->pMethods->xSync(c->wal, SQLITE_SYNC_NORMAL) ? -EIO : 0;
}

void kvc_catalog_checkpoint(struct kvc_catalog *c)
{
	sqlite3_wal_checkpoint_v2(c->checkpointer, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
}
