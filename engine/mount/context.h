/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of all layers: allocated in one piece, connected by the hooks (engine/README), and
 * freed.
 */
#ifndef KVC_CONTEXT_H
#define KVC_CONTEXT_H

#include "account.h"
#include "arrival.h"
#include "admission.h"
#include "clock.h"
#include "demote.h"
#include "committer.h"
#include "dir_invalidate.h"
#include "disk_victims.h"
#include "evict.h"
#include "folders.h"
#include "ino.h"
#include "replacers.h"
#include "model_quota.h"
#include "model.h"
#include "node.h"
#include "notify.h"
#include "throttle.h"
#include "pin.h"
#include "push.h"
#include "tenant.h"
#include "remote_lookup.h"
#include "model_rescan.h"
#include "model_stats.h"
#include "stop_watch.h"
#include "tier_queue.h"
#include "latency.h"
#include "deferred_free.h"
#include "chunking.h"
#include "access.h"

#include <pthread.h>

enum { KVC_COMMITTER, KVC_SYNCER, KVC_ANSWERER, KVC_NOTIFIER, KVC_EVICTOR, KVC_SAVER, KVC_THREADS };

struct kvc_context {
	struct kvc k; /* first */
	struct kvc_committer committer;
	struct kvc_inos inos;
	struct kvc_nodes nodes;
	struct kvc_chunks chunks;
	struct kvc_replacers replacers;
	struct kvc_disk_victims disk_victims;
	struct kvc_access_tracker access;
	struct kvc_users users;
	struct kvc_pins pins;
	struct kvc_tenants tenants;
	struct kvc_clock clock;
	struct kvc_models models;
	struct kvc_model_stats_table model_stats;
	struct kvc_latency latency;
	struct kvc_account account;
	struct kvc_admission admission;
	struct kvc_model_rescan model_rescan;
	struct kvc_work work;
	struct kvc_tier_state tier[KVC_TIERS + 1];
	struct kvc_deferred_free deferred_free;
	struct kvc_folders folders;
	struct kvc_throttle throttle;
	struct kvc_notices notices;
	struct kvc_chunking chunking;
	struct kvc_drops drops;
	struct kvc_remote_lookup remote_lookup;
	struct kvc_arrivals arrivals;
	struct kvc_pushes pushes;
	struct kvc_evict evict;
	struct kvc_demotes demotes;
	struct kvc_stop_watch stop_watch;
	pthread_t thread[KVC_THREADS];
	unsigned nthreads; /* running threads, in the order of the enum */
};

static inline struct kvc_context *kvc_context_of(struct kvc *k)
{
	return kvc_of(k, struct kvc_context, k);
}

/* Returns an empty context, or NULL if out of memory. */
struct kvc *kvc_context_new(void);
/* Frees the objects in memory. Call it while no other thread runs, before the pool is closed. */
void kvc_context_empty(struct kvc *k);
/* Frees the context. Call it after catalog and pool are closed. */
void kvc_context_free(struct kvc *k);

/*
 * tier_slots.c: assigns each tier of the mount its number, which placements refer to. Sets
 * k->tier[].t, k->order, k->shared and k->tier_slots. Call it before any placement is read. After a
 * failure, error (512 bytes) holds one line for the user.
 */
int kvc_tier_slots_assign(struct kvc *k, struct kvc_tier **tiers, unsigned n, char *error);
/*
 * recover.c: takes over the state that an earlier daemon left. Runs before any other thread. After
 * a failure, error (512 bytes) holds one line for the user.
 */
int kvc_recover(struct kvc *k, char *error);
/*
 * pool_scan.c: takes over the segments of a pool that an earlier daemon left, and removes useless
 * ones. Runs before any other thread. After an error (text in error[512]) no segment of a published
 * file is lost. *threads is the number of threads that have read the pool and the catalog.
 */
int kvc_pool_scan_both(struct kvc *k, unsigned *threads, char *error);

#endif
