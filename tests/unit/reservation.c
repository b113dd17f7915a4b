/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of the pool and of a quota are granted in the order of the requests: no request overtakes a
 * waiter, however small it is. When a waiter is refused, ends, or returns its bytes, the next
 * waiters get the free bytes.
 */
#include "kvc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define POOL (100 * KVC_PAGE)
#define GROWTH (10 * KVC_PAGE)
#define WAITS 5

static struct kvc k;
static struct kvc_wait w[WAITS];

static void fresh(void)
{
	struct kvc_list *all[] = {
		&k.reservations.waiters,
		&k.waits.woken,
	};

	kvc_table_fini(&k.quotas.table);
	memset(&k, 0, sizeof k);
	memset(w, 0, sizeof w);
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		kvc_list_init(all[i]);
	assert_int_equal(kvc_quotas_init(&k.quotas), 0);
	pthread_cond_init(&k.waits.cond, NULL);
	pthread_cond_init(&k.reservations.pressed, NULL);
	pthread_cond_init(&k.quotas.pressed, NULL);
	k.pool.bytes = POOL;
	k.pool.size = POOL + GROWTH;
	k.opt.high_pct = 90;
	k.opt.deadline_ms = 10000;
}

/*
 * Returns the waits that were woken since the last call, in order: digits, or a capital letter for
 * a refused wait.
 */
static const char *woken(void)
{
	static char text[WAITS + 1];
	size_t n = 0;

	while (!kvc_list_empty(&k.waits.woken)) {
		struct kvc_wait *x = kvc_of(k.waits.woken.next, struct kvc_wait, link);

		kvc_list_del(&x->link);
		text[n++] = (char)((x->err ? 'A' : '0') + (x - w));
	}
	text[n] = 0;
	return text;
}

/* Repeats the call, as a woken caller does. */
static void taken(int i, uint64_t pages)
{
	uint64_t used = k.reservations.used;

	assert_int_equal(w[i].granted, pages * KVC_PAGE);
	assert_int_equal(kvc_reservation_get_locked(&k, pages * KVC_PAGE, &w[i]), 0);
	assert_int_equal(w[i].granted, 0);
	assert_int_equal(k.reservations.used, used);
}

static void waits(int i, uint64_t pages)
{
	assert_int_equal(kvc_reservation_get_locked(&k, pages * KVC_PAGE, &w[i]), KVC_WAIT);
}

static void nobody_overtakes(void **state)
{
	(void)state;
	fresh();
	assert_int_equal(kvc_reservation_get_locked(&k, 90 * KVC_PAGE, &w[0]), 0);
	waits(1, 50);
	/* there are bytes for these waits, but they queue behind another waiter */
	waits(2, 2);
	assert_int_equal(kvc_reservation_get_locked(&k, KVC_PAGE, NULL), -EAGAIN);
	waits(3, 10);
	assert_string_equal(woken(), "");
	kvc_reservation_put_locked(&k, 30 * KVC_PAGE);
	assert_string_equal(woken(), "");
	kvc_reservation_put_locked(&k, 9 * KVC_PAGE);
	assert_string_equal(woken(), "");
	assert_int_equal(k.reservations.used, 51 * KVC_PAGE);
	/* now there is enough for the first, and no more */
	kvc_reservation_put_locked(&k, 2 * KVC_PAGE);
	assert_string_equal(woken(), "1");
	taken(1, 50);
	waits(4, 1);
	kvc_reservation_put_locked(&k, 5 * KVC_PAGE);
	assert_string_equal(woken(), "2");
	taken(2, 2);
	kvc_reservation_put_locked(&k, 7 * KVC_PAGE);
	assert_string_equal(woken(), "34");
	taken(3, 10);
	taken(4, 1);
	assert_true(kvc_list_empty(&k.reservations.waiters));
	assert_true(k.reservations.used <= POOL);
}

static void who_goes_lets_the_next(void **state)
{
	(void)state;
	fresh();
	assert_int_equal(kvc_reservation_get_locked(&k, 95 * KVC_PAGE, &w[0]), 0);
	waits(1, 50);
	waits(2, 3);
	waits(3, 3);
	waits(4, 2);
	/* a refusal: the waits behind it get the free bytes, in order */
	kvc_wait_refuse_first_locked(&k, &k.reservations.waiters);
	assert_string_equal(woken(), "B2");
	assert_int_equal(w[1].err, -ENOSPC);
	/* granted bytes that are not used go to the next waiter */
	kvc_reservation_cancel_locked(&k, &w[2]);
	assert_string_equal(woken(), "34");
	taken(3, 3);
	taken(4, 2);
	assert_int_equal(k.reservations.used, POOL);
	/* a request that can never be granted is refused at once */
	fresh();
	assert_int_equal(kvc_reservation_get_locked(&k, POOL + 1, &w[0]), -ENOSPC);
	assert_int_equal(k.reservations.used, 0);
}

/* Growth beyond the bytes that are kept for it counts; growth that has ended does not. */
static void growth(void **state)
{
	(void)state;
	fresh();
	k.reservations.unseen = 30 * KVC_PAGE;
	assert_int_equal(kvc_reservation_get_locked(&k, 80 * KVC_PAGE, &w[0]), 0);
	assert_int_equal(kvc_reservation_lacks_locked(&k, KVC_PAGE), KVC_PAGE);
	assert_int_equal(kvc_reservation_lacks_locked(&k, 25 * KVC_PAGE), 25 * KVC_PAGE);
	waits(1, 5);
	waits(2, 1);
	kvc_reservation_put_locked(&k, 4 * KVC_PAGE);
	assert_string_equal(woken(), "");
	kvc_reservation_put_locked(&k, KVC_PAGE);
	assert_string_equal(woken(), "1");
	taken(1, 5);
	kvc_reservation_check_locked(&k); /* there is no tmpfs here, so nothing has grown */
	assert_int_equal(k.reservations.unseen, 0);
	assert_string_equal(woken(), "2");
	taken(2, 1);
	assert_int_equal(kvc_reservation_lacks_locked(&k, 20 * KVC_PAGE), KVC_PAGE);
	/* in a folder of another tmpfs, nothing can free more bytes than the account says */
	assert_int_equal(kvc_reservation_retry_locked(&k, KVC_PAGE, &w[3]), -ENOSPC);
	k.pool.mounted = true;
	k.pool.dir = -1;
	assert_int_equal(kvc_reservation_retry_locked(&k, KVC_PAGE, &w[3]), KVC_WAIT);
	assert_string_equal(woken(), "");
}

static void of_a_quota(void **state)
{
	struct kvc_quota *q;

	(void)state;
	fresh();
	q = kvc_quota_add_locked(&k, 7, POOL);
	assert_non_null(q);
	kvc_quota_changed_locked(&k, q, 95 * (int64_t)KVC_PAGE);
	assert_int_equal(kvc_quota_get_locked(&k, 7, 50 * KVC_PAGE, &w[1]), KVC_WAIT);
	assert_int_equal(kvc_quota_get_locked(&k, 7, KVC_PAGE, &w[2]), KVC_WAIT);
	assert_int_equal(kvc_quota_get_locked(&k, 7, KVC_PAGE, &w[3]), KVC_WAIT);
	kvc_quota_changed_locked(&k, q, -40 * (int64_t)KVC_PAGE);
	assert_string_equal(woken(), "");
	kvc_quota_changed_locked(&k, q, -5 * (int64_t)KVC_PAGE);
	assert_string_equal(woken(), "1");
	kvc_reservation_cancel_locked(&k, &w[1]);
	assert_string_equal(woken(), "23");
	assert_int_equal(q->used, 52 * KVC_PAGE);
	/* a refusal: the waits behind it get the free bytes, in order */
	kvc_quotas_free(&k);
	fresh();
	q = kvc_quota_add_locked(&k, 7, POOL);
	assert_non_null(q);
	kvc_quota_changed_locked(&k, q, 95 * (int64_t)KVC_PAGE);
	assert_int_equal(kvc_quota_get_locked(&k, 7, 50 * KVC_PAGE, &w[1]), KVC_WAIT);
	assert_int_equal(kvc_quota_get_locked(&k, 7, 3 * KVC_PAGE, &w[2]), KVC_WAIT);
	assert_int_equal(kvc_quota_get_locked(&k, 7, 3 * KVC_PAGE, &w[3]), KVC_WAIT);
	kvc_wait_refuse_first_locked(&k, &q->waiters);
	assert_string_equal(woken(), "B2");
	assert_int_equal(w[1].err, -EDQUOT);
	assert_int_equal(q->used, 98 * KVC_PAGE);
	kvc_wait_refuse_first_locked(&k, &q->waiters);
	assert_string_equal(woken(), "D");
	assert_true(kvc_list_empty(&q->waiters));
	kvc_quotas_free(&k);
}

/* Trimming begins above high= and continues down to low=. */
static void watermarks(void **state)
{
	struct kvc_options o = { .high_pct = 90, .low_pct = 70 };
	bool trimming = false;

	(void)state;
	assert_int_equal(kvc_reservation_excess(90, 100, &o, &trimming), 0);
	assert_false(trimming);
	assert_int_equal(kvc_reservation_excess(91, 100, &o, &trimming), 21);
	assert_true(trimming);
	assert_int_equal(kvc_reservation_excess(71, 100, &o, &trimming), 1);
	assert_true(trimming);
	assert_int_equal(kvc_reservation_excess(70, 100, &o, &trimming), 0);
	assert_false(trimming);
	assert_int_equal(kvc_reservation_excess(71, 100, &o, &trimming), 0);
	assert_int_equal(kvc_reservation_excess(90, 100, &o, &trimming), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_overtakes), cmocka_unit_test(who_goes_lets_the_next),
		cmocka_unit_test(growth),           cmocka_unit_test(of_a_quota),
		cmocka_unit_test(watermarks),
	};

	return cmocka_run_group_tests_name("room", tests, NULL, NULL);
}
