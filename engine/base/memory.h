/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine has of memory. No lock needed. */
#ifndef KVC_MEMORY_H
#define KVC_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

uint64_t kvc_memory_total(void);     /* bytes of the machine; UINT64_MAX: not known */
uint64_t kvc_memory_available(void); /* bytes, as the kernel estimates it */
/* The bound of the memory cgroups that the daemon is in; UINT64_MAX: none. */
uint64_t kvc_memory_group_max(void);
/* Bytes that could be taken without pressing the machine or a memory cgroup of ours. */
uint64_t kvc_memory_spare(void);
/* What the guest frees goes back to its host (free page reporting), and is slow to get again. */
bool kvc_memory_reported(void);
/*
 * What was freed goes back to the kernel, where the allocator can be asked for it: after work that
 * took much of it and does not come again soon. It takes the allocator's locks, for .6 ms where
 * there are a million objects: not while calls are served.
 */
void kvc_memory_trim(void);

#endif
