/* SPDX-License-Identifier: Apache-2.0 */
/* What each user has of the pool and of the disk (user.c). All under k->lock. */
#ifndef KVC_USER_H
#define KVC_USER_H

#include "kvc.h"
#include "table.h"

struct kvc_user {
	struct kvc_slot slot;              /* in k->users->table, by uid */
	uint64_t held;                     /* bytes of the pool: user_share.h */
	struct kvc_list idle;              /* its holds that nobody counts on: user_share.h */
	size_t holds, pins;                /* of each kind */
	size_t files;                      /* of its holds, those with open files: user_share.h */
	uint64_t pinned_pool, pinned_disk; /* bytes: pin.h */
	struct kvc_list out, out_link;     /* pin.c: pinned chunks out of the pool's order */
};

struct kvc_users {
	struct kvc_table table;
	size_t files_max; /* that one user may have open at once; 0: any number */
};

/* NULL: it has nothing. */
struct kvc_user *kvc_user_find_locked(struct kvc *k, uint32_t uid);
/* The same, made where there is none. NULL: out of memory. */
struct kvc_user *kvc_user_get_locked(struct kvc *k, uint32_t uid);
/* Frees it if it has nothing any more. */
void kvc_user_settle_locked(struct kvc *k, struct kvc_user *u);
/* What one user's opens and leases may hold of the pool. */
uint64_t kvc_user_share(const struct kvc *k);
/* At the end. */
void kvc_users_free(struct kvc *k);

#endif
