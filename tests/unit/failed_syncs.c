/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failed syncs of the catalog's files, as Linux treats them: the pages that could not be written
 * are marked as clean, the error is reported once to each open file description, and the next sync
 * succeeds without them. Then the power fails. Each commit that a good kvc_catalog_sync() followed
 * must be found, whole.
 *
 * The test replaces the calls that write and sync, and keeps for each file the contents of the
 * medium and which pages are dirty. A sync copies the dirty pages to the medium, or fails and only
 * marks them as clean. A power failure leaves the medium and any of the pages that are dirty.
 *
 * SEED repeats a random run, STEPS sets its length.
 */
#include "catalog_check.h"
#include "catalog_priv.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define KEYS 40
#define OWN 8
#define VALUE 900 /* large, so that a commit changes many pages */
#define PAGE 4096u
#define PAGES 32768u
#define FDS 1024

enum { DB, LOG, MARK, FILES };
static const char *const tails[FILES] = { "", "-wal", "-mark" };

/* A file of the catalog, and its contents on the medium. */
static struct watched {
	char path[160];
	uint8_t *medium;
	size_t size;
	bool dirty[PAGES];
	uint64_t errors; /* number of failed syncs */
	unsigned fail;   /* number of further syncs that fail */
	unsigned chance; /* percentage of syncs that fail */
} files[FILES];
/* for each descriptor: its inode, and the number of errors that it has reported */
static struct {
	ino_t ino;
	uint64_t errors;
} seen[FDS];

static char dir[] = "/dev/shm/kvc-sync-XXXXXX", path[128], image[160];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool watching;
static unsigned seed, log_syncs;

/* ---- the medium ---- */

/* Returns the watched file that is open as fd, or NULL. */
static struct watched *watched_of(int fd)
{
	struct stat a, b;

	for (int i = 0; watching && i < FILES; i++)
		if (!stat(files[i].path, &b) && !fstat(fd, &a) && a.st_dev == b.st_dev &&
		    a.st_ino == b.st_ino) {
			if (fd < FDS && seen[fd].ino != a.st_ino) {
				seen[fd].ino = a.st_ino;
				seen[fd].errors = files[i].errors;
			}
			return &files[i];
		}
	return NULL;
}

ssize_t pwrite64(int fd, const void *buf, size_t len, off_t at)
{
	ssize_t done;

	pthread_mutex_lock(&lock);
	done = syscall(SYS_pwrite64, fd, buf, len, at);
	struct watched *f = done > 0 ? watched_of(fd) : NULL;

	assert_true(!f || (size_t)at + len <= (size_t)PAGES * PAGE);
	for (size_t p = (size_t)at / PAGE; f && p <= ((size_t)at + (size_t)done - 1) / PAGE; p++)
		f->dirty[p] = true; /* a file has fewer than PAGES pages */
	pthread_mutex_unlock(&lock);
	return done;
}

int ftruncate64(int fd, off_t size)
{
	int rc;

	pthread_mutex_lock(&lock);
	rc = (int)syscall(SYS_ftruncate, fd, size);
	struct watched *f = rc ? NULL : watched_of(fd);

	if (f && (size_t)size < f->size)
		f->size = (size_t)size;
	for (size_t p = (size_t)size / PAGE; f && p < PAGES; p++)
		f->dirty[p] = false;
	pthread_mutex_unlock(&lock);
	return rc;
}

/* Copies a page of the file to `medium`: contents that the medium has or may have. */
static void page_to(const struct watched *f, int fd, size_t p, uint8_t *medium, size_t *size)
{
	ssize_t got = pread(fd, medium + p * PAGE, PAGE, (off_t)(p * PAGE));

	assert_true(got >= 0);
	(void)f;
	if (got > 0)
		*size = kvc_max(*size, p * PAGE + (size_t)got);
}

int fdatasync(int fd)
{
	struct watched *f;
	bool fails = false;

	pthread_mutex_lock(&lock);
	f = watched_of(fd);
	if (f && (f->fail || rand_r(&seed) % 100 < (int)f->chance)) {
		f->fail -= f->fail > 0;
		f->errors++;
		memset(f->dirty, 0, sizeof f->dirty);
	}
	for (size_t p = 0; f && p < PAGES; p++)
		if (f->dirty[p])
			page_to(f, fd, p, f->medium, &f->size);
	if (f) {
		memset(f->dirty, 0, sizeof f->dirty);
		fails = seen[fd].errors != f->errors;
		seen[fd].errors = f->errors;
		log_syncs += f == &files[LOG];
	}
	pthread_mutex_unlock(&lock);
	errno = EIO;
	return fails ? -1 : 0;
}

int fsync(int fd)
{
	return fdatasync(fd);
}

static void watch(const char *at)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < FILES; i++) {
		free(files[i].medium);
		memset(&files[i], 0, sizeof files[i]);
		snprintf(files[i].path, sizeof files[i].path, "%s%s", at, tails[i]);
		files[i].medium = calloc(PAGES, PAGE);
		assert_non_null(files[i].medium);
	}
	memset(seen, 0, sizeof seen);
	watching = true;
	pthread_mutex_unlock(&lock);
}

static void write_file(const char *to, const uint8_t *b, size_t n)
{
	KVC_FD int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	for (size_t at = 0; at < n;) {
		ssize_t done = syscall(SYS_pwrite64, fd, b + at, n - at, at);

		assert_true(done > 0);
		at += (size_t)done;
	}
}

/* Makes the image that a power failure leaves now: all of the medium and some dirty pages. */
static void power_off(void)
{
	char name[200];

	snprintf(name, sizeof name, "%s-shm", image);
	unlink(name);
	pthread_mutex_lock(&lock);
	for (int i = 0; i < FILES; i++) {
		uint8_t *b = calloc(PAGES, PAGE);
		size_t size = files[i].size;
		KVC_FD int fd = open(files[i].path, O_RDONLY | O_CLOEXEC);

		assert_non_null(b);
		memcpy(b, files[i].medium, size);
		for (size_t p = 0; fd >= 0 && p < PAGES; p++)
			if (files[i].dirty[p] && rand_r(&seed) % 2)
				page_to(&files[i], fd, p, b, &size);
		snprintf(name, sizeof name, "%s%s", image, tails[i]);
		write_file(name, b, size);
		free(b);
	}
	pthread_mutex_unlock(&lock);
}

/* ---- commits ---- */

/* Commit number i: writes i to every key, and to pages that no other commit changes. */
static int commit(struct kvc_catalog *c, unsigned i)
{
	char key[16], value[VALUE + 1];

	memset(value, 'x', VALUE);
	value[VALUE] = 0;
	snprintf(value, sizeof value, "%08u", i);
	value[8] = ' ';
	kvc_catalog_gate(c);
	kvc_catalog_lock(c);
	for (int k = 0; k < KEYS; k++) {
		snprintf(key, sizeof key, "key%02d", k);
		assert_int_equal(kvc_meta_set(c, key, value), 0);
	}
	for (int k = 0; k < OWN; k++) {
		snprintf(key, sizeof key, "own%06u.%02d", i, k);
		assert_int_equal(kvc_meta_set(c, key, value), 0);
	}
	kvc_catalog_seal(c);
	kvc_catalog_unlock(c);
	return kvc_catalog_write(c);
}

static void found(void *arg, bool mended, const char *what)
{
	(void)mended;
	snprintf(arg, 256, "%s", what);
}

/* Returns the number of the commit in the image; 0: none; -1: it has no whole commit. */
static long look(void)
{
	char error[512], what[256] = "", key[16], value[VALUE + 1];
	struct kvc_catalog *c;
	long all = -2;

	if (kvc_check_pages(image, false, found, what) || kvc_catalog_open(&c, image, error))
		return -1;
	kvc_catalog_lock(c);
	for (int k = 0; k < KEYS; k++) {
		snprintf(key, sizeof key, "key%02d", k);
		long n = kvc_meta_get(c, key, value, sizeof value) ? 0 : strtol(value, NULL, 10);

		all = all == -2 || all == n ? n : -1;
	}
	for (long i = OWN; i < (all + 1) * OWN; i++) {
		snprintf(key, sizeof key, "own%06ld.%02ld", i / OWN, i % OWN);
		if (kvc_meta_get(c, key, value, sizeof value))
			all = -1;
	}
	kvc_catalog_unlock(c);
	kvc_catalog_close(c);
	return all;
}

/* The power fails: the image has a whole commit, from `least` to `most`. */
static void check(unsigned least, unsigned most)
{
	long is;

	power_off();
	is = look();
	if (is < (long)least || is > (long)most)
		fail_msg("after a power failure the catalog has commit %ld, not one of %u to %u",
			 is, least, most);
}

static struct kvc_catalog *open_it(void)
{
	struct kvc_catalog *c;
	char error[512];

	if (kvc_catalog_open(&c, path, error))
		fail_msg("%s", error);
	return c;
}

static struct kvc_catalog *make_it(void)
{
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/catalog", dir);
	snprintf(image, sizeof image, "%s/image", dir);
	watch(path);
	assert_int_equal(kvc_catalog_create(path), 0);
	return open_it();
}

static void end(struct kvc_catalog *c)
{
	static const char *const all[] = { "", "-wal", "-mark", "-shm" };

	kvc_catalog_close(c);
	watching = false;
	for (size_t i = 0; i < 2 * sizeof all / sizeof all[0]; i++) {
		char name[200];

		snprintf(name, sizeof name, "%s%s", i % 2 ? path : image, all[i / 2]);
		unlink(name);
	}
	assert_int_equal(rmdir(dir), 0);
	memset(dir + sizeof dir - 7, 'X', 6);
}

/* The log works again: syncs until the pause after the last attempt is over. */
static void sync_again(struct kvc_catalog *c)
{
	while (kvc_catalog_sync(c))
		usleep(1000);
}

/* ---- tests ---- */

/* A sync of the log fails: no later one succeeds without the frames. */
static void log_fails(void **state)
{
	struct kvc_catalog *c = make_it();

	(void)state;
	assert_int_equal(commit(c, 1), 0);
	assert_int_equal(kvc_catalog_sync(c), 0);
	check(1, 1);
	/* once: the frames are written again, and the caller need not know */
	assert_int_equal(commit(c, 2), 0);
	files[LOG].fail = 1;
	assert_int_equal(kvc_catalog_sync(c), 0);
	check(2, 2);
	/* for longer: the caller gets the error, and the next one success, with the frames */
	assert_int_equal(commit(c, 3), 0);
	files[LOG].fail = 5;
	assert_int_equal(kvc_catalog_sync(c), -EIO);
	files[LOG].fail = 0;
	check(2, 3);
	assert_int_equal(commit(c, 4), 0);
	sync_again(c);
	check(4, 4);
	/* and if the error was reported to SQLite's connection, in a checkpoint */
	assert_int_equal(commit(c, 5), 0);
	files[LOG].fail = 3;
	kvc_catalog_checkpoint(c);
	assert_int_equal(files[LOG].fail, 0);
	assert_int_equal(commit(c, 6), 0);
	sync_again(c);
	check(6, 6);
	end(c);
}

/*
 * The syncs of the log fail for long. Callers get the error at once, and most of them cause no sync
 * and no write: after the n-th attempt, the next one waits for 10 ms << n, at most for a second.
 */
static void repairs_pause(void **state)
{
	struct kvc_catalog *c = make_it();
	uint64_t begun, least_ns = 0, pause_ns = 5000000;
	unsigned attempts;

	(void)state;
	assert_int_equal(commit(c, 1), 0);
	assert_int_equal(kvc_catalog_sync(c), 0);
	assert_int_equal(commit(c, 2), 0);
	files[LOG].fail = UINT32_MAX;
	log_syncs = 0;
	begun = kvc_mono_ns();
	for (int i = 0; i < 2000; i++) {
		assert_int_equal(kvc_catalog_sync(c), -EIO);
		if (i % 100 == 0)
			usleep(2000); /* so that there is more than one attempt */
	}
	/* an attempt has three syncs: the caller's, and two after the log was written again */
	attempts = (log_syncs + 2) / 3;
	for (unsigned i = 1; i < attempts; i++) {
		pause_ns = kvc_min(2 * pause_ns, 1000000000);
		least_ns += pause_ns;
	}
	assert_true(attempts > 1);
	assert_true(kvc_mono_ns() - begun >= least_ns);
	files[LOG].fail = 0;
	sync_again(c);
	check(2, 2);
	end(c);
}

/* The kernel has dropped frames that it could not write: no sync succeeds before the next mount. */
static void frames_dropped(void **state)
{
	struct kvc_catalog *c = make_it();
	struct stat st;
	KVC_FD int fd = open(files[LOG].path, O_RDWR | O_CLOEXEC);
	uint8_t zeros[PAGE] = { 0 };

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(commit(c, 1), 0);
	assert_int_equal(kvc_catalog_sync(c), 0);
	assert_int_equal(commit(c, 2), 0);
	files[LOG].fail = 5;
	assert_int_equal(kvc_catalog_sync(c), -EIO);
	files[LOG].fail = 0;
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(syscall(SYS_pwrite64, fd, zeros, PAGE, st.st_size - 3 * PAGE), PAGE);
	for (int i = 0; i < 3; i++)
		assert_int_equal(kvc_catalog_sync(c), -EIO);
	check(1, 2);
	end(c);
}

/*
 * A daemon is killed after a failed sync of the log. The next one reads the log from the page
 * cache, and its syncs report nothing.
 */
static void log_fails_before_open(void **state)
{
	struct kvc_catalog *c = make_it();
	struct watched was[2] = { 0 };

	(void)state;
	assert_int_equal(commit(c, 1), 0);
	assert_int_equal(kvc_catalog_sync(c), 0);
	assert_int_equal(commit(c, 2), 0);
	power_off(); /* some of commit 2 is on the medium */
	for (int i = DB; i <= LOG; i++) {
		KVC_FD int fd = open(files[i].path, O_RDONLY | O_CLOEXEC);

		was[i].medium = calloc(PAGES, PAGE);
		assert_non_null(was[i].medium);
		for (size_t p = 0; p < PAGES; p++)
			page_to(&files[i], fd, p, was[i].medium, &was[i].size);
	}
	end(c);
	/* the page cache has commit 2, and the medium an empty log */
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/catalog", dir);
	snprintf(image, sizeof image, "%s/image", dir);
	watch(path);
	for (int i = DB; i <= LOG; i++)
		write_file(files[i].path, was[i].medium, was[i].size);
	memcpy(files[DB].medium, was[DB].medium, was[DB].size);
	files[DB].size = was[DB].size;
	c = open_it();
	assert_int_equal(commit(c, 3), 0);
	assert_int_equal(kvc_catalog_sync(c), 0);
	check(3, 3);
	for (int i = DB; i <= LOG; i++)
		free(was[i].medium);
	end(c);
}

/* Commits a value of two keys whose rows are in different pages, or of the first one only. */
static void commit_two(struct kvc_catalog *c, const char *text, bool both)
{
	char value[VALUE + 1];

	memset(value, *text, VALUE);
	value[VALUE] = 0;
	kvc_catalog_lock(c);
	assert_int_equal(kvc_meta_set(c, "key00", value), 0);
	assert_int_equal(both ? kvc_meta_set(c, "key39", value) : 0, 0);
	assert_int_equal(kvc_catalog_commit(c), 0);
	kvc_catalog_unlock(c);
}

/*
 * A daemon is killed after a failed sync of the log, and fsck mends the catalog. The database gets
 * all of the log, of which the medium lacks a part. The power fails before the log is unlinked
 * there: the part must not be applied to the database.
 */
static void log_fails_before_fsck(void **state)
{
	struct kvc_catalog *c = make_it();
	struct watched was[2] = { 0 }, cache[2] = { 0 };
	char what[256] = "", error[512], a[VALUE + 1] = "", b[VALUE + 1] = "";

	(void)state;
	assert_int_equal(commit(c, 1), 0);
	kvc_catalog_close(c);
	c = open_it();
	commit_two(c, "1", false);
	assert_int_equal(kvc_catalog_sync(c), 0);
	commit_two(c, "2", true);
	files[LOG].fail = 5;
	assert_int_equal(kvc_catalog_sync(c), -EIO);
	for (int i = DB; i <= LOG; i++) {
		KVC_FD int fd = open(files[i].path, O_RDONLY | O_CLOEXEC);

		cache[i].medium = calloc(PAGES, PAGE);
		assert_non_null(cache[i].medium);
		for (size_t p = 0; p < PAGES; p++)
			page_to(&files[i], fd, p, cache[i].medium, &cache[i].size);
		was[i] = files[i];
		files[i].medium = NULL;
		files[i].size = 0;
		files[i].fail = 0;
		files[i].medium = calloc(PAGES, PAGE);
		assert_non_null(files[i].medium);
	}
	end(c);
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/catalog", dir);
	snprintf(image, sizeof image, "%s/image", dir);
	watch(path);
	for (int i = DB; i <= LOG; i++) {
		write_file(files[i].path, cache[i].medium, cache[i].size);
		free(cache[i].medium);
		free(files[i].medium);
		files[i].medium = was[i].medium;
		files[i].size = was[i].size;
	}
	assert_int_equal(kvc_check_pages(path, true, found, what), 0);
	power_off();
	assert_int_equal(kvc_catalog_open(&c, image, error), 0);
	kvc_catalog_lock(c);
	assert_int_equal(kvc_meta_get(c, "key00", a, sizeof a), 0);
	assert_int_equal(kvc_meta_get(c, "key39", b, sizeof b), 0);
	kvc_catalog_unlock(c);
	kvc_catalog_close(c);
	assert_true(*a == '1' || *a == '2');
	assert_int_equal(*a == '2', *b == '2');
	end(open_it());
}

static sqlite3 *connect(const char *vfs)
{
	sqlite3 *db;

	assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, vfs), 0);
	assert_int_equal(kvc_conn_settings(db), 0);
	return db;
}

/*
 * A sync of the database fails in a checkpoint. It concerns pages of an earlier checkpoint, too,
 * which copied a part of the log, because of a read, and therefore did not sync. The log is not
 * overwritten before all of it is copied again and synced.
 */
static void database_fails(void **state)
{
	static const char read[] = "BEGIN; SELECT count(*) FROM meta";
	struct kvc_catalog *c = make_it();
	sqlite3 *reader = connect(NULL);
	unsigned i = 1;

	(void)state;
	for (; i < 4; i++)
		assert_int_equal(commit(c, i), 0);
	assert_int_equal(sqlite3_exec(reader, read, NULL, NULL, NULL), 0);
	for (; i < 6; i++)
		assert_int_equal(commit(c, i), 0);
	files[DB].fail = 1;
	kvc_catalog_checkpoint(c); /* copies the first part */
	assert_int_equal(files[DB].fail, 1);
	assert_int_equal(sqlite3_exec(reader, "COMMIT", NULL, NULL, NULL), 0);
	sqlite3_close(reader);
	kvc_catalog_checkpoint(c);
	assert_int_equal(files[DB].fail, 0);
	check(i - 1, i - 1);
	kvc_catalog_checkpoint(c); /* without the pages, this sync would succeed */
	check(i - 1, i - 1);
	for (; i < 10; i++) { /* the log restarts */
		assert_int_equal(commit(c, i), 0);
		assert_int_equal(kvc_catalog_sync(c), 0);
		check(i, i);
	}
	/* it fails at the close: the log is kept */
	files[DB].fail = 1;
	kvc_catalog_close(c);
	assert_int_equal(files[DB].fail, 0);
	assert_int_equal(access(files[LOG].path, F_OK), 0);
	check(i - 1, i - 1);
	end(open_it());
}

/*
 * The sync of the database that runs beside commits, to prepare for the log's restart, fails: all
 * of the log is copied again.
 */
static void prepared_sync_fails(void **state)
{
	struct kvc_catalog *c = make_it();
	unsigned i = 1, ends;

	(void)state;
	assert_int_equal(kvc_catalog_start(c, 1 << 20), 0);
	for (int round = 0; round < 4; round++) {
		pthread_mutex_lock(&lock);
		files[DB].fail = 1 + (unsigned)round % 2;
		pthread_mutex_unlock(&lock);
		for (ends = i + 2000; files[DB].fail && i < ends; i++) {
			assert_int_equal(commit(c, i), 0);
			usleep(2000);
		}
		assert_int_equal(files[DB].fail, 0);
		for (ends = i + 60; i < ends; i++) {
			assert_int_equal(commit(c, i), 0);
			usleep(2000);
			if (i % 4)
				continue;
			assert_int_equal(kvc_catalog_sync(c), 0);
			check(i, i);
		}
	}
	end(c);
}

/* Syncs of all files fail at random, beside commits and checkpoints. */
static void at_random(void **state)
{
	unsigned steps = getenv("STEPS") ? (unsigned)atoi(getenv("STEPS")) : 400;
	unsigned safe = 0, refused = 0, good = 0;
	struct kvc_catalog *c = make_it();

	(void)state;
	print_message("SEED=%u\n", seed);
	assert_int_equal(commit(c, 1), 0);
	assert_int_equal(kvc_catalog_sync(c), 0);
	safe = 1;
	assert_int_equal(kvc_catalog_start(c, 1 << 20), 0);
	for (int i = 0; i < FILES; i++)
		files[i].chance = 20;
	for (unsigned i = 2; i < steps; i++) {
		refused += commit(c, i) != 0;
		if (rand_r(&seed) % 3 == 0 && !kvc_catalog_sync(c)) {
			/* a failed commit stays pending, and may have been written or not */
			if (!atomic_load(&c->failing))
				safe = i;
			good++;
		}
		if (rand_r(&seed) % 4 == 0)
			check(safe, i);
		usleep(rand_r(&seed) % 2000);
	}
	print_message("%u commits failed, %u syncs were good; failed syncs: %llu %llu %llu\n",
		      refused, good, (unsigned long long)files[DB].errors,
		      (unsigned long long)files[LOG].errors,
		      (unsigned long long)files[MARK].errors);
	assert_true(good > 10);
	for (int i = 0; i < FILES; i++)
		files[i].chance = 0;
	end(c);
}

static void nothing(void *arg)
{
	(void)arg;
}

/*
 * The log restarts with a mark, and its new header is not synced. It restarts once more, without a
 * mark, because the mark could not be written. That commit syncs the header, although the header
 * before looks unsynced to it.
 */
static void restarts_without_mark(void **state)
{
	static const char write[] = "INSERT OR REPLACE INTO meta VALUES('a', hex(randomblob(99)))";
	struct kvc_wal_restart *a;
	struct kvc_salts salts;
	sqlite3 *db, *other;
	int log = 0, done = 0;
	unsigned before;

	(void)state;
	end(make_it());
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/catalog", dir);
	snprintf(image, sizeof image, "%s/image", dir);
	assert_int_equal(kvc_catalog_create(path), 0);
	watch(path);
	a = kvc_wal_restart_new(path, nothing, NULL);
	assert_non_null(a);
	db = connect(kvc_wal_restart_vfs(a, true));
	other = connect(NULL);
	assert_int_equal(sqlite3_exec(db, write, NULL, NULL, NULL), 0);
	assert_int_equal(kvc_wal_restart_open(a) ?: kvc_wal_restart_sync(a), 0);
	kvc_wal_restart_use(a, 1);
	for (int round = 0; round < 2; round++) {
		salts = kvc_wal_restart_salts(a);
		assert_int_equal(sqlite3_wal_checkpoint_v2(other, NULL, SQLITE_CHECKPOINT_PASSIVE,
							   &log, &done),
				 0);
		assert_int_equal(log, done);
		files[MARK].fail = round ? 1 : 0;
		kvc_wal_restart_copied(a, &salts, (uint64_t)done);
		before = log_syncs;
		assert_int_equal(sqlite3_exec(db, write, NULL, NULL, NULL), 0);
		assert_memory_not_equal(&salts,
					&(struct kvc_salts[]){ kvc_wal_restart_salts(a) }[0],
					sizeof salts);
		assert_true(round || kvc_wal_restart_unsynced(a));
		assert_int_equal(log_syncs - before, round);
	}
	sqlite3_close(other);
	sqlite3_close(db);
	kvc_wal_restart_free(a);
	end(open_it());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(log_fails),
		cmocka_unit_test(repairs_pause),
		cmocka_unit_test(frames_dropped),
		cmocka_unit_test(log_fails_before_open),
		cmocka_unit_test(log_fails_before_fsck),
		cmocka_unit_test(database_fails),
		cmocka_unit_test(prepared_sync_fails),
		cmocka_unit_test(at_random),
		cmocka_unit_test(restarts_without_mark),
	};

	seed = getenv("SEED") ? (unsigned)atoi(getenv("SEED")) : (unsigned)time(NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
