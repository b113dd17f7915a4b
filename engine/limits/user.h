/* SPDX-License-Identifier: Apache-2.0 */
/* Users: the bytes of the pool and of the disk that each uid has (user.c). All under k->lock. */
#ifndef KVC_USER_H
#define KVC_USER_H

#include "kvc.h"
#include "table.h"

struct kvc_user {
	struct kvc_slot slot; /* in k->users->table, by uid */
	/* bytes of the pool that its opens, leases and mappings keep (user_share.h) */
	uint64_t held;
	struct kvc_list idle; /* its entries without an open or lease (user_share.h) */
	/* number of its entries (user_share.h) and of its pins */
	size_t holds, pins;
	size_t files;                      /* number of its entries with open files */
	uint64_t pinned_pool, pinned_disk; /* bytes of its pinned chunks (pin.h) */
	/* pinned chunks that are excluded from the pool's order (pin.c) */
	struct kvc_list out, out_link;
};

struct kvc_users {
	struct kvc_table table;
	size_t files_max; /* maximum number of files that one user may have open; 0: no limit */
};

/* Returns NULL if the user has nothing. */
struct kvc_user *kvc_user_find_locked(struct kvc *k, uint32_t uid);
/* The same, but creates the user if needed. Returns NULL if out of memory. */
struct kvc_user *kvc_user_get_locked(struct kvc *k, uint32_t uid);
/* Frees the user if it has nothing any more. */
void kvc_user_settle_locked(struct kvc *k, struct kvc_user *u);
/* Returns the bytes of the pool that the opens and leases of one user may keep. */
uint64_t kvc_user_share(const struct kvc *k);
/* At unmount. */
void kvc_users_free(struct kvc *k);

#endif
