/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The account of the pool: how much of its bound is promised. Room is given in the order in which it was asked for,
 * so that a large object is not overtaken for ever by small ones. The evictor frees what waits ask for, and
 * refuses the first of them when nothing can be freed any more.
 */
#include "core.h"

static void grant_locked(struct kvc *k)
{
	while (!kvc_list_empty(&k->room_waiters)) {
		struct kvc_wait *w = kvc_of(k->room_waiters.next, struct kvc_wait, link);

		if (k->used + w->want > k->pool.bytes)
			return;
		k->used += w->want;
		w->granted += w->want;
		w->want = 0;
		kvc_wake_locked(k, w, 0);
	}
}

int kvc_room_get_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w)
{
	if (w && w->granted) {
		if (w->granted >= bytes) {
			kvc_room_put_locked(k, w->granted - bytes);
			w->granted = 0;
			return 0;
		}
		kvc_room_put_locked(k, w->granted);
		w->granted = 0;
	}
	if (!bytes)
		return 0;
	if (kvc_list_empty(&k->room_waiters) && k->used + bytes <= k->pool.bytes) {
		k->used += bytes;
		if (k->used > k->pool.bytes / 100 * k->opt.high_pct)
			pthread_cond_signal(&k->evict_cond);
		return 0;
	}
	if (!w)
		return -EAGAIN;
	if (bytes > k->pool.bytes || k->stopping) {
		kvc_count(&k->stats, room_refusals);
		return -ENOSPC;
	}
	kvc_count(&k->stats, room_waits);
	w->want = bytes;
	w->for_quota = false;
	pthread_cond_signal(&k->evict_cond);
	return kvc_park_locked(k, &k->room_waiters, w);
}

void kvc_room_put_locked(struct kvc *k, uint64_t bytes)
{
	if (!bytes)
		return;
	k->used -= kvc_min(bytes, k->used);
	k->stuck = 0;
	grant_locked(k);
}

void kvc_room_cancel_locked(struct kvc *k, struct kvc_wait *w)
{
	uint64_t bytes = w->granted;

	w->granted = 0;
	kvc_room_put_locked(k, bytes);
	kvc_quota_cancel_locked(k, w);
}

void kvc_room_set_locked(struct kvc *k, struct kvc_node *n, uint64_t bytes)
{
	uint64_t old = n->room;

	n->room = bytes;
	if (n->state == KVC_BOTH) {
		k->copied += bytes - n->copied;
		n->copied = bytes;
	}
	if (bytes > old)
		k->used += bytes - old;
	else
		kvc_room_put_locked(k, old - bytes);
	kvc_pace_uncopied_locked(k, n);
	kvc_quota_count_locked(k, n);
}
