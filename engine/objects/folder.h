/* SPDX-License-Identifier: Apache-2.0 */
/* Names in the catalog: the names in a folder, and the names of a node. Under both locks. */
#ifndef KVC_FOLDER_H
#define KVC_FOLDER_H

#include "node.h"

struct kvc_entry {
	uint64_t parent, ino;
	uint32_t kind;
	char name[256];
};
/* Zeroed by the caller before the first use. The caller frees v, also after an error. */
struct kvc_entries {
	struct kvc_entry *v;
	size_t n, capacity;
};
/*
 * Copies the names in a folder, or the names of a node, so that the catalog may change while the
 * caller walks them. Return 0 or a negative errno.
 */
int kvc_folder_entries_in_both(struct kvc *k, uint64_t folder, struct kvc_entries *e);
int kvc_folder_entries_of_both(struct kvc *k, uint64_t ino, struct kvc_entries *e);
/* The same with the names that were read without locks (kvc_peek_names). */
int kvc_folder_entries_of_peeked_both(struct kvc *k, const struct kvc_peek_names *p,
				      struct kvc_entries *e);
/*
 * Reads the next names in a folder, for walks that release the locks in between. *after is 0 at
 * first. Returns 1 if more names follow, 0 if these were the last, or a negative errno.
 */
int kvc_folder_entries_some_both(struct kvc *k, uint64_t folder, uint64_t *after,
				 struct kvc_entries *e);
/* Reads the next names of a node that loses all of them: see kvc_name_of_some. */
int kvc_folder_entries_of_some_both(struct kvc *k, uint64_t ino, struct kvc_name_at *at,
				    struct kvc_entries *e);
/* Returns 1 if the folder has no names, 0 if it has some, or a negative errno. */
int kvc_folder_empty_both(struct kvc *k, uint64_t folder);
/*
 * Called after a name was added to a folder or removed: updates its times, and adds nlink to its
 * link count.
 */
void kvc_folder_touch_locked(struct kvc *k, struct kvc_node *folder, int nlink);
/*
 * Stores the number of published files in the folder, which decides whether the chunk is complete.
 * The count stopped at `of` files. Valid until a name in the folder changes.
 */
void kvc_folder_counted_locked(struct kvc_node *folder, unsigned published, unsigned of);
/* Forgets that number. */
void kvc_folder_uncounted_locked(struct kvc_node *folder);
/* Adds the bytes of a file that was published or imported to its folder's content.bytes. */
void kvc_folder_grew_locked(struct kvc *k, const struct kvc_node *n, uint64_t bytes);

#endif
