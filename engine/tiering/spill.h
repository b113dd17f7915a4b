/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spills: chooses the objects and the times of copies, and records the results (spill.c). The
 * caller holds k->lock.
 */
#ifndef KVC_SPILL_H
#define KVC_SPILL_H

#include "node.h"
#include "tier_queue.h"

/*
 * Queues a copy of a published object to each tier that needs one. urgent: at once, before copies
 * that wait for settle=. Admission may refuse the disk tier.
 */
void kvc_spill_queue_locked(struct kvc *k, struct kvc_node *n, bool urgent);
/*
 * The same, urgently, and also for copies that wait after a failure or were given up.
 */
void kvc_spill_now_locked(struct kvc *k, struct kvc_node *n);
/*
 * Requests new copies to replace those that may have been lost by a failed sync: copies in the
 * state KVC_TIER_UNKNOWN, in the state `least`, or in a worse state. Returns true if there are any;
 * kvc_spill_queue_locked then queues them. For files in the state RESIDENT or BOTH.
 */
bool kvc_spill_lost_locked(struct kvc *k, struct kvc_node *n, enum kvc_tier_synced least);
/* Does the tier take copies, and lack one of the object, or have one that must be made again? */
bool kvc_spill_needed(const struct kvc *k, const struct kvc_node *n, unsigned tier);
/*
 * Does an fsync of this file (NULL: of any file) store it in this tier? A shared tier needs the
 * file to have a name.
 */
static inline bool kvc_spill_takes_snapshot(const struct kvc *k, const struct kvc_node *n,
					    unsigned tier)
{
	unsigned caps = k->tier[tier].t->ops->caps;

	return kvc_tier_is_durable_locked(k, tier) &&
	       !(n && n->unnamed && (caps & KVC_TIER_SHARED));
}

#endif
