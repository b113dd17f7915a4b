/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Folders whose files move to another model, see model_moves.h.
 *
 * Each move has a bitmap of inode numbers: the files that were visited since the move began. A
 * visited file is counted in the model that its path names. A visit marks the file in all moves, so
 * any number of visits, in any order, count a file once. Files in memory need no bit, because
 * node->model names their model. When such a file leaves memory it is counted as its bits say:
 * node->model changes only together with them.
 *
 * A file that is not in memory is found by its path. At each folder of the path, from the file
 * upwards, the newest move of that folder decides. If the file is not marked in it, it is counted
 * where it was before that move. That model is found in the same way along the folder's old path:
 * the first move there in which the file is not marked decides; if none exists, it is the folder's
 * old model. If the file is marked in the newest move of a folder, it is also marked in all older
 * moves, and the search continues above.
 *
 * So each rename of a folder whose old or new path passes a move is a move of its own, also within
 * one model. A move that others refer to stays in memory after it has ended.
 */
#include "model_moves.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BITS 32768u

struct page {
	struct kvc_slot slot; /* by inode number / PAGE_BITS */
	uint64_t bits[PAGE_BITS / 64];
};

struct kvc_model_move {
	struct kvc_list link; /* in k->model_stats->moves.list, the newest first */
	uint64_t folder, from, to, below;
	struct kvc_table pages;
	struct kvc_stack walk;
	unsigned refs; /* by the moves that began later, and 1 while it is under way */
	bool under_way;
	struct kvc_model_move_path old;
};

static bool marked(const struct kvc_model_move *m, uint64_t ino)
{
	const struct kvc_slot *s;

	if (ino >= m->below)
		return true;
	s = kvc_table_find(&m->pages, ino / PAGE_BITS);
	ino %= PAGE_BITS;
	return s && kvc_of(s, const struct page, slot)->bits[ino / 64] >> ino % 64 & 1;
}

void kvc_model_moves_pass_locked(const struct kvc *k, uint64_t folder,
				 struct kvc_model_move_path *p)
{
	kvc_list_each(e, &k->model_stats->moves.list) {
		struct kvc_model_move *m = kvc_of(e, struct kvc_model_move, link);

		if (m->under_way && m->folder == folder && p->n < KVC_MODEL_MOVES_MAX) {
			p->on[p->n++] = m;
			return;
		}
	}
}

uint64_t kvc_model_moves_counted(const struct kvc_model_move_path *p, uint64_t ino, uint64_t model)
{
	for (unsigned i = 0; i < p->n; i++)
		if (!marked(p->on[i], ino)) {
			/* where it was before this move */
			model = p->on[i]->from;
			p = &p->on[i]->old;
			i = UINT32_MAX; /* continues with the first of them */
		}
	return model;
}

static void unref_locked(struct kvc *k, struct kvc_model_move *m)
{
	if (--m->refs)
		return;
	for (unsigned i = 0; i < m->old.n; i++)
		unref_locked(k, m->old.on[i]);
	kvc_list_del(&m->link);
	k->model_stats->moves.n--;
	if (m->pages.n)
		kvc_table_each(&m->pages, s) {
			kvc_table_del(&m->pages, s);
			free(kvc_of(s, struct page, slot));
			k->model_stats->moves.pages--;
		}
	kvc_table_fini(&m->pages);
	free(m->walk.v);
	free(m);
}

int kvc_model_moves_begin_locked(struct kvc *k, uint64_t folder, uint64_t from, uint64_t to,
				 uint64_t below, const struct kvc_model_move_path *p,
				 struct kvc_model_move **out)
{
	struct kvc_model_moves *all = &k->model_stats->moves;
	struct kvc_model_move *m;

	if (all->n >= KVC_MODEL_MOVES_MAX)
		return -E2BIG;
	m = calloc(1, sizeof *m);
	if (!m || kvc_table_init(&m->pages)) {
		free(m);
		return -ENOMEM;
	}
	m->folder = folder;
	m->from = from;
	m->to = to;
	m->below = below;
	m->old = *p;
	for (unsigned i = 0; i < p->n; i++)
		p->on[i]->refs++;
	m->refs = 1;
	m->under_way = true;
	kvc_list_add_head(&all->list, &m->link);
	all->n++;
	all->under_way++;
	*out = m;
	return 0;
}

void kvc_model_moves_end_locked(struct kvc *k, struct kvc_model_move *m)
{
	m->under_way = false;
	k->model_stats->moves.under_way--;
	unref_locked(k, m);
}

struct kvc_model_move *kvc_model_moves_first_locked(const struct kvc *k)
{
	struct kvc_model_move *first = NULL;

	if (!k->model_stats->moves.under_way)
		return NULL;
	kvc_list_each(e, &k->model_stats->moves.list) {
		struct kvc_model_move *m = kvc_of(e, struct kvc_model_move, link);

		first = m->under_way ? m : first;
	}
	return first;
}

bool kvc_model_moves_has_locked(const struct kvc *k, const struct kvc_model_move *m)
{
	kvc_list_each(e, &k->model_stats->moves.list)
		if (kvc_of(e, struct kvc_model_move, link) == m)
			return m->under_way;
	return false;
}

/* Returns the page with this inode's bit, or NULL if memory is short. */
static struct page *page_of(struct kvc *k, struct kvc_model_move *m, uint64_t ino)
{
	struct kvc_slot *s = kvc_table_find(&m->pages, ino / PAGE_BITS);
	struct page *page;

	if (s)
		return kvc_of(s, struct page, slot);
	if (k->model_stats->moves.pages >= KVC_MODEL_MOVES_PAGES ||
	    !(page = calloc(1, sizeof *page)))
		return NULL;
	page->slot.key = ino / PAGE_BITS;
	kvc_table_add(&m->pages, &page->slot);
	k->model_stats->moves.pages++;
	return page;
}

void kvc_model_moves_mark_locked(struct kvc *k, uint64_t ino)
{
	struct kvc_model_moves *all = &k->model_stats->moves;

	if (!all->under_way)
		return;
	kvc_list_each(e, &all->list) {
		struct kvc_model_move *m = kvc_of(e, struct kvc_model_move, link);
		struct page *page;

		if (ino >= m->below)
			continue;
		if ((page = page_of(k, m, ino)))
			page->bits[ino % PAGE_BITS / 64] |= 1ull << ino % 64;
		else
			all->failed = true;
	}
}

bool kvc_model_moves_failed(const struct kvc *k)
{
	return k->model_stats->moves.failed;
}

bool kvc_model_moves_change(const struct kvc *k, uint64_t model)
{
	if (!k->model_stats->moves.under_way || model == KVC_UNSET)
		return k->model_stats->moves.under_way > 0;
	kvc_list_each(e, &k->model_stats->moves.list) {
		const struct kvc_model_move *m = kvc_of(e, struct kvc_model_move, link);

		if (m->under_way && (m->from == model || m->to == model))
			return true;
	}
	return false;
}

bool kvc_model_moves_use_known_locked(const struct kvc *k, const struct kvc_model_stats *t)
{
	const struct kvc_model_stats_table *all = k->model_stats;

	if (all->count.running)
		return false;
	if (t == &all->others)
		return !kvc_model_moves_any(k);
	return !kvc_model_moves_change(k, t->slot.key) &&
	       (t->owns || kvc_model_use_none(&all->others.use));
}

void kvc_model_moves_forget_locked(struct kvc *k)
{
	struct kvc_model_move *m;

	while ((m = kvc_model_moves_first_locked(k)))
		kvc_model_moves_end_locked(k, m);
	k->model_stats->moves.failed = false;
}

struct kvc_stack *kvc_model_moves_walk(struct kvc_model_move *m)
{
	return &m->walk;
}
