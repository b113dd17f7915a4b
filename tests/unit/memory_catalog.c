/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory runs out in the catalog: in its filter of names, in the overlay of changes, and in all of
 * the catalog, compared with a model. tests/unit/catalog.c covers SQLite's own memory. The method
 * is that of tests/unit/memory.c.
 */
#include "alloc.h"
#include "catalog_priv.h"
#include "overlay.h"
#include "shadow.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void use_filter(void)
{
	struct kvc_filter *f = kvc_filter_new();
	int err;

	if (!f) {
		assert_true(alloc_failed > 0);
		return;
	}
	for (int round = 0; round < 3; round++) {
		kvc_filter_add(f, 1, (uint64_t)round);
		if (!alloc_none(err = kvc_filter_begin(f, 10))) {
			kvc_filter_add(f, 2, (uint64_t)round);
			for (int i = 0; i <= round; i++)
				kvc_filter_add_old(f, 1, (uint64_t)i);
			kvc_filter_end(f, true);
		}
		for (int i = 0; i <= round; i++)
			assert_true(kvc_filter_may_have(f, 1, (uint64_t)i));
	}
	kvc_filter_free(f);
}

static void use_overlay(void)
{
	struct kvc_overlay o;
	bool there[300] = { false };

	if (alloc_none(kvc_overlay_init(&o))) {
		kvc_overlay_fini(&o);
		return;
	}
	for (uint64_t i = 0; i < 2000; i++) {
		uint64_t row = i * 7 % 300, value = i;
		bool was = there[row], put = i % 5;
		const struct kvc_change *c;
		int err;

		err = i % 11 ? kvc_overlay_put(&o, KVC_T_OBJECT, row, 0, NULL, put ? &value : NULL,
					       sizeof value)
			     : kvc_overlay_wipe(&o, row);
		if (!alloc_none(err))
			there[row] = i % 11 && put;
		else
			value = 0;
		c = kvc_overlay_find(&o, KVC_T_OBJECT, row, 0, NULL);
		assert_int_equal(c && !c->gone, there[row]);
		if (c && !c->gone && !was && value)
			assert_int_equal(*(uint64_t *)c->value, value);
		if (i % 100 == 50)
			kvc_overlay_seal(&o);
		else if (i % 200 == 99)
			kvc_overlay_merge(&o);
		else if (i % 200 == 199)
			kvc_overlay_drop(&o, SIZE_MAX), memset(there, 0, sizeof there);
		/* dropped changes are no longer known here, but newer ones are */
		for (uint64_t r = 0; i % 200 == 199 && r < 300; r++)
			there[r] = (c = kvc_overlay_find(&o, KVC_T_OBJECT, r, 0, NULL)) && !c->gone;
	}
	kvc_overlay_fini(&o);
}

/*
 * Memory for n changes that was allocated in advance is used when no other memory is left, and n
 * changes cannot fail.
 */
static void spares(void **state)
{
	struct kvc_overlay o;
	char name[256];

	(void)state;
	memset(name, 'x', 255);
	name[255] = 0;
	alloc_arm(0, false);
	assert_int_equal(kvc_overlay_init(&o), 0);
	assert_int_equal(kvc_overlay_spare(&o, 20), 0);
	alloc_arm(1, true);
	assert_int_equal(kvc_overlay_spare(&o, 20), 0);
	assert_int_equal(kvc_overlay_spare(&o, 21), -ENOMEM);
	for (uint64_t i = 0; i < 20; i++) {
		struct kvc_name_value v = { i, S_IFREG };

		assert_int_equal(kvc_overlay_put(&o, KVC_T_NAME, i, 1, name, &v, sizeof v), 0);
	}
	assert_int_equal(kvc_overlay_put(&o, KVC_T_NAME, 77, 1, name, NULL, 0), -ENOMEM);
	for (uint64_t i = 0; i < 20; i++)
		assert_non_null(kvc_overlay_find(&o, KVC_T_NAME, i, 1, name));
	alloc_disarm();
	kvc_overlay_fini(&o);
}

static char catalog_path[300];

static void must(struct kvc_catalog *c)
{
	int err = compare(c, &model);

	if (err)
		fail_msg("%s", err > 0 ? wrong : strerror(-err));
}

static struct kvc_catalog *opened(void)
{
	struct kvc_catalog *c = NULL;
	char error[512] = "";

	if (!kvc_catalog_open(&c, catalog_path, error))
		kvc_catalog_lock(c);
	else
		assert_true(alloc_failed > 0);
	return c;
}

/* Commits. After a failed sync of the log, the next attempt may be up to a second later. */
static void commit_soon(struct kvc_catalog *c)
{
	int err = kvc_catalog_commit(c);

	for (int i = 0; err == -ENOMEM && i < 1000; i++) {
		usleep(10000);
		err = kvc_catalog_commit(c);
	}
	assert_int_equal(err, 0);
}

/*
 * Acknowledged changes are visible at once, after a commit, and after the catalog is opened again.
 */
static void use_catalog(void)
{
	struct kvc_catalog *c = opened();
	int err;

	if (!c) {
		alloc_disarm();
		c = opened();
	}
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 30; i++)
			alloc_none(change(c));
		err = compare(c, &model);
		if (err > 0)
			fail_msg("%s", wrong);
		alloc_none(err);
		alloc_none(kvc_catalog_commit(c));
	}
	alloc_disarm();
	must(c);
	commit_soon(c);
	kvc_catalog_unlock(c);
	assert_int_equal(kvc_catalog_close(c), 0);
	c = opened();
	must(c);
	kvc_catalog_unlock(c);
	assert_int_equal(kvc_catalog_close(c), 0);
}

static void catalog(void **state)
{
	char dir[] = "/dev/shm/kvc-memory-XXXXXX";

	(void)state;
	alloc_sweep("filter", use_filter, 0, true);
	alloc_sweep("overlay", use_overlay, 300, true);
	assert_non_null(mkdtemp(dir));
	snprintf(catalog_path, sizeof catalog_path, "%s/catalog.sqlite", dir);
	assert_int_equal(kvc_catalog_create(catalog_path), 0);
	seed = 4711;
	alloc_sweep("catalog", use_catalog, 100, false);
	assert_true(!chdir(dir));
	unlink("catalog.sqlite");
	unlink("catalog.sqlite-mark");
	assert_true(!chdir("/"));
	assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(spares),
		cmocka_unit_test(catalog),
	};

	return cmocka_run_group_tests_name("memory_catalog", tests, NULL, NULL);
}
