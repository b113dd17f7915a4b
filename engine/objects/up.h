/* SPDX-License-Identifier: Apache-2.0 */
/* What this floor asks of those above. Set once, before the first node is there (calls/cache.c). */
#ifndef KVC_OBJECTS_UP_H
#define KVC_OBJECTS_UP_H

struct kvc;
struct kvc_node;

struct kvc_objects_up {
	/*
	 * The last writer has gone: it is RESIDENT or BOTH now. Copies are to be made
	 * (copies/pace.c).
	 */
	void (*published_locked)(struct kvc *k, struct kvc_node *n);
	/* It leaves memory: what hangs on it goes too (names/drop.c: n->ghost). */
	void (*freed_locked)(struct kvc_node *n);
};

#endif
