/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that recently left the mount or the pool (gone.c). They tell why a request found nothing,
 * or not in memory, and how much larger a cache would have kept the chunk:
 *
 *   names    of dropped chunks, by hash. A request for such a name is counted by the reason of the
 *            drop (absent_after in base/stats.h) and by the time since (drop_gap). If the chunk was
 *            dropped for lack of space, it is also counted by the bytes that were dropped in the
 *            meantime (drop_gap_bytes).
 *   chunks   that were evicted from the pool and stayed in a tier. An open that has to load one is
 *            counted by the bytes that were evicted in the meantime (evict_gap_bytes).
 *
 * A cache that evicts the least recently used chunk first would still have the chunk if it were
 * larger by these bytes. The tables have a fixed size: a later chunk may replace an earlier one,
 * and a restart forgets all. Any thread, without locks.
 */
#ifndef KVC_GONE_H
#define KVC_GONE_H

#include "kvc.h"

#define KVC_GONE_SLOTS 65536u /* of each table; 1.5 MiB */

struct kvc_gone *kvc_gone_new(void); /* NULL: out of memory */
void kvc_gone_free(struct kvc_gone *g);

/* A chunk was dropped, and this name of it with it. hash: kvc_name_hash of the name. */
void kvc_gone_name_put(struct kvc *k, uint64_t parent, uint64_t hash, enum kvc_reason why);
/* The name was made again. */
void kvc_gone_name_forget(struct kvc *k, uint64_t parent, uint64_t hash);
/* A chunk of this size was dropped for this reason; call it after kvc_gone_name_put. */
void kvc_gone_dropped(struct kvc *k, enum kvc_reason why, uint64_t bytes);

/* Why and how long ago a name was dropped. */
struct kvc_gone_name {
	uint64_t gap_ns, gap_bytes;
	uint8_t why; /* enum kvc_reason + 1; 0: nothing is known */
};
struct kvc_gone_name kvc_gone_name_find(struct kvc *k, uint64_t parent, uint64_t hash);
/* Counts one request for the missing name. Does nothing if nothing is known of its drop. */
void kvc_gone_name_count(struct kvc *k, const struct kvc_gone_name *name);

/* The evictor took these bytes of the chunk out of the pool; a tier has them. */
void kvc_gone_chunk_put(struct kvc *k, uint64_t chunk, uint64_t bytes);
/* An open loads a file of the chunk. */
void kvc_gone_chunk_count(struct kvc *k, uint64_t chunk);

#endif
