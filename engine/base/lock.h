/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex with measurements: how long it is held, for one in KVC_LOCK_SAMPLED holds, and how long
 * threads waited for it. Each place in the source that takes a lock counts the waits there, and the
 * waits of other threads for the lock while it is held from there. A thread that finds the mutex
 * taken spins for a moment before it sleeps; a wait that ends while it spins counts for the places,
 * but not in the histogram `waited`. A build with KVC_LOCK_PROFILE (MODE=debug) also measures the
 * holds of each place, in elapsed time and in CPU time, which excludes other work of the machine.
 */
#ifndef KVC_LOCK_H
#define KVC_LOCK_H

#include "joint.h"
#include "stats.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#define KVC_PAUSE_US 20
#define KVC_PAUSES 50 /* maximum number of consecutive pauses */
#define KVC_LOCK_SAMPLED 64u

/* The profile of a place that takes a lock. Its figures change under that lock. */
struct kvc_lock_profile {
	const char *lock, *func;
	int line;
	/* waits of this place, and their time */
	_Atomic uint64_t waits, waited_ns;
	/* waits that began while this place held the lock, and their time */
	_Atomic uint64_t blocks, blocked_ns;
	/* with KVC_LOCK_PROFILE: holds of this place */
	uint64_t n, max_ns, max_cpu_ns, total_ns;
	bool listed;
	struct kvc_lock_profile *next;
};

struct kvc_lock {
	pthread_mutex_t m;
	struct kvc_joint *joint;  /* NULL: none */
	_Atomic unsigned waiting; /* threads that sleep, waiting for it */
	_Atomic unsigned turns;   /* holds by threads that had slept */
	_Atomic uint64_t nth;     /* number of holds */
	uint64_t sample_ns;       /* start of a measured hold; 0: this hold is not measured */
	/* the place of the current or latest holder */
	struct kvc_lock_profile *_Atomic by;
	uint64_t since_ns, since_cpu_ns; /* start of the hold, with KVC_LOCK_PROFILE */
	struct kvc_histogram held, waited;
	_Atomic uint64_t longest_ns; /* longest measured hold */
};

/*
 * Prints one line per place: the lock, the place, the longest holds in CPU time and elapsed time,
 * the number of holds, and their total, in us. Prints nothing without KVC_LOCK_PROFILE.
 */
void kvc_lock_profile_print(FILE *out);
/*
 * Prints one line for the lock: its name, the number of holds, their total in us, estimated from
 * the measured ones, the number of waits and their total in us. Then one line for each place that
 * waited for a lock of this name, or made others wait: NAME:FUNCTION:LINE, the waits and their
 * total in us, and the waits of others during a hold of this place and their total in us.
 */
void kvc_lock_waits_print(const struct kvc_lock *l, const char *name, FILE *out);

#define KVC_HERE(what)                                   \
	({                                               \
		static struct kvc_lock_profile here_ = { \
			.lock = what,                    \
			.func = __func__,                \
			.line = __LINE__,                \
		};                                       \
		&here_;                                  \
	})
#ifdef KVC_LOCK_PROFILE
void kvc_lock_profile_begin(struct kvc_lock *l);
void kvc_lock_profile_end(struct kvc_lock *l);
#else
static inline void kvc_lock_profile_begin(struct kvc_lock *l)
{
	(void)l;
}
static inline void kvc_lock_profile_end(struct kvc_lock *l)
{
	(void)l;
}
#endif

/*
 * The rare parts of kvc_lock_acquire and kvc_lock_release: waiting, and beginning and ending a
 * sample.
 */
void kvc_lock_queue(struct kvc_lock *l, struct kvc_lock_profile *here);
void kvc_lock_sample(struct kvc_lock *l);
void kvc_lock_sampled(struct kvc_lock *l);

/* The mutex was taken: ends the joint holds. */
static inline void kvc_lock_alone(struct kvc_lock *l)
{
	if (l->joint && atomic_load_explicit(&l->joint->open, memory_order_relaxed))
		kvc_joint_close(l->joint);
}

/* The second half of taking the lock. */
static inline void kvc_lock_taken(struct kvc_lock *l, struct kvc_lock_profile *here)
{
	uint64_t nth;

	atomic_store_explicit(&l->by, here, memory_order_relaxed);
	nth = atomic_load_explicit(&l->nth, memory_order_relaxed);
	atomic_store_explicit(&l->nth, nth + 1, memory_order_relaxed);
	if (!(nth % KVC_LOCK_SAMPLED))
		kvc_lock_sample(l);
	kvc_lock_profile_begin(l);
	kvc_lock_alone(l);
}

static inline void kvc_lock_acquire(struct kvc_lock *l, struct kvc_lock_profile *here)
{
	if (pthread_mutex_trylock(&l->m))
		kvc_lock_queue(l, here);
	kvc_lock_taken(l, here);
}

/*
 * Takes the lock for work that a joint hold could do. Returns false, without the lock, if joint
 * holds were opened while the caller waited for it: the caller tries a joint hold again. If it took
 * the lock instead, each waiting thread in turn would close the joint holds for all threads.
 */
bool kvc_lock_or_join(struct kvc_lock *l, struct kvc_lock_profile *here);

/*
 * Takes the mutex, if it is free, beside joint holds: current holds continue, and new holds may
 * begin. Returns false if the mutex is not free. The holder changes nothing that they read or
 * change.
 */
static inline bool kvc_lock_try_beside(struct kvc_lock *l, struct kvc_lock_profile *here)
{
	if (pthread_mutex_trylock(&l->m))
		return false;
	atomic_store_explicit(&l->by, here, memory_order_relaxed);
	kvc_lock_profile_begin(l);
	return true;
}

static inline void kvc_lock_release(struct kvc_lock *l)
{
	kvc_lock_profile_end(l);
	if (l->sample_ns)
		kvc_lock_sampled(l);
	pthread_mutex_unlock(&l->m);
}

/*
 * A pause between two holds of a long operation. A mutex is taken by the first thread that tries,
 * and the thread that has just released it is always first. So if other threads wait, the caller
 * pauses until one of them has held the lock, because waking takes longer than a hold on a busy
 * machine. The pause is limited: the next holder may hold the lock for long.
 */
static inline void kvc_lock_pause(const struct kvc_lock *l)
{
	unsigned turns = atomic_load_explicit(&l->turns, memory_order_relaxed);

	for (int i = 0; i < KVC_PAUSES && atomic_load_explicit(&l->waiting, memory_order_relaxed) &&
			turns == atomic_load_explicit(&l->turns, memory_order_relaxed);
	     i++)
		usleep(KVC_PAUSE_US);
}

/*
 * Waits on a condition, at most until `until` (NULL: no limit), as pthread_cond_timedwait does: the
 * lock is not held during the wait.
 */
static inline int kvc_lock_wait(struct kvc_lock *l, pthread_cond_t *c, const struct timespec *until)
{
	struct kvc_lock_profile *by = atomic_load_explicit(&l->by, memory_order_relaxed);
	int rc;

	kvc_lock_profile_end(l);
	if (l->sample_ns)
		kvc_lock_sampled(l);
	rc = until ? pthread_cond_timedwait(c, &l->m, until) : pthread_cond_wait(c, &l->m);
	atomic_store_explicit(&l->by, by, memory_order_relaxed);
	kvc_lock_profile_begin(l);
	kvc_lock_alone(l);
	return rc;
}

#endif
