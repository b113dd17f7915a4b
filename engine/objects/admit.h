/* SPDX-License-Identifier: Apache-2.0 */
/* What the disk tier takes (admit.c). All under k->lock. */
#ifndef KVC_ADMIT_H
#define KVC_ADMIT_H

#include "ghosts.h"
#include "node.h"

#define KVC_DISK 0u /* the disk tier's number */

struct kvc_admits {
	uint64_t under_way;     /* bytes of copies that were let in and are not made yet */
	struct kvc_ghosts gone; /* names of chunks that were dropped */
	uint32_t ngone;
};

/* Is a copy of the file as it is now let into this tier, or why not? */
enum kvc_refusal kvc_admit_locked(struct kvc *k, const struct kvc_node *n, unsigned tier);
/* The same, and the copy begins: *bytes of the day are its own until kvc_admit_end_locked. */
enum kvc_refusal kvc_admit_begin_locked(struct kvc *k, const struct kvc_node *n, unsigned tier,
					uint64_t *bytes);
void kvc_admit_end_locked(struct kvc *k, uint64_t bytes);
/*
 * No tier is asked for a copy of it now, since none lets it in: nobody waits for one. Or so again.
 */
void kvc_admit_refused_locked(struct kvc *k, struct kvc_node *n, bool refused);
/*
 * It is about to be published, or is in another chunk now: what has just been made is asked for
 * once.
 */
void kvc_admit_made_locked(struct kvc *k, struct kvc_node *n);
/* A request asks for it, that did not make it. */
void kvc_admit_asked_locked(struct kvc *k, struct kvc_chunk *c);
/*
 * It may be let in now: copies are asked for of what lacks one. Of a chunk with many files each
 * call does the next few.
 */
void kvc_admit_again_locked(struct kvc *k, struct kvc_chunk *c);
/*
 * A chunk that was asked for once leaves the pool, and is dropped: its name (a hash of it; 0: none)
 * is remembered. And one of this name is to be dropped now: was one before? Then it is let in.
 */
void kvc_admit_gone_locked(struct kvc *k, uint64_t name);
bool kvc_admit_back_locked(struct kvc *k, struct kvc_chunk *c, uint64_t name);
/* At the end. */
void kvc_admits_free(struct kvc *k);

#endif
