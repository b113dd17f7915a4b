/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sweep "flush": copies all dirty objects to their tiers, then commits, and syncs the catalog.
 * Each copy that failed before is tried once, without delay; if it fails again, it returns to its
 * earlier delay. The sweep ends when each copy has been made or has failed once, so it does not
 * wait for a tier that is down. It does wait for copies that are tried again because their tier
 * makes space. Files that are open for writing are skipped, with one exception: if a copy that an
 * fsync requested has failed, it is tried again. Copies that a failed sync may have lost are made
 * again.
 */
#include "admission.h"
#include "commit_sync.h"
#include "ops.h"
#include "spill.h"
#include "sweep.h"
#include "tier_queue.h"

#include <string.h>

#define CHECK_US 10000

enum copy_state { COPY_DONE, COPY_PENDING, COPY_FAILED };

static bool published(const struct kvc_node *n)
{
	return (n->state == KVC_RESIDENT || n->state == KVC_BOTH) && !n->commit.lost;
}

/* The state of this file's copy to this tier. */
static enum copy_state copy_state_locked(struct kvc *k, const struct kvc_node *n, unsigned tier)
{
	const struct kvc_job *j = n->in[tier].queued;

	if (!published(n) || !kvc_spill_needed(k, n, tier) ||
	    kvc_admission_check_locked(k, n, tier))
		return COPY_DONE;
	if (n->copies.uncopyable & (1u << tier))
		return COPY_FAILED;
	if (j)
		return j->priority >= KVC_P_PARKED && j->priority < KVC_P_SPILL ? COPY_FAILED
										: COPY_PENDING;
	if (n->copying & (1u << tier))
		return COPY_PENDING;
	/* no copy is queued: the last attempt failed, or the tier is not meant to have one */
	return n->spill.failing ? COPY_FAILED : COPY_DONE;
}

/* The state of all copies together: pending if one is pending, otherwise failed if one failed. */
static enum copy_state worst_copy_locked(struct kvc *k, const struct kvc_node *n)
{
	enum copy_state worst = COPY_DONE;

	kvc_tier_each(k, t) {
		enum copy_state s = copy_state_locked(k, n, t);

		if (s == COPY_PENDING || worst == COPY_PENDING)
			worst = COPY_PENDING;
		else if (s == COPY_FAILED)
			worst = COPY_FAILED;
	}
	return worst;
}

/* Requests the missing copies of a file, and adds its inode number to *asked. */
static int request_copies_locked(struct kvc_sweep *s, struct kvc_node *n, struct kvc_stack *asked)
{
	bool lacks = false;

	if (n->state == KVC_OPEN && n->segment.snapshot && !n->commit.lost)
		kvc_spill_now_locked(s->k, n);
	if (!published(n))
		return 0;
	kvc_spill_lost_locked(s->k, n, KVC_TIER_LOST);
	kvc_tier_each(s->k, t)
		lacks |= kvc_spill_needed(s->k, n, t) && !kvc_admission_check_locked(s->k, n, t);
	if (!lacks)
		return 0;
	if (kvc_stack_push(asked, n->row.ino))
		return -ENOMEM;
	s->seen++;
	s->all_bytes += n->object.size;
	kvc_spill_now_locked(s->k, n);
	return 0;
}

static int request_all(struct kvc_sweep *s, struct kvc_stack *asked)
{
	struct kvc *k = s->k;
	size_t at = 0;
	bool more = true;
	int err = 0;

	while (more && !err && !s->stop) {
		kvc_lock(k);
		for (size_t i = 0; i < KVC_SWEEP_BATCH && at < k->nodes->table.buckets; i++, at++)
			for (struct kvc_slot *x = kvc_table_bucket(&k->nodes->table, at); x && !err;
			     x = x->next)
				err = request_copies_locked(s, kvc_of(x, struct kvc_node, slot),
							    asked);
		more = at < k->nodes->table.buckets;
		kvc_unlock(k);
	}
	return err;
}

/*
 * Checks some of the files in the list *asked, and removes from the list the files that have all
 * their copies. Sets *pending if a copy is still pending.
 */
static void check_some_locked(struct kvc_sweep *s, struct kvc_stack *asked, size_t *at,
			      bool *pending)
{
	struct kvc *k = s->k;

	for (size_t i = 0; i < KVC_SWEEP_BATCH && *at < asked->n; i++) {
		struct kvc_node *n = kvc_node_find_locked(k, asked->v[*at]);
		enum copy_state worst = n ? worst_copy_locked(k, n) : COPY_DONE;

		if (worst == COPY_DONE) {
			asked->v[*at] = asked->v[--asked->n];
			s->changed++;
			s->bytes += n ? n->object.size : 0;
			continue;
		}
		*pending |= worst == COPY_PENDING;
		++*at;
	}
}

/* Counts the remaining files, by tier. */
static void count_failed_locked(struct kvc_sweep *s, const struct kvc_stack *asked, size_t *at)
{
	struct kvc *k = s->k;

	for (size_t i = 0; i < KVC_SWEEP_BATCH && *at < asked->n; i++, ++*at) {
		struct kvc_node *n = kvc_node_find_locked(k, asked->v[*at]);

		s->failed += n && worst_copy_locked(k, n) != COPY_DONE;
		kvc_tier_each(k, t)
			s->tier_failed[t] += n && copy_state_locked(k, n, t) != COPY_DONE;
	}
}

static void await_copies(struct kvc_sweep *s, struct kvc_stack *asked)
{
	struct kvc *k = s->k;
	bool pending = true;

	while (pending && !s->stop) {
		pending = false;
		for (size_t at = 0; at < asked->n && !s->stop;) {
			kvc_lock(k);
			check_some_locked(s, asked, &at, &pending);
			kvc_unlock(k);
		}
		if (pending)
			usleep(CHECK_US);
	}
	for (size_t at = 0; at < asked->n;) {
		kvc_lock(k);
		count_failed_locked(s, asked, &at);
		kvc_unlock(k);
	}
}

/*
 * Gets the number of failed syncs of each device. A sync that fails during the flush may have lost
 * copies that the flush found or made, even if the flush's own sync succeeds later.
 */
static void count_failed_syncs(const struct kvc_sweep *s, uint64_t failed[KVC_DEVICES])
{
	struct kvc_tier_device d;

	memset(failed, 0, KVC_DEVICES * sizeof *failed);
	kvc_tier_each(s->k, t) {
		struct kvc_tier *tier = s->k->tier[t].t;

		for (unsigned nr = 0; tier->ops->device && nr < KVC_DEVICES; nr++)
			failed[nr] = tier->ops->device(tier, nr, &d) ? 0 : d.failed_syncs;
	}
}

/* Returns 0, or -EIO with a message that names a device that may have lost copies. */
static int check_devices(struct kvc_sweep *s, const uint64_t failed[KVC_DEVICES])
{
	struct kvc_tier_device d;

	kvc_tier_each(s->k, t) {
		struct kvc_tier *tier = s->k->tier[t].t;

		for (unsigned nr = 0; tier->ops->device && nr < KVC_DEVICES; nr++) {
			if (tier->ops->device(tier, nr, &d) ||
			    (!d.unsynced && d.failed_syncs <= failed[nr]))
				continue;
			snprintf(s->why, sizeof s->why,
				 d.unsynced
					 ? "the device %.300s fails: copies in it are not on "
					   "stable storage"
					 : "a sync of the device %.300s failed during the flush; "
					   "another flush makes the lost copies again",
				 d.path);
			return -EIO;
		}
	}
	return 0;
}

/* Waits for a commit, and for this sync (commit_sync.h). Repeats a wait that reached deadline=. */
static int sync_one(struct kvc_sweep *s, unsigned of)
{
	int err = -ETIMEDOUT;

	while (err == -ETIMEDOUT && !s->stop) {
		struct kvc_sweeper x;

		kvc_sweeper_init(&x);
		err = kvc_io_sync(s->k, of, &x.w);
		if (err == KVC_WAIT)
			err = kvc_sweeper_wait(&x);
	}
	return err;
}

/*
 * Brings all copies and commits to stable storage. If a device fails, the others are synced, too.
 * Returns the first error.
 */
static int sync_all(struct kvc_sweep *s)
{
	struct kvc_tier *disk = s->k->tier[KVC_DISK].t;
	struct kvc_tier_device d;
	int first = 0, err;

	for (unsigned nr = 0; disk && nr < KVC_DEVICES && !s->stop; nr++)
		if (disk->ops->device ? !disk->ops->device(disk, nr, &d) : !nr) {
			err = sync_one(s, nr);
			first = first ?: err;
		}
	err = sync_one(s, KVC_COMMIT_SYNC_LOG);
	return first ?: err;
}

int kvc_flush_run(struct kvc_sweep *s)
{
	struct kvc_stack asked = { 0 };
	uint64_t failed[KVC_DEVICES];
	int err;

	count_failed_syncs(s, failed);
	err = request_all(s, &asked);
	if (!err)
		await_copies(s, &asked);
	free(asked.v);
	err = err ?: kvc_sweeper_commit(s);
	if (!err && !s->stop)
		err = sync_all(s) ?: check_devices(s, failed);
	return err;
}
