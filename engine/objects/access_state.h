/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The accesses that the chunks' rows lack, compactly, for the next mount after a kill
 * (access_state.c): a part of the file in which policies save their state (replacer_save.c).
 */
#ifndef KVC_ACCESS_STATE_H
#define KVC_ACCESS_STATE_H

#include "chunk.h"
#include "state.h"

#define KVC_ACCESS_STATE_MOST 262144u /* chunks, 48 bytes of the file each */

/*
 * Appends the accesses that are newer than their rows to *o. Without locks: it takes k->lock for
 * some hundred chunks at a time. -ENOMEM: *o has no more than before.
 */
int kvc_access_state_save(struct kvc *k, struct kvc_out *o);
/*
 * Takes such a part over: v is the caller's. Chunks that come into memory after this have these
 * accesses if they are newer than those of the row. -EINVAL: damaged, -ENOMEM.
 */
int kvc_access_state_load(struct kvc *k, const void *v, size_t len);
/* The chunk was made from its row. True: its accesses are newer now, and are to be stored. */
bool kvc_access_state_meet_locked(struct kvc *k, struct kvc_chunk *c);
/* Frees what was loaded. Takes no lock: the caller holds k->lock or runs alone. */
void kvc_access_state_forget(struct kvc *k);

#endif
