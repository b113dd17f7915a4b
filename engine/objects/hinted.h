/* SPDX-License-Identifier: Apache-2.0 */
/* Hints of clients about chunks (hinted.c). All under k->lock. A restart forgets them. */
#ifndef KVC_HINTED_H
#define KVC_HINTED_H

#include "chunk.h"

/* The chunk is not needed any more, until it is used again. */
void kvc_hinted_finished_locked(struct kvc *k, struct kvc_chunk *c);
/* The chunk is needed until until_ns (monotonic time) or, if paused, until its next use. */
void kvc_hinted_until_locked(struct kvc *k, struct kvc_chunk *c, uint64_t until_ns, bool paused);
/* Removes the hints of the chunk. */
void kvc_hinted_clear_locked(struct kvc_chunk *c);
/* The chunk was used. */
void kvc_hinted_accessed_locked(struct kvc_chunk *c);
/* The chunk entered the pool or its order again. */
void kvc_hinted_pushed_locked(struct kvc *k, struct kvc_chunk *c);
/*
 * Returns the next finished chunk that the pool can lose, and excludes it from the pool's order
 * like kvc_chunk_pop_locked; NULL: none.
 */
struct kvc_chunk *kvc_hinted_victim_locked(struct kvc *k);

#endif
