/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The notifier: tells the kernel about changes that it did not request. It is a thread of its own,
 * because such a call may wait in the kernel for a process that waits for this daemon. Notices are
 * collected for a short time, so that a chunk of many files is reported in one call.
 */
#include "notify.h"
#include "node.h"
#include "path.h"

#include <string.h>

#define GATHER_US 2000

uint64_t kvc_notify(struct kvc *k, enum kvc_notice_kind what, uint64_t parent, uint64_t ino)
{
	struct kvc_notices *s = k->notices;
	uint64_t nr = 0;

	pthread_mutex_lock(&s->lock);
	/* Not queued after the session's end or if memory is short: the kernel asks later. */
	if (!s->stop && !kvc_grow(&s->v, s->n, &s->capacity, sizeof *s->v)) {
		s->v[s->n++] = (struct kvc_notice){ what, parent, ino };
		nr = ++s->queued;
		pthread_cond_signal(&s->cond);
	}
	pthread_mutex_unlock(&s->lock);
	return nr;
}

bool kvc_notify_delivered(struct kvc *k, uint64_t nr)
{
	/* acquire: what the caller does next happens after the kernel got the notice */
	return atomic_load_explicit(&k->notices->delivered, memory_order_acquire) >= nr;
}

void *kvc_notify_thread(void *arg)
{
	struct kvc *k = arg;
	struct kvc_notices *s = k->notices;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		while (!s->n && !s->stop)
			pthread_cond_wait(&s->cond, &s->lock);
		if (!s->n)
			break;
		bool send = !s->stop;

		pthread_mutex_unlock(&s->lock);
		usleep(GATHER_US);
		pthread_mutex_lock(&s->lock);
		KVC_MEM struct kvc_notice *batch = s->v;
		size_t n = s->n;
		uint64_t nr = s->queued;

		s->v = NULL;
		s->n = s->capacity = 0;
		pthread_mutex_unlock(&s->lock);
		if (send && k->ev.notify)
			k->ev.notify(k->ev.arg, batch, n);
		atomic_store_explicit(&s->delivered, nr, memory_order_release);
		pthread_mutex_lock(&s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

void kvc_notify_stop(struct kvc *k)
{
	pthread_mutex_lock(&k->notices->lock);
	k->notices->stop = true;
	pthread_cond_signal(&k->notices->cond);
	pthread_mutex_unlock(&k->notices->lock);
}

void kvc_notify_forget(struct kvc *k)
{
	k->notices->n = 0;
}

void kvc_notify_readers_both(struct kvc *k, enum kvc_event_kind what, const struct kvc_node *n,
			     uint64_t parent, const char *name)
{
	char path[KVC_FRAME_PATH_MAX + 1];
	char *lost;

	/* below a folder that was dropped and reported before, nothing has a path */
	if (!k->event_ring || kvc_path_in_both(k, parent, name, path) || !*path)
		return;
	if ((lost = strdup(path)))
		kvc_event_ring_gone_locked(k, what, n, lost);
}
