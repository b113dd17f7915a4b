/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deferred frees: segments, extents and shared frames that a transaction made unused.
 *
 * Segments are memory and are freed once the transaction is committed. Extents and shared frames
 * survive a power failure. If the failure undoes the transaction, they must still be intact, so
 * they are freed after the commit is on stable storage. The syncer thread syncs the catalog's log
 * for all transactions that were committed within SYNC_NS. It syncs earlier if a tier is being
 * trimmed or refuses a frame, if the waiting bytes are a large part of the free space of a trimmed
 * tier (the trimmer counts them as free, but stores cannot use them yet), or if the daemon stops.
 *
 * k->deferred_free->list belongs to the transaction that is being collected. The committer takes
 * the list with the batch, and returns it after a failure or passes it to
 * kvc_deferred_free_committed. Items on k->deferred_free->unsynced wait for a sync. All under
 * k->lock.
 */
#include "deferred_free.h"

#include "commit_sync.h"
#include "committer.h"
#include "log.h"
#include "tier_queue.h"

#include <string.h>

#define SYNC_NS 1000000000ull
#define BUSY_NS 50000000ull
#define REMOVAL_TRIES 8u         /* tries of a removal, while the tier removes other frames */
#define REMOVAL_NS 1000000000ull /* the first delay; each try doubles it */
#define PRESSED_NS 5000000ull    /* between two syncs while a tier needs space */
#define AGAIN_MAX_NS (256 * SYNC_NS)
#define FAILED_MAX_NS (32 * SYNC_NS) /* between two syncs that fail */
/* frames passed to the tiers' threads under one hold of k->lock */
#define AT_ONCE 128u
/* syncs at once if more than 1/SPARE_PART of a tier's spare space waits */
#define SPARE_PART 4

/* A segment, extent or shared frame that a transaction made unused. */
struct kvc_deferred_item {
	struct kvc_list link;
	char kind; /* kind of the segment: p, o, w; 0: no segment */
	uint64_t ino, gen, reserved;
	int tier; /* tier of the extent or frame; -1: none */
	struct kvc_where where;
	struct kvc_sum sum;
	/* shared frame: remove it only if it is this generation, stored by this node; 0: any */
	uint64_t copy;
};

static void item_add(struct kvc *k, const struct kvc_deferred_item *t)
{
	struct kvc_deferred_item *copy = malloc(sizeof *copy);

	if (!copy) {
		kvc_error("out of memory: some space is freed only at the next start");
		return;
	}
	*copy = *t;
	kvc_list_add_tail(&k->deferred_free->list, &copy->link);
	k->reservations.leaving += t->reserved;
	if (t->tier >= 0)
		k->tier[t->tier].deferred.bytes += t->where.len;
	kvc_committer_wake_locked(k, !kvc_list_empty(&k->reservations.waiters));
}

void kvc_deferred_free_segment_locked(struct kvc *k, const struct kvc_segment *s, uint64_t reserved)
{
	item_add(k, &(struct kvc_deferred_item){ .kind = s->kind,
						 .ino = s->ino,
						 .gen = s->gen,
						 .reserved = reserved,
						 .tier = -1 });
}

/*
 * A frame in a shared tier stays for the other nodes: this function does not remove it. See
 * kvc_deferred_free_shared_locked and kvc_deferred_free_undone_locked.
 */
void kvc_deferred_free_extent_locked(struct kvc *k, unsigned tier, const struct kvc_place *p)
{
	if (k->tier[tier].t && !(k->tier[tier].t->ops->caps & KVC_TIER_SHARED))
		item_add(k, &(struct kvc_deferred_item){ .tier = (int)tier, .where = p->where });
}

void kvc_deferred_free_shared_locked(struct kvc *k, unsigned tier, uint64_t ino,
				     const struct kvc_place *p)
{
	item_add(k, &(struct kvc_deferred_item){
			    .tier = (int)tier, .ino = ino, .where = p->where, .sum = p->sum });
}

void kvc_deferred_free_undone_locked(struct kvc *k, unsigned tier, uint64_t ino,
				     const struct kvc_place *p)
{
	item_add(k, &(struct kvc_deferred_item){ .tier = (int)tier,
						 .ino = ino,
						 .where = p->where,
						 .sum = p->sum,
						 .copy = p->gen });
}

static void remove_run(struct kvc *k, struct kvc_job *j);

/* Queues the same removal again for a later time, as an urgent job or as a failed removal. */
static int remove_later_locked(struct kvc *k, const struct kvc_job *j, enum kvc_priority p,
			       uint64_t wait_ns, bool failed)
{
	struct kvc_job *later;
	int err = kvc_tier_job_add_locked(k, p, remove_run, NULL, j->tier, kvc_mono_ns() + wait_ns,
					  &later);

	if (err)
		return err;
	later->where = j->where;
	later->sum = j->sum;
	later->ino = j->ino;
	later->copy = j->copy;
	later->tries = j->tries + failed;
	later->uncounted = j->uncounted;
	return 0;
}

/*
 * A shared tier did not remove a frame. The removal is retried when the breaker allows removals, or
 * after a delay. A frame that the tier does not remove while it removes others is left there.
 */
static void removal_failed_locked(struct kvc *k, const struct kvc_job *j, int err)
{
	const struct kvc_tier_state *ts = &k->tier[j->tier];
	bool of_it = ts->breaker.of[KVC_CALL_REMOVE].is == KVC_BREAKER_CLOSED;

	if (k->stopping)
		return; /* the next start finds the frame */
	if (j->tries < REMOVAL_TRIES &&
	    !(err = remove_later_locked(k, j, KVC_P_REMOVE_AGAIN, REMOVAL_NS << j->tries, of_it)))
		return;
	kvc_count(&k->stats, removals_given_up);
	kvc_warn("tier %s: cannot remove a frame: %s; the next mount retries", ts->t->ops->name,
		 strerror(-err));
}

static void remove_shared_run(struct kvc *k, struct kvc_job *j)
{
	int err, wait = 0;

	kvc_lock(k);
	if (!kvc_tier_allowed_locked(k, j->tier, KVC_CALL_REMOVE)) {
		err = kvc_tier_why_locked(k, j->tier, KVC_CALL_REMOVE);
	} else {
		kvc_unlock(k);
		err = k->hooks->remove_shared(k, j);
		kvc_lock(k);
		if (err > 0 || err == -EALREADY)
			kvc_tier_uncalled_locked(k, j->tier, KVC_CALL_REMOVE);
		else
			kvc_tier_result_locked(k, j->tier, KVC_CALL_REMOVE, j->where.at, err);
	}
	if (err == -EALREADY) /* a copy is being stored under that name: retry when it is stored */
		wait = !remove_later_locked(k, j, KVC_P_URGENT, BUSY_NS, false);
	/* after the first try the trimmer does not wait for these bytes any more */
	if (!wait && !j->uncounted) {
		k->tier[j->tier].deferred.bytes -= kvc_min(k->tier[j->tier].deferred.bytes,
							   j->where.len);
		j->uncounted = true;
	}
	if (err < 0 && !wait)
		removal_failed_locked(k, j, err);
	kvc_unlock(k);
}

static void remove_run(struct kvc *k, struct kvc_job *j)
{
	struct kvc_tier *t = k->tier[j->tier].t;
	pthread_mutex_t *lock = kvc_deferred_free_rehead_lock(k, &j->where);
	int err;

	if (t->ops->caps & KVC_TIER_SHARED) {
		remove_shared_run(k, j);
		return;
	}
	pthread_mutex_lock(lock);
	err = t->ops->remove(t, &j->where);
	pthread_mutex_unlock(lock);
	kvc_lock(k);
	kvc_tier_result_locked(k, j->tier, KVC_CALL_REMOVE, j->where.at, err);
	kvc_tier_freed_locked(k, j->tier);
	k->tier[j->tier].deferred.bytes -= kvc_min(k->tier[j->tier].deferred.bytes, j->where.len);
	kvc_unlock(k);
	if (err)
		kvc_warn("tier %s: cannot remove a frame: %s", t->ops->name, strerror(-err));
}

void kvc_deferred_free_committed(struct kvc *k, struct kvc_list *items)
{
	kvc_list_each_safe(e, items) {
		struct kvc_deferred_item *t = kvc_of(e, struct kvc_deferred_item, link);
		struct kvc_segment s = { t->kind, t->ino, t->gen };

		kvc_list_del(e);
		if (t->kind)
			kvc_pool_segment_remove(&k->pool, &s);
		kvc_lock(k);
		k->reservations.leaving -= kvc_min(k->reservations.leaving, t->reserved);
		kvc_reservation_put_locked(k, t->reserved);
		if (t->tier >= 0) {
			if (kvc_list_empty(&k->deferred_free->unsynced))
				k->deferred_free->unsynced_ns = kvc_mono_ns();
			kvc_list_add_tail(&k->deferred_free->unsynced, &t->link);
			k->deferred_free->nunsynced++;
			k->deferred_free->unsynced_bytes += t->where.len;
			k->tier[t->tier].deferred.unsynced += t->where.len;
			pthread_cond_signal(&k->deferred_free->sync_cond);
			t = NULL;
		}
		kvc_unlock(k);
		free(t);
	}
}

static bool pressed_locked(struct kvc *k)
{
	if (k->stopping)
		return true;
	kvc_tier_each(k, t) {
		const struct kvc_tier_state *ts = &k->tier[t];

		if (ts->deferred.unsynced && ts->trim.exists &&
		    (ts->trim.active || kvc_tier_refuses_locked(ts) ||
		     ts->deferred.unsynced > ts->trim.spare / SPARE_PART))
			return true;
	}
	return false;
}

/*
 * The commits are on stable storage: passes the frames to the tiers' threads, which remove them.
 * Releases k->lock after every AT_ONCE frames.
 */
static void remove_all_locked(struct kvc *k, struct kvc_list *all)
{
	unsigned n = 0;

	while (!kvc_list_empty(all)) {
		struct kvc_list *e = all->next;
		struct kvc_deferred_item *t = kvc_of(e, struct kvc_deferred_item, link);
		struct kvc_tier_state *ts = &k->tier[t->tier];
		struct kvc_job *j;

		kvc_list_del(e);
		if (ts->t && !kvc_tier_job_add_locked(k, KVC_P_REMOVE, remove_run, NULL,
						      (unsigned)t->tier, 0, &j))
			j->where = t->where, j->sum = t->sum, j->ino = t->ino, j->copy = t->copy,
			j->at_place = true;
		else
			ts->deferred.bytes -= kvc_min(ts->deferred.bytes, t->where.len);
		k->deferred_free->nunsynced--;
		k->deferred_free->unsynced_bytes -= t->where.len;
		ts->deferred.unsynced -= t->where.len;
		free(t);
		if (++n % AT_ONCE == 0)
			kvc_pause_locked(k);
	}
}

/*
 * A device retries extents that it could not clear whenever it is used. In devices that are not
 * used they are retried by a sync, which this function requests. Another thread makes the sync,
 * because it may hang.
 */
static void retry_clearing(struct kvc *k, uint64_t *due_ns, uint64_t *pause_ns)
{
	struct kvc_tier *tier = k->tier[KVC_DISK].t;
	struct kvc_tier_device d;
	bool left = false;

	if (kvc_mono_ns() < *due_ns)
		return;
	for (unsigned nr = 0; tier && tier->ops->device && nr < KVC_DEVICES; nr++) {
		if (tier->ops->device(tier, nr, &d) || !d.uncleared)
			continue;
		left = true;
		kvc_lock(k);
		kvc_commit_sync_device_locked(k, nr);
		kvc_unlock(k);
	}
	*pause_ns = left ? kvc_min(*pause_ns * 2, AGAIN_MAX_NS) : SYNC_NS;
	*due_ns = kvc_mono_ns() + *pause_ns;
}

/* Returns when the next sync is due, or the time of the next check if nothing waits. */
static uint64_t sync_due_locked(struct kvc *k, uint64_t now, uint64_t last_ns, uint64_t failed_ns)
{
	uint64_t due = pressed_locked(k)
			       ? last_ns + PRESSED_NS
			       : kvc_max(k->deferred_free->unsynced_ns, last_ns) + SYNC_NS;

	if (kvc_list_empty(&k->deferred_free->unsynced))
		return now + SYNC_NS;
	return kvc_max(due, last_ns + (k->stopping ? kvc_min(failed_ns, SYNC_NS) : failed_ns));
}

void *kvc_deferred_free_syncer(void *arg)
{
	struct kvc *k = arg;
	uint64_t last_ns = 0, clear_ns = 0, pause_ns = SYNC_NS;
	uint64_t failed_ns = 0; /* the pause after a failed sync, which doubles; or 0 */

	kvc_lock(k);
	while (!k->draining) {
		uint64_t now = kvc_mono_ns(), due;
		struct kvc_list all;
		struct timespec t;
		int err;

		due = sync_due_locked(k, now, last_ns, failed_ns);
		if (due > now) {
			t = kvc_timespec(due);
			kvc_lock_wait(&k->lock, &k->deferred_free->sync_cond, &t);
			kvc_unlock(k);
			retry_clearing(k, &clear_ns, &pause_ns);
			kvc_lock(k);
			continue;
		}
		kvc_list_init(&all);
		kvc_list_splice(&all, &k->deferred_free->unsynced);
		kvc_unlock(k);
		err = kvc_catalog_sync(k->cat);
		kvc_lock(k);
		last_ns = kvc_mono_ns();
		if (err && !failed_ns)
			kvc_error("catalog: cannot sync its log: %s; the space of deleted files is "
				  "not freed until it is synced",
				  strerror(-err));
		if (!err) {
			failed_ns = 0;
			kvc_count(&k->stats, syncs);
			remove_all_locked(k, &all);
			continue;
		}
		failed_ns = failed_ns ? kvc_min(2 * failed_ns, FAILED_MAX_NS) : SYNC_NS;
		kvc_list_splice(&all, &k->deferred_free->unsynced);
		kvc_list_splice(&k->deferred_free->unsynced, &all);
	}
	kvc_unlock(k);
	return NULL;
}

void kvc_deferred_free_clear(struct kvc *k)
{
	struct kvc_list *all[] = { &k->deferred_free->list, &k->deferred_free->unsynced };

	for (int i = 0; i < 2; i++)
		kvc_list_each_safe(e, all[i])
			free(kvc_of(e, struct kvc_deferred_item, link));
}
