/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latencies of operations (latency.c): a histogram for each (base/stats.h), and the slowest
 * operations of the last minutes. Any thread, with or without locks.
 */
#ifndef KVC_LATENCY_H
#define KVC_LATENCY_H

#include "kvc.h"

#define KVC_OF_POOL (KVC_PLACES - 1u) /* instead of a tier's number: the pool, or no tier */
/* for each operation, so that many slow copies do not hide one slow open */
#define KVC_SLOW_EACH 4u
#define KVC_SLOWEST (KVC_SLOW_EACH * KVC_OPERATIONS_N)

struct kvc_latency_slow {
	uint64_t ended_ns, took_ns; /* kvc_mono_ns; took_ns 0: unused */
	uint64_t model;             /* 0: none, or not known */
	enum kvc_operation op;
	unsigned tier;
};

struct kvc_latency {
	pthread_mutex_t lock; /* a leaf lock */
	struct kvc_latency_slow_set {
		struct kvc_latency_slow v[KVC_SLOW_EACH];
		/*
		 * an operation that ends before until_ns must take longer than least_ns to be one
		 * of the slowest
		 */
		_Atomic uint64_t least_ns, until_ns;
	} of[KVC_OPERATIONS_N];
};

/* Records an operation that began at begun_ns (kvc_mono_ns) and has just succeeded. */
void kvc_latency_record(struct kvc *k, enum kvc_operation op, unsigned tier, uint64_t model,
			uint64_t begun_ns);
/*
 * Copies the slowest operations of the last ten minutes to v, slowest first. Returns their number.
 */
size_t kvc_latency_slowest(struct kvc *k, struct kvc_latency_slow v[KVC_SLOWEST]);
/* Returns the longest duration of an operation in the last ten minutes, in ns; 0: none. */
uint64_t kvc_latency_longest(struct kvc *k, enum kvc_operation op);

#endif
