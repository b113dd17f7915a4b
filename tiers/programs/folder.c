/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier in a folder, as an example of kvctier.h: each value is a file. kvcachefs-ext(7) shows how
 * to build and mount it. For real use, dir:// is better.
 */
#define KVCTIER_IMPLEMENTATION
#include "kvctier.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static int folder;

static int64_t folder_get(void *state, const uint8_t key[16], uint64_t offset, void *to, size_t len)
{
	char name[33];
	int fd = openat(folder, kvctier_text(key, name), O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : pread(fd, to, len, (off_t)offset);
	int err = errno;

	(void)state;
	if (fd >= 0)
		close(fd);
	return n < 0 ? -err : n;
}

/* Writes all of the data to the descriptor, and closes it. */
static int write_all(int fd, const char *data, size_t len)
{
	int err = 0;

	while (len && !err) {
		ssize_t n = write(fd, data, len);

		err = n < 0 ? -errno : 0;
		data += n;
		len -= (size_t)n;
	}
	return close(fd) && !err ? -errno : err;
}

/* Other nodes may share the folder, so the temporary name is random. */
static int folder_put(void *state, const uint8_t key[16], const void *data, size_t len,
		      uint64_t expiry_ms)
{
	char name[33], temporary[56];
	uint64_t random = 0;
	int fd, err;

	(void)state;
	(void)expiry_ms;
	if (getrandom(&random, sizeof random, 0) < 0)
		return -errno;
	snprintf(temporary, sizeof temporary, "%s.%016llx", kvctier_text(key, name),
		 (unsigned long long)random);
	fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	err = write_all(fd, data, len);
	if (!err && renameat(folder, temporary, folder, name))
		err = -errno;
	if (err)
		unlinkat(folder, temporary, 0);
	return err;
}

static int folder_del(void *state, const uint8_t key[16])
{
	char name[33];

	(void)state;
	return unlinkat(folder, kvctier_text(key, name), 0) ? -errno : 0;
}

static int64_t folder_list(void *state, uint64_t *cursor, uint8_t (*keys)[16], size_t most)
{
	int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e = NULL;
	size_t n = 0;

	(void)state;
	if (!d)
		return -errno;
	if (*cursor)
		seekdir(d, (long)*cursor);
	while (n < most && (e = readdir(d))) {
		int end = 0;

		if (strlen(e->d_name) != 32)
			continue;
		for (int i = 0; i < 16; i++)
			end += sscanf(e->d_name + 2 * i, "%2hhx", &keys[n][i]);
		n += end == 16;
	}
	*cursor = e ? (uint64_t)telldir(d) : 0;
	closedir(d);
	return (int64_t)n;
}

static int folder_used(void *state, uint64_t *used, uint64_t *size)
{
	struct statvfs v;

	(void)state;
	if (fstatvfs(folder, &v))
		return -errno;
	*size = v.f_blocks * v.f_frsize;
	*used = (v.f_blocks - v.f_bfree) * v.f_frsize;
	return 0;
}

int main(void)
{
	const struct kvctier_driver driver = {
		.name = "folder",
		.get = folder_get,
		.put = folder_put,
		.del = folder_del,
		.list = folder_list,
		.used = folder_used,
	};
	const char *path;

	kvctier_open();
	path = kvctier_option("folder");
	if (!path)
		kvctier_refuse(-EINVAL, "give ?folder=PATH");
	folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
		kvctier_refuse(-errno, "the folder cannot be opened");
	return kvctier_serve(&driver);
}
