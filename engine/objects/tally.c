/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See tally.h. The first models are shown as they come. Later one takes the place of another where
 * it has twice its opens, so that they do not change places with each look. What was counted for a
 * model before it is shown stays in the sum of the rest, and what was counted while it was goes
 * with its row: neither ever shrinks.
 */
#include "tally.h"

#include <stdlib.h>
#include <string.h>

#define MOST 8192u    /* models that are counted; further ones are of the rest */
#define FEWER 4096u   /* so many are left when it is full */
#define AT_ONCE 1024u /* buckets under one hold */

struct tally {
	struct kvc_slot slot;     /* by the model's number */
	struct kvc_opens n, base; /* base: before it was shown */
	bool shown;
};

static struct tally *find_locked(struct kvc *k, uint64_t model)
{
	struct kvc_slot *s = k->tallies->table.n ? kvc_table_find(&k->tallies->table, model) : NULL;

	return s ? kvc_of(s, struct tally, slot) : NULL;
}

static struct tally *new_locked(struct kvc *k, uint64_t model)
{
	struct tally *t = k->tallies->table.n < MOST ? calloc(1, sizeof *t) : NULL;

	if (!t)
		return NULL;
	t->slot.key = model;
	t->shown = k->tallies->shown < KVC_TALLIES_SHOWN;
	k->tallies->shown += t->shown;
	kvc_table_add(&k->tallies->table, &t->slot);
	return t;
}

static void forget_locked(struct kvc *k, struct tally *t)
{
	k->tallies->shown -= t->shown;
	kvc_table_del(&k->tallies->table, &t->slot);
	free(t);
}

static void count(struct kvc_opens *n, bool hit)
{
	n->hits += hit;
	n->misses += !hit;
}

void kvc_tally_locked(struct kvc *k, uint64_t model, bool hit)
{
	struct tally *t = model ? find_locked(k, model) ?: new_locked(k, model) : NULL;

	count(&k->tallies->all, hit);
	if (t)
		count(&t->n, hit);
	if (!t || !t->shown)
		count(&k->tallies->rest, hit);
}

/* ---- what is shown ---- */

struct seen {
	uint64_t model, opens;
	bool shown;
};

static int more(const void *a, const void *b)
{
	const struct seen *x = a, *y = b;

	return (x->opens < y->opens) - (x->opens > y->opens);
}

/* All, the most opens first. NULL: no memory. */
static struct seen *look(struct kvc *k, size_t *n)
{
	struct seen *v = calloc(MOST, sizeof *v);

	*n = 0;
	if (!v)
		return NULL;
	kvc_lock(k);
	/* one that moves meanwhile moves to the end; it may be seen twice, which does no harm */
	for (size_t b = 0; b < k->tallies->table.buckets; b++) {
		for (struct kvc_slot *s = kvc_table_bucket(&k->tallies->table, b); s && *n < MOST;
		     s = s->next) {
			const struct tally *t = kvc_of(s, struct tally, slot);

			v[(*n)++] = (struct seen){ s->key, t->n.hits + t->n.misses, t->shown };
		}
		if (b % AT_ONCE == AT_ONCE - 1)
			kvc_pause_locked(k);
	}
	kvc_unlock(k);
	qsort(v, *n, sizeof *v, more);
	return v;
}

static void show_locked(struct kvc *k, uint64_t model, bool show)
{
	struct tally *t = find_locked(k, model);

	if (!t || t->shown == show || (show && k->tallies->shown >= KVC_TALLIES_SHOWN))
		return;
	t->shown = show;
	t->base = t->n;
	if (show)
		k->tallies->shown++;
	else
		k->tallies->shown--;
}

/* Who is shown from now on, of all from the most opens to the fewest. */
static void choose(struct kvc *k, struct seen *v, size_t n)
{
	size_t up = 0, down = n, freed = 0;

	kvc_lock(k);
	while (up < n && k->tallies->shown < KVC_TALLIES_SHOWN) /* where one has gone */
		show_locked(k, v[up++].model, true);
	for (up = 0; up < KVC_TALLIES_SHOWN && up < n; up++) {
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
	while (n == MOST && freed < MOST - FEWER) {
		kvc_lock(k);
		for (size_t i = 0; i < AT_ONCE; i++, freed++) {
			struct tally *t = find_locked(k, v[n - 1 - freed].model);

			if (t && !t->shown)
				forget_locked(k, t);
		}
		kvc_unlock(k);
	}
}

static int take_name(void *arg, const struct kvc_name *n)
{
	snprintf(arg, 256, "%s", n->name);
	return n->parent == KVC_ROOT;
}

int kvc_tally_name(struct kvc *k, uint64_t model, char *name)
{
	int is;

	*name = 0;
	kvc_catalog_lock(k->cat);
	is = kvc_name_of(k->cat, model, take_name, name);
	kvc_catalog_unlock(k->cat);
	return is;
}

/* A folder that has gone makes room for another. One renamed meanwhile is not there twice. */
static bool named(struct kvc *k, struct kvc_tally_list *out, struct kvc_tally_row *r)
{
	int is = kvc_tally_name(k, r->model, r->name);
	struct tally *t;

	if (!is) {
		kvc_lock(k);
		if ((t = find_locked(k, r->model)))
			forget_locked(k, t);
		kvc_unlock(k);
	}
	if (is != 1)
		return false;
	for (size_t i = 0; i < out->n; i++)
		if (!strcmp(out->v[i].name, r->name))
			return false;
	return true;
}

int kvc_tallies(struct kvc *k, struct kvc_tally_list *out)
{
	size_t n, at = 0;
	KVC_MEM struct seen *v = look(k, &n);

	*out = (struct kvc_tally_list){ .models = n };
	out->v = calloc(KVC_TALLIES_SHOWN, sizeof *out->v);
	if (!v || !out->v) {
		free(out->v);
		return -ENOMEM;
	}
	choose(k, v, n);
	kvc_lock(k);
	for (size_t i = 0; i < n && at < KVC_TALLIES_SHOWN; i++) {
		const struct tally *t = find_locked(k, v[i].model);

		if (t && t->shown)
			out->v[at++] = (struct kvc_tally_row){
				.model = v[i].model,
				.n = { t->n.hits - t->base.hits, t->n.misses - t->base.misses },
				.total = t->n,
			};
	}
	out->rest = k->tallies->rest;
	out->all = k->tallies->all;
	kvc_unlock(k);
	for (size_t i = 0; i < at; i++) {
		struct kvc_tally_row *to = &out->v[out->n];

		*to = out->v[i];
		if (named(k, out, to))
			out->n++;
		else
			out->models--;
	}
	return 0;
}

void kvc_tallies_free(struct kvc *k)
{
	kvc_table_each(&k->tallies->table, s)
		free(kvc_of(s, struct tally, slot));
	kvc_table_fini(&k->tallies->table);
}
