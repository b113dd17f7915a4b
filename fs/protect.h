/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFS_PROTECT_H
#define KVFS_PROTECT_H

/*
 * Protects the folder of a mount point against writers while nothing is mounted on it: makes it
 * immutable (chattr +i), or sets mode 0000 if the filesystem or a missing capability does not allow
 * that. Logs one line if anything changed. The protection stays after an unmount. Call it before
 * the mount. Returns 0, or a negative errno with one line in error[512].
 */
int kvfs_protect_mountpoint(const char *path, char *error);

#endif
