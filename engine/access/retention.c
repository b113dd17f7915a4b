/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which chunks the pool's policy keeps. The first use of a chunk since it entered the pool,
 * or since the policy gave it up (objects/leaving.h), is a miss for the policy: if the kept chunks
 * would exceed low= with it, the policy refuses it or gives up others, at once. These are the steps
 * of kvcachectl replay, so a mount keeps the same chunks. Bytes of chunks that are being created,
 * or that leave, do not count as kept.
 *
 * Finished chunks (objects/hinted.c) and those of tenants above their shares (objects/tenant_set.c)
 * are given up before the policy's victims. A chunk is not refused if such a tenant gives up a
 * chunk for it. If no chunk can be given up, the evictor makes room later (evict/evict.c).
 */
#include "retention.h"

#include "hinted.h"
#include "leaving.h"
#include "pin.h"
#include "replacers.h"
#include "reservation.h"
#include "tenant_set.h"

#define VICTIMS 32 /* maximum number of chunks given up for one chunk, as the lock is held */
#define SKIPPED 8  /* maximum number of chunks passed over for one chunk */

struct skipped {
	struct kvc_chunk *v[SKIPPED];
	unsigned n;
};

static bool is_full(const struct kvc *k, uint64_t more)
{
	return k->chunks->bytes[KVC_KEPT] + more > kvc_reservation_low_locked(k);
}

/* Returns a chunk that the policy gives up, excluded from the order; NULL: none was found. */
static struct kvc_chunk *find_victim_locked(struct kvc *k, const struct kvc_chunk *than,
					    struct skipped *s)
{
	for (unsigned pinned = 0; s->n < SKIPPED && pinned < VICTIMS;) {
		struct kvc_chunk *c = kvc_hinted_victim_locked(k)
					      ?: kvc_tenant_victim_locked(k)
					      ?: kvc_chunk_pop_locked(k);

		if (!c)
			return NULL;
		if (kvc_pin_out_locked(k, c))
			pinned++;
		else if (c == than || c->fresh ||
			 kvc_hints_worth(&c->hints, kvc_mono_ns()) == KVC_WORTH_LATER)
			s->v[s->n++] = c;
		else
			return c;
	}
	return NULL;
}

/* Gives up other chunks than this one until the kept ones are within low=. */
static void give_up_locked(struct kvc *k, const struct kvc_chunk *than)
{
	struct skipped s = { .n = 0 };
	struct kvc_chunk *c;

	for (unsigned i = 0; i < VICTIMS && is_full(k, 0) && (c = find_victim_locked(k, than, &s));
	     i++) {
		kvc_replacers_count_victim_locked(k, &k->chunks->turns, c->policy);
		kvc_leaving_add_locked(k, c, false);
	}
	while (s.n)
		kvc_chunk_push_locked(k, s.v[--s.n]);
}

/* Would a chunk of another tenant, which is above its share, leave for this chunk? */
static bool others_leave_locked(struct kvc *k, const struct kvc_chunk *c)
{
	const struct kvc_tenant *t = k->tenants->table.n ? kvc_tenant_over_locked(k) : NULL;

	return t && t->slot.key != c->tenant.number;
}

/*
 * Does the policy refuse the chunk, which the request used last? bytes: its size; more: the bytes
 * of it that are not counted as kept yet.
 */
static bool refuses_locked(struct kvc *k, struct kvc_request *r, const struct kvc_chunk *c,
			   uint64_t bytes, uint64_t more)
{
	if (c->pin || kvc_hints_worth(&c->hints, kvc_mono_ns()) != KVC_WORTH_NORMAL ||
	    others_leave_locked(k, c))
		return false;
	return r->refused ||
	       (is_full(k, more) &&
		kvc_replacer_refuses(k->replacers->replacer[KVC_CACHE_POOL][c->policy], r, bytes));
}

/* The chunk is in the pool, and the policy has not decided yet, or has given it up. */
static void decide_locked(struct kvc *k, struct kvc_request *r, struct kvc_chunk *c,
			  bool may_refuse)
{
	uint64_t more = c->standing == KVC_KEPT ? 0 : c->bytes;

	kvc_replacers_claim_locked(k, KVC_CACHE_POOL, c, r);
	if (may_refuse && refuses_locked(k, r, c, c->bytes, more)) {
		kvc_leaving_add_locked(k, c, true);
		kvc_count(&k->stats, pool_refusals);
		return;
	}
	kvc_leaving_kept_locked(k, c);
	/* puts it before its parent in the tenant's order: the parent may be known only now */
	kvc_tenant_accessed_locked(k, c, kvc_chunk_find_locked(k, c->parent & ~KVC_TOLD));
	give_up_locked(k, c);
}

/*
 * The chunk is not in the pool, but the client's prefetch may load it. Decides in advance whether
 * the policy refuses it then.
 */
static void judge_ahead_locked(struct kvc *k, struct kvc_request *r, struct kvc_chunk *c,
			       bool may_refuse)
{
	kvc_replacer_access(k->replacers->replacer[KVC_CACHE_POOL][c->policy], r, c->id);
	kvc_leaving_judge_locked(c, may_refuse &&
					    refuses_locked(k, r, c, c->peak_bytes, c->peak_bytes));
}

void kvc_retention_used_locked(struct kvc *k, struct kvc_request *r, struct kvc_chunk *c, bool made,
			       bool may_refuse)
{
	bool in_pool = c->nnodes && !c->detached;

	if (!c->nnodes) /* a lease is about to load it */
		judge_ahead_locked(k, r, c, may_refuse);
	else if (in_pool && (c->standing != KVC_KEPT || c->hints.entered))
		decide_locked(k, r, c, may_refuse);
	else if (in_pool && made)
		kvc_replacers_claim_locked(k, KVC_CACHE_POOL, c, r);
	else
		kvc_replacer_access(k->replacers->replacer[KVC_CACHE_POOL][c->policy], r, c->id);
}
