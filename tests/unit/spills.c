/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies that fail (engine/tiering/spill.c), in the test's own engine with the test's own tier: how
 * long they wait, and what ends the wait. Also, which segments are open while another thread has
 * the lock.
 */
#include "engine.h"

#include "sweep.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static _Atomic uint64_t watched;
static _Atomic unsigned looked, in_use;

/* The linker reserves these names for users of --wrap. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
int __real_pthread_mutex_unlock(pthread_mutex_t *m);

/* Checks what the evictor would see whenever it could have the lock. */
static void look(void)
{
	struct kvc_node *n;
	struct kvc_segment seg;

	pthread_mutex_lock(&engine->lock.m);
	n = kvc_node_find_locked(engine, watched);
	if (n && n->state == KVC_BOTH && !n->segment.verify && !n->refs.opens && !n->refs.leases &&
	    !n->segment.snapshot) {
		kvc_file_close_segment_locked(engine, n);
		seg = kvc_file_segment_of(n);
		looked++;
		in_use += kvc_pool_segment_in_use(&engine->pool, &seg, false);
	}
	__real_pthread_mutex_unlock(&engine->lock.m);
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
	int err = __real_pthread_mutex_unlock(m);

	if (watched && m == &engine->lock.m)
		look();
	return err;
}
/* NOLINTEND(bugprone-reserved-identifier) */

static uint64_t folder;
static _Atomic unsigned failed;

static int refuse(uint64_t ino)
{
	(void)ino;
	failed++;
	return -EIO;
}

/* Returns the number of the retry list that the copy waits in; -1: in none. */
static int level_of(uint64_t ino)
{
	const struct kvc_node *n;
	int level = -1;

	kvc_lock(engine);
	n = kvc_node_find_locked(engine, ino);
	if (n && n->in[0].queued && n->in[0].queued->priority >= KVC_P_AGAIN &&
	    n->in[0].queued->priority < KVC_P_SPILL)
		level = (int)n->in[0].queued->priority - KVC_P_AGAIN;
	kvc_unlock(engine);
	return level;
}

static int waits(uint64_t ino)
{
	int level;

	while ((level = level_of(ino)) < 0)
		usleep(1000);
	return level;
}

static _Atomic bool woken;

static void wake(struct kvc_wait *w)
{
	(void)w;
	woken = true;
}

/* Calls fsync like a client, and returns its result. */
static int synced(uint64_t ino)
{
	struct kvc_wait w = { .wake = wake };
	int err;

	do {
		woken = false;
		if ((err = kvc_io_fsync(engine, ino, &w)) == KVC_WAIT) {
			while (!woken)
				usleep(1000);
			err = w.err;
		}
	} while (!err && w.stage != KVC_SYNC_DONE);
	return err;
}

/* An fsync that brings a copy forward does not lengthen its wait. */
static void hurried(void **state)
{
	uint64_t ino;
	unsigned before;

	(void)state;
	engine_tier.on_write = refuse;
	ino = engine_file(folder, "hurried");
	waits(ino);
	before = failed;
	for (int i = 0; i < KVC_AGAINS; i++)
		assert_int_equal(synced(ino), -EIO);
	assert_true(failed >= before + KVC_AGAINS);
	/* at most the level that it reaches by itself in this time on a busy machine */
	assert_true(waits(ino) < KVC_AGAINS - 2);
	engine_tier.on_write = NULL;
	assert_int_equal(synced(ino), 0);
}

/* Has every copy that was told to try again done so? */
static bool tried(void)
{
	bool is;

	kvc_lock(engine);
	is = kvc_list_empty(&engine->tier[0].queue.jobs[KVC_P_PARKED]) && !engine->work->running;
	kvc_unlock(engine);
	return is;
}

/* Makes the copy wait for two minutes, as after many failures. */
static void waits_long(uint64_t ino)
{
	waits(ino);
	kvc_lock(engine);
	kvc_node_find_locked(engine, ino)->spill.failures = KVC_AGAINS;
	kvc_tier_retry_locked(engine, 0);
	kvc_unlock(engine);
	while (level_of(ino) != KVC_AGAINS - 1 || !tried())
		usleep(1000);
}

static bool placed(uint64_t ino)
{
	const struct kvc_node *n;
	bool is;

	kvc_lock(engine);
	n = kvc_node_find_locked(engine, ino);
	is = n && kvc_file_placed_in(n, 0) && n->state != KVC_RESIDENT && !n->copying;
	kvc_unlock(engine);
	return is;
}

/* Returns true if the copy is made in less time than a long wait. */
static bool comes(uint64_t ino)
{
	for (int i = 0; i < 60000 && !placed(ino); i++)
		usleep(1000);
	return placed(ino);
}

/* When a tier accepts a copy, waiting copies are told to try again. */
static void others(void **state)
{
	uint64_t ino[2];

	(void)state;
	engine_tier.on_write = refuse;
	ino[0] = engine_file(folder, "one");
	ino[1] = engine_file(folder, "two");
	waits_long(ino[0]);
	waits_long(ino[1]);
	engine_tier.on_write = NULL;
	assert_true(comes(engine_file(folder, "three")));
	assert_true(comes(ino[0]));
	assert_true(comes(ino[1]));
}

static uint64_t bad;

static int refuse_bad(uint64_t ino)
{
	failed += ino == bad;
	return ino == bad ? -EIO : 0;
}

/* A copy that always fails is not tried each time another one is accepted. */
static void its_own_fault(void **state)
{
	char name[16];

	(void)state;
	engine_tier.on_write = refuse;
	bad = engine_file(folder, "bad");
	waits(bad);
	failed = 0;
	engine_tier.on_write = refuse_bad;
	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof name, "good%d", i);
		assert_true(comes(engine_file(folder, name)));
	}
	assert_true(failed < 30);
	engine_tier.on_write = NULL;
	assert_int_equal(synced(bad), 0);
}

static void flush(void)
{
	char words[] = "";
	bool done = false;
	FILE *answer = fopen("/dev/null", "w");

	assert_non_null(answer);
	assert_int_equal(kvc_sweep_begin(engine, "flush", words, answer), 0);
	fclose(answer);
	while (!done) {
		usleep(1000);
		kvc_lock(engine);
		done = engine->sweep->done;
		kvc_unlock(engine);
	}
}

/* A flush tries each copy once, including those of open files; then they wait again. */
static void flushed(void **state)
{
	struct kvc_opened o = { 0 };
	struct kvc_wait w = { 0 };
	struct kvc_row open;
	uint64_t ino;
	size_t n;

	(void)state;
	engine_tier.on_write = refuse;
	ino = engine_file(folder, "flushed");
	assert_int_equal(kvc_open_create(engine, folder, "open", S_IFREG | 0644, 0, 0,
					 O_RDWR | O_EXCL, &open, &o, &w),
			 0);
	assert_int_equal(kvc_io_write(engine, open.ino, "x", 1, 0, O_RDWR, &n, &w), 0);
	assert_int_equal(synced(open.ino), -EIO);
	waits_long(ino);
	waits_long(open.ino);
	failed = 0;
	flush();
	assert_int_equal(waits(ino), KVC_AGAINS - 1);
	assert_int_equal(waits(open.ino), KVC_AGAINS - 1);
	assert_int_equal(failed, 2);
	engine_tier.on_write = NULL;
	flush();
	assert_true(comes(ino));
	assert_true(comes(open.ino));
	kvc_open_release(engine, open.ino, O_RDWR, 0);
}

/*
 * An object that may be evicted has no open segment; otherwise, the evictor would take it for
 * mapped and evict another.
 */
static void closed(void **state)
{
	static const struct {
		const char *name;
		off_t at; /* after a hole: a file with holes has no sum */
	} files[] = { { "whole", 0 }, { "sparse", 20000 } };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct kvc_opened o = { 0 };
		struct kvc_wait w = { 0 };
		struct kvc_row r;
		size_t n;

		assert_int_equal(kvc_open_create(engine, folder, files[i].name, S_IFREG | 0644, 0,
						 0, O_RDWR | O_EXCL, &r, &o, &w),
				 0);
		assert_int_equal(kvc_io_write(engine, r.ino, "x", 1, files[i].at, O_RDWR, &n, &w),
				 0);
		assert_int_equal(synced(r.ino), 0);
		looked = in_use = 0;
		watched = r.ino;
		/* nothing was written since: it is compared, or copied again */
		kvc_open_release(engine, r.ino, O_RDWR, 0);
		assert_true(comes(r.ino));
		while (looked < 10)
			placed(r.ino);
		watched = 0;
		assert_int_equal(in_use, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hurried),       cmocka_unit_test(others),
		cmocka_unit_test(its_own_fault), cmocka_unit_test(flushed),
		cmocka_unit_test(closed),
	};
	int wrong;

	engine_new("");
	engine_start();
	folder = engine_folder(KVC_ROOT, "m");
	wrong = cmocka_run_group_tests_name("spills", tests, NULL, NULL);
	engine_end();
	return wrong;
}
