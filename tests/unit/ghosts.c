/* SPDX-License-Identifier: Apache-2.0 */
/* Ghosts: which of them stay, and a table that grows as it fills. */
#include "ghosts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The newest ghosts stay, and only ids of the sample are found. */
static void newest(void **state)
{
	struct kvc_ghosts g;
	unsigned found = 0, taken = 0;

	(void)state;
	assert_int_equal(kvc_ghosts_init(&g, 4096, 1), 0);
	for (uint32_t i = 1; i <= 8192; i++)
		kvc_ghosts_put(&g, i)->last = i;
	for (uint32_t i = 1; i <= 8192; i++) {
		const struct kvc_ghost *x = kvc_ghosts_find(&g, i);

		assert_true(!x || x->last == i);
		found += x != NULL && i > 4096;
	}
	/* the newer half, except in rows that had more than eight of it */
	assert_true(found > 3000);
	kvc_ghosts_fini(&g);
	assert_int_equal(kvc_ghosts_init(&g, 64, 4), 0);
	for (uint32_t i = 1; i <= 4000; i++)
		taken += kvc_ghosts_in_sample(&g, i);
	assert_in_range(taken, 800, 1200);
	kvc_ghosts_fini(&g);
}

static struct kvc_ghosts loaded(const struct kvc_ghosts *g, uint64_t n, uint32_t now)
{
	struct kvc_saving s = { .now = now };
	struct kvc_ghosts to;
	struct kvc_in in;

	while (kvc_ghosts_save(g, &s))
		;
	assert_false(s.out.failed);
	assert_int_equal(kvc_ghosts_init(&to, n, 1), 0);
	in = (struct kvc_in){ .v = s.out.v, .n = s.out.n };
	kvc_ghosts_load(&to, &in);
	assert_false(in.bad);
	assert_int_equal(in.n, 0);
	kvc_state_saving_fini(&s);
	return to;
}

/*
 * A table grows as it fills, row by row, up to all rows, for any number of them. No ghost is lost
 * while there is room, and each is found again.
 */
static void grows(void **state)
{
	static const uint32_t sizes[] = { 8, 72, 2048, 2056, 10000, 131072, 300008 };
	struct kvc_ghosts g, to;
	uint64_t first;

	(void)state;
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		uint32_t n = sizes[s], lost = 0, unread = 0;

		assert_int_equal(kvc_ghosts_init(&g, n, 1), 0);
		first = kvc_ghosts_bytes(&g);
		assert_true(first <= n * sizeof(struct kvc_ghost) / 256 + 96);
		for (uint32_t i = 1; i <= n / 8; i++) {
			struct kvc_ghost *x = kvc_ghosts_put(&g, i);

			x->last = i;
			x->count = (uint8_t)i;
			assert_ptr_equal(kvc_ghosts_find(&g, i), x);
			assert_true(kvc_ghosts_bytes(&g) <= first + 96 + i * 96);
		}

		to = loaded(&g, n, n);
		for (uint32_t i = 1; i <= n / 8; i++) {
			const struct kvc_ghost *x = kvc_ghosts_find(&g, i);
			const struct kvc_ghost *y = kvc_ghosts_find(&to, i);

			lost += !x;
			assert_true(!x || (x->last == i && x->count == (uint8_t)i));
			unread += x && !y;
			assert_true(!y || (y->last == i && y->count == (uint8_t)i));
		}
		assert_true(lost <= n / 8 / 256); /* in rows with more than eight */
		assert_int_equal(unread, 0);
		for (uint32_t i = 1; i <= 2 * n; i++)
			kvc_ghosts_put(&g, i)->last = i;
		assert_int_equal(kvc_ghosts_bytes(&g), n * sizeof(struct kvc_ghost));
		kvc_ghosts_fini(&g);
		kvc_ghosts_fini(&to);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(newest),
		cmocka_unit_test(grows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
