/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See extent.h. Invariant: extents do not overlap or touch; each node's `max` is the largest length
 * below it.
 */
#include "extent.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

struct node {
	uint64_t at, len, max;
	uint32_t prio;
	struct node *l, *r;
};

#define RESERVE 64 /* nodes kept for giving back, which must not fail for want of memory */

struct kvct_extents {
	struct node *root;
	struct node *reserve; /* by r */
	unsigned nreserve;
	uint64_t size, free;
	uint32_t seed;
};

static uint64_t max_of(const struct node *n)
{
	return n ? n->max : 0;
}

static void fix(struct node *n)
{
	n->max = n->len;
	if (max_of(n->l) > n->max)
		n->max = n->l->max;
	if (max_of(n->r) > n->max)
		n->max = n->r->max;
}

/* Splits into offsets below `at` and the others. */
static void split(struct node *n, uint64_t at, struct node **l, struct node **r)
{
	if (!n) {
		*l = *r = NULL;
	} else if (n->at < at) {
		split(n->r, at, &n->r, r);
		*l = n;
		fix(n);
	} else {
		split(n->l, at, l, &n->l);
		*r = n;
		fix(n);
	}
}

static struct node *merge(struct node *l, struct node *r)
{
	if (!l || !r)
		return l ? l : r;
	if (l->prio > r->prio) {
		l->r = merge(l->r, r);
		fix(l);
		return l;
	}
	r->l = merge(l, r->l);
	fix(r);
	return r;
}

static void refill(struct kvct_extents *x)
{
	struct node *n;

	while (x->nreserve < RESERVE && (n = malloc(sizeof *n))) {
		n->r = x->reserve;
		x->reserve = n;
		x->nreserve++;
	}
}

/* gives: for space that comes back, which may take from the reserve. */
static struct node *make(struct kvct_extents *x, uint64_t at, uint64_t len, bool gives)
{
	struct node *n = malloc(sizeof *n);

	if (!n && gives && x->nreserve) {
		n = x->reserve;
		x->reserve = n->r;
		x->nreserve--;
	}
	if (n) {
		x->seed = x->seed * 1664525u + 1013904223u;
		*n = (struct node){ at, len, len, x->seed, NULL, NULL };
	}
	return n;
}

static void insert(struct kvct_extents *x, struct node *n)
{
	struct node *l, *r;

	split(x->root, n->at, &l, &r);
	x->root = merge(merge(l, n), r);
}

/* Takes the node at exactly this offset out of the tree. */
static struct node *detach(struct kvct_extents *x, uint64_t at)
{
	struct node *l, *m, *r;

	split(x->root, at, &l, &r);
	split(r, at + 1, &m, &r);
	x->root = merge(l, r);
	return m;
}

/* The extent with the largest offset not above `at`. */
static struct node *below(struct node *n, uint64_t at)
{
	struct node *best = NULL;

	while (n)
		if (n->at <= at) {
			best = n;
			n = n->r;
		} else {
			n = n->l;
		}
	return best;
}

struct kvct_extents *kvct_extents_new(uint64_t size)
{
	struct kvct_extents *x = calloc(1, sizeof *x);

	if (!x)
		return NULL;
	x->size = x->free = size;
	x->seed = 12345;
	x->root = size ? make(x, 0, size, false) : NULL;
	if (size && !x->root) {
		free(x);
		return NULL;
	}
	return x;
}

static void free_all(struct node *n)
{
	if (n) {
		free_all(n->l);
		free_all(n->r);
		free(n);
	}
}

void kvct_extents_free(struct kvct_extents *x)
{
	for (struct node *n; x && (n = x->reserve);) {
		x->reserve = n->r;
		free(n);
	}
	if (x)
		free_all(x->root);
	free(x);
}

int kvct_extents_take(struct kvct_extents *x, uint64_t len, uint64_t *at)
{
	struct node *n = x->root;

	if (!len || max_of(n) < len)
		return -ENOSPC;
	for (;;) /* the leftmost that is large enough */
		if (max_of(n->l) >= len)
			n = n->l;
		else if (n->len >= len)
			break;
		else
			n = n->r;
	*at = n->at;
	return kvct_extents_claim(x, n->at, len);
}

/*
 * The leftmost of at least `len` and less than `keep`. Those that are larger are few, or it is
 * slow.
 */
static const struct node *between(const struct node *n, uint64_t len, uint64_t keep)
{
	const struct node *found = max_of(n) < len ? NULL : between(n->l, len, keep);

	if (found || max_of(n) < len)
		return found;
	return n->len >= len && n->len < keep ? n : between(n->r, len, keep);
}

int kvct_extents_take_apart(struct kvct_extents *x, uint64_t len, uint64_t keep, uint64_t *at)
{
	const struct node *n = len ? between(x->root, len, keep) : NULL;

	if (!n)
		return kvct_extents_take(x, len, at);
	*at = n->at;
	return kvct_extents_claim(x, n->at, len);
}

int kvct_extents_claim(struct kvct_extents *x, uint64_t at, uint64_t len)
{
	struct node *n, *tail = NULL;
	uint64_t end = at + len;

	refill(x); /* a taker can be refused, who gives back cannot */
	if (!len || end < at || end > x->size)
		return -ERANGE;
	n = below(x->root, at);
	if (!n || n->at + n->len < end)
		return -EEXIST;
	if (n->at < at && n->at + n->len > end &&
	    !(tail = make(x, end, n->at + n->len - end, false)))
		return -ENOMEM;
	n = detach(x, n->at);
	x->free -= len;
	if (n->at < at) {
		n->len = n->max = at - n->at;
		n->l = n->r = NULL;
		insert(x, n);
		if (tail)
			insert(x, tail);
	} else if (n->len > len) {
		n->at = end;
		n->len = n->max = n->len - len;
		n->l = n->r = NULL;
		insert(x, n);
	} else {
		free(n);
	}
	return 0;
}

int kvct_extents_give(struct kvct_extents *x, uint64_t at, uint64_t len)
{
	struct node *before, *after, *n;
	uint64_t end = at + len;

	if (!len || end < at || end > x->size)
		return -ERANGE;
	before = below(x->root, at);
	if (before && before->at + before->len > at)
		return -EEXIST; /* also when it starts at `at`: extents are never empty */
	after = below(x->root, end);
	if (after && after->at > at && after->at < end)
		return -EEXIST;
	if (after && after->at != end)
		after = NULL;
	if (before && before->at + before->len != at)
		before = NULL;
	x->free += len;
	if (before) {
		n = detach(x, before->at);
		n->len += len;
	} else if (after) {
		n = detach(x, after->at);
		n->at = at;
		n->len += len;
		after = NULL;
	} else {
		n = make(x, at, len, true);
		if (!n) {
			x->free -= len;
			return -ENOMEM;
		}
	}
	if (after) {
		after = detach(x, after->at);
		n->len += after->len;
		free(after);
	}
	n->l = n->r = NULL;
	n->max = n->len;
	insert(x, n);
	return 0;
}

uint64_t kvct_extents_total_free(const struct kvct_extents *x)
{
	return x->free;
}

static void each(const struct node *n, void (*fn)(void *, uint64_t, uint64_t), void *arg)
{
	if (n) {
		each(n->l, fn, arg);
		fn(arg, n->at, n->len);
		each(n->r, fn, arg);
	}
}

void kvct_extents_each(const struct kvct_extents *x,
		       void (*fn)(void *arg, uint64_t at, uint64_t len), void *arg)
{
	each(x->root, fn, arg);
}
