/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog's connections and their prepared statements, and the functions for its lock. See
 * catalog_priv.h.
 */
#include "catalog_priv.h"

#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const texts[] = {
#define X(name, sql) sql,
	KVC_STATEMENTS(X)
#undef X
};

int kvc_sql_errno(sqlite3 *db, int rc)
{
	int os = db ? sqlite3_system_errno(db) : 0;

	switch (rc & 0xff) {
	case SQLITE_NOMEM: return -ENOMEM;
	case SQLITE_FULL: return -ENOSPC;
	case SQLITE_TOOBIG: /* a row longer than any that the daemon writes */
	case SQLITE_CORRUPT:
	case SQLITE_NOTADB: return -EBADMSG;
	case SQLITE_IOERR: return os == ENOSPC || os == EDQUOT ? -ENOSPC : -EIO;
	default: return -EIO;
	}
}

static int report_error(struct kvc_conn *n, const char *what, int rc)
{
	n->age = UINT64_MAX; /* the snapshot is not reused */
	if (n == &n->c->w)   /* catalog_write.c logs the error */
		snprintf(n->c->why, sizeof n->c->why, "%s, %.60s", sqlite3_errmsg(n->db), what);
	else if (!atomic_exchange(&n->c->error_logged, true))
		kvc_error("catalog: %s: %s", what, sqlite3_errmsg(n->db));
	return kvc_sql_errno(n->db, rc);
}

sqlite3_stmt *kvc_sql(struct kvc_conn *n, enum kvc_statement s, const char *types, ...)
{
	sqlite3_stmt *st = n->st[s];
	va_list ap;
	int rc;

	if (!st) {
		rc = sqlite3_prepare_v3(n->db, texts[s], -1, SQLITE_PREPARE_PERSISTENT, &n->st[s],
					NULL);
		if (rc) {
			report_error(n, texts[s], rc);
			return NULL;
		}
		st = n->st[s];
	}
	va_start(ap, types);
	for (int i = 1; *types; types++, i++)
		switch (*types) {
		case 'i': sqlite3_bind_int64(st, i, va_arg(ap, sqlite3_int64)); break;
		case 's':
			sqlite3_bind_text(st, i, va_arg(ap, const char *), -1, SQLITE_STATIC);
			break;
		case 'b': {
			const void *p = va_arg(ap, const void *);
			size_t len = va_arg(ap, size_t);

			if (p)
				sqlite3_bind_blob(st, i, p, (int)len, SQLITE_STATIC);
			else
				sqlite3_bind_null(st, i);
			break;
		}
		}
	va_end(ap);
	return st;
}

int kvc_sql_step(struct kvc_conn *n, sqlite3_stmt *st)
{
	int rc = st ? sqlite3_step(st) : SQLITE_ERROR;

	if (rc == SQLITE_ROW)
		return 1;
	if (rc == SQLITE_DONE)
		return 0;
	if (st)
		return report_error(n, sqlite3_sql(st), rc);
	rc = sqlite3_errcode(n->db); /* the statement could not be prepared */
	return rc ? kvc_sql_errno(n->db, rc) : -EIO;
}

void kvc_sql_done(sqlite3_stmt *st)
{
	if (st)
		sqlite3_reset(st);
}

int kvc_sql_finish(struct kvc_conn *n, sqlite3_stmt *st)
{
	int err = kvc_sql_step(n, st);

	kvc_sql_done(st);
	return err < 0 ? err : 0;
}

int kvc_conn_settings(sqlite3 *db)
{
	return sqlite3_exec(
		db,
		"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=0;"
		"PRAGMA cache_spill=OFF; PRAGMA cache_size=-49152; PRAGMA temp_store=MEMORY;",
		NULL, NULL, NULL);
}

/*
 * Without a log the database is complete, and SQLite is told that the file does not change. With a
 * log, SQLite keeps the log's index in memory instead of a file, for which it requires exclusive
 * use: its locks are disabled, and the store's lock keeps other processes away.
 */
int kvc_conn_open_read(const char *path, sqlite3 **db)
{
	char uri[4096] = "file:", wal[1300], *to = uri + 5;
	int rc, stale = kvc_wal_restart_stale(path);

	if (stale < 0)
		return stale == -ENOMEM ? SQLITE_NOMEM : SQLITE_IOERR;
	snprintf(wal, sizeof wal, "%s-wal", path);
	for (const char *p = path; *p; p++)
		to += snprintf(to, 4, strchr("%?#", *p) ? "%%%02x" : "%c", (unsigned char)*p);
	snprintf(to, 64, "%s", stale || access(wal, F_OK) ? "?immutable=1" : "?vfs=unix-none");
	rc = sqlite3_open_v2(uri, db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_URI,
			     NULL);
	if (!rc)
		rc = kvc_schema_restrict(*db);
	if (!rc)
		rc = sqlite3_db_config(*db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
	if (!rc)
		rc = sqlite3_exec(*db, "PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=MEMORY",
				  NULL, NULL, NULL);
	return rc;
}

int kvc_conn_open(struct kvc_catalog *c, struct kvc_conn *n, enum kvc_conn_use use)
{
	bool writes = use == KVC_CONN_WRITES;
	int rc;

	n->c = c;
	if (c->read_only)
		return kvc_conn_open_read(c->path, &n->db);
	rc = sqlite3_open_v2(c->path, &n->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX,
			     use == KVC_CONN_READS ? NULL
						   : kvc_wal_restart_vfs(c->restart, writes));
	if (!rc)
		rc = kvc_schema_restrict(n->db);
	if (!rc)
		sqlite3_busy_timeout(n->db, 2000);
	if (!rc && writes)
		rc = kvc_conn_settings(n->db);
	else if (!rc) /* small cache: a reader's pages become invalid with the next commit */
		rc = sqlite3_exec(n->db,
				  "PRAGMA wal_autocheckpoint=0; PRAGMA cache_size=-4096; PRAGMA "
				  "temp_store=MEMORY;",
				  NULL, NULL, NULL);
	return rc;
}

void kvc_conn_close(struct kvc_conn *n)
{
	for (int i = 0; i < ST_COUNT; i++)
		sqlite3_finalize(n->st[i]);
	memset(n->st, 0, sizeof n->st);
	sqlite3_close(n->db);
	n->db = NULL;
}

/* Tries the readers, first the one that this thread used last: its cache may have the pages. */
static struct kvc_conn *try_readers(struct kvc_catalog *c)
{
	static _Thread_local unsigned latest;

	for (unsigned i = 0; i < c->readers; i++) {
		unsigned at = (latest + i) % c->readers;

		if (!pthread_mutex_trylock(&c->reader[at].lock)) {
			latest = at;
			return &c->reader[at];
		}
	}
	return NULL;
}

/* If all are in use, waits for any of them: one may be held by a read that hangs. */
static struct kvc_conn *lock_reader(struct kvc_catalog *c)
{
	struct kvc_conn *n = try_readers(c);

	if (n)
		return n;
	pthread_mutex_lock(&c->free_lock);
	atomic_fetch_add(&c->free_waiting, 1);
	while (!(n = try_readers(c)))
		pthread_cond_wait(&c->free_cond, &c->free_lock);
	atomic_fetch_sub(&c->free_waiting, 1);
	pthread_mutex_unlock(&c->free_lock);
	return n;
}

static void end_snapshot(struct kvc_conn *n)
{
	if (!sqlite3_get_autocommit(n->db))
		kvc_sql_run(n, ST_COMMIT, "");
}

struct kvc_conn *kvc_reader_get(struct kvc_catalog *c)
{
	struct kvc_conn *n = lock_reader(c);

	end_snapshot(n);
	return n;
}

struct kvc_conn *kvc_reader_get_held(struct kvc_catalog *c)
{
	struct kvc_conn *n = lock_reader(c);
	uint64_t age = atomic_load(&c->age);

	if (n->age != age || atomic_load(&c->no_snapshots))
		end_snapshot(n);
	if (sqlite3_get_autocommit(n->db) && !atomic_load(&c->no_snapshots)) {
		/* the snapshot begins with the next statement, so not before this age */
		n->age = age;
		kvc_sql_run(n, ST_HOLD, "");
	}
	return n;
}

unsigned kvc_catalog_readers(const struct kvc_catalog *c)
{
	return c->readers;
}

struct kvc_conn *kvc_scan_get(struct kvc_catalog *c)
{
	struct kvc_conn *n = &c->reader[c->readers];

	pthread_mutex_lock(&n->lock);
	return n;
}

void kvc_readers_release(struct kvc_catalog *c, bool released)
{
	atomic_fetch_add(&c->no_snapshots, released ? 1 : -1);
	for (unsigned i = 0; released && i <= c->readers; i++) {
		struct kvc_conn *n = &c->reader[i];

		pthread_mutex_lock(&n->lock);
		if (n->db)
			end_snapshot(n);
		kvc_reader_put(n);
	}
}

void kvc_reader_put(struct kvc_conn *n)
{
	struct kvc_catalog *c = n->c;

	pthread_mutex_unlock(&n->lock);
	/* either the waiting thread finds this reader free, or it is seen to wait */
	atomic_thread_fence(memory_order_seq_cst);
	if (!c || !atomic_load(&c->free_waiting))
		return;
	pthread_mutex_lock(&c->free_lock);
	pthread_cond_broadcast(&c->free_cond);
	pthread_mutex_unlock(&c->free_lock);
}

void kvc_catalog_lock_at(struct kvc_catalog *c, struct kvc_lock_profile *here)
{
	kvc_lock_acquire(&c->lock, here);
}

void kvc_catalog_pause(struct kvc_catalog *c)
{
	kvc_lock_pause(&c->lock);
}

void kvc_catalog_unlock(struct kvc_catalog *c)
{
	kvc_lock_release(&c->lock);
}
