/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which files form a chunk, inferred from how they arrive (chunking.c). Functions that return int
 * return 0 or the catalog's error unless a comment says otherwise.
 */
#ifndef KVC_CHUNKING_H
#define KVC_CHUNKING_H

#include "node.h"

enum kvc_unit { KVC_UNIT_NONE = -1, KVC_UNIT_DIR, KVC_UNIT_FILE };

struct kvc_chunking {
	/*
	 * folders that one thread made in a row, and trees of such folders; NULL before the first
	 */
	struct kvc_run *runs;
	struct kvc_tree *trees;
};

#define KVC_UNIT_ATTR "user.kvcachefs.unit"
#define KVC_UNIT_FILES 1024u /* a folder with more files is not a chunk */
/*
 * Is this folder one chunk, which is dropped together with its name? Returns 1, 0, or the catalog's
 * error.
 */
int kvc_chunking_whole_both(struct kvc *k, struct kvc_node *folder);
/* Does the folder have files that count for its unit? */
bool kvc_chunking_filled_both(struct kvc *k, struct kvc_node *folder);
/*
 * Chooses the chunk of file n, which gets this name in the folder; n is NULL for a file of a shared
 * tier. here: a client makes it on this node. *chunk is the folder, or a file whose companion n is,
 * or 0 if n becomes a chunk by itself. Call kvc_buckets_filled_both before it.
 */
int kvc_chunking_join_both(struct kvc *k, struct kvc_node *folder, struct kvc_node *n,
			   const char *name, bool here, uint64_t *chunk);
/* Reads the rows that kvc_chunking_join_both needs, so that it cannot fail under the same hold. */
int kvc_chunking_known_both(struct kvc *k, struct kvc_node *folder);
/*
 * Call it before the chunk of file n ends, if n is a chunk by itself: its companion becomes a chunk
 * of its own. After an error the companion is still in the chunk, which then has to stay.
 */
int kvc_chunking_part_both(struct kvc *k, struct kvc_node *n);
/*
 * Reports that n could not change its chunk, and has the files of `folder` regrouped in the
 * background (NULL: the folder is not known, and nothing is done).
 */
void kvc_chunking_keeps_locked(struct kvc *k, const struct kvc_node *n, struct kvc_node *folder);
/* Initializes the node of a new folder. */
void kvc_chunking_made_locked(struct kvc_node *folder);
/* A file of the folder got this name by a rename, which may show that it is a container. */
void kvc_chunking_named_both(struct kvc *k, struct kvc_node *folder, const char *name);
/* A folder was made in parent or moved into it. */
void kvc_chunking_folder_arrived_both(struct kvc *k, struct kvc_node *parent);
/* The folder is not a chunk, and never becomes one. */
void kvc_chunking_make_container_locked(struct kvc *k, struct kvc_node *folder);
/*
 * Moves the files in and below the folder to the chunks that they should be in, in the background.
 */
void kvc_chunking_regroup_locked(struct kvc *k, struct kvc_node *folder);
/*
 * The unit attribute of the folder itself: get returns enum kvc_unit or the catalog's error, text
 * names a unit, set stores it (NULL: removes it) and returns -EINVAL for an unknown text.
 */
int kvc_chunking_get_both(struct kvc *k, struct kvc_node *folder);
const char *kvc_chunking_text(int unit);
int kvc_chunking_set_both(struct kvc *k, struct kvc_node *folder, const char *text);

#endif
