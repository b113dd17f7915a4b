/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard of the policy `prefix`. It has two shadows: small simulated caches that hold one in
 * every `sample` ids and are smaller by the same factor. One evicts by index, the other evicts the
 * least recently accessed leaf.
 *
 * The cache evicts by index at first. It changes to the order of the other shadow as soon as that
 * shadow leads by more than LEAD_LEAST plus LEAD of the hits or misses of the present order's
 * shadow, whichever are fewer; all are means over MEMORY requests. A smaller lead is not worth a
 * change, which costs as much as filling the cache with the chunks that the other order would have
 * kept. Earlier gains of the present order count for at most AHEAD times such a lead, because loads
 * change.
 *
 * Each shadow does what the cache would do with the same method: the one that evicts by index
 * refuses new chunks that are worth less than its victim, and the other one takes all.
 *
 * Hits in the shadows are counted by request, so they mean nothing if nobody knows which chunks
 * belong to which prompt (the request is `loose`). If more than a small share of accesses is loose,
 * the cache evicts the oldest leaf, as lru does. So a store that plain programs fill is ordered by
 * access from the beginning, since no value was learned.
 */
#include "prefix_priv.h"

#include <math.h>

#define MEMORY 1000. /* requests in the means */
#define LEAD .05
#define AHEAD 4        /* maximum weight of earlier gains, in leads */
#define LEAD_LEAST .01 /* hits a request */
#define SHRINK 8       /* chunks evicted from a shadow for one new chunk, at most */

static void touch_shadow(struct kvc_replacer *k, struct kvc_request *r, unsigned i)
{
	struct prefix *p = k->own;
	struct shadow *s = &p->shadow[i];
	struct kvc_touched *t = &r->touched[r->n - 1];
	uint64_t before = r->sampled[i];
	uint32_t slot = kvc_chain_find(&s->chain, t->id), up = r->at[i], v;
	/*
	 * chunks are smaller than expected: more fit than the shadow knows of, until one is evicted
	 */
	bool grows = !p->full && k->chain.n > k->conf.chunks;

	r->sampled[i] = t->id;
	r->at[i] = t->shadow[i] = slot;
	if (slot != KVC_NO_SLOT) {
		r->hits[i] += r->broken[i] ? 0 : p->sample;
		s->chain.last[slot] = r->nr;
		s->worth[slot].outlook = KVC_OUTLOOK_NONE;
		if (i)
			kvc_chain_order(&s->chain, slot, ++p->uses);
		return;
	}
	r->broken[i] = true;
	up = before ? kvc_chain_find_at(&s->chain, before, up) : KVC_NO_SLOT;
	if (before && up == KVC_NO_SLOT)
		return;
	for (int n = 0; !grows && s->chain.n && s->chain.n >= p->fits / p->sample; n++) {
		if (!i && !n && kvc_prefix_shadow_refuses(k, r))
			return;
		v = i ? s->chain.leaf[0] : kvc_prefix_shadow_victim(k);
		/* the parent may have been accessed last by another request */
		if (n == SHRINK || v == KVC_NO_SLOT || v == up || s->chain.last[v] == r->nr)
			return;
		kvc_chain_del(&s->chain, v);
	}
	slot = kvc_chain_add(&s->chain, t->id, up, i ? ++p->uses : 0);
	if (slot == KVC_NO_SLOT)
		return;
	r->at[i] = t->shadow[i] = slot;
	s->chain.last[slot] = r->nr;
	s->worth[slot].score = kvc_prefix_score_now(p, r);
	s->worth[slot].gap = t->gap;
}

bool kvc_prefix_in_shadow(const struct prefix *p, uint64_t id)
{
	return !(kvc_chain_hash(id) >> 20 & (p->sample - 1));
}

void kvc_prefix_shadow_touch(struct kvc_replacer *k, struct kvc_request *r)
{
	struct prefix *p = k->own;

	p->accesses += p->accesses < KVC_PREFIX_USES;
	p->loose += (r->loose - p->loose) / p->accesses;
	if (!r->loose && kvc_prefix_in_shadow(p, r->touched[r->n - 1].id))
		for (unsigned i = 0; i < SHADOWS; i++)
			touch_shadow(k, r, i);
}

void kvc_prefix_shadow_rename(struct prefix *p, uint64_t from, uint64_t to)
{
	for (unsigned i = 0; i < SHADOWS && kvc_prefix_in_shadow(p, to); i++) {
		struct kvc_chain *c = &p->shadow[i].chain;
		uint32_t slot = kvc_chain_find(c, from);

		if (slot != KVC_NO_SLOT && kvc_chain_find(c, to) == KVC_NO_SLOT)
			kvc_chain_rename(c, slot, to);
	}
}

uint32_t kvc_prefix_sample(uint64_t n, uint64_t least, uint32_t most)
{
	uint32_t s = 1;

	while (s < most && (n /= 2) >= least)
		s *= 2;
	return s;
}

/* Moves a sample one step towards its target. It does not become coarser for a small excess. */
static uint32_t step_sample(uint32_t is, uint64_t n, uint64_t least, uint32_t most)
{
	if (kvc_prefix_sample(n, least, most) < is)
		return is / 2;
	return kvc_prefix_sample(n - n / 8, least, most) > is ? is * 2 : is;
}

void kvc_prefix_resample(struct prefix *p)
{
	p->sample = step_sample(p->sample, p->fits, SAMPLE_FROM, KVC_SAMPLE_MOST);
	p->ghosts.sample = step_sample(p->ghosts.sample, 4 * p->fits,
				       p->ghosts.rows * KVC_GHOST_ROW, KVC_SAMPLE_MOST);
}

void kvc_prefix_guard(struct prefix *p, const struct kvc_request *r)
{
	double is, lead, least;

	for (unsigned i = 0; i < SHADOWS; i++)
		p->shadow[i].hits += (r->hits[i] - p->shadow[i].hits) / MEMORY;
	p->asked += (r->n - p->asked) / MEMORY;
	is = p->shadow[p->by_use].hits;
	least = fmin(is, fmax(p->asked - is, 0)) * LEAD + LEAD_LEAST;
	lead = (double)r->hits[!p->by_use] - r->hits[p->by_use];
	p->lead += (lead - p->lead) / MEMORY;
	p->lead = fmax(p->lead, -AHEAD * least);
	if (p->lead <= least)
		return;
	p->by_use = !p->by_use;
	p->lead = -p->lead;
	p->switches++;
}
