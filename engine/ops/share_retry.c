/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call that would take a user over its share (limits/user.c) first releases the user's idle
 * objects, those that the user has not mapped, and is then made again. Runs on request threads. A
 * check costs some system calls, so a call makes at most LOOKS checks, and AT_ONCE under one hold
 * of the lock. The next call continues where the last one ended. Checking stops when a quarter of
 * the share is free, so that few calls have to check.
 */
#include "ops.h"
#include "file.h"
#include "user.h"

#define LOOKS 1024
#define AT_ONCE 16

/* True if nobody else has the file open or leased, or may have it mapped. */
static bool sole_user(const struct kvc_node *n)
{
	return !n->refs.opens && !n->refs.leases && !n->share.entries->next;
}

static bool enough_free_locked(struct kvc *k, uint32_t uid)
{
	const struct kvc_user *u = kvc_user_find_locked(k, uid);

	return !u || u->share_bytes <= kvc_user_share(k) / 4 * 3;
}

void kvc_share_retry_free_idle(struct kvc *k, uint32_t uid)
{
	struct kvc_share_entry *h, *first = NULL;

	kvc_lock(k);
	for (unsigned i = 0; i < LOOKS && !enough_free_locked(k, uid) &&
			     (h = kvc_user_share_idle_locked(k, uid)) && h != first;) {
		struct kvc_node *n = h->node;
		struct kvc_segment s = kvc_file_segment_of(n);
		bool needed = sole_user(n);

		if (needed) {
			kvc_file_close_segment_locked(k, n);
			needed = kvc_pool_segment_in_use(&k->pool, &s, false);
		}
		if (!needed)
			kvc_user_share_forget_locked(k, h);
		else if (!first)
			first = h;
		if (++i % AT_ONCE == 0) {
			kvc_pause_locked(k);
			first = NULL; /* it may have been freed */
		}
	}
	kvc_unlock(k);
}

bool kvc_share_retry_call(struct kvc *k, struct kvc_wait *w, int *err)
{
	if (*err != KVC_OVER_SHARE)
		return false;
	if (!w->idle_freed) {
		w->idle_freed = true;
		kvc_share_retry_free_idle(k, w->uid);
		return true;
	}
	w->idle_freed = false;
	kvc_count(&k->stats, share_refusals);
	*err = -EDQUOT;
	return false;
}
