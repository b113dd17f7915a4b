/* SPDX-License-Identifier: Apache-2.0 */
/* The deadline of an unmount; see stop_watch.c. */
#ifndef KVC_STOP_WATCH_H
#define KVC_STOP_WATCH_H

#include "kvc.h"

#include <pthread.h>

struct kvc_stop_watch {
	struct kvc *k;
	uint64_t (*unsaved)(struct kvc *k); /* see kvc_stop_watch_start */
	pthread_mutex_t lock;
	pthread_cond_t ended;
	uint64_t beat_ns; /* when the stop made progress; under the lock, as is `over` */
	bool over;
	bool running; /* there is a thread */
	pthread_t thread;
};

/*
 * Starts to watch the stop of the cache. unsaved returns the number of files without a copy on
 * stable storage; it is called without locks and may take k->lock. If no thread can be started, the
 * stop has no deadline.
 */
void kvc_stop_watch_start(struct kvc_stop_watch *w, struct kvc *k,
			  uint64_t (*unsaved)(struct kvc *k));
/* The stop has made progress. */
void kvc_stop_watch_beat(struct kvc_stop_watch *w);
/* Ends the watch. */
void kvc_stop_watch_end(struct kvc_stop_watch *w);

#endif
