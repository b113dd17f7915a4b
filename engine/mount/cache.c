/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's start and end. See cache.h. */
#include "cache.h"

#include "access_save.h"
#include "budget.h"
#include "ops.h"
#include "commit_batch.h"
#include "context.h"
#include "keyring.h"
#include "log.h"
#include "memory.h"
#include "prefault.h"
#include "tier_slots.h"
#include "spill.h"
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

struct proofs {
	struct kvc *k;
	unsigned matched;
	uint32_t wrong;
};

static int compare_proof(void *arg, uint32_t id)
{
	struct proofs *p = arg;
	int is = kvc_keyring_prove_both(p->k, id);

	if (is == -EINVAL)
		p->wrong = id;
	p->matched += is > 0;
	return is == -EINVAL || is > 0 ? 0 : is;
}

/*
 * Are these the store's keys? A store that has frames of a key remembers a proof of it, and a wrong
 * one is refused.
 */
static int open_keys(struct kvc *k, char *error)
{
	struct proofs p = { .k = k };
	char text[64];
	int err, sealed;

	kvc_catalog_lock(k->cat);
	sealed = kvc_meta_read(k->cat, "sealed", text, sizeof text);
	/* A rebuild found sealed frames and no proof of any key. */
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
		err = kvc_keys_each(k->keys, compare_proof, &p);
		if (!err && p.wrong) {
			snprintf(error, 512,
				 "option keyfile: key %u is not the one that this store was "
				 "encrypted with",
				 p.wrong);
			err = -EINVAL;
		} else if (!err && sealed && !unproven && !p.matched) {
			snprintf(error, 512,
				 "option keyfile: none of its keys is one that this store was "
				 "encrypted with");
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

/* Should both superblocks be lost, the catalog tells fsck what they said. */
static void remember_store(struct kvc *k)
{
	char text[1400], known[1400];

	kvc_super_text(k->store, text, sizeof text);
	kvc_catalog_lock(k->cat);
	if (kvc_meta_get(k->cat, "store", known, sizeof known) || strcmp(known, text))
		kvc_meta_set(k->cat, "store", text);
	kvc_catalog_unlock(k->cat);
}

/* uid=, gid= and mode=: kept, as by chown and chmod. */
static int own_root(struct kvc *k)
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

uint64_t kvc_cache_memory_least(struct kvc_tier *const *tiers, unsigned ntiers)
{
	return kvc_tiers_bytes(tiers, ntiers) + KVC_BUDGET_MIN;
}

/*
 * Starts the budget of memory=. The fixed part of it is the memory for requests and the buffers of
 * the tiers' threads; a memory= that leaves less than KVC_BUDGET_MIN beside it is refused.
 */
static int start_budget(struct kvc *k, struct kvc_tier **tiers, unsigned ntiers,
			uint64_t caller_bytes, char *error)
{
	const struct kvc_options *o = &k->opt;
	uint64_t tier_bytes = kvc_tiers_bytes(tiers, ntiers), fixed = caller_bytes + tier_bytes;
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
	err = err ?: kvc_table_init(&k->model_stats->table) ?: kvc_quotas_init(&k->quotas);
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
		remember_store(k);
		err = kvc_tier_slots_take(k, tiers, ntiers, error);
		if (!err)
			err = open_keys(k, error);
		if (!err)
			err = kvc_recover(k, error);
		if (!err && (err = own_root(k)))
			snprintf(error, 512, "cannot set the owner of the root folder: %s",
				 strerror(-err));
	}
	if (err) { /* the tiers stay the caller's */
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
	kvc_notify_forget(k); /* nobody has seen those names yet */
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
		if (k->tier[t].t->ops->stop && !k->tier[t].left)
			k->tier[t].t->ops->stop(k->tier[t].t);
}

/* The start has failed: the threads that there are end, and nothing is done any more. */
static void unstart(struct kvc *k)
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
	kvc_keeper_stop(k);
	kvc_demote_stop(k);
	kvc_model_rescan_stop(k);
	kvc_notify_stop(k);
	kvc_trim_stop(k);
	kvc_tiers_join(k);
	while (h->nthreads)
		pthread_join(h->thread[--h->nthreads], NULL);
	stop_tiers(k);
}

/* Of one user's open files, so that the others can have some. */
static size_t files_of_one(void)
{
	struct rlimit r;

	return getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur == RLIM_INFINITY ? 0 : r.rlim_cur / 2;
}

int kvc_cache_start(struct kvc *k)
{
	int err = 0;

	k->users->files_max = k->opt.allow_other ? files_of_one() : 0;

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
		err = kvc_keeper_start(k);
	if (!err)
		err = kvc_trim_start(k);
	if (!err)
		err = kvc_demote_start(k);
	if (!err)
		err = kvc_model_rescan_start(k);
	if (err) {
		kvc_error("cannot start threads: %s; raise the limit (ulimit -u, or pids.max of "
			  "the cgroup)",
			  strerror(-err));
		unstart(k);
		return err;
	}
	kvc_lock(k);
	k->started = true;
	/* What an earlier daemon could not copy down. */
	kvc_table_each(&k->nodes->table, s) {
		struct kvc_node *n = kvc_of(s, struct kvc_node, slot);

		if (k->opt.write == KVC_THROUGH && (n->state == KVC_RESIDENT || n->verify))
			kvc_spill_queue_locked(k, n, false);
	}
	kvc_unlock(k);
	kvc_prefault_start(k);
	kvc_model_rescan_wait(k);
	kvc_memory_trim(); /* recovery took much */
	return 0;
}

/* What was dropped and is not yet removed. */
static bool leaving_locked(const struct kvc *k)
{
	bool any = !kvc_list_empty(&k->deferred_free->list) || k->reservations.leaving;

	kvc_tier_each(k, t)
		any |= k->tier[t].leaving > 0 && !kvc_tier_hangs_locked(k, t);
	return any;
}

/*
 * Waits until no copy is to be made any more, and with `trash` until nothing is to be removed, but
 * for that no longer than a deadline: what is left then the next start finds. A tier that hangs
 * ends the patience after a deadline without progress.
 */
static void drain_jobs(struct kvc *k, bool trash)
{
	uint64_t spills = 0, begun = kvc_mono_ns(), since = begun, told = 0;
	const uint64_t deadline = k->opt.deadline_ms * 1000000;

	for (;;) {
		kvc_lock(k);
		bool copies = kvc_tiers_busy_locked(k, false);
		bool busy = copies || (trash && (kvc_tiers_busy_locked(k, true) ||
						 k->deferred_free->nunsynced || leaving_locked(k)));

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
			if (since - told > ALIVE_NS) {
				kvc_store_alive(k->store);
				told = since;
			}
		}
		if (kvc_mono_ns() - since > 2 * deadline) {
			kvc_warn("a tier does not finish; files without a copy stay in the pool");
			return;
		}
		usleep(2000);
	}
}

/* What is acknowledged is to be written: a full filesystem may find space, a busy one time. */
static void commit_last(struct kvc *k)
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
	kvc_keeper_stop(k);
	kvc_demote_stop(k);
	kvc_model_rescan_stop(k);
	kvc_sweep_stop(k);
	kvc_waits_end(k); /* calls that were woken still use what follows, and the kernel's hooks */
	kvc_notify_stop(k);
	pthread_join(kvc_context_of(k)->thread[KVC_NOTIFIER], NULL);
	kvc_cache_set_events(k, &(struct kvc_events){ 0 });
}

void kvc_cache_stop(struct kvc *k)
{
	if (!k->started)
		return;
	kvc_tmpfile_end_all(k);
	kvc_lock(k);
	kvc_table_each(&k->nodes->table, s) {
		struct kvc_node *n = kvc_of(s, struct kvc_node, slot);

		n->snapshot = false;
		if (n->state == KVC_RESIDENT ||
		    ((n->state == KVC_BOTH || n->state == KVC_LOWER) && n->verify))
			kvc_spill_queue_locked(k, n, true);
		if (n->touched)
			kvc_node_dirty_locked(k, n);
	}
	kvc_access_loosen_locked(k);
	kvc_unlock(k);
	kvc_ancestors_stamp(k);
	drain_jobs(k, false);
	kvc_trim_stop(k);
	kvc_chunk_drop_resume(k); /* what an error had kept from its end */
	commit_last(k);           /* frees the trash, which makes jobs again */
	drain_jobs(k, true);      /* some of it may be in the committer's hands */
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
	kvc_access_save_all(k);
	kvc_lock_both(k);
	kvc_quotas_save_both(k);
	kvc_ino_save_both(k);
	kvc_clock_save_both(k);
	kvc_wear_save_both(k);
	kvc_unlock(k);
	kvc_tier_each(k, t)
		if (k->tier[t].t->ops->caps & KVC_TIER_BOUNDED) {
			struct kvc_tier_usage u;
			char key[64], value[32];

			k->tier[t].t->ops->usage(k->tier[t].t, &u);
			if (u.uncleared) { /* now or never; else fsck finds them in free space */
				k->tier[t].t->ops->sync(k->tier[t].t);
				k->tier[t].t->ops->usage(k->tier[t].t, &u);
			}
			u.uncleared += kvc_min(k->tier[t].leaving, u.used - u.uncleared);
			if (u.uncleared)
				kvc_meta_set(k->cat, "killed", "1");
			snprintf(key, sizeof key, "%s_used_bytes", k->tier[t].t->ops->name);
			snprintf(value, sizeof value, "%" PRIu64, u.used - u.uncleared);
			kvc_meta_set(k->cat, key, value);
		}
	kvc_meta_set(k->cat, "clean", "1");
	kvc_catalog_unlock(k->cat);
	commit_last(k);
	kvc_tier_each(k, t)
		if (k->tier[t].t->ops->sync && !k->tier[t].left)
			k->tier[t].t->ops->sync(k->tier[t].t);
	stop_tiers(k);
	kvc_replacers_save(k);
	k->started = false;
}

bool kvc_cache_close(struct kvc *k)
{
	bool keep = k->opt.keep_pool, left = k->work->left;
	uint64_t only_here = 0, unpublished = 0;

	kvc_table_each(&k->nodes->table, s) {
		struct kvc_node *n = kvc_of(s, struct kvc_node, slot);

		unpublished += n->unpublished && n->state == KVC_OPEN;
		only_here += n->state == KVC_RESIDENT || (n->state == KVC_BOTH && n->verify);
	}
	if (unpublished)
		kvc_error("%" PRIu64 " files could not be published in the pool: the last changes "
			  "to them are lost",
			  unpublished);
	if (only_here && !keep && k->ntiers) {
		kvc_warn("%" PRIu64
			 " objects could not be copied down: the pool %s stays for the next mount",
			 only_here, k->pool.path);
		keep = true;
	} else if (only_here && !keep) {
		kvc_info("%" PRIu64 " objects were only in the pool (disk=off) and are lost",
			 only_here);
	}
	if (left) { /* a thread that comes back finds all as it was; what counts is committed */
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
