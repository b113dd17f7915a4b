/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What transactions make dispensable, on its way out (deferred_free.c). All under k->lock but
 * rehead_lock.
 */
#ifndef KVC_DEFERRED_FREE_H
#define KVC_DEFERRED_FREE_H

#include "kvc.h"

struct kvc_deferred_free {
	struct kvc_list list;     /* of the transaction that is being collected */
	struct kvc_list unsynced; /* trash whose commit is not on stable storage yet */
	/* until it is handed on; since when the oldest waits */
	uint64_t nunsynced, unsynced_bytes, unsynced_ns;
	pthread_cond_t sync_cond; /* the syncer's */
	/*
	 * Rewriting a header and freeing an extent exclude each other; taken before all other
	 * locks.
	 */
	pthread_mutex_t rehead_lock;
};

/* The thread. */
void *kvc_deferred_free_syncer(void *arg);
/* The trash of a transaction that is committed. Empties the list. Without locks. */
void kvc_deferred_free_committed(struct kvc *k, struct kvc_list *trash);
void kvc_deferred_free_clear(struct kvc *k);
void kvc_deferred_free_segment_locked(struct kvc *k, const struct kvc_segment *s,
				      uint64_t reserved);
/*
 * A frame in a shared tier that nobody else shall have either: it is removed if it still is this
 * version of this object, and nobody needs it (tiering/remove.c).
 */
void kvc_deferred_free_shared_locked(struct kvc *k, unsigned tier, uint64_t ino,
				     const struct kvc_place *p);
/*
 * Likewise a copy that was made in vain: it is removed only where it still is that one, and not
 * another node's of the same bytes.
 */
void kvc_deferred_free_undone_locked(struct kvc *k, unsigned tier, uint64_t ino,
				     const struct kvc_place *p);
void kvc_deferred_free_extent_locked(struct kvc *k, unsigned tier, const struct kvc_place *p);

#endif
