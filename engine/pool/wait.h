/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that wait, and the answerer that wakes them (base/caller.h). All under k->lock. */
#ifndef KVC_WAIT_H
#define KVC_WAIT_H

#include "caller.h"

#include <pthread.h>

struct kvc_waits {
	struct kvc_wait *timed; /* all parked waits, a tree in the order of their deadlines */
	struct kvc_list woken;  /* those the answerer is to wake */
	pthread_cond_t cond;    /* the answerer's */
	pthread_cond_t idle;    /* it has no more to wake; who waits for that is the daemon's end */
	bool waking;            /* it is in a wake, without locks */
};

/* The thread. */
void *kvc_wait_answerer(void *arg);
/* While the cache stops: waits, for deadline= at most, until all that was parked has been woken. */
void kvc_waits_end(struct kvc *k);
/*
 * Parks a wait on a list; it is woken by kvc_wait_wake_locked or at its deadline, which has passed
 * if the wait has no place (caller.h). Always KVC_WAIT. Takes O(log n) of the n parked waits.
 */
int kvc_wait_park_locked(struct kvc *k, struct kvc_list *on, struct kvc_wait *w);
void kvc_wait_wake_locked(struct kvc *k, struct kvc_wait *w, int err);
void kvc_wait_wake_all_locked(struct kvc *k, struct kvc_list *on, int err);
/*
 * The first that waits for room or a quota gets none: -ENOSPC or -EDQUOT. Those behind it get what
 * there is.
 */
void kvc_wait_refuse_first_locked(struct kvc *k, struct kvc_list *waiters);

#endif
