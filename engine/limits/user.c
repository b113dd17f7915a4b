/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Users: one record for each uid that has a pin, or a file open or leased. Two files set limits, so
 * that no user can keep the others out for ever:
 *
 *   user_share.c   share=    bytes of the pool that the opens, leases and mappings of one user keep
 *                  files     number of files that it has open: at most half of the daemon's
 *                            descriptors (with allow_other)
 *   pin.c          pins=     bytes of the pool and the disk that pinned chunks take, for all
 *                            users and for one
 *
 * Root has no limits of its own, since it can take everything anyway.
 */
#include "user.h"

struct kvc_user *kvc_user_find_locked(struct kvc *k, uint32_t uid)
{
	struct kvc_slot *s = kvc_table_find(&k->users->table, uid);

	return s ? kvc_of(s, struct kvc_user, slot) : NULL;
}

struct kvc_user *kvc_user_get_locked(struct kvc *k, uint32_t uid)
{
	struct kvc_user *u = kvc_user_find_locked(k, uid);

	if (u || !(u = calloc(1, sizeof *u)))
		return u;
	kvc_list_init(&u->idle);
	kvc_list_init(&u->out);
	kvc_list_init(&u->out_link);
	u->slot.key = uid;
	kvc_table_add(&k->users->table, &u->slot);
	return u;
}

void kvc_user_settle_locked(struct kvc *k, struct kvc_user *u)
{
	if (u->holds || u->pins)
		return;
	kvc_table_del(&k->users->table, &u->slot);
	kvc_list_del(&u->out_link);
	free(u);
}

uint64_t kvc_user_share(const struct kvc *k)
{
	return k->pool.bytes / 100 * k->opt.share_pct;
}

void kvc_users_free(struct kvc *k)
{
	kvc_table_each(&k->users->table, s)
		free(kvc_of(s, struct kvc_user, slot));
	kvc_table_fini(&k->users->table);
}
