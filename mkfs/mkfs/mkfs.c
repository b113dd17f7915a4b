/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mkfs.kvcachefs [--size SIZE] [--device PATH]... [--file PATH]... [--force] STORE: makes a store.
 * A store is a folder with a data file (preallocated, so that the disk tier never meets a full
 * filesystem) or the names of its devices: block devices, and data files elsewhere. It also has a
 * reserve file that the daemon truncates when the catalog finds no space, the catalog, and the
 * superblock.
 *
 * mkfs changes no file that it has not made. It makes the files of a new store under names that
 * nothing else uses (KVC_STORE_MAKING), and then links each file to its own name, which fails if
 * that name exists. The superblock is linked last and makes the folder a store. Files that a killed
 * mkfs left are recognized by those names. To replace a store (--force), a new catalog and
 * superblock are made beside the old ones and replace them as described in
 * engine/base/store_next.c. If mkfs is killed at any point, either the old or the new store is
 * complete. The folder is locked throughout, so a concurrent mkfs is refused.
 */
#include "tool.h"

#include "catalog.h"
#include "device.h"
#include "label.h"
#include "pools.h"
#include "registry.h"
#include "store.h"

#include <blkid/blkid.h>
#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

/* in the order in which they get their names */
static const char *const files[] = {
	KVC_STORE_DATA, KVC_STORE_RESERVE, KVC_STORE_CATALOG, KVC_STORE_COPY, KVC_STORE_SUPER,
};
#define FILES (sizeof files / sizeof files[0])

static unsigned files_made; /* devices whose files this process has made, as a bit mask */

static void usage(FILE *out)
{
	fprintf(out,
		"usage: mkfs.kvcachefs [--size SIZE] [--device PATH]... [--file PATH]... "
		"[--force] STORE\n"
		"Creates a kvcachefs store in the folder STORE. Without --device and --file, the "
		"data of\nthe disk tier is in a file in STORE.\n\n"
		"  -s, --size SIZE    size of the disk tier, or of each of its devices and files,\n"
		"                     in bytes, or with a suffix K, M, G or T; default: the whole\n"
		"                     device, or half of the free space of the filesystem that\n"
		"                     holds the file\n"
		"  -d, --device PATH  keep data on this block device; repeat the option for more "
		"devices\n"
		"  -f, --file PATH    keep data in a new file outside STORE, for example on "
		"another disk\n"
		"  -F, --force        replace an existing store, or overwrite other contents of "
		"the\n"
		"                     devices; the replaced data is lost\n"
		"  -h, --help         show this help\n"
		"  -V, --version      show the version\n"
		"\nExamples:\n"
		"  mkfs.kvcachefs --size 200G /var/lib/kvcache\n"
		"  mkfs.kvcachefs --device /dev/nvme1n1 --device /dev/nvme2n1 "
		"/var/lib/kvcache\n");
}

static bool owns_data(const struct kvc_store *s)
{
	return s->dev[0].kind == KVC_DEVICE_OWN;
}

/* Gets the capacity of a device, or of the filesystem of its file. */
static int get_capacity(const struct kvc_store *s, unsigned nr, uint64_t *bytes)
{
	const struct kvc_device *d = &s->dev[nr];
	char dir[1280], error[512];
	struct statvfs v;
	KVC_FD int fd = -1;

	if (d->kind == KVC_DEVICE_BLOCK) {
		fd = kvc_label_device_open(s, nr, O_RDWR, bytes, error);
		return fd < 0 ? kvm_fail("%s", error) : 0;
	}
	snprintf(dir, sizeof dir, "%s", d->path);
	*strrchr(dir, '/') = 0;
	if (statvfs(*dir ? dir : "/", &v))
		return kvm_fail("%s: %s", *dir ? dir : "/", kvc_why(errno));
	*bytes = (uint64_t)v.f_bavail * v.f_frsize;
	return 0;
}

static const char *making(const struct kvc_store *s, const char *name, char *path)
{
	snprintf(path, 1280, "%s/" KVC_STORE_MAKING "%s", s->dir, name);
	return path;
}

static bool same_file(const char *a, const char *b)
{
	struct stat x, y;

	return !lstat(a, &x) && !lstat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/*
 * Removes the files of an unfinished mkfs, of this or a killed process. A file under a final name
 * is removed only if it is the same file as the one under the temporary name.
 */
static void remove_unfinished(const struct kvc_store *s)
{
	char own[1280], name[1280], tail[1300];

	for (size_t i = FILES; i-- > 0;) {
		making(s, files[i], own);
		kvc_super_path(s, files[i], name);
		if (same_file(own, name))
			unlink(name);
		unlink(own);
		snprintf(tail, sizeof tail, "%s-wal", own);
		unlink(tail);
		snprintf(tail, sizeof tail, "%s-shm", own);
		unlink(tail);
		snprintf(tail, sizeof tail, "%s-mark", own);
		unlink(tail);
	}
}

static int make_data(const struct kvc_store *s)
{
	char path[1280];
	KVC_FD int fd = kvc_open_own(making(s, KVC_STORE_DATA, path), O_RDWR | O_CREAT | O_EXCL);
	int err;

	if (fd < 0)
		return kvm_fail("cannot make %s: %s", s->dev[0].path, kvc_why(errno));
	err = posix_fallocate(fd, 0, (off_t)s->dev[0].size);
	if (err)
		return kvm_fail("cannot allocate the size of %s: %s", s->dev[0].path, kvc_why(err));
	return fsync(fd) ? kvm_fail("%s: %s", s->dev[0].path, kvc_why(errno)) : 0;
}

/* The reserve is optional: without it, a full filesystem stays full until somebody frees space. */
static void make_reserve(const struct kvc_store *s)
{
	char path[1280];
	KVC_FD int fd = kvc_open_own(making(s, KVC_STORE_RESERVE, path), O_RDWR | O_CREAT | O_EXCL);
	int err = fd < 0 ? errno : posix_fallocate(fd, 0, KVC_STORE_RESERVE_SIZE);

	if (!err && fsync(fd))
		err = errno;
	if (!err)
		return;
	unlink(path);
	fprintf(stderr, "mkfs.kvcachefs: cannot create the file reserve: %s\n", strerror(err));
}

/* Makes a catalog, with a copy of the superblock's contents in it. */
static int make_catalog(const struct kvc_store *s, const char *path)
{
	char error[512] = "", text[KVC_STORE_TEXT];
	struct kvc_catalog *c;
	int err = kvc_catalog_create(path) ?: kvc_catalog_open(&c, path, error);
	KVC_FD int fd = -1;

	if (!err) {
		kvc_catalog_lock(c);
		err = kvc_meta_set(c, "store", kvc_super_text(s, text));
		kvc_catalog_unlock(c);
		err = kvc_catalog_close(c) ?: err;
		/* belongs to a log that no longer exists */
		snprintf(text, sizeof text, "%s-mark", path);
		unlink(text);
		fd = kvc_open_own(path, O_RDONLY);
		err = err ?: fd < 0 || fsync(fd) ? -errno : 0;
	}
	return err ? kvm_fail("cannot create the catalog: %s", *error ? error : kvc_why(-err)) : 0;
}

/* ---- devices ---- */

/* Is it the label of a device of the store `there`? */
static bool is_of(const struct kvc_label *l, const struct kvc_store *there)
{
	return l->index < KVC_DEVICES && there->dev[l->index].kind > KVC_DEVICE_OWN &&
	       kvc_label_is(l, there, l->index);
}

/* Returns true if the device has a label of the store `there`. */
static bool has_label(const struct kvc_store *s, unsigned nr, const struct kvc_store *there)
{
	char error[512];
	struct kvc_label l;
	uint64_t size;
	KVC_FD int fd = kvc_label_device_open(s, nr, O_RDONLY, &size, error);

	return fd >= 0 && !kvc_label_read(fd, &l) && is_of(&l, there);
}

/*
 * Refuses a device with other contents, unless --force is given or the device belongs to this
 * store.
 */
static int check_device(const struct kvc_store *s, unsigned nr, const struct kvc_store *there,
			bool force)
{
	const char *path = s->dev[nr].path;
	char error[512] = "";
	struct kvc_label l;
	uint64_t size;
	KVC_FD int fd = -1;
	int err;

	if (s->dev[nr].kind == KVC_DEVICE_FILE) {
		if ((access(path, F_OK) && errno == ENOENT) || has_label(s, nr, there))
			return 0;
		return kvm_fail("%s exists and is not changed: give the name of a new file, or "
				"remove it",
				path);
	}
	fd = kvc_label_device_open(s, nr, O_RDONLY, &size, error);
	if (fd < 0)
		return kvm_fail("%s", error);
	err = kvc_label_read(fd, &l);
	if (force || (!err && is_of(&l, there)))
		return 0;
	if (err != -ENODATA)
		return err == -EIO ? kvm_fail("cannot read %s: %s", path, kvc_why(EIO))
				   : kvm_fail("%s has the data of a kvcachefs store; --force "
					      "overwrites it",
					      path);
	return kvm_device_empty(fd, path);
}

/* Makes the file or the label of each device that has no label of `there`. NULL: of all. */
static int make_devices(const struct kvc_store *s, const struct kvc_store *there)
{
	char error[512] = "";

	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		const struct kvc_device *d = &s->dev[i];
		uint64_t size;
		KVC_FD int fd = -1;
		int err;

		if (d->kind <= KVC_DEVICE_OWN)
			continue;
		if (there && has_label(s, i, there)) {
			/* it gets its new label after the new store has become valid */
			fd = d->kind == KVC_DEVICE_FILE ? kvc_open_own(d->path, O_RDWR) : -1;
			if (fd >= 0 && (err = posix_fallocate(fd, 0, (off_t)d->size)))
				return kvm_fail("cannot allocate the size of %s: %s", d->path,
						kvc_why(err));
			continue;
		}
		if (d->kind == KVC_DEVICE_FILE) {
			if (kvc_label_file_make(s, i, error))
				return kvm_fail("%s", error);
			files_made |= 1u << i;
			continue;
		}
		fd = kvc_label_device_open(s, i, O_RDWR, &size, error);
		err = fd < 0 ? fd : kvc_label_make(s, i, fd, size);
		if (err)
			return kvm_fail("cannot label the device %s: %s", d->path, kvc_why(-err));
	}
	return 0;
}

/* Removes the files of devices that this process has made. */
static void remove_made(const struct kvc_store *s)
{
	for (unsigned i = 0; i < KVC_DEVICES; i++)
		if (files_made & (1u << i))
			unlink(s->dev[i].path);
}

/* ---- a new store ---- */

/* Returns 1 after a message if a name that the store needs exists. Call it after remove_unfinished.
 */
static int check_names_free(const struct kvc_store *s)
{
	/* SQLite would apply another catalog's log to the new catalog */
	static const char *const more[] = { KVC_STORE_BESIDE(KVC_STORE_CATALOG) };
	char path[1280];

	for (size_t i = 0; i < FILES + sizeof more / sizeof *more; i++) {
		const char *name = i < FILES ? files[i] : more[i - FILES];

		if (!kvc_super_exists(s, name))
			continue;
		if (kvc_store_signs(s))
			return kvm_fail(
				"%s may be a store without its superblock: fsck.kvcachefs -y "
				"repairs it; to make a new store, remove the files first",
				s->dir);
		return kvm_fail("%s exists and was not made by mkfs.kvcachefs: nothing is changed; "
				"give another folder, or remove it",
				kvc_super_path(s, name, path));
	}
	return 0;
}

static int link_all(const struct kvc_store *s)
{
	char own[1280], name[1280];

	for (size_t i = 0; i < FILES; i++) {
		making(s, files[i], own);
		kvc_super_path(s, files[i], name);
		if (!kvc_super_exists(s, own + strlen(s->dir) + 1))
			continue; /* no data file (a device), or no space for a reserve */
		if (i == FILES - 1 && kvc_super_sync_dir(s))
			return kvm_fail("%s: %s", s->dir, kvc_why(errno));
		if (link(own, name))
			return kvm_fail("cannot make %s: %s", name, kvc_why(errno));
	}
	if (kvc_super_sync_dir(s))
		return kvm_fail("%s: %s", s->dir, kvc_why(errno));
	for (size_t i = 0; i < FILES; i++)
		unlink(making(s, files[i], own));
	return 0;
}

static int make_new_store(struct kvc_store *s)
{
	char path[1280];
	int err;

	if (check_names_free(s))
		return 1;
	if (make_devices(s, NULL) || (owns_data(s) && make_data(s)))
		return 1;
	make_reserve(s);
	if (make_catalog(s, making(s, KVC_STORE_CATALOG, path)))
		return 1;
	err = kvc_super_save(s, KVC_STORE_MAKING KVC_STORE_COPY)
		      ?: kvc_super_save(s, KVC_STORE_MAKING KVC_STORE_SUPER);
	return err ? kvm_fail("cannot write the superblock: %s", kvc_why(-err)) : link_all(s);
}

/* ---- replacing a store ---- */

/*
 * Extends the data of `there` before the new store becomes valid. If the new store is smaller, the
 * data is truncated after that.
 */
static int grow_data(const struct kvc_store *s, const struct kvc_store *there)
{
	KVC_FD int fd = -1;
	int err;

	if (!owns_data(s))
		return 0;
	if (!owns_data(there) || !kvc_super_exists(there, KVC_STORE_DATA))
		return make_data(s);
	fd = kvc_open_own(there->dev[0].path, O_RDWR);
	err = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)s->dev[0].size);
	if (!err && fsync(fd))
		err = errno;
	if (err && fd >= 0 && ftruncate(fd, (off_t)there->dev[0].size))
		err = errno;
	return err ? kvm_fail("cannot allocate the size of %s: %s", s->dev[0].path, kvc_why(err))
		   : 0;
}

/* Removes the new files if mkfs failed before they replaced the old ones. */
static void remove_next(const struct kvc_store *s)
{
	static const char *const names[] = {
		KVC_STORE_CATALOG_NEW,
		KVC_STORE_BESIDE(KVC_STORE_CATALOG_NEW),
		KVC_STORE_MAKING KVC_STORE_DATA,
		KVC_STORE_MAKING KVC_STORE_RESERVE,
	};
	char path[1280];

	if (kvc_super_exists(s, KVC_STORE_CATALOG_NEXT))
		return;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		unlink(kvc_super_path(s, names[i], path));
	unlink(kvc_super_path(s, KVC_STORE_SUPER_NEXT, path));
}

/* Frees the pool of the old store. */
static int free_old_pool(void *arg, const struct kvm_pool *p)
{
	const struct kvc_owner *o = arg;
	char size[32];

	if (p->marked && kvc_owner_same(&p->owner, o)) {
		int err = kvm_pool_free(p);

		fprintf(stderr, "mkfs.kvcachefs: the old store's pool %s, %s, %s%s\n", p->path,
			kvc_size_text(p->bytes, size), err ? "stays: " : "is freed",
			err ? strerror(-err) : "");
	}
	return 0;
}

static int make_instead(struct kvc_store *s, struct kvc_store *there)
{
	struct kvc_owner old = { .dir = "" };
	char path[1280], next[1280], error[512];
	int err;

	if (kvc_store_bound(there, error))
		return kvm_fail("%s", error);
	if (!owns_data(s) && owns_data(there) && kvc_is_mounted(there->dev[0].path))
		return kvm_fail("%s is a bind mount and cannot be removed; unmount it first",
				there->dev[0].path);
	if (kvc_owner_of(there, there->lock_fd, &old))
		*old.dir = 0;
	if (grow_data(s, there))
		return 1;
	if (access(kvc_super_path(s, KVC_STORE_RESERVE, path), F_OK)) {
		make_reserve(s);
		/* the store works without a reserve */
		(void)!link(making(s, KVC_STORE_RESERVE, next), path);
	}
	if (make_catalog(s, kvc_super_path(s, KVC_STORE_CATALOG_NEW, path)))
		return 1;
	if (make_devices(s, there))
		return 1;
	err = kvc_super_save(s, KVC_STORE_SUPER_NEXT) ?: kvc_super_sync_dir(s);
	if (!err && rename(path, kvc_super_path(s, KVC_STORE_CATALOG_NEXT, next)))
		err = -errno;
	if (err)
		return kvm_fail("cannot create the new store: %s", kvc_why(-err));
	err = kvc_super_sync_dir(s) ?: kvc_store_finish(there);
	if (!err && *old.dir)
		kvm_pools_each(NULL, free_old_pool, &old);
	return err ? kvm_fail("the new store is created, but the next mount must complete it: %s",
			      kvc_why(-err))
		   : 0;
}

/* ---- both cases ---- */

static int check_size(struct kvc_store *s, unsigned nr, uint64_t old)
{
	struct kvc_device *d = &s->dev[nr];
	const char *where = d->kind == KVC_DEVICE_OWN ? s->dir : d->path;
	char a[32], b[32];
	uint64_t free_bytes;

	if (get_capacity(s, nr, &free_bytes))
		return 1;
	free_bytes += old;
	if (!d->size)
		d->size = d->kind == KVC_DEVICE_BLOCK ? free_bytes : free_bytes / 2;
	if (d->size < KVC_STORE_MIN_SIZE)
		return kvm_fail("a size of %s is too small; give at least %s",
				kvc_size_text(d->size, a), kvc_size_text(KVC_STORE_MIN_SIZE, b));
	d->size = d->size / KVC_PAGE * KVC_PAGE;
	if (d->size > free_bytes)
		return kvm_fail(
			"%s is more than the %s free on %s; give a smaller --size, or free space",
			kvc_size_text(d->size, a), kvc_size_text(free_bytes, b), where);
	if (d->size > KVC_DEVICE_MOST)
		return kvm_fail("%s is more than the %s that a device can have; use partitions",
				kvc_size_text(d->size, a), kvc_size_text(KVC_DEVICE_MOST, b));
	return 0;
}

/* Checks the sizes and contents of all devices. */
static int check_devices(struct kvc_store *s, const struct kvc_store *there, bool force)
{
	char error[512];
	struct stat st;

	if (access(s->dir, W_OK))
		return kvm_fail("cannot write in %s: %s", s->dir, kvc_why(errno));
	if (kvc_super_fits(s, error) || kvc_label_distinct(s, error))
		return kvm_fail("%s", error);
	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		unsigned old = kvc_super_find(there, s->dev[i].path);
		uint64_t has = 0;

		if (!s->dev[i].kind)
			continue;
		/* the space of the file that the new one replaces */
		if (old < KVC_DEVICES && s->dev[i].kind != KVC_DEVICE_BLOCK &&
		    !stat(s->dev[i].path, &st) && S_ISREG(st.st_mode))
			has = (uint64_t)st.st_blocks * 512;
		if (check_size(s, i, has) ||
		    (s->dev[i].kind != KVC_DEVICE_OWN && check_device(s, i, there, force)))
			return 1;
	}
	return 0;
}

/*
 * Opens and locks the existing store if --force may replace it. Returns 0, 1 after a message, or -1
 * if there is no store.
 */
static int open_existing(struct kvc_store *there, const struct kvc_store *s, bool force)
{
	char error[512];
	bool known;
	int err = kvc_super_load(there, KVC_STORE_SUPER, &known);

	if (err == -ENOENT || ((err == -EBADMSG || err == -ELOOP) && !kvc_store_signs(s)))
		return -1;
	if (err && err != -EBADMSG && err != -EPROTO)
		return kvm_fail("cannot read %s/%s: %s", s->dir, KVC_STORE_SUPER, kvc_why(-err));
	if (!force)
		return kvm_fail("%s is already a store; --force replaces it and deletes its data",
				s->dir);
	err = kvc_store_open(there, s->dir, error);
	if (err == -EBADMSG)
		return kvm_fail("the superblock of %s is damaged: repair it with fsck.kvcachefs "
				"-y, then --force can replace the store",
				s->dir);
	return err ? kvm_fail("%s", error) : 0;
}

static int make(struct kvc_store *s, bool force)
{
	struct kvc_store there = { .lock_fd = -1 };
	int err;

	memcpy(there.dir, s->dir, sizeof there.dir);
	if ((err = open_existing(&there, s, force)) > 0)
		return err;
	if (err < 0)
		remove_unfinished(s);
	s->created_ns = kvc_now_ns();
	if (check_devices(s, &there, force) || kvc_super_name(s)) {
		err = 1;
	} else if (err < 0) {
		err = make_new_store(s);
	} else {
		err = make_instead(s, &there);
	}
	if (err && there.lock_fd < 0)
		remove_unfinished(s);
	else if (err)
		remove_next(s);
	if (err && !kvc_super_exists(s, KVC_STORE_CATALOG_NEXT))
		remove_made(s);
	kvc_store_close(&there);
	return err;
}

static int print_store(const struct kvc_store *s)
{
	unsigned n = kvc_super_devices(s);
	char a[32], many[32];

	snprintf(many, sizeof many, "%u devices", n);
	printf("%s: a store with %s on %s, uuid %s\n", s->dir, kvc_size_text(kvc_super_size(s), a),
	       n > 1          ? many
	       : owns_data(s) ? "its own data file"
			      : s->dev[0].path,
	       s->uuid_text);
	for (unsigned i = 0; i < KVC_DEVICES && n > 1; i++)
		if (s->dev[i].kind)
			printf("  device %u: %s, %s\n", i, s->dev[i].path,
			       kvc_size_text(s->dev[i].size, a));
	return 0;
}

static bool is_empty(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	unsigned n = 0;

	while (d && n < 3 && (e = readdir(d)))
		n++;
	if (d)
		closedir(d);
	return d && n == 2; /* . and .. */
}

/*
 * Locks the folder, which is created if it is missing. An empty folder of ours gets mode 0700, like
 * a new one. A folder with files keeps its mode, because others may use them.
 */
static int make_in_folder(struct kvc_store *s, bool force)
{
	bool made = !mkdir(s->dir, 0700), closed;
	char error[512];
	struct stat st;
	KVC_FD int fd = -1;
	int err;

	if (!made && errno != EEXIST)
		return kvm_fail("cannot make %s: %s", s->dir, kvc_why(errno));
	fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return kvm_fail("cannot open %s: %s", s->dir, kvc_why(errno));
	if (flock(fd, LOCK_EX | LOCK_NB))
		return errno == EWOULDBLOCK
			       ? kvm_fail("another mkfs.kvcachefs is running in %s", s->dir)
			       : kvm_fail("cannot lock %s: %s", s->dir, kvc_why(errno));
	if (fstat(fd, &st))
		return kvm_fail("%s: %s", s->dir, kvc_why(errno));
	closed = !made && st.st_uid == geteuid() && is_empty(s->dir) && !fchmod(fd, 0700);
	if (!closed && kvc_store_folder_check(s->dir, &st, error))
		return kvm_fail("%s", error);
	err = make(s, force);
	if (err && made)
		rmdir(s->dir);
	if (err && closed)
		fchmod(fd, st.st_mode & 07777);
	return err ?: print_store(s);
}

static void put_version(void)
{
	struct kvc_library own[] = {
		kvc_catalog_library(),
		{ "libblkid", "", (const void *)blkid_get_library_version },
	};

	blkid_get_library_version(&own[1].version, NULL);
	kvct_put_version(stdout, kvm_name, own, 2);
}

/* Adds a device to the store. Returns 0, or 1 after a message. */
static int add_device(struct kvc_store *s, enum kvc_device_kind kind, const char *path)
{
	unsigned nr = kvc_super_devices(s);

	if (nr == KVC_DEVICES)
		return kvm_fail("a store has at most %d devices", KVC_DEVICES);
	if (kvm_device_path(path, s->dev[nr].path))
		return 1;
	s->dev[nr].kind = kind;
	return 0;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = { { "size", 1, 0, 's' },
					       { "device", 1, 0, 'd' },
					       { "file", 1, 0, 'f' },
					       { "force", 0, 0, 'F' },
					       { "help", 0, 0, 'h' },
					       { "version", 0, 0, 'V' },
					       { 0 } };
	static struct kvc_store s = { .lock_fd = -1 };
	uint64_t size = 0;
	bool force = false;
	char error[256];
	int c;

	kvm_name = "mkfs.kvcachefs";
	while ((c = getopt_long(argc, argv, ":s:d:f:FhV", longs, NULL)) != -1)
		switch (c) {
		case 's':
			if (kvc_size_parse(optarg, &size) || !size)
				return kvm_fail("--size: %s", kvc_size_why(optarg, error));
			break;
		case 'd':
		case 'f':
			if (add_device(&s, c == 'd' ? KVC_DEVICE_BLOCK : KVC_DEVICE_FILE, optarg))
				return 1;
			break;
		case 'F': force = true; break;
		case 'h': usage(stdout); return 0;
		case 'V': put_version(); return 0;
		default:
			kvc_getopt_error(c, argv, longs, kvm_name, error);
			return kvm_fail("%s", error);
		}
	if (argc - optind != 1)
		return kvm_fail("give one store, not %d arguments; see mkfs.kvcachefs --help",
				argc - optind);
	if (strlen(argv[optind]) >= sizeof s.dir - 64)
		return kvm_fail("the path of the store is too long");
	if (!*argv[optind])
		return kvm_fail("the path of the store is empty; check that the shell variable is "
				"set");
	snprintf(s.dir, sizeof s.dir, "%s", argv[optind]);
	if (!kvc_super_devices(&s))
		kvc_super_own(&s, 0);
	for (unsigned i = 0; i < KVC_DEVICES; i++)
		if (s.dev[i].kind)
			s.dev[i].size = size;
	return make_in_folder(&s, force);
}
