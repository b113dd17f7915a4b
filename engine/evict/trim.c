/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trimming of tiers: every tier of bounded size has a thread that keeps it between the watermarks
 * ahead of demand, so that copies find space and a full cache runs at the speed of its disk. The
 * threads do not wait for each other, and the pool's evictor (evict.c) does not wait for them. Each
 * has a trimmer (trimmer.c), which chooses and drops the victims. If a policy has a replacer for
 * the disk tier, the disk tier's thread fills it from the catalog when the thread starts.
 *
 * Dropping a chunk deletes its rows; its space becomes free only after the commit and the removal.
 * Until then its bytes are in ts->deferred.bytes, and the threads do not count them as used, so
 * that they do not drop other chunks for the same need.
 *
 * The threads keep running while the daemon stops, until the last copy is made: the objects that
 * only the pool has may need more space than a full tier has free.
 */
#include "evict.h"

#include "disk_victims.h"
#include "replacers.h"
#include "tier_queue.h"

#define IDLE_NS 250000000ull /* pause between two checks of a tier */
#define AGAIN_NS 5000000ull  /* the same, while the tier needs space */
#define ROWS 16              /* rows per hold of a lock while replacers are filled */
#define FILLED 4096          /* rows after which the thread checks whether it must trim */

struct tier_trim {
	struct kvc *k;
	struct kvc_trimmer *t;
	unsigned tier;
};

static bool is_over(struct kvc *k)
{
	bool over;

	kvc_lock(k);
	over = k->evict->over;
	kvc_unlock(k);
	return over;
}

static uint64_t goal_locked(struct kvc *k, unsigned tier, const struct kvc_tier_usage *u)
{
	struct kvc_tier_state *ts = &k->tier[tier];
	uint64_t used = u->used - kvc_min(u->used, ts->deferred.bytes);
	uint64_t goal = kvc_reservation_excess(used, u->total, &k->opt, &ts->trim.active);

	ts->trim.spare = u->total / 100 * (100 - k->opt.high_pct);
	if (goal || !kvc_tier_refuses_locked(ts))
		return goal;
	/* The tier refused a frame although bytes are free: the free space is fragmented. */
	return ts->deferred.bytes ? 0 : kvc_max(u->total / 16, 1);
}

/* Frees space if the tier needs some. Returns true if there is more to do at once. */
static bool trim_once(struct tier_trim *x)
{
	struct kvc *k = x->k;
	struct kvc_tier_state *ts = &k->tier[x->tier];
	struct kvc_tier_usage u;
	uint64_t goal;
	bool hopeful;

	ts->t->ops->usage(ts->t, &u);
	kvc_lock(k);
	goal = goal_locked(k, x->tier, &u);
	if (!goal && !ts->trim.active)
		kvc_trimmer_rest(x->t);
	kvc_unlock(k);
	return goal && kvc_trimmer_turn(x->t, goal, &hopeful);
}

/*
 * The catalog cannot be read for now: waits before the next attempt. Chunks missing from the
 * replacer would stay until the next mount.
 */
static void wait_for_catalog(struct tier_trim *x)
{
	struct timespec until = kvc_timespec(kvc_mono_ns() + IDLE_NS);
	struct kvc *k = x->k;

	kvc_lock(k);
	if (!k->evict->over)
		kvc_tier_trim_wait_locked(k, x->tier, &until);
	kvc_unlock(k);
}

/*
 * Reads the catalog's rows, the coldest first, and adds their chunks to a replacer of the disk tier
 * or, in a second pass (join), sets their parents. If the tier is full meanwhile, chunks that are
 * in the replacer already are dropped, so that copies need not wait until it is complete.
 */
static void fill_class(struct tier_trim *x, unsigned class, bool join)
{
	struct kvc_chunk_row at = { .rank = INT64_MIN }, r[ROWS];
	struct kvc *k = x->k;
	size_t n, rows = 0;
	int err = 0;

	while (err != -ENOENT && !is_over(x->k)) {
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
		while (rows % FILLED < ROWS && !is_over(x->k) && trim_once(x))
			;
		if (err && err != -ENOENT)
			wait_for_catalog(x);
	}
}

static void fill_replacers(struct tier_trim *x)
{
	kvc_trimmer_set_filling(x->t, true);
	for (unsigned i = 0; i < KVC_CLASSES; i++)
		if (kvc_replacers_has_order(x->k, KVC_CACHE_DISK, i)) {
			fill_class(x, i, false);
			fill_class(x, i, true);
		}
	kvc_trimmer_set_filling(x->t, false);
}

static void *trim_thread(void *arg)
{
	struct tier_trim *x = arg;
	struct kvc *k = x->k;
	struct kvc_tier_state *ts = &k->tier[x->tier];
	bool again = false;

	if (!x->tier)
		fill_replacers(x);
	kvc_lock(k);
	k->disk_victims->ready |= !x->tier && kvc_trimmer_is_of_disk(x->t);
	while (!k->evict->over) {
		if (!again) {
			bool more = ts->trim.active || kvc_tier_refuses_locked(ts) ||
				    kvc_trimmer_is_probing(x->t);
			struct timespec until =
				kvc_timespec(kvc_mono_ns() + (more ? AGAIN_NS : IDLE_NS));

			kvc_tier_trim_wait_locked(k, x->tier, &until);
			if (k->evict->over)
				break;
		}
		kvc_unlock(k);
		again = trim_once(x);
		kvc_lock(k);
	}
	kvc_unlock(k);
	kvc_trimmer_free(x->t);
	free(x);
	return NULL;
}

int kvc_trim_start(struct kvc *k)
{
	int err = 0;

	kvc_tier_each(k, i)
		if (!err && (k->tier[i].t->ops->caps & KVC_TIER_BOUNDED)) {
			struct tier_trim *x = calloc(1, sizeof *x);

			if (!x || !(x->t = kvc_trimmer_new(k, i, 0))) {
				free(x);
				return -ENOMEM;
			}
			x->k = k;
			x->tier = i;
			err = -pthread_create(&k->tier[i].trim.thread, NULL, trim_thread, x);
			kvc_lock(k); /* the tiers' threads read trim.exists already */
			k->tier[i].trim.exists = !err;
			kvc_unlock(k);
			if (err) {
				kvc_trimmer_free(x->t);
				free(x);
			}
		}
	return err;
}

void kvc_trim_stop(struct kvc *k)
{
	kvc_lock(k);
	k->evict->over = true;
	for (unsigned t = 0; t < KVC_TIERS; t++)
		kvc_tier_trim_wake_locked(k, t);
	kvc_unlock(k);
	for (unsigned t = 0; t < KVC_TIERS; t++)
		if (k->tier[t].trim.exists)
			pthread_join(k->tier[t].trim.thread, NULL);
}
