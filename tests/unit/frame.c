/* SPDX-License-Identifier: Apache-2.0 */
/* Frame headers and range tables: there and back, and every damaged bit noticed. */
#include "frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static struct kvc_frame sample(void)
{
	struct kvc_frame f = {
		.ino = 42,
		.gen = 7,
		.size = 1ull << 33,
		.raw_len = 99,
		.stored_len = 98,
		.flags = KVC_FRAME_SPARSE,
		.mode = 0100644,
		.uid = 1,
		.gid = 2,
		.mtime_ns = 3,
		.btime_ns = 4,
	};

	memset(f.store, 0xab, 16);
	memset(f.raw_sum.b, 0x11, 16);
	memset(f.stored_sum.b, 0x22, 16);
	strcpy(f.path, "model/chunk/layer");
	return f;
}

static void there_and_back(void **state)
{
	struct kvc_frame f = sample(), g;
	uint8_t page[KVC_FRAME_HEADER];

	(void)state;
	kvc_frame_encode(&f, page);
	assert_int_equal(kvc_frame_decode(page, &g), 0);
	assert_memory_equal(&f, &g, sizeof f);
	assert_memory_equal(page, "KVCFRAME\1\0\0\0", 12);
}

static void every_bit(void **state)
{
	struct kvc_frame f = sample(), g;
	uint8_t page[KVC_FRAME_HEADER];

	(void)state;
	kvc_frame_encode(&f, page);
	for (size_t bit = 0; bit < KVC_FRAME_HEADER * 8; bit += bit < 4096 ? 1 : 61) {
		page[bit / 8] ^= 1 << bit % 8;
		int err = kvc_frame_decode(page, &g);

		if (bit < KVC_FRAME_IDENTITY * 8) {
			assert_int_not_equal(err, 0);
		} else {
			assert_int_equal(err, 0); /* the name is lost, not the bytes */
			assert_int_equal(g.ino, 42);
			assert_string_equal(g.path, "");
		}
		page[bit / 8] ^= 1 << bit % 8;
	}
}

static void ranges(void **state)
{
	struct kvc_range r[] = { { 0, 4096 }, { 8192, 100 }, { 1 << 20, 1 } }, *back;
	uint8_t page[4096];
	size_t n;

	(void)state;
	assert_int_equal(kvc_ranges_size(3), 4096);
	kvc_ranges_encode(r, 3, page);
	assert_int_equal(kvc_ranges_decode(page, sizeof page, (1 << 20) + 1, &back, &n), 0);
	assert_int_equal(n, 3);
	assert_memory_equal(r, back, sizeof r);
	free(back);
	/* beyond the size */
	assert_int_equal(kvc_ranges_decode(page, sizeof page, 1 << 20, &back, &n), -EBADMSG);
	assert_int_equal(kvc_ranges_decode(page, 7, 1 << 21, &back, &n), -EBADMSG);
	r[1].off = 4000; /* overlap */
	kvc_ranges_encode(r, 3, page);
	assert_int_equal(kvc_ranges_decode(page, sizeof page, 1 << 21, &back, &n), -EBADMSG);
	r[1].off = UINT64_MAX - 10; /* wraps */
	kvc_ranges_encode(r, 3, page);
	assert_int_equal(kvc_ranges_decode(page, sizeof page, 1 << 21, &back, &n), -EBADMSG);
	memset(page, 0xff, sizeof page);
	assert_int_equal(kvc_ranges_decode(page, sizeof page, UINT64_MAX, &back, &n), -EBADMSG);
}

/* Whatever comes from a disk: an answer, no crash. */
static void noise(void **state)
{
	unsigned seed = (unsigned)time(NULL);
	uint8_t page[KVC_FRAME_HEADER];
	struct kvc_frame f = sample(), g;
	struct kvc_range *r;
	size_t n;

	(void)state;
	printf("seed %u\n", seed);
	for (int i = 0; i < 20000; i++) {
		kvc_frame_encode(&f, page);
		for (int k = rand_r(&seed) % 20; k >= 0; k--)
			page[rand_r(&seed) % sizeof page] = (uint8_t)rand_r(&seed);
		kvc_frame_decode(page, &g);
		if (!kvc_ranges_decode(page, sizeof page, rand_r(&seed), &r, &n))
			free(r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(there_and_back),
		cmocka_unit_test(every_bit),
		cmocka_unit_test(ranges),
		cmocka_unit_test(noise),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
