/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings of objects, found by (device, inode, size). Mappings that leases use are counted. Unused
 * ones stay mapped for the next lease; if the cache's bytes or number are above the limit, the
 * least recently used ones are removed first. The layout of a mapping is read once. The mapping of
 * a file that was stored through a registration enters the cache when the file is published.
 *
 * Registering a file for a device takes as long as two or three loads gain from it, and most files
 * are loaded once only. So the first load of a file on a device neither maps nor registers it
 * (item.c). A small table remembers how many bytes of each recent object were loaded. Once that
 * exceeds the object's size, the object is mapped, and unmap.c registers the mapping.
 *
 * To the mount a cached mapping is an open file: it stays in the pool and cannot be evicted. So the
 * default limit is a small part of the pool, and mappings that were not used for 5 seconds
 * (kvcachefs_map_idle_ms) are unmapped: an idle process holds none. If the caller has set the
 * limit, idle mappings stay.
 *
 * Registered mappings are removed by unmap.c, others by the thread that drops them. Neither is done
 * while holding the lock. The lock guards the table, the list of unused mappings and the limit; no
 * other lock is taken under it.
 */
#include "maps.h"
#include "unmap.h"
#include "ready.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUCKETS 4096
#define LOADED 4096
#define MAPS_MOST 16384 /* a process may have 65530 */
#define BYTES_MOST (4ull << 30)
#define PART 16 /* fraction of the pool; each process on a machine has its own cache */

unsigned kvcachefs_map_idle_ms = 5000;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kvcachefs_map *buckets[BUCKETS], *oldest, *newest;
static size_t unused_bytes, unused, cache_bytes;
static bool chosen;    /* by the caller */
static struct loaded { /* by a hash of the object; a collision only forgets an object */
	uint64_t dev, ino, bytes, ms;
} loaded[LOADED];
static uint64_t asked[4]; /* mounts whose pool size is known */
static unsigned nasked;

static size_t hash_of(uint64_t dev, uint64_t ino)
{
	return (dev * 31 + ino) * 0x9e3779b97f4a7c15ull >> 52;
}

static struct kvcachefs_map **bucket(uint64_t dev, uint64_t ino)
{
	return &buckets[hash_of(dev, ino) & (BUCKETS - 1)];
}

static void unused_remove(struct kvcachefs_map *m)
{
	*(m->newer ? &m->newer->older : &newest) = m->older;
	*(m->older ? &m->older->newer : &oldest) = m->newer;
	m->newer = m->older = NULL;
	unused_bytes -= m->len;
	unused--;
}

static void insert_locked(struct kvcachefs_map *m)
{
	struct kvcachefs_map **at = bucket(m->dev, m->ino);

	m->next = *at;
	*at = m;
}

/* Removes mappings that are idle or above the limit from the tables. The caller frees them. */
static struct kvcachefs_map *trim_locked(uint64_t before_ms)
{
	struct kvcachefs_map *mine = NULL;

	while (oldest && (unused_bytes > cache_bytes || unused > MAPS_MOST || !cache_bytes ||
			  (!chosen && oldest->used_ms < before_ms))) {
		struct kvcachefs_map *m = oldest, **at = bucket(m->dev, m->ino);

		unused_remove(m);
		while (*at != m)
			at = &(*at)->next;
		*at = m->next;
		m->going = mine;
		mine = m;
	}
	return mine;
}

void kvcachefs_maps_free(struct kvcachefs_map *m)
{
	struct kvcachefs_map *theirs = NULL;

	for (struct kvcachefs_map *next; m; m = next) {
		next = m->going;
		if (m->pinned || m->rw_pinned) {
			m->going = theirs;
			theirs = m;
		} else {
			kvcachefs_map_free(m);
		}
	}
	kvcachefs_unmap(theirs);
}

struct kvcachefs_map *kvcachefs_maps_idle(uint64_t *wait_ms)
{
	uint64_t now = kvcachefs_now_ms(), idle = kvcachefs_map_idle_ms;
	struct kvcachefs_map *mine;

	pthread_mutex_lock(&lock);
	mine = trim_locked(now > idle ? now - idle : 0);
	*wait_ms = chosen || !oldest ? 0 : idle + 1;
	pthread_mutex_unlock(&lock);
	return mine;
}

/*
 * The child shares the mappings. A mapping that a thread used in a call during the fork stays in
 * use in the child, but its lock becomes free: what the lock guards is only a cache of what the
 * file and the device would say.
 */
static void maps_in_child_locked(void)
{
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct kvcachefs_map *m = buckets[i]; m; m = m->next)
			pthread_mutex_init(&m->lock, NULL);
}

KVCACHEFS_AT_FORK_INNER(lock, maps_in_child_locked)

void kvcachefs_map_cache(size_t bytes)
{
	struct kvcachefs_map *mine;

	pthread_mutex_lock(&lock);
	cache_bytes = bytes;
	chosen = true;
	if (!bytes)
		memset(loaded, 0, sizeof loaded);
	mine = trim_locked(0);
	pthread_mutex_unlock(&lock);
	kvcachefs_maps_free(mine);
	kvcachefs_ready_trim();
	kvcachefs_unmap_wait();
}

size_t kvcachefs_maps_bytes(void)
{
	size_t bytes;

	pthread_mutex_lock(&lock);
	bytes = cache_bytes;
	pthread_mutex_unlock(&lock);
	return bytes;
}

bool kvcachefs_mount_says(const char *mount, const char *what, char *text, size_t capacity)
{
	char path[4200];
	ssize_t n;
	int fd;

	snprintf(path, sizeof path, "%s/.kvcachefs/%s", mount, what);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, capacity - 1);
	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return false;
	text[n] = 0;
	return true;
}

/* Returns the size of the mount's pool in bytes; 0: the mount does not report it. */
static uint64_t pool_of(const char *mount)
{
	char text[8192], *line;

	if (!kvcachefs_mount_says(mount, "config", text, sizeof text))
		return 0;
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
	/* with several mounts, the smallest */
	if (!chosen && part && (!cache_bytes || part < cache_bytes))
		cache_bytes = part < BYTES_MOST ? part : BYTES_MOST;
	pthread_mutex_unlock(&lock);
}

void kvcachefs_map_put(struct kvcachefs_map *m)
{
	struct kvcachefs_map *mine = NULL;
	bool wakes = false;

	pthread_mutex_lock(&lock);
	if (!--m->users) {
		m->older = newest;
		m->newer = NULL;
		*(newest ? &newest->newer : &oldest) = m;
		newest = m;
		unused_bytes += m->len;
		unused++;
		m->used_ms = kvcachefs_now_ms();
		/* the first unused mapping: the thread must wake when it becomes idle */
		wakes = !m->older && !chosen;
		mine = trim_locked(0);
	}
	pthread_mutex_unlock(&lock);
	if (wakes)
		kvcachefs_unmap_wake();
	kvcachefs_maps_free(mine);
}

static struct kvcachefs_map *lookup_locked(uint64_t dev, uint64_t ino, size_t len)
{
	struct kvcachefs_map *m = *bucket(dev, ino);

	while (m && (m->dev != dev || m->ino != ino || m->len != len))
		m = m->next;
	return m;
}

static struct kvcachefs_map *lookup_use_locked(uint64_t dev, uint64_t ino, size_t len)
{
	struct kvcachefs_map *m = lookup_locked(dev, ino, len);

	if (m && !m->users++)
		unused_remove(m);
	return m;
}

int kvcachefs_map_get(const char *path, uint64_t dev, uint64_t ino, size_t len, bool layout,
		      struct kvcachefs_map **out)
{
	struct kvcachefs_map *m, *other;
	int err;

	pthread_mutex_lock(&lock);
	*out = lookup_use_locked(dev, ino, len);
	pthread_mutex_unlock(&lock);
	if (*out)
		return 0;
	err = kvcachefs_map_open(path, dev, ino, len, layout, &m);
	if (err)
		return err;
	m->users = 1;
	pthread_mutex_lock(&lock);
	other = lookup_use_locked(dev, ino, len); /* another thread was faster */
	if (!other)
		insert_locked(m);
	pthread_mutex_unlock(&lock);
	if (other)
		kvcachefs_map_free(m);
	*out = other ? other : m;
	return 0;
}

void kvcachefs_map_over(struct kvcachefs_map *m, bool published)
{
	m->going = NULL;
	pthread_mutex_lock(&lock);
	m->queued = published && m->data && m->len <= cache_bytes &&
		    /* unless a load has mapped the file already */
		    !lookup_locked(m->dev, m->ino, m->len);
	if (m->queued) {
		m->users = 1; /* for unmap.c */
		insert_locked(m);
	}
	pthread_mutex_unlock(&lock);
	if (m->rw_pinned)
		kvcachefs_unmap(m);
	else
		kvcachefs_map_free(m);
}

void kvcachefs_map_unqueue(struct kvcachefs_map *m)
{
	pthread_mutex_lock(&lock);
	m->queued = false;
	pthread_mutex_unlock(&lock);
	kvcachefs_map_put(m);
}

/* ---- Loads on a device ---- */

struct kvcachefs_map *kvcachefs_map_find(uint64_t dev, uint64_t ino, size_t len, bool *queued)
{
	struct kvcachefs_map *m;

	pthread_mutex_lock(&lock);
	m = lookup_use_locked(dev, ino, len);
	*queued = m && m->queued;
	pthread_mutex_unlock(&lock);
	return m;
}

/* Counts the loaded bytes of an object. Is it worth a registration? */
static bool count_locked(uint64_t dev, uint64_t ino, size_t len, uint64_t bytes)
{
	struct loaded *l = &loaded[hash_of(dev, ino) & (LOADED - 1)];
	uint64_t now = kvcachefs_now_ms();

	/* after that time, a mapping would have been removed: begin to count again */
	if (l->dev != dev || l->ino != ino || (!chosen && now - l->ms > kvcachefs_map_idle_ms))
		*l = (struct loaded){ .dev = dev, .ino = ino };
	l->ms = now;
	l->bytes += bytes;
	if (l->bytes <= len || len > cache_bytes || kvcachefs_unmap_behind())
		return false;
	*l = (struct loaded){ 0 };
	return true;
}

void kvcachefs_map_loaded(int fd, uint64_t dev, uint64_t ino, size_t len, uint64_t bytes,
			  int device)
{
	struct kvcachefs_map *m;
	bool worth, queues;

	pthread_mutex_lock(&lock);
	worth = count_locked(dev, ino, len, bytes);
	pthread_mutex_unlock(&lock);
	m = worth ? kvcachefs_map_of(fd, dev, ino, len) : NULL;
	if (!m)
		return;
	m->rw_device = device;
	m->loaded = len;
	pthread_mutex_lock(&lock);
	queues = m->queued = !lookup_locked(dev, ino, len); /* or another thread was faster */
	if (queues) {
		m->users = 1; /* for unmap.c */
		insert_locked(m);
	}
	pthread_mutex_unlock(&lock);
	if (queues)
		kvcachefs_unmap(m);
	else
		kvcachefs_map_free(m);
}

void kvcachefs_map_again(struct kvcachefs_map *m, uint64_t bytes, int device)
{
	bool queues;

	pthread_mutex_lock(&lock);
	m->loaded += bytes;
	queues = m->loaded > m->len && m->len <= cache_bytes && !m->queued;
	pthread_mutex_unlock(&lock);
	if (!queues || !kvcachefs_map_worth(m))
		return;
	pthread_mutex_lock(&lock);
	queues = !m->queued; /* another thread may have been faster */
	if (queues) {
		m->queued = true;
		m->users++; /* for unmap.c */
		m->going = NULL;
		m->rw_device = device;
	}
	pthread_mutex_unlock(&lock);
	if (queues)
		kvcachefs_unmap(m);
}
