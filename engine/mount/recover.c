/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recovery at the start of a mount: takes over the pool of an earlier daemon (pool_scan.c), tells
 * the tiers which space is in use, and drops files that are unfinished or have lost their only
 * copy. The comment in objects/node.h has the rules. No other thread runs, except those of
 * pool_scan.c.
 */
#include "account.h"
#include "context.h"
#include "clock.h"
#include "commit_batch.h"
#include "dir_invalidate.h"
#include "file.h"
#include "folder.h"
#include "proof.h"
#include "ino.h"
#include "model.h"
#include "model_count.h"
#include "model_quota.h"
#include "log.h"
#include "membership.h"
#include "pin.h"
#include "pin_set.h"
#include "tenant_set.h"
#include "header_rewrite.h"
#include "remove.h"
#include "model_rescan.h"
#include "tier_queue.h"
#include "tmpfile.h"
#include "access.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#define CATALOG_LEAST (256ull << 20)

struct claims {
	struct kvc *k;
	unsigned tier;
	uint64_t *bad;
	size_t n, capacity;
};

static int claim(void *arg, uint64_t ino, const struct kvc_place *p)
{
	struct claims *c = arg;
	struct kvc_tier *t = c->k->tier[c->tier].t;
	int err = t->ops->claim ? t->ops->claim(t, &p->where) : 0;

	if (!err)
		return 0;
	if (err == -ENOMEM || kvc_grow(&c->bad, c->n, &c->capacity, sizeof *c->bad))
		return -ENOMEM;
	c->bad[c->n++] = ino;
	return 0;
}

static int claim_all(struct kvc *k, unsigned tier, char *error)
{
	struct claims c = { .k = k, .tier = tier };
	int err = kvc_place_each(k->cat, tier, claim, &c);

	if (err)
		snprintf(error, 512, "cannot read the placements of tier %s: %s",
			 k->tier[tier].t->ops->name, strerror(-err));
	for (size_t i = 0; i < c.n && !err; i++) {
		struct kvc_place left[KVC_TIERS];
		struct kvc_object_row o;

		kvc_warn("tier %s: the placement of inode %" PRIx64
			 " is not valid and is removed; run fsck.kvcachefs",
			 k->tier[tier].t->ops->name, c.bad[i]);
		kvc_count(&k->stats, corrupt);
		err = kvc_place_del(k->cat, c.bad[i], tier);
		err = err ?: kvc_object_get(k->cat, c.bad[i], &o);
		if (err == -ENOENT) {
			err = 0;
			continue;
		}
		err = err ?: kvc_place_get(k->cat, c.bad[i], left);
		o.lower = false;
		for (unsigned t = 0; t < KVC_TIERS && !err; t++)
			o.lower |= left[t].gen && left[t].gen == o.gen;
		err = err ?: kvc_object_put(k->cat, c.bad[i], &o);
	}
	free(c.bad);
	if (c.n)
		kvc_model_count_ask_locked(k);
	return err;
}

/* Drops a file without any copy; if it was the last of its chunk, the folder too. */
static int drop_lost(void *arg, uint64_t ino, const struct kvc_object_row *o)
{
	struct kvc *k = arg;
	struct kvc_node *n = kvc_node_find_locked(k, ino), *folder;
	uint64_t chunk;
	int err;

	(void)o;
	if (n && kvc_node_has_segment(n))
		return 0;
	err = kvc_node_get_both(k, ino, &n);
	if (err == -ENOENT)
		return kvc_row_del(k->cat, ino, NULL);
	if (err)
		return err;
	chunk = n->row.chunk;
	kvc_count(&k->stats, recovery_drops);
	if ((err = kvc_dir_drop_file_both(k, n, NULL)))
		return err;
	if (chunk != ino && !kvc_node_get_both(k, chunk, &folder)) {
		if (kvc_folder_empty_both(k, chunk) == 1)
			kvc_chunk_forget_both(k, chunk);
		kvc_dir_drop_folder_both(k, folder);
	}
	return 0;
}

static int64_t rank_row(struct kvc *k, const struct kvc_chunk_row *r)
{
	return kvc_chunk_rank_row(k, r);
}

static struct kvc *reranking; /* kvc_chunk_rerank passes no argument; recovery runs alone */
static int64_t rerank(const struct kvc_chunk_row *r)
{
	return rank_row(reranking, r);
}

/*
 * Reads how the previous daemon ended (*clean), and ranks all chunks again if the policy has
 * changed.
 */
static int read_last_end_both(struct kvc *k, bool *clean)
{
	char text[64], policy[64];
	uint64_t max;
	int is = kvc_meta_read(k->cat, "clean", text, sizeof text), err;

	snprintf(policy, sizeof policy, "%s",
		 kvc_policy_table[kvc_replacers_policy_of(k, KVC_CACHE_POOL, 0)].name);
	if (k->opt.disk_policy)
		snprintf(policy + strlen(policy), sizeof policy - strlen(policy), " %s",
			 kvc_policy_table[kvc_replacers_policy_of(k, KVC_CACHE_DISK, 0)].name);
	*clean = is == 1 && !strcmp(text, "1");
	is = is < 0 ? is : kvc_meta_read(k->cat, "policy", text, sizeof text);
	if (is < 0)
		return is;
	if (!is || strcmp(text, policy)) {
		reranking = k;
		if ((err = kvc_chunk_rerank(k->cat, rerank)
				   ?: kvc_meta_set(k->cat, "policy", policy)))
			return err;
	}
	/*
	 * After a kill, free space may contain frames that the catalog does not know; fsck removes
	 * them. A new store has none.
	 */
	is = kvc_meta_read(k->cat, "next_ino", text, sizeof text);
	if (is < 0 || (err = kvc_row_max(k->cat, &max)))
		return is < 0 ? is : err;
	if (!*clean && (max > KVC_ROOT || is))
		return kvc_meta_set(k->cat, "killed", "1");
	return 0;
}

/*
 * The default limit of the catalog. A file uses at least 4 KiB of the pool or 8 KiB of the disk and
 * about 1 KiB of the catalog, so a full pool and disk stay far below this limit. The number of
 * objects in remotes is not known.
 */
static uint64_t usage_limit(const struct kvc *k)
{
	if (k->opt.catalog_bytes || k->shared)
		return k->opt.catalog_bytes;
	return kvc_max((k->pool.bytes + k->pins->disk_size) / 2, CATALOG_LEAST);
}

static void sync_failed(void *arg)
{
	struct kvc *k = arg;

	kvc_pool_set_unsynced(&k->pool, true);
}

/*
 * If a sync of a device has failed in the mount of a killed daemon, its copies may exist in the
 * kernel's page cache only, and no later sync says so.
 */
static void watch_syncs(struct kvc *k)
{
	bool unsynced = kvc_pool_is_unsynced(&k->pool);

	kvc_tier_each(k, t) {
		struct kvc_tier *tier = k->tier[t].t;

		if (tier->ops->watch_syncs)
			tier->ops->watch_syncs(tier, unsynced, sync_failed, k);
	}
	if (unsynced)
		kvc_info("a sync of the disk tier has failed before this mount: an fsync, a flush "
			 "or an unmount copies the objects in the pool to the disk tier again");
}

int kvc_recover(struct kvc *k, char *error)
{
	uint64_t begun = kvc_mono_ns();
	bool clean, dropped = false;
	unsigned threads = 1;
	int err;

	kvc_replacers_load(k);
	kvc_lock_both(k);
	err = kvc_usage_start(k->cat, usage_limit(k));
	err = err ?: read_last_end_both(k, &clean) ?: kvc_clock_start_both(k);
	err = err ?: kvc_model_layers_load_both(k) ?: kvc_wear_load_both(k);
	err = err ?: kvc_inos_load_both(k, clean) ?: kvc_tmpfile_recover_both(k);
	err = err ?: kvc_chunk_drop_recover_both(k, &dropped);
	err = err ?: kvc_model_quotas_load_both(k, clean && !dropped);
	err = err ?: kvc_tenants_load_both(k, clean && !dropped);
	err = err ?: kvc_model_count_load_both(k, clean && !dropped);
	err = err ?: kvc_model_rescan_load_both(k);
	err = err ?: kvc_remove_recover_both(k) ?: kvc_proof_identity_start_both(k);
	err = err ?: kvc_meta_set(k->cat, "clean", "0") ?: kvc_pins_load_both(k);
	kvc_tier_each(k, t)
		if (!err && !(k->tier[t].t->ops->caps & KVC_TIER_SHARED))
			err = claim_all(k, t, error);
	if (!err) {
		kvc_catalog_still(k->cat, true);
		err = kvc_pool_scan_both(k, &threads, error);
		kvc_catalog_still(k->cat, false);
	}
	if (!err)
		watch_syncs(k);
	if (!err)
		err = kvc_object_each_unplaced(k->cat, drop_lost, k);
	if (!err)
		err = kvc_chunks_ready_locked(k);
	kvc_unlock_both(k);
	/*
	 * Brings the catalog to stable storage before the first request. Otherwise a loss of power
	 * could return it to the state of a clean end, and inode numbers would be assigned twice;
	 * or to the state before the last commit of a killed daemon, whose freed space is reused
	 * from here on.
	 */
	if (!err)
		err = kvc_commit_once(k) ?: kvc_catalog_sync(k->cat);
	if (err && !*error)
		snprintf(error, 512, "the catalog cannot be read or written: %s", strerror(-err));
	if (!err && kvc_counted(&k->stats, recovery_drops))
		kvc_info("%" PRIu64
			 " files were unfinished or had lost their only copy and are dropped",
			 kvc_counted(&k->stats, recovery_drops));
	if (!err && k->pool.warm)
		kvc_info("%" PRIu64 " objects are still in the pool (threads: %u, time: %.1f s)",
			 kvc_counted(&k->stats, recovered), threads,
			 (double)(kvc_mono_ns() - begun) / 1e9);
	return err;
}
