/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds a leaf that is close to the least recently used one, without an ordered list of all leaves:
 * the oldest of the leaves that were drawn at random are remembered for later victims, so that
 * after a short time the remembered leaves are among the oldest of all. Leaves that were accessed
 * again or are not leaves any more are skipped when they are taken.
 */
#ifndef KVC_OLDEST_H
#define KVC_OLDEST_H

#include "chain.h"

#define KVC_OLDEST 64

struct kvc_old {
	uint32_t slot, last;
};

struct kvc_oldest {
	unsigned n;
	struct kvc_old v[KVC_OLDEST]; /* the oldest last */
};

/* Offers a leaf that was drawn at random. */
void kvc_oldest_offer(struct kvc_oldest *o, const struct kvc_chain *c, uint32_t slot);
/*
 * Removes the oldest remembered leaf and returns its slot, or KVC_NO_SLOT if none is left. A caller
 * that does not evict it offers it again.
 */
uint32_t kvc_oldest_take(struct kvc_oldest *o, const struct kvc_chain *c);

#endif
