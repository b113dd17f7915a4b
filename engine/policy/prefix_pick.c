/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who goes next under the policy `prefix`, and in its shadow: of leaves drawn at random the one
 * with the lowest index; or the leaf that was used longest ago, nearly (oldest.h).
 *
 * While one request goes on no index changes, so the KEPT lowest of those that were drawn stay for
 * its next victim, beside which fewer are drawn then; and what the last victim followed is looked
 * at too, where that is a leaf now: it was used with it, so it is worth about as little. A prompt
 * that is worth nothing then goes as a whole, and not the end of each of many.
 */
#include "prefix_priv.h"

#include <math.h>
#include <string.h>

#define DRAWN 64
#define DRAWN_NEXT 8  /* for the next victim of the same request */
#define DRAWN_OLD 256 /* for the oldest: a look at one takes less */

/* Does one go rather than another, whose index is the same? */
static bool is_older(const struct kvc_chain *c, uint32_t slot, uint32_t than)
{
	/* that of equals the id says who goes is for nothing but to be the same anywhere */
	return c->last[slot] < c->last[than] ||
	       (c->last[slot] == c->last[than] && c->id[slot] < c->id[than]);
}

static inline bool is_before(const struct kvc_chain *c, float index, uint32_t slot,
			     const struct leaf *than)
{
	return index < than->index || (index == than->index && is_older(c, slot, than->slot));
}

/* Who draws, of what. */
struct who {
	struct kvc_replacer *k;
	struct drawn *d;
	const struct kvc_chain *c;
	const struct worth *w;
	bool shadow;
};

static inline float index_of(const struct who *o, uint32_t slot)
{
	if (!o->shadow && kvc_chain_is_orphan(o->c, slot))
		return -INFINITY;
	return kvc_prefix_index(o->k, o->c, o->w, slot);
}

static inline __attribute__((always_inline)) void offer(const struct who *o, uint32_t slot)
{
	struct drawn *d = o->d;
	unsigned at = d->n;
	float index;

	if (o->shadow ? o->c->last[slot] == o->k->now : kvc_replacer_busy(o->k, slot))
		return;
	index = index_of(o, slot);
	if (at == KEPT && !is_before(o->c, index, slot, &d->kept[--at]))
		return;
	for (d->n = at + 1; at && is_before(o->c, index, slot, &d->kept[at - 1]); at--)
		d->kept[at] = d->kept[at - 1];
	d->kept[at] = (struct leaf){ slot, o->c->last[slot], index };
}

/* Leaves at random: `most` of them, or all where there are no more. */
static inline __attribute__((always_inline)) void draw(const struct who *o, uint32_t most)
{
	const struct kvc_chain *c = o->c;
	uint32_t n = (uint32_t)kvc_min(most, c->nleaf), slot[DRAWN];

	if (n == c->nleaf)
		o->d->n = 0;
	for (uint32_t i = 0; i < n; i++) {
		slot[i] = c->leaf[n < c->nleaf ? kvc_replacer_draw(o->k, c->nleaf) : i];
		__builtin_prefetch(&c->last[slot[i]]);
		__builtin_prefetch(&o->w[slot[i]]);
	}
	for (uint32_t i = 0; i < n; i++)
		offer(o, slot[i]);
}

static bool is_still(const struct kvc_chain *c, uint32_t slot)
{
	return c->id[slot] && kvc_chain_is_leaf(c, slot);
}

/* Takes the one that goes off those that are kept; KVC_NO_SLOT: there is none. */
static uint32_t take(struct drawn *d, const struct kvc_chain *c)
{
	for (unsigned i = 0; i < d->n; i++) {
		struct leaf x = d->kept[i];

		if (!is_still(c, x.slot) || c->last[x.slot] != x.last)
			continue;
		d->n -= i + 1;
		memmove(d->kept, d->kept + i + 1, d->n * sizeof x);
		d->up = c->parent[x.slot];
		return x.slot;
	}
	d->n = 0;
	return KVC_NO_SLOT;
}

/* Inlined, with what it calls, for each of those who draw. */
static inline __attribute__((always_inline)) uint32_t pick(const struct who *o)
{
	struct drawn *d = o->d;

	if (d->nr == o->k->now) {
		uint32_t slot;

		if (d->up != KVC_NO_SLOT && is_still(o->c, d->up))
			offer(o, d->up);
		draw(o, o->c->nleaf <= DRAWN / 2 ? DRAWN / 2 : DRAWN_NEXT);
		slot = take(d, o->c);
		if (slot != KVC_NO_SLOT)
			return slot;
	}
	d->nr = o->k->now;
	d->n = 0;
	draw(o, DRAWN);
	return take(d, o->c);
}

uint32_t kvc_prefix_shadow_victim(struct kvc_replacer *k)
{
	struct prefix *p = k->own;
	struct shadow *s = &p->shadow[0];

	return pick(&(struct who){ k, &p->drawn[1], &s->chain, s->worth, .shadow = true });
}

/*
 * The one that was used longest ago, nearly: such a one as `pick` finds by the last use takes a
 * piece out of many prompts, each of which then is worth little.
 */
static uint32_t oldest(struct kvc_replacer *k)
{
	struct prefix *p = k->own;
	const struct kvc_chain *c = &k->chain;
	uint32_t n = (uint32_t)kvc_min(DRAWN_OLD, c->nleaf), slot;

	/* the rest of what went last, which is about as old */
	if (p->old_up < c->used && is_still(c, p->old_up))
		kvc_oldest_offer(&p->oldest, c, p->old_up);
	for (uint32_t i = 0; i < n; i++) {
		slot = c->leaf[n < c->nleaf ? kvc_replacer_draw(k, c->nleaf) : i];
		if (kvc_chain_is_orphan(c, slot) && !kvc_replacer_busy(k, slot))
			return slot;
		kvc_oldest_offer(&p->oldest, c, slot);
	}
	while ((slot = kvc_oldest_take(&p->oldest, c)) != KVC_NO_SLOT && kvc_replacer_busy(k, slot))
		;
	p->old_up = slot == KVC_NO_SLOT ? KVC_NO_SLOT : c->parent[slot];
	return slot;
}

uint32_t kvc_prefix_victim(struct kvc_replacer *k)
{
	struct prefix *p = k->own;

	p->fits = k->chain.n;
	if (p->by_use || kvc_prefix_is_loose(p))
		return oldest(k);
	return pick(&(struct who){ k, &p->drawn[0], &k->chain, p->worth, .shadow = false });
}
