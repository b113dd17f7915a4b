/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker threads for calls that take long. The lease worker runs leases of many objects, and the
 * long lease worker those of more than KVC_LEASE_MIDDLE objects, so that the lookup of a prompt
 * does not wait for the list of a whole mount. The size worker runs calls that allocate or free
 * many bytes of a file at once (KVC_LONG). The cluster worker asks other nodes (cluster.h), and
 * waits for their answers. In a handler, such a call would block its CPU's ring,
 * one of libfuse's few loop threads, or the answerer. The first deferred call starts the thread. A
 * worker runs one call at a time: the oldest call of the user whose last call ran the longest ago.
 */
#ifndef KVFS_DEFER_H
#define KVFS_DEFER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct call;
struct kvfs;

#define KVFS_WORKER_USERS 256 /* users with the same hash share their turns */

struct kvfs_worker {
	pthread_mutex_t lock; /* a leaf; guards the members below */
	pthread_cond_t more;
	pthread_t thread;
	struct call *first, *last; /* linked by call.next */
	bool started;
	uint64_t turn;                     /* number of the call that was taken last */
	uint64_t turns[KVFS_WORKER_USERS]; /* the same, by user */
	atomic_bool ends;                  /* running calls check it and give up */
};

/* Initializes the workers of f. No thread is started yet. */
void kvfs_defer_init(struct kvfs *f);
/*
 * Queues the call for the worker, which then calls run(c). If no thread can be started, or the
 * worker is stopping, run(c) is called at once in the caller's thread. Locks a->lock.
 */
void kvfs_defer(struct kvfs_worker *a, struct call *c, void (*run)(struct call *c));
/*
 * Stops all workers and joins their threads. Calls that are still queued are run and give up. Call
 * it after the session loop has ended.
 */
void kvfs_defer_stop(struct kvfs *f);

#endif
