/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks whether this process can use io_uring. A seccomp filter (such as Docker's default filter),
 * kernel.io_uring_disabled or a low resource limit may refuse some or all of its system calls.
 * libfuse would then fall back to /dev/fuse, or set up its rings and wait forever for requests. So
 * each system call is tried first, in a child process, because a seccomp filter may also kill the
 * caller.
 */
#ifndef KVFS_URING_PROBE_H
#define KVFS_URING_PROBE_H

#include <stdbool.h>
#include <stddef.h>

/*
 * queues, depth: the sizes that libfuse will use. Returns true if io_uring works; otherwise
 * why[size] is a clause that names the cause. Blocks for the life of the child, some milliseconds.
 */
bool kvfs_uring_works(unsigned queues, unsigned depth, char *why, size_t size);

#endif
