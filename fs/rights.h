/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFS_RIGHTS_H
#define KVFS_RIGHTS_H

#include <stdbool.h>

/* CAP_SYS_ADMIN, which mounting takes: here, or of the whole machine (the first user namespace). */
bool kvfs_admin_here(void);
bool kvfs_admin_of_all(void);
/*
 * Looks whether mounting on mountpoint can go well, before anything is touched: with
 * CAP_SYS_ADMIN, or by fusermount3 as an ordinary user. 0, or -EPERM with one line in error
 * (512 bytes) that says what is missing and what to do. Does not block.
 */
int kvfs_may_mount(bool allow_other, const char *mountpoint, char *error);
/* Detaches what lies mounted there, by fusermount3 where the right is missing. 0 or -errno. */
int kvfs_detach(const char *mountpoint);

#endif
