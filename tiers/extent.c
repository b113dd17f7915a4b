/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See extent.h. Invariant: extents do not overlap or touch; each node's `max` is the largest length
 * below it.
 *
 * A node is a number, its place in one array that grows: half the memory that one of the
 * allocator's with two pointers takes. A full cache of small files has a million of them. Its
 * priority in the treap is its number, scattered. Number 0 is no node.
 */
#include "extent.h"

#include "array.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

struct node {
	uint64_t at, len, max;
	uint32_t l, r; /* of one that is not used: the next such one is r */
};

#define LEAST 128u  /* nodes */
#define LOOKS 1024u /* nodes that kvct_extents_take_apart looks at */
#define RESERVE 64u /* nodes kept for giving back, which must not fail for want of memory */

struct kvct_extents {
	struct node *v;
	uint32_t capacity, used; /* there are, and were ever used */
	uint32_t unused, nunused;
	uint32_t root;
	uint64_t size, free;
};

static uint64_t max_of(const struct kvct_extents *x, uint32_t n)
{
	return n ? x->v[n].max : 0;
}

static void fix(struct kvct_extents *x, uint32_t i)
{
	struct node *n = &x->v[i];

	n->max = n->len;
	if (max_of(x, n->l) > n->max)
		n->max = x->v[n->l].max;
	if (max_of(x, n->r) > n->max)
		n->max = x->v[n->r].max;
}

/* No two have the same. */
static uint32_t priority(uint32_t n)
{
	n ^= n >> 16;
	n *= 0x85ebca6bu;
	n ^= n >> 13;
	n *= 0xc2b2ae35u;
	return n ^ n >> 16;
}

/* Splits into offsets below `at` and the others. */
static void split(struct kvct_extents *x, uint32_t i, uint64_t at, uint32_t *l, uint32_t *r)
{
	struct node *n = &x->v[i];

	if (!i) {
		*l = *r = 0;
	} else if (n->at < at) {
		split(x, n->r, at, &n->r, r);
		*l = i;
		fix(x, i);
	} else {
		split(x, n->l, at, l, &n->l);
		*r = i;
		fix(x, i);
	}
}

static uint32_t merge(struct kvct_extents *x, uint32_t l, uint32_t r)
{
	if (!l || !r)
		return l ? l : r;
	if (priority(l) > priority(r)) {
		x->v[l].r = merge(x, x->v[l].r, r);
		fix(x, l);
		return l;
	}
	x->v[r].l = merge(x, l, x->v[r].l);
	fix(x, r);
	return r;
}

/* Nodes that can be had without memory, after an attempt at enough of them. Others may move. */
static uint32_t spare(struct kvct_extents *x)
{
	uint32_t more = x->capacity + (x->capacity / 16 > LEAST ? x->capacity / 16 : LEAST);
	uint32_t there = x->nunused + (x->capacity - x->used);
	struct node *v;

	if (there > RESERVE || more < x->capacity)
		return there;
	v = kvc_array_grow(x->v, (size_t)more * sizeof *v);
	if (!v)
		return there;
	there += more - x->capacity;
	x->v = v;
	x->capacity = more;
	return there;
}

/* gives: for space that comes back, which may take from the reserve. 0: out of memory. */
static uint32_t make(struct kvct_extents *x, uint64_t at, uint64_t len, bool gives)
{
	uint32_t n = x->unused;

	if (spare(x) <= (gives ? 0 : RESERVE))
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

static void unmake(struct kvct_extents *x, uint32_t n)
{
	x->v[n].r = x->unused;
	x->unused = n;
	x->nunused++;
}

/* It is in no tree. */
static void insert(struct kvct_extents *x, uint32_t i)
{
	struct node *n = &x->v[i];
	uint32_t l, r;

	n->l = n->r = 0;
	n->max = n->len;
	split(x, x->root, n->at, &l, &r);
	x->root = merge(x, merge(x, l, i), r);
}

/* Takes the node at exactly this offset out of the tree. */
static uint32_t detach(struct kvct_extents *x, uint64_t at)
{
	uint32_t l, m, r;

	split(x, x->root, at, &l, &r);
	split(x, r, at + 1, &m, &r);
	x->root = merge(x, l, r);
	return m;
}

/* The node at this offset has become shorter or longer, and stays between its neighbours. */
static void resized(struct kvct_extents *x, uint32_t i, uint64_t at)
{
	struct node *n = &x->v[i];

	if (n->at != at)
		resized(x, n->at < at ? n->r : n->l, at);
	fix(x, i);
}

/* The extent with the largest offset not above `at`. */
static uint32_t below(const struct kvct_extents *x, uint64_t at)
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
	x->root = size ? make(x, 0, size, false) : 0;
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
	for (;;) /* the leftmost that is large enough */
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
 * The leftmost of at least `len` and less than `keep`, or 0 if none is among the first *looks nodes
 * of a sufficient subtree: however many larger ones there are, the caller's lock is held for a
 * bounded time.
 */
static uint32_t between(const struct kvct_extents *x, uint32_t i, uint64_t len, uint64_t keep,
			unsigned *looks)
{
	const struct node *n = &x->v[i];
	uint32_t found;

	if (max_of(x, i) < len || !*looks)
		return 0;
	--*looks;
	if ((found = between(x, n->l, len, keep, looks)))
		return found;
	return n->len >= len && n->len < keep ? i : between(x, n->r, len, keep, looks);
}

int kvct_extents_take_apart(struct kvct_extents *x, uint64_t len, uint64_t keep, uint64_t *at)
{
	unsigned looks = LOOKS;
	uint32_t n = len ? between(x, x->root, len, keep, &looks) : 0;

	if (!n)
		return kvct_extents_take(x, len, at);
	*at = x->v[n].at;
	return kvct_extents_claim(x, *at, len);
}

int kvct_extents_claim(struct kvct_extents *x, uint64_t at, uint64_t len)
{
	uint64_t end = at + len, from, upto;
	uint32_t n, tail = 0;

	spare(x); /* a taker can be refused, who gives back cannot */
	if (!len || end < at || end > x->size)
		return -ERANGE;
	n = below(x, at);
	if (!n)
		return -EEXIST;
	from = x->v[n].at;
	upto = from + x->v[n].len;
	if (upto < end)
		return -EEXIST;
	if (from < at && upto > end && !(tail = make(x, end, upto - end, false)))
		return -ENOMEM;
	x->free -= len;
	if (from < at) {
		x->v[n].len = at - from;
		resized(x, x->root, from);
		if (tail)
			insert(x, tail);
	} else if (upto > end) {
		x->v[n].at = end;
		x->v[n].len = upto - end;
		resized(x, x->root, end);
	} else {
		detach(x, from);
		unmake(x, n);
	}
	return 0;
}

int kvct_extents_give(struct kvct_extents *x, uint64_t at, uint64_t len)
{
	uint64_t end = at + len;
	uint32_t before, after, n;

	if (!len || end < at || end > x->size)
		return -ERANGE;
	before = below(x, at);
	if (before && x->v[before].at + x->v[before].len > at)
		return -EEXIST; /* also when it starts at `at`: extents are never empty */
	after = below(x, end);
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
			unmake(x, after);
		}
		resized(x, x->root, x->v[before].at);
	} else if (after) {
		x->v[after].at = at;
		x->v[after].len += len;
		resized(x, x->root, at);
	} else {
		n = make(x, at, len, true);
		if (!n)
			return -ENOMEM;
		insert(x, n);
	}
	x->free += len;
	return 0;
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
