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
 * Completes the frame of a folder, which has its inode number and its name part. Returns 0, -ENOKEY
 * if the folder's model has no key, or -EIO. Needs no lock.
 */
int kvc_folders_frame(const struct kvc *k, struct kvc_frame *f);
/*
 * Stores frames for the folders above the file n in a shared tier, so that other nodes can look up
 * its path. Returns 0, -ENAMETOOLONG if a path is too long for a frame, or another negative errno.
 * The caller holds no locks and a reference to n. Blocks on the tier.
 */
int kvc_folders_share(struct kvc *k, struct kvc_node *n, unsigned tier);

#endif
