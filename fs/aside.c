/* SPDX-License-Identifier: Apache-2.0 */
/* See aside.h. */
#include "fs.h"

#include <signal.h>

static void *work(void *arg)
{
	struct kvfs_aside *a = arg;

	pthread_mutex_lock(&a->lock);
	for (;;) {
		struct call *c = a->first;

		if (!c && atomic_load(&a->ends))
			break;
		if (!c) {
			pthread_cond_wait(&a->more, &a->lock);
			continue;
		}
		a->first = c->next;
		pthread_mutex_unlock(&a->lock);
		c->aside(c);
		pthread_mutex_lock(&a->lock);
	}
	pthread_mutex_unlock(&a->lock);
	return NULL;
}

static void init(struct kvfs_aside *a)
{
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->more, NULL);
}

void kvfs_aside_init(struct kvfs *f)
{
	init(&f->aside);
	init(&f->sizes);
}

static bool start_locked(struct kvfs_aside *a)
{
	sigset_t all, old;

	if (a->started)
		return true;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	a->started = !pthread_create(&a->thread, NULL, work, a);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return a->started;
}

void kvfs_aside(struct kvfs_aside *a, struct call *c, void (*run)(struct call *c))
{
	bool taken;

	c->aside = run;
	c->next = NULL;
	pthread_mutex_lock(&a->lock);
	taken = !atomic_load(&a->ends) && start_locked(a);
	if (taken) {
		if (a->first)
			a->last->next = c;
		else
			a->first = c;
		a->last = c;
		pthread_cond_signal(&a->more);
	}
	pthread_mutex_unlock(&a->lock);
	if (!taken)
		run(c);
}

static void stop(struct kvfs_aside *a)
{
	pthread_mutex_lock(&a->lock);
	atomic_store(&a->ends, true);
	pthread_cond_signal(&a->more);
	pthread_mutex_unlock(&a->lock);
	if (a->started)
		pthread_join(a->thread, NULL);
}

void kvfs_aside_stop(struct kvfs *f)
{
	stop(&f->aside);
	stop(&f->sizes);
}
