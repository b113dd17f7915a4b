/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists folders: names in the order of their hashes, in pieces, because lookups wait for the
 * catalog's lock. Hidden files and files that are about to be removed are left out.
 */
#include "cache.h"
#include "ops.h"
#include "dir_invalidate.h"
#include "folder.h"
#include "incomplete.h"

#include <sys/stat.h>

#define NAMES 128 /* names listed under one hold of the catalog's lock */

/*
 * Lists some names, except those of files whose chunk is being dropped. The caller holds the
 * catalog's lock. Returns 1 if more names follow; *after is then the last hash.
 */
static int list_undropped(struct kvc *k, uint64_t ino, uint64_t *after, struct kvc_entries *e,
			  kvc_name_fn *fn, void *arg)
{
	int more, end = 0;

	kvc_lock(k);
	more = kvc_folder_entries_some_both(k, ino, after, e);
	for (size_t i = 0; i < e->n; i++) {
		struct kvc_node *n = kvc_node_find_locked(k, e->v[i].ino);

		e->v[i].ino = n && kvc_node_detached(n) ? 0 : e->v[i].ino;
	}
	kvc_unlock(k);
	for (size_t i = 0; i < e->n && !end; i++) {
		const struct kvc_name n = {
			ino, kvc_name_hash(e->v[i].name), e->v[i].ino, e->v[i].kind, e->v[i].name,
		};

		end = n.ino ? fn(arg, &n) : 0;
	}
	return more < 0 ? more : end ? 0 : more;
}

struct piece {
	kvc_name_fn *fn;
	void *arg;
	uint64_t hash; /* hash of the last name */
	unsigned n;
	bool ended; /* fn ended the listing */
};

/* Ends a piece between two different hashes, so that the next piece skips no name. */
static int list_name(void *arg, const struct kvc_name *n)
{
	struct piece *p = arg;

	if (p->n >= NAMES && n->hash != p->hash)
		return 1;
	p->n++;
	p->hash = n->hash;
	p->ended = p->fn(p->arg, n);
	return p->ended;
}

/* Lists some names; used while no chunk is being dropped. */
static int list_some(struct kvc *k, uint64_t ino, uint64_t *after, kvc_name_fn *fn, void *arg)
{
	struct piece p = { .fn = fn, .arg = arg, .hash = *after };
	int more = kvc_name_each(k->cat, ino, *after, list_name, &p);

	*after = p.hash;
	return p.ended ? 0 : more;
}

struct shown {
	kvc_name_fn *fn;
	void *arg;
};

static int show_if_visible(void *arg, const struct kvc_name *n)
{
	const struct shown *s = arg;

	return S_ISREG(n->kind) && !kvc_incomplete_temporary(n->name) ? 0 : s->fn(s->arg, n);
}

int kvc_readdir(struct kvc *k, uint64_t ino, uint64_t after, kvc_name_fn *fn, void *arg)
{
	struct shown shown = { fn, arg };
	struct kvc_entries e = { 0 };
	int more = 1;

	while (more == 1) {
		bool lost, some, partial;
		struct kvc_node *folder;

		kvc_catalog_lock(k->cat);
		kvc_lock(k);
		folder = kvc_node_find_locked(k, ino);
		lost = folder && folder->commit.lost;
		some = k->drops->ndetached > 0;
		partial = kvc_incomplete_on(k) && folder && !lost && kvc_incomplete_both(k, folder);
		kvc_unlock(k);
		fn = partial ? show_if_visible : shown.fn;
		arg = partial ? &shown : shown.arg;
		if (lost)
			more = 0;
		else if (some)
			more = list_undropped(k, ino, &after, &e, fn, arg);
		else
			more = list_some(k, ino, &after, fn, arg);
		kvc_catalog_unlock(k->cat);
		if (more == 1)
			kvc_catalog_pause(k->cat);
	}
	free(e.v);
	return more;
}
