/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses victims for the policy `prefix` and for its shadow: the leaf with the lowest index of the
 * leaves drawn at random, or a leaf that is close to the least recently accessed one.
 *
 * While one request is in progress no index changes. So the BEST lowest of the drawn leaves are
 * remembered for the next victim of the same request, for which fewer leaves are drawn. The parent
 * of the last victim is also considered if it is a leaf now: it was accessed together with the
 * victim, so its value is about as low. Thus a prompt without value is evicted as a whole, instead
 * of the end of many prompts.
 *
 * A leaf that is close to the least recently accessed one is found without an ordered list of all
 * leaves: the oldest of the drawn leaves are remembered for later victims in a short sorted array,
 * so that after a short time the remembered leaves are among the oldest of all. Remembered leaves
 * that were accessed again or are not leaves any more are skipped. Fewer leaves are drawn for the
 * next victim of the same request, as with the index; each access of a loose request counts as a
 * request here.
 */
#include "prefix_priv.h"

#include <math.h>
#include <string.h>

#define DRAWN 64
#define DRAWN_NEXT 8   /* for the next victim of the same request */
#define DRAWN_OLD 256u /* by age: reading one leaf costs less */
#define DRAWN_OLD_NEXT 16u
#define EXPECT_FROM 65536u /* the data of fewer leaves are in the processor's caches anyway */

/* Breaks a tie between leaves with equal index: true if `slot` is evicted before `than`. */
static bool is_older(const struct kvc_chain *c, uint32_t slot, uint32_t than)
{
	/* ids are compared only to make the choice reproducible */
	return c->last[slot] < c->last[than] ||
	       (c->last[slot] == c->last[than] && c->id[slot] < c->id[than]);
}

static inline bool leaf_precedes(const struct kvc_chain *c, float index, uint32_t slot,
				 const struct leaf *than)
{
	return index < than->index || (index == than->index && is_older(c, slot, than->slot));
}

/* The arguments of a draw. */
struct draw_args {
	struct kvc_replacer *k;
	struct drawn *d;
	const struct kvc_chain *c;
	const struct worth *w;
	bool shadow;
};

static inline float index_of(const struct draw_args *o, uint32_t slot)
{
	if (!o->shadow && kvc_chain_is_orphan(o->c, slot))
		return -INFINITY;
	return kvc_prefix_index(o->k, o->c, o->w, slot);
}

static inline __attribute__((always_inline)) void offer_leaf(const struct draw_args *o,
							     uint32_t slot)
{
	struct drawn *d = o->d;
	unsigned at = d->n;
	float index;

	if (o->shadow ? o->c->last[slot] == o->k->now : kvc_replacer_busy(o->k, slot))
		return;
	index = index_of(o, slot);
	if (at == BEST && !leaf_precedes(o->c, index, slot, &d->best[--at]))
		return;
	for (d->n = at + 1; at && leaf_precedes(o->c, index, slot, &d->best[at - 1]); at--)
		d->best[at] = d->best[at - 1];
	d->best[at] = (struct leaf){ slot, o->c->last[slot], index };
}

/*
 * Loads memory of the leaves that will be drawn soon into the processor's caches. A copy of the
 * random generator tells which leaves these are. For the next n draws, loads the data of the
 * leaves; for the n draws after them, only the elements of the array of leaves, which the next call
 * needs to load the data of those leaves. If anything else is drawn before, the loaded memory is
 * not used.
 */
static inline void expect_draws(const struct kvc_replacer *k, uint32_t n, bool worth)
{
	const struct prefix *p = k->own;
	const struct kvc_chain *c = &k->chain;
	uint64_t chance = k->chance;

	if (c->nleaf < EXPECT_FROM)
		return;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t slot = c->leaf[kvc_replacer_draw_from(&chance, c->nleaf)];

		__builtin_prefetch(&c->last[slot]);
		if (worth)
			__builtin_prefetch(&p->worth[slot]);
	}
	for (uint32_t i = 0; i < n; i++)
		__builtin_prefetch(&c->leaf[kvc_replacer_draw_from(&chance, c->nleaf)]);
}

/* A leaf is likely to be the next victim: loads the memory that its deletion reads. */
static inline void expect_victim(const struct kvc_chain *c, uint32_t slot)
{
	if (slot < c->used && c->id[slot])
		kvc_chain_expect_del(c, slot);
}

/* Draws `most` leaves at random, or all leaves if there are no more. */
static inline __attribute__((always_inline)) void draw_leaves(const struct draw_args *o,
							      uint32_t most)
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
		offer_leaf(o, slot[i]);
}

static bool is_valid_leaf(const struct kvc_chain *c, uint32_t slot)
{
	return c->id[slot] && kvc_chain_is_leaf(c, slot);
}

/* Moves the lowest remembered leaf that is still valid to the front. Returns false if none is. */
static bool find_lowest(struct drawn *d, const struct kvc_chain *c)
{
	unsigned i = 0;

	while (i < d->n &&
	       (!is_valid_leaf(c, d->best[i].slot) || c->last[d->best[i].slot] != d->best[i].last))
		i++;
	d->n -= i;
	memmove(d->best, d->best + i, d->n * sizeof *d->best);
	return d->n;
}

/*
 * Draws leaves and makes the next victim the first of the remembered leaves. Returns false if no
 * leaf can be evicted. Inlined with all that it calls, once for each of its two callers.
 */
static inline __attribute__((always_inline)) bool draw_next(const struct draw_args *o)
{
	struct drawn *d = o->d;

	if (d->nr == o->k->now) {
		if (!o->shadow) {
			expect_victim(o->c, d->up);
			expect_victim(o->c, d->n ? d->best[0].slot : KVC_NO_SLOT);
		}
		if (d->is_next && find_lowest(d, o->c))
			return true;
		if (d->up != KVC_NO_SLOT && is_valid_leaf(o->c, d->up))
			offer_leaf(o, d->up);
		draw_leaves(o, o->c->nleaf <= DRAWN / 2 ? DRAWN / 2 : DRAWN_NEXT);
		if ((d->is_next = find_lowest(d, o->c)))
			return true;
	}
	d->nr = o->k->now;
	d->n = 0;
	draw_leaves(o, DRAWN);
	d->up = KVC_NO_SLOT;
	return d->is_next = find_lowest(d, o->c);
}

/* The victim, which is not remembered any more. */
static uint32_t take_next(struct drawn *d, const struct kvc_chain *c)
{
	uint32_t slot = d->best[0].slot;

	memmove(d->best, d->best + 1, --d->n * sizeof *d->best);
	d->up = c->parent[slot];
	d->is_next = false;
	return slot;
}

static bool draw_in_shadow(struct kvc_replacer *k)
{
	struct prefix *p = k->own;
	struct shadow *s = &p->shadow[0];

	return draw_next(&(struct draw_args){ k, &p->drawn[1], &s->chain, s->worth,
					      .shadow = true });
}

static bool draw_in_cache(struct kvc_replacer *k)
{
	struct prefix *p = k->own;

	return draw_next(&(struct draw_args){ k, &p->drawn[0], &k->chain, p->worth,
					      .shadow = false });
}

uint32_t kvc_prefix_shadow_victim(struct kvc_replacer *k)
{
	struct prefix *p = k->own;

	return draw_in_shadow(k) ? take_next(&p->drawn[1], &p->shadow[0].chain) : KVC_NO_SLOT;
}

/* The index of the chunk that the request accessed last, if it were added to the cache. */
static float index_of_new(struct kvc_replacer *k, const struct kvc_request *r)
{
	struct prefix *p = k->own;

	return kvc_learn_index_of(p->index, r->touched[r->n - 1].gap, kvc_prefix_score_now(p, r),
				  1);
}

bool kvc_prefix_shadow_refuses(struct kvc_replacer *k, const struct kvc_request *r)
{
	const struct prefix *p = k->own;

	return draw_in_shadow(k) && index_of_new(k, r) < p->drawn[1].best[0].index;
}

bool kvc_prefix_refuses(struct kvc_replacer *k, const struct kvc_request *r, uint64_t bytes)
{
	struct prefix *p = k->own;

	if (p->by_use || r->loose || kvc_prefix_is_loose(p))
		return false;
	p->fits = k->chain.n;
	p->full = true;
	return draw_in_cache(k) &&
	       index_of_new(k, r) * p->per_size[kvc_prefix_size(bytes)] < p->drawn[0].best[0].index;
}

static bool is_newer(const struct old_leaf *a, const struct old_leaf *b)
{
	int32_t by = (int32_t)(a->last - b->last);

	/* on a tie the lower slot is older, so that the choice is reproducible */
	return by > 0 || (!by && a->slot > b->slot);
}

/* Remembers a leaf if it is among the oldest. */
static void remember_leaf(struct oldest *o, const struct kvc_chain *c, uint32_t slot)
{
	struct old_leaf x = { slot, c->last[slot] };
	unsigned at = 0;

	if (o->n == OLDEST && !is_newer(&o->v[0], &x))
		return;
	while (at < o->n && is_newer(&o->v[at], &x))
		at++;
	if (at < o->n && o->v[at].slot == slot && o->v[at].last == x.last)
		return;
	if (o->n == OLDEST) {
		at--;
		memmove(&o->v[0], &o->v[1], at * sizeof x);
	} else {
		memmove(&o->v[at + 1], &o->v[at], (o->n++ - at) * sizeof x);
	}
	o->v[at] = x;
}

/* Loads the memory that deleting the oldest remembered leaves will read. */
static void expect_oldest(const struct oldest *o, const struct kvc_chain *c)
{
	if (o->n > 4)
		kvc_chain_expect_id(c, o->v[o->n - 5].slot);
	if (o->n > 1)
		kvc_chain_expect_del(c, o->v[o->n - 2].slot);
}

/*
 * Removes the oldest remembered leaf and returns its slot, or KVC_NO_SLOT if none is left. The leaf
 * is then no longer remembered, even if the caller does not evict it.
 */
static uint32_t take_oldest(struct oldest *o, const struct kvc_chain *c)
{
	while (o->n) {
		const struct old_leaf *x = &o->v[--o->n];

		if (is_valid_leaf(c, x->slot) && c->last[x->slot] == x->last)
			return x->slot;
	}
	return KVC_NO_SLOT;
}

/*
 * Returns a leaf that is close to the least recently accessed one. If draw_next did this, with the
 * last access as the index, it would evict a piece of many prompts, whose rest then has little
 * value.
 */
static uint32_t pick_oldest(struct kvc_replacer *k)
{
	struct prefix *p = k->own;
	const struct kvc_chain *c = &k->chain;
	bool same = p->old_nr == k->now && p->oldest.n;
	uint32_t n = (uint32_t)kvc_min(same ? DRAWN_OLD_NEXT : DRAWN_OLD, c->nleaf);
	uint32_t drawn[DRAWN_OLD], slot;

	p->old_nr = k->now;
	expect_victim(c, p->old_up);
	/* the parent of the last victim, which is about as old */
	if (p->old_up < c->used && is_valid_leaf(c, p->old_up))
		remember_leaf(&p->oldest, c, p->old_up);
	for (uint32_t i = 0; i < n; i++) {
		drawn[i] = c->leaf[n < c->nleaf ? kvc_replacer_draw(k, c->nleaf) : i];
		__builtin_prefetch(&c->last[drawn[i]]);
	}
	for (uint32_t i = 0; i < n; i++) {
		if (kvc_chain_is_orphan(c, drawn[i]) && !kvc_replacer_busy(k, drawn[i]))
			return drawn[i];
		remember_leaf(&p->oldest, c, drawn[i]);
	}
	expect_oldest(&p->oldest, c);
	while ((slot = take_oldest(&p->oldest, c)) != KVC_NO_SLOT && kvc_replacer_busy(k, slot))
		;
	p->old_up = slot == KVC_NO_SLOT ? KVC_NO_SLOT : c->parent[slot];
	if (p->old_up != KVC_NO_SLOT)
		kvc_chain_expect_id(c, p->old_up);
	expect_draws(k, DRAWN_OLD_NEXT, false);
	return slot;
}

uint32_t kvc_prefix_victim(struct kvc_replacer *k)
{
	struct prefix *p = k->own;
	const struct kvc_chain *c = &k->chain;
	uint32_t slot;

	p->fits = c->n;
	p->full = true;
	if (p->by_use || kvc_prefix_is_loose(p))
		return pick_oldest(k);
	if (!draw_in_cache(k))
		return KVC_NO_SLOT;
	slot = take_next(&p->drawn[0], c);
	expect_draws(k, DRAWN_NEXT, true);
	if (p->drawn[0].up != KVC_NO_SLOT)
		kvc_chain_expect_id(c, p->drawn[0].up);
	if (p->drawn[0].n)
		kvc_chain_expect_id(c, p->drawn[0].best[0].slot);
	return slot;
}
