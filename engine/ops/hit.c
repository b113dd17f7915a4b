/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on files that are in the pool, under a joint hold of k->lock (base/joint.h), so that many
 * cores can make them at the same time: an open for reading, its descriptor and its release, a
 * lookup, the attributes, and a forget. If a call is simple enough, the function does the whole
 * call and returns true. Otherwise it changes nothing and returns false, and the caller does the
 * call with k->lock. A client that opens, reads and closes a file in the pool causes only such
 * calls, and nearly all calls on a busy mount are of this kind.
 *
 * A joint hold reads everything that k->lock guards, since changing it needs k->lock exclusively.
 * It changes only:
 *
 *   - some members of the node, under the mutex of the node's stripe;
 *   - the records of users, under k->joint->users, which is taken after the stripe;
 *   - c->idle, which is atomic, and counters;
 *   - the access queue, from which accesses are recorded when a thread takes the lock.
 */
#include "ops.h"

#include "access_queue.h"
#include "dir_invalidate.h"
#include "file.h"
#include "latency.h"
#include "user.h"

#include <fcntl.h>
#include <unistd.h>

#define DAY_NS 86400000000000ll

/* ---- common parts of opens with and without the lock ---- */

/*
 * May the model's files be written by passthrough? Not with a quota, which must grant every byte
 * first.
 */
bool kvc_hit_may_pass_through_locked(struct kvc *k, uint64_t model)
{
	return k->ev.backing_open && !kvc_quota_of_locked(k, model);
}

/*
 * Registers the segment if it is not registered. If that fails, the file is served by requests. In
 * a model with a quota, which has to grant each byte, an open for reading uses passthrough only if
 * every page of the file is allocated: a later writer, which must be registered too, then has no
 * hole to fill through a mapping. A file that is written from the start without allocated space
 * (bare) is not registered either: each of its writes makes a request.
 */
void kvc_hit_register_locked(struct kvc *k, struct kvc_node *n, bool writer, bool bare)
{
	struct kvc_segment s = kvc_file_segment_of(n);
	KVC_FD int fd = -1;
	int id;

	if (n->refs.opens) /* served like the other opens */
		return;
	n->plain = true;
	if (bare || !k->ev.backing_open ||
	    (!kvc_hit_may_pass_through_locked(k, n->model) &&
	     (writer || n->acct.reserved < kvc_round_up(n->object.size, KVC_PAGE))))
		return;
	if (!n->segment.backing) {
		fd = kvc_pool_segment_open(&k->pool, &s, O_RDONLY);
		id = fd < 0 ? fd : k->ev.backing_open(k->ev.arg, fd);
		if (id <= 0)
			return;
		kvc_file_registered_locked(k, n, id);
	}
	n->plain = false;
}

/* Does an open for reading update the access time? See noatime and relatime in mount(8). */
static bool updates_atime(const struct kvc *k, const struct kvc_row *r, uint64_t now)
{
	int64_t atime = (int64_t)r->atime_ns;

	if (k->opt.atime != KVC_ATIME_RELATIVE)
		return k->opt.atime == KVC_ATIME_OPENS;
	return atime <= (int64_t)r->mtime_ns || atime <= (int64_t)r->ctime_ns ||
	       atime <= (int64_t)now - DAY_NS;
}

void kvc_hit_update_atime_locked(struct kvc *k, struct kvc_node *n, int flags)
{
	uint64_t now = kvc_now_ns();

	if ((flags & O_NOATIME) || (flags & O_ACCMODE) == O_WRONLY ||
	    !updates_atime(k, &n->row, now))
		return;
	n->row.atime_ns = now;
	kvc_node_touch_locked(n);
}

/* ---- the calls ---- */

/* Is the file in the pool, and not about to change its state? */
static bool is_at_rest(const struct kvc_node *n)
{
	return (n->state == KVC_RESIDENT || n->state == KVC_BOTH) && n->chunk &&
	       !n->chunk->detached && !n->commit.lost && !n->unnamed &&
	       kvc_list_empty(&n->linger.link);
}

/* Can it be opened for reading without a change outside of the node? */
static bool opens_at_once(struct kvc *k, const struct kvc_node *n)
{
	/* the first open registers the segment */
	return is_at_rest(n) && (n->refs.opens || n->segment.backing || !k->ev.backing_open);
}

/* Charges the open to the user. Returns false if the limits of the user have to be checked. */
static bool user_opens(struct kvc *k, struct kvc_node *n, uint32_t uid)
{
	bool may;

	if (!uid) /* root has no limits */
		return true;
	pthread_mutex_lock(&k->joint->users.m);
	may = kvc_user_share_fits_locked(k, uid, n, 0) && kvc_user_may_open_more_locked(k, uid, n);
	if (may)
		kvc_user_share_add_locked(k, n, uid, true);
	pthread_mutex_unlock(&k->joint->users.m);
	return may;
}

static void user_closes(struct kvc *k, struct kvc_node *n, uint32_t uid)
{
	if (!uid)
		return;
	pthread_mutex_lock(&k->joint->users.m);
	kvc_user_share_remove_locked(k, n, uid, true);
	pthread_mutex_unlock(&k->joint->users.m);
}

static _Atomic int64_t *opens_here(struct kvc *k)
{
	return &k->joint->slot[kvc_stats_thread() % KVC_JOINT_SLOTS].sum;
}

/* The node's stripe is held. */
static bool open_at_rest(struct kvc *k, struct kvc_node *n, int flags, struct kvc_opened *out,
			 const struct kvc_wait *w, bool *many)
{
	if (!opens_at_once(k, n))
		return false;
	kvc_hit_register_locked(k, n, false, false);
	if (n->plain && kvc_file_node_fd_locked(k, n) < 0)
		return false;
	if (!user_opens(k, n, w->uid))
		return false;
	if (!kvc_access_queue_put(k, n, w, many)) {
		user_closes(k, n, w->uid);
		return false;
	}
	kvc_chunk_mark_busy(n->chunk);
	kvc_node_opened_locked(n, false);
	atomic_fetch_add_explicit(opens_here(k), 1, memory_order_relaxed);
	kvc_hit_update_atime_locked(k, n, flags);
	out->requests = false;
	out->backing = n->plain ? 0 : n->segment.backing;
	if (n->plain)
		kvc_count(&k->stats, plain_opens);
	else
		kvc_count(&k->stats, passthrough_opens);
	kvc_count(&k->stats, opens);
	kvc_latency_record(k, KVC_OP_open, KVC_OF_POOL, n->model, w->begun_ns);
	return true;
}

bool kvc_hit_open(struct kvc *k, uint64_t ino, int flags, struct kvc_opened *out,
		  const struct kvc_wait *w)
{
	bool opened = false, many = false;
	struct kvc_node *n;

	if ((flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) || w->ino || w->err ||
	    w->deadline_ns || !kvc_joint_begin(k->joint))
		return false;
	n = kvc_node_find_locked(k, ino);
	if (n && is_at_rest(n)) {
		pthread_mutex_t *stripe = kvc_joint_stripe(k->joint, ino);

		pthread_mutex_lock(stripe);
		opened = open_at_rest(k, n, flags, out, w, &many);
		pthread_mutex_unlock(stripe);
	}
	kvc_joint_end(k->joint);
	if (many)
		kvc_access_queue_record(k);
	return opened;
}

bool kvc_hit_release(struct kvc *k, uint64_t ino, int flags, uint32_t uid)
{
	bool released = false;
	struct kvc_node *n;

	if ((flags & O_ACCMODE) != O_RDONLY || !kvc_joint_begin(k->joint))
		return false;
	n = kvc_node_find_locked(k, ino);
	if (n && is_at_rest(n) && k->nodes->backings <= KVC_BACKINGS_MAX &&
	    kvc_list_empty(&k->reservations.waiters)) {
		pthread_mutex_t *stripe = kvc_joint_stripe(k->joint, ino);

		pthread_mutex_lock(stripe);
		if (n->refs.opens) {
			kvc_node_closed_locked(n, false);
			atomic_fetch_sub_explicit(opens_here(k), 1, memory_order_relaxed);
			user_closes(k, n, uid);
			/* pairs with kvc_open_fd_done */
			atomic_load_explicit(&k->nodes->fd_uses, memory_order_acquire);
			if (!n->refs.opens)
				kvc_file_close_fd_locked(n);
			released = true;
		}
		pthread_mutex_unlock(stripe);
	}
	kvc_joint_end(k->joint);
	return released;
}

bool kvc_hit_fd(struct kvc *k, uint64_t ino, int *fd)
{
	struct kvc_node *n;
	bool has = false;

	if (!kvc_joint_begin(k->joint))
		return false;
	n = kvc_node_find_locked(k, ino);
	if (n) {
		pthread_mutex_t *stripe = kvc_joint_stripe(k->joint, ino);

		pthread_mutex_lock(stripe);
		has = n->refs.opens && n->segment.fd >= 0;
		if (has)
			*fd = n->segment.fd;
		pthread_mutex_unlock(stripe);
	}
	kvc_joint_end(k->joint);
	return has;
}

/* Reads the attributes. looked_up: the kernel gets a reference. */
static bool read_attr(struct kvc *k, struct kvc_node *n, struct kvc_row *attr, bool looked_up)
{
	pthread_mutex_t *stripe = kvc_joint_stripe(k->joint, n->row.ino);

	if (n->commit.lost || kvc_node_gone(n) ||
	    (S_ISDIR(n->row.mode) && kvc_dir_is_probed(k, n->row.ino)))
		return false;
	pthread_mutex_lock(stripe);
	if (looked_up)
		kvc_node_looked_up_locked(n);
	kvc_node_attr_locked(k, n, attr);
	pthread_mutex_unlock(stripe);
	return true;
}

bool kvc_hit_attr(struct kvc *k, uint64_t ino, struct kvc_row *attr, bool looked_up)
{
	struct kvc_node *n;
	bool has;

	if (!kvc_joint_begin(k->joint))
		return false;
	n = kvc_node_find_locked(k, ino);
	has = n && read_attr(k, n, attr, looked_up);
	kvc_joint_end(k->joint);
	return has;
}

bool kvc_hit_absent(struct kvc *k, uint64_t parent, const char *name, uint64_t hash)
{
	bool absent;

	if (!kvc_joint_begin(k->joint))
		return false;
	absent = !kvc_dir_dropped_find_locked(k, parent, name, hash);
	kvc_joint_end(k->joint);
	return absent;
}

bool kvc_hit_forget(struct kvc *k, uint64_t ino, uint64_t count)
{
	struct kvc_node *n;
	bool forgot = false;

	if (!kvc_joint_begin(k->joint))
		return false;
	n = kvc_node_find_locked(k, ino);
	if (n && is_at_rest(n)) { /* the node of a file in the pool stays in memory */
		pthread_mutex_t *stripe = kvc_joint_stripe(k->joint, ino);

		pthread_mutex_lock(stripe);
		kvc_node_forgotten_locked(n, count);
		pthread_mutex_unlock(stripe);
		forgot = true;
	}
	kvc_joint_end(k->joint);
	return forgot;
}
