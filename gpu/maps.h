/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings of objects, and the cache of those that nobody uses. All calls are for any thread. */
#ifndef KVCACHEFS_MAPS_H
#define KVCACHEFS_MAPS_H

#include "layout.h"

struct kvcachefs_map;
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
void *kvcachefs_map_data(const struct kvcachefs_map *m, size_t *len);
/* The layout that the file says it has, "" where it says none; read once. */
int kvcachefs_map_layout(struct kvcachefs_map *m, const char *path,
			 char layout[KVCACHEFS_LAYOUT_MAX]);
/* Registers it for devices, once. false: it cannot be. */
bool kvcachefs_map_pin(struct kvcachefs_map *m, int device);
/* At a lease: how much the cache may keep where the caller has not said; asks each mount once. */
void kvcachefs_maps_bound(const char *mount, uint64_t dev);
#pragma GCC visibility pop

#endif
