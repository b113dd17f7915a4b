/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shapes of paged KV caches, as an engine states them. Shapes with any numbers are accepted or
 * refused without overflow. Small ones are filled from a file and read back, in memory of exactly
 * the size that the shape requires.
 *
 * Input: a byte (bit 0: small numbers), then the members of the shape, then slots or blocks.
 * Longest input: 512
 * Covers: gpu/layout.c
 */
#include "fuzz.h"
#include "layout.h"

#define MOST (1u << 18) /* elements of a pointer's memory */
#define POINTERS 64

static uint64_t member(struct fuzz_in *in, bool small, size_t bytes, uint64_t most)
{
	return small ? fuzz_number(in, 1) % (most + 1) : fuzz_number(in, bytes);
}

static struct kvcachefs_paged shape(struct fuzz_in *in, bool small)
{
	struct kvcachefs_paged p = { .device = -1 };

	p.format = (enum kvcachefs_format)(fuzz_number(in, 1) % (KVCACHEFS_FORMATS + 1));
	p.layers = (uint32_t)member(in, small, 4, 4);
	p.heads = (uint32_t)member(in, small, 4, 4);
	p.head_size = (uint32_t)member(in, small, 4, 9);
	p.block_size = (uint32_t)member(in, small, 4, 5);
	p.blocks = member(in, small, 8, 6);
	p.elem = 1u << fuzz_number(in, 1) % 4;
	p.block_stride = member(in, small, 8, 255);
	p.fused = fuzz_number(in, 1) & 1;
	p.planes = (uint32_t)member(in, small, 4, 5);
	for (int i = 0; i < KVCACHEFS_PLANES; i++) {
		p.plane_width[i] = (uint32_t)member(in, small, 4, 5);
		p.plane_stride[i] = member(in, small, 8, 60);
	}
	return p;
}

/*
 * Returns how many elements the pointer `at` must have: up to the end of the last run of any token,
 * layer and component. No shape may reach beyond its blocks.
 */
static uint64_t reach(const struct kvcachefs_paged *p, const struct kvcachefs_strides *s,
		      uint32_t at)
{
	uint64_t most = 0, end;

	for (uint32_t l = 0; l < p->layers; l++)
		for (uint32_t kv = 0; kv < s->kvs; kv++)
			for (uint64_t slot = 0; slot < p->blocks * p->block_size; slot++)
				for (uint32_t k = 0; k < s->runs; k++) {
					struct kvcachefs_run r = kvcachefs_at(s, l, kv, slot, k);

					fuzz_must(r.pointer < s->npointers && r.len);
					end = r.offset + r.len;
					if (r.pointer == at && end > most)
						most = end;
				}
	return most;
}

/* No two tokens have the same place, so gather returns what was scattered. */
static void there_and_back(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers,
			   const struct kvcachefs_tokens *t, bool twice)
{
	uint64_t size = kvcachefs_file_size(p, nlayers, t);
	uint8_t *file = malloc(size ? size : 1), *back = malloc(size ? size : 1);
	struct kvcachefs_strides s;
	uint64_t row, ntokens;
	int err;

	fuzz_must(file && back && !kvcachefs_strides_of(p, &s));
	for (uint64_t i = 0; i < size; i++)
		file[i] = (uint8_t)(i * 131 + i / 251);
	memset(back, 0xee, size);
	err = kvcachefs_scatter(p, layer, nlayers, t, file);
	fuzz_must(err == kvcachefs_gather(p, layer, nlayers, t, back));
	fuzz_must(err == kvcachefs_check(p, layer, nlayers, t, &ntokens));
	if (err || twice)
		goto out;
	row = (uint64_t)s.heads * s.width * p->elem;
	fuzz_must(size == row * ntokens * nlayers * s.kvs);
	for (uint64_t i = 0; i < size; i++) {
		uint64_t token = i / row % ntokens;
		bool skipped = token < t->skip ||
			       kvcachefs_slot(t->slots, t->block_ids, p->block_size, token) < 0;

		fuzz_must(back[i] == (skipped ? 0 : file[i]));
	}
out:
	free(file);
	free(back);
}

static void move(struct kvcachefs_paged *p, const struct kvcachefs_strides *s, struct fuzz_in *in)
{
	struct kvcachefs_tokens t = { 0 };
	void *pointers[POINTERS];
	int64_t list[32];
	bool twice = false;
	unsigned how = (unsigned)fuzz_number(in, 1);
	uint32_t layer = how >> 1 & 3, nlayers = how >> 3 & 3;

	for (uint32_t i = 0; i < s->npointers; i++) {
		uint64_t n = reach(p, s, i);

		fuzz_must(n <= MOST);
		pointers[i] = calloc(n ? n : 1, p->elem);
		fuzz_must(pointers[i]);
	}
	p->pointers = pointers;
	t.skip = fuzz_number(in, 1) % 8;
	for (; t.n < 32 && in->n; t.n++) {
		list[t.n] = (int64_t)fuzz_number(in, 1) - 64; /* negative: skipped */
		for (size_t i = 0; i < t.n; i++)
			twice |= list[i] == list[t.n] && list[i] >= 0;
	}
	if (how & 1)
		t.slots = list;
	else
		t.block_ids = list;
	there_and_back(p, layer, nlayers, &t, twice);
	for (uint32_t i = 0; i < s->npointers; i++)
		free(pointers[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = { data, size };
	bool small = fuzz_number(&in, 1) & 1;
	struct kvcachefs_paged p = shape(&in, small);
	struct kvcachefs_strides s;
	struct kvcachefs_tokens t = { .slots = (int64_t[]){ 0 }, .n = 1 };
	int err = kvcachefs_shape_of(&p, &s);

	fuzz_must(!err || (err == -EINVAL && *kvcachefs_error()));
	if (err) {
		fuzz_must(!kvcachefs_file_size(&p, 1, &t));
		return 0;
	}
	if (small && s.npointers <= POINTERS) {
		move(&p, &s, &in);
		return 0;
	}
	/* the place of the last possible element fits */
	struct kvcachefs_run r = kvcachefs_at(&s, p.layers - 1, s.kvs - 1,
					      p.blocks * p.block_size - 1, s.runs - 1);

	fuzz_must(r.offset < 1ull << 62 && r.pointer < s.npointers && r.len);
	/* nor is a file shorter than the data written to it */
	uint32_t nlayers = (uint32_t)fuzz_number(&in, 4);

	t.n = fuzz_number(&in, 8);
	if (fuzz_number(&in, 1) & 1) {
		t.block_ids = t.slots;
		t.slots = NULL;
	}
	uint64_t file = kvcachefs_file_size(&p, nlayers, &t);
	__extension__ unsigned __int128 whole = t.slots ? 1 : p.block_size;

	whole = whole * t.n * nlayers;
	fuzz_must(file < 1ull << 62);
	if (file) /* by division, since the product may not even fit 128 bits */
		fuzz_must(file / ((uint64_t)s.kvs * s.heads * s.width * p.elem) == whole);
	return 0;
}
