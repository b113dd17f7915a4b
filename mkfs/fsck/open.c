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
	char path[1280], error[512], text[1400];
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
	bool read_only = s->read_only;
	int err = s->device ? 0 : data_size_of(s->data, &s->data_size);

	if (err) {
		snprintf(error, 512, "cannot examine the data %s: %s", s->data, kvc_why(-err));
		return err;
	}
	s->read_only = true;
	if ((err = kvct_disk_open(s, &disk, error)))
		return err;
	s->read_only = read_only;
	err = s->device ? 0 : kvm_find_uuid(disk, s->uuid);
	disk->ops->close(disk);
	if (err && err != -ENOENT)
		snprintf(error, 512, "cannot read the data %s: %s", s->data, strerror(-err));
	return err == -ENOENT ? 0 : err; /* without frames any id will do */
}

/* Takes the uuid and the size from the device's label; the device can then be opened. */
static int from_label(struct kvc_store *s, char *error)
{
	struct kvc_label l;
	uint64_t size;
	KVC_FD int fd = kvc_label_device_open(s, O_RDONLY, &size, error);
	int err = fd < 0 ? fd : kvc_label_read(fd, &l);

	if (err && fd >= 0)
		snprintf(error, 512, "the device %s has no label of a kvcachefs store", s->data);
	if (!err) {
		memcpy(s->uuid, l.uuid, sizeof s->uuid);
		s->data_size = l.size;
	}
	return err;
}

/* Determines the store's properties from the first source that has them. *who names that source. */
static int find_properties(struct kvc_store *s, const char *device, const char **who, char *error)
{
	struct kvc_store empty = { .lock_fd = -1, .read_only = s->read_only };
	char path[1280];
	bool known;
	int err;

	memcpy(empty.dir, s->dir, sizeof empty.dir);
	kvc_super_path(&empty, KVC_STORE_DATA, empty.data);
	*s = empty;
	*who = "its copy";
	err = kvc_super_load(s, KVC_STORE_COPY, &known);
	if (!err || (err != -EBADMSG && err != -ENOENT)) {
		if (err)
			snprintf(error, 512, "cannot read %s: %s",
				 kvc_super_path(s, KVC_STORE_COPY, path), strerror(-err));
		return err;
	}
	*s = empty;
	*who = "the catalog";
	if (!from_catalog(s) && (!device || s->device))
		return 0;
	*s = empty;
	s->no_proof = true;
	*who = "its frames";
	if (device) {
		s->device = true;
		snprintf(s->data, sizeof s->data, "%s", device);
		return from_label(s, error) ?: from_frames(s, error);
	} else if (access(s->data, F_OK) && errno == ENOENT) {
		snprintf(error, 512,
			 "cannot find the data of %s: if the data is on a device, give --device",
			 s->dir);
		return -EBADMSG;
	}
	return from_frames(s, error);
}

static int mend_super(struct kvc_store *s, const char *path, const char *device,
		      struct kvm_report *r, char *error)
{
	char before[512];
	const char *who;
	int err;

	snprintf(before, sizeof before, "%s", error);
	s->read_only = !r->mend;
	if ((err = find_properties(s, device, &who, error)) || (err = kvc_super_name(s)))
		return err;
	*strchrnul(before, ';') = 0;
	/* without the secret it is repaired later (kvm_rebuild) */
	kvm_foundf(r, r->mend && !kvc_store_unproven(s), "%s; %s%s what it was", before, who,
		   strcmp(who, "its frames") ? " tells" : " tell");
	if (!r->mend)
		return 0;
	s->created_ns = s->created_ns ?: kvc_now_ns();
	err = kvc_store_repair(s, error);
	return err == -EEXIST ? kvc_store_open(s, path, error) : err;
}

static int relabel(const struct kvc_store *s)
{
	char error[512];
	uint64_t size;
	KVC_FD int fd = kvc_label_device_open(s, O_RDWR, &size, error);

	return fd < 0 ? fd : kvc_label_repair(s, fd);
}

/* Restores the file's length with holes. The checks find the files whose data was lost. */
static int mend_size(struct kvc_store *s, uint64_t size)
{
	KVC_FD int fd = -1;
	int err = -ENOSPC;

	if (!s->device) {
		fd = kvc_open_own(s->data, O_RDWR | O_CREAT);
		if (fd < 0)
			return -errno;
		err = -posix_fallocate(fd, 0, (off_t)s->data_size);
		err = err ?: fsync(fd) ? -errno : kvc_super_sync_dir(s);
	}
	if (err != -ENOSPC || size < KVC_STORE_MIN_SIZE)
		return err;
	if (fd >= 0 && ftruncate(fd, (off_t)size)) /* restore the former size */
		return -errno;
	s->data_size = size / KVC_PAGE * KVC_PAGE;
	if (s->device && (err = relabel(s)))
		return err;
	if (kvc_store_unproven(s))
		return 0;
	return kvc_super_write(s, s->lock_fd) ?: kvc_super_save_copy(s);
}

/*
 * Checks the device's label. A device that does not belong to the store is never written: fsck
 * ends.
 */
static int check_label(const struct kvc_store *s, struct kvm_report *r, char *error)
{
	uint64_t size;
	KVC_FD int fd = kvc_label_device_open(s, r->mend ? O_RDWR : O_RDONLY, &size, error);
	int err = fd < 0 ? fd : kvc_label_check(s, fd, error);

	if (err != -EBADMSG || !r->mend)
		return err;
	if (kvc_label_repair(s, fd))
		return err;
	*strchrnul(error, ';') = 0;
	kvm_found(r, true, error);
	return 0;
}

static int check_size(struct kvc_store *s, struct kvm_report *r, char *error)
{
	char a[32], b[32];
	uint64_t size = 0;
	int err = data_size_of(s->data, &size);

	if (err == -ENOENT && !s->device)
		err = 0;
	if (!err && size < s->data_size) {
		err = r->mend ? mend_size(s, size) : 0;
		s->lost_from = kvc_max(size, 1);
		kvm_foundf(r, r->mend && !err, "%s is shorter than at its creation: %s of %s",
			   s->data, kvc_size_text(size, a), kvc_size_text(s->data_size, b));
	}
	if (err)
		snprintf(error, 512, "%s: %s", s->data, strerror(-err));
	return err;
}

int kvm_open(struct kvc_store *s, const char *path, const char *device, struct kvm_report *r,
	     char *error)
{
	int err = r->mend ? kvc_store_open(s, path, error) : kvc_store_open_read(s, path, error);

	if (err == -EBADMSG)
		err = mend_super(s, path, device, r, error);
	if (err)
		return err;
	if (s->device)
		err = check_label(s, r, error);
	if (err || (err = check_size(s, r, error)))
		kvc_store_close(s);
	return err;
}
