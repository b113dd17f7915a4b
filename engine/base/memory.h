/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the machine and of the daemon's memory cgroups. No lock is needed. */
#ifndef KVC_MEMORY_H
#define KVC_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

uint64_t kvc_memory_total(void); /* bytes of the machine; UINT64_MAX: not known */
/* available bytes, as the kernel estimates them; UINT64_MAX: not known */
uint64_t kvc_memory_available(void);
/* Returns the lowest limit of the daemon's memory cgroups in bytes; UINT64_MAX: no limit. */
uint64_t kvc_memory_group_max(void);
/*
 * Returns the bytes that can be taken without memory pressure in the machine or in one of the
 * daemon's cgroups.
 */
uint64_t kvc_memory_spare(void);
/*
 * True if memory that this guest frees is returned to its host (free page reporting): allocating it
 * again is slow.
 */
bool kvc_memory_reported(void);
/*
 * Returns freed memory to the kernel, if the allocator supports it. Call it after work that used
 * much memory and will not be repeated soon. It holds the allocator's locks, for 0.6 ms with a
 * million objects, so do not call it while requests are served.
 */
void kvc_memory_trim(void);

#endif
