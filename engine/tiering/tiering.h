/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls from tiering/ to the layers above. mount/context.c sets them once, before the first node
 * exists.
 */
#ifndef KVC_TIERING_H
#define KVC_TIERING_H

struct kvc;
struct kvc_node;

struct kvc_tiering_up {
	/*
	 * Neither a tier nor the pool has a good copy: drops the file with its names
	 * (names/dir_invalidate.c).
	 */
	int (*lost_both)(struct kvc *k, struct kvc_node *n);
};

#endif
