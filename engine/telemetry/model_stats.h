/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done with each model's files, since the start, and what it has of the pool. All under
 * k->lock.
 *
 * There is a tally for each model that was used of late, up to KVC_MODEL_STATS_MAX; what goes for a
 * newer one is added to `others`, so the sums stay those of all. A tally with bytes in the pool
 * stays.
 */
#ifndef KVC_MODEL_STATS_H
#define KVC_MODEL_STATS_H

#include "node.h"

#define KVC_MODEL_STATS_MAX 10000
#define KVC_TOP_MODELS 100u /* that are shown one by one (top_models.h) */

/*      name         what one count is */
#define KVC_MODEL_STATS(X)                        \
	X(hits, "opens answered from the pool")   \
	X(misses, "opens that waited for a load") \
	X(creates, "files created")               \
	X(loads, "objects loaded into the pool")  \
	X(load_bytes, "bytes loaded into it")     \
	X(spills, "objects written to a tier")    \
	X(spill_bytes, "bytes written to a tier") \
	X(pool_bytes, "bytes that its files have in the pool now")

struct kvc_model_stats {
	struct kvc_slot slot; /* by model; 0: files in the root */
	uint64_t last;        /* which of all uses was its last */
#define X(name, what) uint64_t name;
	KVC_MODEL_STATS(X)
#undef X
	bool shown;
	uint64_t hits_before, misses_before; /* it is shown */
	uint64_t nameless;                   /* had no name as of that use; 0: not so */
};

struct kvc_model_stats_table {
	struct kvc_table table;
	struct kvc_model_stats **v, others;
	size_t n, capacity, hand;
	unsigned shown;
	uint64_t uses;
};

/* The tally to count a use of this model in; it stays there as long as the lock is held. */
struct kvc_model_stats *kvc_model_stats_of_locked(struct kvc *k, uint64_t model);
#define kvc_model_stats_locked(k, model, name) (kvc_model_stats_of_locked(k, model)->name++)
/* A load or a spill: what: that word. */
#define kvc_model_stats_bytes_locked(k, model, what, bytes)                           \
	do {                                                                          \
		struct kvc_model_stats *tally_ = kvc_model_stats_of_locked(k, model); \
		tally_->what##s++;                                                    \
		tally_->what##_bytes += (bytes);                                      \
	} while (0)
/* Adds one to another, but for its model. */
void kvc_model_stats_add(struct kvc_model_stats *to, const struct kvc_model_stats *t);
/* The node's room, state or model may have changed. */
void kvc_model_stats_pool_bytes_locked(struct kvc *k, struct kvc_node *n);
/*
 * Copies of up to `capacity` of them from *at (0 at first) on, which it moves; 0: there are no
 * more. The first of all is what was forgotten, whose model is KVC_UNSET. With pauses in between,
 * one that is there all the time comes once.
 */
size_t kvc_model_stats_show_locked(struct kvc *k, size_t *at, struct kvc_model_stats *to,
				   size_t capacity);
/* At the end, after the nodes. */
void kvc_model_stats_free(struct kvc *k);

#endif
