/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sweeps (sweep.c): long operations that an operator starts through .kvcachefs/control. One sweep
 * runs at a time, in its own thread. import.c, rekey.c, flush.c and verify.c contain one sweep
 * each; devices.c contains four. All results are in the catalog and the superblock, so an
 * interrupted sweep is simply started again.
 */
#ifndef KVC_SWEEP_H
#define KVC_SWEEP_H

#include "cache.h"
#include "node.h"

#define KVC_SWEEP_BATCH 64 /* items read at once, or processed under one hold of the locks */

struct kvc_sweep {
	struct kvc *k;
	pthread_t thread;
	const struct kvc_sweep_kind *kind;
	uint64_t number; /* the time of the start; unique */
	_Atomic bool stop, done;
	/*
	 * Counters of items: `seen` counts all of them. Only flush and verify count in tier_failed,
	 * which holds the failures in each tier. In verify, `changed` counts the damaged copies,
	 * and tier_failed includes them.
	 */
	_Atomic uint64_t seen, changed, failed, tier_failed[KVC_TIERS];
	_Atomic uint64_t bytes, all_bytes; /* processed, and total (0: unknown) */
	/* verify and remove: discarded copies that were the last of a file */
	_Atomic uint64_t lost;
	/* verify: copies in shared tiers that other nodes have replaced; they are kept */
	_Atomic uint64_t replaced;
	/* remove: chunks that were evicted from a tier for lack of space during the sweep */
	_Atomic uint64_t evicted;
	int err;
	/* message for the user, written before `done`; empty: err describes the failure */
	char why[512];
	/* verify only: */
	unsigned tiers; /* tiers to read; one bit per tier */
	uint64_t rate;  /* bytes per second; 0: no limit */
	/* grow, add, remove and stay only: */
	struct kvc_device device; /* as the user gave it; size: bytes, a multiple of a page */
	bool force;
};

/*
 * kvc_sweep_begin starts the sweep with this name. kvc_sweep_end asks the running sweep to stop if
 * it has this name. Both return as kvc_control does.
 */
int kvc_sweep_begin(struct kvc *k, const char *name, char *words, FILE *answer);
int kvc_sweep_end(struct kvc *k, const char *name);
/*
 * Stops the running sweep at the end of a mount, and waits at most deadline= for its thread. If the
 * thread does not end, detaches it and counts it in k->work->left. The caller has set k->stopping.
 */
void kvc_sweep_stop(struct kvc *k);

/* Lets the thread of a sweep wait for a call that returned KVC_WAIT. */
struct kvc_sweeper {
	struct kvc_wait w;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool woken;
};
/* Initializes x. To be called before each function call that may park x->w. */
void kvc_sweeper_init(struct kvc_sweeper *x);
/*
 * After a call has parked x->w: waits until x->w is woken, and returns x->w.err. The caller holds
 * no lock.
 */
int kvc_sweeper_wait(struct kvc_sweeper *x);

/*
 * Waits until all placements so far are committed, because kvc_place_next reads only committed
 * rows. Returns 0, or -EIO if a commit failed. If the sweep is asked to stop, returns 0 at once.
 */
int kvc_sweeper_commit(struct kvc_sweep *s);
/*
 * Calls fn for all committed placements until the sweep stops. A nonzero result of fn ends the walk
 * and is returned. The caller holds no lock.
 */
int kvc_sweeper_each_placed(struct kvc_sweep *s,
			    int (*fn)(struct kvc_sweep *s, const struct kvc_placed *p, void *arg),
			    void *arg);

/* Run a sweep. Return 0, or a negative errno if it could not begin or complete. */
int kvc_import_run(struct kvc_sweep *s);
int kvc_rekey_run(struct kvc_sweep *s);
int kvc_flush_run(struct kvc_sweep *s);
int kvc_verify_run(struct kvc_sweep *s);
/* Change the devices of the store (devices.c). */
int kvc_devices_grow(struct kvc_sweep *s);
int kvc_devices_add(struct kvc_sweep *s);
int kvc_devices_remove(struct kvc_sweep *s);
int kvc_devices_stay(struct kvc_sweep *s);
/*
 * Parses the arguments of the sweeps in devices.c: "KIND SIZE FORCE PATH", where PATH is the rest
 * of the line.
 */
int kvc_devices_words(struct kvc_sweep *s, char *words, FILE *answer);
/* Parses the arguments of verify: "tier=NAME", "rate=SIZE". */
int kvc_verify_words(struct kvc_sweep *s, char *words, FILE *answer);

#endif
