/* SPDX-License-Identifier: Apache-2.0 */
/* See ghosts.h. */
#include "ghosts.h"

#include "chain.h"

#define SAVED 262144u
#define SAVED_BYTES 15 /* of one */

int kvc_ghosts_init(struct kvc_ghosts *g, uint64_t n, uint32_t sample)
{
	g->rows = kvc_max(n / KVC_GHOST_ROW, 1);
	g->sample = sample;
	g->row = calloc(g->rows * KVC_GHOST_ROW, sizeof *g->row);
	return g->row ? 0 : -ENOMEM;
}

void kvc_ghosts_fini(struct kvc_ghosts *g)
{
	free(g->row);
	g->row = NULL;
}

bool kvc_ghosts_take(const struct kvc_ghosts *g, uint64_t id)
{
	return g->sample == 1 || (kvc_chain_hash(id) >> 40) % g->sample == 0;
}

static struct kvc_ghost *row_of(const struct kvc_ghosts *g, uint64_t id, uint32_t *tag)
{
	uint64_t h = kvc_chain_hash(id ^ 0x5bd1e995);

	*tag = (uint32_t)h ?: 1;
	return g->row + ((h >> 32) * g->rows >> 32) * KVC_GHOST_ROW;
}

struct kvc_ghost *kvc_ghosts_find(const struct kvc_ghosts *g, uint64_t id)
{
	uint32_t tag;
	struct kvc_ghost *row = row_of(g, id, &tag);

	for (unsigned i = 0; i < KVC_GHOST_ROW; i++)
		if (row[i].tag == tag)
			return &row[i];
	return NULL;
}

struct kvc_ghost *kvc_ghosts_put(struct kvc_ghosts *g, uint64_t id)
{
	uint32_t tag;
	struct kvc_ghost *row = row_of(g, id, &tag), *oldest = row;

	for (unsigned i = 0; i < KVC_GHOST_ROW; i++) {
		if (row[i].tag == tag)
			return &row[i];
		if (oldest->tag && (!row[i].tag || (int32_t)(row[i].last - oldest->last) < 0))
			oldest = &row[i];
	}
	oldest->tag = tag;
	return oldest;
}

static uint64_t count_since(const struct kvc_ghosts *g, uint32_t last)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < g->rows * KVC_GHOST_ROW; i++)
		n += g->row[i].tag && g->row[i].last >= last;
	return n;
}

void kvc_ghosts_save(const struct kvc_ghosts *g, struct kvc_out *o)
{
	uint32_t since = 0;

	/* of which request on are there few enough? */
	if (count_since(g, 0) > SAVED)
		for (uint32_t step = 1u << 31; step; step /= 2)
			if (count_since(g, since + step - 1) > SAVED)
				since += step;
	kvc_out_64(o, g->rows);
	kvc_out_32(o, g->sample);
	kvc_out_32(o, (uint32_t)count_since(g, since));
	for (uint64_t i = 0; i < g->rows * KVC_GHOST_ROW; i++) {
		const struct kvc_ghost *x = &g->row[i];

		if (!x->tag || x->last < since)
			continue;
		kvc_out_32(o, (uint32_t)i);
		kvc_out_32(o, x->tag);
		kvc_out_32(o, x->last);
		kvc_out_8(o, x->count);
		kvc_out_8(o, x->gap);
		kvc_out_8(o, x->kids);
	}
}

void kvc_ghosts_load(struct kvc_ghosts *g, struct kvc_in *in)
{
	bool same = kvc_in_64(in) == g->rows;
	uint32_t sample = kvc_in_32(in), n;

	in->bad |= !kvc_ghosts_is_sample(sample);
	n = kvc_in_count(in, SAVED, SAVED_BYTES);
	if (!same) {
		kvc_in_skip(in, (uint64_t)n * SAVED_BYTES);
		return;
	}
	g->sample = sample;
	while (n--) {
		uint32_t i = kvc_in_32(in);
		struct kvc_ghost x = { .tag = kvc_in_32(in) };

		x.last = kvc_in_32(in);
		x.count = kvc_in_8(in);
		x.gap = kvc_in_8(in);
		x.kids = kvc_in_8(in);
		if (i < g->rows * KVC_GHOST_ROW)
			g->row[i] = x;
		else
			in->bad = true;
	}
}
