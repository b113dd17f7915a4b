/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex with measurements: how long it is held, for one of KVC_LOCK_SAMPLED holds, and how long
 * threads waited for it. A thread that finds the mutex taken spins for a moment before it sleeps. A
 * build with KVC_LOCK_PROFILE (MODE=debug) also measures the holds of each place in the source, in
 * elapsed time and in CPU time, which excludes other work of the machine.
 */
#ifndef KVC_LOCK_H
#define KVC_LOCK_H

#include "stats.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#define KVC_PAUSE_US 20
#define KVC_PAUSES 50 /* pauses at most, one after another */
#define KVC_LOCK_SAMPLED 64u

/* The profile of a place that takes a lock. */
struct kvc_lock_profile {
	const char *lock, *func;
	int line;
	uint64_t n, max_ns, max_cpu_ns, total_ns;
	struct kvc_lock_profile *next;
};

struct kvc_lock {
	pthread_mutex_t m;
	_Atomic unsigned waiting;    /* threads that sleep, waiting for it */
	_Atomic unsigned turns;      /* holds by threads that had slept */
	unsigned nth;                /* number of holds */
	uint64_t sample_ns;          /* start of a measured hold; 0: this hold is not measured */
	struct kvc_lock_profile *by; /* the holder's place, and the start of the hold */
	uint64_t since_ns, since_cpu_ns;
	struct kvc_histogram held, waited;
	_Atomic uint64_t longest_ns; /* longest measured hold */
};

/*
 * Prints one line per place: the lock, the place, the longest holds in CPU time and elapsed time,
 * the number of holds, and their total, in us. Prints nothing without KVC_LOCK_PROFILE.
 */
void kvc_lock_profile_print(FILE *out);

#ifdef KVC_LOCK_PROFILE
void kvc_lock_profile_begin(struct kvc_lock *l, struct kvc_lock_profile *h);
struct kvc_lock_profile *kvc_lock_profile_end(struct kvc_lock *l);
#define KVC_HERE(what)                                   \
	({                                               \
		static struct kvc_lock_profile here_ = { \
			.lock = what,                    \
			.func = __func__,                \
			.line = __LINE__,                \
		};                                       \
		&here_;                                  \
	})
#else
static inline void kvc_lock_profile_begin(struct kvc_lock *l, struct kvc_lock_profile *h)
{
	(void)l;
	(void)h;
}
static inline struct kvc_lock_profile *kvc_lock_profile_end(struct kvc_lock *l)
{
	(void)l;
	return NULL;
}
#define KVC_HERE(what) NULL
#endif

/* The rare parts of kvc_lock_take and kvc_lock_give: waiting, and beginning and ending a sample. */
void kvc_lock_queue(struct kvc_lock *l);
void kvc_lock_sample(struct kvc_lock *l);
void kvc_lock_sampled(struct kvc_lock *l);

static inline void kvc_lock_take(struct kvc_lock *l, struct kvc_lock_profile *here)
{
	if (pthread_mutex_trylock(&l->m))
		kvc_lock_queue(l);
	if (!(l->nth++ % KVC_LOCK_SAMPLED))
		kvc_lock_sample(l);
	kvc_lock_profile_begin(l, here);
}

static inline void kvc_lock_give(struct kvc_lock *l)
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
	struct kvc_lock_profile *by = kvc_lock_profile_end(l);

	if (l->sample_ns)
		kvc_lock_sampled(l);
	int rc = until ? pthread_cond_timedwait(c, &l->m, until) : pthread_cond_wait(c, &l->m);

	kvc_lock_profile_begin(l, by);
	return rc;
}

#endif
