/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog compared with a model: random changes, commits and failures, after which all reads
 * are compared. Then a sweep: the Nth call of SQLite to its filesystem (or to malloc) fails, once
 * or from then on, for every N that a scripted workload reaches. Acknowledged changes stay
 * readable, and committed changes exist after a kill at that point.
 *
 * SEED repeats a random run, STEPS sets its length; SWEEP=all tries every error at every N.
 */
#include "catalog_check.h"
#include "catalog_priv.h"
#include "faulty.h"
#include "shadow.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char dir[256], path[300];

static void make_dir(void)
{
	const char *tmp = getenv("KV_CASE_TMP");

	snprintf(dir, sizeof dir, "%s/catXXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/catalog.sqlite", dir);
}

static void remove_dir(void)
{
	static const char *const tails[] = { "", "-wal", "-shm" };
	char name[400];

	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof name, "%s%s", path, tails[i]);
		unlink(name);
		snprintf(name, sizeof name, "%s/copy%s", dir, tails[i]);
		unlink(name);
	}
	rmdir(dir);
}

static void copy_file(const char *from, const char *to)
{
	FILE *in = fopen(from, "rb"), *out;
	char buf[65536];
	size_t n;

	unlink(to);
	if (!in)
		return;
	out = fopen(to, "wb");
	assert_non_null(out);
	while ((n = fread(buf, 1, sizeof buf, in)))
		assert_int_equal(fwrite(buf, 1, n, out), n);
	fclose(in);
	fclose(out);
}

static struct kvc_catalog *open_at(const char *at)
{
	struct kvc_catalog *c = NULL;
	char error[512] = "";

	if (kvc_catalog_open(&c, at, error))
		fail_msg("%s", error);
	kvc_catalog_lock(c);
	return c;
}

static void close_it(struct kvc_catalog *c)
{
	kvc_catalog_unlock(c);
	assert_int_equal(kvc_catalog_close(c), 0);
}

static void must(struct kvc_catalog *c, const struct model *m, const char *when)
{
	int err = compare(c, m);

	if (err)
		fail_msg("%s: %s", when, err > 0 ? wrong : strerror(-err));
}

/* Writes a batch while changes continue. breaks: the write fails. */
static void batch(struct kvc_catalog *c, bool breaks)
{
	int err;

	kvc_catalog_seal(c);
	for (uint64_t n = draw(20); n; n--)
		assert_int_equal(change(c), 0);
	must(c, &model, "while a batch is out");
	kvc_catalog_unlock(c);
	if (breaks)
		arm(DISK, 1, true, draw(2) ? SQLITE_IOERR_WRITE : SQLITE_FULL);
	err = kvc_catalog_write(c);
	if (!breaks)
		assert_int_equal(err, 0);
	arm(NONE, 0, false, 0);
	kvc_catalog_lock(c);
}

/*
 * Checks whether the cache knows the name without SQLite (known), and what the catalog returns
 * (says).
 */
static void asked(struct kvc_catalog *c, const char *name, bool known, uint64_t says)
{
	struct kvc_peek p;
	uint64_t ino = 0;
	uint32_t kind = 0;
	int err = says ? 0 : -ENOENT;

	assert_int_equal(!!kvc_overlay_cache_find(&c->over, 7, kvc_name_hash(name), name), known);
	kvc_catalog_unlock(c);
	assert_int_equal(kvc_peek_name(c, 7, name, kvc_name_hash(name), &p), err);
	kvc_catalog_lock(c);
	assert_int_equal(p.ino, says);
	assert_int_equal(kvc_name_get(c, 7, name, &ino, &kind), err);
	assert_int_equal(ino, says);
	assert_int_equal(p.kind, kind);
	assert_int_equal(kind, says ? S_IFREG : 0);
}

static void cached_names(void **state)
{
	static const char name[] = "layer0";
	char longer[200] = "";
	struct kvc_catalog *c;

	(void)state;
	make_dir();
	assert_int_equal(kvc_catalog_create(path), 0);
	c = open_at(path);
	memset(longer, 'l', sizeof longer - 1);
	for (uint64_t i = 10; i < 20; i += 5) {
		assert_int_equal(kvc_name_put(c, 7, name, i, S_IFREG), 0);
		assert_int_equal(kvc_name_put(c, 7, longer, i + 1, S_IFREG), 0);
		asked(c, name, false, i);
		assert_int_equal(kvc_catalog_commit(c), 0);
		asked(c, name, true, i);
		asked(c, longer, false, i + 1);
		assert_int_equal(kvc_name_put(c, 7, name, i + 2, S_IFREG), 0);
		asked(c, name, false, i + 2);
		assert_int_equal(kvc_catalog_commit(c), 0);
		asked(c, name, true, i + 2);
		assert_int_equal(kvc_name_del(c, 7, name), 0);
		assert_int_equal(kvc_name_del(c, 7, longer), 0);
		asked(c, name, false, 0);
		arm(DISK, 1, true, SQLITE_IOERR_WRITE);
		kvc_catalog_commit(c);
		arm(NONE, 0, false, 0);
		asked(c, name, false, 0);
		assert_int_equal(kvc_catalog_commit(c), 0);
		asked(c, name, true, 0);
		asked(c, "layer1", i > 10, 0); /* looked up before */
		asked(c, longer, false, 0);
	}
	/* The name is created again while its removal is being written. */
	assert_int_equal(kvc_name_put(c, 7, name, 12, S_IFREG), 0);
	assert_int_equal(kvc_catalog_commit(c), 0);
	assert_int_equal(kvc_name_del(c, 7, name), 0);
	kvc_catalog_seal(c);
	assert_int_equal(kvc_name_put(c, 7, name, 13, S_IFREG), 0);
	kvc_catalog_unlock(c);
	assert_int_equal(kvc_catalog_write(c), 0);
	kvc_catalog_lock(c);
	asked(c, name, false, 13);
	close_it(c);
	/*
	 * Results of SQLite are cached, including that a name does not exist. Results of a peek are
	 * not cached.
	 */
	c = open_at(path);
	asked(c, name, false, 13);
	asked(c, name, true, 13);
	close_it(c);
	c = open_at(path);
	assert_int_equal(kvc_name_del(c, 7, name), 0);
	asked(c, name, false, 0);
	close_it(c);
	remove_dir();
}

static int peek_gone(struct kvc_catalog *c, const struct kvc_where *w, struct kvc_peek_gone *p)
{
	int err;

	kvc_catalog_unlock(c);
	err = kvc_peek_gone(c, w, 50, p);
	kvc_catalog_lock(c);
	return err;
}

/*
 * A deleted path, and an absent name, that were read without the lock: the result is used until the
 * row changes, whether the change is pending or committed.
 */
static void read_without_lock(void **state)
{
	const struct kvc_where w = { .at = 3, .hi = 4 }, other = { .at = 3, .hi = 5 };
	struct kvc_peek_gone none = { .read = false }, p;
	const uint64_t hash = kvc_name_hash("n");
	struct kvc_peek name;
	struct kvc_catalog *c;

	(void)state;
	make_dir();
	assert_int_equal(kvc_catalog_create(path), 0);
	c = open_at(path);
	assert_int_equal(kvc_gone_get_peeked(c, &w, 50, &none), -EAGAIN);
	assert_int_equal(peek_gone(c, &w, &p), 0);
	assert_int_equal(kvc_gone_get_peeked(c, &w, 50, &p), -ENOENT);
	assert_int_equal(kvc_gone_get_peeked(c, &other, 50, &p), -EAGAIN);
	assert_int_equal(kvc_gone_put(c, &w, 60), 0);
	assert_int_equal(kvc_gone_get_peeked(c, &w, 50, &p), 0);
	assert_int_equal(kvc_gone_get_peeked(c, &w, 60, &p), -ENOENT);
	assert_int_equal(kvc_catalog_commit(c), 0);
	assert_int_equal(kvc_gone_get_peeked(c, &w, 50, &p), -EAGAIN);
	assert_int_equal(peek_gone(c, &w, &p), 0);
	assert_int_equal(kvc_gone_get_peeked(c, &w, 50, &p), 0);
	assert_int_equal(kvc_gone_del(c, &w), 0);
	assert_int_equal(kvc_gone_get_peeked(c, &w, 50, &p), -ENOENT);
	assert_int_equal(kvc_catalog_commit(c), 0);
	assert_int_equal(kvc_gone_get_peeked(c, &w, 50, &p), -EAGAIN);

	kvc_catalog_unlock(c);
	assert_int_equal(kvc_peek_name(c, 7, "n", hash, &name), -ENOENT);
	kvc_catalog_lock(c);
	assert_true(kvc_peek_absent_holds(c, 7, "n", hash, &name));
	assert_int_equal(kvc_name_put(c, 7, "n", 10, S_IFREG), 0);
	assert_false(kvc_peek_absent_holds(c, 7, "n", hash, &name));
	assert_int_equal(kvc_catalog_commit(c), 0);
	assert_false(kvc_peek_absent_holds(c, 7, "n", hash, &name));
	kvc_catalog_unlock(c);
	assert_int_equal(kvc_peek_name(c, 7, "n", hash, &name), 0);
	kvc_catalog_lock(c);
	assert_false(kvc_peek_absent_holds(c, 7, "n", hash, &name));
	close_it(c);
	remove_dir();
}

/* Rows of some inodes that were read without the lock, some changes ago. */
#define PEEKS 8
static struct ahead {
	bool is;
	struct kvc_peek node;
	struct kvc_peek_names names;
} ahead[PEEKS];

static int add_name(void *arg, const struct kvc_name *n)
{
	uint64_t *sum = arg;

	*sum += n->hash * 31 + n->parent * 7 + n->ino + n->kind;
	return 0;
}

/* Rows that were read earlier are used only if they are equal to the catalog's current rows. */
static void ahead_holds(struct kvc_catalog *c, unsigned *held)
{
	for (int i = 0; i < PEEKS; i++) {
		struct ahead *a = &ahead[i];
		uint64_t sum = 0, must = 0;
		struct kvc_row r;

		if (!a->is)
			continue;
		assert_int_equal(kvc_name_of(c, a->names.ino, add_name, &must), 0);
		assert_int_equal(kvc_name_of_peeked(c, &a->names, add_name, &sum), 0);
		assert_true(sum == must);
		if (!kvc_peek_inode_holds(c, &a->node))
			continue;
		++*held;
		assert_int_equal(kvc_row_get(c, a->node.ino, &r), 0);
		assert_memory_equal(&r, &a->node.row, sizeof r);
	}
}

static void read_ahead(struct kvc_catalog *c)
{
	struct ahead *a = &ahead[draw(PEEKS)];
	uint64_t ino = ino_of((int)draw(INOS));
	const struct kvc_name_at none = { 0 };

	kvc_catalog_unlock(c);
	assert_int_equal(kvc_peek_inode(c, ino, &a->node), 0);
	assert_int_equal(kvc_peek_names(c, ino, &none, &a->names), 0);
	kvc_catalog_lock(c);
	a->is = true;
}

static void forget_ahead(void)
{
	for (int i = 0; i < PEEKS; i++) {
		free(ahead[i].names.v);
		ahead[i] = (struct ahead){ 0 };
	}
}

static void random_changes(void **state)
{
	int steps = getenv("STEPS") ? atoi(getenv("STEPS")) : 1500;
	struct kvc_catalog *c;
	unsigned held = 0;

	(void)state;
	seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : kvc_now_ns() | 1;
	print_message("SEED=%llu\n", (unsigned long long)seed);
	make_dir();
	memset(&model, 0, sizeof model);
	assert_int_equal(kvc_catalog_create(path), 0);
	c = open_at(path);
	kvc_catalog_unlock(c);
	assert_int_equal(kvc_catalog_start(c, 1 << 20), 0);
	kvc_catalog_lock(c);
	for (int i = 0; i < steps; i++) {
		for (uint64_t n = draw(8); n; n--)
			assert_int_equal(change(c), 0);
		must(c, &model, "after changes");
		switch (draw(8)) {
		case 0: assert_int_equal(kvc_catalog_commit(c), 0); break;
		case 1: batch(c, false); break;
		case 2: batch(c, true); break;
		case 3:
			arm(DISK, 1, true, SQLITE_IOERR_WRITE);
			kvc_catalog_commit(c);
			arm(NONE, 0, false, 0);
			break;
		}
		must(c, &model, "after a commit");
		ahead_holds(c, &held);
		read_ahead(c);
		if (!draw(100)) {
			forget_ahead();
			close_it(c);
			c = open_at(path);
			must(c, &model, "after it was opened again");
			kvc_catalog_unlock(c);
			assert_int_equal(kvc_catalog_start(c, 1 << 20), 0);
			kvc_catalog_lock(c);
		}
	}
	forget_ahead();
	assert_true(held > (unsigned)steps / 4);
	close_it(c);
	c = open_at(path);
	must(c, &model, "at the end");
	close_it(c);
	remove_dir();
}

#define ROUNDS 6

struct state {
	/* states that a kill may leave: the last committed one, and those tried since */
	struct model m[ROUNDS + 1];
	int n;
};
static struct state may;

/* A kill now would leave one of these states. */
static void check_kill(const char *when)
{
	char from[400], to[400], copy[400];
	struct kvc_catalog *c;
	int i;

	for (i = 0; i < 2; i++) {
		snprintf(from, sizeof from, "%s%s", path, i ? "-wal" : "");
		snprintf(to, sizeof to, "%s/copy%s", dir, i ? "-wal" : "");
		copy_file(from, to);
	}
	snprintf(to, sizeof to, "%s/copy-shm", dir);
	unlink(to);
	snprintf(copy, sizeof copy, "%s/copy", dir);
	c = open_at(copy);
	for (i = 0; i < may.n && compare(c, &may.m[i]); i++)
		;
	if (i == may.n)
		fail_msg("%s: after a kill: %s", when, wrong);
	close_it(c);
}

/* Runs the workload. Returns true if all its commits succeeded. */
static bool workload(enum fault of, long at, bool ever, int with, bool kill)
{
	struct kvc_catalog *c = NULL;
	char error[512] = "", when[100];
	bool good = true;
	int err;

	snprintf(when, sizeof when, "%s call %ld fails %s with %d",
		 of == MEMORY ? "memory" : "disk", at, ever ? "for ever" : "once", with);
	seed = 4711;
	clock_ns = 1000;
	make_dir();
	memset(&model, 0, sizeof model);
	assert_int_equal(kvc_catalog_create(path), 0);
	may.m[0] = model;
	may.n = 1;
	arm(of, at, ever, with);
	if (kvc_catalog_open(&c, path, error)) {
		assert_true(failures > 0);
		for_ever = false; /* the next attempt must succeed */
		fail_at = 0;
		c = open_at(path);
		kvc_catalog_unlock(c);
	}
	kvc_catalog_lock(c);
	for (int round = 0; round < ROUNDS; round++) {
		for (int n = 0; n < 40; n++)
			if ((err = change(c)) && !failures)
				fail_msg("%s: a change fails with %s", when, strerror(-err));
		/* While the fault is active a read may fail, but may not return wrong rows. */
		err = compare(c, &model);
		if (err > 0 || (err && !failures))
			fail_msg("%s: before a commit: %s", when, err > 0 ? wrong : strerror(-err));
		may.m[may.n++] = model;
		err = kvc_catalog_commit(c);
		if (!err) {
			may.m[0] = model;
			may.n = 1;
		} else if (!failures) {
			fail_msg("%s: a commit fails with %s", when, strerror(-err));
		}
		good &= !err;
		err = compare(c, &model);
		if (err > 0)
			fail_msg("%s: after a commit: %s", when, wrong);
		if (round % 2)
			kvc_catalog_checkpoint(c);
	}
	long all = calls;
	long failed = failures;

	arm(NONE, 0, false, 0);
	if (kill && failed)
		check_kill(when);
	must(c, &model, when);
	assert_int_equal(kvc_catalog_commit(c), 0);
	must(c, &model, when);
	close_it(c);
	c = open_at(path);
	must(c, &model, when);
	close_it(c);
	assert_int_equal(kvc_check_pages(path, false, (kvc_found_fn *)NULL, NULL), 0);
	remove_dir();
	calls = all;
	failures = failed;
	return good;
}

static void sweep(enum fault of, const int *codes, int ncodes, long step)
{
	bool every = getenv("SWEEP") && !strcmp(getenv("SWEEP"), "all");
	long n, hit = 0, bad = 0;

	assert_true(workload(of, 0, false, 0, false));
	n = calls;
	assert_true(n > 50);
	if (every)
		step = 1;
	for (long at = 1; at <= n; at += step)
		for (int ever = 0; ever < 2; ever++)
			for (int i = 0; i < ncodes; i++) {
				if (!every && i != at / step % ncodes)
					continue;
				bad += !workload(of, at, ever, codes[i], true);
				hit += failures > 0;
			}
	print_message("%ld calls, %ld runs met a failure, in %ld of them a commit failed\n", n, hit,
		      bad);
	assert_true(hit > n / step);
	assert_true(bad > 10);
}

static void disk_fails(void **state)
{
	static const int codes[] = { SQLITE_FULL, SQLITE_IOERR_WRITE, SQLITE_IOERR_NOMEM };

	(void)state;
	const char *level = getenv("LEVEL");

	sweep(DISK, codes, 3, level && !strcmp(level, "long") ? 1 : 4);
}

static void memory_fails(void **state)
{
	static const int code = SQLITE_NOMEM;

	(void)state;
	sweep(MEMORY, &code, 1, 97);
}

/* A reader with a held snapshot never returns an older version of a committed row. */
static void peeked(struct kvc_catalog *c, const struct kvc_row *r)
{
	struct kvc_peek p = { .ino = r->ino };

	assert_int_equal(kvc_peek_node(c, &p), 0);
	assert_true(p.node);
	assert_int_equal(p.row.size, r->size);
}

/*
 * The log stays near its limit during many commits, and shrinks when commits stop, although a
 * reader holds its snapshot all the time.
 */
static void log_bound(void **state)
{
	const uint64_t bound = 2 << 20;
	struct kvc_catalog_state s;
	struct kvc_catalog *c;
	uint64_t most = 0;

	(void)state;
	seed = 99;
	make_dir();
	assert_int_equal(kvc_catalog_create(path), 0);
	c = open_at(path);
	kvc_catalog_unlock(c);
	assert_int_equal(kvc_catalog_start(c, bound), 0);
	for (uint64_t i = 0; i < 4000; i++) {
		struct kvc_row r = {
			.ino = 1000 + i * 7919 % 100000,
			.mode = S_IFREG | 0644,
			.nlink = 1,
			.size = i,
		};

		kvc_catalog_gate(c);
		kvc_catalog_lock(c);
		for (int n = 0; n < 8; n++) {
			r.ino += 1237;
			assert_int_equal(kvc_row_put(c, &r, NULL), 0);
		}
		kvc_catalog_seal(c);
		kvc_catalog_unlock(c);
		assert_int_equal(kvc_catalog_write(c), 0);
		peeked(c, &r);
		peeked(c, &r);
		kvc_catalog_state(c, &s);
		most = kvc_max(most, s.log_bytes);
	}
	print_message("the log was %llu KiB at most\n", (unsigned long long)most >> 10);
	/* without checkpoints it would be 100 times the limit; syncs of a busy disk delay them */
	assert_true(most > bound / 2 && most < 8 * bound);
	for (int i = 0; i < 300; i++) {
		kvc_catalog_state(c, &s);
		if (s.log_bytes <= 256 << 10)
			break;
		usleep(100000);
	}
	assert_true(s.log_bytes <= 256 << 10);
	kvc_catalog_lock(c);
	close_it(c);
	remove_dir();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_changes),    cmocka_unit_test(cached_names),
		cmocka_unit_test(read_without_lock), cmocka_unit_test(disk_fails),
		cmocka_unit_test(memory_fails),      cmocka_unit_test(log_bound),
	};

	mem_register();
	shim_register();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
