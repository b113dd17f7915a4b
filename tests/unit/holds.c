/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work under one hold of the catalog's lock, for which lookups wait, does not grow with the
 * size of a folder, a model or a commit, nor with repeated commands of an operator. It is counted
 * in steps, in an engine without threads unless a test says otherwise.
 */
#include "engine.h"
#include "steps.h"
#include "admission.h"
#include "committer.h"
#include "overlay.h"
#include "pin.h"
#include "model_rescan.h"
#include "chunking.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define FILES 200
#define FEW_NAMES 130
#define LARGE 1000 /* files of a chunk */
#define FEW_ROWS 16
#define FEW_READS 12
#define FEW_STEPS 24
#define FEW_CHANGES 900
#define DROPS 700

static uint64_t model, ino[FILES];

static void set(const char *name, const char *value)
{
	char full[64];

	snprintf(full, sizeof full, "user.kvcachefs.%s", name);
	assert_int_equal(kvc_setxattr(engine, model, full, value, strlen(value), 0, NULL, NULL), 0);
}

static int count_name(void *arg, const struct kvc_name *n)
{
	(void)n;
	++*(unsigned *)arg;
	return 0;
}

/* Lists a folder with capacity for all of its names. */
static void listed(void **state)
{
	unsigned n = 0;

	(void)state;
	steps.most_names = 0;
	assert_int_equal(kvc_readdir(engine, model, 2, count_name, &n), 0);
	assert_int_equal(n, FILES);
	if (steps.most_names > FEW_NAMES)
		fail_msg("%u names were looked at", steps.most_names);
}

/* A folder becomes the upper level of buckets, with as many names as a user likes. */
static void bucketed(void **state)
{
	uint64_t top = engine_folder(KVC_ROOT, "top"), upper[3];
	char name[16];

	(void)state;
	for (int u = 0; u < 3; u++) {
		snprintf(name, sizeof name, "%x", 10 + u);
		upper[u] = engine_folder(top, name);
		for (int i = 0; i < FILES; i++) {
			snprintf(name, sizeof name, "file%d", i);
			engine_file(upper[u], name);
		}
	}
	engine_commit();
	steps.most_names = 0;
	for (int u = 0; u < 3; u++)
		engine_folder(upper[u], "1");
	if (steps.most_names > FEW_NAMES)
		fail_msg("%u names were looked at", steps.most_names);
}

/* A file with many names is dropped: the names are removed in pieces, and completely. */
static void linked(void **state)
{
	uint64_t id = engine_file(model, "linked");
	struct kvc_row r;
	char name[16];

	(void)state;
	for (int committed = 0; committed < 2; committed++)
		for (int i = 0; i < FILES / 2; i++) {
			snprintf(name, sizeof name, "l%d_%d", committed, i);
			assert_int_equal(kvc_entry_link(engine, id, model, name, 0, &r), 0);
			if (!committed && i == FILES / 2 - 1)
				engine_commit();
		}
	engine_later_ns += 1000000000;
	steps.most_deleted = 0;
	assert_int_equal(kvc_chunk_drop(engine, id, KVC_DROP_WHOLE, KVC_FOR_quota, NULL, NULL), 0);
	assert_in_range(steps.most_deleted, 1, FEW_NAMES / 2);
	for (int i = 0; i < FILES / 2; i++) {
		snprintf(name, sizeof name, "l0_%d", i);
		assert_false(engine_has(model, name));
		snprintf(name, sizeof name, "l1_%d", i);
		assert_false(engine_has(model, name));
	}
	assert_false(engine_has(model, "linked"));
	engine_commit();
}

/* A cold chunk is dropped: the rows of its files are read from SQLite without the locks. */
static void unread(void **state)
{
	uint64_t folder, few, id[2];
	char name[16];

	(void)state;
	folder = engine_folder(model, "dir");
	few = engine_folder(model, "few");
	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof name, "f%d", i);
		engine_place(engine_file(i % 16 ? folder : few, name));
	}
	id[0] = folder;
	id[1] = few;
	engine_commit();
	engine_again(false);
	engine_later_ns += 1000000000;
	for (int i = 0; i < 2; i++) {
		steps.most_reads = 0;
		assert_int_equal(kvc_chunk_drop(engine, id[i], KVC_DROP_WHOLE, KVC_FOR_quota, NULL,
						NULL),
				 0);
		if (steps.most_reads > FEW_READS)
			fail_msg("SQLite was asked %u times under a hold", steps.most_reads);
	}
	engine_commit();
}

/* The evictor judges one chunk of many files. */
static void evicted(void **state)
{
	uint64_t folder = engine_folder(model, "large");
	char name[16];

	(void)state;
	for (int i = 0; i < LARGE; i++) {
		snprintf(name, sizeof name, "f%d", i);
		engine_forget(engine_file(folder, name));
	}
	engine_commit();
	engine_later_ns += 1000000000;
	engine_start(); /* it checks the whole pool before a call needs it */
	kvc_lock(engine);
	kvc_unlock(engine);
	steps.most_judged = steps.all_judged = 0;
	for (int i = 0; i < 10000 && steps.all_judged < 2 * LARGE; i++)
		usleep(1000);
	assert_true(steps.all_judged >= 2 * LARGE);
	if (steps.most_judged > LARGE / 2)
		fail_msg("%u files of a chunk were looked at", steps.most_judged);
}

static int by_hash(const void *a, const void *b)
{
	uint64_t x = kvc_name_hash(a), y = kvc_name_hash(b);

	return x < y ? -1 : x > y;
}

/* Names of one file are removed in the catalog's order, before a commit. */
static void unlinked(void **state)
{
	uint64_t id = engine_file(model, "first");
	static char name[FILES][16];
	struct kvc_wait w = { 0 };
	struct kvc_row r;

	(void)state;
	for (int i = 0; i < FILES; i++) {
		snprintf(name[i], sizeof name[i], "u%d", i);
		assert_int_equal(kvc_entry_link(engine, id, model, name[i], 0, &r), 0);
	}
	engine_commit();
	qsort(name, FILES, sizeof name[0], by_hash);
	steps.most_steps = 0;
	for (int i = 0; i < FILES; i++)
		assert_int_equal(kvc_entry_unlink(engine, model, name[i], &w), 0);
	if (steps.most_steps > FEW_STEPS)
		fail_msg("%u rows were read under a hold", steps.most_steps);
	assert_true(engine_has(model, "first"));
	engine_commit();
	assert_int_equal(kvc_entry_unlink(engine, model, "first", &w), 0);
	engine_commit();
}

static uint64_t elsewhere;
static unsigned helped;

/* Calls by other clients while the names of a file are removed; only one call conflicts. */
static void others_call(void)
{
	struct kvc_wait w = { 0 };
	struct kvc_row r;
	char name[16];

	if (!engine->drops->ndetached) {
		steps.meanwhile = others_call; /* the drop has only looked at the file so far */
		return;
	}
	steps.all_deleted = 0;
	engine_file(model, "new");
	engine_file(model, "l7");
	assert_int_equal(kvc_entry_unlink(engine, model, "l8", &w), -ENOENT);
	engine_file(model, "from");
	assert_int_equal(kvc_rename(engine, model, "from", model, "l9", 0, &w), 0);
	assert_int_equal(kvc_rename(engine, model, "l10", model, "x", 0, &w), -ENOENT);
	assert_int_equal(kvc_entry_link(engine, engine_file(model, "two"), model, "l11", 0, &r), 0);
	assert_int_equal(kvc_lookup(engine, model, "l12", &r, NULL), -ENOENT);
	helped = steps.all_deleted;
	assert_int_equal(engine->drops->ndetached, 1);
	assert_int_equal(kvc_entry_rmdir(engine, model, "sub"), 0);
	assert_int_equal(kvc_entry_getattr(engine, elsewhere, &r), 0);
	snprintf(name, sizeof name, "busy");
	assert_int_equal(kvc_entry_rmdir(engine, model, name), -ENOTEMPTY);
}

/* While a file with many names is dropped, another call removes the names that it needs. */
static void unhindered(void **state)
{
	uint64_t id, sub, busy;
	struct kvc_row r;
	char name[16];

	(void)state;
	engine_end();
	engine_new("");
	model = engine_folder(KVC_ROOT, "m");
	set("unit", "file");
	id = engine_file(model, "linked");
	sub = engine_folder(model, "sub");
	busy = engine_folder(model, "busy");
	elsewhere = engine_file(busy, "stays");
	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof name, "l%d", i);
		assert_int_equal(kvc_entry_link(engine, id, model, name, 0, &r), 0);
		assert_int_equal(kvc_entry_link(engine, id, i % 2 ? sub : busy, name, 0, &r), 0);
	}
	engine_commit();
	engine_later_ns += 1000000000;
	helped = 0;
	steps.meanwhile = others_call;
	assert_int_equal(kvc_chunk_drop(engine, id, KVC_DROP_WHOLE, KVC_FOR_quota, NULL, NULL), 0);
	assert_null(steps.meanwhile);
	assert_in_range(helped, 1, FEW_READS);
	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof name, "l%d", i);
		assert_true(engine_has(model, name) == (i == 7 || i == 9 || i == 11));
		assert_false(engine_has(busy, name));
	}
	assert_true(engine_has(busy, "stays"));
	engine_check();
}

static uint64_t pinned_folder;
static unsigned changed;

/* Files are loaded, freed, created and deleted while the files of a pin are counted. */
static void change_some(void)
{
	struct kvc_wait w = { 0 };
	struct kvc_row r;
	char name[16], to[16];

	changed++;
	snprintf(name, sizeof name, "f%u", changed * 37 % FILES);
	if (!kvc_lookup(engine, pinned_folder, name, &r, NULL) && changed % 3)
		kvc_entry_forget(engine, r.ino, 1);
	snprintf(name, sizeof name, "f%u", changed * 53 % FILES);
	if (changed % 4 == 0)
		kvc_entry_unlink(engine, pinned_folder, name, &w);
	snprintf(name, sizeof name, "n%u", changed);
	if (changed % 4 == 1)
		engine_forget(engine_file(pinned_folder, name));
	if (changed == 5) {
		snprintf(name, sizeof name, "other%u", FILES);
		snprintf(to, sizeof to, "other");
		assert_int_equal(kvc_rename(engine, model, name, pinned_folder, to, 0, &w), 0);
	}
	if (changed < 100)
		steps.meanwhile = change_some;
}

static void pin(const char *value)
{
	assert_int_equal(kvc_setxattr(engine, pinned_folder, "user.kvcachefs.pin", value,
				      strlen(value), 0, NULL, NULL),
			 0);
}

/* A chunk is pinned: its files are counted in pieces, each once, whatever happens in between. */
static void counted(void **state)
{
	struct kvc_row r;
	uint64_t bytes;
	char name[16];

	(void)state;
	engine_end();
	engine_new("unit=dir,pins=90");
	model = engine_folder(KVC_ROOT, "m");
	pinned_folder = engine_folder(model, "pinned");
	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof name, "f%d", i);
		engine_place(engine_file(pinned_folder, name));
	}
	snprintf(name, sizeof name, "other%u", FILES);
	engine_file(model, name);
	engine_commit();
	engine_again(false);
	for (int warm = 0; warm < 2; warm++) {
		steps.most_names = steps.most_reads = 0;
		pin("1");
		assert_int_equal(engine->pins->disk, KVC_PAGE + FILES * (8192 + KVC_PAGE));
		if (steps.most_names > FEW_NAMES || steps.most_reads > FEW_READS)
			fail_msg("%u names and %u rows under a hold", steps.most_names,
				 steps.most_reads);
		pin("0");
		assert_int_equal(engine->pins->disk, 0);
		for (int i = 0; i < FILES; i++) {
			snprintf(name, sizeof name, "f%d", i);
			assert_true(engine_has(pinned_folder, name));
		}
	}
	engine_commit();
	engine_again(true); /* none is in memory */
	/* the kernel references the folders of a call */
	assert_int_equal(kvc_lookup(engine, KVC_ROOT, "m", &r, NULL), 0);
	assert_int_equal(kvc_lookup(engine, model, "pinned", &r, NULL), 0);
	changed = 0;
	steps.meanwhile = change_some;
	pin("1");
	steps.meanwhile = NULL;
	assert_true(changed > 10);
	bytes = engine->pins->disk;
	pin("0");
	pin("1");
	assert_int_equal(engine->pins->disk, bytes);
}

/* Drops are faster than the disk: batches stay small, and so stores are durable soon. */
static void gated(void **state)
{
	uint64_t id[DROPS], m;
	bool busy = true;
	char name[16];

	(void)state;
	engine_end();
	engine_new("");
	m = model = engine_folder(KVC_ROOT, "m");
	set("unit", "file");
	for (int i = 0; i < DROPS; i++) {
		snprintf(name, sizeof name, "f%d", i);
		id[i] = engine_file(m, name);
		engine_forget(id[i]);
	}
	engine_commit();
	engine_start();
	for (int i = 0; i < 10000 && busy; i++) { /* copies are recorded too */
		usleep(1000);
		kvc_lock(engine);
		busy = engine->work->running || engine->work->queued;
		kvc_unlock(engine);
	}
	engine_commit();
	engine_later_ns += 1000000000;
	steps.slow_us = 50000;
	steps.most_changes = 0;
	for (int i = 0; i < DROPS; i++) {
		kvc_lock(engine);
		engine->committer->each_ns = 1000000000; /* as measured in earlier commits */
		kvc_unlock(engine);
		assert_int_equal(kvc_chunk_drop(engine, id[i], KVC_DROP_WHOLE, KVC_FOR_quota, NULL,
						NULL),
				 0);
	}
	steps.slow_us = 0;
	engine_commit();
	if (steps.most_changes > FEW_CHANGES)
		fail_msg("a commit had %zu changes", (size_t)steps.most_changes);
	assert_true(steps.most_changes > 0);
}

static unsigned asked(void)
{
	unsigned n = 0;

	kvc_lock(engine);
	kvc_list_each(e, &engine->model_rescan->asked)
		n++;
	kvc_unlock(engine);
	return n;
}

static unsigned jobs(enum kvc_priority p)
{
	unsigned n = 0;

	kvc_lock(engine);
	kvc_list_each(e, &engine->tier[KVC_COMMON].queue.jobs[p])
		n++;
	kvc_unlock(engine);
	return n;
}

/* Repeated requests before any is carried out: one rescan and one regrouping are queued. */
static void again(void **state)
{
	(void)state;
	for (int i = 0; i < 50; i++) {
		set("quota", i % 2 ? "48M" : "32M");
		set("policy", i % 2 ? "lfu" : "lru");
		set("unit", i % 2 ? "file" : "dir");
	}
	assert_int_equal(asked(), 1);
	assert_true(jobs(KVC_P_URGENT) <= 1);
}

/* New settings reach files that are not in memory: they are read without the lock. */
static void surveyed(void **state)
{
	struct kvc_chunk_row r;
	char text[64] = "";
	size_t len = sizeof text - 1;

	(void)state;
	engine_again(true);
	engine_start();
	for (int i = 0; i < 10000 && asked(); i++)
		usleep(1000);
	steps.most_rows = 0;
	set("quota", "40M");
	set("policy", "gdsf");
	for (int i = 0; i < 10000 && asked(); i++)
		usleep(1000);
	assert_int_equal(asked(), 0);
	if (steps.most_rows > FEW_ROWS)
		fail_msg("%u rows were asked for", steps.most_rows);
	assert_int_equal(kvc_getxattr(engine, model, "user.kvcachefs.used", text, &len), 0);
	assert_int_equal(strtoull(text, NULL, 10), FILES * 8192);
	kvc_catalog_lock(engine->cat);
	for (int i = 0; i < FILES; i++) {
		assert_int_equal(kvc_chunk_get(engine->cat, ino[i], &r), 0);
		assert_int_equal(r.quota, model);
		assert_string_equal(kvc_policy_table[r.policy - 1].name, "gdsf");
	}
	kvc_catalog_unlock(engine->cat);
}

/* A folder is renamed, and so are the frames of all files in it. */
static void renamed(void **state)
{
	struct kvc_wait w = { 0 };
	bool busy = true;

	(void)state;
	steps.most_rows = 0;
	assert_int_equal(kvc_rename(engine, KVC_ROOT, "m", KVC_ROOT, "m2", 0, &w), 0);
	for (int i = 0; i < 10000 && (busy || jobs(KVC_P_SPILL)); i++) {
		usleep(1000);
		kvc_lock(engine);
		busy = engine->tier[KVC_COMMON].threads.running;
		kvc_unlock(engine);
	}
	assert_false(busy);
	if (steps.most_rows > FEW_ROWS)
		fail_msg("%u rows were asked for", steps.most_rows);
}

static unsigned locks_of_a_commit(void)
{
	engine_commit(); /* this commit has all dirty nodes */
	for (int i = 0; i < FILES; i++) {
		struct kvc_chunk *c;

		kvc_lock(engine);
		if ((c = kvc_chunk_find_locked(engine, ino[i])))
			kvc_chunk_accessed_locked(engine, c, true);
		kvc_unlock(engine);
	}
	steps_locked = 0;
	engine_commit();
	return steps_locked;
}

/* Chunks that were only used are not walked by each commit, but once a second. */
static void used(void **state)
{
	unsigned most, n;

	(void)state;
	most = locks_of_a_commit(); /* the first commit may be the one of this second */
	n = locks_of_a_commit();
	n = n < most ? n : most;
	if (n > 16)
		fail_msg("a commit took the locks %u times", n);
}

/* A batch of many changes: its table grows in pieces. */
static void grown(void **state)
{
	struct kvc_overlay o;
	uint64_t value = 1;

	(void)state;
	assert_int_equal(kvc_overlay_init(&o), 0);
	steps.largest = 0;
	for (uint64_t i = 1; i < 50000; i++)
		assert_int_equal(
			kvc_overlay_put(&o, KVC_T_OBJECT, i, 0, NULL, &value, sizeof value), 0);
	kvc_overlay_fini(&o);
	if (steps.largest > 64u << 10)
		fail_msg("one allocation had %zu bytes", steps.largest);
}

static int begin(void **state)
{
	char name[16];

	(void)state;
	engine_new("");
	model = engine_folder(KVC_ROOT, "m");
	set("unit", "file"); /* each file is a chunk by itself */
	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof name, "f%d", i);
		ino[i] = engine_file(model, name);
		engine_place(ino[i]);
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

static int begin_empty(void **state)
{
	(void)state;
	engine_new("");
	model = engine_folder(KVC_ROOT, "m");
	set("unit", "file");
	return 0;
}

static int begin_chunks(void **state)
{
	(void)state;
	engine_new("unit=dir,high=6,low=5");
	model = engine_folder(KVC_ROOT, "m");
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(listed), cmocka_unit_test(used),     cmocka_unit_test(again),
		cmocka_unit_test(grown),  cmocka_unit_test(surveyed), cmocka_unit_test(renamed),
	};
	const struct CMUnitTest names_and_links[] = {
		cmocka_unit_test(bucketed),
		cmocka_unit_test(linked),
		cmocka_unit_test(unlinked),
		cmocka_unit_test(unhindered),
	};
	const struct CMUnitTest chunks[] = {
		cmocka_unit_test(unread),
		cmocka_unit_test(evicted),
		cmocka_unit_test(counted),
		cmocka_unit_test(gated),
	};

	return cmocka_run_group_tests_name("holds", tests, begin, end) +
	       cmocka_run_group_tests_name("names", names_and_links, begin_empty, end) +
	       cmocka_run_group_tests_name("chunks", chunks, begin_chunks, end);
}
