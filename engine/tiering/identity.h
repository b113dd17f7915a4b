/* SPDX-License-Identifier: Apache-2.0 */
/* Who the store is in shared tiers (identity.c). */
#ifndef KVC_IDENTITY_H
#define KVC_IDENTITY_H

#include "kvc.h"

/*
 * At the start, before anything is put: sets k->shared_id where there is a shared tier. A store
 * that was copied gets another one than the first has, said in one line. 0 or -errno: the catalog,
 * or the superblock, cannot be read or written.
 */
int kvc_identity_start_both(struct kvc *k);

#endif
