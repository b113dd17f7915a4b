/* SPDX-License-Identifier: Apache-2.0 */
/* The account of the pool's bytes, and who waits for some. All under k->lock. */
#ifndef KVC_RESERVATION_H
#define KVC_RESERVATION_H

#include "caller.h"
#include "options.h"

#include <pthread.h>

struct kvc_reservations {
	uint64_t used; /* bytes of the pool accounted for */
	/* of these, prepared for files being written, used by now or not */
	uint64_t ahead;
	uint64_t uncopied; /* of these, of published objects that no tier has */
	uint64_t copied;   /* of these, files that a tier has too (BOTH) */
	uint64_t leaving;  /* bytes of segments that are trash and not removed yet */
	/* what the tmpfs held beyond `used` when that was last looked at: growth (pool/pool.c) */
	uint64_t unseen;
	struct kvc_list waiters; /* in the order in which they asked */
	/* room is wanted, or something may have become free: the evictor's */
	pthread_cond_t pressed;
	/* looks of the evictor that found nothing to free for those who wait */
	unsigned stuck;
};

/*
 * Accounts `bytes` of the pool for the caller: 0, KVC_WAIT (w is woken when the room is w->granted,
 * or with -ENOSPC), or -ENOSPC. A wait that has a grant uses it up first. w may be NULL: then no
 * waiting, -EAGAIN.
 */
int kvc_reservation_get_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w);
void kvc_reservation_put_locked(struct kvc *k, uint64_t bytes);
/*
 * Wakes the evictor where room is wanted: a signal for each copy would cost more than a small one.
 * Between high= and low= it looks by itself.
 */
void kvc_reservation_tell_locked(struct kvc *k);
/*
 * The tmpfs did not have the pages of room that it was given, and has put back: files have grown by
 * passthrough. It waits until they have been made room for. KVC_WAIT, or -ENOSPC where the tmpfs is
 * not our own.
 */
int kvc_reservation_retry_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w);
/* How much would have to be free beyond what is, for what the pool holds to grow by so much? */
uint64_t kvc_reservation_lacks_locked(const struct kvc *k, uint64_t bytes);
/* Looks at what the tmpfs holds, and gives those who wait what there is. */
void kvc_reservation_look_locked(struct kvc *k);
/* Gives those who wait what there is. */
void kvc_reservation_grant_locked(struct kvc *k);
/* Gives back what a wait was granted, of the pool and of a quota, and did not use. */
void kvc_reservation_cancel_locked(struct kvc *k, struct kvc_wait *w);
/* So much is without a copy that copies do not wait for settle=. */
bool kvc_reservation_hurry_locked(const struct kvc *k);
/* How much of `used` is to go: above high= it begins, and goes on down to low=. Needs no lock. */
uint64_t kvc_reservation_excess(uint64_t used, uint64_t size, const struct kvc_options *o,
				bool *trimming);

#endif
