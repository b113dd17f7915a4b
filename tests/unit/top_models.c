/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The opens of each model (engine/telemetry/model_stats.c), with more models than are shown and
 * more than have statistics; and the slowest operations (latency.c). The test has an engine of its
 * own.
 */
#include "engine.h"
#include "model_stats.h"
#include "latency.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FIRST (1ull << 40) /* above all inode numbers: models of this test only */
#define MANY 20000u
static bool gone[MANY];

/* The linker reserves these names (--wrap). */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
int __real_kvc_name_of(struct kvc_catalog *c, uint64_t ino, kvc_name_fn *fn, void *arg);
int __wrap_kvc_name_of(struct kvc_catalog *c, uint64_t ino, kvc_name_fn *fn, void *arg);
int __wrap_kvc_name_of(struct kvc_catalog *c, uint64_t ino, kvc_name_fn *fn, void *arg)
{
	struct kvc_name n = { .parent = KVC_ROOT, .ino = ino };
	char text[32];

	if (ino < FIRST)
		return __real_kvc_name_of(c, ino, fn, arg);
	if (gone[ino - FIRST])
		return 0;
	snprintf(text, sizeof text, "m%llu", (unsigned long long)(ino - FIRST));
	n.name = text;
	return fn(arg, &n);
}
/* NOLINTEND(bugprone-reserved-identifier) */

static uint64_t opened; /* total */

static void opens(unsigned model, bool hit, unsigned times)
{
	kvc_lock(engine);
	if (hit) {
		kvc_model_stats_of_locked(engine, FIRST + model)->hits += times;
		kvc_count_by(&engine->stats, pool_hits, times);
	} else {
		kvc_model_stats_of_locked(engine, FIRST + model)->misses += times;
		kvc_count_by(&engine->stats, pool_misses, times);
	}
	kvc_unlock(engine);
	opened += times;
}

static uint64_t sum(const struct kvc_opens *n)
{
	return n->hits + n->misses;
}

static const struct kvc_top_models *row_of(const struct kvc_top_models_list *l, unsigned model)
{
	for (size_t i = 0; i < l->n; i++)
		if (l->v[i].model == FIRST + model)
			return &l->v[i];
	return NULL;
}

/* Checks the invariants; the caller frees l->v. */
static void look(struct kvc_top_models_list *l)
{
	assert_int_equal(kvc_top_models(engine, l), 0);
	assert_true(l->n <= KVC_TOP_MODELS && l->models <= KVC_MODEL_STATS_MAX);
	assert_int_equal(sum(&l->all), opened);
	for (size_t i = 0; i < l->n; i++) {
		assert_true(!i || sum(&l->v[i - 1].total) >= sum(&l->v[i].total));
		assert_true(sum(&l->v[i].n) <= sum(&l->v[i].total));
	}
}

static void few(void **state)
{
	struct kvc_top_models_list l;

	(void)state;
	look(&l);
	assert_true(!l.n && !l.models && !sum(&l.rest));
	free(l.v);
	for (unsigned i = 0; i < 10; i++)
		opens(i, i % 2, i + 1);
	look(&l);
	assert_true(l.n == 10 && l.models == 10 && !sum(&l.rest));
	for (unsigned i = 0; i < 10; i++) {
		const struct kvc_top_models *r = row_of(&l, i);

		assert_int_equal(r->n.hits, i % 2 ? i + 1 : 0);
		assert_int_equal(r->n.misses, i % 2 ? 0 : i + 1);
	}
	assert_string_equal(l.v[0].name, "m9");
	free(l.v);
}

static void many(void **state)
{
	struct kvc_top_models_list l;
	unsigned first;

	(void)state;
	for (unsigned i = 0; i < MANY; i++)
		opens(i, true, 1);
	look(&l);
	assert_true(l.n == KVC_TOP_MODELS && l.models == KVC_MODEL_STATS_MAX);
	free(l.v);
	/* a new model replaces another one, and is shown */
	opens(MANY - 1, true, 50);
	look(&l);
	assert_non_null(row_of(&l, MANY - 1));
	assert_int_equal(sum(&row_of(&l, MANY - 1)->total), 51);
	free(l.v);
	opens(MANY - 1, false, 3);
	look(&l);
	assert_int_equal(row_of(&l, MANY - 1)->n.misses, 3);
	assert_int_equal(sum(&row_of(&l, MANY - 1)->total), 54);
	free(l.v);
	/* deleted models free their places */
	look(&l);
	for (unsigned i = 0; i < 10; i++)
		gone[l.v[i].model - FIRST] = true;
	first = (unsigned)(l.v[0].model - FIRST);
	free(l.v);
	look(&l);
	assert_int_equal(l.n, KVC_TOP_MODELS - 10);
	free(l.v);
	look(&l);
	assert_true(l.n == KVC_TOP_MODELS && !row_of(&l, first));
	free(l.v);
}

/* No figure of a shown model decreases, whatever happens. */
static void grows(void **state)
{
	unsigned seed = (unsigned)time(NULL);
	struct kvc_top_models_list l, last = { 0 };

	(void)state;
	printf("seed %u\n", seed);
	srandom(seed);
	for (int round = 0; round < 200; round++) {
		for (int i = 0; i < 300; i++)
			opens((unsigned)random() % (1u << random() % 15), random() % 3,
			      1u << random() % 4);
		if (round % 20 == 19)
			gone[random() % 4096] = true;
		look(&l);
		assert_true(l.rest.hits >= last.rest.hits && l.rest.misses >= last.rest.misses);
		for (size_t i = 0; i < last.n; i++) {
			const struct kvc_top_models *was = &last.v[i], *r;

			r = row_of(&l, (unsigned)(was->model - FIRST));
			assert_true(!r ||
				    (r->n.hits >= was->n.hits && r->n.misses >= was->n.misses));
		}
		free(last.v);
		last = l;
	}
	free(last.v);
}

static void slowest(void **state)
{
	/* so far apart that no pause of the machine changes their order */
	const uint64_t far = 10000000000ull;
	struct kvc_latency_slow v[KVC_SLOWEST];
	uint64_t base = kvc_mono_ns(), n;
	struct kvc_histogram sum;

	(void)state;
	for (unsigned i = 0; i < 1000; i++)
		kvc_latency_record(engine, KVC_OP_spill, 1, FIRST,
				   base - (1 + i * 7919 % 1000) * far);
	kvc_latency_record(engine, KVC_OP_open, KVC_OF_POOL, 0, base);
	n = kvc_latency_slowest(engine, v);
	assert_true(n >= KVC_SLOW_EACH + 1);
	for (unsigned i = 0; i < KVC_SLOW_EACH; i++) {
		assert_true(v[i].op == KVC_OP_spill && v[i].tier == 1 && v[i].model == FIRST);
		assert_true(v[i].took_ns >= (1000 - i) * far);
		assert_true(v[i].ended_ns - v[i].took_ns == base - (1000 - i) * far);
	}
	assert_int_equal(v[KVC_SLOW_EACH].op == KVC_OP_spill, 0);
	kvc_stats_took(&engine->stats, KVC_OP_spill, 1, &sum);
	assert_true(sum.sum_ns > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(few),
		cmocka_unit_test(many),
		cmocka_unit_test(grows),
		cmocka_unit_test(slowest),
	};
	int failed;

	engine_new("");
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	engine_end();
	return failed;
}
