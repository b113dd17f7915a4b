/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits and the answerer: one thread that runs every wake, without locks, and ends waits at their
 * deadline. It does nothing that blocks, because late replies over io_uring tie the next request of
 * their entry to the thread that sent them.
 */
#include "wait.h"

#include "kvc.h"

static void unlink_wait(struct kvc_wait *w)
{
	kvc_list_del(&w->link);
	kvc_list_del(&w->timed);
}

int kvc_park_locked(struct kvc *k, struct kvc_list *on, struct kvc_wait *w)
{
	w->err = 0;
	if (!w->deadline_ns)
		w->deadline_ns = (w->since_ns ? w->since_ns : kvc_mono_ns()) +
				 k->opt.deadline_ms * 1000000;
	kvc_list_init(&w->timed);
	kvc_list_add_tail(on, &w->link);
	/* Deadlines are nearly in order: all waits are given the same time. */
	struct kvc_list *at = &k->waits.timed;

	while (at->prev != &k->waits.timed &&
	       kvc_of(at->prev, struct kvc_wait, timed)->deadline_ns > w->deadline_ns)
		at = at->prev;
	kvc_list_add_tail(at, &w->timed);
	if (k->waits.timed.next == &w->timed)
		pthread_cond_signal(&k->waits.cond);
	if (k->stopping)
		kvc_wake_locked(k, w, -ESHUTDOWN);
	return KVC_WAIT;
}

/* What it waited for is not given to it; who stands behind it may ask for less. */
static void refuse_locked(struct kvc *k, struct kvc_wait *w)
{
	w->want = 0;
	if (w->for_quota) {
		struct kvc_quota *q = kvc_quota_of_locked(k, w->quota_model);

		kvc_count(&k->stats, quota_refusals);
		kvc_wake_locked(k, w, -EDQUOT);
		if (q)
			kvc_quota_grant_locked(k, q);
	} else {
		kvc_count(&k->stats, room_refusals);
		kvc_wake_locked(k, w, -ENOSPC);
		kvc_room_grant_locked(k);
	}
}

void kvc_refuse_first_locked(struct kvc *k, struct kvc_list *waiters)
{
	refuse_locked(k, kvc_of(waiters->next, struct kvc_wait, link));
}

void kvc_wake_locked(struct kvc *k, struct kvc_wait *w, int err)
{
	unlink_wait(w);
	w->err = err;
	if (err && (w->granted || w->quota_granted))
		kvc_room_cancel_locked(k, w);
	kvc_list_add_tail(&k->waits.woken, &w->link);
	pthread_cond_signal(&k->waits.cond);
}

void kvc_wake_all_locked(struct kvc *k, struct kvc_list *on, int err)
{
	while (!kvc_list_empty(on))
		kvc_wake_locked(k, kvc_of(on->next, struct kvc_wait, link), err);
}

void *kvc_answerer(void *arg)
{
	struct kvc *k = arg;

	kvc_lock(k);
	for (;;) {
		uint64_t now = kvc_mono_ns(), until = now + 1000000000;

		while (!kvc_list_empty(&k->waits.timed)) {
			struct kvc_wait *w = kvc_of(k->waits.timed.next, struct kvc_wait, timed);

			if (w->deadline_ns > now && !k->stopping) {
				until = kvc_min(until, w->deadline_ns);
				break;
			}
			if (w->pacing && !k->stopping) {
				w->pacing = false; /* its turn has come (copies/pace.c) */
				w->deadline_ns = 0;
				kvc_wake_locked(k, w, 0);
			} else if (w->want) {
				refuse_locked(k, w);
			} else {
				kvc_count(&k->stats, load_timeouts);
				kvc_wake_locked(k, w, k->stopping ? -ESHUTDOWN : -ETIMEDOUT);
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
	while ((k->waits.waking || !kvc_list_empty(&k->waits.timed) ||
		!kvc_list_empty(&k->waits.woken)) &&
	       kvc_mono_ns() < until)
		kvc_lock_wait(&k->lock, &k->waits.idle, &t);
	kvc_unlock(k);
}
