/* SPDX-License-Identifier: Apache-2.0 */
/* Turns between the replacers of one cache (engine/policy/replacer.h). */
#include "replacer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct kvc_replacer *opened(unsigned policy)
{
	struct kvc_replacer_conf conf = { policy, 400, 1 };
	struct kvc_replacer *k;

	assert_int_equal(kvc_replacer_open(&k, &conf), 0);
	return k;
}

/*
 * Orders of 300 and of 100 chunks give victims in the proportion three to one, whatever their
 * policies. An order without victims leaves its turns to the other, and does not make up for them.
 */
static void in_turns(void **state)
{
	struct kvc_replacer *keep[KVC_CLASSES] = { opened(0), NULL, opened(1) };
	unsigned gave[KVC_CLASSES] = { 0 }, class;
	struct kvc_replacer_turns turns = { 0 };
	struct kvc_request r = { 0 };

	(void)state;
	for (int i = 0; i < 3; i += 2) {
		kvc_replacer_begin(keep[i], &r, 0);
		kvc_replacer_end(keep[i], &r);
		for (uint64_t id = 1; id <= (i ? 100 : 300); id++)
			assert_int_equal(
				kvc_replacer_add(keep[i], NULL, 1000 * (unsigned)i + id, 0, 1), 0);
		kvc_replacer_begin(keep[i], &r, 0);
		kvc_replacer_end(keep[i], &r);
	}
	for (int round = 0; round < 4; round++) {
		bool only = round == 1;

		memset(gave, 0, sizeof gave);
		for (uint64_t id = 1; id <= 100; id++)
			kvc_replacer_exclude(keep[2], 2000 + id, only);
		for (int i = 0; i < 40; i++) {
			uint64_t id = kvc_replacer_turns_victim(&turns, keep, &class);

			assert_true(id && id / 2000 == class / 2);
			kvc_replacer_turns_advance(&turns, class, kvc_replacer_chunks(keep[class]));
			kvc_replacer_del(keep[class], id, true);
			gave[class]++;
		}
		assert_in_range(gave[0], only ? 40 : 25, only ? 40 : 31);
		assert_int_equal(gave[0] + gave[2], 40);
	}
	kvc_replacer_request_free(&r);
	kvc_replacer_close(keep[0]);
	kvc_replacer_close(keep[2]);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(in_turns) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
