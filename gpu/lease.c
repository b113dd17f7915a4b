/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases over .kvcachefs/lease. A lease is that file's descriptor: the kernel closes it when the
 * process dies. The mappings of its objects are of maps.c.
 */
#include "maps.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct kvcachefs_lease {
	int fd;
	char *mount, *text;
	uint64_t dev;
	size_t n, room;
	struct kvcachefs_object *v;
	struct kvcachefs_map **maps;
};

static int send_list(int fd, const char *word, const char *const *paths, size_t n)
{
	char *text = NULL;
	size_t len = 0, at = 0;
	FILE *f = open_memstream(&text, &len);
	int err = 0;

	if (!f)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	fputs(word, f);
	for (size_t i = 0; i < n && !err; i++) {
		if (!*paths[i] || strchr(paths[i], '\n'))
			err = kvcachefs_fail(-EINVAL, "path %zu is empty or has a line end in it",
					     i);
		fprintf(f, "%s\n", paths[i]);
	}
	if (fclose(f) && !err)
		err = kvcachefs_fail(-ENOMEM, "out of memory");
	while (!err && at < len) {
		ssize_t w = write(fd, text + at, len - at);

		if (w < 0 && errno != EINTR)
			err = kvcachefs_fail(-errno, "the lease was refused: %s", strerror(errno));
		at += w > 0 ? (size_t)w : 0;
	}
	free(text);
	return err;
}

static int open_lease(const char *mount, struct stat *st)
{
	char path[4200];
	int fd;

	snprintf(path, sizeof path, "%s/.kvcachefs/lease", mount);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || stat(mount, st)) {
		int err = -errno;

		if (fd >= 0)
			close(fd);
		return kvcachefs_fail(err, "%s is no kvcachefs mount, or may not be used: %s",
				      mount, strerror(-err));
	}
	return fd;
}

static int error_of(const char *name)
{
	for (int e = 1; e < 134; e++) {
		const char *s = strerrorname_np(e);

		if (s && !strcmp(s, name))
			return -e;
	}
	return 0;
}

/* "path inode size state", the path may have spaces. */
static int parse_line(struct kvcachefs_lease *l, char *line, bool look)
{
	char *state = strrchr(line, ' '), *size, *ino;
	struct kvcachefs_object *o;

	if (!state)
		return kvcachefs_fail(-EPROTO, "the mount answered a lease with '%.60s'", line);
	*state++ = 0;
	size = strrchr(line, ' ');
	if (size)
		*size++ = 0;
	ino = size ? strrchr(line, ' ') : NULL;
	if (!ino)
		return kvcachefs_fail(-EPROTO, "the mount answered a lease with '%.60s'", line);
	*ino++ = 0;
	if (l->n == l->room) {
		size_t more = l->room ? 2 * l->room : 64;
		struct kvcachefs_object *v = realloc(l->v, more * sizeof *v);

		if (!v)
			return kvcachefs_fail(-ENOMEM, "out of memory");
		l->v = v;
		l->room = more;
	}
	o = &l->v[l->n++];
	*o = (struct kvcachefs_object){
		line, strtoull(ino, NULL, 10), strtoull(size, NULL, 10), error_of(state), state,
	};
	if (!o->err && look && (!strcmp(state, "lower") || !strcmp(state, "loading")))
		o->err = -ENODATA;
	else if (!o->err && !look && !strcmp(state, "lower"))
		o->err = -EIO;
	return 0;
}

static int read_lines(struct kvcachefs_lease *l, bool look)
{
	size_t len = 0, room = 0;
	ssize_t got;
	char *save = NULL;
	int err = 0;

	do {
		if (room - len < 65536) {
			char *t = realloc(l->text, room = room ? 2 * room : 131072);

			if (!t)
				return kvcachefs_fail(-ENOMEM, "out of memory");
			l->text = t;
		}
		got = pread(l->fd, l->text + len, room - len - 1, (off_t)len);
		if (got < 0 && errno != EINTR)
			return kvcachefs_fail(-errno, "the lease failed: %s", strerror(errno));
		len += got > 0 ? (size_t)got : 0;
	} while (got);
	l->text[len] = 0;
	for (char *line = strtok_r(l->text, "\n", &save); line && !err;
	     line = strtok_r(NULL, "\n", &save))
		err = parse_line(l, line, look);
	if (!err && l->n && !(l->maps = calloc(l->n, sizeof *l->maps)))
		err = kvcachefs_fail(-ENOMEM, "out of memory");
	return err;
}

static int take(struct kvcachefs_lease **out, const char *mount, const char *word,
		const char *const *paths, size_t n)
{
	struct kvcachefs_lease *l = calloc(1, sizeof *l);
	struct stat st;
	int err;

	if (!l || !(l->mount = strdup(mount))) {
		free(l);
		return kvcachefs_fail(-ENOMEM, "out of memory");
	}
	l->fd = open_lease(mount, &st);
	err = l->fd < 0 ? l->fd : 0;
	if (!err) {
		l->dev = st.st_dev;
		kvcachefs_maps_bound(mount, l->dev);
		err = send_list(l->fd, word, paths, n);
	}
	if (!err)
		err = read_lines(l, *word);
	if (err) {
		kvcachefs_lease_free(l);
		return err;
	}
	*out = l;
	return 0;
}

int kvcachefs_lease_new(struct kvcachefs_lease **out, const char *mount, const char *const *paths,
			size_t n)
{
	return take(out, mount, "", paths, n);
}

int kvcachefs_look(struct kvcachefs_lease **out, const char *mount, const char *const *paths,
		   size_t n)
{
	return take(out, mount, "look\n", paths, n);
}

void kvcachefs_lease_free(struct kvcachefs_lease *l)
{
	if (!l)
		return;
	for (size_t i = 0; l->maps && i < l->n; i++)
		if (l->maps[i])
			kvcachefs_map_put(l->maps[i]);
	if (l->fd >= 0)
		close(l->fd);
	free(l->maps);
	free(l->v);
	free(l->text);
	free(l->mount);
	free(l);
}

size_t kvcachefs_lease_count(const struct kvcachefs_lease *l)
{
	return l->n;
}

const struct kvcachefs_object *kvcachefs_lease_object(const struct kvcachefs_lease *l, size_t i)
{
	return i < l->n ? &l->v[i] : NULL;
}

/* The mapping of object i. */
static int map_of(struct kvcachefs_lease *l, size_t i, bool layout)
{
	char path[8400];

	if (i >= l->n)
		return kvcachefs_fail(-ERANGE, "the lease has %zu objects", l->n);
	if (l->v[i].err)
		return kvcachefs_fail(l->v[i].err, "%s: %s", l->v[i].path, l->v[i].state);
	if (l->maps[i])
		return 0;
	snprintf(path, sizeof path, "%s/%s", l->mount, l->v[i].path);
	return kvcachefs_map_get(path, l->dev, l->v[i].ino, l->v[i].size, layout, &l->maps[i]);
}

int kvcachefs_lease_map(struct kvcachefs_lease *l, size_t i, const void **data, size_t *len)
{
	int err = map_of(l, i, false);

	if (!err)
		*data = kvcachefs_map_data(l->maps[i], len);
	return err;
}

int kvcachefs_lease_layout(struct kvcachefs_lease *l, size_t i, char layout[KVCACHEFS_LAYOUT_MAX])
{
	char path[8400];
	int err = map_of(l, i, true);

	if (err)
		return err;
	snprintf(path, sizeof path, "%s/%s", l->mount, l->v[i].path);
	return kvcachefs_map_layout(l->maps[i], path, layout);
}

bool kvcachefs_lease_pin(struct kvcachefs_lease *l, size_t i, int device)
{
	return kvcachefs_map_pin(l->maps[i], device); /* this lease uses it, so it stays */
}

int kvcachefs_prefetch(const char *mount, const char *const *paths, size_t n)
{
	struct stat st;
	int fd = open_lease(mount, &st), err;

	if (fd < 0)
		return fd;
	err = send_list(fd, "prefetch\n", paths, n);
	close(fd); /* begins it */
	return err;
}
