/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deferred frees: segments, extents and shared frames that a transaction made unused. They are
 * freed after its commit, or after a sync of the disk (deferred_free.c). All under k->lock except
 * rehead_lock.
 */
#ifndef KVC_DEFERRED_FREE_H
#define KVC_DEFERRED_FREE_H

#include "kvc.h"
#include "store.h"

struct kvc_deferred_free {
	struct kvc_list list;     /* items of the transaction that is being collected */
	struct kvc_list unsynced; /* items whose commit is not on stable storage yet */
	/* their number and bytes, and since when the oldest one waits */
	uint64_t nunsynced, unsynced_bytes, unsynced_ns;
	pthread_cond_t sync_cond; /* wakes the syncer thread */
	/*
	 * Serializes rewriting a header with freeing an extent of the same device, by its number.
	 * Taken before all other locks.
	 */
	pthread_mutex_t rehead_lock[KVC_DEVICES];
};

/* Returns the lock for a place in the disk tier. */
static inline pthread_mutex_t *kvc_deferred_free_rehead_lock(struct kvc *k,
							     const struct kvc_where *w)
{
	return &k->deferred_free->rehead_lock[(w->at >> KVC_DEVICE_BITS) % KVC_DEVICES];
}

/* The syncer's main function; arg is the struct kvc. */
void *kvc_deferred_free_syncer(void *arg);
/*
 * Releases the items of a committed transaction: frees segments, and hands extents and shared
 * frames to the syncer. Empties the list. Called without locks.
 */
void kvc_deferred_free_committed(struct kvc *k, struct kvc_list *items);
/* At unmount: frees the lists. Their space is found unused at the next start. */
void kvc_deferred_free_clear(struct kvc *k);
/* Queues a segment; `reserved` bytes of the pool are released with it. */
void kvc_deferred_free_segment_locked(struct kvc *k, const struct kvc_segment *s,
				      uint64_t reserved);
/*
 * Queues the removal of a frame from a shared tier, so that it is gone for the other machines too.
 * It is removed if it still is this version of this object and no file of this store needs it
 * (tiering/remove.c).
 */
void kvc_deferred_free_shared_locked(struct kvc *k, unsigned tier, uint64_t ino,
				     const struct kvc_place *p);
/*
 * The same for a copy that this node made and then gave up. It is removed only if the tier still
 * has this copy, and not another node's copy of the same bytes.
 */
void kvc_deferred_free_undone_locked(struct kvc *k, unsigned tier, uint64_t ino,
				     const struct kvc_place *p);
/* Queues an extent of a tier of this node. Does nothing for a shared tier's frame. */
void kvc_deferred_free_extent_locked(struct kvc *k, unsigned tier, const struct kvc_place *p);

#endif
