/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases through .kvcachefs/lease. A lease is a descriptor of that file, which the kernel closes
 * when the process dies. maps.c owns the mappings of its objects. A freed lease is kept with its
 * memory for the next one, so that a lease similar to earlier ones allocates nothing.
 *
 * The mount answers a folder with one line per file, so the lines do not tell which path they
 * answer if one path is inside another or is named twice. A caller that needs this asks in parts:
 * BETWEEN is written after each path, and the mount refuses it with a line of its own.
 */
#include "maps.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BETWEEN ".."
#define FILES_MOST 128 /* open files of all leases; further objects are mapped */
#define KEPT 16
#define KEPT_BYTES (1u << 20) /* a larger answer is not kept */

struct held {                      /* a lease's resources of an object */
	struct kvcachefs_map *map; /* NULL: none */
	int fd;                    /* -1: none */
};

struct kvcachefs_lease {
	struct kvcachefs_lease *next; /* the next kept lease */
	int fd;
	uint64_t dev;
	char *list, *text; /* list: the request, followed by the mount's path; text: the answer */
	const char *mount;
	/* capacity: capacity of v */
	size_t n, capacity, held_capacity, list_capacity, text_capacity;
	struct kvcachefs_object *v;
	struct held *held; /* of each object */
	bool parted;
	size_t nparts, parts_capacity, *parts; /* for each path, the index after its last object */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the next two */
static struct kvcachefs_lease *kept;
static unsigned nkept;
static _Atomic unsigned open_files; /* of all leases; it guards no other data */

KVCACHEFS_FREE_IN_CHILD(lock)

static struct kvcachefs_lease *lease_get(void)
{
	struct kvcachefs_lease *l;

	pthread_mutex_lock(&lock);
	l = kept;
	if (l) {
		kept = l->next;
		nkept--;
	}
	pthread_mutex_unlock(&lock);
	if (!l)
		l = calloc(1, sizeof *l);
	if (l)
		l->fd = -1;
	return l;
}

static void lease_put(struct kvcachefs_lease *l)
{
	bool keeps;

	l->n = l->nparts = 0;
	pthread_mutex_lock(&lock);
	keeps = nkept < KEPT && l->text_capacity <= KEPT_BYTES;
	if (keeps) {
		l->next = kept;
		kept = l;
		nkept++;
	}
	pthread_mutex_unlock(&lock);
	if (keeps)
		return;
	free(l->parts);
	free(l->held);
	free(l->v);
	free(l->text);
	free(l->list);
	free(l);
}

/*
 * Grows *p to at least `need` elements and keeps the content. *p is unchanged if memory is short.
 */
static int grow(void *p, size_t *capacity, size_t need, size_t each)
{
	void *more;

	if (need <= *capacity)
		return 0;
	need = need < 2 * *capacity ? 2 * *capacity : need;
	memcpy(&more, p, sizeof more);
	more = reallocarray(more, need, each);
	if (!more)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	memcpy(p, &more, sizeof more);
	*capacity = need;
	return 0;
}

static int send_list(struct kvcachefs_lease *l, const char *mount, const char *word,
		     const char *const *paths, size_t n)
{
	size_t len = strlen(word), at = 0, all = len + strlen(mount) + 1;
	char *to;

	for (size_t i = 0; i < n; i++) {
		if (!*paths[i] || strchr(paths[i], '\n'))
			return kvcachefs_fail(-EINVAL, "path %zu is empty or contains a newline",
					      i);
		all += strlen(paths[i]) + 1 + (l->parted ? strlen(BETWEEN "\n") : 0);
	}
	if (grow(&l->list, &l->list_capacity, all, 1))
		return -ENOMEM;
	to = stpcpy(l->list, word);
	for (size_t i = 0; i < n; i++) {
		to = stpcpy(to, paths[i]);
		*to++ = '\n';
		if (l->parted)
			to = stpcpy(to, BETWEEN "\n");
	}
	len = (size_t)(to - l->list);
	l->mount = strcpy(to, mount);
	while (at < len) {
		ssize_t w = write(l->fd, l->list + at, len - at);

		if (w < 0 && errno != EINTR)
			return kvcachefs_fail(-errno, "the lease was refused: %s", strerror(errno));
		at += w > 0 ? (size_t)w : 0;
	}
	return 0;
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
		return kvcachefs_fail(err, "%s is not a kvcachefs mount, or access is denied: %s",
				      mount, strerror(-err));
	}
	return fd;
}

/* The state of an object that is not resident may be the name of an error. */
static int error_of(const char *name)
{
	if (*name != 'E') /* no other word for a state begins with E */
		return 0;
	for (int e = 1; e < 134; e++) {
		const char *s = strerrorname_np(e);

		if (s && !strcmp(s, name))
			return -e;
	}
	return 0;
}

/* The line is "path inode size state"; the path may contain spaces. */
static int parse_line(struct kvcachefs_lease *l, char *line)
{
	char *state = strrchr(line, ' '), *size, *ino;
	struct kvcachefs_object *o;

	if (!state)
		return kvcachefs_fail(-EPROTO, "unexpected answer to a lease: '%.60s'", line);
	*state++ = 0;
	size = strrchr(line, ' ');
	if (size)
		*size++ = 0;
	ino = size ? strrchr(line, ' ') : NULL;
	if (!ino)
		return kvcachefs_fail(-EPROTO, "unexpected answer to a lease: '%.60s'", line);
	*ino++ = 0;
	if (l->parted && !strcmp(line, BETWEEN)) {
		if (grow(&l->parts, &l->parts_capacity, l->nparts + 1, sizeof *l->parts))
			return -ENOMEM;
		l->parts[l->nparts++] = l->n;
		return 0;
	}
	if (grow(&l->v, &l->capacity, l->n + 1, sizeof *l->v))
		return -ENOMEM;
	o = &l->v[l->n++];
	*o = (struct kvcachefs_object){
		line, strtoull(ino, NULL, 10), strtoull(size, NULL, 10), error_of(state), state,
	};
	if (!o->err && (!strcmp(state, "lower") || !strcmp(state, "loading")))
		o->err = -ENODATA;
	return 0;
}

static int read_lines(struct kvcachefs_lease *l)
{
	size_t len = 0;
	ssize_t got;
	char *save = NULL;
	int err = 0;

	do {
		if (grow(&l->text, &l->text_capacity, len + 65536, 1))
			return -ENOMEM;
		got = pread(l->fd, l->text + len, l->text_capacity - len - 1, (off_t)len);
		if (got < 0 && errno != EINTR)
			return kvcachefs_fail(-errno, "the lease failed: %s", strerror(errno));
		len += got > 0 ? (size_t)got : 0;
	} while (got);
	l->text[len] = 0;
	for (char *line = strtok_r(l->text, "\n", &save); line && !err;
	     line = strtok_r(NULL, "\n", &save))
		err = parse_line(l, line);
	if (!err)
		err = grow(&l->held, &l->held_capacity, l->n, sizeof *l->held);
	if (err)
		l->n = 0;
	for (size_t i = 0; i < l->n; i++)
		l->held[i] = (struct held){ .fd = -1 };
	return err;
}

static int lease_take(struct kvcachefs_lease **out, const char *mount, const char *word,
		      const char *const *paths, size_t n, bool parted)
{
	struct kvcachefs_lease *l = lease_get();
	struct stat st;
	int err;

	if (!l)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	l->parted = parted;
	l->fd = open_lease(mount, &st);
	err = l->fd < 0 ? l->fd : 0;
	if (!err) {
		l->dev = st.st_dev;
		kvcachefs_maps_bound(mount, l->dev);
		err = send_list(l, mount, word, paths, n);
	}
	if (!err)
		err = read_lines(l);
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
	return lease_take(out, mount, "", paths, n, false);
}

int kvcachefs_lease_wait(struct kvcachefs_lease **out, const char *mount, const char *const *paths,
			 size_t n, unsigned wait_ms)
{
	char word[24];

	if (wait_ms > KVCACHEFS_WAIT_MS)
		return kvcachefs_fail(-EINVAL, "a lease waits for at most %u ms, not %u",
				      KVCACHEFS_WAIT_MS, wait_ms);
	snprintf(word, sizeof word, "wait %u\n", wait_ms);
	return lease_take(out, mount, word, paths, n, false);
}

int kvcachefs_look(struct kvcachefs_lease **out, const char *mount, const char *const *paths,
		   size_t n)
{
	return lease_take(out, mount, KVCACHEFS_LOOK_HERE, paths, n, false);
}

int kvcachefs_lease_command(struct kvcachefs_lease **out, const char *mount, const char *words,
			    const char *const *paths, size_t n)
{
	return lease_take(out, mount, words, paths, n, false);
}

int kvcachefs_lease_parted(struct kvcachefs_lease **out, const char *mount,
			   const char *const *paths, size_t n, const char *word)
{
	return lease_take(out, mount, word, paths, n, true);
}

size_t kvcachefs_lease_part(const struct kvcachefs_lease *l, size_t i, size_t *first)
{
	if (i >= l->nparts)
		return 0;
	*first = i ? l->parts[i - 1] : 0;
	return l->parts[i] - *first;
}

static void file_close(int fd)
{
	close(fd);
	atomic_fetch_sub_explicit(&open_files, 1, memory_order_relaxed);
}

void kvcachefs_lease_free(struct kvcachefs_lease *l)
{
	if (!l)
		return;
	for (size_t i = 0; i < l->n; i++) {
		if (l->held[i].map)
			kvcachefs_map_put(l->held[i].map);
		if (l->held[i].fd >= 0)
			file_close(l->held[i].fd);
	}
	if (l->fd >= 0)
		close(l->fd);
	l->fd = -1;
	lease_put(l);
}

size_t kvcachefs_lease_count(const struct kvcachefs_lease *l)
{
	return l->n;
}

/* Counts the names in a path. */
static size_t lease_depth(const char *path)
{
	size_t n = 0;

	for (size_t len; *path; path += len + (path[len] == '/')) {
		len = strcspn(path, "/");
		n += len && !(len == 1 && *path == '.');
	}
	return n;
}

int kvcachefs_lease_files(const struct kvcachefs_lease *l, const char *const *paths, size_t n)
{
	bool files = l->n == n;

	/* the objects of a folder have more names than the folder */
	for (size_t i = 0; files && i < n; i++)
		files = lease_depth(l->v[i].path) == lease_depth(paths[i]);
	if (files)
		return 0;
	if (n == 1)
		return kvcachefs_fail(-EISDIR, "%s is a folder", paths[0]);
	return kvcachefs_fail(-EINVAL, "each path must be one file");
}

const struct kvcachefs_object *kvcachefs_lease_object(const struct kvcachefs_lease *l, size_t i)
{
	return i < l->n ? &l->v[i] : NULL;
}

/* Maps object i. */
static int map_of(struct kvcachefs_lease *l, size_t i, bool layout)
{
	char path[8400];

	if (i >= l->n)
		return kvcachefs_fail(-ERANGE, "the lease has %zu objects", l->n);
	if (l->v[i].err)
		return kvcachefs_fail(l->v[i].err, "%s: %s", l->v[i].path, l->v[i].state);
	if (l->held[i].map)
		return 0;
	snprintf(path, sizeof path, "%s/%s", l->mount, l->v[i].path);
	return kvcachefs_map_get(path, l->dev, l->v[i].ino, l->v[i].size, layout, &l->held[i].map);
}

int kvcachefs_lease_map(struct kvcachefs_lease *l, size_t i, const void **data, size_t *len)
{
	int err = map_of(l, i, false);

	if (!err)
		*data = kvcachefs_map_data(l->held[i].map, len);
	return err;
}

int kvcachefs_lease_layout(struct kvcachefs_lease *l, size_t i, char layout[KVCACHEFS_LAYOUT_MAX])
{
	char path[8400];
	int err = map_of(l, i, true);

	if (err)
		return err;
	snprintf(path, sizeof path, "%s/%s", l->mount, l->v[i].path);
	return kvcachefs_map_layout(l->held[i].map, path, layout);
}

int kvcachefs_lease_open(const struct kvcachefs_lease *l, size_t i, char *layout)
{
	char path[8400];

	if (i >= l->n)
		return kvcachefs_fail(-ERANGE, "the lease has %zu objects", l->n);
	if (l->v[i].err)
		return kvcachefs_fail(l->v[i].err, "%s: %s", l->v[i].path, l->v[i].state);
	snprintf(path, sizeof path, "%s/%s", l->mount, l->v[i].path);
	return kvcachefs_open_leased(path, l->v[i].ino, l->v[i].size, layout);
}

const void *kvcachefs_lease_map_known(struct kvcachefs_lease *l, size_t i, bool *pinned)
{
	struct held *h;
	bool queued = false;
	size_t len;

	*pinned = false;
	if (i >= l->n || l->v[i].err)
		return NULL;
	h = &l->held[i];
	if (!h->map)
		h->map = kvcachefs_map_find(l->dev, l->v[i].ino, l->v[i].size, &queued);
	if (!h->map)
		return NULL;
	*pinned = kvcachefs_map_pinned(h->map);
	return *pinned || !queued ? kvcachefs_map_data(h->map, &len) : NULL;
}

int kvcachefs_lease_file(struct kvcachefs_lease *l, size_t i, char *layout)
{
	char path[8400];
	int fd;

	if (i < l->n && l->held[i].fd >= 0) {
		if (!layout)
			return l->held[i].fd;
		snprintf(path, sizeof path, "%s/%s", l->mount, l->v[i].path);
		return kvcachefs_layout_read(l->held[i].fd, path, layout) ?: l->held[i].fd;
	}
	if (atomic_fetch_add_explicit(&open_files, 1, memory_order_relaxed) < FILES_MOST)
		fd = kvcachefs_lease_open(l, i, layout);
	else
		fd = -EMFILE;
	if (fd >= 0)
		l->held[i].fd = fd;
	else
		atomic_fetch_sub_explicit(&open_files, 1, memory_order_relaxed);
	return fd;
}

void kvcachefs_lease_loaded(struct kvcachefs_lease *l, size_t i, uint64_t bytes, int device)
{
	const struct kvcachefs_object *o = &l->v[i];

	if (l->held[i].map)
		kvcachefs_map_again(l->held[i].map, bytes, device);
	else
		kvcachefs_map_loaded(l->held[i].fd, l->dev, o->ino, o->size, bytes, device);
}

bool kvcachefs_lease_pin(struct kvcachefs_lease *l, size_t i, int device)
{
	/* the lease holds a reference, so the mapping stays */
	return kvcachefs_map_pin(l->held[i].map, device);
}

int kvcachefs_prefetch(const char *mount, const char *const *paths, size_t n)
{
	struct kvcachefs_lease *l = lease_get();
	struct stat st;
	int err;

	if (!l)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	l->parted = false;
	l->fd = open_lease(mount, &st);
	err = l->fd < 0 ? l->fd : send_list(l, mount, "prefetch\n", paths, n);
	kvcachefs_lease_free(l); /* closing the descriptor starts the loads */
	return err;
}
