/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Delays stores when the tiers lag. A store runs at the speed of memory and a copy at the speed of
 * the disk, so under load the pool fills with objects that have no copy yet and cannot be evicted.
 *
 * If a quarter of the pool has no copy, copies no longer wait for settle=, and with write=back the
 * oldest objects are copied although no space is needed yet. If half of the pool has no copy,
 * stores get turns: at first twice as many bytes per second as are copied, and fewer, down to
 * RATE_LEAST, as the part without a copy grows. So stores settle at the speed of the disk while
 * some of the pool is free: each store waits a little, instead of one store waiting for a long
 * time. No turn is later than pace=. A store that then finds no space waits for a reservation, and
 * the evictor drops the coldest chunks that have no copy (evict/evict.c).
 *
 * A store also waits briefly if the next commit already has twice the changes that a commit should
 * have (kvc_committer_batch_max_locked). Otherwise, a flood of stores would lengthen commits, and
 * with them the time until a store is durable.
 *
 * Loads are never delayed. Stores get no turns while no tier takes copies. A wait for a turn is in
 * k->throttle->waiters until its time (pool/wait.c).
 */
#include "throttle.h"

#include "account.h"
#include "committer.h"
#include "node.h"
#include "spill.h"
#include "tier_queue.h"

#define RATE_FIRST (500ull << 20) /* bytes per second, until the rate is measured */
#define RATE_LEAST (1ull << 20)
#define WINDOW_NS 25000000ull
#define COMMIT_WAIT_NS 15000000ull
#define WORTH_NS 100000ull /* shorter waits cost more than they gain */

struct zone {
	/* bytes without a copy: now, when delays start, and when the rate is RATE_LEAST */
	uint64_t at, from, to;
};

static struct zone throttle_zone_locked(const struct kvc *k)
{
	return (struct zone){ k->reservations.uncopied, k->pool.bytes / 2,
			      k->pool.bytes / 20 * 19 };
}

/* With write=back: queues copies of the oldest objects while too many bytes have no copy. */
static void copy_oldest_locked(struct kvc *k)
{
	while (k->reservations.uncopied - k->account->requested > k->pool.bytes / 4 &&
	       !kvc_list_empty(&k->account->uncopied)) {
		struct kvc_node *n = kvc_of(k->account->uncopied.next, struct kvc_node, acct.link);

		kvc_account_request_copy_locked(k, n);
		kvc_spill_queue_locked(k, n, false);
	}
}

void kvc_throttle_published_locked(struct kvc *k, struct kvc_node *n)
{
	if (k->opt.write == KVC_THROUGH || n->segment.verify)
		kvc_spill_queue_locked(k, n, false);
	else
		copy_oldest_locked(k);
}

void kvc_throttle_measure_locked(struct kvc *k)
{
	struct kvc_throttle *p = k->throttle;
	uint64_t now = kvc_mono_ns(), took = now - p->since_ns, seen;

	if (took < WINDOW_NS)
		return;
	seen = (uint64_t)((double)k->account->copied * 1e9 / (double)took);
	/*
	 * With little work the rate says nothing. It falls slowly, so that one slow moment does not
	 * slow down the next ones.
	 */
	if (p->busy && kvc_reservation_hurry_locked(k))
		p->rate = kvc_max(!p->rate         ? seen
				  : seen > p->rate ? (p->rate + seen) / 2
						   : (p->rate * 7 + seen) / 8,
				  RATE_LEAST);
	p->busy = kvc_reservation_hurry_locked(k);
	k->account->copied = 0;
	p->since_ns = now;
}

static bool any_tier_takes_locked(const struct kvc *k)
{
	kvc_tier_each(k, t)
		if (kvc_tier_accepts_locked(k, t))
			return true;
	return false;
}

int kvc_throttle_store_locked(struct kvc *k, uint64_t bytes, struct kvc_wait *w)
{
	struct kvc_throttle *p = k->throttle;
	uint64_t now = kvc_mono_ns(), most = k->opt.pace_ms * 1000000, left, rate, due;
	struct zone z = throttle_zone_locked(k);

	if (!w->since_ns)
		w->since_ns = now;
	if (!w->paced && !k->stopping && k->started &&
	    kvc_committer_changes_locked(k) >= 2 * kvc_committer_batch_max_locked(k)) {
		kvc_committer_wake_locked(k, true);
		kvc_count(&k->stats, paced);
		w->paced = w->pacing = true;
		w->deadline_ns = now + COMMIT_WAIT_NS;
		return kvc_wait_park_locked(k, &p->waiters, w);
	}
	if (w->paced || !bytes || z.at <= z.from || !most || k->stopping ||
	    !any_tier_takes_locked(k))
		return 0;
	left = z.to - kvc_min(z.at, z.to);
	rate = (uint64_t)(2.0 * (double)(p->rate ? p->rate : RATE_FIRST) * (double)left /
			  (double)(z.to - z.from + 1));
	due = kvc_max(p->next_ns, now);
	/*
	 * A store that may not wait goes on now. If it then fails, it has not delayed other stores.
	 */
	if (due - now >= WORTH_NS && !kvc_wait_may_park(w))
		return 0;
	p->next_ns =
		kvc_min(due + (uint64_t)((double)bytes * 1e9 / (double)kvc_max(rate, RATE_LEAST)),
			now + most);
	if (due - now < WORTH_NS)
		return 0;
	kvc_count(&k->stats, paced);
	w->paced = w->pacing = true;
	w->deadline_ns = due;
	return kvc_wait_park_locked(k, &p->waiters, w);
}
