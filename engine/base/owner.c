/* SPDX-License-Identifier: Apache-2.0 */
/* The owner of a pool (owner.h). The mark is a line of numbers and a line with the store's path. */
#include "owner.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

static void handle_of(int fd, char *text, size_t capacity)
{
	union {
		struct file_handle h;
		char bytes[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	} u = { .h.handle_bytes = MAX_HANDLE_SZ };
	int mount;

	snprintf(text, capacity, "-");
	if (name_to_handle_at(fd, "", &u.h, &mount, AT_EMPTY_PATH))
		return; /* some filesystems have no handles */
	snprintf(text, capacity, "%x:", (unsigned)u.h.handle_type);
	for (unsigned i = 0; i < u.h.handle_bytes; i++) {
		size_t n = strlen(text);

		snprintf(text + n, capacity - n, "%02x", u.h.f_handle[i]);
	}
}

int kvc_owner_of(const struct kvc_store *s, int fd, struct kvc_owner *o)
{
	char path[1280];
	KVC_FD int own = -1;
	struct stat st;

	if (fd < 0)
		fd = own = kvc_open_own(kvc_super_path(s, KVC_STORE_SUPER, path), O_RDONLY);
	if (fd < 0 || fstat(fd, &st))
		return -errno;
	memset(o, 0, sizeof *o);
	o->dev = st.st_dev;
	o->ino = st.st_ino;
	handle_of(fd, o->handle, sizeof o->handle);
	snprintf(o->uuid, sizeof o->uuid, "%s", s->uuid_text);
	snprintf(o->dir, sizeof o->dir, "%s", s->dir);
	return 0;
}

bool kvc_owner_same(const struct kvc_owner *a, const struct kvc_owner *b)
{
	return a->dev == b->dev && a->ino == b->ino && !strcmp(a->handle, b->handle) &&
	       !strcmp(a->uuid, b->uuid);
}

static const char *mark_path(const char *pool, const char *tail, char *buf, size_t capacity)
{
	snprintf(buf, capacity, "%s/" KVC_OWNER_MARK "%s", pool, tail);
	return buf;
}

int kvc_owner_read(const char *pool, struct kvc_owner *o)
{
	char path[1400], text[2048];
	KVC_FD int fd = kvc_open_own(mark_path(pool, "", path, sizeof path), O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	char *line;

	if (n < 0)
		return -errno;
	text[n] = 0;
	memset(o, 0, sizeof *o);
	line = strchr(text, '\n');
	if (!line || sscanf(text, "%" SCNx64 " %" SCNx64 " %36s %299s", &o->dev, &o->ino, o->uuid,
			    o->handle) != 4)
		return -EBADMSG;
	line[1 + strcspn(line + 1, "\n")] = 0;
	snprintf(o->dir, sizeof o->dir, "%.1023s", line + 1);
	return 0;
}

int kvc_owner_mark(const char *pool, const struct kvc_owner *o)
{
	char path[1400], making[1400], text[2048];
	int fd = kvc_open_own(mark_path(pool, ".new", making, sizeof making),
			      O_RDWR | O_CREAT | O_TRUNC);
	int err;

	if (fd < 0)
		return -errno;
	snprintf(text, sizeof text, "%" PRIx64 " %" PRIx64 " %s %s\n%s\n", o->dev, o->ino, o->uuid,
		 o->handle, o->dir);
	err = flock(fd, LOCK_EX | LOCK_NB) ? -errno : kvc_pwrite_all(fd, text, strlen(text), 0);
	if (!err && rename(making, mark_path(pool, "", path, sizeof path)))
		err = -errno;
	if (!err)
		return fd;
	close(fd);
	return err;
}

bool kvc_owner_lives(const char *pool)
{
	char path[1400];
	KVC_FD int fd = kvc_open_own(mark_path(pool, "", path, sizeof path), O_RDONLY);

	return fd < 0 ? errno != ENOENT : flock(fd, LOCK_SH | LOCK_NB) != 0;
}
