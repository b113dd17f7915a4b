/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls from any thread wait for the lock of the state that they read or change: each is made while
 * another thread holds the lock, and must not end before it is released.
 */
#include "engine.h"
#include "notify.h"
#include "latency.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static pthread_mutex_t *_Atomic watched;
static _Atomic bool ready, go_on, came, done;

/* The linker reserves these names for programs that use them (--wrap). */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
	if (m == watched)
		came = true;
	return __real_pthread_mutex_lock(m);
}

static _Atomic unsigned pauses;
int __real_usleep(useconds_t us);
int __wrap_usleep(useconds_t us);
int __wrap_usleep(useconds_t us)
{
	pauses++;
	return __real_usleep(us);
}
/* NOLINTEND(bugprone-reserved-identifier) */

static uint64_t folder, file;
static struct kvc_list trash;

static pthread_mutex_t *tree(void)
{
	return (pthread_mutex_t *)&kvc_catalog_lock_of(engine->cat)->m;
}

static pthread_mutex_t *objects(void)
{
	return &engine->lock.m;
}

static pthread_mutex_t *notices(void)
{
	return &engine->notices->lock;
}

static pthread_mutex_t *slow(void)
{
	return &engine->latency->lock;
}

static void peek_name(void)
{
	struct kvc_peek p;

	assert_int_equal(kvc_peek_name(engine->cat, folder, "a", kvc_name_hash("a"), &p), 0);
}

static void peek_node(void)
{
	struct kvc_peek p = { .ino = file };

	assert_int_equal(kvc_peek_node(engine->cat, &p), 0);
}

static void peek_rows(void)
{
	struct kvc_peeked p[4];
	size_t n;

	assert_int_equal(kvc_peek_rows(engine->cat, 0, INT64_MAX, 4, p, &n), 0);
}

/* Only the thread that seals may use the connection that writes. */
static void seal(void)
{
	engine_file(folder, "b");
	kvc_catalog_lock(engine->cat);
	kvc_catalog_seal(engine->cat);
	kvc_catalog_unlock(engine->cat);
}

static void write_sealed(void)
{
	assert_int_equal(kvc_catalog_write(engine->cat), 0);
}

static void getattr(void)
{
	struct kvc_row r;

	assert_int_equal(kvc_entry_getattr(engine, file, &r), 0);
}

static void open_file(void)
{
	struct kvc_opened o = { 0 };
	struct kvc_wait w = { 0 };

	assert_int_equal(kvc_open_file(engine, file, O_RDONLY, &o, &w), 0);
}

static void file_fd(void)
{
	assert_true(kvc_open_fd(engine, file) >= 0);
}

static void release(void)
{
	kvc_open_release(engine, file, O_RDONLY, 0);
}

static void forget(void)
{
	kvc_entry_forget(engine, file, 0);
}

static void waits_end(void)
{
	kvc_waits_end(engine);
}

static void stopping(void)
{
	assert_false(kvc_stopping(engine));
}

/*
 * A deleted object is freed after the next commit; here it is taken as if the commit had happened.
 */
static void delete_one(void)
{
	struct kvc_wait w = { 0 };
	uint64_t ino = engine_file(folder, "c");

	assert_int_equal(kvc_entry_unlink(engine, folder, "c", &w), 0);
	engine_forget(ino);
	kvc_list_init(&trash);
	kvc_lock(engine);
	kvc_list_splice(&trash, &engine->deferred_free->list);
	kvc_unlock(engine);
	assert_false(kvc_list_empty(&trash));
}

static void trash_committed(void)
{
	kvc_deferred_free_committed(engine, &trash);
}

static void notify(void)
{
	kvc_notify(engine, KVC_NOTICE_PRUNE, 0, file);
}

static void notify_stop(void)
{
	kvc_notify_stop(engine);
}

static void took(void)
{
	kvc_latency_record(engine, KVC_OP_commit, KVC_OF_POOL, 0, 0);
}

static void slowest(void)
{
	struct kvc_latency_slow v[KVC_SLOWEST];

	assert_true(kvc_latency_slowest(engine, v));
}

static const struct call {
	const char *what;
	pthread_mutex_t *(*lock)(void);
	void (*before)(void); /* prepares the call, without the lock; or NULL */
	void (*call)(void);
} calls[] = {
	{ "a name of the overlay", tree, NULL, peek_name },
	{ "a row of the overlay", tree, NULL, peek_node },
	{ "rows of the overlay", tree, NULL, peek_rows },
	{ "a batch that was written", tree, seal, write_sealed },
	{ "a file's attributes", objects, NULL, getattr },
	{ "an open", objects, NULL, open_file },
	{ "a file's descriptor", objects, NULL, file_fd },
	{ "a close", objects, NULL, release },
	{ "what the kernel forgets", objects, NULL, forget },
	{ "the end of all waits", objects, NULL, waits_end },
	{ "the end", objects, NULL, stopping },
	{ "room of what is deleted", objects, delete_one, trash_committed },
	{ "a notice", notices, NULL, notify },
	{ "how long it took", slow, took, took },
	{ "what took longest", slow, took, slowest },
	{ "the end of notices", notices, NULL, notify_stop },
};

static void *caller(void *arg)
{
	const struct call *c = arg;

	if (c->before)
		c->before();
	ready = true;
	while (!go_on)
		usleep(100);
	c->call();
	done = true;
	return NULL;
}

static void each_waits(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
		const struct call *c = &calls[i];
		pthread_mutex_t *lock = c->lock();
		pthread_t thread;
		bool ended;

		ready = go_on = came = done = false;
		assert_int_equal(pthread_create(&thread, NULL, caller, (void *)c), 0);
		while (!ready)
			usleep(100);
		__real_pthread_mutex_lock(lock);
		if (lock == objects())
			kvc_joint_close(engine->joint);
		watched = lock;
		go_on = true;
		while (!came && !done)
			usleep(100);
		ended = done;
		watched = NULL;
		pthread_mutex_unlock(lock);
		pthread_join(thread, NULL);
		if (ended)
			fail_msg("%s: it did not wait for its lock", c->what);
	}
}

struct waited {
	unsigned long long waits, waited_us, blocks;
};

/* Returns the figures of the places of a lock that are in this function. */
static struct waited waited_in(const struct kvc_lock *l, const char *lock, const char *function)
{
	char *text = NULL, *save = NULL, at[64];
	struct waited sum = { 0 };
	size_t len;
	FILE *out = open_memstream(&text, &len);

	assert_non_null(out);
	kvc_lock_waits_print(l, lock, out);
	assert_int_equal(fclose(out), 0);
	snprintf(at, sizeof at, "%s:%s:", lock, function);
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		struct waited v;

		if (strncmp(line, at, strlen(at)) != 0)
			continue;
		line = strchr(line, ' ');
		assert_non_null(line);
		assert_int_equal(sscanf(line, "%llu %llu %llu", &v.waits, &v.waited_us, &v.blocks),
				 3);
		sum.waits += v.waits;
		sum.waited_us += v.waited_us;
		sum.blocks += v.blocks;
	}
	free(text);
	return sum;
}

static void *waiter(void *arg)
{
	(void)arg;
	getattr();
	done = true;
	return NULL;
}

/* A wait is counted at the place of the waiting thread, and at the place of the lock's holder. */
static void waits_are_counted(void **state)
{
	const char *here = __func__;
	struct waited of, by;
	pthread_t thread;

	(void)state;
	of = waited_in(&engine->lock, "objects", "kvc_entry_getattr");
	by = waited_in(&engine->lock, "objects", here);
	done = came = false;
	watched = objects();
	kvc_lock(engine);
	assert_int_equal(pthread_create(&thread, NULL, waiter, NULL), 0);
	while (!came)
		__real_usleep(100);
	__real_usleep(2000);
	assert_false(done);
	kvc_unlock(engine);
	pthread_join(thread, NULL);
	watched = NULL;
	assert_true(waited_in(&engine->lock, "objects", "kvc_entry_getattr").waits == of.waits + 1);
	assert_true(waited_in(&engine->lock, "objects", "kvc_entry_getattr").waited_us >=
		    of.waited_us + 2000);
	assert_true(waited_in(&engine->lock, "objects", here).blocks == by.blocks + 1);
	assert_true(waited_in(&engine->lock, "tree", here).blocks == 0);
}

/*
 * Counts the pauses of a commit of `files` new files while a thread waits for the objects' lock.
 */
static unsigned pauses_of(unsigned files)
{
	char name[16];

	for (unsigned i = 0; i < files; i++) {
		snprintf(name, sizeof name, "p%u.%u", files, i);
		engine_file(folder, name);
	}
	pauses = 0;
	atomic_fetch_add(&engine->lock.waiting, 1);
	engine_commit();
	atomic_fetch_sub(&engine->lock.waiting, 1);
	return pauses;
}

/*
 * The committer pauses between two holds, and not after the last: on a busy machine a pause takes a
 * time slice, and an fsync waits for it.
 */
static void a_small_commit_does_not_pause(void **state)
{
	(void)state;
	assert_int_equal(pauses_of(3), 0);
	assert_true(pauses_of(200) > 0);
}

static int begin(void **state)
{
	(void)state;
	engine_new("");
	folder = engine_folder(KVC_ROOT, "m");
	file = engine_file(folder, "a");
	engine_commit();
	return 0;
}

static int end(void **state)
{
	struct kvc_wait w = { 0 };

	(void)state;
	assert_int_equal(kvc_entry_unlink(engine, folder, "a", &w), 0);
	assert_int_equal(kvc_entry_unlink(engine, folder, "b", &w), 0);
	engine_commit();
	engine_end();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_waits),
		cmocka_unit_test(waits_are_counted),
		cmocka_unit_test(a_small_commit_does_not_pause),
	};

	return cmocka_run_group_tests_name("locks", tests, begin, end);
}
