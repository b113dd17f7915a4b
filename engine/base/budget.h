/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory budget: one limit (memory=) for all memory beside the pool whose size users, files or
 * remote services decide. A fixed part of it is for buffers that cannot be refused: of requests
 * (the queues of io_uring), and of the threads that call tiers. The rest is taken and given back:
 * buffers of tier work, codec contexts, answers of remote services, range tables, the texts of
 * leases and of the other files of .kvcachefs/, the data of waiting writes. Take the bytes before
 * the allocation and give them back after the free.
 *
 * Users' texts may use a quarter of that rest, waiting writes an eighth, and tier work five
 * eighths. Copies and listings may use three fifths of the part for tier work, so that loads, which
 * callers wait for, find memory when copies do not. Writes wait for room that copies make, and
 * cannot take their memory.
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
	KVC_BUDGET_LOAD,  /* reads from tiers that somebody may wait for */
	KVC_BUDGET_COPY,  /* writes to tiers, listings, sweeps */
	KVC_BUDGET_TEXT,  /* what users write to and read from .kvcachefs/ */
	KVC_BUDGET_WRITE, /* the data of writes that wait */
	KVC_BUDGET_USES
};

/*
 * The least that must be left of the limit beside the fixed part, in bytes: copies have room for
 * the two parts of an upload to S3 and for their other buffers.
 */
#define KVC_BUDGET_MIN (48ull << 20)

/* The limit for memory=0: a quarter of what the machine, or the memory cgroup, has beside a pool of
 * so many bytes; at least 128 MiB and at most 1 GiB. */
uint64_t kvc_budget_default(uint64_t pool_bytes);
/*
 * Sets the limit and the fixed part of it in bytes, and how long kvc_budget_wait waits. Waits and
 * refusals are counted in *stats, which must outlive all other calls, or nowhere if it is NULL.
 */
void kvc_budget_start(uint64_t limit, uint64_t fixed, uint64_t wait_ms, struct kvc_stats *stats);
/* Removes the limit, if it is the one of these stats. */
void kvc_budget_stop(const struct kvc_stats *stats);

/*
 * Takes `bytes` if they are free now. 0 or -ENOMEM. Never blocks. KVC_BUDGET_TEXT and
 * KVC_BUDGET_WRITE may be taken with locks held.
 */
int kvc_budget_take(enum kvc_budget_use use, uint64_t bytes);
/*
 * Takes `bytes`, and waits for others to give theirs back, in the order of arrival and loads first.
 * 0; -ENOMEM: more than this use may ever have, or the wait took too long (a quarter of deadline=,
 * two seconds at most). -ENOMEM of a driver is no failure of its tier: a load goes on to the next
 * tier, a copy is retried later.
 */
int kvc_budget_wait(enum kvc_budget_use use, uint64_t bytes);
/* Takes `bytes` in any case: for what exists already and was found larger than it was taken for. */
void kvc_budget_force(enum kvc_budget_use use, uint64_t bytes);
/* Gives bytes back. */
void kvc_budget_give(enum kvc_budget_use use, uint64_t bytes);

/* Bytes that this use may have at most; UINT64_MAX: no limit. */
uint64_t kvc_budget_most(enum kvc_budget_use use);

struct kvc_budget_state {
	uint64_t limit;      /* bytes; 0: none */
	uint64_t fixed;      /* bytes of it that are not taken and given back */
	uint64_t used, peak; /* bytes of the rest: now, and the most since the start */
};
void kvc_budget_state(struct kvc_budget_state *s);

/* Called without locks when memory is short, before anybody waits: frees caches. One hook. */
void kvc_budget_on_short(void (*release)(void));

/* A buffer of the budget's, on the page boundary. Zero it before its first use. */
struct kvc_buffer {
	uint8_t *p;
	size_t len;
	enum kvc_budget_use use;
};
/* Allocates; waits as kvc_budget_wait does. 0 or -ENOMEM, and *b is empty. `len` may be 0. */
int kvc_budget_buffer_wait(struct kvc_buffer *b, enum kvc_budget_use use, size_t len);
/*
 * Makes an allocated or zeroed buffer hold at least `len` bytes, without waiting; what was in it
 * stays. 0, or -ENOMEM with *b unchanged. A zeroed buffer has to have its use set.
 */
int kvc_budget_buffer_grow(struct kvc_buffer *b, size_t len);
/* Frees, and empties *b. */
void kvc_budget_buffer_free(struct kvc_buffer *b);
/* KVC_BUFFER b = { 0 }; frees it at the end of its scope. */
#define KVC_BUFFER __attribute__((cleanup(kvc_budget_buffer_free))) struct kvc_buffer

#endif
