/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that the disk's policy has given up leave the disk in their order, refused ones first.
 * Those that were used a moment ago stay given up until then: they do not return to the policy, and
 * meanwhile it loses no chunk that it keeps. The engine has no threads; the test makes the turns of
 * the trimmer.
 */
#include "engine.h"
#include "disk_victims.h"
#include "evict.h"
#include "replacers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define FILES 6
#define GIVEN_UP 4 /* the files from 0 on; the others are kept */
#define LATER_NS 1000000000ull

static uint64_t chunk[FILES];
static struct kvc_trimmer *trimmer;

/* Is the chunk in the replacer of the disk tier? */
static bool is_kept(uint64_t id)
{
	bool is;

	kvc_lock(engine);
	is = kvc_replacers_has_row_locked(engine, KVC_CACHE_DISK,
					  &(struct kvc_chunk_row){ .id = id });
	kvc_unlock(engine);
	return is;
}

static bool is_given_up(uint64_t id)
{
	bool is;

	kvc_lock(engine);
	is = kvc_disk_victims_has_locked(engine, id);
	kvc_unlock(engine);
	return is;
}

static void give_up(uint64_t id, bool refused)
{
	struct kvc_chunk_row r = { .id = id };

	kvc_lock(engine);
	kvc_replacers_extract_locked(engine, KVC_CACHE_DISK, &r);
	assert_int_equal(kvc_disk_victims_add_locked(engine, &(struct kvc_disk_victim){ .id = id },
						     HOUSE_SLOT, refused),
			 0);
	kvc_unlock(engine);
}

static void begin(void)
{
	uint64_t model;
	char name[16];

	engine_new("policy=prefix,unit=file");
	model = engine_folder(KVC_ROOT, "model");
	for (unsigned i = 0; i < FILES; i++) {
		snprintf(name, sizeof name, "f%u", i);
		chunk[i] = engine_file(model, name);
		engine_place(chunk[i]);
	}
	engine_commit();
	for (unsigned i = 0; i < FILES; i++) {
		kvc_lock(engine);
		kvc_replacers_restore_locked(engine, KVC_CACHE_DISK,
					     &(struct kvc_chunk_row){ .id = chunk[i] }, HOUSE_SLOT);
		kvc_unlock(engine);
		assert_true(is_kept(chunk[i]));
	}
	/* given up: 0 and 1; refused: 2 and 3 */
	for (unsigned i = 0; i < GIVEN_UP; i++)
		give_up(chunk[i], i >= 2);
	trimmer = kvc_trimmer_new(engine, KVC_DISK, 0);
	assert_non_null(trimmer);
}

static void end(void)
{
	kvc_trimmer_free(trimmer);
	engine_end();
}

static void a_chunk_that_was_just_used_stays_given_up(void **state)
{
	bool hopeful;

	(void)state;
	begin();
	for (int walk = 0; walk < 3; walk++) {
		assert_false(kvc_trimmer_turn(trimmer, FILES * HOUSE_SLOT, &hopeful));
		assert_true(hopeful);
		for (unsigned i = 0; i < FILES; i++) {
			assert_int_equal(is_given_up(chunk[i]), i < GIVEN_UP);
			assert_int_equal(is_kept(chunk[i]), i >= GIVEN_UP);
		}
		assert_int_equal(engine->disk_victims->bytes, GIVEN_UP * HOUSE_SLOT);
	}
	end();
}

static void refused_chunks_leave_first(void **state)
{
	static const unsigned order[GIVEN_UP] = { 2, 3, 0, 1 };
	bool hopeful;

	(void)state;
	begin();
	kvc_trimmer_turn(trimmer, HOUSE_SLOT, &hopeful); /* a walk changes no order */
	engine_later_ns += LATER_NS;
	for (unsigned i = 0; i < GIVEN_UP; i++) {
		while (is_given_up(chunk[order[i]])) {
			for (unsigned j = i; j < GIVEN_UP; j++)
				assert_true(is_given_up(chunk[order[j]]));
			kvc_trimmer_turn(trimmer, 1, &hopeful);
			engine_commit();
		}
	}
	assert_int_equal(engine->disk_victims->bytes, 0);
	for (unsigned i = GIVEN_UP; i < FILES; i++)
		assert_true(is_kept(chunk[i]));
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_chunk_that_was_just_used_stays_given_up),
		cmocka_unit_test(refused_chunks_leave_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
