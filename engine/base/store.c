/* SPDX-License-Identifier: Apache-2.0 */
/* See store.h. */
#include "store.h"

#include "log.h"

#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#define LOOK_US 10000
#define SAY_NS 1000000000ull /* a wait longer than this is told */
/* for a holder whose mount is not seen: it may be about to notice its end */
#define UNSEEN_NS 3000000000ull
#define ENDING_NS 60000000000ull /* for one that is ending, since it last got on */

static const char magic[8] = "KVCACHFS";

struct super {
	char magic[8];
	uint32_t version, flags; /* flags: 1 = device */
	uint8_t uuid[16];
	uint64_t data_size, created_ns;
	char device[1024];
	uint8_t secret[32]; /* zero: none */
	uint8_t reserved[KVC_PAGE - 48 - 1024 - 32 - 16];
	uint8_t sum[16];
};
_Static_assert(sizeof(struct super) == KVC_PAGE, "superblock");

static void uuid_text(struct kvc_store *s)
{
	char *p = s->uuid_text;

	for (int i = 0; i < 16; i++)
		p += snprintf(p, 4, "%02x%s", s->uuid[i],
			      i == 3 || i == 5 || i == 7 || i == 9 ? "-" : "");
}

const char *kvc_store_path(const struct kvc_store *s, const char *name, char *buf)
{
	snprintf(buf, 1280, "%s/%s", s->dir, name);
	return buf;
}

int kvc_store_create(struct kvc_store *s)
{
	KVC_MEM struct super *p = calloc(1, sizeof *p);
	char path[1280];
	KVC_FD int fd = -1;
	struct kvc_sum sum;
	int err;

	if (!p)
		return -ENOMEM;
	static const uint8_t none[16];

	if (!memcmp(s->uuid, none, 16)) {
		if (getrandom(s->uuid, 16, 0) != 16)
			return -EIO;
		s->uuid[6] = (s->uuid[6] & 0x0f) | 0x40;
		s->uuid[8] = (s->uuid[8] & 0x3f) | 0x80;
		if (getrandom(s->secret, sizeof s->secret, 0) != sizeof s->secret)
			return -EIO;
		s->has_secret = true;
	}
	uuid_text(s);
	s->created_ns = kvc_now_ns();
	memcpy(p->magic, magic, sizeof magic);
	p->version = htole32(KVC_STORE_VERSION);
	p->flags = htole32(s->device);
	memcpy(p->uuid, s->uuid, 16);
	p->data_size = htole64(s->data_size);
	p->created_ns = htole64(s->created_ns);
	if (s->device)
		snprintf(p->device, sizeof p->device, "%s", s->data);
	memcpy(p->secret, s->secret, sizeof p->secret);
	sum = kvc_sum_of(p, offsetof(struct super, sum));
	memcpy(p->sum, sum.b, 16);
	fd = open(kvc_store_path(s, KVC_STORE_SUPER, path),
		  O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if ((err = kvc_pwrite_all(fd, p, sizeof *p, 0)))
		return err;
	return fsync(fd) ? -errno : 0;
}

int kvc_store_keyed(struct kvc_store *s)
{
	static const uint8_t none[sizeof s->secret];
	KVC_MEM struct super *p = malloc(sizeof *p);
	struct kvc_sum sum;
	int err = p ? kvc_pread_all(s->lock_fd, p, sizeof *p, 0) : -ENOMEM;

	if (s->has_secret || err)
		return s->has_secret ? 0 : err;
	if (!memcmp(s->secret, none, sizeof none) &&
	    getrandom(s->secret, sizeof s->secret, 0) != sizeof s->secret)
		return -EIO;
	p->version = htole32(KVC_STORE_VERSION);
	memcpy(p->secret, s->secret, sizeof p->secret);
	sum = kvc_sum_of(p, offsetof(struct super, sum));
	memcpy(p->sum, sum.b, 16);
	err = kvc_pwrite_all(s->lock_fd, p, sizeof *p, 0);
	if (!err && fsync(s->lock_fd))
		err = -errno;
	s->has_secret = !err;
	return err;
}

/* As /proc/self/mountinfo writes it: spaces and the like are octal there. */
static bool same_source(const char *field, const char *dir)
{
	for (; *field && *field != ' ' && *dir; dir++) {
		unsigned c = (unsigned char)*field++;

		if (c == '\\' && sscanf(field, "%3o", &c) == 1)
			field += 3;
		/* a comma cannot be in a mount's source */
		if (c != (unsigned char)(*dir == ',' ? '_' : *dir))
			return false;
	}
	return !*dir && (!*field || *field == ' ');
}

/* Is this store mounted, as far as this process can see? */
static bool mount_seen(const char *dir)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	KVC_MEM char *line = NULL, *real = realpath(dir, NULL);
	size_t room = 0;
	bool seen = false;

	while (f && !seen && getline(&line, &room, f) > 0) {
		const char *type = strstr(line, " - fuse.kvcachefs ");

		line[strcspn(line, "\n")] = 0;
		seen = type && same_source(type + strlen(" - fuse.kvcachefs "), real ?: dir);
	}
	if (f)
		fclose(f);
	return seen;
}

/*
 * A holder that serves is not waited for. One that has let go of its byte is, for as long as it
 * gets on; and so, for a moment, is one whose mount is not seen: umount(8) returns before the
 * daemon knows of it.
 */
static int lock_store(int fd, const char *dir, char *error)
{
	uint64_t start = kvc_mono_ns(), since = start, stamp = 0;
	bool said = false;

	for (;;) {
		struct flock all = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
		struct flock byte = {
			.l_type = F_WRLCK,
			.l_whence = SEEK_SET,
			.l_start = KVC_STORE_SERVING,
			.l_len = 1,
		};
		uint64_t now = kvc_mono_ns();
		struct stat st;

		if (!fcntl(fd, F_OFD_SETLK, &all))
			return 0;
		if (errno != EAGAIN && errno != EACCES) {
			int err = -errno;

			snprintf(error, 512, "cannot lock the store %s: %s", dir, strerror(-err));
			return err;
		}
		if (!fcntl(fd, F_OFD_GETLK, &byte) && byte.l_type == F_UNLCK) {
			if (!fstat(fd, &st) && kvc_ns(st.st_mtim) != stamp) {
				stamp = kvc_ns(st.st_mtim);
				since = now;
			}
			if (now - since > ENDING_NS) {
				snprintf(error, 512,
					 "the store %s is in use by a daemon that is ending and "
					 "does not get on",
					 dir);
				return -EBUSY;
			}
		} else if (now - start > UNSEEN_NS || mount_seen(dir)) {
			snprintf(error, 512, "the store %s is in use by another process", dir);
			return -EBUSY;
		}
		if (!said && now - start > SAY_NS) {
			kvc_info("waiting for another process to leave the store %s", dir);
			said = true;
		}
		usleep(LOOK_US);
	}
}

void kvc_store_ending(const struct kvc_store *s)
{
	struct flock byte = {
		.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = KVC_STORE_SERVING, .l_len = 1
	};

	if (s->lock_fd >= 0)
		fcntl(s->lock_fd, F_OFD_SETLK, &byte);
}

void kvc_store_alive(const struct kvc_store *s)
{
	if (s->lock_fd >= 0)
		futimens(s->lock_fd, NULL);
}

/* Reads and checks the superblock. */
static int read_super(int fd, const char *dir, const char *path, struct super *p, char *error)
{
	struct kvc_sum sum;
	int err;

	err = kvc_pread_all(fd, p, sizeof *p, 0);
	if (err == -ENODATA || (!err && memcmp(p->magic, magic, sizeof magic))) {
		snprintf(error, 512, "%s is not a kvcachefs store; mkfs.kvcachefs makes one", dir);
		return -EINVAL;
	}
	if (err) {
		snprintf(error, 512, "cannot read %s: %s", path, strerror(-err));
		return err;
	}
	if (le32toh(p->version) > KVC_STORE_VERSION) {
		snprintf(error, 512,
			 "%s has format %u and this kvcachefs knows %d; use a newer one", dir,
			 le32toh(p->version), KVC_STORE_VERSION);
		return -EPROTO;
	}
	sum = kvc_sum_of(p, offsetof(struct super, sum));
	if (memcmp(sum.b, p->sum, 16) || memchr(p->device, 0, sizeof p->device) == NULL) {
		snprintf(
			error, 512,
			"the superblock of %s is damaged; fsck.kvcachefs --rebuild makes a new one",
			dir);
		return -EBADMSG;
	}
	return 0;
}

int kvc_store_open(struct kvc_store *s, const char *dir, char *error)
{
	KVC_MEM struct super *p = malloc(sizeof *p);
	char path[1280];
	KVC_FD int fd = -1;
	struct stat st;
	int err;

	memset(s, 0, sizeof *s);
	s->lock_fd = -1;
	if (!p)
		return -ENOMEM;
	if (strlen(dir) >= sizeof s->dir) {
		snprintf(error, 512, "the store's path is too long");
		return -ENAMETOOLONG;
	}
	errno = ENOTDIR;
	if (stat(dir, &st) || !S_ISDIR(st.st_mode)) {
		err = -errno;
		snprintf(error, 512, "no store at %s: %s; mkfs.kvcachefs makes one", dir,
			 errno == EACCES ? "no permission" : "no such folder");
		return err;
	}
	snprintf(s->dir, sizeof s->dir, "%s", dir);
	fd = open(kvc_store_path(s, KVC_STORE_SUPER, path), O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		err = -errno;
		if (err == -ENOENT)
			snprintf(error, 512,
				 "%s is not a kvcachefs store; mkfs.kvcachefs makes one", dir);
		else
			snprintf(error, 512, "cannot open %s: %s", path, strerror(-err));
		return err == -ENOENT ? -EINVAL : err;
	}
	if ((err = read_super(fd, dir, path, p, error)))
		return err;
	if ((err = lock_store(fd, dir, error)))
		return err;
	memcpy(s->uuid, p->uuid, 16);
	uuid_text(s);
	s->data_size = le64toh(p->data_size);
	s->created_ns = le64toh(p->created_ns);
	s->device = le32toh(p->flags) & 1;
	static const uint8_t none[sizeof s->secret];

	memcpy(s->secret, p->secret, sizeof s->secret);
	s->has_secret = memcmp(s->secret, none, sizeof none) != 0;
	if (s->device)
		snprintf(s->data, sizeof s->data, "%s", p->device);
	else
		kvc_store_path(s, KVC_STORE_DATA, s->data);
	s->lock_fd = fd;
	fd = -1;
	return 0;
}

void kvc_store_close(struct kvc_store *s)
{
	if (s->lock_fd >= 0)
		close(s->lock_fd);
	s->lock_fd = -1;
	explicit_bzero(s->secret, sizeof s->secret);
}
