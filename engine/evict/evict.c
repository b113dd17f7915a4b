/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The evictor: keeps the pool between its watermarks, by chunk, lowest rank first, and never inside
 * a request. A chunk leaves the pool when every object of it has a committed copy in a tier; one
 * that has not is copied first or, where no tier can take it, or lets it in (access/admission.c),
 * dropped whole. So are the coldest that have no copy yet when stores have waited for the copies
 * long enough (pace=). A copy elsewhere is enough, but while the disk's is on its way it is waited
 * for as long, or under load what a fast remote has would never come to the disk. Bounded tiers and
 * quotas have threads of their own (trim.c).
 *
 * Open, leased and pinned objects, and those that a client still has mapped, stay, and their chunk
 * with them; but where a store would be refused otherwise, what is not pinned of such a chunk and
 * nobody has in hand goes. Pins beyond what may be pinned do not count (limits/pin.c).
 */
#include "evict.h"

#include "account.h"
#include "admission.h"
#include "clock.h"
#include "committer.h"
#include "dir_invalidate.h"
#include "file.h"
#include "event_ring.h"
#include "throttle.h"
#include "path.h"
#include "pin.h"
#include "spill.h"
#include "tier_queue.h"
#include "deferred_free.h"
#include "access.h"

#include <fcntl.h>
#include <string.h>

#define LOOK_NS 10000000ull
#define IDLE_NS 250000000ull
#define STUCK_LOOKS 12
#define BATCH 512   /* nodes of chunks that are judged under one hold of the lock */
#define WALK 128    /* and nodes of one chunk */
#define TRIES 3     /* copies that failed: the file may be at fault, and its room is wanted */
#define EACH 64     /* and a chunk counts as so many more */
#define QUEUE_AT 64 /* copies that are asked for at once */
#define BACK 64     /* chunks put back into the order at once */
#define FREE_AT 16  /* segments that are looked at, or whose pages go, at once */

#define UNFINISHED_NS 10000000000ull /* that a closed file may wait for its own name */

/*
 * COMES: it has copies, and the one of the disk is on its way. LATER: a file of it is about to get
 * its name; its writer would find it gone.
 */
enum verdict { EVICT, COMES, COPY, DROP, YOUNG, LATER, KEEP };

/* What a pass put aside and does not evict; it goes back at the end. */
struct aside {
	struct kvc_chunk *chunk;
	enum verdict verdict;
};

struct pass {
	struct aside *aside;
	size_t naside, aside_room, parted;
	uint64_t coming;   /* bytes that will be free without more being done */
	int kept[FREE_AT]; /* segments without a name whose pages are not freed yet */
	size_t nkept;
	uint64_t kept_room;
	bool progress;
	bool overdue; /* stores have waited for longer than pace= says */
};

static bool pool_tier_possible(struct kvc *k, const struct kvc_node *n)
{
	kvc_tier_each(k, t)
		if (kvc_tier_takes_locked(k, t) && !kvc_admission_check_locked(k, n, t) &&
		    !(n->hopeless & (1u << t)) &&
		    !(n->failing &&
		      (k->tier[t].breaker.of[KVC_CALL_WRITE].failures || n->tries >= TRIES)))
			return true;
	return false;
}

/* Its copy in the disk tier is queued or being made, and nothing says that it will not be. */
static bool disk_comes(struct kvc *k, const struct kvc_node *n)
{
	const unsigned bit = 1u << KVC_DISK;

	return k->tier[KVC_DISK].t && (n->spilling & bit) && !kvc_placed_in(n, KVC_DISK) &&
	       !(n->hopeless & bit) && !n->failing && kvc_tier_takes_locked(k, KVC_DISK) &&
	       !kvc_admission_check_locked(k, n, KVC_DISK);
}

/* What of a chunk the disk tier does not let in. */
struct refused {
	enum kvc_refusal why;
	uint64_t bytes;
};

/* A file with a temporary name that was closed recently. */
static bool unfinished(struct kvc *k, struct kvc_node *n, void *now)
{
	(void)k;
	return n->temporary_ns && *(const uint64_t *)now - n->temporary_ns < UNFINISHED_NS;
}

static bool unfinished_locked(struct kvc *k, struct kvc_chunk *c)
{
	uint64_t now = kvc_mono_ns();

	return kvc_evict_walk_locked(k, c, unfinished, &now);
}

struct judged {
	enum verdict v;
	struct refused *refused;
};

/* What one more node makes of the verdict. True: nothing can change it any more. */
static bool judge_node_locked(struct kvc *k, struct kvc_node *n, void *arg)
{
	struct judged *j = arg;
	enum kvc_refusal why;

	if (n->nopen || n->leases || n->state == KVC_OPEN || n->snapshot) {
		j->v = KEEP;
		return true;
	}
	if ((why = kvc_admission_check_locked(k, n, KVC_DISK)))
		*j->refused = (struct refused){ why, j->refused->bytes + n->reserved };
	if (n->state == KVC_BOTH && !n->verify) {
		if (n->place_txn > k->committer->committed && j->v < COPY) {
			kvc_committer_wake_locked(k, true);
			j->v = COPY;
		}
		if (j->v == EVICT && disk_comes(k, n))
			j->v = COMES;
		return false;
	}
	if (!pool_tier_possible(k, n))
		j->v = DROP;
	else if (j->v != DROP)
		j->v = COPY;
	return false;
}

static bool stays_locked(struct kvc *k, const struct kvc_chunk *c)
{
	return kvc_pin_holds_locked(k, c->id, c->pin_until_ns, KVC_PIN_POOL) || c->detached;
}

/* The lock is given back in between: whoever acts on the verdict looks at each node again. */
static enum verdict judge_locked(struct kvc *k, struct kvc_chunk *c, struct refused *r)
{
	struct judged j = { EVICT, r };

	*r = (struct refused){ 0 };
	if (stays_locked(k, c))
		return KEEP;
	kvc_evict_walk_locked(k, c, judge_node_locked, &j);
	if (stays_locked(k, c))
		return KEEP;
	if (j.v == DROP && kvc_chunk_young(k, c->use.last_ns))
		return YOUNG;
	return j.v == DROP && unfinished_locked(k, c) ? LATER : j.v;
}

struct kvc_node *kvc_evict_turn_locked(struct kvc_chunk *c)
{
	struct kvc_list *e = c->nodes.next;

	kvc_list_del(e);
	kvc_list_add_tail(&c->nodes, e);
	return kvc_of(e, struct kvc_node, chunk_link);
}

bool kvc_evict_walk_locked(struct kvc *k, struct kvc_chunk *c, kvc_evict_node_fn *fn, void *arg)
{
	unsigned done = 0;

	for (unsigned i = c->nnodes; i && c->nnodes; i--) {
		struct kvc_node *n = kvc_evict_turn_locked(c);

		if (fn(k, n, arg)) {
			kvc_list_del(&n->chunk_link);
			kvc_list_add_head(&c->nodes, &n->chunk_link);
			return true;
		}
		if (++done % WALK == 0)
			kvc_pause_locked(k);
	}
	return false;
}

bool kvc_evict_mapped(struct kvc *k, struct kvc_chunk *c)
{
	bool any = false;

	for (unsigned i = c->nnodes; i && c->nnodes && !any; i--) {
		struct kvc_node *n = kvc_evict_turn_locked(c);
		struct kvc_segment s = kvc_file_segment_of(n);

		if (n->nopen || n->leases)
			return true;
		kvc_file_close_segment_locked(k, n);
		any = kvc_pool_segment_in_use(&k->pool, &s, false);
		if (i % FREE_AT == 0)
			kvc_pause_locked(k);
	}
	return any;
}

bool kvc_evict_may_leave(const struct kvc *k, const struct kvc_node *n)
{
	return n->state == KVC_BOTH && !n->verify && !n->nopen && !n->leases && !n->snapshot &&
	       !n->backing && n->fd < 0 && n->place_txn <= k->committer->committed;
}

/*
 * A segment's name goes here and now, since a load may make it anew; its pages, which takes as long
 * as it is large, when `p` gives back what it keeps (free_kept), and only then there is room.
 */
static void evict_node_locked(struct kvc *k, struct pass *p, struct kvc_node *n)
{
	struct kvc_segment s = kvc_file_segment_of(n);
	int fd = p->nkept < FREE_AT ? kvc_pool_segment_open(&k->pool, &s, O_PATH) : -1;

	kvc_pool_segment_remove(&k->pool, &s);
	kvc_file_become_locked(k, n, KVC_LOWER);
	if (fd >= 0) {
		p->kept[p->nkept++] = fd;
		p->kept_room += n->reserved;
		k->reservations.leaving += n->reserved;
		n->reserved = 0;
		kvc_account_quota_count_locked(k, n);
	} else {
		kvc_account_set_reserved_locked(k, n, 0);
	}
	kvc_count(&k->stats, evictions);
	kvc_event_ring_put_locked(k, KVC_EVENT_RING_evicted, KVC_EVENT_RING_POOL, n);
	kvc_node_settle_locked(k, n);
}

/* The lock is let go meanwhile. */
static void free_kept_locked(struct kvc *k, struct pass *p)
{
	uint64_t reserved = p->kept_room;

	kvc_unlock(k);
	for (size_t i = 0; i < p->nkept; i++)
		close(p->kept[i]);
	p->nkept = 0;
	p->kept_room = 0;
	kvc_lock_pause(&k->lock);
	kvc_lock(k);
	k->reservations.leaving -= kvc_min(k->reservations.leaving, reserved);
	kvc_reservation_put_locked(k, reserved);
}

/* What somebody takes in hand while the others leave stays. */
static void evict_chunk_locked(struct kvc *k, struct pass *p, struct kvc_chunk *c)
{
	for (unsigned i = c->nnodes; i && c->nnodes; i--) {
		struct kvc_node *n = kvc_evict_turn_locked(c);

		if (kvc_evict_may_leave(k, n))
			evict_node_locked(k, p, n);
		if (p->nkept >= FREE_AT)
			free_kept_locked(k, p);
	}
	kvc_chunk_push_locked(k, c);
	kvc_count(&k->stats, evicted_chunks);
	kvc_replacers_evicted(k, KVC_FOR_pool, KVC_FROM_POOL, c->policy);
	kvc_clock_since(k, &k->stats.eviction_age, c->use.created_ns);
}

/* How many bytes the pool should lose now, beyond what is trash already. */
static uint64_t wanted_locked(struct kvc *k)
{
	const struct kvc_list *first = &k->reservations.waiters;
	uint64_t want, need = 0;

	kvc_reservation_look_locked(k);
	want = kvc_reservation_excess(k->reservations.used + k->reservations.unseen, k->pool.bytes,
				      &k->opt, &k->evict->trimming);
	if (!kvc_list_empty(first))
		need = kvc_of(first->next, struct kvc_wait, link)->want;
	if (need)
		want = kvc_max(want, kvc_reservation_lacks_locked(k, need));
	return want - kvc_min(want, k->reservations.leaving);
}

/* What the stores need that have waited for longer than pace= says. */
static uint64_t overdue_locked(struct kvc *k)
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

/* The lock is let go in between; the caller keeps the chunk in memory. */
static void copy_locked(struct kvc *k, struct kvc_chunk *c)
{
	for (unsigned i = c->nnodes; i && c->nnodes; i--) {
		struct kvc_node *n = kvc_evict_turn_locked(c);

		if (n->state == KVC_RESIDENT || n->verify || disk_comes(k, n))
			kvc_spill_queue_locked(k, n, true);
		if (i % QUEUE_AT == 0)
			kvc_pause_locked(k);
	}
}

/*
 * Drops a chunk that is in memory; the lock is let go meanwhile. -ENOENT where it is not there any
 * more.
 */
static int drop_locked(struct kvc *k, uint64_t id)
{
	int err;

	kvc_unlock(k);
	err = kvc_chunk_drop(k, id, KVC_DROP_FOR_POOL, NULL, NULL);
	kvc_lock(k);
	return err;
}

/* The chunk's name as a number; 0: it has none. The lock is let go meanwhile. */
static uint64_t name_locked(struct kvc *k, uint64_t id)
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

/* The chunk has left the pool. */
static void refused(struct kvc *k, const struct refused *r)
{
	if (!r->why)
		return;
	kvc_count(&k->stats, refused_chunks[r->why]);
	kvc_count_by(&k->stats, refused_bytes[r->why], r->bytes);
}

/* One chunk, put aside. Returns whether it went. */
static bool one_locked(struct kvc *k, struct pass *p, struct kvc_chunk *c)
{
	struct refused r;
	enum verdict v;
	uint64_t name = 0;
	int err;

	c->inflight++; /* stays, also while others are let in */
	v = judge_locked(k, c, &r);
	if (v == COMES && p->overdue)
		v = EVICT;
	if (v == DROP && r.why == KVC_REFUSED_twice) {
		name = name_locked(k, c->id);
		if (kvc_admission_was_dropped_locked(k, c, name))
			v = judge_locked(k, c, &r);
	}
	if ((v == EVICT || v == DROP) && kvc_evict_mapped(k, c))
		v = KEEP;
	if (v != KEEP)
		kvc_chunk_class_gave_locked(k, &k->chunks->turns, c->policy);
	if (v == EVICT) {
		evict_chunk_locked(k, p, c);
		refused(k, &r);
		c->inflight--;
		kvc_chunk_settle_locked(k, c);
		p->progress = true;
		return true;
	}
	if (v == DROP) {
		err = drop_locked(k, c->id);
		p->progress |= !err || err == -EAGAIN;
		if (!err) {
			kvc_replacers_evicted(k, r.why ? KVC_FOR_refused : KVC_FOR_pool,
					      KVC_FROM_POOL, c->policy);
			refused(k, &r);
			kvc_admission_dropped_locked(k, name);
		}
		if (err == -EAGAIN)
			p->coming += c->bytes;
	} else if (v == YOUNG || v == COPY || v == COMES) {
		p->coming += c->bytes;
		p->progress = true; /* young: it grows older */
		if (v != YOUNG)
			copy_locked(k, c);
	}
	if (kvc_grow(&p->aside, p->naside, &p->aside_room, sizeof *p->aside)) {
		c->inflight--;
		kvc_chunk_push_locked(k, c);
		kvc_chunk_settle_locked(k, c);
		return false;
	}
	p->aside[p->naside++] = (struct aside){ c, v };
	return false;
}

/* Chunks were put aside by the thousand: others are let in after every few of them. */
static void pause_aside_locked(struct kvc *k, size_t done)
{
	if (done % BACK == BACK - 1)
		kvc_pause_locked(k);
}

/* Copies are behind and stores have waited long enough: the coldest chunks without a copy go. */
static void drop_behind_locked(struct kvc *k, struct pass *p)
{
	for (size_t i = 0; i < p->naside && !k->stopping && overdue_locked(k); i++) {
		struct kvc_chunk *c = p->aside[i].chunk;
		int err;

		pause_aside_locked(k, i);
		if (p->aside[i].verdict != COPY || kvc_list_empty(&c->nodes) ||
		    kvc_chunk_young(k, c->use.last_ns) || unfinished_locked(k, c) ||
		    kvc_evict_mapped(k, c))
			continue;
		err = drop_locked(k, c->id);
		p->progress |= !err || err == -EAGAIN;
		if (err)
			continue;
		kvc_count(&k->stats, behind_drops);
		kvc_replacers_evicted(k, KVC_FOR_behind, KVC_FROM_POOL, c->policy);
	}
}

/* Nothing else can go, and a store waits: what should have gone later does, coldest first. */
static void drop_later_locked(struct kvc *k, struct pass *p)
{
	for (size_t i = 0; i < p->naside && !k->stopping && !p->progress; i++) {
		struct kvc_chunk *c = p->aside[i].chunk;

		pause_aside_locked(k, i);
		if (kvc_list_empty(&k->reservations.waiters))
			break;
		if (p->aside[i].verdict != LATER || kvc_list_empty(&c->nodes) ||
		    kvc_evict_mapped(k, c))
			continue;
		if (!drop_locked(k, c->id)) {
			p->progress = true;
			kvc_replacers_evicted(k, KVC_FOR_pool, KVC_FROM_POOL, c->policy);
		}
	}
}

/* Of a chunk that stays for some of its files the others, which have a copy. Did any go? */
static bool evict_others_locked(struct kvc *k, struct pass *p, struct kvc_chunk *c)
{
	bool any = false;

	for (unsigned i = c->nnodes; i && c->nnodes; i--) {
		struct kvc_node *n = kvc_evict_turn_locked(c);
		struct kvc_segment s = kvc_file_segment_of(n);

		if (n->state == KVC_BOTH && !n->nopen && !n->leases) {
			kvc_file_close_segment_locked(k, n);
			if (kvc_evict_may_leave(k, n) &&
			    !kvc_pool_segment_in_use(&k->pool, &s, false)) {
				evict_node_locked(k, p, n);
				any = true;
			}
		}
		if (p->nkept >= FREE_AT || i % FREE_AT == 0)
			free_kept_locked(k, p);
	}
	free_kept_locked(k, p);
	return any;
}

/* Nothing else can go, and the store that waits is about to be refused. Coldest first. */
static void evict_parts_locked(struct kvc *k, struct pass *p)
{
	for (size_t i = 0; i < p->naside && !k->stopping && !p->progress; i++) {
		struct kvc_chunk *c = p->aside[i].chunk;

		pause_aside_locked(k, i);
		if (k->reservations.stuck < STUCK_LOOKS / 2 ||
		    kvc_list_empty(&k->reservations.waiters))
			break;
		if (p->aside[i].verdict == KEEP && !c->detached &&
		    !kvc_pin_holds_locked(k, c->id, c->pin_until_ns, KVC_PIN_POOL))
			p->progress = evict_others_locked(k, p, c);
	}
}

/*
 * The next to be judged. Where there is none, what protects others does so no more: requests under
 * way; and then what stays lets what it follows go before it.
 */
static struct kvc_chunk *next_locked(struct kvc *k, struct pass *p)
{
	struct kvc_chunk *c = kvc_chunk_pop_locked(k), *last;

	if (!c && kvc_access_loosen_locked(k))
		c = kvc_chunk_pop_locked(k);
	for (; !c && p->parted < p->naside; p->parted++) {
		last = p->aside[p->parted].chunk;
		pause_aside_locked(k, p->parted);
		if (last->parent) {
			kvc_replacers_part_locked(k, last);
			c = kvc_chunk_pop_locked(k);
		}
	}
	for (unsigned i = 0; !c && i < BACK && (last = kvc_pin_chained_locked(k)); i++) {
		p->progress = true;
		if (last->parent) {
			kvc_replacers_part_locked(k, last);
			c = kvc_chunk_pop_locked(k);
		}
	}
	if (c && c->fresh)
		kvc_access_settle_locked(k, c);
	return c;
}

/* Some of the chunks whose pins hold no more are in the pool's order again. */
static void pins_back_locked(struct kvc *k, struct pass *p)
{
	struct kvc_chunk *c;

	for (unsigned i = 0; i < BACK && (c = kvc_pin_back_locked(k)); i++) {
		kvc_chunk_push_locked(k, c);
		p->progress = true;
	}
}

/* One pass over the pool. Returns whether anything was or will soon be freed. */
static bool pool_pass(struct kvc *k)
{
	struct pass p = { 0 };
	struct kvc_chunk *c;
	unsigned nodes = 0;

	kvc_lock(k);
	p.overdue = overdue_locked(k) > 0;
	pins_back_locked(k, &p);
	while (!k->stopping && wanted_locked(k) > p.coming && (c = next_locked(k, &p))) {
		nodes += c->nnodes + EACH;
		if (kvc_pin_out_locked(k, c))
			p.progress = true; /* once for each */
		else
			one_locked(k, &p, c);
		if (nodes >= BATCH || p.nkept >= FREE_AT) {
			free_kept_locked(k, &p);
			nodes = 0;
		}
	}
	free_kept_locked(k, &p);
	drop_behind_locked(k, &p);
	drop_later_locked(k, &p);
	evict_parts_locked(k, &p);
	for (size_t i = 0; i < p.naside; i++) {
		c = p.aside[i].chunk;
		c->inflight--;
		kvc_chunk_push_locked(k, c);
		kvc_chunk_settle_locked(k, c);
		pause_aside_locked(k, i);
	}
	if (!kvc_list_empty(&k->deferred_free->list)) {
		p.progress = true;
		kvc_committer_wake_locked(k, true);
	}
	kvc_unlock(k);
	free(p.aside);
	return p.progress;
}

void *kvc_evictor(void *arg)
{
	struct kvc *k = arg;

	kvc_lock(k);
	while (!k->stopping) {
		bool pressed = wanted_locked(k) > 0;
		struct timespec t = kvc_timespec(kvc_mono_ns() + (pressed ? LOOK_NS : IDLE_NS));

		kvc_lock_wait(&k->lock, &k->reservations.pressed, &t);
		if (k->stopping)
			break;
		pressed = wanted_locked(k) > 0;
		kvc_unlock(k);
		bool progress = pressed && pool_pass(k);

		kvc_lock(k);
		kvc_throttle_measure_locked(k);
		kvc_access_tick_locked(k);
		if (progress || kvc_list_empty(&k->reservations.waiters) || k->work->running ||
		    k->reservations.leaving) {
			k->reservations.stuck = 0;
		} else if (++k->reservations.stuck >= STUCK_LOOKS) {
			/* All that is left is open, leased or pinned. */
			kvc_wait_refuse_first_locked(k, &k->reservations.waiters);
			k->reservations.stuck = 0;
		}
	}
	kvc_unlock(k);
	return NULL;
}
