/* SPDX-License-Identifier: Apache-2.0 */
/* The label of a block device (label.h). */
#include "label.h"

#include <endian.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#define LABEL_VERSION 1
static const char magic[8] = "KVCACHDV";

struct label {
	char magic[8];
	uint32_t version, index;
	uint8_t uuid[16];
	uint64_t size;
	uint8_t reserved[KVC_PAGE - 40 - 16];
	uint8_t sum[16];
};
_Static_assert(sizeof(struct label) == KVC_PAGE, "kvcachefs-format(5)");

int kvc_label_device_open(const struct kvc_store *s, int flags, uint64_t *size, char *error)
{
	struct stat st;
	int fd, err;

	if (stat(s->data, &st)) {
		err = -errno;
		snprintf(error, 512, "cannot open the device %s: %s", s->data, kvc_why(-err));
		return err;
	}
	if (!S_ISBLK(st.st_mode)) {
		snprintf(error, 512,
			 "%s is not a block device; without --device the data is a "
			 "file in the store",
			 s->data);
		return -ENOTBLK;
	}
	fd = open(s->data, flags | O_EXCL | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) || !S_ISBLK(st.st_mode) || ioctl(fd, BLKGETSIZE64, size)) {
		err = errno ? -errno : -ENOTBLK;
		snprintf(error, 512, "cannot open the device %s: %s", s->data,
			 err == -EBUSY ? "it is in use" : kvc_why(-err));
		if (fd >= 0)
			close(fd);
		return err;
	}
	return fd;
}

static int read_page(int fd, uint64_t at, struct kvc_label *l)
{
	KVC_MEM struct label *p = aligned_alloc(KVC_PAGE, sizeof *p);
	struct kvc_sum sum;
	int err = p ? kvc_pread_all(fd, p, sizeof *p, (off_t)at) : -ENOMEM;

	if (err)
		return err;
	if (memcmp(p->magic, magic, sizeof magic))
		return -ENODATA;
	sum = kvc_sum_of(p, offsetof(struct label, sum));
	if (memcmp(sum.b, p->sum, 16))
		return -EBADMSG;
	if (le32toh(p->version) > LABEL_VERSION)
		return -EPROTO;
	memcpy(l->uuid, p->uuid, 16);
	l->index = le32toh(p->index);
	l->size = le64toh(p->size);
	return 0;
}

int kvc_label_read(int fd, struct kvc_label *l)
{
	return read_page(fd, 0, l);
}

bool kvc_label_is(const struct kvc_label *l, const struct kvc_store *s)
{
	return !memcmp(l->uuid, s->uuid, 16) && !l->index;
}

int kvc_label_write(const struct kvc_store *s, int fd)
{
	KVC_MEM struct label *p = aligned_alloc(KVC_PAGE, sizeof *p);
	struct kvc_sum sum;
	int err;

	if (!p)
		return -ENOMEM;
	memset(p, 0, sizeof *p);
	memcpy(p->magic, magic, sizeof magic);
	p->version = htole32(LABEL_VERSION);
	memcpy(p->uuid, s->uuid, 16);
	p->size = htole64(s->data_size);
	sum = kvc_sum_of(p, offsetof(struct label, sum));
	memcpy(p->sum, sum.b, 16);
	err = kvc_pwrite_all(fd, p, sizeof *p, (off_t)(s->data_size - sizeof *p));
	err = err ?: fsync(fd) ? -errno : kvc_pwrite_all(fd, p, sizeof *p, 0);
	return err ?: fsync(fd) ? -errno : 0;
}

int kvc_label_check(const struct kvc_store *s, int fd, char *error)
{
	struct kvc_label l, copy;
	int err = kvc_label_read(fd, &l);

	if (!err && kvc_label_is(&l, s))
		return 0;
	if (!err) {
		snprintf(error, 512,
			 "the device %s has the data of another kvcachefs store and is not "
			 "changed. If the names of disks have changed, give mkfs.kvcachefs "
			 "--device a name in /dev/disk/by-id",
			 s->data);
		return -EXDEV;
	}
	if (err != -ENODATA && err != -EBADMSG && err != -EPROTO) {
		snprintf(error, 512, "cannot read the label of the device %s: %s", s->data,
			 kvc_why(-err));
		return err;
	}
	if (err == -EBADMSG && !read_page(fd, s->data_size - KVC_PAGE, &copy) &&
	    kvc_label_is(&copy, s))
		snprintf(error, 512,
			 "the label of the device %s is damaged; fsck.kvcachefs -y repairs it from "
			 "its copy",
			 s->data);
	else
		snprintf(error, 512,
			 "the device %s does not have this store's label and is not changed: its "
			 "name now refers to another disk, or the disk was overwritten",
			 s->data);
	return err == -EBADMSG ? err : -EXDEV;
}

int kvc_label_repair(const struct kvc_store *s, int fd)
{
	struct kvc_label l;
	int err = kvc_label_read(fd, &l);

	if (!err && kvc_label_is(&l, s))
		return l.size == s->data_size ? 0 : kvc_label_write(s, fd);
	if (err != -EBADMSG)
		return err ?: -EXDEV;
	err = read_page(fd, s->data_size - KVC_PAGE, &l);
	return err ?: kvc_label_is(&l, s) ? kvc_label_write(s, fd) : -EXDEV;
}
