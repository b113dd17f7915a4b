/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saved state of the policy `prefix`. The 64 bits of a chunk are, from the highest bit on: a bit
 * that says that they are set, the score, the accesses, the children, the mean of its gaps (for a
 * chunk that was accessed once: its gap class), and the request of its last access. The saved state
 * of the whole policy is the guard, the learner, the ghosts, and the shadows unless they are too
 * large.
 *
 * A chunk that is added without a request gets the facts of its ghost, if it has one.
 *
 * The saved samples also hold for a cache of another size: it starts with them and moves, in steps,
 * to the samples that its own number of chunks requires.
 */
#include "prefix_priv.h"

#include <math.h>
#include <string.h>

#define KNOWN (1ull << 63)
#define SHADOW_MOST 65536u /* chunks of a saved shadow; a larger shadow starts empty */
#define SHADOW_BYTES 26    /* bytes of a saved chunk of a shadow */
#define NUMBERS_END 0x1p53

uint64_t kvc_prefix_saved_state(const struct kvc_replacer *k, uint32_t slot)
{
	const struct prefix *p = k->own;
	uint8_t gap = p->mean[slot] == NO_MEAN ? p->worth[slot].gap : p->mean[slot];

	return KNOWN | (uint64_t)p->worth[slot].score << 56 | (uint64_t)p->worth[slot].count << 48 |
	       (uint64_t)p->kids[slot] << 40 | (uint64_t)gap << 32 | k->chain.last[slot];
}

uint8_t kvc_prefix_size(uint64_t bytes)
{
	return (uint8_t)(8 * log2f((float)kvc_min(kvc_max(bytes, 1), 1u << 30)));
}

void kvc_prefix_add_unrequested(struct kvc_replacer *k, uint32_t slot, uint64_t bytes)
{
	struct prefix *p = k->own;
	const struct kvc_ghost *g = kvc_ghosts_find(&p->ghosts, k->chain.id[slot]);

	p->worth[slot].size = kvc_prefix_size(bytes);
	if (g) {
		p->worth[slot].count = g->count;
		p->mean[slot] = g->gap;
		p->kids[slot] = g->kids;
		p->worth[slot].gap = g->gap == NO_MEAN ? 0
						       : kvc_learn_gap((float)g->gap / MEAN_STEPS);
		k->chain.last[slot] = g->last;
	} else {
		p->worth[slot].count = 1;
		p->mean[slot] = NO_MEAN;
	}
}

void kvc_prefix_restore(struct kvc_replacer *k, uint32_t slot, uint64_t bytes, uint64_t facts)
{
	struct prefix *p = k->own;
	uint8_t gap = (uint8_t)(facts >> 32), count = (uint8_t)(facts >> 48);

	if (!(facts & KNOWN)) {
		kvc_prefix_add_unrequested(k, slot, bytes);
		return;
	}
	p->worth[slot].size = kvc_prefix_size(bytes);
	p->worth[slot].count = count;
	p->mean[slot] = count <= 1 ? NO_MEAN : (uint8_t)kvc_min(gap, NO_MEAN - 1);
	p->worth[slot].gap = count <= 1 ? (uint8_t)kvc_min(gap, KVC_GAPS - 1)
					: kvc_learn_gap((float)p->mean[slot] / MEAN_STEPS);
	p->worth[slot].score = (uint8_t)kvc_min(facts >> 56 & 127, KVC_SCORES - 1);
	p->kids[slot] = (uint8_t)(facts >> 40);
	k->chain.last[slot] = (uint32_t)facts;
	/* if the rest of the saved state is lost, request numbers continue from here */
	k->now = (uint32_t)kvc_max(k->now, k->chain.last[slot]);
}

/*
 * Shadows: a shadow is first copied as it is in memory, which is fast. The copy is then written in
 * a portable format, in which each chunk comes after its parent.
 */

struct shadow_copy {
	double hits;
	uint32_t used, n;
	uint64_t ordered;
};

static size_t shadow_copy_bytes(const struct shadow *s)
{
	const struct kvc_chain *c = &s->chain;
	size_t row = sizeof *c->id + (c->key ? sizeof *c->key : 0) + sizeof *c->parent +
		     sizeof *c->last + sizeof *s->worth;

	return sizeof(struct shadow_copy) + (c->n <= SHADOW_MOST ? c->used * row : 0);
}

static void copy_shadow(const struct shadow *s, struct kvc_out *o)
{
	const struct kvc_chain *c = &s->chain;
	uint32_t used = c->n <= SHADOW_MOST ? c->used : 0;
	struct shadow_copy head = { s->hits, used, used ? c->n : 0, c->key != NULL };

	kvc_state_out_bytes(o, &head, sizeof head);
	if (!used)
		return;
	kvc_state_out_bytes(o, c->id, used * sizeof *c->id);
	if (c->key)
		kvc_state_out_bytes(o, c->key, used * sizeof *c->key);
	kvc_state_out_bytes(o, c->parent, used * sizeof *c->parent);
	kvc_state_out_bytes(o, c->last, used * sizeof *c->last);
	kvc_state_out_bytes(o, s->worth, used * sizeof *s->worth);
}

/* Returns a shadow whose arrays point into the copy; it has the fields that save_shadow reads. */
static struct shadow shadow_of_copy(const struct kvc_out *o)
{
	const struct shadow_copy *head = (const void *)o->v;
	struct shadow s = { .hits = head->hits };
	struct kvc_chain *c = &s.chain;
	uint8_t *at = o->v + sizeof *head;

	c->used = head->used;
	c->n = head->n;
	c->id = (void *)at;
	at += c->used * sizeof *c->id;
	if (head->ordered) {
		c->key = (void *)at;
		at += c->used * sizeof *c->key;
	}
	c->parent = (void *)at;
	at += c->used * sizeof *c->parent;
	c->last = (void *)at;
	at += c->used * sizeof *c->last;
	s.worth = (void *)at;
	return s;
}

static void save_shadow_chunk(const struct shadow *s, struct kvc_out *o, uint32_t slot,
			      uint32_t *nr, uint32_t *n)
{
	const struct kvc_chain *c = &s->chain;
	uint32_t up = c->parent[slot];

	kvc_state_out_64(o, c->id[slot]);
	kvc_state_out_32(o, up == KVC_NO_SLOT ? 0 : nr[up]);
	kvc_state_out_32(o, c->last[slot]);
	kvc_state_out_8(o, s->worth[slot].score);
	kvc_state_out_8(o, s->worth[slot].gap);
	kvc_state_out_double(o, c->key ? c->key[slot] : 0);
	nr[slot] = ++*n;
}

static void save_shadow(const struct shadow *s, struct kvc_out *o)
{
	const struct kvc_chain *c = &s->chain;
	uint32_t *nr, *way, n = 0;

	kvc_state_out_double(o, s->hits);
	kvc_state_out_32(o, c->n);
	/* by slot: the number of the written chunk, from 1 on */
	nr = calloc(c->used + 1, sizeof *nr);
	way = malloc((c->used + 1) * sizeof *way);
	o->failed |= !nr || !way;
	for (uint32_t i = 0; i < c->used && !o->failed; i++) {
		uint32_t depth = 0;

		for (uint32_t at = c->id[i] ? i : KVC_NO_SLOT; at != KVC_NO_SLOT && !nr[at];
		     at = c->parent[at])
			way[depth++] = at;
		while (depth)
			save_shadow_chunk(s, o, way[--depth], nr, &n);
	}
	free(nr);
	free(way);
}

static void load_shadow(struct shadow *s, struct kvc_in *in)
{
	uint32_t n = kvc_state_in_count(in, SHADOW_MOST, SHADOW_BYTES);
	uint32_t *slots = malloc((n + 1) * sizeof *slots);

	in->bad |= !slots;
	for (uint32_t i = 0; i < n && !in->bad; i++) {
		uint64_t id = kvc_state_in_64(in);
		uint32_t up = kvc_state_in_32(in), last = kvc_state_in_32(in), slot;
		uint8_t score = kvc_state_in_8(in), gap = kvc_state_in_8(in);
		double key = kvc_state_in_double(in);

		if (!id || up > i || score >= KVC_SCORES || gap >= KVC_GAPS ||
		    kvc_chain_find(&s->chain, id) != KVC_NO_SLOT)
			in->bad = true;
		if (in->bad)
			break;
		slot = kvc_chain_add(&s->chain, id, up ? slots[up - 1] : KVC_NO_SLOT, key);
		in->bad |= slot == KVC_NO_SLOT;
		if (in->bad)
			break;
		slots[i] = slot;
		s->chain.last[slot] = last;
		s->worth[slot].score = score;
		s->worth[slot].gap = gap;
	}
	free(slots);
}

static void save_numbers(const struct prefix *p, struct kvc_out *o)
{
	kvc_state_out_32(o, p->sample);
	kvc_state_out_64(o, p->fits);
	kvc_state_out_double(o, p->asked);
	kvc_state_out_double(o, p->loose);
	kvc_state_out_double(o, p->uses);
	kvc_state_out_8(o, p->by_use);
	kvc_state_out_64(o, p->switches);
}

bool kvc_prefix_save(const struct kvc_replacer *k, struct kvc_saving *s)
{
	enum { WEIGHTS, RECORDS, GHOSTS, ROOM, FIRST };
	const struct prefix *p = k->own;
	bool more = false;

	s->now = s->part == WEIGHTS ? k->now : s->now;
	if (s->part == WEIGHTS) {
		save_numbers(p, &s->out);
		kvc_learn_save(p->learn, s);
	} else if (s->part == RECORDS) {
		more = kvc_learn_save_records(p->learn, s);
	} else if (s->part == GHOSTS) {
		more = kvc_ghosts_save(&p->ghosts, s);
	} else if (s->part == ROOM) {
		for (unsigned i = 0; i < SHADOWS; i++)
			s->capacity[i] = shadow_copy_bytes(&p->shadow[i]) / 16 * 17;
	} else {
		copy_shadow(&p->shadow[s->part - FIRST], &s->more[s->part - FIRST]);
	}
	s->part += !more;
	return s->part < FIRST + SHADOWS;
}

void kvc_prefix_saved(struct kvc_saving *s)
{
	kvc_learn_saved(s);
	for (unsigned i = 0; i < SHADOWS; i++) {
		struct shadow shadow = shadow_of_copy(&s->more[i]);

		save_shadow(&shadow, &s->out);
	}
}

static double load_number(struct kvc_in *in)
{
	double v = kvc_state_in_double(in);

	in->bad |= !(v >= 0 && v < NUMBERS_END);
	return v;
}

void kvc_prefix_load(struct kvc_replacer *k, struct kvc_in *in)
{
	struct prefix *p = k->own;
	uint8_t by_use;

	p->sample = kvc_state_in_32(in);
	in->bad |= !kvc_ghosts_is_sample(p->sample);
	p->fits = kvc_state_in_64(in);
	in->bad |= p->fits > KVC_CHAIN_EXCLUDED;
	p->asked = load_number(in);
	p->loose = load_number(in);
	p->accesses = KVC_PREFIX_USES;
	in->bad |= p->loose > 1;
	p->uses = load_number(in);
	by_use = kvc_state_in_8(in);
	in->bad |= by_use > 1;
	p->by_use = by_use == 1;
	p->switches = kvc_state_in_64(in);
	kvc_learn_load(p->learn, in);
	kvc_ghosts_load(&p->ghosts, in);
	for (unsigned i = 0; i < SHADOWS; i++) {
		p->shadow[i].hits = load_number(in);
		load_shadow(&p->shadow[i], in);
	}
	p->lead = p->shadow[!p->by_use].hits - p->shadow[p->by_use].hits;
}
