/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Users: one record for each uid that has a pin or, except for root, a file that it has open or
 * leased, or may have mapped; and the limits of its opens, leases and mappings (user.c). pin.h has
 * the limits of its pins. All under k->lock.
 */
#ifndef KVC_USER_H
#define KVC_USER_H

#include "kvc.h"
#include "table.h"
#include "node.h"

struct kvc_user {
	struct kvc_slot slot; /* in k->users->table, by uid */
	/* bytes of the pool that its opens, leases and mappings keep */
	uint64_t share_bytes;
	struct kvc_list idle; /* its entries without an open or lease */
	/* number of its entries and of its pins */
	size_t entries, pins;
	size_t files;                      /* number of its entries with open files */
	uint64_t pinned_pool, pinned_disk; /* bytes of its pinned chunks (pin.h) */
	/* pinned chunks that are excluded from the pool's order (pin.c) */
	struct kvc_list excluded, excluded_link;
};

struct kvc_users {
	struct kvc_table table;
	size_t files_max; /* maximum number of files that one user may have open; 0: no limit */
};

/* Returns NULL if the user has no record. */
struct kvc_user *kvc_user_find_locked(struct kvc *k, uint32_t uid);
/* The same, but creates the user if needed. Returns NULL if out of memory. */
struct kvc_user *kvc_user_get_locked(struct kvc *k, uint32_t uid);
/* Frees the user's record if it has no entry and no pin. */
void kvc_user_settle_locked(struct kvc *k, struct kvc_user *u);
/* Returns the bytes of the pool that the opens and leases of one user may keep. */
uint64_t kvc_user_share(const struct kvc *k);
/* At unmount. */
void kvc_users_free(struct kvc *k);

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
 * Returns true if the user may also use the node (NULL: none) and `more` bytes in addition. A node
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
/* Returns true if kvc_user_share_may_open_locked would return 0. Counts no refusal. */
bool kvc_user_may_open_more_locked(struct kvc *k, uint32_t uid, const struct kvc_node *n);
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
