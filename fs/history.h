/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples of a few counters over the last hour, for the status page. A thread takes a sample every
 * KVFS_EVERY_S seconds and stores it in a ring buffer. Any thread may read.
 */
#ifndef KVFS_HISTORY_H
#define KVFS_HISTORY_H

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
};

struct kvfs_history {
	pthread_mutex_t lock; /* guards all members below */
	pthread_cond_t cond;
	pthread_t thread;
	bool runs, ends;
	struct kvfs_sample v[KVFS_SAMPLES_N];
	size_t n; /* samples taken so far; the last one is v[(n - 1) % KVFS_SAMPLES_N] */
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
struct kvfs_sample kvfs_sample_now(struct kvc *k);
/*
 * Returns the newest sample that is at least `seconds` older than `now`. If all samples are
 * younger, returns the oldest; if there are no samples, returns *now.
 */
struct kvfs_sample kvfs_history_before(struct kvfs_history *h, const struct kvfs_sample *now,
				       unsigned seconds);
/* Prints a JSON object with an array for each field, from the oldest sample to `now`. */
void kvfs_history_print(struct kvfs_history *h, const struct kvfs_sample *now, FILE *out);

#endif
