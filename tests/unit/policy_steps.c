/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No call of a replacer takes long, since the mount makes it under a lock for which opens wait. The
 * steps of all loops are counted, not the time: the policies are compiled so that each piece of
 * straight code calls __sanitizer_cov_trace_pc. A loop over all chunks, ghosts or records of a
 * large cache takes more steps than any call may. Growing a large array also takes time, though no
 * steps here: a call may grow only a few of them.
 */
#include "array.h"
#include "replacer.h"
#include "policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define CHUNKS 400000u
#define FIT 200000u
#define LENGTH 4u /* chunks of a request */
#define CLIENTS 200
#define FEW 40000
/* the end of a request of up to 512 chunks */
#define END 200000
/* the beginning of a request, which learns from up to 4096 records; a piece that is saved */
#define MANY 1000000

static uint64_t steps;

/* NOLINTNEXTLINE(bugprone-reserved-identifier) */
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
	steps++;
}

#define LARGE (64u << 10)
/* the history and the chain of each of two shadows; the two arrays of the learner's records */
#define GROWN 3

static unsigned grown; /* large arrays that the call grew */

/* NOLINTBEGIN(bugprone-reserved-identifier) */
void *__real_kvc_array_grow(void *p, size_t bytes);
void *__wrap_kvc_array_grow(void *p, size_t bytes);
void *__wrap_kvc_array_grow(void *p, size_t bytes)
{
	grown += bytes >= LARGE;
	return __real_kvc_array_grow(p, bytes);
}

/* NOLINTEND(bugprone-reserved-identifier) */

static unsigned policy;
static struct kvc_replacer *k;

#define WITHIN(most, call)                                                                   \
	do {                                                                                 \
		steps = 0;                                                                   \
		grown = 0;                                                                   \
		call;                                                                        \
		if (grown > GROWN)                                                           \
			fail_msg("%s: in %s %u large arrays grew", kvc_policy_names[policy], \
				 #call, grown);                                              \
		if (steps > (most))                                                          \
			fail_msg("%s: %s took %llu steps", kvc_policy_names[policy], #call,  \
				 (unsigned long long)steps);                                 \
	} while (0)

static void open_replacer(uint64_t chunks)
{
	struct kvc_replacer_conf conf = { policy, chunks, 1 };

	assert_int_equal(kvc_replacer_open(&k, &conf), 0);
}

static void make_space(struct kvc_request *r)
{
	uint64_t victim = 0;
	bool refused = false;

	WITHIN(FEW, refused = kvc_replacer_refuses(k, r, 1));
	if (refused)
		r->refused = false; /* the chunk is added all the same */
	WITHIN(FEW, victim = kvc_replacer_victim(k));
	if (victim)
		WITHIN(FEW, kvc_replacer_del(k, victim, true));
}

/* Requests of new chunks, so that all tables become as large as they can; some chunks return. */
static void requests(uint32_t chunks)
{
	struct kvc_request r = { 0 };

	for (uint32_t i = 1; i + LENGTH <= chunks; i += LENGTH) {
		uint32_t from = i % 64 == 1 && i > 4096 ? i - 4096 : i;

		WITHIN(MANY, kvc_replacer_begin(k, &r, i));
		for (uint64_t id = from; id < from + LENGTH; id++) {
			bool has = false;

			WITHIN(FEW, has = kvc_replacer_access(k, &r, id));
			if (has)
				continue;
			if (kvc_replacer_chunks(k) >= FIT)
				make_space(&r);
			WITHIN(FEW, kvc_replacer_add(k, &r, id, id > from ? id - 1 : 0, 1));
		}
		WITHIN(END, kvc_replacer_end(k, &r));
	}
	kvc_replacer_request_free(&r);
}

static void save(void)
{
	struct kvc_saving *s = NULL;
	void *blob = NULL;
	size_t len;
	int more = 0;

	do {
		WITHIN(MANY, more = kvc_replacer_save_piece(k, &s));
		kvc_replacer_save_between(s);
	} while (more > 0);
	assert_int_equal(kvc_replacer_save_end(s, &blob, &len), 0);
	free(blob);
}

/* A full cache with as much history as a policy keeps. */
static void full(void **state)
{
	(void)state;
	for (policy = 0; kvc_policy_names[policy]; policy++) {
		open_replacer(FIT);
		requests(CHUNKS);
		WITHIN(FEW, kvc_replacer_tell(k, CHUNKS - 8, KVC_OUTLOOK_TOOL));
		WITHIN(FEW, kvc_replacer_resize(k, CHUNKS - 8, 2));
		WITHIN(FEW, kvc_replacer_exclude(k, CHUNKS - 8, true));
		save();
		kvc_replacer_close(k);
	}
}

/* A request of 512 chunks. */
static void large_request(void **state)
{
	(void)state;
	for (policy = 0; kvc_policy_names[policy]; policy++) {
		struct kvc_request r = { 0 };

		open_replacer(FIT);
		kvc_replacer_begin(k, &r, 0);
		for (uint64_t id = 1; id <= 512; id++) {
			kvc_replacer_access(k, &r, id);
			assert_int_equal(kvc_replacer_add(k, &r, id, id - 1, 1), 0);
		}
		WITHIN(END, kvc_replacer_end(k, &r));
		kvc_replacer_request_free(&r);
		kvc_replacer_close(k);
	}
}

/* A chain whose end is far from its beginning: its parents change. */
static void deep(void **state)
{
	(void)state;
	for (policy = 0; kvc_policy_names[policy]; policy++) {
		open_replacer(FIT);
		for (uint64_t id = 1; id <= FIT; id++)
			assert_int_equal(kvc_replacer_add(k, NULL, id, id - 1, 1), 0);
		WITHIN(FEW, kvc_replacer_set_parent(k, 2, FIT));
		WITHIN(FEW, kvc_replacer_set_parent(k, FIT, 1));
		WITHIN(FEW, kvc_replacer_set_parent(k, FIT / 2, 0));
		WITHIN(FEW, kvc_replacer_del(k, 1, false));
		kvc_replacer_close(k);
	}
}

/* All leaves belong to requests in progress, so that no victim is found. */
static void all_busy(void **state)
{
	(void)state;
	for (policy = 0; kvc_policy_names[policy]; policy++) {
		struct kvc_request r[CLIENTS] = { 0 };
		uint64_t id = 1, victim = 0;

		open_replacer(FIT);
		for (int i = 0; i < CLIENTS; i++) {
			kvc_replacer_begin(k, &r[i], 0);
			for (int j = 0; j < 512; j++, id++) {
				kvc_replacer_access(k, &r[i], id);
				assert_int_equal(kvc_replacer_add(k, &r[i], id, 0, 1), 0);
			}
		}
		WITHIN(MANY, victim = kvc_replacer_victim(k));
		assert_int_equal(victim, 0);
		for (int i = 0; i < CLIENTS; i++) {
			kvc_replacer_end(k, &r[i]);
			kvc_replacer_request_free(&r[i]);
		}
		assert_int_not_equal(kvc_replacer_victim(k), 0);
		kvc_replacer_close(k);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(full),
		cmocka_unit_test(large_request),
		cmocka_unit_test(deep),
		cmocka_unit_test(all_busy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
