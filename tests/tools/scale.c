/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scale make STORE N: fills the catalog of an unmounted store with N objects through the engine's
 * own code: model/CHUNK/LAYER with 8 layers per chunk, and N / 10 of them (at most a million) in
 * one folder, "flat". Each object has an extent on the disk tier, and every 16th has its frame
 * there too. The others would read as damaged, but a hundred gigabytes of frames would prove
 * nothing more about a catalog.
 *
 * scale size STORE BYTES: gives the disk tier that size, with holes.
 *
 * scale time CALL MOUNT COUNT SEED: prints the microseconds of calls, "p50 p99 count": lookup (stat
 * of names not seen before), open (of resident files), create.
 */
#include "registry.h"

#include "catalog.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define LAYERS 8
#define SIZE 4000

static struct kvc_catalog *cat;
static struct kvc_tier *disk;
static struct kvc_store store;
static uint64_t next_ino = 2, now_ns;

static void die(const char *what, int err)
{
	fprintf(stderr, "scale: %s: %s\n", what, strerror(-err));
	exit(1);
}

struct body {
	struct kvc_frame f;
	uint8_t data[SIZE];
};

static int body_read(void *arg, void *buf, size_t len, uint64_t off)
{
	memcpy(buf, ((struct body *)arg)->data + off, len);
	return 0;
}

static int body_head(void *arg, uint8_t page[KVC_FRAME_HEADER])
{
	struct kvc_frame *f = &((struct body *)arg)->f;
	int err = kvc_frame_prove(f, store.secret);

	kvc_frame_encode(f, page);
	return err;
}

static uint64_t node(uint64_t parent, const char *name, uint32_t mode, uint64_t chunk)
{
	struct kvc_row r = {
		.ino = next_ino++,
		.mode = mode,
		.nlink = S_ISDIR(mode) ? 2 : 1,
		.size = S_ISDIR(mode) ? 0 : SIZE,
		.blocks = S_ISDIR(mode) ? 0 : 8,
		.atime_ns = now_ns,
		.mtime_ns = now_ns,
		.ctime_ns = now_ns,
		.btime_ns = now_ns,
		.parent = parent,
	};
	int err;

	r.chunk = S_ISDIR(mode) ? 0 : chunk ? chunk : r.ino;
	if ((err = kvc_row_put(cat, &r, NULL)
			   ?: kvc_name_put(cat, parent, name, r.ino, mode & S_IFMT)))
		die("node", err);
	return r.ino;
}

static void chunk_row(uint64_t id)
{
	struct kvc_chunk_row c = {
		.id = id,
		.created_ns = now_ns + id,
		.last_ns = now_ns + id,
		.rank = (int64_t)(now_ns + id),
	};
	int err = kvc_chunk_put(cat, &c);

	if (err)
		die("chunk", err);
}

static void object(uint64_t ino, const char *path)
{
	static struct body b;
	struct kvc_put p = {
		.ino = ino,
		.gen = 1,
		.stored_len = SIZE,
		.arg = &b,
		.read = body_read,
		.head = body_head,
	};
	struct kvc_object_row o = { .gen = 1, .size = SIZE, .lower = true };
	struct kvc_place place;
	struct kvc_where w = { .len = 8192, .at = (ino - 2) * 8192 };
	int err = 0;

	memcpy(b.f.store, store.uuid, 16);
	b.f.ino = ino;
	b.f.gen = 1;
	b.f.mode = S_IFREG | 0644;
	b.f.size = b.f.raw_len = b.f.stored_len = SIZE;
	memset(b.data, (int)ino, SIZE);
	b.f.raw_sum = b.f.stored_sum = o.sum = kvc_sum_of(b.data, SIZE);
	o.has_sum = true;
	snprintf(b.f.path, sizeof b.f.path, "%s", path);
	if (ino % 16 == 0)
		err = disk->ops->put(disk, &p, &w);
	else
		err = disk->ops->claim(disk, &w);
	if (err == -EEXIST) { /* a frame was stored there: use another place */
		static uint64_t far = 1ull << 37;

		w.at = far += 8192;
		err = disk->ops->claim(disk, &w);
	}
	place = kvc_place_of(1, &w, &b.f);
	if ((err = err ?: kvc_object_put(cat, ino, &o) ?: kvc_place_put(cat, ino, 0, &place)))
		die("object", err);
}

static int make(const char *path, uint64_t n)
{
	uint64_t flat = n / 10 > 1000000 ? 1000000 : n / 10, model, folder;
	char error[512], name[64], full[128], file[1280];
	int err;

	if ((err = kvc_store_open(&store, path, error)) ||
	    (err = kvct_devices_open(&store, &disk, error)) ||
	    (err = kvc_catalog_open(&cat, kvc_super_path(&store, KVC_STORE_CATALOG, file),
				    error))) {
		fprintf(stderr, "scale: %s\n", error);
		return 1;
	}
	kvc_catalog_lock(cat);
	now_ns = kvc_now_ns();
	model = node(1, "model", S_IFDIR | 0755, 0);
	folder = node(1, "flat", S_IFDIR | 0755, 0);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t ino;

		if (i < flat) {
			snprintf(name, sizeof name, "object-%llu", (unsigned long long)i);
			snprintf(full, sizeof full, "flat/%s", name);
			ino = node(folder, name, S_IFREG | 0644, 0);
			chunk_row(ino);
		} else {
			static uint64_t chunk;
			uint64_t c = (i - flat) / LAYERS, l = (i - flat) % LAYERS;

			if (!l) {
				snprintf(name, sizeof name, "%016llx",
					 (unsigned long long)(c * 0x9e3779b97f4a7c15ull));
				chunk = node(model, name, S_IFDIR | 0755, 0);
				chunk_row(chunk);
			}
			snprintf(full, sizeof full, "model/%016llx/layer_%llu",
				 (unsigned long long)(c * 0x9e3779b97f4a7c15ull),
				 (unsigned long long)l);
			ino = node(chunk, strrchr(full, '/') + 1, S_IFREG | 0644, chunk);
		}
		object(ino, full);
		if (i % 100000 == 99999) {
			if ((err = kvc_catalog_commit(cat)))
				die("commit", err);
			kvc_catalog_checkpoint(cat);
		}
	}
	struct kvc_row r;

	if (!kvc_row_get(cat, 1, &r)) {
		r.nlink += 2;
		kvc_row_put(cat, &r, NULL);
	}
	if (!kvc_row_get(cat, model, &r)) {
		r.nlink = 2 + (uint32_t)((n - flat + LAYERS - 1) / LAYERS);
		kvc_row_put(cat, &r, NULL);
	}
	kvc_meta_set(cat, "policy", "lru");
	kvc_meta_set(cat, "clean", "1");
	kvc_catalog_unlock(cat);
	err = kvc_catalog_close(cat);
	disk->ops->close(disk);
	kvc_store_close(&store);
	return err != 0;
}

/* Makes the store's data file, and its size in the superblock, `size` bytes long, with holes. */
static int resize(const char *path, uint64_t size)
{
	char error[512];

	if (kvc_store_open(&store, path, error)) {
		fprintf(stderr, "scale: %s\n", error);
		return 1;
	}
	store.dev[0].size = size;
	if (truncate(store.dev[0].path, (off_t)size) || kvc_super_create(&store))
		return 1;
	kvc_store_close(&store);
	return 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static int timed(const char *call, const char *mnt, int count, unsigned seed)
{
	double *t = calloc((size_t)count, sizeof *t);
	char path[512];
	struct stat st;
	int n = 0;

	for (int i = 0; i < count; i++) {
		uint64_t start;
		int fd = -1, ok;

		if (!strcmp(call, "create"))
			snprintf(path, sizeof path, "%s/model/new-%u-%d", mnt, seed, i);
		else
			snprintf(path, sizeof path, "%s/flat/object-%llu", mnt,
				 (unsigned long long)seed + (unsigned long long)i);
		/* loads an object: those with a frame have the numbers 12, 28, 44 and so on */
		if (!strcmp(call, "open") && i < 500) {
			snprintf(path, sizeof path, "%s/flat/object-%d", mnt, i * 16 + 12);
			fd = open(path, O_RDONLY);
			if (fd >= 0)
				close(fd);
			continue;
		}
		if (!strcmp(call, "open"))
			snprintf(path, sizeof path, "%s/flat/object-%d", mnt, i % 500 * 16 + 12);
		start = kvc_mono_ns();
		if (!strcmp(call, "lookup"))
			ok = !stat(path, &st);
		else
			ok = (fd = open(path,
					!strcmp(call, "open") ? O_RDONLY
							      : O_WRONLY | O_CREAT | O_EXCL,
					0644)) >= 0;
		if (fd >= 0)
			close(fd);
		if (ok)
			t[n++] = (double)(kvc_mono_ns() - start) / 1e3;
	}
	qsort(t, (size_t)n, sizeof *t, by_value);
	if (n)
		printf("%.1f %.1f %d\n", t[n / 2], t[n * 99 / 100], n);
	free(t);
	return !n;
}

/*
 * crowd MOUNT N SECONDS: N processes, each with 50 files of 16 KiB, mix stat (50 %) and load (45 %)
 * of their own files and of those of processes with lower numbers, and overwriting their own files
 * (5 %). Prints calls per second, and the p99.9 and the longest call in ms.
 */
#define LATENCIES 200000

struct kid {
	uint64_t calls;
	uint32_t n;
	float us[LATENCIES]; /* of the last LATENCIES calls */
};

static void crowd_kid(const char *mnt, int me, uint64_t start, uint64_t end, struct kid *k)
{
	static char buf[16384];
	unsigned seed = (unsigned)me + 1;
	char path[512];

	for (int i = 0; i < 50; i++) {
		snprintf(path, sizeof path, "%s/crowd/%d-%d", mnt, me, i);
		int fd = open(path, O_WRONLY | O_CREAT, 0644);

		if (fd < 0 || write(fd, buf, sizeof buf) != sizeof buf)
			die(path, -errno);
		close(fd);
	}
	while (kvc_mono_ns() < start)
		usleep(1000);
	for (uint64_t t = kvc_mono_ns(), then; t < end; t = then) {
		unsigned dice = rand_r(&seed) % 100;
		struct stat st;
		int fd;

		snprintf(path, sizeof path, "%s/crowd/%d-%d", mnt,
			 dice < 5 || !me ? me : (int)(rand_r(&seed) % (unsigned)(me + 1)),
			 (int)(rand_r(&seed) % 50));
		if (dice >= 50) {
			if (stat(path, &st))
				die(path, -errno);
		} else {
			fd = open(path, dice < 5 ? O_WRONLY : O_RDONLY);
			if (fd < 0 || (dice < 5 ? write(fd, buf, sizeof buf)
						: read(fd, buf, sizeof buf)) != sizeof buf)
				die(path, -errno);
			close(fd);
		}
		then = kvc_mono_ns();
		k->us[k->calls++ % LATENCIES] = (float)(then - t) / 1e3f;
	}
	k->n = (uint32_t)kvc_min(k->calls, LATENCIES);
}

static int by_float(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return x < y ? -1 : x > y;
}

static int crowd(const char *mnt, int n, int seconds)
{
	struct kid *k = mmap(NULL, (size_t)n * sizeof *k, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t start = kvc_mono_ns() + 1500000000ull, calls = 0;
	char path[512];
	float worst = 0, p999 = 0;

	snprintf(path, sizeof path, "%s/crowd", mnt);
	mkdir(path, 0755);
	for (int i = 0; i < n; i++)
		if (!fork()) {
			crowd_kid(mnt, i, start, start + (uint64_t)seconds * 1000000000ull, &k[i]);
			_exit(0);
		}
	while (wait(NULL) > 0)
		;
	for (int i = 0; i < n; i++) {
		calls += k[i].calls;
		qsort(k[i].us, k[i].n, sizeof *k[i].us, by_float);
		if (k[i].n) {
			p999 = p999 > k[i].us[k[i].n * 999ull / 1000]
				       ? p999
				       : k[i].us[k[i].n * 999ull / 1000];
			worst = worst > k[i].us[k[i].n - 1] ? worst : k[i].us[k[i].n - 1];
		}
	}
	printf("%.0f %.2f %.2f\n", (double)calls / seconds, p999 / 1e3, worst / 1e3);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "crowd"))
		return crowd(argv[2], atoi(argv[3]), atoi(argv[4]));
	if (argc == 4 && !strcmp(argv[1], "make"))
		return make(argv[2], strtoull(argv[3], NULL, 10));
	if (argc == 4 && !strcmp(argv[1], "size"))
		return resize(argv[2], strtoull(argv[3], NULL, 10));
	if (argc == 6 && !strcmp(argv[1], "time"))
		return timed(argv[2], argv[3], atoi(argv[4]), (unsigned)atoi(argv[5]));
	return 2;
}
