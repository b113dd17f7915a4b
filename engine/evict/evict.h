/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who makes room: the evictor in the pool, the trimmers in the tiers, the keeper in the models.
 * Under k->lock.
 */
#ifndef KVC_EVICT_H
#define KVC_EVICT_H

#include "kvc.h"

struct kvc_chunk;
struct kvc_node;

struct kvc_evict {
	bool trimming; /* the pool was above high= and is not at low= yet */
	bool over;     /* the trimmers end: no copy is made any more */
	pthread_t keeper;
	bool has_keeper;
	uint64_t saved_txn; /* up to which the store's time is kept */
};

/* evict.c: the thread, until k->stopping. */
void *kvc_evictor(void *arg);
/*
 * The first of its nodes goes to the end: so a walk of them can let others in, which change the
 * list.
 */
struct kvc_node *kvc_evict_turn_locked(struct kvc_chunk *c);
/*
 * Calls fn for each node of the chunk that has a segment, until fn returns true: returns whether it
 * did, and that node is the first of the next walk. Gives the lock back after every few nodes; the
 * caller keeps the chunk in memory.
 */
typedef bool kvc_evict_node_fn(struct kvc *k, struct kvc_node *n, void *arg);
bool kvc_evict_walk_locked(struct kvc *k, struct kvc_chunk *c, kvc_evict_node_fn *fn, void *arg);
/*
 * It has a copy that counts, and nobody has it in hand: nor has since kvc_evict_mapped looked, when
 * it was closed here.
 */
bool kvc_evict_may_leave(const struct kvc *k, const struct kvc_node *n);
/*
 * Has a client one of its files mapped? The lock is let go in between; the caller keeps the chunk
 * in memory.
 */
bool kvc_evict_mapped(struct kvc *k, struct kvc_chunk *c);

/* trim.c */
int kvc_trim_start(struct kvc *k);
void kvc_trim_stop(struct kvc *k); /* after the last copy */

/*
 * The same for a model above its quota: who goes by the order of its policy, on disk where that has
 * one of its own, and wherever they are. NULL: out of memory. One thread has it.
 */
struct kvc_trimmer;
struct kvc_trimmer *kvc_trimmer_new(struct kvc *k, uint64_t model);
/* Those that it had put aside are as they were. */
void kvc_trimmer_free(struct kvc_trimmer *t);
uint64_t kvc_trimmer_model(const struct kvc_trimmer *t);
/*
 * One turn: so many bytes are to go. Did any? Else all that is left is to wait, or, without
 * *hopeful, what is there of the model stays.
 */
bool kvc_trimmer_turn(struct kvc_trimmer *t, uint64_t goal, bool *hopeful);

/* quota_keeper.c */
int kvc_keeper_start(struct kvc *k);
void kvc_keeper_stop(struct kvc *k); /* after k->stopping was set */

#endif
