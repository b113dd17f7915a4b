/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who uses which chunks, for who records it (report/trace.c): a ring of the newest uses, there only
 * while somebody reads it. Each reader has a place of his own in it; who is slow loses the oldest.
 * All under k->lock.
 */
#ifndef KVC_ACCESS_RING_H
#define KVC_ACCESS_RING_H

#include "chunk.h"

#define KVC_ACCESS_RING_ITEMS 24576u /* uses in the ring, somewhat over 1 MiB */

enum {
	KVC_USE_MADE = 1,     /* the client has made it */
	KVC_USE_LEASED = 2,   /* the client is a lease */
	KVC_USE_LEARNED = 4,  /* what it follows is known, as far as it can be learned */
	KVC_USE_END = 8,      /* no use: the client, a lease, has told all it has */
	KVC_USE_RENAMED = 16, /* no use: the chunk, or (0) any, has another name */
};

struct kvc_access_seen {
	uint64_t ns; /* kvc_mono_ns */
	uint64_t id; /* of the chunk */
	uint64_t file;
	uint64_t bytes;  /* in the pool; 0: not known yet */
	uint64_t parent; /* what the chunk followed before this use, with KVC_TOLD, or 0 */
	uint32_t client, what;
};

struct kvc_access_ring {
	unsigned readers;
	uint64_t n; /* put so far: the last KVC_ACCESS_RING_ITEMS of them are there */
	struct kvc_access_seen v[KVC_ACCESS_RING_ITEMS];
};

/* A reader comes: *at is his place. 0 or -ENOMEM. */
int kvc_access_ring_open_locked(struct kvc *k, uint64_t *at);
/* He goes; with the last one the ring does. */
void kvc_access_ring_close_locked(struct kvc *k);
/* For who has looked that somebody records (k->access_ring). */
void kvc_access_ring_put_locked(struct kvc *k, const struct kvc_access_seen *u);
/*
 * Up to `most` from his place on, which moves; *lost: those before them that he came too late for.
 */
size_t kvc_access_ring_take_locked(struct kvc *k, uint64_t *at, struct kvc_access_seen *v,
				   size_t most, uint64_t *lost);

#endif
