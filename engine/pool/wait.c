/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits and the answerer. The answerer is one thread that runs all wakes, without locks, and ends
 * waits at their deadlines. It must never block: over io_uring, the thread that sends a late reply
 * also serves the next request of that ring entry.
 */
#include "wait.h"

#include "kvc.h"

/*
 * The deadlines are a treap. Waits of different calls have different deadlines, and one user may
 * have thousands of parked waits, so neither parking nor waking may walk a list of waits.
 */
static bool ends_before(const struct kvc_wait *a, const struct kvc_wait *b)
{
	return a->deadline_ns != b->deadline_ns ? a->deadline_ns < b->deadline_ns : a < b;
}

static uint64_t treap_rank(const struct kvc_wait *w)
{
	uint64_t x = ((uintptr_t)w ^ w->deadline_ns) * 0x9e3779b97f4a7c15ull;

	return (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
}

static void treap_split(struct kvc_wait *t, const struct kvc_wait *at, struct kvc_wait **earlier,
			struct kvc_wait **later)
{
	while (t)
		if (ends_before(t, at)) {
			*earlier = t;
			earlier = &t->later;
			t = t->later;
		} else {
			*later = t;
			later = &t->earlier;
			t = t->earlier;
		}
	*earlier = *later = NULL;
}

static struct kvc_wait *treap_merge(struct kvc_wait *earlier, struct kvc_wait *later)
{
	struct kvc_wait *top = NULL, **at = &top;

	while (earlier && later)
		if (treap_rank(earlier) >= treap_rank(later)) {
			*at = earlier;
			at = &earlier->later;
			earlier = earlier->later;
		} else {
			*at = later;
			at = &later->earlier;
			later = later->earlier;
		}
	*at = earlier ? earlier : later;
	return top;
}

static void deadline_add(struct kvc_wait **at, struct kvc_wait *w)
{
	while (*at && treap_rank(*at) >= treap_rank(w))
		at = ends_before(w, *at) ? &(*at)->earlier : &(*at)->later;
	treap_split(*at, w, &w->earlier, &w->later);
	*at = w;
}

static void deadline_del(struct kvc_wait **at, struct kvc_wait *w)
{
	while (*at && *at != w)
		at = ends_before(w, *at) ? &(*at)->earlier : &(*at)->later;
	if (*at)
		*at = treap_merge(w->earlier, w->later);
}

static struct kvc_wait *deadline_first(struct kvc_wait *t)
{
	while (t && t->earlier)
		t = t->earlier;
	return t;
}

int kvc_wait_park_locked(struct kvc *k, struct kvc_list *on, struct kvc_wait *w)
{
	w->err = 0;
	if (!kvc_wait_may_park(w)) {
		kvc_count(&k->stats, waits_refused);
		w->deadline_ns = kvc_mono_ns();
	} else if (!w->deadline_ns) {
		w->deadline_ns = (w->since_ns ? w->since_ns : kvc_mono_ns()) +
				 k->opt.deadline_ms * 1000000;
	}
	kvc_list_add_tail(on, &w->link);
	deadline_add(&k->waits.timed, w);
	if (deadline_first(k->waits.timed) == w)
		pthread_cond_signal(&k->waits.cond);
	if (k->stopping)
		kvc_wait_wake_locked(k, w, -ESHUTDOWN);
	return KVC_WAIT;
}

/* Refuses a wait. The waits behind it are then granted free bytes: they may have asked for less. */
static void refuse_locked(struct kvc *k, struct kvc_wait *w)
{
	w->want = 0;
	if (w->for_quota) {
		struct kvc_quota *q = kvc_quota_of_locked(k, w->quota_model);

		kvc_count(&k->stats, quota_refusals);
		kvc_wait_wake_locked(k, w, -EDQUOT);
		if (q)
			kvc_quota_grant_locked(k, q);
	} else {
		kvc_count(&k->stats, room_refusals);
		kvc_wait_wake_locked(k, w, -ENOSPC);
		kvc_reservation_grant_locked(k);
	}
}

void kvc_wait_refuse_first_locked(struct kvc *k, struct kvc_list *waiters)
{
	refuse_locked(k, kvc_of(waiters->next, struct kvc_wait, link));
}

void kvc_wait_wake_locked(struct kvc *k, struct kvc_wait *w, int err)
{
	kvc_list_del(&w->link);
	deadline_del(&k->waits.timed, w);
	w->err = err;
	if (err && (w->granted || w->quota_granted))
		kvc_reservation_cancel_locked(k, w);
	kvc_list_add_tail(&k->waits.woken, &w->link);
	pthread_cond_signal(&k->waits.cond);
}

void kvc_wait_wake_all_locked(struct kvc *k, struct kvc_list *on, int err)
{
	while (!kvc_list_empty(on))
		kvc_wait_wake_locked(k, kvc_of(on->next, struct kvc_wait, link), err);
}

void *kvc_wait_answerer(void *arg)
{
	struct kvc *k = arg;

	kvc_lock(k);
	for (;;) {
		uint64_t now = kvc_mono_ns(), until = now + 1000000000;

		while (k->waits.timed) {
			struct kvc_wait *w = deadline_first(k->waits.timed);

			if (w->deadline_ns > now && !k->stopping) {
				until = kvc_min(until, w->deadline_ns);
				break;
			}
			if (w->pacing && !k->stopping) {
				/* it is this store's turn (tiering/throttle.c) */
				w->pacing = false;
				w->deadline_ns = 0;
				kvc_wait_wake_locked(k, w, 0);
			} else if (w->want) {
				refuse_locked(k, w);
			} else {
				if (!w->patient)
					kvc_count(&k->stats, load_timeouts);
				kvc_wait_wake_locked(k, w, k->stopping ? -ESHUTDOWN : -ETIMEDOUT);
			}
		}
		if (!kvc_list_empty(&k->waits.woken)) {
			struct kvc_wait *w = kvc_of(k->waits.woken.next, struct kvc_wait, link);

			kvc_list_del(&w->link);
			k->waits.waking = true;
			kvc_unlock(k);
			w->wake(w);
			kvc_lock(k);
			k->waits.waking = false;
			continue;
		}
		if (k->stopping)
			pthread_cond_broadcast(&k->waits.idle);
		if (k->stopping && k->draining)
			break;
		struct timespec t = kvc_timespec(until);

		kvc_lock_wait(&k->lock, &k->waits.cond, &t);
	}
	kvc_unlock(k);
	return NULL;
}

void kvc_waits_end(struct kvc *k)
{
	uint64_t until = kvc_mono_ns() + k->opt.deadline_ms * 1000000;
	struct timespec t = kvc_timespec(until);

	kvc_lock(k);
	while ((k->waits.waking || k->waits.timed || !kvc_list_empty(&k->waits.woken)) &&
	       kvc_mono_ns() < until)
		kvc_lock_wait(&k->lock, &k->waits.idle, &t);
	kvc_unlock(k);
}
