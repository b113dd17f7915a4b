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
/*
 * again.c: a call ended with *err. Where that is KVC_OVER (hold.h), what its user holds and does
 * not need is looked for, once; true: make the call again. False, and *err is what it ends with.
 * Without locks.
 */
bool kvc_hold_again(struct kvc *k, struct kvc_wait *w, int *err);
/* The same without a call: where he holds much. */
void kvc_hold_look(struct kvc *k, uint32_t uid);
/* recover.c: takes over what an earlier daemon left. */
int kvc_recover(struct kvc *k, char *error);
/* sweep.c: after k->stopping was set. */
void kvc_sweep_stop(struct kvc *k);

#endif
