/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that went lately: a table of the last one of each slot, by folder and hash, with the whole
 * name, so that two names of one hash are never taken for each other. The overlay puts a name in
 * when it drops the removal that is committed, and takes it out when anything is put there again;
 * both, and every question, under the catalog's lock. Other than the filter it forgets at will.
 */
#include "went.h"

#include <string.h>

#define SLOTS 4096u
#define LONGEST 95u /* bytes of a name; longer ones are not kept */

struct kvc_went_name { /* parent 0: none, for inode numbers begin at 1 */
	uint64_t parent, hash;
	char name[LONGEST + 1];
};

static struct kvc_went_name *slot(const struct kvc_went *w, uint64_t parent, uint64_t hash)
{
	uint64_t h = (hash ^ parent * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull;

	return &w->names[(h >> 40) % SLOTS];
}

void kvc_went_fini(struct kvc_went *w)
{
	free(w->names);
	w->names = NULL;
}

void kvc_went_add(struct kvc_went *w, uint64_t parent, uint64_t hash, const char *name)
{
	size_t len = strlen(name);
	struct kvc_went_name *n;

	if (len > LONGEST)
		return;
	if (!w->names && !(w->names = calloc(SLOTS, sizeof *w->names)))
		return;
	n = slot(w, parent, hash);
	n->parent = parent;
	n->hash = hash;
	memcpy(n->name, name, len + 1);
}

void kvc_went_back(struct kvc_went *w, uint64_t parent, uint64_t hash)
{
	struct kvc_went_name *n = w->names ? slot(w, parent, hash) : NULL;

	if (n && n->parent == parent && n->hash == hash)
		n->parent = 0;
}

bool kvc_went_has(const struct kvc_went *w, uint64_t parent, uint64_t hash, const char *name)
{
	const struct kvc_went_name *n = w->names ? slot(w, parent, hash) : NULL;

	return n && parent && n->parent == parent && n->hash == hash && !strcmp(n->name, name);
}
