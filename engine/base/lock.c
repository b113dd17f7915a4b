/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex with measurements (lock.h). The figures of a place change under its lock, and are read
 * without it for a report.
 */
#include "lock.h"

#include "util.h"

#include <string.h>

/* pauses before sleeping: sleeping and waking takes many times as long as most holds */
#define SPINS 240
#define PAUSE_MOST 16u /* pauses between two tries, each of which takes the cache line */

/*
 * Tries for a moment, even if other threads sleep. If sleeping threads made the next one sleep too,
 * all threads would: a lock that is held for a microsecond would have a queue of sleepers that
 * never ends, each of which takes 50 microseconds to wake.
 */
static bool taken_soon(struct kvc_lock *l)
{
	unsigned pause = 1;

	for (unsigned n = 0; n < SPINS; n += pause, pause = kvc_min(2 * pause, PAUSE_MOST)) {
		for (unsigned i = 0; i < pause; i++)
			kvc_joint_pause();
		if (!pthread_mutex_trylock(&l->m))
			return true;
	}
	return false;
}

static struct kvc_lock_profile *_Atomic places;

/* Adds a place to the list of places with figures. Its lock is held. */
static void list_place(struct kvc_lock_profile *h)
{
	if (h->listed)
		return;
	h->listed = true;
	h->next = atomic_load(&places);
	while (!atomic_compare_exchange_weak(&places, &h->next, h))
		;
}

/* Adds to a figure that changes only under the lock, and is read without it. */
static void add(_Atomic uint64_t *to, uint64_t n)
{
	atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

void kvc_lock_queue(struct kvc_lock *l, struct kvc_lock_profile *here)
{
	struct kvc_lock_profile *by = atomic_load_explicit(&l->by, memory_order_relaxed);
	uint64_t since_ns = kvc_mono_ns(), ns;
	bool slept = !taken_soon(l);

	if (slept) {
		atomic_fetch_add_explicit(&l->waiting, 1, memory_order_relaxed);
		pthread_mutex_lock(&l->m);
		atomic_fetch_sub_explicit(&l->waiting, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&l->turns, 1, memory_order_relaxed);
	}
	ns = kvc_mono_ns() - since_ns;
	if (slept)
		kvc_histogram_add(&l->waited, KVC_IN_MICROSECONDS, ns);
	list_place(here);
	add(&here->waits, 1);
	add(&here->waited_ns, ns);
	if (!by)
		return;
	list_place(by);
	add(&by->blocks, 1);
	add(&by->blocked_ns, ns);
}

#define kvc_figure(v) ((unsigned long long)atomic_load_explicit(&(v), memory_order_relaxed))

void kvc_lock_waits_print(const struct kvc_lock *l, const char *name, FILE *out)
{
	unsigned long long waits = 0, waited_ns = 0;

	for (const struct kvc_lock_profile *h = atomic_load(&places); h; h = h->next) {
		if (strcmp(h->lock, name) != 0)
			continue;
		waits += kvc_figure(h->waits);
		waited_ns += kvc_figure(h->waited_ns);
	}
	fprintf(out, "%s %llu %llu %llu %llu\n", name, kvc_figure(l->nth),
		kvc_figure(l->held.sum_ns) / 1000 * KVC_LOCK_SAMPLED, waits, waited_ns / 1000);
	for (const struct kvc_lock_profile *h = atomic_load(&places); h; h = h->next)
		if (!strcmp(h->lock, name))
			fprintf(out, "%s:%s:%d %llu %llu %llu %llu\n", name, h->func, h->line,
				kvc_figure(h->waits), kvc_figure(h->waited_ns) / 1000,
				kvc_figure(h->blocks), kvc_figure(h->blocked_ns) / 1000);
}

bool kvc_lock_or_join(struct kvc_lock *l, struct kvc_lock_profile *here)
{
	struct kvc_joint *j = l->joint;

	if (pthread_mutex_trylock(&l->m)) {
		kvc_lock_queue(l, here);
		if (j && atomic_load_explicit(&j->open, memory_order_relaxed)) {
			pthread_mutex_unlock(&l->m);
			return false;
		}
	}
	kvc_lock_taken(l, here);
	return true;
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
#include <time.h>

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return kvc_ns(t);
}

void kvc_lock_profile_begin(struct kvc_lock *l)
{
	l->since_ns = kvc_mono_ns();
	l->since_cpu_ns = cpu_ns();
}

void kvc_lock_profile_end(struct kvc_lock *l)
{
	struct kvc_lock_profile *h = atomic_load_explicit(&l->by, memory_order_relaxed);
	uint64_t took = kvc_mono_ns() - l->since_ns, cpu = cpu_ns() - l->since_cpu_ns;

	list_place(h);
	h->n++;
	h->max_ns = kvc_max(h->max_ns, took);
	h->max_cpu_ns = kvc_max(h->max_cpu_ns, cpu);
	h->total_ns += took;
}

void kvc_lock_profile_print(FILE *out)
{
	for (const struct kvc_lock_profile *h = atomic_load(&places); h; h = h->next)
		if (h->n)
			fprintf(out, "hold_%s:%s:%d %llu %llu %llu %llu\n", h->lock, h->func,
				h->line, (unsigned long long)h->max_cpu_ns / 1000,
				(unsigned long long)h->max_ns / 1000, (unsigned long long)h->n,
				(unsigned long long)h->total_ns / 1000);
}
#else
void kvc_lock_profile_print(FILE *out)
{
	(void)out;
}
#endif
