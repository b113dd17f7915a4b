/* SPDX-License-Identifier: Apache-2.0 */
/* The check of files that hold secrets (secret.h). */
#include "secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool kvc_secret_is_private(const struct stat *st)
{
	if (!S_ISREG(st->st_mode) || (st->st_uid && st->st_uid != geteuid()))
		return false;
	if (!(st->st_mode & 077))
		return true;
	return !(st->st_mode & 037) && !st->st_uid;
}

const char *kvc_secret_why(const struct stat *st)
{
	if (!S_ISREG(st->st_mode))
		return "is not a regular file";
	if (st->st_uid && st->st_uid != geteuid())
		return "belongs to another user: chown it to the daemon's user or root";
	return "is accessible to other users: chmod 600 it (in a Kubernetes secret, defaultMode: "
	       "0400)";
}

int kvc_secret_open(const char *path, struct stat *st, char *why)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), err;

	if (fd < 0 || fstat(fd, st)) {
		err = -errno;
		snprintf(why, KVC_SECRET_WHY, "cannot be opened: %s", strerror(-err));
	} else if (kvc_secret_is_private(st)) {
		return fd;
	} else {
		err = -EACCES;
		snprintf(why, KVC_SECRET_WHY, "%s", kvc_secret_why(st));
	}
	if (fd >= 0)
		close(fd);
	return err;
}
