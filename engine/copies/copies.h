/* SPDX-License-Identifier: Apache-2.0 */
/* What this floor asks of those above. Set once, before the first node is there (calls/cache.c). */
#ifndef KVC_COPIES_H
#define KVC_COPIES_H

struct kvc;
struct kvc_node;

struct kvc_copies_up {
	/*
	 * No tier has a good copy, nor has the pool: the file goes, with its names (names/drop.c).
	 */
	int (*lost_both)(struct kvc *k, struct kvc_node *n);
};

#endif
