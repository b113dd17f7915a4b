/* SPDX-License-Identifier: Apache-2.0 */
/* See file.h. One thread at a time has a file. */
#include "file.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

int kvcachefs_file_init(struct kvcachefs_file *f, const char *mount, const char *path, size_t len)
{
	*f = (struct kvcachefs_file){ .len = len, .fd = -1 };
	if (asprintf(&f->path, "%s/%s", mount, path) < 0) {
		f->path = NULL;
		return kvcachefs_fail(-ENOMEM, "out of memory");
	}
	return 0;
}

static int make_folders(char *path, size_t from)
{
	for (char *s = strchr(path + from, '/'); s; s = strchr(s + 1, '/')) {
		*s = 0;
		if (mkdir(path, 0777) && errno != EEXIST) {
			int err = kvcachefs_fail(-errno, "%s: %s", path, strerror(errno));

			*s = '/';
			return err;
		}
		*s = '/';
	}
	return 0;
}

int kvcachefs_file_make(struct kvcachefs_file *f, const char *mount)
{
	static _Atomic unsigned long count;
	int err = make_folders(f->path, strlen(mount) + 1);

	if (err)
		return err;
	if (asprintf(&f->tmp, "%s.tmp.%d.%lu", f->path, (int)getpid(),
		     atomic_fetch_add(&count, 1)) < 0) {
		f->tmp = NULL;
		return kvcachefs_fail(-ENOMEM, "out of memory");
	}
	f->fd = open(f->tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (f->fd < 0)
		return kvcachefs_fail(-errno, "%s: %s", f->tmp, strerror(errno));
	/* Room first: a mapping's write must not be the one that finds the pool full. */
	if (f->len && fallocate(f->fd, 0, 0, (off_t)f->len))
		return kvcachefs_fail(-errno, "%s: no room for %zu bytes: %s", f->path, f->len,
				      strerror(errno));
	f->map = f->len ? mmap(NULL, f->len, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, 0) : NULL;
	if (f->map == MAP_FAILED) {
		f->map = NULL;
		return kvcachefs_fail(-errno, "%s cannot be mapped: %s", f->tmp, strerror(errno));
	}
	return 0;
}

int kvcachefs_file_seal(struct kvcachefs_file *f, const char *layout)
{
	int err = 0;

	if (f->map)
		munmap(f->map, f->len);
	f->map = NULL;
	if (f->fd < 0)
		return 0;
	if (layout && fsetxattr(f->fd, KVCACHEFS_LAYOUT_XATTR, layout, strlen(layout), 0))
		err = kvcachefs_fail(-errno, "%s: its layout cannot be kept: %s", f->path,
				     strerror(errno));
	if (close(f->fd) && !err)
		err = kvcachefs_fail(-errno, "%s: %s", f->path, strerror(errno));
	f->fd = -1;
	return err;
}

int kvcachefs_file_publish(struct kvcachefs_file *f)
{
	if (rename(f->tmp, f->path))
		return kvcachefs_fail(-errno, "%s: %s", f->path, strerror(errno));
	free(f->tmp);
	f->tmp = NULL;
	return 0;
}

void kvcachefs_file_fini(struct kvcachefs_file *f)
{
	kvcachefs_file_seal(f, NULL);
	if (f->tmp)
		unlink(f->tmp);
	free(f->tmp);
	free(f->path);
}
