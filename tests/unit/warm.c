/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warm transfers of libkvcachefs do not allocate, in host memory and on a plain folder that stands
 * for a mount; the test makes the answer to the lease. Only allocations of the calling thread are
 * counted, not those of the library's own threads.
 */
#include "maps.h"
#include "ready.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static _Thread_local unsigned long allocations;

/* ---- counting ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int __sanitizer_install_malloc_and_free_hooks(void (*made)(const volatile void *, size_t),
					      void (*freed)(const volatile void *));

static void made(const volatile void *p, size_t len)
{
	(void)p;
	(void)len;
	allocations++;
}

static void freed(const volatile void *p)
{
	(void)p;
}

static int counting(void **state)
{
	(void)state;
	assert_true(__sanitizer_install_malloc_and_free_hooks(made, freed));
	return 0;
}
#else
/* glibc's functions under their other names; these replace them, also inside libc. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
void *__libc_malloc(size_t len);
void *__libc_calloc(size_t n, size_t len);
void *__libc_realloc(void *p, size_t len);
/* NOLINTEND(bugprone-reserved-identifier) */

void *malloc(size_t len)
{
	allocations++;
	return __libc_malloc(len);
}

void *calloc(size_t n, size_t len)
{
	allocations++;
	return __libc_calloc(n, len);
}

void *realloc(void *p, size_t len)
{
	allocations++;
	return __libc_realloc(p, len);
}

static int counting(void **state)
{
	(void)state;
	return 0;
}
#endif

/* ---- a mount ---- */

enum { FILES = 8, BS = 16, NH = 2, HS = 64, LAYER = 2 * FILES * BS * NH * HS };

static char dir[64], paths[FILES][64];
static uint16_t mem[LAYER], back[LAYER];
static void *pointer = mem;
static int64_t ids[FILES];
static struct kvcachefs_item items[FILES];
static struct kvcachefs_paged cache = {
	.format = KVCACHEFS_NL_X_TWO_NB_BS_NH_HS,
	.layers = 1,
	.heads = NH,
	.head_size = HS,
	.block_size = BS,
	.blocks = FILES,
	.elem = 2,
	.pointers = &pointer,
	.device = -1,
};

/* The linker reserves these names for users of --wrap. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
ssize_t __wrap_pread64(int fd, void *buf, size_t capacity, off_t at);
/* The answer to a lease on the items. */
ssize_t __wrap_pread64(int fd, void *buf, size_t capacity, off_t at)
{
	size_t len = 0;

	(void)fd;
	for (int i = 0; i < FILES && !at; i++) {
		char full[200];
		struct stat st;

		snprintf(full, sizeof full, "%s/%s", dir, paths[i]);
		assert_int_equal(stat(full, &st), 0);
		len += (size_t)snprintf((char *)buf + len, capacity - len, "%s %lu %lu resident\n",
					paths[i], (unsigned long)st.st_ino,
					(unsigned long)st.st_size);
	}
	return (ssize_t)len;
}

static bool unlinkable;
int __real_linkat(int from, const char *path, int to, const char *name, int flags);
int __wrap_linkat(int from, const char *path, int to, const char *name, int flags);
int __wrap_linkat(int from, const char *path, int to, const char *name, int flags)
{
	errno = EXDEV;
	return unlinkable ? -1 : __real_linkat(from, path, to, name, flags);
}

static _Atomic int not_open; /* closes of descriptors that were not open */
int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
	int err = __real_close(fd);

	if (err && errno == EBADF)
		not_open++;
	return err;
}

static _Thread_local bool ours; /* a thread of the test itself */
static _Atomic bool slow;       /* other threads unmap slowly */
int __real_munmap(void *p, size_t len);
int __wrap_munmap(void *p, size_t len);
int __wrap_munmap(void *p, size_t len)
{
	if (slow && !ours)
		usleep(20000);
	return __real_munmap(p, len);
}

static int refusal;         /* error of a full pool, or 0 */
static bool for_good;       /* the pool is full of data other than ready files */
static _Atomic int refused; /* number of refusals */

/* Does the process map pages of a file without a name? */
static bool holds(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[4400];
	bool found = false;

	assert_non_null(f);
	while (fgets(line, sizeof line, f))
		found |= strstr(line, dir) && strstr(line, "/#");
	fclose(f);
	return found;
}

int __real_fallocate64(int fd, int mode, off_t at, off_t len);
int __wrap_fallocate64(int fd, int mode, off_t at, off_t len);
int __wrap_fallocate64(int fd, int mode, off_t at, off_t len)
{
	if (!refusal || (!for_good && !holds()))
		return __real_fallocate64(fd, mode, at, len);
	refused++;
	errno = refusal;
	return -1;
}
/* NOLINTEND(bugprone-reserved-identifier) */

static void name(int round)
{
	for (int i = 0; i < FILES; i++) {
		ids[i] = FILES - 1 - i;
		snprintf(paths[i], sizeof paths[i], "m/c%d/%d", round, i);
		items[i] = (struct kvcachefs_item){ .path = paths[i],
						    .nlayers = 1,
						    .tokens = { .block_ids = &ids[i], .n = 1 } };
	}
}

static void move(bool store)
{
	struct kvcachefs_transfer *t;

	assert_int_equal(
		(store ? kvcachefs_store : kvcachefs_load)(&t, dir, &cache, items, FILES, NULL), 0);
	assert_int_equal(kvcachefs_transfer_poll(t), 0);
	assert_int_equal(kvcachefs_transfer_free(t), 0);
}

static void until_ready(unsigned n)
{
	while (kvcachefs_ready_count() != n)
		usleep(1000);
}

/* ---- tests ---- */

static void stores(void **state)
{
	const struct kvcachefs_warm how = { .transfers = 1, .files = true, .keep_s = 1000 };
	unsigned long before;

	(void)state;
	name(0);
	before = allocations;
	assert_int_equal(kvcachefs_gpu_warm(dir, &cache, items, FILES, &how), 0);
	assert_true(allocations > before);
	for (int r = 0; r < 3; r++) {
		until_ready(FILES);
		name(r);
		before = allocations;
		move(true);
		assert_int_equal(allocations, before);
	}
}

static void loads(void **state)
{
	unsigned long before;

	(void)state;
	name(1);
	before = allocations;
	pointer = back;
	move(false); /* takes leases and maps files */
	assert_true(allocations > before);
	for (int r = 0; r < 3; r++) {
		memset(back, 0, sizeof back);
		before = allocations;
		move(false);
		assert_int_equal(allocations, before);
		assert_memory_equal(back, mem, sizeof mem);
	}
	pointer = mem;
}

/* A load that rotates keys does not allocate either. */
static void turns(void **state)
{
	static uint16_t want[LAYER];
	const struct kvcachefs_rope rope = { .theta = 10000, .delta = 7, .type = KVCACHEFS_BF16 };
	unsigned long before;

	(void)state;
	memcpy(want, mem, sizeof mem); /* the keys are its first half */
	assert_int_equal(kvcachefs_rope_shift(&rope, want, (size_t)FILES * BS, NH, HS), 0);
	assert_memory_not_equal(want, mem, sizeof mem / 2);
	name(1);
	for (int i = 0; i < FILES; i++)
		items[i].rope = &rope;
	pointer = back;
	for (int r = 0; r < 3; r++) {
		memset(back, 0, sizeof back);
		before = allocations;
		move(false);
		assert_true(!r || allocations == before);
		assert_memory_equal(back, want, sizeof want);
	}
	pointer = mem;
}

/* Long rows are rotated too if the items have a cache and the call has none. */
static void turns_own(void **state)
{
	static uint16_t want[LAYER];
	const struct kvcachefs_rope rope = { .theta = 10000, .delta = 7, .type = KVCACHEFS_BF16 };
	struct kvcachefs_paged own = cache;
	struct kvcachefs_transfer *t;

	(void)state;
	own.block_size = 1;
	own.head_size = BS * HS;
	memcpy(want, mem, sizeof mem);
	assert_int_equal(kvcachefs_rope_shift(&rope, want, FILES, NH, own.head_size), 0);
	for (int load = 0; load < 2; load++) {
		name(17);
		for (int i = 0; i < FILES; i++) {
			items[i].cache = &own;
			items[i].rope = load ? &rope : NULL;
		}
		pointer = load ? back : mem;
		assert_int_equal((load ? kvcachefs_load : kvcachefs_store)(&t, dir, NULL, items,
									   FILES, NULL),
				 0);
		assert_int_equal(kvcachefs_transfer_free(t), 0);
	}
	pointer = mem;
	assert_memory_equal(back, want, sizeof want);
}

/* A larger transfer allocates once. */
static void grows(void **state)
{
	static char path[4096];
	const char *const was = items[0].path;
	unsigned long before;

	(void)state;
	name(5);
	memset(path, '/', sizeof path - 1);
	memcpy(path, "m/", 2);
	memcpy(path + sizeof path - 800, "x", 1);
	path[sizeof path - 799] = 0;
	for (int r = 0; r < 2; r++) {
		items[0].path = path;
		until_ready(FILES);
		before = allocations;
		move(true);
		assert_true(r ? allocations == before : allocations > before);
	}
	items[0].path = was;
}

/* A ready file that cannot be linked is written again under its name. */
static void anew(void **state)
{
	(void)state;
	until_ready(FILES);
	unlinkable = true;
	name(8);
	move(true);
	unlinkable = false;
	pointer = back;
	memset(back, 0, sizeof back);
	move(false);
	pointer = mem;
	assert_memory_equal(back, mem, sizeof mem);
}

/*
 * If it cannot be written either, because its folder cannot be made, the ready file is closed once:
 * a second close could hit the descriptor of another file.
 */
static void nowhere(void **state)
{
	struct kvcachefs_transfer *t;
	char path[100];
	FILE *f;

	(void)state;
	name(14);
	snprintf(path, sizeof path, "%s/m/file", dir);
	f = fopen(path, "we");
	assert_true(f && !fclose(f));
	for (int i = 0; i < FILES; i++)
		snprintf(paths[i], sizeof paths[i], "m/file/x/%d", i);
	until_ready(FILES);
	unlinkable = true;
	not_open = 0;
	assert_int_equal(kvcachefs_store(&t, dir, &cache, items, FILES, NULL), 0);
	assert_int_equal(kvcachefs_transfer_free(t), -ENOTDIR);
	unlinkable = false;
	assert_int_equal(not_open, 0);
}

/* Parts in host memory take no ready files, so none is made for them. */
static void parts(void **state)
{
	const struct kvcachefs_warm how = { .transfers = 2, .files = true, .keep_s = 1000 };
	struct kvcachefs_part part = { mem, 5000, 0 };
	struct kvcachefs_item item = { .path = "parts/x", .parts = &part, .nparts = 1 };

	(void)state;
	until_ready(FILES);
	assert_int_equal(kvcachefs_gpu_warm(dir, NULL, &item, 1, &how), 0);
	assert_int_equal(kvcachefs_ready_count(), FILES);
}

/* The number of files in the folder. */
static unsigned files_in(const char *name)
{
	char path[100];
	unsigned n = 0;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	DIR *d = opendir(path);

	for (struct dirent *e; d && (e = readdir(d));)
		n += *e->d_name != '.';
	if (d)
		closedir(d);
	return n;
}

/* Stores three files of n blocks. */
static int move_longer(int round, size_t n)
{
	static int64_t blocks[4] = { 1, 2, 3, 4 };
	struct kvcachefs_transfer *t;
	int err;

	name(round);
	for (int i = 0; i < 3; i++)
		items[i].tokens = (struct kvcachefs_tokens){ .block_ids = blocks, .n = n };
	err = kvcachefs_store(&t, dir, &cache, items, 3, NULL);
	return err ?: kvcachefs_transfer_free(t);
}

/*
 * Files that the thread releases by itself are unmapped when the call that sets the bound returns.
 */
static void gone(void **state)
{
	(void)state;
	until_ready(FILES);
	assert_int_equal(move_longer(15, 4), 0);
	assert_int_equal(move_longer(16, 4), 0);
	until_ready(FILES + 3);
	ours = slow = true;
	kvcachefs_ready_idle(1);
	until_ready(FILES);
	kvcachefs_map_cache(0);
	assert_false(holds());
	slow = false;
	kvcachefs_ready_idle(1000000);
}

/*
 * A store that a full pool or quota refuses releases all ready files, with their pages, and tries
 * again once. If no file is ready it fails, and leaves nothing.
 */
static void refuses(void **state)
{
	const struct kvcachefs_warm how = { .transfers = 1, .files = true, .keep_s = 1000 };
	int err;

	(void)state;
	for (int r = 0; r < 2; r++) {   /* each with a length of its own */
		kvcachefs_map_cache(0); /* releases loaded files too */
		assert_false(holds());
		kvcachefs_map_cache(64 << 20);
		name(9 + r);
		assert_int_equal(kvcachefs_gpu_warm(dir, &cache, items, FILES, &how), 0);
		assert_true(kvcachefs_ready_count() >= FILES && holds());
		refusal = r ? EDQUOT : ENOSPC;
		refused = 0;
		assert_int_equal(move_longer(9 + r, 2 + (size_t)r), 0);
		assert_int_equal(refused, 1);
		assert_int_equal(kvcachefs_ready_count(), 0);
		assert_int_equal(files_in(r ? "m/c10" : "m/c9"), 3);

		for_good = true;
		assert_int_equal(move_longer(11 + r, 2 + (size_t)r), -refusal);
		assert_non_null(strstr(kvcachefs_error(), "cannot allocate"));
		/* one per file, since no ready file was left to release */
		assert_int_equal(refused, 4);
		assert_int_equal(files_in(r ? "m/c12" : "m/c11"), 0);
		/*
		 * the thread makes no ready files either, until space is free and it is asked again
		 */
		name(9 + r);
		err = kvcachefs_gpu_warm(dir, &cache, items, FILES, &how);
		/* the refusal for files of this length, or -ENOSPC for those of the other round */
		assert_true(err == -refusal || err == -ENOSPC);
		assert_int_equal(kvcachefs_ready_count(), 0);
		for_good = false;
		refusal = 0;
	}
}

/* Without ready files a store works too, and makes its own files. */
static void without(void **state)
{
	(void)state;
	kvcachefs_map_cache(0);
	assert_int_equal(kvcachefs_ready_count(), 0);
	name(6);
	move(true);
	name(7);
	move(true);
	assert_int_equal(kvcachefs_ready_count(), 0);
	pointer = back;
	memset(back, 0, sizeof back);
	move(false);
	pointer = mem;
	assert_memory_equal(back, mem, sizeof mem);
}

static int clear(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	return remove(path);
}

static int begin(void **state)
{
	char path[100];
	int fd;

	snprintf(dir, sizeof dir, "/tmp/warm-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof path, "%s/.kvcachefs", dir);
	mkdir(path, 0777);
	snprintf(path, sizeof path, "%s/.kvcachefs/lease", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0 || close(fd))
		return -1;
	for (int i = 0; i < LAYER; i++)
		mem[i] = (uint16_t)(i * 3 + i / 100);
	kvcachefs_ready_idle(1000000);
	kvcachefs_map_cache(64 << 20);
	return counting(state);
}

static int end(void **state)
{
	(void)state;
	kvcachefs_map_cache(0);
	return nftw(dir, clear, 16, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stores),    cmocka_unit_test(loads),   cmocka_unit_test(turns),
		cmocka_unit_test(turns_own), cmocka_unit_test(grows),   cmocka_unit_test(anew),
		cmocka_unit_test(nowhere),   cmocka_unit_test(parts),   cmocka_unit_test(gone),
		cmocka_unit_test(refuses),   cmocka_unit_test(without),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
