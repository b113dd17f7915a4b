/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a used chunk follows counts as used after it, though nobody asked for it: an engine that has
 * the beginning of a prompt on its device stores and loads the rest alone. Else the beginning would
 * be the first to go where chunks go by their ranks, and what follows it would be of no use.
 *
 * A request leaves its first chunk here when it begins, and when it is over (used.c); a thread that
 * may wait goes up from there, to the first that was used later, and stamps the rows, be they in
 * memory or not. Who chooses by the rows' ranks has it done first.
 */
#ifndef KVC_ANCESTORS_H
#define KVC_ANCESTORS_H

#include "chunk.h"

#define KVC_ANCESTORS 512

struct kvc_ancestors { /* under k->lock */
	uint64_t of[KVC_ANCESTORS];
	unsigned n;
};

/*
 * A request begins, or began, with this chunk. Where too many wait it is left to the chunk's next
 * use.
 */
void kvc_ancestors_of_locked(struct kvc *k, const struct kvc_chunk *c);
/*
 * Now and then, before a victim goes and before the last commit: a bounded number. Without locks.
 */
void kvc_ancestors_stamp(struct kvc *k);

#endif
