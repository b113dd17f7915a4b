/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of folders in shared tiers (folders.c). */
#ifndef KVC_FOLDERS_H
#define KVC_FOLDERS_H

#include "node.h"

#define KVC_FOLDERS 4096

struct kvc_folders {
	/*
	 * Numbers of the folders whose frames this store has put into each tier, indexed by number
	 * modulo KVC_FOLDERS. Guarded by k->lock.
	 */
	uint64_t put[KVC_TIERS][KVC_FOLDERS];
};

/*
 * Stores frames for the folders above the file n in a shared tier, so that other nodes can look up
 * its path. Returns 0, -ENAMETOOLONG if a path is too long for a frame, or another negative errno.
 * The caller holds no locks and a reference to n. Blocks on the tier.
 */
int kvc_folders_share(struct kvc *k, struct kvc_node *n, unsigned tier);

#endif
