/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading ahead. A read of SQLite takes milliseconds if its pages are not in memory, and a drop
 * reads several rows and the names of every file. So they are read without the locks, and used
 * under the locks if the rows have not been written since (kvc_peek_inode_holds); otherwise they
 * are read again there.
 */
#include "read_ahead.h"

#include "model_moves.h"

#include <string.h>
#include <sys/stat.h>

struct kvc_read_ahead {
	size_t n, nnames;
	struct kvc_peek node[KVC_READ_AHEAD_MAX + KVC_READ_AHEAD_ABOVE];
	struct kvc_peek_names names[KVC_READ_AHEAD_MAX];
};

struct kvc_read_ahead *kvc_read_ahead_new(void)
{
	return calloc(1, sizeof(struct kvc_read_ahead));
}

void kvc_read_ahead_free(struct kvc_read_ahead *a)
{
	for (size_t i = 0; a && i < KVC_READ_AHEAD_MAX; i++)
		free(a->names[i].v);
	free(a);
}

static const struct kvc_peek *peek_of(const struct kvc_read_ahead *a, uint64_t ino)
{
	for (size_t i = 0; a && i < a->n; i++)
		if (a->node[i].ino == ino)
			return &a->node[i];
	return NULL;
}

/* The parent of a node in memory; 0 if it is not in memory. */
static uint64_t parent_in_memory(struct kvc *k, uint64_t ino)
{
	struct kvc_node *n;
	uint64_t parent;

	kvc_lock(k);
	n = kvc_node_find_locked(k, ino);
	parent = n ? n->row.parent : 0;
	kvc_unlock(k);
	return parent;
}

/* Reads an inode that is not in memory. Returns its parent, or 0 if that is not known. */
static uint64_t read_node(struct kvc *k, struct kvc_read_ahead *a, uint64_t ino)
{
	uint64_t parent = parent_in_memory(k, ino);
	const struct kvc_peek *had = parent ? NULL : peek_of(a, ino);

	if (parent)
		return parent;
	if (had)
		return had->node ? had->row.parent : 0;
	if (a->n == sizeof a->node / sizeof a->node[0])
		return 0;
	if (kvc_peek_inode(k->cat, ino, &a->node[a->n]) || !a->node[a->n].node)
		return 0;
	return a->node[a->n++].row.parent;
}

void kvc_read_ahead_nodes(struct kvc *k, struct kvc_read_ahead *a, const uint64_t *ino, size_t n)
{
	uint64_t up = 0;

	if (!a)
		return;
	a->n = 0;
	for (size_t i = 0; i < n && i < KVC_READ_AHEAD_MAX; i++) {
		uint64_t parent = read_node(k, a, ino[i]);

		up = up ? up : parent;
	}
	for (unsigned i = 0; i < KVC_READ_AHEAD_ABOVE && up && up != KVC_ROOT; i++)
		up = read_node(k, a, up);
}

bool kvc_read_ahead_nodes_both(struct kvc *k, struct kvc_read_ahead *a, const uint64_t *ino,
			       size_t n)
{
	bool any = false;

	for (size_t i = 0; i < n && a && !any; i++)
		any = !kvc_node_find_locked(k, ino[i]);
	if (!any)
		return false;
	kvc_unlock_both(k);
	kvc_read_ahead_nodes(k, a, ino, n);
	kvc_lock_both(k);
	return true;
}

void kvc_read_ahead_names_both(struct kvc *k, struct kvc_read_ahead *a, const uint64_t *ino,
			       size_t n, const struct kvc_name_at *at)
{
	const struct kvc_name_at first = *at, none = { 0 };

	if (!a) {
		kvc_pause_both(k);
		return;
	}
	kvc_unlock_both(k);
	a->n = a->nnames = 0;
	for (size_t i = 0; i < n && i < KVC_READ_AHEAD_MAX; i++) {
		struct kvc_peek_names *p = &a->names[a->nnames];

		if (kvc_peek_names(k->cat, ino[i], i ? &none : &first, p))
			continue;
		a->nnames++;
		for (size_t j = 0; j < p->n; j++)
			read_node(k, a, p->v[j].parent);
	}
	kvc_lock_pause(&k->lock);
	kvc_catalog_pause(k->cat);
	kvc_lock_both(k);
}

static int peeked_row_both(struct kvc *k, const struct kvc_read_ahead *a, uint64_t ino,
			   struct kvc_row *row)
{
	const struct kvc_peek *p = kvc_node_find_locked(k, ino) ? NULL : peek_of(a, ino);

	if (!p || !kvc_peek_inode_holds(k->cat, p))
		return kvc_node_row_both(k, ino, row);
	*row = p->row;
	return 0;
}

/* Same as kvc_node_files_model_both, with the rows that were read ahead. */
static int peeked_model_both(struct kvc *k, const struct kvc_read_ahead *a, uint64_t folder,
			     uint64_t *model)
{
	struct kvc_row row = { .ino = folder, .parent = folder };
	int err = 0;

	*model = 0;
	for (unsigned depth = 0; depth <= KVC_DEPTH_MAX && row.parent != KVC_ROOT && !err;
	     depth++) {
		*model = row.parent;
		err = peeked_row_both(k, a, row.parent, &row);
	}
	if (err || row.parent != KVC_ROOT)
		*model = 0;
	return err == -ENOENT ? 0 : err;
}

int kvc_read_ahead_node_both(struct kvc *k, struct kvc_read_ahead *a, uint64_t ino,
			     struct kvc_node **n)
{
	const struct kvc_peek *p = kvc_node_find_locked(k, ino) ? NULL : peek_of(a, ino);
	uint64_t model = 0;
	int err;

	/* while a folder moves, kvc_node_get_both finds the model in which the file is counted */
	if (!p || !kvc_peek_inode_holds(k->cat, p) || kvc_model_moves_any(k))
		return kvc_node_get_both(k, ino, n);
	err = S_ISREG(p->row.mode) ? peeked_model_both(k, a, p->row.parent, &model) : 0;
	return err ?: kvc_node_get_modeled_locked(k, p, model, n);
}

int kvc_read_ahead_entries_of_both(struct kvc *k, struct kvc_read_ahead *a, uint64_t ino,
				   struct kvc_entries *e)
{
	for (size_t i = 0; a && i < a->nnames; i++)
		if (a->names[i].ino == ino)
			return kvc_folder_entries_of_peeked_both(k, &a->names[i], e);
	return kvc_folder_entries_of_both(k, ino, e);
}
