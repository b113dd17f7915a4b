/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: a thread that keeps models within their quotas and drops what has outlived its ttl.
 * Where the bytes asked for would not fit a quota, it drops the model's own chunks whole, in the
 * order of their policy (trim.c), down to low= of the quota, and refuses the first wait with EDQUOT
 * when nothing can be dropped. What has expired goes in turns, so that who waits for a quota does
 * not wait for all of it; but without a pause between them. By the way it stamps what used chunks
 * follow (objects/ancestors.h).
 */
#include "chunk.h"
#include "clock.h"
#include "dirty.h"
#include "drop.h"
#include "evict.h"
#include "pinned.h"
#include "used.h"
#include "written.h"

#include <string.h>

#define STUCK_LOOKS 12
#define SAVE_NS 60000000000ull
#define IDLE_NS 250000000ull
#define WHOLE_NS 10000000000ull /* between two walks of all that has expired */
#define PRESSED_NS 10000000ull
#define TURN 256 /* of what has expired, before who waits for a quota has his turn */

static bool pressed_locked(struct kvc *k)
{
	kvc_list_each(e, &k->quotas.list)
		if (kvc_quota_wanted(k, kvc_of(e, struct kvc_quota, link)))
			return true;
	return false;
}

/* Of those that are pressed: their trimmers; and of those that are so no more, which go. */
struct quotas {
	struct kvc_trimmer **v;
	size_t n, room;
};

static uint64_t wanted(struct kvc *k, uint64_t model)
{
	struct kvc_quota *q;
	uint64_t want;

	kvc_lock(k);
	q = kvc_quota_of_locked(k, model);
	want = q && !k->stopping ? kvc_quota_wanted(k, q) : 0;
	kvc_unlock(k);
	return want;
}

/* NULL: out of memory. */
static struct kvc_trimmer *trimmer_of(struct kvc *k, struct quotas *s, uint64_t model)
{
	struct kvc_trimmer *t;

	for (size_t i = 0; i < s->n; i++)
		if (kvc_trimmer_model(s->v[i]) == model)
			return s->v[i];
	if (kvc_grow(&s->v, s->n, &s->room, sizeof(struct kvc_trimmer *)) ||
	    !(t = kvc_trimmer_new(k, model)))
		return NULL;
	s->v[s->n++] = t;
	return t;
}

/* Drops chunks of the model until it is small enough, or those are on their way that will do. */
static bool shrink(struct kvc *k, struct quotas *s, uint64_t model)
{
	struct kvc_trimmer *t = trimmer_of(k, s, model);
	bool progress = false, more = t;
	uint64_t goal;

	while (more && (goal = wanted(k, model))) {
		bool hopeful;

		more = kvc_trimmer_turn(t, goal, &hopeful);
		progress |= hopeful;
	}
	return progress;
}

static void quotas_end(struct kvc *k, struct quotas *s, bool all)
{
	for (size_t i = 0; i < s->n;) {
		if (!all && wanted(k, kvc_trimmer_model(s->v[i]))) {
			i++;
			continue;
		}
		kvc_trimmer_free(s->v[i]);
		s->v[i] = s->v[--s->n];
	}
	if (all)
		free(s->v);
}

/* One pass over the models that are near or over their bound. */
static void quota_pass(struct kvc *k, struct quotas *s)
{
	uint64_t after = 0;

	for (;;) {
		uint64_t model = UINT64_MAX;

		kvc_lock(k);
		kvc_list_each(e, &k->quotas.list) {
			struct kvc_quota *q = kvc_of(e, struct kvc_quota, link);

			if (q->model > after && q->model < model && kvc_quota_wanted(k, q))
				model = q->model;
		}
		kvc_unlock(k);
		if (model == UINT64_MAX)
			break;
		after = model;
		bool progress = shrink(k, s, model);

		kvc_lock(k);
		struct kvc_quota *q = kvc_quota_of_locked(k, model);

		if (q && (progress || kvc_list_empty(&q->waiters))) {
			q->stuck = 0;
		} else if (q && ++q->stuck >= STUCK_LOOKS) {
			/* All that is left of the model is open, leased or pinned. */
			kvc_refuse_first_locked(k, &q->waiters);
			q->stuck = 0;
		}
		kvc_unlock(k);
	}
	quotas_end(k, s, false);
}

/* Where the walk of what expires is. */
struct expiry {
	struct kvc_chunk_row at;   /* by (expires_ns, id) */
	struct kvc_chunk_row from; /* where the next walk begins, if `again` */
	bool again, under_way;
	uint64_t whole_ns; /* when it begins anew, for those that were in use */
};

/*
 * Drops what has outlived its ttl since the last walk; those that were knocked at, and now and then
 * those that were in use, are looked at again. One turn of it: true where the walk goes on.
 */
static bool expire_some(struct kvc *k, struct expiry *x)
{
	unsigned n = 0;
	int err = 0;

	if (!x->under_way && kvc_mono_ns() > x->whole_ns) {
		x->at = (struct kvc_chunk_row){ 0 };
		x->whole_ns = kvc_mono_ns() + WHOLE_NS;
	}
	for (; n < TURN && !kvc_stopping(k); n++) {
		struct kvc_chunk_row last = x->at;

		kvc_catalog_lock(k->cat);
		err = kvc_chunk_next_expired(k->cat, kvc_clock_ns(k), &x->at);
		kvc_catalog_unlock(k->cat);
		if (err)
			break;
		err = kvc_chunk_drop(k, x->at.id, KVC_DROP_WHOLE, NULL, NULL);
		if (!err) {
			kvc_count(&k->stats, expired_chunks);
			kvc_kept_evicted(k, KVC_FOR_ttl, KVC_FROM_ALL, x->at.policy);
		}
		if (err == -EAGAIN && !x->again) {
			x->from = last;
			x->again = true;
		}
	}
	x->under_way = n == TURN;
	if (!x->under_way && x->again) {
		x->at = x->from;
		x->again = false;
	}
	return x->under_way;
}

static void purge_gone(struct kvc *k)
{
	if (!k->shared)
		return;
	kvc_catalog_lock(k->cat);
	kvc_gone_purge(k->cat, kvc_clock_ns(k));
	kvc_catalog_unlock(k->cat);
}

/* Where nothing is committed nothing needs a time. */
static void save_clock(struct kvc *k, uint64_t *saved_ns)
{
	uint64_t now = kvc_mono_ns();

	if (now < *saved_ns + SAVE_NS)
		return;
	kvc_lock_both(k);
	if (k->dirty->committed != k->evict->saved_txn && !kvc_clock_save_both(k)) {
		kvc_written_save_both(k);
		k->evict->saved_txn = kvc_catalog_txn(k->cat);
		*saved_ns = now;
	}
	kvc_unlock_both(k);
}

static void *keeper(void *arg)
{
	struct kvc *k = arg;
	struct expiry expiry = { 0 };
	struct quotas quotas = { 0 };
	uint64_t expire_ns = 0, saved_ns = kvc_mono_ns();
	bool more = false;

	kvc_lock(k);
	while (!k->stopping) {
		uint64_t pause = more ? 0 : pressed_locked(k) ? PRESSED_NS : IDLE_NS;
		struct timespec until = kvc_timespec(kvc_mono_ns() + pause);

		kvc_lock_wait(&k->lock, &k->quotas.pressed, &until);
		if (k->stopping)
			break;
		kvc_unlock(k);
		kvc_ancestors_stamp(k);
		quota_pass(k, &quotas);
		bool due = kvc_mono_ns() > expire_ns;

		if (due || more)
			more = expire_some(k, &expiry);
		if (due) {
			purge_gone(k);
			save_clock(k, &saved_ns);
			kvc_drops_resume(k);
			kvc_pool_shrink(&k->pool);
			kvc_lock_both(k);
			kvc_pins_end_both(k);
			kvc_unlock_both(k);
			expire_ns = kvc_mono_ns() + 1000000000;
			kvc_lock(k);
			kvc_knocks_free_locked(k, 60000000000ull);
			kvc_unlock(k);
		}
		kvc_lock(k);
	}
	kvc_unlock(k);
	quotas_end(k, &quotas, true);
	return NULL;
}

int kvc_keeper_start(struct kvc *k)
{
	int err = -pthread_create(&k->evict->keeper, NULL, keeper, k);

	k->evict->has_keeper = !err;
	return err;
}

void kvc_keeper_stop(struct kvc *k)
{
	kvc_lock(k);
	pthread_cond_signal(&k->quotas.pressed);
	kvc_unlock(k);
	if (k->evict->has_keeper)
		pthread_join(k->evict->keeper, NULL);
	k->evict->has_keeper = false;
}
