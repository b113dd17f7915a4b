/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stores all MOUNT: tests files that are prepared before a store needs them, on a live mount:
 * taking them, and removing them when they are idle, above the limits, in a child, and when the
 * mount is short of space. stores keep MOUNT: prepares some, prints "ready", and waits for a byte
 * on stdin or the end of stdin. Prints a line and exits with 1 if something is wrong.
 */
#include "maps.h"
#include "ready.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define check(what)                                                                       \
	do {                                                                              \
		if (!(what)) {                                                            \
			printf("line %d: %s (%s)\n", __LINE__, #what, kvcachefs_error()); \
			(void)fflush(stdout);                                             \
			_exit(1);                                                         \
		}                                                                         \
	} while (0)

enum { FILES = 4, BS = 256, LAYER = 2 * FILES * BS * 8 * 128, BYTES = LAYER * 2 / FILES };

static uint16_t mem[LAYER], back[LAYER];
static void *pointer = mem;
static struct kvcachefs_paged cache = {
	.format = KVCACHEFS_NL_X_TWO_NB_BS_NH_HS,
	.layers = 1,
	.heads = 8,
	.head_size = 128,
	.block_size = BS,
	.blocks = FILES,
	.elem = 2,
	.pointers = &pointer,
	.device = -1,
};
static int64_t ids[FILES] = { 0, 1, 2, 3 };
static char paths[FILES][64];
static struct kvcachefs_item items[FILES];

static void name(const char *folder, int round)
{
	for (int i = 0; i < FILES; i++) {
		snprintf(paths[i], sizeof paths[i], "%s/c%d/f%d", folder, round, i);
		items[i] = (struct kvcachefs_item){ .path = paths[i],
						    .nlayers = 1,
						    .tokens = { .block_ids = &ids[i], .n = 1 } };
	}
}

static void move(const char *mount, bool store)
{
	struct kvcachefs_transfer *t;

	check(!(store ? kvcachefs_store : kvcachefs_load)(&t, mount, &cache, items, FILES, NULL) &&
	      !kvcachefs_transfer_free(t));
}

static void until(unsigned n)
{
	while (kvcachefs_ready_count() != n)
		usleep(2000);
}

/*
 * Counts descriptors of files without a name, by their paths, since another thread may close them
 * now.
 */
static unsigned unnamed(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 1000; fd++) {
		char path[40];
		struct stat st;

		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		n += !stat(path, &st) && S_ISREG(st.st_mode) && !st.st_nlink;
	}
	return n;
}

static bool mapped(const char *mount, const char *how)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[8400];
	bool found = false;

	while (f && fgets(line, sizeof line, f))
		found |= strstr(line, mount) && strstr(line, how);
	if (f)
		fclose(f);
	return found;
}

/* A store uses prepared files, with the current time, and others are prepared after it. */
static void taken(const char *mount)
{
	char full[4200];
	struct stat st;
	struct timespec now;

	name("m", 0);
	move(mount, true);
	until(FILES); /* the number that the store used at once */
	check(unnamed() == FILES && mapped(mount, "rw-s"));
	usleep(1100000); /* so that they have an earlier time */
	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	for (int i = 0; i < LAYER; i++)
		mem[i] = (uint16_t)(i * 7 + i / 1000);
	for (int r = 1; r < 4; r++) {
		name("m", r);
		move(mount, true);
		until(FILES);
	}
	for (int r = 1; r < 4; r++) {
		name("m", r);
		pointer = back;
		memset(back, 0, sizeof back);
		move(mount, false);
		pointer = mem;
		check(!memcmp(mem, back, sizeof mem));
		snprintf(full, sizeof full, "%s/%s", mount, items[0].path);
		check(!stat(full, &st) && st.st_size == BYTES && st.st_nlink == 1);
		check(st.st_mtim.tv_sec >= now.tv_sec);
	}
}

/* A child has no prepared files: its copies would keep the parent's files open and writable. */
static void forked(const char *mount)
{
	int status;
	pid_t kid;

	check(unnamed() == FILES);
	kid = fork();
	if (!kid) {
		check(!unnamed() && !kvcachefs_ready_count() && !mapped(mount, "rw-s"));
#ifndef __SANITIZE_THREAD__   /* it does not support threads in a forked child */
		name("m", 4); /* and the child prepares its own */
		move(mount, true);
		until(FILES);
		check(unnamed() == FILES);
#endif
		_exit(0);
	}
	check(waitpid(kid, &status, 0) == kid && !status);
	check(unnamed() == FILES && kvcachefs_ready_count() == FILES);
}

static void bounded(const char *mount)
{
	kvcachefs_map_cache(5 * BYTES); /* the limit is half of it */
	check(kvcachefs_ready_count() == 2 && unnamed() == 2);
	kvcachefs_map_cache(0);
	check(!kvcachefs_ready_count() && !unnamed() && !mapped(mount, "rw-s"));
	name("m", 5);
	move(mount, true);
	check(!unnamed());
	kvcachefs_map_cache(64 * BYTES);
	until(FILES);
}

static void idle(const char *mount)
{
	kvcachefs_ready_idle(20);
	until(0);
	while (unnamed() || mapped(mount, "rw-s"))
		usleep(2000);
	kvcachefs_ready_idle(1000000);
}

/* A file is refused space: all prepared files are removed. */
static void shortage(const char *mount)
{
	char full[4200];
	int fd;

	name("m", 6);
	move(mount, true);
	until(FILES);
	usleep(600000); /* so that it has checked before */
	snprintf(full, sizeof full, "%s/tight", mount);
	check(!mkdir(full, 0777) && !setxattr(full, "user.kvcachefs.quota", "1M", 2, 0));
	snprintf(full, sizeof full, "%s/tight/x", mount);
	fd = open(full, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	check(fd >= 0 && fallocate(fd, 0, 0, 4 << 20) && errno == EDQUOT);
	close(fd);
	until(0);
	name("m", 7);
	move(mount, true);
	check(!kvcachefs_ready_count());
}

/* Warm files are ready for the first store of a new model, and stay. */
static void warm(const char *mount)
{
	struct kvcachefs_warm how = { .transfers = 2, .files = true, .keep_s = 1000 };
	char full[4200];
	struct stat st;

	kvcachefs_ready_idle(20);
	name("new", 0);
	check(!kvcachefs_gpu_warm(mount, &cache, items, FILES, &how));
	check(kvcachefs_ready_count() >= 2 * FILES);
	/* files of the last stores' classes may be prepared again until they are idle */
	while (kvcachefs_ready_count() != 2 * FILES || unnamed() != 2 * FILES)
		usleep(2000);
	snprintf(full, sizeof full, "%s/new/c0", mount);
	check(stat(full, &st) && errno == ENOENT);
	usleep(100000);
	check(kvcachefs_ready_count() == 2 * FILES);
	move(mount, true);
	how.transfers = 8;
	kvcachefs_map_cache(20 * BYTES);
	check(kvcachefs_gpu_warm(mount, &cache, items, FILES, &how) == -ENOSPC);
	how.transfers = 9;
	check(kvcachefs_gpu_warm(mount, &cache, items, FILES, &how) == -EINVAL);
	check(kvcachefs_gpu_warm("/nonexistent", &cache, items, FILES, &how) < 0);
	kvcachefs_map_cache(0);
	check(!unnamed());
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "", *mount = argv[2];

	kvcachefs_ready_idle(1000000);
	if (!strcmp(what, "keep")) {
		name("kept", 0);
		move(mount, true);
		until(FILES);
		printf("ready\n");
		(void)fflush(stdout);
		(void)getchar();
		return 0;
	}
	if (strcmp(what, "all") != 0)
		return 2;
	taken(mount);
	forked(mount);
	bounded(mount);
	idle(mount);
	shortage(mount);
	warm(mount);
	printf("fine\n");
	return 0;
}
