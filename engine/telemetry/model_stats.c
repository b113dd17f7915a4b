/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of each model, see model_stats.h. A clock hand finds statistics to reuse, checking a
 * few under each hold of k->lock.
 *
 * The first models that are asked for are shown at once. Later, a model replaces a shown one if it
 * was asked for more than twice as often, so that models do not change places at each reading. A
 * shown model's figures count from the time it was chosen. All others are in the sum of the rest,
 * including those counted for models that are no longer shown. So no figure ever decreases.
 */
#include "model_stats.h"

#include "model_moves.h"

#include <stdlib.h>
#include <string.h>

#define CHECKS 32
#define AT_ONCE 256u /* statistics read under one hold of the lock */

void kvc_model_stats_add(struct kvc_model_stats *to, const struct kvc_model_stats *t)
{
#define X(name, what) to->name += t->name;
	KVC_MODEL_STATS(X)
#undef X
	for (unsigned r = 0; r < KVC_REASONS_N; r++)
		to->evicted[r] += t->evicted[r];
	kvc_model_use_change(&to->use, &t->use, false);
}

/*
 * Looks at those of the next CHECKS statistics that have no bytes in the pool, and returns the
 * least recently used of those without files, or else of all. Returns NULL if there are none.
 */
static struct kvc_model_stats *oldest_stats(struct kvc_model_stats_table *all)
{
	struct kvc_model_stats *old = NULL;
	bool old_none = false;

	for (unsigned i = 0; i < CHECKS; i++) {
		struct kvc_model_stats *t = all->v[all->hand++ % all->n];
		bool none = kvc_model_use_none(&t->use);

		if (t->pool_bytes || (old_none && !none))
			continue;
		if (!old || (none && !old_none) || t->last < old->last) {
			old = t;
			old_none = none;
		}
	}
	return old;
}

int kvc_model_stats_init(struct kvc *k)
{
	kvc_list_init(&k->model_stats->moves.list);
	return kvc_table_init(&k->model_stats->table)
		       ?: kvc_table_init(&k->model_stats->count.early);
}

static struct kvc_model_stats *stats_new(struct kvc_model_stats_table *all, uint64_t model)
{
	struct kvc_model_stats *t;

	if (all->n == KVC_MODEL_STATS_MAX) {
		if (!(t = oldest_stats(all)))
			return &all->others;
		kvc_table_del(&all->table, &t->slot);
		kvc_model_stats_add(&all->others, t);
		all->shown -= t->shown;
		*t = (struct kvc_model_stats){ .hits = 0 };
	} else {
		if (kvc_grow(&all->v, all->n, &all->capacity, sizeof(struct kvc_model_stats *)) ||
		    !(t = calloc(1, sizeof *t)))
			return &all->others;
		all->v[all->n++] = t;
	}
	t->slot.key = model;
	t->shown = model && all->shown < KVC_TOP_MODELS;
	all->shown += t->shown;
	kvc_table_add(&all->table, &t->slot);
	return t;
}

struct kvc_model_stats *kvc_model_stats_of_locked(struct kvc *k, uint64_t model)
{
	struct kvc_model_stats_table *all = k->model_stats;
	struct kvc_slot *s = kvc_table_find(&all->table, model);
	struct kvc_model_stats *t = s ? kvc_of(s, struct kvc_model_stats, slot)
				      : stats_new(all, model);

	t->last = ++all->uses;
	return t;
}

void kvc_model_stats_pool_bytes_locked(struct kvc *k, struct kvc_node *n)
{
	uint64_t now = kvc_node_has_segment(n) ? n->acct.reserved : 0;

	if (now == n->counted.bytes && (!now || n->counted.in->slot.key == n->model))
		return;
	if (n->counted.in)
		n->counted.in->pool_bytes -= n->counted.bytes;
	n->counted.in = now ? kvc_model_stats_of_locked(k, n->model) : NULL;
	n->counted.bytes = now;
	if (n->counted.in)
		n->counted.in->pool_bytes += now;
}

void kvc_model_stats_found_locked(struct kvc *k, uint64_t model, uint64_t n)
{
	kvc_count_by(&k->stats, found, n);
	kvc_model_stats_of_locked(k, model)->found += n;
}

void kvc_model_stats_absent_locked(struct kvc *k, uint64_t model, uint64_t n)
{
	kvc_count_by(&k->stats, absent, n);
	kvc_model_stats_of_locked(k, model)->absent += n;
}

void kvc_model_stats_evicted_locked(struct kvc *k, uint64_t model, enum kvc_reason why)
{
	k->model_stats->all_evicted[why]++;
	kvc_model_stats_of_locked(k, model)->evicted[why]++;
}

static struct kvc_model_stats *stats_find_locked(const struct kvc *k, uint64_t model)
{
	struct kvc_slot *s = kvc_table_find(&k->model_stats->table, model);

	return s ? kvc_of(s, struct kvc_model_stats, slot) : NULL;
}

void kvc_model_stats_evicted_get_locked(const struct kvc *k, uint64_t model,
					uint64_t evicted[KVC_REASONS_N])
{
	const struct kvc_model_stats none = { .hits = 0 },
				     *t = stats_find_locked(k, model) ?: &none;

	memcpy(evicted, t->evicted, sizeof none.evicted);
}

bool kvc_model_stats_absent_joint(struct kvc *k, uint64_t model)
{
	struct kvc_model_stats *t = stats_find_locked(k, model);

	if (!t)
		return false;
	kvc_count(&k->stats, absent);
	__atomic_fetch_add(&t->absent, 1, __ATOMIC_RELAXED); /* other joint holds do the same */
	return true;
}

size_t kvc_model_stats_show_locked(struct kvc *k, size_t *at, struct kvc_model_stats *to,
				   size_t capacity)
{
	const struct kvc_model_stats_table *all = k->model_stats;
	size_t n = 0;

	for (; n < capacity && *at <= all->n; ++*at)
		to[n++] = *at ? *all->v[*at - 1] : all->others;
	if (n && *at == n)
		to[0].slot.key = KVC_UNSET;
	return n;
}

void kvc_model_stats_free(struct kvc *k)
{
	kvc_table_fini(&k->model_stats->count.early);
	for (size_t i = 0; i < k->model_stats->n; i++)
		free(k->model_stats->v[i]);
	free(k->model_stats->v);
	kvc_table_fini(&k->model_stats->table);
}

struct candidate {
	uint64_t model, asked;
	bool shown;
	uint64_t bytes; /* of its files */
};

static int by_asked(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;
	int by = (x->asked < y->asked) - (x->asked > y->asked);

	return by ?: (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/* How often a model's chunks were opened, or asked for although they did not exist. */
static uint64_t asked(const struct kvc_model_stats *t)
{
	return t->hits + t->misses + t->absent;
}

/*
 * Lists all models that were asked for a chunk, most asked first, and after them the models that
 * have files or are shown. *pool_bytes: the bytes of all models in the pool. Returns NULL if out of
 * memory.
 */
static struct candidate *list_candidates(struct kvc *k, size_t *n, uint64_t *pool_bytes)
{
	const struct kvc_model_stats_table *all = k->model_stats;
	struct candidate *v = calloc(KVC_MODEL_STATS_MAX, sizeof *v);

	*n = 0;
	*pool_bytes = 0;
	if (!v)
		return NULL;
	kvc_lock(k);
	for (size_t i = 0; i < all->n; i++) {
		const struct kvc_model_stats *t = all->v[i];

		*pool_bytes += t->pool_bytes;
		if (t->slot.key && (asked(t) || t->shown || t->use.files) && t->nameless != t->last)
			v[(*n)++] = (struct candidate){
				t->slot.key,
				asked(t),
				t->shown,
				t->use.bytes,
			};
		if (i % AT_ONCE == AT_ONCE - 1)
			kvc_pause_locked(k);
	}
	kvc_unlock(k);
	qsort(v, *n, sizeof *v, by_asked);
	return v;
}

/* The difference of the counters of a model and earlier values of them. */
static struct kvc_opens opens_since(const struct kvc_model_stats *t, const struct kvc_opens *before)
{
	struct kvc_opens n = {
		.hits = t->hits - before->hits,
		.misses = t->misses - before->misses,
		.found = t->found - before->found,
		.absent = t->absent - before->absent,
	};

	for (unsigned r = 0; r < KVC_REASONS_N; r++)
		n.evicted[r] = t->evicted[r] - before->evicted[r];
	return n;
}

static void show_locked(struct kvc *k, uint64_t model, bool show)
{
	struct kvc_model_stats *t = stats_find_locked(k, model);

	if (!t || t->shown == show || (show && k->model_stats->shown >= KVC_TOP_MODELS))
		return;
	t->shown = show;
	t->before = opens_since(t, &(struct kvc_opens){ 0 });
	k->model_stats->shown = show ? k->model_stats->shown + 1 : k->model_stats->shown - 1;
}

/* Chooses the models to show; v is sorted by `asked`, most first. */
static void choose_shown(struct kvc *k, const struct candidate *v, size_t n)
{
	size_t up = 0, down = n;

	kvc_lock(k);
	while (up < n && k->model_stats->shown < KVC_TOP_MODELS) /* free places */
		show_locked(k, v[up++].model, true);
	for (up = 0; up < KVC_TOP_MODELS && up < n; up++) {
		if (v[up].shown)
			continue;
		while (down > up && !v[down - 1].shown)
			down--;
		if (down <= up || v[up].asked <= 2 * v[down - 1].asked)
			break;
		show_locked(k, v[--down].model, false);
		show_locked(k, v[up].model, true);
	}
	kvc_unlock(k);
}

static int copy_name(void *arg, const struct kvc_name *n)
{
	snprintf(arg, 256, "%s", n->name);
	return n->parent == KVC_ROOT;
}

int kvc_top_models_name(struct kvc *k, uint64_t model, char *name)
{
	int is;

	*name = 0;
	kvc_catalog_lock(k->cat);
	is = kvc_name_of(k->cat, model, copy_name, name);
	kvc_catalog_unlock(k->cat);
	return is;
}

/*
 * Gets the model's name. A model whose folder was deleted gives up its place. Returns false if it
 * has no name, or if the list has that name already because of a rename in between.
 */
static bool has_new_name(struct kvc *k, const struct kvc_top_models_list *out,
			 struct kvc_top_models *s)
{
	int is = kvc_top_models_name(k, s->model, s->name);

	if (!is) {
		struct kvc_model_stats *t;

		kvc_lock(k);
		show_locked(k, s->model, false);
		if ((t = stats_find_locked(k, s->model)))
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

void kvc_model_stats_subtract(struct kvc_opens *from, const struct kvc_opens *n)
{
	from->hits -= n->hits;
	from->misses -= n->misses;
	from->found -= n->found;
	from->absent -= n->absent;
	for (unsigned r = 0; r < KVC_REASONS_N; r++)
		from->evicted[r] -= n->evicted[r];
}

static void copy_one_locked(struct kvc *k, const struct kvc_model_stats *t,
			    struct kvc_top_models *to)
{
	const struct kvc_quota *q = kvc_quota_of_locked(k, t->slot.key);

	*to = (struct kvc_top_models){
		.model = t->slot.key,
		.n = opens_since(t, &t->before),
		.total = opens_since(t, &(struct kvc_opens){ 0 }),
		.pool_bytes = t->pool_bytes,
		.use = t->use,
		.use_known = kvc_model_moves_use_known_locked(k, t),
		.quota = q ? q->limit : 0,
		.quota_used = q ? q->used : 0,
	};
}

/* Copies the figures of those models that are shown. Returns their number. */
static size_t copy_shown(struct kvc *k, const struct candidate *v, size_t n,
			 struct kvc_top_models_list *out)
{
	size_t at = 0;

	kvc_lock(k);
	for (size_t i = 0; i < n && at < KVC_TOP_MODELS; i++) {
		const struct kvc_model_stats *t = stats_find_locked(k, v[i].model);

		if (t && t->shown && (v[i].asked || t->use.files))
			copy_one_locked(k, t, &out->v[at++]);
	}
	out->all = (struct kvc_opens){
		.hits = kvc_counted(&k->stats, pool_hits),
		.misses = kvc_counted(&k->stats, pool_misses),
		.found = kvc_counted(&k->stats, found),
		.absent = kvc_counted(&k->stats, absent),
	};
	memcpy(out->all.evicted, k->model_stats->all_evicted, sizeof out->all.evicted);
	out->counted = !k->model_stats->count.running && !kvc_model_moves_any(k);
	out->all_use = k->model_stats->all_use;
	kvc_unlock(k);
	return at;
}

int kvc_top_models(struct kvc *k, struct kvc_top_models_list *out)
{
	uint64_t bytes;
	size_t n, at;
	KVC_MEM struct candidate *v = list_candidates(k, &n, &bytes);

	*out = (struct kvc_top_models_list){ .models = n };
	while (v && out->models && !v[out->models - 1].asked)
		out->models--;
	out->v = calloc(KVC_TOP_MODELS, sizeof *out->v);
	if (!v || !out->v) {
		free(out->v);
		return -ENOMEM;
	}
	choose_shown(k, v, n);
	at = copy_shown(k, v, n, out);
	out->rest = out->all;
	out->rest_use = out->all_use;
	for (size_t i = 0; i < at; i++) {
		struct kvc_top_models *to = &out->v[out->n];

		*to = out->v[i];
		/* subtracted even if the model has no name now: it may get one again */
		kvc_model_stats_subtract(&out->rest, &to->n);
		if (has_new_name(k, out, to)) {
			bytes -= kvc_min(bytes, to->pool_bytes);
			kvc_model_use_change(&out->rest_use, &to->use, true);
			out->n++;
		} else if (to->total.hits + to->total.misses + to->total.absent) {
			out->models--;
		}
	}
	out->rest_pool_bytes = bytes;
	return 0;
}
