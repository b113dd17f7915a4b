/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite of shared tiers: every driver must pass it, alone and behind a shim.
 * kvcachectl tier-test runs it over a user's program.
 */
#ifndef KVM_TIER_SUITE_H
#define KVM_TIER_SUITE_H

#include "tier.h"

struct kvm_tier_suite {
	struct kvc_tier *t;
	bool lists; /* the tier can list its frames */
	/*
	 * For a tier with KVC_TIER_LENT, which takes no frames: the mount of the node that it reads
	 * from. The frames are stored as files there. NULL: the tier takes frames.
	 */
	const char *node;
	/* Is called after each check, by one thread at a time. */
	void (*report)(void *arg, bool passed, const char *what);
	void *arg;
};
/*
 * Stores, reads, replaces, lists and removes frames of 0 bytes to 40 MiB, also with eight threads
 * at once. The frames have paths below "kvcachefs-tier-test/" and are removed; others are left
 * alone. With `node`, the tier must refuse frames, and these must be found in a list of names;
 * nothing is listed, replaced at the same time, or put in part. Returns the number of failed
 * checks, or -ENOMEM. Takes about 100 MiB of memory.
 */
int kvm_tier_suite_run(struct kvm_tier_suite *s);
/*
 * For a tier in which every third put and every third get fails: a failed put must leave either
 * nothing or the whole frame. With `node` only gets fail. Returns as above.
 */
int kvm_tier_suite_faults(struct kvm_tier_suite *s);

#endif
