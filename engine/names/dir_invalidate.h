/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropping chunks whole (chunk_drop.c), and what remains of their folders for a moment
 * (dir_invalidate.c). The tables are under k->lock.
 */
#ifndef KVC_DIR_INVALIDATE_H
#define KVC_DIR_INVALIDATE_H

#include "read_ahead.h"
#include "node.h"

#define KVC_DIR_DROPPED 256
#define KVC_DIR_PROBES 4096
#define KVC_DIR_FORGOTTEN 4096
#define KVC_DROP_KEY "dropping:" /* + a chunk: the mark of its drop, in meta */

struct kvc_drops {
	/* dropped folders that the kernel still holds, by parent and name */
	struct kvc_list dropped[KVC_DIR_DROPPED];
	struct kvc_list probes[KVC_DIR_PROBES]; /* folders that are about to go, by number */
	/* when the kernel let go of a folder whose number, modulo, is this: the last of them */
	uint64_t forgotten_ns[KVC_DIR_FORGOTTEN];
	struct kvc_list detached; /* chunks that are dropped and not buried yet */
	unsigned ndetached;
	unsigned most; /* files that a drop has worked on under one hold, at the most */
};

/* ---- chunk_drop.c ---- */

/*
 * Drops a chunk whole: all its files, wherever they are; copies in shared tiers are left to the
 * others. With a tier only that tier's copies go, where all is elsewhere too; KVC_DROP_FOR_POOL is
 * for the evictor: a pin beyond what may be pinned of the pool does not hold. `seen`: the row by
 * which it was chosen, or NULL. 0, -EAGAIN (its folder was knocked or looked at: come back
 * in a moment), -EBUSY (in use, pinned, or used a moment ago), -ESTALE (used since `seen`), -ENOENT
 * (empty), or another. With 0 and -EAGAIN *bytes is what goes: of the tier, or what the files take.
 * May be NULL.
 */
#define KVC_DROP_WHOLE (-1)
#define KVC_DROP_FOR_POOL (-2)
int kvc_chunk_drop(struct kvc *k, uint64_t id, int tier, const struct kvc_chunk_row *seen,
		   uint64_t *bytes);
/*
 * A tier's copies of a chunk go, also from a shared tier. -ENODATA: some file has no copy but
 * there, and all stays; others as above, where no pin is beyond its bound.
 */
int kvc_chunk_drop_tier(struct kvc *k, uint64_t id, unsigned tier);
/*
 * A call is about to change names in this folder: if the folder's chunk is being dropped, the rest
 * of the chunk is dropped first. Gives the locks back in between, so call it before anything was
 * looked at. 0 or why that is not possible.
 */
int kvc_chunk_drop_finish_both(struct kvc *k, struct kvc_node *folder);
/* The folder's chunk is dropped, and not all of its files are gone yet. */
bool kvc_chunk_drop_is_detached(const struct kvc_node *folder);
/* Goes on with what an error had kept from its end. Without locks. */
void kvc_chunk_drop_resume(struct kvc *k);
/* At the end. */
void kvc_chunk_drop_free(struct kvc *k);

/* ---- chunk_drop_recover.c ---- */

/*
 * At the start, before anything is taken over: ends the drops that a killed daemon had begun. *any:
 * there were some. 0, or an error of the catalog.
 */
int kvc_chunk_drop_recover_both(struct kvc *k, bool *any);

/* ---- dir_invalidate.c ---- */

/*
 * Takes every name off a file and destroys it; the kernel is told. With an error it is as it was.
 * `a` (or NULL) has its names and their folders, read before.
 */
int kvc_dir_drop_file_both(struct kvc *k, struct kvc_node *n, struct kvc_read_ahead *a);
/*
 * The same for a file with many names, of which it takes the next few: *at is zero before the first
 * call. 1: call again, others may be let in before; 0: the file is destroyed; or an error, and the
 * call can be repeated. The file's chunk is cut, so that nobody sees the names that are left.
 */
int kvc_dir_drop_linked_both(struct kvc *k, struct kvc_node *n, struct kvc_name_at *at,
			     struct kvc_read_ahead *a);
/*
 * A call is about to make, change or remove this name: if it is still a name of a file whose chunk
 * is being dropped, it is removed, as nobody sees it any more. 0, -ENOMEM or -EIO.
 */
int kvc_dir_drop_name_both(struct kvc *k, uint64_t parent, const char *name);
/*
 * The same for all names in a folder that has no others: the caller is about to remove it. Gives
 * the locks back in between, and settles the folder's node.
 */
int kvc_dir_drop_names_in_both(struct kvc *k, struct kvc_node *folder);
/* A folder that is one chunk and empty goes, with its names. */
void kvc_dir_drop_folder_both(struct kvc *k, struct kvc_node *folder);
/* Its names go, and it with them; with an error none has. */
int kvc_dir_unname_both(struct kvc *k, struct kvc_node *folder);
/*
 * May the folder go, whose chunk was last used then? 0; -EAGAIN: not before a moment; 1: it is to
 * be knocked at (files first, folder last); or -ENOMEM.
 */
int kvc_dir_may_drop_locked(struct kvc *k, struct kvc_node *folder, uint64_t last_ns);
void kvc_dir_probe_file_locked(struct kvc *k, const struct kvc_node *n);
/* `tier` and `bytes` are what is answered until it may go. -EAGAIN, or -ENOMEM. */
int kvc_dir_probe_locked(struct kvc *k, uint64_t folder, uint64_t last_ns, int tier,
			 uint64_t bytes);
/* Was it knocked at, for this tier, and may not go yet? Then *bytes is what would. */
bool kvc_dir_probed_locked(struct kvc *k, uint64_t folder, uint64_t last_ns, int tier,
			   uint64_t *bytes);
/* Somebody looks at a folder: it is not dropped in the next moment. */
void kvc_dir_looked_up_locked(struct kvc *k, uint64_t folder);
/* The kernel lets go of a folder that somebody may have found a moment before. */
void kvc_dir_forgotten_locked(struct kvc *k, uint64_t folder);
/*
 * Forgets folders that were about to go so long ago, and gives the lock back in between; with 0 all
 * of them, at the end, when no lock is needed.
 */
void kvc_dir_probes_free_locked(struct kvc *k, uint64_t older_ns);
/* The folder that was dropped under this name and can come back, or NULL. */
struct kvc_node *kvc_dir_dropped_find_locked(struct kvc *k, uint64_t parent, const char *name);
/*
 * Somebody makes a file in a folder that was dropped: it comes back, or *folder becomes the one
 * that took its place.
 */
int kvc_dir_dropped_revive_both(struct kvc *k, struct kvc_node **folder);
void kvc_dir_dropped_free_locked(struct kvc_node *folder);

#endif
