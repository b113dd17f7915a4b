/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log's way into the database, in a thread with a connection of its own.
 *
 * A PASSIVE checkpoint goes on beside commits and reads: it copies what no reader needs any more
 * from the log, and its fsyncs keep nobody. The log begins anew by itself at the first commit after
 * one that has copied all of it; where commits follow each other closely there is always one more.
 * So when the log is past half of its bound the committer is asked to stay away for the length of
 * one such checkpoint (kvc_checkpoint_gate): for GATE_NS at most, so that a disk that is busy does
 * not stretch promise 1. Where the log has reached its bound all the same, he waits until all of it
 * is copied, or that was tried in vain (somebody reads for long, or the disk does not take it).
 *
 * A log that has begun anew is synced here, and the mark that lets it is written here
 * (wal_restart.c).
 *
 * When little is going on the log's file is cut off. That takes SQLite's write lock, and only a
 * moment, because a PASSIVE one went before.
 *
 * c->checkpoint's own lock guards its fields; it is a leaf.
 */
#include "catalog_priv.h"

#include <stdio.h>
#include <string.h>

#define GATE_NS 25000000ull
#define LOOK_NS 1000000000ull
#define TIDY_NS 5000000000ull   /* what is in the log goes over this often, however little it is */
#define QUIET 16                /* commits since the last look: little is going on */
#define KEEP_BYTES (256u << 10) /* a log of this size is not cut off */
/*
 * Of a mark (wal_restart.c): what is committed while a busy disk syncs; where the log is small,
 * less.
 */
#define MARK_FRAMES 1024u

struct kvc_checkpoint {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake, open;
	struct kvc_conn conn;
	bool started, stop, asked;
	bool gate; /* the committer stays away, until: */
	uint64_t gate_until_ns;
	uint64_t rounds;       /* checkpoints so far */
	_Atomic bool clean;    /* all of the log is copied: the next commit begins it anew */
	_Atomic uint64_t seq;  /* commits that the hook has seen */
	uint64_t bound, half;  /* bytes */
	_Atomic uint64_t done; /* frames that the last checkpoint had copied */
	uint64_t step;         /* frames */
};

static uint64_t bytes_of(uint64_t frames)
{
	return frames * (4096 + 24);
}

/* After every commit, from the committer: so many frames are in the log. */
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
		done = 0; /* it began anew */
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

/* Returns whether all of the log is in the database now. */
static bool checkpoint(struct kvc_catalog *c, int mode)
{
	struct kvc_checkpoint *p = c->checkpoint;
	int log = 0, done = 0, rc;
	uint64_t seq = atomic_load(&p->seq);
	struct kvc_salts salts = kvc_wal_restart_salts(c->anew);
	bool clean;

	kvc_readers_unheld(c, true);
	rc = sqlite3_wal_checkpoint_v2(p->conn.db, NULL, mode, &log, &done);
	kvc_readers_unheld(c, false);
	if (done > 0)
		kvc_wal_restart_copied(c->anew, &salts, (uint64_t)done);
	pthread_mutex_lock(&p->lock);
	/* A commit that slips in behind the comparison makes one gate pass in vain. */
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

/* One look at the log. `tidy`: it is time that all goes over. */
static void look(struct kvc_catalog *c, bool tidy, bool quiet)
{
	struct kvc_checkpoint *p = c->checkpoint;
	uint64_t frames = atomic_load(&c->log_pages), done = atomic_load(&p->done);

	done = done > frames ? 0 : done;
	if (frames - done > p->step || (tidy && frames > done))
		checkpoint(c, SQLITE_CHECKPOINT_PASSIVE);
	if (bytes_of(atomic_load(&c->log_pages)) > p->half && !atomic_load(&p->clean))
		gated(c);
	if (tidy && quiet && kvc_wal_restart_bytes(c->anew) > KEEP_BYTES &&
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
		if (kvc_wal_restart_unsynced(c->anew))
			/* what goes wrong the next checkpoint tells */
			kvc_wal_restart_sync(c->anew);
		if (kvc_mono_ns() - look_ns >= LOOK_NS) {
			uint64_t n = atomic_load(&c->commits);

			quiet = n - commits < QUIET;
			commits = n;
			look_ns = kvc_mono_ns();
		}
		bool tidy = kvc_mono_ns() > tidy_ns;

		look(c, tidy, quiet);
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
		sqlite3_busy_timeout(
			p->conn.db,
			0); /* it comes back rather than wait with the write lock held */
	pthread_mutex_lock(&c->writer);
	c->checkpoint = p;
	if (!err) {
		kvc_checkpoint_watch(c);
		kvc_wal_restart_use(c->anew, kvc_min(MARK_FRAMES, p->step));
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
	kvc_wal_restart_use(c->anew, 0);
	c->checkpoint = NULL; /* the hook looks */
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
	kvc_readers_unheld(c, true);
	if (c->w.db)
		sqlite3_wal_checkpoint_v2(c->w.db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
	kvc_readers_unheld(c, false);
	pthread_mutex_unlock(&c->writer);
}
