/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of folders in shared tiers (folders.c). The table is under k->lock. */
#ifndef KVC_FOLDERS_H
#define KVC_FOLDERS_H

#include "node.h"

#define KVC_FOLDERS 4096

struct kvc_folders {
	/* folders whose frames a tier has from us, by number */
	uint64_t put[KVC_TIERS][KVC_FOLDERS];
};

/* Puts frames for the folders above a file, so that other nodes find their way. Without locks. */
int kvc_folders_share(struct kvc *k, struct kvc_node *n, unsigned tier);

#endif
