/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The superblock: one page, in two copies, each in its own file. The first is locked, so it is
 * never replaced by another file. It is written in place, and so is the second after the first is
 * on stable storage: at any time one of the two is complete.
 */
#include "store.h"

#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

static const char magic[8] = "KVCACHFS";

struct super {
	char magic[8];
	uint32_t version, flags; /* flags: 1 = device */
	uint8_t uuid[16];
	uint64_t data_size, created_ns;
	char device[1024];
	uint8_t secret[32]; /* zero: no secret */
	uint8_t reserved[KVC_PAGE - 48 - 1024 - 32 - 16];
	uint8_t sum[16];
};
_Static_assert(sizeof(struct super) == KVC_PAGE, "superblock");

static const uint8_t no_secret[32];

const char *kvc_super_path(const struct kvc_store *s, const char *name, char *buf)
{
	snprintf(buf, 1280, "%s/%s", s->dir, name);
	return buf;
}

bool kvc_super_exists(const struct kvc_store *s, const char *name)
{
	char path[1280];
	struct stat st;

	return !lstat(kvc_super_path(s, name, path), &st) || errno != ENOENT;
}

int kvc_super_sync_dir(const struct kvc_store *s)
{
	KVC_FD int fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 || fsync(fd) ? -errno : 0;
}

static void uuid_text(struct kvc_store *s)
{
	char *p = s->uuid_text, *end = p + sizeof s->uuid_text;

	for (int i = 0; i < 16; i++)
		p += snprintf(p, (size_t)(end - p), "%02x%s", s->uuid[i],
			      i == 3 || i == 5 || i == 7 || i == 9 ? "-" : "");
}

int kvc_super_name(struct kvc_store *s)
{
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
	return 0;
}

const char *kvc_super_text(const struct kvc_store *s, char *buf, size_t capacity)
{
	char secret[2 * sizeof s->secret + 1] = "-";

	for (size_t i = 0; i < sizeof s->secret && s->has_secret; i++)
		snprintf(secret + 2 * i, 3, "%02x", s->secret[i]);
	snprintf(buf, capacity, "%s %" PRIu64 " %s%s%s", s->uuid_text, s->data_size, secret,
		 s->device ? " " : "", s->device ? s->data : "");
	explicit_bzero(secret, sizeof secret);
	return buf;
}

/* Reads n bytes of hex digits and advances *p. */
static bool unhex(const char **p, uint8_t *out, size_t n)
{
	for (size_t i = 0; i < n; i++, *p += 2) {
		unsigned byte;

		*p += **p == '-';
		if (strnlen(*p, 2) < 2 || sscanf(*p, "%2x", &byte) != 1)
			return false;
		out[i] = (uint8_t)byte;
	}
	return true;
}

int kvc_super_parse(struct kvc_store *s, const char *text)
{
	uint8_t uuid[16], secret[32] = { 0 };
	const char *p = text;
	uint64_t size;
	int at = 0;

	if (!unhex(&p, uuid, sizeof uuid) || sscanf(p, " %" SCNu64 " %n", &size, &at) != 1 || !at)
		return -EBADMSG;
	p += at;
	if (*p == '-')
		p++;
	else if (!unhex(&p, secret, sizeof secret))
		return -EBADMSG;
	if ((*p && *p != ' ') || strlen(p) > 1024)
		return -EBADMSG;
	memcpy(s->uuid, uuid, 16);
	uuid_text(s);
	memcpy(s->secret, secret, sizeof s->secret);
	s->has_secret = memcmp(secret, no_secret, sizeof no_secret) != 0;
	s->data_size = size;
	s->device = *p == ' ';
	if (s->device)
		snprintf(s->data, sizeof s->data, "%s", p + 1);
	return 0;
}

int kvc_super_read(struct kvc_store *s, int fd, bool *known)
{
	KVC_MEM struct super *p = malloc(sizeof *p);
	struct kvc_sum sum;
	int err;

	*known = false;
	if (!p)
		return -ENOMEM;
	err = kvc_pread_all(fd, p, sizeof *p, 0);
	if (err)
		return err == -ENODATA ? -EBADMSG : err;
	if (memcmp(p->magic, magic, sizeof magic))
		return -EBADMSG;
	*known = true;
	sum = kvc_sum_of(p, offsetof(struct super, sum));
	/*
	 * The checksum is at the same place in all versions: a damaged version number is not
	 * mistaken for a newer version.
	 */
	if (memcmp(sum.b, p->sum, 16))
		return -EBADMSG;
	if (le32toh(p->version) > KVC_STORE_VERSION) {
		s->version = le32toh(p->version);
		return -EPROTO;
	}
	if (!memchr(p->device, 0, sizeof p->device))
		return -EBADMSG;
	memcpy(s->uuid, p->uuid, 16);
	uuid_text(s);
	s->version = le32toh(p->version);
	s->data_size = le64toh(p->data_size);
	s->created_ns = le64toh(p->created_ns);
	s->device = le32toh(p->flags) & 1;
	memcpy(s->secret, p->secret, sizeof s->secret);
	s->has_secret = memcmp(s->secret, no_secret, sizeof no_secret) != 0;
	if (s->device)
		snprintf(s->data, sizeof s->data, "%s", p->device);
	else
		kvc_super_path(s, KVC_STORE_DATA, s->data);
	return 0;
}

int kvc_super_write(const struct kvc_store *s, int fd)
{
	KVC_MEM struct super *p = calloc(1, sizeof *p);
	struct kvc_sum sum;
	int err;

	if (!p)
		return -ENOMEM;
	memcpy(p->magic, magic, sizeof magic);
	/*
	 * Version 1 had no secret: the first mount adds one and sets version 2. Version 3 has its
	 * data on a device with a label; a store with a data file stays at version 2.
	 */
	p->version = htole32(s->device ? KVC_STORE_VERSION : s->has_secret ? 2 : 1);
	memcpy(p->secret, s->secret, sizeof p->secret);
	p->flags = htole32(s->device);
	memcpy(p->uuid, s->uuid, 16);
	p->data_size = htole64(s->data_size);
	p->created_ns = htole64(s->created_ns);
	if (s->device)
		snprintf(p->device, sizeof p->device, "%s", s->data);
	sum = kvc_sum_of(p, offsetof(struct super, sum));
	memcpy(p->sum, sum.b, 16);
	err = kvc_pwrite_all(fd, p, sizeof *p, 0);
	if (!err && ftruncate(fd, sizeof *p))
		err = -errno;
	return err ?: fsync(fd) ? -errno : 0;
}

int kvc_super_load(struct kvc_store *s, const char *name, bool *known)
{
	char path[1280];
	KVC_FD int fd = kvc_open_own(kvc_super_path(s, name, path), O_RDONLY);

	*known = false;
	return fd < 0 ? -errno : kvc_super_read(s, fd, known);
}

int kvc_super_save(const struct kvc_store *s, const char *name)
{
	char path[1280];
	KVC_FD int fd = kvc_open_own(kvc_super_path(s, name, path), O_RDWR | O_CREAT);

	return fd < 0 ? -errno : kvc_super_write(s, fd);
}

int kvc_super_save_copy(const struct kvc_store *s)
{
	KVC_MEM struct kvc_store *there = calloc(1, sizeof *there);
	bool known;
	int err;

	if (!there)
		return -ENOMEM;
	memcpy(there->dir, s->dir, sizeof there->dir);
	err = kvc_super_load(there, KVC_STORE_COPY, &known);
	if (!err && !memcmp(there->uuid, s->uuid, 16) && there->data_size == s->data_size &&
	    !memcmp(there->secret, s->secret, sizeof s->secret) && there->device == s->device &&
	    !strcmp(there->data, s->data))
		return 0;
	/* a copy that cannot be read may be good, and a newer version's copy must not be changed */
	if (err && err != -EBADMSG && err != -ENOENT)
		return err;
	return kvc_super_save(s, KVC_STORE_COPY) ?: kvc_super_sync_dir(s);
}

int kvc_super_create(struct kvc_store *s)
{
	int err = kvc_super_name(s);

	if (err)
		return err;
	s->created_ns = kvc_now_ns();
	return kvc_super_save(s, KVC_STORE_SUPER) ?: kvc_super_save(s, KVC_STORE_COPY)
	       ?: kvc_super_sync_dir(s);
}

int kvc_super_add_secret(struct kvc_store *s)
{
	int err = 0;

	if (s->has_secret)
		return 0;
	if (!memcmp(s->secret, no_secret, sizeof no_secret) &&
	    getrandom(s->secret, sizeof s->secret, 0) != sizeof s->secret)
		return -EIO;
	s->has_secret = true;
	err = kvc_super_write(s, s->lock_fd) ?: kvc_super_save_copy(s);
	s->has_secret = !err;
	return err;
}
