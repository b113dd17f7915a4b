/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The free space of a disk tier. Extents are nodes of a treap ordered by offset. Each node knows
 * the largest extent of its subtree, so first fit takes O(log n). Free neighbours are merged. The
 * caller locks.
 */
#ifndef KVCT_EXTENT_H
#define KVCT_EXTENT_H

#include <stdint.h>

struct kvct_extents;

/* Creates the free space [0, size). NULL: out of memory. */
struct kvct_extents *kvct_extents_new(uint64_t size);
void kvct_extents_free(struct kvct_extents *x);
/*
 * Takes `len` bytes from the lowest extent that is large enough. Returns 0 and sets *at, or -ENOSPC
 * or -ENOMEM.
 */
int kvct_extents_take(struct kvct_extents *x, uint64_t len, uint64_t *at);
/*
 * Takes `len` bytes from the lowest extent that is large enough but smaller than `keep`. If no such
 * extent is among the first thousand or so that it visits, takes them like kvct_extents_take.
 */
int kvct_extents_take_apart(struct kvct_extents *x, uint64_t len, uint64_t keep, uint64_t *at);
/*
 * Takes exactly [at, at + len). Returns 0; -ERANGE if it is outside; -EEXIST if part of it is not
 * free; or -ENOMEM.
 */
int kvct_extents_claim(struct kvct_extents *x, uint64_t at, uint64_t len);
/*
 * Frees [at, at + len). Returns 0; -ERANGE if it is outside; -EEXIST if part of it was free
 * already; or -ENOMEM. After an error nothing has changed.
 */
int kvct_extents_give(struct kvct_extents *x, uint64_t at, uint64_t len);
/* Adds [old size, size) as free space. Returns 0, -ERANGE if size is smaller, or -ENOMEM. */
int kvct_extents_grow(struct kvct_extents *x, uint64_t size);
uint64_t kvct_extents_total_free(const struct kvct_extents *x);
/* Calls fn for each free extent, in order of offset. */
void kvct_extents_each(const struct kvct_extents *x,
		       void (*fn)(void *arg, uint64_t at, uint64_t len), void *arg);

#endif
