/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction policies, one row each: who goes first. What a policy does is in engine/policy/. Here is
 * what the catalog keeps of it: a rank for a chunk from what is known of its use, the lowest first.
 * By that the chunks of a tier go where the policy is no more than such a rank.
 *
 * A model can have a policy of its own (user.kvcachefs.policy). Ranks of different policies do not
 * compare, so chunks are in classes: 0 is the mount's policy, 1 + n is the nth policy, chosen for a
 * model. Each class has its own order of victims, and the classes give in proportion to the chunks
 * that they have in the pool.
 */
#ifndef KVC_POLICY_H
#define KVC_POLICY_H

#include <stdbool.h>
#include <stdint.h>

struct kvc_access {
	uint64_t created_ns; /* first publish of one of its objects */
	uint64_t last_ns;    /* last open or publish */
	uint64_t hits;       /* opens since */
};

struct kvc_policy {
	const char *name;
	int64_t (*rank)(const struct kvc_access *use);
	/*
	 * It is that rank, also in that a chunk does not go before what follows it: of a request
	 * the last is the first to go (access/access.c). So a tier needs no order in memory.
	 */
	bool by_rank;
	bool by_chain; /* it needs to know what follows what, and learns it where nobody tells */
};

/* Of those that are more than a rank the catalog has the last use. */
#define KVC_POLICIES(X)              \
	X(lru, lru, true, false)     \
	X(fifo, fifo, false, false)  \
	X(lfu, lfu, false, false)    \
	X(mru, mru, false, false)    \
	X(s3fifo, lru, false, false) \
	X(arc, lru, false, false)    \
	X(gdsf, lru, false, true)    \
	X(leaf, lru, false, true)    \
	X(prefix, lru, false, true)
#define X(name, rank, by_rank, by_chain) +1
enum { KVC_CLASSES = 1 KVC_POLICIES(X) };
#undef X

extern const struct kvc_policy kvc_policy_table[];
extern const char *const kvc_policy_names[];      /* the same order, ended by NULL */
extern const char *const kvc_policy_disk_names[]; /* "same" before them */

#endif
