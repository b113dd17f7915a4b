/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is remembered of chunks that are not here any more: a table of fixed size, in rows of eight,
 * where the one of its row that was touched longest ago makes room. Of the ids one in `sample` is
 * remembered, so that the same memory reaches back further.
 *
 * A ghost has a row of its own, by its id. The table has only the first of them to begin with, and
 * takes in the next as soon as those have one each on average, by linear hashing: a small
 * cache has a small table. What belongs to a row that is not there yet is, until then, in the one
 * that is as many before it as a power of two of `base`.
 */
#ifndef KVC_GHOSTS_H
#define KVC_GHOSTS_H

#include "state.h"

#define KVC_GHOST_ROW 8u
#define KVC_SAMPLE_MOST 32 /* ids of which one is remembered, at most */

struct kvc_ghost {
	uint32_t tag;  /* of its id; 0: none here */
	uint32_t last; /* the request that touched it last */
	uint8_t count, gap, kids;
	uint8_t part; /* its own row / base */
};

struct kvc_ghosts {
	struct kvc_ghost *row;
	uint64_t rows, used, capacity; /* that there will be, are, and have memory */
	uint64_t base, span; /* rows at the beginning; base << n, the last that was reached */
	uint64_t n;          /* ghosts, but those that made room */
	uint32_t sample;     /* a power of two, and the caller's to change */
};

/* Can it be one? */
static inline bool kvc_ghosts_is_sample(uint32_t n)
{
	return n && n <= KVC_SAMPLE_MOST && !(n & (n - 1));
}

/* 0 or -ENOMEM. */
int kvc_ghosts_init(struct kvc_ghosts *g, uint64_t n, uint32_t sample);
void kvc_ghosts_fini(struct kvc_ghosts *g);
/* Is it one of those that are remembered at all? */
bool kvc_ghosts_take(const struct kvc_ghosts *g, uint64_t id);
/* The one of this id, or NULL. */
struct kvc_ghost *kvc_ghosts_find(const struct kvc_ghosts *g, uint64_t id);
/*
 * A place for it, where what was known of it, or of another, still stands: all of it is set anew.
 */
struct kvc_ghost *kvc_ghosts_put(struct kvc_ghosts *g, uint64_t id);
uint64_t kvc_ghosts_bytes(const struct kvc_ghosts *g);
/*
 * A piece of the newest of them, by s->now (true: there are more); into an empty table, with the
 * sample that they are of, where it has as many rows as theirs (else they are gone over).
 */
bool kvc_ghosts_save(const struct kvc_ghosts *g, struct kvc_saving *s);
void kvc_ghosts_load(struct kvc_ghosts *g, struct kvc_in *in);

#endif
