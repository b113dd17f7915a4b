/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies in which leaves have a key that changes with accesses. The leaf with the lowest key is
 * evicted first.
 *
 *     lru, leaf  the last access      fifo  when it was added
 *     mru        the last access, latest first
 *     lfu        the number of accesses, then the last access
 *     gdsf       L + accesses * cost / bytes. L is the key of the last victim. The cost to
 *                compute a chunk grows with its place in the prompt, because attention covers
 *                all chunks before it
 */
#include "replacer_priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* the number of preceding chunks with which attention costs as much as the rest of a chunk */
#define COST_EQUAL 16.f
#define AHEAD 4096u /* leaves of the heap that are tried if the first leaves are busy */
/* depth of a heap of all slots: one entry waits at each level, and one more */
#define HEAP_DEPTH 34
/* Keys are doubles with exact integers: accesses below 2^13, times 2^40, plus the clock. */
#define USES_MOST 8191u
#define PER_USE 0x1p40
#define KEYS_END 0x1p53
/*
 * gdsf: a chunk's saved state is the upper 40 bits of its key without the sign, its accesses and
 * its depth.
 */
#define GDSF_USES 1023u
#define GDSF_DEPTH 16383u
#define GDSF_LOST 23 /* lowest bits of the key, which are not saved */

struct ranked {
	double clock, floor; /* accesses so far; L of gdsf */
	double unknown;      /* the last key that was given to a chunk without saved state */
	bool loaded;         /* gdsf: L was loaded */
	uint32_t *uses;
	uint16_t *depth;
	float *bytes;
};

static int ranked_open(struct kvc_replacer *k)
{
	k->own = calloc(1, sizeof(struct ranked));
	return k->own ? 0 : -ENOMEM;
}

static void ranked_close(struct kvc_replacer *k)
{
	free(k->own);
}

static uint32_t ranked_victim(struct kvc_replacer *k)
{
	const struct kvc_chain *c = &k->chain;
	uint32_t best = KVC_NO_SLOT, at[HEAP_DEPTH] = { 0 }, n = c->nleaf ? 1 : 0;
	uint32_t most = kvc_replacer_looks(k);

	/*
	 * entries below another in the heap have higher keys: only those below busy leaves are read
	 */
	for (uint32_t i = 0; n && i < most && (i < AHEAD || best == KVC_NO_SLOT); i++) {
		uint32_t here = at[--n], slot = c->leaf[here];

		if (best != KVC_NO_SLOT && !kvc_chain_before(c, slot, best))
			continue;
		if (!kvc_replacer_busy(k, slot)) {
			best = slot;
			continue;
		}
		for (uint32_t below = 2 * here + 2; below > 2 * here; below--)
			if (below < c->nleaf)
				at[n++] = below;
	}
	return best;
}

static double tick(struct kvc_replacer *k)
{
	struct ranked *r = k->own;

	return ++r->clock;
}

/* lru, fifo, mru */

static double key_newest(struct kvc_replacer *k, uint32_t parent, uint64_t bytes)
{
	(void)parent;
	(void)bytes;
	return tick(k);
}

static double key_oldest(struct kvc_replacer *k, uint32_t parent, uint64_t bytes)
{
	return -key_newest(k, parent, bytes);
}

static void touch_newest(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot)
{
	(void)r;
	if (slot != KVC_NO_SLOT)
		kvc_chain_order(&k->chain, slot, tick(k));
}

static void touch_oldest(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot)
{
	(void)r;
	if (slot != KVC_NO_SLOT)
		kvc_chain_order(&k->chain, slot, -tick(k));
}

static uint64_t bits_of(double v)
{
	uint64_t bits;

	memcpy(&bits, &v, sizeof bits);
	return bits;
}

static double double_of(uint64_t bits)
{
	double v;

	memcpy(&v, &bits, sizeof v);
	return v;
}

/* The saved state is the key; it also sets the clock. */

static uint64_t saved_state_key(const struct kvc_replacer *k, uint32_t slot)
{
	return bits_of(k->chain.key[slot]);
}

/*
 * Returns the saved key. A chunk without a valid one gets a key lower than all others, in the order
 * of restoring.
 */
static double restored_key(struct kvc_replacer *k, uint64_t facts)
{
	struct ranked *o = k->own;
	double key = double_of(facts);

	if (isfinite(key) && fabs(key) >= 1 && fabs(key) < KEYS_END) {
		o->clock = fmax(o->clock, fmod(fabs(key), PER_USE));
		return key;
	}
	o->unknown += 1 / 4294967296.;
	return o->unknown;
}

static void restore_newest(struct kvc_replacer *k, uint32_t slot, uint64_t bytes, uint64_t facts)
{
	(void)bytes;
	kvc_chain_order(&k->chain, slot, fabs(restored_key(k, facts)));
}

static void restore_oldest(struct kvc_replacer *k, uint32_t slot, uint64_t bytes, uint64_t facts)
{
	(void)bytes;
	kvc_chain_order(&k->chain, slot, -fabs(restored_key(k, facts)));
}

static bool ranked_save(const struct kvc_replacer *k, struct kvc_saving *s)
{
	const struct ranked *o = k->own;

	kvc_state_out_double(&s->out, o->clock);
	kvc_state_out_double(&s->out, o->floor);
	return false;
}

static void ranked_load(struct kvc_replacer *k, struct kvc_in *in)
{
	struct ranked *o = k->own;

	o->clock = kvc_state_in_double(in);
	o->floor = kvc_state_in_double(in);
	o->loaded = true;
	in->bad |= o->clock < 0 || o->clock >= KEYS_END || o->floor < 0;
}

#define BY_KEY                                                                                \
	.ordered = true, .close = ranked_close, .victim = ranked_victim, .save = ranked_save, \
	.load = ranked_load
#define BY_USE BY_KEY, .open = ranked_open, .saved_state = saved_state_key

#define BY_NEWEST BY_USE, .key = key_newest, .restore = restore_newest

const struct kvc_replacer_ops kvc_replacer_lru = { BY_NEWEST, .touch = touch_newest };
const struct kvc_replacer_ops kvc_replacer_leaf = { BY_NEWEST, .touch = touch_newest };
const struct kvc_replacer_ops kvc_replacer_fifo = { BY_NEWEST };
const struct kvc_replacer_ops kvc_replacer_mru = {
	BY_USE,
	.key = key_oldest,
	.touch = touch_oldest,
	.restore = restore_oldest,
};

/* lfu */

static int open_lfu(struct kvc_replacer *k)
{
	int err = ranked_open(k);
	struct ranked *o = k->own;

	if (!err)
		kvc_chain_column(&k->chain, &o->uses, sizeof *o->uses);
	return err;
}

static void touch_lfu(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot)
{
	struct ranked *o = k->own;

	(void)r;
	if (slot == KVC_NO_SLOT)
		return;
	o->uses[slot] += o->uses[slot] < USES_MOST;
	kvc_chain_order(&k->chain, slot, o->uses[slot] * PER_USE + tick(k));
}

static void restore_lfu(struct kvc_replacer *k, uint32_t slot, uint64_t bytes, uint64_t facts)
{
	struct ranked *o = k->own;

	restore_newest(k, slot, bytes, facts);
	o->uses[slot] = (uint32_t)(k->chain.key[slot] / PER_USE);
}

const struct kvc_replacer_ops kvc_replacer_lfu = {
	BY_KEY,
	.open = open_lfu,
	.key = key_newest,
	.touch = touch_lfu,
	.saved_state = saved_state_key,
	.restore = restore_lfu,
};

/* gdsf */

static int open_gdsf(struct kvc_replacer *k)
{
	int err = open_lfu(k);
	struct ranked *o = k->own;

	if (!err) {
		kvc_chain_column(&k->chain, &o->depth, sizeof *o->depth);
		kvc_chain_column(&k->chain, &o->bytes, sizeof *o->bytes);
	}
	return err;
}

static double key_gdsf(struct kvc_replacer *k, uint32_t parent, uint64_t bytes)
{
	(void)parent;
	(void)bytes;
	return ((struct ranked *)k->own)->floor;
}

static double worth_gdsf(const struct ranked *o, uint32_t slot)
{
	double cost = 1 + o->depth[slot] / COST_EQUAL;

	return (o->uses[slot] + 1) * cost / o->bytes[slot];
}

/* Rounds a key as saving does, so that the order is the same after a restart. */
static double rounded(double key)
{
	return double_of(bits_of(key) >> GDSF_LOST << GDSF_LOST);
}

static void order_gdsf(struct kvc_replacer *k, uint32_t slot)
{
	struct ranked *o = k->own;

	kvc_chain_order(&k->chain, slot, rounded(o->floor + worth_gdsf(o, slot)));
}

static uint16_t depth_of(const struct kvc_replacer *k, uint32_t slot)
{
	const struct ranked *o = k->own;
	uint32_t parent = k->chain.parent[slot];

	return parent == KVC_NO_SLOT ? 0 : (uint16_t)kvc_min(o->depth[parent] + 1u, GDSF_DEPTH);
}

static void add_gdsf(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot, uint64_t bytes)
{
	struct ranked *o = k->own;

	(void)r;
	o->depth[slot] = depth_of(k, slot);
	o->bytes[slot] = (float)kvc_max(bytes, 1);
	order_gdsf(k, slot);
}

/*
 * Usually the parent of a chunk is set before its children are added. If not, the depth of the
 * children changes when their own parent is set.
 */
static void set_parent_gdsf(struct kvc_replacer *k, uint32_t slot)
{
	struct ranked *o = k->own;
	uint16_t depth = depth_of(k, slot);
	double key = k->chain.key[slot] - worth_gdsf(o, slot);

	if (depth == o->depth[slot])
		return; /* it was restored together with its key */
	o->depth[slot] = depth;
	kvc_chain_order(&k->chain, slot, rounded(fmax(key, 0) + worth_gdsf(o, slot)));
}

static void resize_gdsf(struct kvc_replacer *k, uint32_t slot, uint64_t bytes)
{
	struct ranked *o = k->own;
	double key = k->chain.key[slot] - worth_gdsf(o, slot);

	if ((float)kvc_max(bytes, 1) == o->bytes[slot])
		return;
	o->bytes[slot] = (float)kvc_max(bytes, 1);
	kvc_chain_order(&k->chain, slot, rounded(fmax(key, 0) + worth_gdsf(o, slot)));
}

static uint64_t saved_state_gdsf(const struct kvc_replacer *k, uint32_t slot)
{
	const struct ranked *o = k->own;

	return bits_of(k->chain.key[slot]) >> GDSF_LOST << 24 | o->uses[slot] << 14 |
	       o->depth[slot];
}

/* If the rest of the saved state is lost, L is the lowest key, as it is after an eviction. */
static void restore_gdsf(struct kvc_replacer *k, uint32_t slot, uint64_t bytes, uint64_t facts)
{
	struct ranked *o = k->own;
	double key = double_of(facts >> 24 << GDSF_LOST);

	o->bytes[slot] = (float)kvc_max(bytes, 1);
	o->uses[slot] = (uint32_t)(facts >> 14 & GDSF_USES);
	o->depth[slot] = (uint16_t)(facts & GDSF_DEPTH);
	if (!facts || !isfinite(key)) {
		o->uses[slot] = 0;
		o->depth[slot] = depth_of(k, slot);
		order_gdsf(k, slot);
		return;
	}
	kvc_chain_order(&k->chain, slot, key);
	if (!o->loaded)
		o->floor = k->chain.n == 1 ? key : fmin(o->floor, key);
}

static void touch_gdsf(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot)
{
	struct ranked *o = k->own;

	(void)r;
	if (slot == KVC_NO_SLOT)
		return;
	o->uses[slot] += o->uses[slot] < GDSF_USES;
	order_gdsf(k, slot);
}

static void del_gdsf(struct kvc_replacer *k, uint32_t slot, bool evicted)
{
	struct ranked *o = k->own;

	if (evicted && k->chain.key[slot] > o->floor)
		o->floor = k->chain.key[slot];
}

static void text_gdsf(const struct kvc_replacer *k, char *to, size_t capacity)
{
	const struct ranked *o = k->own;

	snprintf(to, capacity, "floor %.9g\n", o->floor);
}

const struct kvc_replacer_ops kvc_replacer_gdsf = {
	BY_KEY,
	.open = open_gdsf,
	.key = key_gdsf,
	.touch = touch_gdsf,
	.add = add_gdsf,
	.claim = add_gdsf,
	.set_parent = set_parent_gdsf,
	.resize = resize_gdsf,
	.del = del_gdsf,
	.saved_state = saved_state_gdsf,
	.restore = restore_gdsf,
	.text = text_gdsf,
};
