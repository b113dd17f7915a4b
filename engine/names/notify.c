/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The notifier: tells the kernel about names that went without its asking. A thread of its own, because such a call
 * may wait in the kernel for somebody who waits for us. Notices are collected for a moment, so that a chunk of many files
 * is told at once.
 */
#include "notify.h"

#include <string.h>

#define GATHER_US 2000

struct notice {
	struct kvc_list link;
	uint64_t parent, ino;
	char name[256];
};

uint64_t kvc_notify_gone(struct kvc *k, uint64_t parent, uint64_t ino, const char *name)
{
	struct notice *n = malloc(sizeof *n);
	uint64_t nr;

	if (!n)
		return 0; /* the kernel then learns it when its entry runs out or is used */
	n->parent = parent;
	n->ino = ino;
	memset(n->name, 0, sizeof n->name);
	strncpy(n->name, name, sizeof n->name - 1);
	pthread_mutex_lock(&k->notices->lock);
	if (k->notices->stop) {
		pthread_mutex_unlock(&k->notices->lock);
		free(n);
		return 0; /* the session has ended */
	}
	kvc_list_add_tail(&k->notices->list, &n->link);
	nr = ++k->notices->given;
	pthread_cond_signal(&k->notices->cond);
	pthread_mutex_unlock(&k->notices->lock);
	return nr;
}

bool kvc_notified(struct kvc *k, uint64_t nr)
{
	return atomic_load_explicit(&k->notices->told, memory_order_acquire) >= nr; /* what it tells came before */
}

void *kvc_notifier(void *arg)
{
	struct kvc *k = arg;

	pthread_mutex_lock(&k->notices->lock);
	for (;;) {
		while (kvc_list_empty(&k->notices->list) && !k->notices->stop)
			pthread_cond_wait(&k->notices->cond, &k->notices->lock);
		if (kvc_list_empty(&k->notices->list))
			break;
		struct kvc_list batch;
		bool tell = !k->notices->stop;
		uint64_t nr;

		pthread_mutex_unlock(&k->notices->lock);
		usleep(GATHER_US);
		pthread_mutex_lock(&k->notices->lock);
		kvc_list_init(&batch);
		kvc_list_splice(&batch, &k->notices->list);
		nr = k->notices->given;
		pthread_mutex_unlock(&k->notices->lock);
		while (!kvc_list_empty(&batch)) {
			struct notice *n = kvc_of(batch.next, struct notice, link);

			kvc_list_del(&n->link);
			if (tell && k->ev.gone)
				k->ev.gone(k->ev.arg, n->parent, n->ino, n->name, kvc_list_empty(&batch));
			free(n);
		}
		atomic_store_explicit(&k->notices->told, nr, memory_order_release);
		pthread_mutex_lock(&k->notices->lock);
	}
	pthread_mutex_unlock(&k->notices->lock);
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
	while (!kvc_list_empty(&k->notices->list)) {
		struct kvc_list *e = k->notices->list.next;

		kvc_list_del(e);
		free(kvc_of(e, struct notice, link));
	}
}
