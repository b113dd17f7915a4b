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

static const char *ask(struct kvfs_replay *r, uint64_t time_ms, uint64_t a, uint64_t b)
{
	kvc_peer_text nonce;

	snprintf(nonce, sizeof nonce, "%016llx%016llx", (unsigned long long)a,
		 (unsigned long long)b);
	return kvfs_replay_refuses(r, NOW, time_ms, nonce);
}

static void refused(void **state)
{
	const kvc_peer_text cut = "0123456789abcdef0123456789abcde",
			    upper = "0123456789ABCDEF0123456789abcdef";
	struct kvfs_replay *r = kvfs_replay_new();

	(void)state;
	assert_non_null(r);
	assert_null(ask(r, NOW, 1, 2));
	assert_non_null(ask(r, NOW, 1, 2));
	assert_non_null(ask(r, NOW + 1, 1, 2));
	assert_null(ask(r, NOW, 2, 1));
	assert_null(ask(r, NOW - KVC_PEER_WINDOW_MS, 3, 3));
	assert_null(ask(r, NOW + KVC_PEER_WINDOW_MS, 4, 4));
	assert_non_null(ask(r, NOW - KVC_PEER_WINDOW_MS - 1, 5, 5));
	assert_non_null(ask(r, NOW + KVC_PEER_WINDOW_MS + 1, 6, 6));
	assert_non_null(kvfs_replay_refuses(r, NOW, NOW, cut));
	assert_non_null(kvfs_replay_refuses(r, NOW, NOW, upper));
	kvfs_replay_free(r);
}

/* Many more requests than the table has rows: each one is refused when it is sent again. */
static void never_twice(void **state)
{
	enum { N = 200000 };
	struct kvfs_replay *r = kvfs_replay_new();

	(void)state;
	assert_non_null(r);
	for (uint64_t i = 0; i < N; i++)
		assert_null(ask(r, NOW - N / 10 + i / 10, i, i * i));
	for (uint64_t i = 0; i < N; i++)
		assert_non_null(ask(r, NOW - N / 10 + i / 10, i, i * i));
	kvfs_replay_free(r);
}

/* A node with a fast clock, which also chooses its nonces: other nodes are still served. */
static void fast_clock(void **state)
{
	struct kvfs_replay *r = kvfs_replay_new();

	(void)state;
	assert_non_null(r);
	for (uint64_t i = 0; i < 1000; i++)
		assert_null(ask(r, NOW + KVC_PEER_WINDOW_MS, 77 << 20, i));
	for (uint64_t i = 0; i < 100; i++)
		assert_null(ask(r, NOW, (i << 20) + 77, i));
	kvfs_replay_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refused),
		cmocka_unit_test(never_twice),
		cmocka_unit_test(fast_clock),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
