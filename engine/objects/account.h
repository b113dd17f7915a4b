/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accounting of a file's bytes: in the pool, without a copy in a tier, in its model, and in the
 * model's quota.
 * All under k->lock.
 */
#ifndef KVC_ACCOUNT_H
#define KVC_ACCOUNT_H

#include "node.h"

struct kvc_account {
	struct kvc_list uncopied; /* write=back: nodes without a copy, oldest first */
	uint64_t requested;       /* bytes of reservations.uncopied whose copy was requested */
	/* bytes that were copied since tiering/throttle.c last read this */
	uint64_t copied;
};

/* Sets the number of bytes of the pool that the account holds for the node's segment. */
void kvc_account_set_reserved_locked(struct kvc *k, struct kvc_node *n, uint64_t bytes);
/*
 * Sets the bytes of a segment that is created or loaded now. k->reservations.used must include them
 * already.
 */
void kvc_account_granted_locked(struct kvc_node *n, uint64_t bytes);
/* The same for a new file; k->reservations.ahead must include them, too. */
void kvc_account_created_locked(struct kvc_node *n, uint64_t bytes);
/*
 * The segment was removed, and its bytes are no longer accounted to the node. Returns their number;
 * they stay in k->reservations.used until the caller returns them.
 */
uint64_t kvc_account_removed_locked(struct kvc_node *n);
/* The same, and counts the bytes as leaving until the caller has freed the segment's pages. */
uint64_t kvc_account_leaving_locked(struct kvc *k, struct kvc_node *n);
/* Updates the count of bytes of files that are in the pool and have a copy. */
void kvc_account_copied_locked(struct kvc *k, struct kvc_node *n);
/* With write=back: a copy of the file is about to be requested. */
void kvc_account_request_copy_locked(struct kvc *k, struct kvc_node *n);
/* As kvc_account_set_reserved_locked, with the bytes of the blocks that the segment has now. */
void kvc_account_recount_locked(struct kvc *k, struct kvc_node *n);
/* Sets the bytes that were preallocated for the node; 0 after it is published or destroyed. */
void kvc_account_set_preallocated_locked(struct kvc *k, struct kvc_node *n, uint64_t bytes);
/*
 * Updates the count of bytes without a copy. Called after the node's state or reservation changed.
 */
void kvc_account_uncopied_locked(struct kvc *k, struct kvc_node *n);
/* Returns the bytes that a quota charges the file with, whether or not its model has a quota. */
uint64_t kvc_account_quota_bytes(const struct kvc_node *n);
/*
 * Updates the file and its bytes in the figures of its model, in the model's quota and in the pin
 * of its chunk. Called after its state, its bytes or its names changed.
 */
void kvc_account_quota_count_locked(struct kvc *k, struct kvc_node *n);
/* The file was counted in its quota with these bytes. */
void kvc_account_charged_locked(struct kvc_node *n, uint64_t bytes);
/* Sets the model of a new file, which is not counted anywhere yet. */
void kvc_account_set_model_locked(struct kvc_node *n, uint64_t model);
/*
 * A folder above the file has moved since the file's model was set. Moves the file in the figures
 * of models if it is counted there, but not in quotas, which are counted again.
 */
void kvc_account_correct_model_locked(struct kvc *k, struct kvc_node *n, uint64_t model);
/* Moves the file, with its bytes and copies, to another model. */
void kvc_account_quota_move_locked(struct kvc *k, struct kvc_node *n, uint64_t model);

#endif
