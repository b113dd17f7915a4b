/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mappings of objects, and the cache of those that nobody uses. All calls are for any thread.
 */
#ifndef KVCACHEFS_MAPS_H
#define KVCACHEFS_MAPS_H

#include "map.h"

#pragma GCC visibility push(hidden)
/* After so long without use the mappings of a cache that nobody sized go; tests shorten it. */
extern unsigned kvcachefs_map_idle_ms;
/*
 * A use of the mapping of that object, given back by kvcachefs_map_put(). Where it is new and
 * `layout`, the file's layout is read with it. -ESTALE: another object has the path now; errors of
 * opening and mapping. Blocks where the mapping is not there yet.
 */
int kvcachefs_map_get(const char *path, uint64_t dev, uint64_t ino, size_t len, bool layout,
		      struct kvcachefs_map **out);
void kvcachefs_map_put(struct kvcachefs_map *m);
/* Those of a list that aside.c had no work with: unmapped here, the others there. */
void kvcachefs_maps_free(struct kvcachefs_map *list);
/*
 * A new file was published, or will never be: its mapping is the library's now. What can serve a
 * load is found by one from here on. Nothing is unregistered here.
 */
void kvcachefs_map_over(struct kvcachefs_map *m, bool published);
/* At a lease: how much the cache may keep where the caller has not said; asks each mount once. */
void kvcachefs_maps_bound(const char *mount, uint64_t dev);
/* What its file .kvcachefs/WHAT says, as far as there is room; false: there is none. */
bool kvcachefs_mount_says(const char *mount, const char *what, char *text, size_t room);
/* The cache's bytes. */
size_t kvcachefs_maps_bytes(void);
/*
 * For aside.c: what is idle or over the bound, to be freed; *wait_ms until there may be more, 0:
 * nobody knows.
 */
struct kvcachefs_map *kvcachefs_maps_idle(uint64_t *wait_ms);
#pragma GCC visibility pop

#endif
