/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex that knows how long it is held, of one hold in KVC_LOCK_SAMPLED, and how long those
 * waited who had to. Who finds it taken looks again for a moment before sleeping. In a build with
 * KVC_LOCK_PROFILE (MODE=debug) it knows also how long each place in the source has held it: by the
 * clock, and in time of the processor, which leaves out what the machine did meanwhile.
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
#define KVC_PAUSES 50 /* of them at most, one after the other */
#define KVC_LOCK_SAMPLED 64u

/* One for each place that takes a lock. */
struct kvc_lock_profile {
	const char *lock, *func;
	int line;
	uint64_t n, max_ns, max_cpu_ns, total_ns;
	struct kvc_lock_profile *next;
};

struct kvc_lock {
	pthread_mutex_t m;
	_Atomic unsigned waiting;    /* for it */
	_Atomic unsigned turns;      /* of those who had waited */
	unsigned nth;                /* hold that this is */
	uint64_t sample_ns;          /* when it began; 0: it is not measured */
	struct kvc_lock_profile *by; /* who holds it, since when */
	uint64_t since_ns, since_cpu_ns;
	struct kvc_histogram held, waited;
	_Atomic uint64_t longest_ns; /* of those held that were measured */
};

/*
 * One line a place: the lock, the place, how often, and the longest in us. Nothing without
 * KVC_LOCK_PROFILE.
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

/* Of kvc_lock_take and kvc_lock_give: what is not done each time. */
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
 * Between two holds of a long work: a mutex goes to who comes first, and who gave it back this
 * moment is always the first. So where another one waits, he waits until one of them has had it:
 * on a busy machine that takes longer to wake than a hold is. Not for ever: the next may have it
 * long.
 */
static inline void kvc_lock_pause(const struct kvc_lock *l)
{
	unsigned turns = atomic_load_explicit(&l->turns, memory_order_relaxed);

	for (int i = 0; i < KVC_PAUSES && atomic_load_explicit(&l->waiting, memory_order_relaxed) &&
			turns == atomic_load_explicit(&l->turns, memory_order_relaxed);
	     i++)
		usleep(KVC_PAUSE_US);
}

/* A wait on a condition, until then (NULL: for ever): the lock is not held meanwhile. */
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
