/* SPDX-License-Identifier: Apache-2.0 */
/* Folders: copying their names out of the catalog, and updating a folder whose names change. */
#include "folder.h"

#include "node.h"

#include <string.h>

#define SOME 32 /* names read under one hold of the locks */

void kvc_folder_touch_locked(struct kvc *k, struct kvc_node *folder, int nlink)
{
	folder->row.mtime_ns = folder->row.ctime_ns = kvc_now_ns();
	folder->row.nlink += (uint32_t)nlink;
	kvc_folder_uncounted_locked(folder);
	if (folder->drop)
		kvc_chunk_mark_busy(kvc_chunk_find_locked(k, folder->row.ino));
	kvc_node_dirty_locked(k, folder);
}

static int entry_add(void *arg, const struct kvc_name *n)
{
	struct kvc_entries *e = arg;

	if (kvc_grow(&e->v, e->n, &e->capacity, sizeof *e->v))
		return -ENOMEM;
	e->v[e->n].parent = n->parent;
	e->v[e->n].ino = n->ino;
	e->v[e->n].kind = n->kind;
	snprintf(e->v[e->n++].name, sizeof e->v->name, "%s", n->name);
	return 0;
}

int kvc_folder_entries_in_both(struct kvc *k, uint64_t folder, struct kvc_entries *e)
{
	return kvc_name_each(k->cat, folder, 0, entry_add, e);
}

struct some_entries {
	struct kvc_entries *e;
	uint64_t hash; /* hash of the last name */
};

/* Stops only between two different hashes, so that the next call skips no name. */
static int entry_add_some(void *arg, const struct kvc_name *n)
{
	struct some_entries *s = arg;

	if (s->e->n >= SOME && n->hash != s->hash)
		return 1;
	s->hash = n->hash;
	return entry_add(s->e, n);
}

int kvc_folder_entries_some_both(struct kvc *k, uint64_t folder, uint64_t *after,
				 struct kvc_entries *e)
{
	struct some_entries s = { e, *after };
	int got;

	e->n = 0;
	got = kvc_name_each(k->cat, folder, *after, entry_add_some, &s);
	*after = s.hash;
	return got;
}

int kvc_folder_entries_of_both(struct kvc *k, uint64_t ino, struct kvc_entries *e)
{
	return kvc_name_of(k->cat, ino, entry_add, e);
}

int kvc_folder_entries_of_peeked_both(struct kvc *k, const struct kvc_peek_names *p,
				      struct kvc_entries *e)
{
	return kvc_name_of_peeked(k->cat, p, entry_add, e);
}

int kvc_folder_entries_of_some_both(struct kvc *k, uint64_t ino, struct kvc_name_at *at,
				    struct kvc_entries *e)
{
	e->n = 0;
	return kvc_name_of_some(k->cat, ino, at, SOME, entry_add, e);
}

static int any_name(void *arg, const struct kvc_name *n)
{
	(void)arg;
	(void)n;
	return 1;
}

int kvc_folder_empty_both(struct kvc *k, uint64_t folder)
{
	int err = kvc_name_each(k->cat, folder, 0, any_name, NULL);

	return err < 0 ? err : !err;
}

void kvc_folder_counted_locked(struct kvc_node *folder, unsigned published, unsigned of)
{
	folder->content.published = published + 1;
	folder->content.published_of = of;
}

void kvc_folder_uncounted_locked(struct kvc_node *folder)
{
	folder->content.published = 0;
}

void kvc_folder_grew_locked(struct kvc *k, const struct kvc_node *n, uint64_t bytes)
{
	struct kvc_node *folder = n->row.chunk == n->row.parent
					  ? kvc_node_find_locked(k, n->row.parent)
					  : NULL;

	if (folder)
		folder->content.bytes += bytes;
}
