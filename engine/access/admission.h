/* SPDX-License-Identifier: Apache-2.0 */
/* Admission to the disk tier (admission.c). All under k->lock. */
#ifndef KVC_ADMISSION_H
#define KVC_ADMISSION_H

#include "ghosts.h"
#include "node.h"

struct kvc_admission {
	uint64_t under_way;     /* bytes of admitted copies that are not made yet */
	struct kvc_ghosts gone; /* names of chunks that were dropped */
	uint32_t ngone;
};

/*
 * Returns KVC_ADMISSION_OK if a copy of the file in its current state may be made to this tier, or
 * the reason of the refusal.
 */
enum kvc_refusal kvc_admission_check_locked(struct kvc *k, const struct kvc_node *n, unsigned tier);
/*
 * The same for a copy that begins now: *bytes of the day's limit are reserved for it until
 * kvc_admission_end_locked.
 */
enum kvc_refusal kvc_admission_begin_locked(struct kvc *k, const struct kvc_node *n, unsigned tier,
					    uint64_t *bytes);
void kvc_admission_end_locked(struct kvc *k, uint64_t bytes);
/*
 * If refused is true, marks the file as one that no tier admits now, so that no call waits for a
 * copy of it; otherwise removes the mark.
 */
void kvc_admission_refused_locked(struct kvc *k, struct kvc_node *n, bool refused);
/*
 * The file is about to be published, or joined another chunk: its creation counts as one request
 * for the chunk.
 */
void kvc_admission_made_locked(struct kvc *k, struct kvc_node *n);
/* A request, other than the one that created it, asks for the chunk. */
void kvc_admission_requested_locked(struct kvc *k, struct kvc_chunk *c);
/*
 * The chunk may be admitted now: requests copies of its files that lack one. Each call handles the
 * next few files of a large chunk.
 */
void kvc_admission_retry_locked(struct kvc *k, struct kvc_chunk *c);
/*
 * The disk tier's policy keeps the chunk: requests the copies that it had refused. bytes: their
 * size, if none is made yet. kvc_admission_given_up_locked: the policy does not keep it; no more
 * copies are made.
 */
void kvc_admission_kept_locked(struct kvc *k, struct kvc_chunk *c, uint64_t bytes);
void kvc_admission_given_up_locked(struct kvc *k, struct kvc_chunk *c);
/* The disk tier has a copy of a file of the chunk. */
void kvc_admission_stored_locked(struct kvc *k, struct kvc_chunk *c);
/*
 * kvc_admission_dropped_locked: remembers the name (a hash; 0: none) of a chunk that was requested
 * once and leaves the pool by being dropped. kvc_admission_was_dropped_locked: returns true if a
 * chunk of this name was dropped before; the chunk, which is about to be dropped, is then admitted.
 */
void kvc_admission_dropped_locked(struct kvc *k, uint64_t name);
bool kvc_admission_was_dropped_locked(struct kvc *k, struct kvc_chunk *c, uint64_t name);
/* At unmount. */
void kvc_admission_free(struct kvc *k);

#endif
