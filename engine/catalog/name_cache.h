/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache of committed names (name_cache.c): the inode of a name, or that the name does not exist.
 * Removed names are worth caching because the filter cannot exclude them, and a cache is asked for
 * dropped entries more than for anything else. Existing names are worth caching because a name that
 * is looked up is often removed or renamed soon. Under the catalog's lock.
 */
#ifndef KVC_NAME_CACHE_H
#define KVC_NAME_CACHE_H

#include "util.h"

struct kvc_name_cache {
	struct kvc_name_cache_item *names; /* NULL before the first name, and without memory */
};

struct kvc_named { /* ino 0: the name does not exist */
	uint64_t ino;
	uint32_t kind;
};

void kvc_name_cache_fini(struct kvc_name_cache *l);
/* Adds a name as SQLite has it. The overlay may not have a newer change of it. */
void kvc_name_cache_add(struct kvc_name_cache *l, uint64_t parent, uint64_t hash, const char *name,
			const struct kvc_named *is);
/* Removes a name because the overlay has a change of it now. */
void kvc_name_cache_forget(struct kvc_name_cache *l, uint64_t parent, uint64_t hash);
/* Returns NULL if the name is not in the cache. */
const struct kvc_named *kvc_name_cache_find(const struct kvc_name_cache *l, uint64_t parent,
					    uint64_t hash, const char *name);

#endif
