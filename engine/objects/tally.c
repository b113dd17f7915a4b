/* SPDX-License-Identifier: Apache-2.0 */
/* See tally.h. Who is forgotten is found by a hand that goes round, a few under each hold. */
#include "tally.h"

#define LOOKS 32

void kvc_tally_add(struct kvc_tally *to, const struct kvc_tally *t)
{
#define X(name, what) to->name += t->name;
	KVC_TALLY(X)
#undef X
}

/* One that nothing in the pool is counted in, and that was not used for long. */
static struct kvc_tally *oldest(struct kvc_tallies *all)
{
	struct kvc_tally *old = NULL;

	for (unsigned i = 0; i < LOOKS; i++) {
		struct kvc_tally *t = all->v[all->hand++ % all->n];

		if (!t->pool_bytes && (!old || t->last < old->last))
			old = t;
	}
	return old;
}

static struct kvc_tally *add_new(struct kvc_tallies *all, uint64_t model)
{
	struct kvc_tally *t;

	if (all->n == KVC_TALLIES) {
		if (!(t = oldest(all)))
			return &all->others;
		kvc_table_del(&all->table, &t->slot);
		kvc_tally_add(&all->others, t);
		all->shown -= t->shown;
		*t = (struct kvc_tally){ .hits = 0 };
	} else {
		if (kvc_grow(&all->v, all->n, &all->room, sizeof(struct kvc_tally *)) ||
		    !(t = calloc(1, sizeof *t)))
			return &all->others;
		all->v[all->n++] = t;
	}
	t->slot.key = model;
	t->shown = model && all->shown < KVC_SHOWN;
	all->shown += t->shown;
	kvc_table_add(&all->table, &t->slot);
	return t;
}

struct kvc_tally *kvc_tally_of_locked(struct kvc *k, uint64_t model)
{
	struct kvc_tallies *all = k->tallies;
	struct kvc_slot *s = kvc_table_find(&all->table, model);
	struct kvc_tally *t = s ? kvc_of(s, struct kvc_tally, slot) : add_new(all, model);

	t->last = ++all->uses;
	return t;
}

void kvc_tally_room_locked(struct kvc *k, struct kvc_node *n)
{
	uint64_t now = kvc_has_segment(n) ? n->room : 0;

	if (now == n->tallied && (!now || n->tally->slot.key == n->model))
		return;
	if (n->tally)
		n->tally->pool_bytes -= n->tallied;
	n->tally = now ? kvc_tally_of_locked(k, n->model) : NULL;
	n->tallied = now;
	if (n->tally)
		n->tally->pool_bytes += now;
}

size_t kvc_tallies_show_locked(struct kvc *k, size_t *at, struct kvc_tally *to, size_t room)
{
	const struct kvc_tallies *all = k->tallies;
	size_t n = 0;

	for (; n < room && *at <= all->n; ++*at)
		to[n++] = *at ? *all->v[*at - 1] : all->others;
	if (n && *at == n)
		to[0].slot.key = KVC_UNSET;
	return n;
}

void kvc_tallies_free(struct kvc *k)
{
	for (size_t i = 0; i < k->tallies->n; i++)
		free(k->tallies->v[i]);
	free(k->tallies->v);
	kvc_table_fini(&k->tallies->table);
}
