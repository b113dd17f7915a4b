/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a used chunk follows counts as used after it, though nobody asked for it: an engine that has
 * the beginning of a prompt on its device stores and loads the rest alone. Else the beginning would
 * be the first to go where chunks go by their ranks, and what follows it would be of no use.
 *
 * A request that is over leaves its first chunk here (access.c), and so does one that is told what
 * it follows; a thread that may wait goes up from there, to the first that was used later, and
 * stamps the rows, be they in memory or not. Until it has been there, who chooses by ranks spares
 * what a waiting one follows, and with that all above it (trim.c).
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
	uint64_t next; /* the one that is stamped next; 0: none is */
};

/* A request began with this chunk. Where too many wait it is left to the chunk's next use. */
void kvc_ancestors_of_locked(struct kvc *k, const struct kvc_chunk *c);
/* Now and then, and before the last commit: a bounded number of chunks. Without locks. */
void kvc_ancestors_stamp(struct kvc *k);

#endif
