/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Delays stores when copies are slower than stores (throttle.c). All data is guarded by k->lock,
 * which callers hold.
 */
#ifndef KVC_THROTTLE_H
#define KVC_THROTTLE_H

#include "node.h"

struct kvc_throttle {
	struct kvc_list waiters;
	uint64_t rate;     /* copied bytes per second; 0: not known yet */
	uint64_t next_ns;  /* time of the next turn */
	uint64_t since_ns; /* start of the window in which the rate is measured */
	bool busy;         /* the window began with copies to make */
};

/*
 * Gives a store of `bytes` its turn: returns 0 if it may go on at once, or KVC_WAIT after parking
 * w; then the caller calls again when w is woken. Each call is delayed at most once. Sets
 * w->since_ns to the time of the first call.
 */
int kvc_throttle_store_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w);
/* Measures the rate of copies. The evictor calls it regularly. */
void kvc_throttle_measure_locked(struct kvc *k);
/*
 * Called by a hook when n was published: queues copies of n or, with write=back, of the oldest
 * objects while too many bytes of the pool have no copy.
 */
void kvc_throttle_published_locked(struct kvc *k, struct kvc_node *n);

#endif
