/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of requests of other nodes (fs/replay.h): no request is accepted twice, however many
 * there are, and no node can make the requests of another one old.
 */
#include "replay.h"
#include "util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define NOW 1000000000ull /* milliseconds */

static kvc_peer_text epoch; /* as a client remembers it */

/* Asks once, with the remembered epoch. */
static const char *ask_once(struct kvfs_replay *r, uint64_t now_ms, uint64_t time_ms,
			    const char *nonce)
{
	struct kvc_peer_request q = { .time_ms = time_ms };
	kvc_peer_text other;
	const char *why;

	snprintf(q.nonce, sizeof q.nonce, "%s", nonce);
	memcpy(q.epoch, epoch, sizeof epoch);
	why = kvfs_replay_refuses(r, now_ms, &q, other);
	if (*other) {
		assert_non_null(why);
		assert_true(kvc_peer_hex(other));
		assert_string_not_equal(other, epoch);
		memcpy(epoch, other, sizeof epoch);
		return "epoch";
	}
	return why;
}

static const char *ask_at(struct kvfs_replay *r, uint64_t now_ms, uint64_t time_ms, uint64_t a,
			  uint64_t b)
{
	kvc_peer_text nonce;

	snprintf(nonce, sizeof nonce, "%016llx%016llx", (unsigned long long)a,
		 (unsigned long long)b);
	return ask_once(r, now_ms, time_ms, nonce);
}

static const char *ask(struct kvfs_replay *r, uint64_t time_ms, uint64_t a, uint64_t b)
{
	return ask_at(r, NOW, time_ms, a, b);
}

/* Returns a new table, whose epoch is then known. */
static struct kvfs_replay *new_table(void)
{
	struct kvfs_replay *r = kvfs_replay_new();

	assert_non_null(r);
	snprintf(epoch, sizeof epoch, "%032d", 0);
	assert_string_equal(ask(r, NOW, 0, 0), "epoch");
	return r;
}

static void refused(void **state)
{
	const kvc_peer_text cut = "0123456789abcdef0123456789abcde",
			    upper = "0123456789ABCDEF0123456789abcdef";
	struct kvfs_replay *r = new_table();

	(void)state;
	assert_null(ask(r, NOW, 1, 2));
	assert_non_null(ask(r, NOW, 1, 2));
	assert_non_null(ask(r, NOW + 1, 1, 2));
	assert_null(ask(r, NOW, 2, 1));
	assert_null(ask(r, NOW - KVC_PEER_WINDOW_MS, 3, 3));
	assert_null(ask(r, NOW + KVC_PEER_WINDOW_MS, 4, 4));
	assert_non_null(ask(r, NOW - KVC_PEER_WINDOW_MS - 1, 5, 5));
	assert_non_null(ask(r, NOW + KVC_PEER_WINDOW_MS + 1, 6, 6));
	assert_non_null(ask_once(r, NOW, NOW, cut));
	assert_non_null(ask_once(r, NOW, NOW, upper));
	kvfs_replay_free(r);
}

/* Many more requests than the table has rows: each one is refused when it is sent again. */
static void never_twice(void **state)
{
	enum { N = 200000 };
	struct kvfs_replay *r = new_table();

	(void)state;
	for (uint64_t i = 0; i < N; i++)
		assert_null(ask(r, NOW - N / 10 + i / 10, i, i * i));
	for (uint64_t i = 0; i < N; i++)
		assert_non_null(ask(r, NOW - N / 10 + i / 10, i, i * i));
	kvfs_replay_free(r);
}

/* A node with a fast clock, which also chooses its nonces: other nodes are still served. */
static void fast_clock(void **state)
{
	struct kvfs_replay *r = new_table();

	(void)state;
	for (uint64_t i = 0; i < 1000; i++)
		assert_null(ask(r, NOW + KVC_PEER_WINDOW_MS, 77 << 20, i));
	for (uint64_t i = 0; i < 100; i++)
		assert_null(ask(r, NOW, (i << 20) + 77, i));
	kvfs_replay_free(r);
}

/* A request that was answered before a restart, or sent without the epoch, is not accepted. */
static void restart(void **state)
{
	struct kvfs_replay *r = new_table();
	kvc_peer_text before;

	(void)state;
	assert_null(ask(r, NOW, 1, 2));
	memcpy(before, epoch, sizeof epoch);
	kvfs_replay_free(r);
	r = kvfs_replay_new();
	assert_non_null(r);
	for (int i = 0; i < 2; i++) {
		memcpy(epoch, before, sizeof epoch);
		assert_string_equal(ask(r, NOW, 1, 2), "epoch");
		*epoch = 0;
		assert_string_equal(ask(r, NOW, 3, 4), "epoch");
	}
	assert_null(ask(r, NOW, 5, 6));
	assert_null(ask(r, NOW, 3, 4)); /* it was not accepted before */
	kvfs_replay_free(r);
}

/*
 * The clock is set back: new requests are accepted although all buckets are full of later ones, and
 * no earlier request is accepted again, also when the clock is right again.
 */
static void clock_set_back(void **state)
{
	enum { N = 200000 };
	static const uint64_t back[] = { 3600000, 86400000, 40000, 20000, 2000 };
	struct kvfs_replay *r = new_table();
	kvc_peer_text first;

	(void)state;
	for (size_t i = 0; i < sizeof back / sizeof *back; i++) {
		uint64_t past = NOW - back[i];

		for (uint64_t j = 0; j < N; j++)
			assert_null(ask(r, NOW - N / 10 + j / 10, i + 1, j));
		memcpy(first, epoch, sizeof epoch);
		assert_string_equal(ask_at(r, past, past, 100 + i, 0), "epoch");
		for (uint64_t j = 0; j < 1000; j++)
			assert_null(ask_at(r, past, past, 100 + i, j));
		memcpy(epoch, first, sizeof epoch);
		assert_non_null(ask(r, NOW - N / 10, i + 1, 0));
		assert_null(ask(r, NOW, 200 + i, 0)); /* the clock is set forward: the same epoch */
	}
	/* readings of two threads in another order */
	memcpy(first, epoch, sizeof epoch);
	assert_null(ask_at(r, NOW - 500, NOW, 300, 0));
	assert_string_equal(first, epoch);
	kvfs_replay_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refused),        cmocka_unit_test(never_twice),
		cmocka_unit_test(fast_clock),     cmocka_unit_test(restart),
		cmocka_unit_test(clock_set_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
