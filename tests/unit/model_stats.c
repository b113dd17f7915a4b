/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of models (telemetry/model_stats.h): their number is bounded, removed ones are added
 * to the others, and statistics with bytes in the pool stay.
 */
#include "model_stats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct kvc_model_stats_table all;
static struct kvc k = { .model_stats = &all };

static uint64_t sum(uint64_t *pool, size_t *n)
{
	struct kvc_model_stats v[64];
	uint64_t hits = 0;
	size_t at = 0, got;

	*pool = *n = 0;
	while ((got = kvc_model_stats_show_locked(&k, &at, v, 64))) {
		if (!*n)
			assert_int_equal(v[0].slot.key, KVC_UNSET);
		for (size_t i = 0; i < got; i++) {
			hits += v[i].hits;
			*pool += v[i].pool_bytes;
		}
		*n += got;
	}
	return hits;
}

static void test_bound(void **state)
{
	struct kvc_node node = { .state = KVC_RESIDENT, .acct.reserved = 4096, .model = 7 };
	const struct kvc_model_stats *kept;
	uint64_t pool;
	size_t n;
	(void)state;

	assert_int_equal(kvc_table_init(&all.table), 0);
	kvc_model_stats_pool_bytes_locked(&k, &node);
	kept = node.counted.in;
	for (uint64_t m = 1; m <= 3 * KVC_MODEL_STATS_MAX; m++)
		kvc_model_stats_locked(&k, m, hits);
	assert_int_equal(sum(&pool, &n), 3 * KVC_MODEL_STATS_MAX);
	assert_int_equal(pool, 4096);
	assert_int_equal(n, KVC_MODEL_STATS_MAX + 1);
	assert_ptr_equal(kvc_model_stats_of_locked(&k, 7), kept);
	assert_true(all.others.hits >= 2 * KVC_MODEL_STATS_MAX);
	/* the file moves to another model, and leaves memory */
	node.model = 3 * KVC_MODEL_STATS_MAX;
	kvc_model_stats_pool_bytes_locked(&k, &node);
	assert_int_equal(kept->pool_bytes, 0);
	assert_int_equal(kvc_model_stats_of_locked(&k, node.model)->pool_bytes, 4096);
	node.state = KVC_LOWER;
	kvc_model_stats_pool_bytes_locked(&k, &node);
	assert_null(node.counted.in);
	assert_int_equal(sum(&pool, &n), 3 * KVC_MODEL_STATS_MAX);
	assert_int_equal(pool, 0);
	kvc_model_stats_free(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_bound) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
