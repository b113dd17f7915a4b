/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing the overlay's changes to SQLite, and the behaviour while that fails. catalog_priv.h
 * describes the life of a change and the locks.
 *
 * A batch is one transaction: BEGIN IMMEDIATE, one or more statements for each change, COMMIT.
 * After some failures SQLite ends the transaction by itself and after others it does not. In any
 * case no transaction is open after a failure (if necessary the connection is opened again), and
 * all of the batch counts as not written. If a COMMIT failed after its last frame reached the log,
 * recovery may still find it after a kill. Its changes are correct, but nothing relies on them yet.
 *
 * If the filesystem is full (c->full), the file `reserve` is freed at once and the batch is tried
 * again. From then on, until the reserve can be allocated again, the catalog accepts only removals
 * from users, so that the freed space is used for these.
 */
#include "catalog_priv.h"

#include "log.h"
#include "store.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define I(v) ((sqlite3_int64)(v))
/* bytes that a page costs: a frame in the log, and its copy in the database */
#define LOG_COST (4096 + 24 + 4096)
#define AT_ONCE 256             /* number of changes dropped under one hold of the lock */
#define RESERVE_NS 500000000ull /* time between two attempts to allocate the reserve again */
/* the reserve is allocated only if this many times its size is free */
#define RESERVE_ROOM 3

static int write_row(struct kvc_conn *n, const struct kvc_change *c)
{
	static const enum kvc_statement all[] = {
		ST_TARGET_DEL,
		ST_OBJECT_DEL,
		ST_PLACE_DEL_ALL,
		ST_XATTR_DEL_ALL,
	};
	const struct kvc_row *r = c->value;
	int err;

	if (!c->gone)
		return kvc_sql_run(n, ST_ROW_PUT, "iiiiiiiiiiiiii", I(r->ino), I(r->mode),
				   I(r->uid), I(r->gid), I(r->nlink), I(r->size), I(r->blocks),
				   I(r->atime_ns), I(r->mtime_ns), I(r->ctime_ns), I(r->btime_ns),
				   I(r->parent), I(r->chunk), I(r->container));
	err = kvc_sql_run(n, ST_ROW_DEL, "i", I(c->a));
	for (size_t i = 0; c->wipes && i < sizeof all / sizeof all[0] && !err; i++)
		err = kvc_sql_run(n, all[i], "i", I(c->a));
	return err;
}

static int write_place(struct kvc_conn *n, const struct kvc_change *c)
{
	const struct kvc_place *p = c->value;

	if (c->gone)
		return kvc_sql_run(n, ST_PLACE_DEL, "ii", I(c->a), I(c->b));
	return kvc_sql_run(n, ST_PLACE_PUT, "iiiiiiiibbii", I(c->a), I(c->b), I(p->gen),
			   I(p->where.at), I(p->where.len), I(p->where.hi), I(p->codec), I(p->key),
			   p->sum.b, (size_t)16, kvc_sum_is_zero(&p->raw) ? NULL : p->raw.b,
			   (size_t)16, I(p->error_ppm), I(p->worst_ppm));
}

static int write_chunk(struct kvc_conn *n, const struct kvc_change *c)
{
	const struct kvc_chunk_row *r = c->value;

	if (c->gone)
		return kvc_sql_run(n, ST_CHUNK_DEL, "i", I(c->a));
	return kvc_sql_run(n, ST_CHUNK_PUT, "iiiiiiiiiiiiiii", I(r->id), I(r->created_ns),
			   I(r->last_ns), I(r->hits), I(r->rank), I(r->pin_until_ns), I(r->ttl_s),
			   I(r->expires_ns), I(r->policy), I(r->quota), I(r->parent), I(r->facts),
			   I(r->pool_facts), I(r->bytes), I(r->tenant));
}

static int write_change(struct kvc_conn *n, const struct kvc_change *c)
{
	const struct kvc_name_value *name = c->value;
	const struct kvc_object_row *o = c->value;
	const uint64_t *until = c->value;

	switch ((enum kvc_relation)c->table) {
	case KVC_T_ROW: return write_row(n, c);
	case KVC_T_META:
		return c->gone ? kvc_sql_run(n, ST_META_DEL, "s", c->text)
			       : kvc_sql_run(n, ST_META_SET, "ss", c->text, (const char *)c->value);
	case KVC_T_NAME:
		return c->gone ? kvc_sql_run(n, ST_NAME_DEL, "iis", I(c->a), I(c->b), c->text)
			       : kvc_sql_run(n, ST_NAME_PUT, "iisii", I(c->a), I(c->b), c->text,
					     I(name->ino), I(name->kind));
	case KVC_T_TARGET:
		return c->gone ? kvc_sql_run(n, ST_TARGET_DEL, "i", I(c->a))
			       : kvc_sql_run(n, ST_TARGET_PUT, "is", I(c->a),
					     (const char *)c->value);
	case KVC_T_OBJECT:
		return c->gone ? kvc_sql_run(n, ST_OBJECT_DEL, "i", I(c->a))
			       : kvc_sql_run(n, ST_OBJECT_PUT, "iiibii", I(c->a), I(o->gen),
					     I(o->size), o->has_sum ? o->sum.b : NULL, (size_t)16,
					     I(o->lower), I(o->decoded));
	case KVC_T_PLACE: return write_place(n, c);
	case KVC_T_XATTR:
		return c->gone ? kvc_sql_run(n, ST_XATTR_DEL, "is", I(c->a), c->text)
			       : kvc_sql_run(n, ST_XATTR_SET, "isb", I(c->a), c->text, c->value,
					     (size_t)c->len);
	case KVC_T_CHUNK: return write_chunk(n, c);
	case KVC_T_PURGE: return kvc_sql_run(n, ST_GONE_PURGE, "i", I(*until));
	case KVC_T_GONE:
		return c->gone ? kvc_sql_run(n, ST_GONE_DEL, "ii", I(c->a), I(c->b))
			       : kvc_sql_run(n, ST_GONE_PUT, "iii", I(c->a), I(c->b), I(*until));
	case KVC_TABLES: break;
	}
	return -EINVAL;
}

/*
 * Sorts by table and key, so that neighbouring pages are written together. KVC_T_ROW is first: a
 * wipe must precede the other rows of the inode.
 */
static int by_key(const void *x, const void *y)
{
	const struct kvc_change *a = *(struct kvc_change *const *)x,
				*b = *(struct kvc_change *const *)y;

	if (a->table != b->table)
		return a->table < b->table ? -1 : 1;
	if (a->a != b->a)
		return a->a < b->a ? -1 : 1;
	return a->b < b->b ? -1 : a->b > b->b;
}

static int write_all(struct kvc_conn *n, struct kvc_overlay *o)
{
	KVC_MEM struct kvc_change **v = NULL;
	size_t count = 0, i = 0;
	int err = 0;

	kvc_list_each(e, &o->batch)
		count++;
	v = malloc(count * sizeof *v);
	if (!v)
		return -ENOMEM;
	kvc_list_each(e, &o->batch)
		v[i++] = kvc_of(e, struct kvc_change, link);
	qsort(v, count, sizeof *v, by_key);
	for (i = 0; i < count && !err; i++)
		err = write_change(n, v[i]);
	return err;
}

static int open_writer(struct kvc_catalog *c)
{
	int rc = kvc_conn_open(c, &c->w, KVC_CONN_WRITES),
	    err = rc ? kvc_sql_errno(c->w.db, rc) : 0;

	if (err)
		kvc_conn_close(&c->w);
	else
		kvc_checkpoint_watch(c);
	return err;
}

/* Ensures that no transaction is open after a failure. */
static void end_transaction(struct kvc_catalog *c)
{
	if (!sqlite3_get_autocommit(c->w.db))
		kvc_sql_run(&c->w, ST_ROLLBACK, "");
	if (sqlite3_get_autocommit(c->w.db))
		return;
	kvc_conn_close(&c->w);
	open_writer(c); /* if this fails, the next attempt tries again */
}

/* Writes one transaction. Under c->writer. */
static int transaction(struct kvc_catalog *c)
{
	int err = c->w.db ? 0 : open_writer(c);

	if (err)
		return err;
	err = kvc_sql_run(&c->w, ST_BEGIN, "") ?: write_all(&c->w, &c->over);
	err = err ?: kvc_sql_run(&c->w, ST_COMMIT, "");
	if (err || !sqlite3_get_autocommit(c->w.db)) {
		end_transaction(c);
		return err ?: -EIO;
	}
	return 0;
}

/* ---- accesses ---- */

static int write_access(struct kvc_conn *n, const struct kvc_chunk_row *r)
{
	return kvc_sql_run(n, ST_CHUNK_ACCESS, "iiiiiiiii", I(r->created_ns), I(r->last_ns),
			   I(r->hits), I(r->rank), I(r->parent), I(r->facts), I(r->pool_facts),
			   I(r->bytes), I(r->id));
}

/*
 * Returns the number of pages that the writer's connection has written to the log, modulo 2^32. The
 * length of the log does not tell that, because a transaction may restart the log.
 */
static uint32_t pages_written(const struct kvc_catalog *c)
{
	int pages = 0, high;

	if (c->w.db)
		sqlite3_db_status(c->w.db, SQLITE_DBSTATUS_CACHE_WRITE, &pages, &high, 0);
	return (uint32_t)pages;
}

int kvc_catalog_put_accesses(struct kvc_catalog *c, const struct kvc_chunk_row *r, size_t n,
			     uint64_t *bytes)
{
	uint32_t before;
	int err;

	*bytes = 0;
	pthread_mutex_lock(&c->writer);
	before = pages_written(c);
	err = (c->w.db ? 0 : open_writer(c)) ?: kvc_sql_run(&c->w, ST_BEGIN, "");
	for (size_t i = 0; i < n && !err; i++)
		err = write_access(&c->w, &r[i]);
	err = err ?: kvc_sql_run(&c->w, ST_COMMIT, "");
	if (c->w.db && (err || !sqlite3_get_autocommit(c->w.db))) {
		end_transaction(c);
		err = err ?: -EIO;
	}
	if (!err) {
		*bytes = (uint64_t)(uint32_t)(pages_written(c) - before) * LOG_COST;
		atomic_fetch_add(&c->age, 1); /* the held snapshots are older than these rows */
	}
	pthread_mutex_unlock(&c->writer);
	kvc_checkpoint_gate_leave(c);
	return err;
}

/* ---- the reserve ---- */

static void reserve_path(const struct kvc_catalog *c, char *path)
{
	const char *slash = strrchr(c->path, '/');

	snprintf(path, 1300, "%.*s" KVC_STORE_RESERVE, slash ? (int)(slash - c->path + 1) : 0,
		 c->path);
}

/*
 * Frees the reserve. Returns true if that freed space. Under c->writer, like all functions of this
 * section.
 */
static bool give_reserve(struct kvc_catalog *c)
{
	char path[1300];
	KVC_FD int fd = -1;

	if (!c->reserve || c->reserve_given)
		return false;
	reserve_path(c, path);
	fd = kvc_open_own(path, O_WRONLY);
	if (fd < 0 || ftruncate(fd, 0)) /* ftruncate may fail on a full copy-on-write filesystem */
		return false;
	c->reserve_given = true;
	return true;
}

/* Allocates the reserve again if there is plenty of space. Returns true if it is complete. */
static bool take_reserve(struct kvc_catalog *c)
{
	char path[1300];
	struct statvfs v;
	KVC_FD int fd = -1;

	if (!c->reserve_given)
		return true;
	if (kvc_mono_ns() - c->reserve_ns < RESERVE_NS)
		return false;
	c->reserve_ns = kvc_mono_ns();
	reserve_path(c, path);
	fd = kvc_open_own(path, O_WRONLY | O_CREAT);
	if (fd < 0 || fstatvfs(fd, &v) ||
	    (uint64_t)v.f_bavail * v.f_frsize < RESERVE_ROOM * c->reserve)
		return false;
	if (posix_fallocate(fd, 0, (off_t)c->reserve)) {
		if (ftruncate(fd, 0))
			kvc_warn("catalog: only a part of the file reserve could be allocated");
		return false;
	}
	c->reserve_given = false;
	return true;
}

/* ---- writing a batch ---- */

/* Logs one line when the trouble begins, and one when it ends. */
static void log_trouble_locked(struct kvc_catalog *c, int err)
{
	bool trouble = err || atomic_load(&c->full);

	atomic_store(&c->failing, err);
	if (!err)
		atomic_store(&c->error_logged, false);
	if (trouble == c->trouble_logged)
		return;
	c->trouble_logged = trouble;
	if (!trouble)
		kvc_info("catalog: writing works again; all changes are accepted");
	else if (atomic_load(&c->full))
		kvc_error("catalog: no space left on the store's filesystem: reads and deletes "
			  "work, all other changes are refused; free space there");
	else
		kvc_error("catalog: cannot write changes (%s): they wait in memory, up to %u MiB",
			  *c->why ? c->why : strerror(-err), KVC_PENDING_MAX >> 20);
}

static void seal_locked(struct kvc_catalog *c)
{
	kvc_overlay_seal(&c->over);
	kvc_catalog_count(c);
	atomic_store(&c->txn, c->over.txn);
}

/* Writes the sealed batch. Under c->writer. */
static int write_batch(struct kvc_catalog *c)
{
	int err = kvc_list_empty(&c->over.batch) ? 0 : transaction(c);

	if (err == -ENOSPC) {
		atomic_store(&c->full, true);
		if (give_reserve(c))
			err = transaction(c);
	} else if (!err && atomic_load(&c->full) && take_reserve(c)) {
		atomic_store(&c->full, false);
	}
	if (!err)
		atomic_fetch_add(&c->commits, 1);
	c->result = err;
	return err;
}

/*
 * Applies the result of the batch to the overlay, at most `max` changes. Returns true when all are
 * done. Under c->lock.
 */
static bool settle_locked(struct kvc_catalog *c, size_t max)
{
	bool all = true;

	if (!c->over.out)
		return true;
	if (c->result)
		kvc_overlay_merge(&c->over);
	else
		all = kvc_overlay_drop(&c->over, max);
	c->age++;
	kvc_catalog_count(c);
	if (all)
		log_trouble_locked(c, c->result);
	return all;
}

uint64_t kvc_catalog_seal(struct kvc_catalog *c)
{
	pthread_mutex_lock(&c->writer);
	settle_locked(c, SIZE_MAX);
	seal_locked(c);
	return c->over.txn - 1;
}

int kvc_catalog_write(struct kvc_catalog *c)
{
	int err = write_batch(c);
	uint64_t txn = c->over.txn; /* no thread seals before this thread releases c->writer */
	bool all;

	pthread_mutex_unlock(&c->writer);
	kvc_checkpoint_gate_leave(c);
	do {
		kvc_catalog_lock(c);
		/* a flush by another thread may have applied the result and sealed a new batch */
		all = c->over.txn != txn || settle_locked(c, AT_ONCE);
		kvc_catalog_unlock(c);
	} while (!all);
	return err;
}

int kvc_catalog_flush(struct kvc_catalog *c, unsigned tables)
{
	size_t n = 0;
	int err = 0;

	for (unsigned t = 0; t < KVC_TABLES; t++)
		n += tables && !(tables & 1u << t) ? 0 : c->over.count[t];
	if (!n)
		return 0;
	pthread_mutex_lock(&c->writer);
	settle_locked(c, SIZE_MAX);
	if (c->over.n) {
		seal_locked(c);
		err = write_batch(c);
		settle_locked(c, SIZE_MAX);
	}
	pthread_mutex_unlock(&c->writer);
	return err;
}

int kvc_catalog_commit(struct kvc_catalog *c)
{
	return kvc_catalog_flush(c, 0);
}

void kvc_catalog_rollback(struct kvc_catalog *c)
{
	kvc_overlay_fini(&c->over);
	if (kvc_overlay_init(&c->over))
		abort(); /* only a small table is allocated */
	kvc_catalog_count(c);
}

size_t kvc_catalog_changes(struct kvc_catalog *c)
{
	return atomic_load_explicit(&c->changes, memory_order_relaxed);
}

uint64_t kvc_catalog_txn(struct kvc_catalog *c)
{
	return atomic_load(&c->txn);
}

int kvc_catalog_accepts(struct kvc_catalog *c, bool removal)
{
	size_t most = removal ? KVC_PENDING_MAX + KVC_PENDING_REMOVALS : KVC_PENDING_MAX;
	int failing = atomic_load(&c->failing);
	bool full = atomic_load(&c->full);

	if (full && !removal)
		return -ENOSPC;
	if (!failing && !full)
		most *= KVC_PENDING_SLOW;
	if (atomic_load(&c->pending) <= most)
		return 0;
	return failing == -EIO || failing == -EBADMSG ? -EIO : -ENOSPC;
}

int kvc_catalog_spare(struct kvc_catalog *c, size_t n)
{
	return kvc_overlay_spare(&c->over, n);
}

void kvc_catalog_state(struct kvc_catalog *c, struct kvc_catalog_state *s)
{
	s->pending_bytes = atomic_load(&c->pending);
	s->log_bytes = kvc_wal_restart_bytes(c->restart);
	s->ok = !atomic_load(&c->failing) && !atomic_load(&c->full);
}

int kvc_catalog_sync(struct kvc_catalog *c)
{
	return kvc_wal_restart_sync(c->restart);
}

void kvc_catalog_use_reserve(struct kvc_catalog *c)
{
	char path[1300];
	struct stat st;

	reserve_path(c, path);
	if (stat(path, &st))
		return; /* the store has no reserve file */
	pthread_mutex_lock(&c->writer);
	c->reserve = KVC_STORE_RESERVE_SIZE;
	c->reserve_given = (uint64_t)st.st_blocks * 512 < c->reserve;
	atomic_store(&c->full, !take_reserve(c));
	pthread_mutex_unlock(&c->writer);
}

int kvc_catalog_start(struct kvc_catalog *c, uint64_t log_bytes)
{
	int err = kvc_checkpoint_start(c, log_bytes) ?: kvc_filter_start(c);
	if (err)
		kvc_catalog_stop(c);
	else
		kvc_readers_release(c, false);
	c->started = !err;
	return err;
}

void kvc_catalog_stop(struct kvc_catalog *c)
{
	if (c->started)
		kvc_readers_release(c, true);
	c->started = false;
	kvc_filter_stop(c);
	kvc_checkpoint_stop(c);
}

void kvc_catalog_still(struct kvc_catalog *c, bool still)
{
	kvc_readers_release(c, !still);
}

void kvc_catalog_gate(struct kvc_catalog *c)
{
	kvc_checkpoint_gate(c);
}
