/* SPDX-License-Identifier: Apache-2.0 */
/* What is one chunk, by behaviour (chunking.c). Both locks. */
#ifndef KVC_CHUNKING_H
#define KVC_CHUNKING_H

#include "node.h"

enum kvc_unit { KVC_UNIT_NONE = -1, KVC_UNIT_DIR, KVC_UNIT_FILE };

struct kvc_chunking {
	struct kvc_run *runs; /* folders made in a row, and trees of them; NULL: none yet */
	struct kvc_tree *trees;
};

#define KVC_UNIT_ATTR "user.kvcachefs.unit"
#define KVC_UNIT_FILES 1024u /* what has more is no chunk */
/* Is this folder one chunk, that is dropped with its name? 1, 0, or the catalog's error. */
int kvc_chunking_whole_both(struct kvc *k, struct kvc_node *folder);
/* Has it files, as far as its unit is concerned? */
bool kvc_chunking_filled_both(struct kvc *k, struct kvc_node *folder);
/*
 * File n comes into the folder under this name, by a caller's doing (here) or from a shared tier (n
 * may be NULL): the chunk that it joins, the folder's number, that of a file whose companion it is,
 * or 0 for one of its own.
 */
int kvc_chunking_join_both(struct kvc *k, struct kvc_node *folder, struct kvc_node *n,
			   const char *name, bool here, uint64_t *chunk);
/* Before it comes: can that be told, under this hold? 0, or the catalog's error. */
int kvc_chunking_known_both(struct kvc *k, struct kvc_node *folder);
/*
 * The file's own chunk ends: what was its companion becomes a chunk of its own. An error: it is in
 * this one still, which has to stay.
 */
int kvc_chunking_part_both(struct kvc *k, struct kvc_node *n);
/* A file in this folder (NULL: nobody knows which) could not change its chunk: it does later. */
void kvc_chunking_keeps_locked(struct kvc *k, const struct kvc_node *n, struct kvc_node *folder);
/* A folder is new. */
void kvc_chunking_made_locked(struct kvc_node *folder);
/* A folder was moved into parent; thread pid made one there. */
void kvc_chunking_folder_arrived_both(struct kvc *k, struct kvc_node *parent);
void kvc_chunking_folder_made_both(struct kvc *k, struct kvc_node *parent, struct kvc_node *folder,
				   const char *name, uint32_t pid);
/*
 * Gives the files in and below the folder the chunks that they should have now, in the background.
 */
void kvc_chunking_regroup_locked(struct kvc *k, struct kvc_node *folder);
/*
 * What is set on the folder itself: enum kvc_unit, or the catalog's error; its text; and to set it,
 * or take it away (NULL).
 */
int kvc_chunking_get_both(struct kvc *k, struct kvc_node *folder);
const char *kvc_chunking_text(int unit);
int kvc_chunking_set_both(struct kvc *k, struct kvc_node *folder, const char *text);

#endif
