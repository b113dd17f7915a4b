/* SPDX-License-Identifier: Apache-2.0 */
/* Spills: who is copied, when, and what becomes of it (spill.c). */
#ifndef KVC_SPILL_H
#define KVC_SPILL_H

#include "node.h"
#include "tier_queue.h"

/* Queues copies of a published object for every tier that lacks one. */
void kvc_spill_queue_locked(struct kvc *k, struct kvc_node *n, bool urgent);
/* The same at once, also of what waits since it failed, or was given up before. */
void kvc_spill_now_locked(struct kvc *k, struct kvc_node *n);
bool kvc_spill_needed(const struct kvc *k, const struct kvc_node *n, unsigned tier);
/*
 * Does an fsync bring this file (NULL: any) to this tier? In a shared one it would need its name.
 */
static inline bool kvc_snapshot_takes(const struct kvc *k, const struct kvc_node *n, unsigned tier)
{
	unsigned caps = k->tier[tier].t->ops->caps;

	return kvc_tier_keeps_locked(k, tier) && !(n && n->unnamed && (caps & KVC_TIER_SHARED));
}

#endif
