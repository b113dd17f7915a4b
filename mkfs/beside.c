/* SPDX-License-Identifier: Apache-2.0 */
/* See beside.h. */
#include "beside.h"

#include "util.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Its own name. One that is there is of a process that is no more: it had our number. */
static int open_own(const struct kvm_beside *b, mode_t mode)
{
	int fd = -1;

	for (int i = 0; i < 2 && fd < 0; i++) {
		fd = open(b->own, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
		if (fd < 0 && (errno != EEXIST || unlink(b->own)))
			break;
	}
	return fd < 0 ? -errno : fd;
}

/* Made anew it is still its owner's, where we may say so. */
static int take_after(int fd, const struct stat *st)
{
	if (fchown(fd, st->st_uid, st->st_gid) && errno != EPERM)
		return -errno;
	return fchmod(fd, st->st_mode & 07777) ? -errno : 0;
}

int kvm_beside_open(struct kvm_beside *b, const char *path, mode_t mode, bool only_new)
{
	struct stat st;
	bool there = !lstat(path, &st), dangling = false;
	int fd, err = there || errno == ENOENT ? 0 : -errno;

	*b = (struct kvm_beside){ .only_new = only_new };
	if (err || !*path)
		return err ?: -ENOENT;
	if (there && only_new)
		return -EEXIST;
	if (there && S_ISLNK(st.st_mode)) /* it stays one */
		dangling = stat(path, &st) != 0;
	b->path = there && !dangling ? realpath(path, NULL) : strdup(path);
	if (!b->path)
		return -errno;
	/* or all that is written would be for nothing */
	if (there && S_ISREG(st.st_mode) && kvc_is_mounted(b->path))
		err = -EBUSY;
	else if ((!there || S_ISREG(st.st_mode)) && !dangling &&
		 asprintf(&b->own, "%s.%d.new", b->path, (int)getpid()) < 0) {
		b->own = NULL;
		err = -ENOMEM;
	}
	fd = err      ? err
	     : b->own ? open_own(b, mode)
		      : open(b->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
	if (fd < 0) {
		err = err ?: b->own ? fd : -errno;
	} else if ((b->own && there && (err = take_after(fd, &st))) || !(b->f = fdopen(fd, "w"))) {
		err = err ?: -errno;
		close(fd);
		if (b->own)
			unlink(b->own);
	}
	if (err) {
		free(b->own);
		free(b->path);
	}
	return err;
}

static int take_place(const struct kvm_beside *b)
{
	if (!b->only_new)
		return rename(b->own, b->path) ? -errno : 0;
	if (!renameat2(AT_FDCWD, b->own, AT_FDCWD, b->path, RENAME_NOREPLACE))
		return 0;
	if (errno != EINVAL) /* as filesystems say that do not know it */
		return -errno;
	if (link(b->own, b->path))
		return -errno;
	unlink(b->own);
	return 0;
}

int kvm_beside_end(struct kvm_beside *b, int err)
{
	if (!err && (ferror(b->f) | fflush(b->f)))
		err = errno ? -errno : -EIO;
	if (!err && b->own && fsync(fileno(b->f)))
		err = -errno;
	if (fclose(b->f) && !err)
		err = -errno;
	if (!err && b->own)
		err = take_place(b);
	if (err && b->own)
		unlink(b->own);
	free(b->own);
	free(b->path);
	return err;
}

const char *kvm_beside_why(int err)
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

int kvm_beside_keep(const char *path)
{
	char whole[PATH_MAX];
	KVC_FD int fd = -1;

	if (!realpath(path, whole))
		return -errno;
	fd = open(dirname(whole), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 || fsync(fd) ? -errno : 0;
}
