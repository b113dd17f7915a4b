/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of devices before they become part of a store, for mkfs.kvcachefs and kvcachectl add. */
#ifndef KVM_DEVICE_H
#define KVM_DEVICE_H

#include "store.h"

/*
 * Makes a path absolute, but does not resolve links: links in /dev/disk/by-id follow their disk.
 * Returns 0, or 1 after a message.
 */
int kvm_device_path(const char *path, char out[1024]);
/*
 * Checks that a block device, open as `fd`, has no filesystem or partition table. Returns 0, or 1
 * after a message that names --force.
 */
int kvm_device_empty(int fd, const char *path);

#endif
