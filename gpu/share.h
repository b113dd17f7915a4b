/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that several threads share: calls to the mount, such as those of a transfer's items, and
 * copies in memory (copiers.h).
 */
#ifndef KVCACHEFS_SHARE_H
#define KVCACHEFS_SHARE_H

#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(hidden)
/*
 * The threads that help. Calls to a mount may wait for a long time, and copies that a device waits
 * for must not wait behind them, so each kind of call has threads of its own.
 */
struct kvcachefs_crew;
extern struct kvcachefs_crew kvcachefs_callers, kvcachefs_copiers;
/*
 * Calls fn(arg, i) for each i below n, and returns when all calls have returned. With `shares`
 * other threads make some of the calls, in any order; otherwise this thread makes them in order.
 * Works without other threads, too. Any thread may call, without a lock.
 */
void kvcachefs_share(struct kvcachefs_crew *c, size_t n, bool shares,
		     void (*fn)(void *arg, size_t i), void *arg);
#pragma GCC visibility pop

#endif
