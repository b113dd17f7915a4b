/* SPDX-License-Identifier: Apache-2.0 */
/* Removes frames from shared tiers (remove.c). */
#ifndef KVC_REMOVE_H
#define KVC_REMOVE_H

#include "catalog.h"

struct kvc;
struct kvc_job;

/*
 * Removes the frame that job j names, if the name still holds that frame and no file needs it.
 * Returns 0 if nothing is left to remove; 1 if the frame is needed; -EALREADY if another thread is
 * changing the name; or the tier's error. The caller holds no locks. Blocks on the tier.
 */
int kvc_remove_shared(struct kvc *k, const struct kvc_job *j);
/*
 * Notes in the catalog that copy p of inode ino must be removed from the tier, so that the next
 * mount removes it if this one does not. Returns 0 or a negative errno. The caller holds both
 * locks.
 */
int kvc_remove_note_both(struct kvc *k, unsigned tier, uint64_t ino, const struct kvc_place *p);
/*
 * Returns -EEXIST if removals from this tier are still pending, 0 if none are, or another negative
 * errno. The caller holds both locks.
 */
int kvc_remove_waits_both(struct kvc *k, unsigned tier);
/*
 * At mount: queues the removals that the catalog has noted. Returns 0 or a negative errno. The
 * caller holds both locks.
 */
int kvc_remove_recover_both(struct kvc *k);

#endif
