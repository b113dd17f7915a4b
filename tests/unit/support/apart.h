/* SPDX-License-Identifier: Apache-2.0 */
/* A mount namespace for the mounts of a test; without root there is none. */
#ifndef KVC_APART_H
#define KVC_APART_H

#include <mntent.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>

/*
 * The test's mounts end with its process. FUSE mounts of other processes are unmounted in it: a
 * daemon ends only when its filesystem is mounted nowhere.
 */
static inline void kvc_apart(void)
{
	char line[8192];
	struct mntent m;
	FILE *f;

	if (unshare(CLONE_NEWNS))
		return;
	mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
	if (!(f = setmntent("/proc/self/mounts", "r")))
		return;
	while (getmntent_r(f, &m, line, sizeof line))
		if (!strncmp(m.mnt_type, "fuse", 4))
			umount2(m.mnt_dir, MNT_DETACH);
	endmntent(f);
}

#endif
