/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completes interrupted changes of a store. A new catalog is made beside the old one under the name
 * *.new and is put on stable storage. Then it is renamed to catalog.sqlite.next: from then on the
 * store is the new one. The remaining steps are done here by the next process that opens the store;
 * each step can be repeated:
 *
 *   a rebuild   keeps the old catalog and its log as catalog.sqlite.old, .old.1, ..., because a log
 *               must not be beside a database that it does not belong to
 *   mkfs        (superblock.next exists too) removes the old catalog, cuts the data to its size and
 *               wipes it, and writes the superblock
 *
 * Last, catalog.sqlite.next is renamed to catalog.sqlite.
 */
#include "store.h"

#include "label.h"
#include "log.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <string.h>

static int remove_file(const struct kvc_store *s, const char *name)
{
	char path[1280];

	return unlink(kvc_super_path(s, name, path)) && errno != ENOENT ? -errno : 0;
}

static int rename_file(const struct kvc_store *s, const char *from, const char *to)
{
	char a[1280], b[1280];

	return rename(kvc_super_path(s, from, a), kvc_super_path(s, to, b)) ? -errno : 0;
}

/*
 * Renames the old catalog to a free name. Its log is renamed first: after an interruption the
 * catalog is found again by its name.
 */
static int keep_old(const struct kvc_store *s)
{
	char name[64] = KVC_STORE_CATALOG ".old", log[80];
	int err = 0;

	if (!kvc_super_exists(s, KVC_STORE_CATALOG))
		return 0;
	for (unsigned n = 1; kvc_super_exists(s, name); n++)
		snprintf(name, sizeof name, KVC_STORE_CATALOG ".old.%u", n);
	snprintf(log, sizeof log, "%s-wal", name);
	if (kvc_super_exists(s, KVC_STORE_CATALOG "-wal"))
		err = rename_file(s, KVC_STORE_CATALOG "-wal", log);
	snprintf(log, sizeof log, "%s-mark", name);
	if (!err && kvc_super_exists(s, KVC_STORE_CATALOG "-mark"))
		err = rename_file(s, KVC_STORE_CATALOG "-mark", log);
	return err ?: rename_file(s, KVC_STORE_CATALOG, name);
}

/* Is it the label of a device of this store? */
static bool has_label(const struct kvc_store *s, const struct kvc_label *l)
{
	return l->index < KVC_DEVICES && s->dev[l->index].kind && kvc_label_is(l, s, l->index);
}

/*
 * Labels a device of the new store. The device has the new label already if mkfs wrote it before it
 * was killed. It has the old store's label if the old store's data is on it too.
 */
static int label_device(const struct kvc_store *s, const struct kvc_store *next, unsigned nr)
{
	char error[512];
	struct kvc_label l;
	uint64_t size;
	KVC_FD int fd = kvc_label_device_open(next, nr, O_RDWR, &size, error);
	int err = fd < 0 ? fd : kvc_label_read(fd, &l);

	if (err == -EBADMSG) /* a kill tore the first page; the copy is written before it */
		err = kvc_label_repair(next, nr, fd) ?: kvc_label_read(fd, &l);
	if (!err && !kvc_label_is(&l, next, nr))
		err = has_label(s, &l) ? kvc_label_write(next, nr, fd) : -EXDEV;
	else if (err == -ENODATA)
		err = -EXDEV;
	if (!err && next->dev[nr].kind == KVC_DEVICE_FILE &&
	    ftruncate(fd, (off_t)next->dev[nr].size))
		err = -errno;
	if (err)
		kvc_error("%s", fd < 0 ? error : "the device does not have this store's label");
	return err;
}

static int label_all(const struct kvc_store *s, const struct kvc_store *next)
{
	int err = 0;

	for (unsigned i = 0; i < KVC_DEVICES && !err; i++)
		if (next->dev[i].kind > KVC_DEVICE_OWN)
			err = label_device(s, next, i);
	return err;
}

/* Removes the data files of the old store, outside its folder, that the new store does not have. */
static void remove_files(const struct kvc_store *s, const struct kvc_store *next)
{
	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		char error[512];
		struct kvc_label l;
		uint64_t size;

		if (s->dev[i].kind != KVC_DEVICE_FILE ||
		    kvc_super_find(next, s->dev[i].path) < KVC_DEVICES)
			continue;
		KVC_FD int fd = kvc_label_device_open(s, i, O_RDONLY, &size, error);

		if (fd >= 0 && !kvc_label_read(fd, &l) && kvc_label_is(&l, s, i))
			unlink(s->dev[i].path);
	}
}

static bool owns_data(const struct kvc_store *s)
{
	return s->dev[0].kind == KVC_DEVICE_OWN;
}

/* Replaces this store by the store of superblock.next. */
static int replace_store(struct kvc_store *s)
{
	KVC_MEM struct kvc_store *next = calloc(1, sizeof *next);
	KVC_FD int fd = -1;
	char path[1280];
	bool known;
	int err;

	if (!next)
		return -ENOMEM;
	memcpy(next->dir, s->dir, sizeof next->dir);
	if ((err = kvc_super_load(next, KVC_STORE_SUPER_NEXT, &known)))
		return err;
	if ((err = label_all(s, next)))
		return err;
	kvc_super_path(s, KVC_STORE_DATA, path);
	if (!owns_data(next) && owns_data(s))
		err = remove_file(s, KVC_STORE_DATA);
	else if (owns_data(next) && owns_data(s) && (fd = kvc_open_own(path, O_RDWR)) < 0)
		err = errno == ENOENT ? 0 : -errno; /* then mkfs has made a new one beside it */
	if (!err && fd >= 0) {
		if (ftruncate(fd, (off_t)next->dev[0].size))
			return -errno;
		/* some filesystems cannot; then bytes of the other store remain */
		fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, (off_t)next->dev[0].size);
		err = fsync(fd) ? -errno : 0;
	}
	err = err ?: kvc_super_write(next, s->lock_fd) ?: kvc_super_save(next, KVC_STORE_COPY);
	if (err)
		return err;
	remove_files(s, next);
	next->lock_fd = s->lock_fd;
	*s = *next;
	return remove_file(s, KVC_STORE_CATALOG "-wal") ?: remove_file(s, KVC_STORE_CATALOG "-mark")
	       ?: remove_file(s, KVC_STORE_POLICIES);
}

static int swap_catalog(struct kvc_store *s)
{
	int err = kvc_super_exists(s, KVC_STORE_SUPER_NEXT) ? replace_store(s) : keep_old(s);

	err = err ?: remove_file(s, KVC_STORE_CATALOG "-shm") ?: kvc_super_sync_dir(s);
	err = err ?: rename_file(s, KVC_STORE_CATALOG_NEXT, KVC_STORE_CATALOG);
	return err ?: kvc_super_sync_dir(s);
}

int kvc_store_bound(const struct kvc_store *s, char *error)
{
	static const char *const replaced[] = {
		KVC_STORE_CATALOG,
		KVC_STORE_BESIDE(KVC_STORE_CATALOG),
		KVC_STORE_POLICIES,
	};
	char path[1280];

	for (size_t i = 0; i < sizeof replaced / sizeof replaced[0]; i++)
		if (kvc_is_mounted(kvc_super_path(s, replaced[i], path))) {
			snprintf(error, 512,
				 "%.300s is itself a mount point (a bind mount) and cannot be "
				 "replaced; unmount it, or bind-mount the folder of the store",
				 path);
			return -EBUSY;
		}
	return 0;
}

int kvc_store_finish(struct kvc_store *s)
{
	static const char *const halfway[] = {
		KVC_STORE_SUPER_NEXT,
		KVC_STORE_CATALOG_NEW,
		KVC_STORE_BESIDE(KVC_STORE_CATALOG_NEW),
		KVC_STORE_MAKING KVC_STORE_SUPER,
		KVC_STORE_MAKING KVC_STORE_COPY,
		KVC_STORE_MAKING KVC_STORE_CATALOG,
		KVC_STORE_BESIDE(KVC_STORE_MAKING KVC_STORE_CATALOG),
		KVC_STORE_MAKING KVC_STORE_RESERVE,
		KVC_STORE_MAKING KVC_STORE_DATA,
	};
	int err = 0;

	if (kvc_super_exists(s, KVC_STORE_CATALOG_NEXT))
		err = swap_catalog(s);
	if (!err && owns_data(s) && !kvc_super_exists(s, KVC_STORE_DATA) &&
	    kvc_super_exists(s, KVC_STORE_MAKING KVC_STORE_DATA))
		err = rename_file(s, KVC_STORE_MAKING KVC_STORE_DATA, KVC_STORE_DATA);
	for (size_t i = 0; i < sizeof halfway / sizeof halfway[0] && !err; i++)
		err = remove_file(s, halfway[i]);
	return err;
}
