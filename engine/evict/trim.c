/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trimming: every tier of bounded size has a thread that keeps it between the watermarks, ahead of
 * demand, so that a copy finds room and a full cache goes on at the pace of its disk. None of
 * them waits for another, nor the evictor of the pool (evict.c) for them.
 *
 * Who goes is a matter of the catalog's rank, or, where the policy is more than that, of the order
 * that the tier has of its own (objects/replacers.h), which the trimmer fills from the catalog when
 * it starts. Of the latter a victim that goes is taken out at once, so that what it follows can go
 * in the same turn; one that stays is put aside until the walk begins anew.
 *
 * A trimmer counts by rows: what it dropped is on its way (kvc_tier_state.leaving) until the
 * commit and the removal have given the space back, and is not asked for twice. It walks the
 * catalog's chunks in the order of their ranks and keeps its place from turn to turn, so that
 * pinned and open ones at the front are looked at once a walk. What such a one follows is spared,
 * unless a whole walk finds nothing else; for two seconds also where that was only used a moment
 * ago, and could go soon. So is what was used by who uses what follows it, and has no rank of that
 * yet (access/ancestors.h). A chunk folder's first visit only makes the kernel ask again for its
 * name (kvc_chunk_drop: -EAGAIN); the trimmer comes back for it.
 *
 * A model above its quota is trimmed the same way, by the keeper and of whole chunks. It has no
 * order of its own: the tier's is gone through, and of it what is another model's is put aside. In
 * what that has not, and where the model is so small a part of it that this takes too long, the
 * catalog's rank decides, and none goes that is followed in the pool or on disk, unless a whole
 * walk finds nothing else.
 *
 * Trimmers go on while the daemon stops, until the last copy is made: what the pool alone has may
 * be more than a full tier has room for.
 */
#include "chunk.h"
#include "committer.h"
#include "dir_invalidate.h"
#include "evict.h"
#include "replacers.h"
#include "log.h"
#include "tier_queue.h"
#include "access.h"

#include <string.h>

#define BATCH 64    /* chunks a turn: what one turn adds to a commit */
#define KNOCKED 256 /* chunk folders that may be on their way out at once */
#define SPARED 4096 /* by number, so two of the same place: the later one */
#define IDLE_NS 250000000ull
#define ROWS 16                   /* under one hold of a lock, where orders are filled */
#define FILLED 4096               /* of them, between which there may be something to trim */
#define LOOKS 32                  /* at chunks of other models, under one hold of the locks */
#define OTHERS 4096               /* in a walk */
#define AGAIN_NS 5000000ull       /* when all that is left to do is to wait */
#define PATIENCE_NS 2000000000ull /* for what was used a moment ago, before what is spared goes */

struct out {
	struct kvc_chunk_row row;
	bool taken;
};

/* A walk over the catalog's chunks, the first victim first. */
struct walk {
	struct kvc_chunk_row head[KVC_CLASSES]; /* the next of each class */
	enum { UNKNOWN, THERE, NONE } is[KVC_CLASSES];
	struct kvc_turns turns; /* kept from one walk to the next */
	uint64_t freed;         /* since it began */
	/* of a model: is there an order to go through still? and what class its chunks are in */
	int own;
	unsigned class, others;
	enum kvc_cache cache;
	/*
	 * What those that stay follow, where the order is the catalog's, which knows nothing of it.
	 */
	uint64_t spared[SPARED];
	bool any_spared, spares_none;
	bool any_young; /* of those that stay some may go in a moment */
	/* since when walks freed nothing, but might what they spare; 0: they do */
	uint64_t vain_ns;
	/* of a tier with orders of its own: those put aside, or taken out, to be put back */
	struct out *out;
	size_t nout, out_room;
};

struct knocked {
	struct kvc_chunk_row row;
	uint64_t bytes;
};

struct kvc_trimmer {
	struct kvc *k;
	unsigned tier;
	uint64_t model; /* whose quota it is about; 0: a tier */
	bool hopeful;   /* what stays may go in a moment */
	bool filling;   /* not all is in the tier's orders yet */
	struct walk walk;
	struct knocked knocked[KNOCKED];
	size_t nknocked;
};

/* Under k->lock. */
static void put_back_locked(struct kvc *k, struct walk *w)
{
	while (w->nout) {
		const struct out *o = &w->out[--w->nout];

		if (!o->taken) {
			kvc_replacers_exclude_locked(k, w->cache, o->row.id, o->row.policy, false);
			continue;
		}
		kvc_replacers_restore_locked(k, w->cache, &o->row, 0);
		kvc_replacers_join_locked(k, w->cache, &o->row);
	}
}

/* `whole`: the one before came to its end, and nothing is on its way out. */
static void walk_begin(struct kvc *k, struct walk *w, bool whole)
{
	bool in_vain = whole && w->any_spared && !w->freed;
	uint64_t now = kvc_mono_ns(), since = w->freed  ? 0
					      : in_vain ? w->vain_ns ?: now
							: w->vain_ns;

	kvc_lock(k);
	put_back_locked(k, w);
	kvc_unlock(k);
	*w = (struct walk){
		.out = w->out,
		.out_room = w->out_room,
		.spares_none = in_vain && (!w->any_young || now - since > PATIENCE_NS),
		.vain_ns = since,
		.cache = w->cache,
		.turns = w->turns, /* or short ones would all begin with one class */
	};
	for (int i = 0; i < KVC_CLASSES; i++)
		w->head[i].rank = INT64_MIN;
}

/* Has what it trims an order of its own for such chunks? */
static bool is_ordered(const struct kvc_trimmer *t, unsigned class)
{
	if (t->walk.cache == KVC_CACHE_POOL)
		return true;
	return (t->model || !t->tier) && kvc_replacers_has_order(t->k, KVC_CACHE_DISK, class);
}

/* Does any follow it that is in the pool, or in an order of the disk's, and is not to go now? */
static bool is_held(const struct kvc_trimmer *t, const struct kvc_chunk_row *r)
{
	for (int i = 0; i < KVC_CACHES; i++) {
		uint32_t n = kvc_replacers_children_locked(t->k, (enum kvc_cache)i, r);

		for (size_t j = 0; j < t->nknocked && n; j++)
			n -= (t->knocked[j].row.parent & ~KVC_TOLD) == r->id &&
			     kvc_replacers_holds_locked(t->k, (enum kvc_cache)i,
							&t->knocked[j].row);
		if (n)
			return true;
	}
	return false;
}

/* Can it go, where only a model's can? */
static bool is_ours(const struct kvc_trimmer *t, const struct kvc_chunk_row *r)
{
	return !t->model || (r->quota == t->model && (t->walk.spares_none || !is_held(t, r)));
}

/*
 * The next of a class by the order of its own, put aside; *r. Under the catalog's lock. -ENOENT:
 * there is none; -EAGAIN: only others' so far; another error: it cannot be told for now.
 */
static int next_kept(struct kvc_trimmer *t, unsigned class, struct kvc_chunk_row *r)
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
		if (err == -ENOENT) { /* no such chunk */
			kvc_replacers_take_locked(k, w->cache, r);
			continue;
		}
		err = err ?: kvc_grow(&w->out, w->nout, &w->out_room, sizeof *w->out);
		if (err) /* it stays where it is, and is asked about again */
			break;
		kvc_replacers_exclude_locked(k, w->cache, id, class, true);
		w->out[w->nout++] = (struct out){ .row = *r };
		if (is_ours(t, r))
			break;
		w->any_spared |= r->quota == t->model;
		err = -EAGAIN;
		if (++w->others >= OTHERS)
			err = -ENOENT;
		if (++looks >= LOOKS || err == -ENOENT)
			break;
	}
	kvc_unlock(k);
	return err;
}

/* The next of a model. Under the catalog's lock. As next_kept. */
static int next_of_model(struct kvc_trimmer *t, struct kvc_chunk_row *r)
{
	struct walk *w = &t->walk;
	struct kvc *k = t->k;
	bool may;
	int err;

	if (w->own == UNKNOWN) {
		struct kvc_chunk_row first = { .rank = INT64_MIN };

		if ((err = kvc_chunk_next_quota(k->cat, t->model, &first)))
			return err;
		w->class = first.policy;
		w->own = is_ordered(t, w->class) ? THERE : NONE;
	}
	if (w->own == THERE) {
		if ((err = next_kept(t, w->class, r)) != -ENOENT)
			return err;
		w->own = NONE;
	}
	if ((err = kvc_chunk_next_quota(k->cat, t->model, &w->head[0])))
		return err;
	*r = w->head[0];
	kvc_lock(k);
	may = is_ours(t, r);
	kvc_unlock(k);
	w->any_spared |= !may;
	return may ? 0 : -EAGAIN;
}

/* Under the catalog's lock. As next_kept. */
static int next_victim(struct kvc_trimmer *t, struct kvc_chunk_row *r)
{
	struct walk *w = &t->walk;
	struct kvc *k = t->k;
	unsigned mask = 0;
	int class;

	if (t->model)
		return next_of_model(t, r);
	for (int i = 0; i < KVC_CLASSES; i++) {
		if (w->is[i] == UNKNOWN) {
			w->head[i].policy = (unsigned)i;
			w->is[i] = (is_ordered(t, (unsigned)i)
					    ? next_kept(t, (unsigned)i, &w->head[i])
					    : kvc_chunk_next_ranked(k->cat, &w->head[i]))
					   ? NONE
					   : THERE;
		}
		mask |= w->is[i] == THERE ? 1u << i : 0;
	}
	class = kvc_turns_next(&w->turns, mask);
	if (class < 0)
		return -ENOENT;
	*r = w->head[class];
	w->is[class] = UNKNOWN;
	return 0;
}

static uint64_t goal_locked(struct kvc *k, unsigned tier, const struct kvc_tier_usage *u)
{
	struct kvc_tier_state *ts = &k->tier[tier];
	uint64_t used = u->used - kvc_min(u->used, ts->leaving);
	uint64_t goal = kvc_reservation_excess(used, u->total, &k->opt, &ts->trimming);

	ts->spare = u->total / 100 * (100 - k->opt.high_pct);
	if (goal || !kvc_tier_refuses_locked(ts))
		return goal;
	/* It refused a frame all the same: the free space is in pieces. */
	return ts->leaving ? 0 : kvc_max(u->total / 16, 1);
}

/* Nobody waits for what a trimmer still has in mind. */
static bool over(struct kvc_trimmer *t)
{
	bool is;

	kvc_lock(t->k);
	is = t->model ? t->k->stopping : t->k->evict->over;
	kvc_unlock(t->k);
	return is;
}

/* It goes (-EAGAIN: soon), or is not there: what it follows can go too. */
static void take_out(struct kvc *k, struct walk *w, const struct kvc_chunk_row *r, int err)
{
	for (size_t i = 0; i < w->nout; i++) {
		struct out *o = &w->out[i];

		if (o->row.id != r->id)
			continue;
		kvc_lock(k);
		if (!o->taken)
			kvc_replacers_take_locked(k, w->cache, &o->row);
		kvc_unlock(k);
		o->taken = true;
		if (err != -EAGAIN)
			*o = w->out[--w->nout];
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

	if (!parent || w->spares_none || is_ordered(t, r->policy))
		return;
	w->spared[parent % SPARED] = parent;
	w->any_spared = true;
}

/* What was used lately has not been seen to by all that it follows: their ranks are too low. */
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
		w->any_spared = w->any_young = t->hopeful = true; /* it waits for a moment only */
	}
	kvc_unlock(t->k);
}

static int where(const struct kvc_trimmer *t)
{
	return t->model ? KVC_DROP_WHOLE : (int)t->tier;
}

/* 0: dropped; -EAGAIN: knocked; another: not this one. */
static int visit(struct kvc_trimmer *t, const struct kvc_chunk_row *r, uint64_t *bytes)
{
	struct kvc *k = t->k;
	int err = kvc_chunk_drop(k, r->id, where(t), r, bytes);

	if (!err || err == -ENOENT || err == -EAGAIN)
		take_out(k, &t->walk, r, err);
	/* it grows older, or is looked at anew */
	if (err == -ESTALE || (err == -EBUSY && kvc_chunk_young(k, r->last_ns)))
		t->hopeful = t->walk.any_young = true;
	if (err)
		return err;
	t->walk.freed += *bytes;
	if (t->model) {
		kvc_count(&k->stats, quota_drops);
		kvc_replacers_evicted(k, KVC_FOR_quota, KVC_FROM_ALL, r->policy);
		return 0;
	}
	kvc_count(&k->stats, trimmed_chunks);
	kvc_lock(k);
	kvc_chunk_class_gave_locked(k, &t->walk.turns, r->policy);
	k->tier[t->tier].jammed = false;
	kvc_unlock(k);
	return 0;
}

/* Does one of the first n that were knocked at follow it? */
static bool is_followed(const struct kvc_trimmer *t, size_t n, uint64_t id)
{
	for (size_t i = 0; i < n; i++)
		if ((t->knocked[i].row.parent & ~KVC_TOLD) == id)
			return true;
	return false;
}

/*
 * Those that were knocked at, up to the goal: *gone what went, *coming what still is to go. One
 * that follows comes before what it follows, and holds it as long as it is there.
 */
static void revisit(struct kvc_trimmer *t, uint64_t goal, uint64_t *gone, uint64_t *coming)
{
	uint64_t kept[KNOCKED]; /* what those follow that stay */
	size_t left = 0, nkept = 0;

	for (size_t i = 0; i < t->nknocked; i++) {
		struct knocked *x = &t->knocked[i];
		uint64_t id = x->row.id;
		bool stays = is_spared(&t->walk, id);
		int err = -EBUSY;

		for (size_t j = 0; j < nkept && !stays; j++)
			stays = kept[j] == id;
		if (!stays && (over(t) || *gone >= goal || is_followed(t, left, id)))
			err = -EAGAIN;
		else if (!stays)
			err = visit(t, &x->row, &x->bytes);
		if (!err) {
			*gone += x->bytes;
		} else if (err == -EAGAIN) {
			*coming += x->bytes;
			t->knocked[left++] = *x;
		} else if (err != -ENOENT) {
			kept[nkept++] = x->row.parent & ~KVC_TOLD;
			spare_parent(t, &x->row);
		}
	}
	t->nknocked = left;
}

static bool is_knocked(const struct kvc_trimmer *t, uint64_t id)
{
	for (size_t i = 0; i < t->nknocked; i++)
		if (t->knocked[i].row.id == id)
			return true;
	return false;
}

/*
 * It goes when what follows it has gone, which was knocked at. Meanwhile the kernel may ask for its
 * name again, too.
 */
static void defer(struct kvc_trimmer *t, const struct kvc_chunk_row *r)
{
	struct kvc *k = t->k;
	struct kvc_node *n;

	kvc_lock(k);
	n = kvc_node_find_locked(k, r->id);
	if (n && S_ISDIR(n->row.mode) && kvc_kernel_knows(n))
		kvc_dir_probe_locked(k, r->id, r->last_ns, where(t), r->bytes);
	kvc_unlock(k);
	take_out(k, &t->walk, r, -EAGAIN);
	t->knocked[t->nknocked++] = (struct knocked){ *r, r->bytes };
}

/* One turn. Returns false where all that is left is to wait. */
static bool turn(struct kvc_trimmer *t, uint64_t goal)
{
	struct kvc *k = t->k;
	uint64_t gone = 0, coming = 0, bytes;
	struct kvc_chunk_row r;
	bool ended = false;

	t->hopeful = false;
	spare_waiting(t);
	revisit(t, goal, &gone, &coming);
	for (int i = 0; i < BATCH && gone + coming < goal && !over(t); i++) {
		int err;

		kvc_catalog_lock(k->cat);
		err = next_victim(t, &r);
		kvc_catalog_unlock(k->cat);
		ended = err && err != -EAGAIN;
		if (ended)
			break;
		if (err) /* of others */
			continue;
		if (is_knocked(t, r.id)) /* it goes */
			continue;
		if (is_followed(t, t->nknocked, r.id)) {
			if (t->nknocked < KNOCKED) {
				defer(t, &r);
				coming += r.bytes;
			}
			continue;
		}
		err = is_spared(&t->walk, r.id) ? -EBUSY : visit(t, &r, &bytes);
		if (!err)
			gone += bytes;
		else if (err != -ENOENT && err != -EAGAIN)
			spare_parent(t, &r);
		if (err == -EAGAIN && t->nknocked < KNOCKED) {
			coming += bytes;
			t->knocked[t->nknocked++] = (struct knocked){ r, bytes };
		}
	}
	kvc_lock(k);
	if (gone)
		kvc_committer_wake_locked(k, true);
	t->hopeful |= t->nknocked || !ended;
	if (ended && !t->model && !t->filling && !t->walk.freed && !t->nknocked &&
	    !t->walk.any_spared)
		k->tier[t->tier].jammed = true;
	kvc_unlock(k);
	if (ended || gone + coming >= goal)
		walk_begin(k, &t->walk, ended && !t->nknocked);
	return gone > 0;
}

/* Makes room, if there is to be some. Is there more to do at once? */
static bool work(struct kvc_trimmer *t)
{
	struct kvc_tier_state *ts = &t->k->tier[t->tier];
	struct kvc_tier_usage u;
	uint64_t goal;

	ts->t->ops->usage(ts->t, &u);
	kvc_lock(t->k);
	goal = goal_locked(t->k, t->tier, &u);
	if (!goal && !ts->trimming) {
		t->nknocked = 0; /* they may stay after all */
		t->walk.vain_ns = 0;
	}
	kvc_unlock(t->k);
	return goal && turn(t, goal);
}

/* The catalog cannot be read for now. What is not in its order would stay until the next mount. */
static void wait_a_moment(struct kvc_trimmer *t)
{
	struct timespec until = kvc_timespec(kvc_mono_ns() + IDLE_NS);
	struct kvc *k = t->k;

	kvc_lock(k);
	if (!k->evict->over)
		kvc_lock_wait(&k->lock, &k->tier[t->tier].trim_cond, &until);
	kvc_unlock(k);
}

/*
 * The disk tier's own orders, from the rows that there are, the coldest first: where the tier is
 * full, and stores do not wait until all are in order, those go.
 */
static void fill_class(struct kvc_trimmer *t, unsigned class, bool join)
{
	struct kvc_chunk_row at = { .rank = INT64_MIN }, r[ROWS];
	struct kvc *k = t->k;
	size_t n, rows = 0;
	int err = 0;

	while (err != -ENOENT && !over(t)) {
		at.policy = class;
		kvc_catalog_lock(k->cat);
		err = kvc_chunk_ranked(k->cat, &at, ROWS, r, &n);
		kvc_catalog_unlock(k->cat);
		kvc_lock(k);
		for (size_t i = 0; i < n && join; i++)
			kvc_replacers_join_locked(k, KVC_CACHE_DISK, &r[i]);
		for (size_t i = 0; i < n && !join; i++)
			kvc_replacers_restore_locked(k, KVC_CACHE_DISK, &r[i], 0);
		kvc_unlock(k);
		if (n)
			at = r[n - 1];
		rows += n;
		while (rows % FILLED < ROWS && !over(t) && work(t))
			;
		if (err && err != -ENOENT)
			wait_a_moment(t);
	}
}

static void fill(struct kvc_trimmer *t)
{
	t->filling = true;
	for (unsigned i = 0; i < KVC_CLASSES; i++)
		if (kvc_replacers_has_order(t->k, KVC_CACHE_DISK, i)) {
			fill_class(t, i, false);
			fill_class(t, i, true);
		}
	t->filling = false;
}

static void *trimmer(void *arg)
{
	struct kvc_trimmer *t = arg;
	struct kvc *k = t->k;
	struct kvc_tier_state *ts = &k->tier[t->tier];
	bool again = false;

	t->walk.cache = KVC_CACHE_DISK;
	walk_begin(k, &t->walk, false);
	if (!t->tier)
		fill(t);
	kvc_lock(k);
	while (!k->evict->over) {
		if (!again) {
			bool more = ts->trimming || kvc_tier_refuses_locked(ts) || t->nknocked;
			struct timespec until =
				kvc_timespec(kvc_mono_ns() + (more ? AGAIN_NS : IDLE_NS));

			kvc_lock_wait(&k->lock, &ts->trim_cond, &until);
			if (k->evict->over)
				break;
		}
		kvc_unlock(k);
		again = work(t);
		kvc_lock(k);
	}
	put_back_locked(k, &t->walk);
	kvc_unlock(k);
	free(t->walk.out);
	free(t);
	return NULL;
}

struct kvc_trimmer *kvc_trimmer_new(struct kvc *k, uint64_t model)
{
	struct kvc_trimmer *t = calloc(1, sizeof *t);

	if (!t)
		return NULL;
	t->k = k;
	t->model = model;
	/* where there is no tier, all is in the pool, and in its order */
	t->walk.cache = k->ntiers ? KVC_CACHE_DISK : KVC_CACHE_POOL;
	walk_begin(k, &t->walk, false);
	return t;
}

void kvc_trimmer_free(struct kvc_trimmer *t)
{
	kvc_lock(t->k);
	put_back_locked(t->k, &t->walk);
	kvc_unlock(t->k);
	free(t->walk.out);
	free(t);
}

uint64_t kvc_trimmer_model(const struct kvc_trimmer *t)
{
	return t->model;
}

bool kvc_trimmer_turn(struct kvc_trimmer *t, uint64_t goal, bool *hopeful)
{
	bool any = turn(t, goal);

	*hopeful = any || t->hopeful;
	return any;
}

int kvc_trim_start(struct kvc *k)
{
	int err = 0;

	kvc_tier_each(k, i)
		if (!err && (k->tier[i].t->ops->caps & KVC_TIER_BOUNDED)) {
			struct kvc_trimmer *t = calloc(1, sizeof *t);

			if (!t)
				return -ENOMEM;
			t->k = k;
			t->tier = i;
			err = -pthread_create(&k->tier[i].trimmer, NULL, trimmer, t);
			kvc_lock(k); /* the tiers' threads look at it already */
			k->tier[i].has_trimmer = !err;
			kvc_unlock(k);
			if (err)
				free(t);
		}
	return err;
}

void kvc_trim_stop(struct kvc *k)
{
	kvc_lock(k);
	k->evict->over = true;
	for (unsigned t = 0; t < KVC_TIERS; t++)
		pthread_cond_signal(&k->tier[t].trim_cond);
	kvc_unlock(k);
	for (unsigned t = 0; t < KVC_TIERS; t++)
		if (k->tier[t].has_trimmer)
			pthread_join(k->tier[t].trimmer, NULL);
}
