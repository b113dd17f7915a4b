/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A frame's header, and the range table after it: a header that can be read can be written, and
 * then reads as the same. The mutator repairs the header's two sums.
 *
 * Input: the header's page, eight bytes of a file's size, a range table.
 * Longest input: 8200
 * Covers: engine/frames/frame.c
 */
#include "fuzz.h"
#include "tier.h"

static void same(const struct kvc_frame *a, const struct kvc_frame *b)
{
	fuzz_must(!memcmp(a->store, b->store, 16) && a->ino == b->ino && a->gen == b->gen);
	fuzz_must(a->size == b->size && a->raw_len == b->raw_len);
	fuzz_must(a->stored_len == b->stored_len && a->flags == b->flags && a->codec == b->codec);
	fuzz_must(!memcmp(&a->raw_sum, &b->raw_sum, 16));
	fuzz_must(!memcmp(&a->stored_sum, &b->stored_sum, 16));
	fuzz_must(a->key_id == b->key_id && !memcmp(a->nonce, b->nonce, 12));
	fuzz_must(!strcmp(a->key_model, b->key_model) && !strcmp(a->path, b->path));
	fuzz_must(a->mode == b->mode && a->uid == b->uid && a->gid == b->gid);
	fuzz_must(a->mtime_ns == b->mtime_ns && a->btime_ns == b->btime_ns);
}

static void header(const uint8_t *page)
{
	static uint8_t again[KVC_FRAME_HEADER] __attribute__((aligned(8)));
	static struct kvc_frame a, b;
	char text[33];

	memset(&a, 0xa5, sizeof a); /* shows members that decoding does not set */
	memset(&b, 0x5a, sizeof b);
	if (kvc_frame_decode(page, &a))
		return;
	fuzz_must(memchr(a.path, 0, sizeof a.path) && memchr(a.key_model, 0, sizeof a.key_model));
	fuzz_must(!(a.size >> 62) && !(a.raw_len >> 62) && !(a.stored_len >> 62));
	kvc_frame_encode(&a, again);
	fuzz_must(!kvc_frame_decode(again, &b));
	same(&a, &b);

	struct kvc_where w = kvc_frame_where_of(a.path);

	fuzz_must(strlen(kvc_frame_where_text(&w, text)) == 32);
}

static void ranges(const uint8_t *table, size_t len, uint64_t size)
{
	struct kvc_range *a, *b;
	uint64_t end = 0;
	uint8_t *again;
	size_t n, m;

	if (kvc_frame_ranges_decode(table, len, size, &a, &n))
		return;
	for (size_t i = 0; i < n; i++) {
		fuzz_must(a[i].len && a[i].off >= end && a[i].off + a[i].len > a[i].off);
		end = a[i].off + a[i].len;
	}
	fuzz_must(end <= size && kvc_frame_ranges_size(n) && kvc_frame_ranges_size(n) <= len);
	again = malloc(kvc_frame_ranges_size(n));
	fuzz_must(again);
	kvc_frame_ranges_encode(a, n, again);
	fuzz_must(!kvc_frame_ranges_decode(again, kvc_frame_ranges_size(n), size, &b, &m));
	fuzz_must(m == n && !memcmp(a, b, n * sizeof *a));
	free(again);
	free(a);
	free(b);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed)
{
	size = LLVMFuzzerMutate(data, size, capacity);
	if (seed % 8)
		fuzz_mend_header(data, size);
	return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = { data, size };
	uint8_t *page = fuzz_bytes(&in, KVC_FRAME_HEADER);
	uint64_t of = fuzz_number(&in, 8);
	size_t len = in.n;
	uint8_t *table = fuzz_bytes(&in, len);

	header(page);
	ranges(table, len, of);
	free(page);
	free(table);
	return 0;
}
