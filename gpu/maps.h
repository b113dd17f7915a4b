/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mappings of objects, and the cache of unused mappings. Any thread may call these functions.
 */
#ifndef KVCACHEFS_MAPS_H
#define KVCACHEFS_MAPS_H

#include "map.h"

#pragma GCC visibility push(hidden)
/*
 * Time without use after which mappings are removed, if the caller has not set the cache's size.
 * Tests shorten it.
 */
extern unsigned kvcachefs_map_idle_ms;
/*
 * Returns a reference to the mapping of an object, which kvcachefs_map_put() releases. If the
 * mapping is new and `layout` is set, the file's layout is read too. Returns 0 and sets *out;
 * -ESTALE if the path has another object now; or an error of open or mmap. Blocks if the object is
 * not mapped yet.
 */
int kvcachefs_map_get(const char *path, uint64_t dev, uint64_t ino, size_t len, bool layout,
		      struct kvcachefs_map **out);
void kvcachefs_map_put(struct kvcachefs_map *m);
/*
 * For loads on a device. find: returns a reference to the mapping of an object if it exists, or
 * NULL; *queued: it is about to be registered. Does not block. loaded: `bytes` bytes were loaded
 * from the open file of an object without a mapping. If the object was loaded before, it is mapped
 * and registered in the background. again: likewise, from an unregistered mapping.
 */
struct kvcachefs_map *kvcachefs_map_find(uint64_t dev, uint64_t ino, size_t len, bool *queued);
void kvcachefs_map_loaded(int fd, uint64_t dev, uint64_t ino, size_t len, uint64_t bytes,
			  int device);
void kvcachefs_map_again(struct kvcachefs_map *m, uint64_t bytes, int device);
/* Called by unmap.c after its work on a queued mapping. Releases the reference. */
void kvcachefs_map_unqueue(struct kvcachefs_map *m);
/*
 * Frees a list of mappings. Mappings without work for unmap.c are unmapped here, the others there.
 */
void kvcachefs_maps_free(struct kvcachefs_map *list);
/*
 * Hands over the mapping of a new file that was published, or that will never be. If it can serve
 * loads, they find it from now on. Does not unregister anything.
 */
void kvcachefs_map_over(struct kvcachefs_map *m, bool published);
/* Called at a lease: limits the cache if the caller has set no size. Asks each mount once. */
void kvcachefs_maps_bound(const char *mount, uint64_t dev);
/*
 * Reads the file .kvcachefs/WHAT of the mount into text, up to `capacity` bytes. Returns false if
 * there is none.
 */
bool kvcachefs_mount_says(const char *mount, const char *what, char *text, size_t capacity);
/* Returns the cache's size in bytes. */
size_t kvcachefs_maps_bytes(void);
/*
 * For unmap.c: removes mappings that are idle or above the limit, and returns them for freeing.
 * Sets *wait_ms to the time until there may be more; 0: unknown.
 */
struct kvcachefs_map *kvcachefs_maps_idle(uint64_t *wait_ms);
#pragma GCC visibility pop

#endif
