/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See extent.h. Invariants: extents neither overlap nor touch; a node's `max` is the largest length
 * in its subtree.
 *
 * A node is identified by its index in one growing array, which takes half the memory of separately
 * allocated nodes with two pointers. A full cache of small files has a million nodes. The priority
 * of a node in the treap is a hash of its index. Index 0 means no node.
 */
#include "extent.h"

#include "array.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

struct node {
	uint64_t at, len, max;
	uint32_t l, r; /* children; in an unused node r is the next unused node */
};

#define LEAST 128u  /* nodes */
#define LOOKS 1024u /* nodes that kvct_extents_take_apart visits */
#define RESERVE 64u /* nodes reserved for freeing space, which must not fail with ENOMEM */

struct kvct_extents {
	struct node *v;
	uint32_t capacity, used; /* nodes allocated, and ever used */
	uint32_t unused, nunused;
	uint32_t root;
	uint64_t size, free;
};

static uint64_t max_of(const struct kvct_extents *x, uint32_t n)
{
	return n ? x->v[n].max : 0;
}

static void update_max(struct kvct_extents *x, uint32_t i)
{
	struct node *n = &x->v[i];

	n->max = n->len;
	if (max_of(x, n->l) > n->max)
		n->max = x->v[n->l].max;
	if (max_of(x, n->r) > n->max)
		n->max = x->v[n->r].max;
}

/* different for each index */
static uint32_t priority(uint32_t n)
{
	n ^= n >> 16;
	n *= 0x85ebca6bu;
	n ^= n >> 13;
	n *= 0xc2b2ae35u;
	return n ^ n >> 16;
}

/* Splits the subtree into offsets below `at` and the rest. */
static void split(struct kvct_extents *x, uint32_t i, uint64_t at, uint32_t *l, uint32_t *r)
{
	struct node *n = &x->v[i];

	if (!i) {
		*l = *r = 0;
	} else if (n->at < at) {
		split(x, n->r, at, &n->r, r);
		*l = i;
		update_max(x, i);
	} else {
		split(x, n->l, at, l, &n->l);
		*r = i;
		update_max(x, i);
	}
}

static uint32_t merge(struct kvct_extents *x, uint32_t l, uint32_t r)
{
	if (!l || !r)
		return l ? l : r;
	if (priority(l) > priority(r)) {
		x->v[l].r = merge(x, x->v[l].r, r);
		update_max(x, l);
		return l;
	}
	x->v[r].l = merge(x, l, x->v[r].l);
	update_max(x, r);
	return r;
}

/*
 * Tries to keep more than RESERVE nodes available. Returns the number that is available without a
 * further allocation. May move the array.
 */
static uint32_t reserve_nodes(struct kvct_extents *x)
{
	uint32_t more = x->capacity + (x->capacity / 16 > LEAST ? x->capacity / 16 : LEAST);
	uint32_t available = x->nunused + (x->capacity - x->used);
	struct node *v;

	if (available > RESERVE || more < x->capacity)
		return available;
	v = kvc_array_grow(x->v, (size_t)more * sizeof *v);
	if (!v)
		return available;
	available += more - x->capacity;
	x->v = v;
	x->capacity = more;
	return available;
}

/* Makes a node. gives: for freed space, which may use the reserve. Returns 0 if memory is short. */
static uint32_t node_new(struct kvct_extents *x, uint64_t at, uint64_t len, bool gives)
{
	uint32_t n = x->unused;

	if (reserve_nodes(x) <= (gives ? 0 : RESERVE))
		return 0;
	if (n) {
		x->unused = x->v[n].r;
		x->nunused--;
	} else {
		n = x->used++;
	}
	x->v[n] = (struct node){ at, len, len, 0, 0 };
	return n;
}

static void node_free(struct kvct_extents *x, uint32_t n)
{
	x->v[n].r = x->unused;
	x->unused = n;
	x->nunused++;
}

/* Inserts node i, which is in no tree. */
static void insert(struct kvct_extents *x, uint32_t i)
{
	struct node *n = &x->v[i];
	uint32_t l, r;

	n->l = n->r = 0;
	n->max = n->len;
	split(x, x->root, n->at, &l, &r);
	x->root = merge(x, merge(x, l, i), r);
}

/* Removes the node at exactly this offset from the tree, and returns it. */
static uint32_t detach(struct kvct_extents *x, uint64_t at)
{
	uint32_t l, m, r;

	split(x, x->root, at, &l, &r);
	split(x, r, at + 1, &m, &r);
	x->root = merge(x, l, r);
	return m;
}

/* Updates the tree after the node at this offset was resized; its neighbours stay the same. */
static void update_path(struct kvct_extents *x, uint32_t i, uint64_t at)
{
	struct node *n = &x->v[i];

	if (n->at != at)
		update_path(x, n->at < at ? n->r : n->l, at);
	update_max(x, i);
}

/* Returns the extent with the largest offset not above `at`. */
static uint32_t find_below(const struct kvct_extents *x, uint64_t at)
{
	uint32_t best = 0;

	for (uint32_t n = x->root; n;)
		if (x->v[n].at <= at) {
			best = n;
			n = x->v[n].r;
		} else {
			n = x->v[n].l;
		}
	return best;
}

struct kvct_extents *kvct_extents_new(uint64_t size)
{
	struct kvct_extents *x = calloc(1, sizeof *x);

	if (!x)
		return NULL;
	x->size = x->free = size;
	x->v = kvc_array_grow(NULL, LEAST * sizeof *x->v);
	if (!x->v) {
		free(x);
		return NULL;
	}
	x->capacity = LEAST;
	x->used = 1;
	x->root = size ? node_new(x, 0, size, false) : 0;
	return x;
}

void kvct_extents_free(struct kvct_extents *x)
{
	if (x)
		kvc_array_free(x->v);
	free(x);
}

int kvct_extents_take(struct kvct_extents *x, uint64_t len, uint64_t *at)
{
	uint32_t n = x->root;

	if (!len || max_of(x, n) < len)
		return -ENOSPC;
	for (;;) /* finds the leftmost extent that is large enough */
		if (max_of(x, x->v[n].l) >= len)
			n = x->v[n].l;
		else if (x->v[n].len >= len)
			break;
		else
			n = x->v[n].r;
	*at = x->v[n].at;
	return kvct_extents_claim(x, *at, len);
}

/*
 * Returns the leftmost extent of at least `len` and less than `keep` bytes, or 0 if none is among
 * the first *looks nodes of subtrees that are large enough. The limit bounds how long the caller
 * holds its lock.
 */
static uint32_t find_between(const struct kvct_extents *x, uint32_t i, uint64_t len, uint64_t keep,
			     unsigned *looks)
{
	const struct node *n = &x->v[i];
	uint32_t found;

	if (max_of(x, i) < len || !*looks)
		return 0;
	--*looks;
	if ((found = find_between(x, n->l, len, keep, looks)))
		return found;
	return n->len >= len && n->len < keep ? i : find_between(x, n->r, len, keep, looks);
}

int kvct_extents_take_apart(struct kvct_extents *x, uint64_t len, uint64_t keep, uint64_t *at)
{
	unsigned looks = LOOKS;
	uint32_t n = len ? find_between(x, x->root, len, keep, &looks) : 0;

	if (!n)
		return kvct_extents_take(x, len, at);
	*at = x->v[n].at;
	return kvct_extents_claim(x, *at, len);
}

int kvct_extents_claim(struct kvct_extents *x, uint64_t at, uint64_t len)
{
	uint64_t end = at + len, from, upto;
	uint32_t n, tail = 0;

	reserve_nodes(x); /* taking may be refused, freeing may not */
	if (!len || end < at || end > x->size)
		return -ERANGE;
	n = find_below(x, at);
	if (!n)
		return -EEXIST;
	from = x->v[n].at;
	upto = from + x->v[n].len;
	if (upto < end)
		return -EEXIST;
	if (from < at && upto > end && !(tail = node_new(x, end, upto - end, false)))
		return -ENOMEM;
	x->free -= len;
	if (from < at) {
		x->v[n].len = at - from;
		update_path(x, x->root, from);
		if (tail)
			insert(x, tail);
	} else if (upto > end) {
		x->v[n].at = end;
		x->v[n].len = upto - end;
		update_path(x, x->root, end);
	} else {
		detach(x, from);
		node_free(x, n);
	}
	return 0;
}

int kvct_extents_give(struct kvct_extents *x, uint64_t at, uint64_t len)
{
	uint64_t end = at + len;
	uint32_t before, after, n;

	if (!len || end < at || end > x->size)
		return -ERANGE;
	before = find_below(x, at);
	if (before && x->v[before].at + x->v[before].len > at)
		return -EEXIST; /* also if it starts at `at`: extents are never empty */
	after = find_below(x, end);
	if (after && x->v[after].at > at && x->v[after].at < end)
		return -EEXIST;
	if (after && x->v[after].at != end)
		after = 0;
	if (before && x->v[before].at + x->v[before].len != at)
		before = 0;
	if (before) {
		x->v[before].len += len;
		if (after) {
			x->v[before].len += x->v[after].len;
			detach(x, end);
			node_free(x, after);
		}
		update_path(x, x->root, x->v[before].at);
	} else if (after) {
		x->v[after].at = at;
		x->v[after].len += len;
		update_path(x, x->root, at);
	} else {
		n = node_new(x, at, len, true);
		if (!n)
			return -ENOMEM;
		insert(x, n);
	}
	x->free += len;
	return 0;
}

int kvct_extents_grow(struct kvct_extents *x, uint64_t size)
{
	uint64_t old = x->size;
	int err;

	if (size < old)
		return -ERANGE;
	if (size == old)
		return 0;
	x->size = size;
	err = kvct_extents_give(x, old, size - old);
	if (err)
		x->size = old;
	return err;
}

uint64_t kvct_extents_total_free(const struct kvct_extents *x)
{
	return x->free;
}

static void each(const struct kvct_extents *x, uint32_t n, void (*fn)(void *, uint64_t, uint64_t),
		 void *arg)
{
	if (n) {
		each(x, x->v[n].l, fn, arg);
		fn(arg, x->v[n].at, x->v[n].len);
		each(x, x->v[n].r, fn, arg);
	}
}

void kvct_extents_each(const struct kvct_extents *x,
		       void (*fn)(void *arg, uint64_t at, uint64_t len), void *arg)
{
	each(x, x->root, fn, arg);
}
