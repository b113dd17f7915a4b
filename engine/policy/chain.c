/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forest of chunks (chain.h): slots, a hash table from id to slot, and the array or heap of
 * leaves.
 */
#include "chain.h"

#include "array.h"

#include <string.h>

#define LEAST 1024u /* smallest number of slots, and of buckets */
#define FAR 4096    /* chunks that kvc_chain_is_under passes at most */
/*
 * large arrays grow by one part in STEP_MIN, because growing them copies nothing (base/array.h);
 * small ones by half
 */
#define STEP_MIN 16u
#define GROW_AHEAD 32u  /* slots that are left when the arrays begin to grow, one per call */
#define SPLIT_AHEAD 16u /* split_bucket loads the memory that it needs this many calls later */

static uint32_t grown_capacity(uint32_t capacity)
{
	uint32_t step = capacity < 1u << 20 ? capacity / 2 : capacity / STEP_MIN;

	return capacity ? capacity + step : LEAST;
}

static int grow_array(void *array, size_t bytes, uint32_t capacity)
{
	void **v = array;
	void *p = kvc_array_grow(*v, bytes * capacity);

	if (!p)
		return -ENOMEM;
	*v = p;
	return 0;
}

/*
 * Returns the i-th array with an element per slot; its size is 0 if this chain does not use it, and
 * v is NULL after the last one. There are never more leaves or buckets than slots.
 */
static struct kvc_column slot_array(struct kvc_chain *c, unsigned i)
{
	const uint32_t key = c->key ? sizeof *c->key : 0, family = c->family ? sizeof *c->child : 0;
	const struct kvc_column own[] = {
		{ (void **)&c->id, sizeof *c->id },     { (void **)&c->parent, sizeof *c->parent },
		{ (void **)&c->last, sizeof *c->last }, { (void **)&c->at, sizeof *c->at },
		{ (void **)&c->next, sizeof *c->next }, { (void **)&c->head, sizeof *c->head },
		{ (void **)&c->leaf, sizeof *c->leaf }, { (void **)&c->key, key },
		{ (void **)&c->child, family },         { (void **)&c->after, family },
		{ (void **)&c->before, family },
	};
	const unsigned n = sizeof own / sizeof *own;

	_Static_assert(sizeof own / sizeof *own + KVC_COLUMNS < GROW_AHEAD, "grow_next");
	return i < n ? own[i] : i - n < c->ncolumns ? c->column[i - n] : (struct kvc_column){ 0 };
}

/*
 * Grows the next of the arrays. All have the new capacity after a few calls: together they would
 * keep the caller's lock too long.
 */
static int grow_next(struct kvc_chain *c)
{
	uint32_t capacity = grown_capacity(c->capacity);
	struct kvc_column a = slot_array(c, c->grown);
	int err;

	if (capacity >= KVC_CHAIN_EXCLUDED)
		return -ENOMEM;
	if (!a.v) {
		c->capacity = capacity;
		c->grown = 0;
		return 0;
	}
	err = a.bytes ? grow_array(a.v, a.bytes, capacity) : 0;
	c->grown += !err;
	return err;
}

/* Returns a slot that was never used, or KVC_NO_SLOT. */
static uint32_t new_slot(struct kvc_chain *c)
{
	int err = 0;

	/* if memory is short, the next call tries again */
	if (c->used < c->capacity && c->capacity - c->used <= GROW_AHEAD)
		grow_next(c);
	while (c->used == c->capacity && !err)
		err = grow_next(c);
	return err ? KVC_NO_SLOT : c->used++;
}

int kvc_chain_init(struct kvc_chain *c, bool ordered, bool family)
{
	*c = (struct kvc_chain){ .free = KVC_NO_SLOT, .level = LEAST, .buckets = LEAST };
	c->family = family;
	c->head = kvc_array_grow(NULL, LEAST * sizeof *c->head);
	if (ordered)
		c->key = kvc_array_grow(NULL, sizeof *c->key);
	if (!c->head || (ordered && !c->key)) {
		kvc_chain_fini(c);
		return -ENOMEM;
	}
	for (uint32_t b = 0; b < LEAST; b++)
		c->head[b] = KVC_NO_SLOT;
	return 0;
}

void kvc_chain_fini(struct kvc_chain *c)
{
	kvc_array_free(c->id);
	kvc_array_free(c->parent);
	kvc_array_free(c->last);
	kvc_array_free(c->at);
	kvc_array_free(c->next);
	kvc_array_free(c->child);
	kvc_array_free(c->after);
	kvc_array_free(c->before);
	kvc_array_free(c->head);
	kvc_array_free(c->leaf);
	kvc_array_free(c->key);
	for (unsigned i = 0; i < c->ncolumns; i++) {
		kvc_array_free(*c->column[i].v);
		*c->column[i].v = NULL;
	}
	*c = (struct kvc_chain){ 0 };
}

void kvc_chain_column(struct kvc_chain *c, void *v, uint32_t bytes)
{
	c->column[c->ncolumns++] = (struct kvc_column){ v, bytes };
}

uint64_t kvc_chain_bytes(const struct kvc_chain *c)
{
	uint64_t each = 8 + 4 * 4 + (c->key ? 8 : 0) + (c->family ? 12 : 0);

	for (unsigned i = 0; i < c->ncolumns; i++)
		each += c->column[i].bytes;
	return each * c->used + 4ull * c->buckets + 4ull * c->n;
}

static uint32_t slot_bucket(const struct kvc_chain *c, uint64_t id)
{
	uint64_t h = kvc_chain_hash(id);
	uint32_t b = (uint32_t)(h & (c->level * 2 - 1));

	return b < c->buckets ? b : (uint32_t)(h & (c->level - 1));
}

uint32_t kvc_chain_find(const struct kvc_chain *c, uint64_t id)
{
	uint32_t s = c->head[slot_bucket(c, id)];

	while (s != KVC_NO_SLOT && c->id[s] != id)
		s = c->next[s];
	return s;
}

/*
 * In a large cache most memory that a lookup reads is not in the processor's caches, and each read
 * depends on the one before: the bucket, the id, the data. Several lookups together wait for each
 * of these reads only once.
 */
void kvc_chain_expect(const struct kvc_chain *c, const uint64_t *id, uint32_t n, uint32_t *slot)
{
	uint32_t bucket[KVC_CHAIN_EXPECT];

	for (uint32_t i = 0; i < n; i++) {
		bucket[i] = slot_bucket(c, id[i]);
		__builtin_prefetch(&c->head[bucket[i]]);
	}
	for (uint32_t i = 0; i < n; i++) {
		slot[i] = c->head[bucket[i]];
		if (slot[i] == KVC_NO_SLOT)
			continue;
		__builtin_prefetch(&c->id[slot[i]]);
		__builtin_prefetch(&c->next[slot[i]]);
	}
	for (uint32_t i = 0; i < n; i++)
		while (slot[i] != KVC_NO_SLOT && c->id[slot[i]] != id[i])
			slot[i] = c->next[slot[i]];
	for (uint32_t i = 0; i < n; i++) {
		if (slot[i] == KVC_NO_SLOT)
			continue;
		__builtin_prefetch(&c->last[slot[i]], 1);
		__builtin_prefetch(&c->parent[slot[i]]);
		__builtin_prefetch(&c->at[slot[i]]);
	}
}

void kvc_chain_expect_id(const struct kvc_chain *c, uint32_t slot)
{
	__builtin_prefetch(&c->id[slot]);
	__builtin_prefetch(&c->at[slot]);
	__builtin_prefetch(&c->parent[slot]);
	__builtin_prefetch(&c->next[slot]);
}

void kvc_chain_expect_del(const struct kvc_chain *c, uint32_t slot)
{
	__builtin_prefetch(&c->head[slot_bucket(c, c->id[slot])]);
}

/* Loads what a walk along a bucket reads of a chunk. */
static inline void expect_slot(const struct kvc_chain *c, uint32_t slot)
{
	if (slot == KVC_NO_SLOT)
		return;
	__builtin_prefetch(&c->id[slot]);
	__builtin_prefetch(&c->next[slot]);
}

/* Adds a bucket, for which the array has space, and moves chunks from one other bucket to it. */
static void split_bucket(struct kvc_chain *c)
{
	uint32_t from = c->buckets - c->level, s, *tail;

	/* buckets are split in order, so it is known which chunks later calls will move */
	if (from + SPLIT_AHEAD < c->buckets)
		expect_slot(c, c->head[from + SPLIT_AHEAD]);
	s = from + SPLIT_AHEAD / 2 < c->buckets ? c->head[from + SPLIT_AHEAD / 2] : KVC_NO_SLOT;
	if (s != KVC_NO_SLOT)
		expect_slot(c, c->next[s]);
	c->head[c->buckets++] = KVC_NO_SLOT;
	tail = &c->head[from];
	while ((s = *tail) != KVC_NO_SLOT) {
		uint32_t to = slot_bucket(c, c->id[s]);

		if (to == from) {
			tail = &c->next[s];
			continue;
		}
		*tail = c->next[s];
		c->next[s] = c->head[to];
		c->head[to] = s;
	}
	if (c->buckets == c->level * 2)
		c->level *= 2;
}

static void unhash_slot(struct kvc_chain *c, uint32_t slot)
{
	uint32_t *s = &c->head[slot_bucket(c, c->id[slot])];

	while (*s != slot)
		s = &c->next[*s];
	*s = c->next[slot];
}

static void hash_slot(struct kvc_chain *c, uint32_t slot, uint64_t id)
{
	uint32_t b = slot_bucket(c, id);

	c->id[slot] = id;
	c->next[slot] = c->head[b];
	c->head[b] = slot;
}

static void set_leaf(struct kvc_chain *c, uint32_t i, uint32_t slot)
{
	c->leaf[i] = slot;
	c->at[slot] = i;
}

bool kvc_chain_before(const struct kvc_chain *c, uint32_t a, uint32_t b)
{
	return c->key[a] < c->key[b] || (c->key[a] == c->key[b] && c->id[a] < c->id[b]);
}

static void sift_leaf(struct kvc_chain *c, uint32_t i)
{
	uint32_t slot = c->leaf[i];

	if (!c->key)
		return;
	while (i && kvc_chain_before(c, slot, c->leaf[(i - 1) / 2])) {
		set_leaf(c, i, c->leaf[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	for (uint32_t k; (k = 2 * i + 1) < c->nleaf; i = k) {
		k += k + 1 < c->nleaf && kvc_chain_before(c, c->leaf[k + 1], c->leaf[k]);
		if (!kvc_chain_before(c, c->leaf[k], slot))
			break;
		set_leaf(c, i, c->leaf[k]);
	}
	set_leaf(c, i, slot);
}

/* The array has space for all chunks: a parent becomes a leaf when its child is deleted. */
static void leaf_add(struct kvc_chain *c, uint32_t slot)
{
	set_leaf(c, c->nleaf++, slot);
	sift_leaf(c, c->nleaf - 1);
}

static void leaf_del(struct kvc_chain *c, uint32_t slot)
{
	uint32_t i = c->at[slot], other = c->leaf[--c->nleaf];

	if (other == slot)
		return;
	set_leaf(c, i, other);
	sift_leaf(c, i);
}

void kvc_chain_order(struct kvc_chain *c, uint32_t slot, double key)
{
	c->key[slot] = key;
	if (kvc_chain_is_leaf(c, slot))
		sift_leaf(c, c->at[slot]);
}

static void link_parent(struct kvc_chain *c, uint32_t slot, uint32_t parent)
{
	c->parent[slot] = parent;
	if (c->family)
		c->after[slot] = c->before[slot] = KVC_NO_SLOT;
	if (parent == KVC_NO_SLOT)
		return;
	if (c->family) {
		c->after[slot] = c->child[parent];
		if (c->child[parent] != KVC_NO_SLOT)
			c->before[c->child[parent]] = slot;
		c->child[parent] = slot;
	}
	if (kvc_chain_is_leaf(c, parent)) {
		leaf_del(c, parent);
		c->at[parent] = KVC_CHAIN_INNER;
	}
	c->at[parent]++;
}

static void free_slot(struct kvc_chain *c, uint32_t slot)
{
	c->parent[slot] = c->free;
	c->free = slot;
}

static void unlink_parent(struct kvc_chain *c, uint32_t slot)
{
	uint32_t parent = c->parent[slot];

	c->parent[slot] = KVC_NO_SLOT;
	if (parent == KVC_NO_SLOT)
		return;
	if (c->family) {
		if (c->before[slot] != KVC_NO_SLOT)
			c->after[c->before[slot]] = c->after[slot];
		else
			c->child[parent] = c->after[slot];
		if (c->after[slot] != KVC_NO_SLOT)
			c->before[c->after[slot]] = c->before[slot];
	}
	if (--c->at[parent] != KVC_CHAIN_INNER)
		return;
	if (c->id[parent]) {
		leaf_add(c, parent);
	} else {
		c->ngone--;
		free_slot(c, parent);
	}
}

uint32_t kvc_chain_add(struct kvc_chain *c, uint64_t id, uint32_t parent, double key)
{
	uint32_t slot = c->free;

	if (slot != KVC_NO_SLOT)
		c->free = c->parent[slot];
	else if ((slot = new_slot(c)) == KVC_NO_SLOT)
		return KVC_NO_SLOT;
	if (c->n >= c->buckets)
		split_bucket(c);
	c->n++;
	hash_slot(c, slot, id);
	c->last[slot] = 0;
	for (unsigned i = 0; i < c->ncolumns; i++)
		memset((char *)*c->column[i].v + (size_t)slot * c->column[i].bytes, 0,
		       c->column[i].bytes);
	if (c->key)
		c->key[slot] = key;
	if (c->family)
		c->child[slot] = KVC_NO_SLOT;
	link_parent(c, slot, parent);
	leaf_add(c, slot);
	return slot;
}

void kvc_chain_rename(struct kvc_chain *c, uint32_t slot, uint64_t id)
{
	unhash_slot(c, slot);
	hash_slot(c, slot, id);
}

void kvc_chain_set_parent(struct kvc_chain *c, uint32_t slot, uint32_t parent)
{
	unlink_parent(c, slot);
	link_parent(c, slot, parent);
}

bool kvc_chain_is_under(const struct kvc_chain *c, uint32_t slot, uint32_t above)
{
	for (int i = 0; i < FAR && slot != KVC_NO_SLOT; i++, slot = c->parent[slot])
		if (slot == above)
			return true;
	return slot != KVC_NO_SLOT;
}

void kvc_chain_exclude(struct kvc_chain *c, uint32_t slot, bool exclude)
{
	if (exclude) {
		if (kvc_chain_is_leaf(c, slot)) {
			leaf_del(c, slot);
			c->at[slot] = KVC_CHAIN_INNER;
		}
		c->at[slot] |= KVC_CHAIN_EXCLUDED;
	} else if (!kvc_chain_is_leaf(c, slot)) {
		c->at[slot] &= ~KVC_CHAIN_EXCLUDED;
		if (c->at[slot] == KVC_CHAIN_INNER)
			leaf_add(c, slot);
	}
}

void kvc_chain_del(struct kvc_chain *c, uint32_t slot)
{
	bool leaf;

	kvc_chain_exclude(c, slot, false);
	leaf = kvc_chain_is_leaf(c, slot);
	unhash_slot(c, slot);
	if (leaf)
		leaf_del(c, slot);
	unlink_parent(c, slot);
	c->id[slot] = 0;
	c->n--;
	if (leaf)
		free_slot(c, slot);
	else
		c->ngone++;
}

uint32_t kvc_chain_leaf_under(const struct kvc_chain *c, uint32_t slot, uint32_t *steps)
{
	for (; *steps && slot != KVC_NO_SLOT && !kvc_chain_is_leaf(c, slot); --*steps)
		slot = c->child[slot];
	return slot;
}
