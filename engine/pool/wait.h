/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting calls, and the answerer thread that wakes them (base/caller.h). All under k->lock. */
#ifndef KVC_WAIT_H
#define KVC_WAIT_H

#include "caller.h"

#include <pthread.h>

struct kvc_waits {
	struct kvc_wait *timed; /* all parked waits, a tree in order of their deadlines */
	struct kvc_list woken;  /* waits that the answerer must wake */
	pthread_cond_t cond;    /* the answerer waits for it */
	/* the answerer has nothing left to wake; the daemon's end waits for it */
	pthread_cond_t idle;
	bool waking; /* the answerer is in a wake, without locks */
};

/* The thread's function. */
void *kvc_wait_answerer(void *arg);
/* At the end of the cache: waits, for deadline= at most, until all parked waits are woken. */
void kvc_waits_end(struct kvc *k);
/*
 * Parks a wait on a list until kvc_wait_wake_locked wakes it or its deadline passes. If the call
 * gets no place to wait (caller.h), its deadline passes at once. Always returns KVC_WAIT. Takes
 * O(log n) for n parked waits.
 */
int kvc_wait_park_locked(struct kvc *k, struct kvc_list *on, struct kvc_wait *w);
void kvc_wait_wake_locked(struct kvc *k, struct kvc_wait *w, int err);
void kvc_wait_wake_all_locked(struct kvc *k, struct kvc_list *on, int err);
/*
 * Refuses the first wait for bytes of the pool or of a quota: -ENOSPC or -EDQUOT. The waits behind
 * it get the free bytes.
 */
void kvc_wait_refuse_first_locked(struct kvc *k, struct kvc_list *waiters);

#endif
