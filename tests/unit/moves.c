/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that come to another folder, in an engine without threads, while the catalog errs, at any
 * read, or there is no memory, at any allocation. A call that fails has changed nothing; after one
 * that does not the file is in the chunk of its folder, or still whole in the one that it had, and
 * a job is queued that brings it there, if there is memory for that. What is in the pool can always
 * be evicted.
 */
#include "alloc.h"
#include "house.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define MOST 40 /* reads, and allocations, of one call */

/* The linker has reserved these names for who uses them (--wrap). */
/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

/* Reads of the catalog by those above it: the Nth fails, once or from there on. */
static long reads, read_fails;
static bool for_ever;

static bool fails(void)
{
	reads++;
	return read_fails && (for_ever ? reads >= read_fails : reads == read_fails);
}

#define READ(name, parameters, arguments)                        \
	int __real_##name parameters;                            \
	int __wrap_##name parameters;                            \
	int __wrap_##name parameters                             \
	{                                                        \
		return fails() ? -EIO : __real_##name arguments; \
	}
READ(kvc_name_of, (struct kvc_catalog * c, uint64_t i, kvc_name_fn *f, void *a), (c, i, f, a))
READ(kvc_name_each, (struct kvc_catalog * c, uint64_t p, uint64_t after, kvc_name_fn *f, void *a),
     (c, p, after, f, a))
READ(kvc_name_get,
     (struct kvc_catalog * c, uint64_t p, const char *name, uint64_t *i, uint32_t *kind),
     (c, p, name, i, kind))
READ(kvc_row_get, (struct kvc_catalog * c, uint64_t i, struct kvc_row *r), (c, i, r))
READ(kvc_object_get, (struct kvc_catalog * c, uint64_t i, struct kvc_object_row *o), (c, i, o))
READ(kvc_place_get, (struct kvc_catalog * c, uint64_t i, struct kvc_place *p), (c, i, p))
READ(kvc_chunk_get, (struct kvc_catalog * c, uint64_t i, struct kvc_chunk_row *r), (c, i, r))
READ(kvc_xattr_get, (struct kvc_catalog * c, uint64_t i, const char *n, void *v, size_t *l),
     (c, i, n, v, l))
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

static uint64_t model[2];
static unsigned way;
static bool memory; /* that is what fails */
static long failed, later;

static void arm(void)
{
	reads = 0;
	if (memory)
		alloc_arm(way / 2, for_ever);
	else
		read_fails = way / 2;
}

static void disarm(void)
{
	read_fails = 0;
	alloc_disarm();
}

/* What was queued for threads, and is about files' chunks. */
static void regroup(void)
{
	kvc_list_each_safe(e, &house->tier[KVC_COMMON].jobs[KVC_P_URGENT]) {
		struct kvc_job *j = kvc_of(e, struct kvc_job, link);

		later++;
		j->run(house, j);
		kvc_list_del(&j->link);
		j->node->holds--;
		free(j);
	}
}

/* It can leave the pool, whichever its chunk is. */
static void can_go(uint64_t ino)
{
	struct kvc_node *n = kvc_node_find_locked(house, ino);

	if (!n || !kvc_has_segment(n))
		return;
	assert_non_null(n->chunk);
	assert_int_equal(n->chunk->id, n->row.chunk);
	assert_false(n->chunk->gone);
	assert_false(kvc_list_empty(&n->chunk_link));
}

static void in_chunk(uint64_t ino, uint64_t chunk)
{
	struct kvc_row row;
	int err;

	kvc_lock_both(house);
	err = kvc_row_of_both(house, ino, &row);
	kvc_unlock_both(house);
	assert_int_equal(err, 0);
	assert_int_equal(row.chunk, chunk);
	can_go(ino);
}

static void only(int err)
{
	if (err && memory)
		assert_int_equal(err, -ENOMEM);
	else if (err)
		assert_int_equal(err, -EIO);
	failed += err != 0;
}

/* Two chunks, in two models or in one, and a file in the first of them. */
static uint64_t from, to, file;
static char also[32];

static void begin_one(void)
{
	static unsigned serial;
	char name[32];

	snprintf(name, sizeof name, "c%u", serial);
	from = house_folder(model[0], name);
	snprintf(name, sizeof name, "d%u", serial);
	to = house_folder(model[serial % 2], name);
	snprintf(also, sizeof also, "also%u", serial++);
	file = house_file(from, "a");
	house_file(from, "b");
	house_file(to, "x");
	house_forget(file);
	house_commit();
	house_forget(to);
	in_chunk(file, from);
}

static void end_one(bool moved)
{
	bool queued;

	can_go(file);
	queued = !kvc_list_empty(&house->tier[KVC_COMMON].jobs[KVC_P_URGENT]);
	regroup();
	if (!memory || !for_ever || queued || !moved) /* there was none for the job */
		in_chunk(file, moved ? to : from);
	house_commit();
	for (unsigned i = 0; i < 10; i++) {
		const char *const names[] = { "a", "b", "x", "y", also };
		struct kvc_wait w = { 0 };
		int err = kvc_unlink(house, i < 5 ? from : to, names[i % 5], &w);

		assert_true(!err || err == -ENOENT);
	}
}

static void renames(void)
{
	struct kvc_wait w = { 0 };
	int err;

	begin_one();
	arm();
	err = kvc_rename(house, from, "a", to, "y", 0, &w);
	disarm();
	only(err);
	assert_int_equal(house_has(from, "a"), err != 0);
	assert_int_equal(house_has(to, "y"), err == 0);
	end_one(!err);
}

static void exchanges(void)
{
	struct kvc_wait w = { 0 };
	int err;

	begin_one();
	arm();
	err = kvc_rename(house, from, "a", to, "x", RENAME_EXCHANGE, &w);
	disarm();
	only(err);
	end_one(!err);
}

static void links(void)
{
	struct kvc_row r;
	int err;

	begin_one();
	arm();
	err = kvc_link(house, file, to, "y", 0, &r);
	disarm();
	only(err);
	assert_true(house_has(from, "a"));
	assert_int_equal(house_has(to, "y"), err == 0);
	end_one(!err);
}

/* Of a file with two names the one goes in whose folder its chunk is. */
static void unlinks(void)
{
	struct kvc_wait w = { 0 };
	struct kvc_row r;
	int err;

	begin_one();
	assert_int_equal(kvc_link(house, file, to, "y", 0, &r), 0);
	assert_int_equal(kvc_rename(house, from, "a", from, also, 0, &w), 0);
	in_chunk(file, from);
	house_forget(file);
	house_commit();
	arm();
	err = kvc_unlink(house, from, also, &w);
	disarm();
	only(err);
	assert_int_equal(house_has(from, also), err != 0);
	assert_true(house_has(to, "y"));
	end_one(!err);
}

static void all(void (*what)(void), long least)
{
	failed = later = 0;
	for (way = 2; way < 2 * MOST; way++) {
		for_ever = way & 1;
		what();
		if (way % 20 == 0)
			house_check();
	}
	print_message("%ld calls failed, %ld were ended later\n", failed, later);
	assert_true(failed >= least);
	house_check();
}

static void reads_fail(void **state)
{
	(void)state;
	memory = false;
	all(renames, 8);
	all(exchanges, 8);
	all(links, 8);
	all(unlinks, 8);
}

static void memory_fails(void **state)
{
	(void)state;
	memory = true;
	all(renames, 1);
	all(exchanges, 1);
	all(links, 1);
	all(unlinks, 1);
}

static int begin(void **state)
{
	(void)state;
	house_new("unit=dir");
	model[0] = house_folder(KVC_ROOT, "m");
	model[1] = house_folder(KVC_ROOT, "o");
	return 0;
}

static int end(void **state)
{
	(void)state;
	house_end();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_fail),
		cmocka_unit_test(memory_fails),
	};

	return cmocka_run_group_tests_name("moves", tests, begin, end);
}
