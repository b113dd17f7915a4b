/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters: one row each in KVC_COUNTERS, shown by .kvcachefs/stats and .kvcachefs/metrics; one in
 * KVC_REASONS for why chunks go, one in KVC_REFUSALS for why the disk does not get them, one in
 * KVC_HISTOGRAMS for ages, and one in KVC_OPERATIONS for how long calls and work take. They only
 * grow; relaxed atomics, because nothing is decided by them.
 */
#ifndef KVC_STATS_H
#define KVC_STATS_H

#include "policy.h"

#include <stdatomic.h>
#include <stdint.h>

/* clang-format off: a table */
/*      name                what one count is */
#define KVC_COUNTERS(X)                                                                           \
	X(opens, "files opened")                                                                  \
	X(creates, "files created")                                                               \
	X(publishes, "objects published by their last writer's close")                            \
	X(pool_hits, "opens answered from the pool")                                              \
	X(pool_misses, "opens that waited for a load")                                            \
	X(loads, "objects loaded into the pool from a tier")                                      \
	X(load_bytes, "bytes loaded into the pool")                                               \
	X(load_failures, "loads for which no tier had a good copy")                               \
	X(load_timeouts, "opens that gave up at the deadline")                                    \
	X(unserved_loads, "loads that no tier served in time, told as misses")                    \
	X(spills, "objects written to a tier")                                                    \
	X(spill_bytes, "bytes written to a tier")                                                 \
	X(spill_failures, "writes to a tier that failed")                                         \
	X(spills_given_up, "copies that cannot be made before the file or the keys change")       \
	X(spills_dropped, "copies to a shared tier given up because too many waited")             \
	X(spill_stale, "writes to a tier undone because the object changed")                      \
	X(evictions, "objects that left the pool and stay in a tier")                             \
	X(evicted_chunks, "chunks evicted from the pool")                                         \
	X(drops, "objects dropped from their last tier")                                          \
	X(dropped_chunks, "chunks dropped whole")                                                 \
	X(trimmed_chunks, "chunks that left a tier to keep it below its mark")                    \
	X(behind_drops, "chunks dropped because copies were behind for longer than pace=")        \
	X(paced, "stores that waited their turn because copies or commits were behind")           \
	X(knocks, "chunk folders whose names the kernel was told to ask for anew before they go") \
	X(epochs, "times the kernel was told to ask anew for all names at once")                  \
	X(expired_chunks, "chunks dropped because their ttl ran out")                             \
	X(corrupt, "copies in a tier found damaged and discarded")                                \
	X(tier_errors, "failed tier operations")                                                  \
	X(tier_refusals,                                                                          \
	  "tier operations refused: no permission, read-only, full, asked to slow down")          \
	X(breaker_opened, "times a breaker took out calls of a class, which failed")              \
	X(breaker_closed, "times such calls were made again")                                     \
	X(removals_given_up, "removals from a shared tier left to the next start, or for ever")   \
	X(room_waits, "creates and writes that waited for room in the pool")                      \
	X(room_refusals, "creates and writes refused with ENOSPC")                                \
	X(memory_waits, "tier operations that waited for memory of memory=")                      \
	X(memory_refusals, "operations that got no memory because memory= was in use")            \
	X(quota_waits, "creates and writes that waited for their model's quota")                  \
	X(quota_refusals, "creates and writes refused with EDQUOT")                               \
	X(share_refusals, "opens, leases and writes refused because a user held his share=")      \
	X(pin_refusals, "pins refused because of pins=")                                          \
	X(quota_drops, "chunks dropped to keep a model within its quota")                         \
	X(plain_opens, "opens served by plain requests")                                          \
	X(passthrough_opens, "opens served by passthrough")                                       \
	X(plain_reads, "read requests served by the daemon")                                      \
	X(plain_writes, "write requests served by the daemon")                                    \
	X(lookups, "lookup requests")                                                             \
	X(getattrs, "getattr requests")                                                           \
	X(requests, "requests of all kinds that a caller waited for")                             \
	X(late_replies, "requests answered after waiting")                                        \
	X(waits_refused, "requests that ended as at their deadline: no free place to wait")       \
	X(asks, "names asked for in the shared tiers")                                            \
	X(ask_hits, "names that a shared tier had")                                               \
	X(imports, "objects taken in from a remote listing")                                      \
	X(rekeyed, "copies sealed again with a newer key")                                        \
	X(unsealable, "loads that failed for want of a key")                                      \
	X(unknown_keys, "frames of shared tiers met whose key is not in the key file")            \
	X(coded_bytes, "bytes before coding of copies that were coded")                           \
	X(coded_stored_bytes, "what those take after it")                                         \
	X(commits, "catalog transactions committed")                                              \
	X(access_rows, "chunk rows brought up to date after accesses")                            \
	X(access_bytes, "bytes written to the store for accesses: catalog and policies")          \
	X(accesses_forgotten, "chunks whose latest accesses were not stored: too many waited")    \
	X(syncs, "times the catalog's log was brought to stable storage for freed space")         \
	X(refused_changes, "changes refused because the catalog could not write")                 \
	X(commit_failures, "catalog commits that failed and are tried again")                     \
	X(leases, "lease transactions")                                                           \
	X(recovered, "objects found in the pool at start")                                        \
	X(recovery_drops, "files dropped at start: unfinished or without a copy")

/* Why a chunk left the pool or a tier, or was dropped. */
#define KVC_REASONS(X)                         \
	X(pool, "room was wanted in the pool") \
	X(tier, "room was wanted in a tier")   \
	X(quota, "its model's quota")          \
	X(ttl, "its ttl ran out")              \
	X(behind, "copies were behind")        \
	X(demote, "somebody asked for it")     \
	X(refused, "the disk tier did not let it in")

/* Why the disk tier did not let in a chunk that left the pool. */
#define KVC_REFUSALS(X)                        \
	X(twice, "it was asked for only once") \
	X(daily, "as much was written today as daily= says")

/* by powers of two of a second */
#define KVC_HISTOGRAMS(X)                                                                        \
	X(eviction_age, "seconds from the making of a chunk to when it left the pool or a tier") \
	X(use_gap, "seconds between two uses of a chunk that were not of one burst")

/* by powers of two of a microsecond; of them those that went well */
/*      name    of which tiers    what */
#define KVC_OPERATIONS(X)                                                                     \
	X(open, KVC_BY_ALL, "an open, from the pool (cpu) or after a load from a tier")       \
	X(create, KVC_BY_POOL, "the creation of a file")                                      \
	X(rename, KVC_BY_NONE, "a rename")                                                    \
	X(load, KVC_BY_TIERS, "the reading of a copy from a tier into the pool, of no queue") \
	X(spill, KVC_BY_TIERS, "the writing of a copy to a tier, of no queue")                \
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
	KVC_ADMITTED,
#define X(name, what) KVC_REFUSED_##name,
	KVC_REFUSALS(X)
#undef X
		KVC_REFUSALS_N
};

/* Times by powers of two of a unit: n[i] up to 2^i and above 2^(i-1); the last: all above. */
#define KVC_SPANS 26
#define KVC_IN_SECONDS 1000000000ull
#define KVC_IN_MICROSECONDS 1000ull
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

#define KVC_PLACES 5 /* the tiers by number, and the pool, or none, as the last */

struct kvc_stats {
#define X(name, what) _Atomic uint64_t name;
	KVC_COUNTERS(X)
#undef X
	_Atomic uint64_t evicted_for[KVC_REASONS_N];
	/* the same, by place (KVC_PLACES: all of them) and policy */
	_Atomic uint64_t evicted_by[KVC_PLACES + 1][KVC_CLASSES - 1][KVC_REASONS_N];
	_Atomic uint64_t refused_chunks[KVC_REFUSALS_N], refused_bytes[KVC_REFUSALS_N];
#define X(name, what) struct kvc_histogram name;
	KVC_HISTOGRAMS(X)
#undef X
	struct kvc_histogram took[KVC_OPERATIONS_N][KVC_PLACES];
};

#define kvc_count(stats, name) kvc_count_by(stats, name, 1)
#define kvc_count_by(stats, name, n) \
	atomic_fetch_add_explicit(&(stats)->name, n, memory_order_relaxed)
#define kvc_counted(stats, name) atomic_load_explicit(&(stats)->name, memory_order_relaxed)

#endif
