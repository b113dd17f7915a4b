/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parked calls end in the order of their deadlines, however many there are and in whichever order
 * they were parked. The tree that holds them stays flat. A call without a place to wait ends at
 * once, as at its deadline.
 */
#include "kvc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define WAITS 4096u
#define DEEP 64u /* about 24 is usual */

static struct kvc k;
static struct kvc_wait w[WAITS], *ended[WAITS];
static struct kvc_list on;
static atomic_uint nended;
static uint64_t random_state;

static uint64_t draw(void)
{
	random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
	return random_state >> 33;
}

static void wake(struct kvc_wait *x)
{
	ended[atomic_load(&nended)] = x;
	atomic_fetch_add(&nended, 1);
}

static void fresh(void)
{
	memset(&k, 0, sizeof k);
	memset(w, 0, sizeof w);
	atomic_store(&nended, 0);
	kvc_list_init(&on);
	kvc_list_init(&k.waits.woken);
	kvc_list_init(&k.reservations.waiters);
	kvc_list_init(&k.quotas.list);
	pthread_mutex_init(&k.lock.m, NULL);
	pthread_condattr_t a;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&k.waits.cond, &a);
	pthread_cond_init(&k.waits.idle, &a);
	pthread_cond_init(&k.reservations.pressed, &a);
	k.opt.deadline_ms = 1000000;
}

/* Returns the depth of the tree, which must be in order and have n waits. */
static unsigned depth_of(const struct kvc_wait *t, uint64_t from, uint64_t to, unsigned *n)
{
	unsigned a, b;

	if (!t)
		return 0;
	assert_in_range(t->deadline_ns, from, to);
	++*n;
	a = depth_of(t->earlier, from, t->deadline_ns, n);
	b = depth_of(t->later, t->deadline_ns, to, n);
	return 1 + (a > b ? a : b);
}

static void check_tree(unsigned waits)
{
	unsigned n = 0, deep = depth_of(k.waits.timed, 0, UINT64_MAX, &n);

	assert_int_equal(n, waits);
	if (deep > DEEP)
		fail_msg("%u waits are %u deep", waits, deep);
}

static void flat(void **state)
{
	(void)state;
	for (unsigned order = 0; order < 4; order++) {
		fresh();
		for (unsigned i = 0; i < WAITS; i++) {
			w[i].wake = wake;
			w[i].deadline_ns = order == 0   ? 1000 + i
					   : order == 1 ? 1000 + WAITS - i
					   : order == 2 ? 1000 /* all at the same time */
							: 1000 + draw() % 512;
			assert_int_equal(kvc_wait_park_locked(&k, &on, &w[i]), KVC_WAIT);
		}
		check_tree(WAITS);
		for (unsigned i = 0; i < WAITS; i += 2)
			kvc_wait_wake_locked(&k, &w[i], 0);
		check_tree(WAITS / 2);
		kvc_wait_wake_all_locked(&k, &on, -EIO);
		check_tree(0);
	}
}

static void *answerer(void *arg)
{
	return kvc_wait_answerer(arg);
}

static void until_ended(unsigned n)
{
	for (unsigned i = 0; i < 60000 && atomic_load(&nended) < n; i++)
		usleep(1000);
	assert_int_equal(atomic_load(&nended), n);
}

static void end(pthread_t t)
{
	kvc_lock(&k);
	k.stopping = k.draining = true;
	pthread_cond_broadcast(&k.waits.cond);
	kvc_unlock(&k);
	pthread_join(t, NULL);
}

static void in_order(void **state)
{
	uint64_t now = kvc_mono_ns();
	pthread_t t;

	(void)state;
	fresh();
	for (unsigned i = 0; i < WAITS; i++) {
		w[i].wake = wake;
		w[i].deadline_ns = now + draw() % 200000000;
		kvc_wait_park_locked(&k, &on, &w[i]);
	}
	assert_false(pthread_create(&t, NULL, answerer, &k));
	until_ended(WAITS);
	for (unsigned i = 0; i < WAITS; i++) {
		assert_int_equal(ended[i]->err, -ETIMEDOUT);
		if (i)
			assert_true(ended[i - 1]->deadline_ns <= ended[i]->deadline_ns);
	}
	assert_int_equal(kvc_counted(&k.stats, load_timeouts), WAITS);
	end(t);
}

static bool no_place(struct kvc_wait *x)
{
	(void)x;
	return false;
}

/*
 * A load gets ETIMEDOUT, a request for bytes ENOSPC, and a turn ends; waits with a place continue
 * to wait.
 */
static void without_place(void **state)
{
	pthread_t t;

	(void)state;
	fresh();
	for (unsigned i = 0; i < 5; i++) {
		w[i].wake = wake;
		w[i].may_park = i < 2 ? NULL : no_place;
		w[i].want = i == 3 ? KVC_PAGE : 0;
		w[i].pacing = i == 4;
		kvc_wait_park_locked(&k, i == 3 ? &k.reservations.waiters : &on, &w[i]);
	}
	assert_int_equal(kvc_counted(&k.stats, waits_refused), 3);
	assert_false(pthread_create(&t, NULL, answerer, &k));
	until_ended(3);
	assert_int_equal(w[2].err, -ETIMEDOUT);
	assert_int_equal(w[3].err, -ENOSPC);
	assert_true(!w[4].err && !w[4].pacing);
	kvc_lock(&k);
	check_tree(2);
	kvc_wait_wake_all_locked(&k, &on, 0);
	kvc_unlock(&k);
	until_ended(5);
	assert_true(!w[0].err && !w[1].err);
	end(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(flat),
		cmocka_unit_test(in_order),
		cmocka_unit_test(without_place),
	};

	random_state = (uint64_t)getpid();
	printf("seed %llu\n", (unsigned long long)random_state);
	return cmocka_run_group_tests_name("waits", tests, NULL, NULL);
}
