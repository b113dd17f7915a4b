/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounds on what the files of a model take: bytes that are counted, and who waits for some. All
 * under k->lock. What a file counts is objects/account.h's, who sets a bound
 * objects/model_quota.h's, and who makes room evict/quota_keeper.c.
 */
#ifndef KVC_QUOTA_H
#define KVC_QUOTA_H

#include "caller.h"
#include "table.h"

#include <pthread.h>

struct kvc_quota {
	struct kvc_slot slot; /* in quotas.table, by model */
	struct kvc_list link, waiters;
	struct kvc_list press;       /* in quotas.waiting, quotas.over, or neither */
	uint64_t model, limit, used; /* bytes */
	uint64_t serial;
	/*
	 * evict/quota_keeper.c: looks in vain, the last of them, and the commit they wait for (0:
	 * none)
	 */
	unsigned stuck;
	uint64_t looked_ns, stuck_txn;
	bool trimming;
	/*
	 * objects/model_rescan.c: its files are being counted; those up to `at` were, and those
	 * from `below` on are new
	 */
	bool counting;
	uint64_t at, below;
};

struct kvc_quotas {
	struct kvc_table table;
	struct kvc_list list; /* struct kvc_quota, all */
	/*
	 * Models that should lose something: those with waiters, and the others. One whose bytes no
	 * longer exceed its bound stays until the keeper looks at it.
	 */
	struct kvc_list waiting, over;
	uint64_t serial;        /* of the newest */
	pthread_cond_t pressed; /* one is near or over its bound: the keeper's */
};

/* Does a change of this file count now? Else the survey will come to it. */
static inline bool kvc_model_rescan_counts(const struct kvc_quota *q, uint64_t ino)
{
	return !q->counting || ino <= q->at || ino >= q->below;
}

struct kvc_quota *kvc_quota_of_locked(struct kvc *k, uint64_t model);
/*
 * May the model grow by so many bytes? 0, KVC_WAIT (parked; w keeps what is granted) or -EDQUOT.
 * The growth itself is counted by kvc_account_quota_count_locked; kvc_reservation_cancel_locked
 * then gives back what was granted.
 */
int kvc_quota_get_locked(struct kvc *k, uint64_t model, uint64_t bytes, struct kvc_wait *w);
/* The same without waiting. */
int kvc_quota_allows_locked(struct kvc *k, uint64_t model, uint64_t bytes);
/*
 * They may, and are counted as granted to w: nobody else has them while the lock is let go. Nothing
 * where it has a grant.
 */
void kvc_quota_reserve_locked(struct kvc *k, uint64_t model, uint64_t bytes, struct kvc_wait *w);
void kvc_quota_cancel_locked(struct kvc *k, struct kvc_wait *w);
/* What the model's files take has grown, or become less. */
void kvc_quota_changed_locked(struct kvc *k, struct kvc_quota *q, int64_t by);
/*
 * How much the model should lose now: from above high= down to low=, and what the first wait needs.
 */
uint64_t kvc_quota_wanted(const struct kvc *k, struct kvc_quota *q);
/* Gives those who wait what there is. */
void kvc_quota_grant_locked(struct kvc *k, struct kvc_quota *q);
/*
 * If the model should lose something, puts it on the keeper's lists and wakes the keeper. Call
 * after any change of used, limit or waiters that can only increase what it should lose.
 */
void kvc_quota_press_locked(struct kvc *k, struct kvc_quota *q);
/*
 * Checks the next few models in turn, so that a change of low= or high= reaches all of them within
 * some seconds although one call does bounded work.
 */
void kvc_quotas_look_locked(struct kvc *k);
int kvc_quotas_init(struct kvc_quotas *q); /* 0 or -ENOMEM */
/* A new bound (NULL: out of memory), and the end of one: who waits for it asks again. */
struct kvc_quota *kvc_quota_add_locked(struct kvc *k, uint64_t model, uint64_t limit);
void kvc_quota_remove_locked(struct kvc *k, struct kvc_quota *q);
void kvc_quotas_free(struct kvc *k);
/*
 * Writes it down: "limit used" under KVC_QUOTA_KEY and the model's number. With the catalog's lock.
 */
#define KVC_QUOTA_KEY "quota:"
int kvc_quota_save_both(struct kvc *k, const struct kvc_quota *q);

#endif
