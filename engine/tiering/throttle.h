/* SPDX-License-Identifier: Apache-2.0 */
/* How fast the pool gets room back, and who waits for his turn (throttle.c). All under k->lock. */
#ifndef KVC_THROTTLE_H
#define KVC_THROTTLE_H

#include "node.h"

struct kvc_throttle {
	struct kvc_list waiters;
	uint64_t rate;     /* bytes a second; 0: not known yet */
	uint64_t next_ns;  /* the next turn */
	uint64_t since_ns; /* the window that the rate is measured by */
	bool busy;         /* it began with work to do */
};

/*
 * A store's turn: 0 at once, or KVC_WAIT; once for each wait. Notes in w->since_ns when its call
 * first came.
 */
int kvc_throttle_store_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w);
/* Now and then, by the evictor: how fast copies are made. */
void kvc_throttle_measure_locked(struct kvc *k);
/*
 * The floor below tells (up.h): asks for copies, of the node, or with write=back of the oldest
 * while too much has none.
 */
void kvc_throttle_published_locked(struct kvc *k, struct kvc_node *n);

#endif
