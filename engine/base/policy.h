/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of eviction policies, one row each. engine/policy/ implements their order in memory.
 * This file defines the rank of a chunk, which the catalog stores: it is computed from the chunk's
 * accesses, and the chunk with the lowest rank is evicted first. If a policy is no more than such a
 * rank, the chunks of a tier are evicted in its order.
 *
 * A model can have its own policy (user.kvcachefs.policy). Ranks of different policies cannot be
 * compared, so each chunk belongs to a class: 0 is the mount's policy, and 1 + n is row n of the
 * table (from 0), if chosen for a model. Each class has its own order of victims, and the classes
 * give victims in proportion to their chunks in the pool.
 */
#ifndef KVC_POLICY_H
#define KVC_POLICY_H

#include <stdbool.h>
#include <stdint.h>

struct kvc_access {
	uint64_t created_ns; /* first publish of one of its objects */
	uint64_t last_ns;    /* last open or publish */
	uint64_t hits;       /* opens since it was created */
};

struct kvc_policy {
	const char *name;
	int64_t (*rank)(const struct kvc_access *use);
	/*
	 * The policy is no more than the rank, so a tier needs no replacer in memory. The ranks
	 * also ensure that a chunk is not evicted before its children: the last chunk of a request
	 * has the lowest rank (access/access.c).
	 */
	bool by_rank;
	bool by_chain; /* the policy uses parents, and infers them if no client names them */
};

/*
 * The columns are name, rank, by_rank and by_chain. Policies that are more than a rank use the last
 * access as their rank in the catalog.
 */
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
extern const char *const kvc_policy_names[];      /* in the order of the table, ended by NULL */
extern const char *const kvc_policy_disk_names[]; /* "same", then the others */

#endif
