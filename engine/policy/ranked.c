/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies whose leaves have an order: a key by each use, the lowest goes first.
 *
 *     lru, leaf  the last use       fifo  when it came       mru  the last use, latest first
 *     lfu        uses, then the last use
 *     gdsf       L + uses * cost / bytes, where L is the key of the last victim, and what it costs
 *                to compute a chunk grows with its place in the prompt: attention to all before it
 */
#include "keep_priv.h"

#define COST_EQUAL                                                                          \
	16.f      /* chunks before it, whose attention costs as much as the rest of a chunk \
		   */
#define AHEAD 64u /* leaves of the heap that are looked at, when the first are busy */

struct ranked {
	double clock, floor; /* uses so far; gdsf's L */
	uint32_t *uses;
	uint16_t *depth;
	float *bytes;
};

static int open_(struct kvc_keep *k)
{
	k->own = calloc(1, sizeof(struct ranked));
	return k->own ? 0 : -ENOMEM;
}

static void close_(struct kvc_keep *k)
{
	free(k->own);
}

static uint32_t victim(struct kvc_keep *k)
{
	const struct kvc_chain *c = &k->chain;
	uint32_t best = KVC_NO_SLOT;

	for (uint32_t i = 0; i < c->nleaf && (i < AHEAD || best == KVC_NO_SLOT); i++) {
		uint32_t slot = c->leaf[i];

		if ((best == KVC_NO_SLOT || c->key[slot] < c->key[best]) && !kvc_keep_busy(k, slot))
			best = slot;
		if (best == c->leaf[0])
			break;
	}
	return best;
}

static double tick(struct kvc_keep *k)
{
	struct ranked *r = k->own;

	return ++r->clock;
}

/* lru, fifo, mru */

static double key_newest(struct kvc_keep *k, uint32_t parent, uint64_t bytes)
{
	(void)parent;
	(void)bytes;
	return tick(k);
}

static double key_oldest(struct kvc_keep *k, uint32_t parent, uint64_t bytes)
{
	return -key_newest(k, parent, bytes);
}

static void touch_newest(struct kvc_keep *k, struct kvc_request *r, uint32_t slot)
{
	(void)r;
	if (slot != KVC_NO_SLOT)
		kvc_chain_order(&k->chain, slot, tick(k));
}

static void touch_oldest(struct kvc_keep *k, struct kvc_request *r, uint32_t slot)
{
	(void)r;
	if (slot != KVC_NO_SLOT)
		kvc_chain_order(&k->chain, slot, -tick(k));
}

#define BY_KEY .ordered = true, .close = close_, .victim = victim
#define BY_USE BY_KEY, .open = open_

const struct kvc_keep_ops kvc_keep_lru = { BY_USE, .key = key_newest, .touch = touch_newest };
const struct kvc_keep_ops kvc_keep_leaf = { BY_USE, .key = key_newest, .touch = touch_newest };
const struct kvc_keep_ops kvc_keep_fifo = { BY_USE, .key = key_newest };
const struct kvc_keep_ops kvc_keep_mru = { BY_USE, .key = key_oldest, .touch = touch_oldest };

/* lfu */

static int open_lfu(struct kvc_keep *k)
{
	int err = open_(k);
	struct ranked *o = k->own;

	if (!err)
		kvc_chain_column(&k->chain, &o->uses, sizeof *o->uses);
	return err;
}

static void touch_lfu(struct kvc_keep *k, struct kvc_request *r, uint32_t slot)
{
	struct ranked *o = k->own;

	(void)r;
	if (slot == KVC_NO_SLOT)
		return;
	o->uses[slot] += o->uses[slot] < 1u << 20;
	kvc_chain_order(&k->chain, slot, o->uses[slot] * 4294967296. + tick(k));
}

const struct kvc_keep_ops kvc_keep_lfu = {
	BY_KEY,
	.open = open_lfu,
	.key = key_newest,
	.touch = touch_lfu,
};

/* gdsf */

static int open_gdsf(struct kvc_keep *k)
{
	int err = open_lfu(k);
	struct ranked *o = k->own;

	if (!err) {
		kvc_chain_column(&k->chain, &o->depth, sizeof *o->depth);
		kvc_chain_column(&k->chain, &o->bytes, sizeof *o->bytes);
	}
	return err;
}

static double key_gdsf(struct kvc_keep *k, uint32_t parent, uint64_t bytes)
{
	(void)parent;
	(void)bytes;
	return ((struct ranked *)k->own)->floor;
}

static void order_gdsf(struct kvc_keep *k, uint32_t slot)
{
	struct ranked *o = k->own;
	double cost = 1 + o->depth[slot] / COST_EQUAL;

	kvc_chain_order(&k->chain, slot, o->floor + (o->uses[slot] + 1) * cost / o->bytes[slot]);
}

static void add_gdsf(struct kvc_keep *k, struct kvc_request *r, uint32_t slot, uint64_t bytes)
{
	struct ranked *o = k->own;
	uint32_t parent = k->chain.parent[slot];

	(void)r;
	o->depth[slot] = parent == KVC_NO_SLOT
				 ? 0
				 : (uint16_t)kvc_min(o->depth[parent] + 1u, UINT16_MAX);
	o->bytes[slot] = (float)kvc_max(bytes, 1);
	order_gdsf(k, slot);
}

static void touch_gdsf(struct kvc_keep *k, struct kvc_request *r, uint32_t slot)
{
	struct ranked *o = k->own;

	(void)r;
	if (slot == KVC_NO_SLOT)
		return;
	o->uses[slot] += o->uses[slot] < 1u << 20;
	order_gdsf(k, slot);
}

static void del_gdsf(struct kvc_keep *k, uint32_t slot, bool evicted)
{
	struct ranked *o = k->own;

	if (evicted && k->chain.key[slot] > o->floor)
		o->floor = k->chain.key[slot];
}

const struct kvc_keep_ops kvc_keep_gdsf = {
	BY_KEY,          .open = open_gdsf, .key = key_gdsf, .touch = touch_gdsf,
	.add = add_gdsf, .del = del_gdsf,
};
