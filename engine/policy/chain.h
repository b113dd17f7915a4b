/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunks that a cache holds, and which follows which: a forest. A chunk is known by its id (any
 * 64 bits, not 0) and has a slot, a small number, for as long as it is here; a policy keeps what it
 * knows of it in arrays by slot, and so does the chain: nothing is allocated for one chunk, and a
 * chunk costs 32 bytes here at any size.
 *
 * A leaf is a chunk that none follows, and that was not put aside. All leaves are in one array, so
 * that one can be drawn at random; with a key (kvc_chain_order) the array is a heap, and the first
 * has the lowest. With `family` the children of a chunk can be found too, for 12 bytes more.
 *
 * No call walks what is here, but a chain upwards to a bound (kvc_chain_is_under); arrays grow
 * without a copy (array.h), the hash by a bucket at a time. It has no lock.
 */
#ifndef KVC_CHAIN_H
#define KVC_CHAIN_H

#include "util.h"

#define KVC_NO_SLOT UINT32_MAX

/* An array by slot of somebody who is not the chain; it grows with the slots. */
struct kvc_column {
	void **v;
	uint32_t bytes; /* of one element */
};

#define KVC_COLUMNS 8

struct kvc_chain {
	uint64_t *id;     /* 0: the slot is free, or of a chunk that went before what follows it */
	uint32_t *parent; /* KVC_NO_SLOT: none that is here; of a free slot: the next free one */
	uint32_t *last;   /* the request that touched it last */
	/* where it is among the leaves, or KVC_CHAIN_INNER | is it aside | number of children */
	uint32_t *at;
	uint32_t *next;                   /* in its bucket */
	uint32_t *child, *after, *before; /* with family: the newest child; siblings */
	/* slots there are, were ever in use; the first free one */
	uint32_t capacity, used, free;
	uint32_t n;                     /* chunks */
	uint32_t ngone;                 /* slots of those that went before what follows them */
	uint32_t *head, buckets, level; /* the hash, by linear hashing */
	uint32_t head_room;
	uint32_t *leaf, nleaf, leaf_room;
	double *key; /* by slot; NULL: the leaves have no order */
	bool family;
	struct kvc_column column[KVC_COLUMNS];
	unsigned ncolumns;
};

#define KVC_CHAIN_INNER (1u << 31)
#define KVC_CHAIN_ASIDE (1u << 30)

/* 0 or -ENOMEM. */
int kvc_chain_init(struct kvc_chain *c, bool ordered, bool family);
void kvc_chain_fini(struct kvc_chain *c);
/* Before the first chunk: *v becomes an array of such elements, one a slot, freed by fini. */
void kvc_chain_column(struct kvc_chain *c, void *v, uint32_t bytes);

/* The slot, or KVC_NO_SLOT. */
uint32_t kvc_chain_find(const struct kvc_chain *c, uint64_t id);
/* The same, by who knows where it was, if it was here. */
static inline uint32_t kvc_chain_look(const struct kvc_chain *c, uint64_t id, uint32_t slot)
{
	return slot < c->used && c->id[slot] == id ? slot : kvc_chain_find(c, id);
}

/*
 * Adds a chunk that is not here, after `parent` (a slot, or KVC_NO_SLOT): its slot, whose elements
 * in the columns are zero; or KVC_NO_SLOT: out of memory. With an order its key is `key`.
 */
uint32_t kvc_chain_add(struct kvc_chain *c, uint64_t id, uint32_t parent, double key);
/*
 * Takes it away. What follows it stays, as an orphan; the slot is used again only after that has
 * gone too.
 */
void kvc_chain_del(struct kvc_chain *c, uint32_t slot);
/* It follows another from now on (KVC_NO_SLOT: none), which does not follow it. */
void kvc_chain_set_parent(struct kvc_chain *c, uint32_t slot, uint32_t parent);
/* Does `slot` follow `above`, directly or not, or is it that? Too far to say: yes. */
bool kvc_chain_is_under(const struct kvc_chain *c, uint32_t slot, uint32_t above);
/* It is no leaf for now, or may be one again. What it follows is none in any case. */
void kvc_chain_exclude(struct kvc_chain *c, uint32_t slot, bool aside);
/*
 * Of two leaves with keys, does one go before the other? Of equals the lower id, wherever they lie.
 */
bool kvc_chain_before(const struct kvc_chain *c, uint32_t slot, uint32_t other);
/* Its key is another now. */
void kvc_chain_order(struct kvc_chain *c, uint32_t slot, double key);

static inline bool kvc_chain_is_leaf(const struct kvc_chain *c, uint32_t slot)
{
	return !(c->at[slot] & KVC_CHAIN_INNER);
}

static inline uint32_t kvc_chain_followers(const struct kvc_chain *c, uint32_t slot)
{
	return kvc_chain_is_leaf(c, slot) ? 0 : c->at[slot] & (KVC_CHAIN_ASIDE - 1);
}

/* Did what it follows go before it? */
static inline bool kvc_chain_is_orphan(const struct kvc_chain *c, uint32_t slot)
{
	return c->ngone && c->parent[slot] != KVC_NO_SLOT && !c->id[c->parent[slot]];
}

/*
 * A leaf under a chunk, or itself; KVC_NO_SLOT: the newest of what follows it is aside. *steps are
 * the most to be taken, and then those that are left: with none left what is returned may be no
 * leaf, and is where to go on from. With family.
 */
uint32_t kvc_chain_leaf_under(const struct kvc_chain *c, uint32_t slot, uint32_t *steps);
/* Of memory that is in use: what arrays have in reserve was never touched. */
uint64_t kvc_chain_bytes(const struct kvc_chain *c);

/* What ids are scattered by. */
static inline uint64_t kvc_chain_hash(uint64_t id)
{
	id ^= id >> 31;
	id *= 0x9e3779b97f4a7c15u;
	id ^= id >> 29;
	id *= 0xbf58476d1ce4e5b9u;
	return id ^ id >> 32;
}

#endif
