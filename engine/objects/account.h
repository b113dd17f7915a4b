/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accounting of a file's bytes: in the pool, without a copy in a tier, and in its model's quota.
 * All under k->lock.
 */
#ifndef KVC_ACCOUNT_H
#define KVC_ACCOUNT_H

#include "node.h"

struct kvc_account {
	struct kvc_list behind; /* write=back: nodes without a copy, oldest first */
	uint64_t asked;         /* bytes of reservations.uncopied for which a copy was requested */
	uint64_t copied;        /* bytes that were copied since tiering/throttle.c last read this */
};

/* Sets the number of bytes that the node's segment is accounted for. */
void kvc_account_set_reserved_locked(struct kvc *k, struct kvc_node *n, uint64_t bytes);
/* The same, with the size that fstat reports for the segment. */
void kvc_account_recount_locked(struct kvc *k, struct kvc_node *n);
/* Sets the bytes that were preallocated for the node; 0 after it is published or destroyed. */
void kvc_account_set_ahead_locked(struct kvc *k, struct kvc_node *n, uint64_t bytes);
/*
 * Updates the count of bytes without a copy. Called after the node's state or reservation changed.
 */
void kvc_account_uncopied_locked(struct kvc *k, struct kvc_node *n);
/* Returns the bytes that the file counts, or would count if its model had a quota. */
uint64_t kvc_account_quota_bytes(const struct kvc_node *n);
/*
 * Updates the file's bytes in its model's quota and in the pin of its chunk. Cheap if the file has
 * neither.
 */
void kvc_account_quota_count_locked(struct kvc *k, struct kvc_node *n);
/* Moves the file, with its bytes, to another model. */
void kvc_account_quota_move_locked(struct kvc *k, struct kvc_node *n, uint64_t model);

#endif
