/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies that consist of queues and remember evicted chunks: s3fifo (Yang et al., SOSP 2023) and
 * arc (Megiddo and Modha, FAST 2003). If the algorithm would evict a chunk with children, a leaf
 * below it is evicted.
 *
 * A queue is a list in the order of turns: a number that grows with each chunk that enters a queue.
 * A restored chunk has its saved turn, so its place may be anywhere in the list. If it is not at an
 * end, the chunk waits in a heap of late chunks, ordered by turn, and is linked into the list when
 * a walk from the head reaches its place.
 */
#include "array.h"
#include "replacer_priv.h"

#include <math.h>
#include <stdio.h>

/* steps in the choice of a victim; after that the next chunk is used as it is */
#define STEPS 4096
/* steps down to leaves in one choice; after that the walk goes on at the next choice */
#define DOWN 65536u
#define DEEP 1024u /* steps down after which the position is remembered */

enum { FIRST, SECOND, QUEUES };

#define SAVED 262144u /* remembered chunks that are saved, per queue */
/* The saved state of a chunk: this bit, its turn, its accesses and its queue. */
#define KNOWN (1ull << 63)
#define TURN_BITS 3
#define TURNS_END (KNOWN >> TURN_BITS >> 1)
#define LATE 4 /* a flag beside the number of the queue */

/* A heap of slots, the lowest turn first. The slot's index in the heap is in queues.prev. */
struct late {
	uint32_t *slot, n, capacity;
};

/* Queues of the slots of a chain; each slot is in one queue. */
struct queues {
	uint32_t *next, *prev, head[QUEUES], tail[QUEUES], n[QUEUES];
	uint8_t *in, *uses;
	/* with turns: by slot, when the chunk entered its queue; the last turn */
	uint64_t *turn, turns;
	struct late late[QUEUES];
	/*
	 * the last long walk down: ids of the chunk where it began and of the chunk that it
	 * reached; the chain may have changed since
	 */
	uint64_t from[QUEUES], down_to[QUEUES];
};

struct own {
	struct queues here, gone;
	struct kvc_chain remembered; /* evicted chunks; `gone` has their slots */
	double share;                /* arc: target size of FIRST in chunks */
};

static void init_queues(struct queues *q, struct kvc_chain *c)
{
	for (int i = 0; i < QUEUES; i++)
		q->head[i] = q->tail[i] = KVC_NO_SLOT;
	kvc_chain_column(c, &q->next, sizeof *q->next);
	kvc_chain_column(c, &q->prev, sizeof *q->prev);
	kvc_chain_column(c, &q->in, sizeof *q->in);
	kvc_chain_column(c, &q->uses, sizeof *q->uses);
}

static int queue_of(const struct queues *q, uint32_t slot)
{
	return q->in[slot] & ~LATE;
}

/* Late chunks */

static bool is_earlier(const struct queues *q, uint32_t a, uint32_t b)
{
	return q->turn[a] < q->turn[b] || (q->turn[a] == q->turn[b] && a < b);
}

static void place_late(struct queues *q, struct late *l, uint32_t i, uint32_t slot)
{
	for (; i && is_earlier(q, slot, l->slot[(i - 1) / 2]); i = (i - 1) / 2) {
		l->slot[i] = l->slot[(i - 1) / 2];
		q->prev[l->slot[i]] = i;
	}
	for (uint32_t below; (below = 2 * i + 1) < l->n; i = below) {
		below += below + 1 < l->n && is_earlier(q, l->slot[below + 1], l->slot[below]);
		if (!is_earlier(q, l->slot[below], slot))
			break;
		l->slot[i] = l->slot[below];
		q->prev[l->slot[i]] = i;
	}
	l->slot[i] = slot;
	q->prev[slot] = i;
}

/* Returns false if memory is short. */
static bool add_late(struct queues *q, int of, uint32_t slot)
{
	struct late *l = &q->late[of];

	if (l->n == l->capacity) {
		uint32_t capacity = l->capacity ? l->capacity * 2 : 64, *v;

		v = kvc_array_grow(l->slot, capacity * sizeof *v);
		if (!v)
			return false;
		l->slot = v;
		l->capacity = capacity;
	}
	q->in[slot] = (uint8_t)(of | LATE);
	l->n++;
	place_late(q, l, l->n - 1, slot);
	return true;
}

static void del_late(struct queues *q, uint32_t slot)
{
	struct late *l = &q->late[queue_of(q, slot)];
	uint32_t i = q->prev[slot], last = l->slot[--l->n];

	if (last != slot)
		place_late(q, l, i, last);
	if (l->n)
		return;
	kvc_array_free(l->slot);
	*l = (struct late){ 0 };
}

/* Lists */

/* Inserts a slot after another, or at the head if `before` is KVC_NO_SLOT. */
static void link_after(struct queues *q, int to, uint32_t before, uint32_t slot)
{
	uint32_t *next = before == KVC_NO_SLOT ? &q->head[to] : &q->next[before];

	q->in[slot] = (uint8_t)to;
	q->prev[slot] = before;
	q->next[slot] = *next;
	*(*next == KVC_NO_SLOT ? &q->tail[to] : &q->prev[*next]) = slot;
	*next = slot;
}

static void push_slot(struct queues *q, int to, uint32_t slot)
{
	if (q->turn)
		q->turn[slot] = ++q->turns;
	link_after(q, to, q->tail[to], slot);
	q->n[to]++;
}

/*
 * Returns the successor of a slot, or the first if `slot` is KVC_NO_SLOT; KVC_NO_SLOT at the end. A
 * late chunk that belongs here is linked first.
 */
static uint32_t next_in_queue(struct queues *q, int of, uint32_t slot)
{
	uint32_t next = slot == KVC_NO_SLOT ? q->head[of] : q->next[slot], late;

	if (!q->late[of].n)
		return next;
	late = q->late[of].slot[0];
	if (next != KVC_NO_SLOT && !is_earlier(q, late, next))
		return next;
	del_late(q, late);
	link_after(q, of, slot, late);
	return late;
}

static void remove_slot(struct queues *q, uint32_t slot)
{
	int of = queue_of(q, slot);

	q->n[of]--;
	if (q->in[slot] & LATE) {
		del_late(q, slot);
		return;
	}
	if (q->prev[slot] == KVC_NO_SLOT)
		q->head[of] = q->next[slot];
	else
		q->next[q->prev[slot]] = q->next[slot];
	if (q->next[slot] == KVC_NO_SLOT)
		q->tail[of] = q->prev[slot];
	else
		q->prev[q->next[slot]] = q->prev[slot];
}

static void move_to_tail(struct queues *q, int to, uint32_t slot)
{
	remove_slot(q, slot);
	push_slot(q, to, slot);
}

/* If memory is short, the chunk is not remembered. */
static void remember_evicted(struct own *o, int in, uint64_t id)
{
	uint32_t slot = kvc_chain_find(&o->remembered, id);

	if (slot != KVC_NO_SLOT) {
		move_to_tail(&o->gone, in, slot);
		return;
	}
	slot = kvc_chain_add(&o->remembered, id, KVC_NO_SLOT, 0);
	if (slot != KVC_NO_SLOT)
		push_slot(&o->gone, in, slot);
}

static void forget_evicted(struct own *o, uint32_t slot)
{
	remove_slot(&o->gone, slot);
	kvc_chain_del(&o->remembered, slot);
}

static int queues_open(struct kvc_replacer *k)
{
	struct own *o = calloc(1, sizeof *o);

	if (!o)
		return -ENOMEM;
	if (kvc_chain_init(&o->remembered, false, false)) {
		free(o);
		return -ENOMEM;
	}
	init_queues(&o->here, &k->chain);
	kvc_chain_column(&k->chain, &o->here.turn, sizeof *o->here.turn);
	init_queues(&o->gone, &o->remembered);
	k->own = o;
	return 0;
}

static void queues_close(struct kvc_replacer *k)
{
	struct own *o = k->own;

	kvc_chain_fini(&o->remembered);
	for (int of = 0; of < QUEUES; of++)
		kvc_array_free(o->here.late[of].slot);
	free(o);
}

/*
 * As kvc_chain_leaf_under, but a long walk begins where the last one ended: the chunks of a long
 * prompt are evicted one after another, and each would need the whole walk.
 */
static uint32_t leaf_below(const struct kvc_replacer *k, struct queues *q, int of, uint32_t top,
			   uint32_t *steps)
{
	const struct kvc_chain *c = &k->chain;
	uint32_t at = top, before = *steps, up;
	bool known = q->from[of] == c->id[top];

	if (known && (at = kvc_chain_find(c, q->down_to[of])) == KVC_NO_SLOT)
		at = top;
	at = kvc_chain_leaf_under(c, at, steps);
	if (at == KVC_NO_SLOT || (!known && before - *steps < DEEP)) {
		q->from[of] = 0;
		return at;
	}
	up = kvc_chain_is_leaf(c, at) ? c->parent[at] : at;
	q->from[of] = c->id[top];
	q->down_to[of] = up == KVC_NO_SLOT ? 0 : c->id[up];
	return at;
}

/*
 * Returns the leaf below the first chunk of a queue, or below one of the next chunks; or
 * KVC_NO_SLOT. Excluded chunks move to the tail, or each choice would begin with a walk over them.
 */
static uint32_t leaf_for(const struct kvc_replacer *k, struct queues *q, int of, uint32_t *steps)
{
	uint32_t before = KVC_NO_SLOT, at, n = (uint32_t)kvc_min(q->n[of], STEPS);

	for (uint32_t i = 0; i < n && *steps; i++) {
		uint32_t leaf;

		at = next_in_queue(q, of, before);
		leaf = leaf_below(k, q, of, at, steps);
		if (leaf == KVC_NO_SLOT)
			move_to_tail(q, of, at);
		else if (kvc_chain_is_leaf(&k->chain, leaf) && !kvc_replacer_busy(k, leaf))
			return leaf;
		else
			before = at;
	}
	return KVC_NO_SLOT;
}

static uint32_t leaf_for_either(const struct kvc_replacer *k, struct queues *q, int of)
{
	uint32_t steps = DOWN, leaf = leaf_for(k, q, of, &steps);

	if (leaf != KVC_NO_SLOT)
		return leaf;
	steps = DOWN;
	return leaf_for(k, q, !of, &steps);
}

/*
 * A remembered chunk was accessed before, so it enters SECOND. If no request accesses it yet, it
 * stays remembered until one claims it, because touch_arc learns from that.
 */
static void queues_add(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot, uint64_t size)
{
	struct own *o = k->own;
	uint32_t known = kvc_chain_find(&o->remembered, k->chain.id[slot]);

	(void)size;
	push_slot(&o->here, known != KVC_NO_SLOT ? SECOND : FIRST, slot);
	if (known != KVC_NO_SLOT && r)
		forget_evicted(o, known);
}

static void queues_claim(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot,
			 uint64_t size)
{
	struct own *o = k->own;
	uint32_t known = kvc_chain_find(&o->remembered, k->chain.id[slot]);

	(void)r;
	(void)size;
	if (known == KVC_NO_SLOT)
		return;
	move_to_tail(&o->here, SECOND, slot);
	forget_evicted(o, known);
}

static void queues_rename(struct kvc_replacer *k, uint64_t from, uint64_t to)
{
	struct own *o = k->own;
	uint32_t slot = kvc_chain_find(&o->remembered, from);

	if (slot != KVC_NO_SLOT && kvc_chain_find(&o->remembered, to) == KVC_NO_SLOT)
		kvc_chain_rename(&o->remembered, slot, to);
}

static uint64_t queues_bytes(const struct kvc_replacer *k)
{
	const struct own *o = k->own;

	return sizeof *o + kvc_chain_bytes(&o->remembered) +
	       4ull * (o->here.late[FIRST].capacity + o->here.late[SECOND].capacity);
}

/* Saved state */

static uint64_t queues_saved_state(const struct kvc_replacer *k, uint32_t slot)
{
	const struct queues *q = &((struct own *)k->own)->here;

	return KNOWN | q->turn[slot] << TURN_BITS | (uint64_t)q->uses[slot] << 1 |
	       (unsigned)queue_of(q, slot);
}

static void queues_restore(struct kvc_replacer *k, uint32_t slot, uint64_t size, uint64_t facts_)
{
	struct queues *q = &((struct own *)k->own)->here;
	uint64_t turn = (facts_ & ~KNOWN) >> TURN_BITS;
	int to;

	(void)size;
	if (!(facts_ & KNOWN) || turn >= TURNS_END)
		facts_ = turn = 0; /* not known: the chunk is evicted first */
	to = facts_ & 1 ? SECOND : FIRST;
	q->uses[slot] = (uint8_t)(facts_ >> 1 & 3);
	q->turn[slot] = turn;
	q->turns = kvc_max(q->turns, turn);
	q->n[to]++;
	if (q->head[to] == KVC_NO_SLOT || turn <= q->turn[q->head[to]])
		link_after(q, to, KVC_NO_SLOT, slot);
	else if (turn >= q->turn[q->tail[to]] || !add_late(q, to, slot))
		link_after(q, to, q->tail[to], slot);
}

/*
 * Gathers the remembered chunks of a queue, the newest first, from the tail. If the chunk at which
 * the last piece ended is not there any more, the rest is left out.
 */
static bool gather_remembered(const struct own *o, struct kvc_saving *s, int of)
{
	const struct queues *q = &o->gone;
	const struct kvc_chain *c = &o->remembered;
	uint32_t at = q->tail[of];

	if (s->n[of]) {
		at = (uint32_t)s->row;
		at = c->id[at] == s->last && q->in[at] == of ? q->prev[at] : KVC_NO_SLOT;
	}
	for (uint32_t i = 0; i < KVC_PIECE && at != KVC_NO_SLOT && s->n[of] < SAVED; i++) {
		s->row = at;
		s->last = c->id[at];
		kvc_state_out_64(&s->rows, s->last);
		s->n[of]++;
		at = q->prev[at];
	}
	return at != KVC_NO_SLOT && s->n[of] < SAVED;
}

static bool queues_save(const struct kvc_replacer *k, struct kvc_saving *s)
{
	const struct own *o = k->own;

	if (s->part == QUEUES) {
		kvc_state_out_64_at(&s->out, s->rows_at - 16, o->here.turns);
		return false;
	}
	if (!s->rows_at) {
		kvc_state_out_64(&s->out, o->here.turns);
		kvc_state_out_double(&s->out, o->share);
		s->rows_at = s->out.n;
	}
	s->part += !gather_remembered(o, s, (int)s->part);
	return true;
}

/* Writes the gathered chunks, the oldest first. */
static void queues_saved(struct kvc_saving *s)
{
	struct kvc_out all = { 0 };
	size_t end = 0;

	for (int of = 0; of < QUEUES; of++) {
		kvc_state_out_32(&all, s->n[of]);
		for (uint32_t n = s->n[of]; n; n--)
			kvc_state_out_bytes(&all, s->rows.v + 8 * (end + n - 1), 8);
		end += s->n[of];
	}
	kvc_state_saving_insert(s, &all);
}

static void queues_load(struct kvc_replacer *k, struct kvc_in *in)
{
	struct own *o = k->own;
	uint64_t id;

	o->here.turns = kvc_state_in_64(in);
	o->share = kvc_state_in_double(in);
	in->bad |= o->here.turns >= TURNS_END || o->share < 0;
	for (int of = 0; of < QUEUES; of++)
		for (uint32_t n = kvc_state_in_count(in, SAVED, sizeof id); n; n--) {
			id = kvc_state_in_64(in);
			if (id)
				remember_evicted(o, of, id);
			else
				in->bad = true;
		}
}

#define BY_QUEUE                                                                           \
	.family = true, .open = queues_open, .close = queues_close, .add = queues_add,     \
	.claim = queues_claim, .rename = queues_rename, .bytes = queues_bytes,             \
	.saved_state = queues_saved_state, .restore = queues_restore, .save = queues_save, \
	.saved = queues_saved, .load = queues_load

/*
 * s3fifo: new chunks enter FIRST, a tenth of the cache. A chunk that is accessed there moves on to
 * SECOND; otherwise it is evicted and remembered. A chunk in SECOND moves to the tail, with one
 * access fewer, until it has none left.
 */

static void touch_s3(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot)
{
	struct own *o = k->own;

	(void)r;
	if (slot != KVC_NO_SLOT)
		o->here.uses[slot] += o->here.uses[slot] < 3;
}

static void del_s3(struct kvc_replacer *k, uint32_t slot, bool evicted)
{
	struct own *o = k->own;

	if (evicted && queue_of(&o->here, slot) == FIRST) {
		remember_evicted(o, FIRST, k->chain.id[slot]);
		if (o->gone.n[FIRST] > k->chain.n - k->chain.n / 10)
			forget_evicted(o, o->gone.head[FIRST]);
	}
	remove_slot(&o->here, slot);
}

static uint32_t victim_s3(struct kvc_replacer *k)
{
	struct own *o = k->own;
	struct queues *q = &o->here;

	for (int i = 0; i < STEPS; i++) {
		int of = q->n[FIRST] && (q->n[FIRST] >= k->chain.n / 10 || !q->n[SECOND]) ? FIRST
											  : SECOND;
		uint32_t at = next_in_queue(q, of, KVC_NO_SLOT);

		if (!q->uses[at])
			return leaf_for_either(k, q, of);
		q->uses[at] = of == FIRST ? 0 : (uint8_t)(q->uses[at] - 1);
		move_to_tail(q, SECOND, at);
	}
	return leaf_for_either(k, q, SECOND);
}

static void text_s3(const struct kvc_replacer *k, char *to, size_t capacity)
{
	const struct own *o = k->own;

	snprintf(to, capacity, "queue_new %u\nqueue_used %u\nremembered %u\n", o->here.n[FIRST],
		 o->here.n[SECOND], o->gone.n[FIRST]);
}

const struct kvc_replacer_ops kvc_replacer_s3fifo = {
	BY_QUEUE, .touch = touch_s3, .del = del_s3, .victim = victim_s3, .text = text_s3,
};

/*
 * arc: FIRST has chunks that were accessed once, SECOND those that were accessed again, both in the
 * order of their last access. Evicted chunks of both are remembered, and a queue whose evicted
 * chunk is requested again gets a larger share.
 */

static void touch_arc(struct kvc_replacer *k, struct kvc_request *r, uint32_t slot)
{
	struct own *o = k->own;
	uint32_t known, *gone = o->gone.n;

	if (slot != KVC_NO_SLOT) {
		move_to_tail(&o->here, SECOND, slot);
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

static void del_arc(struct kvc_replacer *k, uint32_t slot, bool evicted)
{
	struct own *o = k->own;
	uint32_t n = k->chain.n, *here = o->here.n, *gone = o->gone.n;

	if (evicted)
		remember_evicted(o, queue_of(&o->here, slot), k->chain.id[slot]);
	remove_slot(&o->here, slot);
	if (gone[FIRST] && here[FIRST] + gone[FIRST] > n)
		forget_evicted(o, o->gone.head[FIRST]);
	if (gone[SECOND] && here[FIRST] + here[SECOND] + gone[FIRST] + gone[SECOND] > 2 * n)
		forget_evicted(o, o->gone.head[SECOND]);
}

static uint32_t victim_arc(struct kvc_replacer *k)
{
	struct own *o = k->own;
	struct queues *q = &o->here;
	bool first = q->n[FIRST] && (q->n[FIRST] > o->share || !q->n[SECOND]);

	return leaf_for_either(k, q, first ? FIRST : SECOND);
}

static void text_arc(const struct kvc_replacer *k, char *to, size_t capacity)
{
	const struct own *o = k->own;

	snprintf(to, capacity,
		 "share_once %.0f\nqueue_once %u\nqueue_again %u\nremembered_once %u\n"
		 "remembered_again %u\n",
		 o->share, o->here.n[FIRST], o->here.n[SECOND], o->gone.n[FIRST],
		 o->gone.n[SECOND]);
}

const struct kvc_replacer_ops kvc_replacer_arc = {
	BY_QUEUE, .touch = touch_arc, .del = del_arc, .victim = victim_arc, .text = text_arc,
};
