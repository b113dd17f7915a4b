/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See share.h. A caller opens a batch on its stack. The caller and the helpers, which all batches
 * share, take the next call of a batch until none is left. The caller returns when the helpers that
 * took a call are done, so a batch does not end later than its last call.
 *
 * The lock of a crew guards its list of open batches and their members; no call is made while
 * holding it. The helpers start at the first shared batch and run until the process ends. They wait
 * for that lock only, and hold nothing between their calls.
 *
 * The child of a fork has no helpers, and starts its own.
 */
#include "share.h"
#include "priv.h"

#include <signal.h>
#include <unistd.h>

struct shared {
	struct shared *next;
	void (*fn)(void *arg, size_t i);
	void *arg;
	size_t n, i;   /* i: the next call */
	unsigned busy; /* helpers that make a call of it */
	pthread_cond_t done;
};

struct kvcachefs_crew {
	/* the number of helpers is CPUs / part - 1, but at least `least` and at most `most` */
	const long least, most, part;
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct shared *batches; /* with calls left */
	bool started;
};

struct kvcachefs_crew kvcachefs_callers = {
	/* they wait for the mount, which answers faster if requests arrive together */
	.least = 7,
	.most = 7,
	.part = 1,
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.work = PTHREAD_COND_INITIALIZER,
};
struct kvcachefs_crew kvcachefs_copiers = {
	.least = 1,
	.most = 7,
	.part = 2, /* a transfer has a thread of its own too, and the program needs CPUs */
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.work = PTHREAD_COND_INITIALIZER,
};

static void batch_remove_locked(struct kvcachefs_crew *c, struct shared *b)
{
	struct shared **at = &c->batches;

	while (*at != b)
		at = &(*at)->next;
	*at = b->next;
}

/* Makes the next call of a batch. Releases the lock during the call. */
static void call_next_locked(struct kvcachefs_crew *c, struct shared *b)
{
	size_t i = b->i++;

	if (b->i == b->n)
		batch_remove_locked(c, b);
	pthread_mutex_unlock(&c->lock);
	b->fn(b->arg, i);
	pthread_mutex_lock(&c->lock);
}

static void *share_thread(void *arg)
{
	struct kvcachefs_crew *c = arg;

	pthread_mutex_lock(&c->lock);
	for (;;) {
		struct shared *b = c->batches;

		if (!b) {
			pthread_cond_wait(&c->work, &c->lock);
			continue;
		}
		b->busy++;
		call_next_locked(c, b);
		if (!--b->busy)
			pthread_cond_signal(&b->done);
	}
	return NULL;
}

static void share_before_fork(void)
{
	pthread_mutex_lock(&kvcachefs_callers.lock);
	pthread_mutex_lock(&kvcachefs_copiers.lock);
}

static void share_after_fork(void)
{
	pthread_mutex_unlock(&kvcachefs_copiers.lock);
	pthread_mutex_unlock(&kvcachefs_callers.lock);
}

/* The parent's batches are on the stacks of threads that do not exist here. */
static void crew_reset(struct kvcachefs_crew *c)
{
	c->batches = NULL;
	c->started = false;
	pthread_cond_init(&c->work, NULL);
}

static void share_in_child(void)
{
	crew_reset(&kvcachefs_callers);
	crew_reset(&kvcachefs_copiers);
	share_after_fork();
}

KVCACHEFS_AT_FORK(share_before_fork, share_after_fork, share_in_child)

static void share_start_locked(struct kvcachefs_crew *c)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN) / c->part - 1;
	pthread_attr_t detached;
	sigset_t all, old;
	pthread_t thread;

	if (c->started)
		return;
	c->started = true;
	n = n < c->least ? c->least : n > c->most ? c->most : n;
	sigfillset(&all); /* signals are for the program and its own threads */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	while (n-- > 0 && !pthread_create(&thread, &detached, share_thread, c))
		;
	pthread_attr_destroy(&detached);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void kvcachefs_share(struct kvcachefs_crew *c, size_t n, bool shares,
		     void (*fn)(void *arg, size_t i), void *arg)
{
	struct shared b = { .fn = fn, .arg = arg, .n = n, .done = PTHREAD_COND_INITIALIZER };

	if (!shares || n < 2) {
		for (size_t i = 0; i < n; i++)
			fn(arg, i);
		return;
	}
	pthread_mutex_lock(&c->lock);
	share_start_locked(c);
	b.next = c->batches;
	c->batches = &b;
	pthread_cond_broadcast(&c->work);
	while (b.i < n)
		call_next_locked(c, &b);
	while (b.busy)
		pthread_cond_wait(&b.done, &c->lock);
	pthread_mutex_unlock(&c->lock);
	pthread_cond_destroy(&b.done);
}
