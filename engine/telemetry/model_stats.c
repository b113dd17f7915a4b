/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of each model, see model_stats.h. A clock hand finds statistics to reuse, checking a
 * few under each hold of k->lock.
 */
#include "model_stats.h"

#define LOOKS 32

void kvc_model_stats_add(struct kvc_model_stats *to, const struct kvc_model_stats *t)
{
#define X(name, what) to->name += t->name;
	KVC_MODEL_STATS(X)
#undef X
}

/*
 * Returns the least recently used of the next LOOKS statistics that have no bytes in the pool, or
 * NULL.
 */
static struct kvc_model_stats *oldest_stats(struct kvc_model_stats_table *all)
{
	struct kvc_model_stats *old = NULL;

	for (unsigned i = 0; i < LOOKS; i++) {
		struct kvc_model_stats *t = all->v[all->hand++ % all->n];

		if (!t->pool_bytes && (!old || t->last < old->last))
			old = t;
	}
	return old;
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
	uint64_t now = kvc_has_segment(n) ? n->reserved : 0;

	if (now == n->stats_bytes && (!now || n->stats->slot.key == n->model))
		return;
	if (n->stats)
		n->stats->pool_bytes -= n->stats_bytes;
	n->stats = now ? kvc_model_stats_of_locked(k, n->model) : NULL;
	n->stats_bytes = now;
	if (n->stats)
		n->stats->pool_bytes += now;
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
	for (size_t i = 0; i < k->model_stats->n; i++)
		free(k->model_stats->v[i]);
	free(k->model_stats->v);
	kvc_table_fini(&k->model_stats->table);
}
