/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of a directory of peers (tiers/peers_directory.h). */
#include "peers_directory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct kvc_peer_secret one = { { 1, 2, 3 } }, other = { { 1, 2, 4 } };

static void objects(void **state)
{
	char a[KVCT_DIRECTORY_ID], b[KVCT_DIRECTORY_ID];

	(void)state;
	assert_int_equal(kvct_directory_object_id(&one, "m/1/layer0", a), 0);
	/* other programs and later versions must compute the same id */
	assert_string_equal(a, "CrELxaebUXXyqNn-");
	assert_int_equal(strlen(a), KVCT_DIRECTORY_ID - 1);
	assert_int_equal(kvct_directory_object_id(&one, "m/1/layer1", b), 0);
	assert_string_not_equal(a, b);
	assert_int_equal(kvct_directory_object_id(&other, "m/1/layer0", b), 0);
	assert_string_not_equal(a, b);
	assert_int_equal(kvct_directory_object_id(&one, "", b), 0);
	assert_int_equal(strspn(b, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
				   "-_"),
			 KVCT_DIRECTORY_ID - 1);
}

static void nodes(void **state)
{
	static const char *const wrong[] = {
		"",
		"1",
		"1 1",
		"1 1 e",
		"0 1 e 5",
		"1 2 e 5",
		"-1 1 e 5",
		"+1 1 e 5",
		" 1 1 e 5",
		"1 1 e 5 ",
		"1 1 e 5 6",
		"1 1 e 5x",
		"1234567890 1 e 5",
		"1 1 e x",
		"1 01 e 5",
		"x 1 e 5",
		"1 1 e 5\n",
	};
	const struct kvct_directory_node n = {
		999999999,
		true,
		"0123456789abcdef0123456789abcdef",
		UINT64_MAX / 2,
	};
	struct kvct_directory_node m = { 0 };
	char value[KVCT_DIRECTORY_VALUE], text[KVCT_DIRECTORY_VALUE + 1];

	(void)state;
	kvct_directory_write_node(&n, value);
	assert_true(kvct_directory_read_node(value, strlen(value), &m));
	assert_int_equal(m.id, n.id);
	assert_true(m.complete);
	assert_string_equal(m.epoch, n.epoch);
	assert_int_equal(m.beat, n.beat);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		if (kvct_directory_read_node(wrong[i], strlen(wrong[i]), &m))
			fail_msg("'%s' is not an entry of a node", wrong[i]);
	/* bytes after a zero, an epoch that is too long, and values of any length */
	assert_false(kvct_directory_read_node("1 1 e 5\0x", 9, &m));
	snprintf(text, sizeof text, "1 1 %033d 5", 0);
	assert_false(kvct_directory_read_node(text, strlen(text), &m));
	memset(text, '1', sizeof text);
	for (size_t len = 0; len <= sizeof text; len++)
		assert_false(kvct_directory_read_node(text, len, &m));
	assert_int_equal(m.id, n.id); /* unchanged */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(objects),
		cmocka_unit_test(nodes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
