/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: a thread with its own connection copies the log into the database.
 *
 * A PASSIVE checkpoint runs at the same time as commits and reads. It copies the frames that no
 * reader needs any more, and its fsyncs block nobody. The log restarts by itself at the first
 * commit after a checkpoint that has copied all of it. If commits follow each other closely, there
 * is always a frame that is not copied. Therefore, when the log exceeds half of its limit, the
 * committer waits for a checkpoint (kvc_checkpoint_gate): at most GATE_NS, so that a busy disk does
 * not delay a commit too long for promise 1 of kvcachefs-design(7). On a disk with slow syncs, no
 * checkpoint may end within that time. Therefore, when the log exceeds three quarters of its limit,
 * the committer waits until the checkpoint ends.
 *
 * Such a checkpoint syncs the log, copies frames, and syncs the database, one after the other. The
 * committer must wait for as little of that as possible. So the thread first copies and syncs all
 * that it can while commits go on (prepare), and then closes the gate. What is left is a sync of
 * the log and one of the database, each with the few pages of the last commits. The gate does not
 * close for a checkpoint that is under way already, so the log may exceed its limit by the commits
 * of that time; at twice its limit the committer waits in any case. After a checkpoint that could
 * not copy all of the log (because of a long read, or because the disk does not accept it) the gate
 * stays open for a while.
 *
 * This thread also syncs a log that has restarted, and writes the mark that permits the restart
 * (wal_restart.c).
 *
 * After a failed sync of the database, the kernel may have lost any page that was written to it
 * since the last good sync. So nothing of the log counts as copied any more (wal_restart.c), the
 * log does not restart, and the next checkpoint copies all of it again.
 *
 * When there are few commits, the thread truncates the log's file, with the gate closed. That takes
 * SQLite's write lock, but only briefly, because a PASSIVE checkpoint has copied all of the log.
 *
 * c->checkpoint's own lock guards its fields. It is a leaf lock.
 */
#include "catalog_priv.h"

#include "log.h"

#include <errno.h>
#include <string.h>

#define GATE_NS 25000000ull
#define AGAIN_NS 250000000ull /* how long the gate stays open after a failed checkpoint */
#define FEW 64u               /* frames that are not worth a checkpoint before the gate closes */
#define LOOK_NS 1000000000ull
#define TIDY_NS 5000000000ull   /* all of the log is copied at least this often */
#define QUIET 16                /* maximum number of commits since the last pass to count as idle */
#define KEEP_BYTES (256u << 10) /* a log of this size is not truncated */
/*
 * Frames of a mark (wal_restart.c): enough for the commits during a sync of a busy disk; fewer if
 * the log's limit is small.
 */
#define MARK_FRAMES 1024u

struct kvc_checkpoint {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake, open;
	struct kvc_conn conn;
	bool started, stop, asked;
	bool gate;              /* the committer waits, but not longer than gate_until_ns */
	uint64_t gate_until_ns; /* 0: no limit */
	bool inside;            /* the committer passed the gate and has not committed yet */
	uint64_t again_ns;      /* from then on the gate may close again */
	uint64_t retry_ns;      /* from then on a checkpoint is tried again after a failure */
	bool failing;           /* the last checkpoint failed, and that was logged */
	uint64_t rounds;        /* number of checkpoints for which the gate was closed */
	_Atomic bool clean;     /* all of the log is copied: the next commit restarts it */
	_Atomic uint64_t seq;   /* number of commits that the hook has seen */
	uint64_t bound;         /* limit of the log in bytes */
	_Atomic uint64_t done;  /* number of frames that the last checkpoint had copied */
	uint64_t step;          /* number of new frames that wakes the thread */
};

static uint64_t bytes_of(uint64_t frames)
{
	return frames * (4096 + 24);
}

/* SQLite's hook after each commit, called by the committer. The log has `frames` frames. */
static int committed(void *arg, sqlite3 *db, const char *name, int frames)
{
	struct kvc_catalog *c = arg;
	struct kvc_checkpoint *p = c->checkpoint;
	uint64_t done;

	(void)db;
	(void)name;
	atomic_store(&c->log_pages, (uint64_t)frames);
	if (p) {
		atomic_fetch_add(&p->seq, 1);
		atomic_store(&p->clean, false);
	}
	done = p ? atomic_load(&p->done) : 0;
	if (done > (uint64_t)frames)
		done = 0; /* the log has restarted */
	if (p && (uint64_t)frames - done > p->step) {
		pthread_mutex_lock(&p->lock);
		p->asked = true;
		pthread_cond_signal(&p->wake);
		pthread_mutex_unlock(&p->lock);
	}
	return SQLITE_OK;
}

void kvc_checkpoint_watch(struct kvc_catalog *c)
{
	sqlite3_wal_hook(c->w.db, committed, c);
}

/* Is the log larger than this, and will the next commit not restart it? */
static bool is_above(struct kvc_catalog *c, uint64_t bytes)
{
	return bytes_of(atomic_load(&c->log_pages)) > bytes && !atomic_load(&c->checkpoint->clean);
}

void kvc_checkpoint_gate_leave(struct kvc_catalog *c)
{
	struct kvc_checkpoint *p = c->checkpoint;

	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->inside = false;
	if (p->gate)
		pthread_cond_broadcast(&p->open);
	pthread_mutex_unlock(&p->lock);
}

void kvc_checkpoint_gate(struct kvc_catalog *c)
{
	struct kvc_checkpoint *p = c->checkpoint;
	uint64_t first;

	if (!p)
		return;
	kvc_checkpoint_gate_leave(c); /* if the last commit failed before it began to write */
	pthread_mutex_lock(&p->lock);
	first = p->rounds;
	while (!p->stop) {
		bool full = !p->gate && is_above(c, p->bound / 4 * 3) &&
			    kvc_mono_ns() >= p->again_ns;
		struct timespec t = kvc_timespec(p->gate_until_ns);

		if (full) {
			p->asked = true;
			pthread_cond_signal(&p->wake);
		}
		if (!p->gate && !(full && p->rounds == first && is_above(c, p->bound * 2)))
			break;
		if (!p->gate || !p->gate_until_ns)
			pthread_cond_wait(&p->open, &p->lock);
		else if (pthread_cond_timedwait(&p->open, &p->lock, &t))
			break;
	}
	p->inside = true;
	pthread_mutex_unlock(&p->lock);
}

/* A checkpoint, or a sync of the database, has ended: err is 0 or a negative errno. */
static void note_result(struct kvc_checkpoint *p, int err)
{
	if (err && !p->failing)
		kvc_error("catalog: cannot copy its log into the database: %s; the log grows until "
			  "that succeeds",
			  strerror(-err));
	else if (!err && p->failing)
		kvc_info("catalog: its log is copied into the database again");
	p->failing = err;
	if (!err)
		return;
	p->retry_ns = kvc_mono_ns() + AGAIN_NS;
	pthread_mutex_lock(&p->lock);
	atomic_store(&p->clean, false);
	atomic_store(&p->done, 0); /* all of it is copied again */
	pthread_mutex_unlock(&p->lock);
}

/*
 * Copies the log into the database. The caller has released the readers' snapshots. Returns true if
 * all of the log is in the database now. *copied is set to the number of frames that are there, or
 * to 0 after a failure.
 */
static bool copy_released(struct kvc_catalog *c, int mode, uint64_t *copied)
{
	struct kvc_checkpoint *p = c->checkpoint;
	int log = 0, done = 0, rc;
	uint64_t seq = atomic_load(&p->seq);
	bool clean;

	*copied = 0;
	rc = sqlite3_wal_checkpoint_v2(p->conn.db, NULL, mode, &log, &done);
	pthread_mutex_lock(&p->lock);
	/*
	 * If a commit ends between the comparison and the store, `clean` is wrong until the next
	 * commit: the log does not restart, and the gate is closed again later.
	 */
	clean = !rc && log >= 0 && log == done && seq == atomic_load(&p->seq);
	atomic_store(&p->clean, clean);
	if (done >= 0)
		atomic_store(&p->done, *copied = (uint64_t)done);
	pthread_cond_broadcast(&p->open);
	pthread_mutex_unlock(&p->lock);
	if (!rc || (rc & 0xff) != SQLITE_BUSY) /* busy: it was not tried */
		note_result(p, rc ? kvc_sql_errno(p->conn.db, rc) : 0);
	return clean;
}

/* The same while commits go on. Returns the number of frames that are in the database, or 0. */
static uint64_t copy_beside_commits(struct kvc_catalog *c)
{
	uint64_t copied;

	kvc_readers_release(c, true);
	copy_released(c, SQLITE_CHECKPOINT_PASSIVE, &copied);
	kvc_readers_release(c, false);
	return copied;
}

static uint64_t not_copied(struct kvc_catalog *c)
{
	uint64_t frames = atomic_load(&c->log_pages), done = atomic_load(&c->checkpoint->done);

	return frames - (done > frames ? 0 : done);
}

/* Syncs the database, through the checkpoint's own connection. Returns false if that failed. */
static bool sync_copied(struct kvc_checkpoint *p)
{
	sqlite3_file *f = NULL;
	bool synced;

	errno = 0;
	synced = !sqlite3_file_control(p->conn.db, "main", SQLITE_FCNTL_FILE_POINTER, &f) && f &&
		 f->pMethods && !f->pMethods->xSync(f, SQLITE_SYNC_NORMAL);
	if (!synced)
		note_result(p, -(errno ?: EIO));
	return synced;
}

void kvc_checkpoint_ask(void *catalog)
{
	struct kvc_checkpoint *p = ((struct kvc_catalog *)catalog)->checkpoint;

	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->asked = true;
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
}

/*
 * Copies and syncs, while commits go on, so that the checkpoint with the gate closed has little to
 * do. It also writes the mark without which the log does not restart. The mark covers about half of
 * the log, so that the commits after the restart do not wait for a sync of the log's header, and it
 * is never longer than the log's limit: a commit that makes the log larger than its mark syncs the
 * header first. Returns false if the database could not be synced; then the next pass copies all of
 * the log again.
 */
static bool prepare(struct kvc_catalog *c)
{
	struct kvc_salts salts = kvc_wal_restart_salts(c->restart);
	uint64_t copied = copy_beside_commits(c);

	if (!sync_copied(c->checkpoint))
		return false;
	if (copied)
		kvc_wal_restart_copied(c->restart, &salts,
				       kvc_min(copied, c->checkpoint->bound / bytes_of(1)));
	if (not_copied(c) > FEW)
		copy_beside_commits(c);
	return true;
}

/* Opens the gate. If `failed` is set, it then stays open for a while. */
static void open_gate(struct kvc_checkpoint *p, bool failed)
{
	pthread_mutex_lock(&p->lock);
	p->gate = false;
	p->rounds++;
	if (failed)
		p->again_ns = kvc_mono_ns() + AGAIN_NS;
	pthread_cond_broadcast(&p->open);
	pthread_mutex_unlock(&p->lock);
}

/*
 * A checkpoint with the gate closed, for at most GATE_NS unless the log is almost full. If all of
 * the log is copied, and `truncate` is set or the log has exceeded its limit, the log is truncated.
 * SQLite would truncate it in the commit that restarts it (PRAGMA journal_size_limit), but that
 * needs a sync of the new header first (wal_restart.c).
 */
static void copy_gated(struct kvc_catalog *c, bool truncate)
{
	struct kvc_checkpoint *p = c->checkpoint;
	struct timespec t;
	uint64_t limit_ns, copied;
	bool all;

	if (!prepare(c)) {
		open_gate(p, true);
		return;
	}
	limit_ns = is_above(c, p->bound / 4 * 3) ? 0 : GATE_NS;
	kvc_readers_release(c, true); /* before the gate, because it waits for reads */
	pthread_mutex_lock(&p->lock);
	p->gate = true;
	p->gate_until_ns = limit_ns ? kvc_mono_ns() + limit_ns : 0;
	t = kvc_timespec(kvc_mono_ns() + LOOK_NS);
	while (p->inside && !p->stop && !pthread_cond_timedwait(&p->open, &p->lock, &t))
		;
	pthread_mutex_unlock(&p->lock);
	all = copy_released(c, SQLITE_CHECKPOINT_PASSIVE, &copied);
	if (all && (truncate || kvc_wal_restart_bytes(c->restart) > p->bound))
		copy_released(c, SQLITE_CHECKPOINT_TRUNCATE, &copied);
	open_gate(p, !all && !limit_ns);
	kvc_readers_release(c, false);
}

/* One pass. `tidy`: it is time to copy all of the log. */
static void checkpoint_pass(struct kvc_catalog *c, bool tidy, bool quiet)
{
	struct kvc_checkpoint *p = c->checkpoint;

	if (is_above(c, p->bound / 2) && kvc_mono_ns() >= p->again_ns)
		copy_gated(c, false);
	else if ((not_copied(c) > p->step && kvc_mono_ns() >= p->retry_ns) ||
		 (tidy && not_copied(c)))
		copy_beside_commits(c);
	if (tidy && quiet && kvc_wal_restart_bytes(c->restart) > KEEP_BYTES)
		copy_gated(c, true);
}

static void *checkpointer(void *arg)
{
	struct kvc_catalog *c = arg;
	struct kvc_checkpoint *p = c->checkpoint;
	uint64_t tidy_ns = kvc_mono_ns() + TIDY_NS, look_ns = kvc_mono_ns(),
		 commits = atomic_load(&c->commits);
	bool quiet = false;

	pthread_mutex_lock(&p->lock);
	while (!p->stop) {
		struct timespec t = kvc_timespec(kvc_mono_ns() + LOOK_NS);

		if (!p->asked)
			pthread_cond_timedwait(&p->wake, &p->lock, &t);
		if (p->stop)
			break;
		p->asked = false;
		pthread_mutex_unlock(&p->lock);
		if (kvc_wal_restart_unsynced(c->restart))
			/* an error is logged, and stays until the log is written again */
			kvc_wal_restart_sync(c->restart);
		if (kvc_mono_ns() - look_ns >= LOOK_NS) {
			uint64_t n = atomic_load(&c->commits);

			quiet = n - commits < QUIET;
			commits = n;
			look_ns = kvc_mono_ns();
		}
		bool tidy = kvc_mono_ns() > tidy_ns;

		checkpoint_pass(c, tidy, quiet);
		if (tidy)
			tidy_ns = kvc_mono_ns() + TIDY_NS;
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

int kvc_checkpoint_start(struct kvc_catalog *c, uint64_t log_bytes)
{
	struct kvc_checkpoint *p = calloc(1, sizeof *p);
	pthread_condattr_t attr;
	int rc, err;

	if (!p)
		return -ENOMEM;
	pthread_mutex_init(&p->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->wake, &attr);
	pthread_cond_init(&p->open, &attr);
	pthread_condattr_destroy(&attr);
	p->bound = log_bytes;
	p->step = log_bytes / 4 / bytes_of(1);
	rc = kvc_conn_open(c, &p->conn, KVC_CONN_COPIES);
	err = rc ? kvc_sql_errno(p->conn.db, rc) : 0;
	if (!err)
		sqlite3_busy_timeout(p->conn.db,
				     /*
				      * no busy timeout: the call returns rather than wait while it
				      * holds the write lock
				      */
				     0);
	pthread_mutex_lock(&c->writer);
	c->checkpoint = p;
	if (!err) {
		kvc_checkpoint_watch(c);
		kvc_wal_restart_use(c->restart, kvc_min(MARK_FRAMES, p->step));
	}
	pthread_mutex_unlock(&c->writer);
	if (!err)
		err = -pthread_create(&p->thread, NULL, checkpointer, c);
	p->started = !err;
	if (!err)
		pthread_setname_np(p->thread, "kv-checkpoint"); /* the tests look for it */
	return err;
}

void kvc_checkpoint_stop(struct kvc_catalog *c)
{
	struct kvc_checkpoint *p = c->checkpoint;

	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->wake);
	pthread_cond_broadcast(&p->open);
	pthread_mutex_unlock(&p->lock);
	if (p->started)
		pthread_join(p->thread, NULL);
	pthread_mutex_lock(&c->writer);
	kvc_wal_restart_use(c->restart, 0);
	c->checkpoint = NULL; /* the hook checks the pointer */
	pthread_mutex_unlock(&c->writer);
	kvc_conn_close(&p->conn);
	pthread_cond_destroy(&p->wake);
	pthread_cond_destroy(&p->open);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

void kvc_catalog_checkpoint(struct kvc_catalog *c)
{
	pthread_mutex_lock(&c->writer);
	kvc_readers_release(c, true);
	if (c->w.db)
		sqlite3_wal_checkpoint_v2(c->w.db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
	kvc_readers_release(c, false);
	pthread_mutex_unlock(&c->writer);
}
