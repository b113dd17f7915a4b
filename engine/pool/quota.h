/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quotas of models: counted bytes, and the calls that wait for bytes. All under k->lock.
 * objects/account.h decides how many bytes a file is charged, objects/model_quota.h sets a quota,
 * and evict/quota_keeper.c frees bytes.
 */
#ifndef KVC_QUOTA_H
#define KVC_QUOTA_H

#include "caller.h"
#include "table.h"

#include <pthread.h>

struct kvc_quota {
	struct kvc_slot slot; /* in quotas.table, by model */
	struct kvc_list link, waiters;
	struct kvc_list press;       /* in quotas.waiting, in quotas.over, or in neither */
	uint64_t model, limit, used; /* limit and used in bytes */
	uint64_t serial;
	/*
	 * evict/quota_keeper.c: number of passes in a row that freed nothing, the time of the last
	 * one, and the commit that they wait for (0: none)
	 */
	unsigned stuck;
	uint64_t examined_ns, stuck_txn;
	bool trimming;
	/*
	 * objects/model_rescan.c: the model's files are being counted. Files up to `at` are
	 * counted; files from `below` on are new and count themselves
	 */
	bool counting;
	uint64_t at, below;
};

struct kvc_quotas {
	struct kvc_table table;
	struct kvc_list list; /* all struct kvc_quota */
	/*
	 * Models that should lose chunks: `waiting` has the models with waiters, `over` the others.
	 * A model stays in the list until the keeper examines it, even if it is no longer above its
	 * quota.
	 */
	struct kvc_list waiting, over;
	uint64_t serial;        /* serial number of the newest quota */
	pthread_cond_t pressed; /* a model is near or above its quota; the keeper waits for it */
};

/* Does a change of this file count now? If not, the rescan will count the file. */
static inline bool kvc_quota_counts(const struct kvc_quota *q, uint64_t ino)
{
	return !q->counting || ino <= q->at || ino >= q->below;
}

struct kvc_quota *kvc_quota_of_locked(struct kvc *k, uint64_t model);
/*
 * May the model grow by `bytes`? Returns 0, KVC_WAIT (the call is parked, and w keeps the granted
 * bytes) or -EDQUOT. kvc_account_quota_count_locked counts the actual growth; after that,
 * kvc_reservation_cancel_locked returns the granted bytes.
 */
int kvc_quota_get_locked(struct kvc *k, uint64_t model, uint64_t bytes, struct kvc_wait *w);
/* The same without waiting. */
int kvc_quota_allows_locked(struct kvc *k, uint64_t model, uint64_t bytes);
/*
 * Grants the bytes to w, so that no other call takes them while the lock is released. Does nothing
 * if w has a grant.
 */
void kvc_quota_reserve_locked(struct kvc *k, uint64_t model, uint64_t bytes, struct kvc_wait *w);
void kvc_quota_cancel_locked(struct kvc *k, struct kvc_wait *w);
/* Records that the bytes of the model's files have changed by `by`. */
void kvc_quota_changed_locked(struct kvc *k, struct kvc_quota *q, int64_t by);
/*
 * Returns how many bytes the model should lose now: enough to get from above high= down to low=,
 * and enough for the first waiter.
 */
uint64_t kvc_quota_wanted(const struct kvc *k, struct kvc_quota *q);
/* Grants free bytes to the waiters, in order. */
void kvc_quota_grant_locked(struct kvc *k, struct kvc_quota *q);
/*
 * If the model should lose bytes, puts it on the keeper's lists and wakes the keeper. Call it after
 * any change of used, limit or waiters that can increase what the model should lose.
 */
void kvc_quota_press_locked(struct kvc *k, struct kvc_quota *q);
/*
 * Checks the next few models in turn. A change of low= or high= thus reaches all models within
 * seconds, although one call does bounded work.
 */
void kvc_quotas_check_locked(struct kvc *k);
int kvc_quotas_init(struct kvc_quotas *q); /* Returns 0 or -ENOMEM. */
/*
 * Adds a quota; returns NULL if out of memory. The other function removes a quota and wakes its
 * waiters, which then ask again.
 */
struct kvc_quota *kvc_quota_add_locked(struct kvc *k, uint64_t model, uint64_t limit);
void kvc_quota_remove_locked(struct kvc *k, struct kvc_quota *q);
void kvc_quotas_free(struct kvc *k);
/*
 * Stores "limit used" in the catalog under KVC_QUOTA_KEY and the model's number. The caller holds
 * the catalog's lock, too.
 */
#define KVC_QUOTA_KEY "quota:"
int kvc_quota_save_both(struct kvc *k, const struct kvc_quota *q);

#endif
