/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening, creating and releasing files. hit.c serves most opens of files in the pool under a joint
 * hold of k->lock; this file serves the others with the lock. The first open of a segment also
 * registers it for passthrough, by two system calls; the registration is kept for later opens. The
 * kernel requires that all simultaneous opens of a file are served the same way, by passthrough or
 * by requests (n->plain).
 */
#include "account.h"
#include "array.h"
#include "arrival.h"
#include "cache.h"
#include "ops.h"
#include "file.h"
#include "folder.h"
#include "user.h"
#include "ino.h"
#include "load.h"
#include "membership.h"
#include "model.h"
#include "throttle.h"
#include "incomplete.h"
#include "remote_lookup.h"
#include "gone.h"
#include "model_use.h"
#include "latency.h"
#include "log.h"
#include "buckets.h"
#include "chunking.h"
#include "tmpfile.h"
#include "tenant_set.h"
#include "access.h"

#include <fcntl.h>
#include <string.h>

/* an open of an existing file allocates at most this in advance, or nothing: it only saves time */
#define AHEAD_MAX (64ull << 20)

static bool opens_for_writing(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY;
}

static int count_open_locked(struct kvc *k, struct kvc_node *n, int flags, uint32_t uid,
			     struct kvc_opened *out)
{
	out->requests = !n->plain && opens_for_writing(flags) &&
			!kvc_hit_may_pass_through_locked(k, n->model);
	if (n->plain || out->requests) {
		int fd = kvc_file_node_fd_locked(k, n);

		if (fd < 0)
			return fd;
		kvc_count(&k->stats, plain_opens);
	} else {
		kvc_count(&k->stats, passthrough_opens);
	}
	kvc_chunk_mark_busy(n->chunk);
	kvc_file_linger_over_locked(k, n);
	kvc_node_opened_locked(n, opens_for_writing(flags));
	k->nodes->opens++;
	kvc_user_share_add_locked(k, n, uid, true);
	out->backing = n->plain ? 0 : n->segment.backing;
	kvc_count(&k->stats, opens);
	return 0;
}

/*
 * Bytes to allocate for a new file of this model: its usual object size if passthrough serves it.
 * Plain writes allocate as they arrive. At most half of the pool is allocated in advance: otherwise
 * many files that are open together, of a model that once had a large file, would take all of it.
 * The user's share is a limit too.
 */
static uint64_t bytes_ahead_locked(struct kvc *k, uint64_t model, uint32_t uid)
{
	uint64_t hint = kvc_hit_may_pass_through_locked(k, model) ? kvc_model_hint_locked(k, model)
								  : 0;

	return k->reservations.ahead + hint > k->pool.bytes / 2 ||
			       !kvc_user_share_fits_locked(k, uid, NULL, hint)
		       ? 0
		       : hint;
}

/* Allocates bytes, and releases the locks for a large amount. Missing bytes are not an error. */
static int allocate_ahead_both(struct kvc *k, struct kvc_node *n, int fd, uint64_t bytes)
{
	uint64_t done = 0;

	if (bytes)
		kvc_pages_locked(k, n, KVC_HELD_BOTH, fd, FALLOC_FL_KEEP_SIZE, 0, bytes, &done);
	if (n->state != KVC_OPEN)
		return -ESTALE;
	/* a write in between may have allocated more */
	kvc_file_set_prepared_locked(n, kvc_max(n->segment.prepared, done));
	kvc_account_set_preallocated_locked(k, n, done);
	kvc_account_recount_locked(k, n);
	return 0;
}

/* O_TRUNC: the old contents, in the pool and in tiers, are not needed. */
static int truncate_open_both(struct kvc *k, struct kvc_node *n, struct kvc_wait *w)
{
	uint64_t hint = bytes_ahead_locked(k, n->model, w->uid), more;
	int err, fd;

	hint = hint > AHEAD_MAX ? 0 : hint;
	if (!w->deferred && (kvc_pages_truncate_is_long_locked(n, 0) || hint > KVC_PAGES_QUICK))
		return KVC_LONG;

	if (n->state == KVC_LOADING)
		return kvc_node_park_locked(k, n, w);
	if (n->state == KVC_LOWER && (err = kvc_membership_join_both(k, n)))
		return err;
	more = hint - kvc_min(hint, n->acct.reserved);
	if ((err = kvc_throttle_store_locked(k, more, w)) ||
	    (err = kvc_reservation_get_locked(k, more, w)))
		return err;
	err = n->state == KVC_LOWER ? kvc_file_segment_new_locked(k, n)
				    : kvc_file_begin_write_locked(k, n);
	fd = err ?: kvc_file_node_fd_locked(k, n);
	err = fd < 0 ? fd : kvc_pages_truncate_locked(k, n, KVC_HELD_BOTH, fd, 0);
	if (!err)
		kvc_file_set_prepared_locked(n, 0);
	err = err ?: allocate_ahead_both(k, n, fd, hint);
	kvc_reservation_put_locked(k, more); /* the allocated bytes are counted instead */
	if (err)
		kvc_file_publish_if_closed_locked(k, n); /* nothing has changed */
	return err;
}

/*
 * While a call waits, the chunk of this node is not dropped, even if its last access was long ago.
 */
static void wait_begin_locked(struct kvc_node *n, struct kvc_wait *w)
{
	kvc_chunk_mark_busy(n->chunk);
	kvc_node_waits_locked(n);
	w->ino = n->row.ino;
}

static void wait_end_locked(struct kvc *k, struct kvc_wait *w)
{
	struct kvc_node *n = w->ino ? kvc_node_find_locked(k, w->ino) : NULL;

	w->ino = 0;
	if (n) {
		kvc_node_waited_locked(n);
		kvc_node_settle_locked(k, n);
	}
}

/* Records a successful open: access, access time, latency. */
static void record_open_locked(struct kvc *k, struct kvc_node *n, int flags,
			       const struct kvc_wait *w)
{
	if (n->chunk && kvc_access_record_locked(k, n->chunk, n->row.ino, w->client, true) &&
	    !n->refs.leases && (flags & O_ACCMODE) != O_WRONLY && !(flags & O_TRUNC))
		kvc_model_stats_found_locked(k, n->model, 1); /* leases count it themselves */
	kvc_hit_update_atime_locked(k, n, flags);
	if (!(flags & O_TRUNC))
		kvc_latency_record(k, KVC_OP_open, w->loads ? n->load.tier : KVC_OF_POOL, n->model,
				   w->begun_ns);
}

/* Counts an open of a file that was in the pool, or that was loaded. */
static void count_result_locked(struct kvc *k, struct kvc_node *n, bool hit, bool loaded)
{
	if (hit) {
		kvc_count(&k->stats, pool_hits);
		kvc_model_stats_locked(k, n->model, hits);
		kvc_tenant_tell_locked(k, n->chunk, hits);
	} else if (loaded) {
		kvc_tenant_tell_locked(k, n->chunk, misses);
	}
}

static int open_once(struct kvc *k, uint64_t ino, int flags, struct kvc_opened *out,
		     struct kvc_wait *w)
{
	struct kvc_node *n;
	bool waited = w->deadline_ns != 0;
	bool truncates = (flags & O_TRUNC) && opens_for_writing(flags);
	int err = 0;

	if (truncates)
		kvc_lock_both(k);
	else if (kvc_lock_unless_joint(k, kvc_hit_open(k, ino, flags, out, w)))
		return 0;
	wait_end_locked(k, w);
	n = kvc_node_find_locked(k, ino);
	if ((err = w->err ?: opens_for_writing(flags) ? kvc_accepts(k, false) : 0))
		goto out;
	if (!n || kvc_node_gone(n) ||
	    (n->commit.lost && !n->refs.opens && kvc_list_empty(&n->linger.link))) {
		err = -ESTALE;
		goto out;
	}
	if (!S_ISREG(n->row.mode)) {
		err = -EINVAL;
		goto out;
	}
	if ((err = kvc_user_share_may_open_locked(k, w->uid, n)) ||
	    (!truncates && (err = kvc_user_share_check_locked(k, w, n, 0))))
		goto out;
	if (truncates) {
		err = truncate_open_both(k, n, w);
	} else if (n->state == KVC_LOWER || n->state == KVC_LOADING) {
		if (!waited) {
			kvc_count(&k->stats, pool_misses);
			kvc_gone_chunk_count(k, n->row.chunk);
			kvc_model_stats_locked(k, n->model, misses);
			w->loads = true;
		}
		if (!kvc_wait_may_park(w)) { /* do not start a load that no call waits for */
			kvc_count(&k->stats, waits_refused);
			err = -ETIMEDOUT;
			goto out;
		}
		err = kvc_load_start_locked(k, n, false);
		if (err == -ENOENT)
			/* only tiers that this mount does not use have copies */
			err = -EIO;
		if (!err)
			err = kvc_node_park_locked(k, n, w);
	} else if (opens_for_writing(flags)) {
		err = kvc_file_begin_write_locked(k, n);
	}
	if (err)
		goto out;
	count_result_locked(k, n, !waited && !(flags & O_TRUNC), w->loads);
	kvc_hit_register_locked(k, n, opens_for_writing(flags), truncates && !n->segment.prepared);
	err = count_open_locked(k, n, flags, w->uid, out);
	if (err)
		kvc_file_publish_if_closed_locked(k, n);
	else
		record_open_locked(k, n, flags, w);
out:
	if (err == KVC_WAIT)
		wait_begin_locked(n, w);
	else
		kvc_reservation_cancel_locked(k, w);
	kvc_unlock_to_joint(k);
	if (truncates)
		kvc_catalog_unlock(k->cat);
	return err;
}

/* Is it a file of an incomplete chunk? The kernel then has to look its name up again. */
static bool is_hidden_file(struct kvc *k, uint64_t ino)
{
	struct kvc_node *n;
	bool is;

	kvc_lock_both(k);
	n = kvc_node_find_locked(k, ino);
	is = n && S_ISREG(n->row.mode) && kvc_incomplete_hidden_both(k, n);
	kvc_unlock_both(k);
	return is;
}

/*
 * A load that no tier served in time is a miss for a reader (load.h). The kernel keeps the name,
 * because a failed open leaves no negative entry. So stat still finds the file, and a later open
 * loads it.
 */
static int miss_if_unserved(struct kvc *k, uint64_t ino, int flags, const struct kvc_wait *w,
			    int err)
{
	struct kvc_node *n;

	if (!w->loads || opens_for_writing(flags) || (flags & (O_TRUNC | O_CREAT)) ||
	    !kvc_load_unserved(err))
		return err;
	kvc_count(&k->stats, unserved_loads);
	kvc_lock(k);
	n = kvc_node_find_locked(k, ino);
	kvc_model_stats_absent_locked(k, n ? n->model : 0, 1);
	kvc_unlock(k);
	return -ENOENT;
}

static int open_with_retry(struct kvc *k, uint64_t ino, int flags, struct kvc_opened *out,
			   struct kvc_wait *w)
{
	int err;

	do
		err = open_once(k, ino, flags, out, w);
	while (kvc_share_retry_call(k, w, &err));
	return err == KVC_WAIT ? err : miss_if_unserved(k, ino, flags, w, err);
}

int kvc_open_file(struct kvc *k, uint64_t ino, int flags, struct kvc_opened *out,
		  struct kvc_wait *w)
{
	if (!w->begun_ns)
		w->begun_ns = kvc_mono_ns();
	if (kvc_incomplete_on(k) && !w->ino && !w->err && is_hidden_file(k, ino))
		return -ESTALE;
	return open_with_retry(k, ino, flags, out, w);
}

struct creation {
	struct kvc_row row;
	uint64_t model, reserved;
	bool opens;   /* an existing file may be opened instead */
	uint32_t uid; /* the calling user; row.uid is the owner */
	uint64_t client;
	uint64_t hash; /* of its name, or 0 */
};

/* The first half of a create: checks whether it is allowed, and fills *c. */
static int create_plan_both(struct kvc *k, uint64_t parent, const char *name, struct creation *c,
			    uint64_t *existing)
{
	struct kvc_node *folder;
	uint32_t kind;
	int err = kvc_entry_folder_both(k, parent, name, true, &folder);

	if (err)
		return err;
	c->row.parent = folder->row.ino; /* differs if the folder was dropped and made again */
	err = name ? kvc_name_get_hashed(k->cat, c->row.parent, name, c->hash, existing, &kind)
		   : -ENOENT;
	if (err != -ENOENT)
		return err ?: -EEXIST;
	err = kvc_accepts(k, false) ?: kvc_usage_allows(k->cat, c->row.uid, true, 0);
	if ((err = err ?: kvc_user_share_may_open_locked(k, c->uid, NULL)))
		return err;
	if ((err = kvc_node_model_both(k, c->row.parent, &c->model)))
		return err;
	if (folder->row.mode & S_ISGID)
		c->row.gid = folder->row.gid;
	c->reserved = bytes_ahead_locked(k, c->model, c->uid);
	return 0;
}

/* The second half of a create: the segment exists, and the file becomes visible. */
static int create_enter_both(struct kvc *k, const struct creation *c, const char *name, int fd,
			     int backing, int flags, struct kvc_row *attr, struct kvc_opened *out)
{
	struct kvc_node *folder, *n;
	uint64_t other;
	uint32_t kind;
	int err = kvc_entry_folder_both(k, c->row.parent, name, true, &folder)
			  ?: kvc_catalog_spare(k->cat, KVC_SPARES);
	uint64_t model = 0;

	/*
	 * Since the first half, an import, or a caller that reached the folder through another
	 * inode of the kernel, may have added this name.
	 */
	if (!err && name) {
		err = kvc_name_get_hashed(k->cat, folder->row.ino, name, c->hash, &other, &kind);
		err = err == -ENOENT ? 0 : err ?: -EEXIST;
	}
	/* the folder may have moved to another model */
	if (err || (err = kvc_node_model_both(k, folder->row.ino, &model)))
		return err;
	n = kvc_node_new_locked(k, &c->row);
	if (!n)
		return -ENOMEM;
	n->row.parent = folder->row.ino;
	kvc_account_set_model_locked(n, model);
	if (name) {
		kvc_buckets_filled_both(k, folder);
		err = kvc_chunking_join_both(k, folder, n, name, true, &n->row.chunk);
	}
	if (!err && !n->row.chunk) {
		n->row.chunk = n->row.ino;
		err = kvc_membership_new_both(k, n);
	} else if (!err) {
		err = kvc_membership_join_both(k, n);
	}
	if (!err)
		err = name ? kvc_name_put_hashed(k->cat, n->row.parent, name, c->hash, c->row.ino,
						 S_IFREG)
			   : kvc_tmpfile_note_both(k, n);
	if (err) {
		kvc_node_settle_locked(k, n);
		return err;
	}
	kvc_file_created_locked(n, fd, c->row.mtime_ns);
	kvc_account_created_locked(n, c->reserved);
	kvc_file_set_prepared_locked(n, c->reserved);
	kvc_node_looked_up_locked(n);
	n->plain = !backing;
	if (backing)
		kvc_file_registered_locked(k, n, backing);
	if (name) {
		kvc_arrival_named_locked(k, n->row.parent, name);
		kvc_gone_name_made_locked(k, n->row.parent, c->hash, n->row.ino);
	}
	kvc_access_made_locked(k, n->chunk, c->client);
	kvc_file_become_locked(k, n, KVC_OPEN);
	kvc_model_use_enters_locked(k, n->row.ino);
	kvc_account_quota_count_locked(k, n);
	kvc_node_dirty_locked(k, n);
	if (name) {
		if (n->chunk->id == n->row.ino || !n->chunk->use.created_ns)
			kvc_tenant_placed_both(k, n, name);
		kvc_incomplete_named_locked(n, name);
		kvc_remote_lookup_made_locked(k, n->model, name);
		kvc_folder_touch_locked(k, folder, 0);
	}
	count_open_locked(k, n, flags, c->uid, out); /* cannot fail: fd is open */
	kvc_count(&k->stats, creates);
	kvc_model_stats_locked(k, n->model, creates);
	*attr = n->row;
	return 0;
}

/*
 * The first half of a create, and its reservation. Returns 0, KVC_WAIT or an error; -EEXIST stores
 * the existing inode in *existing.
 */
static int create_reserve_both(struct kvc *k, const char *name, struct creation *c,
			       uint64_t *existing, struct kvc_wait *w)
{
	struct kvc_node *folder;
	int err;

	wait_end_locked(k, w);
	/*
	 * Allocating the usual size only saves time. A file that cannot have it is written by
	 * requests, each of which reserves its bytes.
	 */
	if (w->err == -ENOSPC && !w->stage) {
		w->err = 0;
		w->stage = 1;
		w->deadline_ns = w->since_ns = 0;
	}
	err = w->err ?: create_plan_both(k, c->row.parent, name, c, existing);
	if (w->stage)
		c->reserved = 0;
	if (!err) {
		err = kvc_ino_new_both(k, &c->row.ino)
			      ?: kvc_throttle_store_locked(k, c->reserved, w);
		err = err ?: kvc_reservation_get_locked(k, c->reserved, w);
		k->reservations.ahead += err ? 0 : c->reserved;
	}
	if (err && err != KVC_WAIT && !(err == -EEXIST && *existing && c->opens))
		/* bytes were granted, but the folder or the name has changed since */
		kvc_reservation_cancel_locked(k, w);
	/* While the call waits, the chunk is in use, even if its last file was written long ago. */
	if (err == KVC_WAIT && (folder = kvc_node_find_locked(k, c->row.parent)))
		wait_begin_locked(folder, w);
	return err;
}

/* Opens a file that another call has made. */
static int open_existing(struct kvc *k, uint64_t parent, const char *name, int flags,
			 struct kvc_row *attr, struct kvc_opened *out, struct kvc_wait *w)
{
	int err = kvc_entry_lookup_any(k, parent, name, attr, NULL);
	uint64_t ino = err ? 0 : attr->ino; /* attr may be freed once a wait is parked */
	bool opens = ino && S_ISREG(attr->mode);

	/* the reservation is for a file that is written from the start */
	if (!opens || !(flags & O_TRUNC)) {
		kvc_lock(k);
		kvc_reservation_cancel_locked(k, w);
		kvc_unlock(k);
	}
	err = opens ? open_with_retry(k, ino, flags, out, w) : err ?: -EEXIST;
	if (err && ino)
		kvc_entry_forget(k, ino, 1);
	else if (!err)
		kvc_entry_getattr(k, ino, attr);
	return err;
}

/*
 * Makes the segment, allocates its space and registers it for passthrough. The caller holds no
 * lock.
 */
static int make_segment(struct kvc *k, struct creation *c, const struct kvc_segment *s, int *fd,
			int *backing)
{
	struct stat st;

	*fd = kvc_pool_segment_open(&k->pool, s, O_RDWR | O_CREAT | O_EXCL);
	if (*fd < 0)
		return *fd;
	if (c->reserved && fallocate(*fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)c->reserved)) {
		/* files that grow by passthrough have taken the space: continue without it */
		kvc_lock(k);
		kvc_reservation_put_locked(k, c->reserved);
		k->reservations.ahead -= c->reserved;
		kvc_unlock(k);
		c->reserved = 0;
	}
	if (!fstat(*fd, &st)) /* a file keeps these times until it is written */
		c->row.atime_ns = c->row.mtime_ns = c->row.ctime_ns = c->row.btime_ns =
			kvc_ns(st.st_mtim);
	if (c->reserved) {
		/*
		 * A read-only descriptor: the kernel opens the segment again with the flags of the
		 * caller. If the kernel kept a writable descriptor, F_SETLEASE on the segment would
		 * always fail (pool.c).
		 */
		KVC_FD int ro = kvc_pool_segment_open(&k->pool, s, O_RDONLY);

		*backing = ro < 0 ? 0 : k->ev.backing_open(k->ev.arg, ro);
		if (*backing < 0)
			*backing = 0;
	}
	return 0;
}

int kvc_open_create(struct kvc *k, uint64_t parent, const char *name, uint32_t mode, uint32_t uid,
		    uint32_t gid, int flags, struct kvc_row *attr, struct kvc_opened *out,
		    struct kvc_wait *w)
{
	uint64_t now = kvc_now_ns(), existing = 0;
	struct creation c = {
		.row = { .mode = S_IFREG | (mode & 07777),
			 .uid = uid,
			 .gid = gid,
			 .nlink = 1,
			 .atime_ns = now,
			 .mtime_ns = now,
			 .ctime_ns = now,
			 .btime_ns = now,
			 .parent = parent },
		.opens = !(flags & O_EXCL),
		.uid = w->uid,
		.client = w->client,
		.hash = name ? kvc_name_hash(name) : 0,
	};
	int fd = -1, backing = 0, err;

	if (!w->begun_ns)
		w->begun_ns = kvc_mono_ns();
	kvc_lock_both(k);
	err = create_reserve_both(k, name, &c, &existing, w);
	kvc_unlock_both(k);
	if (err == -EEXIST && existing && c.opens)
		return open_existing(k, c.row.parent, name, flags, attr, out, w);
	if (err)
		return err;

	struct kvc_segment s = { 'w', c.row.ino, 0 };

	err = make_segment(k, &c, &s, &fd, &backing);
	kvc_lock_both(k);
	if (!err)
		err = create_enter_both(k, &c, name, fd, backing, flags, attr, out);
	if (err) {
		kvc_reservation_put_locked(k, c.reserved);
		k->reservations.ahead -= c.reserved;
		kvc_pool_segment_remove(&k->pool, &s);
		if (backing)
			k->ev.backing_close(k->ev.arg, backing);
		if (fd >= 0)
			close(fd);
	}
	kvc_unlock_both(k);
	if (err == -EEXIST && c.opens)
		return open_existing(k, c.row.parent, name, flags, attr, out, w);
	if (!err)
		kvc_latency_record(k, KVC_OP_create, KVC_OF_POOL, c.model, w->begun_ns);
	return err;
}

void kvc_open_release(struct kvc *k, uint64_t ino, int flags, uint32_t uid)
{
	struct kvc_node *n;
	bool both;

	if (kvc_lock_unless_joint(k, kvc_hit_release(k, ino, flags, uid)))
		return;
	n = kvc_tmpfile_find_locked(k, ino, &both);
	if (!n || !n->refs.opens)
		goto out;
	if (!both && opens_for_writing(flags))
		kvc_pages_trim_locked(k, n);
	atomic_load_explicit(&k->nodes->fd_uses, memory_order_acquire);
	kvc_node_closed_locked(n, opens_for_writing(flags));
	k->nodes->opens--;
	kvc_user_share_remove_locked(k, n, uid, true);
	if (n->state == KVC_OPEN && !n->refs.writers && !n->commit.lost && !n->unnamed)
		kvc_file_publish_locked(k, n);
	if (both)
		kvc_tmpfile_settle_both(k, n);
	if (!n->refs.opens && n->commit.lost && !n->refs.leases) {
		kvc_file_destroy_locked(k, n);
	} else if (!n->refs.opens && n->state != KVC_OPEN) {
		kvc_file_close_fd_locked(n);
		if (n->segment.backing && k->nodes->backings > KVC_BACKINGS_MAX)
			kvc_file_close_segment_locked(k, n);
	}
	kvc_node_settle_locked(k, n);
	if (!kvc_list_empty(&k->reservations.waiters))
		pthread_cond_signal(&k->reservations.pressed);
out:
	kvc_unlock_to_joint(k);
	if (both)
		kvc_catalog_unlock(k->cat);
}

/* A file and the number of its writers. */
struct written {
	uint64_t ino;
	unsigned writers;
};

/* Lists the files that are open for writing. Returns their number. kvc_array_free frees *out. */
static size_t list_written(struct kvc *k, struct written **out)
{
	struct written *v = NULL, *grown;
	size_t n = 0, capacity = 0;

	kvc_lock(k);
	kvc_table_each(&k->nodes->table, s) {
		const struct kvc_node *node = kvc_of(s, struct kvc_node, slot);

		if (!node->refs.writers)
			continue;
		if (n == capacity) {
			capacity = 2 * capacity + 64;
			if (!(grown = kvc_array_grow(v, capacity * sizeof *v))) {
				kvc_error("out of memory: files that were closed a moment before "
					  "the unmount are lost");
				break;
			}
			v = grown;
		}
		v[n++] = (struct written){ node->row.ino, node->refs.writers };
	}
	kvc_unlock(k);
	*out = v;
	return n;
}

void kvc_open_release_writers(struct kvc *k)
{
	struct written *v;
	size_t n = list_written(k, &v);

	for (size_t i = 0; i < n; i++)
		while (v[i].writers--)
			kvc_open_release(k, v[i].ino, O_WRONLY, 0);
	kvc_array_free(v);
}

void kvc_open_fd_done(struct kvc *k)
{
	/* pairs with the load before the close */
	atomic_fetch_add_explicit(&k->nodes->fd_uses, 1, memory_order_release);
}

int kvc_open_fd(struct kvc *k, uint64_t ino)
{
	struct kvc_node *n;
	int fd = -EBADF;

	if (kvc_lock_unless_joint(k, kvc_hit_fd(k, ino, &fd)))
		return fd;
	n = kvc_node_find_locked(k, ino);
	if (n && n->refs.opens)
		fd = kvc_file_node_fd_locked(k, n);
	kvc_unlock_to_joint(k);
	return fd;
}
