/* SPDX-License-Identifier: Apache-2.0 */
/* Pools in memory, of running daemons or left behind, for kvcachectl pools and mkfs --force. */
#ifndef KVM_POOLS_H
#define KVM_POOLS_H

#include "owner.h"

struct kvm_pool {
	char path[1024];
	bool mounted; /* true: its own tmpfs; false: a folder of a tmpfs */
	bool marked;  /* its mark was read: owner is valid */
	bool lives;   /* a running daemon uses it */
	bool wanted;  /* its store exists and will use it at the next mount */
	struct kvc_owner owner;
	uint64_t bytes, files; /* bytes of memory; number of objects */
	/* last time that an object was added or removed, or its state changed */
	time_t changed;
};

/*
 * Calls fn for each pool that is a mount of its own, and for each pool in `folder` (NULL:
 * /run/kvcachefs). If fn returns non-zero, that ends the loop and is returned. Returns a negative
 * errno if the pools cannot be read.
 */
int kvm_pools_each(const char *folder, int (*fn)(void *arg, const struct kvm_pool *p), void *arg);
/*
 * Frees the pool's memory. Returns 0 or a negative errno. -EBUSY: a daemon uses the pool. -ESTALE:
 * the pool's state has changed, for example its store exists now.
 */
int kvm_pool_free(const struct kvm_pool *p);

#endif
