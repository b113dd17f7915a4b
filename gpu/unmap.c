/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See unmap.h. There are two threads. They start with the first work and run until the process ends
 * (a library that has started them is not unloaded: -z nodelete):
 *
 *   shuts   removes writable mappings, so that the mount sees no writer. It waits for threads
 *           that map memory or fault pages, but not for a device.
 *   ends    unregisters, which waits until a device is idle, however long that takes, and
 *           registers mappings for later loads. Between its work it removes mappings that the cache
 *           has had idle for too long (maps.c), and frees transfer resources that are not kept.
 *
 * A mapping passes from the caller to the first thread and then to the second. The lock guards both
 * lists and the states of the threads. No work is done while holding it, and no other lock is
 * taken.
 *
 * The child of a fork has no threads; the parent's work stays the parent's.
 */
#include "unmap.h"
#include "maps.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define BACKLOG_MAX 64 /* if more mappings wait, no more are registered */
#define END_SECS 2     /* at the process's end, how long to wait for a busy device */

struct worker {
	struct kvcachefs_map *first, **last; /* linked by `going` */
	pthread_cond_t more;
	pthread_t thread;
	bool running, busy, woken; /* woken: it must check for work */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done = PTHREAD_COND_INITIALIZER;
static struct worker shuts = { .last = &shuts.first, .more = PTHREAD_COND_INITIALIZER };
static struct worker ends = { .last = &ends.first, .more = PTHREAD_COND_INITIALIZER };
static bool stopping;
static atomic_uint waiting; /* mappings to unregister; independent of other data */

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
	if (!m->queued) {
		kvcachefs_map_free(m);
		return;
	}
	kvcachefs_map_pin(m, m->rw_device); /* refused if too many wait */
	kvcachefs_map_unqueue(m);
}

static void end_all(struct kvcachefs_map *m)
{
	for (struct kvcachefs_map *next; m; m = next) {
		next = m->going;
		atomic_fetch_sub_explicit(&waiting, 1, memory_order_relaxed);
		end(m);
	}
}

static void unmap_give_locked(struct worker *w, struct kvcachefs_map *list)
{
	struct kvcachefs_map *tail = list;

	while (tail->going)
		tail = tail->going;
	*w->last = list;
	w->last = &tail->going;
	pthread_cond_signal(&w->more);
}

/* Takes all work of the list; the thread is busy with it now. */
static struct kvcachefs_map *unmap_take_locked(struct worker *w)
{
	struct kvcachefs_map *list = w->first;

	w->first = NULL;
	w->last = &w->first;
	w->busy = true;
	w->woken = false;
	return list;
}

static void unmap_rest_locked(struct worker *w, uint64_t wait_ms)
{
	if (wait_ms)
		kvcachefs_wait_ms(&w->more, &lock, wait_ms + 1);
	else
		pthread_cond_wait(&w->more, &lock);
}

/* The thread has finished its work. */
static void unmap_done_locked(struct worker *w)
{
	w->busy = false;
	pthread_cond_broadcast(&done);
}

static void *shut_them(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	while (!stopping) {
		struct kvcachefs_map *list = unmap_take_locked(&shuts);

		pthread_mutex_unlock(&lock);
		for (struct kvcachefs_map *m = list; m; m = m->going)
			kvcachefs_map_shut(m);
		pthread_mutex_lock(&lock);
		if (list)
			unmap_give_locked(&ends, list);
		unmap_done_locked(&shuts);
		if (!shuts.first && !stopping)
			unmap_rest_locked(&shuts, 0);
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
		struct kvcachefs_map *list = unmap_take_locked(&ends);

		pthread_mutex_unlock(&lock);
		end_all(list);
		kvcachefs_cuda_reap();
		list = kvcachefs_maps_idle(&wait_ms);
		atomic_fetch_add_explicit(&waiting, count(list), memory_order_relaxed);
		end_all(list);
		pthread_mutex_lock(&lock);
		unmap_done_locked(&ends);
		if (!ends.first && !ends.woken && !stopping && !list)
			unmap_rest_locked(&ends, wait_ms);
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

/* Runs at the process's end, so that no thread calls a device during exit. */
static void unmap_stop(void)
{
	bool shut, ended;

	pthread_mutex_lock(&lock);
	shut = shuts.running;
	ended = ends.running;
	shuts.running = ends.running = false;
	stopping = true;
	pthread_cond_signal(&shuts.more);
	pthread_cond_signal(&ends.more);
	pthread_mutex_unlock(&lock);
	stop_one(&shuts, shut);
	stop_one(&ends, ended);
}

static void unmap_before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void unmap_after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* Threads are not inherited, and the child must not undo the parent's registrations. */
static void worker_reset(struct worker *w)
{
	*w = (struct worker){ .last = &w->first };
	pthread_cond_init(&w->more, NULL);
}

static void unmap_in_child(void)
{
	worker_reset(&shuts);
	worker_reset(&ends);
	atomic_store_explicit(&waiting, 0, memory_order_relaxed);
	pthread_cond_init(&done, NULL);
	unmap_after_fork();
}

KVCACHEFS_AT_FORK(unmap_before_fork, unmap_after_fork, unmap_in_child)

static void unmap_once(void)
{
	atexit(unmap_stop);
}

/* Returns false if the thread cannot be started. */
static bool unmap_start_locked(struct worker *w, void *(*work)(void *))
{
	static pthread_once_t at_first = PTHREAD_ONCE_INIT;
	sigset_t all, old;

	if (w->running || stopping)
		return w->running;
	pthread_once(&at_first, unmap_once);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	w->running = !pthread_create(&w->thread, NULL, work, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return w->running;
}

void kvcachefs_unmap(struct kvcachefs_map *list)
{
	bool taken;

	if (!list)
		return;
	atomic_fetch_add_explicit(&waiting, count(list), memory_order_relaxed);
	pthread_mutex_lock(&lock);
	taken = unmap_start_locked(&ends, end_them);
	if (taken) /* without the first thread, the second does the work of both */
		unmap_give_locked(unmap_start_locked(&shuts, shut_them) ? &shuts : &ends, list);
	pthread_mutex_unlock(&lock);
	if (!taken)
		end_all(list);
}

bool kvcachefs_unmap_wake(void)
{
	bool running;

	pthread_mutex_lock(&lock);
	running = unmap_start_locked(&ends, end_them);
	if (running) {
		ends.woken = true;
		pthread_cond_signal(&ends.more);
	}
	pthread_mutex_unlock(&lock);
	return running;
}

bool kvcachefs_unmap_behind(void)
{
	return atomic_load_explicit(&waiting, memory_order_relaxed) > BACKLOG_MAX;
}

void kvcachefs_unmap_wait(void)
{
	pthread_mutex_lock(&lock);
	while ((shuts.running && (shuts.first || shuts.busy)) ||
	       (ends.running && (ends.first || ends.busy)))
		pthread_cond_wait(&done, &lock);
	pthread_mutex_unlock(&lock);
}
