/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the service manager is told, by the protocol of sd_notify(3): that the mount answers
 * (READY=1), that it goes on answering (WATCHDOG=1), and that it ends (STOPPING=1). Without
 * NOTIFY_SOCKET nothing of this is done.
 */
#ifndef KVFS_NOTIFY_H
#define KVFS_NOTIFY_H

struct kvfs;

/* Takes NOTIFY_SOCKET and the like out of the environment. First of all, in the foreground. */
void kvfs_notify_take(void);
/* Sends lines to the manager, if there is one. Any thread; does not block. */
void kvfs_notify(const char *lines);

/*
 * Starts the thread that looks whether the mount answers; after mounting. READY=1 comes from it.
 * 0 or -errno.
 */
int kvfs_watch_start(struct kvfs *f);
/* The mount is about to end: nothing is asked any more, and the manager is told. */
void kvfs_watch_end(void);
/*
 * What was queued is written; until then the manager is told to wait while copies get on. Before
 * the engine goes.
 */
void kvfs_watch_stop(void);

#endif
