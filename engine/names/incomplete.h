/* SPDX-License-Identifier: Apache-2.0 */
/* Whole chunks, and those that are not yet (incomplete.c). Both locks, unless said otherwise. */
#ifndef KVC_INCOMPLETE_H
#define KVC_INCOMPLETE_H

#include "model_layers.h"
#include "node.h"

/* May any file be hidden? Where not, nothing more is looked at. Needs no lock. */
static inline bool kvc_incomplete_on(struct kvc *k)
{
	return k->opt.partial == KVC_INCOMPLETE_MISS && kvc_layers_any(k);
}
/* Is the folder a chunk with fewer files than its model's layers? Whatever partial= says. */
bool kvc_incomplete_both(struct kvc *k, struct kvc_node *folder);
/* The same: 1, 0, or the catalog's error, which is yes above. */
int kvc_incomplete_is_both(struct kvc *k, struct kvc_node *folder);
/* The name is one that is renamed when the file is done: it never counts, and is never hidden. */
bool kvc_incomplete_temporary(const char *name);
/* The file has this name now. */
void kvc_incomplete_named_locked(struct kvc_node *n, const char *name);
/* Is a regular file of this name in the folder hidden? */
bool kvc_incomplete_hides_both(struct kvc *k, struct kvc_node *folder, const char *name);
/* The same of a file, by all of its names. */
bool kvc_incomplete_hidden_both(struct kvc *k, struct kvc_node *n);
/* A file was published. Under k->lock. */
void kvc_incomplete_published_locked(struct kvc *k, struct kvc_node *n);
/*
 * Around a change of names in a folder: was it a whole chunk, and is it still? If not, the kernel
 * is told that its files are not there any more.
 */
bool kvc_incomplete_was_whole_both(struct kvc *k, struct kvc_node *folder);
void kvc_incomplete_after_both(struct kvc *k, struct kvc_node *folder, bool whole);
/*
 * A file or a folder was moved into this folder: names of it that the kernel knows may be hidden.
 */
void kvc_incomplete_moved_both(struct kvc *k, struct kvc_node *n, struct kvc_node *to);
/*
 * What is set on the model changed: all names that the kernel knows of it are old. Then, with no
 * lock, since it goes through all nodes: so are the lists of folders.
 */
void kvc_incomplete_set_both(struct kvc *k, struct kvc_node *model);
void kvc_incomplete_listings(struct kvc *k);

#endif
