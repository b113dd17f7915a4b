/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropping whole chunks (chunk_drop.c), and the folders of dropped chunks that the kernel may still
 * know (dir_invalidate.c). k->lock guards the tables.
 */
#ifndef KVC_DIR_INVALIDATE_H
#define KVC_DIR_INVALIDATE_H

#include "read_ahead.h"
#include "node.h"

#define KVC_DIR_DROPPED 256
#define KVC_DIR_PROBES 4096
#define KVC_DIR_FORGOTTEN 4096
/* prefix of the key in meta that marks a drop; the chunk's number follows */
#define KVC_DROP_KEY "dropping:"

struct kvc_drops {
	/* dropped folders that the kernel still references, by parent and name */
	struct kvc_list dropped[KVC_DIR_DROPPED];
	/* folders that are to be dropped, by inode number */
	struct kvc_list probes[KVC_DIR_PROBES];
	/* the last time at which the kernel forgot a folder with this number, modulo the size */
	uint64_t forgotten_ns[KVC_DIR_FORGOTTEN];
	struct kvc_list detached; /* chunks that are detached and not yet removed */
	unsigned ndetached;
	/*
	 * Set while the names of a chunk are removed under one hold: the removed names of the node
	 * `noted` (NULL: of all nodes) are recorded as dropped (telemetry/gone.h). The reason is
	 * enum kvc_reason + 1; 0: no names are recorded.
	 */
	const struct kvc_node *noted;
	unsigned noted_why;
	unsigned most; /* most files that a drop has processed under one hold of the locks */
};

/* ---- chunk_drop.c ---- */

/*
 * Drops a whole chunk: all its files and their copies, except copies in shared tiers, which other
 * nodes may use. `why` is the reason by which requests for its name are counted later. With a tier
 * number it only removes the copies in that tier if every file has another copy; otherwise it drops
 * the chunk. KVC_DROP_FOR_POOL is for the evictor: pins beyond the limit of pinned bytes in the
 * pool do not count. `seen` is the row by which the victim was chosen, or NULL. If the result is 0
 * or -EAGAIN, *bytes (unless bytes is NULL) is the bytes of the copies in the tier, or of the
 * files.
 *
 * Returns -EAGAIN if the folder is being probed or was looked up just now (try again in a moment),
 * -EBUSY if the chunk is open, leased, pinned or was accessed a moment ago, -ESTALE if it was
 * accessed after `seen` was read, -ENOENT if it is empty, or another error. The caller holds no
 * lock.
 */
#define KVC_DROP_WHOLE (-1)
#define KVC_DROP_FOR_POOL (-2)
int kvc_chunk_drop(struct kvc *k, uint64_t id, int tier, enum kvc_reason why,
		   const struct kvc_chunk_row *seen, uint64_t *bytes);
/*
 * Removes the copies of a chunk in one tier, which may be a shared one. Removes none and returns
 * -ENODATA if a file has no other copy. Other errors as above, but every pin counts.
 */
int kvc_chunk_drop_tier(struct kvc *k, uint64_t id, unsigned tier);
/*
 * For a call that is about to change names in this folder: if the folder's chunk is being dropped,
 * completes the drop. Releases and retakes the locks, so the caller reads nothing before it.
 * Returns 0 or an error.
 */
int kvc_chunk_drop_finish_both(struct kvc *k, struct kvc_node *folder);
/* True if the folder's chunk is being dropped and some of its files are not removed yet. */
bool kvc_chunk_drop_is_detached(const struct kvc_node *folder);
/* Continues drops that an error has interrupted. The caller holds no lock. */
void kvc_chunk_drop_resume(struct kvc *k);
/* Frees the state of all drops at the end of a mount. */
void kvc_chunk_drop_free(struct kvc *k);

/* ---- chunk_drop_recover.c ---- */

/*
 * At the start of a mount, before any other recovery: completes drops that a killed daemon has
 * begun. *any is set if there were some. Returns 0 or the catalog's error.
 */
int kvc_chunk_drop_recover_both(struct kvc *k, bool *any);

/* ---- dir_invalidate.c ---- */

/*
 * Removes all names of a file, destroys it and notifies the kernel. After an error nothing has
 * changed. `a` holds its names and their folders, read in advance, or is NULL.
 */
int kvc_dir_drop_file_both(struct kvc *k, struct kvc_node *n, struct kvc_read_ahead *a);
/*
 * The same for a file with many names: removes the next few. *at is zero before the first call.
 * Returns 1 to be called again (the locks may be released before), 0 if the file is destroyed, or
 * an error, after which the call can be repeated. The file's chunk is detached, so the remaining
 * names are invisible.
 */
int kvc_dir_drop_linked_both(struct kvc *k, struct kvc_node *n, struct kvc_name_at *at,
			     struct kvc_read_ahead *a);
/*
 * For a call that is about to make, change or remove this name: removes it if it is a name of a
 * file whose chunk is being dropped, since that name is invisible. Returns 0, -ENOMEM or -EIO.
 */
int kvc_dir_drop_name_both(struct kvc *k, uint64_t parent, const char *name);
/*
 * The same for all names in a folder that has no others, before the caller removes it. Releases and
 * retakes the locks, and settles the folder's node.
 */
int kvc_dir_drop_names_in_both(struct kvc *k, struct kvc_node *folder);
/* Removes an empty folder that is one chunk, with its names. */
void kvc_dir_drop_folder_both(struct kvc *k, struct kvc_node *folder);
/* Removes the names of a folder and the folder. After an error nothing has changed. */
int kvc_dir_unname_both(struct kvc *k, struct kvc_node *folder);
/*
 * Says whether a folder, whose chunk was last accessed at last_ns, may be dropped: 0 if so, -EAGAIN
 * if not yet, 1 if it has to be probed first (its files, then the folder).
 */
int kvc_dir_may_drop_locked(struct kvc *k, struct kvc_node *folder, uint64_t last_ns);
/* Tells the kernel to forget a file of the folder; part of a probe. */
void kvc_dir_probe_file_locked(struct kvc *k, const struct kvc_node *n);
/*
 * Probes the folder. Until it may be dropped, kvc_dir_probed_locked returns true for this `tier`,
 * with these `bytes`. Returns -EAGAIN, or -ENOMEM.
 */
int kvc_dir_probe_locked(struct kvc *k, uint64_t folder, uint64_t last_ns, int tier,
			 uint64_t bytes);
/*
 * True if the folder was probed for this tier and must not be dropped yet. *bytes is then the value
 * given to the probe.
 */
bool kvc_dir_probed_locked(struct kvc *k, uint64_t folder, uint64_t last_ns, int tier,
			   uint64_t *bytes);
/* A client looks the folder up: it is not dropped in the next moment. */
void kvc_dir_looked_up_locked(struct kvc *k, uint64_t folder);
/* True if kvc_dir_looked_up_locked would record the lookup. A joint hold of the lock suffices. */
bool kvc_dir_is_probed(struct kvc *k, uint64_t folder);
/* The kernel forgets a folder that a client may have found a moment before. */
void kvc_dir_forgotten_locked(struct kvc *k, uint64_t folder);
/*
 * Frees probes that are older than this, and releases the lock now and then. With 0 it frees all,
 * at the end of a mount, when no lock is needed.
 */
void kvc_dir_probes_free_locked(struct kvc *k, uint64_t older_ns);
/* Finds a folder that was dropped under this name and can be revived, or NULL. */
struct kvc_node *kvc_dir_dropped_find_locked(struct kvc *k, uint64_t parent, const char *name,
					     uint64_t hash);
/*
 * A client makes a file in a dropped folder: revives the folder, or sets *folder to the folder that
 * has replaced it.
 */
int kvc_dir_dropped_revive_both(struct kvc *k, struct kvc_node **folder);
/* Frees the record by which a dropped folder can be revived. The node may have none. */
void kvc_dir_dropped_free_locked(struct kvc_node *folder);

#endif
