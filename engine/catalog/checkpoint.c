/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: a thread with its own connection copies the log into the database.
 *
 * A PASSIVE checkpoint runs beside commits and reads. It copies the frames that no reader needs any
 * more, and its fsyncs block nobody. The log restarts by itself at the first commit after a
 * checkpoint that has copied all of it. If commits follow each other closely, there is always a
 * frame that is not copied. Therefore, when the log exceeds half of its limit, the committer waits
 * for one such checkpoint (kvc_checkpoint_gate), but at most GATE_NS, so that a busy disk does not
 * delay a commit too long for promise 1 of kvcachefs-design(7). If the log reaches its limit
 * nevertheless, the committer waits until all of the log is copied, or until that has failed
 * (because of a long read, or because the disk does not accept it).
 *
 * This thread also syncs a log that has restarted, and writes the mark that permits the restart
 * (wal_restart.c).
 *
 * When there are few commits, the thread truncates the log's file. That takes SQLite's write lock,
 * but only briefly, because a PASSIVE checkpoint has run before.
 *
 * c->checkpoint's own lock guards its fields. It is a leaf lock.
 */
#include "catalog_priv.h"

#include <stdio.h>
#include <string.h>

#define GATE_NS 25000000ull
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
	bool gate; /* the committer waits until gate_until_ns */
	uint64_t gate_until_ns;
	uint64_t rounds;       /* number of checkpoints so far */
	_Atomic bool clean;    /* all of the log is copied: the next commit restarts it */
	_Atomic uint64_t seq;  /* number of commits that the hook has seen */
	uint64_t bound, half;  /* limits of the log in bytes */
	_Atomic uint64_t done; /* number of frames that the last checkpoint had copied */
	uint64_t step;         /* number of new frames that wakes the thread */
};

static uint64_t bytes_of(uint64_t frames)
{
	return frames * (4096 + 24);
}

/* SQLite's hook after each commit, called by the committer: the log has so many frames. */
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
	char sql[64];

	sqlite3_wal_hook(c->w.db, committed, c);
	if (!c->checkpoint)
		return;
	snprintf(sql, sizeof sql, "PRAGMA journal_size_limit=%llu",
		 (unsigned long long)c->checkpoint->bound);
	sqlite3_exec(c->w.db, sql, NULL, NULL, NULL);
}

void kvc_checkpoint_gate(struct kvc_catalog *c)
{
	struct kvc_checkpoint *p = c->checkpoint;
	uint64_t first;
	struct timespec t;

	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	first = p->rounds;
	while (!p->stop) {
		if (bytes_of(atomic_load(&c->log_pages)) > p->bound && !atomic_load(&p->clean) &&
		    p->rounds < first + 3) {
			p->asked = true;
			pthread_cond_signal(&p->wake);
			pthread_cond_wait(&p->open, &p->lock);
			continue;
		}
		if (!p->gate)
			break;
		t = kvc_timespec(p->gate_until_ns);
		if (pthread_cond_timedwait(&p->open, &p->lock, &t))
			break;
	}
	pthread_mutex_unlock(&p->lock);
}

/* Returns true if all of the log is in the database now. */
static bool checkpoint(struct kvc_catalog *c, int mode)
{
	struct kvc_checkpoint *p = c->checkpoint;
	int log = 0, done = 0, rc;
	uint64_t seq = atomic_load(&p->seq);
	struct kvc_salts salts = kvc_wal_restart_salts(c->restart);
	bool clean;

	kvc_readers_release(c, true);
	rc = sqlite3_wal_checkpoint_v2(p->conn.db, NULL, mode, &log, &done);
	kvc_readers_release(c, false);
	if (done > 0)
		kvc_wal_restart_copied(c->restart, &salts, (uint64_t)done);
	pthread_mutex_lock(&p->lock);
	/* a commit between this comparison and the store makes one gate end in vain */
	clean = !rc && log >= 0 && log == done && seq == atomic_load(&p->seq);
	atomic_store(&p->clean, clean);
	if (done >= 0)
		atomic_store(&p->done, (uint64_t)done);
	p->rounds++;
	pthread_cond_broadcast(&p->open);
	pthread_mutex_unlock(&p->lock);
	return clean;
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

static void gated(struct kvc_catalog *c)
{
	struct kvc_checkpoint *p = c->checkpoint;

	pthread_mutex_lock(&p->lock);
	p->gate = true;
	p->gate_until_ns = kvc_mono_ns() + GATE_NS;
	pthread_mutex_unlock(&p->lock);
	checkpoint(c, SQLITE_CHECKPOINT_PASSIVE);
	pthread_mutex_lock(&p->lock);
	p->gate = false;
	pthread_cond_broadcast(&p->open);
	pthread_mutex_unlock(&p->lock);
}

/* One pass. `tidy`: it is time to copy all of the log. */
static void checkpoint_pass(struct kvc_catalog *c, bool tidy, bool quiet)
{
	struct kvc_checkpoint *p = c->checkpoint;
	uint64_t frames = atomic_load(&c->log_pages), done = atomic_load(&p->done);

	done = done > frames ? 0 : done;
	if (frames - done > p->step || (tidy && frames > done))
		checkpoint(c, SQLITE_CHECKPOINT_PASSIVE);
	if (bytes_of(atomic_load(&c->log_pages)) > p->half && !atomic_load(&p->clean))
		gated(c);
	if (tidy && quiet && kvc_wal_restart_bytes(c->restart) > KEEP_BYTES &&
	    checkpoint(c, SQLITE_CHECKPOINT_PASSIVE))
		checkpoint(c, SQLITE_CHECKPOINT_TRUNCATE);
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
			/* the next checkpoint reports errors */
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
	p->half = log_bytes / 2;
	p->step = log_bytes / 4 / bytes_of(1);
	rc = kvc_conn_open(c, &p->conn, false);
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
