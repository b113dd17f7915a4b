/* SPDX-License-Identifier: Apache-2.0 */
/* Items made of parts in host memory, without a mount: they are stored into a plain folder. */
#include "kvcachefs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];
static const int64_t ids[2] = { 5, 2 };
static uint8_t bytes[8][200 << 10];

/* Counts the files of the folder. */
static unsigned count(const char *name)
{
	char path[512];
	unsigned n = 0;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	DIR *d = opendir(path);

	for (struct dirent *e; d && (e = readdir(d));)
		n += *e->d_name != '.';
	if (d)
		closedir(d);
	return n;
}

static struct kvcachefs_completion take_one(struct kvcachefs_queue *q)
{
	struct pollfd p = { .fd = kvcachefs_queue_fd(q), .events = POLLIN };
	struct kvcachefs_completion c;

	assert_int_equal(poll(&p, 1, 60000), 1);
	assert_int_equal(kvcachefs_take(q, &c, 1), 1);
	return c;
}

static struct kvcachefs_queue *queue(unsigned threads)
{
	struct kvcachefs_queue *q;

	assert_int_equal(kvcachefs_queue_new(&q, dir, threads), 0);
	return q;
}

static bool has(const char *path, const void *want, size_t len)
{
	static uint8_t have[1000];
	char full[512];
	ssize_t n;

	snprintf(full, sizeof full, "%s/%s", dir, path);
	int fd = open(full, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	n = read(fd, have, sizeof have);
	close(fd);
	return n == (ssize_t)len && !memcmp(have, want, len);
}

/* The tables of parts are copied, like the other arguments. Each item has its own error. */
static void parts(void **state)
{
	struct kvcachefs_queue *q = queue(1);
	struct kvcachefs_part good[3] = { { bytes[0] + 50, 300, 100 },
					  { bytes[1], 100, 0 },
					  { bytes[2], 10, 500 } },
			      none = { bytes[0], 0, 0 }, far = { bytes[0], 2, UINT64_MAX },
			      behind = { bytes[0], 10, 91 },
			      twice[2] = { { bytes[0], 10, 5 }, { bytes[1], 6, 0 } };
	struct kvcachefs_item v[6] = {
		{ .path = "parts/good", .parts = good, .nparts = 3, .size = 600 },
		{ .path = "parts/none", .parts = &none, .nparts = 1 },
		{ .path = "parts/far", .parts = &far, .nparts = 1 },
		{ .path = "parts/behind", .parts = &behind, .nparts = 1, .size = 100 },
		{ .path = "parts/twice", .parts = twice, .nparts = 2 },
		{ .path = "parts/both", .parts = good, .nparts = 3, .tokens = { .slots = ids } },
	};
	static const int errors[6] = { 0, -EINVAL, -ERANGE, -ERANGE, -EINVAL, -EINVAL };
	struct kvcachefs_completion c;
	struct kvcachefs_item waits = { .path = "pipe", .parts = &behind, .nparts = 1 };
	uint8_t want[600] = { 0 };
	char path[512];
	uint64_t id;

	(void)state;
	memcpy(want + 100, bytes[0] + 50, 300);
	memcpy(want, bytes[1], 100);
	memcpy(want + 500, bytes[2], 10);
	/* the only thread opens a pipe, which waits for a writer */
	snprintf(path, sizeof path, "%s/pipe", dir);
	assert_int_equal(mkfifo(path, 0666), 0);
	assert_int_equal(kvcachefs_submit_load(q, NULL, &waits, 1, NULL, 1, &id), 0);
	assert_int_equal(kvcachefs_submit_store(q, NULL, v, 6, NULL, 2, &id), 0);
	memset(good, 0xff, sizeof good);
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	c = take_one(q);
	close(fd);
	assert_true(c.tag == 1 && c.err == -EISDIR && waits.err == -EISDIR);
	c = take_one(q);
	assert_true(c.tag == 2 && c.id == id && c.err == -EINVAL && c.failed == 5 && !c.skipped &&
		    c.bytes == 410 && c.ns && !c.lease && strstr(c.error, "parts/none"));
	for (int i = 0; i < 6; i++)
		assert_int_equal(v[i].err, errors[i]);
	assert_true(has("parts/good", want, sizeof want));
	assert_int_equal(count("parts"), 1);
	kvcachefs_queue_free(q);
}

/* A call that is refused at once leaves nothing in the queue. */
static void too_many(void **state)
{
	struct kvcachefs_queue *q = queue(1);
	struct kvcachefs_part *many = calloc(KVCACHEFS_PARTS_MOST, sizeof *many);
	struct kvcachefs_item v[2] = {
		{ .path = "many/a", .parts = many, .nparts = KVCACHEFS_PARTS_MOST },
		{ .path = "many/b", .parts = many, .nparts = 1 },
	};
	struct kvcachefs_transfer *t;
	struct kvcachefs_completion c;
	uint64_t id;

	(void)state;
	assert_non_null(many);
	assert_int_equal(kvcachefs_submit_store(q, NULL, v, 2, NULL, 0, &id), -E2BIG);
	assert_int_equal(kvcachefs_store(&t, dir, NULL, v, 2, NULL), -E2BIG);
	assert_true(v[0].err == -E2BIG && v[1].err == -E2BIG);
	v[0].nparts = SIZE_MAX;
	assert_int_equal(kvcachefs_submit_load(q, NULL, v, 2, NULL, 0, &id), -E2BIG);
	v[1].parts = NULL;
	v[1].tokens = (struct kvcachefs_tokens){ .block_ids = ids, .n = 2 };
	assert_int_equal(kvcachefs_submit_store(q, NULL, v + 1, 1, NULL, 0, &id), -EINVAL);
	assert_int_equal(kvcachefs_take(q, &c, 1), 0);
	kvcachefs_queue_free(q);
	free(many);
}

/* A store may have more files than the process has descriptors. */
static void many_files(void **state)
{
	enum { FILES = 300 };
	static char paths[FILES][32];
	static struct kvcachefs_item v[FILES];
	struct kvcachefs_part part = { bytes[0], 10, 0 };
	struct kvcachefs_transfer *t;
	struct rlimit was, low;

	(void)state;
	for (int i = 0; i < FILES; i++) {
		snprintf(paths[i], sizeof paths[i], "files/%d", i);
		v[i] = (struct kvcachefs_item){ .path = paths[i], .parts = &part, .nparts = 1 };
	}
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
	low = (struct rlimit){ 150, was.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	assert_int_equal(kvcachefs_store(&t, dir, NULL, v, FILES, NULL), 0);
	assert_int_equal(kvcachefs_transfer_free(t), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
	assert_int_equal(count("files"), FILES);
	for (int i = 0; i < FILES; i++)
		assert_true(has(paths[i], bytes[0], 10));
}

/* The error of an item has its text in the caller's thread, whichever thread found it. */
static void texts(void **state)
{
	enum { FILES = 8 };
	char paths[FILES][32], path[512];
	struct kvcachefs_part v[FILES];
	struct kvcachefs_item items[FILES];
	struct kvcachefs_transfer *t;

	(void)state;
	snprintf(path, sizeof path, "%s/file", dir);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);

	assert_true(fd >= 0 && !close(fd));
	for (int r = 0; r < 100; r++) {
		for (int i = 0; i < FILES; i++) {
			v[i] = (struct kvcachefs_part){ bytes[i], sizeof bytes[i], 0 };
			items[i] = (struct kvcachefs_item){
				.path = paths[i],
				.parts = &v[i],
				.nparts = 1,
			};
			snprintf(paths[i], sizeof paths[i], "texts/%d", i);
		}
		snprintf(paths[r % FILES], sizeof paths[0], "file/x");
		assert_int_equal(kvcachefs_store(&t, dir, NULL, items, FILES, NULL), 0);
		assert_int_equal(kvcachefs_queue_new(NULL, dir, 65), -EINVAL); /* another text */
		assert_int_equal(kvcachefs_transfer_poll(t), -ENOTDIR);
		assert_non_null(strstr(kvcachefs_error(), "file/x"));
		assert_int_equal(kvcachefs_transfer_free(t), -ENOTDIR);
		assert_non_null(strstr(kvcachefs_error(), "file/x"));
	}
}

static int clear(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	return remove(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parts),
		cmocka_unit_test(too_many),
		cmocka_unit_test(many_files),
		cmocka_unit_test(texts),
	};
	char virtual[sizeof dir + 16];
	int failed;

	snprintf(dir, sizeof dir, "/tmp/kvc-parts-XXXXXX");
	if (!mkdtemp(dir))
		return 1;
	snprintf(virtual, sizeof virtual, "%s/.kvcachefs", dir);
	if (mkdir(virtual, 0777)) /* as in a mount */
		return 1;
	for (size_t k = 0; k < 8; k++)
		for (size_t i = 0; i < sizeof bytes[k]; i++)
			bytes[k][i] = (uint8_t)(i * 31 + i / 1000 + k);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	return failed || nftw(dir, clear, 8, FTW_DEPTH | FTW_PHYS);
}
