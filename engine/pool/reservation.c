/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The account of the pool: how many bytes of its limit are reserved. Bytes are granted in the order
 * of the requests, so that small objects cannot delay a large object forever. The evictor frees the
 * bytes that waiters need, and refuses the first waiter when nothing more can be freed.
 *
 * Files that grow through passthrough take pages before the account learns of it. The tmpfs keeps
 * some pages for such growth (pool/pool.c). If files take more, the tmpfs has no pages for bytes
 * that were granted. The caller that finds this waits again, and from then on the pages that the
 * tmpfs holds count as well, also for the evictor.
 */
#include "reservation.h"

#include "kvc.h"

uint64_t kvc_reservation_lacks_locked(const struct kvc *k, uint64_t bytes)
{
	uint64_t to = k->reservations.used + bytes;

	return kvc_max(to - kvc_min(to, k->pool.bytes),
		       to + k->reservations.unseen -
			       kvc_min(to + k->reservations.unseen, k->pool.size));
}

void kvc_reservation_grant_locked(struct kvc *k)
{
	while (!kvc_list_empty(&k->reservations.waiters)) {
		struct kvc_wait *w = kvc_of(k->reservations.waiters.next, struct kvc_wait, link);

		if (kvc_reservation_lacks_locked(k, w->want))
			return;
		k->reservations.used += w->want;
		w->granted += w->want;
		w->want = 0;
		kvc_wait_wake_locked(k, w, 0);
	}
}

static int wait_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w)
{
	kvc_count(&k->stats, room_waits);
	w->want = bytes;
	w->for_quota = false;
	pthread_cond_signal(&k->reservations.pressed);
	return kvc_wait_park_locked(k, &k->reservations.waiters, w);
}

void kvc_reservation_wake_evictor_locked(struct kvc *k)
{
	if (!kvc_list_empty(&k->reservations.waiters) ||
	    k->reservations.used > k->pool.bytes / 100 * k->opt.high_pct)
		pthread_cond_signal(&k->reservations.pressed);
}

int kvc_reservation_get_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w)
{
	if (w && w->granted) {
		if (w->granted >= bytes) {
			kvc_reservation_put_locked(k, w->granted - bytes);
			w->granted = 0;
			return 0;
		}
		kvc_reservation_put_locked(k, w->granted);
		w->granted = 0;
	}
	if (!bytes)
		return 0;
	if (kvc_list_empty(&k->reservations.waiters) && !kvc_reservation_lacks_locked(k, bytes)) {
		k->reservations.used += bytes;
		kvc_reservation_wake_evictor_locked(k);
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

int kvc_reservation_retry_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w)
{
	if (!k->pool.mounted || k->stopping) {
		kvc_count(&k->stats, room_refusals);
		return -ENOSPC;
	}
	kvc_reservation_check_locked(k);
	return wait_locked(k, bytes, w);
}

void kvc_reservation_check_locked(struct kvc *k)
{
	uint64_t real = kvc_pool_real_used(&k->pool);

	k->reservations.unseen = real - kvc_min(real, k->reservations.used);
	kvc_reservation_grant_locked(k);
}

void kvc_reservation_put_locked(struct kvc *k, uint64_t bytes)
{
	if (!bytes)
		return;
	k->reservations.used -= kvc_min(bytes, k->reservations.used);
	k->reservations.stuck = 0;
	kvc_reservation_grant_locked(k);
}

void kvc_reservation_cancel_locked(struct kvc *k, struct kvc_wait *w)
{
	uint64_t bytes = w->granted;

	w->granted = 0;
	kvc_reservation_put_locked(k, bytes);
	kvc_quota_cancel_locked(k, w);
}

bool kvc_reservation_hurry_locked(const struct kvc *k)
{
	return k->reservations.uncopied > k->pool.bytes / 4;
}

uint64_t kvc_reservation_low_locked(const struct kvc *k)
{
	uint64_t low = k->pool.bytes / 100 * k->opt.low_pct;

	return low - kvc_min(low, k->reservations.unseen);
}

uint64_t kvc_reservation_excess(uint64_t used, uint64_t size, const struct kvc_options *o,
				bool *trimming)
{
	uint64_t high = size / 100 * o->high_pct, low = size / 100 * o->low_pct;

	*trimming = used > high || (*trimming && used > low);
	return *trimming && used > low ? used - low : 0;
}
