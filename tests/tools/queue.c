/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue store|load MOUNT: moves a paged cache in host memory through a queue of libkvcachefs on a
 * live mount; load checks it against the stored data. queue more MOUNT: tests prefixes, plain
 * buffers, the calls of a warm load, and idle mappings. queue prefix MOUNT PATH...: prints how many
 * paths, from the first one on, are cached, the same number from kvcachefs_prefix_lease(), and the
 * number of objects in that lease. queue dead MOUNT: prints "ready", waits for a line, and
 * continues with a mount whose daemon is gone. Prints a line and exits with 1 if something is
 * wrong.
 */
#include "maps.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define check(what)                                                                       \
	do {                                                                              \
		if (!(what)) {                                                            \
			printf("line %d: %s (%s)\n", __LINE__, #what, kvcachefs_error()); \
			(void)fflush(stdout);                                             \
			_exit(1);                                                         \
		}                                                                         \
	} while (0)

enum { LAYERS = 4, CHUNKS = 16, BS = 16, BLOCKS = CHUNKS, LAYER = 2 * BLOCKS * BS * 2 * 64 };

static uint16_t mem[LAYERS][LAYER], was[LAYERS][LAYER];
static void *pointers[LAYERS] = { mem[0], mem[1], mem[2], mem[3] };
static struct kvcachefs_item items[CHUNKS * LAYERS];
static char paths[CHUNKS * LAYERS][64];
static int64_t ids[CHUNKS];
static const struct kvcachefs_paged cache = {
	.format = KVCACHEFS_NL_X_TWO_NB_BS_NH_HS,
	.layers = LAYERS,
	.heads = 2,
	.head_size = 64,
	.block_size = BS,
	.blocks = BLOCKS,
	.elem = 2,
	.pointers = pointers,
	.device = -1,
};

static void prepare(void)
{
	for (int l = 0; l < LAYERS; l++)
		for (int i = 0; i < LAYER; i++)
			was[l][i] = (uint16_t)(i * 7 + l * 1000);
	for (uint32_t i = 0; i < CHUNKS * LAYERS; i++) {
		uint32_t c = i / LAYERS, l = i % LAYERS;

		ids[c] = c * 5 % BLOCKS;
		snprintf(paths[i], sizeof paths[i], "q/chunk%u/l%u", c, l);
		items[i] = (struct kvcachefs_item){ .path = paths[i],
						    .layer = l,
						    .nlayers = 1,
						    .tokens = { .block_ids = &ids[c], .n = 1 } };
	}
}

static struct kvcachefs_completion take_one(struct kvcachefs_queue *q)
{
	struct pollfd p = { .fd = kvcachefs_queue_fd(q), .events = POLLIN };
	struct kvcachefs_completion c;

	check(poll(&p, 1, 100000) == 1 && kvcachefs_take(q, &c, 1) == 1);
	return c;
}

static void store(const char *mount)
{
	struct kvcachefs_queue *q;
	uint64_t id;

	memcpy(mem, was, sizeof mem);
	check(!kvcachefs_queue_new(&q, mount, 0));
	check(!kvcachefs_submit_store(q, &cache, items, CHUNKS * LAYERS, NULL, 1, &id));
	/* it was read from the cache, which may change now */
	for (uint32_t l = 0; l < LAYERS; l++) {
		check(!kvcachefs_layer_wait(q, id, l, NULL));
		memset(mem[l], 0, sizeof mem[l]);
	}
	check(!take_one(q).err);
	kvcachefs_queue_free(q);
}

static void load(const char *mount)
{
	struct kvcachefs_completion c;
	struct kvcachefs_queue *q;
	uint64_t id, half[2];

	check(!kvcachefs_queue_new(&q, mount, 2));
	check(!kvcachefs_submit_load(q, &cache, items, CHUNKS * LAYERS, NULL, 1, &id));
	for (uint32_t l = 0; l < LAYERS; l++) {
		check(!kvcachefs_layer_wait(q, id, l, NULL));
		check(!memcmp(mem[l], was[l], sizeof was[l]));
	}
	check(!take_one(q).err);
	/* several at once, of some chunks each */
	memset(mem, 0, sizeof mem);
	for (int i = 0; i < 2; i++)
		check(!kvcachefs_submit_load(q, &cache, items + i * CHUNKS / 2 * LAYERS,
					     CHUNKS / 2 * LAYERS, NULL, 2, &half[i]));
	for (int i = 0; i < 2; i++)
		check(!take_one(q).err);
	check(!memcmp(mem, was, sizeof was));
	/* a missing file: the others are loaded, and it is named */
	memset(mem, 0, sizeof mem);
	items[LAYERS].path = "q/none";
	check(!kvcachefs_submit_load(q, &cache, items, CHUNKS * LAYERS, NULL, 3, &id));
	c = take_one(q);
	check(c.err == -ENOENT && c.failed == 1 && items[LAYERS].err == -ENOENT &&
	      strstr(c.error, "q/none") && !items[LAYERS + 1].err);
	items[LAYERS].path = paths[LAYERS];
	check(kvcachefs_layer_wait(q, id, 0, NULL) == -ENOENT);
	check(!memcmp(mem[1], was[1], sizeof was[1]));
	kvcachefs_queue_free(q);
}

static void write_file(const char *mount, const char *path, size_t len)
{
	char full[4200];

	snprintf(full, sizeof full, "%s/%s", mount, path);
	int fd = open(full, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

	check(fd >= 0 && !ftruncate(fd, (off_t)len) && !close(fd));
}

static void prefixes(const char *mount)
{
	const char *const v[] = { "p0", "pf", "p1", "pf/2", "p3", "p4" };
	struct kvcachefs_lease *l;
	char full[4200];
	size_t n;

	snprintf(full, sizeof full, "%s/pf", mount);
	check(!mkdir(full, 0777));
	check(!kvcachefs_prefix(mount, v, 6, &n) && n == 0);
	write_file(mount, "p0", 10);
	check(!kvcachefs_prefix(mount, v, 6, &n) && n == 1); /* an empty folder counts as missing */
	write_file(mount, "pf/2", 10);
	write_file(mount, "p1", 10);
	write_file(mount, "p4", 10);
	check(!kvcachefs_prefix(mount, v, 6, &n) && n == 4);
	check(!kvcachefs_prefix(mount, v, 2, &n) && n == 2);
	check(!kvcachefs_prefix(mount, v, 0, &n) && n == 0);
	check(!kvcachefs_prefix_lease(&l, mount, v, 6, &n) && n == 4 &&
	      kvcachefs_lease_count(l) == 4 && !kvcachefs_lease_object(l, 3)->err);
	kvcachefs_lease_free(l);
	check(!kvcachefs_prefix_lease(&l, mount, v + 4, 2, &n) && n == 0 && !l);
	check(kvcachefs_prefix("/tmp", v, 6, &n) == -ENOENT);
}

/* Paths inside each other, or named more than once: each has its own answer. */
static void tangled(const char *mount)
{
	static const struct {
		const char *v[5];
		size_t want, objects;
	} lists[] = {
		/* a folder, a file in it, and a missing file */
		{ { "t", "t/in", "t/none" }, 2, 3 },
		{ { "t/in", "t", "t/a", "t/none" }, 3, 4 }, /* a file that its folder has listed */
		{ { "t", "t", "t/in", "t/in", "none" }, 4, 6 },
		{ { "t/a", "t/a", "t/a", "t", "t/in/none" }, 4, 5 },
		{ { "t", "t/empty", "t" }, 1, 2 }, /* an empty folder ends the prefix */
		{ { "t/only", "t/only/in", "t" }, 0, 0 },
		{ { "t", "..", "t" }, 1, 2 },
	};
	struct kvcachefs_lease *l;
	char full[4200];
	size_t n;

	for (const char *const *f =
		     (const char *const[]){ "t", "t/in", "t/empty", "t/only", "t/only/in", NULL };
	     *f; f++) {
		snprintf(full, sizeof full, "%s/%s", mount, *f);
		check(!mkdir(full, 0777));
	}
	for (const char *const *f =
		     (const char *const[]){ "t/a", "t/b", "t/in/c", "t/only/in/d", NULL };
	     *f; f++)
		write_file(mount, *f, 10);
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
		size_t all = 0;

		while (all < 5 && lists[i].v[all])
			all++;
		check(!kvcachefs_prefix(mount, lists[i].v, all, &n) && n == lists[i].want);
		check(!kvcachefs_prefix_lease(&l, mount, lists[i].v, all, &n) &&
		      n == lists[i].want);
		check(lists[i].objects == (l ? kvcachefs_lease_count(l) : 0));
		for (size_t k = 0; k < lists[i].objects; k++)
			check(!kvcachefs_lease_object(l, k)->err);
		kvcachefs_lease_free(l);
	}
}

static void buffers(const char *mount)
{
	struct kvcachefs_buffer *b;
	struct stat st;
	char full[4200];
	uint8_t *p;
	size_t len;

	snprintf(full, sizeof full, "%s/b/x", mount);
	check(kvcachefs_buffer_open(&b, mount, "b/x", -1) == -ENOENT);
	check(!kvcachefs_buffer_new(&b, mount, "b/x", 5000, -1));
	p = kvcachefs_buffer_data(b, &len);
	check(len == 5000 && !kvcachefs_buffer_pinned(b));
	for (size_t i = 0; i < len; i++) {
		check(!p[i]);
		p[i] = (uint8_t)(i * 3);
	}
	check(stat(full, &st) && errno == ENOENT);
	check(!kvcachefs_buffer_publish(b) && !stat(full, &st) && st.st_size == 5000);
	check(!kvcachefs_buffer_data(b, &len) && kvcachefs_buffer_publish(b) == -EINVAL);
	kvcachefs_buffer_free(b);
	check(!kvcachefs_buffer_open(&b, mount, "b/x", -1));
	p = kvcachefs_buffer_data(b, &len);
	for (size_t i = 0; i < 5000; i++)
		check(len == 5000 && p[i] == (uint8_t)(i * 3));
	check(kvcachefs_buffer_publish(b) == -EINVAL);
	kvcachefs_buffer_free(b);
	/* an unpublished buffer leaves nothing; an empty one can be published; no space */
	check(!kvcachefs_buffer_new(&b, mount, "b/y", 100, -1));
	kvcachefs_buffer_free(b);
	snprintf(full, sizeof full, "%s/b/y", mount);
	check(stat(full, &st) && errno == ENOENT);
	check(!kvcachefs_buffer_new(&b, mount, "b/y", 0, -1) && !kvcachefs_buffer_publish(b));
	kvcachefs_buffer_free(b);
	check(!stat(full, &st) && !st.st_size);
	check(kvcachefs_buffer_new(&b, mount, "b/z", 1ull << 50, -1) < 0 && *kvcachefs_error());
	check(kvcachefs_buffer_open(&b, mount, "b", -1) == -EISDIR); /* two files */
	check(kvcachefs_buffer_new(&b, mount, "b/z", 10, 99) == -ENODEV);
	kvcachefs_buffer_free(NULL);
}

/* Counts the system calls of a child between two of its stops. */
static unsigned long calls_of(pid_t kid)
{
	unsigned long stops = 0;
	int status;

	for (int sig = 0;; sig = 0) {
		check(!ptrace(PTRACE_SYSCALL, kid, NULL, (void *)(intptr_t)sig) &&
		      waitpid(kid, &status, 0) == kid && WIFSTOPPED(status));
		if (WSTOPSIG(status) == SIGSTOP)
			return stops / 2;
		if (WSTOPSIG(status) == (SIGTRAP | 0x80))
			stops++;
		else
			sig = WSTOPSIG(status);
	}
}

static void load_some(const char *mount, size_t n)
{
	struct kvcachefs_transfer *t;

	check(!kvcachefs_load(&t, mount, &cache, items, n, NULL) && !kvcachefs_transfer_free(t));
}

/* Can children load? The thread sanitizer does not support threads in a forked child. */
#ifdef __SANITIZE_THREAD__
enum { FORKS = 0 };
#else
enum { FORKS = 1 };
#endif

/* A load whose mappings are cached makes as many system calls for 64 objects as for four. */
static void warm(const char *mount)
{
	const size_t n[2] = { 4, CHUNKS * LAYERS };
	unsigned long calls[2];
	int status;
	pid_t kid = fork();

	if (!kid) {
		kvcachefs_map_idle_ms = 1000000;
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		for (int i = 0; i < 2; i++) {
			for (int r = 0; r < 3; r++)
				load_some(mount, n[i]);
			raise(SIGSTOP);
			load_some(mount, n[i]);
			raise(SIGSTOP);
		}
		_exit(0);
	}
	check(waitpid(kid, &status, 0) == kid && WIFSTOPPED(status));
	check(!ptrace(PTRACE_SETOPTIONS, kid, NULL,
		      (void *)(intptr_t)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)));
	for (int i = 0; i < 2; i++) {
		calls[i] = calls_of(kid);
		if (!i)
			calls_of(kid); /* warms up for the next */
	}
	kill(kid, SIGKILL);
	waitpid(kid, NULL, 0);
	printf("%lu calls for %zu objects, %lu for %zu\n", calls[0], n[0], calls[1], n[1]);
	(void)fflush(stdout); /* before the next fork */
	check(calls[0] && calls[1] < calls[0] + 10);
}

static unsigned mapped(const char *mount)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[8400];
	unsigned n = 0;

	while (f && fgets(line, sizeof line, f))
		n += strstr(line, mount) != NULL;
	if (f)
		fclose(f);
	return n;
}

/* Maps 6 MiB: a sixteenth of the pool of 64 MiB stays mapped. */
static void bounded(const char *mount)
{
	unsigned before = mapped(mount);
	char path[16];

	for (int i = 0; i < 3; i++) {
		const char *p = path;
		struct kvcachefs_lease *l;
		const void *data;
		size_t len;

		snprintf(path, sizeof path, "big%d", i);
		write_file(mount, path, 2 << 20);
		check(!kvcachefs_lease_new(&l, mount, &p, 1) &&
		      !kvcachefs_lease_map(l, 0, &data, &len) && len == 2 << 20);
		kvcachefs_lease_free(l);
	}
	check(before == 8 && mapped(mount) == 2);
}

/* Mappings are cached by default, but neither all of them nor without end. */
static void resting(const char *mount)
{
	for (int rests = 0; rests < 2; rests++) {
		int status;
		pid_t kid = fork();

		if (!kid) {
			kvcachefs_map_idle_ms = rests ? 10 : 1000000;
			load_some(mount, 8);
			while (rests && mapped(mount))
				usleep(10000);
			check(mapped(mount) == (rests ? 0 : 8));
			if (!rests)
				bounded(mount);
			kvcachefs_map_cache(0);
			check(!mapped(mount));
			_exit(0);
		}
		check(waitpid(kid, &status, 0) == kid && !status);
	}
}

static void prefix(const char *mount, const char *const *v, size_t n)
{
	struct kvcachefs_lease *l;
	size_t count, held;

	check(!kvcachefs_prefix(mount, v, n, &count) &&
	      !kvcachefs_prefix_lease(&l, mount, v, n, &held));
	printf("%zu %zu %zu\n", count, held, l ? kvcachefs_lease_count(l) : 0);
	kvcachefs_lease_free(l);
}

/*
 * The daemon is killed while files are mapped: all calls end with an error, and none waits without
 * end.
 */
static void dead(const char *mount)
{
	/* each job writes its errors to its own items */
	static struct kvcachefs_item own[40][CHUNKS * LAYERS];
	struct kvcachefs_queue *q;
	uint64_t id[40];
	char line[8];

	check(!kvcachefs_queue_new(&q, mount, 3));
	check(!kvcachefs_submit_load(q, &cache, items, CHUNKS * LAYERS, NULL, 1, &id[0]) &&
	      !take_one(q).err);
	printf("ready\n");
	(void)fflush(stdout);
	check(fgets(line, sizeof line, stdin));
	for (int i = 0; i < 40; i++) {
		memcpy(own[i], items, sizeof own[i]);
		check(!(i % 2 ? kvcachefs_submit_store : kvcachefs_submit_load)(
			q, &cache, own[i], CHUNKS * LAYERS, NULL, 1, &id[i]));
	}
	for (int i = 0; i < 30; i++) {
		struct kvcachefs_completion c = take_one(q);

		if (c.err >= 0 || c.err == -ECANCELED || !c.failed || !*c.error)
			printf("transfer %llu: %d, %zu failed: %s\n", (unsigned long long)c.id,
			       c.err, c.failed, c.error);
		check(c.err < 0 && c.err != -ECANCELED && c.failed && *c.error);
	}
	check(kvcachefs_layer_wait(q, id[39], 0, NULL) < 0);
	kvcachefs_queue_free(q);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "", *mount = argv[2];

	prepare();
	if (!strcmp(what, "prefix")) {
		prefix(mount, (const char *const *)argv + 3, (size_t)argc - 3);
		return 0;
	}
	if (!strcmp(what, "store")) {
		store(mount);
	} else if (!strcmp(what, "load")) {
		load(mount);
	} else if (!strcmp(what, "dead")) {
		dead(mount);
	} else if (!strcmp(what, "more")) {
		store(mount);
		if (FORKS) {
			warm(mount);
			resting(mount);
		}
		prefixes(mount);
		tangled(mount);
		buffers(mount);
	} else {
		return 2;
	}
	printf("fine\n");
	return 0;
}
