/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a store to check it, even if its superblock is damaged or its data is shorter than at its
 * creation. See fsck.h.
 */
#include "fsck.h"

#include "label.h"
#include "registry.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

const char *kvm_catalog(const struct kvc_store *s, char *buf)
{
	return kvc_super_path(s,
			      kvc_super_exists(s, KVC_STORE_CATALOG_NEXT) ? KVC_STORE_CATALOG_NEXT
									  : KVC_STORE_CATALOG,
			      buf);
}

/* Gets the size of the data file or device. Returns 0 or a negative errno. */
static int data_size_of(const char *path, uint64_t *size)
{
	KVC_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		return -errno;
	*size = (uint64_t)st.st_size;
	return S_ISBLK(st.st_mode) && ioctl(fd, BLKGETSIZE64, size) ? -errno : 0;
}

static int from_catalog(struct kvc_store *s)
{
	char path[1280], error[512], text[KVC_STORE_TEXT];
	struct kvc_catalog *c;
	int err = kvc_catalog_open_read(&c, kvm_catalog(s, path), error);

	if (err)
		return err;
	kvc_catalog_lock(c);
	err = kvc_meta_get(c, "store", text, sizeof text);
	kvc_catalog_unlock(c);
	kvc_catalog_close(c);
	return err ?: kvc_super_parse(s, text);
}

static int from_frames(struct kvc_store *s, char *error)
{
	struct kvc_tier *disk;
	bool read_only = s->read_only, own = s->dev[0].kind == KVC_DEVICE_OWN;
	int err = own ? data_size_of(s->dev[0].path, &s->dev[0].size) : 0;

	if (err) {
		snprintf(error, 512, "cannot examine the data %s: %s", s->dev[0].path,
			 kvc_why(-err));
		return err;
	}
	s->read_only = true;
	if ((err = kvct_devices_open(s, &disk, error)))
		return err;
	s->read_only = read_only;
	err = own && kvc_super_devices(s) == 1 ? kvm_find_uuid(disk, s->uuid) : 0;
	disk->ops->close(disk);
	if (err && err != -ENOENT)
		snprintf(error, 512, "cannot read the data %s: %s", s->dev[0].path, strerror(-err));
	return err == -ENOENT ? 0 : err; /* without frames any id will do */
}

/* Reads the label of a device that the user names. Returns 0, or an error with one line. */
static int label_of(const char *path, struct kvc_label *l, enum kvc_device_kind *kind, char *error)
{
	KVC_MEM struct kvc_store *x = calloc(1, sizeof *x);
	uint64_t size;
	struct stat st;
	int err;

	if (!x)
		return -ENOMEM;
	*kind = stat(path, &st) || !S_ISREG(st.st_mode) ? KVC_DEVICE_BLOCK : KVC_DEVICE_FILE;
	x->dev[0].kind = *kind;
	snprintf(x->dev[0].path, sizeof x->dev[0].path, "%s", path);
	KVC_FD int fd = kvc_label_device_open(x, 0, O_RDONLY, &size, error);

	if (fd < 0)
		return fd;
	err = kvc_label_read(fd, l);
	if (!err && l->index >= KVC_DEVICES)
		err = -EBADMSG;
	if (err)
		snprintf(error, 512, "the device %.300s has no label of a kvcachefs store", path);
	return err;
}

/* Takes the uuid and the sizes from the labels of the devices; these can then be opened. */
static int from_labels(struct kvc_store *s, const struct kvm_devices *given, char *error)
{
	for (unsigned i = 0; i < given->n; i++) {
		enum kvc_device_kind kind;
		struct kvc_label l;
		struct kvc_device *d;
		int err = label_of(given->path[i], &l, &kind, error);

		if (err)
			return err;
		d = &s->dev[l.index];
		if ((i && memcmp(s->uuid, l.uuid, sizeof s->uuid) != 0) ||
		    d->kind > KVC_DEVICE_OWN) {
			snprintf(error, 512, "%.300s %s", given->path[i],
				 d->kind > KVC_DEVICE_OWN
					 ? "has the same number in the store as another device"
					 : "does not belong to the store of the devices before it");
			return -EXDEV;
		}
		memcpy(s->uuid, l.uuid, sizeof s->uuid);
		*d = (struct kvc_device){ .kind = kind, .size = l.size };
		snprintf(d->path, sizeof d->path, "%s", given->path[i]);
	}
	return 0;
}

/* Gives each device of the store its path in `given`, by its label. */
static int rename_devices(struct kvc_store *s, const struct kvm_devices *given,
			  struct kvm_report *r, char *error)
{
	bool changed = false;
	int err = 0;

	for (unsigned i = 0; i < given->n; i++) {
		enum kvc_device_kind kind;
		struct kvc_label l;
		struct kvc_device *d;

		if ((err = label_of(given->path[i], &l, &kind, error)))
			return err;
		d = &s->dev[l.index];
		if (!d->kind || memcmp(l.uuid, s->uuid, sizeof l.uuid) != 0) {
			snprintf(error, 512, "the device %.300s is not one of this store",
				 given->path[i]);
			return -EXDEV;
		}
		if (d->kind == kind && !strcmp(d->path, given->path[i]))
			continue;
		kvm_foundf(r, r->mend, "device %u of the store was %s and is %s", l.index, d->path,
			   given->path[i]);
		d->kind = kind;
		snprintf(d->path, sizeof d->path, "%s", given->path[i]);
		changed = true;
	}
	if (!changed || !r->mend || kvc_store_unproven(s))
		return 0;
	err = kvc_super_fits(s, error);
	if (!err && (err = kvc_super_update(s)))
		snprintf(error, 512, "cannot write the superblock: %s", kvc_why(-err));
	return err;
}

/*
 * Removes lost devices from the store. The checks then remove the placements in them. Their files
 * and labels stay, because the devices may become reachable again.
 */
static int forget_devices(struct kvc_store *s, const struct kvm_devices *lost, struct kvm_report *r,
			  char *error)
{
	int err = 0;

	for (unsigned i = 0; i < lost->n; i++) {
		unsigned nr = kvc_super_find(s, lost->path[i]);
		char *end;

		if (nr == KVC_DEVICES && lost->path[i][0] >= '0' && lost->path[i][0] <= '9') {
			unsigned long x = strtoul(lost->path[i], &end, 10);

			nr = *end || x >= KVC_DEVICES || !s->dev[x].kind ? KVC_DEVICES
									 : (unsigned)x;
		}
		if (nr == KVC_DEVICES || kvc_super_devices(s) == 1) {
			snprintf(error, 512, "--forget %.300s: %s", lost->path[i],
				 nr == KVC_DEVICES ? "the store has no such device"
						   : "it is the only device of the store");
			return -EINVAL;
		}
		kvm_foundf(r, true, "device %u, %s, is removed from the store", nr,
			   s->dev[nr].path);
		s->dev[nr] = (struct kvc_device){ .kind = KVC_DEVICE_NONE };
	}
	/* without a proof it is written later, when the frames have proven it (kvm_rebuild) */
	if (lost->n && !kvc_store_unproven(s) && (err = kvc_super_update(s)))
		snprintf(error, 512, "cannot write the superblock: %s", kvc_why(-err));
	return err;
}

/* Determines the store's properties from the first source that has them. *who names that source. */
static int find_properties(struct kvc_store *s, const struct kvm_devices *given, const char **who,
			   char *error)
{
	KVC_MEM struct kvc_store *empty = calloc(1, sizeof *empty);
	char path[1280];
	bool known;
	int err;

	if (!empty)
		return -ENOMEM;
	empty->lock_fd = -1;
	empty->read_only = s->read_only;
	memcpy(empty->dir, s->dir, sizeof empty->dir);
	kvc_super_own(empty, 0);
	*s = *empty;
	*who = "its copy";
	err = kvc_super_load(s, KVC_STORE_COPY, &known);
	if (!err || (err != -EBADMSG && err != -ENOENT)) {
		if (err)
			snprintf(error, 512, "cannot read %s: %s",
				 kvc_super_path(s, KVC_STORE_COPY, path), strerror(-err));
		return err;
	}
	*s = *empty;
	*who = "the catalog";
	if (!from_catalog(s))
		return 0;
	*s = *empty;
	s->no_proof = true;
	*who = "its frames";
	known = !access(s->dev[0].path, F_OK) || errno != ENOENT;
	if (!known && !given->n) {
		snprintf(error, 512,
			 "cannot find the data of %s: if the data is on devices, give --device for "
			 "each",
			 s->dir);
		return -EBADMSG;
	}
	if (!known)
		s->dev[0].kind = KVC_DEVICE_NONE;
	return from_labels(s, given, error) ?: from_frames(s, error);
}

static int mend_super(struct kvc_store *s, const char *path, const struct kvm_devices *given,
		      struct kvm_report *r, char *error)
{
	char before[512];
	const char *who;
	int err;

	snprintf(before, sizeof before, "%s", error);
	s->read_only = !r->mend;
	if ((err = find_properties(s, given, &who, error)) || (err = kvc_super_name(s)))
		return err;
	*strchrnul(before, ';') = 0;
	/* without the secret it is repaired later (kvm_rebuild) */
	kvm_foundf(r, r->mend && !kvc_store_unproven(s), "%s; its contents are known from %s",
		   before, who);
	if (!r->mend)
		return 0;
	s->created_ns = s->created_ns ?: kvc_now_ns();
	err = kvc_store_repair(s, error);
	return err == -EEXIST ? kvc_store_open(s, path, error) : err;
}

static int relabel(const struct kvc_store *s, unsigned nr)
{
	char error[512];
	uint64_t size;
	KVC_FD int fd = kvc_label_device_open(s, nr, O_RDWR, &size, error);

	return fd < 0 ? fd : kvc_label_repair(s, nr, fd);
}

/* Restores the file's length with holes. The checks find the files whose data was lost. */
static int mend_size(struct kvc_store *s, unsigned nr, uint64_t size)
{
	struct kvc_device *d = &s->dev[nr];
	KVC_FD int fd = -1;
	int err = -ENOSPC;

	if (d->kind != KVC_DEVICE_BLOCK) {
		fd = kvc_open_own(d->path, O_RDWR | O_CREAT);
		if (fd < 0)
			return -errno;
		err = -posix_fallocate(fd, 0, (off_t)d->size);
		err = err ?: fsync(fd) ? -errno : kvc_super_sync_dir(s);
	}
	if (!err && d->kind == KVC_DEVICE_FILE)
		err = kvc_label_write(s, nr, fd); /* its copy was lost */
	if (err != -ENOSPC || size < KVC_STORE_MIN_SIZE)
		return err;
	if (fd >= 0 && ftruncate(fd, (off_t)size)) /* restore the former size */
		return -errno;
	d->size = size / KVC_PAGE * KVC_PAGE;
	if (d->kind != KVC_DEVICE_OWN && (err = relabel(s, nr)))
		return err;
	return kvc_store_unproven(s) ? 0 : kvc_super_update(s);
}

/*
 * Checks the device's label. A device that does not belong to the store is never written: fsck
 * ends.
 */
static int check_label(const struct kvc_store *s, unsigned nr, struct kvm_report *r, char *error)
{
	uint64_t size;
	KVC_FD int fd = kvc_label_device_open(s, nr, r->mend ? O_RDWR : O_RDONLY, &size, error);
	int err = fd < 0 ? fd : kvc_label_check(s, nr, fd, error);

	if (err != -EBADMSG || !r->mend)
		return err;
	if (kvc_label_repair(s, nr, fd))
		return err;
	*strchrnul(error, ';') = 0;
	kvm_found(r, true, error);
	return 0;
}

static int check_size(struct kvc_store *s, unsigned nr, struct kvm_report *r, char *error)
{
	struct kvc_device *d = &s->dev[nr];
	char a[32], b[32];
	uint64_t size = 0;
	int err = data_size_of(d->path, &size);

	if (err == -ENOENT && d->kind == KVC_DEVICE_OWN)
		err = 0;
	if (!err && size < d->size) {
		uint64_t was = d->size;

		err = r->mend ? mend_size(s, nr, size) : 0;
		d->lost_from = kvc_max(size, 1);
		kvm_foundf(r, r->mend && !err, "%s is shorter than at its creation: %s of %s",
			   d->path, kvc_size_text(size, a), kvc_size_text(was, b));
	}
	if (err)
		snprintf(error, 512, "%s: %s", d->path, strerror(-err));
	return err;
}

int kvm_open(struct kvc_store *s, const char *path, const struct kvm_devices *given,
	     const struct kvm_devices *lost, struct kvm_report *r, char *error)
{
	int err = r->mend ? kvc_store_open(s, path, error) : kvc_store_open_read(s, path, error);

	if (err == -EBADMSG)
		err = mend_super(s, path, given, r, error);
	if (!err)
		err = rename_devices(s, given, r, error);
	if (err)
		return err;
	err = forget_devices(s, lost, r, error) ?: kvc_label_distinct(s, error);
	for (unsigned i = 0; i < KVC_DEVICES && !err; i++)
		if (s->dev[i].kind > KVC_DEVICE_OWN)
			err = check_label(s, i, r, error);
	for (unsigned i = 0; i < KVC_DEVICES && !err; i++)
		if (s->dev[i].kind)
			err = check_size(s, i, r, error);
	if (err)
		kvc_store_close(s);
	return err;
}
