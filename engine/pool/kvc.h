/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct kvc, the engine of one mount, and its locks. engine/README draws the layers.
 *
 * The struct contains the basic state and the state of the pool. Each layer above has its state in
 * its own structs, whose headers say which lock guards them. Here are only pointers to these
 * structs, so that a file that may not include such a header cannot access its struct.
 * mount/context.c makes them before the first call and frees them after the last, except those that
 * may be NULL according to the comments below.
 *
 * Threads: any number of callers; one committer (objects/commit_batch.c), one syncer
 * (objects/deferred_free.c), one evictor (evict/evict.c), one quota keeper (evict/quota_keeper.c),
 * one demoter (evict/demote.c), a trimmer for each bounded tier (evict/trim.c), one answerer that
 * runs the wakes (pool/wait.c), one notifier (names/notify.c), tier workers (objects/tier_queue.c),
 * one saver of the policies' state (access/replacer_save.c), one thread for rescans and counts
 * (objects/model_rescan.c), the prefault thread (pool/prefault.c), a sweep on request
 * (jobs/sweep.c), readers of the pool during the start (mount/pool_scan.c), and the stop watch
 * during an unmount (mount/stop_watch.c). The catalog has threads of its own (catalog/checkpoint.c,
 * catalog/filter.c), which do not use struct kvc.
 *
 * Locks, in this order:
 *   0. deferred_free->rehead_lock[], one for each device: a header in it is rewritten, or an extent
 *      in it is freed, but never both at the same time.
 *   1. the catalog's lock ("the tree"): names, rows and uncommitted changes. Callers that change or
 *      read names hold it. It is not held while changes are written to SQLite.
 *   2. k->lock: nodes in memory, chunks, reservations, queues, and all structs below whose headers
 *      name no other lock. It is held briefly: for memory operations and single system calls on the
 *      pool's tmpfs (open, rename, unlink of a name whose pages stay, fstat, fallocate and
 *      ftruncate of few pages: ops/pages.c), never for tier I/O, a commit, a reply or a wake. Long
 *      work releases it in between (kvc_pause_locked). Calls on files that are in the pool hold it
 *      jointly (ops/hit.c; joint.h describes it). They change only a node (under its stripe
 *      of k->joint), the users (under k->joint->users) and the access queue.
 *   3. leaf locks inside tiers and the notifier.
 * A function that needs k->lock ends in _locked; a function that needs both ends in _both.
 */
#ifndef KVC_KVC_H
#define KVC_KVC_H

#include "caller.h"
#include "catalog.h"
#include "lock.h"
#include "options.h"
#include "pool.h"
#include "quota.h"
#include "reservation.h"
#include "stats.h"
#include "wait.h"

#include <pthread.h>

struct kvc_job;
struct kvc_node;

/*
 * Calls from objects/, access/ and tiering/ to the layers above. mount/context.c sets them once,
 * before the first node exists.
 */
struct kvc_hooks {
	/*
	 * The last writer closed the file; it is RESIDENT or BOTH. Requests copies
	 * (tiering/throttle.c).
	 */
	void (*published_locked)(struct kvc *k, struct kvc_node *n);
	/* The file is about to be published, or joined another chunk (access/admission.c). */
	void (*made_locked)(struct kvc *k, struct kvc_node *n);
	/* The node is freed: frees its n->dropped_dir (names/dir_invalidate.c). */
	void (*freed_locked)(struct kvc_node *n);
	/*
	 * Removes a frame from a shared tier, unless it is needed again (tiering/remove.c). Without
	 * locks.
	 */
	int (*remove_shared)(struct kvc *k, const struct kvc_job *j);
	/*
	 * Neither a tier nor the pool has a good copy: drops the file with its names
	 * (names/dir_invalidate.c).
	 */
	int (*lost_both)(struct kvc *k, struct kvc_node *n);
};

struct kvc {
	/* set by kvc_cache_open and read by all threads */
	struct kvc_options opt;
	struct kvc_store *store;
	struct kvc_catalog *cat;
	struct kvc_keys *keys; /* NULL: frames are not sealed */
	/* time of the last attempt to learn an unknown key (tiering/keyring.c) */
	_Atomic uint64_t learned_ns;
	/* the present tiers, in the order in which they are asked */
	unsigned order[KVC_TIERS], ntiers;
	unsigned ntakers;        /* the number of those that take copies (kvc_tier_takes) */
	unsigned tier_slots;     /* all tier numbers in the catalog's placements are below this */
	bool shared;             /* a tier is shared */
	struct kvc_joint *joint; /* joint holds of k->lock (ops/hit.c) */
	/* accesses of joint holds, which k->access does not know yet (access/access_queue.h) */
	struct kvc_access_queue *access_queue;
	struct kvc_asked *asked; /* lookups of missing names (ops/asked.c) */
	struct kvc_gone *gone;   /* chunks that left (telemetry/gone.h) */
	/* identifies this store's frames in shared tiers (tiering/proof.c) */
	uint8_t shared_id[16];
	struct kvc_stats stats;
	struct kvc_events ev; /* under k->lock */
	const struct kvc_hooks *hooks;

	_Alignas(KVC_CACHE_LINE) struct kvc_lock lock;
	_Alignas(KVC_CACHE_LINE) bool stopping; /* under k->lock, with the next two */
	bool draining, started;

	/* pool/, this layer */
	struct kvc_pool pool;
	struct kvc_reservations reservations;
	struct kvc_waits waits;
	struct kvc_quotas quotas;
	struct kvc_prefault *prefault; /* NULL before the start and after the end */

	/* objects/, access/, limits/ and telemetry/, and the clock of pool/ */
	struct kvc_committer *committer;
	struct kvc_inos *inos;
	struct kvc_nodes *nodes;
	struct kvc_chunks *chunks;
	struct kvc_replacers *replacers;
	struct kvc_disk_victims *disk_victims;
	struct kvc_access_tracker *access;
	struct kvc_event_ring *event_ring;   /* NULL if no reader is open */
	struct kvc_access_ring *access_ring; /* NULL if no reader is open */
	struct kvc_users *users;
	struct kvc_pins *pins;
	struct kvc_tenants *tenants;
	struct kvc_clock *clock;
	struct kvc_models *models;
	struct kvc_model_stats_table *model_stats;
	struct kvc_latency *latency;
	struct kvc_account *account;
	struct kvc_admission *admission;
	struct kvc_model_rescan *model_rescan;
	struct kvc_work *work;
	struct kvc_tier_state *tier; /* KVC_TIERS + 1 elements (tier_queue.h) */
	struct kvc_deferred_free *deferred_free;

	/* tiering/ */
	struct kvc_folders *folders;
	struct kvc_throttle *throttle;

	/* names/ */
	struct kvc_notices *notices;
	struct kvc_chunking *chunking;
	struct kvc_drops *drops;
	struct kvc_remote_lookup *remote_lookup;
	struct kvc_arrivals *arrivals;

	/* ops/ */
	struct kvc_pushes *pushes;

	/* evict/ */
	struct kvc_evict *evict;
	struct kvc_demotes *demotes;

	/* jobs/ */
	struct kvc_sweep *sweep;         /* sweep.h; NULL before the first sweep */
	struct kvc_announcer *announcer; /* announce.h; NULL: no thread runs */
};

/*
 * Does the catalog accept a user's change now? Returns 0, or the error with which the call must
 * fail before it changes anything. Needs no lock.
 */
static inline int kvc_accepts(struct kvc *k, bool removal)
{
	int err = kvc_catalog_accepts(k->cat, removal);

	if (err)
		kvc_count(&k->stats, refused_changes);
	return err;
}
#define kvc_lock(k) kvc_lock_acquire(&(k)->lock, KVC_HERE("objects"))
/*
 * Does the work of `call`, an expression that is true if a joint hold could do it. Returns true if
 * it did. Otherwise k->lock is held, and the caller does the work.
 */
#define kvc_lock_unless_joint(k, call)                                                          \
	((call) || (!kvc_lock_or_join(&(k)->lock, KVC_HERE("objects")) && ((call) || ({         \
										   kvc_lock(k); \
										   false;       \
									   }))))
static inline void kvc_unlock(struct kvc *k)
{
	kvc_lock_release(&k->lock);
}
/* The same after work that a joint hold could have done: lets the next such call try that. */
static inline void kvc_unlock_to_joint(struct kvc *k)
{
	kvc_joint_reopen(k->joint);
	kvc_lock_release(&k->lock);
}
/* For callers that do not hold k->lock. */
static inline bool kvc_stopping(struct kvc *k)
{
	bool is;

	kvc_lock(k);
	is = k->stopping;
	kvc_unlock(k);
	return is;
}
#define kvc_lock_both(k)                    \
	do {                                \
		kvc_catalog_lock((k)->cat); \
		kvc_lock(k);                \
	} while (0)
static inline void kvc_unlock_both(struct kvc *k)
{
	kvc_unlock(k);
	kvc_catalog_unlock(k->cat);
}
/*
 * In the middle of long work: lets other threads take the lock. The caller must check again
 * everything that they may have changed.
 */
#define kvc_pause_locked(k)                 \
	do {                                \
		kvc_unlock(k);              \
		kvc_lock_pause(&(k)->lock); \
		kvc_lock(k);                \
	} while (0)
#define kvc_pause_both(k)                    \
	do {                                 \
		kvc_unlock_both(k);          \
		kvc_lock_pause(&(k)->lock);  \
		kvc_catalog_pause((k)->cat); \
		kvc_lock_both(k);            \
	} while (0)

#endif
