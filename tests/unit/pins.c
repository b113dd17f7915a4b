/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinned chunks cost the evictor nothing: it meets each one once, and the chunk then stays out of
 * the eviction order until its pin does not hold any more. The test counts chunks that are met.
 * Only the evictor's thread runs.
 */
#include "engine.h"
#include "evict.h"
#include "pin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define FILES 100
#define PASSES 8 /* the call would be refused only after more passes */
#define OLD_NS 1000000000ull

static _Atomic unsigned met, passes;

/* The linker reserves these names (--wrap). */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
struct kvc_chunk *__real_kvc_chunk_pop_locked(struct kvc *k);
struct kvc_chunk *__wrap_kvc_chunk_pop_locked(struct kvc *k);
struct kvc_chunk *__wrap_kvc_chunk_pop_locked(struct kvc *k)
{
	struct kvc_chunk *c = __real_kvc_chunk_pop_locked(k);

	if (c)
		met++;
	else
		passes++;
	return c;
}
/* NOLINTEND(bugprone-reserved-identifier) */

static uint64_t model, ino[FILES];
static pthread_t evictor;

static void woken(struct kvc_wait *w)
{
	(void)w;
}

static void pin(unsigned i, const char *value)
{
	assert_int_equal(kvc_setxattr(engine, ino[i], "user.kvcachefs.pin", value, strlen(value), 0,
				      NULL, NULL),
			 0);
}

/*
 * A store needs the whole pool, for some passes and until `least` chunks were met. Returns the
 * number of chunks met.
 */
static unsigned pressed(unsigned least)
{
	struct kvc_wait w = { .wake = woken };

	met = passes = 0;
	kvc_lock(engine);
	engine->reservations.stuck = 0;
	assert_int_equal(kvc_reservation_get_locked(engine, engine->pool.bytes, &w), KVC_WAIT);
	kvc_unlock(engine);
	for (int i = 0; i < 20000 && (least ? met < least : passes < PASSES); i++)
		usleep(1000);
	if (least ? met < least : passes < PASSES)
		fail_msg("%u passes met %u chunks", passes, met);
	kvc_lock(engine);
	kvc_list_del(&w.link);      /* refused, or still waiting */
	engine->waits.timed = NULL; /* it was the only one */
	kvc_unlock(engine);
	return met;
}

static void once(void **state)
{
	unsigned n;

	(void)state;
	n = pressed(FILES);
	if (n != FILES)
		fail_msg("%u chunks were met, of %u that are pinned", n, FILES);
	/* they are not met again, however long stores wait */
	assert_int_equal(pressed(0), 0);
}

/* A pin that ends returns its chunk to the order; so does a pin of a user over its limit. */
static void back(void **state)
{
	(void)state;
	pin(0, "0");
	assert_true(pressed(1) >= 1);
	pin(0, "1");
	assert_true(pressed(1) >= 1);
	assert_int_equal(pressed(0), 0);
	kvc_lock(engine);
	engine->opt.pins_pct = 0; /* all pins are over the limit now */
	kvc_unlock(engine);
	assert_true(pressed(FILES) >= FILES);
	kvc_lock(engine);
	engine->opt.pins_pct = 50;
	kvc_unlock(engine);
	pressed(FILES);
	assert_int_equal(pressed(0), 0);
	/* a chunk that is out of the order is freed with its file */
	for (unsigned i = 0; i < FILES / 2; i++) {
		struct kvc_wait w = { 0 };
		char name[16];

		snprintf(name, sizeof name, "f%u", i);
		assert_int_equal(kvc_entry_unlink(engine, model, name, &w), 0);
		engine_forget(ino[i]);
	}
	engine_commit();
	assert_int_equal(pressed(0), 0);
}

static int begin(void **state)
{
	char name[16];

	(void)state;
	engine_new("pins=50");
	model = engine_folder(KVC_ROOT, "m");
	assert_int_equal(
		kvc_setxattr(engine, model, "user.kvcachefs.unit", "file", 4, 0, NULL, NULL), 0);
	for (unsigned i = 0; i < FILES; i++) {
		snprintf(name, sizeof name, "f%u", i);
		ino[i] = engine_file(model, name);
		pin(i, "1");
	}
	engine_commit();
	engine_later_ns += OLD_NS;
	return pthread_create(&evictor, NULL, kvc_evictor, engine);
}

static int end(void **state)
{
	(void)state;
	kvc_lock(engine);
	engine->stopping = true;
	pthread_cond_broadcast(&engine->reservations.pressed);
	kvc_unlock(engine);
	pthread_join(evictor, NULL);
	kvc_lock(engine);
	engine->stopping = false;
	kvc_unlock(engine);
	engine_end();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(once),
		cmocka_unit_test(back),
	};

	return cmocka_run_group_tests_name("pins", tests, begin, end);
}
