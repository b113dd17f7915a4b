/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard of the policy `prefix`. It has two shadows: small simulated caches that hold one of
 * `sample` ids and are smaller by the same factor. One evicts by index, the other evicts the least
 * recently accessed leaf.
 *
 * The cache evicts by last access until the shadow that evicts by index is ahead by more than
 * chance. Its lead is measured in blocks of requests; it must be AHEAD times as large as the
 * standard error of the mean of the blocks. The cache evicts by last access again when the lead is
 * lost, or as soon as the last few blocks lose LOSES times their standard error, because loads
 * change; gains before a loss do not make up for it. Eviction by index must prove that it pays,
 * because a change costs as much as filling the cache with the chunks that the other order would
 * have kept. The rule has no fixed number or fraction of hits: a lead from a few long prompts may
 * be chance, and a small lead that lasts is not.
 *
 * The shadows imitate the cache: both accept all new chunks, as it does.
 *
 * Hits in the shadows are counted by request, so they mean nothing if nobody knows which chunks
 * belong to which prompt (the request is `loose`). If more than a small share of accesses is loose,
 * the cache evicts the oldest leaf, as lru does.
 */
#include "prefix_priv.h"

#include <math.h>

#define BLOCK 64u /* requests */
#define FIRST 4u  /* blocks before the first decision */
#define RECENT 4. /* blocks */
#define AHEAD 1.5 /* standard errors; by chance this happens one time in fifteen */
#define LOSES 2.
#define MEMORY 2000. /* requests in the mean of the shares that are shown */
#define USES 4096.   /* accesses in the mean of the loose share */
#define SHRINK 8     /* chunks evicted from a shadow for one new chunk, at most */

static void touch_shadow(struct kvc_replacer *k, struct kvc_request *r, unsigned i)
{
	struct prefix *p = k->own;
	struct shadow *s = &p->shadow[i];
	struct kvc_touched *t = &r->touched[r->n - 1];
	uint64_t before = r->sampled[i];
	uint32_t slot = kvc_chain_find(&s->chain, t->id), up = r->at[i], v;

	r->sampled[i] = t->id;
	r->at[i] = t->shadow[i] = slot;
	if (slot != KVC_NO_SLOT) {
		r->hits[i] += r->broken[i] ? 0 : p->sample;
		s->chain.last[slot] = r->nr;
		if (i)
			kvc_chain_order(&s->chain, slot, ++p->uses);
		return;
	}
	r->broken[i] = true;
	up = before ? kvc_chain_find_at(&s->chain, before, up) : KVC_NO_SLOT;
	if (before && up == KVC_NO_SLOT)
		return;
	for (int n = 0; s->chain.n && s->chain.n >= p->fits / p->sample; n++) {
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
	return p->sample == 1 || (kvc_chain_hash(id) >> 20) % p->sample == 0;
}

void kvc_prefix_shadow_touch(struct kvc_replacer *k, struct kvc_request *r)
{
	struct prefix *p = k->own;

	p->loose += (r->loose - p->loose) / USES;
	if (!r->loose && kvc_prefix_in_shadow(p, r->touched[r->n - 1].id))
		for (unsigned i = 0; i < SHADOWS; i++)
			touch_shadow(k, r, i);
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

/* Ends a block. */
static void end_block(struct guard *g)
{
	double off = g->now - g->lead, part;

	g->requests = 0;
	if (!g->blocks && !g->now)
		return; /* if all chunks fit, both shadows have the same hits */
	g->blocks += g->blocks < 2 * BLOCKS;
	part = 1. / fmin(g->blocks, BLOCKS);
	g->lead += off * part;
	g->spread += (off * off * (1 - part) - g->spread) * part;
	g->recent = fmin(0, g->recent + (g->now - g->recent) / RECENT);
	g->now = 0;
}

/* Returns true if eviction by last access is to be used next. */
static bool should_evict_by_use(const struct guard *g, bool by_use)
{
	/* a mean of n with decaying weights is as exact as one of 2 n with equal weights */
	double chance = AHEAD * sqrt(g->spread / g->blocks);
	double of_few = LOSES * sqrt(g->spread / (2 * RECENT));

	return by_use ? g->blocks < FIRST || g->lead <= chance || g->recent < 0
		      : g->lead < 0 || g->recent < -of_few;
}

void kvc_prefix_guard(struct prefix *p, const struct kvc_request *r)
{
	double keep = 1 - 1 / MEMORY;
	bool by_use;

	for (unsigned i = 0; i < SHADOWS; i++)
		p->shadow[i].hits = p->shadow[i].hits * keep + r->hits[i] / MEMORY;
	p->asked = p->asked * keep + r->n / MEMORY;
	p->guard.now += (double)r->hits[0] - r->hits[1];
	if (++p->guard.requests < BLOCK)
		return;
	end_block(&p->guard);
	by_use = should_evict_by_use(&p->guard, p->by_use);
	p->switches += by_use != p->by_use;
	p->by_use = by_use;
}
