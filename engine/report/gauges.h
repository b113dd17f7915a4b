/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the engine as numbers (gauges.c), for text.c (people), metrics.c (Prometheus) and
 * status.c (JSON). One row per gauge; the rows of the counters are in base/stats.h.
 */
#ifndef KVC_GAUGES_H
#define KVC_GAUGES_H

#include "breaker.h"
#include "cache.h"
#include "latency.h"

/* clang-format off: a table */
/* name in stats           name in metrics      description */
#define KVC_GAUGES(X)                                                                             \
	X(pool_bytes, pool_bytes, "size limit of the pool")                                       \
	X(pool_used_bytes, pool_used_bytes, "bytes used or reserved in the pool")                 \
	X(memory_bytes, memory_bytes, "limit of the memory outside the pool (memory=)")           \
	X(memory_fixed_bytes, memory_fixed_bytes, "part of memory= for request and tier buffers") \
	X(memory_used_bytes, memory_used_bytes, "bytes of memory= in use outside the fixed part") \
	X(memory_peak_bytes, memory_peak_bytes, "maximum of memory_used_bytes since the mount")   \
	X(files_open, files_open, "opens that are not released yet")                              \
	X(objects_resident, objects_resident, "published objects in the pool")                    \
	X(nodes_in_memory, nodes_in_memory, "inodes in the memory of the daemon")                 \
	X(room_waiters, room_waiters, "requests that wait for space in the pool")                 \
	X(jobs, jobs, "tier operations queued or running")                                        \
	X(catalog_ok, catalog_ok,                                                                 \
	  "1 if the catalog accepts changes, 0 if it waits for space or for a disk")              \
	X(catalog_pending_bytes, catalog_pending_bytes,                                           \
	  "memory of changes that are not committed yet")                                         \
	X(catalog_log_bytes, catalog_log_bytes, "size of the catalog's write-ahead log")          \
	X(unsynced_bytes, unsynced_bytes,                                                         \
	  "bytes in the tiers that become free when the log is synced")                           \
	X(drop_files, drop_files_max,                                                             \
	  "largest number of files that a drop removed during one hold of the locks")             \
	X(copies_failing, copies_failing,                                                         \
	  "failed copies that wait for a retry, with growing delays")                             \
	X(pins, pins, "pinned chunks")                                                            \
	X(pinned_pool_bytes, pinned_pool_bytes, "bytes of pinned chunks in the pool")             \
	X(pinned_disk_bytes, pinned_disk_bytes, "size of the files of pinned chunks")             \
	X(catalog_inode_bytes, catalog_inode_bytes,                                               \
	  "bytes of inodes and names that count towards catalog=")                                \
	X(catalog_attribute_bytes, catalog_attribute_bytes,                                       \
	  "bytes of attributes that count towards catalog=")                                      \
	X(catalog_limit, catalog_limit_bytes, "limit of both together (catalog=); 0: no limit")   \
	X(daily, daily_limit_bytes,                                                               \
	  "limit of the bytes written to the disk tier per day (daily=); 0: no limit")            \
	X(trace_readers, trace_readers, "running recordings of accesses (kvcachectl trace)")      \
	X(prefault_bytes, prefault_bytes, "bytes of the pool prefaulted so far")                  \
	X(prefault_total, prefault_goal_bytes, "bytes of the pool to prefault")                   \
	X(prefault_held, prefault_held_bytes, "prefaulted bytes still held")
/* clang-format on */

struct kvc_gauges {
#define X(name, metric, what) uint64_t name;
	KVC_GAUGES(X)
#undef X
};
/* Fills *g. The caller holds no lock. */
void kvc_gauges(struct kvc *k, struct kvc_gauges *g);

/* A row of a table of base/stats.h. */
struct kvc_gauge {
	const char *name, *what;
	size_t at; /* offset in the counters of a shard, or of a histogram in struct kvc_stats */
};
extern const struct kvc_gauge kvc_gauges_counter_rows[], kvc_gauges_histogram_rows[],
	kvc_gauges_size_rows[];
extern const size_t kvc_gauges_counter_rows_n, kvc_gauges_histogram_rows_n, kvc_gauges_size_rows_n;
extern const char *const kvc_gauges_reason_names[], *const kvc_gauges_refusal_names[];

static inline uint64_t kvc_gauges_read(const _Atomic uint64_t *n)
{
	return atomic_load_explicit(n, memory_order_relaxed);
}
static inline uint64_t kvc_gauges_counter(const struct kvc *k, size_t i)
{
	return kvc_stats_sum(&k->stats, kvc_gauges_counter_rows[i].at);
}
static inline const struct kvc_histogram *kvc_gauges_histogram(const struct kvc *k,
							       const struct kvc_gauge *row)
{
	return (const void *)((const char *)&k->stats + row->at);
}

struct kvc_tier_gauges {
	const char *name; /* of its kind */
	/* unique: several tiers of a kind are "dir", "dir-2" and so on */
	char label[24];
	const char *breaker; /* "closed", "open", "half open" or "hangs" */
	/*
	 * for each class of calls: 1 if calls are made; the remaining delay; "closed", "refused",
	 * "out", "probing" or "hangs"; the reason
	 */
	struct kvc_call_figures {
		uint64_t up, next_ms;
		const char *state;
		char reason[64];
	} call[KVC_CALLS];
	/* bytes and used are both 0 if the tier does not know them */
	uint64_t bytes, used, written, today, up, waiting, failing, running, removals;
};
/* Sets *d to device `nr` of the disk tier. Returns false if there is none. */
bool kvc_gauges_device(struct kvc *k, unsigned nr, struct kvc_tier_device *d);
/* Returns "up", "leaving", "reads-fail", "writes-fail" or "fails". */
const char *kvc_gauges_device_state(const struct kvc_tier_device *d);
/* Fills v, indexed by the number of the tier. The label of an unused number is empty. */
void kvc_tier_gauges(struct kvc *k, struct kvc_tier_gauges v[KVC_TIERS]);

#endif
