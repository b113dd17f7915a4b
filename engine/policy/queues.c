/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies of queues, and of what they remember of what went: s3fifo (Yang et al., SOSP 2023) and
 * arc (Megiddo and Modha, FAST 2003). Where theirs would evict a chunk that others follow, a leaf
 * under it goes.
 */
#include "keep_priv.h"

#include <math.h>

#define STEPS 4096 /* of a victim's choice, at most: then the next is taken as it is */

enum { FIRST, SECOND, QUEUES };

#define SAVED 262144u /* of what is remembered in a queue, at most */
/* A chunk's facts: this, the number of its place, its uses and its queue. */
#define KNOWN (1ull << 63)
#define TURN_BITS 3

/* Queues of the slots of a chain; each slot is in one. */
struct queues {
	uint32_t *next, *prev, head[QUEUES], tail[QUEUES], n[QUEUES];
	uint8_t *in, *uses;
	uint64_t *turn, turns; /* when it got its place there, of those that are here; the last */
	bool mixed;            /* as they were restored, and not by that */
};

struct own {
	struct queues here, gone;
	struct kvc_chain remembered; /* those that went: gone's slots */
	double share;                /* arc: chunks that FIRST is to have */
};

static void attach(struct queues *q, struct kvc_chain *c)
{
	for (int i = 0; i < QUEUES; i++)
		q->head[i] = q->tail[i] = KVC_NO_SLOT;
	kvc_chain_column(c, &q->next, sizeof *q->next);
	kvc_chain_column(c, &q->prev, sizeof *q->prev);
	kvc_chain_column(c, &q->in, sizeof *q->in);
	kvc_chain_column(c, &q->uses, sizeof *q->uses);
}

static void push(struct queues *q, int to, uint32_t slot)
{
	if (q->turn)
		q->turn[slot] = ++q->turns;
	q->in[slot] = (uint8_t)to;
	q->next[slot] = KVC_NO_SLOT;
	q->prev[slot] = q->tail[to];
	if (q->tail[to] == KVC_NO_SLOT)
		q->head[to] = slot;
	else
		q->next[q->tail[to]] = slot;
	q->tail[to] = slot;
	q->n[to]++;
}

static void pull(struct queues *q, uint32_t slot)
{
	int of = q->in[slot];

	if (q->prev[slot] == KVC_NO_SLOT)
		q->head[of] = q->next[slot];
	else
		q->next[q->prev[slot]] = q->next[slot];
	if (q->next[slot] == KVC_NO_SLOT)
		q->tail[of] = q->prev[slot];
	else
		q->prev[q->next[slot]] = q->prev[slot];
	q->n[of]--;
}

static void move(struct queues *q, int to, uint32_t slot)
{
	pull(q, slot);
	push(q, to, slot);
}

/* Without memory it is not remembered. */
static void remember(struct own *o, int in, uint64_t id)
{
	uint32_t slot = kvc_chain_find(&o->remembered, id);

	if (slot != KVC_NO_SLOT) {
		move(&o->gone, in, slot);
		return;
	}
	slot = kvc_chain_add(&o->remembered, id, KVC_NO_SLOT, 0);
	if (slot != KVC_NO_SLOT)
		push(&o->gone, in, slot);
}

static void forget(struct own *o, uint32_t slot)
{
	pull(&o->gone, slot);
	kvc_chain_del(&o->remembered, slot);
}

static int open_(struct kvc_keep *k)
{
	struct own *o = calloc(1, sizeof *o);

	if (!o)
		return -ENOMEM;
	if (kvc_chain_init(&o->remembered, false, false)) {
		free(o);
		return -ENOMEM;
	}
	attach(&o->here, &k->chain);
	kvc_chain_column(&k->chain, &o->here.turn, sizeof *o->here.turn);
	attach(&o->gone, &o->remembered);
	k->own = o;
	return 0;
}

static void close_(struct kvc_keep *k)
{
	struct own *o = k->own;

	kvc_chain_fini(&o->remembered);
	free(o);
}

/*
 * The leaf to take for the first of a queue, or of those after it; or KVC_NO_SLOT. What is aside
 * has another round, or each choice would begin with a walk over it.
 */
static uint32_t leaf_for(const struct kvc_keep *k, struct queues *q, int of)
{
	uint32_t at = q->head[of], next, n = (uint32_t)kvc_min(q->n[of], STEPS);

	for (uint32_t i = 0; i < n; i++, at = next) {
		uint32_t leaf = kvc_chain_leaf_under(&k->chain, at);

		next = q->next[at];
		if (leaf == KVC_NO_SLOT)
			move(q, of, at);
		else if (!kvc_keep_busy(k, leaf))
			return leaf;
	}
	return KVC_NO_SLOT;
}

static uint32_t leaf_for_either(const struct kvc_keep *k, struct queues *q, int of)
{
	uint32_t leaf = leaf_for(k, q, of);

	return leaf == KVC_NO_SLOT ? leaf_for(k, q, !of) : leaf;
}

/* What is remembered has been used before. */
static void add(struct kvc_keep *k, struct kvc_request *r, uint32_t slot, uint64_t size)
{
	struct own *o = k->own;
	uint32_t known = kvc_chain_find(&o->remembered, k->chain.id[slot]);

	(void)r;
	(void)size;
	push(&o->here, known != KVC_NO_SLOT ? SECOND : FIRST, slot);
	if (known != KVC_NO_SLOT)
		forget(o, known);
}

static uint64_t bytes(const struct kvc_keep *k)
{
	const struct own *o = k->own;

	return sizeof *o + kvc_chain_bytes(&o->remembered);
}

/* What survives */

static uint64_t facts(const struct kvc_keep *k, uint32_t slot)
{
	const struct queues *q = &((struct own *)k->own)->here;

	return KNOWN | q->turn[slot] << TURN_BITS | (uint64_t)q->uses[slot] << 1 | q->in[slot];
}

static void restore(struct kvc_keep *k, uint32_t slot, uint64_t size, uint64_t facts_)
{
	struct queues *q = &((struct own *)k->own)->here;
	uint64_t turns = q->turns;

	(void)size;
	push(q, facts_ & 1 ? SECOND : FIRST, slot);
	q->uses[slot] = (uint8_t)(facts_ >> 1 & 3);
	q->turn[slot] = (facts_ & ~KNOWN) >> TURN_BITS;
	q->mixed |= q->turn[slot] < turns;
	q->turns = kvc_max(turns, q->turn[slot]);
}

static int by_turn(const void *a, const void *b, void *turns)
{
	uint64_t x = ((const uint64_t *)turns)[*(const uint32_t *)a];
	uint64_t y = ((const uint64_t *)turns)[*(const uint32_t *)b];

	return (x > y) - (x < y);
}

/* Once, after all are restored. Without memory they stay mixed. */
static void in_order(struct queues *q)
{
	uint32_t *slots = malloc((q->n[FIRST] + q->n[SECOND] + 1) * sizeof *slots);
	uint64_t turn, turns = q->turns;

	q->mixed = false;
	for (int of = 0; of < QUEUES && slots; of++) {
		uint32_t n = 0;

		for (uint32_t at = q->head[of]; at != KVC_NO_SLOT; at = q->next[at])
			slots[n++] = at;
		qsort_r(slots, n, sizeof *slots, by_turn, q->turn);
		q->head[of] = q->tail[of] = KVC_NO_SLOT;
		q->n[of] = 0;
		for (uint32_t i = 0; i < n; i++) {
			turn = q->turn[slots[i]];
			push(q, of, slots[i]);
			q->turn[slots[i]] = turn;
		}
	}
	q->turns = turns;
	free(slots);
}

static void save(const struct kvc_keep *k, struct kvc_out *out)
{
	const struct own *o = k->own;
	const struct queues *q = &o->gone;

	kvc_out_64(out, o->here.turns);
	kvc_out_double(out, o->share);
	for (int of = 0; of < QUEUES; of++) {
		uint32_t n = (uint32_t)kvc_min(q->n[of], SAVED), at = q->head[of];

		kvc_out_32(out, n);
		for (uint32_t skip = q->n[of] - n; skip; skip--)
			at = q->next[at];
		for (; n; n--, at = q->next[at])
			kvc_out_64(out, o->remembered.id[at]);
	}
}

static void load(struct kvc_keep *k, struct kvc_in *in)
{
	struct own *o = k->own;
	uint64_t id;

	o->here.turns = kvc_in_64(in);
	o->share = kvc_in_double(in);
	in->bad |= o->here.turns >= KNOWN >> TURN_BITS || o->share < 0;
	for (int of = 0; of < QUEUES; of++)
		for (uint32_t n = kvc_in_count(in, SAVED, sizeof id); n; n--) {
			id = kvc_in_64(in);
			if (id)
				remember(o, of, id);
			else
				in->bad = true;
		}
}

#define BY_QUEUE                                                                    \
	.family = true, .open = open_, .close = close_, .add = add, .bytes = bytes, \
	.facts = facts, .restore = restore, .save = save, .load = load

/*
 * s3fifo: FIRST takes what is new, a tenth of all; what was used there goes on to SECOND, what was
 * not goes and is remembered. SECOND goes round, one use less each time.
 */

static void touch_s3(struct kvc_keep *k, struct kvc_request *r, uint32_t slot)
{
	struct own *o = k->own;

	(void)r;
	if (slot != KVC_NO_SLOT)
		o->here.uses[slot] += o->here.uses[slot] < 3;
}

static void del_s3(struct kvc_keep *k, uint32_t slot, bool evicted)
{
	struct own *o = k->own;

	if (evicted && o->here.in[slot] == FIRST) {
		remember(o, FIRST, k->chain.id[slot]);
		if (o->gone.n[FIRST] > k->chain.n - k->chain.n / 10)
			forget(o, o->gone.head[FIRST]);
	}
	pull(&o->here, slot);
}

static uint32_t victim_s3(struct kvc_keep *k)
{
	struct own *o = k->own;
	struct queues *q = &o->here;

	if (q->mixed)
		in_order(q);
	for (int i = 0; i < STEPS; i++) {
		int of = q->n[FIRST] && (q->n[FIRST] >= k->chain.n / 10 || !q->n[SECOND]) ? FIRST
											  : SECOND;
		uint32_t at = q->head[of];

		if (!q->uses[at])
			return leaf_for_either(k, q, of);
		q->uses[at] = of == FIRST ? 0 : (uint8_t)(q->uses[at] - 1);
		move(q, SECOND, at);
	}
	return leaf_for_either(k, q, SECOND);
}

const struct kvc_keep_ops kvc_keep_s3fifo = {
	BY_QUEUE,
	.touch = touch_s3,
	.del = del_s3,
	.victim = victim_s3,
};

/*
 * arc: FIRST has what was used once, SECOND what was used again, both by their last use; what went
 * of each is remembered, and when it comes back that queue is to have more.
 */

static void touch_arc(struct kvc_keep *k, struct kvc_request *r, uint32_t slot)
{
	struct own *o = k->own;
	uint32_t known, *gone = o->gone.n;

	if (slot != KVC_NO_SLOT) {
		move(&o->here, SECOND, slot);
		return;
	}
	known = kvc_chain_find(&o->remembered, r->touched[r->n - 1].id);
	if (known == KVC_NO_SLOT)
		return;
	if (o->gone.in[known] == FIRST)
		o->share = fmin(o->share + fmax(gone[SECOND] / (double)gone[FIRST], 1), k->chain.n);
	else
		o->share = fmax(o->share - fmax(gone[FIRST] / (double)gone[SECOND], 1), 0);
}

static void del_arc(struct kvc_keep *k, uint32_t slot, bool evicted)
{
	struct own *o = k->own;
	uint32_t n = k->chain.n, *here = o->here.n, *gone = o->gone.n;

	if (evicted)
		remember(o, o->here.in[slot], k->chain.id[slot]);
	pull(&o->here, slot);
	if (gone[FIRST] && here[FIRST] + gone[FIRST] > n)
		forget(o, o->gone.head[FIRST]);
	if (gone[SECOND] && here[FIRST] + here[SECOND] + gone[FIRST] + gone[SECOND] > 2 * n)
		forget(o, o->gone.head[SECOND]);
}

static uint32_t victim_arc(struct kvc_keep *k)
{
	struct own *o = k->own;
	struct queues *q = &o->here;
	bool first = q->n[FIRST] && (q->n[FIRST] > o->share || !q->n[SECOND]);

	if (q->mixed)
		in_order(q);
	return leaf_for_either(k, q, first ? FIRST : SECOND);
}

const struct kvc_keep_ops kvc_keep_arc = {
	BY_QUEUE,
	.touch = touch_arc,
	.del = del_arc,
	.victim = victim_arc,
};
