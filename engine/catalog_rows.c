/* SPDX-License-Identifier: Apache-2.0 */
/* The catalog's rows: each function is one statement or two. See catalog.h. */
#include "catalog_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define I(v) ((sqlite3_int64)(v))
#define BATCH 256

/* Ends a one-row query: what `got` (kvc_sql_step's answer) means to the caller. */
static int one(sqlite3_stmt *st, int got)
{
	kvc_sql_done(st);
	return got < 0 ? got : got ? 0 : -ENOENT;
}

int kvc_meta_get(struct kvc_catalog *c, const char *key, char *value, size_t room)
{
	sqlite3_stmt *st = kvc_sql(c, ST_META_GET, "s", key);
	int got = kvc_sql_step(c, st);

	if (got == 1) {
		const char *text = (const char *)sqlite3_column_text(st, 0);

		value[0] = 0;
		if (text)
			strncat(value, text, room - 1);
	}
	return one(st, got);
}

int kvc_meta_set(struct kvc_catalog *c, const char *key, const char *value)
{
	return kvc_sql_run(c, ST_META_SET, "ss", key, value);
}

int kvc_meta_del(struct kvc_catalog *c, const char *key)
{
	return kvc_sql_run(c, ST_META_DEL, "s", key);
}

int kvc_meta_next(struct kvc_catalog *c, const char *prefix, char *key, char *value, size_t room)
{
	char after[64];
	sqlite3_stmt *st;
	int got;

	snprintf(after, sizeof after, "%s", key);
	st = kvc_sql(c, ST_META_EACH, "sis", after, I(strlen(prefix)), prefix);
	got = kvc_sql_step(c, st);
	if (got == 1) {
		const char *k = (const char *)sqlite3_column_text(st, 0), *v = (const char *)sqlite3_column_text(st, 1);

		snprintf(key, sizeof after, "%s", k ? k : "");
		snprintf(value, room, "%s", v ? v : "");
	}
	return one(st, got);
}

int kvc_name_get(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t *ino, uint32_t *kind)
{
	sqlite3_stmt *st = kvc_sql(c, ST_NAME_GET, "iis", I(parent), I(kvc_name_hash(name)), name);
	int got = kvc_sql_step(c, st);

	if (got == 1) {
		*ino = kvc_sql_u64(st, 0);
		*kind = (uint32_t)sqlite3_column_int(st, 1);
	}
	return one(st, got);
}

int kvc_name_put(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t ino, uint32_t kind)
{
	return kvc_sql_run(c, ST_NAME_PUT, "iisii", I(parent), I(kvc_name_hash(name)), name, I(ino), I(kind));
}

int kvc_name_del(struct kvc_catalog *c, uint64_t parent, const char *name)
{
	return kvc_sql_run(c, ST_NAME_DEL, "iis", I(parent), I(kvc_name_hash(name)), name);
}

static int names(struct kvc_catalog *c, sqlite3_stmt *st, kvc_name_fn *fn, void *arg)
{
	int got;

	while ((got = kvc_sql_step(c, st)) == 1) {
		struct kvc_name n = { kvc_sql_u64(st, 0), kvc_sql_u64(st, 1), kvc_sql_u64(st, 3),
				      (uint32_t)sqlite3_column_int(st, 4), (const char *)sqlite3_column_text(st, 2) };

		if ((got = fn(arg, &n)))
			break;
	}
	kvc_sql_done(st);
	return got;
}

int kvc_name_each(struct kvc_catalog *c, uint64_t parent, uint64_t after, kvc_name_fn *fn, void *arg)
{
	return names(c, kvc_sql(c, ST_NAME_EACH, "ii", I(parent), I(after)), fn, arg);
}

int kvc_name_of(struct kvc_catalog *c, uint64_t ino, kvc_name_fn *fn, void *arg)
{
	return names(c, kvc_sql(c, ST_NAME_OF, "i", I(ino)), fn, arg);
}

int kvc_row_get(struct kvc_catalog *c, uint64_t ino, struct kvc_row *r)
{
	sqlite3_stmt *st = kvc_sql(c, ST_ROW_GET, "i", I(ino));
	int got = kvc_sql_step(c, st);

	if (got == 1)
		*r = (struct kvc_row){ .ino = ino, .mode = (uint32_t)sqlite3_column_int64(st, 1),
			.uid = (uint32_t)sqlite3_column_int64(st, 2), .gid = (uint32_t)sqlite3_column_int64(st, 3),
			.nlink = (uint32_t)sqlite3_column_int64(st, 4), .size = kvc_sql_u64(st, 5), .blocks = kvc_sql_u64(st, 6),
			.atime_ns = kvc_sql_u64(st, 7), .mtime_ns = kvc_sql_u64(st, 8), .ctime_ns = kvc_sql_u64(st, 9),
			.btime_ns = kvc_sql_u64(st, 10), .parent = kvc_sql_u64(st, 11), .chunk = kvc_sql_u64(st, 12),
			.container = kvc_sql_u64(st, 13) };
	return one(st, got);
}

int kvc_row_put(struct kvc_catalog *c, const struct kvc_row *r)
{
	return kvc_sql_run(c, ST_ROW_PUT, "iiiiiiiiiiiiii", I(r->ino), I(r->mode), I(r->uid), I(r->gid), I(r->nlink), I(r->size),
			   I(r->blocks), I(r->atime_ns), I(r->mtime_ns), I(r->ctime_ns), I(r->btime_ns), I(r->parent), I(r->chunk), I(r->container));
}

int kvc_row_del(struct kvc_catalog *c, uint64_t ino)
{
	static const enum kvc_statement all[] = { ST_ROW_DEL, ST_TARGET_DEL, ST_OBJECT_DEL, ST_PLACE_DEL_ALL, ST_XATTR_DEL_ALL };
	int err = 0;

	for (size_t i = 0; i < sizeof all / sizeof all[0] && !err; i++)
		err = kvc_sql_run(c, all[i], "i", I(ino));
	return err;
}

uint64_t kvc_row_max(struct kvc_catalog *c)
{
	sqlite3_stmt *st = kvc_sql(c, ST_ROW_MAX, "");
	uint64_t max = kvc_sql_step(c, st) == 1 ? kvc_sql_u64(st, 0) : 1;

	kvc_sql_done(st);
	return max;
}

int kvc_target_get(struct kvc_catalog *c, uint64_t ino, char *target, size_t room)
{
	sqlite3_stmt *st = kvc_sql(c, ST_TARGET_GET, "i", I(ino));
	int got = kvc_sql_step(c, st);

	if (got == 1) {
		target[0] = 0;
		strncat(target, (const char *)sqlite3_column_text(st, 0), room - 1);
	}
	return one(st, got);
}

int kvc_target_put(struct kvc_catalog *c, uint64_t ino, const char *target)
{
	return kvc_sql_run(c, ST_TARGET_PUT, "is", I(ino), target);
}

/* Columns gen, size, sum, lower from column `at` on. */
static void object_columns(sqlite3_stmt *st, int at, struct kvc_object_row *o)
{
	*o = (struct kvc_object_row){ .gen = kvc_sql_u64(st, at), .size = kvc_sql_u64(st, at + 1),
				      .lower = sqlite3_column_int(st, at + 3) };
	o->has_sum = sqlite3_column_bytes(st, at + 2) == 16;
	if (o->has_sum)
		memcpy(o->sum.b, sqlite3_column_blob(st, at + 2), 16);
}

int kvc_object_get(struct kvc_catalog *c, uint64_t ino, struct kvc_object_row *o)
{
	sqlite3_stmt *st = kvc_sql(c, ST_OBJECT_GET, "i", I(ino));
	int got = kvc_sql_step(c, st);

	if (got == 1)
		object_columns(st, 0, o);
	return one(st, got);
}

int kvc_object_put(struct kvc_catalog *c, uint64_t ino, const struct kvc_object_row *o)
{
	return kvc_sql_run(c, ST_OBJECT_PUT, "iiibi", I(ino), I(o->gen), I(o->size), o->has_sum ? o->sum.b : NULL, (size_t)16, I(o->lower));
}

int kvc_object_each_unplaced(struct kvc_catalog *c, int (*fn)(void *arg, uint64_t ino, const struct kvc_object_row *o), void *arg)
{
	struct {
		uint64_t ino;
		struct kvc_object_row o;
	} batch[BATCH];
	uint64_t after = 0;
	int n, got;

	do {
		sqlite3_stmt *st = kvc_sql(c, ST_OBJECT_UNPLACED, "i", I(after));

		for (n = 0; n < BATCH && (got = kvc_sql_step(c, st)) == 1; n++) {
			batch[n].ino = after = kvc_sql_u64(st, 0);
			object_columns(st, 1, &batch[n].o);
		}
		kvc_sql_done(st);
		if (n < BATCH && got < 0)
			return got;
		for (int i = 0; i < n; i++)
			if ((got = fn(arg, batch[i].ino, &batch[i].o)))
				return got;
	} while (n == BATCH);
	return 0;
}

static struct kvc_place place_columns(sqlite3_stmt *st)
{
	struct kvc_place p = { .gen = kvc_sql_u64(st, 1), .where = { kvc_sql_u64(st, 2), kvc_sql_u64(st, 3), kvc_sql_u64(st, 4) },
			       .codec = (uint32_t)sqlite3_column_int64(st, 5), .key = (uint32_t)sqlite3_column_int64(st, 6) };

	if (sqlite3_column_bytes(st, 7) == 16)
		memcpy(p.sum.b, sqlite3_column_blob(st, 7), 16);
	return p;
}

int kvc_place_get(struct kvc_catalog *c, uint64_t ino, struct kvc_place place[KVC_TIERS])
{
	sqlite3_stmt *st = kvc_sql(c, ST_PLACE_GET, "i", I(ino));
	int got;

	memset(place, 0, sizeof place[0] * KVC_TIERS);
	while ((got = kvc_sql_step(c, st)) == 1) {
		uint64_t tier = kvc_sql_u64(st, 0);

		if (tier < KVC_TIERS)
			place[tier] = place_columns(st);
	}
	kvc_sql_done(st);
	return got;
}

struct kvc_place kvc_place_of(uint64_t gen, const struct kvc_where *w, const struct kvc_frame *f)
{
	struct kvc_place p = { .gen = gen, .where = *w, .codec = f->codec | (f->flags & KVC_FRAME_CODED ? KVC_PLACE_CODED : 0),
			       .key = f->flags & KVC_FRAME_SEALED ? f->key_id : 0 };

	if (f->flags & KVC_FRAME_SHARED)
		p.sum = f->stored_sum;
	return p;
}

int kvc_place_put(struct kvc_catalog *c, uint64_t ino, unsigned tier, const struct kvc_place *p)
{
	return kvc_sql_run(c, ST_PLACE_PUT, "iiiiiiiib", I(ino), I(tier), I(p->gen), I(p->where.at), I(p->where.len), I(p->where.hi), I(p->codec),
			   I(p->key), tier ? p->sum.b : NULL, (size_t)16);
}

int kvc_place_del(struct kvc_catalog *c, uint64_t ino, unsigned tier)
{
	return kvc_sql_run(c, ST_PLACE_DEL, "ii", I(ino), I(tier));
}

int kvc_place_each(struct kvc_catalog *c, unsigned tier,
		   int (*fn)(void *arg, uint64_t ino, const struct kvc_place *p), void *arg)
{
	sqlite3_stmt *st = kvc_sql(c, ST_PLACE_EACH, "i", I(tier));
	int got;

	while ((got = kvc_sql_step(c, st)) == 1) {
		struct kvc_place p = place_columns(st);

		if ((got = fn(arg, kvc_sql_u64(st, 8), &p)))
			break;
	}
	kvc_sql_done(st);
	return got;
}

int kvc_place_next(struct kvc_catalog *c, uint64_t *ino, unsigned *tier, size_t room, struct kvc_placed *out, size_t *n)
{
	sqlite3_stmt *st = kvc_sql(c, ST_PLACE_NEXT, "ii", I(*ino), I(*tier));
	int got = 0;

	for (*n = 0; *n < room && (got = kvc_sql_step(c, st)) == 1; ++*n) {
		out[*n].ino = *ino = kvc_sql_u64(st, 8);
		out[*n].tier = *tier = (unsigned)kvc_sql_u64(st, 0);
		out[*n].place = place_columns(st);
	}
	kvc_sql_done(st);
	return got < 0 ? got : 0;
}

int kvc_gone_get(struct kvc_catalog *c, const struct kvc_where *path, uint64_t now_ns)
{
	sqlite3_stmt *st = kvc_sql(c, ST_GONE_GET, "iii", I(path->at), I(path->hi), I(now_ns));

	return one(st, kvc_sql_step(c, st));
}

int kvc_gone_put(struct kvc_catalog *c, const struct kvc_where *path, uint64_t until_ns)
{
	return kvc_sql_run(c, ST_GONE_PUT, "iii", I(path->at), I(path->hi), I(until_ns));
}

int kvc_gone_del(struct kvc_catalog *c, const struct kvc_where *path)
{
	return kvc_sql_run(c, ST_GONE_DEL, "ii", I(path->at), I(path->hi));
}

int kvc_gone_purge(struct kvc_catalog *c, uint64_t now_ns)
{
	return kvc_sql_run(c, ST_GONE_PURGE, "i", I(now_ns));
}

int kvc_xattr_get(struct kvc_catalog *c, uint64_t ino, const char *name, void *value, size_t *len)
{
	sqlite3_stmt *st = kvc_sql(c, ST_XATTR_GET, "is", I(ino), name);
	int got = kvc_sql_step(c, st);

	if (got == 1) {
		size_t n = (size_t)sqlite3_column_bytes(st, 0);

		if (*len && n > *len)
			got = -ERANGE;
		else if (*len && n)
			memcpy(value, sqlite3_column_blob(st, 0), n);
		*len = n;
	}
	return one(st, got);
}

int kvc_xattr_set(struct kvc_catalog *c, uint64_t ino, const char *name, const void *value, size_t len)
{
	return kvc_sql_run(c, ST_XATTR_SET, "isb", I(ino), name, len ? value : "", len);
}

int kvc_xattr_del(struct kvc_catalog *c, uint64_t ino, const char *name)
{
	return kvc_sql_run(c, ST_XATTR_DEL, "is", I(ino), name);
}

int kvc_xattr_list(struct kvc_catalog *c, uint64_t ino, char *list, size_t *len)
{
	sqlite3_stmt *st = kvc_sql(c, ST_XATTR_LIST, "i", I(ino));
	size_t used = 0;
	int got;

	while ((got = kvc_sql_step(c, st)) == 1) {
		const char *name = (const char *)sqlite3_column_text(st, 0);
		size_t n = strlen(name) + 1;

		if (*len) {
			if (used + n > *len) {
				got = -ERANGE;
				break;
			}
			memcpy(list + used, name, n);
		}
		used += n;
	}
	kvc_sql_done(st);
	*len = used;
	return got;
}

static void chunk_columns(sqlite3_stmt *st, struct kvc_chunk_row *r)
{
	*r = (struct kvc_chunk_row){ kvc_sql_u64(st, 0), kvc_sql_u64(st, 1), kvc_sql_u64(st, 2), kvc_sql_u64(st, 3),
				     sqlite3_column_int64(st, 4), kvc_sql_u64(st, 5), kvc_sql_u64(st, 6), kvc_sql_u64(st, 7),
				     (unsigned)sqlite3_column_int(st, 8), kvc_sql_u64(st, 9) };
	if (r->policy >= KVC_CLASSES) /* of another version, or damaged */
		r->policy = 0;
}

int kvc_chunk_get(struct kvc_catalog *c, uint64_t id, struct kvc_chunk_row *r)
{
	sqlite3_stmt *st = kvc_sql(c, ST_CHUNK_GET, "i", I(id));
	int got = kvc_sql_step(c, st);

	if (got == 1)
		chunk_columns(st, r);
	return one(st, got);
}

int kvc_chunk_put(struct kvc_catalog *c, const struct kvc_chunk_row *r)
{
	return kvc_sql_run(c, ST_CHUNK_PUT, "iiiiiiiiii", I(r->id), I(r->created_ns), I(r->last_ns), I(r->hits), I(r->rank),
			   I(r->pin_until_ns), I(r->ttl_s), I(r->expires_ns), I(r->policy), I(r->quota));
}

int kvc_chunk_del(struct kvc_catalog *c, uint64_t id)
{
	return kvc_sql_run(c, ST_CHUNK_DEL, "i", I(id));
}

static int chunks(struct kvc_catalog *c, sqlite3_stmt *st, int (*fn)(void *arg, const struct kvc_chunk_row *r), void *arg)
{
	struct kvc_chunk_row r;
	int got;

	while ((got = kvc_sql_step(c, st)) == 1) {
		chunk_columns(st, &r);
		if ((got = fn(arg, &r)))
			break;
	}
	kvc_sql_done(st);
	return got;
}

static int next_chunk(struct kvc_catalog *c, sqlite3_stmt *st, struct kvc_chunk_row *r)
{
	int got = kvc_sql_step(c, st);

	if (got == 1)
		chunk_columns(st, r);
	return one(st, got);
}

int kvc_chunk_next_ranked(struct kvc_catalog *c, struct kvc_chunk_row *r)
{
	return next_chunk(c, kvc_sql(c, ST_CHUNK_RANKED, "iii", I(r->policy), I(r->rank), I(r->id)), r);
}

int kvc_chunk_next_quota(struct kvc_catalog *c, uint64_t model, struct kvc_chunk_row *r)
{
	return next_chunk(c, kvc_sql(c, ST_CHUNK_QUOTA, "iii", I(model), I(r->rank), I(r->id)), r);
}

struct rows {
	struct kvc_chunk_row *v;
	size_t n, room;
};

static int keep_row(void *arg, const struct kvc_chunk_row *r)
{
	struct rows *a = arg;

	if (kvc_grow(&a->v, a->n, &a->room, sizeof *a->v))
		return -ENOMEM;
	a->v[a->n++] = *r;
	return 0;
}

int kvc_chunk_below(struct kvc_catalog *c, uint64_t folder, struct kvc_chunk_row **out, size_t *n)
{
	struct rows a = { 0 };
	int err = chunks(c, kvc_sql(c, ST_CHUNK_BELOW, "i", I(folder)), keep_row, &a);

	if (err) {
		free(a.v);
		return err;
	}
	*out = a.v;
	*n = a.n;
	return 0;
}

int kvc_blocks_below(struct kvc_catalog *c, uint64_t folder, uint64_t *blocks)
{
	sqlite3_stmt *st = kvc_sql(c, ST_BLOCKS_BELOW, "i", I(folder));
	int got = kvc_sql_step(c, st);

	if (got == 1)
		*blocks = kvc_sql_u64(st, 0);
	return one(st, got);
}

int kvc_chunk_each_expired(struct kvc_catalog *c, uint64_t now_ns,
			   int (*fn)(void *arg, const struct kvc_chunk_row *r), void *arg)
{
	return chunks(c, kvc_sql(c, ST_CHUNK_EXPIRED, "i", I(now_ns)), fn, arg);
}

struct batch {
	struct kvc_chunk_row r[1024];
	size_t n;
};

static int collect(void *arg, const struct kvc_chunk_row *r)
{
	struct batch *b = arg;

	b->r[b->n++] = *r;
	return 0;
}

int kvc_chunk_rerank(struct kvc_catalog *c, int64_t (*rank)(const struct kvc_chunk_row *r))
{
	KVC_MEM struct batch *b = malloc(sizeof *b);
	uint64_t after = 0;
	int err;

	if (!b)
		return -ENOMEM;
	do {
		b->n = 0;
		if ((err = chunks(c, kvc_sql(c, ST_CHUNK_ALL, "i", I(after)), collect, b)))
			return err;
		for (size_t i = 0; i < b->n; i++) {
			b->r[i].rank = rank(&b->r[i]);
			after = b->r[i].id;
			if ((err = kvc_chunk_put(c, &b->r[i])))
				return err;
		}
	} while (b->n == 1024);
	return 0;
}
