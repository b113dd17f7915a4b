/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Header updates after a rename (engine/tiering/header_rewrite.c), in the test's own engine with
 * the test's own tier. The header of a frame that is being removed is never written, since its
 * place may belong to another frame by then. If the tier fails, the update is tried again until it
 * is done.
 */
#include "engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* How many threads have reached this lock, with or without getting it. */
static pthread_mutex_t *_Atomic watched;
static _Atomic unsigned came;

/* The linker reserves these names for users of --wrap. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
	if (m == watched)
		came++;
	return __real_pthread_mutex_lock(m);
}

static _Atomic bool unread; /* the catalog cannot read an inode's name */
int __real_kvc_name_of(struct kvc_catalog *c, uint64_t ino, kvc_name_fn *fn, void *arg);
int __wrap_kvc_name_of(struct kvc_catalog *c, uint64_t ino, kvc_name_fn *fn, void *arg);
int __wrap_kvc_name_of(struct kvc_catalog *c, uint64_t ino, kvc_name_fn *fn, void *arg)
{
	return unread ? -EIO : __real_kvc_name_of(c, ino, fn, arg);
}
/* NOLINTEND(bugprone-reserved-identifier) */

static uint64_t folder;
static _Atomic bool inside, both, begun, go_on;

static uint64_t placed_at(uint64_t ino)
{
	struct kvc_node *n;
	uint64_t at = UINT64_MAX;

	kvc_lock(engine);
	n = kvc_node_find_locked(engine, ino);
	if (n && kvc_file_placed_in(n, 0) && n->state == KVC_BOTH && !n->copying)
		at = n->in[0].place.where.at;
	kvc_unlock(engine);
	return at;
}

/* Makes a file and waits for its copy. */
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

/* Stays in the call until the remover has reached the lock, or the place itself. */
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
	watched = &engine->deferred_free->rehead_lock[0];
	engine_tier.on_rehead = while_reheading;
	engine_tier.on_remove = while_removing;
	rename_it("a", "b");
	while (!begun)
		usleep(1000);
	assert_int_equal(came, 1);
	assert_int_equal(kvc_entry_unlink(engine, folder, "b", &w), 0);
	engine_forget(ino);
	/*
	 * The removal is queued when the commit is synced. Then it must wait for the lock; a
	 * remover that does not wait sets go_on.
	 */
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

/* The reverse: a frame that is being removed gets no new header. */
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
	watched = &engine->deferred_free->rehead_lock[0];
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

/* ---- failed updates are done later ---- */

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
 * Returns how many failed jobs are waiting, once no others are left. A job that will be tried again
 * counts as failed until a thread takes it.
 */
static unsigned waiting(void)
{
	unsigned again;
	bool busy;

	do {
		usleep(1000);
		kvc_lock(engine);
		again = engine->tier[0].queue.nfailed;
		busy = engine->work->running || engine->work->queued > again ||
		       !kvc_list_empty(&engine->tier[0].queue.jobs[KVC_P_PARKED]);
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
	waiting(); /* for jobs that began while it failed */
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
		/* the update is known to be pending, and the stored name is unchanged */
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

/* The rename happens when a running copy has its header and is not recorded yet. */
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
