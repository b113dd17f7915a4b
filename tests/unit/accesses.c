/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The eviction order after a kill: how far the rows of chunks are behind their accesses. No
 * committer thread runs until the last test; before it, each transaction is a call by this test.
 */
#include "access_save.h"
#include "committer.h"
#include "engine.h"
#include "replacers.h"
#include "membership.h"
#include "store.h"
#include "access.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define FILES 200u
#define SECOND_NS 1000000000ull
#define HOUR_NS (3600 * SECOND_NS)
#define TURNS 4u /* transactions of 64 rows that hold all chunks */

static uint64_t ino[FILES];

static uint64_t rows_written(void)
{
	return kvc_counted(&engine->stats, access_rows);
}

static void credit(int64_t bytes)
{
	kvc_lock(engine);
	engine->committer->accesses.credit = bytes;
	engine->committer->accesses.credit_ns = kvc_mono_ns();
	kvc_unlock(engine);
}

static void use(unsigned i)
{
	kvc_lock(engine);
	kvc_access_record_locked(engine, kvc_chunk_find_locked(engine, ino[i]), ino[i], 0, true);
	kvc_unlock(engine);
	engine_later_ns += SECOND_NS;
}

static uint64_t last_use(unsigned i)
{
	uint64_t ns;

	kvc_lock(engine);
	ns = kvc_chunk_find_locked(engine, ino[i])->use.last_ns;
	kvc_unlock(engine);
	return ns;
}

static uint64_t stored(unsigned i)
{
	struct kvc_chunk_row r;

	kvc_lock_both(engine);
	assert_int_equal(kvc_chunk_get(engine->cat, ino[i], &r), 0);
	kvc_unlock_both(engine);
	return r.last_ns;
}

/* Loads the file's node, and with it its chunk. */
static void in_memory(unsigned i)
{
	struct kvc_node *n;

	kvc_lock_both(engine);
	assert_int_equal(kvc_node_get_both(engine, ino[i], &n), 0);
	assert_int_equal(kvc_membership_join_both(engine, n), 0);
	kvc_unlock_both(engine);
}

/* A reader uses every chunk again between two transactions; every row is still written. */
static void every_row_has_its_turn(void **state)
{
	uint64_t was[FILES], rows = rows_written();

	(void)state;
	engine_later_ns += 24 * HOUR_NS;
	for (unsigned i = 0; i < FILES; i++) {
		use(i);
		was[i] = last_use(i);
	}
	for (unsigned turn = 0; turn < TURNS; turn++) {
		credit(1 << 20);
		kvc_access_save_some(engine);
		engine_later_ns += 8 * HOUR_NS; /* so that each use is worth a write again */
		for (unsigned i = 0; i < FILES; i++)
			use(i);
	}
	for (unsigned i = 0; i < FILES; i++)
		if (stored(i) < was[i])
			fail_msg("the row of chunk %u is older than %u transactions", i, TURNS);
	assert_in_range(rows_written() - rows, FILES, TURNS * 64);
}

/* With credit and without further uses, rows are behind by at most an eighth of the chunk's age. */
static void rows_are_behind_by_an_eighth(void **state)
{
	uint64_t rows;

	(void)state;
	for (unsigned turn = 0; turn < TURNS; turn++) {
		credit(1 << 20);
		kvc_access_save_some(engine);
	}
	for (unsigned i = 0; i < FILES; i++)
		assert_true(stored(i) <= last_use(i) && last_use(i) - stored(i) <= 600 * SECOND_NS);
	/* used again soon: not worth a write */
	rows = rows_written();
	for (unsigned i = 0; i < FILES; i++)
		use(i);
	credit(1 << 20);
	kvc_access_save_some(engine);
	assert_int_equal(rows_written(), rows);
	/* a row is behind by at most ten minutes, however old the chunk is */
	engine_later_ns += 601 * SECOND_NS;
	use(7);
	kvc_access_save_some(engine);
	assert_int_equal(rows_written(), rows + 1);
	assert_int_equal(stored(7), last_use(7));
}

/* The rate: nothing is written without credit, and a transaction's bytes are charged. */
static void no_row_without_credit(void **state)
{
	uint64_t rows, bytes;

	(void)state;
	engine_later_ns += HOUR_NS;
	for (unsigned i = 0; i < FILES; i++)
		use(i);
	rows = rows_written();
	credit(-(64 << 20)); /* a minute adds less */
	for (unsigned turn = 0; turn < TURNS; turn++)
		kvc_access_save_some(engine);
	assert_int_equal(rows_written(), rows);
	bytes = kvc_counted(&engine->stats, access_bytes);
	credit(1);
	kvc_access_save_some(engine); /* one transaction uses up the credit */
	assert_int_equal(rows_written(), rows + 64);
	assert_true(kvc_counted(&engine->stats, access_bytes) > bytes);
	assert_true(engine->committer->accesses.credit < 0);
	kvc_access_save_some(engine);
	assert_int_equal(rows_written(), rows + 64);
}

static int by_row(const void *a, const void *b)
{
	uint64_t x = stored(*(const unsigned *)a), y = stored(*(const unsigned *)b);

	return x < y ? -1 : x > y;
}

/* Rows that are written in any order of chunks keep the order of the uses. */
static void rows_have_the_order_of_uses(void **state)
{
	unsigned order[FILES];

	(void)state;
	engine_later_ns += HOUR_NS;
	for (unsigned i = 0; i < FILES; i++)
		use(i * 77 % FILES);
	for (unsigned turn = 0; turn < TURNS; turn++) {
		credit(1 << 20);
		kvc_access_save_some(engine);
	}
	for (unsigned i = 0; i < FILES; i++)
		order[i] = i;
	qsort(order, FILES, sizeof *order, by_row);
	for (unsigned i = 0; i < FILES; i++)
		assert_int_equal(order[i], i * 77 % FILES);
}

/*
 * The rows lack all uses, for lack of credit. After a kill, chunks have the accesses that the saver
 * of the policies last wrote; later ones are lost.
 */
static void the_saver_keeps_the_order(void **state)
{
	uint64_t was[FILES], row[FILES], bytes;

	(void)state;
	for (unsigned i = 0; i < FILES; i++)
		engine_place(ino[i]);
	engine_commit();
	engine_later_ns += HOUR_NS;
	credit(-(64 << 20));
	for (unsigned i = 0; i < FILES; i++)
		use(i * 33 % FILES);
	for (unsigned i = 0; i < FILES; i++) {
		was[i] = last_use(i);
		row[i] = stored(i);
		assert_true(row[i] < was[i]);
	}
	bytes = kvc_counted(&engine->stats, access_bytes);
	kvc_replacers_save(engine);
	assert_in_range(kvc_counted(&engine->stats, access_bytes) - bytes, FILES * 48, FILES * 49);
	for (unsigned i = 0; i < FILES / 2; i++)
		use(i);
	engine_again(true);
	for (unsigned i = 0; i < FILES; i++) {
		in_memory(i);
		assert_int_equal(last_use(i), was[i]);
		assert_int_equal(stored(i), row[i]);
	}
	/* the rows are written, as after any use */
	for (unsigned turn = 0; turn < TURNS; turn++) {
		credit(1 << 20);
		kvc_access_save_some(engine);
	}
	for (unsigned i = 0; i < FILES; i++)
		assert_int_equal(stored(i), was[i]);
}

/* A file that is older than the rows, or damaged, changes nothing. */
static void an_old_state_is_not_used(void **state)
{
	char path[1280];
	uint64_t was[FILES];
	uint8_t byte = 0;
	int fd;

	(void)state;
	engine_later_ns += HOUR_NS;
	for (unsigned i = 0; i < FILES; i++)
		use(i);
	kvc_replacers_save(engine);
	engine_later_ns += HOUR_NS;
	for (unsigned i = 0; i < FILES; i++)
		use(i);
	for (unsigned turn = 0; turn < TURNS; turn++) {
		credit(1 << 20);
		kvc_access_save_some(engine);
	}
	for (unsigned i = 0; i < FILES; i++)
		was[i] = stored(i);
	engine_again(true);
	for (unsigned i = 0; i < FILES; i++) {
		in_memory(i);
		assert_int_equal(last_use(i), was[i]);
	}
	for (unsigned i = 0; i < FILES; i++)
		use(i);
	kvc_replacers_save(engine);
	fd = open(kvc_super_path(engine->store, KVC_STORE_POLICIES, path), O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, lseek(fd, 0, SEEK_END) - 100), 1);
	byte ^= 16;
	assert_int_equal(pwrite(fd, &byte, 1, lseek(fd, 0, SEEK_END) - 100), 1);
	close(fd);
	engine_again(true);
	for (unsigned i = 0; i < FILES; i++) {
		in_memory(i);
		assert_int_equal(last_use(i), was[i]);
	}
}

/* Waits until nothing waits for a commit. Returns false if that takes too long. */
static bool all_is_committed(void)
{
	for (int i = 0; i < 6000 && kvc_catalog_changes(engine->cat); i++)
		usleep(10000);
	return !kvc_catalog_changes(engine->cat);
}

/* A change is committed although the call that made it did not ask for a commit. */
static void a_change_is_not_left_behind(void **state)
{
	struct kvc_row r;

	(void)state;
	engine_start();
	assert_true(all_is_committed());
	kvc_lock_both(engine);
	assert_int_equal(kvc_row_get(engine->cat, ino[0], &r), 0);
	r.mtime_ns++;
	assert_int_equal(kvc_row_put(engine->cat, &r, NULL), 0);
	assert_true(kvc_catalog_changes(engine->cat) > 0);
	kvc_unlock_both(engine);
	assert_true(all_is_committed());
}

static int begin(void **state)
{
	uint64_t model;
	char name[16];

	(void)state;
	engine_new("policy=lru");
	model = engine_folder(KVC_ROOT, "m");
	assert_int_equal(
		kvc_setxattr(engine, model, "user.kvcachefs.unit", "file", 4, 0, NULL, NULL), 0);
	for (unsigned i = 0; i < FILES; i++) {
		snprintf(name, sizeof name, "f%u", i);
		ino[i] = engine_file(model, name);
	}
	engine_commit();
	return 0;
}

static int end(void **state)
{
	(void)state;
	engine_end();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_row_has_its_turn),
		cmocka_unit_test(rows_are_behind_by_an_eighth),
		cmocka_unit_test(no_row_without_credit),
		cmocka_unit_test(rows_have_the_order_of_uses),
		cmocka_unit_test(the_saver_keeps_the_order),
		cmocka_unit_test(an_old_state_is_not_used),
		cmocka_unit_test(a_change_is_not_left_behind),
	};

	return cmocka_run_group_tests_name("accesses", tests, begin, end);
}
