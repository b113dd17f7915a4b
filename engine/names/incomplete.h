/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks with fewer files than their model's layers (incomplete.c). */
#ifndef KVC_INCOMPLETE_H
#define KVC_INCOMPLETE_H

#include "model.h"
#include "node.h"

/* Can any file be hidden in this mount? Needs no lock. */
static inline bool kvc_incomplete_on(struct kvc *k)
{
	return k->opt.partial == KVC_INCOMPLETE_MISS && kvc_model_layers_any(k);
}
/*
 * Is the folder a chunk with fewer files than its model's layers? Does not depend on partial=. An
 * error of the catalog counts as yes.
 */
bool kvc_incomplete_both(struct kvc *k, struct kvc_node *folder);
/* The same, and returns 1, 0, or the catalog's error. */
int kvc_incomplete_is_both(struct kvc *k, struct kvc_node *folder);
/*
 * Is it a name that is renamed once the file is complete? Such a file does not count, and is not
 * hidden.
 */
bool kvc_incomplete_temporary(const char *name);
/* Records that the file has this name now. */
void kvc_incomplete_named_locked(struct kvc_node *n, const char *name);
/* Is a regular file of this name in the folder hidden? */
bool kvc_incomplete_hides_both(struct kvc *k, struct kvc_node *folder, const char *name);
/* Are all names of the file hidden? */
bool kvc_incomplete_hidden_both(struct kvc *k, struct kvc_node *n);
/* Call it when a file is published. */
void kvc_incomplete_published_locked(struct kvc *k, struct kvc_node *n);
/*
 * Call the first function before a change of names in a folder, and the second after the change,
 * with the result of the first. If the folder was a complete chunk and no longer is, the kernel is
 * told that its files have disappeared.
 */
bool kvc_incomplete_was_whole_both(struct kvc *k, struct kvc_node *folder);
void kvc_incomplete_after_both(struct kvc *k, struct kvc_node *folder, bool whole);
/* A file or folder was moved into folder `to`: cached names of it may now be hidden. */
void kvc_incomplete_moved_both(struct kvc *k, struct kvc_node *n, struct kvc_node *to);
/*
 * Call both after the number of layers of a model has changed. The first invalidates the names that
 * the kernel caches for it. The second invalidates cached listings; it visits all nodes, so the
 * caller holds no lock.
 */
void kvc_incomplete_set_both(struct kvc *k, struct kvc_node *model);
void kvc_incomplete_listings(struct kvc *k);

#endif
