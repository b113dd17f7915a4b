/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: a thread that keeps models within their quotas and drops what has outlived its ttl.
 * Where the bytes asked for would not fit a quota, it drops the model's own chunks whole, lowest
 * rank first, down to low= of the quota, and refuses the first wait with EDQUOT when nothing can be
 * dropped.
 */
#include "chunk.h"
#include "drop.h"
#include "evict.h"

#include <string.h>

#define STUCK_LOOKS 12
#define IDLE_NS 250000000ull
#define PRESSED_NS 10000000ull

static bool pressed_locked(struct kvc *k)
{
	kvc_list_each(e, &k->quotas.list)
		if (kvc_quota_wanted(k, kvc_of(e, struct kvc_quota, link)))
			return true;
	return false;
}

/* Drops chunks of the model until it is small enough, or those are on their way that will do. */
static bool shrink(struct kvc *k, uint64_t model)
{
	struct kvc_chunk_row r = { .rank = INT64_MIN };
	uint64_t coming = 0, bytes;
	struct kvc_quota *q;
	bool progress = false;

	for (;;) {
		int err;

		kvc_lock_both(k);
		q = kvc_quota_of_locked(k, model);
		bool enough = !q || kvc_quota_wanted(k, q) <= coming || k->stopping;

		err = enough ? -ENOENT : kvc_chunk_next_quota(k->cat, model, &r);
		kvc_unlock_both(k);
		if (err)
			return progress;
		err = kvc_chunk_drop(k, r.id, -1, NULL, &bytes);
		if (!err)
			kvc_count(&k->stats, quota_drops);
		if (err == -EAGAIN)
			coming += bytes;
		/* it grows older */
		progress |= !err || err == -EAGAIN || (err == -EBUSY && kvc_chunk_young(r.last_ns));
	}
}

/* One pass over the models that are near or over their bound. */
static void quota_pass(struct kvc *k)
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
			return;
		after = model;
		bool progress = shrink(k, model);

		kvc_lock(k);
		struct kvc_quota *q = kvc_quota_of_locked(k, model);

		if (q && (progress || kvc_list_empty(&q->waiters))) {
			q->stuck = 0;
		} else if (q && ++q->stuck >= STUCK_LOOKS) {
			/* All that is left of the model is open, leased or pinned. */
			struct kvc_wait *w = kvc_of(q->waiters.next, struct kvc_wait, link);

			kvc_count(&k->stats, quota_refusals);
			w->want = 0;
			w->for_quota = false;
			kvc_wake_locked(k, w, -EDQUOT);
			q->stuck = 0;
		}
		kvc_unlock(k);
	}
}

#define EXPIRED_AT_ONCE 64

struct expired {
	uint64_t id[EXPIRED_AT_ONCE];
	size_t n;
};

static int take_expired(void *arg, const struct kvc_chunk_row *r)
{
	struct expired *x = arg;

	x->id[x->n++] = r->id;
	return x->n == EXPIRED_AT_ONCE;
}

static void expire_pass(struct kvc *k)
{
	struct expired x = { .n = 0 };

	kvc_catalog_lock(k->cat);
	kvc_chunk_each_expired(k->cat, kvc_now_ns(), take_expired, &x);
	kvc_catalog_unlock(k->cat);
	for (size_t i = 0; i < x.n; i++)
		if (!kvc_chunk_drop(k, x.id[i], -1, NULL, NULL))
			kvc_count(&k->stats, expired_chunks);
	if (k->shared) {
		kvc_catalog_lock(k->cat);
		kvc_gone_purge(k->cat, kvc_now_ns());
		kvc_catalog_unlock(k->cat);
	}
}

static void *keeper(void *arg)
{
	struct kvc *k = arg;
	uint64_t expire_ns = 0;

	kvc_lock(k);
	while (!k->stopping) {
		struct timespec until =
			kvc_timespec(kvc_mono_ns() + (pressed_locked(k) ? PRESSED_NS : IDLE_NS));

		kvc_lock_wait(&k->lock, &k->quotas.pressed, &until);
		if (k->stopping)
			break;
		kvc_unlock(k);
		quota_pass(k);
		if (kvc_mono_ns() > expire_ns) {
			expire_pass(k);
			kvc_drops_resume(k);
			expire_ns = kvc_mono_ns() + 1000000000;
			kvc_lock(k);
			kvc_knocks_free_locked(k, 60000000000ull);
			kvc_unlock(k);
		}
		kvc_lock(k);
	}
	kvc_unlock(k);
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
