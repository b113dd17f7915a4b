/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The option protect_mountpoint. While no daemon runs, an engine would write into the folder below
 * the mount: the files fill the machine's disk, and the next mount hides them. An immutable folder
 * refuses new names to every user. Mode 0000 does not stop a process with CAP_DAC_OVERRIDE, such as
 * one of root, so it is only used where a folder cannot be immutable.
 */
#include "protect.h"

#include "log.h"
#include "rights.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns 0 if the folder is immutable now, or a negative errno. */
static int make_immutable(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), flags = 0, err = 0;

	if (fd < 0)
		return -errno;
	if (ioctl(fd, FS_IOC_GETFLAGS, &flags)) {
		err = -errno;
	} else if (!(flags & FS_IMMUTABLE_FL)) {
		flags |= FS_IMMUTABLE_FL;
		err = ioctl(fd, FS_IOC_SETFLAGS, &flags) ? -errno : 0;
		if (!err)
			kvc_info("the folder of the mount point %s is immutable now; "
				 "chattr -i ends that",
				 path);
	}
	close(fd);
	return err;
}

int kvfs_protect_mountpoint(const char *path, char *error)
{
	struct stat st;
	int err;

	if (!kvfs_admin_here()) {
		snprintf(error, 512, "option protect_mountpoint: only root can protect %.300s",
			 path);
		return -EPERM;
	}
	err = make_immutable(path);
	if (!err || err == -EROFS)
		return 0;
	if (!stat(path, &st) && !(st.st_mode & 0777))
		return 0;
	if (!chmod(path, 0)) {
		kvc_info("the folder of the mount point %s has mode 0000 now, because it cannot be "
			 "immutable (%s)",
			 path, strerror(-err));
		return 0;
	}
	err = -errno;
	snprintf(error, 512,
		 "option protect_mountpoint: cannot change the folder %.300s: %s; omit the option",
		 path, strerror(-err));
	return err;
}
