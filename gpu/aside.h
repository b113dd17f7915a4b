/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that gives mappings up: unregistering takes a device's lock and may take long, and is
 * for no caller to wait for.
 */
#ifndef KVCACHEFS_ASIDE_H
#define KVCACHEFS_ASIDE_H

#include "map.h"

#pragma GCC visibility push(hidden)
/*
 * A list (by `going`) of mappings that are its own from now on: the writable part of those that are
 * `listed` goes, and their use is given back; the others are freed. Under no lock, and without
 * waiting, unless no thread can be made.
 */
void kvcachefs_aside(struct kvcachefs_map *list);
/* There is a time now at which a mapping of the cache is idle. */
void kvcachefs_aside_wake(void);
/* Waits until all that it was given before is done. */
void kvcachefs_aside_wait(void);
#pragma GCC visibility pop

#endif
