/* SPDX-License-Identifier: Apache-2.0 */
/* What the disk tier takes (admission.c). All under k->lock. */
#ifndef KVC_ADMISSION_H
#define KVC_ADMISSION_H

#include "ghosts.h"
#include "node.h"

struct kvc_admission {
	uint64_t under_way;     /* bytes of copies that were let in and are not made yet */
	struct kvc_ghosts gone; /* names of chunks that were dropped */
	uint32_t ngone;
};

/* Is a copy of the file as it is now let into this tier, or why not? */
enum kvc_refusal kvc_admission_check_locked(struct kvc *k, const struct kvc_node *n, unsigned tier);
/* The same, and the copy begins: *bytes of the day are its own until kvc_admission_end_locked. */
enum kvc_refusal kvc_admission_begin_locked(struct kvc *k, const struct kvc_node *n, unsigned tier,
					    uint64_t *bytes);
void kvc_admission_end_locked(struct kvc *k, uint64_t bytes);
/*
 * No tier is asked for a copy of it now, since none lets it in: nobody waits for one. Or so again.
 */
void kvc_admission_refused_locked(struct kvc *k, struct kvc_node *n, bool refused);
/*
 * It is about to be published, or is in another chunk now: what has just been made is asked for
 * once.
 */
void kvc_admission_made_locked(struct kvc *k, struct kvc_node *n);
/* A request asks for it, that did not make it. */
void kvc_admission_asked_locked(struct kvc *k, struct kvc_chunk *c);
/*
 * It may be let in now: copies are asked for of what lacks one. Of a chunk with many files each
 * call does the next few.
 */
void kvc_admission_retry_locked(struct kvc *k, struct kvc_chunk *c);
/*
 * A chunk that was asked for once leaves the pool, and is dropped: its name (a hash of it; 0: none)
 * is remembered. And one of this name is to be dropped now: was one before? Then it is let in.
 */
void kvc_admission_dropped_locked(struct kvc *k, uint64_t name);
bool kvc_admission_was_dropped_locked(struct kvc *k, struct kvc_chunk *c, uint64_t name);
/* At the end. */
void kvc_admission_free(struct kvc *k);

#endif
