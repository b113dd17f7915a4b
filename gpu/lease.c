/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases over .kvcachefs/lease, and mappings. A mapping that a device uses is registered once and
 * stays so as long as it is kept. A lease is that file's descriptor: the kernel closes it when the
 * process dies. Mappings are found by (device, inode, size); those of a lease are counted, and with
 * kvcachefs_map_cache() the least lately used stay mapped after it, up to that many bytes.
 */
#include "layout.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUCKETS 4096

struct map {
	struct map *next;          /* in its bucket */
	struct map *newer, *older; /* among the unused */
	uint64_t dev, ino;
	size_t len;
	void *data;
	unsigned users;
	bool pinned; /* registered for devices, on this one */
	int device;
	unsigned refusals; /* of registering, in a row, up to 6 */
	unsigned wait;     /* so many uses more without trying again */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, pin_lock = PTHREAD_MUTEX_INITIALIZER;
static struct map *buckets[BUCKETS], *oldest, *newest;
static size_t unused_bytes, cache_bytes;

struct kvcachefs_lease {
	int fd;
	char *mount, *text;
	uint64_t dev;
	size_t n, room;
	struct kvcachefs_object *v;
	struct map **maps;
};

static struct map **bucket(uint64_t dev, uint64_t ino)
{
	return &buckets[(dev * 31 + ino) * 0x9e3779b97f4a7c15ull >> 52 & (BUCKETS - 1)];
}

static void unused_remove(struct map *m)
{
	*(m->newer ? &m->newer->older : &newest) = m->older;
	*(m->older ? &m->older->newer : &oldest) = m->newer;
	m->newer = m->older = NULL;
	unused_bytes -= m->len;
}

static void trim_locked(void)
{
	while (oldest && unused_bytes > cache_bytes) {
		struct map *m = oldest, **at = bucket(m->dev, m->ino);

		unused_remove(m);
		while (*at != m)
			at = &(*at)->next;
		*at = m->next;
		if (m->pinned)
			kvcachefs_cuda_unregister(m->device, m->data);
		if (m->len)
			munmap(m->data, m->len);
		free(m);
	}
}

void kvcachefs_map_cache(size_t bytes)
{
	pthread_mutex_lock(&lock);
	cache_bytes = bytes;
	trim_locked();
	pthread_mutex_unlock(&lock);
}

static void map_put(struct map *m)
{
	pthread_mutex_lock(&lock);
	if (!--m->users) {
		m->older = newest;
		m->newer = NULL;
		*(newest ? &newest->newer : &oldest) = m;
		newest = m;
		unused_bytes += m->len;
		trim_locked();
	}
	pthread_mutex_unlock(&lock);
}

static struct map *map_find_locked(uint64_t dev, uint64_t ino, size_t len)
{
	for (struct map *m = *bucket(dev, ino); m; m = m->next)
		if (m->dev == dev && m->ino == ino && m->len == len) {
			if (!m->users++)
				unused_remove(m);
			return m;
		}
	return NULL;
}

static int map_get(const char *path, uint64_t dev, uint64_t ino, size_t len, struct map **out)
{
	struct map *m;
	struct stat st;
	int fd;

	pthread_mutex_lock(&lock);
	*out = map_find_locked(dev, ino, len);
	pthread_mutex_unlock(&lock);
	if (*out)
		return 0;
	m = calloc(1, sizeof *m);
	fd = m ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0 || fstat(fd, &st)) {
		int err = m ? -errno : -ENOMEM;

		free(m);
		if (fd >= 0)
			close(fd);
		return kvcachefs_fail(err, "%s: %s", path, strerror(-err));
	}
	if (st.st_ino != ino || (size_t)st.st_size != len) {
		close(fd);
		free(m);
		return kvcachefs_fail(-ESTALE, "%s was replaced since it was leased", path);
	}
	m->dev = dev;
	m->ino = ino;
	m->len = len;
	m->users = 1;
	m->data = len ? mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0) : NULL;
	close(fd);
	if (m->data == MAP_FAILED) {
		int err = -errno;

		free(m);
		return kvcachefs_fail(err, "%s cannot be mapped: %s", path, strerror(-err));
	}
	pthread_mutex_lock(&lock);
	struct map *other = map_find_locked(dev, ino, len); /* another thread's meanwhile */

	if (!other) {
		m->next = *bucket(dev, ino);
		*bucket(dev, ino) = m;
	}
	pthread_mutex_unlock(&lock);
	if (other) {
		if (len)
			munmap(m->data, len);
		free(m);
	}
	*out = other ? other : m;
	return 0;
}

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
			map_put(l->maps[i]);
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

int kvcachefs_lease_map(struct kvcachefs_lease *l, size_t i, const void **data, size_t *len)
{
	char path[8400];
	int err;

	if (i >= l->n)
		return kvcachefs_fail(-ERANGE, "the lease has %zu objects", l->n);
	if (l->v[i].err)
		return kvcachefs_fail(l->v[i].err, "%s: %s", l->v[i].path, l->v[i].state);
	if (!l->maps[i]) {
		snprintf(path, sizeof path, "%s/%s", l->mount, l->v[i].path);
		err = map_get(path, l->dev, l->v[i].ino, l->v[i].size, &l->maps[i]);
		if (err)
			return err;
	}
	*data = l->maps[i]->data;
	*len = l->maps[i]->len;
	return 0;
}

/*
 * A refusal may be of the moment (memory, limits): it is tried again after 1, 3, 7, ... 63 more
 * uses.
 */
bool kvcachefs_lease_pin(struct kvcachefs_lease *l, size_t i, int device)
{
	struct map *m = l->maps[i]; /* this lease uses it, so it stays */
	bool pinned;

	pthread_mutex_lock(&pin_lock);
	if (!m->pinned && m->wait) {
		m->wait--;
	} else if (!m->pinned && !kvcachefs_cuda_register(device, m->data, m->len, true)) {
		m->pinned = true;
		m->device = device;
	} else if (!m->pinned) {
		m->refusals += m->refusals < 6;
		m->wait = (1u << m->refusals) - 1;
	}
	pinned = m->pinned;
	pthread_mutex_unlock(&pin_lock);
	return pinned;
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
