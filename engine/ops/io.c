/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that change the bytes or the size of a file: plain writes, truncate and fallocate. Each
 * of them reserves bytes in the pool before it allocates pages, and waits for the bytes if
 * necessary. setattr and fsync are here, too.
 */
#include "account.h"
#include "cache.h"
#include "ops.h"
#include "commit_sync.h"
#include "committer.h"
#include "file.h"
#include "user.h"
#include "load.h"
#include "membership.h"
#include "model.h"
#include "throttle.h"
#include "spill.h"
#include "tier_queue.h"

#include <fcntl.h>
#include <string.h>

/* used instead of the usual size of a model's objects if that is unknown or smaller */
#define KVC_USUAL_LEAST (1ull << 20)
#define AHEAD (8ull << 20) /* the most that plain writes allocate in advance */

static struct kvc_node *open_node_locked(struct kvc *k, uint64_t ino)
{
	struct kvc_node *n = kvc_node_find_locked(k, ino);

	return n && S_ISREG(n->row.mode) && n->state != KVC_GONE ? n : NULL;
}

/*
 * A large allocation releases the locks. This reserves its bytes in the quota of the model for w,
 * as if the call had waited for them, so that no other call gets them.
 */
static void reserve_quota_locked(struct kvc *k, const struct kvc_node *n, uint64_t bytes,
				 struct kvc_wait *w)
{
	if (bytes > KVC_PAGES_HELD)
		kvc_quota_reserve_locked(k, n->model, bytes, w);
}

/* Allocates the pages of [off, off + len). */
static int allocate_locked(struct kvc *k, struct kvc_node *n, enum kvc_held held, int fd,
			   uint64_t off, uint64_t len, struct kvc_wait *w)
{
	uint64_t start = off / KVC_PAGE * KVC_PAGE, end = kvc_round_up(off + len, KVC_PAGE), ahead;
	int err;

	if (end <= n->segment.prepared)
		return 0;
	if (len > KVC_PAGES_QUICK && !w->deferred)
		return KVC_LONG;
	/* sequential writes: allocate more at a time while the pool has plenty of space */
	if (start <= n->segment.prepared) {
		start = n->segment.prepared;
		ahead = kvc_min(kvc_max(n->segment.prepared, end - start), AHEAD);
		if (!w->granted && end - start < ahead &&
		    k->reservations.used + ahead < k->pool.bytes / 100 * k->opt.low_pct &&
		    !kvc_quota_allows_locked(k, n->model, ahead))
			end = start + ahead;
	}
	if ((err = kvc_user_share_check_locked(k, w, NULL, end - start)) ||
	    (err = kvc_throttle_store_locked(k, end - start, w)) ||
	    (err = kvc_quota_get_locked(k, n->model, end - start, w)) ||
	    (err = kvc_reservation_get_locked(k, end - start, w)))
		return err;
	reserve_quota_locked(k, n, end - start, w);
	err = kvc_pages_locked(k, n, held, fd, FALLOC_FL_KEEP_SIZE, start, end - start, NULL);
	if (err) {
		kvc_reservation_put_locked(k, end - start);
		if (n->state == KVC_OPEN && end - start > KVC_PAGES_HELD)
			kvc_account_recount_locked(k, n); /* some of the pages were allocated */
		return err == -ENOSPC ? kvc_reservation_retry_locked(k, end - start, w) : err;
	}
	/* kvc_account_recount_locked adds the number of pages that were really allocated */
	k->reservations.used -= kvc_min(k->reservations.used, end - start);
	if (start <= n->segment.prepared)
		kvc_file_set_prepared_locked(n, end);
	kvc_account_recount_locked(k, n);
	return 0;
}

static int write_once(struct kvc *k, uint64_t ino, const void *buf, size_t len, off_t off,
		      int flags, size_t *done, struct kvc_wait *w)
{
	struct kvc_node *n;
	struct stat st;
	int fd = -1, err = 0;

	kvc_count(&k->stats, plain_writes);
	kvc_lock(k);
	n = open_node_locked(k, ino);
	if (w->err) /* its wait failed */
		err = w->err;
	else if (!n || !n->refs.opens)
		err = -EBADF;
	else if (n->state !=
		 KVC_OPEN) /* writeback of a mapping's pages after the last writer's close */
		err = kvc_file_begin_write_locked(k, n);
	if (!err)
		fd = kvc_file_node_fd_locked(k, n);
	if (!err && fd < 0)
		err = fd;
	if (!err && (flags & O_APPEND) && !fstat(fd, &st))
		off = st.st_size;
	if (!err)
		err = allocate_locked(k, n, KVC_HELD_ONE, fd, (uint64_t)off, len, w);
	if (err != KVC_WAIT)
		kvc_reservation_cancel_locked(k, w);
	if (!err) { /* stays in memory and open, even if another write ends first */
		kvc_node_write_begin_locked(n);
	} else if (err != KVC_WAIT && n) {
		kvc_file_publish_if_closed_locked(k, n); /* nothing has changed */
	}
	kvc_unlock(k);
	if (err)
		return err;
	err = kvc_pwrite_all(fd, buf, len, off);
	if (!err)
		*done = len;
	kvc_lock(k);
	kvc_node_write_end_locked(n);
	if (n->state == KVC_OPEN && !n->refs.writers)
		kvc_account_recount_locked(k, n);
	kvc_file_publish_if_closed_locked(k, n);
	kvc_node_settle_locked(k, n);
	kvc_unlock(k);
	return err;
}

int kvc_io_write(struct kvc *k, uint64_t ino, const void *buf, size_t len, off_t off, int flags,
		 size_t *done, struct kvc_wait *w)
{
	int err;

	do
		err = write_once(k, ino, buf, len, off, flags, done, w);
	while (kvc_share_retry_call(k, w, &err));
	return err;
}

/*
 * Is the file open for reading by passthrough, in a model with a quota? A writer's mapping could
 * then fill holes without a request that asks the quota, so the file must not have any.
 */
static bool must_allocate_locked(struct kvc *k, const struct kvc_node *n)
{
	return n->refs.opens && !n->plain && kvc_quota_of_locked(k, n->model);
}

/*
 * A file that grows to the usual size of its model's objects is about to be written, perhaps
 * through a mapping, and a process that touches a page that cannot be allocated is killed. So the
 * pages are allocated now. A file that grows beyond the usual size is probably an arena, in which a
 * client places many objects, and stays sparse.
 */
static int allocate_growth_both(struct kvc *k, struct kvc_node *n, int fd, uint64_t size,
				struct kvc_wait *w)
{
	uint64_t usual = kvc_model_hint_locked(k, n->model);
	struct stat st;

	if (must_allocate_locked(k, n) && !fstat(fd, &st)) {
		uint64_t from = (uint64_t)st.st_size;

		return size > from ? allocate_locked(k, n, KVC_HELD_BOTH, fd, from, size - from, w)
				   : 0;
	}
	if (!n->refs.writers || size <= n->segment.prepared ||
	    size > kvc_max(usual, KVC_USUAL_LEAST))
		return 0;
	return allocate_locked(k, n, KVC_HELD_BOTH, fd, n->segment.prepared,
			       size - n->segment.prepared, w);
}

/* Sets the size of a file, open or not. */
static int truncate_both(struct kvc *k, struct kvc_node *n, uint64_t size, struct kvc_wait *w)
{
	int fd, err;

	if (n->state == KVC_LOWER && !size) {
		if ((err = kvc_membership_join_both(k, n)) ||
		    (err = kvc_file_segment_new_locked(k, n)))
			return err;
	} else if (n->state == KVC_LOWER || n->state == KVC_LOADING) {
		err = kvc_load_start_locked(k, n, false);
		return err ? (err == -ENOENT ? -EIO : err) : kvc_node_park_locked(k, n, w);
	}
	if (!w->deferred && kvc_pages_truncate_is_long_locked(n, size))
		return KVC_LONG;
	if ((err = kvc_file_begin_write_locked(k, n)))
		return err;
	fd = kvc_file_node_fd_locked(k, n);
	err = fd < 0 ? fd : allocate_growth_both(k, n, fd, size, w);
	err = err ?: kvc_pages_truncate_locked(k, n, KVC_HELD_BOTH, fd, size);
	if (!err) {
		kvc_file_cut_prepared_locked(n, size);
		kvc_account_recount_locked(k, n);
	}
	if (err != KVC_WAIT)
		kvc_file_publish_if_closed_locked(k, n); /* unchanged, if it failed */
	return err;
}

/* Sets the new attributes, except size and ctime. */
static void set_row_locked(struct kvc *k, struct kvc_node *n, unsigned set, struct kvc_row *attr)
{
	bool open = n->state == KVC_OPEN && (set & (KVC_SET_MODE | KVC_SET_MTIME)) &&
		    kvc_file_node_fd_locked(k, n) >= 0;
	struct stat st = { 0 };
	uint64_t mtime = open && !fstat(n->segment.fd, &st) ? kvc_ns(st.st_mtim) : KVC_MARK_NS;

	if (set & KVC_SET_MODE) {
		n->row.mode = (n->row.mode & S_IFMT) | (attr->mode & 07777);
		kvc_file_set_mode_time_locked(n, mtime);
	}
	if ((set & (KVC_SET_UID | KVC_SET_GID | KVC_SET_SIZE)) && !S_ISDIR(n->row.mode))
		kvc_node_drop_setid(&n->row);
	if (set & KVC_SET_UID)
		n->row.uid = attr->uid;
	if (set & KVC_SET_GID)
		n->row.gid = attr->gid;
	if (set & KVC_SET_ATIME)
		n->row.atime_ns = attr->atime_ns;
	if (set & KVC_SET_MTIME) {
		attr->mtime_ns -= attr->mtime_ns == KVC_MARK_NS;
		n->row.mtime_ns = attr->mtime_ns;
	}
	/*
	 * If something was written, also sets the time of the segment, which later writes update.
	 */
	if ((set & KVC_SET_MTIME) && mtime != KVC_MARK_NS) {
		const struct timespec t[2] = {
			{ .tv_nsec = UTIME_OMIT },
			kvc_file_time(attr->mtime_ns),
		};

		if (!futimens(n->segment.fd, t) && n->segment.mode_ns == mtime)
			kvc_file_set_mode_time_locked(n, attr->mtime_ns);
	}
}

static int setattr_once(struct kvc *k, uint64_t ino, unsigned set, struct kvc_row *attr,
			struct kvc_wait *w)
{
	struct kvc_node *n = NULL;
	uint64_t now = kvc_now_ns();
	int err = 0;

	if ((set & KVC_SET_SIZE) && attr->size >> 62)
		return -EFBIG;
	kvc_lock_both(k);
	err = kvc_node_get_both(k, ino, &n);
	if (!err && w->err && S_ISREG(n->row.mode))
		kvc_file_publish_if_closed_locked(k, n); /* nothing has changed */
	err = err ?: w->err ?: kvc_accepts(k, false);
	if (!err && (set & KVC_SET_SIZE))
		err = S_ISREG(n->row.mode) ? truncate_both(k, n, attr->size, w) : -EISDIR;
	if (err)
		goto out;
	set_row_locked(k, n, set, attr);
	n->row.ctime_ns = set & KVC_SET_CTIME ? attr->ctime_ns : now;
	kvc_node_dirty_locked(k, n);
	kvc_node_attr_locked(k, n, attr);
out:
	if (err != KVC_WAIT)
		kvc_reservation_cancel_locked(k, w);
	if (n) /* the kernel may have forgotten the node while the locks were released */
		kvc_node_settle_locked(k, n);
	kvc_unlock_both(k);
	return err;
}

int kvc_io_setattr(struct kvc *k, uint64_t ino, unsigned set, struct kvc_row *attr,
		   struct kvc_wait *w)
{
	int err;

	do
		err = setattr_once(k, ino, set, attr, w);
	while (kvc_share_retry_call(k, w, &err));
	return err;
}

/*
 * An upper bound of the bytes between off and end that have no pages yet. Assumes that as many of
 * the file's pages as possible lie outside that range.
 */
static uint64_t missing_bytes(const struct kvc_node *n, uint64_t off, uint64_t end, uint64_t size)
{
	uint64_t start = off / KVC_PAGE * KVC_PAGE, range, span, elsewhere, there;

	end = kvc_round_up(end, KVC_PAGE);
	range = end - start;
	span = kvc_max(kvc_max(kvc_round_up(size, KVC_PAGE), n->segment.prepared), end);
	elsewhere = span - range;
	there = n->acct.reserved > elsewhere ? n->acct.reserved - elsewhere : 0;
	if (start < n->segment.prepared)
		there = kvc_max(there, kvc_min(n->segment.prepared, end) - start);
	return range - kvc_min(range, there);
}

static int punch_locked(struct kvc *k, struct kvc_node *n, int fd, int mode, uint64_t off,
			uint64_t len)
{
	int err = kvc_pages_locked(k, n, KVC_HELD_ONE, fd, mode, off, len, NULL);

	kvc_file_cut_prepared_locked(n, off);
	if (!err && must_allocate_locked(k, n))
		err = kvc_pages_locked(k, n, KVC_HELD_ONE, fd, FALLOC_FL_KEEP_SIZE, off, len, NULL);
	kvc_account_recount_locked(k, n);
	return err;
}

/*
 * Allocates a range. `need` bytes are reserved for it. Releases the reservation, and counts the
 * pages that were really allocated instead.
 */
static int fill_locked(struct kvc *k, struct kvc_node *n, int fd, int mode, uint64_t off,
		       uint64_t len, uint64_t need, struct kvc_wait *w)
{
	uint64_t done = 0, was = n->segment.prepared, skip;
	int err = 0;

	/* if a later step fails, the range reads as zeros or is unchanged */
	if (mode & FALLOC_FL_ZERO_RANGE) {
		mode &= ~FALLOC_FL_ZERO_RANGE;
		err = kvc_pages_locked(k, n, KVC_HELD_ONE, fd,
				       FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, len, NULL);
		kvc_file_cut_prepared_locked(n, off);
	}
	/* skip pages that are allocated but not written: the kernel would clear them here */
	skip = off < n->segment.prepared ? kvc_min(n->segment.prepared - off, len) : 0;
	if (!err && skip < len)
		err = kvc_pages_locked(k, n, KVC_HELD_ONE, fd, mode, off + skip, len - skip, &done);
	else if (!err && !(mode & FALLOC_FL_KEEP_SIZE))
		err = kvc_pages_size(fd, off + len);
	done += skip;
	if (!err)
		kvc_file_set_prepared_locked(n, kvc_max(n->segment.prepared, was));
	if (off / KVC_PAGE * KVC_PAGE <= n->segment.prepared)
		kvc_file_set_prepared_locked(n, kvc_max(n->segment.prepared,
							(off + done) / KVC_PAGE * KVC_PAGE));
	/* the account never shows less than is allocated */
	k->reservations.used -= kvc_min(k->reservations.used, need);
	kvc_account_recount_locked(k, n);
	kvc_reservation_grant_locked(k);
	return err == -ENOSPC ? kvc_reservation_retry_locked(k, need, w) : err;
}

static int fallocate_once(struct kvc *k, uint64_t ino, int mode, off_t off, off_t len,
			  struct kvc_wait *w)
{
	struct kvc_node *n;
	struct stat st;
	uint64_t need;
	int fd, err = 0;

	if (mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
		return -EOPNOTSUPP;
	if ((uint64_t)len > KVC_PAGES_QUICK && !w->deferred)
		return KVC_LONG;
	kvc_lock(k);
	n = open_node_locked(k, ino);
	if (!n || n->state != KVC_OPEN || (fd = kvc_file_node_fd_locked(k, n)) < 0) {
		err = -EBADF;
		goto out;
	}
	if (mode & FALLOC_FL_PUNCH_HOLE) {
		err = punch_locked(k, n, fd, mode, (uint64_t)off, (uint64_t)len);
		goto out;
	}
	if (fstat(fd, &st)) {
		err = -errno;
		goto out;
	}
	kvc_account_set_reserved_locked(k, n, (uint64_t)st.st_blocks * 512);
	need = missing_bytes(n, (uint64_t)off, (uint64_t)off + (uint64_t)len, (uint64_t)st.st_size);
	if ((err = kvc_user_share_check_locked(k, w, NULL, need)) ||
	    (err = kvc_throttle_store_locked(k, need, w)) ||
	    (err = kvc_quota_get_locked(k, n->model, need, w)) ||
	    (err = kvc_reservation_get_locked(k, need, w)))
		goto out;
	reserve_quota_locked(k, n, need, w);
	err = fill_locked(k, n, fd, mode, (uint64_t)off, (uint64_t)len, need, w);
out:
	if (!err) {
		kvc_node_drop_setid(&n->row);
		kvc_node_dirty_locked(k, n);
	}
	if (err != KVC_WAIT)
		kvc_reservation_cancel_locked(k, w);
	if (n && (uint64_t)len > KVC_PAGES_HELD) {
		/* the last close of another opener may have happened in between */
		kvc_file_publish_if_closed_locked(k, n);
		kvc_node_settle_locked(k, n);
	}
	kvc_unlock(k);
	return err;
}

int kvc_io_fallocate(struct kvc *k, uint64_t ino, int mode, off_t off, off_t len,
		     struct kvc_wait *w)
{
	int err;

	do
		err = fallocate_once(k, ino, mode, off, len, w);
	while (kvc_share_retry_call(k, w, &err));
	return err;
}

/*
 * Returns whether the file has durable copies, and all of them may be lost: the last sync has
 * failed for their devices, or did not include them.
 */
static bool copies_lost(struct kvc *k, uint64_t ino)
{
	struct kvc_node *n;
	bool found = false;

	kvc_lock(k);
	n = kvc_node_find_locked(k, ino);
	if (n && S_ISREG(n->row.mode) && !kvc_file_placed_durably(k, n)) {
		kvc_tier_each(k, t)
			found |= kvc_file_placed_in(n, t) && kvc_tier_is_durable_locked(k, t);
	}
	kvc_unlock(k);
	return found;
}

int kvc_io_sync(struct kvc *k, unsigned of, struct kvc_wait *w)
{
	int err;

	if (w->stage == KVC_SYNC_DONE)
		return 0;
	kvc_lock(k);
	w->sync_of = of;
	w->stage = KVC_SYNC_DONE;
	err = kvc_wait_park_locked(k, &k->committer->sync_waiters, w);
	kvc_committer_wake_locked(k, true);
	kvc_unlock(k);
	return err;
}

/*
 * First the bytes of a file have to be in a durable tier: requests a copy and waits for it. Then
 * waits for a commit, and for syncs of the copy's device and of the catalog (w->stage: enum
 * kvc_sync). Without a durable tier, only the catalog is made durable. A copy that a failed sync
 * may have lost does not count: if the last sync has failed, the call returns the error of the
 * sync, or -EIO, and the next fsync makes a new copy.
 */
int kvc_io_fsync(struct kvc *k, uint64_t ino, struct kvc_wait *w)
{
	struct kvc_node *n;
	struct stat st;
	bool durable = false, needed = false;
	int err = 0;

	if (w->stage == KVC_SYNC_DONE)
		return copies_lost(k, ino) ? -EIO : 0;
	kvc_lock(k);
	n = kvc_node_find_locked(k, ino);
	kvc_tier_each(k, t)
		durable |= kvc_spill_takes_snapshot(k, n, t);
	if (n && S_ISREG(n->row.mode) && durable && !n->commit.lost && w->stage < KVC_SYNC_COPIED) {
		if (n->state == KVC_OPEN &&
		    (kvc_file_node_fd_locked(k, n) < 0 || fstat(n->segment.fd, &st)))
			err = -EIO;
		else if (n->state ==
			 KVC_OPEN) /* a failed snapshot leaves n->segment.snapshot set */
			needed = n->segment.fresh || n->segment.snapshot ||
				 kvc_ns(st.st_mtim) != KVC_MARK_NS ||
				 !kvc_file_placed_durably(k, n);
		else if (n->state == KVC_RESIDENT || n->state == KVC_BOTH)
			needed = !kvc_file_placed_durably(k, n) || n->segment.verify;
		if (needed && (n->state == KVC_RESIDENT || n->state == KVC_BOTH))
			kvc_spill_lost_locked(k, n, KVC_TIER_UNKNOWN);
	}
	if (!err && needed) {
		w->stage = KVC_SYNC_ASKED;
		kvc_file_set_snapshot_locked(n, n->state == KVC_OPEN);
		kvc_file_retry_copies_locked(n); /* try again, so that the caller gets the error */
		err = kvc_node_park_sync_locked(k, n, w);
		kvc_spill_queue_locked(k, n, true); /* at once, because a caller waits */
	} else if (!err) {
		if (w->stage != KVC_SYNC_COPIED)
			w->sync_of = kvc_commit_sync_of_locked(k, n);
		w->stage = KVC_SYNC_DONE;
		err = kvc_wait_park_locked(k, &k->committer->sync_waiters, w);
		kvc_committer_wake_locked(k, true);
	}
	kvc_unlock(k);
	return err;
}
