/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The usage of each model's files, see model_use.h. Each change of a file adds its difference to
 * the figures of the file's model, so the figures are exact at any time, and a change costs one
 * search in a table.
 *
 * Models are counted individually as long as model_stats.c has statistics for them. When the
 * statistics of a model are removed, its figures are added to `others`, and stay there: t->owns
 * tells whether the files of a model are counted in its own figures. A model may count its own
 * files from the start if `others` has none, because then it has no files yet.
 *
 * After a kill all files are counted again, in the order of their inode numbers. A file is counted
 * at once if the count has reached its number (`at`), or if its number was issued after the count
 * began (`below`), or if it is one of the few files whose number was issued before and that were
 * made later (`early`). So no file is counted twice, and none is left out.
 */
#include "model_use.h"

#include "model_moves.h"

#include <stdlib.h>

struct early {
	struct kvc_slot slot; /* by inode number */
};

static const struct kvc_model_stats *stats_of_locked(const struct kvc *k, uint64_t model)
{
	const struct kvc_slot *s = kvc_table_find(&k->model_stats->table, model);

	return s ? kvc_of(s, const struct kvc_model_stats, slot) : NULL;
}

bool kvc_model_use_get_locked(const struct kvc *k, uint64_t model, struct kvc_model_use *u)
{
	const struct kvc_model_stats none = { .slot.key = model };
	const struct kvc_model_stats *t = stats_of_locked(k, model) ?: &none;

	if (!kvc_model_moves_use_known_locked(k, t))
		return false;
	*u = t->use;
	return true;
}

uint64_t kvc_model_use_pool_locked(const struct kvc *k, uint64_t model)
{
	const struct kvc_model_stats *t = stats_of_locked(k, model);

	return t ? t->pool_bytes : 0;
}

/*
 * Returns the figures in which the files of this model are counted. A change of a file does not
 * count as a use of the model's statistics, and if all statistics are in use, it does not take
 * those of another model, as a use would.
 */
static struct kvc_model_use *figures_locked(struct kvc *k, uint64_t model)
{
	struct kvc_model_stats_table *all = k->model_stats;
	struct kvc_slot *s = kvc_table_find(&all->table, model);
	struct kvc_model_stats *t;

	if (!s && all->n == KVC_MODEL_STATS_MAX)
		return &all->others.use;
	t = s ? kvc_of(s, struct kvc_model_stats, slot) : kvc_model_stats_of_locked(k, model);
	if (t != &all->others && !t->owns)
		t->owns = kvc_model_use_none(&all->others.use);
	return t->owns ? &t->use : &all->others.use;
}

static void count(struct kvc *k, uint64_t model, const struct kvc_model_use *u, bool less)
{
	kvc_model_use_change(figures_locked(k, model), u, less);
	kvc_model_use_change(&k->model_stats->all_use, u, less);
}

bool kvc_model_use_counts(const struct kvc *k, uint64_t ino)
{
	const struct kvc_model_stats_table *all = k->model_stats;

	return !all->count.running || ino <= all->count.at || ino >= all->count.below ||
	       (all->count.early.n && kvc_table_find(&all->count.early, ino));
}

void kvc_model_use_file_locked(struct kvc *k, const struct kvc_node *n, int64_t files,
			       int64_t bytes)
{
	const struct kvc_model_use u = { .files = (uint64_t)files, .bytes = (uint64_t)bytes };

	if ((files || bytes) && kvc_model_use_counts(k, n->row.ino))
		count(k, n->model, &u, false);
}

void kvc_model_use_place_locked(struct kvc *k, const struct kvc_node *n, unsigned tier,
				uint64_t before, uint64_t now)
{
	struct kvc_model_use u = { .files = 0 };

	u.tier[tier] = now - before;
	if (now != before && kvc_model_use_counts(k, n->row.ino))
		count(k, n->model, &u, false);
}

struct kvc_model_use kvc_model_use_of(const struct kvc *k, const struct kvc_node *n)
{
	struct kvc_model_use u = { .files = n->acct.file, .bytes = n->acct.charged };

	for (unsigned t = 0; t < k->tier_slots; t++)
		u.tier[t] = n->in[t].place.gen ? n->in[t].place.where.len : 0;
	return u;
}

void kvc_model_use_move_locked(struct kvc *k, uint64_t ino, uint64_t from, uint64_t to,
			       const struct kvc_model_use *u)
{
	kvc_model_moves_mark_locked(k, ino);
	if (from == to || !kvc_model_use_counts(k, ino))
		return;
	count(k, from, u, true);
	count(k, to, u, false);
}

void kvc_model_use_enters_locked(struct kvc *k, uint64_t ino)
{
	struct early *e;

	kvc_model_moves_mark_locked(k, ino);
	if (kvc_model_use_counts(k, ino))
		return;
	if (!(e = calloc(1, sizeof *e))) {
		k->model_stats->count.again = true;
		return;
	}
	e->slot.key = ino;
	kvc_table_add(&k->model_stats->count.early, &e->slot);
}

static void forget_early(struct kvc_model_stats_table *all)
{
	if (all->count.early.n)
		kvc_table_each(&all->count.early, s) {
			kvc_table_del(&all->count.early, s);
			free(kvc_of(s, struct early, slot));
		}
}

void kvc_model_use_begin_locked(struct kvc *k, uint64_t below)
{
	struct kvc_model_stats_table *all = k->model_stats;

	for (size_t i = 0; i < all->n; i++) {
		all->v[i]->use = (struct kvc_model_use){ 0 };
		all->v[i]->owns = true;
	}
	all->others.use = all->all_use = (struct kvc_model_use){ 0 };
	forget_early(all);
	kvc_model_moves_forget_locked(k);
	all->count.running = true;
	all->count.again = false;
	all->count.at = 0;
	all->count.below = below;
}

void kvc_model_use_visit_locked(struct kvc *k, uint64_t ino, uint64_t model,
				const struct kvc_model_use *u)
{
	kvc_model_moves_mark_locked(k, ino);
	if (!kvc_model_use_counts(k, ino))
		count(k, model, u, false);
}

void kvc_model_use_advance_locked(struct kvc *k, uint64_t ino)
{
	k->model_stats->count.at = kvc_max(k->model_stats->count.at, ino);
}

void kvc_model_use_end_locked(struct kvc *k)
{
	k->model_stats->count.running = false;
	forget_early(k->model_stats);
}

void kvc_model_use_restore_locked(struct kvc *k, uint64_t model, const struct kvc_model_use *u)
{
	count(k, model, u, false);
}
