/* SPDX-License-Identifier: Apache-2.0 */
/* The list of mounts, for the tools. */
#ifndef KVM_MOUNTS_H
#define KVM_MOUNTS_H

#include <sys/types.h>

struct kvm_mounted {
	dev_t dev;
	char root[4096];   /* the mounted folder of the filesystem; "/" is all of it */
	char path[4096];   /* mount point */
	char type[32];     /* truncated if longer */
	char source[4096]; /* of kvcachefs: the path of the store */
};

/*
 * Calls fn for each mount of the process's namespace. If fn returns non-zero, that ends the loop
 * and is returned. Returns a negative errno if the list cannot be read.
 */
int kvm_mounts_each(int (*fn)(void *arg, const struct kvm_mounted *m), void *arg);

#endif
