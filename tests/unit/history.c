/* SPDX-License-Identifier: Apache-2.0 */
/* The ring buffer of counter samples: which samples it has, and which sample is a minute old. */
#include "history.h"
#include "util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NS(s) ((uint64_t)(s) * 1000000000u)

/* Makes the i-th sample, with i hits. */
static struct kvfs_sample nth(uint64_t i)
{
	return (struct kvfs_sample){ .ns = NS(1000 + i * KVFS_EVERY_S),
				     .hits = i,
				     .misses = 2 * i };
}

static void fill(struct kvfs_history *h, uint64_t n)
{
	kvfs_history_init(h);
	for (uint64_t i = 0; i < n; i++) {
		struct kvfs_sample s = nth(i);

		kvfs_history_add(h, &s);
	}
}

static void before(void **state)
{
	struct kvfs_history h;
	struct kvfs_sample now = nth(1000);

	(void)state;
	fill(&h, 0); /* no sample yet: `now` is returned */
	assert_int_equal(kvfs_history_before(&h, &now, 60).hits, 1000);
	fill(&h, 3); /* fewer samples than a minute: the first is returned */
	now = nth(3);
	assert_int_equal(kvfs_history_before(&h, &now, 60).hits, 0);
	fill(&h, 1000); /* the ring buffer has wrapped several times */
	now = nth(1000);
	assert_int_equal(kvfs_history_before(&h, &now, 60).hits, 1000 - 60 / KVFS_EVERY_S);
	assert_int_equal(kvfs_history_before(&h, &now, 3600).hits, 1000 - 3600 / KVFS_EVERY_S);
	assert_int_equal(kvfs_history_before(&h, &now, 99999).hits, 1000 - KVFS_SAMPLES_N);
}

/* Returns the numbers of a field in the printed JSON. */
static size_t numbers(const char *text, const char *field, double *v, size_t capacity)
{
	const char *p = strstr(text, field);
	size_t n = 0;
	char *end;

	assert_non_null(p);
	for (p = strchr(p, '[') + 1; n < capacity; p = end + 1) {
		v[n++] = strtod(p, &end);
		assert_true(end > p && (*end == ',' || *end == ']'));
		if (*end == ']')
			return n;
	}
	return 0;
}

static void printed(void **state)
{
	static const uint64_t sizes[] = {
		0, 1, KVFS_SAMPLES_N - 1, KVFS_SAMPLES_N, KVFS_SAMPLES_N + 1, 5000
	};
	double ago[KVFS_SAMPLES_N + 2], hits[KVFS_SAMPLES_N + 2];

	(void)state;
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		size_t n = kvc_min(sizes[i], (uint64_t)KVFS_SAMPLES_N), len;
		struct kvfs_history h;
		struct kvfs_sample now = nth(sizes[i]);
		char *text;
		FILE *out = open_memstream(&text, &len);

		fill(&h, sizes[i]);
		kvfs_history_print(&h, &now, out);
		assert_int_equal(fclose(out), 0);
		assert_int_equal(numbers(text, "\"ago_seconds\"", ago, KVFS_SAMPLES_N + 2), n + 1);
		assert_int_equal(numbers(text, "\"hits\"", hits, KVFS_SAMPLES_N + 2), n + 1);
		for (size_t j = 0; j <= n; j++) {
			assert_true(hits[j] == (double)(sizes[i] - n + j));
			assert_true(ago[j] == (double)((n - j) * KVFS_EVERY_S));
		}
		free(text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(before), cmocka_unit_test(printed) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
