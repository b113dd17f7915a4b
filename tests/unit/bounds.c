/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The number of names that a call reads under one hold of the locks does not grow with the size of
 * the folder. The test counts the names that the catalog returns, in an engine without threads. A
 * call also returns no more than its buffer holds.
 */
#include "engine.h"
#include "incomplete.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MANY 400
#define LAYERS "4"
#define FEW 100 /* names under one hold */

/* The linker reserves these names (--wrap). */
/* NOLINTBEGIN(bugprone-reserved-identifier) */

static long seen; /* names under this hold */

struct through {
	kvc_name_fn *fn;
	void *arg;
};

static int see(void *arg, const struct kvc_name *n)
{
	const struct through *t = arg;

	seen++;
	return t->fn(t->arg, n);
}

int __real_kvc_name_each(struct kvc_catalog *c, uint64_t p, uint64_t after, kvc_name_fn *f,
			 void *a);
int __wrap_kvc_name_each(struct kvc_catalog *c, uint64_t p, uint64_t after, kvc_name_fn *f,
			 void *a);
int __wrap_kvc_name_each(struct kvc_catalog *c, uint64_t p, uint64_t after, kvc_name_fn *f, void *a)
{
	struct through t = { f, a };

	return __real_kvc_name_each(c, p, after, see, &t);
}
/* NOLINTEND(bugprone-reserved-identifier) */

static uint64_t model, folder;

static const char *text(char of, unsigned i)
{
	static char name[32];

	snprintf(name, sizeof name, "%c%u", of, i);
	return name;
}

static void set_layers(const char *n)
{
	assert_int_equal(kvc_setxattr(engine, model, "user.kvcachefs.layers", n, strlen(n), 0, NULL,
				      NULL),
			 0);
}

static void del(unsigned i)
{
	struct kvc_wait w = { 0 };

	assert_int_equal(kvc_entry_unlink(engine, folder, text('f', i), &w), 0);
}

static bool partial(void)
{
	struct kvc_node *n;
	bool is;

	kvc_lock_both(engine);
	assert_int_equal(kvc_node_get_both(engine, folder, &n), 0);
	is = kvc_incomplete_both(engine, n);
	kvc_unlock_both(engine);
	return is;
}

/* A complete chunk with many more files than it needs: each change of a name needs their number. */
static void counted(void **state)
{
	(void)state;
	set_layers(LAYERS);
	for (unsigned i = 0; i < 2; i++) {
		seen = 0;
		del(i);
		if (seen > FEW)
			fail_msg("%ld names were looked at", seen);
		engine_commit();
	}
	/* counting stops at the number that was needed */
	assert_false(partial());
	set_layers("399");
	assert_true(partial());
	set_layers("398");
	assert_false(partial());
	del(2);
	assert_true(partial());
	set_layers("397");
	assert_false(partial());
	set_layers(LAYERS);
	assert_false(partial());
	set_layers("398");
	assert_true(partial());
	engine_file(folder, text('f', 2));
	assert_false(partial());
	engine_check();
}

/* Our own attributes are returned whole or not at all. */
static void capacity(void **state)
{
	static const char *const name = "user.kvcachefs.layers";
	char value[8] = "xxxxxxx";
	size_t len = 0;

	(void)state;
	set_layers("398");
	assert_int_equal(kvc_getxattr(engine, model, name, value, &len), 0);
	assert_int_equal(len, 3);
	len = 2;
	assert_int_equal(kvc_getxattr(engine, model, name, value, &len), -ERANGE);
	assert_string_equal(value, "xxxxxxx");
	len = 3;
	assert_int_equal(kvc_getxattr(engine, model, name, value, &len), 0);
	assert_string_equal(value, "398xxxx");
}

static int begin(void **state)
{
	(void)state;
	engine_new("partial=miss");
	model = engine_folder(KVC_ROOT, "m");
	set_layers(LAYERS);
	folder = engine_folder(model, "c");
	for (unsigned i = 0; i < MANY; i++)
		engine_file(folder, text('f', i));
	engine_commit();
	return 0;
}

static int end(void **state)
{
	(void)state;
	for (unsigned i = 2; i < MANY; i++)
		del(i);
	engine_commit();
	engine_end();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counted),
		cmocka_unit_test(capacity),
	};

	return cmocka_run_group_tests_name("bounds", tests, begin, end);
}
