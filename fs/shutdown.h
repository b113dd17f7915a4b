/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shutdown by SIGTERM or SIGINT. If the daemon ended at once, files that are being written would be
 * lost without an error: with passthrough, their writers' next writes and close still succeed. So
 * the daemon keeps serving for a bounded time until all files that are open for writing are closed.
 * In this time, calls that open a file for writing are held, and they fail when the daemon ends. A
 * second signal ends the daemon at once.
 *
 * On SIGHUP the daemon reads the key file and opens the log file again, as kvcachectl reload does.
 * But if the daemon runs in the foreground of a terminal, SIGHUP ends it like SIGTERM, because the
 * terminal is gone.
 */
#ifndef KVFS_SHUTDOWN_H
#define KVFS_SHUTDOWN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct call;
struct kvfs;

struct kvfs_shutdown {
	pthread_t thread, loop;
	bool started;
	bool terminal; /* the daemon runs in the foreground of a terminal */
	atomic_bool begun, over;
	atomic_ulong writers; /* files open for writing, plus calls that are opening one */
	pthread_mutex_t lock; /* a leaf; guards held */
	struct call *held;
};

/*
 * Starts the thread that handles SIGTERM and SIGINT and then ends the session loop. Call it in the
 * loop's thread, before the loop and after fuse_set_signal_handlers. Returns 0 or a negative errno.
 */
int kvfs_shutdown_start(struct kvfs *f);
/* Stops that thread. Call it after the loop. */
void kvfs_shutdown_stop(struct kvfs *f);
/* Answers the held calls with ENOTCONN. Call it after the unmount. */
void kvfs_shutdown_end_held(struct kvfs *f);

/*
 * Call kvfs_writer_begin whenever a call that opens a file is run. It returns false if the call is
 * held or was answered; the caller then returns. A call that opens for writing is counted, once,
 * until kvfs_writer_end is called with the flags of the open: when the call fails, or at the file's
 * release.
 */
bool kvfs_writer_begin(struct call *c);
void kvfs_writer_end(struct kvfs *f, int flags);

#endif
