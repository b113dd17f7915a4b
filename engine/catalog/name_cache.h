/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of lately (name_cache.c), and what SQLite has of them: who they are, or that they have
 * gone. Of one that has gone the filter still says that it may be there, and a cache is asked for
 * what it has dropped more than for anything else; one that is there is looked up and soon removed
 * or renamed. Under the catalog's lock.
 */
#ifndef KVC_NAME_CACHE_H
#define KVC_NAME_CACHE_H

#include "util.h"

struct kvc_name_cache {
	struct kvc_name_cache_item *names; /* NULL until the first; without memory none is kept */
};

struct kvc_named { /* ino 0: nobody */
	uint64_t ino;
	uint32_t kind;
};

void kvc_name_cache_fini(struct kvc_name_cache *l);
/* SQLite has it so, and the overlay has nothing newer. */
void kvc_name_cache_add(struct kvc_name_cache *l, uint64_t parent, uint64_t hash, const char *name,
			const struct kvc_named *is);
/* It changes: the overlay knows from now on. */
void kvc_name_cache_forget(struct kvc_name_cache *l, uint64_t parent, uint64_t hash);
/* NULL: not known. */
const struct kvc_named *kvc_name_cache_find(const struct kvc_name_cache *l, uint64_t parent,
					    uint64_t hash, const char *name);

#endif
