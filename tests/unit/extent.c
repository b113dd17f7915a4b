/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the free extents of a disk tier with a plain bitmap, with a printed seed. */
#include "extent.h"

#include "array.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define SIZE 4096

static bool none; /* no memory is left */

/* NOLINTBEGIN(bugprone-reserved-identifier) */
void *__real_kvc_array_grow(void *p, size_t bytes);
void *__wrap_kvc_array_grow(void *p, size_t bytes);
void *__wrap_kvc_array_grow(void *p, size_t bytes)
{
	return none ? NULL : __real_kvc_array_grow(p, bytes);
}

/* NOLINTEND(bugprone-reserved-identifier) */

static void edges(void **state)
{
	struct kvct_extents *x = kvct_extents_new(100);
	uint64_t at = 77;

	(void)state;
	assert_int_equal(kvct_extents_take(x, 0, &at), -ENOSPC);
	assert_int_equal(kvct_extents_take(x, 101, &at), -ENOSPC);
	assert_int_equal(at, 77);
	assert_int_equal(kvct_extents_claim(x, 90, 11), -ERANGE);
	assert_int_equal(kvct_extents_claim(x, UINT64_MAX, 2), -ERANGE);
	assert_int_equal(kvct_extents_give(x, 10, 10), -EEXIST);
	assert_int_equal(kvct_extents_take(x, 100, &at), 0);
	assert_int_equal(at, 0);
	assert_int_equal(kvct_extents_give(x, 40, 20), 0);
	assert_int_equal(kvct_extents_give(x, 30, 11), -EEXIST);
	assert_int_equal(kvct_extents_give(x, 59, 2), -EEXIST);
	assert_int_equal(kvct_extents_give(x, 40, 20), -EEXIST);
	assert_int_equal(kvct_extents_claim(x, 39, 2), -EEXIST);
	assert_int_equal(kvct_extents_give(x, 0, 40), 0);
	assert_int_equal(kvct_extents_give(x, 60, 40), 0);
	assert_int_equal(kvct_extents_take(x, 100, &at), 0); /* joined again */
	kvct_extents_free(x);
}

struct seen {
	uint8_t *map;
	uint64_t end;
};

static void check_extent(void *arg, uint64_t at, uint64_t len)
{
	struct seen *s = arg;

	assert_true(at > s->end || (at == 0 && s->end == 0)); /* ordered, and never adjacent */
	for (uint64_t i = 0; i < len; i++) {
		assert_int_equal(s->map[at + i], 0);
		s->map[at + i] = 2;
	}
	s->end = at + len;
}

/* The lowest run of `len` free bytes, preferably in a free extent smaller than `keep`. */
static uint64_t expected(const uint8_t *used, uint64_t len, uint64_t keep)
{
	uint64_t any = SIZE, end;

	for (uint64_t at = 0; at < SIZE; at = end + 1) {
		for (end = at; end < SIZE && !used[end]; end++)
			;
		if (end - at >= len && end - at < keep)
			return at;
		if (end - at >= len && any == SIZE)
			any = at;
	}
	return any;
}

static void random_walk(void **state)
{
	unsigned seed = (unsigned)time(NULL);
	static uint8_t used[SIZE];
	struct kvct_extents *x = kvct_extents_new(SIZE);
	struct {
		uint64_t at, len;
	} held[600];
	int n = 0;

	(void)state;
	printf("seed %u\n", seed);
	for (int step = 0; step < 20000; step++) {
		if (n < 600 && rand_r(&seed) % 2) {
			uint64_t len = 1 + rand_r(&seed) % 40, at;
			uint64_t keep = rand_r(&seed) % 2 ? 1 + rand_r(&seed) % 80 : 0;
			uint64_t first = expected(used, len, keep);
			int err = keep ? kvct_extents_take_apart(x, len, keep, &at)
				       : kvct_extents_take(x, len, &at);

			assert_int_equal(err, first == SIZE ? -ENOSPC : 0);
			if (err)
				continue;
			assert_int_equal(at, first); /* first fit */
			memset(used + at, 1, len);
			held[n].at = at;
			held[n++].len = len;
		} else if (n < 600 && rand_r(&seed) % 2) {
			uint64_t len = 1 + rand_r(&seed) % 40;
			uint64_t at = rand_r(&seed) % (SIZE - len + 1);
			/* claims the extent of an existing copy */
			int err = kvct_extents_claim(x, at, len);

			assert_int_equal(err, memchr(used + at, 1, len) ? -EEXIST : 0);
			if (err)
				continue;
			memset(used + at, 1, len);
			held[n].at = at;
			held[n++].len = len;
		} else if (n) {
			int i = rand_r(&seed) % n;

			assert_int_equal(kvct_extents_give(x, held[i].at, held[i].len), 0);
			memset(used + held[i].at, 0, held[i].len);
			held[i] = held[--n];
		}
		if (step % 500 == 0) {
			uint8_t map[SIZE];
			struct seen s = { map, 0 };
			uint64_t free_bytes = 0;

			memcpy(map, used, SIZE);
			kvct_extents_each(x, check_extent, &s);
			for (int i = 0; i < SIZE; i++) {
				/* every byte is known as free or used */
				assert_int_not_equal(map[i], 0);
				free_bytes += map[i] == 2;
			}
			assert_int_equal(kvct_extents_total_free(x), free_bytes);
		}
	}
	kvct_extents_free(x);
}

/* Without memory an allocation may be refused, but space can be returned. */
static void without_memory(void **state)
{
	struct kvct_extents *x;
	uint64_t at, taken = 0;
	int err = 0;

	(void)state;
	none = true;
	assert_null(kvct_extents_new(SIZE));
	none = false;
	x = kvct_extents_new(SIZE);
	none = true;
	for (; !err; taken += !err) /* each leaves a hole of one byte */
		err = kvct_extents_claim(x, 2 * taken + 1, 1);
	assert_int_equal(err, -ENOMEM);
	assert_true(taken > 16);
	assert_int_equal(kvct_extents_total_free(x), SIZE - taken);
	assert_int_equal(kvct_extents_take(x, SIZE - 2 * taken, &at), 0); /* all the rest */
	assert_int_equal(at, 2 * taken);
	for (uint64_t i = 0; i < 32; i++) /* not adjacent to any free extent */
		assert_int_equal(kvct_extents_give(x, at + 2 * i + 1, 1), 0);
	for (uint64_t i = 0; i < taken; i++) /* joined with its neighbours, which needs no memory */
		assert_int_equal(kvct_extents_give(x, 2 * i + 1, 1), 0);
	none = false;
	assert_int_equal(kvct_extents_total_free(x), 2 * taken + 32);
	for (uint64_t i = 0; i < SIZE / 2 - taken; i++)
		assert_int_equal(kvct_extents_give(x, 2 * (taken + i), 1), 0);
	kvct_extents_free(x);
}

/* Many extents too large to be split, and a small one after them. */
static uint64_t behind(unsigned large)
{
	struct kvct_extents *x = kvct_extents_new(large * 101ull + 3);
	uint64_t at;

	for (unsigned i = 0; i <= large; i++)
		assert_int_equal(kvct_extents_claim(x, i ? i * 101ull : large * 101ull + 2, 1), 0);
	assert_int_equal(kvct_extents_take_apart(x, 1, 50, &at), 0);
	kvct_extents_free(x);
	return at;
}

/* A search that would visit all of a fragmented disk is bounded, and takes the first extent. */
static void bounded(void **state)
{
	(void)state;
	assert_int_equal(behind(100), 100 * 101 + 1);
	assert_int_equal(behind(50000), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(edges),
		cmocka_unit_test(random_walk),
		cmocka_unit_test(without_memory),
		cmocka_unit_test(bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
