/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mkfs.kvcachefs [--size SIZE] [--device PATH] [--force] STORE: makes a store: its folder, the data
 * file (preallocated, so that the disk tier never meets a full filesystem) or the name of a block
 * device, a reserve that the daemon gives up when the catalog finds no space, the catalog, and last
 * the superblock, which makes it a store. What fails leaves nothing behind.
 */
#include "tool.h"

#include "catalog.h"
#include "store.h"

#include <fcntl.h>
#include <getopt.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static const char *const files[] = {
	KVC_STORE_SUPER, KVC_STORE_CATALOG, KVC_STORE_CATALOG "-wal",  KVC_STORE_CATALOG "-shm",
	KVC_STORE_DATA,  KVC_STORE_RESERVE, KVC_STORE_CATALOG "-mark",
};

static void usage(FILE *out)
{
	fprintf(out, "usage: mkfs.kvcachefs [--size SIZE] [--device PATH] [--force] STORE\n"
		     "Makes a kvcachefs store in the folder STORE.\n\n"
		     "  -s, --size SIZE    size of the disk tier (K, M, G, T; default: half of the "
		     "free space,\n"
		     "                     or all of --device)\n"
		     "  -d, --device PATH  keep the disk tier's data on this block device\n"
		     "  -F, --force        replace a store that is there: all it holds is lost\n"
		     "  -h, --help         this\n"
		     "  -V, --version      the version\n");
}

static void remove_files(const struct kvc_store *s)
{
	char path[1280];

	for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
		unlink(kvc_store_path(s, files[i], path));
}

/* How much the device or the folder's filesystem can give. */
static int room(const struct kvc_store *s, uint64_t *bytes)
{
	struct statvfs v;
	KVC_FD int fd = -1;

	if (s->device) {
		struct stat st;

		fd = open(s->data, O_RDWR | O_EXCL | O_CLOEXEC);
		if (fd < 0)
			return kvm_fail("cannot open the device %s: %s", s->data,
					errno == EBUSY ? "it is in use" : strerror(errno));
		if (fstat(fd, &st) || !S_ISBLK(st.st_mode) || ioctl(fd, BLKGETSIZE64, bytes))
			return kvm_fail("%s is not a block device", s->data);
		return 0;
	}
	if (statvfs(s->dir, &v))
		return kvm_fail("%s: %s", s->dir, strerror(errno));
	*bytes = (uint64_t)v.f_bavail * v.f_frsize;
	return 0;
}

static int make_data(const struct kvc_store *s)
{
	KVC_FD int fd = open(s->data, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int err;

	if (fd < 0)
		return kvm_fail("cannot make %s: %s", s->data, strerror(errno));
	err = posix_fallocate(fd, 0, (off_t)s->data_size);
	if (err)
		return kvm_fail("cannot give %s its size: %s", s->data, strerror(err));
	return fsync(fd) ? kvm_fail("%s: %s", s->data, strerror(errno)) : 0;
}

/* A store without one works too: then what is full stays full until somebody else makes room. */
static void make_reserve(const struct kvc_store *s)
{
	char path[1280];
	KVC_FD int fd = open(kvc_store_path(s, KVC_STORE_RESERVE, path),
			     O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int err = fd < 0 ? errno : posix_fallocate(fd, 0, KVC_STORE_RESERVE_SIZE);

	if (!err && fsync(fd))
		err = errno;
	if (!err)
		return;
	unlink(path);
	fprintf(stderr, "mkfs.kvcachefs: no reserve for a full filesystem is made: %s\n",
		strerror(err));
}

static int make(struct kvc_store *s, bool force, bool made_dir)
{
	char path[1280], a[32], b[32];
	uint64_t free_bytes, old = 0;
	struct stat st;
	int err;

	if (!stat(kvc_store_path(s, KVC_STORE_SUPER, path), &st)) {
		struct kvc_store there;
		char error[512];

		if (!force)
			return kvm_fail("%s is a store already; --force replaces it, and all it "
					"holds is lost",
					s->dir);
		err = kvc_store_open(&there, s->dir, error);
		if (err == -EBUSY)
			return kvm_fail(
				"the store %s is mounted or being checked: unmount it first",
				s->dir);
		kvc_store_close(&there);
	}
	if (force && !s->device && !stat(kvc_store_path(s, KVC_STORE_DATA, path), &st))
		old = (uint64_t)st.st_blocks * 512;
	if (room(s, &free_bytes))
		return 1;
	free_bytes += old;
	if (!s->data_size)
		s->data_size = s->device ? free_bytes : free_bytes / 2;
	s->data_size = s->data_size / KVC_PAGE * KVC_PAGE;
	if (s->data_size < KVC_STORE_MIN_SIZE)
		return kvm_fail("a size of %s is too small; the least is %s",
				kvc_size_text(s->data_size, a),
				kvc_size_text(KVC_STORE_MIN_SIZE, b));
	if (s->data_size > free_bytes)
		return kvm_fail("%s is more than the %s that %s has",
				kvc_size_text(s->data_size, a), kvc_size_text(free_bytes, b),
				s->device ? s->data : s->dir);
	if (!made_dir && access(s->dir, W_OK))
		return kvm_fail("cannot write in %s: %s", s->dir, strerror(errno));
	if (force)
		remove_files(s);
	if (!s->device && make_data(s)) {
		remove_files(s);
		return 1;
	}
	make_reserve(s);
	if ((err = kvc_catalog_create(kvc_store_path(s, KVC_STORE_CATALOG, path)))) {
		remove_files(s);
		return kvm_fail("cannot make the catalog: %s", strerror(-err));
	}
	if ((err = kvc_store_create(s))) {
		remove_files(s);
		return kvm_fail("cannot write the superblock: %s", strerror(-err));
	}
	printf("%s: a store with %s on %s, uuid %s\n", s->dir, kvc_size_text(s->data_size, a),
	       s->device ? s->data : "its own data file", s->uuid_text);
	return 0;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = { { "size", 1, 0, 's' },    { "device", 1, 0, 'd' },
					       { "force", 0, 0, 'F' },   { "help", 0, 0, 'h' },
					       { "version", 0, 0, 'V' }, { 0 } };
	struct kvc_store s = { .lock_fd = -1 };
	const char *device = NULL;
	bool force = false, made_dir = false;
	char *real;
	int c, err;

	kvm_name = "mkfs.kvcachefs";
	while ((c = getopt_long(argc, argv, "s:d:FhV", longs, NULL)) != -1)
		switch (c) {
		case 's':
			if (kvc_size_parse(optarg, &s.data_size) || !s.data_size)
				return kvm_fail("'%s' is not a size; give a number with K, M, G or "
						"T, such as 100G",
						optarg);
			break;
		case 'd': device = optarg; break;
		case 'F': force = true; break;
		case 'h': usage(stdout); return 0;
		case 'V': printf("mkfs.kvcachefs %s\n", KVC_VERSION); return 0;
		default:
			fprintf(stderr,
				"mkfs.kvcachefs: mkfs.kvcachefs --help shows what it takes\n");
			return 1;
		}
	if (argc - optind != 1)
		return kvm_fail("it takes one store; mkfs.kvcachefs --help shows all");
	if (strlen(argv[optind]) >= sizeof s.dir - 64)
		return kvm_fail("the path is too long");
	if (!mkdir(argv[optind], 0700))
		made_dir = true;
	else if (errno != EEXIST)
		return kvm_fail("cannot make %s: %s", argv[optind], strerror(errno));
	snprintf(s.dir, sizeof s.dir, "%s", argv[optind]);
	s.device = device != NULL;
	kvc_store_path(&s, KVC_STORE_DATA, s.data);
	if (device) {
		real = realpath(device, NULL);
		snprintf(s.data, 1024, "%s", real ? real : device);
		free(real);
	}
	err = make(&s, force, made_dir);
	if (err && made_dir)
		rmdir(s.dir);
	return err;
}
