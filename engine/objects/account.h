/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a file takes: of the pool, of what has no copy yet, of its model's quota. All under k->lock.
 */
#ifndef KVC_ACCOUNT_H
#define KVC_ACCOUNT_H

#include "node.h"

struct kvc_account {
	struct kvc_list behind; /* write=back: nodes without a copy, the oldest first */
	uint64_t asked;         /* bytes of reservations.uncopied for which one is asked for */
	uint64_t copied;        /* bytes that got one since tiering/throttle.c looked */
};

/* Sets what a node's segment is accounted with. */
void kvc_account_set_reserved_locked(struct kvc *k, struct kvc_node *n, uint64_t bytes);
/* What the segment takes now, as the kernel counts it. */
void kvc_account_recount_locked(struct kvc *k, struct kvc_node *n);
/* Sets what was prepared ahead for a node; 0 once it is published or gone. */
void kvc_account_set_ahead_locked(struct kvc *k, struct kvc_node *n, uint64_t bytes);
/* A node's state or room changed. */
void kvc_account_uncopied_locked(struct kvc *k, struct kvc_node *n);
/* What a file counts, or would in a model with a quota. */
uint64_t kvc_account_quota_bytes(const struct kvc_node *n);
/*
 * Brings what a file counts up to date: to its model's quota, and to the pin of its chunk. Cheap
 * where there is neither.
 */
void kvc_account_quota_count_locked(struct kvc *k, struct kvc_node *n);
/* The file belongs to another model now. */
void kvc_account_quota_move_locked(struct kvc *k, struct kvc_node *n, uint64_t model);

#endif
