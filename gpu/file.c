/* SPDX-License-Identifier: Apache-2.0 */
/* See file.h. One thread at a time may use a file. */
#include "file.h"
#include "maps.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#define SUFFIX 40  /* bytes of a temporary name's suffix, with its NUL */
#define OLD_MS 100 /* a file prepared earlier than this gets the current time */
/* sealed plain files of the process that stay open until they are published */
#define OPEN_MOST 64
#ifndef STATX_MNT_ID_UNIQUE /* Linux 6.8 */
#define STATX_MNT_ID_UNIQUE 0x4000U
#endif

static _Atomic unsigned kept_open; /* a number of files; it guards no other data */

size_t kvcachefs_file_names_size(const char *mount, const char *path)
{
	return 2 * (strlen(mount) + 1 + strlen(path) + 1) + SUFFIX;
}

void kvcachefs_file_init(struct kvcachefs_file *f, char *names, const char *mount, const char *path,
			 size_t len)
{
	*f = (struct kvcachefs_file){
		.path = names,
		.len = len,
		.mount_len = strlen(mount),
		.fd = -1,
	};
	memcpy(names, mount, f->mount_len);
	names[f->mount_len] = '/';
	strcpy(names + f->mount_len + 1, path);
}

static char *temporary(const struct kvcachefs_file *f)
{
	return f->path + strlen(f->path) + 1;
}

static void set_temporary_name(const struct kvcachefs_file *f)
{
	static _Atomic unsigned long count;
	size_t n = strlen(f->path);
	char *to = temporary(f);

	memcpy(to, f->path, n);
	/* only has to be unique */
	snprintf(to + n, SUFFIX, ".tmp.%d.%lu", (int)getpid(),
		 atomic_fetch_add_explicit(&count, 1, memory_order_relaxed));
}

/* The path names a file: its last part is neither empty, nor "." or "..". */
static int check_path(const struct kvcachefs_file *f)
{
	const char *name = strrchr(f->path, '/') + 1;

	if (*name && strcmp(name, ".") && strcmp(name, ".."))
		return 0;
	return kvcachefs_fail(-EINVAL, "'%s' is not the path of a file",
			      f->path + f->mount_len + 1);
}

static int leads_out(const struct kvcachefs_file *f)
{
	return kvcachefs_fail(-EXDEV, "%s leads out of the mount", f->path);
}

/* Whether an open file or folder is in the mount. Makes no call to the mount. */
static bool inside(const struct kvcachefs_file *f, int fd)
{
	struct statx st;

	return !statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &st) &&
	       makedev(st.stx_dev_major, st.stx_dev_minor) == f->dev;
}

/* Creates the folder f->path if it does not exist. */
static int make_folder(const struct kvcachefs_file *f)
{
	int fd;
	bool in;

	if (mkdir(f->path, 0777)) {
		if (errno == EEXIST)
			return 0;
		return kvcachefs_fail(-errno, "%s: %s", f->path, strerror(errno));
	}
	fd = open(f->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	in = fd < 0 || inside(f, fd); /* fd < 0: it was evicted already */
	if (fd >= 0)
		close(fd);
	if (in)
		return 0;
	rmdir(f->path);
	return leads_out(f);
}

static int make_folders(const struct kvcachefs_file *f)
{
	for (char *s = strchr(f->path + f->mount_len + 1, '/'); s; s = strchr(s + 1, '/')) {
		int err;

		*s = 0;
		err = make_folder(f);
		*s = '/';
		if (err)
			return err;
	}
	return 0;
}

/* Creates a file of that length under the temporary name. */
static int make_named(struct kvcachefs_file *f)
{
	int err = make_folders(f);

	if (err)
		return err;
	set_temporary_name(f);
	f->fd = open(temporary(f), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (f->fd < 0)
		return kvcachefs_fail(-errno, "%s: %s", temporary(f), strerror(errno));
	f->named = true;
	if (!inside(f, f->fd))
		return leads_out(f);
	/* allocate first: a write to the mapping must not be the first to find the pool full */
	if (f->len && fallocate(f->fd, 0, 0, (off_t)f->len))
		return kvcachefs_fail(-errno, "%s: cannot allocate %zu bytes: %s", f->path, f->len,
				      strerror(errno));
	return 0;
}

int kvcachefs_file_mount(const char *mount, uint64_t *dev)
{
	static _Atomic uint64_t known; /* the last mount that is a kvcachefs */
	uint64_t id = 0;
	char path[4200];
	struct statx st;

	if (statx(AT_FDCWD, mount, 0, STATX_TYPE | STATX_MNT_ID_UNIQUE, &st))
		return kvcachefs_fail(-errno, "%s: %s", mount, strerror(errno));
	/* device numbers, and the numbers of mounts in older kernels, are used again */
	if (st.stx_mask & STATX_MNT_ID_UNIQUE)
		id = st.stx_mnt_id;
	if (!id || id != atomic_load_explicit(&known, memory_order_relaxed)) {
		snprintf(path, sizeof path, "%s/.kvcachefs", mount);
		if (access(path, F_OK))
			return kvcachefs_fail(-errno, "%s is not a kvcachefs mount: %s", mount,
					      strerror(errno));
		atomic_store_explicit(&known, id, memory_order_relaxed);
	}
	*dev = makedev(st.stx_dev_major, st.stx_dev_minor);
	return 0;
}

/* Opens an unnamed file in the folder of its path. */
static int open_unnamed(const struct kvcachefs_file *f)
{
	char *end = strrchr(f->path, '/');
	int fd;

	*end = 0;
	fd = open(f->path, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
	*end = '/';
	return fd;
}

int kvcachefs_file_make_plain(struct kvcachefs_file *f, uint64_t dev)
{
	int err = check_path(f);

	if (err)
		return err;
	f->dev = dev;
	f->plain = true;
	f->fd = open_unnamed(f);
	if (f->fd < 0 && errno == ENOENT) {
		err = make_folders(f);
		if (err)
			return err;
		f->fd = open_unnamed(f);
	}
	if (f->fd < 0)
		return kvcachefs_fail(-errno, "%s: cannot create an unnamed file: %s", f->path,
				      strerror(errno));
	return inside(f, f->fd) ? 0 : leads_out(f);
}

static int shut_file(struct kvcachefs_file *f)
{
	int fd = f->fd;

	f->fd = -1;
	if (f->open)
		atomic_fetch_sub_explicit(&kept_open, 1, memory_order_relaxed);
	f->open = false;
	return fd >= 0 && close(fd) ? kvcachefs_fail(-errno, "%s: %s", f->path, strerror(errno))
				    : 0;
}

static void unmake(struct kvcachefs_file *f)
{
	shut_file(f);
	if (f->named)
		unlink(temporary(f));
	f->named = false;
}

int kvcachefs_file_make(struct kvcachefs_file *f, uint64_t dev, int device)
{
	char *end = f->path + f->mount_len;
	struct kvcachefs_want w = { f->path, dev, end + 1, f->len, device };
	int err = check_path(f);

	if (err)
		return err;
	f->dev = dev;
	*end = 0;
	kvcachefs_ready_take(&w, &f->of, &f->m);
	*end = '/';
	if (f->m) {
		f->fd = f->m->fd;
		f->m->fd = -1;
	} else {
		err = make_named(f);
		if ((err == -ENOSPC || err == -EDQUOT) && kvcachefs_ready_short(dev)) {
			unmake(f);
			err = make_named(f);
		}
		if (!err && f->len)
			err = kvcachefs_map_new(f->fd, f->len, device, false, &f->m);
	}
	if (!err && f->m) {
		f->map = f->m->rw;
		f->pinned = f->m->rw_pinned;
	}
	return err;
}

void kvcachefs_file_pin(struct kvcachefs_file *f, int device)
{
	if (!f->m || f->pinned || kvcachefs_cuda_register(device, f->m->rw, f->len, false))
		return;
	f->m->rw_device = device;
	f->m->rw_pinned = f->pinned = true;
}

/*
 * Copies a prepared file that cannot be linked, because its folder has another quota, to a new
 * file.
 */
static int write_again(struct kvcachefs_file *f)
{
	int old = f->fd, err;

	f->fd = -1; /* if no new file can be made, it is not closed twice */
	err = make_named(f);
	close(old);
	for (size_t at = 0; at < f->len && !err;) {
		ssize_t n = pwrite(f->fd, (char *)f->map + at, f->len - at, (off_t)at);

		if (n < 0 && errno != EINTR)
			err = kvcachefs_fail(-errno, "%s: %s", f->path, strerror(errno));
		at += n > 0 ? (size_t)n : 0;
	}
	/* the mapping belongs to the old file and cannot serve loads */
	if (f->m->data)
		munmap(f->m->data, f->len);
	f->m->data = NULL;
	return err;
}

/* Gives an unnamed file a name. Returns 0, or -1 with errno. */
static int link_as(const struct kvcachefs_file *f, const char *name)
{
	char path[40];

	snprintf(path, sizeof path, "/proc/self/fd/%d", f->fd);
	return linkat(AT_FDCWD, path, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

/* Gives a prepared file the temporary name. */
static int link_file(struct kvcachefs_file *f)
{
	set_temporary_name(f);
	for (int again = 0; again < 2; again++) {
		int err;

		f->named = !link_as(f, temporary(f));
		if (f->named)
			return 0;
		if (errno != ENOENT || again)
			break;
		err = make_folders(f);
		if (err)
			return err;
	}
	return f->plain ? kvcachefs_fail(-errno, "%s: %s", f->path, strerror(errno))
			: write_again(f);
}

static int set_layout(const struct kvcachefs_file *f, const char *layout)
{
	if (layout && fsetxattr(f->fd, KVCACHEFS_LAYOUT_XATTR, layout, strlen(layout), 0))
		return kvcachefs_fail(-errno, "%s: cannot store its layout: %s", f->path,
				      strerror(errno));
	return 0;
}

static int seal_plain(struct kvcachefs_file *f, const char *layout)
{
	int err = set_layout(f, layout);

	if (err)
		return err;
	f->open = true;
	if (atomic_fetch_add_explicit(&kept_open, 1, memory_order_relaxed) < OPEN_MOST)
		return 0;
	return link_file(f) ?: shut_file(f);
}

int kvcachefs_file_seal(struct kvcachefs_file *f, const char *layout)
{
	int err = 0;

	if (f->fd < 0 || f->open)
		return 0;
	if (f->plain)
		return seal_plain(f, layout);
	if (!f->named) {
		const struct timespec t[2] = { { .tv_nsec = UTIME_OMIT },
					       { .tv_nsec = UTIME_NOW } };

		/* the file has the time of its preparation; an error is ignored */
		if (kvcachefs_now_ms() - f->m->made_ms > OLD_MS)
			futimens(f->fd, t);
		err = link_file(f);
	}
	f->map = NULL;
	/*
	 * If the mapping is not registered, the mount may see the written bytes only after it is
	 * unmapped.
	 */
	if (f->m && !f->pinned) {
		kvcachefs_map_free(f->m);
		f->m = NULL;
	}
	err = err ?: set_layout(f, layout);
	if (f->m) {
		strncpy(f->m->layout, layout ? layout : "", sizeof f->m->layout - 1);
		f->m->layout_known = true;
	}
	int shut = shut_file(f);

	return err ?: shut;
}

size_t kvcachefs_file_renamed_size(const struct kvcachefs_file *f, const char *path)
{
	return 2 * (f->mount_len + 1 + strlen(path) + 1) + SUFFIX;
}

int kvcachefs_file_seal_as(struct kvcachefs_file *f, char *names, const char *path)
{
	char *was = f->path, *old = temporary(f);
	int err;

	memcpy(names, was, f->mount_len);
	names[f->mount_len] = '/';
	strcpy(names + f->mount_len + 1, path);
	f->path = names;
	err = check_path(f);
	if (!f->named)
		return err ?: kvcachefs_file_seal(f, NULL);
	set_temporary_name(f);
	err = err ?: make_folders(f);
	if (!err && rename(old, temporary(f)))
		err = kvcachefs_fail(-errno, "%s: %s", f->path, strerror(errno));
	if (err)
		f->path = was; /* fini removes it */
	return err ?: kvcachefs_file_seal(f, NULL);
}

/* Gives a file that is still open its name. Returns 1 if a file of that name exists. */
static int publish_open(struct kvcachefs_file *f)
{
	int failed = link_as(f, f->path), err;

	if (failed && errno == ENOENT) { /* the folder was evicted */
		err = make_folders(f);
		if (err)
			return err;
		failed = link_as(f, f->path);
	}
	if (!failed)
		return shut_file(f);
	return errno == EEXIST ? 1 : kvcachefs_fail(-errno, "%s: %s", f->path, strerror(errno));
}

/* Returns 1 if it may not replace the existing file. */
static int publish_named(struct kvcachefs_file *f, bool replaces)
{
	int failed = renameat2(AT_FDCWD, temporary(f), AT_FDCWD, f->path,
			       replaces ? 0 : RENAME_NOREPLACE);

	if (failed && errno == EEXIST && !replaces)
		return 1;
	if (failed)
		return kvcachefs_fail(-errno, "%s: %s", f->path, strerror(errno));
	f->named = false;
	return 0;
}

int kvcachefs_file_publish(struct kvcachefs_file *f, bool *kept)
{
	int err = f->fd >= 0 ? publish_open(f) : publish_named(f, !kept);

	if (err == 1 && !kept) /* an open file replaces another one by a rename */
		err = (link_file(f) ?: shut_file(f)) ?: publish_named(f, true);
	if (kept)
		*kept = err == 1;
	if (err)
		return err == 1 ? 0 : err; /* fini removes the file */
	if (f->m)
		kvcachefs_map_over(f->m, true);
	f->m = NULL;
	return 0;
}

void kvcachefs_file_fini(struct kvcachefs_file *f)
{
	unmake(f);
	if (f->m)
		kvcachefs_map_over(f->m, false);
	f->m = NULL;
	kvcachefs_ready_back(f->of);
	f->of = NULL;
}
