/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that remove mappings. Unregistering waits until the whole device is idle, so no caller
 * does it. On a busy device only a few mappings are removed per second. If many are waiting, no
 * more are registered (kvcachefs_unmap_behind()), and bytes are staged instead.
 */
#ifndef KVCACHEFS_UNMAP_H
#define KVCACHEFS_UNMAP_H

#include "map.h"

#pragma GCC visibility push(hidden)
/*
 * Takes ownership of a list of mappings, linked by `going`. If a mapping is `queued`, its writable
 * part is removed, its read-only part is registered, and its reference is released; otherwise it is
 * freed. The caller holds no lock. Waits only if no thread can be created.
 */
void kvcachefs_unmap(struct kvcachefs_map *list);
/*
 * Tells the thread that a mapping of the cache will become idle, or that kvcachefs_cuda_reap() has
 * work. Returns false if the thread cannot be started.
 */
bool kvcachefs_unmap_wake(void);
/* Are many mappings waiting to be unregistered? */
bool kvcachefs_unmap_behind(void);
/* Waits until all mappings handed over before are removed. */
void kvcachefs_unmap_wait(void);
#pragma GCC visibility pop

#endif
