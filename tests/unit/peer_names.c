/* SPDX-License-Identifier: Apache-2.0 */
/* Names of nodes, and their place in a signature (base/peer_name.h, frames/peer_sign.h). */
#include "peer_sign.h"
#include "util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void valid(void **state)
{
	static const char *const good[] = {
		"b:1", "node-1.example:65535", "127.0.0.1:9465", "[::1]:9465", "[fe80::1.2.3.4]:1",
	};
	static const char *const bad[] = {
		"",     "b",     ":1",    "b:",    "b:0",      "b:x",      "b:65536",
		"b:1x", "b :1",  "a+b:1", "a/b:1", "::1:1",    "[::1:1",   "[]:1",
		"[:1",  "[::1]", "a@b:1", "b:1\n", "b\r\nc:1", "[::1]x:1",
	};
	char text[KVC_PEER_NAME + 1];

	(void)state;
	for (size_t i = 0; i < sizeof good / sizeof *good; i++)
		assert_true(kvc_peer_name_valid(good[i]));
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		if (kvc_peer_name_valid(bad[i]))
			fail_msg("'%s' is not a name", bad[i]);
	for (int more = 0; more < 2; more++) {
		memset(text, 'a', sizeof text);
		snprintf(text + KVC_PEER_NAME - 3 + more, 3, ":1");
		assert_int_equal(strlen(text), KVC_PEER_NAME - 1 + more);
		assert_int_equal(kvc_peer_name_valid(text), !more);
	}
}

static void listed(void **state)
{
	static const char list[] = "127.0.0.1:9465+Node:9465+[::1]:9465";

	(void)state;
	assert_true(kvc_peer_name_listed(list, "127.0.0.1:9465"));
	assert_true(kvc_peer_name_listed(list, "node:9465"));
	assert_true(kvc_peer_name_listed(list, "[::1]:9465"));
	assert_false(kvc_peer_name_listed(list, "node:946"));
	assert_false(kvc_peer_name_listed(list, "node:94655"));
	assert_false(kvc_peer_name_listed(list, "ode:9465"));
	assert_false(kvc_peer_name_listed(list, ""));
	assert_false(kvc_peer_name_listed("+", ""));
	assert_false(kvc_peer_name_listed("", "node:9465"));
	assert_true(kvc_peer_name_listed("++a:1", "a:1"));
}

static void wrong(void **state)
{
	static const struct {
		const char *list;
		int at, len; /* of the wrong text; -1: none */
	} lists[] = {
		{ "", -1, 0 },        { "a:1", -1, 0 }, { "a:1+b:2", -1, 0 },
		{ "a:1+", -1, 0 },    { "a", 0, 1 },    { "a:1+b+c", 4, 1 },
		{ "a:1++b:1", 4, 0 }, { "+a:1", 0, 0 }, { "a:1+b:0", 4, 3 },
	};
	char text[KVC_PEER_NAME + 1];
	size_t len;

	(void)state;
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
		const char *found = kvc_peer_name_wrong(lists[i].list, &len);

		assert_int_equal(found ? found - lists[i].list : -1, lists[i].at);
		if (found)
			assert_int_equal(len, lists[i].len);
	}
	memset(text, 'a', sizeof text - 1);
	text[sizeof text - 1] = 0;
	assert_ptr_equal(kvc_peer_name_wrong(text, &len), text);
	assert_int_equal(len, KVC_PEER_NAME);
}

/* Each part of a request changes its signature. */
static void signature(void **state)
{
	static const char nonce[] = "0123456789abcdef0123456789abcdef";
	const struct kvc_peer_headers headers[] = {
		{ "bytes=0-4095", "1700000000000", nonce, "b:9465", "e", NULL, NULL },
		{ "bytes=0-4096", "1700000000000", nonce, "b:9465", "e", NULL, NULL },
		{ "bytes=0-4095", "1700000000001", nonce, "b:9465", "e", NULL, NULL },
		{ "bytes=0-4095", "1700000000000", nonce + 1, "b:9465", "e", NULL, NULL },
		{ "bytes=0-4095", "1700000000000", nonce, "c:9465", "e", NULL, NULL },
		{ "bytes=0-4095", "1700000000000", nonce, "b:9466", "e", NULL, NULL },
		{ "bytes=0-4095", "1700000000000", nonce, "b:9465", "f", NULL, NULL },
	};
	const struct kvc_peer_secret secret = { .key = { 7 } };
	kvc_peer_text sign[sizeof headers / sizeof *headers];
	struct kvc_peer_request q;

	(void)state;
	for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
		assert_true(kvc_peer_parse(KVC_PEER_PREFIX "m/f", &headers[i], &q));
		assert_int_equal(kvc_peer_sign(&secret, &q, sign[i]), 0);
		for (size_t j = 0; j < i; j++)
			assert_false(kvc_peer_same(sign[i], sign[j]));
	}
}

/* A request about many names: its parts, its body, and the limits of both. */
static void have(void **state)
{
	static const char nonce[] = "0123456789abcdef0123456789abcdef", one[] = "m/f\0m/g";
	static const char last[] = "ffffffffffffffffffffffffffffffff";
	static char body[KVC_PEER_NAMES + 1];
	const struct kvc_peer_secret secret = { .key = { 7 } };
	struct kvc_peer_headers h = { NULL, "1700000000000", nonce, "b:9465", "e", "8", nonce };
	const char *url = kvc_peer_url(KVC_PEER_HAVE);
	kvc_peer_text sign, other;
	struct kvc_peer_request q;
	size_t n;

	(void)state;
	assert_true(kvc_peer_parse_have(url, &h, &q));
	assert_true(q.kind == KVC_PEER_HAVE && q.from == 0 && q.to == 7 && q.path == h.body);
	assert_int_equal(kvc_peer_sign(&secret, &q, sign), 0);
	for (unsigned i = 0; i < KVC_PEER_KINDS; i++) { /* not a signature of another kind */
		q.kind = (enum kvc_peer_kind)i;
		assert_int_equal(kvc_peer_sign(&secret, &q, other), 0);
		assert_true(kvc_peer_same(sign, other) == (i == KVC_PEER_HAVE));
	}
	assert_false(kvc_peer_parse_have(KVC_PEER_PREFIX "m", &h, &q));
	h.length = "65536";
	assert_true(kvc_peer_parse_have(url, &h, &q));
	for (size_t i = 0; i < 6; i++) {
		h.length = (const char *const[]){ "65537", "0", "", "8x", "-8", NULL }[i];
		assert_false(kvc_peer_parse_have(url, &h, &q));
	}
	h.length = "8";
	h.body = nonce + 1;
	assert_false(kvc_peer_parse_have(url, &h, &q));

	assert_true(kvc_peer_names_count(one, sizeof one, &n));
	assert_int_equal(n, 2);
	assert_false(kvc_peer_names_count(one, sizeof one - 1, &n)); /* no zero byte at the end */
	assert_false(kvc_peer_names_count(one, 0, &n));
	assert_true(kvc_peer_names_count(body, KVC_PEER_NAMES, &n));
	assert_false(kvc_peer_names_count(body, KVC_PEER_NAMES + 1, &n));

	assert_int_equal(kvc_peer_sign_body(&secret, nonce, one, sizeof one, sign), 0);
	assert_int_equal(kvc_peer_sign_body(&secret, nonce, one, sizeof one - 1, other), 0);
	assert_false(kvc_peer_same(sign, other));
	assert_int_equal(kvc_peer_sign_body(&secret, last, one, sizeof one, other), 0);
	assert_false(kvc_peer_same(sign, other));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(valid),     cmocka_unit_test(listed), cmocka_unit_test(wrong),
		cmocka_unit_test(signature), cmocka_unit_test(have),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
