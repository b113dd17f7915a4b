/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long operations took (latency.c): each in its histogram of stats.h, and the slowest of the
 * last minutes one by one. Any thread, with or without locks.
 */
#ifndef KVC_LATENCY_H
#define KVC_LATENCY_H

#include "kvc.h"

#define KVC_OF_POOL (KVC_PLACES - 1u) /* in the place of a tier's number: the pool, or none */
#define KVC_SLOW_EACH 4u /* of each operation: many slow copies do not hide one slow open */
#define KVC_SLOWEST (KVC_SLOW_EACH * KVC_OPERATIONS_N)

struct kvc_latency_slow {
	uint64_t ended_ns, took_ns; /* kvc_mono_ns; 0: none */
	uint64_t model;             /* 0: of none, or it is not known */
	enum kvc_operation op;
	unsigned tier;
};

struct kvc_latency {
	pthread_mutex_t lock; /* a leaf */
	struct kvc_latency_slow_set {
		struct kvc_latency_slow v[KVC_SLOW_EACH];
		/* what took no longer is none of them, until the first of them is old */
		_Atomic uint64_t least_ns, until_ns;
	} of[KVC_OPERATIONS_N];
};

/* One that began then (kvc_mono_ns) has ended well just now. */
void kvc_latency_record(struct kvc *k, enum kvc_operation op, unsigned tier, uint64_t model,
			uint64_t begun_ns);
/* The slowest of the last ten minutes of all operations, the slowest first; how many. */
size_t kvc_latency_slowest(struct kvc *k, struct kvc_latency_slow v[KVC_SLOWEST]);

#endif
