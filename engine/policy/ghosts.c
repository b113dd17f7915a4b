/* SPDX-License-Identifier: Apache-2.0 */
/* See ghosts.h. */
#include "ghosts.h"

#include "array.h"
#include "chain.h"

#include <string.h>

#define SAVED 262144u
#define SAVED_BYTES 15 /* of one */
#define AGES 65536u    /* halves of an age */

int kvc_ghosts_init(struct kvc_ghosts *g, uint64_t n, uint32_t sample)
{
	size_t bytes;

	g->rows = kvc_max(n / KVC_GHOST_ROW, 1);
	g->sample = sample;
	bytes = g->rows * KVC_GHOST_ROW * sizeof *g->row;
	g->row = kvc_array_grow(NULL, bytes);
	if (g->row && bytes < KVC_ARRAY_BIG)
		memset(g->row, 0, bytes); /* a larger one is, and takes no memory yet */
	return g->row ? 0 : -ENOMEM;
}

void kvc_ghosts_fini(struct kvc_ghosts *g)
{
	kvc_array_free(g->row);
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

/*
 * Which are saved: so many of the youngest. Two passes count them by age, the upper half of it, and
 * then the lower of those where it is enough.
 */

enum { UPPER, LOWER, WRITE };

static uint32_t age_of(const struct kvc_saving *s, const struct kvc_ghost *x)
{
	return (int32_t)(s->now - x->last) > 0 ? s->now - x->last : 0;
}

static void save_row(const struct kvc_ghosts *g, struct kvc_saving *s, uint64_t i)
{
	const struct kvc_ghost *x = &g->row[i];
	uint32_t age = age_of(s, x);

	if (!x->tag)
		return;
	if (s->pass == UPPER)
		s->ages[age / AGES]++;
	else if (s->pass == LOWER)
		s->ages[age % AGES] += age / AGES == s->young / AGES;
	if (s->pass < WRITE || age >= s->young || s->n[0] == SAVED)
		return;
	s->n[0]++;
	kvc_out_32(&s->out, (uint32_t)i);
	kvc_out_32(&s->out, x->tag);
	kvc_out_32(&s->out, x->last);
	kvc_out_8(&s->out, x->count);
	kvc_out_8(&s->out, x->gap);
	kvc_out_8(&s->out, x->kids);
}

/* The first age by which there are too many of them; AGES: none is. n: how many before it. */
static uint32_t too_many(const struct kvc_saving *s, uint64_t *n)
{
	uint32_t i = 0;

	while (i < AGES && *n + s->ages[i] <= SAVED)
		*n += s->ages[i++];
	return i;
}

static void pass_over(const struct kvc_ghosts *g, struct kvc_saving *s)
{
	uint64_t n = s->n[1];
	uint32_t i = too_many(s, &n);

	if (s->pass == UPPER) {
		s->young = (uint64_t)i * AGES;
		s->n[1] = (uint32_t)n;
		memset(s->ages, 0, AGES * sizeof *s->ages);
	} else {
		s->young += i;
	}
	s->pass = i == AGES ? WRITE : s->pass + 1;
	if (s->pass < WRITE)
		return;
	kvc_out_64(&s->out, g->rows);
	kvc_out_32(&s->out, g->sample);
	kvc_out_32(&s->out, 0);
	s->last = s->out.n - 4;
}

bool kvc_ghosts_save(const struct kvc_ghosts *g, struct kvc_saving *s)
{
	uint64_t rows = g->rows * KVC_GHOST_ROW, end = kvc_min(s->row + KVC_PIECE, rows);

	if (!s->ages && !(s->ages = calloc(AGES, sizeof *s->ages))) {
		s->out.failed = true;
		return false;
	}
	for (; s->row < end; s->row++)
		save_row(g, s, s->row);
	if (end < rows)
		return true;
	s->row = 0;
	if (s->pass < WRITE) {
		pass_over(g, s);
		return true;
	}
	kvc_out_32_at(&s->out, s->last, s->n[0]);
	return false;
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
