/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accesses that are newer than the chunks' rows, in compact form (access_state.c). They are one
 * section of the file in which policies save their state (access/replacer_save.c), and let a mount
 * after a kill restore the order of eviction.
 */
#ifndef KVC_ACCESS_STATE_H
#define KVC_ACCESS_STATE_H

#include "chunk.h"
#include "state.h"

#define KVC_ACCESS_STATE_MOST 262144u /* chunks; each takes 48 bytes of the file */

/*
 * Appends the accesses that are newer than their rows to *o. Called without locks: takes k->lock
 * for a few hundred chunks at a time. Returns 0, or -ENOMEM; then *o is as before.
 */
int kvc_access_state_save(struct kvc *k, struct kvc_out *o);
/*
 * Loads a section that kvc_access_state_save wrote. The caller keeps v. From then on, a chunk that
 * is read from its row gets the loaded access if that is newer than the row's. Returns 0, -EINVAL
 * (the section is damaged) or -ENOMEM.
 */
int kvc_access_state_load(struct kvc *k, const void *v, size_t len);
/*
 * Called when a chunk was created in memory from its row. Returns true if a newer access was loaded
 * for it and has been applied; the caller marks the chunk dirty.
 */
bool kvc_access_state_apply_locked(struct kvc *k, struct kvc_chunk *c);
/* Frees the loaded accesses. Takes no lock: the caller holds k->lock or is the only thread. */
void kvc_access_state_free(struct kvc *k);

#endif
