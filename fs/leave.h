/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end by SIGTERM or SIGINT. A daemon that ended at once would take files along that are just
 * being written: their writers' next calls succeed by passthrough, the close too, and nothing tells
 * them. So it serves on until the files that are open for writing are closed, for a bounded time;
 * meanwhile calls that would open another for writing wait, and get an error when it ends. A second
 * signal, and SIGHUP, end it at once.
 */
#ifndef KVFS_LEAVE_H
#define KVFS_LEAVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct call;
struct kvfs;

struct kvfs_leave {
	pthread_t thread, loop;
	bool started;
	atomic_bool begun, over;
	atomic_ulong storing; /* files open for writing, and calls under way that open one */
	pthread_mutex_t lock; /* a leaf */
	struct call *held;
};

/*
 * Before the loop, in its thread, with libfuse's handlers in place: from here on SIGTERM and SIGINT
 * are for a thread of its own, which ends the loop. 0 or -errno.
 */
int kvfs_leave_start(struct kvfs *f);
/* After the loop. */
void kvfs_leave_stop(struct kvfs *f);
/* After the unmount: ends the calls that were held. */
void kvfs_leave_drop(struct kvfs *f);

/*
 * A call that opens a file is run, perhaps again: false: it is held, and nothing more to do. What
 * it opens for writing counts from now on until kvfs_stored, with the flags of the open: when the
 * call fails, or at the file's release.
 */
bool kvfs_stores(struct call *c);
void kvfs_stored(struct kvfs *f, int flags);

#endif
