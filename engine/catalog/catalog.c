/* SPDX-License-Identifier: Apache-2.0 */
/* Creating, opening and closing a catalog. See catalog.h and catalog_priv.h. */
#include "catalog_priv.h"

#include "log.h"

#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int kvc_catalog_insert_root(sqlite3 *db)
{
	unsigned long long now = kvc_now_ns();
	char sql[400];

	snprintf(sql, sizeof sql,
		 "INSERT INTO nodes(" ROW_COLUMNS
		 ") VALUES(%d, %d, %u, %u, 2, 0, 0, %llu, %llu, %llu, %llu, %d, 0, 1)",
		 KVC_ROOT, S_IFDIR | 0755, getuid(), getgid(), now, now, now, now, KVC_ROOT);
	return sqlite3_exec(db, sql, NULL, NULL, NULL);
}

int kvc_catalog_create(const char *path)
{
	sqlite3 *db = NULL;
	/* SQLite gives the log and its index the mode of the database file. */
	KVC_FD int fd = kvc_open_own(path, O_RDWR | O_CREAT | O_EXCL);
	int rc;

	if (fd < 0)
		return -errno;
	rc = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL);
	if (!rc)
		rc = kvc_schema_restrict(db);
	if (!rc)
		rc = kvc_conn_settings(db);
	if (!rc)
		rc = sqlite3_exec(db, "BEGIN", NULL, NULL, NULL);
	if (!rc)
		rc = sqlite3_exec(db, kvc_schema, NULL, NULL, NULL);
	if (!rc)
		rc = kvc_catalog_insert_root(db);
	if (!rc)
		rc = sqlite3_exec(db, "COMMIT; PRAGMA wal_checkpoint(TRUNCATE);", NULL, NULL, NULL);
	if (rc)
		kvc_error("cannot create the catalog %s: %s", path, sqlite3_errmsg(db));
	sqlite3_close(db);
	return rc ? kvc_sql_errno(NULL, rc) : fsync(fd) ? -errno : 0;
}

/*
 * For a rebuild, which knows only the birth times of files. The limits of number and time are those
 * of KVC_UNIT_FILES and SPAN_NS in names/chunking.c.
 */
static const char *const by_birth =
	"BEGIN IMMEDIATE;"
	"UPDATE nodes SET container = 1 WHERE ino = 1 OR ino IN (SELECT parent FROM names WHERE "
	"kind = 16384);"
	"CREATE TEMP TABLE whole AS SELECT n.parent AS ino FROM names n JOIN nodes m ON m.ino = "
	"n.ino JOIN nodes d ON d.ino = n.parent"
	" WHERE n.kind = 32768 AND d.container = 0 GROUP BY n.parent"
	" HAVING count(*) <= 1024 AND max(m.btime_ns) - min(m.btime_ns) <= 60000000000;"
	"UPDATE nodes SET container = 1 WHERE mode & 61440 = 16384 AND ino NOT IN (SELECT ino FROM "
	"whole);"
	"INSERT OR REPLACE INTO chunks(id, created_ns, last_ns, hits, rank, pin_until_ns, ttl_s, "
	"expires_ns, policy, quota) SELECT w.ino, min(c.created_ns), max(c.last_ns), "
	"max(c.hits), max(c.rank), 0, 0, 0, 0, 0"
	" FROM whole w JOIN names n ON n.parent = w.ino JOIN chunks c ON c.id = n.ino GROUP BY "
	"w.ino;"
	"DELETE FROM chunks WHERE id IN (SELECT n.ino FROM whole w JOIN names n ON n.parent = "
	"w.ino);"
	"UPDATE nodes SET chunk = parent WHERE parent IN (SELECT ino FROM whole) AND mode & 61440 "
	"= 32768;"
	"DROP TABLE whole;"
	"COMMIT;";

int kvc_catalog_group(struct kvc_catalog *c)
{
	int err = kvc_catalog_flush(c, 0), rc;

	if (err)
		return err;
	pthread_mutex_lock(&c->writer);
	rc = sqlite3_exec(c->w.db, by_birth, NULL, NULL, NULL);
	if (rc) {
		kvc_error("catalog: cannot group files by their time of creation: %s",
			  sqlite3_errmsg(c->w.db));
		rc = kvc_sql_errno(c->w.db, rc);
		sqlite3_exec(c->w.db, "ROLLBACK", NULL, NULL, NULL);
	}
	pthread_mutex_unlock(&c->writer);
	return rc;
}

/* Opens the log and the mark file, and makes their names durable. */
static int open_log(struct kvc_catalog *c)
{
	char dir[1280];
	KVC_FD int fd = -1;
	int err = kvc_wal_restart_open(c->restart);

	if (err)
		return err;
	snprintf(dir, sizeof dir, "%s", c->path);
	fd = open(dirname(dir), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 || fsync(fd) ? -errno : 0;
}

/* Opens everything except the threads. */
static int open_all(struct kvc_catalog *c, char *error)
{
	char why[400] = "";
	int rc, err = c->read_only ? 0 : kvc_wal_restart_repair(c->path);
	sqlite3 *db;

	if (err) {
		snprintf(error, 512, "cannot examine the log of the catalog %s: %s", c->path,
			 strerror(-err));
		return err;
	}
	rc = kvc_conn_open(c, &c->w, KVC_CONN_WRITES);
	db = c->w.db;

	for (unsigned i = 0; i <= c->readers && !rc; i++) {
		rc = kvc_conn_open(c, &c->reader[i], KVC_CONN_READS);
		db = rc ? c->reader[i].db : db;
	}
	if (!rc && (err = kvc_schema_format(c->w.db, c->path, error)))
		return err;
	if (!rc)
		rc = kvc_schema_compare(c->w.db, !c->read_only, why);
	/* An empty transaction shows that the database can be written, and makes the log. */
	if (!rc && !err && !c->read_only)
		err = kvc_sql_run(&c->w, ST_BEGIN, "") ?: kvc_sql_run(&c->w, ST_COMMIT, "");
	if (*why) {
		snprintf(error, 512,
			 "the catalog %.200s: %.200s; run fsck.kvcachefs -y on the store", c->path,
			 why);
		return -EBADMSG;
	}
	if (rc || err) {
		snprintf(error, 512,
			 "the catalog %s cannot be used: %s; run fsck.kvcachefs on the store",
			 c->path,
			 sqlite3_errmsg(rc                         ? db
					: sqlite3_errcode(c->w.db) ? c->w.db
								   : c->reader[0].db));
		return rc == SQLITE_CANTOPEN ? -ENOENT : rc ? kvc_sql_errno(db, rc) : err;
	}
	if (!c->read_only && (err = open_log(c)))
		snprintf(error, 512, "the log of the catalog %s cannot be opened: %s", c->path,
			 strerror(-err));
	return err;
}

/* Disables SQLite's memory statistics, which need a lock that all connections share. */
static void settings(void)
{
	sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
}

/*
 * Lookups run on the callers' CPUs, so each CPU of the process has a reader. Tools have one thread
 * and need few readers.
 */
static int new_readers(struct kvc_catalog *c)
{
	unsigned most = c->read_only ? KVC_READERS_MIN : KVC_READERS_MAX;

	c->readers = kvc_max(KVC_READERS_MIN, kvc_min(most, kvc_cpus()));
	c->reader = calloc(c->readers + 1, sizeof *c->reader);
	if (!c->reader)
		return -ENOMEM;
	for (unsigned i = 0; i <= c->readers; i++)
		pthread_mutex_init(&c->reader[i].lock, NULL);
	return 0;
}

static int open_as(struct kvc_catalog **out, const char *path, bool read_only, char *error)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct kvc_catalog *c = calloc(1, sizeof *c);
	int err;

	if (!c)
		return -ENOMEM;
	pthread_once(&once, settings);
	pthread_mutex_init(&c->lock.m, NULL);
	pthread_mutex_init(&c->writer, NULL);
	pthread_mutex_init(&c->free_lock, NULL);
	pthread_cond_init(&c->free_cond, NULL);
	snprintf(c->path, sizeof c->path, "%s", path);
	c->read_only = read_only;
	atomic_store(&c->no_snapshots, 1);    /* until kvc_catalog_start */
	atomic_store(&c->error_logged, true); /* the caller reports errors of the open */
	c->filter = kvc_filter_new();
	c->restart = kvc_wal_restart_new(path, kvc_checkpoint_ask, c);
	err = kvc_overlay_init(&c->over) ?: new_readers(c) ?: c->filter && c->restart ? 0 : -ENOMEM;
	atomic_store(&c->txn, c->over.txn);
	if (err)
		snprintf(error, 512, "out of memory");
	else
		err = open_all(c, error);
	if (err) {
		kvc_catalog_close(c);
		return err;
	}
	atomic_store(&c->error_logged, false);
	*out = c;
	return 0;
}

int kvc_catalog_open(struct kvc_catalog **out, const char *path, char *error)
{
	return open_as(out, path, false, error);
}

int kvc_catalog_open_read(struct kvc_catalog **out, const char *path, char *error)
{
	return open_as(out, path, true, error);
}

const struct kvc_lock *kvc_catalog_lock_of(const struct kvc_catalog *c)
{
	return &c->lock;
}

int kvc_catalog_close(struct kvc_catalog *c)
{
	int err = 0;

	kvc_catalog_stop(c);
	if (c->w.db) {
		kvc_catalog_lock(c);
		err = kvc_catalog_flush(c, 0);
		kvc_catalog_unlock(c);
	}
	kvc_overlay_fini(&c->over);
	for (unsigned i = 0; c->reader && i <= c->readers; i++) {
		kvc_conn_close(&c->reader[i]);
		pthread_mutex_destroy(&c->reader[i].lock);
	}
	free(c->reader);
	kvc_conn_close(&c->w); /* the last connection: SQLite copies the log into the database */
	kvc_wal_restart_free(c->restart);
	kvc_filter_free(c->filter);
	kvc_usage_free(c);
	pthread_mutex_destroy(&c->lock.m);
	pthread_mutex_destroy(&c->writer);
	pthread_mutex_destroy(&c->free_lock);
	pthread_cond_destroy(&c->free_cond);
	free(c);
	return err;
}
