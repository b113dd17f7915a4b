/* SPDX-License-Identifier: Apache-2.0 */
/* What users hold of the pool by opens and leases (user_share.c). All under k->lock. */
#ifndef KVC_USER_SHARE_H
#define KVC_USER_SHARE_H

#include "node.h"
#include "user.h"

/* One for each node and user that has it open or leased, or may have it mapped. */
struct kvc_user_hold {
	struct kvc_user_hold *next; /* of the node */
	struct kvc_list idle;       /* in user->idle while count is 0 */
	struct kvc_node *node;
	struct kvc_user *user;
	unsigned count; /* opens and leases */
	unsigned opens; /* of these, opens */
};

/*
 * May this user hold the node too (NULL: none), and `more` bytes beside it? Loads are counted as
 * what they will take.
 */
bool kvc_user_share_fits_locked(struct kvc *k, uint32_t uid, const struct kvc_node *n,
				uint64_t more);
/*
 * The same for a call: 0 or KVC_OVER_SHARE, and then kvc_share_retry_call (ops.h) says whether it
 * is to be made again.
 */
#define KVC_OVER_SHARE (-EUSERS)
int kvc_user_share_check_locked(struct kvc *k, const struct kvc_wait *w, const struct kvc_node *n,
				uint64_t more);
/* An open or lease begins, and ends. Without memory it is not counted. */
void kvc_user_share_add_locked(struct kvc *k, struct kvc_node *n, uint32_t uid, bool open);
void kvc_user_share_remove_locked(struct kvc *k, struct kvc_node *n, uint32_t uid, bool open);
/*
 * May this user open the node, or a new file (NULL)? 0 or -EMFILE. How often he has one open does
 * not count.
 */
int kvc_user_share_may_open_locked(struct kvc *k, uint32_t uid, const struct kvc_node *n);
/* The node's room or state changed. */
void kvc_user_share_recount_locked(struct kvc *k, struct kvc_node *n);
/*
 * The user's oldest hold that nobody counts on, which becomes the newest; NULL: none. Nothing needs
 * it: it may be forgotten once the file is not mapped.
 */
struct kvc_user_hold *kvc_user_share_idle_locked(struct kvc *k, uint32_t uid);
void kvc_user_share_forget_locked(struct kvc *k, struct kvc_user_hold *h);
/* The node is freed. */
void kvc_user_share_node_freed_locked(struct kvc *k, struct kvc_node *n);

#endif
