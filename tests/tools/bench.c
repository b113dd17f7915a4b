/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench CASE SIZE COUNT ROUNDS NAME=DIR...: the same file calls in several folders, interleaved, ROUNDS times. COUNT files of SIZE
 * bytes are there for the cases that load. Prints, for each folder, the median of the rounds in microseconds a call:
 * "NAME MEDIAN". Cases: load (open, read all, close), store (create, write, close), rename (the same to a temporary name, then
 * rename), overwrite, mmap (open, map, touch each line, close), stat, miss (stat of a missing name), open (open, close), delete.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char *buf;
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
		ssize_t n = writing ? pwrite(fd, buf + at, size - at, (off_t)at) : pread(fd, buf + at, size - at, (off_t)at);

		if (n <= 0)
			die(writing ? "write" : "read");
		at += (size_t)n;
	}
}

static void load(const char *path)
{
	int fd = open(path, O_RDONLY);

	if (fd < 0)
		die(path);
	move(fd, 0);
	close(fd);
}

static void store(const char *path)
{
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

static const struct {
	const char *name;
	void (*run)(const char *path);
	int makes, deletes; /* files of its own that are removed before each round; its files are made again after */
} cases[] = {
	{ "load", load, 0, 0 }, { "store", store, 1, 0 }, { "rename", store_rename, 1, 0 }, { "overwrite", overwrite, 0, 0 }, { "mmap", map, 0, 0 },
	{ "stat", stat_, 0, 0 }, { "miss", miss, 0, 0 }, { "open", open_, 0, 0 }, { "delete", delete_, 0, 1 },
};

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	size_t c = 0;
	int count, rounds, folders = argc - 5;
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
	t = calloc((size_t)(folders * rounds), sizeof *t);
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
				snprintf(path, sizeof path, "%s/%s%d", dir, cases[c].makes ? "new" : "f", i);
				if (cases[c].makes)
					unlink(path);
				else if (r < 0 || cases[c].deletes)
					store(path);
			}
			usleep(cases[c].makes || cases[c].deletes || r < 0 ? 60000 : 2000); /* what goes on behind a close is not timed */
			start = now_us();
			for (int i = 0; i < count; i++) {
				snprintf(path, sizeof path, "%s/%s%d", dir, cases[c].makes ? "new" : "f", i);
				cases[c].run(path);
			}
			if (r >= 0)
				t[f * rounds + r] = (now_us() - start) / count;
		}
	for (int f = 0; f < folders; f++) {
		char path[4100];

		qsort(t + f * rounds, (size_t)rounds, sizeof *t, by_value);
		printf("%.*s %.3f\n", (int)(strchr(argv[5 + f], '=') - argv[5 + f]), argv[5 + f], t[f * rounds + rounds / 2]);
		for (int i = 0; i < count; i++) {
			snprintf(path, sizeof path, "%s/%s%d", strchr(argv[5 + f], '=') + 1, cases[c].makes ? "new" : "f", i);
			unlink(path);
		}
	}
	return 0;
}
