/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks into the layers above. Set once, before the first node exists (mount/context.c). */
#ifndef KVC_OBJECTS_UP_H
#define KVC_OBJECTS_UP_H

struct kvc;
struct kvc_job;
struct kvc_node;

struct kvc_objects_up {
	/*
	 * The last writer closed the file; it is RESIDENT or BOTH. Requests copies
	 * (tiering/throttle.c).
	 */
	void (*published_locked)(struct kvc *k, struct kvc_node *n);
	/* The file is about to be published, or joined another chunk (access/admission.c). */
	void (*made_locked)(struct kvc *k, struct kvc_node *n);
	/* The node is freed: frees its n->dropped_dir (names/dir_invalidate.c). */
	void (*freed_locked)(struct kvc_node *n);
	/*
	 * Removes a frame from a shared tier, unless it is needed again (tiering/remove.c). Without
	 * locks.
	 */
	int (*remove_shared)(struct kvc *k, const struct kvc_job *j);
};

#endif
