/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that free space: the evictor (the pool), the trimmers (tiers) and the quota keeper
 * (models). Callers of ..._locked functions hold k->lock.
 */
#ifndef KVC_EVICT_H
#define KVC_EVICT_H

#include "kvc.h"

struct kvc_chunk;
struct kvc_node;

struct kvc_evict {
	bool trimming; /* the pool was above high= and has not reached low= yet */
	bool over;     /* the trimmers stop: no copies are made any more */
	pthread_t keeper;
	bool has_keeper;
	uint64_t saved_txn; /* the transaction with which the store's clock was last saved */
};

/* evict.c. The evictor's thread; arg is the struct kvc. Returns when k->stopping is set. */
void *kvc_evictor(void *arg);

/* trim.c: starts a thread for each bounded tier. Returns 0 or a negative errno. */
int kvc_trim_start(struct kvc *k);
void kvc_trim_stop(struct kvc *k); /* after the last copy */

/*
 * trimmer.c. A trimmer of a tier (model 0), or of a model or tenant above its quota; then `tier` is
 * 0. It chooses victims by the disk tier's replacer if the policy has one, and by the catalog's
 * ranks otherwise. For a tier, it removes the copies there, and drops chunks that exist nowhere
 * else. For a model or tenant, it drops whole chunks. NULL: out of memory. Only one thread may use
 * a trimmer.
 */
#define KVC_TRIM_TENANT (1ull << 63) /* set in `model`: it is the number of a tenant */
struct kvc_trimmer;
struct kvc_trimmer *kvc_trimmer_new(struct kvc *k, unsigned tier, uint64_t model);
/* Frees a trimmer. Chunks that it excluded can be victims again. */
void kvc_trimmer_free(struct kvc_trimmer *t);
uint64_t kvc_trimmer_model(const struct kvc_trimmer *t);
/*
 * While its replacer is being filled, a tier without victims is not reported as one with nothing to
 * drop.
 */
void kvc_trimmer_set_filling(struct kvc_trimmer *t, bool filling);
/* Returns true if chunks were probed, which the next turns will drop. */
bool kvc_trimmer_is_probing(const struct kvc_trimmer *t);
/*
 * Returns true if it frees space for the disk tier itself, and not for a model's or tenant's quota.
 */
bool kvc_trimmer_is_of_disk(const struct kvc_trimmer *t);
/* No space is needed for now: the probed chunks may stay. */
void kvc_trimmer_rest(struct kvc_trimmer *t);
/*
 * Makes one turn to free `goal` bytes. Returns true if it freed any. Otherwise, *hopeful tells
 * whether a later turn may free some; if it is false, all its chunks stay.
 */
bool kvc_trimmer_turn(struct kvc_trimmer *t, uint64_t goal, bool *hopeful);
/* An unmount begins: chunks that could not be dropped until now may be dropped. */
void kvc_trimmers_hope_locked(struct kvc *k);

/* quota_keeper.c: starts the thread. Returns 0 or a negative errno. */
int kvc_quota_keeper_start(struct kvc *k);
void kvc_quota_keeper_stop(struct kvc *k); /* after k->stopping was set */

#endif
