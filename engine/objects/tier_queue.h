/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tiers: their job queues and worker threads (tier_queue.c), and their circuit breakers
 * (frames/breaker.h). All under k->lock.
 */
#ifndef KVC_TIER_QUEUE_H
#define KVC_TIER_QUEUE_H

#include "breaker.h"
#include "node.h"
#include "store.h"
#include "wear.h"

#define KVC_WORKERS 8        /* threads of a shared tier */
#define KVC_THREADS_MAX 64   /* maximum number of threads of a tier */
#define KVC_COMMON KVC_TIERS /* the queue of jobs that belong to no tier */

#define KVC_AGAINS 8 /* the number of delays of a failing copy: 1 s, 2 s, 4 s, ... 128 s */

enum kvc_priority {
	KVC_P_LOAD = 0,
	KVC_P_PREFETCH = 1,
	KVC_P_REMOVE = 2,
	KVC_P_REMOVE_AGAIN = 3, /* removals that failed or that the breaker refused */
	KVC_P_URGENT = 4,
	/*
	 * copies that the tier or its breaker refused, and failed copies that are retried now; made
	 * when the breaker allows writes
	 */
	KVC_P_PARKED = 5,
	/* copies that failed: one list for each number of failures, in order of their due time */
	KVC_P_AGAIN = 6,
	KVC_P_SPILL = KVC_P_AGAIN + KVC_AGAINS,
	KVC_PRIORITIES = KVC_P_SPILL + 1
};

enum kvc_set_aside { KVC_ASIDE_LOAD, KVC_ASIDE_OTHER, KVC_ASIDE_REMOVE, KVC_ASIDE };

struct kvc_job {
	struct kvc_list link;
	void (*run)(struct kvc *k, struct kvc_job *j);
	struct kvc_node *node; /* referenced while the job exists; or NULL */
	unsigned tier;
	enum kvc_priority priority; /* the queue that it is on */
	uint64_t due_ns;            /* not to run before this time; ignored for parked copies */
	/* a copy that was made urgent: the time until which it was to wait; or 0 */
	uint64_t wait_ns;
	/* a load: a bit for each tier that failed, and for each that had a bad copy */
	unsigned tried, bad;
	unsigned tries; /* a removal: number of failures of the tier */
	bool uncounted; /* a removal: its bytes are no longer counted in deferred.bytes */
	int err;        /* a load: error of the last attempt */
	bool prefetch;  /* a load for which no call waited when it was requested */
	bool at_place;  /* it calls the tier about the node's copy there, or about `where` */
	struct kvc_where where;
	struct kvc_sum sum; /* a removal from a shared tier: only of this version, */
	uint64_t ino;       /* only of this object, */
	uint64_t copy;      /* and only of this generation stored by this node; 0: any */
};

/*
 * A tier with its queues, threads and circuit breaker. Each part is written by the file that its
 * comment names; all other files only read it (tests/mounted/source/writers.py).
 */
struct kvc_tier_state {
	struct kvc *k;
	struct kvc_tier *t; /* NULL: the slot is empty, or this is the common queue */
	/* Written by objects/tier_queue.c. */
	struct {
		struct kvc_list jobs[KVC_PRIORITIES];
		/*
		 * the disk tier: jobs that wait until a thread leaves their device, by its number:
		 * awaited loads, other jobs, and removals
		 */
		struct kvc_list aside[KVC_DEVICES][KVC_ASIDE];
		/* wakes the threads that take all jobs, and the one that takes no copies */
		pthread_cond_t cond, load_cond;
		bool load_idle;     /* the thread that takes no copies sleeps */
		unsigned ncopies;   /* copies queued as KVC_P_PARKED or with a lower priority */
		unsigned nfailed;   /* those of them that have failed */
		unsigned nremovals; /* removals queued in KVC_P_REMOVE_AGAIN */
	} queue;
	/* Written by objects/tier_queue.c. */
	struct {
		unsigned wanted, started;
		pthread_t ids[KVC_THREADS_MAX];
		/*
		 * the time by which each thread's current call should return; 0: it is in no call
		 * that may hang
		 */
		uint64_t overdue_ns[KVC_THREADS_MAX];
		bool stuck;         /* a call is overdue, and that was logged */
		unsigned running;   /* jobs that run */
		unsigned removing;  /* those of them that are removals */
		unsigned abandoned; /* threads that never returned from the tier */
	} threads;
	/* Written by objects/tier_queue.c. The names in a shared tier that are being changed. */
	struct {
		struct kvc_where of[KVC_WORKERS];
		unsigned n;
	} locked_names;
	/* Written by objects/tier_queue.c. */
	struct kvc_breaker breaker;
	/* Written by objects/tier_queue.c. Retries of all failed copies after a success. */
	struct {
		bool copy_failed; /* a copy failed since the last such retry */
		bool copy_stored; /* a copy was stored since then, and since the last failure */
		/* the next retry is allowed from at_ns on; wait_ns is the pause between two */
		uint64_t at_ns, wait_ns;
	} retry;
	/* Written by objects/tier_queue.c. Space that copies need. */
	struct {
		bool full; /* the trimmed tier refused a frame for lack of space */
		/*
		 * a copy that failed with ENOSPC waits for its next try, perhaps for minutes: it is
		 * retried when space is freed
		 */
		bool awaited;
		/*
		 * the length of a refused frame that is being retried, and when the tier stops
		 * making space for it
		 */
		uint64_t refused_bytes, refused_until_ns;
		uint64_t unsignalled;     /* bytes stored since the trimmer was last woken */
		pthread_cond_t trim_cond; /* wakes the trimmer */
	} space;
	/* Written by objects/deferred_free.c. */
	struct {
		uint64_t bytes;    /* bytes of frames that wait to be removed */
		uint64_t unsynced; /* those that wait for a sync */
	} deferred;
	/* Written by evict/trim.c. */
	struct {
		pthread_t thread;
		bool exists;    /* the tier has a trimmer */
		bool active;    /* it frees space down to low= */
		uint64_t spare; /* bytes that are free above high= */
	} trim;
	/* A complete walk found nothing to drop. Written by evict/trimmer.c. */
	bool nothing_to_drop;
	/* Written by limits/wear.c. */
	struct kvc_wear wear;
};

struct kvc_work {
	unsigned running, queued; /* jobs of all queues */
	bool over;                /* queued jobs are not run any more */
	/*
	 * at unmount: threads that never returned from a tier; memory that they use must not be
	 * freed
	 */
	unsigned left;
};

/* Loops over the mounted tiers: nr is the number of each. */
#define kvc_tier_each(k, nr)                        \
	for (unsigned nr = 0; nr < KVC_TIERS; nr++) \
		if (!(k)->tier[nr].t) {             \
		} else

/*
 * Returns the size, in bytes, of the buffers of all threads that call these tiers
 * (KVC_TIER_CALL_BYTES each). disk_workers is the option of that name.
 */
uint64_t kvc_tiers_bytes(struct kvc_tier *const *tiers, unsigned n, uint64_t disk_workers);
/* Initializes all elements of k->tier; attr is for their conditions. */
void kvc_tiers_init(struct kvc *k, const pthread_condattr_t *attr);
/* Starts the tiers' threads. Returns 0 or a negative errno. */
int kvc_tiers_start(struct kvc *k);
/*
 * Waits for the threads to end; they make no more removals. Threads of a tier that does not answer
 * are given a short time, then left behind and counted in k->work->left.
 */
void kvc_tiers_join(struct kvc *k);
/* Wakes all threads of all tiers. */
void kvc_tiers_wake_locked(struct kvc *k);
/*
 * Queues a job for a tier (or KVC_COMMON), not to run before due_ns (0: at once). A reference to n
 * is held until it has run; n may be NULL. *out, if not NULL, is the job. Returns 0, -ENOMEM, or
 * -ENOBUFS (too many failed removals wait).
 */
int kvc_tier_job_add_locked(struct kvc *k, enum kvc_priority p,
			    void (*run)(struct kvc *, struct kvc_job *), struct kvc_node *n,
			    unsigned tier, uint64_t due_ns, struct kvc_job **out);
/*
 * Queues a copy of the node to this tier: n->in[tier].queued is the job. The node is marked as
 * being copied to the tier until kvc_tier_set_copying_locked. Returns 0 or -ENOMEM.
 */
int kvc_tier_copy_add_locked(struct kvc *k, enum kvc_priority p,
			     void (*run)(struct kvc *, struct kvc_job *), struct kvc_node *n,
			     unsigned tier, uint64_t due_ns);
/*
 * Queues a load of the node: n->queued_load is the job. prefetch: no call waits for it. *out is the
 * job. Returns 0 or -ENOMEM.
 */
int kvc_tier_load_add_locked(struct kvc *k, bool prefetch,
			     void (*run)(struct kvc *, struct kvc_job *), struct kvc_node *n,
			     unsigned tier, struct kvc_job **out);
/* A call waits for the node's load: if the load is a queued prefetch, it is one no more. */
void kvc_tier_load_awaited_locked(struct kvc *k, struct kvc_node *n);
/* Sets whether a job for the node's copy in this tier is queued or runs. */
void kvc_tier_set_copying_locked(struct kvc_node *n, unsigned tier, bool copying);
/*
 * Queues a load or other job that a call waits for. The job, or a struct that begins with it, is
 * from malloc; the queue frees it after its run.
 */
void kvc_tier_job_put_locked(struct kvc *k, struct kvc_job *j);
/* Moves a waiting job to the front: it is urgent, and due at once. */
void kvc_tier_job_hurry_locked(struct kvc_tier_state *ts, struct kvc_job *j);
/* Wakes a thread that takes jobs of this priority, after a job was queued. */
void kvc_tier_wake_locked(struct kvc_tier_state *ts, enum kvc_priority p);
/*
 * Returns true if a call of this class may be made to the tier now. The caller must then report
 * either kvc_tier_result_locked or kvc_tier_uncalled_locked, since the call may be the breaker's
 * probe.
 */
bool kvc_tier_allowed_locked(struct kvc *k, unsigned tier, enum kvc_call call);
/* Reports that the allowed call was not made. */
void kvc_tier_uncalled_locked(struct kvc *k, unsigned tier, enum kvc_call call);
/*
 * Reports the result of a call about an object (0: no particular object). err is 0 or a negative
 * errno, as tier.h defines them. If writes are allowed again, the waiting copies are retried.
 */
void kvc_tier_result_locked(struct kvc *k, unsigned tier, enum kvc_call call, uint64_t object,
			    int err);
/*
 * Returns true if a call would be refused now. Unlike kvc_tier_allowed_locked this never makes the
 * caller the probe.
 */
bool kvc_tier_out_locked(const struct kvc *k, unsigned tier, enum kvc_call call);
/* Returns a negative errno that says why calls of a suspended class are refused. */
int kvc_tier_why_locked(const struct kvc *k, unsigned tier, enum kvc_call call);
/*
 * In a shared tier a frame's place is its name, and two of this node's files may have had the name
 * one after the other. A thread that stores or removes a frame locks the name until the result is
 * recorded. Returns false if another thread has the name.
 */
bool kvc_tier_name_lock_locked(struct kvc_tier_state *ts, const struct kvc_where *name);
void kvc_tier_name_unlock_locked(struct kvc_tier_state *ts, const struct kvc_where *name);
/*
 * Returns true if a copy in this tier completes an fsync. A shared tier knows a file by its name,
 * and loses it by a rename: a copy there counts only if no durable tier of this node is up.
 */
bool kvc_tier_is_durable_locked(const struct kvc *k, unsigned tier);
/* Returns true if a thread of the tier is in an overdue call. */
bool kvc_tier_hangs_locked(const struct kvc *k, unsigned tier);
/*
 * Returns true if jobs are queued or running, except those of tiers that hang. removes: removals
 * count as well.
 */
bool kvc_tiers_busy_locked(const struct kvc *k, bool removes);
/* The obstacle to copies to this tier may be gone: failed copies are retried soon. */
void kvc_tier_retry_locked(struct kvc *k, unsigned tier);
/* A copy failed for a reason other than lack of space, and waits. */
void kvc_tier_failed_locked(struct kvc *k, unsigned tier);
/*
 * A frame of this many bytes was refused for lack of space and is retried: the trimmer makes space
 * at once.
 */
void kvc_tier_refused_locked(struct kvc *k, unsigned tier, uint64_t bytes);
/*
 * A copy that failed for lack of space waits for its next try: it is retried when space is freed.
 */
void kvc_tier_await_space_locked(struct kvc *k, unsigned tier);
/* A frame was removed: copies that failed for lack of space are retried. */
void kvc_tier_freed_locked(struct kvc *k, unsigned tier);
/* A copy was stored: counts its bytes, and lets copies that failed be retried. */
void kvc_tier_stored_locked(struct kvc *k, unsigned tier, uint64_t bytes);
/*
 * Returns true if a refused frame still waits. space.full alone does not show it, because storing a
 * smaller frame clears it. (A removal ends the wait: the frame is tried again.)
 */
bool kvc_tier_refuses_locked(const struct kvc_tier_state *ts);
/* Wakes the tier's trimmer: the tier may be above high=, or has refused a frame. */
void kvc_tier_trim_wake_locked(struct kvc *k, unsigned tier);
/* The trimmer waits until it is woken, or until this time. */
void kvc_tier_trim_wait_locked(struct kvc *k, unsigned tier, const struct timespec *until);
/*
 * Returns true if the tier would store a copy now or soon: false if the breaker refuses writes, or
 * if the tier is full and nothing in it can be dropped.
 */
bool kvc_tier_accepts_locked(const struct kvc *k, unsigned tier);

#endif
