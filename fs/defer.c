/* SPDX-License-Identifier: Apache-2.0 */
/* Worker threads for long calls. See defer.h. */
#include "fs.h"

#include <signal.h>

static void *worker_run(void *arg)
{
	struct kvfs_worker *a = arg;

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
		c->deferred(c);
		pthread_mutex_lock(&a->lock);
	}
	pthread_mutex_unlock(&a->lock);
	return NULL;
}

static void worker_init(struct kvfs_worker *a)
{
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->more, NULL);
}

void kvfs_defer_init(struct kvfs *f)
{
	worker_init(&f->lease_worker);
	worker_init(&f->size_worker);
}

static bool worker_start_locked(struct kvfs_worker *a)
{
	sigset_t all, old;

	if (a->started)
		return true;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	a->started = !pthread_create(&a->thread, NULL, worker_run, a);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return a->started;
}

void kvfs_defer(struct kvfs_worker *a, struct call *c, void (*run)(struct call *c))
{
	bool taken;

	c->deferred = run;
	c->next = NULL;
	pthread_mutex_lock(&a->lock);
	taken = !atomic_load(&a->ends) && worker_start_locked(a);
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

static void worker_stop(struct kvfs_worker *a)
{
	pthread_mutex_lock(&a->lock);
	atomic_store(&a->ends, true);
	pthread_cond_signal(&a->more);
	pthread_mutex_unlock(&a->lock);
	if (a->started)
		pthread_join(a->thread, NULL);
}

void kvfs_defer_stop(struct kvfs *f)
{
	worker_stop(&f->lease_worker);
	worker_stop(&f->size_worker);
}
