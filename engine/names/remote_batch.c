/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookups of many names in the shared tiers. First each tier that can tell which of many frames it
 * may have (`have` in tier.h) is asked for all names that no such tier before it had. A missing
 * chain of chunks then costs one request per node or server, and not one per name. The names that
 * are left are looked up one by one, as by a lookup of the kernel (remote_lookup.c), but a number
 * of them at the same time. In a tier without `have`, all names are.
 *
 * One job at a time asks a tier; it and the owner have a reference each. The job reads the names,
 * which do not change after the first run. k->lock guards everything else.
 */
#include "remote_batch.h"

#include "clock.h"
#include "node.h"
#include "path.h"
#include "remote_lookup.h"
#include "tier_queue.h"

#include <string.h>

#define AHEAD 32u /* lookups of single names that are under way at the same time */
#define BUCKETS 1024u

struct batch_name {
	uint64_t parent;
	char *name, *path; /* one piece of memory */
	unsigned absent;   /* a bit for each tier that does not have it */
	bool counted;      /* in the counter `asks` */
};

struct kvc_remote_batch {
	struct batch_name v[KVC_REMOTE_BATCH];
	size_t n;
	uint16_t buckets[BUCKETS]; /* 1 + the number of a name, by its hash; 0: free */
	uint32_t uid;
	bool again; /* look up names that no tier had a moment ago */
	unsigned refs;
	unsigned asked; /* a bit for each tier whose `have` was called */
	bool asking;    /* such a call is queued or running */
	/* names before `at` are finished; those before `started` are being looked up */
	size_t at, started;
	struct kvc_list waiters;
};

struct have_job {
	struct kvc_remote_turn turn; /* first, because the queue frees it */
	struct kvc_remote_batch *b;
};

struct kvc_remote_batch *kvc_remote_batch_new(uint32_t uid, bool again)
{
	struct kvc_remote_batch *b = calloc(1, sizeof *b);

	if (b) {
		b->uid = uid;
		b->again = again;
		b->refs = 1;
		kvc_list_init(&b->waiters);
	}
	return b;
}

static void batch_unref_locked(struct kvc_remote_batch *b)
{
	if (--b->refs)
		return;
	for (size_t i = 0; i < b->n; i++)
		free(b->v[i].name);
	free(b);
}

void kvc_remote_batch_free(struct kvc *k, struct kvc_remote_batch *b)
{
	if (!b)
		return;
	kvc_lock(k);
	for (size_t i = b->at; i < b->started; i++)
		kvc_remote_lookup_forget_locked(k, b->v[i].parent, b->v[i].name);
	batch_unref_locked(b);
	kvc_unlock(k);
}

bool kvc_remote_batch_empty(const struct kvc_remote_batch *b)
{
	return !b->n;
}

/* Returns the bucket of the name: its own, or a free one. */
static uint16_t *batch_bucket(struct kvc_remote_batch *b, uint64_t parent, const char *name)
{
	uint64_t hash = (kvc_name_hash(name) ^ parent) * 0x9e3779b97f4a7c15ull;

	for (size_t i = hash >> 32;; i++) {
		uint16_t *at = &b->buckets[i % BUCKETS];

		if (!*at || (b->v[*at - 1].parent == parent && !strcmp(b->v[*at - 1].name, name)))
			return at;
	}
}

int kvc_remote_batch_add_both(struct kvc *k, struct kvc_remote_batch *b, uint64_t parent,
			      const char *name)
{
	uint16_t *bucket = batch_bucket(b, parent, name);
	size_t len = strlen(name) + 1, path_len;
	char path[KVC_FRAME_PATH_MAX + 1], *copy;
	int err = *bucket ? 1 : kvc_remote_lookup_is_vain_both(k, parent, name, b->again);

	err = err ?: kvc_path_in_both(k, parent, name, path);
	if (err) /* known, vain, or too long for any tier */
		return err > 0 || err == -ENAMETOOLONG ? 0 : err;
	if (b->n == KVC_REMOTE_BATCH)
		return -ENOSPC;
	path_len = strlen(path) + 1;
	copy = malloc(len + path_len);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, name, len);
	memcpy(copy + len, path, path_len);
	b->v[b->n++] = (struct batch_name){ .parent = parent, .name = copy, .path = copy + len };
	*bucket = (uint16_t)b->n;
	return 0;
}

/* ---- many names in one tier ---- */

/* The names that one job asks for. */
struct have {
	struct batch_name *name[KVC_REMOTE_BATCH];
	struct kvc_where w[KVC_REMOTE_BATCH];
	const char *path[KVC_REMOTE_BATCH];
	bool has[KVC_REMOTE_BATCH];
	size_t n;
};

/* Records the answer of the tier. A tier that fails does not have the names now. */
static void have_answered_locked(struct kvc *k, const struct have *h, unsigned tier)
{
	for (size_t i = 0; i < h->n; i++) {
		kvc_count_by(&k->stats, asks, !h->name[i]->counted);
		h->name[i]->counted = true;
		if (!h->has[i])
			h->name[i]->absent |= 1u << tier;
	}
}

static void have_run(struct kvc *k, struct kvc_job *j)
{
	struct kvc_remote_batch *b = kvc_of(j, struct have_job, turn.job)->b;
	struct kvc_tier *t = k->tier[j->tier].t;
	KVC_MEM struct have *h = calloc(1, sizeof *h);
	unsigned before;
	int err = h ? 0 : -ENOMEM;

	kvc_lock(k);
	before = b->asked & ~(1u << j->tier);
	for (size_t i = 0; h && i < b->n; i++)
		if ((b->v[i].absent & before) == before) {
			h->name[h->n] = &b->v[i];
			h->path[h->n++] = b->v[i].path;
		}
	if (!kvc_tier_allowed_locked(k, j->tier, KVC_CALL_READ))
		err = -EIO;
	kvc_unlock(k);
	if (!err && h->n) {
		for (size_t i = 0; i < h->n; i++)
			h->w[i] = kvc_frame_where_of(h->path[i]);
		err = t->ops->have(t, h->w, h->path, h->n, h->has);
		kvc_count(&k->stats, ask_batches);
	}
	if (h && err)
		memset(h->has, 0, sizeof h->has);
	kvc_lock(k);
	if (h && h->n)
		kvc_tier_result_locked(k, j->tier, KVC_CALL_READ, h->w[0].at, err);
	if (h)
		have_answered_locked(k, h, j->tier);
	kvc_remote_lookup_turn_ended_locked(k, j->tier);
	b->asking = false;
	kvc_wait_wake_all_locked(k, &b->waiters, 0);
	batch_unref_locked(b);
	kvc_unlock(k);
}

/*
 * Asks the next tier that can tell about many names. Returns false if none is left, or if there is
 * only one name, which its lookup finds in as many round trips.
 */
static bool have_next_locked(struct kvc *k, struct kvc_remote_batch *b)
{
	for (unsigned i = 0; i < k->ntiers && b->n > 1; i++) {
		unsigned t = k->order[i];
		struct have_job *j;

		if (!k->tier[t].t->ops->have || (b->asked & (1u << t)) ||
		    kvc_tier_out_locked(k, t, KVC_CALL_READ) || !(j = calloc(1, sizeof *j)))
			continue;
		b->asked |= 1u << t;
		b->asking = true;
		b->refs++;
		j->b = b;
		j->turn.uid = b->uid;
		kvc_remote_lookup_turn_locked(k, &j->turn, t, have_run);
		return true;
	}
	return false;
}

/* ---- single names ---- */

/* May any tier have the name? */
static bool name_is_left_locked(struct kvc *k, const struct batch_name *n)
{
	kvc_tier_each(k, t)
		if (k->tier[t].t->ops->caps & KVC_TIER_SHARED && !(n->absent & (1u << t)) &&
		    !kvc_tier_out_locked(k, t, KVC_CALL_READ))
			return true;
	return false;
}

/*
 * Starts the lookup of the next name. The catalog's table of deleted paths is read without the
 * locks first; if it has changed, the name is left for the next lookup.
 */
static void start_next(struct kvc *k, struct kvc_remote_batch *b)
{
	struct batch_name *n = &b->v[b->started];
	const struct kvc_where where = kvc_frame_where_of(n->path);
	struct kvc_peek_gone gone = { 0 };
	bool left;

	kvc_lock(k);
	left = name_is_left_locked(k, n);
	if (!left && n->absent)
		kvc_remote_lookup_missed_locked(k, n->parent, n->name);
	kvc_unlock(k);
	if (left && !kvc_peek_gone(k->cat, &where, kvc_clock_ns(k), &gone)) {
		kvc_lock_both(k);
		kvc_remote_lookup_start_both(k, n->parent, n->name, b->uid, n->absent, n->counted,
					     &gone);
		kvc_unlock_both(k);
	}
	b->started++;
}

/* Has the call's time passed, or is there no place for it to wait? */
static bool may_not_wait(struct kvc *k, struct kvc_wait *w)
{
	if (w->deadline_ns && kvc_mono_ns() >= w->deadline_ns)
		return true;
	if (kvc_wait_may_park(w))
		return false;
	kvc_count(&k->stats, waits_refused);
	return true;
}

int kvc_remote_batch_run(struct kvc *k, struct kvc_remote_batch *b, struct kvc_wait *w)
{
	int err = 0;

	if (w->err == -ESHUTDOWN)
		return w->err;
	kvc_lock(k);
	if (k->stopping || may_not_wait(k, w)) {
		kvc_unlock(k);
		return 0;
	}
	if (!w->deadline_ns)
		w->deadline_ns = kvc_remote_lookup_deadline_ns(k);
	if (b->asking || have_next_locked(k, b))
		err = kvc_wait_park_locked(k, &b->waiters, w);
	kvc_unlock(k);
	while (!err && b->at < b->n) {
		while (b->started < b->n && b->started < b->at + AHEAD)
			start_next(k, b);
		kvc_lock(k);
		err = kvc_remote_lookup_wait_locked(k, b->v[b->at].parent, b->v[b->at].name, w);
		kvc_unlock(k);
		if (!err) /* once parked, the call may be made again by another thread */
			b->at++;
	}
	return err;
}
