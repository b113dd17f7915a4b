/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drops of chunks (engine/names/chunk_drop.c), in an engine without threads. A chunk that a client
 * uses while a drop scans it stays. A drop that meets an error of the catalog at any read, or runs
 * out of memory at any allocation, has no effect or is completed later. No client ever sees some
 * files of a chunk without the others, nothing remains of a dropped chunk, and nothing of a chunk
 * that stays is lost. A folder that the kernel knows is dropped once the kernel has been told. A
 * kill during a drop is tested like an error.
 */
#include "alloc.h"
#include "engine.h"
#include "notify.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FEW 9
#define MANY 40 /* more than are processed under one hold of the locks */
#define LATER_NS 1000000000ull

/* The linker reserves these names for users of --wrap. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */

/* Called between two holds of the locks. */
static void (*meanwhile)(void);
void __real_kvc_catalog_pause(struct kvc_catalog *c);
void __wrap_kvc_catalog_pause(struct kvc_catalog *c);
void __wrap_kvc_catalog_pause(struct kvc_catalog *c)
{
	void (*now)(void) = meanwhile;

	meanwhile = NULL;
	if (now)
		now();
	__real_kvc_catalog_pause(c);
}

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
READ(kvc_row_get, (struct kvc_catalog * c, uint64_t i, struct kvc_row *r), (c, i, r))
READ(kvc_object_get, (struct kvc_catalog * c, uint64_t i, struct kvc_object_row *o), (c, i, o))
READ(kvc_place_get, (struct kvc_catalog * c, uint64_t i, struct kvc_place *p), (c, i, p))
READ(kvc_chunk_get, (struct kvc_catalog * c, uint64_t i, struct kvc_chunk_row *r), (c, i, r))
READ(kvc_peek_inode, (struct kvc_catalog * c, uint64_t i, struct kvc_peek *p), (c, i, p))
READ(kvc_peek_names,
     (struct kvc_catalog * c, uint64_t i, const struct kvc_name_at *at, struct kvc_peek_names *p),
     (c, i, at, p))
READ(kvc_xattr_get, (struct kvc_catalog * c, uint64_t i, const char *n, void *v, size_t *l),
     (c, i, n, v, l))
/* NOLINTEND(bugprone-reserved-identifier) */

static uint64_t model;

struct chunk {
	char name[32];
	unsigned n;
	uint64_t folder, file[MANY];
};
static struct chunk now;

/*
 * Makes a folder with n files, committed and old enough to be dropped. Some have a copy in the
 * tier, and one has another name elsewhere.
 */
static void chunk_of(unsigned n)
{
	static unsigned serial;
	struct kvc_row r;
	char name[32];

	now.n = n;
	snprintf(now.name, sizeof now.name, "c%u", serial++);
	now.folder = engine_folder(model, now.name);
	for (unsigned i = 0; i < n; i++) {
		snprintf(name, sizeof name, "l%u", i);
		now.file[i] = engine_file(now.folder, name);
		if (i % 4 == 0)
			engine_place(now.file[i]);
	}
	snprintf(name, sizeof name, "also-%s", now.name);
	assert_int_equal(kvc_entry_link(engine, now.file[2], model, name, 0, &r), 0);
	/* its chunk is the one of its newest name */
	snprintf(name, sizeof name, "l2-%s", now.name);
	struct kvc_wait w = { 0 };

	assert_int_equal(kvc_rename(engine, now.folder, "l2", now.folder, name, 0, &w), 0);
	for (unsigned i = 0; i < n; i++)
		engine_forget(now.file[i]);
	engine_forget(now.folder);
	engine_commit();
	engine_later_ns += LATER_NS;
}

static bool has(unsigned i)
{
	char name[48];

	if (i == 2)
		snprintf(name, sizeof name, "l2-%s", now.name);
	else
		snprintf(name, sizeof name, "l%u", i);
	return engine_has(now.folder, name);
}

/* The number of its files that exist: all, or none. */
static unsigned there(void)
{
	char also[48];
	unsigned n = 0;
	bool linked;

	for (unsigned i = 0; i < now.n; i++)
		n += has(i);
	snprintf(also, sizeof also, "also-%s", now.name);
	linked = engine_has(model, also);
	if (n != (linked ? now.n : 0))
		fail_msg("%u of %u files are there, and a link is%s", n, now.n,
			 linked ? "" : " not");
	return n;
}

static int drop(void)
{
	return kvc_chunk_drop(engine, now.folder, KVC_DROP_WHOLE, KVC_FOR_quota, NULL, NULL);
}

static void goes(void **state)
{
	(void)state;
	for (int large = 0; large < 2; large++) {
		chunk_of(large ? MANY : FEW);
		assert_int_equal(there(), now.n);
		assert_int_equal(drop(), -EBUSY); /* it was looked up just now */
		engine_later_ns += LATER_NS;
		assert_int_equal(drop(), 0);
		assert_int_equal(there(), 0);
		assert_true(engine->drops->ndetached == 0 && engine->drops->most <= 32);
	}
	engine_check();
}

/*
 * The kernel, short of memory, forgets a folder a moment after a client found it, as in
 * makedirs(exist_ok). The folder is not dropped before the client's next call.
 */
static void found_and_forgotten(void **state)
{
	struct kvc_row r;

	(void)state;
	for (int later = 0; later < 2; later++) {
		int err;

		chunk_of(FEW);
		assert_int_equal(kvc_lookup(engine, model, now.name, &r, NULL), 0);
		engine_forget(now.folder);
		usleep(later ? 150000 : 0);
		engine->started = true;
		err = drop();
		engine->started = false;
		if (later)
			assert_int_equal(err, 0);
		else
			assert_int_not_equal(err, 0);
		assert_int_equal(there(), later ? 0 : FEW);
	}
	engine_later_ns += LATER_NS;
	engine_check();
}

/* ---- a client uses the chunk ---- */

static void opens_first(void)
{
	struct kvc_opened o = { 0 };
	struct kvc_wait w = { 0 };
	struct kvc_row r;

	assert_int_equal(kvc_lookup(engine, now.folder, "l0", &r, NULL), 0);
	assert_int_equal(kvc_open_file(engine, r.ino, O_RDONLY | O_NOATIME, &o, &w), 0);
	engine_later_ns += LATER_NS; /* it is no longer young when it is to be detached */
}

static void opens_and_closes(void)
{
	opens_first();
	kvc_open_release(engine, now.file[0], O_RDONLY, 0);
	engine_forget(now.file[0]);
}

static void makes(void)
{
	engine_file(now.folder, "new");
	engine_later_ns += LATER_NS;
}

static void leases(void)
{
	const struct kvc_lease_kind kind = { .most = 1 << 20, .objects = KVC_LEASE_QUICK };
	struct kvc_asker user = { 0 };
	struct kvc_lease *l;
	char path[64];

	snprintf(path, sizeof path, "m/%s/l1\n", now.name);
	assert_int_equal(kvc_lease_new(engine, path, strlen(path), &kind, &user, &l), 0);
	engine_later_ns += LATER_NS;
	kvc_lease_free(engine, l);
}

/* Runs after the drop has scanned some of the files. */
static void stays_in_hand(void **state)
{
	static void (*const what[])(void) = { opens_first, opens_and_closes, makes, leases };

	(void)state;
	for (size_t i = 0; i < sizeof what / sizeof what[0]; i++) {
		chunk_of(MANY);
		meanwhile = what[i];
		assert_int_equal(drop(), -EBUSY);
		assert_null(meanwhile); /* it was called */
		assert_int_equal(there(), MANY);
		if (what[i] == opens_first)
			kvc_open_release(engine, now.file[0], O_RDONLY, 0);
		engine_forget(now.file[0]);
		engine_later_ns += LATER_NS;
		assert_int_equal(drop(), 0);
		assert_int_equal(there(), 0);
	}
	engine_check();
}

/* A chunk in a folder of its own that the kernel knows. Returns the previous model. */
static uint64_t known_chunk(void)
{
	const uint64_t before = model;
	struct kvc_row r;

	model = engine_folder(KVC_ROOT, "told");
	/* as if threads ran; only the notifier would do anything here */
	engine->started = true;
	chunk_of(FEW);
	assert_int_equal(kvc_lookup(engine, model, now.name, &r, NULL), 0);
	engine_later_ns += LATER_NS;
	return before;
}

/* Returns the last notice, and marks all as delivered. */
static enum kvc_notice_kind last_told(void)
{
	engine->notices->delivered = engine->notices->queued;
	return engine->notices->v[engine->notices->n - 1].what;
}

static void known_no_more(uint64_t before)
{
	engine_forget(now.folder);
	engine_forget(model);
	engine->started = false;
	model = before;
	engine_commit();
	engine_check();
}

/*
 * A client that uses the folder is told before it is dropped, however long that takes. A dropped
 * folder is revived when a file is made in it, but not if its parent does not exist any more.
 */
static void told_first(void **state)
{
	const uint64_t before = known_chunk();
	struct kvc_opened o = { 0 };
	struct kvc_wait w = { 0 };
	struct kvc_row r;

	(void)state;
	assert_int_equal(drop(), -EAGAIN);
	usleep(300000);
	assert_int_equal(drop(), -EAGAIN);
	assert_int_equal(last_told(), KVC_NOTICE_PROBE);
	assert_int_equal(drop(), 0);
	assert_int_equal(there(), 0);
	assert_int_equal(kvc_entry_rmdir(engine, KVC_ROOT, "told"), 0);
	assert_int_equal(kvc_open_create(engine, now.folder, "new", S_IFREG | 0644, 0, 0,
					 O_RDWR | O_EXCL, &r, &o, &w),
			 -ENOENT);
	known_no_more(before);
}

/*
 * On kernels whose first probe only invalidates unused names, a second probe invalidates all names.
 */
static void told_again_where_it_is_held(void **state)
{
	const uint64_t before = known_chunk();
	uint64_t epochs = 0;

	(void)state;
	engine->ev.keeps_used_names = true;
	for (int looked = 1; looked >= 0; looked--) {
		struct kvc_row r;

		assert_int_equal(drop(), -EAGAIN);
		usleep(150000);
		assert_int_equal(last_told(), KVC_NOTICE_PROBE);
		assert_int_equal(drop(), -EAGAIN);
		usleep(150000);
		assert_int_equal(last_told(), KVC_NOTICE_PROBE_ALL);
		if (!looked)
			break;
		assert_int_equal(kvc_entry_getattr(engine, now.folder, &r), 0);
		assert_int_equal(drop(), -EAGAIN); /* it starts again */
		usleep(400000);
	}
	assert_int_equal(drop(), 0);
	assert_int_equal(there(), 0);
	for (size_t i = 0; i < engine->notices->n; i++)
		epochs += engine->notices->v[i].what == KVC_NOTICE_FOLDER;
	assert_int_equal(epochs, 0); /* the kernel already looks up its name */
	assert_int_equal(kvc_entry_rmdir(engine, KVC_ROOT, "told"), 0);
	engine->ev.keeps_used_names = false;
	known_no_more(before);
}

/* ---- errors ---- */

static unsigned way;
static long cut, whole;

/* A drop in which something fails. After that nothing fails, and the drop continues. */
static void one_drop(void (*arm)(void), void (*disarm)(void))
{
	int err;

	chunk_of(way % 2 ? MANY : FEW);
	arm();
	err = drop();
	disarm();
	if (!engine->drops->ndetached && err)
		assert_int_equal(there(), now.n);
	else
		assert_int_equal(there(), 0);
	whole += err != 0;
	cut += engine->drops->ndetached > 0;
	/* while it cannot be completed, its files are invisible */
	arm();
	kvc_chunk_drop_resume(engine);
	disarm();
	if (!err || engine->drops->ndetached)
		assert_int_equal(there(), 0);
	kvc_chunk_drop_resume(engine);
	assert_int_equal(engine->drops->ndetached, 0);
	engine_commit();
	if (!err)
		assert_int_equal(there(), 0);
	else
		assert_int_equal(there(), now.n);
	engine_later_ns += LATER_NS;
	if (err)
		assert_int_equal(drop(), 0);
	assert_int_equal(there(), 0);
	engine_commit();
}

static void arm_read(void)
{
	reads = 0;
	read_fails = for_ever ? kvc_max(1, (uint64_t)way / 4) : (uint64_t)way / 4;
}

static void disarm_read(void)
{
	read_fails = 0;
}

static void reads_fail(void **state)
{
	(void)state;
	cut = whole = 0;
	for (way = 4; way < 4 * 60; way++) {
		for_ever = way & 2;
		one_drop(arm_read, disarm_read);
		if (way % 40 == 0)
			engine_check();
	}
	print_message("%ld drops did not happen, %ld were ended later\n", whole, cut);
	assert_true(whole > 15 && cut > 10);
	engine_check();
}

static void arm_memory(void)
{
	alloc_arm(way / 4, way & 2);
}

static void memory_fails(void **state)
{
	(void)state;
	cut = whole = 0;
	for (way = 4; way < 4 * 200; way++) {
		one_drop(arm_memory, alloc_disarm);
		if (way % 100 == 0)
			engine_check();
	}
	print_message("%ld drops did not happen, %ld were ended later\n", whole, cut);
	assert_true(whole > 15 && cut > 10);
	engine_check();
}

/* Killed after the detach was committed: the next start completes the drop. */
static void ends_after_a_kill(void **state)
{
	bool is_cut = false;
	struct kvc_row r;

	(void)state;
	for (way = 4; !is_cut; way += 4) {
		for_ever = true;
		chunk_of(MANY);
		arm_read();
		drop();
		disarm_read();
		is_cut = engine->drops->ndetached;
		engine_later_ns += LATER_NS;
		if (!is_cut)
			assert_int_equal(drop(), 0);
		assert_true(way < 1000);
	}
	/* no file can be found by its number, whether its rows have been removed or not */
	for (unsigned i = 0; i < MANY; i++)
		assert_true(kvc_entry_getattr(engine, now.file[i], &r) < 0);
	engine_commit();
	engine_again(true);
	assert_int_equal(there(), 0);
	engine_check();
}

static int begin(void **state)
{
	(void)state;
	engine_new("unit=dir");
	model = engine_folder(KVC_ROOT, "m");
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
		cmocka_unit_test(goes),
		cmocka_unit_test(found_and_forgotten),
		cmocka_unit_test(stays_in_hand),
		cmocka_unit_test(told_first),
		cmocka_unit_test(told_again_where_it_is_held),
		cmocka_unit_test(reads_fail),
		cmocka_unit_test(memory_fails),
		cmocka_unit_test(ends_after_a_kill),
	};

	return cmocka_run_group_tests_name("drops", tests, begin, end);
}
