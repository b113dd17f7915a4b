/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full DIR SIZE THREADS HOT [LIMIT]: stores and loads objects of SIZE bytes in DIR as a serving
 * engine does, with a temporary name and a rename, in THREADS threads. DIR may be unix:SOCKET of a
 * Redis or Valkey server. HOT objects are stored first, and one more thread reads them in turn
 * until the end. With LIMIT, the program bounds its objects like SGLang: a store that would exceed
 * the limit first unlinks the least recently used objects down to nine tenths of it.
 *
 * It prints "ready", then reads commands from stdin and answers each with one line of JSON:
 *   store BYTES SECONDS          stores that many bytes, or for that long
 *   load BYTES SECONDS WINDOW    loads random objects of the newest WINDOW bytes
 *   hot                          how many hot objects still exist, and the longest time that one
 *                                was not read
 *   clear                        removes all objects except the hot ones
 *   sync                         makes DIR's filesystem write its dirty data
 *
 * A failed call is counted and named, and the program continues.
 */
#include <errno.h>
#include <fcntl.h>
#include <hiredis.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 64
#define OBJECTS_MAX (1u << 22)
#define NONE UINT32_MAX
#define HOT_REST_US 1000

enum phase { STORE, LOAD };

struct object { /* in the LRU list: the oldest first */
	uint32_t prev, next;
	bool in, pending;
};

struct worker {
	pthread_t thread;
	enum phase phase;
	unsigned number;
	double *us; /* time of each call */
	size_t n, capacity;
	unsigned long errors, misses;
	int err; /* the first error */
	double end;
};

static const char *dir, *redis_socket;
static size_t size;
static unsigned threads, hot;
static uint64_t limit;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *objects;
static uint32_t oldest = NONE, newest = NONE, next, cleared, published;
static uint64_t kept;
static _Atomic unsigned hot_gap_ms;
static _Thread_local redisContext *redis;
static _Thread_local char *buf;

/* the current phase */
static _Atomic long left;
static double until;
static uint32_t window;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static redisReply *ask_redis(const char *command, uint32_t i, bool with_data)
{
	if (redis && redis->err) {
		redisFree(redis);
		redis = NULL;
	}
	if (!redis)
		redis = redisConnectUnix(redis_socket);
	if (!redis || redis->err)
		return NULL;
	return with_data ? redisCommand(redis, "%s k%u %b", command, i, buf, size)
			 : redisCommand(redis, "%s k%u", command, i);
}

static const char *path_of(uint32_t i, char *path)
{
	snprintf(path, 4096, "%s/k%08x.bin", dir, i);
	return path;
}

static int move_all(int fd, bool writing)
{
	for (size_t at = 0; at < size;) {
		char *p = buf + at;
		ssize_t n = writing ? write(fd, p, size - at) : read(fd, p, size - at);

		if (n <= 0)
			return n ? -errno : -ENODATA;
		at += (size_t)n;
	}
	return 0;
}

/* Returns 0 or -errno. */
static int put(uint32_t i, unsigned thread)
{
	char path[4096], tmp[4200];
	int fd, err;

	if (redis_socket) {
		redisReply *r = ask_redis("SET", i, true);

		err = !r ? -EIO : r->type == REDIS_REPLY_ERROR ? -ENOSPC : 0;
		if (r)
			freeReplyObject(r);
		return err;
	}
	snprintf(tmp, sizeof tmp, "%s.tmp.%u", path_of(i, path), thread);
	fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	err = move_all(fd, true);
	if (close(fd) && !err)
		err = -errno;
	if (!err && rename(tmp, path))
		err = -errno;
	if (err)
		unlink(tmp);
	return err;
}

/* Returns 0, -ENOENT (it no longer exists), or another error. */
static int get(uint32_t i)
{
	char path[4096];
	int fd, err;

	if (redis_socket) {
		redisReply *r = ask_redis("GET", i, false);

		if (!r)
			return -EIO;
		err = r->type == REDIS_REPLY_NIL ? -ENOENT : 0;
		if (!err && (r->type != REDIS_REPLY_STRING || r->len != size))
			err = -EIO;
		if (!err)
			memcpy(buf, r->str, size);
		freeReplyObject(r);
		return err;
	}
	fd = open(path_of(i, path), O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	err = move_all(fd, false);
	close(fd);
	return err;
}

static void lru_out_locked(uint32_t i)
{
	struct object *o = &objects[i];

	*(o->prev == NONE ? &oldest : &objects[o->prev].next) = o->next;
	*(o->next == NONE ? &newest : &objects[o->next].prev) = o->prev;
	o->in = false;
}

static void lru_in_locked(uint32_t i)
{
	objects[i] = (struct object){ newest, NONE, true, objects[i].pending };
	*(newest == NONE ? &oldest : &objects[newest].next) = i;
	newest = i;
}

/* Takes the next number. With a limit, makes space for it first. */
static uint32_t reserve(void)
{
	char path[4096];
	uint32_t i;

	pthread_mutex_lock(&lock);
	i = next++;
	if (i >= OBJECTS_MAX) {
		errno = ENOSPC;
		die("too many objects");
	}
	if (limit && kept + size > limit) {
		uint64_t goal = limit / 10 * 9;

		for (uint32_t o = oldest, after; o != NONE && kept + size > goal; o = after) {
			after = objects[o].next;
			if (objects[o].pending || (unlink(path_of(o, path)) && errno != ENOENT))
				continue;
			lru_out_locked(o);
			kept -= size;
		}
	}
	objects[i].pending = true;
	lru_in_locked(i);
	kept += size;
	pthread_mutex_unlock(&lock);
	return i;
}

static void stored(uint32_t i, int err)
{
	pthread_mutex_lock(&lock);
	objects[i].pending = false;
	if (err) {
		lru_out_locked(i);
		kept -= size;
	} else if (i + 1 > published) {
		published = i + 1;
	}
	pthread_mutex_unlock(&lock);
}

static void used(uint32_t i)
{
	pthread_mutex_lock(&lock);
	if (objects[i].in) {
		lru_out_locked(i);
		lru_in_locked(i);
	}
	pthread_mutex_unlock(&lock);
}

static void new_buffer(unsigned seed)
{
	uint64_t x = 0x9e3779b97f4a7c15ull * (seed + 1);

	buf = aligned_alloc(4096, size);
	if (!buf)
		die("memory");
	for (size_t i = 0; i + 8 <= size; i += 8) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(buf + i, &x, 8);
	}
}

static void release(void)
{
	free(buf);
	if (redis)
		redisFree(redis);
	redis = NULL;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	unsigned seed = w->number * 7919 + published;
	double start;

	new_buffer(w->number);
	while (now() < until && atomic_fetch_sub(&left, (long)size) > 0) {
		uint32_t i = 0;
		int err;

		start = now();
		if (w->phase == STORE) {
			i = reserve();
			memcpy(buf, &i, sizeof i); /* each object has different bytes */
			err = put(i, w->number);
			stored(i, err);
		} else {
			i = published - 1 - (uint32_t)rand_r(&seed) % window;
			err = get(i);
			if (!err)
				used(i);
		}
		if (err == -ENOENT && w->phase == LOAD) {
			w->misses++;
			continue;
		}
		if (w->n == w->capacity) {
			w->capacity = w->capacity ? 2 * w->capacity : 1024;
			double *more = realloc(w->us, w->capacity * sizeof *w->us);

			if (!more)
				die("memory");
			w->us = more;
		}
		w->us[w->n] = (now() - start) * 1e6;
		if (err) {
			w->err = w->err ? w->err : err;
			w->errors++;
			usleep(1000);
		}
		w->n++;
	}
	w->end = now();
	release();
	return NULL;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void run(enum phase phase, uint64_t bytes, double seconds, uint64_t newest_bytes)
{
	struct worker w[THREADS_MAX] = { 0 };
	unsigned long errors = 0, misses = 0;
	double start = now(), end = start, *all;
	size_t n = 0, at = 0;
	int err = 0;

	atomic_store(&left, (long)bytes);
	until = start + seconds;
	window = (uint32_t)(newest_bytes / size);
	if (window > published - cleared)
		window = published - cleared;
	if (!window)
		window = 1;
	for (unsigned i = 0; i < threads; i++) {
		w[i].phase = phase;
		w[i].number = i;
		if (pthread_create(&w[i].thread, NULL, work, &w[i]))
			die("thread");
	}
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(w[i].thread, NULL);
		end = w[i].end > end ? w[i].end : end;
		n += w[i].n;
		errors += w[i].errors;
		misses += w[i].misses;
		err = err ? err : w[i].err;
	}
	all = malloc((n + 1) * sizeof *all);
	if (!all)
		die("memory");
	for (unsigned i = 0; i < threads; i++) {
		if (w[i].n)
			memcpy(all + at, w[i].us, w[i].n * sizeof *all);
		at += w[i].n;
		free(w[i].us);
	}
	all[n] = 0;
	qsort(all, n, sizeof *all, by_value);
	printf("{\"mb_s\": %.1f, \"calls\": %zu, \"errors\": %lu, \"misses\": %lu, ",
	       (double)(n - errors) * (double)size / 1e6 / (end - start), n, errors, misses);
	printf("\"error\": \"%s\", \"p50_us\": %.0f, \"p99_us\": %.0f, \"worst_ms\": %.1f}\n",
	       err ? strerror(-err) : "", all[n / 2], all[n * 99 / 100], n ? all[n - 1] / 1e3 : 0);
	free(all);
}

/* Reads the hot objects without end; a missing one is not read again. */
static void *keep_hot(void *arg)
{
	bool *gone = calloc(hot, sizeof *gone);
	double *last = calloc(hot, sizeof *last);

	(void)arg;
	if (!gone || !last)
		die("memory");
	new_buffer(threads);
	for (uint32_t i = 0;; i = (i + 1) % hot) {
		int err = gone[i] ? 0 : get(i);

		gone[i] |= err == -ENOENT;
		if (!err && !gone[i]) {
			double t = now(), gap = last[i] > 0 ? (t - last[i]) * 1e3 : 0;

			if (gap > hot_gap_ms)
				hot_gap_ms = (unsigned)gap;
			last[i] = t;
			used(i);
		}
		usleep(HOT_REST_US);
	}
	return NULL;
}

static void count_hot(void)
{
	unsigned there = 0;

	for (uint32_t i = 0; i < hot; i++)
		there += !get(i);
	printf("{\"hot\": %u, \"gap_ms\": %u}\n", there, hot_gap_ms);
}

static void clear(void)
{
	char path[4096];

	pthread_mutex_lock(&lock);
	for (uint32_t i = cleared; i < next; i++)
		if (objects[i].in && !redis_socket && !unlink(path_of(i, path))) {
			lru_out_locked(i);
			kept -= size;
		}
	cleared = next;
	pthread_mutex_unlock(&lock);
	printf("{}\n");
}

static void sync_dir(void)
{
	int fd = redis_socket ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd >= 0) {
		syncfs(fd);
		close(fd);
	}
	printf("{}\n");
}

int main(int argc, char **argv)
{
	unsigned long long bytes, newest_bytes;
	char line[256];
	double seconds;
	pthread_t th;

	if (argc < 5)
		return 2;
	dir = argv[1];
	size = strtoull(argv[2], NULL, 10);
	threads = (unsigned)atoi(argv[3]);
	hot = (unsigned)atoi(argv[4]);
	limit = argc > 5 ? strtoull(argv[5], NULL, 10) : 0;
	if (!strncmp(dir, "unix:", 5))
		redis_socket = dir + 5;
	objects = calloc(OBJECTS_MAX, sizeof *objects);
	if (size < 4096 || !threads || threads > THREADS_MAX || !hot || !objects)
		return 2;
	new_buffer(threads + 1);
	while (next < hot) {
		uint32_t i = reserve();
		int err;

		memcpy(buf, &i, sizeof i);
		err = put(i, 0);
		stored(i, err);
		if (err) {
			errno = -err;
			die("a hot object");
		}
	}
	cleared = hot;
	if (pthread_create(&th, NULL, keep_hot, NULL))
		die("thread");
	if (setvbuf(stdout, NULL, _IOLBF, 0))
		die("the buffer of stdout");
	printf("ready\n");
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "store %llu %lf", &bytes, &seconds) == 2)
			run(STORE, bytes, seconds, 0);
		else if (sscanf(line, "load %llu %lf %llu", &bytes, &seconds, &newest_bytes) == 3)
			run(LOAD, bytes, seconds, newest_bytes);
		else if (!strcmp(line, "hot\n"))
			count_hot();
		else if (!strcmp(line, "clear\n"))
			clear();
		else if (!strcmp(line, "sync\n"))
			sync_dir();
		else
			return 2;
	}
	return 0;
}
