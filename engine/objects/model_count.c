/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The count of all files, for the figures of models (telemetry/model_use.c). A clean unmount stores
 * the figures in the catalog, under meta model:MODEL, so a count runs only after a kill, after
 * fsck.kvcachefs has changed rows, and after a large folder has moved to another model. It visits
 * all inodes in the order of their numbers, a few under each hold of the locks. The rows are read
 * without locks before; under the locks only changed rows are read again.
 *
 * Several inodes are read at once by consecutive numbers. An inode in memory is found by its number
 * even if it is not committed yet. Where no number of a batch is used, the count continues at the
 * next committed inode, so it begins when all inodes with numbers below `below` are committed.
 */
#include "model_count.h"

#include "account.h"
#include "commit_batch.h"
#include "committer.h"
#include "folder.h"
#include "ino.h"
#include "model_rescan.h"
#include "model_use.h"
#include "node.h"

#include <inttypes.h>
#include <string.h>

#define KEY "model:"
#define STORED "models"
#define SOME 64   /* numbers read at once */
#define READ 16   /* the number of files in memory that a read from SQLite counts for */
#define MOVE 2048 /* files in memory whose figures are moved under one hold of the locks */

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

/*
 * Gets the model of a file, as the load of its node does: 0 if its folder is missing or too deep.
 * up: the parent of its folder, or 0 if it was not read.
 */
static int file_model_both(struct kvc *k, uint64_t folder, uint64_t up, struct last_model *m)
{
	bool in_memory = kvc_node_find_locked(k, folder);
	int err = 0;

	if (m->folder == folder)
		return 0;
	m->model = folder;
	if (folder == KVC_ROOT || in_memory || !up)
		err = kvc_node_model_both(k, folder, &m->model);
	else if (up != KVC_ROOT)
		err = kvc_node_model_both(k, up, &m->model);
	if (err == -ENOENT || err == -ELOOP) {
		m->model = 0;
		err = 0;
	}
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

static int move_file_both(struct kvc *k, uint64_t ino, uint64_t folder, uint64_t from, uint64_t to,
			  unsigned *steps)
{
	struct kvc_node *n = kvc_node_find_locked(k, ino);
	struct kvc_place place[KVC_TIERS];
	struct kvc_model_use u;
	struct kvc_row row;
	int err;

	++*steps;
	if (n) {
		if (n->row.parent == folder && n->model != to)
			kvc_account_quota_move_locked(k, n, to);
		return 0;
	}
	*steps += READ;
	err = read_rows_both(k, ino, &row, place);
	if (err || row.parent != folder)
		return err;
	u = use_of_rows(k, &row, place);
	kvc_model_use_move_locked(k, ino, from, to, &u);
	return 0;
}

/* Moves the files of one folder, and pushes its subfolders. */
static int move_folder_both(struct kvc *k, uint64_t folder, uint64_t from, uint64_t to,
			    struct kvc_stack *deeper, unsigned *steps)
{
	struct kvc_entries e = { 0 };
	uint64_t after = 0;
	int more = 1, err = 0;

	while (more == 1 && !err) {
		more = kvc_folder_entries_some_both(k, folder, &after, &e);
		err = more < 0 ? more : 0;
		*steps += READ;
		for (size_t i = 0; i < e.n && !err; i++) {
			if (S_ISREG(e.v[i].kind))
				err = move_file_both(k, e.v[i].ino, folder, from, to, steps);
			else if (S_ISDIR(e.v[i].kind))
				err = kvc_stack_push(deeper, e.v[i].ino);
			if (*steps > MOVE)
				err = -E2BIG;
		}
	}
	free(e.v);
	return err;
}

void kvc_model_count_moved_both(struct kvc *k, uint64_t folder, uint64_t from, uint64_t to)
{
	struct kvc_stack deeper = { 0 };
	unsigned steps = 0;
	int err = kvc_stack_push(&deeper, folder);

	while (!err && kvc_stack_pop(&deeper, &folder))
		err = move_folder_both(k, folder, from, to, &deeper, &steps);
	free(deeper.v);
	if (err)
		kvc_model_count_ask_locked(k);
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

	if (err || all->count.running || !kvc_model_use_none(&all->others.use))
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
