/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring buffers of counter samples and of durations: which samples they have, which sample is a
 * minute old, and the quantiles computed from them.
 */
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

/* Returns the numbers of a field in the printed JSON; null is -1. */
static size_t numbers(const char *text, const char *field, double *v, size_t capacity)
{
	const char *p = strstr(text, field);
	size_t n = 0;
	char *end;

	assert_non_null(p);
	for (p = strchr(p, '[') + 1; n < capacity; p = end + 1) {
		bool null = !strncmp(p, "null", 4);

		v[n++] = null ? -1 : strtod(p, &end);
		end = null ? (char *)p + 4 : end;
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

/* Quantiles of opens are of the minute before each sample. */
static void opens(void **state)
{
	double p50[16], p99[16];
	struct kvfs_history h;
	struct kvfs_sample s = { .ns = NS(1000) };
	char *text;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	(void)state;
	kvfs_history_init(&h);
	for (unsigned i = 0; i < 14; i++, s.ns += NS(KVFS_EVERY_S)) {
		s.opens[1] += 100; /* above 1 and up to 2 us */
		if (i == 3)
			s.opens[11] += 50; /* above 1024 and up to 2048 us */
		kvfs_history_add(&h, &s);
	}
	kvfs_history_print(&h, &s, out);
	assert_int_equal(fclose(out), 0);
	assert_int_equal(numbers(text, "\"open_p50_seconds\"", p50, 16), 15);
	assert_int_equal(numbers(text, "\"open_p99_seconds\"", p99, 16), 15);
	assert_true(p50[0] < 0 && p99[0] < 0); /* nothing is known of the time before */
	for (unsigned i = 1; i < 15; i++) {
		/* sample 9 is compared with sample 3, which has the slow opens already */
		bool slow = i >= 3 && i < 3 + 60 / KVFS_EVERY_S;

		assert_true(p50[i] > 1e-6 && p50[i] <= 2e-6);
		assert_true(slow ? p99[i] > 1024e-6 && p99[i] <= 2048e-6
				 : p99[i] > 1e-6 && p99[i] <= 2e-6);
	}
	free(text);
}

/* The durations of ten minutes, taken once a minute. */
static void durations(void **state)
{
	struct kvfs_history h;
	struct kvfs_sample now = { .ns = NS(77) };
	struct kvc_stats_durations d = { .ns = NS(1) };

	(void)state;
	kvfs_history_init(&h);
	kvfs_history_durations(&h, &now, &d); /* none yet */
	assert_true(d.ns == NS(77) && !d.n[0][0][0]);
	for (unsigned i = 0; i < 500; i++) {
		/* a sample may be up to a second late */
		struct kvc_stats_durations one = {
			.ns = NS(1000 + i * KVFS_EVERY_S) + NS(1) * (i * 7 % 10) / 10,
		};

		one.n[KVC_OP_commit][KVC_PLACES - 1][3] = i;
		kvfs_history_add_durations(&h, &one);
		kvfs_history_durations(&h, &now, &d);
		/* the newest is from the start of the minute, and the oldest ten minutes older */
		assert_int_equal(d.n[KVC_OP_commit][KVC_PLACES - 1][3],
				 i / 6 >= KVFS_DURATIONS_N ? (i / 6 - 10) * 6 : 0);
	}
}

static void quantile(void **state)
{
	uint64_t n[KVC_SPANS] = { 0 };

	(void)state;
	assert_true(kvc_histogram_quantile(n, .5) == 0);
	n[0] = 100; /* up to 1 */
	assert_true(kvc_histogram_quantile(n, .5) == .5);
	assert_true(kvc_histogram_quantile(n, 1) == 1);
	n[4] = 100; /* above 8 and up to 16 */
	assert_true(kvc_histogram_quantile(n, .5) == 1);
	assert_true(kvc_histogram_quantile(n, .75) == 12);
	assert_true(kvc_histogram_quantile(n, 1) == 16);
	n[KVC_SPANS - 1] = 800; /* above 2^24, without an end */
	assert_true(kvc_histogram_quantile(n, .99) == 1 << (KVC_SPANS - 2));
	n[0] = UINT64_MAX / 2000; /* many */
	assert_true(kvc_histogram_quantile(n, .5) > .49 && kvc_histogram_quantile(n, .5) < .51);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(before),    cmocka_unit_test(printed),  cmocka_unit_test(opens),
		cmocka_unit_test(durations), cmocka_unit_test(quantile),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
