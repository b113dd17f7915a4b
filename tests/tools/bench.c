/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench CASE SIZE COUNT ROUNDS NAME=DIR...: makes the same file calls in several folders,
 * interleaved, ROUNDS times. For cases that load, there are COUNT files of SIZE bytes. Prints "NAME
 * MEDIAN" for each folder: the median of the rounds in microseconds per call. NAME=unix:SOCKET is a
 * Redis or Valkey server: load is GET and a copy into the caller's buffer, store is SET. THREADS in
 * the environment sets the number of threads that share the calls of a round, each with a part of
 * the files. Cases: load (open, read all, close), store (create, write, close), rename (store under
 * a temporary name, then rename), overwrite, mmap (open, map, touch each line, close), stat, miss
 * (stat of a missing name), open (open, close), delete, list (list the folder of COUNT files, once
 * per file), names (list it once).
 */
#include <dirent.h>
#include <fcntl.h>
#include <hiredis.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static _Thread_local char *buf;
static _Thread_local redisContext *redis;
static size_t size;
static volatile unsigned long sink;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void move(int fd, int writing)
{
	for (size_t at = 0; at < size;) {
		ssize_t n = writing ? pwrite(fd, buf + at, size - at, (off_t)at)
				    : pread(fd, buf + at, size - at, (off_t)at);

		if (n <= 0)
			die(writing ? "write" : "read");
		at += (size_t)n;
	}
}

/* unix:SOCKET/NAME: returns the connection of this thread, and the key. */
static const char *redis_key(const char *path)
{
	const char *slash = strrchr(path, '/');
	char socket[256];

	if (strncmp(path, "unix:", 5))
		return NULL;
	if (!redis) {
		snprintf(socket, sizeof socket, "%.*s", (int)(slash - path - 5), path + 5);
		redis = redisConnectUnix(socket);
		if (!redis || redis->err)
			die(socket);
	}
	return slash + 1;
}

static int redis_load(const char *path)
{
	const char *key = redis_key(path);
	redisReply *r;

	if (!key)
		return 0;
	r = redisCommand(redis, "GET %s", key);
	if (!r || r->type != REDIS_REPLY_STRING || r->len != size)
		die("GET");
	memcpy(buf, r->str, size);
	freeReplyObject(r);
	return 1;
}

static int redis_store(const char *path)
{
	const char *key = redis_key(path);
	redisReply *r;

	if (!key)
		return 0;
	r = redisCommand(redis, "SET %s %b", key, buf, size);
	if (!r || r->type != REDIS_REPLY_STATUS)
		die("SET");
	freeReplyObject(r);
	return 1;
}

static void load(const char *path)
{
	if (redis_load(path))
		return;
	int fd = open(path, O_RDONLY);

	if (fd < 0)
		die(path);
	move(fd, 0);
	close(fd);
}

static void store(const char *path)
{
	if (redis_store(path))
		return;
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	if (fd < 0)
		die(path);
	move(fd, 1);
	close(fd);
}

static void store_rename(const char *path)
{
	char tmp[4200];

	snprintf(tmp, sizeof tmp, "%s.tmp", path);
	store(tmp);
	if (rename(tmp, path))
		die("rename");
}

static void overwrite(const char *path)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0)
		die(path);
	move(fd, 1);
	close(fd);
}

static void map(const char *path)
{
	int fd = open(path, O_RDONLY);
	const char *p = fd < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	unsigned long sum = 0;

	if (p == MAP_FAILED)
		die(path);
	close(fd);
	for (size_t i = 0; i < size; i += 64)
		sum += (unsigned char)p[i];
	sink = sum;
	munmap((void *)(uintptr_t)p, size);
}

static void stat_(const char *path)
{
	struct stat st;

	if (stat(path, &st))
		die(path);
}

static void miss(const char *path)
{
	struct stat st;
	char none[4200];

	snprintf(none, sizeof none, "%s.none", path);
	if (!stat(none, &st))
		die("there");
}

static void open_(const char *path)
{
	int fd = open(path, O_RDONLY);

	if (fd < 0)
		die(path);
	close(fd);
}

static void delete_(const char *path)
{
	if (unlink(path))
		die(path);
}

/* Lists the folder of the file. */
static void list(const char *path)
{
	char folder[4100];
	const char *slash = strrchr(path, '/');
	DIR *d;

	snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
	d = opendir(folder);
	while (d && readdir(d))
		sink++;
	if (d)
		closedir(d);
}

static const struct {
	const char *name;
	void (*run)(const char *path);
	/*
	 * makes: creates files, which are removed before each round; deletes: deletes the files,
	 * which are created again after the round
	 */
	int makes, deletes;
	int once; /* one call per round, for all files */
} cases[] = {
	{ "load", load, 0, 0, 0 },
	{ "store", store, 1, 0, 0 },
	{ "rename", store_rename, 1, 0, 0 },
	{ "overwrite", overwrite, 0, 0, 0 },
	{ "mmap", map, 0, 0, 0 },
	{ "stat", stat_, 0, 0, 0 },
	{ "miss", miss, 0, 0, 0 },
	{ "open", open_, 0, 0, 0 },
	{ "delete", delete_, 0, 1, 0 },
	{ "list", list, 0, 0, 0 },
	{ "names", list, 0, 0, 1 },
};

struct work {
	const char *dir;
	size_t c;
	int first, step, count;
	double start, end; /* start and end of this thread */
};

static pthread_barrier_t go;

static void *work(void *arg)
{
	struct work *w = arg;
	char path[4100];

	buf = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
		   -1, 0);
	if (buf == MAP_FAILED)
		die("mmap");
	memset(buf, w->first + 1, size);
	if (w->count && !strncmp(w->dir, "unix:", 5)) {
		snprintf(path, sizeof path, "%s/x", w->dir);
		redis_key(path);
	}
	pthread_barrier_wait(&go);
	w->start = now_us();
	for (int i = w->first; i < w->count; i += w->step) {
		snprintf(path, sizeof path, "%s/%s%d", w->dir, cases[w->c].makes ? "new" : "f", i);
		cases[w->c].run(path);
	}
	w->end = now_us();
	munmap(buf, size);
	if (redis)
		redisFree(redis);
	redis = NULL;
	return NULL;
}

/* Returns the time in us that `threads` threads need for all files together. */
static double together(const char *dir, size_t c, int count, int threads)
{
	pthread_t th[64];
	struct work w[64];
	double start = 0, end = 0;

	pthread_barrier_init(&go, NULL, (unsigned)threads);
	for (int i = 0; i < threads; i++) {
		w[i] = (struct work){ dir, c, i, threads, count, 0, 0 };
		pthread_create(&th[i], NULL, work, &w[i]);
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(th[i], NULL);
		start = i && start < w[i].start ? start : w[i].start;
		end = i && end > w[i].end ? end : w[i].end;
	}
	pthread_barrier_destroy(&go);
	return end - start;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	size_t c = 0;
	int count, rounds, folders = argc - 5,
			   threads = getenv("THREADS") ? atoi(getenv("THREADS")) : 1;
	double *t;

	if (argc < 6)
		return 2;
	while (c < sizeof cases / sizeof cases[0] && strcmp(cases[c].name, argv[1]))
		c++;
	if (c == sizeof cases / sizeof cases[0])
		return 2;
	size = strtoull(argv[2], NULL, 10);
	count = atoi(argv[3]);
	rounds = atoi(argv[4]);
	buf = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	t = calloc((size_t)folders * (size_t)rounds, sizeof *t);
	if (buf == MAP_FAILED || !t)
		return 2;
	for (size_t i = 0; i < size; i++)
		buf[i] = (char)(i * 2654435761u >> 13);
	for (int r = -1; r < rounds; r++) /* round -1 warms up */
		for (int f = 0; f < folders; f++) {
			const char *dir = strchr(argv[5 + f], '=') + 1;
			char path[4100];
			double start;

			for (int i = 0; i < count; i++) {
				snprintf(path, sizeof path, "%s/%s%d", dir,
					 cases[c].makes ? "new" : "f", i);
				if (cases[c].makes && strncmp(dir, "unix:", 5))
					unlink(path);
				else if (r < 0 || cases[c].deletes)
					store(path);
			}
			/* work that continues after close is not timed */
			usleep(cases[c].makes || cases[c].deletes || r < 0 ? 60000 : 2000);
			if (threads > 1) {
				start = together(dir, c, count, threads);
			} else {
				start = now_us();
				for (int i = 0; i < (cases[c].once ? 1 : count); i++) {
					snprintf(path, sizeof path, "%s/%s%d", dir,
						 cases[c].makes ? "new" : "f", i);
					cases[c].run(path);
				}
				start = now_us() - start;
			}
			if (r >= 0)
				t[f * rounds + r] = start / (cases[c].once ? 1 : count);
			if (redis)
				redisFree(redis);
			redis = NULL;
		}
	for (int f = 0; f < folders; f++) {
		char path[4100];

		qsort(t + f * rounds, (size_t)rounds, sizeof *t, by_value);
		printf("%.*s %.3f\n", (int)(strchr(argv[5 + f], '=') - argv[5 + f]), argv[5 + f],
		       t[f * rounds + rounds / 2]);
		for (int i = 0; i < count; i++) {
			snprintf(path, sizeof path, "%s/%s%d", strchr(argv[5 + f], '=') + 1,
				 cases[c].makes ? "new" : "f", i);
			if (strncmp(path, "unix:", 5))
				unlink(path);
		}
	}
	return 0;
}
