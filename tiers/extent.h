/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The free space of a disk tier: extents in a treap by offset, each subtree knowing its largest, so
 * first fit is O(log n). Neighbours are joined when space comes back. Not locked: the owner does.
 */
#ifndef KVCT_EXTENT_H
#define KVCT_EXTENT_H

#include <stdint.h>

struct kvct_extents;

/* All of [0, size) free. NULL: out of memory. */
struct kvct_extents *kvct_extents_new(uint64_t size);
void kvct_extents_free(struct kvct_extents *x);
/* Takes `len` bytes from the lowest extent that has them. 0 with *at, -ENOSPC, -ENOMEM. */
int kvct_extents_take(struct kvct_extents *x, uint64_t len, uint64_t *at);
/*
 * The same, from the lowest that has them and has less than `keep`; from any only where there is no
 * such one among the first thousand or so that it looks at.
 */
int kvct_extents_take_apart(struct kvct_extents *x, uint64_t len, uint64_t keep, uint64_t *at);
/* Takes exactly [at, at + len). 0, -ERANGE (outside), -EEXIST (not all of it is free), -ENOMEM. */
int kvct_extents_claim(struct kvct_extents *x, uint64_t at, uint64_t len);
/*
 * Gives [at, at + len) back. 0, -ERANGE, -EEXIST (some of it was free already: nothing changed),
 * -ENOMEM.
 */
int kvct_extents_give(struct kvct_extents *x, uint64_t at, uint64_t len);
uint64_t kvct_extents_total_free(const struct kvct_extents *x);
/* Calls fn for each free extent in order. */
void kvct_extents_each(const struct kvct_extents *x,
		       void (*fn)(void *arg, uint64_t at, uint64_t len), void *arg);

#endif
