/* SPDX-License-Identifier: Apache-2.0 */
/* See layout.h; and gather, scatter and RoPE in host memory, by the same arithmetic as the kernels. */
#include "layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Dimensions: L layer, K key or value, B block, S slot in a block, H head, E element. */
static const struct {
	const char *pointers, *order;
} formats[KVCACHEFS_FORMATS] = {
	[KVCACHEFS_NB_NL_TWO_BS_NH_HS] = { "", "BLKSHE" },
	[KVCACHEFS_NL_X_TWO_NB_BS_NH_HS] = { "L", "KBSHE" },
	[KVCACHEFS_NL_X_NB_TWO_BS_NH_HS] = { "L", "BKSHE" },
	[KVCACHEFS_NL_X_NB_BS_HS] = { "L", "BSE" },
	[KVCACHEFS_TWO_X_NL_X_NBBS_NH_HS] = { "KL", "BSHE" },
	[KVCACHEFS_NL_X_NBBS_ONE_HS] = { "L", "BSE" },
	[KVCACHEFS_NL_X_TWO_NB_NH_BS_HS] = { "L", "KBHSE" },
	[KVCACHEFS_NL_X_NB_TWO_NH_BS_HS] = { "L", "BKHSE" },
	[KVCACHEFS_NB_NL_TWO_NH_BS_HS] = { "", "BLKHSE" },
	[KVCACHEFS_TWO_X_NL_X_NB_BS_NH_HS] = { "KL", "BSHE" },
	[KVCACHEFS_NL_X_NB_NH_BS_TWO_HS] = { "L", "BHSKE" },
};

#define MOST (1ull << 31) /* of any dimension; products are checked against 2^62 */

int kvcachefs_strides_of(const struct kvcachefs_paged *p, struct kvcachefs_strides *s)
{
	const char *order;
	uint64_t stride = 1, dense;

	memset(s, 0, sizeof *s);
	if ((unsigned)p->format >= KVCACHEFS_FORMATS)
		return kvcachefs_fail(-EINVAL, "there is no KV cache format %d", (int)p->format);
	order = formats[p->format].order;
	s->kvs = strchr(order, 'K') || strchr(formats[p->format].pointers, 'K') ? 2 : 1;
	if (!p->layers || !p->heads || !p->head_size || !p->block_size || !p->blocks || p->blocks > MOST || p->block_size > MOST || !p->pointers)
		return kvcachefs_fail(-EINVAL, "a dimension of the KV cache is zero or too large, or its pointers are missing");
	if (p->elem != 1 && p->elem != 2 && p->elem != 4)
		return kvcachefs_fail(-EINVAL, "elements have 1, 2 or 4 bytes, not %u", p->elem);
	if (s->kvs == 1 && p->heads != 1)
		return kvcachefs_fail(-EINVAL, "an MLA cache has one head, not %u", p->heads);
	for (const char *d = order + strlen(order); d-- > order;) {
		uint64_t n = 1;

		switch (*d) {
		case 'E': n = p->head_size; break;
		case 'H': s->head = stride; n = p->heads; break;
		case 'S': s->slot = stride; n = p->block_size; break;
		case 'K': s->kv = stride; n = 2; break;
		case 'L': s->layer = stride; n = p->layers; break;
		case 'B':
			dense = stride;
			if (p->block_stride && p->block_stride < dense)
				return kvcachefs_fail(-EINVAL, "block_stride %llu is less than a block of %llu elements", (unsigned long long)p->block_stride,
						      (unsigned long long)dense);
			s->block = stride = p->block_stride ? p->block_stride : dense;
			n = p->blocks;
			break;
		}
		if (stride > (1ull << 62) / n)
			return kvcachefs_fail(-EINVAL, "the KV cache is too large");
		stride *= n;
	}
	s->block_size = p->block_size;
	s->run_heads = strstr(order, "HE") ? p->heads : 1;
	s->npointers = 1;
	if (strchr(formats[p->format].pointers, 'L')) {
		s->pointer_layer = 1;
		s->npointers = p->layers;
	}
	if (strchr(formats[p->format].pointers, 'K')) {
		s->pointer_kv = p->layers;
		s->npointers *= 2;
	}
	for (uint32_t i = 0; i < s->npointers; i++)
		if (!p->pointers[i])
			return kvcachefs_fail(-EINVAL, "pointer %u of the KV cache is missing", i);
	return 0;
}

static uint64_t tokens_of(const struct kvcachefs_paged *p, const struct kvcachefs_tokens *t)
{
	return t->slots ? t->n : (uint64_t)t->n * p->block_size;
}

uint64_t kvcachefs_file_size(const struct kvcachefs_paged *p, uint32_t nlayers, const struct kvcachefs_tokens *t)
{
	struct kvcachefs_strides s;
	void *one[2] = { &s, &s };
	struct kvcachefs_paged shape = *p;
	void **many = p->pointers ? NULL : calloc(2 * (size_t)p->layers + 1, sizeof *many);

	if (many) { /* the size does not need the cache to be there */
		for (size_t i = 0; i < 2 * (size_t)p->layers; i++)
			many[i] = one;
		shape.pointers = many;
	}
	int err = kvcachefs_strides_of(&shape, &s);

	free(many);
	return err ? 0 : (uint64_t)s.kvs * nlayers * tokens_of(p, t) * p->heads * p->head_size * p->elem;
}

int kvcachefs_check(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers, const struct kvcachefs_tokens *t, uint64_t *ntokens)
{
	uint64_t slots = p->blocks * p->block_size;

	if (!t->slots == !t->block_ids)
		return kvcachefs_fail(-EINVAL, "tokens are given by slots or by block ids");
	if (!nlayers || layer >= p->layers || nlayers > p->layers - layer)
		return kvcachefs_fail(-ERANGE, "layers %u to %llu are outside the cache's %u", layer, (unsigned long long)layer + nlayers - 1, p->layers);
	*ntokens = tokens_of(p, t);
	if (t->skip > *ntokens)
		return kvcachefs_fail(-ERANGE, "%zu tokens are to be skipped of %llu", t->skip, (unsigned long long)*ntokens);
	for (size_t i = 0; i < t->n; i++) {
		int64_t v = t->slots ? t->slots[i] : t->block_ids[i];

		if (v >= 0 && (uint64_t)v >= (t->slots ? slots : p->blocks))
			return kvcachefs_fail(-ERANGE, "%s %lld is outside the cache's %llu", t->slots ? "slot" : "block", (long long)v,
					      (unsigned long long)(t->slots ? slots : p->blocks));
	}
	return 0;
}

static int move(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers, const struct kvcachefs_tokens *t, uint8_t *file, bool store)
{
	struct kvcachefs_strides s;
	uint64_t n, at = 0;
	int err = kvcachefs_strides_of(p, &s);

	if (!err)
		err = kvcachefs_check(p, layer, nlayers, t, &n);
	if (!err && p->device >= 0)
		err = kvcachefs_fail(-EINVAL, "gather and scatter work on host memory; kvcachefs_store and kvcachefs_load on a device");
	if (err)
		return err;
	size_t run = (size_t)s.run_heads * p->head_size * p->elem;

	for (uint32_t kv = 0; kv < s.kvs; kv++)
		for (uint32_t l = layer; l < layer + nlayers; l++) {
			uint8_t *base = p->pointers[kvcachefs_pointer(&s, l, kv)];

			for (uint64_t i = 0; i < n; i++) {
				int64_t slot = i < t->skip ? -1 : kvcachefs_slot(t->slots, t->block_ids, p->block_size, i);

				for (uint32_t h = 0; h < p->heads; h += s.run_heads, at += run) {
					if (slot < 0) {
						if (store) /* what is not there is zero, and never what was in memory before */
							memset(file + at, 0, run);
						continue;
					}
					uint8_t *cache = base + kvcachefs_at(&s, l, kv, (uint64_t)slot, h) * p->elem;

					memcpy(store ? file + at : cache, store ? cache : file + at, run);
				}
			}
		}
	return 0;
}

int kvcachefs_gather(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers, const struct kvcachefs_tokens *t, void *out)
{
	return move(p, layer, nlayers, t, out, true);
}

int kvcachefs_scatter(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers, const struct kvcachefs_tokens *t, const void *in)
{
	return move(p, layer, nlayers, t, (uint8_t *)(uintptr_t)in, false);
}

static float get(const uint8_t *p, int type)
{
	uint32_t u = 0;
	float f;

	if (type == KVCACHEFS_F16) {
		_Float16 h;

		memcpy(&h, p, 2);
		return (float)h;
	}
	memcpy((uint8_t *)&u + (type == KVCACHEFS_BF16 ? 2 : 0), p, type == KVCACHEFS_BF16 ? 2 : 4);
	memcpy(&f, &u, 4);
	return f;
}

/* Rounds to nearest, ties to even. */
static void set(uint8_t *p, int type, float f)
{
	uint32_t u;

	if (type == KVCACHEFS_F16) {
		_Float16 h = (_Float16)f;

		memcpy(p, &h, 2);
		return;
	}
	memcpy(&u, &f, 4);
	if (type == KVCACHEFS_BF16) {
		if ((u & 0x7fffffff) <= 0x7f800000) /* not of a NaN */
			u += 0x7fff + (u >> 16 & 1);
		u >>= 16;
		memcpy(p, &u, 2);
	} else {
		memcpy(p, &u, 4);
	}
}

int kvcachefs_rope_shift(const struct kvcachefs_rope *r, void *keys, size_t n, uint32_t heads, uint32_t head_size)
{
	uint32_t dims = r->dims ? r->dims : head_size, half = dims / 2;
	size_t elem = r->type == KVCACHEFS_F32 ? 4 : 2;
	double *turn;

	if (dims % 2 || dims > head_size || !(r->theta > 0) || (unsigned)r->type > KVCACHEFS_BF16)
		return kvcachefs_fail(-EINVAL, "a rotation of %u of %u elements with base %g is none", dims, head_size, r->theta);
	turn = malloc(2 * half * sizeof *turn + 1);
	if (!turn)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	for (uint32_t i = 0; i < half; i++) {
		double angle = (double)r->delta * pow(r->theta, -2.0 * i / dims);

		turn[2 * i] = cos(angle);
		turn[2 * i + 1] = sin(angle);
	}
	for (size_t k = 0; k < n * heads; k++) {
		uint8_t *head = (uint8_t *)keys + k * head_size * elem;

		for (uint32_t i = 0; i < half; i++) {
			uint8_t *a = head + (r->interleaved ? 2 * i : i) * elem, *b = head + (r->interleaved ? 2 * i + 1 : i + half) * elem;
			double x = get(a, r->type), y = get(b, r->type);

			set(a, r->type, (float)(x * turn[2 * i] - y * turn[2 * i + 1]));
			set(b, r->type, (float)(y * turn[2 * i] + x * turn[2 * i + 1]));
		}
	}
	free(turn);
	return 0;
}
