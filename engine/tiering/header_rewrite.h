/* SPDX-License-Identifier: Apache-2.0 */
/* A rename brings the path in the frames up to date (header_rewrite.c). */
#ifndef KVC_HEADER_REWRITE_H
#define KVC_HEADER_REWRITE_H

#include "node.h"

/* Of a file, or of all that lies below a folder, in the background. */
void kvc_header_rewrite_both(struct kvc *k, struct kvc_node *n);
/* Marks the copies in shared tiers that are under another name than the file's own. */
void kvc_header_rewrite_moved_both(struct kvc *k, struct kvc_node *n);

#endif
