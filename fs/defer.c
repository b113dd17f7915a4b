/* SPDX-License-Identifier: Apache-2.0 */
/* Worker threads for long calls. See defer.h. */
#include "fs.h"

#include <signal.h>

static uint64_t *user_turn_locked(struct kvfs_worker *a, const struct call *c)
{
	return &a->turns[fuse_req_ctx(c->req)->uid % KVFS_WORKER_USERS];
}

/* Takes the next call from the list; NULL: it is empty. */
static struct call *worker_next_locked(struct kvfs_worker *a)
{
	struct call *c = a->first, *before = NULL, *last = NULL;

	for (struct call *i = c; i; last = i, i = i->next)
		if (*user_turn_locked(a, i) < *user_turn_locked(a, c)) {
			before = last;
			c = i;
		}
	if (!c)
		return NULL;
	*(before ? &before->next : &a->first) = c->next;
	if (a->last == c)
		a->last = before;
	*user_turn_locked(a, c) = ++a->turn;
	return c;
}

static void *worker_run(void *arg)
{
	struct kvfs_worker *a = arg;

	pthread_mutex_lock(&a->lock);
	for (;;) {
		struct call *c = worker_next_locked(a);

		if (!c && atomic_load(&a->ends))
			break;
		if (!c) {
			pthread_cond_wait(&a->more, &a->lock);
			continue;
		}
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
	worker_init(&f->long_lease_worker);
	worker_init(&f->size_worker);
	worker_init(&f->cluster_worker);
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

void kvfs_defer_stop(struct kvfs *f)
{
	struct kvfs_worker *all[] = {
		&f->lease_worker,
		&f->long_lease_worker,
		&f->size_worker,
		&f->cluster_worker,
	};

	/* a worker may pass a call to another one, so all are told to end before any is joined */
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		pthread_mutex_lock(&all[i]->lock);
		atomic_store(&all[i]->ends, true);
		pthread_cond_signal(&all[i]->more);
		pthread_mutex_unlock(&all[i]->lock);
	}
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i]->started)
			pthread_join(all[i]->thread, NULL);
}
