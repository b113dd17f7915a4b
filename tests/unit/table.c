/* SPDX-License-Identifier: Apache-2.0 */
/* The hash table compared with a plain array while it grows; prints its seed. */
#include "table.h"

#include "util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define N 200000

struct thing {
	struct kvc_slot slot;
	bool in;
	unsigned seen;
};

static struct thing things[N];

/* xorshift64 */
static uint64_t draw(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void random_ops(void **state)
{
	uint64_t seed = (uint64_t)time(NULL) | 1;
	struct kvc_table t;
	size_t n = 0;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	assert_int_equal(kvc_table_init(&t), 0);
	for (size_t i = 0; i < 6 * N; i++) {
		size_t at = draw(&seed) % N;
		struct thing *x = &things[at];

		x->slot.key = at * 16 + 1;
		assert_ptr_equal(kvc_table_find(&t, x->slot.key), x->in ? &x->slot : NULL);
		if (!x->in || draw(&seed) % 4 == 0) {
			if (x->in)
				kvc_table_del(&t, &x->slot);
			else
				kvc_table_add(&t, &x->slot);
			x->in = !x->in;
			n += x->in ? 1 : (size_t)-1;
		}
		assert_int_equal(t.n, n);
	}
	/* it has grown with its content */
	assert_true(t.buckets > N / 2 && t.buckets <= N + 4096);
	kvc_table_each(&t, s)
		kvc_of(s, struct thing, slot)->seen++;
	for (size_t i = 0; i < N; i++)
		assert_int_equal(things[i].seen, things[i].in);
	kvc_table_each(&t, s) /* the present struct may be removed */
		kvc_table_del(&t, s);
	assert_int_equal(t.n, 0);
	kvc_table_fini(&t);
}

/* A walk by bucket number with adds in between meets all structs that were there from the start. */
static void walk_while_growing(void **state)
{
	struct kvc_table t;
	size_t next = N / 4;

	(void)state;
	memset(things, 0, sizeof things);
	assert_int_equal(kvc_table_init(&t), 0);
	for (size_t i = 0; i < N / 4; i++) {
		things[i].slot.key = i;
		kvc_table_add(&t, &things[i].slot);
	}
	for (size_t b = 0; b < t.buckets; b++) {
		for (struct kvc_slot *s = kvc_table_bucket(&t, b); s; s = s->next)
			kvc_of(s, struct thing, slot)->seen++;
		if (next < N) {
			things[next].slot.key = next;
			kvc_table_add(&t, &things[next++].slot);
		}
	}
	for (size_t i = 0; i < N / 4; i++)
		assert_true(things[i].seen >= 1);
	kvc_table_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_ops),
		cmocka_unit_test(walk_while_growing),
	};

	return cmocka_run_group_tests_name("table", tests, NULL, NULL);
}
