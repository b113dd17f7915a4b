/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last hour of a few counters (history.c), for who looks later: a sample each KVFS_EVERY_S
 * seconds, by a thread of its own. Any thread may read.
 */
#ifndef KVFS_HISTORY_H
#define KVFS_HISTORY_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define KVFS_EVERY_S 10u
#define KVFS_SAMPLES_N (3600u / KVFS_EVERY_S + 1) /* both ends of an hour */

/* The counters of a sample: its name here, and that of base/stats.h. */
#define KVFS_SAMPLED(X)              \
	X(hits, pool_hits)           \
	X(misses, pool_misses)       \
	X(creates, creates)          \
	X(loaded_bytes, load_bytes)  \
	X(copied_bytes, spill_bytes) \
	X(evicted_chunks, evicted_chunks)

struct kvfs_sample {
	uint64_t ns; /* kvc_mono_ns */
#define X(name, counter) uint64_t name;
	KVFS_SAMPLED(X)
#undef X
	uint64_t pool_used_bytes;
};

struct kvfs_history {
	pthread_mutex_t lock; /* of all below */
	pthread_cond_t cond;
	pthread_t thread;
	bool runs, ends;
	struct kvfs_sample v[KVFS_SAMPLES_N];
	size_t n; /* samples ever; the last is v[(n - 1) % KVFS_SAMPLES_N] */
};

struct kvc;

void kvfs_history_init(struct kvfs_history *h);
/* Begins with a sample. 0, or why there is no thread. */
int kvfs_history_start(struct kvfs_history *h, struct kvc *k);
void kvfs_history_stop(struct kvfs_history *h);
void kvfs_history_add(struct kvfs_history *h, const struct kvfs_sample *s);
struct kvfs_sample kvfs_sample_now(struct kvc *k);
/*
 * The last sample that is so many seconds older than `now`, or the first there is; `now` itself
 * where there is none.
 */
struct kvfs_sample kvfs_history_before(struct kvfs_history *h, const struct kvfs_sample *now,
				       unsigned seconds);
/* A JSON object: an array for each field, the oldest first, `now` last. */
void kvfs_history_print(struct kvfs_history *h, const struct kvfs_sample *now, FILE *out);

#endif
