/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex with measurements (lock.h). The figures of a place change under its lock, and are read
 * without it for a report.
 */
#include "lock.h"

#include "util.h"

/* tries before sleeping: to sleep and wake costs many times the length of most holds */
#define SPINS 240

static inline void breathe(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static bool taken_soon(struct kvc_lock *l)
{
	/* if threads already sleep, the lock is not held for a moment only */
	for (int i = 0; i < SPINS && !atomic_load_explicit(&l->waiting, memory_order_relaxed);
	     i++) {
		breathe();
		if (!pthread_mutex_trylock(&l->m))
			return true;
	}
	return false;
}

void kvc_lock_queue(struct kvc_lock *l)
{
	uint64_t since_ns = kvc_mono_ns();

	if (taken_soon(l))
		return;
	atomic_fetch_add_explicit(&l->waiting, 1, memory_order_relaxed);
	pthread_mutex_lock(&l->m);
	atomic_fetch_sub_explicit(&l->waiting, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&l->turns, 1, memory_order_relaxed);
	kvc_histogram_add(&l->waited, KVC_IN_MICROSECONDS, kvc_mono_ns() - since_ns);
}

void kvc_lock_sample(struct kvc_lock *l)
{
	l->sample_ns = kvc_mono_ns();
}

void kvc_lock_sampled(struct kvc_lock *l)
{
	uint64_t ns = kvc_mono_ns() - l->sample_ns;

	l->sample_ns = 0;
	kvc_histogram_add(&l->held, KVC_IN_MICROSECONDS, ns);
	if (ns > atomic_load_explicit(&l->longest_ns, memory_order_relaxed))
		atomic_store_explicit(&l->longest_ns, ns, memory_order_relaxed);
}

#ifdef KVC_LOCK_PROFILE
#include <stdatomic.h>
#include <time.h>

static struct kvc_lock_profile *_Atomic places;

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return kvc_ns(t);
}

void kvc_lock_profile_begin(struct kvc_lock *l, struct kvc_lock_profile *h)
{
	l->by = h;
	l->since_ns = kvc_mono_ns();
	l->since_cpu_ns = cpu_ns();
}

struct kvc_lock_profile *kvc_lock_profile_end(struct kvc_lock *l)
{
	struct kvc_lock_profile *h = l->by;
	uint64_t took = kvc_mono_ns() - l->since_ns, cpu = cpu_ns() - l->since_cpu_ns;

	if (!h->n++) {
		h->next = atomic_load(&places);
		while (!atomic_compare_exchange_weak(&places, &h->next, h))
			;
	}
	h->max_ns = kvc_max(h->max_ns, took);
	h->max_cpu_ns = kvc_max(h->max_cpu_ns, cpu);
	h->total_ns += took;
	return h;
}

void kvc_lock_profile_print(FILE *out)
{
	for (const struct kvc_lock_profile *h = atomic_load(&places); h; h = h->next)
		fprintf(out, "hold_%s:%s:%d %llu %llu %llu %llu\n", h->lock, h->func, h->line,
			(unsigned long long)h->max_cpu_ns / 1000,
			(unsigned long long)h->max_ns / 1000, (unsigned long long)h->n,
			(unsigned long long)h->total_ns / 1000);
}
#else
void kvc_lock_profile_print(FILE *out)
{
	(void)out;
}
#endif
