/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of committed names: a direct-mapped table by folder and hash. An entry contains the
 * whole name, so that two names with the same hash are never confused. The overlay adds a name when
 * it drops a committed change of it, and a lookup adds a name that SQLite has returned under the
 * catalog's lock. The overlay removes a name when it gets a new change of it. Unlike the filter,
 * the cache may forget any name.
 */
#include "name_cache.h"

#include <string.h>

#define SLOTS 4096u
#define LONGEST 79u /* maximum length of a name; longer names are not cached */

struct kvc_name_cache_item { /* parent 0: empty, because inode numbers begin at 1 */
	uint64_t parent, hash;
	struct kvc_named is;
	char name[LONGEST + 1];
};

static struct kvc_name_cache_item *slot(const struct kvc_name_cache *l, uint64_t parent,
					uint64_t hash)
{
	uint64_t h = (hash ^ parent * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull;

	return &l->names[(h >> 40) % SLOTS];
}

void kvc_name_cache_fini(struct kvc_name_cache *l)
{
	free(l->names);
	l->names = NULL;
}

void kvc_name_cache_add(struct kvc_name_cache *l, uint64_t parent, uint64_t hash, const char *name,
			const struct kvc_named *is)
{
	size_t len = strlen(name);
	struct kvc_name_cache_item *n;

	if (len > LONGEST)
		return;
	if (!l->names && !(l->names = calloc(SLOTS, sizeof *l->names)))
		return;
	n = slot(l, parent, hash);
	n->parent = parent;
	n->hash = hash;
	n->is = *is;
	memcpy(n->name, name, len + 1);
}

void kvc_name_cache_forget(struct kvc_name_cache *l, uint64_t parent, uint64_t hash)
{
	struct kvc_name_cache_item *n = l->names ? slot(l, parent, hash) : NULL;

	if (n && n->parent == parent && n->hash == hash)
		n->parent = 0;
}

const struct kvc_named *kvc_name_cache_find(const struct kvc_name_cache *l, uint64_t parent,
					    uint64_t hash, const char *name)
{
	const struct kvc_name_cache_item *n = l->names ? slot(l, parent, hash) : NULL;

	return n && parent && n->parent == parent && n->hash == hash && !strcmp(n->name, name)
		       ? &n->is
		       : NULL;
}
