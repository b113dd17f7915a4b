/* SPDX-License-Identifier: Apache-2.0 */
/* mount -o remount: changes the options of a mount in use. */
#ifndef KVM_REMOUNT_H
#define KVM_REMOUNT_H

#include <stdbool.h>

/* True if the list of mount options has the word remount. */
bool kvm_remount_asked(const char *options);
/*
 * Changes the options of the mount of `store` on `mountpoint`, all of them or none. mount(8)
 * passes `options`: the options of the mount or of fstab, and then those of the command line.
 * Returns the exit status: 0, or 1 after a message.
 */
int kvm_remount(const char *store, const char *mountpoint, const char *options);

#endif
