/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Can this process use io_uring? A seccomp filter (Docker's default one), kernel.io_uring_disabled
 * or a short limit may refuse all of its system calls or one of them, and libfuse then serves by
 * /dev/fuse, or by nothing at all: it sets its rings up and waits for ever for requests. So each
 * call is tried before, by a child process, since a filter may also kill who makes the call.
 */
#ifndef KVFS_PROBE_H
#define KVFS_PROBE_H

#include <stdbool.h>
#include <stddef.h>

/*
 * queues, depth: as libfuse will make them. True if it works; otherwise why[size] is a clause that
 * says what is refused. Blocks for the life of the child, some milliseconds.
 */
bool kvfs_uring_works(unsigned queues, unsigned depth, char *why, size_t size);

#endif
