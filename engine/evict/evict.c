/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The evictor: a thread that keeps the pool between its watermarks. It evicts whole chunks, in the
 * order that the policy gives them, and no request ever does its work. A chunk leaves the pool when
 * every object of it has a committed copy in a tier. A chunk without copies is copied first. If no
 * tier can take it or admission refuses it (access/admission.c), it is dropped. If stores have
 * waited for copies longer than pace=, the coldest chunks without a copy are dropped too. A copy in
 * any tier suffices, but if the disk tier's copy is queued or running, the evictor waits for it;
 * otherwise, under load, objects that a fast remote tier has would never reach the disk. Bounded
 * tiers and quotas have threads of their own (trim.c, quota_keeper.c).
 *
 * The policy has chosen most victims in advance: they wait in the lists of objects/leaving.c, which
 * the evictor empties before it asks the policy for more. Chunks that the policy refused and those
 * that clients called finished (objects/hinted.c) leave the pool first, then those of tenants above
 * their shares of the pool (objects/tenant_set.c), then the others in the lists. Chunks that
 * clients want to keep are passed over while others can be evicted, up to a part of the pool
 * (HINTED_PART) and HINTED_MOST chunks.
 *
 * Open, leased, pinned and mapped objects stay in the pool, and so does the rest of their chunk. If
 * a store would be refused otherwise, the unused and unpinned objects of such chunks are evicted.
 * Pins beyond the limit have no effect (limits/pin.c).
 *
 * A pass takes chunks from the pool's order; chunks that it does not evict are excluded until its
 * end. The evictor's thread runs this code; demote.c shares some functions.
 */
#include "evict.h"

#include "account.h"
#include "admission.h"
#include "clock.h"
#include "committer.h"
#include "dir_invalidate.h"
#include "file.h"
#include "gone.h"
#include "hinted.h"
#include "leaving.h"
#include "model_stats.h"
#include "victim.h"
#include "rings.h"
#include "throttle.h"
#include "path.h"
#include "pin.h"
#include "spill.h"
#include "tenant_set.h"
#include "tier_queue.h"
#include "deferred_free.h"
#include "access.h"

#include <fcntl.h>
#include <string.h>

#define PRESSED_NS 10000000ull
#define IDLE_NS 250000000ull
#define STUCK_PASSES 12
#define BATCH 512        /* nodes of chunks that are judged per hold of the lock */
#define HINTED_MOST 1024 /* chunks that a pass keeps because of hints */
#define HINTED_PART 4    /* their bytes: at most the size of the pool divided by this */
#define CHUNK_COST 64    /* each chunk counts as this many additional nodes */
#define QUEUE_AT 64      /* copies queued per hold of the lock */
#define RETURN_AT 64     /* chunks returned to the order per hold of the lock */
#define FREE_AT 16       /* segments that are checked or freed per hold of the lock */

/* A chunk that a pass does not evict; it returns to the order at the end of the pass. */
struct excluded {
	struct kvc_chunk *chunk;
	enum kvc_verdict verdict;
};

struct pass {
	struct excluded *excluded;
	size_t nexcluded, excluded_capacity;
	size_t parted;         /* excluded chunks whose parents are not protected any more */
	uint64_t coming;       /* bytes that will become free without further work */
	int unlinked[FREE_AT]; /* descriptors of removed segments, whose pages are not freed yet */
	size_t nunlinked;
	uint64_t unlinked_bytes;
	bool progress;
	bool overdue; /* a store has waited longer than pace= */
	/* chunks that stay because of hints: their number and bytes */
	unsigned nhinted;
	uint64_t hinted_bytes;
	bool ignores_hints; /* nothing else can be evicted */
};

/*
 * Removes the segment's name at once, since a load may create the segment again. Freeing its pages
 * takes time in proportion to its size; free_unlinked_locked does that, and only then are the bytes
 * free.
 */
static void evict_node_locked(struct kvc *k, struct pass *p, struct kvc_node *n)
{
	struct kvc_segment s = kvc_file_segment_of(n);
	int fd = p->nunlinked < FREE_AT ? kvc_pool_segment_open(&k->pool, &s, O_PATH) : -1;

	kvc_pool_segment_remove(&k->pool, &s);
	kvc_file_become_locked(k, n, KVC_LOWER);
	if (fd >= 0) {
		p->unlinked[p->nunlinked++] = fd;
		p->unlinked_bytes += kvc_account_leaving_locked(k, n);
	} else {
		kvc_account_set_reserved_locked(k, n, 0);
	}
	kvc_count(&k->stats, evictions);
	kvc_event_ring_put_locked(k, KVC_EVENT_RING_evicted, KVC_EVENT_RING_POOL, n);
	kvc_node_settle_locked(k, n);
}

/* Frees the pages of the removed segments. Releases and takes k->lock. */
static void free_unlinked_locked(struct kvc *k, struct pass *p)
{
	uint64_t reserved = p->unlinked_bytes;

	kvc_unlock(k);
	for (size_t i = 0; i < p->nunlinked; i++)
		close(p->unlinked[i]);
	p->nunlinked = 0;
	p->unlinked_bytes = 0;
	kvc_lock_pause(&k->lock);
	kvc_lock(k);
	k->reservations.leaving -= kvc_min(k->reservations.leaving, reserved);
	kvc_reservation_put_locked(k, reserved);
}

/* Evicts the chunk. Nodes that come into use during the walk stay. */
static void evict_chunk_locked(struct kvc *k, struct pass *p, struct kvc_chunk *c)
{
	uint64_t model = kvc_victim_model(c);

	kvc_gone_chunk_put(k, c->id, c->bytes);
	for (unsigned i = c->nnodes; i && c->nnodes; i--) {
		struct kvc_node *n = kvc_victim_rotate_locked(c);

		if (kvc_victim_may_leave(k, n))
			evict_node_locked(k, p, n);
		if (p->nunlinked >= FREE_AT)
			free_unlinked_locked(k, p);
	}
	kvc_chunk_push_locked(k, c);
	kvc_count(&k->stats, evicted_chunks);
	kvc_replacers_evicted(k, KVC_FOR_pool, KVC_FROM_POOL, c->policy);
	kvc_model_stats_evicted_locked(k, model, KVC_FOR_pool);
	kvc_clock_since(k, &k->stats.eviction_age, c->use.created_ns);
}

/*
 * Returns how many of `used` bytes the pool should lose to be within its watermarks. Between high=
 * and low=, only two kinds of bytes count: those of chunks that the policy does not keep, and kept
 * bytes above low=. The policy has not decided yet about chunks that are being created, so their
 * bytes may fill a quarter of the space above high=. The rest of that space is for writes by
 * passthrough, which fail if the pool is full.
 */
static uint64_t trim_bytes_locked(struct kvc *k, uint64_t used)
{
	const uint64_t *bytes = k->chunks->bytes;
	uint64_t low = kvc_reservation_low_locked(k);
	uint64_t decided = bytes[KVC_LEAVES] + bytes[KVC_KEPT] - kvc_min(bytes[KVC_KEPT], low);
	uint64_t high = k->pool.bytes / 100 * k->opt.high_pct;
	uint64_t want = kvc_reservation_excess(used, k->pool.bytes, &k->opt, &k->evict->trimming);

	high += kvc_min(bytes[KVC_ENTERS], (k->pool.bytes - high) / 4);
	want = kvc_min(want, kvc_max(decided, used - kvc_min(used, high)));
	k->evict->trimming = want > 0;
	return want;
}

/* Returns how many bytes the pool should lose now, beyond segments that are already being freed. */
static uint64_t pool_excess_locked(struct kvc *k)
{
	const struct kvc_list *first = &k->reservations.waiters;
	uint64_t leaving = k->reservations.leaving, used, want, need = 0;

	kvc_reservation_check_locked(k);
	used = k->reservations.used + k->reservations.unseen;
	want = trim_bytes_locked(k, used - kvc_min(used, leaving));
	if (!kvc_list_empty(first))
		need = kvc_of(first->next, struct kvc_wait, link)->want;
	need = need ? kvc_reservation_lacks_locked(k, need) : 0;
	return kvc_max(want, need - kvc_min(need, leaving));
}

/* Returns how many bytes are missing for the stores that have waited longer than pace=. */
static uint64_t overdue_bytes_locked(struct kvc *k)
{
	uint64_t now = kvc_mono_ns(), need = 0, have;

	kvc_list_each(e, &k->reservations.waiters) {
		struct kvc_wait *w = kvc_of(e, struct kvc_wait, link);

		if (w->since_ns && now - w->since_ns > k->opt.pace_ms * 1000000)
			need += w->want;
	}
	have = k->pool.bytes - kvc_min(k->reservations.used, k->pool.bytes) +
	       k->reservations.leaving;
	return need - kvc_min(need, have);
}

/*
 * Queues the missing copies of a chunk. Releases and takes k->lock; the caller holds a reference to
 * the chunk.
 */
static void queue_copies_locked(struct kvc *k, struct kvc_chunk *c)
{
	for (unsigned i = c->nnodes; i && c->nnodes; i--) {
		struct kvc_node *n = kvc_victim_rotate_locked(c);

		if (n->state == KVC_RESIDENT || n->segment.verify || n->copies.resealing ||
		    kvc_victim_disk_comes_locked(k, n))
			kvc_spill_queue_locked(k, n, true);
		if (i % QUEUE_AT == 0)
			kvc_pause_locked(k);
	}
}

/*
 * Drops a chunk that is in memory. Returns 0 or the error of kvc_chunk_drop; -ENOENT if the chunk
 * no longer exists. Releases and takes k->lock.
 */
static int drop_chunk_locked(struct kvc *k, uint64_t id, enum kvc_reason why)
{
	int err;

	kvc_unlock(k);
	err = kvc_chunk_drop(k, id, KVC_DROP_FOR_POOL, why, NULL, NULL);
	kvc_lock(k);
	return err;
}

/* Returns a hash of the chunk's path, or 0 if it has none. Releases and takes k->lock. */
static uint64_t name_hash_locked(struct kvc *k, uint64_t id)
{
	char path[KVC_FRAME_PATH_MAX + 1];
	uint64_t name = 0;

	kvc_unlock(k);
	kvc_lock_both(k);
	if (!kvc_path_both(k, id, path) && *path)
		name = kvc_name_hash(path);
	kvc_catalog_unlock(k->cat);
	return name;
}

/* Counts a chunk that left the pool because of a hint, or because of its tenant's share. */
static void count_cause_locked(struct kvc *k, const struct kvc_chunk *c, bool finished, bool tenant)
{
	if (finished)
		kvc_count(&k->stats, finished_evictions);
	if (!tenant)
		return;
	kvc_tenant_tell_locked(k, c, evicted);
	kvc_count(&k->stats, tenant_evictions);
}

/* Counts a refused chunk, which has left the pool. */
static void count_refused(struct kvc *k, const struct kvc_refused *r)
{
	if (!r->why)
		return;
	kvc_count_one(&k->stats.refused_chunks[r->why], 1);
	kvc_count_one(&k->stats.refused_bytes[r->why], r->bytes);
}

/*
 * Excludes the chunk, which is not in the pool's order, for the rest of the pass. It leaves the
 * orders of its tenant and of finished chunks too, until kvc_chunk_push_locked. Returns false if
 * out of memory.
 */
static bool exclude_locked(struct pass *p, struct kvc_chunk *c, enum kvc_verdict v)
{
	if (kvc_grow(&p->excluded, p->nexcluded, &p->excluded_capacity, sizeof *p->excluded))
		return false;
	if (c->standing != KVC_LEAVES) /* a chunk that leaves keeps the reason why it leaves */
		kvc_tenant_take_locked(c);
	kvc_list_del(&c->hints.link);
	p->excluded[p->nexcluded++] = (struct excluded){ c, v };
	return true;
}

/*
 * A chunk that left the policy's order must stay: returns it to the order and excludes it there,
 * like the other chunks that stay.
 */
static void back_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (c->standing != KVC_LEAVES)
		return;
	kvc_leaving_back_locked(k, c);
	kvc_replacers_exclude_locked(k, KVC_CACHE_POOL, c->id, c->policy, true);
}

/*
 * Handles one chunk by its verdict. Returns true if it was evicted; otherwise it is excluded for
 * the rest of the pass.
 */
static bool handle_chunk_locked(struct kvc *k, struct pass *p, struct kvc_chunk *c)
{
	struct kvc_refused r;
	enum kvc_verdict v;
	uint64_t name = 0;
	bool tenant = c->tenant.taken, finished = c->hints.finished;
	int err;

	c->refs++; /* keeps the chunk in memory while the lock is released */
	v = kvc_victim_judge_locked(k, c, &r);
	if (v == KVC_VICTIM_COMES && p->overdue)
		v = KVC_VICTIM_EVICT;
	if (v == KVC_VICTIM_DROP && r.why == KVC_REFUSED_twice) {
		name = name_hash_locked(k, c->id);
		if (kvc_admission_was_dropped_locked(k, c, name))
			v = kvc_victim_judge_locked(k, c, &r);
	}
	if ((v == KVC_VICTIM_EVICT || v == KVC_VICTIM_DROP) && kvc_victim_mapped(k, c))
		v = KVC_VICTIM_KEEP;
	if (v != KVC_VICTIM_KEEP && c->standing != KVC_LEAVES)
		kvc_replacers_count_victim_locked(k, &k->chunks->turns, c->policy);
	if (v == KVC_VICTIM_EVICT) {
		evict_chunk_locked(k, p, c);
		count_cause_locked(k, c, finished, tenant);
		count_refused(k, &r);
		c->refs--;
		kvc_chunk_settle_locked(k, c);
		p->progress = true;
		return true;
	}
	if (v == KVC_VICTIM_DROP) {
		enum kvc_reason why = r.why ? KVC_FOR_refused : KVC_FOR_pool;

		err = drop_chunk_locked(k, c->id, why);
		p->progress |= !err || err == -EAGAIN;
		if (!err) {
			count_cause_locked(k, c, finished, tenant);
			kvc_replacers_evicted(k, why, KVC_FROM_POOL, c->policy);
			count_refused(k, &r);
			kvc_admission_dropped_locked(k, name);
		}
		if (err == -EAGAIN)
			p->coming += c->bytes;
	} else if (v == KVC_VICTIM_YOUNG || v == KVC_VICTIM_COPY || v == KVC_VICTIM_COMES) {
		p->coming += c->bytes;
		p->progress = true; /* a later pass will evict or drop it */
		if (v != KVC_VICTIM_YOUNG)
			queue_copies_locked(k, c);
	}
	if (v == KVC_VICTIM_KEEP && !c->hints.refused)
		back_locked(k, c);
	if (!exclude_locked(p, c, v)) {
		c->refs--;
		kvc_chunk_push_locked(k, c);
		kvc_chunk_settle_locked(k, c);
	}
	return false;
}

/* A pass may exclude thousands of chunks: releases the lock after every few of them. */
static void pause_excluded_locked(struct kvc *k, size_t done)
{
	if (done % RETURN_AT == RETURN_AT - 1)
		kvc_pause_locked(k);
}

/* Copies lag and stores have waited long enough: drops the coldest chunks without a copy. */
static void drop_behind_locked(struct kvc *k, struct pass *p)
{
	for (size_t i = 0; i < p->nexcluded && !k->stopping && overdue_bytes_locked(k); i++) {
		struct kvc_chunk *c = p->excluded[i].chunk;
		int err;

		pause_excluded_locked(k, i);
		if (p->excluded[i].verdict != KVC_VICTIM_COPY || kvc_list_empty(&c->nodes) ||
		    kvc_chunk_young(k, c->use.last_ns) || kvc_victim_unfinished_locked(k, c) ||
		    kvc_victim_mapped(k, c))
			continue;
		err = drop_chunk_locked(k, c->id, KVC_FOR_behind);
		p->progress |= !err || err == -EAGAIN;
		if (err)
			continue;
		kvc_count(&k->stats, behind_drops);
		kvc_replacers_evicted(k, KVC_FOR_behind, KVC_FROM_POOL, c->policy);
	}
}

/*
 * Nothing else can be evicted and a store waits: drops the KVC_VICTIM_LATER chunks, the coldest
 * first.
 */
static void drop_later_locked(struct kvc *k, struct pass *p)
{
	for (size_t i = 0; i < p->nexcluded && !k->stopping && !p->progress; i++) {
		struct kvc_chunk *c = p->excluded[i].chunk;

		pause_excluded_locked(k, i);
		if (kvc_list_empty(&k->reservations.waiters))
			break;
		if (p->excluded[i].verdict != KVC_VICTIM_LATER || kvc_list_empty(&c->nodes) ||
		    kvc_victim_mapped(k, c))
			continue;
		if (!drop_chunk_locked(k, c->id, KVC_FOR_pool)) {
			p->progress = true;
			kvc_replacers_evicted(k, KVC_FOR_pool, KVC_FROM_POOL, c->policy);
		}
	}
}

/*
 * Evicts the unused objects with a copy from a chunk that otherwise stays. Returns true if it
 * evicted any.
 */
static bool evict_others_locked(struct kvc *k, struct pass *p, struct kvc_chunk *c)
{
	bool any = false;

	for (unsigned i = c->nnodes; i && c->nnodes; i--) {
		struct kvc_node *n = kvc_victim_rotate_locked(c);
		struct kvc_segment s = kvc_file_segment_of(n);

		if (n->state == KVC_BOTH && !n->refs.opens && !n->refs.leases) {
			kvc_file_close_segment_locked(k, n);
			if (kvc_victim_may_leave(k, n) &&
			    !kvc_pool_segment_in_use(&k->pool, &s, false)) {
				evict_node_locked(k, p, n);
				any = true;
			}
		}
		if (p->nunlinked >= FREE_AT || i % FREE_AT == 0)
			free_unlinked_locked(k, p);
	}
	free_unlinked_locked(k, p);
	return any;
}

/*
 * Nothing else can be evicted, and the first store is about to be refused: evicts parts of chunks,
 * the coldest first.
 */
static void evict_parts_locked(struct kvc *k, struct pass *p)
{
	for (size_t i = 0; i < p->nexcluded && !k->stopping && !p->progress; i++) {
		struct kvc_chunk *c = p->excluded[i].chunk;

		pause_excluded_locked(k, i);
		if (k->reservations.stuck < STUCK_PASSES / 2 ||
		    kvc_list_empty(&k->reservations.waiters))
			break;
		if (p->excluded[i].verdict == KVC_VICTIM_KEEP && !c->detached &&
		    !kvc_pin_protects_locked(k, c->id, c->pin_until_ns, KVC_PIN_POOL))
			p->progress = evict_others_locked(k, p, c);
	}
}

/* If a client wants to keep the chunk, excludes it for this pass and returns true. */
static bool keep_hinted_locked(struct kvc *k, struct pass *p, struct kvc_chunk *c)
{
	if (p->ignores_hints || kvc_hints_worth(&c->hints, kvc_mono_ns()) != KVC_WORTH_LATER ||
	    p->nhinted >= HINTED_MOST || p->hinted_bytes + c->bytes > k->pool.bytes / HINTED_PART ||
	    !exclude_locked(p, c, KVC_VICTIM_HINTED))
		return false;
	c->refs++;
	p->nhinted++;
	p->hinted_bytes += c->bytes;
	return true;
}

/* Nothing else can be evicted: puts the chunks that hints have kept back into the order. */
static bool lift_hints_locked(struct kvc *k, struct pass *p)
{
	size_t left = 0;
	bool any = p->nhinted;

	p->ignores_hints = true;
	for (size_t i = 0; i < p->nexcluded && any; i++) {
		struct kvc_chunk *c = p->excluded[i].chunk;

		pause_excluded_locked(k, i);
		if (p->excluded[i].verdict != KVC_VICTIM_HINTED) {
			p->excluded[left++] = p->excluded[i];
			continue;
		}
		c->refs--;
		kvc_chunk_push_locked(k, c);
		kvc_chunk_settle_locked(k, c);
	}
	if (any)
		p->nexcluded = left;
	p->nhinted = 0;
	return any;
}

/*
 * Returns the next chunk to judge, or NULL. If the order has no victim, protection is lifted step
 * by step: first that of chunks with hints, then that of chunks whose requests are still under way,
 * then that of the parents of excluded chunks, and last that of the parents of pinned chunks.
 */
static struct kvc_chunk *next_chunk_locked(struct kvc *k, struct pass *p)
{
	struct kvc_chunk *c = kvc_leaving_take_locked(k, true) ?: kvc_hinted_victim_locked(k),
			 *last;

	c = c ?: kvc_tenant_victim_locked(k) ?: kvc_leaving_take_locked(k, false);
	if (c && c->pin)
		back_locked(k, c);
	c = c ?: kvc_chunk_pop_locked(k);
	if (!c && lift_hints_locked(k, p))
		c = kvc_chunk_pop_locked(k);
	if (!c && kvc_access_end_all_locked(k))
		c = kvc_chunk_pop_locked(k);
	for (; !c && p->parted < p->nexcluded; p->parted++) {
		last = p->excluded[p->parted].chunk;
		pause_excluded_locked(k, p->parted);
		if (last->parent) {
			kvc_replacers_unlink_parent_locked(k, last);
			c = kvc_chunk_pop_locked(k);
		}
	}
	for (unsigned i = 0; !c && i < RETURN_AT && (last = kvc_pin_chained_locked(k)); i++) {
		p->progress = true;
		if (last->parent) {
			kvc_replacers_unlink_parent_locked(k, last);
			c = kvc_chunk_pop_locked(k);
		}
	}
	if (c && c->fresh)
		kvc_access_settle_locked(k, c);
	return c;
}

/* Returns some of the chunks whose pins have ended to the pool's order. */
static void pins_back_locked(struct kvc *k, struct pass *p)
{
	struct kvc_chunk *c;

	for (unsigned i = 0; i < RETURN_AT && (c = kvc_pin_back_locked(k)); i++) {
		kvc_chunk_push_locked(k, c);
		p->progress = true;
	}
}

/* Makes one pass over the pool. Returns true if space was freed or will be soon. */
static bool pool_pass(struct kvc *k)
{
	struct pass p = { 0 };
	struct kvc_chunk *c;
	unsigned nodes = 0;

	kvc_lock(k);
	p.overdue = overdue_bytes_locked(k) > 0;
	pins_back_locked(k, &p);
	while (!k->stopping && pool_excess_locked(k) > p.coming && (c = next_chunk_locked(k, &p))) {
		nodes += c->nnodes + CHUNK_COST;
		if (kvc_pin_out_locked(k, c))
			p.progress = true; /* counts once per chunk */
		else if (!keep_hinted_locked(k, &p, c))
			handle_chunk_locked(k, &p, c);
		if (nodes >= BATCH || p.nunlinked >= FREE_AT) {
			free_unlinked_locked(k, &p);
			nodes = 0;
		}
	}
	free_unlinked_locked(k, &p);
	drop_behind_locked(k, &p);
	drop_later_locked(k, &p);
	evict_parts_locked(k, &p);
	for (size_t i = 0; i < p.nexcluded; i++) {
		c = p.excluded[i].chunk;
		c->refs--;
		kvc_chunk_push_locked(k, c);
		kvc_chunk_settle_locked(k, c);
		pause_excluded_locked(k, i);
	}
	if (!kvc_list_empty(&k->deferred_free->list)) {
		p.progress = true;
		kvc_committer_wake_locked(k, true);
	}
	kvc_unlock(k);
	free(p.excluded);
	return p.progress;
}

void *kvc_evictor(void *arg)
{
	struct kvc *k = arg;

	kvc_lock(k);
	while (!k->stopping) {
		bool pressed = pool_excess_locked(k) > 0;
		struct timespec t = kvc_timespec(kvc_mono_ns() + (pressed ? PRESSED_NS : IDLE_NS));

		kvc_lock_wait(&k->lock, &k->reservations.pressed, &t);
		if (k->stopping)
			break;
		pressed = pool_excess_locked(k) > 0;
		kvc_unlock(k);
		bool progress = pressed && pool_pass(k);

		kvc_lock(k);
		kvc_throttle_measure_locked(k);
		kvc_access_tick_locked(k);
		if (progress || kvc_list_empty(&k->reservations.waiters) || k->work->running ||
		    k->reservations.leaving) {
			k->reservations.stuck = 0;
		} else if (++k->reservations.stuck >= STUCK_PASSES) {
			/* everything left is open, leased or pinned */
			kvc_wait_refuse_first_locked(k, &k->reservations.waiters);
			k->reservations.stuck = 0;
		}
	}
	kvc_unlock(k);
	return NULL;
}
