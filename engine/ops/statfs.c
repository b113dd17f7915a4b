/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes for statfs(2). */
#include "cache.h"
#include "catalog.h"
#include "model.h"
#include "prefault.h"
#include "tier_queue.h"

#define FILES_UNBOUND (1ull << 40)

/* The quota of the model that contains an inode, and its free bytes. False if it has no quota. */
static bool quota_space(struct kvc *k, uint64_t ino, uint64_t *limit, uint64_t *left)
{
	struct kvc_quota *q = NULL;
	struct kvc_node *n;
	uint64_t model;
	bool none;

	kvc_lock(k);
	none = kvc_list_empty(&k->quotas.list);
	kvc_unlock(k);
	if (none)
		return false;
	kvc_lock_both(k);
	if (!kvc_node_get_both(k, ino, &n)) {
		if (!kvc_node_model_both(k, S_ISDIR(n->row.mode) ? ino : n->row.parent, &model))
			q = kvc_quota_of_locked(k, model);
		kvc_node_settle_locked(k, n);
	}
	if (q) {
		*limit = q->limit;
		*left = q->limit - kvc_min(q->used, q->limit);
	}
	kvc_unlock_both(k);
	return q;
}

/*
 * The total is the disk tier up to high=, above which it is trimmed, or the pool if there is no
 * disk tier. The used bytes are those stored there and those in the pool without a copy in any
 * tier. Bytes that were just deleted count as free although their removal takes a moment: a client
 * that deletes until enough is free would otherwise delete too much. Shared tiers do not count,
 * because their free space is not known. In a model with a quota, the quota is the total.
 */
void kvc_statfs(struct kvc *k, uint64_t ino, struct kvc_statfs *s)
{
	uint64_t total = 0, used = 0, leaving = 0, limit, left, hundredth = 0;
	uint64_t inodes, attrs, most;
	struct kvc_prefaulted p;

	kvc_tier_each(k, t)
		if (k->tier[t].t->ops->caps & KVC_TIER_BOUNDED) {
			struct kvc_tier_usage u;

			k->tier[t].t->ops->usage(k->tier[t].t, &u);
			hundredth += u.total / 100;
			used += u.used;
		}
	kvc_lock(k);
	kvc_prefault_show_locked(k, &p);
	total = (hundredth ?: k->pool.bytes / 100) * k->opt.high_pct;
	kvc_tier_each(k, t)
		if (k->tier[t].t->ops->caps & KVC_TIER_BOUNDED)
			leaving += k->tier[t].deferred.bytes;
	used -= kvc_min(used, leaving);
	used += k->reservations.used -
		kvc_min(k->reservations.used,
			k->reservations.copied + k->reservations.leaving + p.held);
	kvc_unlock(k);
	kvc_usage_show(k->cat, &inodes, &attrs, &most);
	s->files = inodes / KVC_USAGE_INODE;
	s->files_free = most ? (most - kvc_min(most, inodes + attrs)) / KVC_USAGE_INODE
			     : FILES_UNBOUND;
	s->total = total;
	s->free = total - kvc_min(total, used);
	if (quota_space(k, ino, &limit, &left)) {
		s->total = limit;
		s->free = kvc_min(s->free, left);
	}
}
