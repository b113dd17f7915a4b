/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trimmer frees space in one tier (trim.c), or of one model above its quota (quota_keeper.c): it
 * walks over the chunks, the first victim first, and drops them.
 *
 * Victims are chosen by the rank in the catalog or, if the policy has a replacer for the tier, by
 * that replacer (objects/replacers.h). A dropped victim is removed from its replacer at once, so
 * that its parent can be dropped in the same turn. A victim that stays is excluded until the next
 * walk begins.
 *
 * A walk keeps its position from turn to turn, so that pinned and open chunks at the front are
 * visited once per walk. The parent of a chunk that stays is spared, unless a whole walk finds no
 * other victim. If some of the chunks that stay were accessed just a moment ago and could soon be
 * dropped, spared chunks wait two seconds longer. A chunk is also spared if one of its descendants
 * was accessed and its own rank was not updated yet (access/access.h). The first visit to a chunk's
 * folder only makes the kernel ask for its name again (a probe; kvc_chunk_drop returns -EAGAIN);
 * the trimmer visits it again later.
 *
 * For a model or tenant above its quota, whole chunks are dropped. A model has no replacer of its
 * own: the walk uses the replacer of the disk tier and excludes chunks of other models. For chunks
 * that are not in the replacer, and if the model's chunks are so rare in it that the search takes
 * too long, the catalog's rank decides. Then no chunk is dropped whose children are in the pool or
 * on disk, unless a whole walk finds no other victim.
 *
 * Each trimmer is used by one thread: a tier's thread, or the quota keeper's.
 */
#include "chunk.h"
#include "committer.h"
#include "dir_invalidate.h"
#include "disk_victims.h"
#include "evict.h"
#include "replacers.h"
#include "tenant.h"
#include "log.h"
#include "tier_queue.h"
#include "access.h"

#include <string.h>

#define BATCH 64   /* chunks dropped per turn, which bounds one commit */
#define PROBED 256 /* chunk folders that may be probed at once */
/* size of a table by id; of two ids in the same place, the table keeps the later one */
#define SPARED 4096
/* chunks of other models that are checked per hold of the locks */
#define CHECKED 32
#define OTHERS 4096 /* chunks of other models per walk */
/* walks that free nothing spare chunks, and keep the order of ranks, for at most this long */
#define PATIENCE_NS 2000000000ull

struct excluded {
	struct kvc_chunk_row row;
	bool taken;
};

/* A walk over the catalog's chunks, the first victim first. */
struct walk {
	struct kvc_chunk_row head[KVC_CLASSES]; /* the next victim of each class */
	enum { UNKNOWN, FOUND, NONE } head_state[KVC_CLASSES];
	struct kvc_replacer_turns turns; /* kept from one walk to the next */
	uint64_t freed;                  /* bytes freed since the walk began */
	/*
	 * for a model: UNKNOWN at first; FOUND while the replacer of its class is walked; NONE
	 * while its rows are walked
	 */
	int replacer_state;
	unsigned class;  /* for a model: the class of its chunks */
	unsigned others; /* chunks of other models that this walk has passed over */
	enum kvc_cache cache;
	uint64_t given_up; /* the latest victim that the disk's policy had given up */
	/*
	 * The parents of chunks that stay. Used for classes in the catalog's order, since the
	 * catalog does not protect parents.
	 */
	uint64_t spared[SPARED];
	bool has_spared, spares_none;
	bool has_young; /* some of the chunks that stay may soon be dropped */
	/*
	 * By class, the lowest rank in memory of the chunks that this walk skipped because the
	 * catalog has an older rank. The walk does not go beyond it: those chunks are next.
	 */
	int64_t skipped[KVC_CLASSES];
	/* walks have ended at that rank and freed nothing since this time; 0: they free some */
	uint64_t blocked_since_ns;
	/* walks have spared chunks and freed nothing since this time; 0: they free some */
	uint64_t fruitless_since_ns;
	/* with replacers: chunks excluded or taken out, to be restored */
	struct excluded *excluded;
	size_t nexcluded, excluded_capacity;
};

struct probed {
	struct kvc_chunk_row row;
	uint64_t bytes;
};

struct kvc_trimmer {
	struct kvc *k;
	unsigned tier;
	/*
	 * the model or tenant (KVC_TRIM_TENANT) above its quota; 0: this is the trimmer of a tier
	 */
	uint64_t model;
	bool hopeful; /* chunks that stay now may be dropped soon */
	bool filling; /* the replacers are not complete yet */
	struct walk walk;
	struct probed probed[PROBED];
	size_t nprobed;
};

/* Restores the victims of a walk. The caller holds k->lock. */
static void put_back_locked(struct kvc *k, struct walk *w)
{
	while (w->nexcluded) {
		const struct excluded *o = &w->excluded[--w->nexcluded];
		struct kvc_chunk *c;

		if (!o->taken) {
			kvc_replacers_exclude_locked(k, w->cache, o->row.id, o->row.policy, false);
			continue;
		}
		c = w->cache == KVC_CACHE_DISK ? kvc_chunk_find_locked(k, o->row.id) : NULL;
		if (c)
			kvc_disk_victims_kept_locked(k, c, 0);
		kvc_disk_victims_remove_locked(k, o->row.id);
		kvc_replacers_restore_locked(k, w->cache, &o->row, 0);
		kvc_replacers_join_locked(k, w->cache, &o->row);
	}
}

/* Begins a walk. whole: the previous walk reached its end, and no victim is being probed. */
static void walk_begin(struct kvc *k, struct walk *w, bool whole)
{
	bool fruitless = whole && w->has_spared && !w->freed;
	uint64_t now = kvc_mono_ns(), since = w->freed    ? 0
					      : fruitless ? w->fruitless_since_ns ?: now
							  : w->fruitless_since_ns;

	kvc_lock(k);
	put_back_locked(k, w);
	kvc_unlock(k);
	*w = (struct walk){
		.excluded = w->excluded,
		.excluded_capacity = w->excluded_capacity,
		.spares_none = fruitless && (!w->has_young || now - since > PATIENCE_NS),
		.fruitless_since_ns = since,
		.cache = w->cache,
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
	struct walk *w = &t->walk;
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
		w->excluded[w->nexcluded++] = (struct excluded){ .row = *r };
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
	struct walk *w = &t->walk;
	struct kvc *k = t->k;
	bool may;
	int err;

	if (w->replacer_state == UNKNOWN) {
		struct kvc_chunk_row first = { .rank = INT64_MIN };

		if ((err = next_of_rows(t, &first)))
			return err;
		w->class = first.policy;
		w->replacer_state = has_replacer(t, w->class) ? FOUND : NONE;
	}
	if (w->replacer_state == FOUND) {
		if ((err = next_ordered(t, w->class, r)) != -ENOENT)
			return err;
		w->replacer_state = NONE;
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
 * Sets *r to the next chunk that the disk's policy has given up (objects/disk_victims.c). If it
 * stays, the next walk returns it to its replacer. The result is as for next_ordered. The caller
 * holds the catalog's lock.
 */
static int next_given_up(struct kvc_trimmer *t, struct kvc_chunk_row *r)
{
	struct walk *w = &t->walk;
	struct kvc_disk_victim v;
	struct kvc *k = t->k;
	int err = -ENOENT;

	kvc_lock(k);
	for (unsigned i = 0; err == -ENOENT && i < CHECKED; i++) {
		struct kvc_chunk *c;

		if (kvc_grow(&w->excluded, w->nexcluded, &w->excluded_capacity,
			     sizeof *w->excluded) ||
		    !kvc_disk_victims_take_locked(k, &v))
			break;
		c = kvc_chunk_find_locked(k, v.id);
		err = 0;
		if (c)
			kvc_chunk_row(k, c, r);
		else
			err = kvc_chunk_get(k->cat, v.id, r);
		r->id = v.id;
		r->policy = v.class;
		r->facts = v.facts;
	}
	if (err && err != -ENOENT) /* the next call returns the same chunk */
		kvc_disk_victims_add_locked(k, &v, 0, true);
	if (!err) {
		w->excluded[w->nexcluded++] = (struct excluded){ .row = *r, .taken = true };
		w->given_up = v.id;
	}
	kvc_unlock(k);
	return err;
}

/*
 * Sets *r to the next victim. The result is as for next_ordered. The caller holds the catalog's
 * lock.
 */
static int next_victim(struct kvc_trimmer *t, struct kvc_chunk_row *r)
{
	struct walk *w = &t->walk;
	struct kvc *k = t->k;
	unsigned mask = 0;
	int class;

	if (t->model)
		return next_of_model(t, r);
	if (kvc_trimmer_is_of_disk(t) && !next_given_up(t, r))
		return 0;
	for (int i = 0; i < KVC_CLASSES; i++) {
		if (w->head_state[i] == UNKNOWN) {
			w->head[i].policy = (unsigned)i;
			w->head_state[i] = (has_replacer(t, (unsigned)i)
						    ? next_ordered(t, (unsigned)i, &w->head[i])
						    : kvc_chunk_next_ranked(k->cat, &w->head[i]))
						   ? NONE
						   : FOUND;
		}
		mask |= w->head_state[i] == FOUND ? 1u << i : 0;
	}
	class = kvc_replacer_turns_next(&w->turns, mask);
	if (class < 0)
		return -ENOENT;
	*r = w->head[class];
	w->head_state[class] = UNKNOWN;
	return 0;
}

/* Should the trimmer stop? */
static bool should_stop(struct kvc_trimmer *t)
{
	bool stop;

	kvc_lock(t->k);
	stop = t->model ? t->k->stopping : t->k->evict->over;
	kvc_unlock(t->k);
	return stop;
}

/*
 * Removes the victim from its replacer, so that its parent can be a victim. err is the result of
 * the drop: with -EAGAIN the chunk will be dropped soon, otherwise it is dropped or does not exist.
 */
static void remove_victim(struct kvc *k, struct walk *w, const struct kvc_chunk_row *r, int err)
{
	for (size_t i = 0; i < w->nexcluded; i++) {
		struct excluded *o = &w->excluded[i];

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

static bool is_spared(const struct walk *w, uint64_t id)
{
	return !w->spares_none && w->spared[id % SPARED] == id;
}

static void spare_parent(struct kvc_trimmer *t, const struct kvc_chunk_row *r)
{
	uint64_t parent = r->parent & ~KVC_TOLD;
	struct walk *w = &t->walk;

	if (!parent || w->spares_none || (has_replacer(t, r->policy) && r->id != w->given_up))
		return;
	w->spared[parent % SPARED] = parent;
	w->has_spared = true;
}

/* The chunk stays for now, and with it its parent. */
static void spare(struct kvc_trimmer *t, const struct kvc_chunk_row *r)
{
	kvc_lock(t->k);
	skip_locked(t, r);
	kvc_unlock(t->k);
	spare_parent(t, r);
}

/*
 * Does a skipped chunk precede this one? Then the walk ends, and the next walk finds both in order,
 * once the committer has written the row (kvc_committer_access_want_locked). If walks free nothing
 * for PATIENCE_NS they ignore the order: a full tier must not depend on these rows.
 */
static bool is_out_of_order(struct kvc_trimmer *t, const struct kvc_chunk_row *r)
{
	struct walk *w = &t->walk;
	uint64_t now;

	if (has_replacer(t, r->policy) || r->rank <= w->skipped[r->policy])
		return false;
	now = kvc_mono_ns();
	w->blocked_since_ns = w->blocked_since_ns ?: now;
	return now - w->blocked_since_ns < PATIENCE_NS;
}

/*
 * Spares the chunks whose ranks are too low because recent accesses to their descendants are not
 * stamped yet.
 */
static void spare_waiting(struct kvc_trimmer *t)
{
	const struct kvc_ancestors *a = &t->k->access->ancestors;
	struct walk *w = &t->walk;

	if (w->spares_none)
		return;
	kvc_lock(t->k);
	for (unsigned i = 0; i <= a->n; i++) {
		uint64_t id = i < a->n ? a->of[i].parent : a->next;

		if (!id)
			continue;
		w->spared[id % SPARED] = id;
		w->has_spared = w->has_young = t->hopeful = true; /* for a moment only */
	}
	kvc_unlock(t->k);
}

static int drop_scope(const struct kvc_trimmer *t)
{
	return t->model ? KVC_DROP_WHOLE : (int)t->tier;
}

static void count_tenant_drop(struct kvc *k, uint64_t number)
{
	struct kvc_tenant *t;

	kvc_count(&k->stats, tenant_drops);
	kvc_lock(k);
	t = kvc_tenant_of_locked(k, number);
	if (t)
		t->dropped++;
	kvc_unlock(k);
}

/* Drops the chunk. Returns 0; -EAGAIN if it was probed; or another error, and the chunk stays. */
static int drop_victim(struct kvc_trimmer *t, const struct kvc_chunk_row *r, uint64_t *bytes)
{
	struct kvc *k = t->k;
	enum kvc_reason why = !t->model                    ? KVC_FOR_tier
			      : t->model & KVC_TRIM_TENANT ? KVC_FOR_tenant
							   : KVC_FOR_quota;
	int err = kvc_chunk_drop(k, r->id, drop_scope(t), why, r, bytes);

	if (!err || err == -ENOENT || err == -EAGAIN)
		remove_victim(k, &t->walk, r, err);
	/* the chunk may be dropped later: its row was out of date, or it was used a moment ago */
	if (err == -ESTALE || (err == -EBUSY && kvc_chunk_young(k, r->last_ns)))
		t->hopeful = t->walk.has_young = true;
	if (err)
		return err;
	t->walk.freed += *bytes;
	if (t->model) {
		if (why == KVC_FOR_tenant)
			count_tenant_drop(k, t->model & ~KVC_TRIM_TENANT);
		else
			kvc_count(&k->stats, quota_drops);
		kvc_replacers_evicted(k, why, KVC_FROM_ALL, r->policy);
		return 0;
	}
	kvc_count(&k->stats, trimmed_chunks);
	kvc_lock(k);
	kvc_replacers_count_victim_locked(k, &t->walk.turns, r->policy);
	k->tier[t->tier].nothing_to_drop = false;
	kvc_unlock(k);
	return 0;
}

/* Is the chunk the parent of one of the first n probed chunks? */
static bool has_probed_child(const struct kvc_trimmer *t, size_t n, uint64_t id)
{
	for (size_t i = 0; i < n; i++)
		if ((t->probed[i].row.parent & ~KVC_TOLD) == id)
			return true;
	return false;
}

/*
 * Visits the probed chunks again until `goal` bytes are freed. Adds to *gone the freed bytes, and
 * to *coming the bytes of chunks that are still being probed. A child precedes its parent in the
 * list, and the parent stays while the child exists.
 */
static void revisit_probed(struct kvc_trimmer *t, uint64_t goal, uint64_t *gone, uint64_t *coming)
{
	uint64_t kept_parents[PROBED]; /* parents of the chunks that stay */
	size_t left = 0, nkept_parents = 0;

	for (size_t i = 0; i < t->nprobed; i++) {
		struct probed *x = &t->probed[i];
		uint64_t id = x->row.id;
		bool stays = is_spared(&t->walk, id);
		int err = -EBUSY;

		for (size_t j = 0; j < nkept_parents && !stays; j++)
			stays = kept_parents[j] == id;
		if (!stays && (should_stop(t) || *gone >= goal || has_probed_child(t, left, id)))
			err = -EAGAIN;
		else if (!stays)
			err = drop_victim(t, &x->row, &x->bytes);
		if (!err) {
			*gone += x->bytes;
		} else if (err == -EAGAIN) {
			*coming += x->bytes;
			t->probed[left++] = *x;
		} else if (err != -ENOENT) {
			kept_parents[nkept_parents++] = x->row.parent & ~KVC_TOLD;
			spare(t, &x->row);
		}
	}
	t->nprobed = left;
}

static bool is_probed(const struct kvc_trimmer *t, uint64_t id)
{
	for (size_t i = 0; i < t->nprobed; i++)
		if (t->probed[i].row.id == id)
			return true;
	return false;
}

/*
 * The chunk is dropped after its children, which were probed. In the meantime it is probed itself.
 */
static void probe_later(struct kvc_trimmer *t, const struct kvc_chunk_row *r)
{
	struct kvc *k = t->k;
	struct kvc_node *n;

	kvc_lock(k);
	n = kvc_node_find_locked(k, r->id);
	if (n && S_ISDIR(n->row.mode) && kvc_node_kernel_knows(n))
		kvc_dir_probe_locked(k, r->id, r->last_ns, drop_scope(t), r->bytes);
	kvc_unlock(k);
	remove_victim(k, &t->walk, r, -EAGAIN);
	t->probed[t->nprobed++] = (struct probed){ *r, r->bytes };
}

/* Makes one turn to free `goal` bytes. Returns true if it freed any. */
static bool trim_turn(struct kvc_trimmer *t, uint64_t goal)
{
	struct kvc *k = t->k;
	uint64_t gone = 0, coming = 0, bytes;
	struct kvc_chunk_row r;
	bool ended = false, blocked = false;

	t->hopeful = false;
	spare_waiting(t);
	revisit_probed(t, goal, &gone, &coming);
	for (int i = 0; i < BATCH && gone + coming < goal && !should_stop(t); i++) {
		int err;

		kvc_catalog_lock(k->cat);
		err = next_victim(t, &r);
		kvc_catalog_unlock(k->cat);
		ended = err && err != -EAGAIN;
		if (ended)
			break;
		if (err) /* only chunks of other models so far */
			continue;
		if (is_probed(t, r.id)) /* it will be dropped */
			continue;
		blocked = is_out_of_order(t, &r);
		if (blocked)
			break;
		if (has_probed_child(t, t->nprobed, r.id)) {
			if (t->nprobed < PROBED) {
				probe_later(t, &r);
				coming += r.bytes;
			}
			continue;
		}
		err = is_spared(&t->walk, r.id) ? -EBUSY : drop_victim(t, &r, &bytes);
		if (!err)
			gone += bytes;
		else if (err != -ENOENT && err != -EAGAIN)
			spare(t, &r);
		if (err == -EAGAIN && t->nprobed < PROBED) {
			coming += bytes;
			t->probed[t->nprobed++] = (struct probed){ r, bytes };
		}
	}
	kvc_lock(k);
	if (gone)
		kvc_committer_wake_locked(k, true);
	t->hopeful |= t->nprobed || !ended;
	if (ended && !t->model && !t->filling && !t->walk.freed && !t->nprobed &&
	    !t->walk.has_spared && !(k->stopping && t->walk.has_young))
		k->tier[t->tier].nothing_to_drop = true;
	kvc_unlock(k);
	if (ended || blocked || gone + coming >= goal)
		walk_begin(k, &t->walk, ended && !t->nprobed);
	return gone > 0;
}

void kvc_trimmers_hope_locked(struct kvc *k)
{
	kvc_tier_each(k, t)
		k->tier[t].nothing_to_drop = false;
}

struct kvc_trimmer *kvc_trimmer_new(struct kvc *k, unsigned tier, uint64_t model)
{
	struct kvc_trimmer *t = calloc(1, sizeof *t);

	if (!t)
		return NULL;
	t->k = k;
	t->tier = tier;
	t->model = model;
	/* without tiers all chunks are in the pool, and in its replacer */
	t->walk.cache = k->ntakers ? KVC_CACHE_DISK : KVC_CACHE_POOL;
	walk_begin(k, &t->walk, false);
	return t;
}

void kvc_trimmer_free(struct kvc_trimmer *t)
{
	kvc_lock(t->k);
	put_back_locked(t->k, &t->walk);
	kvc_unlock(t->k);
	free(t->walk.excluded);
	free(t);
}

uint64_t kvc_trimmer_model(const struct kvc_trimmer *t)
{
	return t->model;
}

void kvc_trimmer_set_filling(struct kvc_trimmer *t, bool filling)
{
	t->filling = filling;
}

bool kvc_trimmer_is_of_disk(const struct kvc_trimmer *t)
{
	return !t->model && t->tier == KVC_DISK && t->walk.cache == KVC_CACHE_DISK;
}

bool kvc_trimmer_is_probing(const struct kvc_trimmer *t)
{
	return t->nprobed;
}

void kvc_trimmer_rest(struct kvc_trimmer *t)
{
	t->nprobed = 0;
	t->walk.fruitless_since_ns = 0;
}

bool kvc_trimmer_turn(struct kvc_trimmer *t, uint64_t goal, bool *hopeful)
{
	bool any = trim_turn(t, goal);

	*hopeful = any || t->hopeful;
	return any;
}
