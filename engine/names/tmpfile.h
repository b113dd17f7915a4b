/* SPDX-License-Identifier: Apache-2.0 */
/* Files made without a name, by O_TMPFILE (tmpfile.c). */
#ifndef KVC_TMPFILE_H
#define KVC_TMPFILE_H

#include "node.h"

/* Marks a new node as unnamed. */
int kvc_tmpfile_note_both(struct kvc *k, struct kvc_node *n);
/* Call it when the file has got its first name. */
void kvc_tmpfile_named_both(struct kvc *k, struct kvc_node *n);
/*
 * For a release or a forget, with k->lock: takes both locks instead (*both is true) if the node has
 * no name, because its row may then be deleted. Returns the node, or NULL if it is not in memory.
 */
struct kvc_node *kvc_tmpfile_find_locked(struct kvc *k, uint64_t ino, bool *both);
/* Call it after a release or a forget. Destroys an unnamed file that is no longer referenced. */
void kvc_tmpfile_settle_both(struct kvc *k, struct kvc_node *n);
/*
 * end_all destroys all unnamed files at the end of a mount. recover, at the start of a mount,
 * deletes those that an earlier daemon left.
 */
void kvc_tmpfile_end_all(struct kvc *k);
int kvc_tmpfile_recover_both(struct kvc *k);

#endif
