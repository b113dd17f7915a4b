/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunk of a node, and the class and quota that its model gives to the chunk (membership.c).
 * Under both locks. The functions return 0 or a negative errno.
 */
#ifndef KVC_MEMBERSHIP_H
#define KVC_MEMBERSHIP_H

#include "node.h"

/*
 * Sets n->chunk to the chunk of n->row.chunk, from memory, from its row, or new. Does nothing if
 * n->chunk is set.
 */
int kvc_membership_join_both(struct kvc *k, struct kvc_node *n);
/* The same if the caller has read the chunk's row; row->id is 0 if the chunk has none. */
int kvc_membership_join_known_both(struct kvc *k, struct kvc_node *n,
				   const struct kvc_chunk_row *row);
/* The same for a new file that is a chunk by itself: no chunk has its number yet. */
int kvc_membership_new_both(struct kvc *k, struct kvc_node *n);
/*
 * Moves the node from its chunk to chunk id, which is another one. last: the old chunk has no other
 * file and is deleted. After an error the node is still in its old chunk.
 */
int kvc_membership_change_both(struct kvc *k, struct kvc_node *n, uint64_t id, bool last);
/*
 * Called after kvc_membership_change_both. If the chunk has no position in the orders of the pool
 * and the disk yet, it gets the position of the old chunk, whose row is `was`; if `was` is NULL, it
 * gets that of a new chunk. The node's bytes on the disk count towards the chunk.
 */
void kvc_membership_ordered_locked(struct kvc *k, struct kvc_node *n,
				   const struct kvc_chunk_row *was);
/*
 * The node is a chunk by itself and was moved to another model: updates the chunk's class and
 * quota.
 */
int kvc_membership_moved_both(struct kvc *k, struct kvc_node *n);
/*
 * Gives chunk id, if it exists, the current class and quota of the model. row is the chunk's row as
 * the caller read it (id 0: it has none), or NULL if the caller did not read it.
 */
int kvc_membership_reclass_both(struct kvc *k, uint64_t id, uint64_t model,
				const struct kvc_chunk_row *row);

#endif
