/* SPDX-License-Identifier: Apache-2.0 */
/* The table of ghosts (ghosts.h): linear hashing over rows of KVC_GHOST_ROW places. */
#include "ghosts.h"

#include "array.h"
#include "chain.h"

#include <string.h>

#define SAVED 262144u
#define SAVED_BYTES 15 /* bytes of a saved ghost */
#define AGES 65536u    /* values of one half of an age */
#define PARTS 256u     /* the table starts with one part of all its rows */
#define FULL 1         /* mean ghosts per row at which a row is added, so that few rows are full */
#define ROW_BYTES (KVC_GHOST_ROW * sizeof(struct kvc_ghost))

int kvc_ghosts_init(struct kvc_ghosts *g, uint64_t n, uint32_t sample)
{
	*g = (struct kvc_ghosts){ .rows = kvc_max(n / KVC_GHOST_ROW, 1), .sample = sample };
	g->base = g->span = g->used = g->capacity = (g->rows + PARTS - 1) / PARTS;
	g->row = kvc_array_grow(NULL, g->capacity * ROW_BYTES);
	if (!g->row)
		return -ENOMEM;
	memset(g->row, 0, g->used * ROW_BYTES);
	return 0;
}

void kvc_ghosts_fini(struct kvc_ghosts *g)
{
	kvc_array_free(g->row);
	g->row = NULL;
}

bool kvc_ghosts_in_sample(const struct kvc_ghosts *g, uint64_t id)
{
	return !(kvc_chain_hash(id) >> 40 & (g->sample - 1));
}

uint64_t kvc_ghosts_bytes(const struct kvc_ghosts *g)
{
	return g->used * ROW_BYTES;
}

/*
 * Returns the row in which ghosts of row `own` are now: g->used is at least g->span and less than
 * twice that.
 */
static struct kvc_ghost *row_at(const struct kvc_ghosts *g, uint64_t own)
{
	if (own >= g->used) {
		own %= 2 * g->span;
		own -= own >= g->used ? g->span : 0;
	}
	return g->row + own * KVC_GHOST_ROW;
}

/*
 * Returns the number of the row to which a ghost in row i would belong if the table had all of its
 * rows.
 */
static uint64_t own_row(const struct kvc_ghosts *g, const struct kvc_ghost *x, uint64_t i)
{
	return x->part * g->base + i % g->base;
}

static struct kvc_ghost *row_of(const struct kvc_ghosts *g, uint64_t id, uint32_t *tag,
				uint64_t *own)
{
	uint64_t h = kvc_chain_hash(id ^ 0x5bd1e995);

	*tag = (uint32_t)h ?: 1;
	*own = (h >> 32) * g->rows >> 32;
	return row_at(g, *own);
}

/*
 * Adds a row and moves its ghosts to it. Returns false if memory is short; then the table stays as
 * it is.
 */
static bool add_row(struct kvc_ghosts *g)
{
	struct kvc_ghost *from, *to;
	uint64_t capacity = kvc_min(g->capacity * 2, g->rows);

	if (g->used == g->capacity) {
		to = kvc_array_grow(g->row, capacity * ROW_BYTES);
		if (!to)
			return false;
		g->row = to;
		g->capacity = capacity;
	}
	from = g->row + (g->used - g->span) * KVC_GHOST_ROW;
	to = g->row + g->used * KVC_GHOST_ROW;
	memset(to, 0, ROW_BYTES);
	for (unsigned i = 0; i < KVC_GHOST_ROW; i++)
		if (from[i].tag &&
		    own_row(g, &from[i], g->used - g->span) % (2 * g->span) == g->used) {
			to[i] = from[i];
			from[i].tag = 0;
		}
	if (++g->used == 2 * g->span)
		g->span *= 2;
	return true;
}

/* True if the table has enough rows for n ghosts, or all rows. */
static bool has_enough_rows(const struct kvc_ghosts *g, uint64_t n)
{
	return g->used == g->rows || n < FULL * g->used;
}

void kvc_ghosts_expect(const struct kvc_ghosts *g, uint64_t id)
{
	uint32_t tag;
	uint64_t own;
	const struct kvc_ghost *row = row_of(g, id, &tag, &own);

	__builtin_prefetch(row);
	__builtin_prefetch((const char *)row + ROW_BYTES - 1);
}

struct kvc_ghost *kvc_ghosts_find(const struct kvc_ghosts *g, uint64_t id)
{
	uint32_t tag;
	uint64_t own;
	struct kvc_ghost *row = row_of(g, id, &tag, &own);

	for (unsigned i = 0; i < KVC_GHOST_ROW; i++)
		if (row[i].tag == tag)
			return &row[i];
	return NULL;
}

/*
 * Returns the place of this tag in its row, which is its current place, a free one, or that of the
 * oldest ghost.
 */
static struct kvc_ghost *place_ghost(struct kvc_ghosts *g, uint64_t own, uint32_t tag)
{
	struct kvc_ghost *row = row_at(g, own), *oldest = row;

	for (unsigned i = 0; i < KVC_GHOST_ROW; i++) {
		if (row[i].tag == tag)
			return &row[i];
		if (oldest->tag && (!row[i].tag || (int32_t)(row[i].last - oldest->last) < 0))
			oldest = &row[i];
	}
	g->n += !oldest->tag;
	oldest->tag = tag;
	oldest->part = (uint8_t)(own / g->base);
	return oldest;
}

struct kvc_ghost *kvc_ghosts_put(struct kvc_ghosts *g, uint64_t id)
{
	uint32_t tag;
	uint64_t own;

	if (!has_enough_rows(g, g->n))
		add_row(g);
	row_of(g, id, &tag, &own);
	return place_ghost(g, own, tag);
}

void kvc_ghosts_del(struct kvc_ghosts *g, struct kvc_ghost *x)
{
	x->tag = 0;
	g->n--;
}

/*
 * Saving: the youngest ghosts, at most SAVED. Two passes count them by age: UPPER by the upper half
 * of the age, and then LOWER by the lower half, among those at the limit. If all fit, LOWER is
 * skipped.
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
	kvc_state_out_32(&s->out, (uint32_t)own_row(g, x, i / KVC_GHOST_ROW));
	kvc_state_out_32(&s->out, x->tag);
	kvc_state_out_32(&s->out, x->last);
	kvc_state_out_8(&s->out, x->count);
	kvc_state_out_8(&s->out, x->gap);
	kvc_state_out_8(&s->out, x->kids);
}

/*
 * Returns the first age at which there are more ghosts than SAVED, or AGES if there is none. Adds
 * the ghosts before it to *n.
 */
static uint32_t first_excess_age(const struct kvc_saving *s, uint64_t *n)
{
	uint32_t i = 0;

	while (i < AGES && *n + s->ages[i] <= SAVED)
		*n += s->ages[i++];
	return i;
}

static void end_pass(const struct kvc_ghosts *g, struct kvc_saving *s)
{
	uint64_t n = s->n[1];
	uint32_t i = first_excess_age(s, &n);

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
	kvc_state_out_64(&s->out, g->rows);
	kvc_state_out_32(&s->out, g->sample);
	kvc_state_out_32(&s->out, 0);
	s->last = s->out.n - 4;
}

bool kvc_ghosts_save(const struct kvc_ghosts *g, struct kvc_saving *s)
{
	uint64_t rows = g->used * KVC_GHOST_ROW, end = kvc_min(s->row + KVC_PIECE, rows);

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
		end_pass(g, s);
		return true;
	}
	kvc_state_out_32_at(&s->out, s->last, s->n[0]);
	return false;
}

void kvc_ghosts_load(struct kvc_ghosts *g, struct kvc_in *in)
{
	bool same = kvc_state_in_64(in) == g->rows;
	uint32_t sample = kvc_state_in_32(in), n;

	in->bad |= !kvc_ghosts_is_sample(sample);
	n = kvc_state_in_count(in, SAVED, SAVED_BYTES);
	if (!same) {
		kvc_state_in_skip(in, (uint64_t)n * SAVED_BYTES);
		return;
	}
	g->sample = sample;
	while (!has_enough_rows(g, n) && add_row(g))
		;
	while (n--) {
		uint32_t own = kvc_state_in_32(in), tag = kvc_state_in_32(in);
		struct kvc_ghost *x;

		if (own >= g->rows || !tag) {
			in->bad = true;
			return;
		}
		x = place_ghost(g, own, tag);
		x->last = kvc_state_in_32(in);
		x->count = kvc_state_in_8(in);
		x->gap = kvc_state_in_8(in);
		x->kids = kvc_state_in_8(in);
	}
}
