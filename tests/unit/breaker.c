/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier's circuit breaker (engine/frames/breaker.c) without a tier. Reads, writes, lists and
 * removals fail separately. Refusals are not an outage. An error of one object counts as an answer
 * of the tier. A suspended class is probed, and restored.
 */
#include "breaker.h"
#include "tier.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define SECOND 1000000000ull
#define SHARED KVC_TIER_SHARED
#define DIR (KVC_TIER_SHARED | KVC_TIER_MEDIA)

static struct kvc_breaker b;
static uint64_t now, object;

static void fresh(void)
{
	memset(&b, 0, sizeof b);
	now = 100 * SECOND;
}

/* A call about another object each time. */
static enum kvc_breaker_event result(unsigned caps, enum kvc_call call, int err)
{
	return kvc_breaker_result(&b, caps, call, ++object, err, now);
}

/* Checks that exactly these classes are allowed: a bit for each. */
static unsigned open_for(void)
{
	unsigned bits = 0;

	for (unsigned i = 0; i < KVC_CALLS; i++)
		bits |= (unsigned)!kvc_breaker_refuses(&b, (enum kvc_call)i, now) << i;
	return bits;
}

#define BIT(call) (1u << KVC_CALL_##call)
#define ALL ((1u << KVC_CALLS) - 1)

/* Answers about one object leave every class as it is, however often they arrive. */
static void of_objects(void **state)
{
	static const int errs[] = {
		-ENOENT, -EBADMSG, -EFBIG,  -ENAMETOOLONG, -EINVAL,
		-ESTALE, -ENOKEY,  -ENOMEM, -EPROTO,       -ECANCELED,
	};

	(void)state;
	fresh();
	for (size_t e = 0; e < sizeof errs / sizeof errs[0]; e++)
		for (unsigned i = 0; i < KVC_CALLS; i++)
			for (int n = 0; n < 20; n++)
				assert_int_equal(result(SHARED, (enum kvc_call)i, errs[e]),
						 KVC_BREAKER_SAME);
	assert_int_equal(open_for(), ALL);
}

/* A refusal suspends only its class, at once, and is not an outage. */
static void refusals(void **state)
{
	static const int errs[] = { -EROFS, -ENOSPC, -EDQUOT, -EBUSY };

	(void)state;
	for (size_t e = 0; e < sizeof errs / sizeof errs[0]; e++) {
		fresh();
		assert_int_equal(result(SHARED, KVC_CALL_WRITE, errs[e]), KVC_BREAKER_TRIPPED);
		assert_int_equal(open_for(), ALL & ~BIT(WRITE));
		assert_string_equal(kvc_breaker_word(&b, KVC_CALL_WRITE, now), "refused");
		for (int n = 0; n < 20; n++) /* reads are allowed, and change nothing */
			assert_int_equal(result(SHARED, KVC_CALL_READ, n % 2 ? 0 : -ENOENT),
					 KVC_BREAKER_SAME);
		assert_int_equal(open_for(), ALL & ~BIT(WRITE));
	}
	/* a trimmed tier may be full for a while */
	fresh();
	assert_int_equal(result(KVC_TIER_BOUNDED, KVC_CALL_WRITE, -ENOSPC), KVC_BREAKER_SAME);
}

/* A refused permission may concern one object; if several objects get it, it concerns the class. */
static void permissions(void **state)
{
	(void)state;
	for (unsigned i = 0; i < KVC_CALLS; i++) {
		enum kvc_call call = (enum kvc_call)i;

		fresh();
		for (int n = 0; n < 20; n++)
			assert_int_equal(kvc_breaker_result(&b, SHARED, call, 7, -EACCES, now),
					 KVC_BREAKER_SAME);
		assert_int_equal(open_for(), ALL);
		for (unsigned n = 1; n < KVC_FAILURES - 1; n++)
			assert_int_equal(result(SHARED, call, -EACCES), KVC_BREAKER_SAME);
		assert_int_equal(result(SHARED, call, -EACCES), KVC_BREAKER_TRIPPED);
		assert_int_equal(open_for(), ALL & ~(1u << i));
	}
	/* one server of several is not ready: objects of the others are still read */
	fresh();
	for (int n = 0; n < 50; n++)
		result(SHARED, KVC_CALL_READ, n % 3 ? 0 : -EBUSY);
	assert_int_equal(open_for(), ALL);
}

/*
 * Failures of a class suspend that class; an unreachable tier suspends all; one answer restores
 * all.
 */
static void outages(void **state)
{
	static const int nobody[] = {
		-ECONNREFUSED, -EHOSTUNREACH, -ENETUNREACH, -EHOSTDOWN, -ENOTCONN,
	};

	(void)state;
	for (unsigned i = 0; i < KVC_CALLS; i++) {
		fresh();
		for (unsigned n = 1; n < KVC_FAILURES; n++)
			assert_int_equal(result(SHARED, (enum kvc_call)i, -ETIMEDOUT),
					 KVC_BREAKER_SAME);
		assert_int_equal(result(SHARED, (enum kvc_call)i, -ETIMEDOUT), KVC_BREAKER_TRIPPED);
		assert_int_equal(open_for(), ALL & ~(1u << i));
		assert_string_equal(kvc_breaker_word(&b, (enum kvc_call)i, now), "out");
	}
	for (size_t e = 0; e < sizeof nobody / sizeof nobody[0]; e++) {
		fresh();
		for (unsigned n = 1; n < KVC_FAILURES; n++)
			assert_int_equal(result(DIR, (enum kvc_call)(n % KVC_CALLS), nobody[e]),
					 KVC_BREAKER_SAME);
		assert_int_equal(result(DIR, KVC_CALL_READ, nobody[e]), KVC_BREAKER_TRIPPED_ALL);
		assert_int_equal(open_for(), 0);
		now += 2 * SECOND;
		assert_true(kvc_breaker_allows(&b, KVC_CALL_WRITE, now));
		assert_int_equal(result(DIR, KVC_CALL_WRITE, 0), KVC_BREAKER_RESTORED);
		assert_int_equal(open_for(), ALL);
	}
	/* a media error counts once for each object */
	fresh();
	for (int n = 0; n < 20; n++)
		kvc_breaker_result(&b, DIR, KVC_CALL_READ, 7, -EIO, now);
	assert_int_equal(open_for(), ALL);
}

/*
 * One probe at a time. The wait doubles up to half a minute, and only after probes. An answer ends
 * it.
 */
static void probes(void **state)
{
	uint64_t before = 0;

	(void)state;
	fresh();
	result(SHARED, KVC_CALL_WRITE, -EROFS);
	for (int n = 0; n < 8; n++) /* these calls had begun before: they do not extend the wait */
		result(SHARED, KVC_CALL_WRITE, -EROFS);
	for (int n = 0; n < 12; n++) {
		uint64_t wait = b.of[KVC_CALL_WRITE].until_ns - now;

		assert_true(wait >= before / 2 && wait >= SECOND / 2 && wait <= 38 * SECOND);
		assert_false(kvc_breaker_allows(&b, KVC_CALL_WRITE, now + wait - 1));
		now += wait;
		assert_string_equal(kvc_breaker_word(&b, KVC_CALL_WRITE, now), "probing");
		assert_true(kvc_breaker_allows(&b, KVC_CALL_WRITE, now));
		assert_false(kvc_breaker_allows(&b, KVC_CALL_WRITE, now));
		kvc_breaker_uncalled(&b, KVC_CALL_WRITE); /* the next call is the probe */
		assert_true(kvc_breaker_allows(&b, KVC_CALL_WRITE, now));
		assert_int_equal(result(SHARED, KVC_CALL_WRITE, n == 5 ? -EDQUOT : -EROFS),
				 n == 5 || n == 6 ? KVC_BREAKER_AGAIN : KVC_BREAKER_SAME);
		before = wait;
	}
	assert_true(b.of[KVC_CALL_WRITE].backoff_ns == 30 * SECOND);
	now += 60 * SECOND;
	assert_true(kvc_breaker_allows(&b, KVC_CALL_WRITE, now));
	assert_int_equal(result(SHARED, KVC_CALL_WRITE, 0), KVC_BREAKER_RESTORED);
	assert_int_equal(open_for(), ALL);
	assert_string_equal(kvc_breaker_word(&b, KVC_CALL_WRITE, now), "closed");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(of_objects),  cmocka_unit_test(refusals),
		cmocka_unit_test(permissions), cmocka_unit_test(outages),
		cmocka_unit_test(probes),
	};

	return cmocka_run_group_tests_name("breaker", tests, NULL, NULL);
}
