/* SPDX-License-Identifier: Apache-2.0 */
/* Folders as the catalog has them: the names in one, the names of a node. Both locks. */
#ifndef KVC_FOLDER_H
#define KVC_FOLDER_H

#include "node.h"

struct kvc_entry {
	uint64_t parent, ino;
	uint32_t kind;
	char name[256];
};
struct kvc_entries { /* zero before the first use; the caller frees v, also after an error */
	struct kvc_entry *v;
	size_t n, capacity;
};
/*
 * Copies out the names in a folder, or the names of a node, so that the catalog can be changed
 * while walking them.
 */
int kvc_folder_entries_in_both(struct kvc *k, uint64_t folder, struct kvc_entries *e);
int kvc_folder_entries_of_both(struct kvc *k, uint64_t ino, struct kvc_entries *e);
/* The same with names that were read before (kvc_peek_names). */
int kvc_folder_entries_of_peeked_both(struct kvc *k, const struct kvc_peek_names *p,
				      struct kvc_entries *e);
/*
 * The next some in a folder, for a walk that lets others in between: *after is 0 at first. 1: there
 * are more; 0: these were the last; or a negative errno.
 */
int kvc_folder_entries_some_both(struct kvc *k, uint64_t folder, uint64_t *after,
				 struct kvc_entries *e);
/* The next some names of a node that loses all of them: see kvc_name_of_some. */
int kvc_folder_entries_of_some_both(struct kvc *k, uint64_t ino, struct kvc_name_at *at,
				    struct kvc_entries *e);
/* 1: no name is in the folder; 0: some are; or a negative errno. */
int kvc_folder_empty_both(struct kvc *k, uint64_t folder);
/* A folder's names changed: its times, and its link count by `nlink`. */
void kvc_touch_folder_locked(struct kvc *k, struct kvc_node *folder, int nlink);
/* A file was published, or taken in, with so many bytes more: its folder is filled with them. */
void kvc_folder_grew_locked(struct kvc *k, const struct kvc_node *n, uint64_t bytes);

#endif
