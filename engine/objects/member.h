/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which chunk a node is in, and which class and quota its model gives the chunk (member.c). Both
 * locks.
 */
#ifndef KVC_MEMBER_H
#define KVC_MEMBER_H

#include "node.h"

/* The chunk of a node, from memory or its row, or a new one; sets n->chunk. */
int kvc_chunk_join_both(struct kvc *k, struct kvc_node *n);
/* The node's own chunk is in another model now. */
int kvc_chunk_moved_both(struct kvc *k, struct kvc_node *n);
/* Gives the chunks of a model the class and the quota that it has now. */
int kvc_chunk_reclass_both(struct kvc *k, uint64_t model);

#endif
