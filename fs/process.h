/* SPDX-License-Identifier: Apache-2.0 */
/* Of which process a thread is. */
#ifndef KVFS_PROCESS_H
#define KVFS_PROCESS_H

#include <stdint.h>

/*
 * The process of a thread that makes a call now, by the number that FUSE tells; where nothing says
 * which, the thread's own number. Does not wait for anybody.
 */
uint32_t kvfs_process_of(uint32_t thread);

#endif
