/* SPDX-License-Identifier: Apache-2.0 */
/* Frame headers and range tables: encoded and decoded again, and every damaged bit is detected. */
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
	strcpy(f.key_model, "a-model-with-name");
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
	assert_memory_equal(page, "KVCFRAME\2\0\0\0", 12);
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
			assert_int_equal(err, 0); /* the name is lost, the bytes are not */
			assert_int_equal(g.ino, 42);
			assert_string_equal(g.path, "");
		}
		page[bit / 8] ^= 1 << bit % 8;
	}
}

/* Corrects the checksums of a page, as anyone can. */
static void resum(uint8_t *page)
{
	struct kvc_sum s = kvc_sum_of(page, KVC_FRAME_IDENTITY - 16);

	memcpy(page + KVC_FRAME_IDENTITY - 16, s.b, 16);
	s = kvc_sum_of(page + KVC_FRAME_IDENTITY, KVC_FRAME_HEADER - KVC_FRAME_IDENTITY - 16);
	memcpy(page + KVC_FRAME_HEADER - 16, s.b, 16);
}

static enum kvc_proven proven(const struct kvc_frame *f, const uint8_t key[32])
{
	enum kvc_proven p;

	assert_int_equal(kvc_frame_proven(f, key, &p), 0);
	return p;
}

/* A proof detects a change to any field that is decoded, even if the checksum is correct. */
static void proofs(void **state)
{
	const size_t fields = 384 + 16, name = KVC_FRAME_IDENTITY, name_end = 544 + 17;
	struct kvc_frame f = sample(), g;
	uint8_t key[32], other[32], page[KVC_FRAME_HEADER];

	(void)state;
	memset(key, 5, sizeof key);
	memcpy(other, key, sizeof key);
	other[31] ^= 1;
	assert_int_equal(kvc_frame_prove(&f, key), 0);
	kvc_frame_encode(&f, page);
	assert_int_equal(kvc_frame_decode(page, &g), 0);
	assert_memory_equal(&f, &g, sizeof f);
	assert_int_equal(proven(&g, key), KVC_PROVEN_ALL);
	assert_int_equal(proven(&g, other), KVC_PROVEN_NOTHING);
	for (size_t at = 0; at < name_end; at += at == fields - 1 ? name - at : 1) {
		page[at] ^= 1;
		resum(page);
		int err = kvc_frame_decode(page, &g);
		enum kvc_proven p = err ? KVC_PROVEN_NOTHING : proven(&g, key);

		if ((at >= 124 && at < 128) || (at >= 128 + 17 && at < 384) || at == 525)
			; /* padding, and bytes after a text, are not decoded */
		else
			assert_int_equal(p, at < name ? KVC_PROVEN_NOTHING : KVC_PROVEN_IDENTITY);
		page[at] ^= 1;
	}
	/* headers of other versions are refused */
	for (uint8_t version = 0; version <= 3; version++) {
		page[8] = version;
		resum(page);
		assert_int_equal(kvc_frame_decode(page, &g), version == 2 ? 0 : -EPROTO);
	}
	/* a name part of another frame */
	f.ino = 43;
	assert_int_equal(kvc_frame_prove(&f, key), 0);
	kvc_frame_encode(&f, page);
	f = sample();
	kvc_frame_prove(&f, key);
	uint8_t mine[KVC_FRAME_HEADER];

	kvc_frame_encode(&f, mine);
	memcpy(page + KVC_FRAME_IDENTITY, mine + KVC_FRAME_IDENTITY,
	       KVC_FRAME_HEADER - KVC_FRAME_IDENTITY);
	assert_int_equal(kvc_frame_decode(page, &g), 0);
	assert_int_equal(proven(&g, key), KVC_PROVEN_IDENTITY);
}

static void ranges(void **state)
{
	struct kvc_range r[] = { { 0, 4096 }, { 8192, 100 }, { 1 << 20, 1 } }, *back;
	uint8_t page[4096];
	size_t n;

	(void)state;
	assert_int_equal(kvc_frame_ranges_size(3), 4096);
	kvc_frame_ranges_encode(r, 3, page);
	assert_int_equal(kvc_frame_ranges_decode(page, sizeof page, (1 << 20) + 1, &back, &n), 0);
	assert_int_equal(n, 3);
	assert_memory_equal(r, back, sizeof r);
	free(back);
	/* past the end of the file */
	assert_int_equal(kvc_frame_ranges_decode(page, sizeof page, 1 << 20, &back, &n), -EBADMSG);
	assert_int_equal(kvc_frame_ranges_decode(page, 7, 1 << 21, &back, &n), -EBADMSG);
	r[1].off = 4000; /* overlap */
	kvc_frame_ranges_encode(r, 3, page);
	assert_int_equal(kvc_frame_ranges_decode(page, sizeof page, 1 << 21, &back, &n), -EBADMSG);
	r[1].off = UINT64_MAX - 10; /* wraps */
	kvc_frame_ranges_encode(r, 3, page);
	assert_int_equal(kvc_frame_ranges_decode(page, sizeof page, 1 << 21, &back, &n), -EBADMSG);
	memset(page, 0xff, sizeof page);
	assert_int_equal(kvc_frame_ranges_decode(page, sizeof page, UINT64_MAX, &back, &n),
			 -EBADMSG);
}

/* Random bytes are decoded or refused, without a crash. */
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
		if (!kvc_frame_ranges_decode(page, sizeof page, rand_r(&seed), &r, &n))
			free(r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(there_and_back), cmocka_unit_test(every_bit),
		cmocka_unit_test(proofs),         cmocka_unit_test(ranges),
		cmocka_unit_test(noise),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
