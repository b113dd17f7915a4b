/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latencies of operations, see latency.h. An operation is first compared, without the lock, with
 * the shortest recorded latency. Most operations are faster, and cost only a clock reading and an
 * update of their histogram. Old records are replaced when a slow operation ends, and skipped when
 * records are read.
 */
#include "latency.h"

#include <stdlib.h>

#define RECENT_NS (600 * 1000000000ull)

_Static_assert(KVC_PLACES == KVC_TIERS + 1, "a place for each tier and one for the pool");

static bool is_old(const struct kvc_latency_slow *s, uint64_t now)
{
	return !s->took_ns || now - s->ended_ns > RECENT_NS;
}

/* Sets the latency that an operation must exceed to be recorded. */
static void set_least(struct kvc_latency_slow_set *t, uint64_t now)
{
	uint64_t least = UINT64_MAX, until = UINT64_MAX;

	for (unsigned i = 0; i < KVC_SLOW_EACH; i++) {
		least = kvc_min(least, is_old(&t->v[i], now) ? 0 : t->v[i].took_ns);
		until = kvc_min(until, t->v[i].ended_ns + RECENT_NS);
	}
	atomic_store_explicit(&t->least_ns, least, memory_order_relaxed);
	atomic_store_explicit(&t->until_ns, until, memory_order_relaxed);
}

static void insert_slow(struct kvc_latency_slow_set *t, const struct kvc_latency_slow *s)
{
	struct kvc_latency_slow *to = &t->v[0];

	for (unsigned i = 0; i < KVC_SLOW_EACH && !is_old(to, s->ended_ns); i++)
		if (is_old(&t->v[i], s->ended_ns) || t->v[i].took_ns < to->took_ns)
			to = &t->v[i];
	if (is_old(to, s->ended_ns) || to->took_ns < s->took_ns)
		*to = *s;
	set_least(t, s->ended_ns);
}

void kvc_latency_record(struct kvc *k, enum kvc_operation op, unsigned tier, uint64_t model,
			uint64_t begun_ns)
{
	uint64_t now = kvc_mono_ns();
	struct kvc_latency_slow s = { now, now - begun_ns, model, op, tier };
	struct kvc_latency_slow_set *t = &k->latency->of[op];

	kvc_histogram_add(&kvc_stats_here(&k->stats)->took[op][tier], KVC_IN_MICROSECONDS,
			  s.took_ns);
	if (s.took_ns <= atomic_load_explicit(&t->least_ns, memory_order_relaxed) &&
	    now <= atomic_load_explicit(&t->until_ns, memory_order_relaxed))
		return;
	pthread_mutex_lock(&k->latency->lock);
	insert_slow(t, &s);
	pthread_mutex_unlock(&k->latency->lock);
}

static int slower(const void *a, const void *b)
{
	const struct kvc_latency_slow *x = a, *y = b;

	return (x->took_ns < y->took_ns) - (x->took_ns > y->took_ns);
}

size_t kvc_latency_slowest(struct kvc *k, struct kvc_latency_slow v[KVC_SLOWEST])
{
	struct kvc_latency *t = k->latency;
	uint64_t now = kvc_mono_ns();
	size_t n = 0;

	pthread_mutex_lock(&t->lock);
	for (unsigned op = 0; op < KVC_OPERATIONS_N; op++)
		for (unsigned i = 0; i < KVC_SLOW_EACH; i++)
			if (!is_old(&t->of[op].v[i], now))
				v[n++] = t->of[op].v[i];
	pthread_mutex_unlock(&t->lock);
	qsort(v, n, sizeof *v, slower);
	return n;
}

uint64_t kvc_latency_longest(struct kvc *k, enum kvc_operation op)
{
	struct kvc_latency *t = k->latency;
	uint64_t now = kvc_mono_ns(), longest = 0;

	pthread_mutex_lock(&t->lock);
	for (unsigned i = 0; i < KVC_SLOW_EACH; i++)
		if (!is_old(&t->of[op].v[i], now))
			longest = kvc_max(longest, t->of[op].v[i].took_ns);
	pthread_mutex_unlock(&t->lock);
	return longest;
}
