/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring of the newest accesses, for readers that record them (report/trace.c). It exists only
 * while a reader is open. Each reader has its own position; a slow reader loses the oldest
 * accesses. All under k->lock.
 */
#ifndef KVC_ACCESS_RING_H
#define KVC_ACCESS_RING_H

#include "chunk.h"

#define KVC_ACCESS_RING_ITEMS 24576u /* accesses in the ring, a little more than 1 MiB */

enum {
	KVC_USE_MADE = 1,     /* the client created the chunk */
	KVC_USE_LEASED = 2,   /* the client is a lease */
	KVC_USE_LEARNED = 4,  /* its parent is inferred, if it can be */
	KVC_USE_END = 8,      /* not an access: the client, a lease, has told all its paths */
	KVC_USE_RENAMED = 16, /* not an access: the chunk, or (0) any chunk, was renamed */
};

struct kvc_access_seen {
	uint64_t ns; /* kvc_mono_ns */
	uint64_t id; /* of the chunk */
	uint64_t file;
	uint64_t bytes;  /* in the pool; 0: not known yet */
	uint64_t parent; /* the chunk's parent before this access, with KVC_TOLD; or 0 */
	uint32_t client, what;
};

struct kvc_access_ring {
	unsigned readers;
	uint64_t n; /* accesses put so far; the ring has the last KVC_ACCESS_RING_ITEMS of them */
	struct kvc_access_seen v[KVC_ACCESS_RING_ITEMS];
};

/* Opens a reader: *at is its position. Returns 0 or -ENOMEM. */
int kvc_access_ring_open_locked(struct kvc *k, uint64_t *at);
/* Closes a reader; the last one frees the ring. */
void kvc_access_ring_close_locked(struct kvc *k);
/* Adds an access. The caller has checked that a reader is open (k->access_ring). */
void kvc_access_ring_put_locked(struct kvc *k, const struct kvc_access_seen *u);
/*
 * Copies up to `most` accesses from the reader's position and advances it. *lost: the number of
 * older accesses that the reader missed.
 */
size_t kvc_access_ring_take_locked(struct kvc *k, uint64_t *at, struct kvc_access_seen *v,
				   size_t most, uint64_t *lost);

#endif
