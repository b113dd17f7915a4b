/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard of the policy `prefix`: two shadows, small caches of one in `sample` of the ids and as
 * much smaller, of which one evicts by the index and the other the leaf that was used longest ago.
 * The first also leaves out what is new and worth less than its victim, as if that had gone at
 * once.
 *
 * The real one goes by the last use, until the shadow of the index leads by AHEAD of what it could
 * gain or lose; and again when less than LEFT is left of that. To go by the index is to be shown to
 * pay: what was learned so far may be little, or of what is over, and where the two are close each
 * change costs more than it brings. What the shadows would hit is counted by requests, so it says
 * nothing where nobody knows which chunk is of which prompt (a request is `loose`): where more than
 * a few are, the oldest goes, as with lru.
 */
#include "prefix_priv.h"

#include <math.h>

#define AHEAD .03
#define LEFT .01
#define MEMORY 2000. /* requests that the guard looks back */
#define SHRINK 8     /* chunks that go from a shadow for one that comes, at most */

static void touch_one(struct kvc_keep *k, struct kvc_request *r, unsigned i)
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
	up = before ? kvc_chain_look(&s->chain, before, up) : KVC_NO_SLOT;
	if (before && up == KVC_NO_SLOT)
		return;
	for (int n = 0; s->chain.n && s->chain.n >= p->fits / p->sample; n++) {
		v = i ? s->chain.leaf[0] : kvc_prefix_shadow_victim(k);
		/* another request may have been the last to use what this one goes on from */
		if (n == SHRINK || v == KVC_NO_SLOT || v == up || s->chain.last[v] == r->nr)
			return;
		if (!i && kvc_index_of(p->index, t->gap, kvc_prefix_score_now(p, r), 1) <
				  kvc_prefix_index(k, &s->chain, s->worth, v))
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

void kvc_prefix_shadow_touch(struct kvc_keep *k, struct kvc_request *r)
{
	struct prefix *p = k->own;

	if (kvc_prefix_in_shadow(p, r->touched[r->n - 1].id))
		for (unsigned i = 0; i < SHADOWS; i++)
			touch_one(k, r, i);
}

/* The power of two by which so many times `least` are left of n, at least; or 1. */
uint32_t kvc_prefix_sample(uint64_t n, uint64_t least, uint32_t most)
{
	uint32_t s = 1;

	while (s < most && n / (2 * s) >= least)
		s *= 2;
	return s;
}

/*
 * One step towards what it is to be. A bit more than is needed for more does not make it coarser.
 */
static uint32_t resample(uint32_t is, uint64_t n, uint64_t least, uint32_t most)
{
	if (kvc_prefix_sample(n, least, most) < is)
		return is / 2;
	return kvc_prefix_sample(n - n / 8, least, most) > is ? is * 2 : is;
}

void kvc_prefix_resample(struct prefix *p)
{
	p->sample = resample(p->sample, p->fits, SAMPLE_FROM, KVC_SAMPLE_MOST);
	p->ghosts.sample = resample(p->ghosts.sample, 4 * p->fits, p->ghosts.rows * KVC_GHOST_ROW,
				    KVC_SAMPLE_MOST);
}

/* Which of the two would have done better lately? */
void kvc_prefix_guard(struct prefix *p, const struct kvc_request *r)
{
	double keep = 1 - 1 / MEMORY, lead, by_index, risk;

	for (unsigned i = 0; i < SHADOWS; i++)
		p->shadow[i].hits = p->shadow[i].hits * keep + r->hits[i] / MEMORY;
	p->asked = p->asked * keep + r->n / MEMORY;
	p->loose = p->loose * keep + (r->loose ? r->n / MEMORY : 0);
	by_index = p->shadow[p->by_use].hits;
	lead = p->shadow[!p->by_use].hits - by_index;
	risk = fmin(by_index, p->asked - by_index);
	if (lead > (p->by_use ? risk * AHEAD + .01 : -risk * LEFT)) {
		p->by_use = !p->by_use;
		p->switches++;
	}
}
