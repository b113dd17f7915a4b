/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sweeps (sweep.c): long work that somebody asked for by .kvcachefs/control, in a thread of its
 * own, one at a time. Each has a file: import.c, rekey.c, flush.c and verify.c. What it does is in
 * the catalog, so one that was cut off is simply begun again.
 */
#ifndef KVC_SWEEP_H
#define KVC_SWEEP_H

#include "cache.h"
#include "node.h"

#define KVC_SWEEP_BATCH 64 /* of what is looked at under one hold */

struct kvc_sweep {
	struct kvc *k;
	pthread_t thread;
	const struct kvc_sweep_kind *kind;
	_Atomic bool stop, done;
	/* all of them, those of which something came, and those that failed, by tier too */
	_Atomic uint64_t seen, changed, failed, tier_failed[KVC_TIERS];
	_Atomic uint64_t bytes, all_bytes; /* done, and to be done (0: nobody knows) */
	_Atomic uint64_t lost;             /* verify: that were the last copy of a file */
	int err;
	char why[512]; /* a line for people, written before `done`; empty: err says it */
	/* verify: */
	unsigned tiers; /* bit per tier */
	uint64_t rate;  /* bytes a second; 0: no bound */
};

/* Begins one, and ends the one of this name (sweep.c); as kvc_control. */
int kvc_sweep_begin(struct kvc *k, const char *name, char *words, FILE *answer);
int kvc_sweep_end(struct kvc *k, const char *name);

/* Where somebody waits for a sweep's own calls of what others answer. */
struct kvc_sweeper {
	struct kvc_wait w;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool woken;
};
void kvc_sweeper_init(struct kvc_sweeper *x);
/* It was parked by x->w, and no lock is held: until it is woken. Gives x->w.err. */
int kvc_sweeper_wait(struct kvc_sweeper *x);

/*
 * All placements of before are where kvc_place_next finds them. The committer does that: only it
 * knows the rows that belong to the names which are in the overlay. 0 or -EIO.
 */
int kvc_sweeper_commit(struct kvc_sweep *s);

/* 0, or why it could not be done at all, or not to its end. */
int kvc_import_run(struct kvc_sweep *s);
int kvc_rekey_run(struct kvc_sweep *s);
int kvc_flush_run(struct kvc_sweep *s);
int kvc_verify_run(struct kvc_sweep *s);
/* Takes verify's words: "tier=NAME", "rate=SIZE". */
int kvc_verify_words(struct kvc_sweep *s, char *words, FILE *answer);

#endif
