/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of counters, whose copies different threads add to (stats.h). */
#include "stats.h"

_Thread_local unsigned kvc_stats_thread_;

unsigned kvc_stats_thread_new(void)
{
	static _Atomic unsigned last;

	do /* 0: the thread has no number yet */
		kvc_stats_thread_ = atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
	while (!kvc_stats_thread_);
	return kvc_stats_thread_;
}

uint64_t kvc_stats_sum(const struct kvc_stats *s, size_t at)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < KVC_SHARDS; i++) {
		const _Atomic uint64_t *all = (const void *)&s->shard[i].counters;

		sum += atomic_load_explicit(all + at / sizeof *all, memory_order_relaxed);
	}
	return sum;
}

void kvc_stats_took(const struct kvc_stats *s, enum kvc_operation op, unsigned place,
		    struct kvc_histogram *sum)
{
	uint64_t n[KVC_SPANS] = { 0 }, sum_ns = 0;

	for (unsigned i = 0; i < KVC_SHARDS; i++) {
		const struct kvc_histogram *h = &s->shard[i].took[op][place];

		for (unsigned j = 0; j < KVC_SPANS; j++)
			n[j] += atomic_load_explicit(&h->n[j], memory_order_relaxed);
		sum_ns += atomic_load_explicit(&h->sum_ns, memory_order_relaxed);
	}
	for (unsigned j = 0; j < KVC_SPANS; j++)
		atomic_store_explicit(&sum->n[j], n[j], memory_order_relaxed);
	atomic_store_explicit(&sum->sum_ns, sum_ns, memory_order_relaxed);
}

void kvc_stats_durations(const struct kvc_stats *s, struct kvc_stats_durations *d)
{
	struct kvc_histogram sum;

	for (unsigned op = 0; op < KVC_OPERATIONS_N; op++)
		for (unsigned place = 0; place < KVC_PLACES; place++) {
			kvc_stats_took(s, (enum kvc_operation)op, place, &sum);
			for (unsigned i = 0; i < KVC_SPANS; i++)
				d->n[op][place][i] = sum.n[i];
		}
}

double kvc_histogram_quantile(const uint64_t n[KVC_SPANS], double part)
{
	uint64_t total = 0, below = 0;
	double need, least, most;

	for (unsigned i = 0; i < KVC_SPANS; i++)
		total += n[i];
	need = part * (double)total;
	for (unsigned i = 0; i < KVC_SPANS - 1; i++) {
		if (n[i] && (double)(below + n[i]) >= need) {
			most = (double)(1u << i);
			least = i ? most / 2 : 0;
			return least + (most - least) * (need - (double)below) / (double)n[i];
		}
		below += n[i];
	}
	return total ? (double)(1u << (KVC_SPANS - 2)) : 0;
}
