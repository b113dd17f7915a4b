/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Headers are rewritten after a rename (engine/tiering/header_rewrite.c), in an engine of the
 * test's own with a tier of the test's own: never of a frame that is being removed, whose place may
 * be another's by then; and where the tier fails it is tried again until it is done.
 */
#include "engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* How many have come for this lock, whether they have it or not. */
static pthread_mutex_t *_Atomic watched;
static _Atomic unsigned came;

/* The linker has reserved these names for who uses them (--wrap). */
/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
	if (m == watched)
		came++;
	return __real_pthread_mutex_lock(m);
}

static _Atomic bool unread; /* the catalog cannot tell what an inode's name is */
int __real_kvc_name_of(struct kvc_catalog *c, uint64_t ino, kvc_name_fn *fn, void *arg);
int __wrap_kvc_name_of(struct kvc_catalog *c, uint64_t ino, kvc_name_fn *fn, void *arg);
int __wrap_kvc_name_of(struct kvc_catalog *c, uint64_t ino, kvc_name_fn *fn, void *arg)
{
	return unread ? -EIO : __real_kvc_name_of(c, ino, fn, arg);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

static uint64_t folder;
static _Atomic bool inside, both, begun, go_on;

static uint64_t placed_at(uint64_t ino)
{
	struct kvc_node *n;
	uint64_t at = UINT64_MAX;

	kvc_lock(engine);
	n = kvc_node_find_locked(engine, ino);
	if (n && kvc_file_placed_in(n, 0) && n->state == KVC_BOTH && !n->spilling)
		at = n->in[0].place.where.at;
	kvc_unlock(engine);
	return at;
}

/* A file that was copied down. */
static uint64_t copied(const char *name, uint64_t *at)
{
	uint64_t ino = engine_file(folder, name);

	while ((*at = placed_at(ino)) == UINT64_MAX)
		usleep(1000);
	return ino;
}

static void rename_it(const char *from, const char *to)
{
	struct kvc_wait w = { 0 };

	assert_int_equal(kvc_rename(engine, folder, from, folder, to, 0, &w), 0);
}

/* Stays until the remover has come to the lock, or to the place itself. */
static int while_reheading(uint64_t at, const struct kvc_frame *f)
{
	(void)at;
	(void)f;
	inside = begun = true;
	while (!go_on)
		usleep(1000);
	inside = false;
	return 0;
}

static int while_removing(uint64_t at)
{
	(void)at;
	both |= inside;
	go_on = true;
	return 0;
}

static void not_of_what_goes(void **state)
{
	struct kvc_wait w = { 0 };
	uint64_t at, ino;

	(void)state;
	ino = copied("a", &at);
	watched = &engine->deferred_free->rehead_lock;
	engine_tier.on_rehead = while_reheading;
	engine_tier.on_remove = while_removing;
	rename_it("a", "b");
	while (!begun)
		usleep(1000);
	assert_int_equal(came, 1);
	assert_int_equal(kvc_entry_unlink(engine, folder, "b", &w), 0);
	engine_forget(ino);
	/* the removal is queued when the commit is synced; now it waits, or it does not */
	while (came < 2 && !go_on)
		usleep(1000);
	assert_false(go_on);
	assert_int_equal(engine_tier.removes, 0);
	go_on = true;
	while (!engine_tier.removes)
		usleep(1000);
	assert_false(both);
	engine_tier.on_rehead = NULL;
	engine_tier.on_remove = NULL;
	watched = NULL;
}

/* And the other way round: what is being removed gets no header any more. */
static int slow_removal(uint64_t at)
{
	(void)at;
	inside = begun = true;
	while (!go_on)
		usleep(1000);
	inside = false;
	return 0;
}

static int late_header(uint64_t at, const struct kvc_frame *f)
{
	(void)at;
	(void)f;
	both |= inside;
	go_on = true;
	return 0;
}

static void nor_while_others_go(void **state)
{
	struct kvc_wait w = { 0 };
	uint64_t at, ino = copied("c", &at);
	unsigned reheads = engine_tier.reheads;

	(void)state;
	copied("d", &at);
	came = 0;
	begun = go_on = both = false;
	engine_tier.on_remove = slow_removal;
	engine_tier.on_rehead = late_header;
	watched = &engine->deferred_free->rehead_lock;
	assert_int_equal(kvc_entry_unlink(engine, folder, "c", &w), 0);
	engine_forget(ino);
	while (!begun)
		usleep(1000);
	rename_it("d", "e");
	while (came < 2 && !go_on)
		usleep(1000);
	assert_false(go_on);
	go_on = true;
	while (engine_tier.reheads == reheads)
		usleep(1000);
	assert_false(both);
	engine_tier.on_rehead = NULL;
	engine_tier.on_remove = NULL;
	watched = NULL;
}

/* ---- what fails is done later ---- */

static _Atomic unsigned failed;

static int no_header(uint64_t at, const struct kvc_frame *f)
{
	(void)at;
	(void)f;
	failed++;
	return -EIO;
}

static int no_read(uint64_t at)
{
	(void)at;
	failed++;
	return -EIO;
}

/*
 * How many jobs there are that failed and wait, when no others are left. One that is to be tried
 * counts as failed until a thread takes it: it is looked for where those stand.
 */
static unsigned waiting(void)
{
	unsigned again;
	bool busy;

	do {
		usleep(1000);
		kvc_lock(engine);
		again = engine->tier[0].nagain;
		busy = engine->work->running || engine->work->queued > again ||
		       !kvc_list_empty(&engine->tier[0].jobs[KVC_P_PARKED]);
		kvc_unlock(engine);
	} while (busy);
	return again;
}

static const char *name_in(uint64_t at)
{
	static struct kvc_frame f;

	assert_int_equal(engine_header(at, &f), 0);
	return f.path;
}

static void heal(void)
{
	engine_tier.on_get = NULL;
	engine_tier.on_rehead = NULL;
	unread = false;
	waiting(); /* for what was begun while it failed */
	kvc_lock(engine);
	kvc_tier_retry_locked(engine, 0);
	kvc_unlock(engine);
}

static void again_until_done(void **state)
{
	uint64_t at;

	(void)state;
	copied("f0", &at);
	assert_string_equal(name_in(at), "m/f0");
	for (int i = 0; i < 3; i++) {
		char from[8], to[8], old[16], new[16];

		snprintf(from, sizeof from, "f%d", i);
		snprintf(to, sizeof to, "f%d", i + 1);
		snprintf(old, sizeof old, "m/%s", from);
		snprintf(new, sizeof new, "m/%s", to);
		failed = 0;
		if (i == 0)
			engine_tier.on_rehead = no_header;
		else if (i == 1)
			engine_tier.on_get = no_read;
		else
			unread = true;
		rename_it(from, to);
		/* it is known that it is not done, and what is there is as it was */
		assert_int_equal(waiting(), 1);
		assert_true(failed || unread);
		assert_string_equal(name_in(at), old);
		heal();
		assert_int_equal(waiting(), 0);
		assert_string_equal(name_in(at), new);
	}
}

static void renames(uint64_t ino)
{
	(void)ino;
	engine_tier.on_put = NULL;
	rename_it("g", "h");
	begun = true;
}

/* Renamed when the copy that is made has its header, and is not recorded. */
static void under_a_copy(void **state)
{
	struct kvc_row r;
	struct kvc_node *n;
	uint64_t at;

	(void)state;
	begun = false;
	engine_tier.on_put = renames;
	engine_file(folder, "g");
	while (!begun)
		usleep(1000);
	while (waiting())
		;
	assert_int_equal(kvc_lookup(engine, folder, "h", &r, NULL), 0);
	kvc_lock(engine);
	n = kvc_node_find_locked(engine, r.ino);
	at = n->in[0].place.where.at;
	assert_true(kvc_file_placed_in(n, 0));
	kvc_unlock(engine);
	assert_string_equal(name_in(at), "m/h");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(not_of_what_goes),
		cmocka_unit_test(nor_while_others_go),
		cmocka_unit_test(again_until_done),
		cmocka_unit_test(under_a_copy),
	};
	int wrong;

	engine_new("");
	engine_start();
	folder = engine_folder(KVC_ROOT, "m");
	wrong = cmocka_run_group_tests_name("heads", tests, NULL, NULL);
	engine_end();
	return wrong;
}
