/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings of objects, found by (device, inode, size). What a lease uses is counted; what nobody
 * uses stays mapped for the next lease, the least lately used going first where the cache's bytes
 * or number are above their bound. A mapping that a device uses is registered once and stays so,
 * and the layout that the file says it has is read once: a load that finds all this makes no call.
 *
 * To the mount a kept mapping is an open file: it stays in the pool, and is not let go of while it
 * is kept. So the bound that nobody has set is a small part of the pool, and what has not been used
 * for IDLE_MS is unmapped: a process that rests holds nothing. A bound that was set is kept to
 * without that.
 *
 * Unregistering takes a device's lock and may take long. It is done by a thread of its own, which
 * also looks for what is idle; it begins with the first of such work, and ends with the process
 * (a library that has begun it is not unloaded: -z nodelete). What was not registered is unmapped
 * by who drops it. Neither is done under a lock.
 */
#include "maps.h"
#include "file.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define BUCKETS 4096
#define MAPS_MOST 16384 /* a process may have 65530 */
#define BYTES_MOST (4ull << 30)
#define PART 16 /* of the pool: several processes on a machine have a cache each */

unsigned kvcachefs_map_idle_ms = 5000;

struct kvcachefs_map {
	struct kvcachefs_map *next;          /* in its bucket; then among what is to go */
	struct kvcachefs_map *newer, *older; /* among the unused */
	uint64_t dev, ino, used_ms;
	size_t len;
	void *data;
	unsigned users;
	/* one registers at a time; guards the next four while there are users */
	pthread_mutex_t pin;
	bool pinned; /* registered for devices, on this one */
	int device;
	unsigned refusals; /* of registering, in a row, up to 6 */
	unsigned wait;     /* so many uses more without trying again */
	bool layout_known;
	char layout[KVCACHEFS_LAYOUT_MAX]; /* "": the file says none */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER, gone = PTHREAD_COND_INITIALIZER;
static struct kvcachefs_map *buckets[BUCKETS], *oldest, *newest, *dying;
static size_t unused_bytes, unused, cache_bytes;
static bool chosen;       /* by the caller */
static uint64_t asked[4]; /* mounts whose pool is known */
static unsigned nasked;
static pthread_t helper;
static bool helped, stopping, unmapping; /* the helper: is there, is to end, is at work */

static struct kvcachefs_map **bucket(uint64_t dev, uint64_t ino)
{
	return &buckets[(dev * 31 + ino) * 0x9e3779b97f4a7c15ull >> 52 & (BUCKETS - 1)];
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t); /* no system call */
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void unused_remove(struct kvcachefs_map *m)
{
	*(m->newer ? &m->newer->older : &newest) = m->older;
	*(m->older ? &m->older->newer : &oldest) = m->newer;
	m->newer = m->older = NULL;
	unused_bytes -= m->len;
	unused--;
}

static void map_free(struct kvcachefs_map *m)
{
	if (m->pinned)
		kvcachefs_cuda_unregister(m->device, m->data);
	if (m->len)
		munmap(m->data, m->len);
	free(m);
}

/* Takes what is over the bound, or idle, out of the tables; what the helper must free is its. */
static struct kvcachefs_map *trim_locked(uint64_t before_ms)
{
	struct kvcachefs_map *mine = NULL;

	while (oldest && (unused_bytes > cache_bytes || unused > MAPS_MOST || !cache_bytes ||
			  (!chosen && oldest->used_ms < before_ms))) {
		struct kvcachefs_map *m = oldest, **at = bucket(m->dev, m->ino), **to;

		unused_remove(m);
		while (*at != m)
			at = &(*at)->next;
		*at = m->next;
		to = m->pinned && helped ? &dying : &mine;
		m->next = *to;
		*to = m;
	}
	if (dying)
		pthread_cond_signal(&more);
	return mine;
}

static void free_all(struct kvcachefs_map *m)
{
	for (struct kvcachefs_map *next; m; m = next) {
		next = m->next;
		map_free(m);
	}
}

/* Waits until there may be something to do. */
static void rest_locked(void)
{
	struct timespec until;

	if (chosen || !oldest) {
		pthread_cond_wait(&more, &lock);
		return;
	}
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += kvcachefs_map_idle_ms / 1000;
	until.tv_nsec += (long)(kvcachefs_map_idle_ms % 1000 + 1) * 1000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_cond_timedwait(&more, &lock, &until);
}

static void *help(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	while (!stopping) {
		uint64_t now = now_ms(), idle = kvcachefs_map_idle_ms;
		struct kvcachefs_map *mine = trim_locked(now > idle ? now - idle : 0);
		struct kvcachefs_map *theirs = dying;

		if (!mine && !theirs) {
			rest_locked();
			continue;
		}
		dying = NULL;
		unmapping = true;
		pthread_mutex_unlock(&lock);
		free_all(mine);
		free_all(theirs);
		pthread_mutex_lock(&lock);
		unmapping = false;
		pthread_cond_broadcast(&gone);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* At the process's end: no device is called behind its back. */
static void stop(void)
{
	bool was;

	pthread_mutex_lock(&lock);
	was = helped;
	helped = false;
	stopping = true;
	pthread_cond_signal(&more);
	pthread_mutex_unlock(&lock);
	if (was)
		pthread_join(helper, NULL);
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
	helped = false;    /* threads are not inherited */
	unmapping = false; /* what it was at stays mapped here */
	dying = NULL;      /* registered by the parent: not the child's to undo */
	pthread_cond_init(&more, NULL);
	pthread_cond_init(&gone, NULL);
	after_fork();
}

static void once(void)
{
	atexit(stop);
	pthread_atfork(before_fork, after_fork, in_child);
}

/* Without the helper (no thread could be made) its work is done where it arises. */
static void help_locked(void)
{
	static pthread_once_t at_first = PTHREAD_ONCE_INIT;
	sigset_t all, old;

	if (helped || stopping)
		return;
	pthread_once(&at_first, once);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	helped = !pthread_create(&helper, NULL, help, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void kvcachefs_map_cache(size_t bytes)
{
	struct kvcachefs_map *mine;

	pthread_mutex_lock(&lock);
	cache_bytes = bytes;
	chosen = true;
	mine = trim_locked(0);
	pthread_mutex_unlock(&lock);
	free_all(mine);
	pthread_mutex_lock(&lock);
	while (helped && (dying || unmapping))
		pthread_cond_wait(&gone, &lock);
	pthread_mutex_unlock(&lock);
}

/* The pool's bytes by the mount's own word; 0: it does not say. */
static uint64_t pool_of(const char *mount)
{
	char path[4200], text[8192], *line;
	ssize_t n;
	int fd;

	snprintf(path, sizeof path, "%s/.kvcachefs/config", mount);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return 0;
	text[n] = 0;
	line = strncmp(text, "cpu=", 4) ? strstr(text, "\ncpu=") : text;
	return line ? strtoull(strchr(line, '=') + 1, NULL, 10) : 0;
}

void kvcachefs_maps_bound(const char *mount, uint64_t dev)
{
	uint64_t part;
	bool known;

	pthread_mutex_lock(&lock);
	known = chosen;
	for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
		known |= asked[i] == dev;
	pthread_mutex_unlock(&lock);
	if (known)
		return;
	part = pool_of(mount) / PART;
	pthread_mutex_lock(&lock);
	asked[nasked++ % (sizeof asked / sizeof *asked)] = dev;
	if (!chosen && part && (!cache_bytes || part < cache_bytes)) /* of several the smallest */
		cache_bytes = part < BYTES_MOST ? part : BYTES_MOST;
	pthread_mutex_unlock(&lock);
}

void kvcachefs_map_put(struct kvcachefs_map *m)
{
	struct kvcachefs_map *mine = NULL;

	pthread_mutex_lock(&lock);
	if (!--m->users) {
		m->older = newest;
		m->newer = NULL;
		*(newest ? &newest->newer : &oldest) = m;
		newest = m;
		unused_bytes += m->len;
		unused++;
		m->used_ms = now_ms();
		if (m->pinned || !chosen)
			help_locked();
		if (!m->older && !chosen)
			pthread_cond_signal(&more); /* the first: from now on there is a when */
		mine = trim_locked(0);
	}
	pthread_mutex_unlock(&lock);
	free_all(mine);
}

static struct kvcachefs_map *find_locked(uint64_t dev, uint64_t ino, size_t len)
{
	for (struct kvcachefs_map *m = *bucket(dev, ino); m; m = m->next)
		if (m->dev == dev && m->ino == ino && m->len == len) {
			if (!m->users++)
				unused_remove(m);
			return m;
		}
	return NULL;
}

/* Opens the object, and sees that it is still that one. */
static int open_same(const char *path, uint64_t ino, size_t len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st)) {
		int err = -errno;

		if (fd >= 0)
			close(fd);
		return kvcachefs_fail(err, "%s: %s", path, strerror(-err));
	}
	if (st.st_ino != ino || (size_t)st.st_size != len) {
		close(fd);
		return kvcachefs_fail(-ESTALE, "%s was replaced since it was leased", path);
	}
	return fd;
}

/* What the file says of itself. */
static int layout_read(int fd, const char *path, char layout[KVCACHEFS_LAYOUT_MAX])
{
	ssize_t n = fgetxattr(fd, KVCACHEFS_LAYOUT_XATTR, layout, KVCACHEFS_LAYOUT_MAX - 1);

	if (n < 0 && errno == ERANGE) { /* longer than any of ours */
		strcpy(layout, "what this library does not know");
		return 0;
	}
	if (n < 0 && errno != ENODATA && errno != EOPNOTSUPP)
		return kvcachefs_fail(-errno, "%s: its layout cannot be read: %s", path,
				      strerror(errno));
	layout[n > 0 ? n : 0] = 0;
	return 0;
}

static int make(const char *path, uint64_t dev, uint64_t ino, size_t len, bool layout,
		struct kvcachefs_map **out)
{
	struct kvcachefs_map *m = calloc(1, sizeof *m);
	int fd = m ? open_same(path, ino, len) : kvcachefs_fail(-ENOMEM, "out of memory"),
	    err = fd < 0 ? fd : 0;

	if (!err && layout) {
		err = layout_read(fd, path, m->layout);
		m->layout_known = true;
	}
	if (!err) {
		m->dev = dev;
		m->ino = ino;
		m->len = len;
		m->users = 1;
		pthread_mutex_init(&m->pin, NULL);
		m->data = len ? mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0) : NULL;
		if (m->data == MAP_FAILED)
			err = kvcachefs_fail(-errno, "%s cannot be mapped: %s", path,
					     strerror(errno));
	}
	if (fd >= 0)
		close(fd);
	if (err)
		free(m);
	else
		*out = m;
	return err;
}

int kvcachefs_map_get(const char *path, uint64_t dev, uint64_t ino, size_t len, bool layout,
		      struct kvcachefs_map **out)
{
	struct kvcachefs_map *m, *other;
	int err;

	pthread_mutex_lock(&lock);
	*out = find_locked(dev, ino, len);
	pthread_mutex_unlock(&lock);
	if (*out)
		return 0;
	err = make(path, dev, ino, len, layout, &m);
	if (err)
		return err;
	pthread_mutex_lock(&lock);
	other = find_locked(dev, ino, len); /* another thread's meanwhile */
	if (!other) {
		m->next = *bucket(dev, ino);
		*bucket(dev, ino) = m;
	}
	pthread_mutex_unlock(&lock);
	if (other)
		map_free(m);
	*out = other ? other : m;
	return 0;
}

int kvcachefs_map_layout(struct kvcachefs_map *m, const char *path,
			 char layout[KVCACHEFS_LAYOUT_MAX])
{
	bool known;
	int fd, err;

	pthread_mutex_lock(&lock);
	known = m->layout_known;
	if (known)
		memcpy(layout, m->layout, KVCACHEFS_LAYOUT_MAX);
	pthread_mutex_unlock(&lock);
	if (known)
		return 0;
	fd = open_same(path, m->ino, m->len); /* it was mapped without looking at that */
	if (fd < 0)
		return fd;
	err = layout_read(fd, path, layout);
	close(fd);
	if (err)
		return err;
	pthread_mutex_lock(&lock);
	memcpy(m->layout, layout, KVCACHEFS_LAYOUT_MAX);
	m->layout_known = true;
	pthread_mutex_unlock(&lock);
	return 0;
}

void *kvcachefs_map_data(const struct kvcachefs_map *m, size_t *len)
{
	*len = m->len;
	return m->data;
}

/*
 * A refusal may be of the moment (memory, limits): it is tried again after 1, 3, 7, ... 63 more
 * uses.
 */
bool kvcachefs_map_pin(struct kvcachefs_map *m, int device)
{
	bool pinned;

	pthread_mutex_lock(&m->pin);
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
	pthread_mutex_unlock(&m->pin);
	return pinned;
}
