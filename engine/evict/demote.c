/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Demoting: somebody says that a chunk is to leave the pool, or a tier, or all of them
 * (user.kvcachefs.demote). The call is parked, and a thread of its own takes each demotion on, a
 * step every TURN_NS, until it is done, cannot be, or nobody waits for it any more:
 *
 *   cpu     What has no copy that counts is copied now; after the commit the segments go, as the
 *           evictor lets them go. The wait for a copy is the one of fsync (n->sync_waiters), so it
 *           ends with the tier's own error.
 *   a tier  Its copies go, where all of the chunk is in the pool or in another tier (names/chunk_drop.c).
 *   all     The chunk is dropped, as the keeper does it.
 *
 * What is pinned is refused with EBUSY. So is what is open, leased or mapped for all of CLOSE_NS:
 * the kernel tells of a close after it has returned, so who closed a file and then demotes it may
 * find it open, and a copier has its descriptor for a moment longer than its copy takes. What
 * somebody is between two files of, or has just looked at, is given GRACE_NS.
 */
#include "demote.h"

#include "account.h"
#include "clock.h"
#include "committer.h"
#include "dir_invalidate.h"
#include "evict.h"
#include "file.h"
#include "replacers.h"
#include "event_ring.h"
#include "notify.h"
#include "pin.h"
#include "spill.h"
#include "tier_queue.h"

#include <fcntl.h>
#include <string.h>

#define TURN_NS 5000000ull
#define GRACE_NS 1000000000ull
#define CLOSE_NS 300000000ull
#define QUEUE_AT 64 /* copies that are asked for at once */

enum { FROM_POOL = -1, FROM_ALL = -2 }; /* or a tier's number */
enum { AGAIN = 1 };                     /* a step's result beside 0 and errors */

struct demotion {
	struct kvc_list link;    /* in k->demotes->list */
	struct kvc_list waiters; /* the call */
	struct kvc *k;
	uint64_t chunk;
	int from;
	uint64_t since_ns;
	uint64_t used_ns;     /* since when steps found it in use; 0: the last did not */
	uint64_t told;        /* dropped: with this notice the kernel knows it; 0: it is there */
	struct kvc_wait copy; /* for the copy of `node`, which is held; NULL: for none */
	struct kvc_node *node;
	bool copied; /* that wait is over, with copy.err */
};

static bool pinned_locked(struct kvc *k, uint64_t chunk)
{
	const struct kvc_pin *p = kvc_pin_find_locked(k, chunk);

	return p && kvc_pin_holds_locked(k, chunk, p->until_ns, KVC_PIN_ALL);
}

static bool busy(struct kvc *k, struct kvc_node *n, void *arg)
{
	(void)k;
	(void)arg;
	return n->nopen || n->leases || n->state == KVC_OPEN;
}

/* From the answerer: the copy is made, or failed. */
static void on_copy(struct kvc_wait *w)
{
	struct demotion *d = kvc_of(w, struct demotion, copy);
	struct kvc *k = d->k;

	kvc_lock(k);
	d->copied = true;
	pthread_cond_signal(&k->demotes->cond);
	kvc_unlock(k);
}

static bool lacks_copy(const struct kvc_node *n)
{
	return n->state != KVC_BOTH || n->verify;
}

/* In use: for how long it may be. */
static int wait_or_refuse(struct demotion *d)
{
	uint64_t now = kvc_mono_ns();

	if (!d->used_ns)
		d->used_ns = now;
	return now - d->used_ns < CLOSE_NS ? AGAIN : -EBUSY;
}

/*
 * Asks for the copies that are missing, and waits for one of them. The lock is let go in between.
 */
static int copy_locked(struct kvc *k, struct demotion *d, struct kvc_chunk *c)
{
	bool any = false;

	kvc_tier_each(k, t)
		any = true;
	if (!any)
		return -ENODEV;
	for (unsigned i = c->nnodes; i && c->nnodes; i--) {
		struct kvc_node *n = kvc_evict_turn_locked(c);

		if (i % QUEUE_AT == 0)
			kvc_pause_locked(k);
		if (!kvc_has_segment(n) || !lacks_copy(n))
			continue;
		n->hopeless = 0; /* who asks is to be told why */
		if (!d->node) {
			d->node = n;
			n->refs++;
			d->copied = false;
			d->copy = (struct kvc_wait){ .wake = on_copy };
			kvc_wait_park_locked(k, &n->sync_waiters, &d->copy);
		}
		kvc_spill_queue_locked(k, n, true);
	}
	return AGAIN;
}

/* Its segment goes. The lock is let go while its pages are freed. */
static void leave_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_segment s = kvc_file_segment_of(n);
	int fd = kvc_pool_segment_open(&k->pool, &s, O_PATH);
	uint64_t reserved = n->reserved;

	kvc_pool_segment_remove(&k->pool, &s);
	kvc_file_become_locked(k, n, KVC_LOWER);
	if (fd < 0) {
		kvc_account_set_reserved_locked(k, n, 0);
	} else {
		k->reservations.leaving += reserved;
		n->reserved = 0;
		kvc_account_quota_count_locked(k, n);
	}
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
	(void)k;
	(void)arg;
	return lacks_copy(n);
}

static bool is_uncommitted(struct kvc *k, struct kvc_node *n, void *arg)
{
	(void)arg;
	return n->place_txn > k->committer->committed;
}

static int from_pool_locked(struct kvc *k, struct demotion *d, struct kvc_chunk *c)
{
	if (kvc_evict_walk_locked(k, c, is_lacking, NULL))
		return copy_locked(k, d, c);
	if (kvc_evict_walk_locked(k, c, is_uncommitted, NULL)) {
		kvc_committer_wake_locked(k, true);
		return AGAIN;
	}
	for (unsigned i = c->nnodes; i && c->nnodes; i--) {
		struct kvc_node *n = kvc_evict_turn_locked(c);

		if (kvc_evict_may_leave(k, n))
			leave_locked(k, n);
	}
	if (c->nnodes) /* somebody took one in hand meanwhile */
		return AGAIN;
	kvc_count(&k->stats, evicted_chunks);
	kvc_replacers_evicted(k, KVC_FOR_demote, KVC_FROM_POOL, c->policy);
	kvc_clock_since(k, &k->stats.eviction_age, c->use.created_ns);
	return 0;
}

/* The lock is let go meanwhile. */
static int drop_locked(struct kvc *k, struct demotion *d)
{
	struct kvc_chunk_row r;
	int err;

	kvc_unlock(k);
	kvc_catalog_lock(k->cat);
	if (kvc_chunk_get(k->cat, d->chunk, &r))
		r.policy = 0;
	kvc_catalog_unlock(k->cat);
	err = d->from == FROM_ALL ? kvc_chunk_drop(k, d->chunk, KVC_DROP_WHOLE, NULL, NULL)
				  : kvc_chunk_drop_tier(k, d->chunk, (unsigned)d->from);
	kvc_lock(k);
	if (err == -EAGAIN || (err == -EBUSY && kvc_mono_ns() - d->since_ns < GRACE_NS))
		return AGAIN;
	if (!err)
		kvc_replacers_evicted(k, KVC_FOR_demote,
				      d->from == FROM_ALL ? KVC_FROM_ALL : d->from, r.policy);
	if (!err && d->from == FROM_ALL)
		d->told = kvc_notify(k, KVC_TELL_PRUNE, 0, 0);
	if (d->told)
		return AGAIN;
	if (err == -ENODATA) /* some of it is nowhere else */
		return -EBUSY;
	return err == -ENOENT ? 0 : err; /* nothing of it is there */
}

/*
 * A copy to the tier is on its way, and would come after those that go; or one is being made, and
 * the segment is in use for that.
 */
static bool copying(struct kvc *k, struct kvc_node *n, void *arg)
{
	const struct demotion *d = arg;

	for (unsigned t = 0; t < k->tier_slots; t++)
		if ((n->spilling & (1u << t)) &&
		    (d->from < 0 ? !n->in[t].queued : d->from == (int)t))
			return true;
	return false;
}

/* What is in memory of the chunk, which the caller keeps there. */
static int step_chunk_locked(struct kvc *k, struct demotion *d, struct kvc_chunk *c)
{
	if (!c->detached && kvc_evict_walk_locked(k, c, busy, NULL))
		return wait_or_refuse(d);
	if (kvc_evict_walk_locked(k, c, copying, d)) {
		d->used_ns = 0;
		return AGAIN;
	}
	if (d->from < 0 && kvc_evict_mapped(k, c))
		return wait_or_refuse(d);
	d->used_ns = 0;
	return d->from == FROM_POOL && c->nnodes ? from_pool_locked(k, d, c) : 0;
}

static int step_locked(struct kvc *k, struct demotion *d)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, d->chunk);
	int err = 0;

	if (d->node && !d->copied)
		return AGAIN;
	if (d->node) {
		d->node->refs--;
		kvc_node_settle_locked(k, d->node);
		d->node = NULL;
		d->used_ns = 0;
		if (d->copy.err)
			return d->copy.err;
		c = kvc_chunk_find_locked(k, d->chunk);
	}
	if (kvc_list_empty(&d->waiters))
		return -ETIMEDOUT;
	if (d->told)
		return kvc_notify_delivered(k, d->told) ? 0 : AGAIN;
	if (pinned_locked(k, d->chunk))
		return -EBUSY;
	if (c) {
		c->inflight++;
		err = step_chunk_locked(k, d, c);
		c->inflight--;
		kvc_chunk_settle_locked(k, c);
	} else {
		d->used_ns = 0;
	}
	return err || d->from == FROM_POOL ? err : drop_locked(k, d);
}

static void end_locked(struct kvc *k, struct demotion *d, int err)
{
	kvc_wait_wake_all_locked(k, &d->waiters, err);
	kvc_list_del(&d->link);
	free(d);
}

/* Those that are there now; new ones are put at the end. */
static void round_locked(struct kvc *k)
{
	struct kvc_list *last = k->demotes->list.prev, *e = k->demotes->list.next;
	bool more = true;

	while (more && e != &k->demotes->list) {
		struct demotion *d = kvc_of(e, struct demotion, link);
		int err = step_locked(k, d); /* only this thread takes any off the list */

		more = e != last;
		e = e->next;
		if (err != AGAIN)
			end_locked(k, d, err);
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
		else if (round_locked(k), !k->stopping && !kvc_list_empty(&s->list))
			kvc_lock_wait(&k->lock, &s->cond, &until);
	}
	/* the answerer ends what they wait for */
	kvc_list_each_safe(e, &s->list) {
		struct demotion *d = kvc_of(e, struct demotion, link);

		while (d->node && !d->copied)
			kvc_lock_wait(&k->lock, &s->cond, NULL);
		if (d->node)
			d->node->refs--;
		end_locked(k, d, -ESHUTDOWN);
	}
	kvc_unlock(k);
	return NULL;
}

int kvc_demote_locked(struct kvc *k, uint64_t chunk, const char *from, struct kvc_wait *w)
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
	d->chunk = chunk;
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
