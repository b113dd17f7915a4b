/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which a trimmer visits its victims, see trim_walk.h.
 *
 * Victims are chosen by the rank in the catalog or, if the policy has a replacer for the tier, by
 * that replacer (objects/replacers.h). A dropped victim is removed from its replacer at once, so
 * that its parent can be dropped in the same turn. A victim that stays is excluded until the next
 * walk begins. Before them come the chunks that the policy of the disk tier has given up.
 *
 * A walk keeps its position from turn to turn, so that pinned and open chunks at the front are
 * visited once per walk. The parent of a chunk that stays is spared, unless a whole walk finds no
 * other victim. If some of the chunks that stay were accessed just a moment ago and could soon be
 * dropped, spared chunks wait two seconds longer. A chunk is also spared if one of its descendants
 * was accessed and its own rank was not updated yet (access/access.h).
 *
 * A model has no replacer of its own: the walk uses the replacer of the disk tier and excludes
 * chunks of other models. For chunks that are not in the replacer, and if the model's chunks are so
 * rare in it that the search takes too long, the catalog's rank decides. Then no chunk is dropped
 * whose children are in the pool or on disk, unless a whole walk finds no other victim.
 */
#include "trim_walk.h"

#include "committer.h"
#include "disk_victims.h"
#include "evict.h"
#include "tenant.h"
#include "tier_queue.h"
#include "access.h"

#include <string.h>

/* chunks of other models that are checked per hold of the locks */
#define CHECKED 32
#define OTHERS 4096 /* chunks of other models per walk */
/* walks that free nothing spare chunks, and keep the order of ranks, for at most this long */
#define PATIENCE_NS 2000000000ull

/* The chunk stays: returns it to its replacer. */
static void restore_locked(struct kvc *k, enum kvc_cache cache, const struct kvc_chunk_row *r)
{
	struct kvc_chunk *c = cache == KVC_CACHE_DISK ? kvc_chunk_find_locked(k, r->id) : NULL;

	if (c)
		kvc_disk_victims_kept_locked(k, c, 0);
	kvc_disk_victims_remove_locked(k, r->id);
	kvc_replacers_restore_locked(k, cache, r, 0);
	kvc_replacers_join_locked(k, cache, r);
}

void kvc_trim_walk_put_back_locked(struct kvc_trimmer *t)
{
	struct kvc_trim_walk *w = &t->walk;
	struct kvc *k = t->k;

	while (w->nexcluded) {
		const struct kvc_trim_excluded *o = &w->excluded[--w->nexcluded];

		if (o->taken)
			restore_locked(k, w->cache, &o->row);
		else
			kvc_replacers_exclude_locked(k, w->cache, o->row.id, o->row.policy, false);
	}
	if (w->of_disk)
		kvc_disk_victims_walk_locked(k);
}

void kvc_trim_walk_begin(struct kvc_trimmer *t, bool whole)
{
	struct kvc_trim_walk *w = &t->walk;
	bool fruitless = whole && w->has_spared && !w->freed;
	uint64_t now = kvc_mono_ns(), since = w->freed    ? 0
					      : fruitless ? w->fruitless_since_ns ?: now
							  : w->fruitless_since_ns;

	kvc_lock(t->k);
	kvc_trim_walk_put_back_locked(t);
	kvc_unlock(t->k);
	*w = (struct kvc_trim_walk){
		.excluded = w->excluded,
		.excluded_capacity = w->excluded_capacity,
		.spares_none = fruitless && (!w->has_young || now - since > PATIENCE_NS),
		.fruitless_since_ns = since,
		.cache = w->cache,
		.of_disk = w->of_disk,
		.turns = w->turns, /* otherwise, short walks would all begin with one class */
		.blocked_since_ns = w->freed ? 0 : w->blocked_since_ns,
	};
	for (int i = 0; i < KVC_CLASSES; i++) {
		w->head[i].rank = INT64_MIN;
		w->skipped[i] = INT64_MAX;
	}
}

/* Does a replacer order the chunks of this class in the trimmed cache? */
static bool has_replacer(const struct kvc_trimmer *t, unsigned class)
{
	if (t->walk.cache == KVC_CACHE_POOL)
		return true;
	return (t->model || !t->tier) && kvc_replacers_has_order(t->k, KVC_CACHE_DISK, class);
}

/*
 * Does the chunk have children in the pool, or in a replacer of the disk tier, that are not being
 * dropped?
 */
static bool has_children(const struct kvc_trimmer *t, const struct kvc_chunk_row *r)
{
	for (int i = 0; i < KVC_CACHES; i++) {
		uint32_t n = kvc_replacers_children_locked(t->k, (enum kvc_cache)i, r);

		for (size_t j = 0; j < t->nprobed && n; j++)
			n -= (t->probed[j].row.parent & ~KVC_TOLD) == r->id &&
			     kvc_replacers_has_row_locked(t->k, (enum kvc_cache)i,
							  &t->probed[j].row);
		if (n)
			return true;
	}
	return false;
}

/* Does the chunk count towards the quota of the trimmer's model or tenant? */
static bool belongs(const struct kvc_trimmer *t, const struct kvc_chunk_row *r)
{
	return t->model & KVC_TRIM_TENANT ? r->tenant == (t->model & ~KVC_TRIM_TENANT)
					  : r->quota == t->model;
}

/* Sets *r to the next chunk of the model or tenant by the catalog's ranks. */
static int next_of_rows(const struct kvc_trimmer *t, struct kvc_chunk_row *r)
{
	struct kvc_catalog *cat = t->k->cat;

	return t->model & KVC_TRIM_TENANT
		       ? kvc_chunk_next_tenant(cat, t->model & ~KVC_TRIM_TENANT, r)
		       : kvc_chunk_next_quota(cat, t->model, r);
}

/* Is the chunk a victim for this trimmer? Always true for a tier. */
static bool is_candidate(const struct kvc_trimmer *t, const struct kvc_chunk_row *r)
{
	return !t->model || (belongs(t, r) && (t->walk.spares_none || !has_children(t, r)));
}

/*
 * The walk skips this chunk. If its rank in the catalog differs from its rank in memory, the
 * committer is asked to write the row, and the walk remembers the rank in memory.
 */
static void skip_locked(struct kvc_trimmer *t, const struct kvc_chunk_row *r)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(t->k, r->id);

	if (!c || has_replacer(t, c->policy) || c->rank == r->rank)
		return;
	kvc_committer_access_want_locked(t->k, c);
	if (c->rank < t->walk.skipped[c->policy])
		t->walk.skipped[c->policy] = c->rank;
}

/*
 * Sets *r to the next victim of a class by its replacer, and excludes it. Returns 0; -ENOENT if
 * there is none; -EAGAIN if only chunks of other models were found so far; or another error, and
 * the victim is unknown for now. The caller holds the catalog's lock.
 */
static int next_ordered(struct kvc_trimmer *t, unsigned class, struct kvc_chunk_row *r)
{
	struct kvc_trim_walk *w = &t->walk;
	struct kvc *k = t->k;
	unsigned looks = 0;
	int err = -ENOENT;
	uint64_t id;

	kvc_lock(k);
	while (err && (id = kvc_replacers_victim_locked(k, w->cache, class))) {
		struct kvc_chunk *c = kvc_chunk_find_locked(k, id);

		err = 0;
		if (c)
			kvc_chunk_row(k, c, r);
		else
			err = kvc_chunk_get(k->cat, id, r);
		r->policy = class;
		r->id = id;
		if (err == -ENOENT) { /* the chunk does not exist */
			kvc_replacers_extract_locked(k, w->cache, r);
			continue;
		}
		err = err
			      ?: kvc_grow(&w->excluded, w->nexcluded, &w->excluded_capacity,
					  sizeof *w->excluded);
		if (err) /* it is not excluded, and is the next victim again */
			break;
		kvc_replacers_exclude_locked(k, w->cache, id, class, true);
		w->excluded[w->nexcluded++] = (struct kvc_trim_excluded){ .row = *r };
		if (is_candidate(t, r))
			break;
		w->has_spared |= belongs(t, r);
		err = -EAGAIN;
		if (++w->others >= OTHERS)
			err = -ENOENT;
		if (++looks >= CHECKED || err == -ENOENT)
			break;
	}
	kvc_unlock(k);
	return err;
}

/*
 * Sets *r to the next victim of a model. The result is as for next_ordered. The caller holds the
 * catalog's lock.
 */
static int next_of_model(struct kvc_trimmer *t, struct kvc_chunk_row *r)
{
	struct kvc_trim_walk *w = &t->walk;
	struct kvc *k = t->k;
	bool may;
	int err;

	if (w->replacer_state == KVC_TRIM_UNKNOWN) {
		struct kvc_chunk_row first = { .rank = INT64_MIN };

		if ((err = next_of_rows(t, &first)))
			return err;
		w->class = first.policy;
		w->replacer_state = has_replacer(t, w->class) ? KVC_TRIM_FOUND : KVC_TRIM_NONE;
	}
	if (w->replacer_state == KVC_TRIM_FOUND) {
		if ((err = next_ordered(t, w->class, r)) != -ENOENT)
			return err;
		w->replacer_state = KVC_TRIM_NONE;
	}
	if ((err = next_of_rows(t, &w->head[0])))
		return err;
	*r = w->head[0];
	kvc_lock(k);
	may = is_candidate(t, r);
	if (!may)
		skip_locked(t, r);
	kvc_unlock(k);
	w->has_spared |= !may;
	return may ? 0 : -EAGAIN;
}

/*
 * Sets *r to the next chunk that the disk's policy has given up (objects/disk_victims.c). The
 * result is as for next_ordered. The caller holds the catalog's lock.
 */
static int next_given_up(struct kvc_trimmer *t, struct kvc_chunk_row *r)
{
	struct kvc_trim_walk *w = &t->walk;
	struct kvc_disk_victim v;
	struct kvc *k = t->k;
	int err = -ENOENT;

	kvc_lock(k);
	for (unsigned i = 0; err == -ENOENT && i < CHECKED; i++) {
		struct kvc_chunk *c;

		if (!kvc_disk_victims_visit_locked(k, &v))
			break;
		c = kvc_chunk_find_locked(k, v.id);
		err = 0;
		if (c)
			kvc_chunk_row(k, c, r);
		else
			err = kvc_chunk_get(k->cat, v.id, r);
		if (err == -ENOENT)
			kvc_disk_victims_remove_locked(k, v.id);
		r->id = v.id;
		r->policy = v.class;
		r->facts = v.facts;
	}
	if (!err)
		w->given_up = v.id;
	kvc_unlock(k);
	return err;
}

/* Did the tier refuse copies because it is full? */
static bool is_pressed(struct kvc_trimmer *t)
{
	bool is;

	kvc_lock(t->k);
	is = kvc_tier_refuses_locked(&t->k->tier[t->tier]);
	kvc_unlock(t->k);
	return is;
}

int kvc_trim_walk_next(struct kvc_trimmer *t, struct kvc_chunk_row *r)
{
	struct kvc_trim_walk *w = &t->walk;
	struct kvc *k = t->k;
	unsigned mask = 0;
	bool waits;
	int class;

	if (t->model)
		return next_of_model(t, r);
	if (w->of_disk && !next_given_up(t, r))
		return 0;
	waits = w->of_disk && w->awaits_given_up && !is_pressed(t);
	for (int i = 0; i < KVC_CLASSES; i++) {
		if (waits && has_replacer(t, (unsigned)i))
			continue;
		if (w->head_state[i] == KVC_TRIM_UNKNOWN) {
			w->head[i].policy = (unsigned)i;
			w->head_state[i] = (has_replacer(t, (unsigned)i)
						    ? next_ordered(t, (unsigned)i, &w->head[i])
						    : kvc_chunk_next_ranked(k->cat, &w->head[i]))
						   ? KVC_TRIM_NONE
						   : KVC_TRIM_FOUND;
		}
		mask |= w->head_state[i] == KVC_TRIM_FOUND ? 1u << i : 0;
	}
	class = kvc_replacer_turns_next(&w->turns, mask);
	if (class < 0)
		return -ENOENT;
	*r = w->head[class];
	w->head_state[class] = KVC_TRIM_UNKNOWN;
	return 0;
}

void kvc_trim_walk_remove(struct kvc_trimmer *t, const struct kvc_chunk_row *r, int err)
{
	struct kvc_trim_walk *w = &t->walk;
	struct kvc *k = t->k;

	if (w->of_disk && err != -EAGAIN) {
		kvc_lock(k);
		kvc_disk_victims_remove_locked(k, r->id);
		kvc_unlock(k);
	}
	for (size_t i = 0; i < w->nexcluded; i++) {
		struct kvc_trim_excluded *o = &w->excluded[i];

		if (o->row.id != r->id)
			continue;
		kvc_lock(k);
		if (!o->taken)
			kvc_replacers_extract_locked(k, w->cache, &o->row);
		kvc_unlock(k);
		o->taken = true;
		if (err != -EAGAIN)
			*o = w->excluded[--w->nexcluded];
		return;
	}
}

bool kvc_trim_walk_spares(const struct kvc_trimmer *t, uint64_t id)
{
	return !t->walk.spares_none && t->walk.spared[id % KVC_TRIM_SPARED] == id;
}

static void spare_parent(struct kvc_trimmer *t, const struct kvc_chunk_row *r)
{
	uint64_t parent = r->parent & ~KVC_TOLD;
	struct kvc_trim_walk *w = &t->walk;

	if (!parent || w->spares_none || (has_replacer(t, r->policy) && r->id != w->given_up))
		return;
	w->spared[parent % KVC_TRIM_SPARED] = parent;
	w->has_spared = true;
}

void kvc_trim_walk_spare(struct kvc_trimmer *t, const struct kvc_chunk_row *r)
{
	kvc_lock(t->k);
	skip_locked(t, r);
	kvc_unlock(t->k);
	spare_parent(t, r);
}

bool kvc_trim_walk_is_blocked(struct kvc_trimmer *t, const struct kvc_chunk_row *r)
{
	struct kvc_trim_walk *w = &t->walk;
	uint64_t now;

	if (has_replacer(t, r->policy) || r->rank <= w->skipped[r->policy])
		return false;
	now = kvc_mono_ns();
	w->blocked_since_ns = w->blocked_since_ns ?: now;
	return now - w->blocked_since_ns < PATIENCE_NS;
}

void kvc_trim_walk_spare_waiting(struct kvc_trimmer *t)
{
	const struct kvc_ancestors *a = &t->k->access->ancestors;
	struct kvc_trim_walk *w = &t->walk;

	if (w->spares_none)
		return;
	kvc_lock(t->k);
	for (unsigned i = 0; i <= a->n; i++) {
		uint64_t id = i < a->n ? a->of[i].parent : a->next;

		if (!id)
			continue;
		w->spared[id % KVC_TRIM_SPARED] = id;
		w->has_spared = w->has_young = t->hopeful = true; /* for a moment only */
	}
	kvc_unlock(t->k);
}

void kvc_trim_walk_given_up_stays(struct kvc_trimmer *t, const struct kvc_chunk_row *r, bool soon)
{
	struct kvc_trim_walk *w = &t->walk;

	kvc_lock(t->k);
	if (!w->of_disk || !kvc_disk_victims_has_locked(t->k, r->id))
		;
	else if (soon)
		w->awaits_given_up = true;
	else if (!kvc_grow(&w->excluded, w->nexcluded, &w->excluded_capacity, sizeof *w->excluded))
		w->excluded[w->nexcluded++] = (struct kvc_trim_excluded){
			.row = *r,
			.taken = true,
		};
	kvc_unlock(t->k);
}
