/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to the mount that several threads share, such as those of a transfer's items. */
#ifndef KVCACHEFS_SHARE_H
#define KVCACHEFS_SHARE_H

#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(hidden)
/*
 * Calls fn(arg, i) for each i below n, and returns when all calls have returned. With `shares`
 * other threads make some of the calls, in any order; otherwise this thread makes them in order.
 * Works without other threads, too. Any thread may call, without a lock.
 */
void kvcachefs_share(size_t n, bool shares, void (*fn)(void *arg, size_t i), void *arg);
#pragma GCC visibility pop

#endif
