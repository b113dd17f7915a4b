/* SPDX-License-Identifier: Apache-2.0 */
/* The labels of devices (label.h). */
#include "label.h"

#include <endian.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define LABEL_VERSION 1
static const char magic[] = "KVCACHDV";

struct label {
	char magic[8];
	uint32_t version, index;
	uint8_t uuid[16];
	uint64_t size;
	uint8_t reserved[KVC_PAGE - 40 - 16];
	uint8_t sum[16];
};
_Static_assert(sizeof(struct label) == KVC_PAGE, "kvcachefs-format(5)");

/* Writes why the device cannot be opened, and what to do. Returns err. */
static int refuse(const struct kvc_store *s, unsigned nr, int err, char *error)
{
	const char *path = s->dev[nr].path;
	bool only = kvc_super_devices(s) == 1;

	if (only || err == -EBUSY)
		snprintf(error, 512, "cannot open the device %.300s: %s", path,
			 err == -EBUSY ? "it is in use" : kvc_why(-err));
	else
		snprintf(error, 512,
			 "cannot open device %u of the store, %.200s: %s. Connect it; if its name "
			 "has changed, give the new one to fsck.kvcachefs -y --device; if it is "
			 "lost, fsck.kvcachefs -y --forget gives up the files that only it has",
			 nr, path, kvc_why(-err));
	return err;
}

static int open_file(const struct kvc_store *s, unsigned nr, int flags, uint64_t *size, char *error)
{
	const char *path = s->dev[nr].path;
	int fd = kvc_open_own(path, flags), err;
	struct stat st;

	if (fd < 0 && errno == EINVAL && flags & O_DIRECT)
		fd = kvc_open_own(path, flags & ~O_DIRECT);
	if (fd >= 0 && !fstat(fd, &st)) {
		*size = (uint64_t)st.st_size;
		return fd;
	}
	err = errno ? -errno : -EIO;
	if (fd >= 0)
		close(fd);
	return refuse(s, nr, err, error);
}

static int open_device(const struct kvc_store *s, unsigned nr, int flags, uint64_t *size,
		       char *error)
{
	const char *path = s->dev[nr].path;
	struct stat st;
	int fd, err;

	if (s->dev[nr].kind != KVC_DEVICE_BLOCK)
		return open_file(s, nr, flags & ~O_EXCL, size, error);
	if (stat(path, &st))
		return refuse(s, nr, -errno, error);
	if (!S_ISBLK(st.st_mode)) {
		snprintf(error, 512,
			 "%.300s is not a block device; without --device the data is a "
			 "file in the store, and --file makes a file elsewhere",
			 path);
		return -ENOTBLK;
	}
	fd = open(path, flags | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) || !S_ISBLK(st.st_mode) || ioctl(fd, BLKGETSIZE64, size)) {
		err = errno ? -errno : -ENOTBLK;
		if (fd >= 0)
			close(fd);
		return refuse(s, nr, err, error);
	}
	return fd;
}

int kvc_label_device_open(const struct kvc_store *s, unsigned nr, int flags, uint64_t *size,
			  char *error)
{
	return open_device(s, nr, flags | O_EXCL, size, error);
}

int kvc_label_device_again(const struct kvc_store *s, unsigned nr, int flags, uint64_t *size,
			   char *error)
{
	return open_device(s, nr, flags, size, error);
}

static bool same_device(const struct stat *a, const struct stat *b)
{
	if (S_ISBLK(a->st_mode) && S_ISBLK(b->st_mode))
		return a->st_rdev == b->st_rdev;
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

int kvc_label_distinct(const struct kvc_store *s, char *error)
{
	struct stat a, b;

	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		if (!s->dev[i].kind || stat(s->dev[i].path, &a))
			continue;
		for (unsigned j = 0; j < i; j++) {
			if (!s->dev[j].kind || stat(s->dev[j].path, &b) || !same_device(&a, &b))
				continue;
			snprintf(error, 512,
				 "%.200s and %.200s, devices %u and %u of the store, are one and "
				 "the same; give each device a name in /dev/disk/by-id with "
				 "fsck.kvcachefs -y --device",
				 s->dev[j].path, s->dev[i].path, j, i);
			return -EEXIST;
		}
	}
	return 0;
}

static int read_page(int fd, uint64_t at, struct kvc_label *l)
{
	KVC_MEM struct label *p = aligned_alloc(KVC_PAGE, sizeof *p);
	struct kvc_sum sum;
	int err = p ? kvc_pread_all(fd, p, sizeof *p, (off_t)at) : -ENOMEM;

	if (err)
		return err;
	if (memcmp(p->magic, magic, sizeof p->magic))
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

bool kvc_label_is(const struct kvc_label *l, const struct kvc_store *s, unsigned nr)
{
	return !memcmp(l->uuid, s->uuid, 16) && l->index == nr;
}

/* Writes the page to the place of the copy and then to the first page. */
static int write_both(const struct kvc_store *s, unsigned nr, int fd, const struct label *p)
{
	int err = kvc_pwrite_all(fd, p, sizeof *p, (off_t)(s->dev[nr].size - sizeof *p));

	err = err ?: fsync(fd) ? -errno : kvc_pwrite_all(fd, p, sizeof *p, 0);
	return err ?: fsync(fd) ? -errno : 0;
}

int kvc_label_clear(const struct kvc_store *s, unsigned nr, int fd)
{
	KVC_MEM struct label *p = aligned_alloc(KVC_PAGE, sizeof *p);

	if (!p)
		return -ENOMEM;
	memset(p, 0, sizeof *p);
	return write_both(s, nr, fd, p);
}

static int encode(const struct kvc_store *s, unsigned nr, struct label **out)
{
	struct label *p = aligned_alloc(KVC_PAGE, sizeof *p);
	struct kvc_sum sum;

	if (!p)
		return -ENOMEM;
	memset(p, 0, sizeof *p);
	memcpy(p->magic, magic, sizeof p->magic);
	p->version = htole32(LABEL_VERSION);
	p->index = htole32(nr);
	memcpy(p->uuid, s->uuid, 16);
	p->size = htole64(s->dev[nr].size);
	sum = kvc_sum_of(p, offsetof(struct label, sum));
	memcpy(p->sum, sum.b, 16);
	*out = p;
	return 0;
}

int kvc_label_write(const struct kvc_store *s, unsigned nr, int fd)
{
	KVC_MEM struct label *p = NULL;

	return encode(s, nr, &p) ?: write_both(s, nr, fd, p);
}

int kvc_label_write_copy(const struct kvc_store *s, unsigned nr, int fd)
{
	KVC_MEM struct label *p = NULL;
	int err = encode(s, nr, &p);

	err = err ?: kvc_pwrite_all(fd, p, sizeof *p, (off_t)(s->dev[nr].size - sizeof *p));
	return err ?: fsync(fd) ? -errno : 0;
}

int kvc_label_make(const struct kvc_store *s, unsigned nr, int fd, uint64_t size)
{
	KVC_MEM uint8_t *zeros = aligned_alloc(KVC_PAGE, KVC_LABEL_ROOM);
	uint64_t used = s->dev[nr].size;
	int err;

	if (!zeros)
		return -ENOMEM;
	memset(zeros, 0, KVC_LABEL_ROOM);
	err = kvc_pwrite_all(fd, zeros, KVC_LABEL_ROOM, 0)
		      ?: kvc_pwrite_all(fd, zeros, KVC_LABEL_ROOM, (off_t)(used - KVC_LABEL_ROOM));
	if (!err && size >= used + KVC_LABEL_ROOM)
		err = kvc_pwrite_all(fd, zeros, KVC_LABEL_ROOM,
				     (off_t)((size - KVC_LABEL_ROOM) & ~4095ull));
	return err ?: kvc_label_write(s, nr, fd);
}

/* Syncs the folder of a file, so that its name is on stable storage. */
static int sync_folder_of(const char *path)
{
	char dir[1280];
	char *slash;

	snprintf(dir, sizeof dir, "%s", path);
	slash = strrchr(dir, '/');
	if (slash)
		slash[slash == dir] = 0;
	KVC_FD int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 || fsync(fd) ? -errno : 0;
}

int kvc_label_room(int fd, const char *path, uint64_t more, char *error)
{
	struct statvfs v;
	uint64_t space;
	char a[32], b[32];

	if (fstatvfs(fd, &v) || !v.f_blocks) /* a tmpfs without a limit */
		return 0;
	space = (geteuid() ? v.f_bavail : v.f_bfree) * v.f_frsize;
	if (more <= space)
		return 0;
	snprintf(error, 512,
		 "%.300s needs %s more, and its filesystem has %s free; give a smaller --size, or "
		 "free space",
		 path, kvc_size_text(more, a), kvc_size_text(space, b));
	return -ENOSPC;
}

int kvc_label_file_make(const struct kvc_store *s, unsigned nr, char *error)
{
	const struct kvc_device *d = &s->dev[nr];
	KVC_FD int fd = kvc_open_own(d->path, O_RDWR | O_CREAT | O_EXCL);
	bool full = fd >= 0 && kvc_label_room(fd, d->path, d->size, error);
	int err = fd < 0 ? fd : full ? -ENOSPC : -posix_fallocate(fd, 0, (off_t)d->size);

	err = err ?: kvc_label_make(s, nr, fd, d->size) ?: sync_folder_of(d->path);
	if (!err)
		return 0;
	if (fd >= 0)
		unlink(d->path);
	if (full)
		return err;
	if (err == -EEXIST)
		snprintf(error, 512,
			 "%.300s exists and is not changed: give the name of a new file, or remove "
			 "it",
			 d->path);
	else
		snprintf(error, 512, "cannot make the file %.300s: %s", d->path, kvc_why(-err));
	return err;
}

int kvc_label_check(const struct kvc_store *s, unsigned nr, int fd, char *error)
{
	const char *path = s->dev[nr].path;
	struct kvc_label l, copy;
	int err = kvc_label_read(fd, &l);

	if (!err && kvc_label_is(&l, s, nr))
		return 0;
	if (!err && !memcmp(l.uuid, s->uuid, 16)) {
		snprintf(error, 512,
			 "%.300s has the label of device %u of this store and not of device %u, "
			 "and is not changed: the names of disks have changed. Give their new "
			 "names to fsck.kvcachefs -y --device",
			 path, l.index, nr);
		return -EXDEV;
	}
	if (!err) {
		snprintf(error, 512,
			 "the device %.200s has the data of another kvcachefs store and is not "
			 "changed. If the names of disks have changed, give fsck.kvcachefs -y "
			 "--device the name in /dev/disk/by-id",
			 path);
		return -EXDEV;
	}
	if (err != -ENODATA && err != -EBADMSG && err != -EPROTO) {
		snprintf(error, 512, "cannot read the label of the device %.300s: %s", path,
			 kvc_why(-err));
		return err;
	}
	if (err == -EBADMSG && !read_page(fd, s->dev[nr].size - KVC_PAGE, &copy) &&
	    kvc_label_is(&copy, s, nr))
		snprintf(error, 512,
			 "the label of the device %.300s is damaged; fsck.kvcachefs -y repairs it "
			 "from its copy",
			 path);
	else
		snprintf(error, 512,
			 "the device %.300s does not have this store's label and is not changed: "
			 "its name now refers to another disk, or the disk was overwritten. If the "
			 "names of disks have changed, give the new one to fsck.kvcachefs -y "
			 "--device",
			 path);
	return err == -EBADMSG ? err : -EXDEV;
}

int kvc_label_repair(const struct kvc_store *s, unsigned nr, int fd)
{
	uint64_t size = s->dev[nr].size;
	struct kvc_label l;
	int err = kvc_label_read(fd, &l);

	if (!err && kvc_label_is(&l, s, nr))
		return l.size == size ? 0 : kvc_label_write(s, nr, fd);
	if (err != -EBADMSG)
		return err ?: -EXDEV;
	err = read_page(fd, size - KVC_PAGE, &l);
	return err ?: kvc_label_is(&l, s, nr) ? kvc_label_write(s, nr, fd) : -EXDEV;
}
