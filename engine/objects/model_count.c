/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The count of all files, for the figures of models (telemetry/model_use.c). A clean unmount stores
 * the figures in the catalog, under meta model:MODEL, so a count runs only after a kill, after
 * fsck.kvcachefs has changed rows, and if memory was short. It visits all inodes in the order of
 * their numbers, a few under each hold of the locks. The rows are read beforehand, without locks;
 * under the locks only changed rows are read again.
 *
 * Several inodes are read at once by consecutive numbers. An inode in memory is found by its number
 * even if it is not committed yet. If no number of a batch is used, the count skips to the next
 * committed inode. It must not skip inodes that are not committed yet, so it begins only when all
 * inodes with numbers below `below` are committed.
 *
 * The figures of a folder that moves to another model move with it. The rename visits its first
 * files; if there are more, the thread walks over the others, some names at a time
 * (telemetry/model_moves.c). The files of a chunk that is being dropped may have lost their names
 * already, but they are in memory, where node->model tells in which model they are counted.
 */
#include "model_count.h"

#include "account.h"
#include "commit_batch.h"
#include "committer.h"
#include "folder.h"
#include "ino.h"
#include "model_moves.h"
#include "model_rescan.h"
#include "model_use.h"
#include "node.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define KEY "model:"
#define STORED "models"
#define SOME 64   /* numbers read at once */
#define READ 16   /* a read from SQLite counts as this many files in memory */
#define MOVE 2048 /* files in memory whose figures a rename moves at once */

/* The last folder and its model, cached because files of one folder usually follow each other. */
struct last_model {
	uint64_t folder, model;
};

void kvc_model_count_ask_locked(struct kvc *k)
{
	kvc_model_use_begin_locked(k, k->inos->next);
	k->model_stats->count.txn = kvc_catalog_txn(k->cat);
	kvc_committer_wake_locked(k, true);
	pthread_cond_broadcast(&k->model_rescan->cond);
}

bool kvc_model_count_due_locked(const struct kvc *k)
{
	return k->model_stats->count.running &&
	       k->committer->committed >= k->model_stats->count.txn;
}

bool kvc_model_count_show_locked(const struct kvc *k, uint64_t *at, uint64_t *below)
{
	*at = k->model_stats->count.at;
	*below = k->model_stats->count.below;
	return k->model_stats->count.running;
}

/* Gets the model of a file. up: the parent of its folder, or 0 if it was not read. */
static int file_model_both(struct kvc *k, uint64_t folder, uint64_t up, struct last_model *m)
{
	int err;

	if (m->folder == folder)
		return 0;
	err = kvc_node_files_model_both(k, folder, up, &m->model, NULL);
	m->folder = err ? 0 : folder;
	return err;
}

static struct kvc_model_use use_of_rows(const struct kvc *k, const struct kvc_row *row,
					const struct kvc_place place[KVC_TIERS])
{
	struct kvc_model_use u = { .files = row->nlink > 0, .bytes = row->blocks * 512 };

	for (unsigned t = 0; t < k->tier_slots; t++)
		u.tier[t] = place[t].gen ? place[t].where.len : 0;
	return u;
}

/* Reads the rows of a file that is not in memory. -ENOENT: there is no such file. */
static int read_rows_both(struct kvc *k, uint64_t ino, struct kvc_row *row,
			  struct kvc_place place[KVC_TIERS])
{
	int err = kvc_row_get(k->cat, ino, row);

	if (!err && !S_ISREG(row->mode))
		err = -ENOENT;
	return err ?: kvc_place_get(k->cat, ino, place);
}

static int count_node_both(struct kvc *k, struct kvc_node *n, struct last_model *m)
{
	const struct kvc_model_use u = kvc_model_use_of(k, n);
	int err;

	if (!S_ISREG(n->row.mode) || n->commit.lost)
		return 0;
	if ((err = file_model_both(k, n->row.parent, 0, m)))
		return err;
	kvc_model_use_visit_locked(k, n->row.ino, m->model, &u);
	/* a folder above may have moved since the node's model was set */
	if (n->model != m->model)
		kvc_account_correct_model_locked(k, n, m->model);
	return 0;
}

/* Visits an inode, given as it was read before; it may have changed since. */
static int count_file_both(struct kvc *k, const struct kvc_peeked_object *p, struct last_model *m,
			   unsigned *steps)
{
	struct kvc_node *n = kvc_node_find_locked(k, p->is.ino);
	struct kvc_place place[KVC_TIERS];
	struct kvc_row row = p->is.row;
	uint64_t up = p->folder_parent;
	struct kvc_model_use u;
	int err = 0;

	++*steps;
	if (n)
		return count_node_both(k, n, m);
	if (!kvc_peeked_object_holds(k->cat, p)) {
		*steps += READ;
		up = 0;
		err = read_rows_both(k, p->is.ino, &row, place);
	} else if (p->is.node && S_ISREG(row.mode)) {
		memcpy(place, p->is.place, sizeof place);
	} else {
		return 0;
	}
	if (m->folder != row.parent)
		*steps += READ;
	err = err ?: file_model_both(k, row.parent, up, m);
	if (err)
		return err == -ENOENT ? 0 : err;
	u = use_of_rows(k, &row, place);
	kvc_model_use_visit_locked(k, p->is.ino, m->model, &u);
	return 0;
}

static void count_end_locked(struct kvc *k)
{
	kvc_model_use_end_locked(k);
	if (k->model_stats->count.again)
		kvc_model_count_ask_locked(k);
	pthread_cond_broadcast(&k->model_rescan->cond);
}

/* Returns the number before the next committed inode, from which the count continues. */
static int next_used(struct kvc *k, uint64_t at, uint64_t below, uint64_t *next)
{
	struct kvc_peeked one;
	size_t n;
	int err = kvc_peek_rows(k->cat, at, below, 1, &one, &n);

	if (!err)
		*next = n ? one.row.ino - 1 : below - 1;
	return err;
}

int kvc_model_count_some(struct kvc *k)
{
	struct kvc_peeked_object v[SOME];
	struct last_model m = { 0 };
	uint64_t from, below, next;
	unsigned steps = 0;
	bool any = false;
	size_t n = 0;
	int err;

	kvc_lock(k);
	kvc_model_count_show_locked(k, &from, &below);
	kvc_unlock(k);
	for (; n < SOME && from + 1 + n < below; n++)
		v[n].is.ino = from + 1 + n;
	err = n ? kvc_peek_objects(k->cat, v, n) : 0;
	for (size_t i = 0; i < n && !err; i++)
		any |= v[i].is.node;
	next = from + n;
	if (!err && n && !any)
		err = next_used(k, from + n, below, &next);
	kvc_commit_gate(k);
	kvc_lock_both(k);
	/* another count may have begun; it ignores these rows */
	for (size_t i = 0; i < n && !err && !k->stopping && k->model_stats->count.at == from + i;
	     i++) {
		if (steps > SOME + READ) {
			steps = 0;
			m.folder = 0; /* it may move now */
			kvc_pause_both(k);
			if (k->model_stats->count.at != from + i)
				break;
		}
		err = count_file_both(k, &v[i], &m, &steps);
		if (!err)
			kvc_model_use_advance_locked(k, v[i].is.ino);
	}
	if (!err && k->model_stats->count.at == from + n && k->model_stats->count.below == below) {
		kvc_model_use_advance_locked(k, next);
		if (next + 1 >= below)
			count_end_locked(k);
	}
	kvc_unlock_both(k);
	kvc_lock_pause(&k->lock);
	return err;
}

/* ---- folders that move ---- */

/* A folder whose files are visited: their model, and the moves on their path. */
struct visited {
	uint64_t folder, model;
	struct kvc_model_move_path path;
};

static int visit_begin_both(struct kvc *k, uint64_t folder, struct visited *v)
{
	v->folder = folder;
	v->path.n = 0;
	return kvc_node_files_model_both(k, folder, 0, &v->model, &v->path);
}

/*
 * Moves the figures of a file to the model that its path names. p: its rows, if they were read
 * before; they may have changed since.
 */
static int visit_file_both(struct kvc *k, const struct visited *v, uint64_t ino,
			   const struct kvc_peeked_object *p, unsigned *steps)
{
	struct kvc_node *n = kvc_node_find_locked(k, ino);
	struct kvc_place place[KVC_TIERS];
	struct kvc_model_use u;
	struct kvc_row row;
	int err = 0;

	++*steps;
	if (n) {
		if (n->row.parent == v->folder)
			kvc_account_quota_move_locked(k, n, v->model);
		return 0;
	}
	if (p && kvc_peeked_object_holds(k->cat, p)) {
		if (!p->is.node || !S_ISREG(p->is.row.mode))
			return 0;
		row = p->is.row;
		memcpy(place, p->is.place, sizeof place);
	} else {
		*steps += READ;
		err = read_rows_both(k, ino, &row, place);
	}
	if (err || row.parent != v->folder)
		return err == -ENOENT ? 0 : err;
	u = use_of_rows(k, &row, place);
	kvc_model_use_move_locked(k, ino, kvc_model_moves_counted(&v->path, ino, v->model),
				  v->model, &u);
	return 0;
}

/*
 * Reads the next names of the walk, and stores the position after them: their folder, if it has
 * more names, and then its subfolders. Returns 1, 0 at the end of the walk, or a negative errno.
 */
static int walk_names_both(struct kvc *k, struct kvc_stack *walk, uint64_t *folder,
			   struct kvc_entries *e)
{
	uint64_t after;
	int more;

	if (!kvc_stack_pop(walk, &after))
		return 0;
	kvc_stack_pop(walk, folder);
	more = kvc_folder_entries_some_both(k, *folder, &after, e);
	if (more < 0)
		return more;
	if (more && (kvc_stack_push(walk, *folder) || kvc_stack_push(walk, after)))
		return -ENOMEM;
	for (size_t i = 0; i < e->n; i++)
		if (S_ISDIR(e->v[i].kind) &&
		    (kvc_stack_push(walk, e->v[i].ino) || kvc_stack_push(walk, 0)))
			return -ENOMEM;
	return 1;
}

/* Visits files until all are visited (returns 0) or MOVE steps are done (returns 1). */
static int move_first_both(struct kvc *k, struct kvc_model_move *m)
{
	struct kvc_entries e = { 0 };
	unsigned steps = 0;
	struct visited v;
	uint64_t folder;
	int err = 1;

	while (err > 0 && steps < MOVE && !kvc_model_moves_failed(k)) {
		err = walk_names_both(k, kvc_model_moves_walk(m), &folder, &e);
		steps += READ;
		if (err <= 0 || (err = visit_begin_both(k, folder, &v)))
			break;
		for (size_t i = 0; i < e.n && !err; i++)
			if (S_ISREG(e.v[i].kind))
				err = visit_file_both(k, &v, e.v[i].ino, NULL, &steps);
		err = err ?: 1;
	}
	free(e.v);
	return err;
}

/* Adds to *p the moves of the folder and of those above it. */
static int pass_both(struct kvc *k, uint64_t folder, struct kvc_model_move_path *p)
{
	uint64_t model;

	return folder == KVC_ROOT ? 0 : kvc_node_files_model_both(k, folder, 0, &model, p);
}

void kvc_model_count_moved_both(struct kvc *k, uint64_t folder, uint64_t old_parent,
				uint64_t new_parent)
{
	struct kvc_model_move_path was = { .n = 0 }, is = { .n = 0 };
	struct kvc_model_move *m;
	uint64_t from = folder, to = folder;
	int err = 0;

	if (old_parent != KVC_ROOT)
		err = kvc_node_files_model_both(k, old_parent, 0, &from, NULL);
	if (new_parent != KVC_ROOT)
		err = err ?: kvc_node_files_model_both(k, new_parent, 0, &to, NULL);
	if (kvc_model_moves_any(k)) {
		kvc_model_moves_pass_locked(k, folder, &was);
		err = err ?: pass_both(k, old_parent, &was) ?: pass_both(k, new_parent, &is);
	}
	if (!err && from == to && !was.n && !is.n)
		return;
	err = err ?: kvc_model_moves_begin_locked(k, folder, from, to, k->inos->next, &was, &m);
	if (!err)
		err = kvc_stack_push(kvc_model_moves_walk(m), folder)
			      ?: kvc_stack_push(kvc_model_moves_walk(m), 0)
			      ?: move_first_both(k, m);
	if (!err && !kvc_model_moves_failed(k))
		kvc_model_moves_end_locked(k, m);
	else if (err > 0)
		pthread_cond_broadcast(&k->model_rescan->cond);
	else
		kvc_model_count_ask_locked(k);
}

static int compare_peeked(const void *a, const void *b)
{
	uint64_t x = ((const struct kvc_peeked_object *)a)->is.ino,
		 y = ((const struct kvc_peeked_object *)b)->is.ino;

	return (x > y) - (x < y);
}

/* Reads the rows of the files among these names, without locks, in the order of their numbers. */
static int peek_files(struct kvc *k, const struct kvc_entries *e, struct kvc_peeked_object *v,
		      size_t *n)
{
	*n = 0;
	for (size_t i = 0; i < e->n; i++)
		if (S_ISREG(e->v[i].kind))
			v[(*n)++].is.ino = e->v[i].ino;
	qsort(v, *n, sizeof *v, compare_peeked);
	return *n ? kvc_peek_objects(k->cat, v, *n) : 0;
}

/*
 * Visits the files in v. Releases the locks between some of them; then the move may end, and the
 * folder may move again.
 */
static int visit_files_both(struct kvc *k, struct kvc_model_move *m, uint64_t folder,
			    const struct kvc_peeked_object *v, size_t n)
{
	struct visited at;
	unsigned steps = 0;
	int err = visit_begin_both(k, folder, &at);

	for (size_t i = 0; i < n && !err && !k->stopping; i++) {
		if (steps > SOME + READ) {
			steps = 0;
			kvc_pause_both(k);
			if (!kvc_model_moves_has_locked(k, m))
				return 0;
			err = visit_begin_both(k, folder, &at);
		}
		err = err ?: visit_file_both(k, &at, v[i].is.ino, &v[i], &steps);
	}
	return err;
}

/* Walks on with the oldest move: reads some names, and then visits their files. */
static int move_some(struct kvc *k, struct kvc_entries *e, struct kvc_peeked_object **v)
{
	struct kvc_model_move *m;
	uint64_t folder = 0;
	size_t n = 0;
	int more = 0, err = 0;

	kvc_lock_both(k);
	m = kvc_model_moves_first_locked(k);
	if (m && !kvc_model_moves_failed(k))
		more = walk_names_both(k, kvc_model_moves_walk(m), &folder, e);
	if (m && !more && !kvc_model_moves_failed(k))
		kvc_model_moves_end_locked(k, m);
	kvc_unlock_both(k);
	if (more <= 0)
		return more;
	free(*v);
	if (!(*v = calloc(e->n + 1, sizeof **v)) || (err = peek_files(k, e, *v, &n)))
		err = err ?: -ENOMEM;
	kvc_commit_gate(k);
	kvc_lock_both(k);
	if (!err && kvc_model_moves_has_locked(k, m))
		err = visit_files_both(k, m, folder, *v, n);
	kvc_unlock_both(k);
	kvc_lock_pause(&k->lock);
	return err;
}

bool kvc_model_count_moves_locked(const struct kvc *k)
{
	return kvc_model_moves_any(k);
}

int kvc_model_count_move_some(struct kvc *k)
{
	struct kvc_entries e = { 0 };
	struct kvc_peeked_object *v = NULL;
	int err = move_some(k, &e, &v);

	free(e.v);
	free(v);
	kvc_lock_both(k);
	/* the position of the walk is lost, or a file could not be marked */
	if (err || kvc_model_moves_failed(k))
		kvc_model_count_ask_locked(k);
	kvc_unlock_both(k);
	return err;
}

/* ---- stored figures ---- */

static int forget_stored_both(struct kvc *k)
{
	char key[64] = KEY, value[192];
	int err = kvc_meta_del(k->cat, STORED);

	while (!err && !(err = kvc_meta_next(k->cat, KEY, key, value, sizeof value)))
		err = kvc_meta_del(k->cat, key);
	return err == -ENOENT ? 0 : err;
}

static int store_both(struct kvc *k, const struct kvc_model_stats *t)
{
	const struct kvc_model_use *u = &t->use;
	char key[40], value[192];
	int len;

	snprintf(key, sizeof key, KEY "%" PRIx64, t->slot.key);
	len = snprintf(value, sizeof value, "%" PRIu64 " %" PRIu64, u->files, u->bytes);
	for (unsigned i = 0; i < KVC_TIERS; i++)
		len += snprintf(value + len, sizeof value - (size_t)len, " %" PRIu64, u->tier[i]);
	return kvc_meta_set(k->cat, key, value);
}

static bool parse(const char *value, struct kvc_model_use *u)
{
	uint64_t *to[2 + KVC_TIERS] = { &u->files, &u->bytes };
	char *end;

	for (unsigned t = 0; t < KVC_TIERS; t++)
		to[2 + t] = &u->tier[t];
	for (unsigned i = 0; i < 2 + KVC_TIERS; i++, value = end) {
		*to[i] = strtoull(value, &end, 10);
		if (end == value)
			return false;
	}
	return !*end;
}

int kvc_model_count_load_both(struct kvc *k, bool clean)
{
	char key[64] = KEY, value[192], text[8];
	int is = kvc_meta_read(k->cat, STORED, text, sizeof text), err = -ENOENT;

	if (is < 0)
		return is;
	for (bool good = clean && is; good;) {
		struct kvc_model_use u;
		uint64_t model;

		if ((err = kvc_meta_next(k->cat, KEY, key, value, sizeof value))) {
			/* the stored figures are no longer true after the first change */
			return err == -ENOENT ? kvc_meta_del(k->cat, STORED) : err;
		}
		good = sscanf(key, KEY "%" SCNx64, &model) == 1 && parse(value, &u);
		if (good)
			kvc_model_use_restore_locked(k, model, &u);
	}
	kvc_model_count_ask_locked(k);
	return 0;
}

void kvc_model_count_save_both(struct kvc *k)
{
	const struct kvc_model_stats_table *all = k->model_stats;
	int err = forget_stored_both(k);

	/* otherwise the next start counts all files */
	if (err || all->count.running || kvc_model_moves_any(k) ||
	    !kvc_model_use_none(&all->others.use))
		return;
	/* A file that was never closed has only the bytes of its row after the next start. */
	kvc_table_each(&k->nodes->table, s) {
		const struct kvc_node *n = kvc_of(s, struct kvc_node, slot);

		if (n->state == KVC_OPEN && !n->commit.lost)
			kvc_model_use_file_locked(k, n, 0,
						  (int64_t)(n->row.blocks * 512 - n->acct.charged));
	}
	for (size_t i = 0; i < all->n && !err; i++)
		if (!kvc_model_use_none(&all->v[i]->use))
			err = store_both(k, all->v[i]);
	if (!err)
		kvc_meta_set(k->cat, STORED, "1");
}
