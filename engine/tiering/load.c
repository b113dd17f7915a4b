/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads: LOWER -> LOADING -> BOTH. First, space in the pool is reserved. Then a worker of the first
 * tier that has a copy reads the frame into a new segment (fetch.c) and renames the segment to its
 * published name. Calls that open the object during the load wait on n->wait.ready and share the
 * load. If a tier fails, the load is queued for the next tier that has a copy. A copy that is
 * damaged, missing or replaced by another node is forgotten; if no copy is left, the file is
 * dropped.
 *
 * Workers of the tiers run the jobs. pool/wait.c calls reservation_ready.
 */
#include "load.h"

#include "account.h"
#include "fetch.h"
#include "file.h"
#include "log.h"
#include "membership.h"
#include "path.h"
#include "rings.h"
#include "spill.h"
#include "model_stats.h"
#include "tier_queue.h"
#include "latency.h"
#include "deferred_free.h"

#include <fcntl.h>
#include <string.h>

/* Forgets the copies in the tiers of bit mask `bad`. */
static void forget_both(struct kvc *k, struct kvc_node *n, unsigned bad)
{
	for (unsigned t = 0; t < k->tier_slots; t++)
		/* if the catalog fails, the next load finds the copy bad again */
		if ((bad & (1u << t)) && !kvc_place_del(k->cat, n->row.ino, t)) {
			kvc_deferred_free_extent_locked(k, t, &n->in[t].place);
			kvc_file_set_place_locked(k, n, t, NULL);
			kvc_event_ring_put_locked(k, KVC_EVENT_RING_evicted, (int)t, n);
		}
	kvc_file_update_lower_locked(k, n);
	kvc_node_dirty_locked(k, n);
}

/*
 * The object was loaded from another node. That node may drop its frame at any time, so the frame
 * does not count as a copy of the object. If the catalog fails, the frame stays recorded, and the
 * object may be evicted once more without another copy.
 */
static void forget_lent_both(struct kvc *k, struct kvc_node *n, unsigned tier)
{
	kvc_file_keep_error_locked(n, tier);
	if (kvc_place_del(k->cat, n->row.ino, tier))
		return;
	kvc_file_set_place_locked(k, n, tier, NULL);
	kvc_file_update_lower_locked(k, n);
	kvc_node_dirty_locked(k, n);
}

int kvc_load_bad_copy_both(struct kvc *k, uint64_t ino, unsigned tier, bool *lost)
{
	struct kvc_node *n;
	int err = kvc_node_get_both(k, ino, &n);

	if (err)
		return err;
	if (n->state == KVC_LOADING || n->state == KVC_GONE) {
		err = -EBUSY;
	} else {
		forget_both(k, n, 1u << tier);
		if (n->state == KVC_BOTH && !kvc_file_placed(k, n))
			kvc_file_become_locked(k, n, KVC_RESIDENT);
		if (n->state == KVC_BOTH || n->state == KVC_RESIDENT)
			kvc_spill_queue_locked(k, n, false);
		*lost = n->state == KVC_LOWER && !kvc_file_placed_anywhere(k, n);
		if (*lost) {
			kvc_node_ref_locked(n); /* the hook settles the node */
			k->hooks->lost_both(k, n);
			kvc_node_unref_locked(n);
		}
	}
	kvc_node_settle_locked(k, n);
	return err;
}

static void load_run(struct kvc *k, struct kvc_job *j);

/*
 * Returns the next tier to try, or -1. Tiers are tried in order; a tier counts if it has a copy,
 * was not tried yet and its breaker allows reads. Copies whose bytes differ from those that the
 * object has now (kvc_file_differs_in) are last. Sets *err to -EIO if a breaker refused a tier.
 */
static int next_tier_locked(struct kvc *k, struct kvc_node *n, unsigned tried, int *err)
{
	for (unsigned i = 0; i < 2 * k->ntiers; i++) {
		unsigned t = k->order[i % k->ntiers];
		bool last = i >= k->ntiers;

		if ((tried & (1u << t)) || !n->in[t].place.gen ||
		    n->in[t].place.gen != n->object.gen || last != kvc_file_differs_in(n, t))
			continue;
		if (kvc_tier_allowed_locked(k, t, KVC_CALL_READ))
			return (int)t;
		*err = -EIO;
	}
	return -1;
}

/*
 * Queues the load for the next tier. `before` is the failed job, or NULL. Returns 0, or why no tier
 * can be tried.
 */
static int queue_load_locked(struct kvc *k, struct kvc_node *n, bool prefetch,
			     const struct kvc_job *before)
{
	int err = before ? before->err : -EIO,
	    t = next_tier_locked(k, n, before ? before->tried : 0, &err);
	struct kvc_job *j;

	if (t < 0)
		return err ?: -EIO;
	if (kvc_tier_load_add_locked(k, prefetch, load_run, n, (unsigned)t, &j)) {
		kvc_tier_uncalled_locked(k, (unsigned)t, KVC_CALL_READ);
		return -ENOMEM;
	}
	j->at_place = true;
	j->tried = (before ? before->tried : 0) | 1u << t;
	j->bad = before ? before->bad : 0;
	return 0;
}

/*
 * Returns true if another node sent damaged bytes and a further node may have the object; the load
 * then asks that node.
 */
static bool damaged_by_node(struct kvc *k, struct kvc_tier *t, const struct kvc_fetch_want *want,
			    int err)
{
	if (err != -EBADMSG || !t->ops->distrust || !t->ops->distrust(t, &want->place.where))
		return false;
	kvc_count(&k->stats, corrupt);
	return true;
}

/* Tries to load the object from the job's tier. */
static int try_tier(struct kvc *k, struct kvc_job *j, const struct kvc_segment *seg, uint64_t mtime,
		    struct kvc_fetch_want *want, struct stat *st)
{
	struct kvc_tier *tier = k->tier[j->tier].t;
	KVC_FD int fd = kvc_pool_segment_open(&k->pool, seg, O_RDWR | O_CREAT | O_TRUNC);
	uint64_t begun;
	int err;

	if (fd < 0) {
		kvc_lock(k);
		kvc_tier_uncalled_locked(k, j->tier, KVC_CALL_READ);
		kvc_unlock(k);
		return fd;
	}
	begun = kvc_mono_ns();
	do
		err = kvc_fetch(k, tier, want, fd);
	while (damaged_by_node(k, tier, want, err));
	kvc_lock(k);
	if (!err)
		kvc_latency_record(k, KVC_OP_load, j->tier, j->node->model, begun);
	kvc_tier_result_locked(k, j->tier, KVC_CALL_READ, want->ino, err);
	bool wanted = j->node->state == KVC_LOADING;
	kvc_unlock(k);
	if (!wanted)
		return -ESTALE; /* unlinked; the tier may hold anything now */
	if (err == -ESTALE) {   /* another node's version of the object: not damaged */
		kvc_info("tier %s: the copy of inode %llx was replaced by another node",
			 tier->ops->name, (unsigned long long)seg->ino);
		kvc_count(&k->stats, replaced);
		j->bad |= 1u << j->tier;
	} else if (err == -EBADMSG || err == -ENOENT || err == -EPROTO) {
		kvc_warn("tier %s: the copy of inode %llx is %s and is discarded", tier->ops->name,
			 (unsigned long long)seg->ino, err == -ENOENT ? "missing" : "damaged");
		kvc_count(&k->stats, corrupt);
		j->bad |= 1u << j->tier;
	} else if (err && err != -ENOSPC && err != -ENODEV) { /* the driver logs ENODEV */
		if (err == -ENOKEY)
			kvc_count(&k->stats, unsealable);
		kvc_warn("tier %s: loading inode %llx: %s", tier->ops->name,
			 (unsigned long long)seg->ino,
			 err == -ENOKEY ? "it is sealed with a key that the key file does not have"
					: strerror(-err));
	} else {
		const struct timespec times[2] = {
			{ .tv_nsec = UTIME_OMIT },
			kvc_file_time(mtime),
		};

		futimens(fd, times);
		fstat(fd, st);
	}
	return err;
}

/* Can the copy decode to bytes that differ from those of the object? */
static bool can_decode(const struct kvc_place *p)
{
	return kvc_place_lossy(p) || !kvc_sum_is_zero(&p->raw);
}

/* The object is in the pool. */
static void loaded_both(struct kvc *k, struct kvc_job *j, uint64_t blocks,
			const struct kvc_fetch_want *want)
{
	struct kvc_node *n = j->node;
	uint64_t size = want->size;
	bool decoded = can_decode(&want->place) && want->has_sum &&
		       kvc_file_decoded_both(k, n, &want->sum);

	n->load.tier = (uint8_t)j->tier;
	n->row.blocks = blocks;
	kvc_account_set_reserved_locked(k, n, blocks * 512);
	kvc_file_become_locked(k, n, KVC_BOTH);
	if (!kvc_tier_takes(k->tier[j->tier].t))
		forget_lent_both(k, n, j->tier);
	if (!kvc_file_placed(k, n))
		kvc_file_become_locked(k, n, KVC_RESIDENT);
	n->load.error = 0;
	kvc_count(&k->stats, loads);
	kvc_count_by(&k->stats, load_bytes, size);
	kvc_model_stats_bytes_locked(k, n->model, load, size);
	kvc_event_ring_put_locked(k, KVC_EVENT_RING_loaded, (int)j->tier, n);
	if (j->bad)
		forget_both(k, n, j->bad);
	kvc_count_by(&k->stats, loads_decoded, decoded);
	if (k->opt.write == KVC_THROUGH || n->state == KVC_RESIDENT || decoded)
		kvc_spill_queue_locked(k, n, false); /* to the tiers that have no copy */
	kvc_node_wake_locked(k, n, 0);
}

/*
 * Maps a tier's error to the error of the application, which reveals nothing about how the tier is
 * reached.
 */
static int application_error(int err)
{
	switch (err) {
	case -ENOKEY:
	case -ETIMEDOUT:
	case -ESTALE:
	case -ENOSPC: /* of the pool */
	case -ENOMEM: return err;
	default: return -EIO;
	}
}

/* No tier could serve the object. If no copy is left, the file is lost. */
static void failed_both(struct kvc *k, struct kvc_job *j, int err)
{
	struct kvc_node *n = j->node;

	err = application_error(err);
	kvc_count(&k->stats, load_failures);
	n->load.error = err;
	kvc_file_become_locked(k, n, KVC_LOWER);
	if (j->bad)
		forget_both(k, n, j->bad);
	if (!kvc_file_placed_anywhere(k, n)) {
		k->hooks->lost_both(k, n);
		err = -ESTALE;
	}
	kvc_node_wake_locked(k, n, err);
}

/* The load's wait for reserved bytes. */
struct reservation_wait {
	struct kvc_wait w; /* stage: 1 for a prefetch */
	struct kvc *k;
	struct kvc_node *node;
};

static void reservation_ready(struct kvc_wait *w);

/*
 * Reserves bytes of the pool for the load. `get` is kvc_reservation_get_locked or
 * kvc_reservation_retry_locked; the result is the same: 0, KVC_WAIT or an error.
 */
static int reserve_locked(struct kvc *k, struct kvc_node *n, uint64_t reserved, bool prefetch,
			  int (*get)(struct kvc *, uint64_t, struct kvc_wait *))
{
	struct reservation_wait *x = calloc(1, sizeof *x);
	int err;

	if (!x)
		return -ENOMEM;
	x->w = (struct kvc_wait){ .wake = reservation_ready, .stage = prefetch };
	x->k = k;
	x->node = n;
	err = get(k, reserved, &x->w);
	if (err == KVC_WAIT)
		kvc_node_ref_locked(n);
	else
		free(x);
	return err;
}

/*
 * The tmpfs had no pages for the reserved bytes (ENOSPC): releases them, and waits until pages are
 * free.
 */
static bool reserve_again_locked(struct kvc *k, struct kvc_job *j, const struct kvc_segment *seg)
{
	struct kvc_node *n = j->node;
	uint64_t reserved = n->acct.reserved ?: kvc_round_up(n->object.size, KVC_PAGE);

	kvc_pool_segment_remove(&k->pool, seg);
	kvc_account_set_reserved_locked(k, n, 0);
	return reserve_locked(k, n, reserved, j->prefetch && kvc_list_empty(&n->wait.ready),
			      kvc_reservation_retry_locked) == KVC_WAIT;
}

/*
 * Returns the object's path, which the caller frees, if the job's tier finds its frame by the path.
 * NULL: it does not; or the object was renamed since, so that its frame cannot be found.
 */
static char *path_for(struct kvc *k, const struct kvc_job *j)
{
	KVC_MEM char *path = k->tier[j->tier].t->ops->get_path ? malloc(KVC_FRAME_PATH_MAX + 1)
							       : NULL;
	struct kvc_where w;
	char *found = NULL;

	if (!path)
		return NULL;
	kvc_lock_both(k);
	if (!kvc_path_both(k, j->node->row.ino, path) && *path) {
		w = kvc_frame_where_of(path);
		if (kvc_tier_same_name(&w, &j->node->in[j->tier].place.where)) {
			found = path;
			path = NULL;
		}
	}
	kvc_unlock_both(k);
	return found;
}

static void load_run(struct kvc *k, struct kvc_job *j)
{
	KVC_MEM char *path = path_for(k, j);
	struct kvc_node *n = j->node;
	struct kvc_segment seg, to;
	struct kvc_fetch_want want;
	struct stat st;
	uint64_t mtime;
	int err;

	kvc_lock(k);
	seg = (struct kvc_segment){ 'l', n->row.ino, n->object.gen };
	want = (struct kvc_fetch_want){
		.ino = n->row.ino,
		.size = n->object.size,
		.place = n->in[j->tier].place,
		.shared = k->tier[j->tier].t->ops->caps & KVC_TIER_SHARED,
		.path = path,
	};
	want.has_sum = kvc_place_raw(&n->object, &want.place, &want.sum);
	bool marks = n->object.decoded || can_decode(&want.place);
	mtime = n->row.mtime_ns;
	bool wanted = n->state == KVC_LOADING && want.place.gen == n->object.gen;
	/* the tier may have hung since the job was queued: then the next tier is tried */
	bool hangs = kvc_tier_hangs_locked(k, j->tier);

	if (!wanted || hangs)
		kvc_tier_uncalled_locked(k, j->tier, KVC_CALL_READ);
	kvc_unlock(k);
	err = !wanted ? -ESTALE : hangs ? -EIO : try_tier(k, j, &seg, mtime, &want, &st);
	if (!err && marks)
		err = kvc_pool_segment_mark(&k->pool, &seg, true);

	kvc_lock_both(k);
	j->err = err;
	if (err && n->state == KVC_LOADING && n->object.gen == seg.gen &&
	    (err == -ENOSPC ? reserve_again_locked(k, j, &seg)
			    : !queue_load_locked(
				      k, n, j->prefetch && kvc_list_empty(&n->wait.ready), j))) {
		kvc_unlock_both(k);
		return; /* the load continues as another job */
	}
	to = (struct kvc_segment){ 'p', seg.ino, seg.gen };
	if (n->state != KVC_LOADING || n->object.gen != seg.gen) {
		err = -ESTALE;
	} else if (!err) {
		err = kvc_membership_join_both(k, n);
		if (!err && marks)
			err = kvc_catalog_spare(k->cat, KVC_FILE_DECODED_CHANGES);
		if (!err)
			err = kvc_pool_segment_rename(&k->pool, &seg, &to);
	}
	if (err) {
		kvc_pool_segment_remove(&k->pool, &seg);
		kvc_account_set_reserved_locked(k, n, 0);
	}
	if (!err)
		loaded_both(k, j, (uint64_t)st.st_blocks, &want);
	else if (n->state == KVC_LOADING)
		failed_both(k, j, err);
	kvc_unlock_both(k);
}

static void fail_locked(struct kvc *k, struct kvc_node *n, int err)
{
	if (n->state != KVC_LOADING)
		return;
	n->load.error = err;
	kvc_file_become_locked(k, n, KVC_LOWER);
	kvc_node_wake_locked(k, n, err);
}

/* The wait for the reservation has ended, with or without the bytes. */
static void reservation_ready(struct kvc_wait *w)
{
	struct reservation_wait *x = kvc_of(w, struct reservation_wait, w);
	struct kvc_node *n = x->node;
	struct kvc *k = x->k;
	int err = w->err;

	kvc_lock(k);
	if (!err && n->state == KVC_LOADING) {
		kvc_account_granted_locked(n, w->granted);
		w->granted = 0;
		err = queue_load_locked(k, n, w->stage && kvc_list_empty(&n->wait.ready), NULL);
	} else {
		kvc_reservation_cancel_locked(k, w);
	}
	if (err) {
		kvc_account_set_reserved_locked(k, n, 0);
		fail_locked(k, n, err);
	}
	kvc_node_unref_locked(n);
	kvc_node_settle_locked(k, n);
	kvc_unlock(k);
	free(x);
}

/* Does an existing tier have a copy of this generation, under any name? */
static bool has_placement(const struct kvc *k, const struct kvc_node *n)
{
	kvc_tier_each(k, t)
		if (n->in[t].place.gen && n->in[t].place.gen == n->object.gen)
			return true;
	return false;
}

int kvc_load_start_locked(struct kvc *k, struct kvc_node *n, bool prefetch)
{
	uint64_t span = kvc_round_up(n->object.size, KVC_PAGE),
		 reserved = kvc_min(n->row.blocks * 512, span);
	int err;

	if (n->state == KVC_LOADING && !prefetch)
		kvc_tier_load_awaited_locked(k, n);
	if (n->state == KVC_LOADING)
		return 0;
	if (!has_placement(k, n))
		return -ENOENT;
	kvc_file_become_locked(k, n, KVC_LOADING);
	err = reserve_locked(k, n, reserved, prefetch, kvc_reservation_get_locked);
	if (err == KVC_WAIT)
		return 0;
	if (!err) {
		kvc_account_granted_locked(n, reserved);
		err = queue_load_locked(k, n, prefetch, NULL);
		if (err)
			kvc_account_set_reserved_locked(k, n, 0);
	}
	if (err) {
		n->load.error = err;
		kvc_file_become_locked(k, n, KVC_LOWER);
	}
	return err;
}
