/* SPDX-License-Identifier: Apache-2.0 */
/* The account of the pool's bytes, and the calls that wait for bytes. All under k->lock. */
#ifndef KVC_RESERVATION_H
#define KVC_RESERVATION_H

#include "caller.h"
#include "options.h"

#include <pthread.h>

struct kvc_reservations {
	uint64_t used; /* reserved bytes of the pool */
	/* part of `used`: prepared for files that are being written, whether used already or not */
	uint64_t ahead;
	uint64_t uncopied; /* part of `used`: published objects that no tier has */
	uint64_t copied;   /* part of `used`: files that a tier has, too (BOTH) */
	uint64_t leaving;  /* part of `used`: segments that await deferred removal */
	/* bytes that the tmpfs held beyond `used` at the last check: growth (pool/pool.c) */
	uint64_t unseen;
	struct kvc_list waiters; /* in the order of their requests */
	/* the evictor waits for it: bytes are wanted, or something may have become free */
	pthread_cond_t pressed;
	/* number of passes of the evictor that found nothing to free for the waiters */
	unsigned stuck;
};

/*
 * Reserves `bytes` of the pool for the caller. Returns 0; KVC_WAIT (w is woken with the bytes in
 * w->granted, or with -ENOSPC); or -ENOSPC. A w with a grant uses the grant first. w NULL: does not
 * wait and returns -EAGAIN instead.
 */
int kvc_reservation_get_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w);
void kvc_reservation_put_locked(struct kvc *k, uint64_t bytes);
/*
 * Wakes the evictor if bytes are wanted. A signal for each copy would cost more than a small copy,
 * so between high= and low= the evictor checks by itself.
 */
void kvc_reservation_wake_evictor_locked(struct kvc *k);
/*
 * For a caller that got a reservation and returned it because the tmpfs did not have the pages:
 * files have grown through passthrough. Waits until the evictor has freed as much. Returns
 * KVC_WAIT, or -ENOSPC if the tmpfs is not our own.
 */
int kvc_reservation_retry_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w);
/* Returns how many more bytes must become free before the pool can grow by `bytes`. */
uint64_t kvc_reservation_lacks_locked(const struct kvc *k, uint64_t bytes);
/* Returns how many bytes the pool may hold before new chunks take the room of others: low=. */
uint64_t kvc_reservation_low_locked(const struct kvc *k);
/* Checks how many bytes the tmpfs holds, and grants free bytes to the waiters. */
void kvc_reservation_check_locked(struct kvc *k);
/* Grants free bytes to the waiters, in order. */
void kvc_reservation_grant_locked(struct kvc *k);
/* Returns the unused bytes that a wait was granted, of the pool and of a quota. */
void kvc_reservation_cancel_locked(struct kvc *k, struct kvc_wait *w);
/* Are so many bytes without a copy that copies should not wait for settle=? */
bool kvc_reservation_hurry_locked(const struct kvc *k);
/*
 * Returns how many bytes of `used` should be evicted. Eviction begins above high= and continues
 * down to low=; *trimming records that it has begun. Needs no lock.
 */
uint64_t kvc_reservation_excess(uint64_t used, uint64_t size, const struct kvc_options *o,
				bool *trimming);

#endif
