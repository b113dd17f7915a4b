/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that leave the pool. The policy makes its decision when a chunk enters
 * (access/retention.c), as in kvcachectl replay: it refuses the new chunk, or keeps it and gives up
 * others. Chunks that the policy does not keep are no longer in the order of any policy. Their
 * files stay readable, in one of two lists, until the evictor needs their space. The unwanted ones,
 * which the policy refused or clients called finished, leave before the others. A chunk that is
 * used again in the meantime is judged like a chunk that enters.
 *
 * So the decisions do not depend on how many chunks the evictor evicts at a time, and neither do
 * the bytes that the policy keeps: they stay at low= while the pool is between low= and high=.
 */
#include "leaving.h"

#include "replacers.h"
#include "tenant.h"

static void stand(struct kvc *k, struct kvc_chunk *c, enum kvc_standing standing)
{
	k->chunks->bytes[c->standing] -= c->bytes;
	k->chunks->bytes[standing] += c->bytes;
	if (standing == KVC_LEAVES)
		kvc_list_del(&c->tenant.link);
	else if (c->standing == KVC_LEAVES)
		c->tenant.taken = false;
	c->standing = standing;
	kvc_tenant_count_locked(k, c);
}

static struct kvc_list *list_of(struct kvc *k, bool first)
{
	return first ? &k->chunks->unwanted : &k->chunks->victims;
}

/* Returns the list to which a chunk that leaves belongs. */
static struct kvc_list *own_list(struct kvc *k, const struct kvc_chunk *c)
{
	return list_of(k, c->hints.refused || c->hints.finished);
}

void kvc_leaving_enters_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (c->standing == KVC_KEPT)
		stand(k, c, KVC_ENTERS);
}

void kvc_leaving_kept_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (c->standing == KVC_LEAVES)
		kvc_list_del(&c->hints.link);
	stand(k, c, KVC_KEPT);
	c->hints.refused = c->hints.entered = false;
}

void kvc_leaving_add_locked(struct kvc *k, struct kvc_chunk *c, bool refused)
{
	kvc_replacers_remove_locked(k, KVC_CACHE_POOL, c, !refused);
	stand(k, c, KVC_LEAVES);
	c->hints.refused = refused;
	c->hints.entered = false;
	kvc_list_del(&c->hints.link);
	kvc_list_add_tail(own_list(k, c), &c->hints.link);
}

void kvc_leaving_back_locked(struct kvc *k, struct kvc_chunk *c)
{
	struct kvc_chunk_row r = {
		.id = c->id,
		.policy = c->policy,
		.parent = c->parent,
		.pool_facts = c->saved_state[KVC_CACHE_POOL],
	};

	if (c->standing != KVC_LEAVES || c->detached)
		return;
	kvc_leaving_kept_locked(k, c);
	kvc_replacers_restore_locked(k, KVC_CACHE_POOL, &r, c->bytes);
	kvc_replacers_join_locked(k, KVC_CACHE_POOL, &r);
}

struct kvc_chunk *kvc_leaving_take_locked(struct kvc *k, bool first)
{
	struct kvc_list *all = list_of(k, first);
	struct kvc_chunk *c;

	if (kvc_list_empty(all))
		return NULL;
	c = kvc_of(all->next, struct kvc_chunk, hints.link);
	kvc_list_del(&c->hints.link);
	return c;
}

bool kvc_leaving_pushed_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (c->standing != KVC_LEAVES)
		return false;
	if (kvc_list_empty(&c->hints.link))
		kvc_list_add_head(own_list(k, c), &c->hints.link);
	return true;
}

void kvc_leaving_judge_locked(struct kvc_chunk *c, bool refused)
{
	c->hints.judged = true;
	c->hints.refused = refused;
}

void kvc_leaving_entered_locked(struct kvc *k, struct kvc_chunk *c)
{
	bool refused = c->hints.judged && c->hints.refused && !c->fresh;

	c->hints.entered = !c->hints.judged;
	c->hints.judged = c->hints.refused = false;
	if (refused)
		kvc_leaving_add_locked(k, c, true);
}

void kvc_leaving_count_locked(struct kvc *k, const struct kvc_chunk *c, uint64_t by)
{
	k->chunks->bytes[c->standing] += by;
}

void kvc_leaving_left_locked(struct kvc *k, struct kvc_chunk *c)
{
	kvc_list_del(&c->hints.link);
	stand(k, c, KVC_KEPT);
	c->hints.refused = c->hints.entered = c->hints.judged = false;
}

void kvc_leaving_detached_locked(struct kvc *k, struct kvc_chunk *c)
{
	kvc_list_del(&c->hints.link);
	stand(k, c, KVC_LEAVES);
}
