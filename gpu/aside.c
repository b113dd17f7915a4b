/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See aside.h. Two threads, which begin with the first work and end with the process (a library
 * that has begun them is not unloaded: -z nodelete):
 *
 *   shuts   takes writable mappings away, so that the mount sees a file that nobody writes. That
 *           waits for whoever maps or fills memory, not for a device.
 *   ends    unregisters, which waits until a device rests, as long as that takes. Between its work
 *           it looks after what the cache of mappings has had idle for too long (maps.c says when),
 *           and ends what is not kept of transfers.
 *
 * A mapping goes from the caller to the one and from there to the other. The lock guards both
 * lists and the threads' states; nothing is done under it, and no other lock is taken under it.
 *
 * In the child of a fork there are no threads, and what the parent's had to do is the parent's.
 */
#include "aside.h"
#include "maps.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define LATE 64    /* more than this waits: nothing is registered any more */
#define END_SECS 2 /* a device that does not rest is left alone at the process's end */

struct worker {
	struct kvcachefs_map *first, **last; /* by `going` */
	pthread_cond_t more;
	pthread_t thread;
	bool there, busy, woken; /* woken: it is to look */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done = PTHREAD_COND_INITIALIZER;
static struct worker shuts = { .last = &shuts.first, .more = PTHREAD_COND_INITIALIZER };
static struct worker ends = { .last = &ends.first, .more = PTHREAD_COND_INITIALIZER };
static bool stopping;
static atomic_uint waiting; /* mappings that are to be ended; a count of its own */

static unsigned count(const struct kvcachefs_map *m)
{
	unsigned n = 0;

	for (; m; m = m->going)
		n++;
	return n;
}

static void end(struct kvcachefs_map *m)
{
	kvcachefs_map_settle(m);
	if (!m->listed) {
		kvcachefs_map_free(m);
		return;
	}
	kvcachefs_map_pin(m, m->rw_device); /* not where too much waits */
	kvcachefs_map_put(m);
}

static void end_all(struct kvcachefs_map *m)
{
	for (struct kvcachefs_map *next; m; m = next) {
		next = m->going;
		atomic_fetch_sub_explicit(&waiting, 1, memory_order_relaxed);
		end(m);
	}
}

static void give_locked(struct worker *w, struct kvcachefs_map *list)
{
	struct kvcachefs_map *tail = list;

	while (tail->going)
		tail = tail->going;
	*w->last = list;
	w->last = &tail->going;
	pthread_cond_signal(&w->more);
}

/* All that it was given, which it is at now. */
static struct kvcachefs_map *take_locked(struct worker *w)
{
	struct kvcachefs_map *list = w->first;

	w->first = NULL;
	w->last = &w->first;
	w->busy = true;
	w->woken = false;
	return list;
}

static void rest_locked(struct worker *w, uint64_t wait_ms)
{
	if (wait_ms)
		kvcachefs_wait_ms(&w->more, &lock, wait_ms + 1);
	else
		pthread_cond_wait(&w->more, &lock);
}

/* It has done what it took. */
static void over_locked(struct worker *w)
{
	w->busy = false;
	pthread_cond_broadcast(&done);
}

static void *shut_them(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	while (!stopping) {
		struct kvcachefs_map *list = take_locked(&shuts);

		pthread_mutex_unlock(&lock);
		for (struct kvcachefs_map *m = list; m; m = m->going)
			kvcachefs_map_shut(m);
		pthread_mutex_lock(&lock);
		if (list)
			give_locked(&ends, list);
		over_locked(&shuts);
		if (!shuts.first && !stopping)
			rest_locked(&shuts, 0);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

static void *end_them(void *arg)
{
	uint64_t wait_ms;

	(void)arg;
	pthread_mutex_lock(&lock);
	while (!stopping) {
		struct kvcachefs_map *list = take_locked(&ends);

		pthread_mutex_unlock(&lock);
		end_all(list);
		kvcachefs_cuda_bury();
		list = kvcachefs_maps_idle(&wait_ms);
		atomic_fetch_add_explicit(&waiting, count(list), memory_order_relaxed);
		end_all(list);
		pthread_mutex_lock(&lock);
		over_locked(&ends);
		if (!ends.first && !ends.woken && !stopping && !list)
			rest_locked(&ends, wait_ms);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

static void stop_one(struct worker *w, bool was)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += END_SECS;
	if (was)
		pthread_timedjoin_np(w->thread, NULL, &until);
}

/* At the process's end: no device is called behind its back. */
static void stop(void)
{
	bool shut, ended;

	pthread_mutex_lock(&lock);
	shut = shuts.there;
	ended = ends.there;
	shuts.there = ends.there = false;
	stopping = true;
	pthread_cond_signal(&shuts.more);
	pthread_cond_signal(&ends.more);
	pthread_mutex_unlock(&lock);
	stop_one(&shuts, shut);
	stop_one(&ends, ended);
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* Threads are not inherited; what is registered by the parent is not the child's to undo. */
static void forget(struct worker *w)
{
	*w = (struct worker){ .last = &w->first };
	pthread_cond_init(&w->more, NULL);
}

static void in_child(void)
{
	forget(&shuts);
	forget(&ends);
	atomic_store_explicit(&waiting, 0, memory_order_relaxed);
	pthread_cond_init(&done, NULL);
	after_fork();
}

static void once(void)
{
	atexit(stop);
	pthread_atfork(before_fork, after_fork, in_child);
}

/* false: there is no thread. */
static bool begun_locked(struct worker *w, void *(*work)(void *))
{
	static pthread_once_t at_first = PTHREAD_ONCE_INIT;
	sigset_t all, old;

	if (w->there || stopping)
		return w->there;
	pthread_once(&at_first, once);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	w->there = !pthread_create(&w->thread, NULL, work, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return w->there;
}

void kvcachefs_aside(struct kvcachefs_map *list)
{
	bool taken;

	if (!list)
		return;
	atomic_fetch_add_explicit(&waiting, count(list), memory_order_relaxed);
	pthread_mutex_lock(&lock);
	taken = begun_locked(&ends, end_them);
	if (taken) /* without the one the other does both */
		give_locked(begun_locked(&shuts, shut_them) ? &shuts : &ends, list);
	pthread_mutex_unlock(&lock);
	if (!taken)
		end_all(list);
}

bool kvcachefs_aside_wake(void)
{
	bool there;

	pthread_mutex_lock(&lock);
	there = begun_locked(&ends, end_them);
	if (there) {
		ends.woken = true;
		pthread_cond_signal(&ends.more);
	}
	pthread_mutex_unlock(&lock);
	return there;
}

bool kvcachefs_aside_behind(void)
{
	return atomic_load_explicit(&waiting, memory_order_relaxed) > LATE;
}

void kvcachefs_aside_wait(void)
{
	pthread_mutex_lock(&lock);
	while ((shuts.there && (shuts.first || shuts.busy)) ||
	       (ends.there && (ends.first || ends.busy)))
		pthread_cond_wait(&done, &lock);
	pthread_mutex_unlock(&lock);
}
