/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The deadline of an unmount. A call to a device may never return, and then the joins and syncs at
 * the end of a mount do not return either. So a thread watches kvc_cache_stop(). If the stop makes
 * no progress, and a device answers no call, for three times deadline= (at least 60 seconds), the
 * thread logs the names of the devices and the number of files without a copy on stable
 * storage, and ends the process with exit status 1. The store sees this as a kill: the pool stays
 * in memory, and the next mount takes it over.
 */
#include "stop_watch.h"

#include "log.h"
#include "tier_queue.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define WAIT_MIN_NS 60000000000ull /* a sync of a slow disk may take this long */
#define CHECK_NS 500000000ull

/* Logs the devices that have not answered for wait_ns. Returns whether there are any. */
static bool name_silent_devices(struct kvc *k, uint64_t wait_ns)
{
	struct kvc_tier_device d;
	bool any = false;

	kvc_tier_each(k, t) {
		struct kvc_tier *tier = k->tier[t].t;

		for (unsigned nr = 0; tier->ops->device && nr < KVC_DEVICES; nr++) {
			if (tier->ops->device(tier, nr, &d) || d.silent_ns < wait_ns)
				continue;
			kvc_error("disk: the device %s does not answer: the unmount does not wait "
				  "for it any longer",
				  d.path);
			any = true;
		}
	}
	return any;
}

static void give_up(struct kvc_stop_watch *w)
{
	uint64_t unsaved = w->unsaved(w->k);

	kvc_error(
		"the unmount is incomplete: %" PRIu64 " objects have no copy on stable storage "
		"and stay in memory, in the pool %s; mount the store again when the device works, "
		"and before this machine restarts",
		unsaved, w->k->pool.path);
	_exit(1);
}

static void *stop_watch_thread(void *arg)
{
	struct kvc_stop_watch *w = arg;
	uint64_t wait_ns = kvc_max(3 * w->k->opt.deadline_ms * 1000000, WAIT_MIN_NS);

	pthread_mutex_lock(&w->lock);
	while (!w->over) {
		struct timespec t = kvc_timespec(kvc_mono_ns() + CHECK_NS);

		pthread_cond_timedwait(&w->ended, &w->lock, &t);
		if (w->over || kvc_mono_ns() - w->beat_ns < wait_ns)
			continue;
		pthread_mutex_unlock(&w->lock);
		if (name_silent_devices(w->k, wait_ns))
			give_up(w);
		pthread_mutex_lock(&w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

void kvc_stop_watch_start(struct kvc_stop_watch *w, struct kvc *k,
			  uint64_t (*unsaved)(struct kvc *k))
{
	pthread_condattr_t attr;

	*w = (struct kvc_stop_watch){ .k = k, .unsaved = unsaved, .beat_ns = kvc_mono_ns() };
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&w->ended, &attr);
	pthread_condattr_destroy(&attr);
	w->running = !pthread_create(&w->thread, NULL, stop_watch_thread, w);
}

void kvc_stop_watch_beat(struct kvc_stop_watch *w)
{
	pthread_mutex_lock(&w->lock);
	w->beat_ns = kvc_mono_ns();
	pthread_mutex_unlock(&w->lock);
}

void kvc_stop_watch_end(struct kvc_stop_watch *w)
{
	pthread_mutex_lock(&w->lock);
	w->over = true;
	pthread_cond_signal(&w->ended);
	pthread_mutex_unlock(&w->lock);
	if (w->running)
		pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->ended);
	pthread_mutex_destroy(&w->lock);
}
