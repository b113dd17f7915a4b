/* SPDX-License-Identifier: Apache-2.0 */
/* After a rename: updates the path in the headers of frames (header_rewrite.c). */
#ifndef KVC_HEADER_REWRITE_H
#define KVC_HEADER_REWRITE_H

#include "node.h"

/*
 * Queues the update for a file, or for all files below a folder. The work is done in the
 * background; a failed update is tried again. The caller holds both locks.
 */
void kvc_header_rewrite_both(struct kvc *k, struct kvc_node *n);
/*
 * Marks the copies in shared tiers that are stored under a name other than the file's current name.
 * The caller holds both locks.
 */
void kvc_header_rewrite_moved_both(struct kvc *k, struct kvc_node *n);

#endif
