/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mark of a dir tier's folder: a file with a random id that distinguishes the folder from an
 * empty mount point or another share. The first node creates it. Each store remembers the id in the
 * file STORE/dir-remotes/ID.mark; ID is a hash of the store's uuid and the tier's id. So a folder
 * whose filesystem is not mounted at the start of the daemon is detected, too.
 *
 * This file also has the calls with which the tier opens and reads the files of its folder.
 */
#include "dir.h"

#include "tier.h"
#include "util.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define REMOTES "dir-remotes"

int kvct_dir_openat(int at, const char *name, int flags)
{
	int fd = openat(at, name, flags | O_CLOEXEC);

	if (fd < 0 && errno == ESTALE)
		fd = openat(at, name, flags | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int kvct_dir_file(int sub, const char *name)
{
	int fd = kvct_dir_openat(sub, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	int err = fd < 0 ? fd : fstat(fd, &st) ? -errno : S_ISREG(st.st_mode) ? 0 : -EBADMSG;

	if (!err)
		return fd;
	kvc_close_fd(&fd);
	return err;
}

int kvct_dir_read(int fd, const struct iovec *iov, int n, uint64_t off)
{
	struct stat st;
	uint64_t end;

	if (fstat(fd, &st))
		return -errno;
	end = kvc_round_up((uint64_t)st.st_size, KVC_PAGE);
	for (int i = 0; i < n; i++) {
		uint64_t want = iov[i].iov_len,
			 have = off < (uint64_t)st.st_size
					? kvc_min(want, (uint64_t)st.st_size - off)
					: 0;
		int err;

		if (off + want > end)
			return -EBADMSG;
		if (have && (err = kvc_pread_all(fd, iov[i].iov_base, have, (off_t)off)))
			return err == -ENODATA ? -EBADMSG : err;
		memset((char *)iov[i].iov_base + have, 0, want - have);
		off += want;
	}
	return 0;
}

int kvct_dir_store_file(const char *store, const char *id, const char *what, bool make,
			char name[32])
{
	struct kvc_sum sum = kvc_sum_of(id, strlen(id));
	KVC_FD int top = open(store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	uint64_t number;
	int dir;

	memcpy(&number, sum.b, sizeof number);
	snprintf(name, 32, "%016" PRIx64 ".%s", number, what);
	if (top < 0)
		return -errno;
	if (make && mkdirat(top, REMOTES, 0700) && errno != EEXIST)
		return -errno;
	dir = openat(top, REMOTES, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return dir < 0 ? -errno : dir;
}

/* Reads the id from a file. Returns false if the file has none. */
static bool id_read(int dir, const char *name, char id[33])
{
	KVC_FD int fd = kvct_dir_file(dir, name);
	char text[33];

	if (fd < 0 || kvc_pread_all(fd, text, sizeof text, 0) || text[32] != '\n' ||
	    strspn(text, "0123456789abcdef") != 32)
		return false;
	memcpy(id, text, 32);
	id[32] = 0;
	return true;
}

/* Creates a file with the id. The name must not exist. */
static int id_write(int dir, const char *name, const char *id, mode_t mode)
{
	char text[34];
	KVC_FD int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
			       mode);
	int err = fd < 0 ? -errno : 0;

	if (err)
		return err;
	snprintf(text, sizeof text, "%s\n", id);
	err = fchmod(fd, mode) ? -errno : kvc_pwrite_all(fd, text, 33, 0);
	err = err ?: fsync(fd) ? -errno : 0;
	if (err)
		unlinkat(dir, name, 0);
	return err;
}

bool kvct_dir_mark_read(int root, char id[33])
{
	return id_read(root, KVCT_DIR_MARK, id);
}

void kvct_dir_mark_make(int root, const char *id)
{
	struct kvc_where random;
	char text[33], tmp[64];

	if (getrandom(&random, sizeof random, 0) != sizeof random)
		return;
	kvc_frame_where_text(&random, text);
	snprintf(tmp, sizeof tmp, KVCT_DIR_MARK ".%s", text);
	/* the id is not secret, and daemons of other users must read it */
	if (id_write(root, tmp, id ? id : text, 0644))
		return;
	if (linkat(root, tmp, root, KVCT_DIR_MARK, 0) &&
	    (errno == EPERM || errno == ENOSYS || errno == EOPNOTSUPP))
		renameat(root, tmp, root, KVCT_DIR_MARK); /* the filesystem has no hard links */
	unlinkat(root, tmp, 0);
}

bool kvct_dir_mark_remembered(const char *store, const char *id, char mark[33])
{
	char name[32];
	KVC_FD int dir = kvct_dir_store_file(store, id, "mark", false, name);

	return dir >= 0 && id_read(dir, name, mark);
}

int kvct_dir_mark_remember(const char *store, const char *id, const char *mark)
{
	char name[32], tmp[40];
	KVC_FD int dir = kvct_dir_store_file(store, id, "mark", true, name);
	int err = dir < 0 ? dir : 0;

	if (err)
		return err;
	snprintf(tmp, sizeof tmp, "%s.new", name);
	unlinkat(dir, tmp, 0);
	err = id_write(dir, tmp, mark, 0600);
	return err ?: renameat(dir, tmp, dir, name) ? -errno : 0;
}
