/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunks in a cache and their parents: a forest. A chunk has an id (any 64 bits except 0) and,
 * as long as it is in the cache, a slot, which is a small number. A policy keeps its data about a
 * chunk in arrays indexed by slot, and so does the chain. The chain allocates nothing for a single
 * chunk; a chunk costs 32 bytes here, however many there are.
 *
 * A leaf is a chunk that has no child in the cache and is not excluded. All leaves are in one
 * array, so that a leaf can be drawn at random. With keys (kvc_chain_order) the array is a heap,
 * and its first element has the lowest key. With `family` the children of a chunk can be found too,
 * for 12 more bytes per chunk.
 *
 * No call walks all chunks; kvc_chain_is_under walks up a chain to a limit. Large arrays grow
 * without a copy (array.h), usually one in a call, and the hash table grows by one bucket at a
 * time. The chain has no lock: the caller serializes all calls.
 */
#ifndef KVC_CHAIN_H
#define KVC_CHAIN_H

#include "util.h"

#define KVC_NO_SLOT UINT32_MAX

/* An array by slot that belongs to a policy; it grows with the number of slots. */
struct kvc_column {
	void **v;
	uint32_t bytes; /* bytes of one element */
};

#define KVC_COLUMNS 8

struct kvc_chain {
	uint64_t *id; /* 0: the slot is free, or its chunk was deleted before its children */
	/* a slot, or KVC_NO_SLOT: no parent in the cache; of a free slot: the next free slot */
	uint32_t *parent;
	uint32_t *last; /* number of the last request that accessed the chunk */
	/*
	 * of a leaf: its index in leaf[]; of another chunk: its number of children,
	 * KVC_CHAIN_INNER, and KVC_CHAIN_EXCLUDED if it is excluded
	 */
	uint32_t *at;
	uint32_t *next;                   /* next slot in the same hash bucket */
	uint32_t *child, *after, *before; /* with family: the newest child; the siblings */
	/* allocated slots; slots that were ever used; the first free slot */
	uint32_t capacity, used, free;
	unsigned grown; /* arrays by slot that have the next larger capacity already */
	uint32_t n;     /* chunks */
	/* slots of chunks that were deleted before their children */
	uint32_t ngone;
	uint32_t *head, buckets, level; /* the hash table (linear hashing) */
	uint32_t *leaf, nleaf;
	double *key; /* by slot; NULL: the leaves have no order */
	bool family;
	struct kvc_column column[KVC_COLUMNS];
	unsigned ncolumns;
};

#define KVC_CHAIN_INNER (1u << 31)
#define KVC_CHAIN_EXCLUDED (1u << 30)

/* `ordered`: leaves have keys. `family`: children can be found. Returns 0 or -ENOMEM. */
int kvc_chain_init(struct kvc_chain *c, bool ordered, bool family);
void kvc_chain_fini(struct kvc_chain *c);
/*
 * Adds a column: *v (v points to a pointer) becomes an array with one element of `bytes` bytes per
 * slot, which kvc_chain_fini frees. Call it before the first chunk is added.
 */
void kvc_chain_column(struct kvc_chain *c, void *v, uint32_t bytes);

/* Chunks that one call of kvc_chain_expect takes. */
#define KVC_CHAIN_EXPECT 32u
/*
 * The n chunks (at most KVC_CHAIN_EXPECT) will be looked up soon: starts to load what the lookups
 * need into the processor's caches. Sets slot[i] to the slot of each chunk, or KVC_NO_SLOT.
 */
void kvc_chain_expect(const struct kvc_chain *c, const uint64_t *id, uint32_t n, uint32_t *slot);
/*
 * The chunk in this slot is likely to be deleted soon. The first call loads its id; a second call,
 * a little later, loads its hash bucket.
 */
void kvc_chain_expect_id(const struct kvc_chain *c, uint32_t slot);
void kvc_chain_expect_del(const struct kvc_chain *c, uint32_t slot);
/* Returns the slot, or KVC_NO_SLOT. */
uint32_t kvc_chain_find(const struct kvc_chain *c, uint64_t id);
/*
 * The same for a caller that knows the chunk's last slot: faster if the chunk still has that slot.
 */
static inline uint32_t kvc_chain_find_at(const struct kvc_chain *c, uint64_t id, uint32_t slot)
{
	return slot < c->used && c->id[slot] == id ? slot : kvc_chain_find(c, id);
}

/*
 * Adds a chunk that is not in the cache. `parent` is a slot or KVC_NO_SLOT; `key` is its key if
 * leaves are ordered. Returns its slot, whose elements in all columns are zero, or KVC_NO_SLOT if
 * memory is short.
 */
uint32_t kvc_chain_add(struct kvc_chain *c, uint64_t id, uint32_t parent, double key);
/*
 * Deletes a chunk. Its children stay, as orphans; the slot is reused only after they are deleted
 * too.
 */
void kvc_chain_del(struct kvc_chain *c, uint32_t slot);
/* Changes the id of a chunk. The new id is not in the cache. */
void kvc_chain_rename(struct kvc_chain *c, uint32_t slot, uint64_t id);
/* Changes the parent (KVC_NO_SLOT: none). The new parent must not be a descendant of `slot`. */
void kvc_chain_set_parent(struct kvc_chain *c, uint32_t slot, uint32_t parent);
/* True if `slot` is `above` or a descendant of it, or if the chain is too long to tell. */
bool kvc_chain_is_under(const struct kvc_chain *c, uint32_t slot, uint32_t above);
/* Excludes a chunk from the leaves, or ends the exclusion. A parent of an excluded chunk is not a
 * leaf. */
void kvc_chain_exclude(struct kvc_chain *c, uint32_t slot, bool exclude);
/*
 * True if leaf `slot` precedes leaf `other` in the order of keys. Ties are broken by the lower id,
 * wherever the chunks are stored.
 */
bool kvc_chain_before(const struct kvc_chain *c, uint32_t slot, uint32_t other);
/* Changes the key. */
void kvc_chain_order(struct kvc_chain *c, uint32_t slot, double key);

static inline bool kvc_chain_is_leaf(const struct kvc_chain *c, uint32_t slot)
{
	return !(c->at[slot] & KVC_CHAIN_INNER);
}

static inline uint32_t kvc_chain_children(const struct kvc_chain *c, uint32_t slot)
{
	return kvc_chain_is_leaf(c, slot) ? 0 : c->at[slot] & (KVC_CHAIN_EXCLUDED - 1);
}

/* True if the parent was deleted before this chunk. */
static inline bool kvc_chain_is_orphan(const struct kvc_chain *c, uint32_t slot)
{
	return c->ngone && c->parent[slot] != KVC_NO_SLOT && !c->id[c->parent[slot]];
}

/*
 * Walks down from a chunk to a leaf, by the newest child of each level, in at most *steps steps,
 * and sets *steps to the remaining number. Returns the leaf, which may be `slot` itself, or
 * KVC_NO_SLOT if the walk ends at an excluded chunk. If no step is left, the result may be an inner
 * chunk, from which the next call can go on. Needs `family`.
 */
uint32_t kvc_chain_leaf_under(const struct kvc_chain *c, uint32_t slot, uint32_t *steps);
/* Memory in use, in bytes. The unused ends of arrays have no pages and do not count. */
uint64_t kvc_chain_bytes(const struct kvc_chain *c);

/* Mixes the bits of an id, for hash tables and samples. */
static inline uint64_t kvc_chain_hash(uint64_t id)
{
	id ^= id >> 31;
	id *= 0x9e3779b97f4a7c15u;
	id ^= id >> 29;
	id *= 0xbf58476d1ce4e5b9u;
	return id ^ id >> 32;
}

#endif
