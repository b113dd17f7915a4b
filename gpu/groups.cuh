/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts a transfer: files into pieces of whole rows, pieces into groups that are copied as a unit,
 * and the memory that groups use in turn. All pieces of a group are copied the same way. Part of
 * cuda.cu, the only file that includes it.
 */
#pragma once

#include "kernels.cuh"
#include "lane.cuh"

extern "C" {
#include "parts.h"
}

#include <string.h>

#include <algorithm>

namespace {

enum class Way {
	PINNED, /* the copy engine copies the file's own pages, one batch per group */
	DIRECT, /* a kernel copies them, on the copy stream: small files */
	/*
	 * through pinned memory: one copy of the group, and the host's copies or reads (stage.cuh)
	 */
	STAGED,
};

struct Piece {                   /* one piece of a file, as the host sees it */
	const kvcachefs_work *w; /* the file */
	uint64_t from;           /* offset in the file */
	size_t len, at;          /* at: offset in the group */
	uint8_t *cache;          /* of an item with parts: memory on the device */
};

/* Returns the address of a piece in the file's mapping; NULL if the file is not mapped. */
uint8_t *host_of(const Piece &p)
{
	return p.w->host ? (uint8_t *)p.w->host + p.from : nullptr;
}

struct Group {
	Way way;
	/*
	 * The pieces of items with parts are copied between the file and their own memory, without
	 * the buffer and without the kernels that gather and scatter. Only DIRECT has a Part for
	 * each piece.
	 */
	bool parts;
	size_t first, n;     /* of the cut's pieces */
	size_t args;         /* its first Part */
	size_t bytes, warps; /* warps: upper limit of the warps that the runs of a piece fill */
	bool rotates;
	size_t at, after; /* place in the lane's buffer, and the group that had this place before */
	/*
	 * STAGED: its number among staged groups, its place in pinned memory, and the group that
	 * had this place before
	 */
	size_t staged, staging_at, staging_after;
	bool leaves; /* a later group uses the place */
};

/*
 * Memory that groups use in turn. Positions grow without end and are reduced to an offset by
 * modulo; so the groups that overlap a new one were placed at most one length before its end.
 */
struct Ring {
	size_t len = 0, end = 0, left = 0; /* left: number of the taken places that are reused */
	struct Taken {
		size_t from, group;
	};
	std::vector<Taken> taken;

	/* Makes all n bytes free. */
	void reset(size_t n)
	{
		len = n;
		end = left = 0;
		taken.clear();
	}
	/*
	 * Returns a place of `bytes` bytes, at most the length, and sets *after to the last group
	 * that must leave it first, or NONE. Groups leave in order, so each group is named once.
	 */
	size_t place(size_t bytes, size_t group, size_t *after)
	{
		size_t from;

		if (end % len + bytes > len)
			end += len - end % len;
		from = end;
		end += (bytes + ALIGN - 1) / ALIGN * ALIGN;
		*after = NONE;
		while (left < taken.size() && taken[left].from + len < end)
			*after = taken[left++].group;
		taken.push_back({ from, group });
		return from % len;
	}
};

/*
 * Lays out the memory that the kernels read: pointers, ids, sines and cosines, parts. It is filled
 * on the host, and copied to the device unchanged.
 */
struct Args {
	std::vector<uint8_t> bytes;
	/* Returns the offset for `len` bytes. */
	size_t reserve(size_t len)
	{
		size_t at = (bytes.size() + 15) / 16 * 16;

		bytes.resize(at + len);
		return at;
	}
	size_t add(const void *p, size_t len)
	{
		size_t at = reserve(len);

		if (len)
			memcpy(bytes.data() + at, p, len);
		return at;
	}
};

/*
 * The offsets of each rotation's sines and cosines in the arguments. References are held until
 * everything is copied.
 */
struct Turns {
	struct Held {
		const kvcachefs_rotation *of;
		size_t at;
	};
	std::vector<Held> held;

	~Turns()
	{
		reset();
	}
	void reset()
	{
		for (const Held &h : held)
			if (h.of)
				kvcachefs_rotation_put(h.of);
		held.clear();
	}
	int add(Args *a, const kvcachefs_rope *r, uint32_t head_size,
		const kvcachefs_rotation **out, size_t *where)
	{
		held.push_back({}); /* first, because it may throw before there is a reference */
		Held &last = held.back();
		int err = kvcachefs_rotation_get(r, head_size, &last.of);

		if (err) {
			held.pop_back();
			return err;
		}
		*out = last.of;
		for (size_t i = held.size() - 1; i-- > 0;)
			if (held[i].of == last.of) { /* one reference suffices */
				*where = held[i].at;
				kvcachefs_rotation_put(last.of);
				held.pop_back();
				return 0;
			}
		*where = last.at = a->reserve((*out)->dims * sizeof(float));
		float *v = (float *)(a->bytes.data() + last.at);

		for (uint32_t i = 0; i < (*out)->dims; i++)
			v[i] = (float)(*out)->v[i];
		return 0;
	}
};

/*
 * The result of cutting a transfer. Addresses are offsets until the lane's memory is known. reset()
 * keeps the memory of the lists.
 */
struct Cut {
	Args args;
	std::vector<Group> groups;
	std::vector<Piece> pieces; /* of all groups */
	std::vector<Part> parts;
	std::vector<Shape> shapes;
	std::vector<const kvcachefs_strides *> known; /* the strides of each shape */
	Turns turns;
	Ring device, staging;
	size_t staged = 0; /* number of staged groups */

	void reset()
	{
		args.bytes.clear();
		groups.clear();
		pieces.clear();
		parts.clear();
		shapes.clear();
		known.clear();
		turns.reset();
		staged = 0;
	}
};

/*
 * A file to move. page: the device's address of its pages, or NULL; a kernel copies files, or parts
 * of them, with less than `below` bytes.
 */
struct Move {
	const kvcachefs_work *w;
	uint8_t *page;
	size_t below;
};

/* Returns the way of a file of tokens, or of a part, with that length. */
Way way_of(const Move &m, size_t len)
{
	return m.page && len < m.below ? Way::DIRECT : m.w->pinned ? Way::PINNED : Way::STAGED;
}

/*
 * Staged groups are small, because the first one is copied on the host before the device can start;
 * later groups overlap.
 */
size_t group_limit(Way way, size_t row)
{
	size_t limit = way == Way::STAGED ? sizes.staged_group : sizes.group;

	return row > limit ? sizes.group : limit;
}

/*
 * Adds the shape of a cache, once. Its pointers are an offset in the arguments until addresses are
 * set.
 */
uint32_t shape_of(Cut *c, const kvcachefs_work &w)
{
	for (size_t i = c->known.size(); i-- > 0;) /* files of one cache are mostly adjacent */
		if (c->known[i] == w.s)
			return (uint32_t)i;
	size_t at = c->args.add(w.p->pointers, w.s->npointers * sizeof(void *));

	c->shapes.push_back(Shape{ *w.s, w.p->elem, (void *const *)at });
	c->known.push_back(w.s);
	return (uint32_t)c->known.size() - 1;
}

/* Sets the members that all parts of a file share. */
int part_of(Cut *c, const kvcachefs_work &w, bool store, Part *p)
{
	const kvcachefs_tokens *t = &w.item->tokens;
	const kvcachefs_rope *r = store ? nullptr : w.item->rope;
	const kvcachefs_rotation *turn = nullptr;
	size_t where = 0,
	       ids = c->args.add(t->slots ? t->slots : t->block_ids, t->n * sizeof(int64_t));
	int err = r ? c->turns.add(&c->args, r, w.p->head_size, &turn, &where) : 0;

	if (err)
		return err;
	*p = Part();
	(t->slots ? p->slots : p->block_ids) = (const int64_t *)ids;
	p->by_slots = t->slots != nullptr;
	p->ntokens = w.ntokens;
	p->skip = t->skip;
	p->shape = shape_of(c, w);
	p->layer = w.item->layer;
	p->nlayers = w.item->nlayers;
	if (r) {
		p->turns = (const float *)where;
		p->turn_first = turn->first;
		p->turn_dims = turn->dims;
		p->type = r->type;
		p->interleaved = r->interleaved;
	}
	return 0;
}

Group *group_add(Cut *c, Way way, bool parts)
{
	Group fresh = {};

	fresh.way = way;
	fresh.parts = parts;
	fresh.first = c->pieces.size();
	fresh.args = c->parts.size();
	c->groups.push_back(fresh);
	return &c->groups.back();
}

/* Returns the group for a piece of that way: the last one, if it has space, or a new one. */
Group *group_for(Cut *c, Way way, bool parts, size_t bytes, size_t limit)
{
	Group *g = c->groups.empty() ? nullptr : &c->groups.back();

	if (g && g->way == way && g->parts == parts && g->bytes + bytes <= limit &&
	    g->n < PIECES_MOST)
		return g;
	return group_add(c, way, parts);
}

/* Adds a piece of a file of tokens: `len` bytes at byte `from`. */
void add_piece(Cut *c, const Move &m, Way way, size_t limit, Part *p, uint64_t from, size_t len)
{
	const kvcachefs_strides &s = *m.w->s;
	Group *g = group_for(c, way, false, len, limit);
	uint64_t teams = 32 / team_of(s, m.w->p->elem);

	p->at = (uint8_t *)g->bytes;
	p->page = m.page ? m.page + from : nullptr;
	p->len = len;
	c->parts.push_back(*p);
	c->pieces.push_back(Piece{ m.w, from, len, g->bytes, nullptr });
	g->n++;
	g->rotates |= p->turn_dims != 0;
	g->warps = std::max(g->warps,
			    (size_t)(p->rows * s.runs * units_of(s, m.w->p->elem) + teams - 1) /
				    teams);
	g->bytes = (g->bytes + len + ALIGN - 1) / ALIGN * ALIGN;
}

/*
 * Cuts one file into pieces of whole rows, or of a part of a row if that is longer than a group;
 * appends to the last group while that has space.
 */
int cut_file(Cut *c, const Move &m, bool store, Way way)
{
	const kvcachefs_work &w = *m.w;
	size_t row = (size_t)w.s->heads * w.s->width * w.p->elem, limit = group_limit(way, row),
	       most = limit / row;
	uint64_t rows = w.len / row;
	Part p;
	int err = part_of(c, w, store, &p);

	if (!err && !most && p.turn_dims)
		err = kvcachefs_fail(-EINVAL,
				     "the keys of a token of %zu bytes cannot be rotated: a token "
				     "may have %zu",
				     row, sizes.group);
	if (err)
		return err;
	p.key_rows = rows / w.s->kvs;
	for (uint64_t first = 0, n; first < rows; first += n) {
		n = !most ? 1 : rows - first < most ? rows - first : most;
		p.first = first;
		p.rows = n;
		for (size_t at = 0; !most && at < row; at += limit) {
			p.row_from = at;
			add_piece(c, m, way, limit, &p, first * row + at,
				  std::min(limit, row - at));
		}
		if (most)
			add_piece(c, m, way, limit, &p, first * row, n * row);
	}
	return 0;
}

/* Cuts the parts of a file that are copied that way. */
void cut_parts(Cut *c, const Move &m, Way way)
{
	const kvcachefs_item &item = *m.w->item;

	for (size_t i = 0, next; i < item.nparts; i = next) {
		kvcachefs_part part = kvcachefs_parts_merged(&item, i, &next);
		size_t limit = way == Way::STAGED ? sizes.staged_group : SIZE_MAX;

		if (way_of(m, part.len) != way)
			continue;
		for (size_t at = 0, n; at < part.len; at += n) {
			n = std::min(limit, part.len - at);
			Group *g = group_for(c, way, true, way == Way::STAGED ? n : 0, limit);
			uint8_t *cache = (uint8_t *)part.at + at;

			if (way == Way::DIRECT) {
				Part p = Part();

				p.at = cache;
				p.page = m.page + part.offset + at;
				p.len = n;
				c->parts.push_back(p);
			}
			c->pieces.push_back(Piece{ m.w, part.offset + at, n, g->bytes, cache });
			g->n++;
			if (way == Way::STAGED)
				g->bytes = (g->bytes + n + ALIGN - 1) / ALIGN * ALIGN;
		}
	}
}

/*
 * Groups of the same way are adjacent; staged groups come last, so that the threads work meanwhile.
 */
int cut(Cut *c, const std::vector<Move> &moves, bool store)
{
	for (Way way : { Way::PINNED, Way::DIRECT, Way::STAGED }) {
		for (const Move &m : moves)
			if (m.w->p && way_of(m, m.w->len) == way)
				if (int err = cut_file(c, m, store, way))
					return err;
		/* their copies wait for the caller's stream, unlike those of the files before */
		for (const Move &m : moves)
			if (!m.w->p)
				cut_parts(c, m, way);
	}
	return 0;
}

/* Places each group in a buffer of `buffer` bytes and in pinned memory of `staging` bytes. */
void place(Cut *c, size_t buffer, size_t staging)
{
	c->device.reset(buffer);
	c->staging.reset(staging);
	for (size_t i = 0; i < c->groups.size(); i++) {
		Group &g = c->groups[i];

		g.after = NONE;
		if (!g.parts)
			g.at = c->device.place(g.bytes, i, &g.after);
		if (g.way != Way::STAGED)
			continue;
		g.staged = c->staged++;
		g.staging_at = c->staging.place(g.bytes, i, &g.staging_after);
		if (g.staging_after != NONE)
			c->groups[g.staging_after].leaves = true;
	}
}

size_t bytes_of(const Cut &c)
{
	size_t n = 0;

	for (const Group &g : c.groups)
		n += g.parts ? 0 : g.bytes;
	return n;
}

size_t largest_of(const Cut &c)
{
	size_t n = 0;

	for (const Group &g : c.groups)
		n = std::max(n, g.parts ? 0 : g.bytes);
	return n;
}

/* Returns the size of the largest staged group; 0: there is none. */
size_t largest_staged(const Cut &c)
{
	size_t n = 0;

	for (const Group &g : c.groups)
		n = std::max(n, g.way == Way::STAGED ? g.bytes : 0);
	return n;
}

/* Turns offsets into addresses, for the arguments and for each part in the buffer. */
void set_addresses(Cut *c, uint8_t *args, uint8_t *buffer)
{
	for (Shape &s : c->shapes)
		s.pointers = (void *const *)(args + (uintptr_t)s.pointers);
	for (const Group &g : c->groups)
		for (size_t i = 0; i < g.n && !g.parts; i++) {
			Part &p = c->parts[g.args + i];

			p.at = buffer + g.at + (uintptr_t)p.at;
			if (p.by_slots)
				p.slots = (const int64_t *)(args + (uintptr_t)p.slots);
			else
				p.block_ids = (const int64_t *)(args + (uintptr_t)p.block_ids);
			if (p.turn_dims)
				p.turns = (const float *)(args + (uintptr_t)p.turns);
		}
}

} // namespace
