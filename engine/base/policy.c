/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of the eviction policies (policy.h). */
#include "policy.h"

#include <stddef.h>

static int64_t lru(const struct kvc_access *u)
{
	return (int64_t)u->last_ns;
}

static int64_t fifo(const struct kvc_access *u)
{
	return (int64_t)u->created_ns;
}

/*
 * The fewest hits first; among equal hits, the least recently used. Distinguishes up to 2^21 hits,
 * and times in steps of 2^21 ns (2 ms).
 */
static int64_t lfu(const struct kvc_access *u)
{
	uint64_t hits = u->hits < (1u << 21) ? u->hits : (1u << 21) - 1;

	return (int64_t)(hits << 42 | (u->last_ns >> 21 & ((1ull << 42) - 1)));
}

static int64_t mru(const struct kvc_access *u)
{
	return -(int64_t)u->last_ns;
}

#define X(name, rank, by_rank, by_chain) { #name, rank, by_rank, by_chain },
const struct kvc_policy kvc_policy_table[] = { KVC_POLICIES(X) };
#undef X
#define X(name, rank, by_rank, by_chain) #name,
const char *const kvc_policy_names[] = { KVC_POLICIES(X) NULL };
const char *const kvc_policy_disk_names[] = { "same", KVC_POLICIES(X) NULL };
#undef X
