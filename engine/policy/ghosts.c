/* SPDX-License-Identifier: Apache-2.0 */
/* See ghosts.h. */
#include "ghosts.h"

#include "chain.h"

#define ROW 8u

int kvc_ghosts_init(struct kvc_ghosts *g, uint64_t n, uint32_t sample)
{
	g->rows = kvc_max(n / ROW, 1);
	g->sample = sample;
	g->row = calloc(g->rows * ROW, sizeof *g->row);
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
	return g->row + ((h >> 32) * g->rows >> 32) * ROW;
}

struct kvc_ghost *kvc_ghosts_find(const struct kvc_ghosts *g, uint64_t id)
{
	uint32_t tag;
	struct kvc_ghost *row = row_of(g, id, &tag);

	for (unsigned i = 0; i < ROW; i++)
		if (row[i].tag == tag)
			return &row[i];
	return NULL;
}

struct kvc_ghost *kvc_ghosts_put(struct kvc_ghosts *g, uint64_t id)
{
	uint32_t tag;
	struct kvc_ghost *row = row_of(g, id, &tag), *oldest = row;

	for (unsigned i = 0; i < ROW; i++) {
		if (row[i].tag == tag)
			return &row[i];
		if (oldest->tag && (!row[i].tag || row[i].last < oldest->last))
			oldest = &row[i];
	}
	oldest->tag = tag;
	return oldest;
}
