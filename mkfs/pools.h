/* SPDX-License-Identifier: Apache-2.0 */
/* Pools that daemons have left in memory, for kvcachectl pools and mkfs --force. */
#ifndef KVM_POOLS_H
#define KVM_POOLS_H

#include "owner.h"

struct kvm_pool {
	char path[1024];
	bool mounted; /* a tmpfs of its own; else a folder of one */
	bool marked;  /* owner is known */
	bool lives;   /* a daemon has it in use */
	bool wanted;  /* its store is there, and finds it at the next mount */
	struct kvc_owner owner;
	uint64_t bytes, files; /* of memory; and how many objects lie there */
	time_t changed;        /* when an object last came, changed its state or went */
};

/*
 * Calls fn for each pool that is mounted anywhere, and each in `folder` (NULL: /run/kvcachefs). A
 * non-zero answer ends it and is returned; or a negative errno.
 */
int kvm_pools_each(const char *folder, int (*fn)(void *arg, const struct kvm_pool *p), void *arg);
/*
 * Gives its memory back: 0 or a negative errno. -EBUSY: a daemon lives there. -ESTALE: it was of no
 * store when it was looked at, and now there is one that would find it.
 */
int kvm_pool_free(const struct kvm_pool *p);

#endif
