/* SPDX-License-Identifier: Apache-2.0 */
/* What is mounted here, for the tools. */
#ifndef KVM_MOUNTS_H
#define KVM_MOUNTS_H

#include <sys/types.h>

struct kvm_mounted {
	dev_t dev;
	char root[4096]; /* what of the filesystem is mounted there: "/", or a folder of it */
	char path[4096]; /* where */
	char type[32], source[64]; /* a longer one is cut */
};

/* Calls fn for each. A non-zero answer ends it and is returned; or a negative errno. */
int kvm_mounts_each(int (*fn)(void *arg, const struct kvm_mounted *m), void *arg);

#endif
