/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples of a few counters over the last hour, and of the durations of all operations over the
 * last ten minutes, for the status page. A thread takes a sample every KVFS_EVERY_S seconds and
 * stores it in a ring buffer. Any thread may read.
 */
#ifndef KVFS_HISTORY_H
#define KVFS_HISTORY_H

#include "stats.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define KVFS_EVERY_S 10u
#define KVFS_SAMPLES_N (3600u / KVFS_EVERY_S + 1) /* an hour, with both of its ends */

/* The counters of a sample: X(name of the member, name of the counter in base/stats.h). */
#define KVFS_SAMPLED(X)              \
	X(found, found)              \
	X(absent, absent)            \
	X(hits, pool_hits)           \
	X(misses, pool_misses)       \
	X(creates, creates)          \
	X(loaded_bytes, load_bytes)  \
	X(copied_bytes, spill_bytes) \
	X(evicted_chunks, evicted_chunks)

struct kvfs_sample {
	uint64_t ns; /* time of the sample, by kvc_mono_ns */
#define X(name, counter) uint64_t name;
	KVFS_SAMPLED(X)
#undef X
	uint64_t pool_used_bytes;
	uint64_t reasons[KVC_REASONS_N]; /* chunks that left the pool or a tier, by reason */
	uint64_t opens[KVC_SPANS];       /* durations of opens, in microseconds (KVC_OPERATIONS) */
};

#define KVFS_DURATIONS_S 60u /* between two samples of durations; a quantile covers this time */
#define KVFS_DURATIONS_N 11u /* ten minutes, with both ends */

struct kvfs_history {
	pthread_mutex_t lock; /* guards all members below */
	pthread_cond_t cond;
	pthread_t thread;
	bool runs, ends;
	struct kvfs_sample v[KVFS_SAMPLES_N];
	size_t n; /* samples taken so far; the last one is v[(n - 1) % KVFS_SAMPLES_N] */
	struct kvc_stats_durations durations[KVFS_DURATIONS_N];
	size_t durations_n; /* the same for durations */
};

struct kvc;

void kvfs_history_init(struct kvfs_history *h);
/*
 * Takes a first sample and starts the thread. Returns 0 or a negative errno. k must outlive the
 * thread.
 */
int kvfs_history_start(struct kvfs_history *h, struct kvc *k);
void kvfs_history_stop(struct kvfs_history *h);
void kvfs_history_add(struct kvfs_history *h, const struct kvfs_sample *s);
/* Adds a sample of durations if the last one is about KVFS_DURATIONS_S old. */
void kvfs_history_add_durations(struct kvfs_history *h, const struct kvc_stats_durations *d);
struct kvfs_sample kvfs_sample_now(struct kvc *k);
/*
 * Returns the newest sample that is at least `seconds` older than `now`. If all samples are
 * younger, returns the oldest; if there are no samples, returns *now.
 */
struct kvfs_sample kvfs_history_before(struct kvfs_history *h, const struct kvfs_sample *now,
				       unsigned seconds);
/*
 * Copies the oldest sample of durations to *d. If there are no samples, d->n is 0 and d->ns the
 * time of *now.
 */
void kvfs_history_durations(struct kvfs_history *h, const struct kvfs_sample *now,
			    struct kvc_stats_durations *d);
/*
 * Prints a JSON object with an array for each field, from the oldest sample to `now`. The quantiles
 * of the opens are of the minute before each sample, null if it had no opens.
 */
void kvfs_history_print(struct kvfs_history *h, const struct kvfs_sample *now, FILE *out);

#endif
