/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User shares: the bytes of the pool that each uid keeps by opens, leases and mappings
 * (user_share.c). All under k->lock.
 */
#ifndef KVC_USER_SHARE_H
#define KVC_USER_SHARE_H

#include "node.h"
#include "user.h"

/* A user's use of one node: it has the node open or leased, or may have it mapped. */
struct kvc_share_entry {
	struct kvc_share_entry *next; /* next entry of the node */
	struct kvc_list idle;         /* on user->idle while count is 0 */
	struct kvc_node *node;
	struct kvc_user *user;
	unsigned count; /* opens and leases */
	unsigned opens; /* those of them that are opens */
};

/*
 * Returns true if the user may also use the node (NULL: none) and `more` bytes beside it. A node
 * that must be loaded counts the bytes that it will take.
 */
bool kvc_user_share_fits_locked(struct kvc *k, uint32_t uid, const struct kvc_node *n,
				uint64_t more);
/*
 * The same for a call. Returns 0 or KVC_OVER_SHARE; then kvc_share_retry_call (ops/ops.h) decides
 * whether the call is made again.
 */
#define KVC_OVER_SHARE (-EUSERS)
int kvc_user_share_check_locked(struct kvc *k, const struct kvc_wait *w, const struct kvc_node *n,
				uint64_t more);
/* An open (open is true) or a lease begins, or ends. If out of memory, it is not counted. */
void kvc_user_share_add_locked(struct kvc *k, struct kvc_node *n, uint32_t uid, bool open);
void kvc_user_share_remove_locked(struct kvc *k, struct kvc_node *n, uint32_t uid, bool open);
/*
 * Returns 0 if the user may open the node, or a new file (NULL); otherwise -EMFILE. Further opens
 * of a file that the user has open do not count.
 */
int kvc_user_share_may_open_locked(struct kvc *k, uint32_t uid, const struct kvc_node *n);
/* Called after the node's size in the pool or its state has changed. */
void kvc_user_share_recount_locked(struct kvc *k, struct kvc_node *n);
/*
 * Returns the user's oldest idle entry and makes it the newest; NULL: it has none. The caller may
 * forget the entry if the file is not mapped.
 */
struct kvc_share_entry *kvc_user_share_idle_locked(struct kvc *k, uint32_t uid);
void kvc_user_share_forget_locked(struct kvc *k, struct kvc_share_entry *h);
/* The node is freed: forgets all its entries. */
void kvc_user_share_node_freed_locked(struct kvc *k, struct kvc_node *n);

#endif
