/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads for calls that take long: one for leases of many objects, and one for files that are
 * given, or lose, many bytes at once (KVC_LONG). A handler that took as long would keep its CPU's
 * ring, and then the answerer, from everybody; or one of the few threads of the loop. It is made by
 * the first that needs it. Such calls come one after the other.
 */
#ifndef KVFS_ASIDE_H
#define KVFS_ASIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct call;
struct kvfs;

struct kvfs_aside {
	pthread_mutex_t lock; /* a leaf; guards what follows */
	pthread_cond_t more;
	pthread_t thread;
	struct call *first, *last; /* by call.next */
	bool started;
	atomic_bool ends; /* who runs gives up what takes long */
};

/* Both of them. */
void kvfs_aside_init(struct kvfs *f);
/* The call is run there; here and now where there is no thread, or where it ends. */
void kvfs_aside(struct kvfs_aside *a, struct call *c, void (*run)(struct call *c));
/* After the loop: what is left is run, and gives up. */
void kvfs_aside_stop(struct kvfs *f);

#endif
