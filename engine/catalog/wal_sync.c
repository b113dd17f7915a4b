/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Syncs of the catalog's log.
 *
 * If the kernel cannot write pages of a file, it marks them as clean and reports the error to one
 * sync of each open description. A second sync writes nothing and succeeds, although the pages are
 * not on the medium. A caller that trusts it would acknowledge bytes that a power failure loses.
 *
 * Therefore the number of failed syncs is kept, and no sync succeeds until the log has been made
 * good: all of its frames are read from the page cache, compared with their checksums, written
 * again with the same bytes, and synced. This is tried at once, so that a caller gets an error only
 * if the second write or sync fails as well. After such a failure the next attempt waits, longer
 * each time, and callers get the error at once. Otherwise they would write a large log again and
 * again to a disk that fails. Frames that the kernel has dropped from its cache cannot be written
 * again; then all syncs fail until the next mount, whose recovery decides which frames exist.
 *
 * Two threads that sync through one description could not tell whose pages an error concerns: the
 * first would get the error, and the second, a moment later, success. So each sync has a
 * description of its own. SQLite's connections have theirs.
 *
 * The frames are written again while the committer appends further ones. Only writes that replace
 * bytes of the log, and its truncation, wait (`steady`): the repair would undo them.
 */
#include "wal_sync.h"

#include "log.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE_MIN 512u
#define PAGE_MAX 65536u
#define PAUSE_NS 10000000ull /* after a failed repair; doubled after each further one */
#define PAUSE_MAX_NS 1000000000ull

/* ---- frames ---- */

static uint32_t be32_at(const uint8_t *p)
{
	uint32_t x;

	memcpy(&x, p, sizeof x);
	return be32toh(x);
}

/* The checksum chain of an SQLite log. */
struct chain {
	uint32_t s0, s1;
	bool big;
};

static void chain_add(struct chain *c, const uint8_t *p, size_t len)
{
	for (size_t i = 0; i < len; i += 8) {
		uint32_t x[2];

		memcpy(x, p + i, 8);
		for (int k = 0; k < 2; k++)
			x[k] = c->big ? be32toh(x[k]) : le32toh(x[k]);
		c->s0 += x[0] + c->s1;
		c->s1 += x[1] + c->s0;
	}
}

static bool chain_is(const struct chain *c, const uint8_t *p)
{
	return be32_at(p) == c->s0 && be32_at(p + 4) == c->s1;
}

int kvc_wal_sync_frames(int fd, uint64_t most,
			int (*each)(void *arg, const uint8_t *p, size_t len, uint64_t at),
			void *arg, uint64_t *n)
{
	uint8_t header[KVC_WAL_HEADER];
	int err = kvc_pread_all(fd, header, sizeof header, 0);
	struct chain c = { .big = header[3] & 1 };
	KVC_MEM uint8_t *f = NULL;
	size_t page, len;
	uint64_t i;

	if (err)
		return err;
	page = be32_at(header + 8);
	len = KVC_WAL_FRAME + page;
	chain_add(&c, header, KVC_WAL_HEADER - 8);
	if (page < PAGE_MIN || page > PAGE_MAX || page & (page - 1) || !chain_is(&c, header + 24))
		return -ENODATA; /* SQLite, too, takes this for an empty log */
	if (!(f = malloc(len)))
		return -ENOMEM;
	err = each(arg, header, sizeof header, 0);
	for (i = 0; i < most && !err; i++) {
		uint64_t at = KVC_WAL_HEADER + i * len;

		if ((err = kvc_pread_all(fd, f, len, (off_t)at)) || memcmp(f + 8, header + 16, 8))
			break;
		chain_add(&c, f, 8);
		chain_add(&c, f + KVC_WAL_FRAME, page);
		if (!chain_is(&c, f + 16))
			break;
		err = each(arg, f, len, at);
	}
	*n = i;
	return err == -ENODATA ? 0 : err; /* -ENODATA: the end of the file */
}

/* ---- writing the log again ---- */

struct again {
	int fd;
	size_t page;
};

static int write_again(void *arg, const uint8_t *p, size_t len, uint64_t at)
{
	struct again *a = arg;

	if (!at)
		a->page = be32_at(p + 8);
	return kvc_pwrite_all(a->fd, p, len, (off_t)at);
}

/* Writes again the header and all frames that the committer has written. Under s->steady. */
static int rewrite(struct kvc_wal_sync *s, int fd)
{
	uint64_t written = atomic_load(&s->written), most = UINT64_MAX, n = 0;
	struct again a = { .fd = fd };
	uint8_t page[4];
	int err = 0;

	if (written && kvc_pread_all(fd, page, sizeof page, 8))
		return -EIO;
	if (written)
		most = (written - KVC_WAL_HEADER) / (KVC_WAL_FRAME + (uint64_t)be32_at(page));
	err = kvc_wal_sync_frames(fd, most, write_again, &a, &n);
	if (err == -ENODATA) /* an empty log, if nothing was written to it */
		return written && most ? -EIO : 0;
	if (!err && written && n < most)
		return -EIO; /* the kernel has dropped frames that it could not write */
	return err;
}

static void log_failure(struct kvc_wal_sync *s, int err)
{
	if (!atomic_exchange(&s->logged, true))
		kvc_error("catalog: cannot put its log on stable storage: %s; no fsync succeeds, "
			  "and no space is freed in the tiers, until it can be written again",
			  strerror(-err));
}

/* Returns the error of the last repair if the next one must wait, or 0. */
static int repair_waits(const struct kvc_wal_sync *s)
{
	if (atomic_load(&s->failed) == atomic_load(&s->mended) ||
	    kvc_mono_ns() >= atomic_load(&s->again_ns))
		return 0;
	return atomic_load(&s->why);
}

/* A repair has ended with err. Under s->steady. */
static void pace_repairs(struct kvc_wal_sync *s, int err)
{
	uint64_t pause = err ? kvc_min(kvc_max(2 * s->pause_ns, PAUSE_NS), PAUSE_MAX_NS) : 0;

	s->pause_ns = pause;
	atomic_store(&s->why, err);
	atomic_store(&s->again_ns, err ? kvc_mono_ns() + pause : 0);
}

/* Makes the log good after a failed sync. Returns 0 or -errno. */
static int make_good(struct kvc_wal_sync *s, int fd)
{
	uint64_t failed;
	int err = 0;

	pthread_mutex_lock(&s->steady);
	/* syncs that fail from here on are not made good by what follows */
	failed = atomic_load(&s->failed);
	err = repair_waits(s); /* also if another thread has just failed */
	if (!err && failed != atomic_load(&s->mended)) {
		/* the first sync may report an earlier error, which fd has not reported yet */
		for (int i = 0; i < 2 && (!i || err); i++)
			err = rewrite(s, fd) ?: fdatasync(fd) ? -errno : 0;
		pace_repairs(s, err);
		if (!err) {
			atomic_store(&s->mended, failed);
			if (atomic_exchange(&s->logged, false))
				kvc_info("catalog: its log was written again and is on stable "
					 "storage");
		} else {
			log_failure(s, err);
		}
	}
	pthread_mutex_unlock(&s->steady);
	return err;
}

static unsigned fd_get(struct kvc_wal_sync *s)
{
	unsigned i;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		for (i = 0; i < KVC_WAL_SYNC_FDS && s->busy[i]; i++)
			;
		if (i < KVC_WAL_SYNC_FDS)
			break;
		pthread_cond_wait(&s->idle, &s->lock);
	}
	s->busy[i] = true;
	pthread_mutex_unlock(&s->lock);
	return i;
}

static void fd_put(struct kvc_wal_sync *s, unsigned i)
{
	pthread_mutex_lock(&s->lock);
	s->busy[i] = false;
	pthread_cond_signal(&s->idle);
	pthread_mutex_unlock(&s->lock);
}

/* Returns the result for the caller of a sync that ended with err. */
static int judge(struct kvc_wal_sync *s, int fd, int err)
{
	if (err && atomic_fetch_add(&s->failed, 1) == atomic_load(&s->mended))
		kvc_warn("catalog: a sync of its log failed: %s; all of the log is written again",
			 strerror(-err));
	return atomic_load(&s->failed) == atomic_load(&s->mended) ? 0 : make_good(s, fd);
}

int kvc_wal_sync_run(struct kvc_wal_sync *s)
{
	int err = repair_waits(s);
	unsigned i;

	if (err)
		return err;
	i = fd_get(s);
	err = judge(s, s->fd[i], fdatasync(s->fd[i]) ? -errno : 0);
	fd_put(s, i);
	return err;
}

int kvc_wal_sync_ended(struct kvc_wal_sync *s, int err)
{
	unsigned i;

	if (!err && atomic_load(&s->failed) == atomic_load(&s->mended))
		return 0;
	if (s->fd[0] < 0) { /* while the catalog is being opened */
		atomic_fetch_add(&s->failed, err != 0);
		return err ?: -EIO;
	}
	i = fd_get(s);
	err = judge(s, s->fd[i], err);
	fd_put(s, i);
	return err;
}

bool kvc_wal_sync_begin(struct kvc_wal_sync *s, uint64_t at)
{
	bool appends = at && at == atomic_load(&s->written);

	if (!appends)
		pthread_mutex_lock(&s->steady);
	return !appends;
}

void kvc_wal_sync_end(struct kvc_wal_sync *s, bool begun, uint64_t end)
{
	if (end)
		atomic_store(&s->written, end);
	if (begun)
		pthread_mutex_unlock(&s->steady);
}

void kvc_wal_sync_truncates(struct kvc_wal_sync *s)
{
	pthread_mutex_lock(&s->steady);
}

void kvc_wal_sync_truncated(struct kvc_wal_sync *s)
{
	atomic_store(&s->written, 0);
	pthread_mutex_unlock(&s->steady);
}

void kvc_wal_sync_init(struct kvc_wal_sync *s)
{
	memset(s, 0, sizeof *s);
	for (unsigned i = 0; i < KVC_WAL_SYNC_FDS; i++)
		s->fd[i] = -1;
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->steady, NULL);
	pthread_cond_init(&s->idle, NULL);
}

void kvc_wal_sync_fini(struct kvc_wal_sync *s)
{
	for (unsigned i = 0; i < KVC_WAL_SYNC_FDS; i++)
		kvc_close_fd(&s->fd[i]);
	pthread_mutex_destroy(&s->lock);
	pthread_mutex_destroy(&s->steady);
	pthread_cond_destroy(&s->idle);
}

int kvc_wal_sync_open(struct kvc_wal_sync *s, const char *log)
{
	for (unsigned i = 0; i < KVC_WAL_SYNC_FDS; i++)
		if ((s->fd[i] = kvc_open_own(log, O_RDWR)) < 0)
			return -errno;
	atomic_fetch_add(&s->failed, 1);
	return 0;
}
