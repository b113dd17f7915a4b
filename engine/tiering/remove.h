/* SPDX-License-Identifier: Apache-2.0 */
/* Frames that leave a shared tier (remove.c). */
#ifndef KVC_REMOVE_H
#define KVC_REMOVE_H

#include "catalog.h"

struct kvc;
struct kvc_job;

/* Removes what the job names, if it still is that, and not needed. Without locks. */
int kvc_remove_shared(struct kvc *k, const struct kvc_job *j);
/* This copy of the inode is to go from the tier, if not now, then after the next start. */
int kvc_remove_note_both(struct kvc *k, unsigned tier, uint64_t ino, const struct kvc_place *p);
/* 0; -EEXIST: something of this tier is noted, and has not gone; or why that cannot be read. */
int kvc_remove_waits_both(struct kvc *k, unsigned tier);
/* At the start: takes up what is noted. 0, or why the catalog cannot be read. */
int kvc_remove_recover_both(struct kvc *k);

#endif
