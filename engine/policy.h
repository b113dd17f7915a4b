/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction policies: a rank for a chunk from what is known of its use; the lowest rank is evicted first. One row
 * each. Ranks are kept in the catalog, so after a restart the next victims are the ones that would have been.
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

extern const struct kvc_policy kvc_policies[];
extern const char *const kvc_policy_names[]; /* the same order, ended by NULL */

#endif
