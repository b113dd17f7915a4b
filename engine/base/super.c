/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The superblock: one page, in two copies, each in its own file. The first is locked, so it is
 * never replaced by another file. It is written in place. When it is on stable storage, the second
 * is written in the same way: at any time one of the two is complete.
 */
#include "store.h"

#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

static const char magic[] = "KVCACHFS";

/* A row of the table of devices, of version 4. */
struct super_device {
	uint64_t size;
	uint16_t kind, flags; /* kind: enum kvc_device_kind; flags: LEAVING */
	uint32_t path;        /* offset in super.paths of a text that ends with 0 */
};
#define DEVICE 1u  /* super.flags: version 3, the data is on `device` */
#define DEVICES 2u /* super.flags: version 4, the table `dev` is used */
#define LEAVING 1u

struct super {
	char magic[8];
	uint32_t version, flags;
	uint8_t uuid[16];
	uint64_t data_size, created_ns;
	char device[1024];
	uint8_t secret[32]; /* zero: no secret */
	struct super_device dev[KVC_DEVICES];
	char paths[KVC_PAGE - 48 - 1024 - 32 - 16 * KVC_DEVICES - 16];
	uint8_t sum[16];
};
_Static_assert(sizeof(struct super) == KVC_PAGE, "superblock");
_Static_assert(KVC_STORE_TEXT > sizeof(((struct super *)NULL)->paths) + 1024 + 64 * KVC_DEVICES,
	       "the text has the same paths");

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

uint64_t kvc_super_size(const struct kvc_store *s)
{
	uint64_t all = 0;

	for (unsigned i = 0; i < KVC_DEVICES; i++)
		all += s->dev[i].kind ? s->dev[i].size : 0;
	return all;
}

unsigned kvc_super_devices(const struct kvc_store *s)
{
	unsigned n = 0;

	for (unsigned i = 0; i < KVC_DEVICES; i++)
		n += s->dev[i].kind != KVC_DEVICE_NONE;
	return n;
}

unsigned kvc_super_find(const struct kvc_store *s, const char *path)
{
	unsigned i = 0;

	while (i < KVC_DEVICES && (!s->dev[i].kind || strcmp(s->dev[i].path, path) != 0))
		i++;
	return i;
}

void kvc_super_own(struct kvc_store *s, uint64_t size)
{
	memset(s->dev, 0, sizeof s->dev);
	s->dev[0].kind = KVC_DEVICE_OWN;
	s->dev[0].size = size;
	kvc_super_path(s, KVC_STORE_DATA, s->dev[0].path);
}

/* Is the store one file or one block device, as versions 1 to 3 describe it? */
static bool is_plain(const struct kvc_store *s)
{
	const struct kvc_device *d = &s->dev[0];

	return kvc_super_devices(s) == 1 && !d->leaving &&
	       (d->kind == KVC_DEVICE_OWN || d->kind == KVC_DEVICE_BLOCK);
}

/* Does the superblock contain the device's path? The path of the store's own file is known. */
static bool has_path(const struct kvc_device *d)
{
	return d->kind == KVC_DEVICE_BLOCK || d->kind == KVC_DEVICE_FILE;
}

int kvc_super_fits(const struct kvc_store *s, char *error)
{
	const size_t most = sizeof(((struct super *)NULL)->paths);
	size_t n = 0;

	for (unsigned i = 0; i < KVC_DEVICES; i++)
		n += has_path(&s->dev[i]) ? strlen(s->dev[i].path) + 1 : 0;
	if (n <= most || is_plain(s))
		return 0;
	snprintf(error, 512,
		 "the paths of the devices have %zu bytes together, and a store has space for %zu; "
		 "give shorter paths",
		 n, most);
	return -E2BIG;
}

const char *kvc_super_text(const struct kvc_store *s, char *buf)
{
	const struct kvc_device *d = &s->dev[0];
	char secret[2 * sizeof s->secret + 1] = "-", *p = buf, *end = buf + KVC_STORE_TEXT;
	bool plain = is_plain(s);

	for (size_t i = 0; i < sizeof s->secret && s->has_secret; i++)
		snprintf(secret + 2 * i, 3, "%02x", s->secret[i]);
	p += snprintf(p, KVC_STORE_TEXT, "%s %" PRIu64 " %s", s->uuid_text, kvc_super_size(s),
		      secret);
	if (plain && d->kind == KVC_DEVICE_BLOCK)
		snprintf(p, (size_t)(end - p), " %s", d->path);
	else if (!plain)
		p += snprintf(p, (size_t)(end - p), " *");
	for (unsigned i = 0; i < KVC_DEVICES && !plain; i++)
		if (s->dev[i].kind && p < end)
			p += snprintf(p, (size_t)(end - p), "\n%u %d %d %" PRIu64 " %s", i,
				      (int)s->dev[i].kind, s->dev[i].leaving, s->dev[i].size,
				      has_path(&s->dev[i]) ? s->dev[i].path : "");
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

/* Are these devices possible in a store? Sets the path of the store's own file. */
static bool check_devices(struct kvc_store *s)
{
	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		struct kvc_device *d = &s->dev[i];

		if (!d->kind)
			continue;
		if (d->kind >= KVC_DEVICE_KINDS || !d->size || d->size > KVC_DEVICE_MOST)
			return false;
		if (d->kind == KVC_DEVICE_OWN && i)
			return false;
		if (d->kind == KVC_DEVICE_OWN)
			kvc_super_path(s, KVC_STORE_DATA, d->path);
		else if (*d->path != '/' || strchr(d->path, '\n'))
			return false;
	}
	return kvc_super_devices(s);
}

/* Reads the lines of kvc_super_text, one for each device. */
static int parse_devices(struct kvc_store *s, const char *p)
{
	while (*p == '\n') {
		unsigned nr, kind, leaving;
		uint64_t size;
		struct kvc_device *d;
		size_t len;
		int at = 0;

		p++;
		if (sscanf(p, "%u %u %u %" SCNu64 "%n", &nr, &kind, &leaving, &size, &at) != 4 ||
		    p[at] != ' ' || nr >= KVC_DEVICES || s->dev[nr].kind || !kind ||
		    kind >= KVC_DEVICE_KINDS)
			return -EBADMSG;
		p += at + 1;
		len = strcspn(p, "\n");
		d = &s->dev[nr];
		if (len >= sizeof d->path)
			return -EBADMSG;
		memcpy(d->path, p, len);
		d->path[len] = 0;
		d->kind = (enum kvc_device_kind)kind;
		d->leaving = leaving;
		d->size = size;
		p += len;
	}
	return *p || !check_devices(s) ? -EBADMSG : 0;
}

int kvc_super_parse(struct kvc_store *s, const char *text)
{
	uint8_t uuid[16], secret[32] = { 0 };
	const char *p = text;
	uint64_t size;
	int at = 0, err = 0;

	if (!unhex(&p, uuid, sizeof uuid) || sscanf(p, " %" SCNu64 " %n", &size, &at) != 1 || !at)
		return -EBADMSG;
	p += at;
	if (*p == '-')
		p++;
	else if (!unhex(&p, secret, sizeof secret))
		return -EBADMSG;
	if (*p && *p != ' ')
		return -EBADMSG;
	kvc_super_own(s, size);
	if (!strncmp(p, " *\n", 3)) {
		memset(s->dev, 0, sizeof s->dev);
		err = parse_devices(s, p + 2);
	} else if (strlen(p) > 1024) {
		err = -EBADMSG;
	} else if (*p) {
		s->dev[0].kind = KVC_DEVICE_BLOCK;
		snprintf(s->dev[0].path, sizeof s->dev[0].path, "%s", p + 1);
	}
	if (err)
		return err;
	memcpy(s->uuid, uuid, 16);
	uuid_text(s);
	memcpy(s->secret, secret, sizeof s->secret);
	s->has_secret = memcmp(secret, no_secret, sizeof no_secret) != 0;
	return 0;
}

/* Reads the table of devices. */
static bool read_devices(struct kvc_store *s, const struct super *p)
{
	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		const struct super_device *from = &p->dev[i];
		uint32_t at = le32toh(from->path);
		struct kvc_device *d = &s->dev[i];

		if (!from->kind)
			continue;
		d->kind = (enum kvc_device_kind)le16toh(from->kind);
		d->leaving = le16toh(from->flags) & LEAVING;
		d->size = le64toh(from->size);
		if (!has_path(d))
			continue;
		if (at >= sizeof p->paths || !memchr(p->paths + at, 0, sizeof p->paths - at) ||
		    strlen(p->paths + at) >= sizeof d->path)
			return false;
		snprintf(d->path, sizeof d->path, "%s", p->paths + at);
	}
	return check_devices(s);
}

static int write_devices(const struct kvc_store *s, struct super *p)
{
	uint32_t at = 0;

	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		const struct kvc_device *d = &s->dev[i];
		size_t n = strlen(d->path) + 1;

		if (!d->kind)
			continue;
		p->dev[i] = (struct super_device){
			.size = htole64(d->size),
			.kind = htole16((uint16_t)d->kind),
			.flags = htole16(d->leaving ? LEAVING : 0),
			.path = htole32(at),
		};
		if (!has_path(d))
			continue;
		if (n > sizeof p->paths - at)
			return -E2BIG;
		memcpy(p->paths + at, d->path, n);
		at += (uint32_t)n;
	}
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
	if (memcmp(p->magic, magic, sizeof p->magic))
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
	memset(s->dev, 0, sizeof s->dev);
	if (le32toh(p->flags) & DEVICES) {
		if (!read_devices(s, p))
			return -EBADMSG;
	} else {
		kvc_super_own(s, le64toh(p->data_size));
		if (le32toh(p->flags) & DEVICE) {
			s->dev[0].kind = KVC_DEVICE_BLOCK;
			snprintf(s->dev[0].path, sizeof s->dev[0].path, "%s", p->device);
		}
	}
	memcpy(s->uuid, p->uuid, 16);
	uuid_text(s);
	s->version = le32toh(p->version);
	s->created_ns = le64toh(p->created_ns);
	memcpy(s->secret, p->secret, sizeof s->secret);
	s->has_secret = memcmp(s->secret, no_secret, sizeof no_secret) != 0;
	return 0;
}

int kvc_super_write(const struct kvc_store *s, int fd)
{
	KVC_MEM struct super *p = calloc(1, sizeof *p);
	bool block = s->dev[0].kind == KVC_DEVICE_BLOCK, plain = is_plain(s);
	struct kvc_sum sum;
	int err = 0;

	if (!p)
		return -ENOMEM;
	memcpy(p->magic, magic, sizeof p->magic);
	/*
	 * Version 1 had no secret: the first mount adds one and sets version 2. A store whose only
	 * device is the file in its folder stays at version 2. Version 3 has its data on one block
	 * device with a label. All other stores have version 4, with a table of devices.
	 */
	p->version = htole32(!plain ? KVC_STORE_VERSION : block ? 3 : s->has_secret ? 2 : 1);
	memcpy(p->secret, s->secret, sizeof p->secret);
	p->flags = htole32(!plain ? DEVICES : block ? DEVICE : 0);
	memcpy(p->uuid, s->uuid, 16);
	p->data_size = htole64(kvc_super_size(s));
	p->created_ns = htole64(s->created_ns);
	if (!plain)
		err = write_devices(s, p);
	else if (block)
		snprintf(p->device, sizeof p->device, "%s", s->dev[0].path);
	if (err)
		return err;
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

static bool same_devices(const struct kvc_store *a, const struct kvc_store *b)
{
	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		const struct kvc_device *x = &a->dev[i], *y = &b->dev[i];

		if (x->kind != y->kind || x->leaving != y->leaving || x->size != y->size ||
		    (has_path(x) && strcmp(x->path, y->path) != 0))
			return false;
	}
	return true;
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
	if (!err && !memcmp(there->uuid, s->uuid, 16) &&
	    !memcmp(there->secret, s->secret, sizeof s->secret) && same_devices(there, s))
		return 0;
	/* a copy that cannot be read may be good, and a newer version's copy must not be changed */
	if (err && err != -EBADMSG && err != -ENOENT)
		return err;
	return kvc_super_save(s, KVC_STORE_COPY) ?: kvc_super_sync_dir(s);
}

int kvc_super_update(const struct kvc_store *s)
{
	return kvc_super_write(s, s->lock_fd) ?: kvc_super_save_copy(s);
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
