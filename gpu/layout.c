/* SPDX-License-Identifier: Apache-2.0 */
/* See layout.h. Also gather and scatter in host memory, with the same arithmetic as the kernels. */
#include "layout.h"

#include <string.h>

/*
 * Dimensions: L layer, K key or value, B block, S slot in a block, H head, E element; P plane of a
 * layer. If K precedes E, a file may hold K and V together (fused). `single`: heads must be 1.
 */
#define ROW(name, p, o, one) [KVCACHEFS_##name] = { #name, p, o, one }
static const struct {
	const char *name, *pointers, *order;
	bool single;
} formats[KVCACHEFS_FORMATS] = {
	ROW(NB_NL_TWO_BS_NH_HS, "", "BLKSHE", false),
	ROW(NL_X_TWO_NB_BS_NH_HS, "L", "KBSHE", false),
	ROW(NL_X_NB_TWO_BS_NH_HS, "L", "BKSHE", false),
	ROW(NL_X_NB_BS_HS, "L", "BSE", true),
	ROW(TWO_X_NL_X_NBBS_NH_HS, "KL", "BSHE", false),
	ROW(NL_X_NBBS_ONE_HS, "L", "BSE", true),
	ROW(NL_X_TWO_NB_NH_BS_HS, "L", "KBHSE", false),
	ROW(NL_X_NB_TWO_NH_BS_HS, "L", "BKHSE", false),
	ROW(NB_NL_TWO_NH_BS_HS, "", "BLKHSE", false),
	ROW(TWO_X_NL_X_NB_BS_NH_HS, "KL", "BSHE", false),
	ROW(NL_X_NB_NH_BS_TWO_HS, "L", "BHSKE", false),
	ROW(NL_X_NB_BS_NH_TWO_HS, "L", "BSHKE", false),
	ROW(NL_X_NB_NH_BS_CS, "L", "BHSKE", false),
	ROW(NL_X_NB_BS_NH_CS, "L", "BSHKE", false),
	ROW(NL_X_NB_BSV_BSS, "L", "", true),
	ROW(NL_X_TWO_NB_NH_ONE_BS_HS, "L", "KBHSE", false),
	ROW(NL_X_TWO_X_NB_BS_NH_HS, "LK", "BSHE", false),
	ROW(NL_X_NP_X_NB_BS_ONE_HS, "LP", "", true),
	ROW(NL_X_NB_BS_NH_HS, "L", "BSHE", false),
	ROW(NB_NL_NH_BS_CS, "", "BLHSKE", false),
	ROW(NB_NL_BS_NH_CS, "", "BLSHKE", false),
	ROW(NL_X_NH_NB_BS_CS, "L", "HBSKE", false),
	ROW(NB_NH_NL_BS_CS, "", "BHLSKE", false),
};

#define MOST (1ull << 31) /* limit of every dimension; products are checked against 2^62 */
#define LARGEST (1ull << 62)

const char *kvcachefs_format_name(enum kvcachefs_format format)
{
	return (unsigned)format < KVCACHEFS_FORMATS ? formats[format].name : NULL;
}

int kvcachefs_format_find(const char *name, enum kvcachefs_format *out)
{
	for (int i = 0; i < KVCACHEFS_FORMATS; i++)
		if (!strcmp(formats[i].name, name)) {
			*out = (enum kvcachefs_format)i;
			return 0;
		}
	return kvcachefs_fail(-EINVAL, "unknown KV cache format '%.60s'", name);
}

static int check_shape(const struct kvcachefs_paged *p)
{
	if ((unsigned)p->format >= KVCACHEFS_FORMATS)
		return kvcachefs_fail(-EINVAL, "unknown KV cache format %d", (int)p->format);
	if (!p->layers || !p->heads || !p->head_size || !p->block_size || !p->blocks ||
	    p->layers > 1u << 20 || p->blocks > MOST || p->block_size > MOST ||
	    (uint64_t)p->heads * p->head_size > MOST / 2)
		return kvcachefs_fail(-EINVAL, "a dimension of the KV cache is zero or too large");
	if (p->elem != 1 && p->elem != 2 && p->elem != 4)
		return kvcachefs_fail(-EINVAL, "elements must have 1, 2 or 4 bytes, not %u",
				      p->elem);
	if (formats[p->format].single && p->heads != 1)
		return kvcachefs_fail(-EINVAL, "%s must have one head, not %u",
				      formats[p->format].name, p->heads);
	if (p->fused && !strstr(formats[p->format].order, "KE"))
		return kvcachefs_fail(-EINVAL,
				      "%s stores K and V separately: its files cannot be fused",
				      formats[p->format].name);
	return 0;
}

static int padded(uint64_t given, uint64_t dense, uint64_t *stride)
{
	if (given && given < dense)
		return kvcachefs_fail(
			-EINVAL, "a block stride of %llu is less than a block of %llu elements",
			(unsigned long long)given, (unsigned long long)dense);
	*stride = given ? given : dense;
	return 0;
}

/* Computes strides from the innermost dimension outwards. */
static int by_order(const struct kvcachefs_paged *p, const char *order, struct kvcachefs_strides *s)
{
	uint64_t stride = 1;

	for (const char *d = order + strlen(order); d-- > order;) {
		uint64_t n = 1;

		switch (*d) {
		case 'E': n = p->head_size; break;
		case 'H':
			s->head = stride;
			n = p->heads;
			break;
		case 'S':
			s->slot = stride;
			n = p->block_size;
			break;
		case 'K':
			s->kv = stride;
			n = 2;
			break;
		case 'L':
			s->layer = stride;
			n = p->layers;
			break;
		case 'B':
			if (padded(p->block_stride, stride, &s->block))
				return -EINVAL;
			stride = s->block;
			n = p->blocks;
			break;
		}
		if (stride > LARGEST / n)
			return kvcachefs_fail(-EINVAL, "the KV cache is too large");
		stride *= n;
	}
	s->width = p->head_size;
	if (p->fused) { /* K and V of a head are one head of twice the size */
		s->kvs = 1;
		s->kv = 0;
		s->width *= 2;
	}
	/* heads that are contiguous in the cache as in the file */
	s->run_heads = s->head == s->width || p->heads == 1 ? p->heads : 1;
	s->runs = p->heads / s->run_heads;
	s->run = s->run_heads * s->width;
	return 0;
}

/* Computes the places of formats whose rows consist of planes. */
static int by_planes(const struct kvcachefs_paged *p, struct kvcachefs_strides *s)
{
	bool indexer = p->format == KVCACHEFS_NL_X_NB_BSV_BSS;
	uint32_t scale = 4 / p->elem, widths[KVCACHEFS_PLANES] = { p->head_size - scale, scale };
	uint64_t at = 0;

	s->width = p->head_size;
	s->planes = s->runs = indexer ? 2 : p->planes;
	s->run_heads = 1;
	if (!s->planes || s->planes > KVCACHEFS_PLANES)
		return kvcachefs_fail(-EINVAL, "a layer has %u planes; give 1 to %d", s->planes,
				      KVCACHEFS_PLANES);
	if (indexer && p->head_size <= scale)
		return kvcachefs_fail(-EINVAL,
				      "a row of %u elements has no values before its scale",
				      p->head_size);
	if (!indexer && p->block_stride)
		return kvcachefs_fail(-EINVAL, "%s takes plane_stride, not block_stride",
				      formats[p->format].name);
	for (uint32_t i = 0; i < s->planes; i++) {
		uint32_t width = indexer ? widths[i] : p->plane_width[i];
		uint64_t dense = (uint64_t)p->block_size * (indexer ? p->head_size : width);

		s->plane[i].at = (uint32_t)at;
		s->plane[i].width = width;
		s->plane[i].slot = width;
		s->plane[i].base = indexer ? at * p->block_size : 0;
		s->plane[i].pointer = indexer ? 0 : i;
		if (!width || padded(indexer ? p->block_stride : p->plane_stride[i], dense,
				     &s->plane[i].block))
			return width ? -EINVAL
				     : kvcachefs_fail(-EINVAL, "plane %u has no width", i);
		if (s->plane[i].block > LARGEST / p->blocks)
			return kvcachefs_fail(-EINVAL, "the KV cache is too large");
		at += width;
	}
	if (at != p->head_size)
		return kvcachefs_fail(-EINVAL,
				      "the planes have %llu elements together, and head_size is %u",
				      (unsigned long long)at, p->head_size);
	return 0;
}

int kvcachefs_shape_of(const struct kvcachefs_paged *p, struct kvcachefs_strides *s)
{
	const char *order, *pointers;
	int err = check_shape(p);

	memset(s, 0, sizeof *s);
	if (err)
		return err;
	order = formats[p->format].order;
	pointers = formats[p->format].pointers;
	s->kvs = strchr(order, 'K') || strchr(pointers, 'K') ? 2 : 1;
	s->heads = p->heads;
	s->block_size = p->block_size;
	err = *order ? by_order(p, order, s) : by_planes(p, s);
	s->npointers = 1;
	for (const char *d = pointers + strlen(pointers);
	     d-- > pointers;) /* begins with the pointer that changes fastest */
		switch (*d) {
		case 'L':
			s->pointer_layer = s->npointers;
			s->npointers *= p->layers;
			break;
		case 'K':
			s->pointer_kv = s->npointers;
			s->npointers *= 2;
			break;
		case 'P': s->npointers *= s->planes; break;
		}
	return err;
}

int kvcachefs_strides_of(const struct kvcachefs_paged *p, struct kvcachefs_strides *s)
{
	int err = kvcachefs_shape_of(p, s);

	if (!err && !p->pointers)
		err = kvcachefs_fail(-EINVAL, "the pointers of the KV cache are missing");
	for (uint32_t i = 0; !err && i < s->npointers; i++)
		if (!p->pointers[i])
			err = kvcachefs_fail(-EINVAL, "pointer %u of the KV cache is missing", i);
	return err;
}

static uint64_t tokens_of(const struct kvcachefs_paged *p, const struct kvcachefs_tokens *t)
{
	return t->slots ? t->n : (uint64_t)t->n * p->block_size;
}

uint64_t kvcachefs_file_size(const struct kvcachefs_paged *p, uint32_t nlayers,
			     const struct kvcachefs_tokens *t)
{
	struct kvcachefs_strides s;
	uint64_t size, row;

	if (kvcachefs_shape_of(p, &s))
		return 0;
	/* a row has less than 2^34 bytes; the numbers of layers and tokens are unlimited */
	row = (uint64_t)s.heads * s.width * p->elem * s.kvs;
	if ((!t->slots && t->n > SIZE_MAX / p->block_size) ||
	    __builtin_mul_overflow(row, tokens_of(p, t), &size) ||
	    __builtin_mul_overflow(size, nlayers, &size) || size >= LARGEST)
		return 0;
	return size;
}

int kvcachefs_check(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers,
		    const struct kvcachefs_tokens *t, uint64_t *ntokens)
{
	uint64_t slots = p->blocks * p->block_size;

	if (!t->slots == !t->block_ids)
		return kvcachefs_fail(-EINVAL, "give tokens either by slots or by block ids");
	if (!nlayers || layer >= p->layers || nlayers > p->layers - layer)
		return kvcachefs_fail(-ERANGE, "layers %u to %llu are outside the cache's %u",
				      layer, (unsigned long long)layer + nlayers - 1, p->layers);
	*ntokens = tokens_of(p, t);
	if (t->skip > *ntokens)
		return kvcachefs_fail(-ERANGE, "cannot skip %zu of %llu tokens", t->skip,
				      (unsigned long long)*ntokens);
	for (size_t i = 0; i < t->n; i++) {
		int64_t v = t->slots ? t->slots[i] : t->block_ids[i];

		if (v >= 0 && (uint64_t)v >= (t->slots ? slots : p->blocks))
			return kvcachefs_fail(-ERANGE, "%s %lld is outside the cache's %llu",
					      t->slots ? "slot" : "block", (long long)v,
					      (unsigned long long)(t->slots ? slots : p->blocks));
	}
	return 0;
}

/*
 * Returns the row of the file, or a copy with its keys rotated. If K and V are fused, the keys are
 * the first half of each head.
 */
static uint8_t *row_of(const struct kvcachefs_strides *s, uint32_t kv, uint8_t *file, size_t row,
		       const struct kvcachefs_rotated *rotated)
{
	if (!rotated || kv)
		return file;
	memcpy(rotated->row, file, row);
	kvcachefs_rotate(rotated->rotation, rotated->rope, rotated->row, s->heads, s->width);
	return rotated->row;
}

static int move(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers,
		const struct kvcachefs_tokens *t, uint8_t *file, bool store,
		const struct kvcachefs_rotated *rotated)
{
	struct kvcachefs_strides s;
	uint64_t n;
	int err = kvcachefs_strides_of(p, &s);

	if (!err)
		err = kvcachefs_check(p, layer, nlayers, t, &n);
	if (!err && p->device >= 0)
		err = kvcachefs_fail(-EINVAL, "gather and scatter work on host memory; "
					      "kvcachefs_store and kvcachefs_load on a device");
	if (err)
		return err;
	size_t row = (size_t)s.heads * s.width * p->elem;

	for (uint32_t kv = 0; kv < s.kvs; kv++)
		for (uint32_t l = layer; l < layer + nlayers; l++)
			for (uint64_t i = 0; i < n; i++, file += row) {
				int64_t slot = i < t->skip ? -1
							   : kvcachefs_slot(t->slots, t->block_ids,
									    p->block_size, i);

				if (slot < 0) {
					/*
					 * missing tokens become zero, so that no earlier memory
					 * content is stored
					 */
					if (store)
						memset(file, 0, row);
					continue;
				}
				uint8_t *from = row_of(&s, kv, file, row, rotated);

				for (uint32_t k = 0; k < s.runs; k++) {
					struct kvcachefs_run r = kvcachefs_at(&s, l, kv,
									      (uint64_t)slot, k);
					uint8_t *cache = (uint8_t *)p->pointers[r.pointer] +
							 r.offset * p->elem,
						*in = from + (size_t)r.at * p->elem;

					memcpy(store ? in : cache, store ? cache : in,
					       (size_t)r.len * p->elem);
				}
			}
	return 0;
}

int kvcachefs_gather(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers,
		     const struct kvcachefs_tokens *t, void *out)
{
	return move(p, layer, nlayers, t, out, true, NULL);
}

int kvcachefs_scatter(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers,
		      const struct kvcachefs_tokens *t, const void *in)
{
	return move(p, layer, nlayers, t, (uint8_t *)(uintptr_t)in, false, NULL);
}

int kvcachefs_scatter_rotated(const struct kvcachefs_paged *p, uint32_t layer, uint32_t nlayers,
			      const struct kvcachefs_tokens *t, const void *in,
			      const struct kvcachefs_rotated *rotated)
{
	return move(p, layer, nlayers, t, (uint8_t *)(uintptr_t)in, false, rotated);
}
