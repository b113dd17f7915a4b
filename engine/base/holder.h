/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the process that has a store locked, for messages. The lock itself does not name its owner:
 * it belongs to an open file, and F_OFD_GETLK and /proc/locks report -1 as its process. So all
 * processes in /proc are searched for the open file that has the lock.
 */
#ifndef KVC_HOLDER_H
#define KVC_HOLDER_H

#include <stdbool.h>
#include <sys/types.h>

struct kvc_holder {
	pid_t pid;      /* 0: not found. It may run in another PID namespace, or belong to a user
			   whose open files this process may not list. */
	char name[32];  /* of its program, such as kvcachefs; at most 15 characters */
	char at[1024];  /* the mount point, if the store is mounted in its mount namespace */
	bool elsewhere; /* its mount namespace differs from that of this process */
};

/*
 * Searches for the process that locks the file open as `fd`, which is in the store `dir`. Reads
 * /proc/PID/fd of all processes that this process may examine: milliseconds to a second.
 */
void kvc_holder_find(int fd, const char *dir, struct kvc_holder *h);
/*
 * Finds where the store is mounted, as the mounts of process `pid` ("self": this one) show it.
 * Returns false if it is not mounted there. `at` may be NULL.
 */
bool kvc_holder_mount(const char *pid, const char *dir, char at[1024]);
/* Writes why the store cannot be used, and what to do, to error. */
void kvc_holder_why(const struct kvc_holder *h, const char *dir, char error[512]);

#endif
