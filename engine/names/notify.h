/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Telling the kernel about what changed without its asking (notify.c). Under a lock of its own, a
 * leaf.
 */
#ifndef KVC_NOTIFY_H
#define KVC_NOTIFY_H

#include "kvc.h"

struct kvc_notices {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct kvc_tell *v;
	size_t n, capacity;
	uint64_t given; /* notices so far; told: of these, by the kernel known */
	_Atomic uint64_t told;
	bool stop;
};

/* The thread. */
void *kvc_notify_thread(void *arg);
/* No notice from now on; the thread ends. */
void kvc_notify_stop(struct kvc *k);
/* Those so far are for nobody: no kernel has seen the names yet. */
void kvc_notify_forget(struct kvc *k);
/* The number of the notice (0: not kept), and whether the kernel has been told up to it. */
uint64_t kvc_notify(struct kvc *k, enum kvc_telling what, uint64_t parent, uint64_t ino);
bool kvc_notify_delivered(struct kvc *k, uint64_t nr);

#endif
