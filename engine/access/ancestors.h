/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An access to a chunk counts for its ancestors too, although no client asked for them: an engine
 * that has the beginning of a prompt on its device stores and loads only the rest. Without this, a
 * policy by rank would evict the beginning first, and the rest would be useless.
 *
 * The first chunk of a request is queued here when the request ends (access.c), and so is a chunk
 * whose parent is told. A thread that may block then walks up the chain, to the first ancestor with
 * a later access, and stamps the rows, whether they are in memory or not. Until then, eviction by
 * rank spares the parent of each queued chunk, and thereby all its ancestors (evict/trim.c).
 */
#ifndef KVC_ANCESTORS_H
#define KVC_ANCESTORS_H

#include "chunk.h"

#define KVC_ANCESTORS 256

struct kvc_ancestors { /* under k->lock */
	struct {
		uint64_t id, parent;
	} of[KVC_ANCESTORS];
	unsigned n;
	uint64_t next; /* the chunk that is stamped next; 0: none */
};

/*
 * Queues a chunk with which a request began. If the queue is full, its ancestors wait for its next
 * access.
 */
void kvc_ancestors_of_locked(struct kvc *k, const struct kvc_chunk *c);
/*
 * Called periodically and before the last commit: stamps a bounded number of chunks. Without locks.
 */
void kvc_ancestors_stamp(struct kvc *k);

#endif
