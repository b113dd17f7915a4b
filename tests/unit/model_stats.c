/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of models (telemetry/model_stats.h): their number is bounded, removed ones are added
 * to the others, and statistics with bytes in the pool stay.
 */
#include "model_use.h"

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

	assert_int_equal(kvc_model_stats_init(&k), 0);
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
	kvc_model_use_end_locked(&k);
	kvc_model_stats_free(&k);
}

/* Returns the number of files in all statistics. */
static uint64_t files_of_all(void)
{
	uint64_t files = all.others.use.files;

	for (size_t i = 0; i < all.n; i++)
		files += all.v[i]->use.files;
	assert_int_equal(files, all.all_use.files);
	return files;
}

/*
 * If too many models have files, those of some models are counted under `others`, and the figures
 * of these models are not known. When `others` has no files any more, all models are known again.
 */
static void test_use_bound(void **state)
{
	struct kvc_node node = { .row.ino = 5 };
	struct kvc_model_use u;
	unsigned unknown = 0;
	(void)state;

	all = (struct kvc_model_stats_table){ .n = 0 };
	assert_int_equal(kvc_model_stats_init(&k), 0);
	for (node.model = 1; node.model <= 2 * KVC_MODEL_STATS_MAX; node.model++)
		kvc_model_use_file_locked(&k, &node, 1, 4096);
	assert_int_equal(files_of_all(), 2 * KVC_MODEL_STATS_MAX);
	assert_int_equal(all.n, KVC_MODEL_STATS_MAX);
	assert_int_equal(all.others.use.files, KVC_MODEL_STATS_MAX);
	for (uint64_t m = 1; m <= 2 * KVC_MODEL_STATS_MAX; m++) {
		if (!kvc_model_use_get_locked(&k, m, &u))
			unknown++;
		else
			assert_int_equal(u.files, 1);
	}
	assert_int_equal(unknown, KVC_MODEL_STATS_MAX);
	/* a model without figures of its own gets more files: they are in the sum, too */
	node.model = 2 * KVC_MODEL_STATS_MAX;
	kvc_model_use_file_locked(&k, &node, 5, 5 * 4096);
	assert_int_equal(files_of_all(), 2 * KVC_MODEL_STATS_MAX + 5);
	assert_false(kvc_model_use_get_locked(&k, node.model, &u));
	kvc_model_use_file_locked(&k, &node, -5, -5 * 4096);
	for (node.model = 1; node.model <= 2 * KVC_MODEL_STATS_MAX; node.model++)
		kvc_model_use_file_locked(&k, &node, -1, -4096);
	assert_int_equal(files_of_all(), 0);
	assert_true(kvc_model_use_none(&all.all_use));
	assert_true(kvc_model_use_get_locked(&k, 1, &u));
	node.model = 1;
	kvc_model_use_file_locked(&k, &node, 1, 4096);
	assert_true(kvc_model_use_get_locked(&k, 1, &u));
	assert_int_equal(u.files, 1);
	kvc_model_use_end_locked(&k);
	kvc_model_stats_free(&k);
}

/* A count of all files: no change is lost or counted twice, wherever the count is. */
static void test_use_count(void **state)
{
	struct kvc_node seen = { .row.ino = 3, .model = 7 }, later = { .row.ino = 8, .model = 7 },
			young = { .row.ino = 10, .model = 7 }, early = { .row.ino = 9, .model = 7 };
	const struct kvc_model_use one = { .files = 1, .bytes = 4096 };
	struct kvc_model_use u;
	(void)state;

	all = (struct kvc_model_stats_table){ .n = 0 };
	assert_int_equal(kvc_model_stats_init(&k), 0);
	kvc_model_use_file_locked(&k, &seen, 1, 4096);
	kvc_model_use_begin_locked(&k, 10);
	assert_false(kvc_model_use_get_locked(&k, 7, &u));
	kvc_model_use_visit_locked(&k, 3, 7, &one);
	kvc_model_use_advance_locked(&k, 3);
	kvc_model_use_visit_locked(&k, 3, 7, &one); /* counted already */
	kvc_model_use_file_locked(&k, &seen, 0, 100);
	kvc_model_use_file_locked(&k, &later, 0, 200); /* is counted when it is visited */
	kvc_model_use_enters_locked(&k, young.row.ino);
	kvc_model_use_file_locked(&k, &young, 1, 300);
	kvc_model_use_enters_locked(&k, early.row.ino);
	kvc_model_use_file_locked(&k, &early, 1, 400);
	kvc_model_use_visit_locked(&k, 8, 7, &one);
	kvc_model_use_advance_locked(&k, 8);
	kvc_model_use_visit_locked(&k, 9, 7, &one); /* it was counted when it was made */
	kvc_model_use_advance_locked(&k, 9);
	kvc_model_use_end_locked(&k);
	assert_true(kvc_model_use_get_locked(&k, 7, &u));
	assert_int_equal(u.files, 4);
	assert_int_equal(u.bytes, 2 * 4096 + 100 + 300 + 400);
	assert_int_equal(all.count.early.n, 0);
	kvc_model_use_end_locked(&k);
	kvc_model_stats_free(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bound),
		cmocka_unit_test(test_use_bound),
		cmocka_unit_test(test_use_count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
