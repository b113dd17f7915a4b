/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the io_uring queues on machines of 1 to 1024 CPUs, and the wait slots of the queues:
 * some entries are always left for immediate answers, some more for root, and a user who takes as
 * many slots as possible leaves slots for the next users.
 */
#include "wait_slots.h"
#include "ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define CPUS 1024u
#define ATTRIBUTE (65536u + 256u) /* value and name of the largest extended attribute */
#define GIB (1ull << 30)

static const uint32_t pages[] = { 4096, 16384, 65536 };
static const uint64_t memories[] = { 0, GIB / 4, 2 * GIB, 8 * GIB, 32 * GIB, 4096 * GIB };

static void check(const struct kvfs_ring *r, unsigned cpus, uint32_t page, uint64_t bound)
{
	uint64_t entry = (uint64_t)r->payload + page, least = KVFS_RING_LEAST * cpus * entry;

	assert_int_equal(r->queues, cpus);
	assert_in_range(r->depth, KVFS_RING_LEAST, KVFS_RING_DEPTH);
	assert_true(r->payload >= ATTRIBUTE && r->payload <= 1u << 20);
	assert_int_equal(r->payload % page, 0);
	assert_int_equal(kvfs_ring_bytes(r), cpus * r->depth * entry);
	assert_true(kvfs_ring_bytes(r) <= (bound > least ? bound : least));
	/* The budget is used up: one more entry per queue would exceed it. */
	assert_true(r->depth == KVFS_RING_DEPTH || kvfs_ring_bytes(r) + cpus * entry > bound);
}

static void check_data(unsigned cpus, uint32_t page, uint64_t most)
{
	uint64_t bound = most < KVFS_RINGS_DATA ? most : KVFS_RINGS_DATA;
	struct kvfs_ring d, r;

	kvfs_ring_choose(&d, cpus, page, true, 32 * GIB, most);
	check(&d, cpus, page, bound);
	kvfs_ring_choose(&r, cpus, page, false, 32 * GIB, most);
	assert_true(d.payload >= r.payload);
}

static void bounded(void **state)
{
	(void)state;
	for (size_t p = 0; p < sizeof pages / sizeof pages[0]; p++)
		for (size_t m = 0; m < sizeof memories / sizeof memories[0]; m++)
			for (unsigned cpus = 1; cpus <= CPUS; cpus++) {
				uint64_t bound = memories[m] / 16;
				struct kvfs_ring r;

				bound = bound < KVFS_RINGS_LEAST ? KVFS_RINGS_LEAST : bound;
				bound = bound > KVFS_RINGS ? KVFS_RINGS : bound;
				kvfs_ring_choose(&r, cpus, pages[p], false, memories[m],
						 UINT64_MAX);
				check(&r, cpus, pages[p], bound);
				check_data(cpus, pages[p], memories[m]);
				/* memory= limits the queues too */
				kvfs_ring_choose(&r, cpus, pages[p], false, 32 * GIB, memories[m]);
				check(&r, cpus, pages[p],
				      memories[m] < KVFS_RINGS ? memories[m] : KVFS_RINGS);
			}
}

/* Initializes a queue with a seed for which the users of this test do not share slots. */
static void queue_init(struct kvfs_queue *q, unsigned depth)
{
	kvfs_queue_init(q, depth);
	q->seed = 1;
}

static unsigned taken(struct kvfs_queue *q, uint32_t uid, bool root)
{
	unsigned n = 0;

	while (kvfs_wait_slot_take(q, uid, root, 1))
		n++;
	return n;
}

/* The figures in ring.h and kvcachefs-design(7). */
static void told(void **state)
{
	static const struct {
		unsigned cpus, depth, waits, small;
	} rows[] = { { 2, 2047, 1152, 910 }, { 8, 2047, 1152, 227 }, { 16, 1820, 1024, 113 },
		     { 32, 910, 513, 56 },   { 64, 455, 257, 28 },   { 128, 227, 129, 16 },
		     { 256, 113, 64, 16 },   { 1024, 28, 16, 16 } };
	struct kvfs_queue q;
	struct kvfs_ring r;

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		kvfs_ring_choose(&r, rows[i].cpus, 4096, false, 32 * GIB, UINT64_MAX);
		assert_int_equal(r.depth, rows[i].depth);
		queue_init(&q, r.depth);
		assert_int_equal(taken(&q, 1000, false), rows[i].waits);
		kvfs_ring_choose(&r, rows[i].cpus, 4096, false, 2 * GIB, UINT64_MAX);
		assert_int_equal(r.depth, rows[i].small);
	}
	kvfs_ring_choose(&r, 2, 4096, true, GIB, UINT64_MAX);
	assert_true(r.depth == 127 && r.payload == 1u << 20);
	kvfs_ring_choose(&r, 0, 4096, false, GIB, UINT64_MAX);
	assert_int_equal(r.queues, 1);
}

/* Checks all depths, with any number of users who take all slots they can get. */
static void slots(void **state)
{
	static struct kvfs_queue q;

	(void)state;
	for (unsigned depth = KVFS_RING_LEAST; depth <= KVFS_RING_DEPTH; depth += depth / 3) {
		unsigned one, n, all = 0, user = 1;

		queue_init(&q, depth);
		one = taken(&q, 1000, false);
		n = taken(&q, 2000, false);
		assert_true(n > 0 && n < one && one <= depth * 3 / 4);
		for (unsigned i = 0; i < n; i++)
			kvfs_wait_slot_give(&q, 2000, 1);
		assert_int_equal(taken(&q, 2000, false), n); /* returned slots are free again */
		for (; user < 1000; user++)
			all += taken(&q, 10000 + user, false);
		assert_int_equal(q.waiting, one + n + all);
		assert_true(q.waiting <= depth - depth / 4);
		/* root gets slots when all other users have theirs */
		assert_true(taken(&q, 0, true) > 0);
		for (user = 0; user < 1000; user++)
			taken(&q, 20000 + user, true);
		assert_true(q.waiting <= depth - depth / 8);
	}
}

/* Several slots at a time, as for the pages of waiting writes: the same shares apply. */
static void several(void **state)
{
	static struct kvfs_queue q;
	const unsigned depth = 4096, sizes[] = { 1, 3, 32, 256 };

	(void)state;
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		unsigned n = sizes[i], one = 0, all = 0;

		queue_init(&q, depth);
		while (kvfs_wait_slot_take(&q, 1000, false, n))
			one += n;
		assert_in_range(one, depth * 9 / 16 - n, depth * 9 / 16 + n);
		assert_true(kvfs_wait_slot_take(&q, 2000, false, n));
		kvfs_wait_slot_give(&q, 2000, n);
		for (uint32_t user = 10000; user < 11000; user++)
			while (kvfs_wait_slot_take(&q, user, false, n))
				all += n;
		assert_int_equal(q.waiting, one + all);
		assert_in_range(q.waiting, depth / 4 * 3 - n, depth / 4 * 3);
		assert_true(kvfs_wait_slot_take(&q, 0, true, n));
		kvfs_wait_slot_give(&q, 0, n);
		kvfs_wait_slot_give(&q, 1000, one);
		assert_int_equal(q.waiting, all);
	}
	queue_init(&q, depth);
	assert_false(kvfs_wait_slot_take(&q, 1000, false, depth));
	assert_false(kvfs_wait_slot_take(&q, 0, true, UINT32_MAX));
	queue_init(&q, 0); /* no memory for copies */
	assert_false(kvfs_wait_slot_take(&q, 0, true, 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bounded),
		cmocka_unit_test(told),
		cmocka_unit_test(slots),
		cmocka_unit_test(several),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
