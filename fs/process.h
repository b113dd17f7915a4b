/* SPDX-License-Identifier: Apache-2.0 */
/* The process of a thread. */
#ifndef KVFS_PROCESS_H
#define KVFS_PROCESS_H

#include <stdint.h>

/*
 * Returns the process id of `thread`, the thread id that FUSE reports for a request that is under
 * way. If it cannot be found, returns `thread`. May read a file of /proc, but does not wait for the
 * process.
 */
uint32_t kvfs_process_of(uint32_t thread);

#endif
