/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that the pool's policy keeps, and chunks that leave the pool (leaving.c). All under
 * k->lock. access/retention.c asks the policy; evict/evict.c evicts the chunks that leave.
 */
#ifndef KVC_LEAVING_H
#define KVC_LEAVING_H

#include "chunk.h"

/* A client begins to create the chunk. */
void kvc_leaving_enters_locked(struct kvc *k, struct kvc_chunk *c);
/* The policy keeps the chunk, which the caller has put into the order. */
void kvc_leaving_kept_locked(struct kvc *k, struct kvc_chunk *c);
/* The chunk leaves the policy's order: it is a victim, or the policy refused it. */
void kvc_leaving_add_locked(struct kvc *k, struct kvc_chunk *c, bool refused);
/* A chunk that leaves must stay: returns it to its place in the order. */
void kvc_leaving_back_locked(struct kvc *k, struct kvc_chunk *c);
/* The policy has decided about a chunk that is not in the pool but may be loaded soon. */
void kvc_leaving_judge_locked(struct kvc_chunk *c, bool refused);
/*
 * Takes the chunk that leaves next: from the list of unwanted chunks if `first` is set, otherwise
 * from the other list. Returns NULL if that list is empty. If it stays in the pool,
 * kvc_chunk_push_locked puts it back.
 */
struct kvc_chunk *kvc_leaving_take_locked(struct kvc *k, bool first);
/*
 * Called by kvc_chunk_push_locked. If the chunk leaves the pool, puts it back into its list and
 * returns true. kvc_leaving_entered_locked is called for a chunk that entered the order.
 */
bool kvc_leaving_pushed_locked(struct kvc *k, struct kvc_chunk *c);
void kvc_leaving_entered_locked(struct kvc *k, struct kvc_chunk *c);
/* The chunk's bytes in the pool have changed by `by`, which may be negative (mod 2^64). */
void kvc_leaving_count_locked(struct kvc *k, const struct kvc_chunk *c, uint64_t by);
/* The last file of the chunk left the pool. */
void kvc_leaving_left_locked(struct kvc *k, struct kvc_chunk *c);
/* The chunk is being dropped. */
void kvc_leaving_detached_locked(struct kvc *k, struct kvc_chunk *c);

#endif
