/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The notifier: tells the kernel about what changed without its asking. A thread of its own,
 * because such a call may wait in the kernel for somebody who waits for us. Notices are collected
 * for a moment, so that a chunk of many files is told at once.
 */
#include "core.h"

#include <string.h>

#define GATHER_US 2000

uint64_t kvc_notify(struct kvc *k, enum kvc_telling what, uint64_t parent, uint64_t ino)
{
	uint64_t nr = 0;

	pthread_mutex_lock(&k->notify_lock);
	/* Not after the session's end; and without memory the kernel learns it when it asks. */
	if (!k->notify_stop &&
	    !kvc_grow(&k->notices, k->nnotices, &k->notices_room, sizeof *k->notices)) {
		k->notices[k->nnotices++] = (struct kvc_tell){ what, parent, ino };
		nr = ++k->noticed;
		pthread_cond_signal(&k->notify_cond);
	}
	pthread_mutex_unlock(&k->notify_lock);
	return nr;
}

bool kvc_notified(struct kvc *k, uint64_t nr)
{
	return atomic_load_explicit(&k->notified, memory_order_acquire) >= nr; /* what it tells came before */
}

void *kvc_notifier(void *arg)
{
	struct kvc *k = arg;

	pthread_mutex_lock(&k->notify_lock);
	for (;;) {
		while (!k->nnotices && !k->notify_stop)
			pthread_cond_wait(&k->notify_cond, &k->notify_lock);
		if (!k->nnotices)
			break;
		bool tell = !k->notify_stop;

		pthread_mutex_unlock(&k->notify_lock);
		usleep(GATHER_US);
		pthread_mutex_lock(&k->notify_lock);
		KVC_MEM struct kvc_tell *batch = k->notices;
		size_t n = k->nnotices;
		uint64_t nr = k->noticed;

		k->notices = NULL;
		k->nnotices = k->notices_room = 0;
		pthread_mutex_unlock(&k->notify_lock);
		if (tell && k->ev.tell)
			k->ev.tell(k->ev.arg, batch, n);
		atomic_store_explicit(&k->notified, nr, memory_order_release);
		pthread_mutex_lock(&k->notify_lock);
	}
	pthread_mutex_unlock(&k->notify_lock);
	return NULL;
}
