/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications to the service manager by the protocol of sd_notify(3): the mount answers
 * (READY=1), it still answers (WATCHDOG=1), and the daemon stops (STOPPING=1). Without
 * NOTIFY_SOCKET in the environment, these functions do nothing.
 */
#ifndef KVFS_SERVICE_H
#define KVFS_SERVICE_H

struct kvfs;

/*
 * Reads and removes NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID from the environment. Call it
 * once, before all other functions, and only if the daemon runs in the foreground.
 */
void kvfs_service_init(void);
/*
 * Sends lines to the service manager, if there is one. Any thread may call it; it does not block.
 */
void kvfs_service_notify(const char *lines);

/*
 * Starts the thread that checks whether the mount answers, and that sends READY=1. Call it after
 * mounting. Returns 0 or a negative errno.
 */
int kvfs_service_watch(struct kvfs *f);
/* Sends STOPPING=1 and ends the checks. Call it before the unmount. */
void kvfs_service_stopping(void);
/*
 * Stops the thread, after all queued copies are written and before the engine is closed. Until
 * then, the thread extends the manager's stop timeout as long as copies are being written.
 */
void kvfs_service_stop(void);

#endif
