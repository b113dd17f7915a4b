/* SPDX-License-Identifier: Apache-2.0 */
/* Files that were made without a name, by O_TMPFILE (tmpfile.c). */
#ifndef KVC_TMPFILE_H
#define KVC_TMPFILE_H

#include "node.h"

/* Marks a new node as one without a name. */
int kvc_tmpfile_note_both(struct kvc *k, struct kvc_node *n);
/* It has got a name. */
void kvc_tmpfile_named_both(struct kvc *k, struct kvc_node *n);
/*
 * To be called after an open or the kernel's reference has gone: destroys it when that was the
 * last.
 */
void kvc_tmpfile_settle_both(struct kvc *k, struct kvc_node *n);
/* All of them, at the end; and what an earlier daemon had, before anything else is taken over. */
void kvc_tmpfile_end_all(struct kvc *k);
int kvc_tmpfile_recover_both(struct kvc *k);

#endif
