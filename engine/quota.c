/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quotas: the bound on what the files of a model take, in memory or below (user.kvcachefs.quota on its folder).
 *
 * A file counts what stat says it takes; while it is written, the room that was prepared for it; from its last unlink on,
 * nothing. n->charged is what a file counts now, q->used the sum over all files of the model, and every change goes through
 * kvc_quota_count_locked. Bytes are granted before they are written, in the order in which they were asked for: so files of such a model
 * are written by plain requests, because what passthrough writes is learnt of at the close only. Where they would not
 * fit, the evictor drops the model's own chunks whole, lowest rank first, down to low= of the quota, and refuses the first wait with EDQUOT
 * when nothing can be dropped.
 *
 * The catalog keeps "limit used" under meta quota:MODEL. `used` is true after a clean stop; after a kill, and where a quota is
 * new, a survey counts it (survey.c); until then the sum is what it has counted, and nothing waits for it.
 */
#include "core.h"

#include <inttypes.h>
#include <string.h>

#define KEY "quota:"
#define STUCK_LOOKS 12

struct kvc_quota *kvc_quota_of_locked(struct kvc *k, uint64_t model)
{
	kvc_list_each(e, &k->quotas) {
		struct kvc_quota *q = kvc_of(e, struct kvc_quota, link);

		if (q->model == model)
			return q;
	}
	return NULL;
}

static void grant_locked(struct kvc *k, struct kvc_quota *q)
{
	while (!kvc_list_empty(&q->waiters)) {
		struct kvc_wait *w = kvc_of(q->waiters.next, struct kvc_wait, link);

		if (q->used + w->want > q->limit)
			return;
		q->used += w->want;
		w->quota = q->serial;
		w->quota_granted = w->want;
		w->want = 0;
		w->for_quota = false;
		kvc_wake_locked(k, w, 0);
	}
}

/* How much the model should lose now: from above high= down to low=, and what the first wait needs. */
static uint64_t wanted(const struct kvc *k, struct kvc_quota *q)
{
	uint64_t want = kvc_trim(q->used, q->limit, &k->opt, &q->trimming);

	if (!kvc_list_empty(&q->waiters)) {
		uint64_t need = q->used + kvc_of(q->waiters.next, struct kvc_wait, link)->want;

		if (need > q->limit)
			want = kvc_max(want, need - q->limit);
	}
	return want;
}

static void changed_locked(struct kvc *k, struct kvc_quota *q, int64_t by)
{
	q->used = by < 0 && (uint64_t)-by > q->used ? 0 : q->used + (uint64_t)by;
	if (by < 0) {
		q->stuck = 0;
		grant_locked(k, q);
	} else if (wanted(k, q)) {
		pthread_cond_signal(&k->keep_cond);
	}
}

uint64_t kvc_quota_bytes(const struct kvc_node *n)
{
	if (n->lost || n->state == KVC_GONE || !S_ISREG(n->row.mode))
		return 0;
	return n->state == KVC_OPEN ? n->room : n->row.blocks * 512;
}

void kvc_quota_count_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_quota *q = kvc_list_empty(&k->quotas) ? NULL : kvc_quota_of_locked(k, n->model);
	uint64_t now = q ? kvc_quota_bytes(n) : 0, before = n->charged;

	if (!q || now == before)
		return;
	n->charged = now;
	if (kvc_survey_counts(q, n->row.ino))
		changed_locked(k, q, (int64_t)(now - before));
}

void kvc_quota_move_locked(struct kvc *k, struct kvc_node *n, uint64_t model)
{
	struct kvc_quota *q = kvc_quota_of_locked(k, n->model);

	if (q && kvc_survey_counts(q, n->row.ino))
		changed_locked(k, q, -(int64_t)n->charged);
	n->charged = 0;
	n->model = model;
	kvc_quota_count_locked(k, n);
}

int kvc_quota_get_locked(struct kvc *k, uint64_t model, uint64_t bytes, struct kvc_wait *w)
{
	struct kvc_quota *q = kvc_list_empty(&k->quotas) ? NULL : kvc_quota_of_locked(k, model);

	if (!q || !bytes)
		return 0;
	if (w->quota_granted) {
		if (w->quota == q->serial && w->quota_granted >= bytes)
			return 0;
		kvc_quota_cancel_locked(k, w);
	}
	if (kvc_list_empty(&q->waiters) && q->used + bytes <= q->limit)
		return 0;
	if (bytes > q->limit || k->stopping) {
		kvc_count(&k->stats, quota_refusals);
		return -EDQUOT;
	}
	kvc_room_cancel_locked(k, w); /* others may have the pool's room while this waits */
	kvc_count(&k->stats, quota_waits);
	w->want = bytes;
	w->for_quota = true;
	pthread_cond_signal(&k->keep_cond);
	return kvc_park_locked(k, &q->waiters, w);
}

int kvc_quota_allows_locked(struct kvc *k, uint64_t model, uint64_t bytes)
{
	struct kvc_quota *q = kvc_quota_of_locked(k, model);

	return q && q->used + bytes > q->limit ? -EDQUOT : 0;
}

void kvc_quota_cancel_locked(struct kvc *k, struct kvc_wait *w)
{
	uint64_t bytes = w->quota_granted;

	w->quota_granted = 0;
	kvc_list_each(e, &k->quotas) {
		struct kvc_quota *q = kvc_of(e, struct kvc_quota, link);

		if (bytes && q->serial == w->quota) {
			changed_locked(k, q, -(int64_t)bytes);
			return;
		}
	}
}

int kvc_quota_save_both(struct kvc *k, const struct kvc_quota *q)
{
	char key[40], value[48];

	snprintf(key, sizeof key, KEY "%" PRIx64, q->model);
	snprintf(value, sizeof value, "%" PRIu64 " %" PRIu64, q->limit, q->used);
	return kvc_meta_set(k->cat, key, value);
}

static struct kvc_quota *add_locked(struct kvc *k, uint64_t model, uint64_t limit)
{
	struct kvc_quota *q = calloc(1, sizeof *q);

	if (!q)
		return NULL;
	q->model = model;
	q->limit = limit;
	q->serial = ++k->quota_serial;
	kvc_list_init(&q->waiters);
	kvc_list_add_tail(&k->quotas, &q->link);
	return q;
}

static void remove_locked(struct kvc *k, struct kvc_quota *q)
{
	kvc_list_each_safe(e, &q->waiters)
		kvc_of(e, struct kvc_wait, link)->want = 0;
	kvc_wake_all_locked(k, &q->waiters, 0);
	kvc_list_del(&q->link);
	free(q);
}

int kvc_quota_set_both(struct kvc *k, uint64_t model, uint64_t limit)
{
	struct kvc_quota *q = kvc_quota_of_locked(k, model);
	bool made = !q && limit;
	char key[40];
	int err;

	if (!q && !limit)
		return 0;
	if (!limit) {
		snprintf(key, sizeof key, KEY "%" PRIx64, model);
		err = kvc_meta_del(k->cat, key);
		if (!err)
			remove_locked(k, q);
		return err ?: kvc_survey_ask_both(k, model);
	}
	if (made && !(q = add_locked(k, model, limit)))
		return -ENOMEM;
	if (made)
		kvc_survey_count_locked(k, q);
	q->limit = limit;
	err = kvc_quota_save_both(k, q);
	if (!err && made)
		err = kvc_survey_ask_both(k, model);
	if (err && made) {
		remove_locked(k, q);
		return err;
	}
	kvc_quota_counted_locked(k, q);
	return err;
}

void kvc_quota_counted_locked(struct kvc *k, struct kvc_quota *q)
{
	grant_locked(k, q);
	pthread_cond_signal(&k->keep_cond);
}

int kvc_quotas_load_both(struct kvc *k, bool clean)
{
	char key[64] = KEY, value[64];
	int err;

	while (!(err = kvc_meta_next(k->cat, KEY, key, value, sizeof value))) {
		uint64_t model = 0, limit = 0, used = 0;
		struct kvc_quota *q;
		struct kvc_row row;

		if (sscanf(key, KEY "%" SCNx64, &model) != 1 || sscanf(value, "%" SCNu64 " %" SCNu64, &limit, &used) != 2 || !limit ||
		    kvc_row_get(k->cat, model, &row)) {
			kvc_meta_del(k->cat, key);
			continue;
		}
		if (!(q = add_locked(k, model, limit)))
			return -ENOMEM;
		q->used = clean ? used : 0;
		if (clean)
			continue;
		kvc_survey_count_locked(k, q);
		if ((err = kvc_survey_ask_both(k, model)))
			return err;
	}
	return err == -ENOENT ? 0 : err;
}

void kvc_quotas_save_both(struct kvc *k)
{
	kvc_list_each(e, &k->quotas) {
		struct kvc_quota q = *kvc_of(e, struct kvc_quota, link);

		/* A file that was never closed is not there at the next start. */
		kvc_table_each(&k->nodes, s) {
			struct kvc_node *n = kvc_of(s, struct kvc_node, slot);

			if (n->model == q.model && n->state == KVC_OPEN)
				q.used -= kvc_quota_bytes(n) - (n->lost ? 0 : n->row.blocks * 512);
		}
		kvc_quota_save_both(k, &q);
	}
}

bool kvc_quota_pressed_locked(struct kvc *k)
{
	kvc_list_each(e, &k->quotas)
		if (wanted(k, kvc_of(e, struct kvc_quota, link)))
			return true;
	return false;
}

void kvc_quotas_free(struct kvc *k)
{
	kvc_list_each_safe(e, &k->quotas)
		free(kvc_of(e, struct kvc_quota, link));
	kvc_list_init(&k->quotas);
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
		bool enough = !q || wanted(k, q) <= coming || k->stopping;

		err = enough ? -ENOENT : kvc_chunk_next_quota(k->cat, model, &r);
		kvc_unlock_both(k);
		if (err)
			return progress;
		err = kvc_chunk_drop(k, r.id, -1, NULL, &bytes);
		if (!err)
			kvc_count(&k->stats, quota_drops);
		if (err == -EAGAIN)
			coming += bytes;
		progress |= !err || err == -EAGAIN || (err == -EBUSY && kvc_chunk_young(r.last_ns)); /* it grows older */
	}
}

bool kvc_quota_pass(struct kvc *k)
{
	uint64_t after = 0;
	bool any = false;

	for (;;) {
		uint64_t model = UINT64_MAX;

		kvc_lock(k);
		kvc_list_each(e, &k->quotas) {
			struct kvc_quota *q = kvc_of(e, struct kvc_quota, link);

			if (q->model > after && q->model < model && wanted(k, q))
				model = q->model;
		}
		kvc_unlock(k);
		if (model == UINT64_MAX)
			return any;
		after = model;
		bool progress = shrink(k, model);

		any |= progress;
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
