/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that one call looks up in the shared tiers together (remote_batch.c). The functions enter
 * with the locks that their names say; the other ones take the locks themselves.
 */
#ifndef KVC_REMOTE_BATCH_H
#define KVC_REMOTE_BATCH_H

#include "caller.h"

#define KVC_REMOTE_BATCH 512u /* names in a batch */

struct kvc;
struct kvc_remote_batch;

/*
 * Returns an empty batch for calls of this user, or NULL. again: names that no tier had a moment
 * ago are looked up, too.
 */
struct kvc_remote_batch *kvc_remote_batch_new(uint32_t uid, bool again);
/* Ends the batch; lookups that have not started are cancelled. NULL is allowed. */
void kvc_remote_batch_free(struct kvc *k, struct kvc_remote_batch *b);
/*
 * Adds a name that is not in the catalog, before the first kvc_remote_batch_run. Returns 0; 0 also
 * if the batch has the name already, or if no tier may be asked for it; -ENOSPC if the batch is
 * full; or an error of the catalog.
 */
int kvc_remote_batch_add_both(struct kvc *k, struct kvc_remote_batch *b, uint64_t parent,
			      const char *name);
/* Has the batch no name? */
bool kvc_remote_batch_empty(const struct kvc_remote_batch *b);
/*
 * Looks the names up. Returns KVC_WAIT if the call is parked: call this function again. Returns 0
 * when all lookups have ended, when the call may not wait, or when its deadline has passed, which
 * is that of a lookup of one name if w->deadline_ns was 0. Found names are then in the catalog.
 * -ESHUTDOWN: the mount ends.
 */
int kvc_remote_batch_run(struct kvc *k, struct kvc_remote_batch *b, struct kvc_wait *w);

#endif
