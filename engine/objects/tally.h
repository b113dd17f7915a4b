/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done with each model's files, since the start, and what it has of the pool. All under
 * k->lock.
 *
 * There is a tally for each model that was used of late, up to KVC_TALLIES; what goes for a newer
 * one is added to `others`, so the sums stay those of all. A tally with bytes in the pool stays.
 */
#ifndef KVC_TALLY_H
#define KVC_TALLY_H

#include "node.h"

#define KVC_TALLIES 10000
#define KVC_SHOWN 100u /* that are shown one by one (shown.h) */

/*      name         what one count is */
#define KVC_TALLY(X)                              \
	X(hits, "opens answered from the pool")   \
	X(misses, "opens that waited for a load") \
	X(creates, "files created")               \
	X(loads, "objects loaded into the pool")  \
	X(load_bytes, "bytes loaded into it")     \
	X(spills, "objects written to a tier")    \
	X(spill_bytes, "bytes written to a tier") \
	X(pool_bytes, "bytes that its files have in the pool now")

struct kvc_tally {
	struct kvc_slot slot; /* by model; 0: files in the root */
	uint64_t last;        /* which of all uses was its last */
#define X(name, what) uint64_t name;
	KVC_TALLY(X)
#undef X
	bool shown;
	uint64_t hits_before, misses_before; /* it is shown */
	uint64_t nameless;                   /* had no name as of that use; 0: not so */
};

struct kvc_tallies {
	struct kvc_table table;
	struct kvc_tally **v, others;
	size_t n, room, hand;
	unsigned shown;
	uint64_t uses;
};

/* The tally to count a use of this model in; it stays there as long as the lock is held. */
struct kvc_tally *kvc_tally_of_locked(struct kvc *k, uint64_t model);
#define kvc_tally_locked(k, model, name) (kvc_tally_of_locked(k, model)->name++)
/* A load or a spill: what: that word. */
#define kvc_tally_bytes_locked(k, model, what, bytes)                     \
	do {                                                              \
		struct kvc_tally *tally_ = kvc_tally_of_locked(k, model); \
		tally_->what##s++;                                        \
		tally_->what##_bytes += (bytes);                          \
	} while (0)
/* Adds one to another, but for its model. */
void kvc_tally_add(struct kvc_tally *to, const struct kvc_tally *t);
/* The node's room, state or model may have changed. */
void kvc_tally_room_locked(struct kvc *k, struct kvc_node *n);
/*
 * Copies of up to `room` of them from *at (0 at first) on, which it moves; 0: there are no more.
 * The first of all is what was forgotten, whose model is KVC_UNSET. With pauses in between, one
 * that is there all the time comes once.
 */
size_t kvc_tallies_show_locked(struct kvc *k, size_t *at, struct kvc_tally *to, size_t room);
/* At the end, after the nodes. */
void kvc_tallies_free(struct kvc *k);

#endif
