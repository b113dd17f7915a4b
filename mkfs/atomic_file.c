/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are replaced by a rename. See atomic_file.h. */
#include "atomic_file.h"

#include "util.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/*
 * Creates the temporary file. A file of that name was left by a dead process with the same pid, and
 * is removed.
 */
static int open_temp(const struct kvm_atomic_file *b, mode_t mode)
{
	int fd = -1;

	for (int i = 0; i < 2 && fd < 0; i++) {
		fd = open(b->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
		if (fd < 0 && (errno != EEXIST || unlink(b->temp)))
			break;
	}
	return fd < 0 ? -errno : fd;
}

/* Gives the new file the owner, if permitted, and the mode of the old file. */
static int copy_owner(int fd, const struct stat *st)
{
	if (fchown(fd, st->st_uid, st->st_gid) && errno != EPERM)
		return -errno;
	return fchmod(fd, st->st_mode & 07777) ? -errno : 0;
}

int kvm_atomic_file_open(struct kvm_atomic_file *b, const char *path, mode_t mode, bool only_new)
{
	struct stat st;
	bool there = !lstat(path, &st), dangling = false;
	int fd, err = there || errno == ENOENT ? 0 : -errno;

	*b = (struct kvm_atomic_file){ .only_new = only_new };
	if (err || !*path)
		return err ?: -ENOENT;
	if (there && only_new)
		return -EEXIST;
	if (there && S_ISLNK(st.st_mode)) /* the symbolic link itself remains */
		dangling = stat(path, &st) != 0;
	b->path = there && !dangling ? realpath(path, NULL) : strdup(path);
	if (!b->path)
		return -errno;
	/* The rename at the end would fail. */
	if (there && S_ISREG(st.st_mode) && kvc_is_mounted(b->path))
		err = -EBUSY;
	else if ((!there || S_ISREG(st.st_mode)) && !dangling &&
		 asprintf(&b->temp, "%s.%d.new", b->path, (int)getpid()) < 0) {
		b->temp = NULL;
		err = -ENOMEM;
	}
	fd = err       ? err
	     : b->temp ? open_temp(b, mode)
		       : open(b->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
	if (fd < 0) {
		err = err ?: b->temp ? fd : -errno;
	} else if ((b->temp && there && (err = copy_owner(fd, &st))) || !(b->f = fdopen(fd, "w"))) {
		err = err ?: -errno;
		close(fd);
		if (b->temp)
			unlink(b->temp);
	}
	if (err) {
		free(b->temp);
		free(b->path);
	}
	return err;
}

static int rename_over(const struct kvm_atomic_file *b)
{
	if (!b->only_new)
		return rename(b->temp, b->path) ? -errno : 0;
	if (!renameat2(AT_FDCWD, b->temp, AT_FDCWD, b->path, RENAME_NOREPLACE))
		return 0;
	if (errno != EINVAL) /* the filesystem does not support RENAME_NOREPLACE */
		return -errno;
	if (link(b->temp, b->path))
		return -errno;
	unlink(b->temp);
	return 0;
}

int kvm_atomic_file_close(struct kvm_atomic_file *b, int err)
{
	if (!err && (ferror(b->f) | fflush(b->f)))
		err = errno ? -errno : -EIO;
	if (!err && b->temp && fsync(fileno(b->f)))
		err = -errno;
	if (fclose(b->f) && !err)
		err = -errno;
	if (!err && b->temp)
		err = rename_over(b);
	if (err && b->temp)
		unlink(b->temp);
	free(b->temp);
	free(b->path);
	return err;
}

const char *kvm_atomic_file_why(int err)
{
	switch (err) {
	case EBUSY:
	case EXDEV:
		return "it is a bind mount and cannot be replaced; give its path in the original "
		       "folder, or bind-mount that folder";
	case EACCES:
		return "Permission denied; a new file is written in its folder: run as root, or as "
		       "a user with write permission there";
	default: return kvc_why(err);
	}
}

int kvm_sync_name(const char *path)
{
	char whole[PATH_MAX];
	KVC_FD int fd = -1;

	if (!realpath(path, whole))
		return -errno;
	fd = open(dirname(whole), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 || fsync(fd) ? -errno : 0;
}
