/* SPDX-License-Identifier: Apache-2.0 */
/* See shadow.h: the model, and its changes. */
#include "shadow.h"

#include <stdio.h>
#include <string.h>

struct model model;
uint64_t clock_ns;
uint64_t seed;

uint64_t draw(uint64_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (seed >> 11) % n;
}

const char *name_text(int i)
{
	static const char *const all[NAMES] = {
		"a",          "b",
		"chunk-0001", "layer_000.bin",
		".tmp",       "\xff\xff\xff\xff\xff\xff\xff\xff",
		"x@0@1@2",    "ein langer Name",
		"0",          "00",
	};
	return all[i];
}

const char *attr_text(int i)
{
	static const char *const all[ATTRS] = {
		"user.b",
		"user.a",
		"user.kvcachefs.unit",
		"user.zz",
	};

	return all[i];
}

const char *meta_text(int i)
{
	static const char *const all[METAS] = { "policy", "quota:1f", "quota:2", "quota:a0", "zz" };

	return all[i];
}

uint64_t ino_of(int i)
{
	return 100 + (uint64_t)i;
}

struct kvc_where gone_of(int i)
{
	return (struct kvc_where){ .at = 7000 + (uint64_t)i, .hi = 9 };
}

/* Folders have numbers below those of the inodes, and need not exist. */
uint64_t parent_of(int i)
{
	return 10 + (uint64_t)i;
}

static int change_name(struct kvc_catalog *c)
{
	int p = (int)draw(PARENTS), n = (int)draw(NAMES);
	uint64_t ino = ino_of((int)draw(INOS));
	uint32_t kind = draw(2) ? S_IFREG : S_IFDIR;
	int err;

	if (draw(3)) {
		if (!(err = kvc_name_put(c, parent_of(p), name_text(n), ino, kind))) {
			model.name[p][n].there = true;
			model.name[p][n].ino = ino;
			model.name[p][n].kind = kind;
		}
	} else if (!(err = kvc_name_del(c, parent_of(p), name_text(n)))) {
		model.name[p][n].there = false;
	}
	return err;
}

static int change_row(struct kvc_catalog *c)
{
	int i = (int)draw(INOS), err;

	if (draw(4)) {
		struct kvc_row r = {
			.ino = ino_of(i),
			.mode = S_IFREG | 0644,
			.uid = (uint32_t)draw(1000),
			.gid = 4294967295u,
			.nlink = 1,
			.size = draw(1 << 30),
			.blocks = draw(1 << 20),
			.atime_ns = draw(1ull << 60),
			.parent = 1,
			.chunk = ino_of(i),
			.container = (uint32_t)draw(2),
		};

		if (!(err = kvc_row_put(c, &r, NULL))) {
			model.row[i].there = true;
			model.row[i].r = r;
		}
		return err;
	}
	if ((err = kvc_row_del(c, ino_of(i), NULL)))
		return err;
	model.row[i].there = model.target[i].there = model.object[i].there = false;
	memset(model.place[i], 0, sizeof model.place[i]);
	for (int a = 0; a < ATTRS; a++)
		model.attr[i][a].there = false;
	return 0;
}

static int change_object(struct kvc_catalog *c)
{
	int i = (int)draw(INOS), err;
	struct kvc_object_row o = {
		.gen = draw(100),
		.size = draw(1 << 30),
		.lower = draw(2),
		.has_sum = draw(2),
		.decoded = draw(2),
	};
	char text[24];

	if (draw(2)) {
		snprintf(text, sizeof text, "../t%d", (int)draw(1000));
		if (!(err = kvc_target_put(c, ino_of(i), text))) {
			model.target[i].there = true;
			strcpy(model.target[i].text, text);
		}
		return err;
	}
	memset(o.sum.b, o.has_sum ? (int)draw(256) : 0, 16);
	if (!(err = kvc_object_put(c, ino_of(i), &o))) {
		model.object[i].there = true;
		model.object[i].o = o;
	}
	return err;
}

static int change_place(struct kvc_catalog *c)
{
	int i = (int)draw(INOS), err;
	unsigned t = (unsigned)draw(KVC_TIERS);
	struct kvc_place p = {
		.gen = 1 + draw(9),
		.where = { draw(1 << 30), draw(1 << 20), draw(100) },
		.codec = (uint32_t)draw(9),
		.error_ppm = (uint32_t)draw(1 << 20),
		.worst_ppm = (uint32_t)draw(1 << 20),
	};

	memset(p.raw.b, draw(2) ? (int)draw(256) : 0, 16);
	memset(p.sum.b, t ? (int)draw(256) : 0, 16);
	if (draw(3)) {
		if (!(err = kvc_place_put(c, ino_of(i), t, &p)))
			model.place[i][t] = p;
	} else if (!(err = kvc_place_del(c, ino_of(i), t))) {
		model.place[i][t] = (struct kvc_place){ 0 };
	}
	return err;
}

static int change_attr(struct kvc_catalog *c)
{
	int i = (int)draw(INOS), a = (int)draw(ATTRS), err;
	uint8_t value[24];
	size_t len = draw(sizeof value);

	for (size_t b = 0; b < len; b++)
		value[b] = (uint8_t)draw(256);
	if (draw(3)) {
		if (!(err = kvc_xattr_set(c, ino_of(i), attr_text(a), value, len))) {
			model.attr[i][a].there = true;
			model.attr[i][a].len = len;
			memcpy(model.attr[i][a].value, value, len);
		}
	} else if (!(err = kvc_xattr_del(c, ino_of(i), attr_text(a)))) {
		model.attr[i][a].there = false;
	}
	return err;
}

static int change_chunk(struct kvc_catalog *c)
{
	int i = (int)draw(CHUNKS), err;
	struct kvc_chunk_row r = {
		.id = 500 + (uint64_t)i,
		.created_ns = 1,
		.last_ns = draw(99),
		.hits = draw(9),
		.rank = (int64_t)draw(7) - 3,
		.expires_ns = draw(2) ? 1 + draw(50) : 0,
		.policy = (unsigned)draw(3),
		.quota = draw(2) ? 40 + draw(2) : 0,
	};

	if (draw(3)) {
		if (!(err = kvc_chunk_put(c, &r))) {
			model.chunk[i].there = true;
			model.chunk[i].r = r;
		}
	} else if (!(err = kvc_chunk_del(c, r.id))) {
		model.chunk[i].there = false;
	}
	return err;
}

static int change_rest(struct kvc_catalog *c)
{
	int i = (int)draw(GONES), m = (int)draw(METAS), err = 0;
	struct kvc_where w = gone_of(i);
	uint64_t until = clock_ns + draw(40);
	char text[24];

	clock_ns++;
	switch (draw(5)) {
	case 0:
		if (!(err = kvc_gone_put(c, &w, until)))
			model.gone[i] = until;
		break;
	case 1:
		if (!(err = kvc_gone_del(c, &w)))
			model.gone[i] = 0;
		break;
	case 2: err = kvc_gone_purge(c, clock_ns); break;
	case 3:
		snprintf(text, sizeof text, "v%d", (int)draw(1000));
		if (!(err = kvc_meta_set(c, meta_text(m), text)))
			strcpy(model.meta[m], text);
		break;
	case 4:
		if (!(err = kvc_meta_del(c, meta_text(m))))
			model.meta[m][0] = 0;
		break;
	}
	return err;
}

int change(struct kvc_catalog *c)
{
	static int (*const all[])(struct kvc_catalog *) = {
		change_name, change_row,   change_object, change_place,
		change_attr, change_chunk, change_rest,
	};

	return all[draw(sizeof all / sizeof all[0])](c);
}
