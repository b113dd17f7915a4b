/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction policies: a rank for a chunk from what is known of its use; the lowest rank is evicted
 * first. One row each. Ranks are kept in the catalog, so after a restart the next victims are the
 * ones that would have been.
 *
 * A model can have a policy of its own (user.kvcachefs.policy). Ranks of different policies do not
 * compare, so chunks are in classes: 0 is the mount's policy, 1 + n is the nth policy, chosen for a
 * model. Each class has its own order of victims, and the classes give in proportion to the chunks
 * that they have in the pool.
 */
#ifndef KVC_POLICY_H
#define KVC_POLICY_H

#include <stdint.h>

struct kvc_use {
	uint64_t created_ns; /* first publish of one of its objects */
	uint64_t last_ns;    /* last open or publish */
	uint64_t hits;       /* opens since */
};

struct kvc_policy {
	const char *name;
	int64_t (*rank)(const struct kvc_use *use);
};

#define KVC_POLICIES(X) X(lru) X(fifo) X(lfu) X(mru)
#define X(name) +1
enum { KVC_CLASSES = 1 KVC_POLICIES(X) };
#undef X

extern const struct kvc_policy kvc_policies[];
extern const char *const kvc_policy_names[]; /* the same order, ended by NULL */

#endif
