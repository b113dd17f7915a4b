/* SPDX-License-Identifier: Apache-2.0 */
/* Allocates and connects the state of all layers; see context.h. */
#include "context.h"

#include "access_queue.h"
#include "gone.h"
#include "ops.h"
#include "incomplete.h"
#include "model_use.h"
#include "remove.h"
#include "tenant_set.h"

#include <string.h>

static void published_locked(struct kvc *k, struct kvc_node *n)
{
	kvc_incomplete_published_locked(k, n);
	kvc_throttle_published_locked(k, n);
}

/* Drops a file without any copy; its chunk may become incomplete. */
static int lost_both(struct kvc *k, struct kvc_node *n)
{
	struct kvc_node *folder = kvc_node_find_locked(k, n->row.parent);
	bool whole = folder && kvc_incomplete_was_whole_both(k, folder);
	int err;

	if (!whole)
		return kvc_dir_drop_file_both(k, n, NULL);
	kvc_node_ref_locked(folder);
	err = kvc_dir_drop_file_both(k, n, NULL);
	kvc_node_unref_locked(folder);
	kvc_incomplete_after_both(k, folder, true);
	kvc_node_settle_locked(k, folder);
	return err;
}

static const struct kvc_hooks hooks = {
	.published_locked = published_locked,
	.made_locked = kvc_admission_made_locked,
	.freed_locked = kvc_dir_dropped_free_locked,
	.remove_shared = kvc_remove_shared,
	.lost_both = lost_both,
};

static void init_arrays_of_lists(struct kvc *k)
{
	for (int i = 0; i < 2; i++) {
		kvc_list_init(&k->disk_victims->waiting[i]);
		kvc_list_init(&k->disk_victims->visited[i]);
	}
	for (size_t i = 0; i < sizeof k->tenants->over / sizeof k->tenants->over[0]; i++)
		kvc_list_init(&k->tenants->over[i]);
	for (size_t i = 0; i < KVC_DIR_DROPPED; i++)
		kvc_list_init(&k->drops->dropped[i]);
	for (size_t i = 0; i < KVC_DIR_PROBES; i++)
		kvc_list_init(&k->drops->probes[i]);
}

static void init_lists(struct kvc *k)
{
	struct kvc_list *all[] = {
		&k->reservations.waiters,
		&k->waits.woken,
		&k->quotas.list,
		&k->committer->nodes,
		&k->committer->chunks,
		&k->committer->sync_waiters,
		&k->committer->lingering[0],
		&k->committer->lingering[1],
		&k->account->uncopied,
		&k->deferred_free->list,
		&k->deferred_free->unsynced,
		&k->throttle->waiters,
		&k->model_rescan->asked,
		&k->model_rescan->waiters,
		&k->drops->detached,
		&k->models->layered,
		&k->demotes->list,
		&k->quotas.waiting,
		&k->quotas.over,
		&k->committer->accesses.wanted,
		&k->committer->accesses.released,
		&k->committer->accesses.held,
		&k->pins->excluded_users,
		&k->pins->back,
		&k->pins->chained,
		&k->tenants->orphans,
		&k->chunks->finished,
		&k->chunks->unwanted,
		&k->chunks->victims,
	};
	pthread_cond_t *conds[] = {
		&k->waits.cond,
		&k->waits.idle,
		&k->reservations.pressed,
		&k->quotas.pressed,
		&k->committer->cond,
		&k->committer->committed_cond,
		&k->deferred_free->sync_cond,
		&k->model_rescan->cond,
		&k->demotes->cond,
		&k->replacers->cond,
	};
	pthread_condattr_t attr;

	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		kvc_list_init(all[i]);
	init_arrays_of_lists(k);
	kvc_commit_sync_init(&k->committer->syncs);
	kvc_remote_lookup_init(k->remote_lookup);
	kvc_arrival_init(k->arrivals);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	for (size_t i = 0; i < sizeof conds / sizeof conds[0]; i++)
		pthread_cond_init(conds[i], &attr);
	kvc_tiers_init(k, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&k->lock.m, NULL);
	for (size_t i = 0; i < KVC_DEVICES; i++)
		pthread_mutex_init(&k->deferred_free->rehead_lock[i], NULL);
	pthread_mutex_init(&k->notices->lock, NULL);
	pthread_mutex_init(&k->latency->lock, NULL);
	pthread_cond_init(&k->notices->cond, NULL);
}

struct kvc *kvc_context_new(void)
{
	size_t bytes = kvc_round_up(sizeof(struct kvc_context), KVC_CACHE_LINE);
	struct kvc_context *h = aligned_alloc(KVC_CACHE_LINE, bytes);

	if (!h)
		return NULL;
	memset(h, 0, bytes);
	h->k.joint = kvc_joint_new();
	h->k.access_queue = h->k.joint ? kvc_access_queue_new() : NULL;
	h->k.asked = h->k.access_queue ? kvc_asked_new() : NULL;
	h->k.gone = h->k.asked ? kvc_gone_new() : NULL;
	if (!h->k.gone) {
		kvc_asked_free(h->k.asked);
		kvc_access_queue_free(h->k.access_queue);
		kvc_joint_free(h->k.joint);
		free(h);
		return NULL;
	}
	h->k.joint->closed = kvc_access_queue_empty;
	h->k.joint->arg = &h->k;
	h->k.lock.joint = h->k.joint;
	h->k.hooks = &hooks;
	h->k.committer = &h->committer;
	h->k.inos = &h->inos;
	h->k.nodes = &h->nodes;
	h->k.chunks = &h->chunks;
	h->k.replacers = &h->replacers;
	h->k.disk_victims = &h->disk_victims;
	h->k.access = &h->access;
	h->k.users = &h->users;
	h->k.pins = &h->pins;
	h->k.tenants = &h->tenants;
	h->k.clock = &h->clock;
	h->k.models = &h->models;
	h->k.model_stats = &h->model_stats;
	h->k.latency = &h->latency;
	h->k.account = &h->account;
	h->k.admission = &h->admission;
	h->k.model_rescan = &h->model_rescan;
	h->k.work = &h->work;
	h->k.tier = h->tier;
	h->k.deferred_free = &h->deferred_free;
	h->k.folders = &h->folders;
	h->k.throttle = &h->throttle;
	h->k.notices = &h->notices;
	h->k.chunking = &h->chunking;
	h->k.drops = &h->drops;
	h->k.remote_lookup = &h->remote_lookup;
	h->k.arrivals = &h->arrivals;
	h->k.pushes = &h->pushes;
	kvc_push_init(&h->pushes);
	h->k.evict = &h->evict;
	h->k.demotes = &h->demotes;
	init_lists(&h->k);
	return &h->k;
}

void kvc_context_empty(struct kvc *k)
{
	kvc_deferred_free_clear(k);
	kvc_node_free_all(k);
	kvc_access_free(k);
	kvc_chunks_free(k);
	kvc_replacers_free(k);
	kvc_disk_victims_free(k);
	kvc_admission_free(k);
	kvc_pins_free(k);
	kvc_tenant_set_free(k);
	kvc_tenants_free(k);
	kvc_users_free(k);
	kvc_quotas_free(k);
	kvc_model_layers_free(k);
	kvc_model_use_end_locked(k);
	kvc_model_stats_free(k);
	kvc_model_rescan_free(k);
}

void kvc_context_free(struct kvc *k)
{
	kvc_dir_probes_free_locked(k, 0);
	kvc_chunk_drop_free(k);
	free(k->notices->v);
	kvc_push_fini(k->pushes);
	kvc_remote_lookup_fini(k->remote_lookup);
	free(k->chunking->runs);
	free(k->chunking->trees);
	kvc_gone_free(k->gone);
	kvc_asked_free(k->asked);
	kvc_access_queue_free(k->access_queue);
	kvc_joint_free(k->joint);
	free(kvc_context_of(k));
}
