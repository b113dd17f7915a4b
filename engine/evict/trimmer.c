/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trimmer frees space in one tier (trim.c), or of one model above its quota (quota_keeper.c): it
 * walks over the chunks, the first victim first (trim_walk.c), and drops them. For a model or
 * tenant above its quota, whole chunks are dropped.
 *
 * The first visit to a chunk's folder only makes the kernel ask for its name again (a probe;
 * kvc_chunk_drop returns -EAGAIN); the trimmer visits it again later.
 *
 * Each trimmer is used by one thread: a tier's thread, or the quota keeper's.
 */
#include "trim_walk.h"

#include "committer.h"
#include "dir_invalidate.h"
#include "disk_victims.h"
#include "evict.h"
#include "tenant.h"
#include "log.h"
#include "tier_queue.h"

#define BATCH 64 /* chunks dropped per turn, which bounds one commit */

/* Should the trimmer stop? */
static bool should_stop(struct kvc_trimmer *t)
{
	bool stop;

	kvc_lock(t->k);
	stop = t->model ? t->k->stopping : t->k->evict->over;
	kvc_unlock(t->k);
	return stop;
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
	/* the chunk may be dropped later: its row was out of date, or it was used a moment ago */
	bool soon = err == -ESTALE || (err == -EBUSY && kvc_chunk_young(k, r->last_ns));

	if (!err || err == -ENOENT || err == -EAGAIN)
		kvc_trim_walk_remove(t, r, err);
	if (soon)
		t->hopeful = t->walk.has_young = true;
	if (err && err != -ENOENT)
		kvc_trim_walk_given_up_stays(t, r, soon || err == -EAGAIN);
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
	uint64_t kept_parents[KVC_TRIM_PROBED]; /* parents of the chunks that stay */
	size_t left = 0, nkept_parents = 0;

	for (size_t i = 0; i < t->nprobed; i++) {
		struct kvc_trim_probed *x = &t->probed[i];
		uint64_t id = x->row.id;
		bool stays = kvc_trim_walk_spares(t, id);
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
			kvc_trim_walk_spare(t, &x->row);
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
	kvc_trim_walk_remove(t, r, -EAGAIN);
	t->probed[t->nprobed++] = (struct kvc_trim_probed){ *r, r->bytes };
}

/* Makes one turn to free `goal` bytes. Returns true if it freed any. */
static bool trim_turn(struct kvc_trimmer *t, uint64_t goal)
{
	struct kvc *k = t->k;
	uint64_t gone = 0, coming = 0, bytes;
	struct kvc_chunk_row r;
	bool ended = false, blocked = false;

	t->hopeful = false;
	kvc_trim_walk_spare_waiting(t);
	revisit_probed(t, goal, &gone, &coming);
	for (int i = 0; i < BATCH && gone + coming < goal && !should_stop(t); i++) {
		int err;

		kvc_catalog_lock(k->cat);
		err = kvc_trim_walk_next(t, &r);
		kvc_catalog_unlock(k->cat);
		ended = err && err != -EAGAIN;
		if (ended)
			break;
		if (err) /* only chunks of other models so far */
			continue;
		if (is_probed(t, r.id)) /* it will be dropped */
			continue;
		blocked = kvc_trim_walk_is_blocked(t, &r);
		if (blocked)
			break;
		if (has_probed_child(t, t->nprobed, r.id)) {
			if (t->nprobed < KVC_TRIM_PROBED) {
				probe_later(t, &r);
				coming += r.bytes;
			}
			continue;
		}
		if (kvc_trim_walk_spares(t, r.id)) {
			kvc_trim_walk_given_up_stays(t, &r, t->walk.has_young);
			err = -EBUSY;
		} else {
			err = drop_victim(t, &r, &bytes);
		}
		if (!err)
			gone += bytes;
		else if (err != -ENOENT && err != -EAGAIN)
			kvc_trim_walk_spare(t, &r);
		if (err == -EAGAIN && t->nprobed < KVC_TRIM_PROBED) {
			coming += bytes;
			t->probed[t->nprobed++] = (struct kvc_trim_probed){ r, bytes };
		}
	}
	kvc_lock(k);
	if (gone)
		kvc_committer_wake_locked(k, true);
	t->hopeful |= t->nprobed || !ended;
	if (ended && !t->model && !t->filling && !t->walk.freed && !t->nprobed &&
	    !t->walk.has_spared && !t->walk.awaits_given_up && !(k->stopping && t->walk.has_young))
		k->tier[t->tier].nothing_to_drop = true;
	kvc_unlock(k);
	if (ended || blocked || gone + coming >= goal)
		kvc_trim_walk_begin(t, ended && !t->nprobed);
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
	t->walk.of_disk = kvc_trimmer_is_of_disk(t);
	kvc_trim_walk_begin(t, false);
	return t;
}

void kvc_trimmer_free(struct kvc_trimmer *t)
{
	kvc_lock(t->k);
	kvc_trim_walk_put_back_locked(t);
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
