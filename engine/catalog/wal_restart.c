/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restarting the write-ahead log from its beginning without a sync inside a commit.
 *
 * When all of the log is in the database, the next commit overwrites the log from its beginning: it
 * writes a header with new salts, then frames with these salts. SQLite syncs the header between the
 * two, inside the COMMIT. On a busy disk this sync takes longer than a change may stay in memory
 * only. The sync protects against a power failure after which some of the new frames are on the
 * medium and the new header is not: the old header, and those old frames that are still intact,
 * would look like a log. Their contents are in the database, but newer contents are, too; applying
 * a part of the old log would produce a state that never existed.
 *
 * This file delays the sync and detects a partly overwritten log by a mark. The mark is a small
 * file next to the log with the log's salts and a number N: the first N frames of the log are on
 * stable storage. It is written and synced before the log may restart. Recovery
 * (kvc_wal_restart_repair, before SQLite opens the log) compares the log with the mark:
 *
 * - The log has the mark's salts, and its first N frames are not all intact. They were overwritten,
 *   so all of the log is in the database and synced, because SQLite overwrites nothing else. The
 *   log is emptied.
 * - The log has the mark's salts, and its first N frames are intact. Nothing was overwritten, if
 *   nothing beyond frame N is overwritten before the header is synced. The VFS below ensures that.
 * - The log has the new header. Old frames have wrong salts and are ignored. The database has no
 *   contents of the new log that are not synced, because a checkpoint syncs the log first, header
 *   included.
 *
 * The committing connection uses a VFS that passes all calls on to the default VFS, with these
 * exceptions (and with those below, under FAILED SYNCS):
 * - A commit locks all readers' marks to check that it may restart the log. This lock fails until
 *   there is a mark, so that the commit appends to the log instead.
 * - The sync after the header is skipped, and the checkpoint thread is asked to do it. Any sync of
 *   the log that begins after the header was written is sufficient.
 * - Until then, a write beyond frame N, or a truncation to a size above it, syncs first. N is large
 *   enough to take a while to fill (checkpoint.c). A log that was truncated to zero cannot be
 *   mistaken for a log, and filesystems keep the order of sizes: later writes are not on the medium
 *   if the truncation is not.
 *
 * FAILED SYNCS. The kernel reports a failed sync once, and a later one succeeds without the bytes.
 * The connections that commit and that checkpoint use the VFS, so that
 * - a failed sync of the log is made good (wal_sync.c) before any sync of it succeeds;
 * - after a failed sync of the database, none of the log counts as copied to the database. The log
 *   has all pages that were written to the database since the last good sync: SQLite restarts and
 *   truncates the log, and deletes it at the close, only if all of it is copied, and syncs the
 *   database before it says so. Setting the number of copied frames to 0 in the log's index
 *   (nBackfill, at a fixed place: https://www.sqlite.org/walformat.html) therefore suffices: the
 *   next checkpoint copies all frames again, and syncs.
 *
 * `limit` belongs to the committing thread (under c->writer), the mark's file to the checkpoint
 * thread.
 */
#include "wal_restart.h"

#include "log.h"
#include "wal_sync.h"

#include <endian.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

/*
 * size of a slot of the mark file; it has two, so that one stays valid while the other is written
 */
#define SLOT 4096
/* SQLite's locks of the readers' marks, from the second reader on: offset and number */
#define READERS 4
/* The log's index, as 32-bit integers: the place of its version, and of the copied frames. */
#define INDEX_VERSION 0
#define INDEX_COPIED 24
#define INDEX_VERSION_IS 3007000u

struct mark {
	char magic[8];
	struct kvc_salts salts;
	uint64_t frames;
	uint64_t sum; /* of the preceding bytes */
};
_Static_assert(sizeof(struct mark) == 32, "kvcachefs-format(5)");
static const char magic[8] = "KVCMARK";

struct kvc_wal_restart {
	/* for the committing connection, and for the one that copies the log; and the default */
	sqlite3_vfs vfs, copying, *below;
	sqlite3_io_methods methods;
	char path[1280], name[32], copying_name[40];
	void (*ask)(void *arg);
	void *arg;
	struct kvc_wal_sync sync; /* of the log */
	int mark_fd;
	unsigned slot;           /* the slot that is written next */
	_Atomic uint64_t frames; /* frames that a mark covers; 0: not in use */
	_Atomic uint64_t marked; /* frames of the valid mark; 0: there is no mark */
	_Atomic bool broken;     /* the mark cannot be written, so commits sync */
	struct kvc_salts salts;  /* salts of the valid mark; written before `marked` is set */
	/* number of headers written, and number of headers synced */
	_Atomic uint64_t began, synced;
	uint64_t limit; /* size in bytes up to which the log may be written while began != synced */
	struct kvc_salts next; /* salts of the header for which the limit was set */
};

struct file {
	sqlite3_file base;
	struct kvc_wal_restart *a;
	bool commits;  /* opened by the committing connection */
	bool log;      /* the file is the log */
	bool database; /* the file is the database */
	bool fresh;    /* the last write was a header over a log with a mark */
	/* the beginning of the log's index, shared with other processes; NULL: not mapped */
	volatile uint32_t *index;
	sqlite3_file *below;
};

static struct file *of(sqlite3_file *f)
{
	return (struct file *)f;
}

/* ---- the log and its mark ---- */

static uint64_t get_be32(const uint8_t *p)
{
	return (uint64_t)p[0] << 24 | (uint64_t)p[1] << 16 | (uint64_t)p[2] << 8 | p[3];
}

struct kvc_salts kvc_wal_restart_salts(const struct kvc_wal_restart *a)
{
	struct kvc_salts s = { { 0 } };

	if (kvc_pread_all(a->sync.fd[0], &s, sizeof s, 16))
		memset(&s, 0, sizeof s);
	return s;
}

uint64_t kvc_wal_restart_bytes(const struct kvc_wal_restart *a)
{
	struct stat st;

	return fstat(a->sync.fd[0], &st) ? 0 : (uint64_t)st.st_size;
}

bool kvc_wal_restart_unsynced(const struct kvc_wal_restart *a)
{
	return atomic_load(&a->began) != atomic_load(&a->synced);
}

/* Records that all headers up to number `upto` are on stable storage. */
static void header_synced(struct kvc_wal_restart *a, uint64_t upto)
{
	uint64_t now = atomic_load(&a->synced);

	while (now < upto && !atomic_compare_exchange_weak(&a->synced, &now, upto))
		;
}

int kvc_wal_restart_sync(struct kvc_wal_restart *a)
{
	uint64_t upto = atomic_load(&a->began);
	int err = kvc_wal_sync_run(&a->sync);

	if (!err)
		header_synced(a, upto);
	return err;
}

static uint64_t sum_of(const struct mark *m)
{
	return htole64(XXH3_64bits(m, offsetof(struct mark, sum)));
}

void kvc_wal_restart_copied(struct kvc_wal_restart *a, const struct kvc_salts *before,
			    uint64_t frames)
{
	struct mark m = { .salts = *before, .frames = htole64(frames) };
	struct kvc_salts now = kvc_wal_restart_salts(a);
	uint64_t least = atomic_load(&a->frames);
	int err;

	/* the log of the checkpoint still exists: salts are random and never repeat */
	if (!least || frames < least || atomic_load(&a->marked) || a->mark_fd < 0 ||
	    memcmp(&now, before, sizeof now))
		return;
	memcpy(m.magic, magic, sizeof m.magic);
	m.sum = sum_of(&m);
	err = kvc_pwrite_all(a->mark_fd, &m, sizeof m, a->slot * SLOT);
	if (!err && fdatasync(a->mark_fd))
		err = -errno;
	if (err && !atomic_exchange(&a->broken, true))
		kvc_error("catalog: cannot write the mark file of its log: %s; commits may wait "
			  "for a sync",
			  strerror(-err));
	if (err)
		return;
	atomic_store(&a->broken, false);
	a->slot ^= 1;
	a->salts = *before;
	atomic_store(&a->marked, frames);
}

/* Returns the number of frames of the newest mark with these salts; 0: there is no such mark. */
static uint64_t marked_frames(const char *path, const struct kvc_salts *salts)
{
	char name[1300];
	KVC_FD int fd = -1;
	uint64_t most = 0;
	struct mark m;

	snprintf(name, sizeof name, "%s-mark", path);
	fd = kvc_open_own(name, O_RDONLY);
	for (int i = 0; i < 2 && fd >= 0; i++)
		if (!kvc_pread_all(fd, &m, sizeof m, i * SLOT) &&
		    !memcmp(m.magic, magic, sizeof magic) && m.sum == sum_of(&m) &&
		    !memcmp(&m.salts, salts, sizeof *salts))
			most = kvc_max(most, le64toh(m.frames));
	return most;
}

static int ignore_frame(void *arg, const uint8_t *p, size_t len, uint64_t at)
{
	(void)arg;
	(void)p;
	(void)len;
	(void)at;
	return 0;
}

/* Are the first `frames` frames of the log intact? Returns 1, 0 or -errno. */
static int frames_intact(int fd, uint64_t frames)
{
	uint64_t n;
	int err = kvc_wal_sync_frames(fd, frames, ignore_frame, NULL, &n);

	return err == -ENODATA ? 1 /* an empty log */ : err ?: n == frames;
}

int kvc_wal_restart_stale(const char *path)
{
	uint8_t header[KVC_WAL_HEADER];
	char name[1300];
	KVC_FD int fd = -1;
	struct kvc_salts salts;
	uint64_t frames;
	int is;

	snprintf(name, sizeof name, "%s-wal", path);
	fd = kvc_open_own(name, O_RDONLY);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if ((is = kvc_pread_all(fd, header, sizeof header, 0)))
		return is == -ENODATA ? 0 : is;
	memcpy(&salts, header + 16, sizeof salts);
	frames = marked_frames(path, &salts);
	is = frames ? frames_intact(fd, frames) : 1;
	return is < 0 ? is : !is;
}

int kvc_wal_restart_repair(const char *path)
{
	char name[1300];
	KVC_FD int fd = -1;
	int stale = kvc_wal_restart_stale(path);

	if (stale <= 0)
		return stale;
	snprintf(name, sizeof name, "%s-wal", path);
	fd = kvc_open_own(name, O_RDWR);
	if (fd < 0)
		return -errno;
	kvc_info("a power failure has damaged the catalog's log; the database has all its data, so "
		 "the log is truncated");
	return ftruncate(fd, 0) || fdatasync(fd) ? -errno : 0;
}

/* ---- the VFS ---- */

static int x_close(sqlite3_file *f)
{
	sqlite3_file *b = of(f)->below;

	return b->pMethods ? b->pMethods->xClose(b) : SQLITE_OK;
}

static int x_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
	sqlite3_file *b = of(f)->below;

	return b->pMethods->xRead(b, p, n, at);
}

/* Syncs the log through the connection's descriptor. */
static int sync_log(struct file *f, int flags)
{
	uint64_t upto = atomic_load(&f->a->began);
	int rc = f->below->pMethods->xSync(f->below, flags), err = rc ? -(errno ?: EIO) : 0;

	if ((err = kvc_wal_sync_ended(&f->a->sync, err))) {
		errno = -err; /* for sqlite3_system_errno() */
		return rc ?: err == -ENOMEM ? SQLITE_IOERR_NOMEM : SQLITE_IOERR_FSYNC;
	}
	header_synced(f->a, upto);
	return SQLITE_OK;
}

/* Syncs the database. If that fails, none of the log counts as copied to it. */
static int sync_database(struct file *f, int flags)
{
	int rc = f->below->pMethods->xSync(f->below, flags);

	if (rc && f->index && f->index[INDEX_VERSION] == INDEX_VERSION_IS)
		__atomic_store_n(&f->index[INDEX_COPIED], 0, __ATOMIC_SEQ_CST);
	return rc;
}

/* Syncs the header now if it is not on stable storage. */
static int sync_header(struct file *f)
{
	return kvc_wal_restart_unsynced(f->a) ? sync_log(f, SQLITE_SYNC_NORMAL) : SQLITE_OK;
}

/*
 * Before a header overwrites an old log: sets the limit up to which the log may be written before a
 * sync. If the same header is written once more, because the previous commit failed, its limit
 * stays.
 */
static void set_limit(struct file *f, const uint8_t *header)
{
	struct kvc_wal_restart *a = f->a;
	struct kvc_salts now = kvc_wal_restart_salts(a), next;
	uint64_t marked = atomic_exchange(&a->marked, 0);
	sqlite3_int64 size = -1;
	uint8_t page[4];

	memcpy(&next, header + 16, sizeof next);
	f->fresh = true;
	if (!atomic_load(&a->frames))
		f->fresh = false;
	else if (!f->below->pMethods->xFileSize(f->below, &size) && !size)
		a->limit = UINT64_MAX;
	else if (marked && !memcmp(&now, &a->salts, sizeof now) &&
		 !kvc_pread_all(a->sync.fd[0], page, sizeof page, 8))
		a->limit = KVC_WAL_HEADER + marked * (KVC_WAL_FRAME + get_be32(page));
	else if (!kvc_wal_restart_unsynced(a) || memcmp(&next, &a->next, sizeof next))
		f->fresh = false; /* SQLite syncs the header */
	if (f->fresh)
		a->next = next;
}

static int x_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
	struct file *x = of(f);
	int rc = SQLITE_OK;
	bool steady;

	if (!x->log)
		return x->below->pMethods->xWrite(x->below, p, n, at);
	if (at) {
		x->fresh = false;
		if ((uint64_t)at + (uint64_t)n > x->a->limit && (rc = sync_header(x)))
			return rc;
	}
	steady = kvc_wal_sync_begin(&x->a->sync, (uint64_t)at);
	if (!at)
		set_limit(x, p);
	rc = x->below->pMethods->xWrite(x->below, p, n, at);
	/* a failed write may leave part of a header, which SQLite takes for an empty log */
	kvc_wal_sync_end(&x->a->sync, steady, rc && at ? 0 : (uint64_t)at + (uint64_t)n);
	if (x->fresh) /* a failed write, too, may have changed the file */
		atomic_fetch_add(&x->a->began, 1);
	x->fresh &= !rc;
	return rc;
}

static int x_truncate(sqlite3_file *f, sqlite3_int64 size)
{
	struct file *x = of(f);
	int rc = x->log && x->commits && (uint64_t)size >= x->a->limit ? sync_header(x) : SQLITE_OK;

	if (rc)
		return rc;
	if (x->log)
		kvc_wal_sync_truncates(&x->a->sync);
	rc = x->below->pMethods->xTruncate(x->below, size);
	if (x->log)
		kvc_wal_sync_truncated(&x->a->sync);
	return rc;
}

static int x_sync(sqlite3_file *f, int flags)
{
	struct file *x = of(f);

	if (x->database)
		return sync_database(x, flags);
	if (!x->log)
		return x->below->pMethods->xSync(x->below, flags);
	if (!x->fresh)
		return sync_log(x, flags);
	x->fresh = false;
	x->a->ask(x->a->arg);
	return SQLITE_OK;
}

static int x_size(sqlite3_file *f, sqlite3_int64 *size)
{
	sqlite3_file *b = of(f)->below;

	return b->pMethods->xFileSize(b, size);
}

static int x_lock(sqlite3_file *f, int how)
{
	sqlite3_file *b = of(f)->below;

	return b->pMethods->xLock(b, how);
}

static int x_unlock(sqlite3_file *f, int how)
{
	sqlite3_file *b = of(f)->below;

	return b->pMethods->xUnlock(b, how);
}

static int x_reserved(sqlite3_file *f, int *out)
{
	sqlite3_file *b = of(f)->below;

	return b->pMethods->xCheckReservedLock(b, out);
}

static int x_control(sqlite3_file *f, int op, void *arg)
{
	sqlite3_file *b = of(f)->below;

	return b->pMethods->xFileControl(b, op, arg);
}

static int x_sector(sqlite3_file *f)
{
	sqlite3_file *b = of(f)->below;

	return b->pMethods->xSectorSize(b);
}

static int x_device(sqlite3_file *f)
{
	sqlite3_file *b = of(f)->below;

	return b->pMethods->xDeviceCharacteristics(b);
}

static int x_shm_map(sqlite3_file *f, int page, int size, int extend, void volatile **out)
{
	sqlite3_file *b = of(f)->below;
	int rc = b->pMethods->xShmMap(b, page, size, extend, out);

	if (!rc && !page)
		of(f)->index = *out;
	return rc;
}

static int x_shm_lock(sqlite3_file *f, int at, int n, int flags)
{
	struct kvc_wal_restart *a = of(f)->a;
	sqlite3_file *b = of(f)->below;

	if (of(f)->commits && at == READERS && n == READERS &&
	    flags == (SQLITE_SHM_LOCK | SQLITE_SHM_EXCLUSIVE) && atomic_load(&a->frames) &&
	    !atomic_load(&a->marked) && !atomic_load(&a->broken))
		return SQLITE_BUSY;
	return b->pMethods->xShmLock(b, at, n, flags);
}

static void x_shm_barrier(sqlite3_file *f)
{
	sqlite3_file *b = of(f)->below;

	b->pMethods->xShmBarrier(b);
}

static int x_shm_unmap(sqlite3_file *f, int del)
{
	sqlite3_file *b = of(f)->below;

	of(f)->index = NULL;
	return b->pMethods->xShmUnmap(b, del);
}

static int x_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out)
{
	struct kvc_wal_restart *a = v->pAppData;
	struct file *x = of(f);
	int rc;

	memset(x, 0, sizeof *x);
	x->a = a;
	x->commits = v == &a->vfs;
	x->log = flags & SQLITE_OPEN_WAL;
	x->database = flags & SQLITE_OPEN_MAIN_DB;
	x->below = (sqlite3_file *)(x + 1);
	rc = a->below->xOpen(a->below, name, x->below, flags, out);
	if (x->below->pMethods)
		x->base.pMethods = &a->methods;
	return rc;
}

void kvc_wal_restart_free(struct kvc_wal_restart *a)
{
	if (!a)
		return;
	sqlite3_vfs_unregister(&a->vfs);
	sqlite3_vfs_unregister(&a->copying);
	kvc_wal_sync_fini(&a->sync);
	kvc_close_fd(&a->mark_fd);
	free(a);
}

struct kvc_wal_restart *kvc_wal_restart_new(const char *path, void (*ask)(void *arg), void *arg)
{
	struct kvc_wal_restart *a = calloc(1, sizeof *a);

	if (!a)
		return NULL;
	a->below = sqlite3_vfs_find(NULL);
	a->ask = ask;
	a->arg = arg;
	kvc_wal_sync_init(&a->sync);
	a->mark_fd = -1;
	a->limit = UINT64_MAX;
	snprintf(a->path, sizeof a->path, "%s", path);
	snprintf(a->name, sizeof a->name, "kvcachefs-%p", (void *)a);
	snprintf(a->copying_name, sizeof a->copying_name, "%s-copying", a->name);
	a->vfs = *a->below;
	a->vfs.zName = a->name;
	a->vfs.szOsFile = (int)sizeof(struct file) + a->below->szOsFile;
	a->vfs.pAppData = a;
	a->vfs.xOpen = x_open;
	a->methods = (sqlite3_io_methods){
		.iVersion = 2, /* version 2: without memory mapping */
		.xClose = x_close,
		.xRead = x_read,
		.xWrite = x_write,
		.xTruncate = x_truncate,
		.xSync = x_sync,
		.xFileSize = x_size,
		.xLock = x_lock,
		.xUnlock = x_unlock,
		.xCheckReservedLock = x_reserved,
		.xFileControl = x_control,
		.xSectorSize = x_sector,
		.xDeviceCharacteristics = x_device,
		.xShmMap = x_shm_map,
		.xShmLock = x_shm_lock,
		.xShmBarrier = x_shm_barrier,
		.xShmUnmap = x_shm_unmap,
	};
	a->copying = a->vfs;
	a->copying.zName = a->copying_name;
	if (sqlite3_vfs_register(&a->vfs, 0) || sqlite3_vfs_register(&a->copying, 0)) {
		kvc_wal_restart_free(a);
		return NULL;
	}
	return a;
}

const char *kvc_wal_restart_vfs(const struct kvc_wal_restart *a, bool commits)
{
	return commits ? a->name : a->copying_name;
}

int kvc_wal_restart_open(struct kvc_wal_restart *a)
{
	static const uint8_t none[2 * SLOT];
	char name[1300];
	struct stat st;
	int err;

	snprintf(name, sizeof name, "%s-wal", a->path);
	if ((err = kvc_wal_sync_open(&a->sync, name)))
		return err;
	snprintf(name, sizeof name, "%s-mark", a->path);
	a->mark_fd = kvc_open_own(name, O_RDWR | O_CREAT);
	/*
	 * Allocates the whole mark file, so that a full filesystem cannot prevent the log from
	 * restarting.
	 */
	if (a->mark_fd < 0 || fstat(a->mark_fd, &st) ||
	    (st.st_size < (off_t)sizeof none &&
	     (kvc_pwrite_all(a->mark_fd, none, sizeof none, 0) || fdatasync(a->mark_fd)))) {
		kvc_warn("catalog: cannot open the mark file of its log: %s; commits may wait for "
			 "a sync",
			 strerror(errno));
		atomic_store(&a->broken, true);
		kvc_close_fd(&a->mark_fd);
		a->mark_fd = -1;
	}
	return 0;
}

void kvc_wal_restart_use(struct kvc_wal_restart *a, uint64_t frames)
{
	atomic_store(&a->frames, frames);
}
