/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFS_RIGHTS_H
#define KVFS_RIGHTS_H

#include <stdbool.h>

/*
 * True if the process has CAP_SYS_ADMIN, which mounting requires: in its own user namespace, or in
 * the first user namespace (root of the machine).
 */
bool kvfs_admin_here(void);
bool kvfs_admin_of_all(void);
/*
 * Checks whether the process can mount on mountpoint, with CAP_SYS_ADMIN or through fusermount3,
 * before anything is changed. Returns 0, or -EPERM with one line in error[512] that names the
 * missing right and the fix. Does not block.
 */
int kvfs_may_mount(bool allow_other, const char *mountpoint, char *error);
/*
 * Detaches the mount on mountpoint, through fusermount3 if the process lacks the right. Returns 0
 * or a negative errno.
 */
int kvfs_detach(const char *mountpoint);

#endif
