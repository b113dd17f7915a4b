/* SPDX-License-Identifier: Apache-2.0 */
/* The identity of this store in shared tiers (identity.c). */
#ifndef KVC_IDENTITY_H
#define KVC_IDENTITY_H

#include "kvc.h"

/*
 * Runs once at mount, before the first put. Sets k->shared_id if there is a shared tier. A copy of
 * a store gets a new identity, and one line in the log says so. Returns 0, or -errno if the catalog
 * or the superblock cannot be read or written. The caller holds both locks.
 */
int kvc_identity_start_both(struct kvc *k);

#endif
