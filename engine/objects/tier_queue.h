/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tiers, with their queues of work, their threads (tier_queue.c) and their breakers
 * (breaker.h). All under k->lock.
 */
#ifndef KVC_TIER_QUEUE_H
#define KVC_TIER_QUEUE_H

#include "breaker.h"
#include "node.h"
#include "wear.h"

#define KVC_WORKERS 8        /* threads of a tier at most */
#define KVC_COMMON KVC_TIERS /* the queue of work that is no tier's */

#define KVC_AGAINS 8 /* how often the wait of a copy that fails is doubled, from a second on */

enum kvc_priority {
	KVC_P_LOAD = 0,
	KVC_P_PREFETCH = 1,
	KVC_P_REMOVE = 2,
	KVC_P_REMOVE_AGAIN = 3, /* removals that failed, or that the breaker refused */
	KVC_P_URGENT = 4,
	KVC_P_PARKED = 5, /* copies that the breaker refused: made when it lets writes through */
	/* copies that failed, a list for each number of times, in order of when they are due */
	KVC_P_AGAIN = 6,
	KVC_P_SPILL = KVC_P_AGAIN + KVC_AGAINS,
	KVC_PRIORITIES = KVC_P_SPILL + 1
};

struct kvc_job {
	struct kvc_list link;
	void (*run)(struct kvc *k, struct kvc_job *j);
	struct kvc_node *node; /* held while the job lives, or NULL */
	unsigned tier;
	enum kvc_priority priority; /* the queue it is on */
	uint64_t due_ns;            /* KVC_P_URGENT and later ones: not before */
	uint64_t wait_ns;           /* a copy that was hurried: until then it was to wait; or 0 */
	unsigned tried, bad;        /* a load: bit per tier that failed, that had a bad copy */
	unsigned tries;             /* a removal: how often the tier failed to make it */
	bool uncounted;             /* a removal: its bytes are no longer in `leaving` */
	int err;                    /* a load: of the last try */
	bool prefetch;              /* a load that nobody waited for when it was asked for */
	struct kvc_where where;
	struct kvc_sum sum; /* a removal from a shared tier: of this version only */
	uint64_t ino;       /* and of this object */
	uint64_t copy;      /* and this generation, put by us; 0: any */
};

/* A tier with its queues, threads and circuit breaker (tier_queue.c). */
struct kvc_tier_state {
	struct kvc *k;
	struct kvc_tier *t; /* NULL: no such tier now, or the common queue */
	struct kvc_list jobs[KVC_PRIORITIES];
	/* for the threads that take all, and for the one that takes no copies */
	pthread_cond_t cond, load_cond;
	bool load_idle;             /* that one sleeps */
	unsigned ncopies;           /* queued in KVC_P_PARKED and after it */
	unsigned nagain;            /* of them, because they failed */
	unsigned nremovals;         /* queued in KVC_P_REMOVE_AGAIN */
	unsigned nthreads, started; /* threads: wanted and running */
	pthread_t workers[KVC_WORKERS];
	/*
	 * when the call that a thread is in should have come back; 0: in none, or none that may
	 * hang
	 */
	uint64_t overdue_ns[KVC_WORKERS];
	bool stuck;        /* one is overdue, and that was said */
	unsigned running;  /* jobs */
	unsigned removing; /* of them */
	unsigned left;     /* threads that never came back */
	/* of a shared tier: names that are being changed */
	struct kvc_where named[KVC_WORKERS];
	unsigned nnamed;
	struct kvc_breaker breaker;
	/*
	 * a copy failed since those that wait were last tried because others were taken; one was
	 * taken since; when they may be tried so again, and how long that is from the last time on
	 */
	bool failing, taking;
	uint64_t anew_ns, anew_wait_ns;
	bool full; /* it is trimmed, and refused a frame for want of room */
	/*
	 * a frame that found no room is tried again and again: its length, and when it is given up
	 */
	uint64_t refused, refused_until_ns;
	/* evict/trim.c */
	pthread_t trimmer;
	pthread_cond_t trim_cond;
	bool has_trimmer, trimming;
	bool jammed;      /* a whole walk found nothing to drop */
	bool starved;     /* and copies that found no room wait for long: they are told of some */
	uint64_t leaving; /* bytes of frames that are trash and not removed yet */
	/* bytes of those that wait for a sync, and what is free above high= */
	uint64_t unsynced, spare;
	uint64_t untold; /* bytes it took since its trimmer was told */
	struct kvc_wear written;
};

struct kvc_work {
	unsigned running, queued; /* jobs of all queues */
	bool over;                /* what is queued is not done any more */
	/* threads that never came back from a tier, at the end: nothing they know may be freed */
	unsigned left;
};

/* What there is of tiers: for (...) { k->tier[t].t is one }. */
#define kvc_tier_each(k, nr)                        \
	for (unsigned nr = 0; nr < KVC_TIERS; nr++) \
		if (!(k)->tier[nr].t) {             \
		} else

/* The buffers of all threads that call these tiers (KVC_TIER_CALL_BYTES), in bytes. */
uint64_t kvc_tiers_bytes(struct kvc_tier *const *tiers, unsigned n);
int kvc_tiers_start(struct kvc *k);
/*
 * Waits for the threads to end, which make no removes any more; for those of a tier that does not
 * answer not for long: they are left behind, and counted in k->work->left.
 */
void kvc_tiers_join(struct kvc *k);
void kvc_tiers_wake_locked(struct kvc *k);
int kvc_tier_job_add_locked(struct kvc *k, enum kvc_priority p,
			    void (*run)(struct kvc *, struct kvc_job *), struct kvc_node *n,
			    unsigned tier, uint64_t due_ns, struct kvc_job **out);
/* A job of the caller's own memory, that somebody waits for; the queue frees it after its run. */
void kvc_tier_job_put_locked(struct kvc *k, struct kvc_job *j);
/* Takes a job that waits from its queue. The caller frees it, or puts it on another. */
void kvc_tier_job_unlink_locked(struct kvc_tier_state *ts, struct kvc_job *j);
/* After a job was put on a queue: wakes a thread that takes such. */
void kvc_tier_tell_locked(struct kvc_tier_state *ts, enum kvc_priority p);
/*
 * May a call of this class be made to the tier now? True obliges the caller to report one of
 * kvc_tier_result_locked and kvc_tier_uncalled_locked: it may be the breaker's probe.
 */
bool kvc_tier_allowed_locked(struct kvc *k, unsigned tier, enum kvc_call call);
/* The call that was allowed was not made. */
void kvc_tier_uncalled_locked(struct kvc *k, unsigned tier, enum kvc_call call);
/*
 * The result of a call about an object (0: about none that can be named): 0 or a negative errno, by
 * the contract in tier.h. If the class is let through again, the copies that waited are tried.
 */
void kvc_tier_result_locked(struct kvc *k, unsigned tier, enum kvc_call call, uint64_t object,
			    int err);
/* Would a call be refused now? Unlike kvc_tier_allowed_locked this makes nobody the probe. */
bool kvc_tier_out_locked(const struct kvc *k, unsigned tier, enum kvc_call call);
/* Why calls of a suspended class are refused: a negative errno that a caller may return. */
int kvc_tier_why_locked(const struct kvc *k, unsigned tier, enum kvc_call call);
/*
 * In a shared tier a name is the place, and two of our files can have had it one after the other:
 * who puts a frame there, or removes one, has the name until that is recorded. False: another has.
 */
bool kvc_tier_name_take_locked(struct kvc_tier_state *ts, const struct kvc_where *name);
void kvc_tier_name_give_locked(struct kvc_tier_state *ts, const struct kvc_where *name);
/*
 * Is a copy there what an fsync waits for? A shared tier knows a file by its name, and a rename
 * makes it forget the file: it counts where no durable tier of our own is up.
 */
bool kvc_tier_keeps_locked(const struct kvc *k, unsigned tier);
/* Is a thread of its in a call that should have come back? */
bool kvc_tier_hangs_locked(const struct kvc *k, unsigned tier);
/* Is there work, but that of tiers that hang? With removes, or without. */
bool kvc_tiers_busy_locked(const struct kvc *k, bool removes);
/* What keeps copies from this tier may be over: those that failed are tried soon. */
void kvc_tier_retry_locked(struct kvc *k, unsigned tier);
/* One failed, not for want of room, and waits. */
void kvc_tier_failed_locked(struct kvc *k, unsigned tier);
/* A frame of so many bytes found no room, and is tried again: room is made, not at leisure. */
void kvc_tier_refused_locked(struct kvc *k, unsigned tier, uint64_t bytes);
/* One was taken, and found room: those that failed may be, too, and are tried. */
void kvc_tier_took_locked(struct kvc *k, unsigned tier, uint64_t bytes);
/*
 * Does a frame that was refused still wait? `full` tells less: a smaller one that found room, or
 * one that went, has ended that.
 */
bool kvc_tier_refuses_locked(const struct kvc_tier_state *ts);
/* The tier may be above its mark, or refused a frame. */
void kvc_tier_trim_tell_locked(struct kvc *k, unsigned tier);
/*
 * Would a copy be taken now, or soon? Not if the breaker refuses writes, or the tier is full and
 * nothing in it can be dropped.
 */
bool kvc_tier_takes_locked(const struct kvc *k, unsigned tier);

#endif
