/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory budget: one limit (memory=) for all memory outside the pool whose size depends on
 * users, files or remote services. A fixed part of it is for buffers that cannot be refused: those
 * of requests (the queues of io_uring) and of the threads that call tiers. The rest is taken when
 * needed and given back: buffers of tier work, codec contexts, responses of remote services, range
 * tables, the texts of leases and of the other files of .kvcachefs/, the data of waiting writes.
 * Take the bytes before the allocation and give them back after the free.
 *
 * Users' texts may use a quarter of that rest, waiting writes an eighth, and tier work five
 * eighths. Copies and listings may use three fifths of the part for tier work, so that loads, which
 * callers wait for, find memory when copies do not. Waiting writes need space that copies free, so
 * they cannot take the memory of copies.
 *
 * The budget belongs to the process. It has no limit, and still counts, until kvc_budget_start is
 * called, so the tools can use the same code. All functions are thread-safe. Their lock is a leaf;
 * only kvc_budget_wait and kvc_budget_buffer_wait block, and must not be called with a lock held.
 */
#ifndef KVC_BUDGET_H
#define KVC_BUDGET_H

#include "stats.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kvc_budget_use {
	KVC_BUDGET_LOAD,  /* reads from tiers, which a caller may wait for */
	KVC_BUDGET_COPY,  /* writes to tiers, listings, sweeps */
	KVC_BUDGET_TEXT,  /* texts that users write to and read from .kvcachefs/ */
	KVC_BUDGET_WRITE, /* data of writes that wait */
	KVC_BUDGET_USES
};

/*
 * The smallest number of bytes by which the limit must exceed the fixed part: it is enough for
 * copies to hold the two parts of an upload to S3 and their other buffers.
 */
#define KVC_BUDGET_MIN (48ull << 20)

/*
 * Returns by how many bytes the limit exceeds its fixed part if memory=0: a quarter of the memory
 * that the machine, or the memory cgroup, has outside a pool of pool_bytes; at least 128 MiB and at
 * most 1 GiB.
 */
uint64_t kvc_budget_default(uint64_t pool_bytes);
/*
 * Sets the limit and its fixed part, in bytes, and how long kvc_budget_wait waits. Waits and
 * refusals are counted in *stats, which must outlive all other calls; NULL: they are not counted.
 */
void kvc_budget_start(uint64_t limit, uint64_t fixed, uint64_t wait_ms, struct kvc_stats *stats);
/* Removes the limit if it was set with these stats. */
void kvc_budget_stop(const struct kvc_stats *stats);

/*
 * Takes `bytes` if they are free now. Returns 0 or -ENOMEM. Never blocks. KVC_BUDGET_TEXT and
 * KVC_BUDGET_WRITE may be taken with locks held.
 */
int kvc_budget_reserve(enum kvc_budget_use use, uint64_t bytes);
/* The same for a caller that can do without: a failure is not counted as a refusal. */
int kvc_budget_try(enum kvc_budget_use use, uint64_t bytes);
/*
 * Takes `bytes`, and waits for others to give theirs back, in the order of arrival, loads first.
 * Returns 0, or -ENOMEM if this use can never have this many bytes or the wait took too long (a
 * quarter of deadline=, at most two seconds). -ENOMEM from a driver does not count as a failure of
 * its tier: a load tries the next tier, and a copy is retried later.
 */
int kvc_budget_wait(enum kvc_budget_use use, uint64_t bytes);
/*
 * Takes `bytes` even if they exceed the limit: for a buffer that exists already and was larger than
 * the bytes taken for it.
 */
void kvc_budget_force(enum kvc_budget_use use, uint64_t bytes);
/* Gives bytes back. */
void kvc_budget_release(enum kvc_budget_use use, uint64_t bytes);

/* Returns the bytes that this use may have at most; UINT64_MAX: no limit. */
uint64_t kvc_budget_most(enum kvc_budget_use use);

struct kvc_budget_state {
	uint64_t limit;      /* bytes; 0: no limit */
	uint64_t fixed;      /* bytes of the limit that are never given back */
	uint64_t used, peak; /* bytes taken now, and the maximum since the start */
};
void kvc_budget_state(struct kvc_budget_state *s);

/*
 * Sets a hook that frees caches. It is called without locks when memory is short, before a caller
 * waits. There is one hook.
 */
void kvc_budget_on_short(void (*release)(void));

/*
 * A buffer whose bytes count towards the budget, aligned to a page. Zero the struct before its
 * first use.
 */
struct kvc_buffer {
	uint8_t *p;
	size_t len;
	enum kvc_budget_use use;
};
/*
 * Allocates a buffer; waits as kvc_budget_wait does. `len` may be 0. Returns 0, or -ENOMEM with *b
 * empty.
 */
int kvc_budget_buffer_wait(struct kvc_buffer *b, enum kvc_budget_use use, size_t len);
/*
 * Makes an allocated or zeroed buffer hold at least `len` bytes, without waiting; its content
 * stays. Returns 0, or -ENOMEM with *b unchanged. In a zeroed buffer, `use` must be set.
 */
int kvc_budget_buffer_grow(struct kvc_buffer *b, size_t len);
/* Frees the buffer and empties *b. */
void kvc_budget_buffer_free(struct kvc_buffer *b);
/* Declares a buffer that is freed at the end of its scope: KVC_BUFFER b = { 0 }; */
#define KVC_BUFFER __attribute__((cleanup(kvc_budget_buffer_free))) struct kvc_buffer

#endif
