/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this floor have of each other beyond cache.h. */
#ifndef KVC_CALLS_H
#define KVC_CALLS_H

#include "cache.h"
#include "node.h"

/*
 * name.c: a folder by its number: -ENOENT where it is gone, -ENOTDIR. With anew, where something is
 * to be made in it, a dropped one comes back.
 */
int kvc_folder_both(struct kvc *k, uint64_t ino, bool anew, struct kvc_node **folder);
/* recover.c: takes over what an earlier daemon left. */
int kvc_recover(struct kvc *k, char *error);
/* sweep.c: after k->stopping was set. */
void kvc_sweep_stop(struct kvc *k);

#endif
