/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See shown.h. The first models are shown as they come (tally.c). Later one takes the place of
 * another where it has twice its opens, so that they do not change places with each look. Of a
 * model counts what was opened since it is shown; all else is in the sum of the rest, also what was
 * counted for one that is shown no more. So neither ever shrinks.
 */
#include "shown.h"

#include <stdlib.h>
#include <string.h>

#define AT_ONCE 256u /* tallies under one hold */

struct seen {
	uint64_t model, opens;
	bool shown;
};

static struct kvc_tally *find_locked(struct kvc *k, uint64_t model)
{
	struct kvc_slot *s = kvc_table_find(&k->tallies->table, model);

	return s ? kvc_of(s, struct kvc_tally, slot) : NULL;
}

static int more(const void *a, const void *b)
{
	const struct seen *x = a, *y = b;

	return (x->opens < y->opens) - (x->opens > y->opens);
}

/*
 * All of which something was opened, the most opens first; and behind them who is shown without.
 * NULL: no memory.
 */
static struct seen *look(struct kvc *k, size_t *n)
{
	const struct kvc_tallies *all = k->tallies;
	struct seen *v = calloc(KVC_TALLIES, sizeof *v);

	*n = 0;
	if (!v)
		return NULL;
	kvc_lock(k);
	for (size_t i = 0; i < all->n; i++) {
		const struct kvc_tally *t = all->v[i];

		if (t->slot.key && (t->hits + t->misses || t->shown) && t->nameless != t->last)
			v[(*n)++] = (struct seen){ t->slot.key, t->hits + t->misses, t->shown };
		if (i % AT_ONCE == AT_ONCE - 1)
			kvc_pause_locked(k);
	}
	kvc_unlock(k);
	qsort(v, *n, sizeof *v, more);
	return v;
}

static void show_locked(struct kvc *k, uint64_t model, bool show)
{
	struct kvc_tally *t = find_locked(k, model);

	if (!t || t->shown == show || (show && k->tallies->shown >= KVC_SHOWN))
		return;
	t->shown = show;
	t->hits_before = t->hits;
	t->misses_before = t->misses;
	k->tallies->shown = show ? k->tallies->shown + 1 : k->tallies->shown - 1;
}

/* Who is shown from now on, of all from the most opens to the fewest. */
static void choose(struct kvc *k, const struct seen *v, size_t n)
{
	size_t up = 0, down = n;

	kvc_lock(k);
	while (up < n && k->tallies->shown < KVC_SHOWN) /* where one has gone */
		show_locked(k, v[up++].model, true);
	for (up = 0; up < KVC_SHOWN && up < n; up++) {
		if (v[up].shown)
			continue;
		while (down > up && !v[down - 1].shown)
			down--;
		if (down <= up || v[up].opens <= 2 * v[down - 1].opens)
			break;
		show_locked(k, v[--down].model, false);
		show_locked(k, v[up].model, true);
	}
	kvc_unlock(k);
}

static int take_name(void *arg, const struct kvc_name *n)
{
	snprintf(arg, 256, "%s", n->name);
	return n->parent == KVC_ROOT;
}

int kvc_shown_name(struct kvc *k, uint64_t model, char *name)
{
	int is;

	*name = 0;
	kvc_catalog_lock(k->cat);
	is = kvc_name_of(k->cat, model, take_name, name);
	kvc_catalog_unlock(k->cat);
	return is;
}

/* A folder that has gone makes room for another. One renamed meanwhile is not there twice. */
static bool named(struct kvc *k, const struct kvc_shown_list *out, struct kvc_shown *s)
{
	int is = kvc_shown_name(k, s->model, s->name);

	if (!is) {
		struct kvc_tally *t;

		kvc_lock(k);
		show_locked(k, s->model, false);
		if ((t = find_locked(k, s->model)))
			t->nameless = t->last;
		kvc_unlock(k);
	}
	if (is != 1)
		return false;
	for (size_t i = 0; i < out->n; i++)
		if (!strcmp(out->v[i].name, s->name))
			return false;
	return true;
}

/* Of those that were seen the ones that are shown. */
static size_t take(struct kvc *k, const struct seen *v, size_t n, struct kvc_shown_list *out)
{
	size_t at = 0;

	kvc_lock(k);
	for (size_t i = 0; i < n && at < KVC_SHOWN; i++) {
		const struct kvc_tally *t = find_locked(k, v[i].model);

		if (t && t->shown && v[i].opens)
			out->v[at++] = (struct kvc_shown){
				.model = v[i].model,
				.n = { t->hits - t->hits_before, t->misses - t->misses_before },
				.total = { t->hits, t->misses },
			};
	}
	out->all = (struct kvc_opens){
		kvc_counted(&k->stats, pool_hits),
		kvc_counted(&k->stats, pool_misses),
	};
	kvc_unlock(k);
	return at;
}

int kvc_shown(struct kvc *k, struct kvc_shown_list *out)
{
	size_t n, at;
	KVC_MEM struct seen *v = look(k, &n);

	*out = (struct kvc_shown_list){ .models = n };
	while (v && out->models && !v[out->models - 1].opens)
		out->models--;
	out->v = calloc(KVC_SHOWN, sizeof *out->v);
	if (!v || !out->v) {
		free(out->v);
		return -ENOMEM;
	}
	choose(k, v, n);
	at = take(k, v, n, out);
	out->rest = out->all;
	for (size_t i = 0; i < at; i++) {
		struct kvc_shown *to = &out->v[out->n];

		*to = out->v[i];
		/* also of one that has no name now: it may have it again */
		out->rest.hits -= to->n.hits;
		out->rest.misses -= to->n.misses;
		if (named(k, out, to))
			out->n++;
		else
			out->models--;
	}
	return 0;
}
