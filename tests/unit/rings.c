/* SPDX-License-Identifier: Apache-2.0 */
/* What serving by io_uring takes, on machines of 1 to 1024 CPUs. */
#include "ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define CPUS 1024u
#define ATTRIBUTE (65536u + 256u) /* value and name of the largest extended attribute */

static const uint32_t pages[] = { 4096, 16384, 65536 };

static void check(const struct kvfs_ring *r, unsigned cpus, uint32_t page, uint64_t bound)
{
	uint64_t entry = (uint64_t)r->payload + page, least = 8 * cpus * entry;

	assert_int_equal(r->queues, cpus);
	assert_in_range(r->depth, 8, 64);
	assert_true(r->payload >= ATTRIBUTE && r->payload <= 1u << 20);
	assert_int_equal(r->payload % page, 0);
	assert_int_equal(kvfs_ring_bytes(r), cpus * r->depth * entry);
	assert_true(kvfs_ring_bytes(r) <= (bound > least ? bound : least));
	/* What may be taken is taken: one more a queue would be too much. */
	assert_true(r->depth == 64 || kvfs_ring_bytes(r) + cpus * entry > bound);
}

static void bounded(void **state)
{
	(void)state;
	for (size_t p = 0; p < sizeof pages / sizeof pages[0]; p++)
		for (unsigned cpus = 1; cpus <= CPUS; cpus++) {
			struct kvfs_ring r, d;

			kvfs_ring_choose(&r, cpus, pages[p], false);
			check(&r, cpus, pages[p], KVFS_RINGS);
			kvfs_ring_choose(&d, cpus, pages[p], true);
			check(&d, cpus, pages[p], KVFS_RINGS_DATA);
			assert_true(d.payload >= r.payload);
			/* Where the kernel refuses passthrough: the depth is given already. */
			d = r;
			kvfs_ring_for_data(&d);
			assert_int_equal(d.depth, r.depth);
			assert_true(d.payload >= r.payload && d.payload % pages[p] == 0);
			assert_true(kvfs_ring_bytes(&d) <= KVFS_RINGS_DATA ||
				    d.payload == r.payload);
		}
}

/* The figures at the head of ring.h and in kvcachefs-design(7). */
static void told(void **state)
{
	static const struct {
		unsigned cpus, depth, mib;
	} rows[] = { { 2, 64, 9 },   { 8, 64, 36 },   { 14, 64, 63 },
		     { 16, 56, 63 }, { 32, 28, 63 },  { 64, 14, 63 },
		     { 128, 8, 72 }, { 256, 8, 144 }, { 1024, 8, 576 } };
	struct kvfs_ring r;

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		kvfs_ring_choose(&r, rows[i].cpus, 4096, false);
		assert_int_equal(r.depth, rows[i].depth);
		assert_int_equal(kvfs_ring_bytes(&r) >> 20, rows[i].mib);
	}
	kvfs_ring_choose(&r, 2, 4096, true);
	assert_true(r.depth == 64 && r.payload == 1u << 20); /* as deep and as large as ever */
	kvfs_ring_choose(&r, 0, 4096, false);
	assert_int_equal(r.queues, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(bounded), cmocka_unit_test(told) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
