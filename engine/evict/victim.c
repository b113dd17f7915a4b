/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk as a victim: walks over its nodes, and judges whether it can leave the pool (in use,
 * copied, to be copied, or without a tier that takes it). The evictor and demote.c call it.
 */
#include "victim.h"

#include "access.h"
#include "committer.h"
#include "file.h"
#include "pin.h"
#include "spill.h"
#include "tier_queue.h"

/* failed copies after which the object may be dropped: the file itself may cause the failure */
#define TRIES 3

#define UNFINISHED_NS 10000000000ull /* how long a closed file may keep a temporary name */

#define WALK 128    /* nodes of one chunk per hold of the lock */
#define CLOSE_AT 16 /* segments that are closed per hold of the lock */

uint64_t kvc_victim_model(const struct kvc_chunk *c)
{
	return kvc_list_empty(&c->nodes) ? 0
					 : kvc_of(c->nodes.next, struct kvc_node, part.link)->model;
}

struct kvc_node *kvc_victim_rotate_locked(struct kvc_chunk *c)
{
	struct kvc_node *n = kvc_of(c->nodes.next, struct kvc_node, part.link);

	kvc_chunk_move_last_locked(c, n);
	return n;
}

bool kvc_victim_walk_locked(struct kvc *k, struct kvc_chunk *c, kvc_victim_node_fn *fn, void *arg)
{
	unsigned done = 0;

	for (unsigned i = c->nnodes; i && c->nnodes; i--) {
		struct kvc_node *n = kvc_victim_rotate_locked(c);

		if (fn(k, n, arg)) {
			kvc_chunk_move_first_locked(c, n);
			return true;
		}
		if (++done % WALK == 0)
			kvc_pause_locked(k);
	}
	return false;
}

bool kvc_victim_mapped(struct kvc *k, struct kvc_chunk *c)
{
	bool any = false;

	for (unsigned i = c->nnodes; i && c->nnodes && !any; i--) {
		struct kvc_node *n = kvc_victim_rotate_locked(c);
		struct kvc_segment s = kvc_file_segment_of(n);

		if (n->refs.opens || n->refs.leases)
			return true;
		kvc_file_close_segment_locked(k, n);
		any = kvc_pool_segment_in_use(&k->pool, &s, false);
		if (i % CLOSE_AT == 0)
			kvc_pause_locked(k);
	}
	return any;
}

bool kvc_victim_copied(const struct kvc *k, const struct kvc_node *n)
{
	if (n->state != KVC_BOTH || n->segment.verify)
		return false;
	kvc_tier_each(k, t) {
		enum kvc_tier_synced is;

		if (!kvc_file_placed_in(n, t))
			continue;
		is = kvc_tier_synced(k->tier[t].t, &n->in[t].place.where);
		if (is != KVC_TIER_LOST && !(is == KVC_TIER_UNKNOWN && n->segment.inherited))
			return true;
	}
	return false;
}

bool kvc_victim_may_leave(const struct kvc *k, const struct kvc_node *n)
{
	return n->state == KVC_BOTH && !n->segment.verify && !n->refs.opens && !n->refs.leases &&
	       !n->segment.snapshot && !n->segment.backing && n->segment.fd < 0 &&
	       n->copies.txn <= k->committer->committed;
}

static bool pool_tier_possible(struct kvc *k, const struct kvc_node *n)
{
	kvc_tier_each(k, t)
		if (kvc_tier_accepts_locked(k, t) && !kvc_admission_check_locked(k, n, t) &&
		    !(n->copies.uncopyable & (1u << t)) &&
		    !(n->spill.failing && (k->tier[t].breaker.of[KVC_CALL_WRITE].failures ||
					   n->spill.failures >= TRIES)))
			return true;
	return false;
}

bool kvc_victim_disk_comes_locked(struct kvc *k, const struct kvc_node *n)
{
	const unsigned bit = 1u << KVC_DISK;

	return k->tier[KVC_DISK].t && (n->copying & bit) && !kvc_file_placed_in(n, KVC_DISK) &&
	       !(n->copies.uncopyable & bit) && !n->spill.failing &&
	       kvc_tier_accepts_locked(k, KVC_DISK) && !kvc_admission_check_locked(k, n, KVC_DISK);
}

/* Have failed syncs lost its copies, and can it be copied again? Requests the new copies. */
static bool copies_again_locked(struct kvc *k, struct kvc_node *n)
{
	return !kvc_victim_copied(k, n) && pool_tier_possible(k, n) &&
	       kvc_spill_lost_locked(k, n, KVC_TIER_LOST);
}

/* Was the file closed recently, and does it still have a temporary name? */
static bool unfinished(struct kvc *k, struct kvc_node *n, void *now)
{
	(void)k;
	return n->segment.temporary_ns &&
	       *(const uint64_t *)now - n->segment.temporary_ns < UNFINISHED_NS;
}

bool kvc_victim_unfinished_locked(struct kvc *k, struct kvc_chunk *c)
{
	uint64_t now = kvc_mono_ns();

	return kvc_victim_walk_locked(k, c, unfinished, &now);
}

struct judgement {
	enum kvc_verdict v;
	struct kvc_refused *refused;
};

/* Updates the verdict for one more node. Returns true if further nodes cannot change it. */
static bool judge_node_locked(struct kvc *k, struct kvc_node *n, void *arg)
{
	struct judgement *j = arg;
	enum kvc_refusal why;

	if (n->refs.opens || n->refs.leases || n->state == KVC_OPEN || n->segment.snapshot) {
		j->v = KVC_VICTIM_KEEP;
		return true;
	}
	if ((why = kvc_admission_check_locked(k, n, KVC_DISK)))
		*j->refused = (struct kvc_refused){ why, j->refused->bytes + n->acct.reserved };
	if (n->state == KVC_BOTH && !n->segment.verify) {
		if (n->copies.txn > k->committer->committed && j->v < KVC_VICTIM_COPY) {
			kvc_committer_wake_locked(k, true);
			j->v = KVC_VICTIM_COPY;
		}
		if ((copies_again_locked(k, n) || kvc_victim_disk_comes_locked(k, n)) &&
		    j->v == KVC_VICTIM_EVICT)
			j->v = KVC_VICTIM_COMES;
		return false;
	}
	if (!pool_tier_possible(k, n))
		j->v = KVC_VICTIM_DROP;
	else if (j->v != KVC_VICTIM_DROP)
		j->v = KVC_VICTIM_COPY;
	return false;
}

static bool is_protected_locked(struct kvc *k, const struct kvc_chunk *c)
{
	return kvc_pin_protects_locked(k, c->id, c->pin_until_ns, KVC_PIN_POOL) || c->detached;
}

enum kvc_verdict kvc_victim_judge_locked(struct kvc *k, struct kvc_chunk *c, struct kvc_refused *r)
{
	struct judgement j = { KVC_VICTIM_EVICT, r };

	*r = (struct kvc_refused){ 0 };
	if (is_protected_locked(k, c))
		return KVC_VICTIM_KEEP;
	kvc_victim_walk_locked(k, c, judge_node_locked, &j);
	if (is_protected_locked(k, c))
		return KVC_VICTIM_KEEP;
	if (j.v == KVC_VICTIM_DROP && (kvc_chunk_young(k, c->use.last_ns) ||
				       (c->disk.refused && kvc_access_is_last_locked(k, c))))
		return KVC_VICTIM_YOUNG;
	return j.v == KVC_VICTIM_DROP && kvc_victim_unfinished_locked(k, c) ? KVC_VICTIM_LATER
									    : j.v;
}
