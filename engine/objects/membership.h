/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which chunk a node is in, and which class and quota its model gives the chunk (membership.c).
 * Both locks.
 */
#ifndef KVC_MEMBERSHIP_H
#define KVC_MEMBERSHIP_H

#include "node.h"

/* The chunk of a node, from memory or its row, or a new one; sets n->chunk. */
int kvc_membership_join_both(struct kvc *k, struct kvc_node *n);
/* The same if the chunk's row was read already; id 0: it has none. */
int kvc_membership_join_known_both(struct kvc *k, struct kvc_node *n,
				   const struct kvc_chunk_row *row);
/* The same for a new file that is a chunk of its own: there is none of that number yet. */
int kvc_membership_found_both(struct kvc *k, struct kvc_node *n);
/*
 * The node, which is not of chunk id, leaves its chunk for that one, and its segment, if it has
 * one, is not counted yet. last: the chunk has no file any more, and goes. An error: it has not
 * left.
 */
int kvc_membership_change_both(struct kvc *k, struct kvc_node *n, uint64_t id, bool last);
/*
 * After that: the chunk takes the place in the orders of pool and disk that `was` had, the row of
 * the one before, where it has none there; without `was` that of what has just come. What the disk
 * has of the node is that chunk's.
 */
void kvc_membership_ordered_locked(struct kvc *k, struct kvc_node *n,
				   const struct kvc_chunk_row *was);
/* The node's own chunk is in another model now. */
int kvc_membership_moved_both(struct kvc *k, struct kvc_node *n);
/*
 * Gives a chunk, if there is one of that number, the class and the quota that the model has now.
 * row is what the catalog has of it (id 0: nothing), or NULL where that was not read.
 */
int kvc_membership_reclass_both(struct kvc *k, uint64_t id, uint64_t model,
				const struct kvc_chunk_row *row);

#endif
