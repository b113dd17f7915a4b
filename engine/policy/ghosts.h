/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ghosts: a few facts about chunks that are not in the cache any more. They are in a table of fixed
 * size, with eight ghosts in a row. A new ghost replaces the least recently accessed ghost of its
 * row. Only one in `sample` of all ids has a ghost, so that the same memory covers a longer time.
 *
 * The id of a ghost determines its row. At first the table has only the first rows, and it adds the
 * next row when there is one ghost per row on average (linear hashing): a small cache has a small
 * table. Until a row exists, its ghosts are in an earlier row, whose number is lower by a multiple
 * of `base`.
 */
#ifndef KVC_GHOSTS_H
#define KVC_GHOSTS_H

#include "state.h"

#define KVC_GHOST_ROW 8u
#define KVC_SAMPLE_MOST 32 /* the largest `sample` */

struct kvc_ghost {
	uint32_t tag;  /* part of the hash of the id; 0: an empty place */
	uint32_t last; /* the last request that accessed the chunk */
	uint8_t count, gap, kids;
	uint8_t part; /* number of its row / base */
};

struct kvc_ghosts {
	struct kvc_ghost *row;
	uint64_t rows, used, capacity; /* rows at most, in use, allocated */
	/* rows at the start; the largest base << n that `used` has reached */
	uint64_t base, span;
	uint64_t n;      /* ghosts, without those that were replaced */
	uint32_t sample; /* a power of two; the caller may change it */
};

/* True if n is a valid `sample`. */
static inline bool kvc_ghosts_is_sample(uint32_t n)
{
	return n && n <= KVC_SAMPLE_MOST && !(n & (n - 1));
}

/* Makes an empty table for n ghosts. Returns 0, or -ENOMEM. */
int kvc_ghosts_init(struct kvc_ghosts *g, uint64_t n, uint32_t sample);
void kvc_ghosts_fini(struct kvc_ghosts *g);
/* True if this id belongs to the sample, so that it can have a ghost. */
bool kvc_ghosts_in_sample(const struct kvc_ghosts *g, uint64_t id);
/* The ghost of this id will be looked up soon: starts to load its row into the CPU's caches. */
void kvc_ghosts_expect(const struct kvc_ghosts *g, uint64_t id);
/* Returns the ghost of this id, or NULL. It is valid until the next kvc_ghosts_put. */
struct kvc_ghost *kvc_ghosts_find(const struct kvc_ghosts *g, uint64_t id);
/*
 * Returns the place of the ghost of this id. It still has the old values of this ghost, or of the
 * one that it replaces: the caller sets all of them.
 */
struct kvc_ghost *kvc_ghosts_put(struct kvc_ghosts *g, uint64_t id);
/* Deletes a ghost that was found. */
void kvc_ghosts_del(struct kvc_ghosts *g, struct kvc_ghost *x);
uint64_t kvc_ghosts_bytes(const struct kvc_ghosts *g);
/*
 * Saves a part of the youngest ghosts (their age is relative to s->now) and returns true if more
 * parts follow. Loading fills an empty table and sets the sample. It ignores the ghosts if the
 * saved table had another number of rows, and sets in->bad if they are invalid.
 */
bool kvc_ghosts_save(const struct kvc_ghosts *g, struct kvc_saving *s);
void kvc_ghosts_load(struct kvc_ghosts *g, struct kvc_in *in);

#endif
