/* SPDX-License-Identifier: Apache-2.0 */
/* What this floor asks of those above. Set once, before the first node is there (mount/cache.c). */
#ifndef KVC_TIERING_H
#define KVC_TIERING_H

struct kvc;
struct kvc_node;

struct kvc_tiering_up {
	/*
	 * No tier has a good copy, nor has the pool: the file goes, with its names
	 * (names/dir_invalidate.c).
	 */
	int (*lost_both)(struct kvc *k, struct kvc_node *n);
};

#endif
