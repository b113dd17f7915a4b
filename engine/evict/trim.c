/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trimming: every tier of bounded size has a thread that keeps it between the watermarks, ahead of
 * demand, so that a copy finds room and a full cache goes on at the pace of its disk. None of
 * them waits for another, nor the evictor of the pool (evict.c) for them.
 *
 * A trimmer counts by rows: what it dropped is on its way (kvc_tier_state.leaving) until the
 * commit and the removal have given the space back, and is not asked for twice. It walks the
 * catalog's chunks in the order of their ranks and keeps its place from turn to turn, so that
 * pinned and open ones at the front are looked at once a walk. A chunk folder's first visit only
 * makes the kernel ask again for its name (kvc_chunk_drop: -EAGAIN); the trimmer comes back for it.
 *
 * Trimmers go on while the daemon stops, until the last copy is made: what the pool alone has may
 * be more than a full tier has room for.
 */
#include "chunk.h"
#include "dirty.h"
#include "drop.h"
#include "evict.h"
#include "log.h"
#include "tierq.h"

#include <string.h>

#define BATCH 64    /* chunks a turn: what one turn adds to a commit */
#define KNOCKED 256 /* chunk folders that may be on their way out at once */
#define IDLE_NS 250000000ull
#define AGAIN_NS 5000000ull /* when all that is left to do is to wait */

/* A walk over the catalog's chunks, the first victim first. */
struct walk {
	struct kvc_chunk_row head[KVC_CLASSES]; /* the next of each class */
	enum { UNKNOWN, THERE, NONE } is[KVC_CLASSES];
	double turn[KVC_CLASSES];
	uint64_t freed; /* since it began */
};

struct knocked {
	struct kvc_chunk_row row;
	uint64_t bytes;
};

struct trim {
	struct kvc *k;
	unsigned tier;
	struct walk walk;
	struct knocked knocked[KNOCKED];
	size_t nknocked;
};

static void walk_begin(struct walk *w)
{
	memset(w, 0, sizeof *w);
	for (int i = 0; i < KVC_CLASSES; i++)
		w->head[i].rank = INT64_MIN;
}

/* Under the catalog's lock. */
static bool next_victim(struct kvc *k, struct walk *w, struct kvc_chunk_row *r)
{
	unsigned mask = 0;
	int class;

	for (int i = 0; i < KVC_CLASSES; i++) {
		if (w->is[i] == UNKNOWN) {
			w->head[i].policy = (unsigned)i;
			w->is[i] = kvc_chunk_next_ranked(k->cat, &w->head[i]) ? NONE : THERE;
		}
		mask |= w->is[i] == THERE ? 1u << i : 0;
	}
	class = kvc_class_next(w->turn, mask);
	if (class < 0)
		return false;
	*r = w->head[class];
	w->is[class] = UNKNOWN;
	return true;
}

static uint64_t goal_locked(struct kvc *k, unsigned tier, const struct kvc_tier_usage *u)
{
	struct kvc_tier_state *ts = &k->tier[tier];
	uint64_t used = u->used - kvc_min(u->used, ts->leaving);
	uint64_t goal = kvc_trim(used, u->total, &k->opt, &ts->trimming);

	ts->spare = u->total / 100 * (100 - k->opt.high_pct);
	if (goal || !kvc_tier_refuses_locked(ts))
		return goal;
	/* It refused a frame all the same: the free space is in pieces. */
	return ts->leaving ? 0 : kvc_max(u->total / 16, 1);
}

/* Nobody waits for what a trimmer still has in mind. */
static bool over(struct trim *t)
{
	bool is;

	kvc_lock(t->k);
	is = t->k->evict->over;
	kvc_unlock(t->k);
	return is;
}

/* 0: dropped; -EAGAIN: knocked; another: not this one. */
static int visit(struct trim *t, const struct kvc_chunk_row *r, uint64_t *bytes)
{
	struct kvc *k = t->k;
	int err = kvc_chunk_drop(k, r->id, (int)t->tier, r, bytes);

	if (err)
		return err;
	kvc_count(&k->stats, trimmed_chunks);
	t->walk.freed += *bytes;
	kvc_lock(k);
	kvc_class_gave_locked(k, t->walk.turn, r->policy);
	k->tier[t->tier].jammed = false;
	kvc_unlock(k);
	return 0;
}

/* Those that were knocked at: *gone what went, *coming what still is to go. */
static void revisit(struct trim *t, uint64_t *gone, uint64_t *coming)
{
	size_t left = 0;

	for (size_t i = 0; i < t->nknocked; i++) {
		struct knocked *x = &t->knocked[i];
		int err = over(t) ? -EAGAIN : visit(t, &x->row, &x->bytes);

		if (!err)
			*gone += x->bytes;
		if (err == -EAGAIN) {
			*coming += x->bytes;
			t->knocked[left++] = *x;
		}
	}
	t->nknocked = left;
}

static bool is_knocked(const struct trim *t, uint64_t id)
{
	for (size_t i = 0; i < t->nknocked; i++)
		if (t->knocked[i].row.id == id)
			return true;
	return false;
}

/* One turn. Returns false where all that is left is to wait. */
static bool turn(struct trim *t, uint64_t goal)
{
	struct kvc_chunk_row batch[BATCH];
	struct kvc *k = t->k;
	uint64_t gone = 0, coming = 0, bytes;
	bool ended = false;
	size_t n = 0;

	revisit(t, &gone, &coming);
	if (gone + coming < goal) {
		kvc_catalog_lock(k->cat);
		while (n < BATCH && next_victim(k, &t->walk, &batch[n]))
			n++;
		kvc_catalog_unlock(k->cat);
		ended = n < BATCH;
	}
	for (size_t i = 0; i < n && gone + coming < goal && !over(t); i++) {
		int err = is_knocked(t, batch[i].id) ? -EBUSY : visit(t, &batch[i], &bytes);

		if (!err)
			gone += bytes;
		if (err == -EAGAIN && t->nknocked < KNOCKED) {
			coming += bytes;
			t->knocked[t->nknocked++] = (struct knocked){ batch[i], bytes };
		}
		/* Those of the batch that are not needed are met again by the next walk. */
	}
	kvc_lock(k);
	if (gone)
		kvc_commit_soon_locked(k, true);
	if (ended && !t->walk.freed && !t->nknocked)
		k->tier[t->tier].jammed = true;
	kvc_unlock(k);
	if (ended || gone + coming >= goal)
		walk_begin(&t->walk);
	return gone > 0;
}

static void *trimmer(void *arg)
{
	struct kvc_tier_state *ts = arg;
	struct kvc *k = ts->k;
	struct trim *t = calloc(1, sizeof *t);
	bool again = false;

	if (!t) {
		kvc_error("out of memory: tier %s is not trimmed", ts->t->ops->name);
		return NULL;
	}
	t->k = k;
	t->tier = (unsigned)(ts - k->tier);
	walk_begin(&t->walk);
	kvc_lock(k);
	while (!k->evict->over) {
		struct kvc_tier_usage u;
		uint64_t goal;

		if (!again) {
			bool more = ts->trimming || kvc_tier_refuses_locked(ts) || t->nknocked;
			struct timespec until =
				kvc_timespec(kvc_mono_ns() + (more ? AGAIN_NS : IDLE_NS));

			kvc_lock_wait(&k->lock, &ts->trim_cond, &until);
			if (k->evict->over)
				break;
		}
		kvc_unlock(k);
		ts->t->ops->usage(ts->t, &u);
		kvc_lock(k);
		goal = goal_locked(k, t->tier, &u);
		if (!goal && !ts->trimming)
			t->nknocked = 0; /* they may stay after all */
		kvc_unlock(k);
		again = goal && turn(t, goal);
		kvc_lock(k);
	}
	kvc_unlock(k);
	free(t);
	return NULL;
}

int kvc_trim_start(struct kvc *k)
{
	int err = 0;

	kvc_tier_each(k, t)
		if (!err && (k->tier[t].t->ops->caps & KVC_TIER_BOUNDED)) {
			err = -pthread_create(&k->tier[t].trimmer, NULL, trimmer, &k->tier[t]);
			k->tier[t].has_trimmer = !err;
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
