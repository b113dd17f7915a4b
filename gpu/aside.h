/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads that give mappings up: unregistering waits until all of a device rests, and is for no
 * caller to wait for. A device that is busy all the time lets it do few a second, so where many are
 * to be given up nothing more is registered (kvcachefs_aside_behind()), and bytes are staged.
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
/*
 * There is a time now at which a mapping of the cache is idle, or something for
 * kvcachefs_cuda_bury(). false: there is no thread.
 */
bool kvcachefs_aside_wake(void);
/* More is to be unregistered than is done soon. */
bool kvcachefs_aside_behind(void);
/* Waits until all that it was given before is done. */
void kvcachefs_aside_wait(void);
#pragma GCC visibility pop

#endif
