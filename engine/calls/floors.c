/* SPDX-License-Identifier: Apache-2.0 */
/* See floors.h. */
#include "floors.h"

#include "partial.h"
#include "remove.h"
#include "up.h"

static void published_locked(struct kvc *k, struct kvc_node *n)
{
	kvc_partial_published_locked(k, n);
	kvc_pace_published_locked(k, n);
}

/* No copy of it is left: its chunk may not be whole any more. */
static int lost_both(struct kvc *k, struct kvc_node *n)
{
	struct kvc_node *folder = kvc_node_find_locked(k, n->row.parent);
	bool whole = folder && kvc_partial_was_whole_both(k, folder);
	int err;

	if (!whole)
		return kvc_drop_file_both(k, n, NULL);
	folder->holds++;
	err = kvc_drop_file_both(k, n, NULL);
	folder->holds--;
	kvc_partial_after_both(k, folder, true);
	kvc_node_settle_locked(k, folder);
	return err;
}

static const struct kvc_objects_up objects_up = {
	.published_locked = published_locked,
	.freed_locked = kvc_ghost_free_locked,
	.remove_shared = kvc_remove_shared,
};

static const struct kvc_copies_up copies_up = {
	.lost_both = lost_both,
};

static void init_lists(struct kvc *k)
{
	struct kvc_list *all[] = {
		&k->room.waiters,
		&k->waits.woken,
		&k->quotas.list,
		&k->dirty->nodes,
		&k->dirty->chunks,
		&k->dirty->sync_waiters,
		&k->dirty->lingering[0],
		&k->dirty->lingering[1],
		&k->account->behind,
		&k->trash->list,
		&k->trash->unsynced,
		&k->pace->waiters,
		&k->surveys->asked,
		&k->surveys->waiters,
		&k->drops->cut,
		&k->models->layered,
		&k->demotes->list,
		&k->quotas.waiting,
		&k->quotas.over,
		&k->dirty->accesses.wanted,
		&k->dirty->accesses.released,
		&k->dirty->accesses.held,
		&k->pins->out_users,
		&k->pins->back,
		&k->pins->chained,
	};
	pthread_cond_t *conds[] = {
		&k->waits.cond,       &k->waits.idle,    &k->room.pressed,
		&k->quotas.pressed,   &k->dirty->cond,   &k->dirty->committed_cond,
		&k->trash->sync_cond, &k->surveys->cond, &k->demotes->cond,
		&k->kept->cond,
	};
	pthread_condattr_t attr;

	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		kvc_list_init(all[i]);
	kvc_share_init(k->share);
	for (size_t i = 0; i < KVC_GHOSTS; i++)
		kvc_list_init(&k->drops->ghosts[i]);
	for (size_t i = 0; i < KVC_KNOCKS; i++)
		kvc_list_init(&k->drops->knocks[i]);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	for (size_t i = 0; i < sizeof conds / sizeof conds[0]; i++)
		pthread_cond_init(conds[i], &attr);
	for (unsigned t = 0; t <= KVC_COMMON; t++) {
		k->tier[t].k = k;
		for (int p = 0; p < KVC_PRIORITIES; p++)
			kvc_list_init(&k->tier[t].jobs[p]);
		pthread_cond_init(&k->tier[t].cond, &attr);
		pthread_cond_init(&k->tier[t].load_cond, &attr);
		pthread_cond_init(&k->tier[t].trim_cond, &attr);
	}
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&k->lock.m, NULL);
	pthread_mutex_init(&k->trash->rehead_lock, NULL);
	pthread_mutex_init(&k->notices->lock, NULL);
	pthread_mutex_init(&k->tooks->lock, NULL);
	pthread_cond_init(&k->notices->cond, NULL);
}

struct kvc *kvc_floors_new(void)
{
	struct kvc_floors *h = calloc(1, sizeof *h);

	if (!h)
		return NULL;
	h->k.objects_up = &objects_up;
	h->k.copies_up = &copies_up;
	h->k.dirty = &h->dirty;
	h->k.inos = &h->inos;
	h->k.nodes = &h->nodes;
	h->k.chunks = &h->chunks;
	h->k.kept = &h->kept;
	h->k.used = &h->used;
	h->k.users = &h->users;
	h->k.pins = &h->pins;
	h->k.clock = &h->clock;
	h->k.models = &h->models;
	h->k.tallies = &h->tallies;
	h->k.tooks = &h->tooks;
	h->k.account = &h->account;
	h->k.admit = &h->admit;
	h->k.surveys = &h->surveys;
	h->k.work = &h->work;
	h->k.tier = h->tier;
	h->k.trash = &h->trash;
	h->k.folders = &h->folders;
	h->k.pace = &h->pace;
	h->k.notices = &h->notices;
	h->k.units = &h->units;
	h->k.drops = &h->drops;
	h->k.share = &h->share;
	h->k.evict = &h->evict;
	h->k.demotes = &h->demotes;
	init_lists(&h->k);
	return &h->k;
}

void kvc_floors_empty(struct kvc *k)
{
	kvc_trash_free(k);
	kvc_node_free_all(k);
	kvc_used_free(k);
	kvc_chunks_free(k);
	kvc_kept_free(k);
	kvc_admits_free(k);
	kvc_pins_free(k);
	kvc_users_free(k);
	kvc_quotas_free(k);
	kvc_layers_free(k);
	kvc_tallies_free(k);
	kvc_surveys_free(k);
}

void kvc_floors_free(struct kvc *k)
{
	kvc_knocks_free_locked(k, 0);
	kvc_drops_free(k);
	free(k->notices->v);
	kvc_share_fini(k->share);
	free(k->units->runs);
	free(k->units->trees);
	free(kvc_floors_of(k));
}
