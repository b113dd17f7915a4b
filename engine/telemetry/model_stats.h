/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of each model: counters since the start, and the bytes of its files in the pool. All
 * under k->lock.
 *
 * Up to KVC_MODEL_STATS_MAX recently used models have statistics of their own. When a model's
 * statistics are removed to make room for another model's, they are added to `others`, so that the
 * sums stay correct. A model with bytes in the pool keeps its statistics.
 *
 * The KVC_TOP_MODELS models that were asked for most are shown individually. The others are shown
 * as one sum.
 */
#ifndef KVC_MODEL_STATS_H
#define KVC_MODEL_STATS_H

#include "node.h"

#define KVC_MODEL_STATS_MAX 10000
#define KVC_TOP_MODELS 100u /* models that are shown individually */

/*      name         what one count is */
#define KVC_MODEL_STATS(X)                                         \
	X(hits, "opens answered from the pool")                    \
	X(misses, "opens that waited for a load")                  \
	X(creates, "files created")                                \
	X(loads, "objects loaded into the pool")                   \
	X(load_bytes, "bytes loaded into it")                      \
	X(spills, "objects written to a tier")                     \
	X(spill_bytes, "bytes written to a tier")                  \
	X(found, "chunks that clients asked for and found")        \
	X(absent, "names that clients asked for and did not find") \
	X(pool_bytes, "bytes that its files have in the pool now")

/*
 * The usage of a model's files (model_use.h): the number of files, the bytes that a quota charges
 * for them, and the bytes of their copies in each tier.
 */
struct kvc_model_use {
	uint64_t files, bytes, tier[KVC_TIERS];
};

/* The shown counts of requests, of opens and of chunks that left the pool or a tier. */
struct kvc_opens {
	uint64_t hits, misses, found, absent;
	uint64_t evicted[KVC_REASONS_N]; /* chunks, by enum kvc_reason */
};

struct kvc_model_stats {
	struct kvc_slot slot; /* by model; 0: files in the root */
	uint64_t last;        /* number of its last use, in the sequence of all uses */
#define X(name, what) uint64_t name;
	KVC_MODEL_STATS(X)
#undef X
	/* chunks that left the pool or a tier, by enum kvc_reason */
	uint64_t evicted[KVC_REASONS_N];
	struct kvc_model_use use;
	bool owns; /* `use` has all files of the model; false: others.use has them */
	bool shown;
	struct kvc_opens before; /* values when it began to be shown */
	/* `last` at the time when the model was found to have no name; 0: it has one */
	uint64_t nameless;
};

struct kvc_model_stats_table {
	struct kvc_table table;
	struct kvc_model_stats **v, others;
	size_t n, capacity, hand;
	unsigned shown;
	uint64_t uses;
	/* sums of all models */
	struct kvc_model_use all_use;
	uint64_t all_evicted[KVC_REASONS_N];
	/*
	 * A count of all files (model_use.c). again: memory was short, and another count is needed.
	 * txn: the count begins after this transaction, which has all inodes below `below`.
	 */
	struct {
		bool running, again;
		uint64_t at, below, txn;
		struct kvc_table early;
	} count;
	/* folders that moved to another model (model_moves.c) */
	struct kvc_model_moves {
		struct kvc_list list; /* struct kvc_model_move */
		unsigned n, under_way;
		size_t pages;
		bool failed; /* memory was short: all files must be counted again */
	} moves;
};
/* Returns 0 or -ENOMEM. */
int kvc_model_stats_init(struct kvc *k);

/* Returns true if nothing is used. */
static inline bool kvc_model_use_none(const struct kvc_model_use *u)
{
	uint64_t any = u->files | u->bytes;

	for (unsigned t = 0; t < KVC_TIERS; t++)
		any |= u->tier[t];
	return !any;
}

/* Adds u to `to`, or subtracts it (less). */
static inline void kvc_model_use_change(struct kvc_model_use *to, const struct kvc_model_use *u,
					bool less)
{
	uint64_t sign = less ? UINT64_MAX : 1;

	to->files += sign * u->files;
	to->bytes += sign * u->bytes;
	for (unsigned t = 0; t < KVC_TIERS; t++)
		to->tier[t] += sign * u->tier[t];
}

/*
 * Returns the statistics in which to count a use of this model. The pointer is valid while the lock
 * is held.
 */
struct kvc_model_stats *kvc_model_stats_of_locked(struct kvc *k, uint64_t model);
#define kvc_model_stats_locked(k, model, name) (kvc_model_stats_of_locked(k, model)->name++)
/* Counts a load or spill of this many bytes; `what` is the word load or spill. */
#define kvc_model_stats_bytes_locked(k, model, what, bytes)                           \
	do {                                                                          \
		struct kvc_model_stats *tally_ = kvc_model_stats_of_locked(k, model); \
		tally_->what##s++;                                                    \
		tally_->what##_bytes += (bytes);                                      \
	} while (0)
/*
 * Clients found, or did not find, this many of the chunks that they asked for (`found`, `absent`).
 * Counts them in the totals too, of which the models' numbers are parts.
 */
void kvc_model_stats_found_locked(struct kvc *k, uint64_t model, uint64_t n);
void kvc_model_stats_absent_locked(struct kvc *k, uint64_t model, uint64_t n);
/*
 * Counts one absent chunk, in a joint hold. Returns false if nothing was counted, because the
 * model has no statistics yet.
 */
bool kvc_model_stats_absent_joint(struct kvc *k, uint64_t model);
/* A chunk of the model left the pool or a tier, or was dropped. */
void kvc_model_stats_evicted_locked(struct kvc *k, uint64_t model, enum kvc_reason why);
/* Copies these numbers, by reason. */
void kvc_model_stats_evicted_get_locked(const struct kvc *k, uint64_t model,
					uint64_t evicted[KVC_REASONS_N]);
/* Adds the counters of t, and what its files use, to those of `to`. */
void kvc_model_stats_add(struct kvc_model_stats *to, const struct kvc_model_stats *t);
/* Called after the node's bytes in the pool, state or model may have changed. */
void kvc_model_stats_pool_bytes_locked(struct kvc *k, struct kvc_node *n);
/*
 * Copies up to `capacity` statistics from position *at (0 at first) on, and advances it. Returns
 * their number; 0: no more. The first of all is `others`, with the model KVC_UNSET. The lock may be
 * released between two calls: a model that exists all the time is returned once.
 */
size_t kvc_model_stats_show_locked(struct kvc *k, size_t *at, struct kvc_model_stats *to,
				   size_t capacity);
/* At unmount, after the nodes. */
void kvc_model_stats_free(struct kvc *k);

/* Subtracts the numbers of n. */
void kvc_model_stats_subtract(struct kvc_opens *from, const struct kvc_opens *n);

struct kvc_top_models {
	char name[256];
	uint64_t model;
	struct kvc_opens n, total; /* n: since the model began to be shown */
	uint64_t pool_bytes;
	struct kvc_model_use use;
	bool use_known;             /* false: `use` is not known, because others.use has it too */
	uint64_t quota, quota_used; /* quota 0: it has none */
};
struct kvc_top_models_list {
	struct kvc_top_models *v; /* most asked first; from malloc */
	size_t n, models;         /* models: number of models that were asked for a chunk */
	/* all: of all models. rest: `all` without the n of each model; it never decreases */
	struct kvc_opens all, rest;
	uint64_t rest_pool_bytes;
	/* all files are counted; false: `use` is not known for any model */
	bool counted;
	struct kvc_model_use all_use, rest_use;
};
/*
 * Chooses the models to show and returns their figures. Takes the locks for short times. Returns 0
 * or -ENOMEM; the caller frees out->v.
 */
int kvc_top_models(struct kvc *k, struct kvc_top_models_list *out);
/*
 * Copies the name of a model's folder to name[256]. Returns 1, 0 (it has no name), or a negative
 * errno if it cannot be read now.
 */
int kvc_top_models_name(struct kvc *k, uint64_t model, char *name);

#endif
