/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See share.h. A caller opens a batch on its stack. The caller and the helpers, which all batches
 * share, take the next call of a batch until none is left. The caller returns when the helpers that
 * took a call are done, so a batch ends at the latest with its slowest call.
 *
 * One lock guards the list of open batches and their members; no call is made while holding it. The
 * helpers start at the first shared batch and run until the process ends. They are not the threads
 * of copiers.c: calls to a mount may wait long, and bytes that a device waits for must not.
 *
 * The child of a fork has no helpers, and starts its own.
 */
#include "share.h"
#include "priv.h"

#include <signal.h>
#include <unistd.h>

#define HELPERS 7 /* at most, and one less than there are CPUs, but at least one */

struct shared {
	struct shared *next;
	void (*fn)(void *arg, size_t i);
	void *arg;
	size_t n, i;   /* i: the next call */
	unsigned busy; /* helpers that make a call of it */
	pthread_cond_t done;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static struct shared *batches; /* with calls left */
static bool started;

static void batch_remove_locked(struct shared *b)
{
	struct shared **at = &batches;

	while (*at != b)
		at = &(*at)->next;
	*at = b->next;
}

/* Makes the next call of a batch. Releases the lock during the call. */
static void call_next_locked(struct shared *b)
{
	size_t i = b->i++;

	if (b->i == b->n)
		batch_remove_locked(b);
	pthread_mutex_unlock(&lock);
	b->fn(b->arg, i);
	pthread_mutex_lock(&lock);
}

static void *share_thread(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		struct shared *b = batches;

		if (!b) {
			pthread_cond_wait(&work, &lock);
			continue;
		}
		b->busy++;
		call_next_locked(b);
		if (!--b->busy)
			pthread_cond_signal(&b->done);
	}
	return NULL;
}

static void share_before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void share_after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* The parent's batches are on the stacks of threads that do not exist here. */
static void share_in_child(void)
{
	batches = NULL;
	started = false;
	pthread_cond_init(&work, NULL);
	share_after_fork();
}

static void share_once(void)
{
	pthread_atfork(share_before_fork, share_after_fork, share_in_child);
}

static void share_start_locked(void)
{
	static pthread_once_t at_first = PTHREAD_ONCE_INIT;
	long n = sysconf(_SC_NPROCESSORS_ONLN) - 1;
	pthread_attr_t detached;
	sigset_t all, old;
	pthread_t thread;

	if (started)
		return;
	started = true;
	pthread_once(&at_first, share_once);
	n = n < 1 ? 1 : n > HELPERS ? HELPERS : n;
	sigfillset(&all); /* signals are for the program and its own threads */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	while (n-- > 0 && !pthread_create(&thread, &detached, share_thread, NULL))
		;
	pthread_attr_destroy(&detached);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void kvcachefs_share(size_t n, bool shares, void (*fn)(void *arg, size_t i), void *arg)
{
	struct shared b = { .fn = fn, .arg = arg, .n = n, .done = PTHREAD_COND_INITIALIZER };

	if (!shares || n < 2) {
		for (size_t i = 0; i < n; i++)
			fn(arg, i);
		return;
	}
	pthread_mutex_lock(&lock);
	share_start_locked();
	b.next = batches;
	batches = &b;
	pthread_cond_broadcast(&work);
	while (b.i < n)
		call_next_locked(&b);
	while (b.busy)
		pthread_cond_wait(&b.done, &lock);
	pthread_mutex_unlock(&lock);
	pthread_cond_destroy(&b.done);
}
