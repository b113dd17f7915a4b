/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices about changed names (notify.c): to the kernel, about changes that it did not request, and
 * to the readers of events. Notices to the kernel have a lock of their own, a leaf.
 */
#ifndef KVC_NOTIFY_H
#define KVC_NOTIFY_H

#include "kvc.h"
#include "rings.h"

struct kvc_notices {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct kvc_notice *v;
	size_t n, capacity;
	uint64_t queued;            /* number of the last notice */
	_Atomic uint64_t delivered; /* number of the last notice that the kernel has received */
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
uint64_t kvc_notify(struct kvc *k, enum kvc_notice_kind what, uint64_t parent, uint64_t ino);
bool kvc_notify_delivered(struct kvc *k, uint64_t nr);

/*
 * Reports to the readers of events (telemetry/rings.h) that the node lost this name: it was
 * dropped, or has another name now. Does nothing if the ring has no reader.
 */
void kvc_notify_readers_both(struct kvc *k, enum kvc_event_kind what, const struct kvc_node *n,
			     uint64_t parent, const char *name);

#endif
