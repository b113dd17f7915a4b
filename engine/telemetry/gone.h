/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that recently left the mount or the pool (gone.c). The tables tell why a request did not
 * find a chunk, or found it only in a tier, and how much larger the cache would have to be to have
 * kept it:
 *
 *   names    of dropped chunks, by hash. A request for such a name is counted by the reason of the
 *            drop (absent_after in base/stats.h) and by the time since (drop_gap). If the chunk was
 *            dropped for lack of space, it is also counted by the bytes that were dropped in the
 *            meantime (drop_gap_bytes).
 *   chunks   that were evicted from the pool and stayed in a tier. An open that has to load one is
 *            counted by the bytes that were evicted in the meantime (evict_gap_bytes).
 *
 * A dropped chunk that is computed and stored again has another inode number, and so another id. A
 * third table finds the earlier id by the name, so that the policies go on with what they know
 * about the chunk (kvc_replacer_rename).
 *
 * drop_gap_bytes and evict_gap_bytes show how much larger a cache that evicts the least recently
 * used chunk first would have to be to still have the chunk. The tables have a fixed size: a later
 * chunk may replace an earlier one, and a restart forgets all. Any thread may call the functions;
 * those whose names end in _locked need k->lock, and the others need no lock.
 */
#ifndef KVC_GONE_H
#define KVC_GONE_H

#include "kvc.h"

#define KVC_GONE_SLOTS 65536u   /* of each of these tables; 1.5 MiB */
#define KVC_GONE_IDS 262144u    /* dropped chunks whose ids are known; 4 MiB */
#define KVC_GONE_EARLIER 16384u /* chunks that were made again and not used yet */

struct kvc_gone *kvc_gone_new(void); /* NULL: out of memory */
void kvc_gone_free(struct kvc_gone *g);

/*
 * This name was removed by the drop of its chunk. hash: kvc_name_hash of the name. chunk: the
 * chunk's id.
 */
void kvc_gone_name_put_locked(struct kvc *k, uint64_t parent, uint64_t hash, enum kvc_reason why,
			      uint64_t chunk);
/*
 * The file or folder `ino` got this name. If a chunk with the name was dropped, it may be that
 * chunk again. kvc_gone_earlier_take_locked returns the id that the chunk had before, once; 0: it
 * had none, or the id was returned already.
 */
void kvc_gone_name_made_locked(struct kvc *k, uint64_t parent, uint64_t hash, uint64_t ino);
uint64_t kvc_gone_earlier_take_locked(struct kvc *k, uint64_t chunk);
/* The name will be made again: requests for it are not counted any more. */
void kvc_gone_name_forget(struct kvc *k, uint64_t parent, uint64_t hash);
/* A chunk of this size was dropped for this reason; call it after kvc_gone_name_put_locked. */
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
