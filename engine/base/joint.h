/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joint holds of a lock (lock.h). If a lock has a struct kvc_joint, many threads can hold it at the
 * same time (kvc_joint_begin). A joint hold is short work that changes only data with a lock of its
 * own. Beginning and ending a hold takes no mutex, and writes only to a cache line of the thread.
 *
 * kvc_lock_acquire excludes joint holds: it closes them, and waits until the current ones have
 * ended. This takes a microsecond or two. Therefore they stay closed KVC_JOINT_TIMES times as long,
 * and a thread that finds them closed takes the mutex. So the lock is at most a tenth slower for
 * work that needs it exclusively, while the rate of joint holds grows with the cores.
 */
#ifndef KVC_JOINT_H
#define KVC_JOINT_H

#include "stats.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define KVC_JOINT_SLOTS 32u
#define KVC_JOINT_STRIPES 64u
#define KVC_JOINT_TIMES 10u
#define KVC_JOINT_LEAST_NS 20000u

struct kvc_joint {
	/* joint holds may begin */
	_Alignas(KVC_CACHE_LINE) _Atomic bool open;
	/* under the mutex: the time from which they may be opened again */
	uint64_t reopen_ns;
	/* called with the mutex, after all joint holds have ended; set before the first hold */
	void (*closed)(void *arg);
	void *arg;
	/*
	 * indexed by kvc_stats_thread: the thread's current holds, and a sum that the owner of the
	 * lock defines
	 */
	struct kvc_joint_slot {
		_Alignas(KVC_CACHE_LINE) _Atomic unsigned in;
		_Atomic int64_t sum;
	} slot[KVC_JOINT_SLOTS];
	/* locks for the data that joint holds change: of objects, by their number, and of users */
	struct kvc_joint_stripe {
		_Alignas(KVC_CACHE_LINE) pthread_mutex_t m;
	} stripe[KVC_JOINT_STRIPES], users;
};

/* One turn of a loop that waits for another core. */
static inline void kvc_joint_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Allocates a struct without holds, closed. NULL: no memory. Free it with kvc_joint_free. */
struct kvc_joint *kvc_joint_new(void);
void kvc_joint_free(struct kvc_joint *j);
/*
 * With the mutex: closes the joint holds and waits for the current ones. Part of kvc_lock_acquire.
 */
void kvc_joint_close(struct kvc_joint *j);
/*
 * With the mutex, as the last act of a hold: lets joint holds begin again, unless they were closed
 * a moment ago.
 */
void kvc_joint_reopen(struct kvc_joint *j);

/*
 * Begins a joint hold. Returns false if none may begin now: take the lock instead. j may be NULL. A
 * hold is short, and takes only the locks of *j and leaf locks.
 */
static inline bool kvc_joint_begin(struct kvc_joint *j)
{
	struct kvc_joint_slot *s;

	if (!j || !atomic_load_explicit(&j->open, memory_order_relaxed))
		return false;
	s = &j->slot[kvc_stats_thread() % KVC_JOINT_SLOTS];
	/* either this thread sees that they are closed, or the closing thread sees this hold */
	atomic_fetch_add(&s->in, 1);
	if (atomic_load(&j->open))
		return true;
	atomic_fetch_sub_explicit(&s->in, 1, memory_order_release);
	return false;
}

static inline void kvc_joint_end(struct kvc_joint *j)
{
	atomic_fetch_sub_explicit(&j->slot[kvc_stats_thread() % KVC_JOINT_SLOTS].in, 1,
				  memory_order_release);
}

static inline pthread_mutex_t *kvc_joint_stripe(struct kvc_joint *j, uint64_t key)
{
	return &j->stripe[(key * 0x9e3779b97f4a7c15ull) >> 58].m;
}

#endif
