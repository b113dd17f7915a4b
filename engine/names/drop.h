/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropping chunks whole, and what remains of their folders for a moment (drop.c). The tables are
 * under k->lock.
 */
#ifndef KVC_DROP_H
#define KVC_DROP_H

#include "node.h"

#define KVC_GHOSTS 256

struct kvc_drops {
	/* dropped folders that the kernel still holds, by parent and name */
	struct kvc_list ghosts[KVC_GHOSTS];
	struct kvc_list knocks[KVC_GHOSTS]; /* folders that are about to go, by number */
};

/*
 * Drops a chunk whole: all its files, wherever they are; copies in shared tiers are left to the
 * others. With a tier (not -1) only that tier's copies go, where all is elsewhere too. `seen`: the
 * row by which it was chosen, or NULL. 0, -EAGAIN (its folder was knocked or looked at: come back
 * in a moment), -EBUSY (in use, pinned, or used a moment ago), -ESTALE (used since `seen`), -ENOENT
 * (empty), or another. With 0 and -EAGAIN *bytes is what goes: of the tier, or what the files take.
 * May be NULL.
 */
int kvc_chunk_drop(struct kvc *k, uint64_t id, int tier, const struct kvc_chunk_row *seen,
		   uint64_t *bytes);
/* Takes every name off a file and destroys it; the kernel is told. */
int kvc_drop_file_both(struct kvc *k, struct kvc_node *n);
/* A folder that is one chunk and empty goes, with its names. */
void kvc_drop_folder_both(struct kvc *k, struct kvc_node *folder);
/* Somebody looks at a folder: it is not dropped in the next moment. */
void kvc_looked_locked(struct kvc *k, uint64_t folder);
/* Forgets folders that were about to go so long ago. */
void kvc_knocks_free_locked(struct kvc *k, uint64_t older_ns);
/* The folder that was dropped under this name and can come back, or NULL. */
struct kvc_node *kvc_ghost_find_locked(struct kvc *k, uint64_t parent, const char *name);
/*
 * Somebody makes a file in a folder that was dropped: it comes back, or *folder becomes the one
 * that took its place.
 */
int kvc_ghost_revive_both(struct kvc *k, struct kvc_node **folder);
void kvc_ghost_free_locked(struct kvc_node *folder);

#endif
