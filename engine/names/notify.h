/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices to the kernel about changes that it did not request (notify.c). They have a lock of their
 * own, a leaf.
 */
#ifndef KVC_NOTIFY_H
#define KVC_NOTIFY_H

#include "kvc.h"

struct kvc_notices {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct kvc_tell *v;
	size_t n, capacity;
	/*
	 * given: number of the last notice; told: number of the last one that the kernel has
	 * received
	 */
	uint64_t given;
	_Atomic uint64_t told;
	bool stop;
};

/* the notifier thread; arg is k */
void *kvc_notify_thread(void *arg);
/* Accepts no more notices, and ends the thread once it has taken the current ones. */
void kvc_notify_stop(struct kvc *k);
/* Discards the notices so far, at the start of a mount: the kernel does not know any name yet. */
void kvc_notify_forget(struct kvc *k);
/*
 * kvc_notify queues a notice and returns its number; 0 if it was not queued. kvc_notify_delivered
 * says whether the kernel has received it and all earlier ones. Both need no lock.
 */
uint64_t kvc_notify(struct kvc *k, enum kvc_telling what, uint64_t parent, uint64_t ino);
bool kvc_notify_delivered(struct kvc *k, uint64_t nr);

#endif
