/* SPDX-License-Identifier: Apache-2.0 */
/* Start and end of a mount; see cache.h. */
#include "cache.h"

#include "access_save.h"
#include "admission.h"
#include "announce.h"
#include "budget.h"
#include "file.h"
#include "sweep.h"
#include "commit_batch.h"
#include "context.h"
#include "keyring.h"
#include "model_count.h"
#include "log.h"
#include "memory.h"
#include "prefault.h"
#include "spill.h"
#include "disk_victims.h"
#include "tenant_set.h"
#include "tmpfile.h"

#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>

#define MIB ((uint64_t)1 << 20)
#define ALIVE_NS 1000000000ull

static void *(*const thread_run[KVC_THREADS])(void *) = {
	kvc_commit_thread, kvc_deferred_free_syncer, kvc_wait_answerer, kvc_notify_thread,
	kvc_evictor,       kvc_replacers_saver,
};

struct key_proofs {
	struct kvc *k;
	unsigned matched;
	uint32_t wrong;
};

static int check_key_proof(void *arg, uint32_t id)
{
	struct key_proofs *p = arg;
	int is = kvc_keyring_prove_both(p->k, id);

	if (is == -EINVAL)
		p->wrong = id;
	p->matched += is > 0;
	return is == -EINVAL || is > 0 ? 0 : is;
}

/*
 * Checks that the keys belong to this store. A store with frames of a key has a proof of that key,
 * so a wrong key is refused.
 */
static int open_keys(struct kvc *k, char *error)
{
	struct key_proofs p = { .k = k };
	char text[64];
	int err, sealed;

	kvc_catalog_lock(k->cat);
	sealed = kvc_meta_read(k->cat, "sealed", text, sizeof text);
	/* fsck has rebuilt the catalog from encrypted frames, without a proof of any key. */
	bool unproven = sealed > 0 && !strcmp(text, "unproven");

	if (sealed < 0) {
		err = sealed;
		snprintf(error, 512, "the catalog cannot be read: %s", strerror(-err));
	} else if (!*k->opt.keyfile) {
		err = sealed ? -ENOKEY : 0;
		if (err)
			snprintf(error, 512,
				 "the store is encrypted: give keyfile= (kvcachefs-security(7))");
	} else {
		err = kvc_keys_each(k->keys, check_key_proof, &p);
		if (!err && p.wrong) {
			snprintf(error, 512,
				 "option keyfile: key %u is not the key of this number that "
				 "encrypts the store",
				 p.wrong);
			err = -EINVAL;
		} else if (!err && sealed && !unproven && !p.matched) {
			snprintf(error, 512,
				 "option keyfile: this store was not encrypted with any of the "
				 "keys in the file");
			err = -EINVAL;
		} else if (err) {
			snprintf(error, 512, "the catalog cannot be written: %s", strerror(-err));
		} else {
			err = kvc_meta_set(k->cat, "sealed", "1");
		}
	}
	kvc_catalog_unlock(k->cat);
	return err;
}

/* Copies the superblock to the catalog, for fsck in case both superblocks are lost. */
static void save_super(struct kvc *k)
{
	char text[KVC_STORE_TEXT], known[KVC_STORE_TEXT];

	kvc_super_text(k->store, text);
	kvc_catalog_lock(k->cat);
	if (kvc_meta_get(k->cat, "store", known, sizeof known) || strcmp(known, text))
		kvc_meta_set(k->cat, "store", text);
	kvc_catalog_unlock(k->cat);
}

/* Applies uid=, gid= and mode= to the root, permanently, like chown and chmod. */
static int set_root_owner(struct kvc *k)
{
	const struct kvc_options *o = &k->opt;
	struct kvc_wait none = { 0 };
	struct kvc_row r;
	unsigned set = 0;
	int err = kvc_entry_getattr(k, KVC_ROOT, &r);

	if (err)
		return err;
	if (o->uid != KVC_UNSET && o->uid != r.uid)
		r.uid = (uint32_t)o->uid, set |= KVC_SET_UID;
	if (o->gid != KVC_UNSET && o->gid != r.gid)
		r.gid = (uint32_t)o->gid, set |= KVC_SET_GID;
	if (o->mode != KVC_UNSET && o->mode != (r.mode & 07777))
		r.mode = S_IFDIR | (uint32_t)o->mode, set |= KVC_SET_MODE;
	return set ? kvc_io_setattr(k, KVC_ROOT, set, &r, &none) ?: kvc_commit_once(k) : 0;
}

uint64_t kvc_cache_memory_least(const struct kvc_options *o, struct kvc_tier *const *tiers,
				unsigned ntiers)
{
	return kvc_tiers_bytes(tiers, ntiers, o->disk_workers) + KVC_BUDGET_MIN;
}

/*
 * Starts the budget of memory=. Its fixed part is the memory for requests and the buffers of the
 * tiers' threads. A memory= that exceeds it by less than KVC_BUDGET_MIN is refused.
 */
static int start_budget(struct kvc *k, struct kvc_tier **tiers, unsigned ntiers,
			uint64_t caller_bytes, char *error)
{
	const struct kvc_options *o = &k->opt;
	uint64_t tier_bytes = kvc_tiers_bytes(tiers, ntiers, o->disk_workers);
	uint64_t fixed = caller_bytes + tier_bytes;
	uint64_t limit = o->memory_bytes ?: kvc_budget_default(o->cpu_bytes) + fixed;

	if (limit < fixed + KVC_BUDGET_MIN) {
		snprintf(error, 512,
			 "option memory: give at least %" PRIu64 "M: %" PRIu64 "M for the buffers "
			 "of requests (io_uring=), %" PRIu64 "M for those of tiers and %" PRIu64
			 "M for tier work and users",
			 kvc_round_up(fixed + KVC_BUDGET_MIN, MIB) / MIB,
			 kvc_round_up(caller_bytes, MIB) / MIB, kvc_round_up(tier_bytes, MIB) / MIB,
			 (uint64_t)KVC_BUDGET_MIN / MIB);
		return -EINVAL;
	}
	kvc_budget_start(limit, fixed, o->deadline_ms / 4, &k->stats);
	return 0;
}

int kvc_cache_open(struct kvc **out, const struct kvc_options *o, struct kvc_store *s,
		   struct kvc_tier **tiers, unsigned ntiers, uint64_t caller_bytes, char *error)
{
	struct kvc *k = kvc_context_new();
	char path[1280];
	int err;

	*error = 0;
	if (!k) {
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	k->opt = *o;
	k->store = s;
	k->pool.dir = -1;
	err = kvc_table_init(&k->nodes->table) ?: kvc_table_init(&k->chunks->table);
	err = err ?: kvc_table_init(&k->users->table) ?: kvc_table_init(&k->pins->table);
	err = err ?: kvc_table_init(&k->tenants->table) ?: kvc_table_init(&k->tenants->folders);
	err = err ?: kvc_model_stats_init(k) ?: kvc_quotas_init(&k->quotas);
	err = err ?: kvc_table_init(&k->disk_victims->table);
	if (err)
		snprintf(error, 512, "out of memory");
	else
		err = start_budget(k, tiers, ntiers, caller_bytes, error);
	if (!err && *o->keyfile)
		err = kvc_keys_open(&k->keys, o->keyfile, error);
	if (!err)
		err = kvc_pool_open(&k->pool, o, s, error);
	if (!err)
		err = kvc_catalog_open(&k->cat, kvc_super_path(s, KVC_STORE_CATALOG, path), error);
	if (!err) {
		kvc_catalog_use_reserve(k->cat);
		save_super(k);
		err = kvc_tier_slots_assign(k, tiers, ntiers, error);
		if (!err)
			err = open_keys(k, error);
		if (!err)
			err = kvc_recover(k, error);
		if (!err && (err = set_root_owner(k)))
			snprintf(error, 512, "cannot set the owner of the root folder: %s",
				 strerror(-err));
	}
	if (err) { /* the caller still owns the tiers */
		kvc_budget_stop(&k->stats);
		kvc_keys_close(k->keys);
		kvc_context_empty(k);
		if (k->pool.dir >= 0)
			kvc_pool_close(&k->pool, k->pool.found);
		if (k->cat) {
			kvc_catalog_rollback(k->cat);
			kvc_catalog_close(k->cat);
		}
		kvc_context_free(k);
		return err;
	}
	kvc_notify_forget(k); /* the kernel does not know any name yet */
	*out = k;
	return 0;
}

void kvc_cache_set_events(struct kvc *k, const struct kvc_events *ev)
{
	kvc_lock(k);
	k->ev = *ev;
	kvc_unlock(k);
}

static void stop_tiers(struct kvc *k)
{
	kvc_tier_each(k, t)
		if (k->tier[t].t->ops->stop && !k->tier[t].threads.abandoned)
			k->tier[t].t->ops->stop(k->tier[t].t);
}

/* Ends the running threads after a failed start, without any further work. */
static void undo_start(struct kvc *k)
{
	struct kvc_context *h = kvc_context_of(k);

	kvc_lock(k);
	k->stopping = k->draining = k->work->over = true;
	pthread_cond_broadcast(&k->reservations.pressed);
	pthread_cond_broadcast(&k->replacers->cond);
	pthread_cond_broadcast(&k->waits.cond);
	pthread_cond_broadcast(&k->committer->cond);
	pthread_cond_broadcast(&k->deferred_free->sync_cond);
	kvc_tiers_wake_locked(k);
	kvc_unlock(k);
	kvc_quota_keeper_stop(k);
	kvc_demote_stop(k);
	kvc_model_rescan_stop(k);
	kvc_announce_stop(k);
	kvc_notify_stop(k);
	kvc_trim_stop(k);
	kvc_tiers_join(k);
	while (h->nthreads)
		pthread_join(h->thread[--h->nthreads], NULL);
	stop_tiers(k);
}

/* Limit of open files per user, which leaves descriptors for other users. */
static size_t files_per_user(void)
{
	struct rlimit r;

	return getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur == RLIM_INFINITY ? 0 : r.rlim_cur / 2;
}

int kvc_cache_start(struct kvc *k)
{
	int err = 0;

	k->users->files_max = k->opt.allow_other ? files_per_user() : 0;

	kvc_tier_each(k, t)
		if (!err && k->tier[t].t->ops->start)
			err = k->tier[t].t->ops->start(k->tier[t].t);
	if (!err)
		err = kvc_catalog_start(k->cat, k->opt.log_bytes);
	for (struct kvc_context *h = kvc_context_of(k); !err && h->nthreads < KVC_THREADS;)
		if (!(err = -pthread_create(&h->thread[h->nthreads], NULL, thread_run[h->nthreads],
					    k)))
			h->nthreads++;
	if (!err)
		err = kvc_tiers_start(k);
	if (!err)
		err = kvc_quota_keeper_start(k);
	if (!err)
		err = kvc_trim_start(k);
	if (!err)
		err = kvc_demote_start(k);
	if (!err)
		err = kvc_model_rescan_start(k);
	if (!err)
		err = kvc_announce_start(k);
	if (err) {
		kvc_error("cannot start threads: %s; raise the limit (ulimit -u, or pids.max of "
			  "the cgroup)",
			  strerror(-err));
		undo_start(k);
		return err;
	}
	kvc_lock(k);
	k->started = true;
	/* Queue the copies that an earlier daemon could not make. */
	kvc_table_each(&k->nodes->table, s) {
		struct kvc_node *n = kvc_of(s, struct kvc_node, slot);

		if (k->opt.write == KVC_THROUGH && (n->state == KVC_RESIDENT || n->segment.verify))
			kvc_spill_queue_locked(k, n, false);
	}
	kvc_unlock(k);
	kvc_prefault_start(k);
	kvc_model_rescan_wait(k);
	kvc_memory_trim(); /* recovery used much memory */
	return 0;
}

/* Are removals of dropped objects pending? */
static bool removals_pending_locked(const struct kvc *k)
{
	bool any = !kvc_list_empty(&k->deferred_free->list) || k->reservations.leaving;

	kvc_tier_each(k, t)
		any |= k->tier[t].deferred.bytes > 0 && !kvc_tier_hangs_locked(k, t);
	return any;
}

/*
 * Waits until no copy is pending, and with `removals` until no removal is pending either. For
 * removals it waits no longer than the deadline; the next start finds the rest. A tier without
 * progress for two deadlines ends the wait.
 */
static void drain_jobs(struct kvc *k, bool removals)
{
	uint64_t spills = 0, begun = kvc_mono_ns(), since = begun, reported = 0;
	const uint64_t deadline = k->opt.deadline_ms * 1000000;

	for (;;) {
		kvc_lock(k);
		bool copies = kvc_tiers_busy_locked(k, false);
		bool busy = copies || (removals &&
				       (kvc_tiers_busy_locked(k, true) ||
					k->deferred_free->nunsynced || removals_pending_locked(k)));

		kvc_tiers_wake_locked(k);
		kvc_unlock(k);
		if (!busy)
			return;
		if (!copies && kvc_mono_ns() - begun > deadline) {
			kvc_info("the copies of some recently deleted files are not yet removed "
				 "from their tiers; the next mount removes them");
			return;
		}
		if (kvc_counted(&k->stats, spills) != spills) {
			spills = kvc_counted(&k->stats, spills);
			since = kvc_mono_ns();
			kvc_stop_watch_beat(&kvc_context_of(k)->stop_watch);
			if (since - reported > ALIVE_NS) {
				kvc_store_alive(k->store);
				reported = since;
			}
		}
		if (kvc_mono_ns() - since > 2 * deadline) {
			kvc_warn("a tier does not finish its work; files without a copy stay in "
				 "the pool");
			return;
		}
		usleep(2000);
	}
}

/*
 * Commits acknowledged changes. Retries for a while, because a filesystem that is full or too busy
 * may recover.
 */
static void commit_final(struct kvc *k)
{
	uint64_t until = kvc_mono_ns() + 3 * k->opt.deadline_ms * 1000000;
	int err;

	while ((err = kvc_commit_once(k)) && kvc_mono_ns() < until)
		usleep(50000);
	if (err)
		kvc_error("the catalog cannot be written: %s; the last changes are lost",
			  strerror(-err));
}

void kvc_cache_detach(struct kvc *k)
{
	kvc_store_ending(k->store);
	kvc_lock(k);
	if (!k->started) {
		kvc_unlock(k);
		return;
	}
	k->stopping = true;
	pthread_cond_broadcast(&k->reservations.pressed);
	pthread_cond_broadcast(&k->replacers->cond);
	pthread_cond_broadcast(&k->waits.cond);
	kvc_unlock(k);
	kvc_prefault_stop(k);
	pthread_join(kvc_context_of(k)->thread[KVC_EVICTOR], NULL);
	pthread_join(kvc_context_of(k)->thread[KVC_SAVER], NULL);
	kvc_quota_keeper_stop(k);
	kvc_demote_stop(k);
	kvc_model_rescan_stop(k);
	kvc_announce_stop(k);
	kvc_sweep_stop(k);
	kvc_waits_end(k); /* woken calls still use the state below and the hooks */
	kvc_notify_stop(k);
	pthread_join(kvc_context_of(k)->thread[KVC_NOTIFIER], NULL);
	kvc_cache_set_events(k, &(struct kvc_events){ 0 });
}

/*
 * Puts all frames, and the zeros over the headers of removed frames, on stable storage. Returns the
 * tiers that were not synced completely, one bit for each.
 */
static unsigned sync_last(struct kvc *k)
{
	struct kvc_tier_device d;
	unsigned unsynced = 0;

	kvc_tier_each(k, t) {
		struct kvc_tier *tier = k->tier[t].t;
		bool abandoned = k->tier[t].threads.abandoned;
		int err = tier->ops->sync && !abandoned ? tier->ops->sync(tier) : 0;

		if (err)
			kvc_error("tier %s: the last sync has failed: %s; a power failure may lose "
				  "files that were never synced",
				  tier->ops->name, strerror(-err));
		if (err || abandoned)
			unsynced |= 1u << t;
		for (unsigned nr = 0; tier->ops->device && nr < KVC_DEVICES; nr++)
			if (!tier->ops->device(tier, nr, &d) && d.unsynced) {
				unsynced |= 1u << t;
				kvc_error("disk: the device %s could not be synced; the copies "
					  "that were stored in it since its last sync may be lost",
					  d.path);
			}
	}
	return unsynced;
}

/*
 * Is a copy of the file on stable storage? A copy that an earlier mount made is stable once this
 * mount has synced the tier. If a sync has failed, kvc_cache_stop() has requested a new copy.
 */
static bool has_stable_copy(const struct kvc *k, const struct kvc_node *n)
{
	kvc_tier_each(k, t) {
		const struct kvc_where *w = &n->in[t].place.where;
		struct kvc_tier *tier = k->tier[t].t;
		enum kvc_tier_synced is;
		struct kvc_tier_device d;

		if (!kvc_file_placed_in(n, t))
			continue;
		is = kvc_tier_synced(tier, w);
		if (is == KVC_TIER_SYNCED ||
		    (is == KVC_TIER_FAILING &&
		     !tier->ops->device(tier, (unsigned)(w->at >> KVC_DEVICE_BITS), &d) &&
		     !d.unsynced))
			return true;
	}
	return false;
}

/* Is this object not on stable storage in any tier, as far as is known? */
static bool is_unsaved_locked(const struct kvc *k, const struct kvc_node *n)
{
	return !n->commit.lost && !kvc_node_detached(n) &&
	       (n->state == KVC_RESIDENT ||
		(n->state == KVC_BOTH && (n->segment.verify || !has_stable_copy(k, n))));
}

static uint64_t count_unsaved(struct kvc *k)
{
	uint64_t unsaved = 0;

	kvc_lock(k);
	kvc_table_each(&k->nodes->table, s)
		unsaved += is_unsaved_locked(k, kvc_of(s, struct kvc_node, slot));
	kvc_unlock(k);
	return unsaved;
}

/*
 * Saves the used bytes of bounded tiers, and whether their free space may contain frames. unsynced:
 * the result of sync_last(). The caller holds the catalog's lock.
 */
static void save_usage(struct kvc *k, unsigned unsynced)
{
	kvc_tier_each(k, t)
		if (k->tier[t].t->ops->caps & KVC_TIER_BOUNDED) {
			struct kvc_tier_usage u;
			char key[64], value[32];

			k->tier[t].t->ops->usage(k->tier[t].t, &u);
			/* last chance to clear headers of removed frames; else fsck finds them */
			if (u.uncleared) {
				k->tier[t].t->ops->sync(k->tier[t].t);
				k->tier[t].t->ops->usage(k->tier[t].t, &u);
			}
			u.uncleared += kvc_min(k->tier[t].deferred.bytes, u.stored - u.uncleared);
			if (u.uncleared || unsynced & (1u << t))
				kvc_meta_set(k->cat, "killed", "1");
			snprintf(key, sizeof key, "%s_used_bytes", k->tier[t].t->ops->name);
			snprintf(value, sizeof value, "%" PRIu64, u.stored - u.uncleared);
			kvc_meta_set(k->cat, key, value);
		}
}

void kvc_cache_stop(struct kvc *k)
{
	struct kvc_stop_watch *watch = &kvc_context_of(k)->stop_watch;
	unsigned unsynced;

	if (!k->started)
		return;
	kvc_stop_watch_start(watch, k, count_unsaved);
	kvc_tmpfile_end_all(k);
	kvc_lock(k);
	kvc_trimmers_hope_locked(k);
	kvc_table_each(&k->nodes->table, s) {
		struct kvc_node *n = kvc_of(s, struct kvc_node, slot);

		kvc_file_set_snapshot_locked(n, false);
		if (n->state == KVC_RESIDENT ||
		    (n->state == KVC_BOTH && kvc_spill_lost_locked(k, n, KVC_TIER_LOST)) ||
		    ((n->state == KVC_BOTH || n->state == KVC_LOWER) && n->segment.verify))
			kvc_spill_queue_locked(k, n, true);
		if (n->commit.touched)
			kvc_node_dirty_locked(k, n);
	}
	kvc_access_end_all_locked(k);
	kvc_unlock(k);
	kvc_access_ancestors_stamp(k);
	drain_jobs(k, false);
	kvc_trim_stop(k);
	kvc_chunk_drop_resume(k); /* drops that an error has interrupted */
	commit_final(k);          /* frees segments and extents, which queues jobs */
	kvc_stop_watch_beat(watch);
	drain_jobs(k, true); /* some may be in the committer's batch */
	kvc_lock(k);
	k->draining = true;
	pthread_cond_broadcast(&k->committer->cond);
	pthread_cond_broadcast(&k->deferred_free->sync_cond);
	kvc_tiers_wake_locked(k);
	pthread_cond_broadcast(&k->waits.cond);
	kvc_unlock(k);
	pthread_join(kvc_context_of(k)->thread[KVC_COMMITTER], NULL);
	pthread_join(kvc_context_of(k)->thread[KVC_SYNCER], NULL);
	pthread_join(kvc_context_of(k)->thread[KVC_ANSWERER], NULL);
	kvc_tiers_join(k);
	kvc_stop_watch_beat(watch);
	/*
	 * Before the commit that says that the unmount was clean, which a power failure may keep
	 * although nothing has synced it: then free space contains no frames.
	 */
	unsynced = sync_last(k);
	kvc_stop_watch_beat(watch);
	kvc_access_save_all(k);
	kvc_lock_both(k);
	kvc_model_quotas_save_both(k);
	kvc_model_count_save_both(k);
	kvc_tenants_save_both(k);
	kvc_ino_save_both(k);
	kvc_clock_save_both(k);
	kvc_wear_save_both(k);
	kvc_unlock(k);
	save_usage(k, unsynced);
	kvc_meta_set(k->cat, "clean", "1");
	kvc_catalog_unlock(k->cat);
	commit_final(k);
	kvc_stop_watch_beat(watch);
	stop_tiers(k);
	kvc_replacers_save(k);
	kvc_stop_watch_end(watch);
	k->started = false;
}

/* Why an object was not copied, and the remedy, for the log. */
static const char *why_uncopied(struct kvc *k, const struct kvc_node *n)
{
	if (kvc_admission_check_locked(k, n, KVC_DISK))
		return "daily= or admit= refuses the copies; mount the store again later, or with "
		       "other values";
	kvc_tier_each(k, t) {
		struct kvc_tier *tier = k->tier[t].t;
		struct kvc_tier_usage u = { 0 };

		if (tier->ops->caps & KVC_TIER_BOUNDED)
			tier->ops->usage(tier, &u);
		if (k->tier[t].space.full ||
		    (u.total && u.total - u.used < n->object.size + KVC_FRAME_HEADER))
			return "a tier is full; enlarge it or delete files in it, and mount the "
			       "store again";
	}
	return "mount the store again when the tier works";
}

/*
 * Is the pool still needed? Says why in the log. A file that was deleted or dropped, and that a
 * client still had open, is not needed.
 */
static bool pool_is_needed(struct kvc *k)
{
	uint64_t only_here = 0, unsynced = 0, unpublished = 0;
	const char *why = NULL;

	kvc_table_each(&k->nodes->table, s) {
		struct kvc_node *n = kvc_of(s, struct kvc_node, slot);

		if (n->commit.lost || kvc_node_detached(n))
			continue;
		unpublished += n->segment.unpublished && n->state == KVC_OPEN;
		if (n->state == KVC_RESIDENT || (n->state == KVC_BOTH && n->segment.verify)) {
			only_here++;
			why = why ?: why_uncopied(k, n);
		}
		unsynced += n->state == KVC_BOTH && !n->segment.verify && !has_stable_copy(k, n);
	}
	if (unpublished)
		kvc_error("%" PRIu64 " files could not be published in the pool: the last changes "
			  "to them are lost",
			  unpublished);
	/* if the pool stays, may the next mount trust the copies of its objects? */
	kvc_pool_set_unsynced(&k->pool, unsynced > 0);
	if (unsynced)
		kvc_warn("%" PRIu64 " objects have copies only in devices that could not be "
			 "synced: the pool %s stays in memory for the next mount; mount the store "
			 "again when the devices work",
			 unsynced, k->pool.path);
	if (only_here && k->ntakers)
		kvc_warn("%" PRIu64 " objects could not be copied to a tier: the pool %s stays in "
			 "memory for the next mount; %s",
			 only_here, k->pool.path, why);
	else if (only_here && !k->opt.keep_pool)
		kvc_info("%" PRIu64 " objects were only in the pool (disk=off) and are lost",
			 only_here);
	if (unsynced || (only_here && k->ntakers))
		return true;
	if (k->opt.keep_pool)
		kvc_info("the pool %s stays in memory for the next mount (keep_pool)",
			 k->pool.path);
	return k->opt.keep_pool;
}

bool kvc_cache_close(struct kvc *k)
{
	bool left = k->work->left, keep;

	kvc_lock(k);
	keep = pool_is_needed(k);
	kvc_unlock(k);
	/*
	 * a thread that returns later finds its memory intact; everything acknowledged is committed
	 */
	if (left) {
		kvc_pool_close(&k->pool, keep);
		return false;
	}
	kvc_context_empty(k);
	if (kvc_catalog_close(k->cat))
		kvc_error("the catalog could not be closed cleanly; the next start recovers it");
	kvc_pool_close(&k->pool, keep);
	kvc_tier_each(k, t)
		k->tier[t].t->ops->close(k->tier[t].t);
	kvc_keys_close(k->keys);
	kvc_budget_stop(&k->stats);
	kvc_context_free(k);
	return true;
}

bool kvc_cache_shares(struct kvc *k)
{
	return k->shared;
}

struct kvc_stats *kvc_cache_stats(struct kvc *k)
{
	return &k->stats;
}

const struct kvc_options *kvc_cache_options(struct kvc *k)
{
	return &k->opt;
}
