/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that move to a folder, to another one, or to chunks of their own, in an engine without
 * threads, while the catalog fails at any read or memory runs out at any allocation. A call that
 * fails has changed nothing. After a call that succeeds, the file is in the chunk of its folder, or
 * still in its old chunk with a job queued that moves it, if there was memory for the job. An
 * object in the pool can always be evicted, and a chunk starts with the settings of its model. Two
 * cases without failures: RENAME_NOREPLACE, and the last of two writers.
 */
#include "alloc.h"
#include "engine.h"
#include "model.h"
#include "chunking.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define MOST 40 /* most reads, or allocations, of one call */

/* The linker reserves these names for users of --wrap. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */

/* Reads of the catalog by the layers above it: the Nth fails, once or from there on. */
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
/* NOLINTEND(bugprone-reserved-identifier) */

static uint64_t model[2];
static unsigned way;
static bool memory; /* allocations fail, instead of reads */
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

/*
 * Runs queued jobs that move files to other chunks; with KVC_P_SPILL, those that retry after an
 * error.
 */
static void regroup(enum kvc_priority p)
{
	kvc_list_each_safe(e, &engine->tier[KVC_COMMON].queue.jobs[p]) {
		struct kvc_job *j = kvc_of(e, struct kvc_job, link);

		later++;
		j->run(engine, j);
		kvc_list_del(&j->link);
		kvc_node_unref_locked(j->node);
		free(j);
	}
}

/* Checks that the object can be evicted, in whatever chunk it is. */
static void can_go(uint64_t ino)
{
	struct kvc_node *n = kvc_node_find_locked(engine, ino);

	if (!n || !kvc_node_has_segment(n))
		return;
	assert_non_null(n->chunk);
	assert_int_equal(n->chunk->id, n->row.chunk);
	assert_false(n->chunk->row_deleted);
	assert_false(kvc_list_empty(&n->part.link));
}

static void in_chunk(uint64_t ino, uint64_t chunk)
{
	struct kvc_node *n;
	struct kvc_row row;
	uint64_t of;
	int err;

	kvc_lock_both(engine);
	err = kvc_node_row_both(engine, ino, &row) ?: kvc_node_model_both(engine, row.parent, &of);
	kvc_unlock_both(engine);
	assert_int_equal(err, 0);
	assert_int_equal(row.chunk, chunk);
	if ((n = kvc_node_find_locked(engine, ino)))
		assert_int_equal(n->model, of);
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

/* Two chunks, in two models or in one, and a file in the first. */
static uint64_t from, to, file;
static char also[32];

static void begin_one(void)
{
	static unsigned serial;
	char name[32];

	snprintf(name, sizeof name, "c%u", serial);
	from = engine_folder(model[0], name);
	snprintf(name, sizeof name, "d%u", serial);
	to = engine_folder(model[serial % 2], name);
	snprintf(also, sizeof also, "also%u", serial++);
	file = engine_file(from, "a");
	engine_file(from, "b");
	engine_file(to, "x");
	engine_forget(file);
	engine_commit();
	engine_forget(to);
	in_chunk(file, from);
}

static void end_one(bool moved)
{
	bool queued;

	can_go(file);
	queued = !kvc_list_empty(&engine->tier[KVC_COMMON].queue.jobs[KVC_P_URGENT]);
	regroup(KVC_P_URGENT);
	if (!memory || !for_ever || queued || !moved) /* otherwise no job could be queued */
		in_chunk(file, moved ? to : from);
	engine_commit();
	for (unsigned i = 0; i < 10; i++) {
		const char *const names[] = { "a", "b", "x", "y", also };
		struct kvc_wait w = { 0 };
		int err = kvc_entry_unlink(engine, i < 5 ? from : to, names[i % 5], &w);

		assert_true(!err || err == -ENOENT);
	}
}

static void renames(void)
{
	struct kvc_wait w = { 0 };
	int err;

	begin_one();
	arm();
	err = kvc_rename(engine, from, "a", to, "y", 0, &w);
	disarm();
	only(err);
	assert_int_equal(engine_has(from, "a"), err != 0);
	assert_int_equal(engine_has(to, "y"), err == 0);
	end_one(!err);
}

static void exchanges(void)
{
	struct kvc_wait w = { 0 };
	int err;

	begin_one();
	arm();
	err = kvc_rename(engine, from, "a", to, "x", RENAME_EXCHANGE, &w);
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
	err = kvc_entry_link(engine, file, to, "y", 0, &r);
	disarm();
	only(err);
	assert_true(engine_has(from, "a"));
	assert_int_equal(engine_has(to, "y"), err == 0);
	end_one(!err);
}

/* Removes a name of a file with two names, the one whose folder is its chunk. */
static void unlinks(void)
{
	struct kvc_wait w = { 0 };
	struct kvc_row r;
	int err;

	begin_one();
	assert_int_equal(kvc_entry_link(engine, file, to, "y", 0, &r), 0);
	assert_int_equal(kvc_rename(engine, from, "a", from, also, 0, &w), 0);
	in_chunk(file, from);
	engine_forget(file);
	engine_commit();
	arm();
	err = kvc_entry_unlink(engine, from, also, &w);
	disarm();
	only(err);
	assert_int_equal(engine_has(from, also), err != 0);
	assert_true(engine_has(to, "y"));
	end_one(!err);
}

/* ---- the settings of new chunks, and files that become chunks of their own ---- */

#define TTL 4711
static uint64_t set; /* a model with a ttl and a policy of its own */

static int create(uint64_t folder, const char *name, uint64_t *ino)
{
	struct kvc_opened o = { 0 };
	struct kvc_wait w = { 0 };
	struct kvc_row r;
	int err = kvc_open_create(engine, folder, name, S_IFREG | 0644, 0, 0, O_RDWR | O_EXCL, &r,
				  &o, &w);

	if (err)
		return err;
	*ino = r.ino;
	kvc_open_release(engine, r.ino, O_RDWR, 0);
	return 0;
}

/*
 * Makes a file in a folder of the model, or in the model's own folder, which is never a chunk,
 * whatever unit= says.
 */
static void makes(void)
{
	static unsigned serial;
	uint64_t folder = set, ino;
	struct kvc_chunk *c;
	char name[32];
	int err;

	snprintf(name, sizeof name, "n%u", serial++);
	if (serial % 2) {
		folder = engine_folder(set, name);
		engine_forget(folder);
	}
	engine_commit();
	memset(engine->models->entries, 0, sizeof engine->models->entries);
	arm();
	err = create(folder, name, &ino);
	disarm();
	only(err);
	if (err)
		return;
	in_chunk(ino, folder == set ? ino : folder);
	c = kvc_chunk_find_locked(engine, folder == set ? ino : folder);
	assert_non_null(c);
	assert_int_equal(c->ttl_s, TTL);
	assert_true(c->expires_ns > 0);
	assert_string_equal(kvc_policy_table[c->policy - 1].name, "fifo");
	engine_forget(ino);
	engine_commit();
}

/* A folder that was one chunk becomes a container. */
static void splits(void)
{
	static unsigned serial;
	struct kvc_node *n;
	uint64_t folder, ino[3];
	char name[32];

	snprintf(name, sizeof name, "s%u", serial++);
	folder = engine_folder(model[0], name);
	for (unsigned i = 0; i < 3; i++) {
		snprintf(name, sizeof name, "%u", i);
		ino[i] = engine_file(folder, name);
		in_chunk(ino[i], folder);
		engine_forget(ino[i]);
	}
	engine_commit();
	kvc_lock_both(engine);
	assert_int_equal(kvc_node_get_both(engine, folder, &n), 0);
	assert_int_equal(kvc_chunking_set_both(engine, n, "file"), 0);
	kvc_unlock_both(engine);
	arm();
	regroup(KVC_P_URGENT);
	disarm();
	bool again = !kvc_list_empty(&engine->tier[KVC_COMMON].queue.jobs[KVC_P_SPILL]);

	for (unsigned i = 0; i < 3; i++)
		can_go(ino[i]);
	failed += again;
	regroup(KVC_P_SPILL);
	for (unsigned i = 0; i < 3; i++) {
		if (!memory || !for_ever || again) /* otherwise no job could be queued */
			in_chunk(ino[i], ino[i]);
		can_go(ino[i]);
	}
	engine_commit();
	for (unsigned i = 0; i < 3; i++) {
		struct kvc_wait w = { 0 };

		snprintf(name, sizeof name, "%u", i);
		assert_int_equal(kvc_entry_unlink(engine, folder, name, &w), 0);
	}
}

static void all(void (*what)(void), long least)
{
	failed = later = 0;
	for (way = 2; way < 2 * MOST; way++) {
		for_ever = way & 1;
		what();
		if (way % 20 == 0)
			engine_check();
	}
	print_message("%ld calls failed, %ld were ended later\n", failed, later);
	assert_true(failed >= least);
	engine_check();
}

static void reads_fail(void **state)
{
	(void)state;
	memory = false;
	all(renames, 8);
	all(exchanges, 8);
	all(links, 8);
	all(unlinks, 8);
	all(makes, 8);
	all(splits, 8);
}

static void memory_fails(void **state)
{
	(void)state;
	memory = true;
	all(renames, 1);
	all(exchanges, 1);
	all(links, 1);
	all(unlinks, 1);
	all(makes, 1);
	all(splits, 1);
}

/* RENAME_NOREPLACE replaces no file; the kernel sends it only if it does not know the target. */
static void takes_no_place(void **state)
{
	uint64_t folder = engine_folder(model[0], "c"), one = engine_file(folder, "one");
	struct kvc_wait w = { 0 };

	(void)state;
	engine_file(folder, "two");
	assert_int_equal(kvc_rename(engine, folder, "one", folder, "two", RENAME_NOREPLACE, &w),
			 -EEXIST);
	assert_true(engine_has(folder, "one") && engine_has(folder, "two"));
	assert_int_equal(kvc_rename(engine, folder, "one", folder, "three", RENAME_NOREPLACE, &w),
			 0);
	assert_true(!engine_has(folder, "one") && engine_has(folder, "two"));
	engine_forget(one);
	assert_int_equal(kvc_entry_unlink(engine, folder, "two", &w), 0);
	assert_int_equal(kvc_entry_unlink(engine, folder, "three", &w), 0);
	engine_check();
}

static enum kvc_state state_of(uint64_t ino)
{
	struct kvc_node *n;
	enum kvc_state is;

	kvc_lock(engine);
	n = kvc_node_find_locked(engine, ino);
	assert_non_null(n);
	is = n->state;
	kvc_unlock(engine);
	return is;
}

/* A file is published when the last writer closes it, and not before. */
static void last_of_two(void **state)
{
	struct kvc_opened o = { 0 };
	struct kvc_wait w = { 0 };
	struct kvc_row r;

	(void)state;
	assert_int_equal(kvc_open_create(engine, model[0], "two", S_IFREG | 0644, 0, 0,
					 O_RDWR | O_EXCL, &r, &o, &w),
			 0);
	assert_int_equal(kvc_open_file(engine, r.ino, O_WRONLY, &o, &w), 0);
	kvc_open_release(engine, r.ino, O_RDWR, 0);
	assert_int_equal(state_of(r.ino), KVC_OPEN);
	kvc_open_release(engine, r.ino, O_WRONLY, 0);
	assert_int_equal(state_of(r.ino), KVC_RESIDENT);
	assert_int_equal(kvc_entry_unlink(engine, model[0], "two", &w), 0);
	engine_forget(r.ino);
	engine_check();
}

static int begin(void **state)
{
	(void)state;
	engine_new("unit=dir");
	model[0] = engine_folder(KVC_ROOT, "m");
	model[1] = engine_folder(KVC_ROOT, "o");
	set = engine_folder(KVC_ROOT, "s");
	kvc_lock_both(engine);
	assert_int_equal(kvc_model_ttl_set_both(engine, set, TTL), 0);
	assert_int_equal(kvc_model_attr_set_both(engine, set, KVC_MODEL_POLICY, "fifo"), 0);
	kvc_unlock_both(engine);
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
		cmocka_unit_test(reads_fail),
		cmocka_unit_test(memory_fails),
		cmocka_unit_test(takes_no_place),
		cmocka_unit_test(last_of_two),
	};

	return cmocka_run_group_tests_name("moves", tests, begin, end);
}
