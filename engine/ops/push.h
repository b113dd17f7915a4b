/* SPDX-License-Identifier: Apache-2.0 */
/* Offers to another node (user.kvcachefs.push). Everything is under k->lock. See push.c. */
#ifndef KVC_PUSH_H
#define KVC_PUSH_H

#include "node.h"

struct kvc_asker;

struct kvc_pushes {
	struct kvc_list all; /* offers that wait or run, the oldest first */
	unsigned running;
};

void kvc_push_init(struct kvc_pushes *p);
/* After the last thread of a tier has ended, and before kvc_remote_lookup_fini. */
void kvc_push_fini(struct kvc_pushes *p);
/*
 * Offers the file, or all files of the folder, to a node of the peers:// remote, and parks the call
 * until the node has answered: 0 if it has all of them or loads them, -ENODATA if it does not take
 * some, -EKEYREJECTED if it refuses this node, or another error of tier.h's `offer`. Returns
 * KVC_WAIT; -EBUSY: too many offers wait; -ETXTBSY: a file is being written; -ENXIO: the mount has
 * no peers:// remote; -ENODATA: the folder has no files; -E2BIG: too many; or another error.
 * Releases and retakes the locks.
 */
int kvc_push_both(struct kvc *k, struct kvc_node *n, const char *node, struct kvc_wait *w);
/*
 * The same for a list: the node's name, and paths below the folder, each after a newline. Files
 * that do not exist are left out. user: who must be allowed to read the files; NULL: root. -EINVAL:
 * n is not a folder, or a path is not that of a file.
 */
int kvc_push_list_both(struct kvc *k, struct kvc_node *n, const char *list,
		       const struct kvc_asker *user, struct kvc_wait *w);

#endif
