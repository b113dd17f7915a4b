/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See aside.h. One thread, which begins with the first work and ends with the process (a library
 * that has begun it is not unloaded: -z nodelete). Between its work it looks after what the cache
 * of mappings has had idle for too long (maps.c says when). Its lock guards the list and the
 * thread's state; nothing is done under it, and no other lock is taken under it.
 *
 * In the child of a fork there is no thread, and what the parent's had to do is the parent's.
 */
#include "aside.h"
#include "maps.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define LATE 64 /* more than this waits: what was stored is registered by who loads it */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static struct kvcachefs_map *first, **last = &first;
static pthread_t helper;
/* the thread: is there, is to end, is at work, is to look */
static bool helped, stopping, busy, woken;

static void end(struct kvcachefs_map *m, bool late)
{
	kvcachefs_map_settle(m);
	if (!m->listed) {
		kvcachefs_map_free(m);
		return;
	}
	if (!late)
		kvcachefs_map_pin(m, m->rw_device);
	kvcachefs_map_put(m);
}

static void end_all(struct kvcachefs_map *m)
{
	size_t n = 0;

	for (const struct kvcachefs_map *i = m; i; i = i->going)
		n++;
	for (struct kvcachefs_map *next; m; m = next, n--) {
		next = m->going;
		end(m, n > LATE);
	}
}

static void rest_locked(uint64_t wait_ms)
{
	if (wait_ms)
		kvcachefs_wait_ms(&more, &lock, wait_ms + 1);
	else
		pthread_cond_wait(&more, &lock);
}

static void *help(void *arg)
{
	uint64_t wait_ms;

	(void)arg;
	pthread_mutex_lock(&lock);
	while (!stopping) {
		struct kvcachefs_map *list = first;

		first = NULL;
		last = &first;
		busy = true;
		woken = false;
		pthread_mutex_unlock(&lock);
		end_all(list);
		list = kvcachefs_maps_idle(&wait_ms);
		end_all(list);
		pthread_mutex_lock(&lock);
		busy = false;
		if (!first)
			pthread_cond_broadcast(&done);
		if (!first && !woken && !stopping && !list)
			rest_locked(wait_ms);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* At the process's end: no device is called behind its back. */
static void stop(void)
{
	bool was;

	pthread_mutex_lock(&lock);
	was = helped;
	helped = false;
	stopping = true;
	pthread_cond_signal(&more);
	pthread_mutex_unlock(&lock);
	if (was)
		pthread_join(helper, NULL);
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
	helped = busy = woken = false; /* threads are not inherited */
	first = NULL;                  /* registered by the parent: not the child's to undo */
	last = &first;
	pthread_cond_init(&more, NULL);
	pthread_cond_init(&done, NULL);
	after_fork();
}

static void once(void)
{
	atexit(stop);
	pthread_atfork(before_fork, after_fork, in_child);
}

/* false: there is no thread. */
static bool help_locked(void)
{
	static pthread_once_t at_first = PTHREAD_ONCE_INIT;
	sigset_t all, old;

	if (helped || stopping)
		return helped;
	pthread_once(&at_first, once);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	helped = !pthread_create(&helper, NULL, help, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return helped;
}

void kvcachefs_aside(struct kvcachefs_map *list)
{
	struct kvcachefs_map *tail = list;
	bool taken;

	if (!list)
		return;
	while (tail->going)
		tail = tail->going;
	pthread_mutex_lock(&lock);
	taken = help_locked();
	if (taken) {
		*last = list;
		last = &tail->going;
		pthread_cond_signal(&more);
	}
	pthread_mutex_unlock(&lock);
	if (!taken)
		end_all(list);
}

void kvcachefs_aside_wake(void)
{
	pthread_mutex_lock(&lock);
	if (help_locked()) {
		woken = true;
		pthread_cond_signal(&more);
	}
	pthread_mutex_unlock(&lock);
}

void kvcachefs_aside_wait(void)
{
	pthread_mutex_lock(&lock);
	while (helped && (first || busy))
		pthread_cond_wait(&done, &lock);
	pthread_mutex_unlock(&lock);
}
