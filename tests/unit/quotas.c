/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models above their quotas take turns: a store in one model waits for one turn of another model
 * that must lose many chunks, not until all of them are dropped. And a store is refused only after
 * a commit has shown the keeper every chunk of the model. Only the keeper's thread runs here; drops
 * are counted.
 */
#include "engine.h"
#include "committer.h"
#include "evict.h"
#include "model_quota.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MANY 400
#define SOME 20
#define TURN 64 /* maximum number of chunks that one turn of a model drops */
#define OLD_NS 1000000000ull

static uint64_t large, small; /* models */
static uint64_t last_large;   /* the newest file of `large` */
static _Atomic unsigned dropped_large, dropped_small, before_small, looks;

/* The linker reserves these names for users of --wrap. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
int __real_kvc_chunk_drop(struct kvc *k, uint64_t id, int tier, enum kvc_reason why,
			  const struct kvc_chunk_row *seen, uint64_t *bytes);
int __wrap_kvc_chunk_drop(struct kvc *k, uint64_t id, int tier, enum kvc_reason why,
			  const struct kvc_chunk_row *seen, uint64_t *bytes);
int __wrap_kvc_chunk_drop(struct kvc *k, uint64_t id, int tier, enum kvc_reason why,
			  const struct kvc_chunk_row *seen, uint64_t *bytes)
{
	if (id <= last_large)
		dropped_large++;
	else if (!dropped_small++)
		before_small = dropped_large;
	return __real_kvc_chunk_drop(k, id, tier, why, seen, bytes);
}

bool __real_kvc_trimmer_turn(struct kvc_trimmer *t, uint64_t goal, bool *hopeful);
bool __wrap_kvc_trimmer_turn(struct kvc_trimmer *t, uint64_t goal, bool *hopeful);
bool __wrap_kvc_trimmer_turn(struct kvc_trimmer *t, uint64_t goal, bool *hopeful)
{
	looks++;
	return __real_kvc_trimmer_turn(t, goal, hopeful);
}
/* NOLINTEND(bugprone-reserved-identifier) */

static void set(uint64_t model, const char *name, const char *value)
{
	char full[64];

	snprintf(full, sizeof full, "user.kvcachefs.%s", name);
	assert_int_equal(kvc_setxattr(engine, model, full, value, strlen(value), 0, NULL, NULL), 0);
}

/* Sets a quota, also one below the minimum of the attribute. */
static void bound(uint64_t model, uint64_t limit)
{
	kvc_lock_both(engine);
	assert_int_equal(kvc_model_quota_set_both(engine, model, limit), 0);
	kvc_unlock_both(engine);
}

static uint64_t files(uint64_t model, unsigned n)
{
	uint64_t last = 0;
	char name[16];

	for (unsigned i = 0; i < n; i++) {
		snprintf(name, sizeof name, "f%u", i);
		last = engine_file(model, name);
	}
	return last;
}

static void begin(unsigned many)
{
	engine_new("");
	large = engine_folder(KVC_ROOT, "large");
	small = engine_folder(KVC_ROOT, "small");
	set(large, "unit", "file");
	set(small, "unit", "file");
	bound(large, 40u << 20);
	bound(small, SOME * 8192);
	last_large = files(large, many);
	dropped_large = dropped_small = before_small = looks = 0;
}

static void woken(struct kvc_wait *w)
{
	(void)w;
}

/* A store into the model that has reached its quota. */
static void store(struct kvc_wait *w)
{
	struct kvc_opened o = { 0 };
	struct kvc_row r;
	uint8_t bytes[HOUSE_FILE] = { 0 };
	size_t n;

	*w = (struct kvc_wait){ .wake = woken };
	assert_int_equal(kvc_open_create(engine, small, "one more", S_IFREG | 0644, 0, 0,
					 O_RDWR | O_EXCL, &r, &o, w),
			 0);
	assert_int_equal(kvc_io_write(engine, r.ino, bytes, sizeof bytes, 0, O_RDWR, &n, w),
			 KVC_WAIT);
}

static bool granted(const struct kvc_wait *w)
{
	bool is;

	kvc_lock(engine);
	is = w->quota_granted;
	kvc_unlock(engine);
	return is;
}

static int refused(const struct kvc_wait *w)
{
	int err;

	kvc_lock(engine);
	err = w->err;
	kvc_unlock(engine);
	return err;
}

static void stop(void)
{
	kvc_lock(engine);
	engine->stopping = true;
	kvc_unlock(engine);
	kvc_quota_keeper_stop(engine);
	kvc_lock(engine);
	engine->stopping = false;
	kvc_list_init(&engine->waits.woken);
	engine->waits.timed = NULL;
	kvc_unlock(engine);
	engine_end();
}

static void turns(void **state)
{
	struct kvc_wait w;

	(void)state;
	begin(MANY);
	files(small, SOME);
	engine_commit();
	engine_later_ns += OLD_NS;
	store(&w);
	bound(large, 8192);
	assert_int_equal(kvc_quota_keeper_start(engine), 0);
	for (int i = 0; i < 10000 && !(granted(&w) && dropped_large >= MANY - 1); i++)
		usleep(1000);
	assert_true(granted(&w));
	assert_true(dropped_large >= MANY - 1);
	if (before_small > 2 * TURN)
		fail_msg("%u chunks of another model went first", before_small);
	stop();
}

/*
 * Uncommitted chunks have no rows, so the walks cannot see them. That is no reason to refuse a
 * store.
 */
static void uncommitted(void **state)
{
	struct kvc_wait w;

	(void)state;
	begin(1);
	engine_commit();
	files(small, SOME);
	engine_later_ns += OLD_NS;
	store(&w);
	assert_int_equal(kvc_quota_keeper_start(engine), 0);
	for (int i = 0; i < 10000 && looks < 40; i++)
		usleep(1000);
	assert_true(looks >= 40);
	assert_int_equal(refused(&w), 0);
	assert_false(granted(&w));
	engine_commit();
	engine_commit();
	for (int i = 0; i < 10000 && !granted(&w); i++)
		usleep(1000);
	assert_true(granted(&w));
	assert_int_equal(refused(&w), 0);
	stop();
}

/* If no chunk of the model can be dropped, the store is refused as soon as that is known. */
static void nothing(void **state)
{
	struct kvc_opened o;
	struct kvc_wait w;
	struct kvc_row r;
	char name[16];

	(void)state;
	begin(1);
	files(small, SOME);
	for (unsigned i = 0; i < SOME; i++) {
		snprintf(name, sizeof name, "f%u", i);
		assert_int_equal(kvc_lookup(engine, small, name, &r, NULL), 0);
		o = (struct kvc_opened){ 0 };
		w = (struct kvc_wait){ .wake = woken };
		assert_int_equal(kvc_open_file(engine, r.ino, O_RDONLY, &o, &w), 0);
	}
	engine_commit();
	engine_later_ns += OLD_NS;
	store(&w);
	assert_int_equal(kvc_quota_keeper_start(engine), 0);
	/* the commits that count begin after the keeper has found nothing */
	for (int i = 0; i < 10000 && looks < 10; i++)
		usleep(1000);
	assert_true(looks >= 10);
	assert_int_equal(refused(&w), 0);
	engine_commit();
	engine_commit();
	for (int i = 0; i < 10000 && !refused(&w); i++)
		usleep(1000);
	assert_int_equal(refused(&w), -EDQUOT);
	assert_int_equal(dropped_large, 0);
	for (unsigned i = 0; i < SOME; i++) {
		snprintf(name, sizeof name, "f%u", i);
		assert_int_equal(kvc_lookup(engine, small, name, &r, NULL), 0);
		kvc_open_release(engine, r.ino, O_RDONLY, 0);
	}
	stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(turns),
		cmocka_unit_test(uncommitted),
		cmocka_unit_test(nothing),
	};

	return cmocka_run_group_tests_name("quotas", tests, NULL, NULL);
}
