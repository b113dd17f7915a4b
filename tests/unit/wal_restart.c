/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog's log restarts (engine/catalog/wal_restart.c) while a sync of the disk does not
 * complete. The mark, a small file next to the log, says how much of the old log is on stable
 * storage. No commit waits for the sync, until it would overwrite more of the old log than the mark
 * covers. Then the power fails: the test makes images of the log in which each sector is the
 * old or the new one, with the old or the new header. Each image must open as it was after a whole
 * commit that is not older than the checkpoint. Without the mark some images open wrongly, which
 * shows that they are dangerous.
 *
 * The test replaces fdatasync and fsync, for the catalog and for SQLite. They write nothing to a
 * disk. Syncs of the log by other threads wait while its header is not synced and `hold` is set;
 * those by the committing thread are counted.
 *
 * A second test (slow) commits without a pause on a disk whose syncs are slower than a commit, and
 * counts the syncs for which one commit waits.
 */
#include "catalog_check.h"
#include "catalog_priv.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <xxhash.h>

#include <cmocka.h>

#define KEYS 40
#define VALUE 900 /* large, so that a commit changes many pages */
#define HEADER 32
#define SECTOR 512
#define IMAGES 40
#define WAIT_MS 100
#define RESTARTS 6

static char dir[] = "/dev/shm/kvc-anew-XXXXXX"; /* in memory: the test makes a thousand stores */
static char path[128], wal[160], mark[160], image[160];
static pthread_t committer;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static bool hold;
static uint8_t synced[HEADER];
static unsigned forced; /* syncs of the log by the committing thread */
/* in the test `slow`: number of commits; is the committing thread in kvc_catalog_gate()? */
static _Atomic bool slow_disk;
static _Atomic unsigned commits;
static _Atomic bool in_gate;
static char state_file[64];     /* of the committing thread */
static unsigned in_a_row, most; /* syncs during which no commit ended */

struct bytes {
	uint8_t *b;
	size_t n;
};

static struct bytes load(const char *from)
{
	KVC_FD int fd = open(from, O_RDONLY | O_CLOEXEC);
	struct bytes x = { 0 };
	struct stat st;
	int err;

	assert_true(fd >= 0);
	do { /* the log may be truncated at this moment */
		assert_int_equal(fstat(fd, &st), 0);
		free(x.b);
		x.n = (size_t)st.st_size;
		x.b = malloc(x.n + 1);
		assert_non_null(x.b);
		err = kvc_pread_all(fd, x.b, x.n, 0);
	} while (err == -ENODATA);
	assert_int_equal(err, 0);
	return x;
}

static void store(const char *to, const struct bytes *x)
{
	KVC_FD int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(kvc_pwrite_all(fd, x->b, x->n, 0), 0);
}

static void header(uint8_t h[HEADER])
{
	KVC_FD int fd = open(wal, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || kvc_pread_all(fd, h, HEADER, 0))
		memset(h, 0, HEADER);
}

static bool is_log(int fd)
{
	struct stat a, b;

	return !fstat(fd, &a) && !stat(wal, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Does the committing thread wait before a commit? A thread that has no CPU does not wait. */
static bool waits(void)
{
	KVC_FD int fd = open(state_file, O_RDONLY | O_CLOEXEC);
	char stat[256] = "", *end;

	if (!atomic_load(&in_gate) || fd < 0 || read(fd, stat, sizeof stat - 1) <= 0)
		return false;
	end = strrchr(stat, ')');
	return end && end[1] && end[2] == 'S';
}

/*
 * A sync of a slow disk: it ends when a commit has ended since it began, or when the committing
 * thread has waited for WAIT_MS and may be waiting for this sync, or when no commits follow.
 */
static void sync_slowly(void)
{
	unsigned began = atomic_load(&commits);
	bool forces = pthread_equal(pthread_self(), committer);

	for (unsigned ms = 0;
	     !forces && slow_disk && atomic_load(&commits) == began && ms < WAIT_MS; ms++) {
		usleep(1000);
		ms = waits() ? ms : 0;
	}
	pthread_mutex_lock(&lock);
	in_a_row = atomic_load(&commits) == began ? in_a_row + 1 : 0;
	most = kvc_max(most, in_a_row);
	pthread_mutex_unlock(&lock);
}

int fdatasync(int fd)
{
	uint8_t now[HEADER];

	if (slow_disk) {
		sync_slowly();
		return 0;
	}
	if (!*wal || !is_log(fd))
		return 0;
	header(now);
	pthread_mutex_lock(&lock);
	if (pthread_equal(pthread_self(), committer))
		forced++;
	else
		while (hold && memcmp(now, synced, HEADER))
			pthread_cond_wait(&let_go, &lock);
	memcpy(synced, now, HEADER);
	pthread_mutex_unlock(&lock);
	return 0; /* the test decides what is on the medium */
}

int fsync(int fd)
{
	return fdatasync(fd);
}

static void holds(bool on)
{
	pthread_mutex_lock(&lock);
	hold = on;
	if (on) /* from the next header on */
		header(synced);
	pthread_cond_broadcast(&let_go);
	pthread_mutex_unlock(&lock);
}

/* Commit number i: writes i to every key. */
static void commit(struct kvc_catalog *c, unsigned i)
{
	char key[16], value[VALUE + 1];

	memset(value, 'x', VALUE);
	value[VALUE] = 0;
	snprintf(value, sizeof value, "%08u", i);
	value[8] = ' ';
	atomic_store(&in_gate, true);
	kvc_catalog_gate(c);
	atomic_store(&in_gate, false);
	kvc_catalog_lock(c);
	for (int k = 0; k < KEYS; k++) {
		snprintf(key, sizeof key, "key%02d", k);
		assert_int_equal(kvc_meta_set(c, key, value), 0);
	}
	kvc_catalog_seal(c);
	kvc_catalog_unlock(c);
	assert_int_equal(kvc_catalog_write(c), 0);
	atomic_fetch_add(&commits, 1);
}

static void found(void *arg, bool mended, const char *what)
{
	(void)mended;
	snprintf(arg, 256, "%s", what);
}

/*
 * Returns the number of the commit that the image contains, or -1 if it contains no whole commit.
 */
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
		long n = kvc_meta_get(c, key, value, sizeof value) ? -1 : strtol(value, NULL, 10);

		all = all == -2 || all == n ? n : -1;
	}
	kvc_catalog_unlock(c);
	kvc_catalog_close(c);
	return all;
}

/* Power failure: each sector of the log is the old one or the new one. */
static long power_off(const struct bytes *db, const struct bytes *old, const struct bytes *new,
		      const struct bytes *marks, unsigned *seed)
{
	int part = rand_r(seed) % 3 ? 1 : rand_r(seed) % 100, first = rand_r(seed) % 4 == 0;
	struct bytes x = { malloc(old->n + new->n), old->n };
	char name[200];

	assert_non_null(x.b);
	if (new->n > old->n && rand_r(seed) % 2) { /* the new length is on the medium */
		memset(x.b + old->n, 0, new->n - old->n);
		x.n = new->n;
	}
	memcpy(x.b, old->b, old->n);
	for (size_t at = 0; at < kvc_min(x.n, new->n); at += SECTOR) {
		bool takes = at ? rand_r(seed) % 100 < part : first;
		size_t n = kvc_min(SECTOR, kvc_min(x.n, new->n) - at);

		if (takes)
			memcpy(x.b + at, new->b + at, n);
	}
	store(image, db);
	snprintf(name, sizeof name, "%s-wal", image);
	store(name, &x);
	snprintf(name, sizeof name, "%s-shm", image);
	unlink(name);
	snprintf(name, sizeof name, "%s-mark", image);
	unlink(name);
	if (marks)
		store(name, marks);
	free(x.b);
	return look();
}

/*
 * Commits until the log restarts. Returns the number of the commit that restarted it; *old: the log
 * before.
 */
static unsigned until_anew(struct kvc_catalog *c, unsigned i, struct bytes *old)
{
	uint8_t was[HEADER], is[HEADER];
	unsigned end = i + 3000;

	for (; i < end; i++) {
		usleep(1000);
		header(was);
		free(old->b);
		*old = load(wal);
		forced = 0;
		commit(c, i);
		header(is);
		/* the log was truncated: nothing precedes this header, and no call waits for it */
		if (!old->n)
			holds(true);
		else if (memcmp(was, is, HEADER))
			return i;
	}
	fail_msg("the log does not restart");
	return 0;
}

static void power_fails(struct kvc_catalog *c, unsigned *i, unsigned *seed, unsigned *dangerous)
{
	struct bytes old = { 0 }, new, db, marks;
	unsigned base, wrong = 0;

	holds(true);
	base = until_anew(c, *i, &old);
	/* the commit made no sync; without the mark it would make one */
	assert_int_equal(forced, 0);
	db = load(path);
	marks = load(mark);
	for (*i = base; *i < base + 3 && !forced; ++*i) {
		if (*i > base)
			commit(c, *i);
		if (forced)
			break; /* the header is on the medium from now on */
		new = load(wal);
		for (int n = 0; n < IMAGES; n++) {
			long is = power_off(&db, &old, &new, &marks, seed);

			if (is < (long)base - 1 || is > (long)*i)
				fail_msg("an image has commit %ld, and not one of %u to %u", is,
					 base - 1, *i);
		}
		for (int n = 0; n < IMAGES; n++) {
			long is = power_off(&db, &old, &new, NULL, seed);

			wrong += is < (long)base - 1 || is > (long)*i;
		}
		free(new.b);
	}
	/* up to the mark, and not beyond it */
	for (; !forced; ++*i) {
		assert_true(*i < base + 100);
		new = load(wal);
		commit(c, *i);
		if (!forced)
			for (int n = 0; n < 3; n++) {
				long is = power_off(&db, &old, &new, &marks, seed);

				assert_true(is >= (long)base - 1 && is <= (long)*i);
			}
		free(new.b);
	}
	holds(false);
	*dangerous += wrong;
	print_message(
		"restarted by commit %u, synced by %u; %u images are wrong without the mark\n",
		base, *i, wrong);
	free(old.b);
	free(db.b);
	free(marks.b);
}

/* A half-written mark is invalid; otherwise a log that is needed would be emptied. */
static void torn_mark(struct kvc_catalog *c, unsigned i)
{
	struct {
		char magic[8];
		uint8_t salts[8];
		uint64_t frames, sum;
	} m = { .magic = "KVCMARK", .frames = htole64(1 << 20) };
	const struct bytes x = { (uint8_t *)&m, sizeof m };
	struct bytes log = { 0 };
	char name[200];

	/* the log may be emptied at any time once all of it is in the database */
	while (log.n <= HEADER) {
		free(log.b);
		commit(c, i++);
		log = load(wal);
	}
	memcpy(m.salts, log.b + 16, sizeof m.salts);
	m.sum = htole64(XXH3_64bits(&m, sizeof m - sizeof m.sum));
	snprintf(name, sizeof name, "%s-wal", image);
	store(name, &log);
	snprintf(name, sizeof name, "%s-mark", image);
	store(name, &x);
	assert_int_equal(kvc_wal_restart_stale(image), 1); /* the log has fewer frames than this */
	m.frames ^= htole64(2);
	store(name, &x);
	assert_int_equal(kvc_wal_restart_stale(image), 0);
	snprintf(name, sizeof name, "%s-wal", image);
	unlink(name);
	free(log.b);
}

static struct kvc_catalog *open_catalog(uint64_t log_bytes)
{
	struct kvc_catalog *c;
	char error[512];

	committer = pthread_self();
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/catalog", dir);
	snprintf(wal, sizeof wal, "%s-wal", path);
	snprintf(mark, sizeof mark, "%s-mark", path);
	snprintf(image, sizeof image, "%s/image", dir);
	assert_int_equal(kvc_catalog_create(path), 0);
	assert_int_equal(kvc_catalog_open(&c, path, error), 0);
	assert_int_equal(kvc_catalog_start(c, log_bytes), 0);
	return c;
}

static void close_catalog(struct kvc_catalog *c)
{
	kvc_catalog_close(c);
	*wal = 0;
	for (const char *const *n = (const char *const[]){ "catalog", "catalog-mark", "image",
							   "image-mark", NULL };
	     *n; n++) {
		char name[200];

		snprintf(name, sizeof name, "%s/%s", dir, *n);
		unlink(name);
	}
	rmdir(dir);
	memset(dir + sizeof dir - 7, 'X', 6);
}

static void anew(void **state)
{
	unsigned seed = getenv("SEED") ? (unsigned)atoi(getenv("SEED")) : (unsigned)time(NULL);
	unsigned i = 1, dangerous = 0;
	struct kvc_catalog *c = open_catalog(1 << 20);

	(void)state;
	print_message("SEED=%u\n", seed);
	commit(c, i++); /* the first log overwrites nothing */
	for (int round = 0; round < 2; round++)
		power_fails(c, &i, &seed, &dangerous);
	assert_true(dangerous > 0);
	torn_mark(c, i);
	close_catalog(c);
}

/*
 * Commits follow each other closely, so as a rule the log restarts only because a commit waits. It
 * waits for a sync of the log and one of the database, and not for more.
 */
static void slow(void **state)
{
	struct kvc_catalog *c = open_catalog(8 << 20);
	uint8_t was[HEADER], is[HEADER];
	unsigned restarts = 0, i = 1;

	(void)state;
	snprintf(state_file, sizeof state_file, "/proc/self/task/%d/stat", gettid());
	commit(c, i++);
	header(was);
	slow_disk = true;
	/* a log may restart without a commit that waits, if the syncs are done in time */
	while ((restarts < RESTARTS || !most) && i < 100000) {
		commit(c, i++);
		header(is);
		restarts += !!memcmp(was, is, HEADER);
		memcpy(was, is, HEADER);
	}
	slow_disk = false;
	print_message("%u commits, %u restarts, a commit waited for %u syncs\n", i, restarts, most);
	assert_true(restarts >= RESTARTS);
	/*
	 * on a busy machine a commit waited for three; without the thread that syncs in advance, it
	 * waits for four or more
	 */
	assert_in_range(most, 1, 3);
	close_catalog(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(anew), cmocka_unit_test(slow) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
