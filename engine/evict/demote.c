/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Demotion: a client asks for a chunk to leave the pool, a tier, or everything
 * (user.kvcachefs.demote). The call is parked. A separate thread works on each demotion, one step
 * every TURN_NS, until it is done or cannot be done, or until no call waits for it any more:
 *
 *   cpu     Objects without a good copy are copied now; after the commit the segments are
 *           removed, as by the evictor. The wait for a copy is the wait of fsync
 *           (n->wait.sync), so it ends with the tier's own error.
 *   a tier  Its copies are removed, if the whole chunk is in the pool or in another tier
 *           (names/chunk_drop.c).
 *   all     The chunk is dropped, as the quota keeper drops chunks.
 *
 * A pinned chunk is refused with EBUSY. So is a chunk with files that are open, leased or mapped
 * for all of CLOSE_NS. The delay is needed because the kernel reports a close after close(2) has
 * returned, so a client that closes a file and demotes it at once may still find it open; a worker
 * that copies also has the segment open a moment longer than the copy takes. A chunk that was
 * accessed a moment ago is retried for GRACE_NS, and one whose folder is being probed until the
 * probe has ended. If the file that the call names is moved to another chunk meanwhile, that chunk
 * is demoted.
 *
 * Threads that run this code: the demoter's, the callers of fs/ (kvc_demote_locked), and the one
 * that answers waits (copy_done).
 */
#include "demote.h"

#include "account.h"
#include "chunking.h"
#include "clock.h"
#include "committer.h"
#include "dir_invalidate.h"
#include "evict.h"
#include "file.h"
#include "replacers.h"
#include "rings.h"
#include "notify.h"
#include "pin.h"
#include "spill.h"
#include "tier_queue.h"
#include "model_stats.h"
#include "victim.h"

#include <fcntl.h>
#include <string.h>

#define TURN_NS 5000000ull
#define GRACE_NS 1000000000ull
#define CLOSE_NS 300000000ull
#define QUEUE_AT 64 /* copies queued per hold of the lock */

enum { FROM_POOL = -1, FROM_ALL = -2 }; /* or a tier's number */
enum { AGAIN = 1 };                     /* result of a step, besides 0 and errors: call it again */

struct demotion {
	struct kvc_list link;    /* in k->demotes->list */
	struct kvc_list waiters; /* the parked call */
	struct kvc *k;
	struct kvc_node *target; /* the file or folder that the call names; referenced */
	uint64_t chunk;          /* its chunk, which may change */
	uint32_t uid;            /* the user who calls */
	int from;
	uint64_t since_ns;
	/* since this time every step has found the chunk in use; 0: the last step did not */
	uint64_t used_ns;
	/* the chunk is dropped; number of the notice that tells the kernel; 0: not dropped */
	uint64_t notice;
	/* the wait for the copy of `node`; node is referenced; NULL: no wait */
	struct kvc_wait copy;
	struct kvc_node *node;
	bool copied; /* the wait is over, with copy.err */
};

static bool pinned_locked(struct kvc *k, uint64_t chunk)
{
	const struct kvc_pin *p = kvc_pin_find_locked(k, chunk);

	return p && kvc_pin_protects_locked(k, chunk, p->until_ns, KVC_PIN_ALL);
}

/*
 * Finds the chunk of the target again, because files may have been moved to other chunks
 * (names/chunking.c). Returns AGAIN if it has changed or is changing, else 0. -EBUSY: the chunk may
 * belong to another user now. The permission was checked for the former one (ops/xattr.c), so the
 * user has to call again.
 */
static int follow_locked(struct demotion *d)
{
	const struct kvc_node *n = d->target;

	if (S_ISDIR(n->row.mode))
		return n->chunking.regroup || n->chunking.splitting ? AGAIN : 0;
	if (n->state == KVC_GONE || n->row.chunk == d->chunk)
		return 0;
	if (d->uid && n->row.chunk != n->row.ino)
		return -EBUSY;
	d->chunk = n->row.chunk;
	return AGAIN;
}

/*
 * The demotion has succeeded. Returns 0 if the target is still in this chunk; AGAIN; or an error,
 * which is -EBUSY if the target is a folder that is no longer one chunk. Releases and takes
 * k->lock.
 */
static int still_there_locked(struct kvc *k, struct demotion *d)
{
	int err;

	if (!S_ISDIR(d->target->row.mode))
		return follow_locked(d);
	kvc_unlock(k);
	kvc_lock_both(k);
	err = kvc_chunking_whole_both(k, d->target);
	err = err < 0 ? err : !err ? -EBUSY : follow_locked(d);
	kvc_unlock_both(k);
	kvc_lock(k);
	return err == -ENOENT ? 0 : err; /* the folder was dropped */
}

static bool is_used(struct kvc *k, struct kvc_node *n, void *arg)
{
	(void)k;
	(void)arg;
	return n->refs.opens || n->refs.leases || n->state == KVC_OPEN;
}

/* Called by the thread that answers waits: the copy is made or has failed. */
static void copy_done(struct kvc_wait *w)
{
	struct demotion *d = kvc_of(w, struct demotion, copy);
	struct kvc *k = d->k;

	kvc_lock(k);
	d->copied = true;
	pthread_cond_signal(&k->demotes->cond);
	kvc_unlock(k);
}

/* The chunk is in use: wait, or refuse after CLOSE_NS. */
static int wait_while_used(struct demotion *d)
{
	uint64_t now = kvc_mono_ns();

	if (!d->used_ns)
		d->used_ns = now;
	return now - d->used_ns < CLOSE_NS ? AGAIN : -EBUSY;
}

/* Queues the missing copies and starts to wait for the first one. Releases and takes k->lock. */
static int start_copies_locked(struct kvc *k, struct demotion *d, struct kvc_chunk *c)
{
	bool any = false;

	kvc_tier_each(k, t)
		any |= kvc_tier_takes(k->tier[t].t);
	if (!any)
		return -ENODEV;
	for (unsigned i = c->nnodes; i && c->nnodes; i--) {
		struct kvc_node *n = kvc_victim_rotate_locked(c);

		if (i % QUEUE_AT == 0)
			kvc_pause_locked(k);
		if (!kvc_node_has_segment(n) || kvc_victim_copied(k, n))
			continue;
		if (n->state == KVC_BOTH && !n->segment.verify)
			kvc_spill_lost_locked(k, n, KVC_TIER_LOST);
		kvc_file_retry_copies_locked(n); /* the caller gets the error again */
		if (!d->node) {
			d->node = n;
			kvc_node_ref_locked(n);
			d->copied = false;
			d->copy = (struct kvc_wait){ .wake = copy_done };
			kvc_node_park_sync_locked(k, n, &d->copy);
		}
		kvc_spill_queue_locked(k, n, true);
	}
	return AGAIN;
}

/* Removes the node's segment. Releases k->lock while its pages are freed. */
static void evict_segment_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_segment s = kvc_file_segment_of(n);
	int fd = kvc_pool_segment_open(&k->pool, &s, O_PATH);
	uint64_t reserved = n->acct.reserved;

	kvc_pool_segment_remove(&k->pool, &s);
	kvc_file_become_locked(k, n, KVC_LOWER);
	if (fd < 0)
		kvc_account_set_reserved_locked(k, n, 0);
	else
		kvc_account_leaving_locked(k, n);
	kvc_count(&k->stats, evictions);
	kvc_event_ring_put_locked(k, KVC_EVENT_RING_evicted, KVC_EVENT_RING_POOL, n);
	kvc_node_settle_locked(k, n);
	if (fd < 0)
		return;
	kvc_unlock(k);
	close(fd);
	kvc_lock(k);
	k->reservations.leaving -= kvc_min(k->reservations.leaving, reserved);
	kvc_reservation_put_locked(k, reserved);
}

static bool is_lacking(struct kvc *k, struct kvc_node *n, void *arg)
{
	(void)arg;
	return !kvc_victim_copied(k, n);
}

static bool is_uncommitted(struct kvc *k, struct kvc_node *n, void *arg)
{
	(void)arg;
	return n->copies.txn > k->committer->committed;
}

static int demote_pool_locked(struct kvc *k, struct demotion *d, struct kvc_chunk *c)
{
	uint64_t model = kvc_victim_model(c);

	if (kvc_victim_walk_locked(k, c, is_lacking, NULL))
		return start_copies_locked(k, d, c);
	if (kvc_victim_walk_locked(k, c, is_uncommitted, NULL)) {
		kvc_committer_wake_locked(k, true);
		return AGAIN;
	}
	for (unsigned i = c->nnodes; i && c->nnodes; i--) {
		struct kvc_node *n = kvc_victim_rotate_locked(c);

		if (kvc_victim_may_leave(k, n))
			evict_segment_locked(k, n);
	}
	if (c->nnodes) /* a file was opened during the walk */
		return AGAIN;
	kvc_count(&k->stats, evicted_chunks);
	kvc_replacers_evicted(k, KVC_FOR_demote, KVC_FROM_POOL, c->policy);
	kvc_model_stats_evicted_locked(k, model, KVC_FOR_demote);
	kvc_clock_since(k, &k->stats.eviction_age, c->use.created_ns);
	return 0;
}

/* Drops the chunk, or its copies in the tier. Releases and takes k->lock. */
static int demote_tiers_locked(struct kvc *k, struct demotion *d)
{
	struct kvc_chunk_row r;
	int err;

	kvc_unlock(k);
	kvc_catalog_lock(k->cat);
	if (kvc_chunk_get(k->cat, d->chunk, &r))
		r.policy = 0;
	kvc_catalog_unlock(k->cat);
	err = d->from == FROM_ALL
		      ? kvc_chunk_drop(k, d->chunk, KVC_DROP_WHOLE, KVC_FOR_demote, NULL, NULL)
		      : kvc_chunk_drop_tier(k, d->chunk, (unsigned)d->from);
	kvc_lock(k);
	if (err == -EAGAIN || (err == -EBUSY && kvc_mono_ns() - d->since_ns < GRACE_NS))
		return AGAIN;
	if (!err)
		kvc_replacers_evicted(k, KVC_FOR_demote,
				      d->from == FROM_ALL ? KVC_FROM_ALL : d->from, r.policy);
	if (!err && d->from == FROM_ALL)
		d->notice = kvc_notify(k, KVC_NOTICE_PRUNE, 0, 0);
	if (d->notice)
		return AGAIN;
	if (err == -ENODATA) /* part of the chunk exists nowhere else */
		return -EBUSY;
	return err == -ENOENT ? 0 : err; /* the chunk does not exist */
}

/*
 * True if a copy to the demoted tier is queued or running, which would arrive after the removal.
 * For the pool and for "all", true if a copy is running, since it uses the segment.
 */
static bool is_copying(struct kvc *k, struct kvc_node *n, void *arg)
{
	const struct demotion *d = arg;

	for (unsigned t = 0; t < k->tier_slots; t++)
		if ((n->copying & (1u << t)) &&
		    (d->from < 0 ? !n->in[t].queued : d->from == (int)t))
			return true;
	return false;
}

/*
 * One step on the part of the chunk that is in memory. The caller holds a reference to the chunk.
 */
static int demote_chunk_locked(struct kvc *k, struct demotion *d, struct kvc_chunk *c)
{
	if (!c->detached && kvc_victim_walk_locked(k, c, is_used, NULL))
		return wait_while_used(d);
	if (kvc_victim_walk_locked(k, c, is_copying, d)) {
		d->used_ns = 0;
		return AGAIN;
	}
	if (d->from < 0 && kvc_victim_mapped(k, c))
		return wait_while_used(d);
	d->used_ns = 0;
	return d->from == FROM_POOL && c->nnodes ? demote_pool_locked(k, d, c) : 0;
}

static int demote_step_locked(struct kvc *k, struct demotion *d)
{
	struct kvc_chunk *c;
	int err = 0;

	if (d->node && !d->copied)
		return AGAIN;
	if (d->node) {
		kvc_node_unref_locked(d->node);
		kvc_node_settle_locked(k, d->node);
		d->node = NULL;
		d->used_ns = 0;
		if (d->copy.err)
			return d->copy.err;
	}
	if (kvc_list_empty(&d->waiters))
		return -ETIMEDOUT;
	if (d->notice)
		return kvc_notify_delivered(k, d->notice) ? 0 : AGAIN;
	err = follow_locked(d);
	if (err < 0 || (err && S_ISDIR(d->target->row.mode)))
		return err;
	if (pinned_locked(k, d->chunk))
		return -EBUSY;
	err = 0;
	if ((c = kvc_chunk_find_locked(k, d->chunk))) {
		c->refs++;
		err = demote_chunk_locked(k, d, c);
		c->refs--;
		kvc_chunk_settle_locked(k, c);
	} else {
		d->used_ns = 0;
	}
	if (!err && d->from != FROM_POOL)
		err = demote_tiers_locked(k, d);
	return err ?: still_there_locked(k, d);
}

static void demote_end_locked(struct kvc *k, struct demotion *d, int err)
{
	kvc_wait_wake_all_locked(k, &d->waiters, err);
	kvc_node_unref_locked(d->target);
	kvc_node_settle_locked(k, d->target);
	kvc_list_del(&d->link);
	free(d);
}

/* One step of each demotion in the list; new ones are added at the end. */
static void demote_round_locked(struct kvc *k)
{
	struct kvc_list *last = k->demotes->list.prev, *e = k->demotes->list.next;
	bool more = true;

	while (more && e != &k->demotes->list) {
		struct demotion *d = kvc_of(e, struct demotion, link);
		/* only this thread removes demotions from the list */
		int err = demote_step_locked(k, d);

		more = e != last;
		e = e->next;
		if (err != AGAIN)
			demote_end_locked(k, d, err);
	}
}

static void *demoter(void *arg)
{
	struct kvc *k = arg;
	struct kvc_demotes *s = k->demotes;

	kvc_lock(k);
	while (!k->stopping) {
		struct timespec until = kvc_timespec(kvc_mono_ns() + TURN_NS);

		if (kvc_list_empty(&s->list))
			kvc_lock_wait(&k->lock, &s->cond, NULL);
		else if (demote_round_locked(k), !k->stopping && !kvc_list_empty(&s->list))
			kvc_lock_wait(&k->lock, &s->cond, &until);
	}
	/* the answering thread still ends the waits for copies */
	kvc_list_each_safe(e, &s->list) {
		struct demotion *d = kvc_of(e, struct demotion, link);

		while (d->node && !d->copied)
			kvc_lock_wait(&k->lock, &s->cond, NULL);
		if (d->node)
			kvc_node_unref_locked(d->node);
		demote_end_locked(k, d, -ESHUTDOWN);
	}
	kvc_unlock(k);
	return NULL;
}

int kvc_demote_locked(struct kvc *k, struct kvc_node *target, uint64_t chunk, const char *from,
		      struct kvc_wait *w)
{
	int where = !strcmp(from, "cpu") ? FROM_POOL : !strcmp(from, "all") ? FROM_ALL : KVC_TIERS;
	struct demotion *d;

	for (unsigned i = 0; i < k->ntiers && where == KVC_TIERS; i++)
		if (!strcmp(from, k->tier[k->order[i]].t->ops->name))
			where = (int)k->order[i];
	if (where == KVC_TIERS || !w)
		return -EINVAL;
	if (!(d = calloc(1, sizeof *d)))
		return -ENOMEM;
	d->k = k;
	d->target = target;
	kvc_node_ref_locked(target);
	d->chunk = chunk;
	d->uid = w->uid;
	d->from = where;
	d->since_ns = kvc_mono_ns();
	kvc_list_init(&d->waiters);
	kvc_list_add_tail(&k->demotes->list, &d->link);
	pthread_cond_signal(&k->demotes->cond);
	return kvc_wait_park_locked(k, &d->waiters, w);
}

int kvc_demote_start(struct kvc *k)
{
	int err = -pthread_create(&k->demotes->thread, NULL, demoter, k);

	k->demotes->has_thread = !err;
	return err;
}

void kvc_demote_stop(struct kvc *k)
{
	kvc_lock(k);
	pthread_cond_broadcast(&k->demotes->cond);
	kvc_unlock(k);
	if (k->demotes->has_thread)
		pthread_join(k->demotes->thread, NULL);
	k->demotes->has_thread = false;
}
