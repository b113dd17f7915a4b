/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters, shown by .kvcachefs/stats and .kvcachefs/metrics. KVC_COUNTERS has a row for each
 * counter, KVC_REASONS for each reason of an eviction, KVC_REFUSALS for each reason why the disk
 * tier refuses a chunk, KVC_HISTOGRAMS for each histogram of times, KVC_SIZE_HISTOGRAMS for each
 * histogram of sizes, and KVC_OPERATIONS for each duration. Counters never decrease. They are
 * relaxed atomics, because no decision depends on them. Each thread adds to one of KVC_SHARDS
 * copies, because cores that add to one counter wait for each other's caches; a reader adds the
 * copies up.
 */
#ifndef KVC_STATS_H
#define KVC_STATS_H

#include "policy.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* clang-format off: a table */
/*      name                what it counts */
#define KVC_COUNTERS(X)                                                                           \
	X(opens, "files opened")                                                                  \
	X(creates, "files created")                                                               \
	X(publishes, "objects published when their last writer closed them")                      \
	X(pool_hits, "opens answered from the pool")                                              \
	X(pool_misses, "opens that waited for a load")                                            \
	X(found, "chunks that clients asked for and found, once per request")                     \
	X(absent, "names that clients asked for and that did not exist")                          \
	X(lookups_absent, "lookups of names that did not exist, except before a creation")        \
	X(lease_found, "files that leases found")                                                 \
	X(lease_absent, "names that leases did not find")                                         \
	X(look_found, "files that looks found (the library's prefix calls)")                      \
	X(look_absent, "names that looks did not find")                                           \
	X(loads, "objects loaded into the pool from a tier")                                      \
	X(load_bytes, "bytes loaded into the pool")                                               \
	X(load_failures, "loads that failed because no tier had a good copy")                     \
	X(load_timeouts, "opens that failed at the deadline")                                     \
	X(unserved_loads, "loads that no tier served in time, reported as misses")                \
	X(spills, "objects written to a tier")                                                    \
	X(spill_bytes, "bytes written to a tier")                                                 \
	X(spill_failures, "writes to a tier that failed")                                         \
	X(spills_given_up, "copies that cannot be made until the file or the keys change")        \
	X(spills_dropped, "copies to a shared tier dropped because its queue was full")           \
	X(spill_stale, "writes to a tier undone because the object had changed")                  \
	X(evictions, "objects evicted from the pool that remain in a tier")                       \
	X(evicted_chunks, "chunks evicted from the pool")                                         \
	X(disk_refusals, "uses of chunks that the disk's policy refused to keep on the disk")     \
	X(pool_refusals, "new chunks that the policy refused to keep; they leave the pool first") \
	X(drops, "objects dropped from their last tier")                                          \
	X(dropped_chunks, "chunks dropped")                                                       \
	X(trimmed_chunks, "chunks evicted from a tier to keep it below its watermark")            \
	X(behind_drops, "chunks dropped because copies lagged for longer than pace=")             \
	X(paced, "writes throttled because copies or commits lagged")                             \
	X(knocks, "chunk folders whose names were invalidated in the kernel before a drop")       \
	X(epochs, "times all names were invalidated in the kernel at once")                       \
	X(expired_chunks, "chunks dropped because their ttl ran out")                             \
	X(corrupt, "damaged copies found in a tier and discarded")                                \
	X(replaced, "loads of copies in a shared tier that another node has replaced")            \
	X(tier_errors, "failed tier operations")                                                  \
	X(tier_refusals, "tier operations refused: no permission, read-only, full, rate limited") \
	X(breaker_opened, "times a breaker suspended a class of calls that failed")               \
	X(breaker_closed, "times a suspended class of calls was resumed")                         \
	X(removals_given_up,                                                                      \
	  "removals from a shared tier postponed to the next start or abandoned")                 \
	X(room_waits, "creates and writes that waited for space in the pool")                     \
	X(room_refusals, "creates and writes refused with ENOSPC")                                \
	X(memory_waits, "tier operations that waited because the limit memory= was reached")      \
	X(memory_refusals, "operations refused because the limit memory= was reached")            \
	X(quota_waits, "creates and writes that waited for their model's quota")                  \
	X(quota_refusals, "creates and writes refused with EDQUOT")                               \
	X(share_refusals, "opens, leases and writes refused because the user reached share=")     \
	X(pin_refusals, "pins refused because the limit pins= was reached")                       \
	X(quota_drops, "chunks dropped to keep a model within its quota")                         \
	X(tenant_drops, "chunks dropped to keep a tenant within its quota")                       \
	X(tenant_evictions,                                                                       \
	  "chunks evicted from the pool because their tenant was above its share")                \
	X(hints, "commands with hints about chunks")                                              \
	X(finished_evictions, "chunks that left the pool because a client called them finished")  \
	X(plain_opens, "opens served by plain requests")                                          \
	X(passthrough_opens, "opens served by passthrough")                                       \
	X(plain_reads, "read requests served by the daemon")                                      \
	X(plain_writes, "write requests served by the daemon")                                    \
	X(lookups, "lookup requests")                                                             \
	X(getattrs, "getattr requests")                                                           \
	X(requests, "requests of all kinds that a caller waited for")                             \
	X(late_replies, "requests answered after waiting")                                        \
	X(waits_refused, "requests ended early because no waiting slot was free")                 \
	X(arrival_waits, "leases that waited for names that did not exist")                       \
	X(arrival_refusals, "leases that did not wait for a name because too many leases waited") \
	X(asks, "names looked up in the shared tiers")                                            \
	X(ask_batches, "requests to a shared tier about many names")                              \
	X(ask_hits, "names found in a shared tier")                                               \
	X(announces, "objects and folders of this node that the directory of peers was told of")  \
	X(announce_failures, "times the directory of peers could not be told of changes")         \
	X(announce_restarts, "times all objects had to be announced to the directory again")      \
	X(peer_answers, "frames, or parts of frames, sent to other nodes")                        \
	X(peer_bytes, "bytes of frames sent to other nodes")                                      \
	X(peer_haves, "requests of other nodes about many names that were answered")              \
	X(peer_offers, "names that other nodes offered")                                          \
	X(peer_offers_refused, "names that other nodes offered and this node did not take")       \
	X(pushes, "names offered to other nodes")                                                 \
	X(pushes_refused, "names that other nodes did not take")                                  \
	X(peer_changes, "changes of chunks that other nodes asked for")                           \
	X(peer_changes_refused, "changes of chunks that other nodes asked for without effect")    \
	X(peer_stale,                                                                             \
	  "requests of other nodes for an earlier run of this daemon, or without its epoch")      \
	X(peer_refusals,                                                                          \
	  "requests of other nodes refused: not signed, old, sent before, or for another node")   \
	X(imports, "objects imported from the listing of a shared tier")                          \
	X(rekeyed, "copies encrypted again with a newer key")                                     \
	X(unsealable, "frames that could not be read because this mount lacks their key")         \
	X(unknown_keys, "frames found in shared tiers whose key is not in the key file")          \
	X(coded_bytes, "bytes of coded copies before coding")                                     \
	X(coded_stored_bytes, "bytes of coded copies after coding")                               \
	X(lossy_copies, "copies coded with loss")                                                 \
	X(lossy_moved, "copies made from the coded blocks of another copy, without new loss")     \
	X(lossy_no_layout, "copies without loss because the model has no layout")                 \
	X(lossy_no_fit, "copies without loss because the size does not fit the layout")           \
	X(lossy_sparse, "copies without loss because the file has holes")                         \
	X(lossy_refused_blocks, "blocks without loss in copies with a lossy codec")               \
	X(loads_decoded, "loads that replaced the written bytes by decoded ones")                 \
	X(commits, "catalog transactions committed")                                              \
	X(access_rows, "chunk rows updated after accesses")                                       \
	X(access_bytes, "bytes written to the catalog and the policy state for accesses")         \
	X(accesses_forgotten,                                                                     \
	  "chunks whose latest accesses were not stored because too many waited")                 \
	X(syncs, "syncs of the catalog's log to free space in the tiers")                         \
	X(refused_changes, "changes refused because the catalog could not write")                 \
	X(commit_failures, "catalog commits that failed and are retried")                         \
	X(leases, "lease transactions")                                                           \
	X(recovered, "objects recovered from the pool at start")                                  \
	X(recovery_drops, "files dropped at start because they were unfinished or had no copy")

/* Reasons for which a chunk was evicted or dropped. */
#define KVC_REASONS(X)                                 \
	X(pool, "space was needed in the pool")        \
	X(tier, "space was needed in a tier")          \
	X(quota, "the quota of its model was reached") \
	X(tenant, "its tenant was above its quota")    \
	X(ttl, "its ttl ran out")                      \
	X(behind, "copies lagged")                     \
	X(demote, "a user requested it")               \
	X(refused, "the disk tier did not admit it")

/* Reasons for which the disk tier refused a chunk that was evicted from the pool. */
#define KVC_REFUSALS(X)                                  \
	X(twice, "it was accessed only once")            \
	X(worth, "the disk's policy keeps other chunks") \
	X(daily, "the daily= limit of written bytes was reached")

/* in powers of two of a second */
#define KVC_HISTOGRAMS(X)                                                                \
	X(eviction_age, "age of chunks when they left the pool or a tier")               \
	X(use_gap, "time between two accesses to a chunk, except accesses in one burst") \
	X(drop_gap, "time from the drop of a chunk to a request for its name")

/* in powers of two of a MiB */
#define KVC_SIZE_HISTOGRAMS(X)                                                          \
	X(drop_gap_bytes,                                                               \
	  "bytes dropped for lack of space between a drop and a request for the chunk") \
	X(evict_gap_bytes,                                                              \
	  "bytes evicted from the pool between an eviction and an open of the chunk")

/* in powers of two of a microsecond; successful operations only */
/*      name    of which tiers    what */
#define KVC_OPERATIONS(X)                                                                        \
	X(open, KVC_BY_ALL, "an open, from the pool (cpu) or after a load from a tier")          \
	X(create, KVC_BY_POOL, "the creation of a file")                                         \
	X(rename, KVC_BY_NONE, "a rename")                                                       \
	X(load, KVC_BY_TIERS, "reading a copy from a tier into the pool, without queueing time") \
	X(spill, KVC_BY_TIERS, "writing a copy to a tier, without queueing time")                \
	X(commit, KVC_BY_NONE, "a transaction of the catalog")
/* clang-format on */

enum kvc_by { KVC_BY_NONE, KVC_BY_POOL, KVC_BY_TIERS, KVC_BY_ALL };

enum kvc_operation {
#define X(name, by, what) KVC_OP_##name,
	KVC_OPERATIONS(X)
#undef X
		KVC_OPERATIONS_N
};

enum kvc_reason {
#define X(name, what) KVC_FOR_##name,
	KVC_REASONS(X)
#undef X
		KVC_REASONS_N
};

enum kvc_refusal {
	KVC_ADMISSION_OK,
#define X(name, what) KVC_REFUSED_##name,
	KVC_REFUSALS(X)
#undef X
		KVC_REFUSALS_N
};

/*
 * A histogram in powers of two of a unit, which is a time or a size: n[i] counts times above
 * 2^(i-1) and up to 2^i. The last element also counts all longer times.
 */
#define KVC_SPANS 26
#define KVC_IN_SECONDS 1000000000ull
#define KVC_IN_MICROSECONDS 1000ull
#define KVC_IN_MIB (1ull << 20) /* of bytes: sum_ns is the sum of the bytes */
struct kvc_histogram {
	_Atomic uint64_t n[KVC_SPANS], sum_ns;
};

static inline void kvc_histogram_add(struct kvc_histogram *h, uint64_t unit_ns, uint64_t ns)
{
	unsigned i = 0;

	while (i < KVC_SPANS - 1 && ns > unit_ns << i)
		i++;
	atomic_fetch_add_explicit(&h->n[i], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&h->sum_ns, ns, memory_order_relaxed);
}

/*
 * Estimates the duration, in units of the histogram, that this fraction (0 to 1) of the counted
 * operations did not exceed; 0 if nothing was counted. Like histogram_quantile of Prometheus, it
 * assumes that the durations of an element are spread evenly, and that none exceeds the end of the
 * last but one element.
 */
double kvc_histogram_quantile(const uint64_t n[KVC_SPANS], double part);

#define KVC_PLACES 5 /* the tiers by number; the last is the pool, or no tier */

#define KVC_SHARDS 16u
#define KVC_CACHE_LINE 64

/* A small number that identifies the calling thread. */
extern _Thread_local unsigned kvc_stats_thread_;
unsigned kvc_stats_thread_new(void);
static inline unsigned kvc_stats_thread(void)
{
	return kvc_stats_thread_ ? kvc_stats_thread_ : kvc_stats_thread_new();
}

struct kvc_stats_shard {
	_Alignas(KVC_CACHE_LINE) struct {
#define X(name, what) _Atomic uint64_t name;
		KVC_COUNTERS(X)
#undef X
	} counters;
	struct kvc_histogram took[KVC_OPERATIONS_N][KVC_PLACES];
};

struct kvc_stats {
	struct kvc_stats_shard shard[KVC_SHARDS];
	_Atomic uint64_t evicted_for[KVC_REASONS_N];
	/* evicted_for by place (KVC_PLACES: all places) and policy */
	_Atomic uint64_t evicted_by[KVC_PLACES + 1][KVC_CLASSES - 1][KVC_REASONS_N];
	/* requests for missing names of chunks that were dropped for this reason */
	_Atomic uint64_t absent_after[KVC_REASONS_N];
	_Atomic uint64_t refused_chunks[KVC_REFUSALS_N], refused_bytes[KVC_REFUSALS_N];
#define X(name, what) struct kvc_histogram name;
	KVC_HISTOGRAMS(X)
	KVC_SIZE_HISTOGRAMS(X)
#undef X
};

static inline struct kvc_stats_shard *kvc_stats_here(struct kvc_stats *s)
{
	return &s->shard[kvc_stats_thread() % KVC_SHARDS];
}

/* The sum of a counter's copies. at: its offset in the struct of the counters. */
uint64_t kvc_stats_sum(const struct kvc_stats *s, size_t at);
/* Adds up the copies of the histogram of an operation in a place. */
void kvc_stats_took(const struct kvc_stats *s, enum kvc_operation op, unsigned place,
		    struct kvc_histogram *sum);

/* The durations of all operations so far, by operation and place. */
struct kvc_stats_durations {
	uint64_t ns; /* the time when they were read, by kvc_mono_ns */
	uint64_t n[KVC_OPERATIONS_N][KVC_PLACES][KVC_SPANS];
};
/* Sets n of *d; the caller sets ns. */
void kvc_stats_durations(const struct kvc_stats *s, struct kvc_stats_durations *d);

#define kvc_count(stats, name) kvc_count_by(stats, name, 1)
#define kvc_count_by(stats, name, n) \
	atomic_fetch_add_explicit(&kvc_stats_here(stats)->counters.name, n, memory_order_relaxed)
/* The same for a counter that has one copy. */
#define kvc_count_one(counter, n) atomic_fetch_add_explicit(counter, n, memory_order_relaxed)
#define kvc_counter_at(name) offsetof(__typeof__(((struct kvc_stats_shard *)NULL)->counters), name)
#define kvc_counted(stats, name) kvc_stats_sum(stats, kvc_counter_at(name))

#endif
