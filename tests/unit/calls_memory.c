/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory runs out in calls. Files are made, written, renamed over others, exchanged, linked, given
 * attributes and deleted, in an engine without threads. Each allocation in turn fails, alone or
 * with all later ones. A call that returns -ENOMEM has had no effect. The effect of a call that
 * returns 0 is complete, and survives a commit and a restart. All remaining files can be deleted,
 * down to the last row of the catalog.
 */
#include "alloc.h"
#include "engine.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define NAMES 6
#define LEN 3000

static const struct kvc_caller root;
static char folder_name[32];
static uint64_t folder;
static struct {
	uint64_t ino; /* 0: the name does not exist */
	bool full, link;
} name[NAMES];

static const char *text(int i)
{
	static const char *const all[NAMES] = { "a", "b", "c", "d", "e", "f" };

	return all[i];
}

static uint8_t byte_of(uint64_t ino)
{
	return (uint8_t)(ino * 37 + 1);
}

static void make(int i)
{
	struct kvc_opened o = { 0 };
	struct kvc_wait w = { 0 };
	uint8_t bytes[LEN];
	struct kvc_row r;
	size_t n = 0;

	if (name[i].ino)
		return;
	if (alloc_none(kvc_open_create(engine, folder, text(i), S_IFREG | 0644, 0, 0,
				       O_RDWR | O_EXCL, &r, &o, &w)))
		return;
	name[i].ino = r.ino;
	name[i].link = false;
	memset(bytes, byte_of(r.ino), LEN);
	w = (struct kvc_wait){ 0 };
	name[i].full = !alloc_none(kvc_io_write(engine, r.ino, bytes, LEN, 0, O_RDWR, &n, &w));
	kvc_open_release(engine, r.ino, O_RDWR, 0);
	kvc_entry_forget(engine, r.ino, 1);
}

static void symlink_to(int i, const char *target)
{
	struct kvc_row r;

	if (name[i].ino || alloc_none(kvc_entry_make(engine, folder, text(i), S_IFLNK | 0777, &root,
						     target, 0, &r)))
		return;
	name[i].ino = r.ino;
	name[i].link = true;
	kvc_entry_forget(engine, r.ino, 1);
}

static void move(int i, int j, unsigned flags)
{
	struct kvc_wait w = { 0 };
	int err;

	if (!name[i].ino || (flags && !name[j].ino))
		return;
	err = kvc_rename(engine, folder, text(i), folder, text(j), flags, &w);
	if (alloc_none(err) || name[i].ino == name[j].ino)
		return;
	__typeof__(name[0]) was = name[j];

	name[j] = name[i];
	name[i] = was;
	if (!flags)
		name[i].ino = 0;
}

static void link_to(int i, int j)
{
	struct kvc_row r;

	if (!name[i].ino || name[j].ino ||
	    alloc_none(kvc_entry_link(engine, name[i].ino, folder, text(j), 0, &r)))
		return;
	name[j] = name[i];
	kvc_entry_forget(engine, r.ino, 1);
}

static void del(int i)
{
	struct kvc_wait w = { 0 };

	if (name[i].ino && !alloc_none(kvc_entry_unlink(engine, folder, text(i), &w)))
		name[i].ino = 0;
}

static void check_bytes(uint64_t ino)
{
	struct kvc_opened o = { 0 };
	struct kvc_wait w = { 0 };
	uint8_t got[LEN + 1], want[LEN];
	int fd;

	assert_int_equal(kvc_open_file(engine, ino, O_RDONLY | O_NOATIME, &o, &w), 0);
	fd = kvc_open_fd(engine, ino);
	assert_true(fd >= 0);
	memset(want, byte_of(ino), LEN);
	assert_int_equal(pread(fd, got, sizeof got, 0), LEN);
	assert_memory_equal(got, want, LEN);
	kvc_open_release(engine, ino, O_RDONLY, 0);
}

static void check(void)
{
	for (int i = 0; i < NAMES; i++) {
		struct kvc_row r;
		unsigned links = 0;
		int err = kvc_lookup(engine, folder, text(i), &r, NULL);

		if (!name[i].ino) {
			assert_int_equal(err, -ENOENT);
			continue;
		}
		assert_int_equal(err, 0);
		assert_int_equal(r.ino, name[i].ino);
		for (int j = 0; j < NAMES; j++)
			links += name[j].ino == r.ino;
		assert_int_equal(r.nlink, links);
		if (name[i].full && !name[i].link)
			check_bytes(r.ino);
		kvc_entry_forget(engine, r.ino, 1);
	}
}

static void story(void)
{
	char target[3000], value[100] = "value";

	memset(target, 'x', sizeof target - 1);
	target[sizeof target - 1] = 0;
	make(0);
	make(1);
	move(0, 2, 0);
	move(1, 2, 0); /* over another file */
	link_to(2, 3);
	make(0);
	move(0, 3, RENAME_EXCHANGE);
	symlink_to(4, target);
	symlink_to(5, "short");
	move(4, 5, 0);
	if (name[3].ino)
		alloc_none(kvc_setxattr(engine, name[3].ino, "user.a", value, sizeof value, 0, NULL,
					NULL));
	alloc_none(kvc_commit_once(engine));
	del(2);
	move(3, 2, 0);
	del(5);
	make(1);
	move(1, 2, 0);
}

static void use_calls(void)
{
	static unsigned serial;
	struct kvc_row r;

	memset(name, 0, sizeof name);
	snprintf(folder_name, sizeof folder_name, "m%u", serial++);
	if (alloc_none(kvc_entry_make(engine, KVC_ROOT, folder_name, S_IFDIR | 0755, &root, NULL, 0,
				      &r))) {
		assert_int_equal(kvc_lookup(engine, KVC_ROOT, folder_name, &r, NULL), -ENOENT);
		return;
	}
	folder = r.ino;
	story();
	alloc_disarm();
	check();
	engine_commit();
	check();
	if (serial % 40 == 0) {
		engine_check();
		assert_int_equal(kvc_lookup(engine, KVC_ROOT, folder_name, &r, NULL), 0);
		check();
	}
	for (int i = 0; i < NAMES; i++)
		del(i);
	check();
	assert_int_equal(kvc_entry_rmdir(engine, KVC_ROOT, folder_name), 0);
	engine_forget(folder);
	engine_commit();
}

static void calls(void **state)
{
	(void)state;
	engine_new("");
	alloc_sweep("calls", use_calls, 400, false);
	engine_check();
	engine_end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(calls),
	};

	return cmocka_run_group_tests_name("calls_memory", tests, NULL, NULL);
}
