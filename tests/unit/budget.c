/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory budget: no part exceeds its limit, whatever threads request; loads find memory while
 * copies wait; a waiting thread gets memory in its turn, or -ENOMEM in time; caches are freed
 * first.
 */
#include "budget.h"

#include "util.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1ull << 20)
#define LIMIT (64 * MIB)
#define FIXED (10 * MIB)

static struct kvc_stats stats;

static int start(void **state)
{
	(void)state;
	memset(&stats, 0, sizeof stats);
	kvc_budget_start(LIMIT + FIXED, FIXED, 200, &stats);
	return 0;
}

static int stop(void **state)
{
	struct kvc_budget_state s;

	(void)state;
	kvc_budget_stop(&stats);
	kvc_budget_on_short(NULL);
	kvc_budget_state(&s);
	return s.used ? -1 : 0; /* a negative result: the test gave back less than it took */
}

static void parts_have_limits(void **state)
{
	struct kvc_budget_state s;

	(void)state;
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_COPY, LIMIT / 8 * 3), 0);
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_COPY, 1), -ENOMEM);
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_LOAD, LIMIT / 4), 0);
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_LOAD, 1), -ENOMEM);
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_TEXT, LIMIT / 4), 0);
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_TEXT, 1), -ENOMEM);
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_WRITE, LIMIT / 8), 0);
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_WRITE, 1), -ENOMEM);
	assert_int_equal(kvc_budget_wait(KVC_BUDGET_WRITE, 1), -ENOMEM);
	kvc_budget_state(&s);
	assert_true(s.used == LIMIT && s.peak == LIMIT && s.limit == LIMIT + FIXED);
	assert_true(s.fixed == FIXED);
	kvc_budget_release(KVC_BUDGET_COPY, LIMIT / 8 * 3);
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_LOAD, LIMIT / 8 * 3), 0);
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_COPY, 1), -ENOMEM);
	kvc_budget_release(KVC_BUDGET_LOAD, LIMIT / 8 * 5);
	kvc_budget_release(KVC_BUDGET_TEXT, LIMIT / 4);
	kvc_budget_release(KVC_BUDGET_WRITE, LIMIT / 8);
	kvc_budget_state(&s);
	assert_true(!s.used && s.peak == LIMIT);
	assert_int_equal(kvc_counted(&stats, memory_refusals), 6);
	assert_int_equal(kvc_budget_wait(KVC_BUDGET_LOAD, UINT64_MAX), -ENOMEM);
	assert_int_equal(kvc_budget_wait(KVC_BUDGET_COPY, LIMIT / 8 * 3 + 1), -ENOMEM);
	assert_int_equal(kvc_counted(&stats, memory_waits), 0); /* they can never be granted */
}

static void waits_end(void **state)
{
	uint64_t begun = kvc_mono_ns();

	(void)state;
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_LOAD, LIMIT / 2), 0);
	assert_int_equal(kvc_budget_wait(KVC_BUDGET_LOAD, LIMIT / 4), -ENOMEM);
	assert_true(kvc_mono_ns() - begun >= 200000000);
	assert_int_equal(kvc_counted(&stats, memory_waits), 1);
	/* the waiting request has left the queue */
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_LOAD, LIMIT / 8), 0);
	kvc_budget_release(KVC_BUDGET_LOAD, LIMIT / 8 * 5);
}

struct taker {
	enum kvc_budget_use use;
	uint64_t bytes;
	int err;
	_Atomic int *order;
	int turn;
};

static void *take(void *arg)
{
	struct taker *t = arg;

	t->err = kvc_budget_wait(t->use, t->bytes);
	t->turn = atomic_fetch_add(t->order, 1);
	return NULL;
}

static void wait_for_waits(uint64_t n)
{
	while (kvc_counted(&stats, memory_waits) < n)
		usleep(1000);
}

/* A large load is not starved by smaller requests that arrive later, nor by copies. */
static void waiters_have_turns(void **state)
{
	_Atomic int order = 0;
	struct taker copy = { KVC_BUDGET_COPY, MIB, 1, &order, 0 }, load = {
		KVC_BUDGET_LOAD, 30 * MIB, 1, &order, 0,
	};
	pthread_t a, b;

	(void)state;
	kvc_budget_start(LIMIT + FIXED, FIXED, 2000, &stats);
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_LOAD, 40 * MIB), 0);
	assert_int_equal(pthread_create(&a, NULL, take, &copy), 0);
	wait_for_waits(1);
	assert_int_equal(pthread_create(&b, NULL, take, &load), 0);
	wait_for_waits(2);
	/* the copy would fit now, the load not yet */
	kvc_budget_release(KVC_BUDGET_LOAD, 25 * MIB);
	usleep(20000);
	assert_int_equal(order, 0);
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_LOAD, MIB), -ENOMEM);
	kvc_budget_release(KVC_BUDGET_LOAD, 15 * MIB);
	pthread_join(b, NULL);
	pthread_join(a, NULL);
	assert_int_equal(load.err, 0);
	assert_int_equal(copy.err, 0);
	kvc_budget_release(KVC_BUDGET_LOAD, 30 * MIB);
	kvc_budget_release(KVC_BUDGET_COPY, MIB);
}

static uint64_t cached;

static void release(void)
{
	kvc_budget_release(KVC_BUDGET_LOAD, cached);
	cached = 0;
}

static void caches_go_first(void **state)
{
	(void)state;
	cached = 40 * MIB;
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_LOAD, cached), 0);
	kvc_budget_on_short(release);
	assert_int_equal(kvc_budget_reserve(KVC_BUDGET_LOAD, 32 * MIB), 0);
	assert_int_equal(cached, 0);
	kvc_budget_release(KVC_BUDGET_LOAD, 32 * MIB);
}

static void buffers_are_counted(void **state)
{
	struct kvc_buffer b = { .use = KVC_BUDGET_COPY }, c;
	struct kvc_budget_state s;

	(void)state;
	assert_int_equal(kvc_budget_buffer_grow(&b, 5), 0);
	memcpy(b.p, "hallo", 5);
	assert_int_equal(kvc_budget_buffer_grow(&b, MIB), 0);
	assert_memory_equal(b.p, "hallo", 5);
	kvc_budget_state(&s);
	assert_true(s.used == b.len && b.len >= MIB && !((uintptr_t)b.p % KVC_PAGE));
	assert_int_equal(kvc_budget_buffer_grow(&b, LIMIT), -ENOMEM);
	assert_memory_equal(b.p, "hallo", 5);
	assert_int_equal(kvc_budget_buffer_wait(&c, KVC_BUDGET_COPY, SIZE_MAX), -ENOMEM);
	assert_null(c.p);
	kvc_budget_buffer_free(&c);
	assert_int_equal(kvc_budget_buffer_wait(&c, KVC_BUDGET_COPY, 0), 0);
	kvc_budget_buffer_free(&c);
	kvc_budget_buffer_free(&b);
	kvc_budget_buffer_free(&b);
}

static _Atomic bool exceeded;

static void *work(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;

	for (int i = 0; i < 3000; i++) {
		enum kvc_budget_use use = (unsigned)rand_r(&seed) % KVC_BUDGET_USES;
		uint64_t n = (unsigned)rand_r(&seed) % (LIMIT / 8);
		struct kvc_budget_state s;

		if (use >= KVC_BUDGET_TEXT ? kvc_budget_reserve(use, n) : kvc_budget_wait(use, n))
			continue;
		kvc_budget_state(&s);
		if (s.used > LIMIT)
			exceeded = true;
		kvc_budget_release(use, n);
	}
	return NULL;
}

static void threads_stay_within(void **state)
{
	struct kvc_budget_state s;
	pthread_t t[8];

	(void)state;
	for (uintptr_t i = 0; i < 8; i++)
		assert_int_equal(pthread_create(&t[i], NULL, work, (void *)(i + 1)), 0);
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	kvc_budget_state(&s);
	assert_true(!exceeded && !s.used && s.peak <= LIMIT && s.peak > LIMIT / 16);
}

static void no_limit_without_start(void **state)
{
	(void)state;
	assert_true(kvc_budget_most(KVC_BUDGET_COPY) == UINT64_MAX);
	assert_int_equal(kvc_budget_wait(KVC_BUDGET_COPY, 1ull << 60), 0);
	kvc_budget_release(KVC_BUDGET_COPY, 1ull << 60);
	assert_true(kvc_budget_default(0) >= 128 * MIB && kvc_budget_default(0) <= 1024 * MIB);
	assert_true(kvc_budget_default(UINT64_MAX) == 128 * MIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_limit_without_start),
		cmocka_unit_test_setup_teardown(parts_have_limits, start, stop),
		cmocka_unit_test_setup_teardown(waits_end, start, stop),
		cmocka_unit_test_setup_teardown(waiters_have_turns, start, stop),
		cmocka_unit_test_setup_teardown(caches_go_first, start, stop),
		cmocka_unit_test_setup_teardown(buffers_are_counted, start, stop),
		cmocka_unit_test_setup_teardown(threads_stay_within, start, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
