/* SPDX-License-Identifier: Apache-2.0 */
/* What this floor asks of those above. Set once, before the first node is there (mount/cache.c). */
#ifndef KVC_OBJECTS_UP_H
#define KVC_OBJECTS_UP_H

struct kvc;
struct kvc_job;
struct kvc_node;

struct kvc_objects_up {
	/*
	 * The last writer has gone: it is RESIDENT or BOTH now. Copies are to be made
	 * (tiering/throttle.c).
	 */
	void (*published_locked)(struct kvc *k, struct kvc_node *n);
	/* The file is about to be published, or joined another chunk (access/admission.c). */
	void (*made_locked)(struct kvc *k, struct kvc_node *n);
	/* It leaves memory: what hangs on it goes too (names/dir_invalidate.c: n->ghost). */
	void (*freed_locked)(struct kvc_node *n);
	/*
	 * Trash that lay in a shared tier, on its way out: it is removed, unless it is needed
	 * again (tiering/remove.c). Without locks.
	 */
	int (*remove_shared)(struct kvc *k, const struct kvc_job *j);
};

#endif
