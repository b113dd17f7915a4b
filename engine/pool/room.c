/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The account of the pool: how much of its bound is promised. Room is given in the order in which
 * it was asked for, so that a large object is not overtaken for ever by small ones. The evictor
 * frees what waits ask for, and refuses the first of them when nothing can be freed any more.
 *
 * Files that grow by passthrough take pages before the account hears of it. The tmpfs keeps some
 * for that (pool/pool.c); when they take more, it has none for room that was given. Whoever finds
 * that waits once more, and what the tmpfs holds counts as well from then on, as the evictor sees
 * it.
 */
#include "room.h"

#include "kvc.h"

uint64_t kvc_room_lacks_locked(const struct kvc *k, uint64_t bytes)
{
	uint64_t to = k->room.used + bytes;

	return kvc_max(to - kvc_min(to, k->pool.bytes),
		       to + k->room.unseen - kvc_min(to + k->room.unseen, k->pool.size));
}

void kvc_room_grant_locked(struct kvc *k)
{
	while (!kvc_list_empty(&k->room.waiters)) {
		struct kvc_wait *w = kvc_of(k->room.waiters.next, struct kvc_wait, link);

		if (kvc_room_lacks_locked(k, w->want))
			return;
		k->room.used += w->want;
		w->granted += w->want;
		w->want = 0;
		kvc_wake_locked(k, w, 0);
	}
}

static int wait_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w)
{
	kvc_count(&k->stats, room_waits);
	w->want = bytes;
	w->for_quota = false;
	pthread_cond_signal(&k->room.pressed);
	return kvc_park_locked(k, &k->room.waiters, w);
}

void kvc_room_tell_locked(struct kvc *k)
{
	if (!kvc_list_empty(&k->room.waiters) ||
	    k->room.used > k->pool.bytes / 100 * k->opt.high_pct)
		pthread_cond_signal(&k->room.pressed);
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
	if (kvc_list_empty(&k->room.waiters) && !kvc_room_lacks_locked(k, bytes)) {
		k->room.used += bytes;
		kvc_room_tell_locked(k);
		return 0;
	}
	if (!w)
		return -EAGAIN;
	if (bytes > k->pool.bytes || k->stopping) {
		kvc_count(&k->stats, room_refusals);
		return -ENOSPC;
	}
	return wait_locked(k, bytes, w);
}

int kvc_room_again_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w)
{
	if (!k->pool.mounted || k->stopping) {
		kvc_count(&k->stats, room_refusals);
		return -ENOSPC;
	}
	kvc_room_look_locked(k);
	return wait_locked(k, bytes, w);
}

void kvc_room_look_locked(struct kvc *k)
{
	uint64_t real = kvc_pool_real_used(&k->pool);

	k->room.unseen = real - kvc_min(real, k->room.used);
	kvc_room_grant_locked(k);
}

void kvc_room_put_locked(struct kvc *k, uint64_t bytes)
{
	if (!bytes)
		return;
	k->room.used -= kvc_min(bytes, k->room.used);
	k->room.stuck = 0;
	kvc_room_grant_locked(k);
}

void kvc_room_cancel_locked(struct kvc *k, struct kvc_wait *w)
{
	uint64_t bytes = w->granted;

	w->granted = 0;
	kvc_room_put_locked(k, bytes);
	kvc_quota_cancel_locked(k, w);
}

bool kvc_pace_hurry_locked(const struct kvc *k)
{
	return k->room.uncopied > k->pool.bytes / 4;
}

uint64_t kvc_trim(uint64_t used, uint64_t size, const struct kvc_options *o, bool *trimming)
{
	uint64_t high = size / 100 * o->high_pct, low = size / 100 * o->low_pct;

	*trimming = used > high || (*trimming && used > low);
	return *trimming && used > low ? used - low : 0;
}
