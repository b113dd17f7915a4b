/* SPDX-License-Identifier: Apache-2.0 */
/*
 * library MOUNT: tests libkvcachefs on a live mount: leases, lookups, mappings, host transfers, and
 * refusals. Prints a line and exits with 1 if something is wrong. library hash N: hashes N tokens
 * with each scheme, and prints millions per second. library lease MOUNT FOLDER: prints the
 * microseconds to lease a folder's files.
 */
#include "kvcachefs_gpu.h"
#include "kvcachefs_keys.h"
#include "kvcachefs_layout.h"
#include "kvcachefs_rope.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
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
			exit(1);                                                          \
		}                                                                         \
	} while (0)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void hash(size_t n)
{
	uint32_t *t = calloc(n, sizeof *t);
	uint8_t *out = calloc(n / 16 + 1, KVCACHEFS_KEY_MAX);

	for (size_t i = 0; i < n; i++)
		t[i] = (uint32_t)(i * 7919 % 128000);
	for (int s = 0; s < KVCACHEFS_SCHEMES; s++) {
		struct kvcachefs_keys keys = { .scheme = (enum kvcachefs_scheme)s, .seed = "0" };
		struct kvcachefs_hasher *h;
		size_t made;
		double best = 1e9;

		for (int r = 0; r < 5; r++) {
			check(!kvcachefs_hasher_new(&h, &keys));
			double start = now();

			check(!kvcachefs_hasher_feed(h, t, n, out, n / 16 + 1, &made));
			if (now() - start < best)
				best = now() - start;
			kvcachefs_hasher_free(h);
		}
		printf("%s %.2f\n", kvcachefs_scheme_name(keys.scheme), (double)n / best / 1e6);
	}
	free(t);
	free(out);
}

static void lease_time(const char *mount, const char *folder)
{
	struct kvcachefs_lease *l;

	for (int r = 0; r < 7; r++) {
		double start = now();

		check(!kvcachefs_lease_new(&l, mount, &folder, 1));
		printf("%zu %.1f\n", kvcachefs_lease_count(l), (now() - start) * 1e6);
		kvcachefs_lease_free(l);
	}
}

static void write_file(const char *mount, const char *path, size_t len, int seed)
{
	char full[4200];
	uint8_t *p = malloc(len);
	FILE *f;

	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)(i * 31 + (size_t)seed);
	snprintf(full, sizeof full, "%s/%s", mount, path);
	f = fopen(full, "we");
	check(f && fwrite(p, 1, len, f) == len && !fclose(f));
	free(p);
}

static void leases(const char *mount)
{
	const char *const paths[] = { "m/c", "m/with space", "m/none", "m/c/0" };
	struct kvcachefs_lease *l, *second;
	const struct kvcachefs_object *o;
	const uint8_t *p, *q;
	char full[4200];
	size_t len, failed = 0;

	snprintf(full, sizeof full, "%s/m", mount);
	mkdir(full, 0777);
	snprintf(full, sizeof full, "%s/m/c", mount);
	mkdir(full, 0777);
	for (int i = 0; i < 20; i++) {
		char path[64];

		snprintf(path, sizeof path, "m/c/%d", i);
		write_file(mount, path, 5000 + (size_t)i, i);
	}
	write_file(mount, "m/with space", 100, 7);
	check(!kvcachefs_lease_new(&l, mount, paths, 4));
	check(kvcachefs_lease_count(l) == 23);
	for (size_t i = 0; i < 23; i++) {
		o = kvcachefs_lease_object(l, i);
		if (o->err) {
			failed++;
			check(o->err == -ENOENT && !strcmp(o->path, "m/none") &&
			      kvcachefs_lease_map(l, i, (const void **)&p, &len) == -ENOENT);
			continue;
		}
		check(!kvcachefs_lease_map(l, i, (const void **)&p, &len) && len == o->size);
		int seed = strcmp(o->path, "m/with space") ? atoi(strrchr(o->path, '/') + 1) : 7;

		for (size_t b = 0; b < len; b++)
			check(p[b] == (uint8_t)(b * 31 + (size_t)seed));
	}
	check(failed == 1 && !kvcachefs_lease_object(l, 23) &&
	      kvcachefs_lease_map(l, 23, (const void **)&p, &len) == -ERANGE);
	/* with a cache, the mapping outlives the lease and is found again */
	check(!kvcachefs_lease_map(l, 22, (const void **)&p, &len));
	kvcachefs_map_cache(1 << 20);
	kvcachefs_lease_free(l);
	check(!kvcachefs_lease_new(&second, mount, paths + 3, 1) &&
	      !kvcachefs_lease_map(second, 0, (const void **)&q, &len) && q == p);
	kvcachefs_lease_free(second);
	/* a file that replaced another one is another object */
	write_file(mount, "m/c/new", 5000, 3);
	char to[4200];

	snprintf(full, sizeof full, "%s/m/c/new", mount);
	snprintf(to, sizeof to, "%s/m/c/0", mount);
	check(!rename(full, to));
	check(!kvcachefs_lease_new(&second, mount, paths + 3, 1) &&
	      !kvcachefs_lease_map(second, 0, (const void **)&q, &len) && q[0] == 3);
	kvcachefs_lease_free(second);
	kvcachefs_map_cache(0);
	/* a lookup loads nothing */
	check(!kvcachefs_look(&l, mount, paths, 1) && kvcachefs_lease_count(l) == 20 &&
	      !kvcachefs_lease_object(l, 3)->err);
	kvcachefs_lease_free(l);
	check(!kvcachefs_prefetch(mount, paths, 1));
	check(kvcachefs_lease_new(&l, "/tmp", paths, 1) == -ENOENT);
	check(kvcachefs_lease_new(&l, mount, (const char *const[]){ "a\nb" }, 1) == -EINVAL);
	check(kvcachefs_lease_new(&l, mount, (const char *const[]){ "" }, 1) == -EINVAL);
}

/*
 * A process that dies leaves no lease: the mount refuses to demote leased objects, and afterwards
 * demotes them.
 */
static void dies(const char *mount)
{
	const char *const path = "m/c/1";
	struct kvcachefs_lease *l;
	char full[4200], there;
	int has[2];
	pid_t kid;

	snprintf(full, sizeof full, "%s/%s", mount, path);
	check(!pipe(has));
	kid = fork();
	if (!kid) {
		check(!kvcachefs_lease_new(&l, mount, &path, 1) && write(has[1], "!", 1) == 1);
		pause();
	}
	check(read(has[0], &there, 1) == 1);
	check(setxattr(full, "user.kvcachefs.demote", "cpu", 3, 0) && errno == EBUSY);
	kill(kid, SIGKILL);
	waitpid(kid, NULL, 0);
	while (setxattr(full, "user.kvcachefs.demote", "cpu", 3, 0)) {
		check(errno == EBUSY); /* its descriptor is about to be closed */
		usleep(1000);
	}
	close(has[0]);
	close(has[1]);
}

static atomic_bool enough;

static void *leases_all_the_time(void *mount)
{
	const char *const path = "m/c/1";
	struct kvcachefs_lease *l;

	while (!enough) {
		check(!kvcachefs_lease_new(&l, mount, &path, 1));
		kvcachefs_lease_free(l);
	}
	return NULL;
}

/* Children of a process can use the library although other threads of the process are in it. */
static void forks(const char *mount)
{
	const char *const path = "m/c/2";
	struct kvcachefs_lease *l;
	pthread_t thread[2];
	int status;

	for (int i = 0; i < 2; i++)
		check(!pthread_create(&thread[i], NULL, leases_all_the_time,
				      (void *)(uintptr_t)mount));
	for (int i = 0; i < 300; i++) {
		pid_t kid = fork();

		if (!kid) {
			alarm(60);
			check(!kvcachefs_lease_new(&l, mount, &path, 1));
			kvcachefs_lease_free(l);
			_exit(0);
		}
		check(kid > 0 && waitpid(kid, &status, 0) == kid && !status);
	}
	enough = true;
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
}

enum { LAYERS = 3, BLOCKS = 10, BS = 4, NH = 2, HS = 8 };

static uint16_t a[LAYERS][2 * BLOCKS * BS * NH * HS], b[LAYERS][2 * BLOCKS * BS * NH * HS];
static void *pa[LAYERS] = { a[0], a[1], a[2] }, *pb[LAYERS] = { b[0], b[1], b[2] };

static struct kvcachefs_paged cache_at(void **pointers)
{
	return (struct kvcachefs_paged){
		.format = KVCACHEFS_NL_X_NB_TWO_NH_BS_HS,
		.layers = LAYERS,
		.heads = NH,
		.head_size = HS,
		.block_size = BS,
		.blocks = BLOCKS,
		.elem = 2,
		.pointers = pointers,
		.device = -1,
	};
}

/* Single layers and the whole chunk give the same cache. */
static void there_and_back(const char *mount, struct kvcachefs_item *items)
{
	struct kvcachefs_paged p = cache_at(pa);
	char full[4200];
	struct kvcachefs_transfer *t;
	struct stat st;

	for (int l = 0; l < LAYERS; l++)
		for (size_t i = 0; i < sizeof a[0] / 2; i++)
			a[l][i] = (uint16_t)(i * 7 + (size_t)l * 1000);
	check(!kvcachefs_store(&t, mount, &p, items, LAYERS + 1, NULL) &&
	      !kvcachefs_transfer_poll(t) && !kvcachefs_transfer_free(t));
	snprintf(full, sizeof full, "%s/model/whole", mount);
	check(!stat(full, &st) &&
	      (uint64_t)st.st_size == kvcachefs_file_size(&p, LAYERS, &items[LAYERS].tokens));
	for (int whole = 0; whole < 2; whole++) {
		memset(b, 0, sizeof b);
		p.pointers = pb;
		check(!kvcachefs_load(&t, mount, &p, whole ? items + LAYERS : items,
				      whole ? 1 : LAYERS, NULL) &&
		      !kvcachefs_transfer_wait(t) && !kvcachefs_transfer_free(t));
		for (int l = 0; l < LAYERS; l++)
			for (int64_t blk = 0; blk < BLOCKS; blk++) {
				bool in = blk == 7 || blk == 2 || blk == 5;
				size_t n = 2 * NH * BS * HS;

				for (size_t i = 0; i < n; i++)
					check(b[l][(size_t)blk * n + i] ==
					      (in ? a[l][(size_t)blk * n + i] : 0));
			}
	}
}

/* Items that do not fit are refused by name, and nothing is written to cache b. */
static void refused(const char *mount, struct kvcachefs_item *items)
{
	struct kvcachefs_paged p = cache_at(pb), other = p;
	struct kvcachefs_transfer *t;

	memset(b, 0xee, sizeof b);
	other.heads = 1;
	other.head_size = NH * HS;
	check(kvcachefs_load(&t, mount, &other, items, LAYERS, NULL) == 0 &&
	      kvcachefs_transfer_wait(t) == -EPROTOTYPE && items[1].err == -EPROTOTYPE);
	kvcachefs_transfer_free(t);
	items[1].tokens.n = 2;
	check(!kvcachefs_load(&t, mount, &p, items + 1, 1, NULL) &&
	      kvcachefs_transfer_free(t) == -EPROTOTYPE);
	items[1].tokens.n = 3;
	/* a file without a layout that is too short */
	write_file(mount, "model/short", 10, 1);
	items[0].path = "model/short";
	check(!kvcachefs_load(&t, mount, &p, items, 1, NULL) &&
	      kvcachefs_transfer_free(t) == -EPROTOTYPE);
	items[0].path = "model/none";
	check(!kvcachefs_load(&t, mount, &p, items, 1, NULL) &&
	      kvcachefs_transfer_free(t) == -ENOENT && items[0].err == -ENOENT);
	for (size_t i = 0; i < sizeof b; i++)
		check(((uint8_t *)b)[i] == 0xee);
}

/* A slot is out of range: that item fails by name and leaves no file, and the others are stored. */
static void one_bad(const char *mount)
{
	struct kvcachefs_paged p = cache_at(pa);
	int64_t outside[3] = { 7, BLOCKS, 5 }, fine[3] = { 1, 2, 3 };
	struct kvcachefs_item items[2] = {
		{ .path = "model/bad", .nlayers = 1, .tokens = { .block_ids = outside, .n = 3 } },
		{ .path = "model/good", .nlayers = 1, .tokens = { .block_ids = fine, .n = 3 } },
	};
	char full[4200];
	struct kvcachefs_transfer *t;
	struct stat st;

	check(!kvcachefs_store(&t, mount, &p, items, 2, NULL) &&
	      kvcachefs_transfer_free(t) == -ERANGE && items[0].err == -ERANGE && !items[1].err);
	snprintf(full, sizeof full, "%s/model/bad", mount);
	check(stat(full, &st) && errno == ENOENT);
	snprintf(full, sizeof full, "%s/model/good", mount);
	check(!stat(full, &st));
}

/*
 * Missing tokens of a store are zero in the file, never old memory; keys are rotated; a missing
 * device is refused.
 */
static void moved(const char *mount)
{
	int64_t holes[4] = { 0, -1, 1, -1 };
	float kf[2 * BLOCKS * BS * NH * HS], vf[2 * BLOCKS * BS * NH * HS];
	void *pk[1] = { kf }, *pv[1] = { vf };
	struct kvcachefs_paged f = {
		.format = KVCACHEFS_NL_X_TWO_NB_BS_NH_HS,
		.layers = 1,
		.heads = NH,
		.head_size = HS,
		.block_size = BS,
		.blocks = BLOCKS,
		.elem = 4,
		.pointers = pk,
		.device = -1,
	};
	struct kvcachefs_rope r = { .theta = 10000, .delta = 100, .type = KVCACHEFS_F32 };
	struct kvcachefs_item item = {
		.path = "model/rope",
		.nlayers = 1,
		.tokens = { .slots = holes, .n = 4 },
	};
	struct kvcachefs_transfer *t;

	for (size_t i = 0; i < sizeof kf / 4; i++)
		kf[i] = (float)i / 100;
	memset(vf, 0, sizeof vf);
	check(!kvcachefs_store(&t, mount, &f, &item, 1, NULL) && !kvcachefs_transfer_free(t));
	item.rope = &r;
	f.pointers = pv;
	check(!kvcachefs_load(&t, mount, &f, &item, 1, NULL) && !kvcachefs_transfer_free(t));
	size_t half = BLOCKS * BS * NH * HS;

	check(!memcmp(vf + half, kf + half, NH * HS * sizeof(float))); /* values are unchanged */
	check(memcmp(vf, kf, NH * HS * sizeof(float)));
	check(!kvcachefs_rope_shift(&r, kf, 1, NH, HS) && !memcmp(vf, kf, NH * HS * sizeof(float)));
	r.type = KVCACHEFS_BF16;
	check(!kvcachefs_load(&t, mount, &f, &item, 1, NULL) &&
	      kvcachefs_transfer_free(t) == -EINVAL);
	/* a missing device */
	f.device = 99;
	check(kvcachefs_store(&t, mount, &f, &item, 1, NULL) == -ENODEV && *kvcachefs_error());
}

static void transfers(const char *mount)
{
	int64_t slots[12], blocks[3] = { 7, 2, 5 };
	struct kvcachefs_item items[LAYERS + 1];
	char paths[LAYERS][64];

	for (int i = 0; i < 12; i++)
		slots[i] = (int64_t)blocks[i / 4] * BS + i % 4;
	for (int l = 0; l < LAYERS; l++) {
		snprintf(paths[l], sizeof paths[l], "model/chunk/layer_%d", l);
		items[l] = (struct kvcachefs_item){ .path = paths[l],
						    .layer = (uint32_t)l,
						    .nlayers = 1,
						    .tokens = { .block_ids = blocks, .n = 3 } };
	}
	items[LAYERS] = (struct kvcachefs_item){ .path = "model/whole",
						 .nlayers = LAYERS,
						 .tokens = { .slots = slots, .n = 12 } };
	there_and_back(mount, items);
	refused(mount, items);
	one_bad(mount);
	moved(mount);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "hash")) {
		hash(strtoull(argv[2], NULL, 10));
	} else if (argc == 4 && !strcmp(argv[1], "lease")) {
		lease_time(argv[2], argv[3]);
	} else if (argc == 2) {
		leases(argv[1]);
		transfers(argv[1]);
		dies(argv[1]);
		forks(argv[1]);
		printf("fine\n");
	} else {
		return 2;
	}
	return 0;
}
