/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and changes of single rows. A change goes into the overlay; a read asks the overlay and
 * then SQLite. See catalog.h, and catalog_priv.h for how the two fit together. catalog_range.c has
 * the walks over many rows.
 *
 * Deleting a row also deletes all rows of its inode in other tables, without reading them
 * (kvc_change.wipes). If the inode is created again before that is committed (a dropped folder in
 * which a file is created again), its rows in SQLite are first marked as deleted one by one:
 * revive().
 */
#include "catalog_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define I(v) ((sqlite3_int64)(v))

/* Ends a query for one row: converts `got`, the result of kvc_sql_step, to the caller's result. */
static int one(struct kvc_conn *n, sqlite3_stmt *st, int got)
{
	kvc_sql_done(st);
	kvc_reader_put(n);
	return got < 0 ? got : got ? 0 : -ENOENT;
}

/* Records a change of a row; value NULL: the row is deleted. */
static int put(struct kvc_catalog *c, enum kvc_relation t, uint64_t a, uint64_t b, const char *text,
	       const void *value, size_t len)
{
	int err = kvc_overlay_put(&c->over, t, a, b, text, value, len);

	kvc_catalog_count(c);
	return err;
}

/*
 * Does the overlay know the row? Returns 0: the row has the value *x; -ENOENT: the row or its inode
 * is deleted; 1: ask SQLite. `of`: the inode that the row belongs to, or 0.
 */
static int known(struct kvc_catalog *c, enum kvc_relation t, uint64_t a, uint64_t b,
		 const char *text, uint64_t of, struct kvc_change **x)
{
	*x = kvc_overlay_find(&c->over, t, a, b, text);
	if (*x)
		return (*x)->gone ? -ENOENT : 0;
	return of && kvc_wiped(c, of) ? -ENOENT : 1;
}

bool kvc_wiped(struct kvc_catalog *c, uint64_t ino)
{
	struct kvc_change *x = kvc_overlay_find(&c->over, KVC_T_ROW, ino, 0, NULL);

	return x && x->wipes;
}

/*
 * The inode is created again: marks each of its rows in SQLite as deleted, so that the wipe becomes
 * a plain deletion.
 */
static int revive(struct kvc_catalog *c, uint64_t ino)
{
	static const enum kvc_relation one_each[] = { KVC_T_TARGET, KVC_T_OBJECT };
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int err = 0, got;

	if (!kvc_wiped(c, ino))
		return 0;
	for (size_t i = 0; i < 2 && !err; i++)
		err = put(c, one_each[i], ino, 0, NULL, NULL, 0);
	for (unsigned t = 0; t < KVC_TIERS && !err; t++)
		err = put(c, KVC_T_PLACE, ino, t, NULL, NULL, 0);
	if (err)
		return err;
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_XATTR_LIST, "i", I(ino));
	while (!err && (got = kvc_sql_step(n, st)))
		err = got < 0 ? got
			      : put(c, KVC_T_XATTR, ino, 0,
				    (const char *)sqlite3_column_text(st, 0), NULL, 0);
	kvc_sql_done(st);
	kvc_reader_put(n);
	/* also rows that the batch in flight is about to write */
	kvc_list_each(e, &c->over.covered) {
		const struct kvc_change *x = kvc_of(e, struct kvc_change, over);

		if (!err && x->table == KVC_T_XATTR && x->a == ino)
			err = put(c, KVC_T_XATTR, ino, 0, x->text, NULL, 0);
	}
	return err ?: put(c, KVC_T_ROW, ino, 0, NULL, NULL, 0);
}

/* ---- meta ---- */

int kvc_meta_read(struct kvc_catalog *c, const char *key, char *value, size_t capacity)
{
	int err = kvc_meta_get(c, key, value, capacity);

	return !err ? 1 : err == -ENOENT ? 0 : err;
}

int kvc_meta_get(struct kvc_catalog *c, const char *key, char *value, size_t capacity)
{
	struct kvc_change *x;
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int got = known(c, KVC_T_META, 0, 0, key, 0, &x);

	if (!got)
		snprintf(value, capacity, "%s", (const char *)x->value);
	if (got <= 0)
		return got;
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_META_GET, "s", key);
	got = kvc_sql_step(n, st);
	if (got == 1) {
		const char *text = (const char *)sqlite3_column_text(st, 0);

		snprintf(value, capacity, "%s", text ? text : "");
	}
	return one(n, st, got);
}

int kvc_meta_set(struct kvc_catalog *c, const char *key, const char *value)
{
	return put(c, KVC_T_META, 0, 0, key, value, strlen(value) + 1);
}

int kvc_meta_del(struct kvc_catalog *c, const char *key)
{
	return put(c, KVC_T_META, 0, 0, key, NULL, 0);
}

/* ---- names ---- */

bool kvc_name_absent(struct kvc_catalog *c, uint64_t parent, uint64_t hash)
{
	return !kvc_filter_may_have(c->filter, parent, hash);
}

int kvc_name_get(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t *ino,
		 uint32_t *kind)
{
	return kvc_name_get_hashed(c, parent, name, kvc_name_hash(name), ino, kind);
}

int kvc_name_get_hashed(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t hash,
			uint64_t *ino, uint32_t *kind)
{
	const struct kvc_named *late;
	struct kvc_named is = { 0 };
	struct kvc_change *x;
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int got = known(c, KVC_T_NAME, parent, hash, name, 0, &x);

	if (!got) {
		const struct kvc_name_value *v = x->value;

		*ino = v->ino;
		*kind = v->kind;
	}
	if (got <= 0)
		return got;
	if (!kvc_filter_may_have(c->filter, parent, hash))
		return -ENOENT;
	late = kvc_overlay_cache_find(&c->over, parent, hash, name);
	if (!late) {
		n = kvc_reader_get_held(c);
		st = kvc_sql(n, ST_NAME_GET, "iis", I(parent), I(hash), name);
		got = kvc_sql_step(n, st);
		if (got == 1)
			is = (struct kvc_named){
				kvc_sql_u64(st, 0),
				(uint32_t)sqlite3_column_int(st, 1),
			};
		got = one(n, st, got);
		if (got && got != -ENOENT)
			return got;
		kvc_overlay_cache_add(&c->over, parent, hash, name, &is);
		late = &is;
	}
	*ino = late->ino;
	*kind = late->kind;
	return late->ino ? 0 : -ENOENT;
}

int kvc_name_put(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t ino,
		 uint32_t kind)
{
	return kvc_name_put_hashed(c, parent, name, kvc_name_hash(name), ino, kind);
}

int kvc_name_put_hashed(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t hash,
			uint64_t ino, uint32_t kind)
{
	struct kvc_name_value v = { ino, kind };

	kvc_filter_add(c->filter, parent, hash);
	return put(c, KVC_T_NAME, parent, hash, name, &v, sizeof v);
}

int kvc_name_del(struct kvc_catalog *c, uint64_t parent, const char *name)
{
	kvc_filter_removed(c->filter);
	return put(c, KVC_T_NAME, parent, kvc_name_hash(name), name, NULL, 0);
}

/* ---- nodes and what belongs to them ---- */

void kvc_row_columns(sqlite3_stmt *st, struct kvc_row *r)
{
	*r = (struct kvc_row){
		.ino = kvc_sql_u64(st, 0),
		.mode = (uint32_t)sqlite3_column_int64(st, 1),
		.uid = (uint32_t)sqlite3_column_int64(st, 2),
		.gid = (uint32_t)sqlite3_column_int64(st, 3),
		.nlink = (uint32_t)sqlite3_column_int64(st, 4),
		.size = kvc_sql_u64(st, 5),
		.blocks = kvc_sql_u64(st, 6),
		.atime_ns = kvc_sql_u64(st, 7),
		.mtime_ns = kvc_sql_u64(st, 8),
		.ctime_ns = kvc_sql_u64(st, 9),
		.btime_ns = kvc_sql_u64(st, 10),
		.parent = kvc_sql_u64(st, 11),
		.chunk = kvc_sql_u64(st, 12),
		.container = kvc_sql_u64(st, 13),
	};
}

int kvc_row_get(struct kvc_catalog *c, uint64_t ino, struct kvc_row *r)
{
	struct kvc_change *x;
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int got = known(c, KVC_T_ROW, ino, 0, NULL, 0, &x);

	if (!got)
		memcpy(r, x->value, sizeof *r);
	if (got <= 0)
		return got;
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_ROW_GET, "i", I(ino));
	got = kvc_sql_step(n, st);
	if (got == 1)
		kvc_row_columns(st, r);
	return one(n, st, got);
}

int kvc_bare_row_put(struct kvc_catalog *c, const struct kvc_row *r)
{
	return revive(c, r->ino) ?: put(c, KVC_T_ROW, r->ino, 0, NULL, r, sizeof *r);
}

int kvc_bare_row_del(struct kvc_catalog *c, uint64_t ino)
{
	int err = kvc_overlay_wipe(&c->over, ino);

	kvc_catalog_count(c);
	return err;
}

int kvc_row_max(struct kvc_catalog *c, uint64_t *out)
{
	struct kvc_conn *n = kvc_reader_get_held(c);
	sqlite3_stmt *st = kvc_sql(n, ST_ROW_MAX, "");
	int got = kvc_sql_step(n, st);
	uint64_t max = got == 1 ? kvc_sql_u64(st, 0) : 1;
	const struct kvc_list *all[] = { &c->over.active, &c->over.batch };

	kvc_sql_done(st);
	kvc_reader_put(n);
	if (got < 0)
		return got;
	for (int i = 0; i < 2; i++)
		kvc_list_each(e, all[i]) {
			const struct kvc_change *x = kvc_of(e, struct kvc_change, link);

			if (x->table == KVC_T_ROW && !x->gone)
				max = kvc_max(max, x->a);
		}
	*out = max;
	return 0;
}

int kvc_target_get(struct kvc_catalog *c, uint64_t ino, char *target, size_t capacity)
{
	struct kvc_change *x;
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int got = known(c, KVC_T_TARGET, ino, 0, NULL, ino, &x);

	if (!got)
		snprintf(target, capacity, "%s", (const char *)x->value);
	if (got <= 0)
		return got;
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_TARGET_GET, "i", I(ino));
	got = kvc_sql_step(n, st);
	if (got == 1)
		snprintf(target, capacity, "%s", (const char *)sqlite3_column_text(st, 0));
	return one(n, st, got);
}

int kvc_target_put(struct kvc_catalog *c, uint64_t ino, const char *target)
{
	return revive(c, ino) ?: put(c, KVC_T_TARGET, ino, 0, NULL, target, strlen(target) + 1);
}

/* Reads the columns gen, size, sum, lower and decoded, from column `at` on. */
void kvc_object_columns(sqlite3_stmt *st, int at, struct kvc_object_row *o)
{
	*o = (struct kvc_object_row){
		.gen = kvc_sql_u64(st, at),
		.size = kvc_sql_u64(st, at + 1),
		.lower = sqlite3_column_int(st, at + 3),
		.decoded = sqlite3_column_int(st, at + 4),
	};
	o->has_sum = sqlite3_column_bytes(st, at + 2) == 16;
	if (o->has_sum)
		memcpy(o->sum.b, sqlite3_column_blob(st, at + 2), 16);
}

int kvc_object_get(struct kvc_catalog *c, uint64_t ino, struct kvc_object_row *o)
{
	struct kvc_change *x;
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int got = known(c, KVC_T_OBJECT, ino, 0, NULL, ino, &x);

	if (!got)
		memcpy(o, x->value, sizeof *o);
	if (got <= 0)
		return got;
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_OBJECT_GET, "i", I(ino));
	got = kvc_sql_step(n, st);
	if (got == 1)
		kvc_object_columns(st, 0, o);
	return one(n, st, got);
}

int kvc_object_put(struct kvc_catalog *c, uint64_t ino, const struct kvc_object_row *o)
{
	return revive(c, ino) ?: put(c, KVC_T_OBJECT, ino, 0, NULL, o, sizeof *o);
}

struct kvc_place kvc_place_columns(sqlite3_stmt *st)
{
	struct kvc_place p = {
		.gen = kvc_sql_u64(st, 1),
		.where = { kvc_sql_u64(st, 2), kvc_sql_u64(st, 3), kvc_sql_u64(st, 4) },
		.codec = (uint32_t)sqlite3_column_int64(st, 5),
		.key = (uint32_t)sqlite3_column_int64(st, 6),
		.error_ppm = (uint32_t)sqlite3_column_int64(st, 9),
		.worst_ppm = (uint32_t)sqlite3_column_int64(st, 10),
	};

	if (sqlite3_column_bytes(st, 7) == 16)
		memcpy(p.sum.b, sqlite3_column_blob(st, 7), 16);
	if (sqlite3_column_bytes(st, 8) == 16)
		memcpy(p.raw.b, sqlite3_column_blob(st, 8), 16);
	return p;
}

bool kvc_place_lossy(const struct kvc_place *p)
{
	return kvc_codec_lossy(p->codec & (KVC_PLACE_CODED - 1));
}

bool kvc_place_raw(const struct kvc_object_row *o, const struct kvc_place *p, struct kvc_sum *sum)
{
	bool own = !kvc_sum_is_zero(&p->raw);

	/*
	 * A copy without a sum of its own decodes to the object's bytes. The exception is a copy
	 * that another node coded with loss, if the object still has the written bytes.
	 */
	if (!own && (!o->has_sum || (kvc_place_lossy(p) && !o->decoded)))
		return false;
	*sum = own ? p->raw : o->sum;
	return true;
}

bool kvc_place_differs(const struct kvc_object_row *o, const struct kvc_place *p)
{
	return o->has_sum && !kvc_sum_is_zero(&p->raw) && memcmp(p->raw.b, o->sum.b, 16) != 0;
}

int kvc_place_get(struct kvc_catalog *c, uint64_t ino, struct kvc_place place[KVC_TIERS])
{
	struct kvc_change *x[KVC_TIERS];
	bool ask = false;
	int got = 0;

	memset(place, 0, sizeof place[0] * KVC_TIERS);
	for (unsigned t = 0; t < KVC_TIERS; t++)
		ask |= known(c, KVC_T_PLACE, ino, t, NULL, ino, &x[t]) > 0;
	if (ask) {
		struct kvc_conn *n = kvc_reader_get_held(c);
		sqlite3_stmt *st = kvc_sql(n, ST_PLACE_GET, "i", I(ino));

		while ((got = kvc_sql_step(n, st)) == 1) {
			uint64_t tier = kvc_sql_u64(st, 0);

			if (tier < KVC_TIERS)
				place[tier] = kvc_place_columns(st);
		}
		kvc_sql_done(st);
		kvc_reader_put(n);
	}
	for (unsigned t = 0; t < KVC_TIERS; t++)
		if (x[t] && x[t]->gone)
			place[t] = (struct kvc_place){ 0 };
		else if (x[t])
			memcpy(&place[t], x[t]->value, sizeof place[t]);
	return got;
}

struct kvc_place kvc_place_of(uint64_t gen, const struct kvc_where *w, const struct kvc_frame *f)
{
	struct kvc_place p = {
		.gen = gen,
		.where = *w,
		.codec = f->codec | (f->flags & KVC_FRAME_CODED ? KVC_PLACE_CODED : 0),
		.key = f->flags & KVC_FRAME_SEALED ? f->key_id : 0,
		.sum = f->stored_sum,
		.error_ppm = f->error_ppm,
		.worst_ppm = f->worst_ppm,
	};

	if (kvc_codec_lossy(f->codec))
		p.raw = f->raw_sum; /* zero if it is sealed */
	return p;
}

int kvc_place_put(struct kvc_catalog *c, uint64_t ino, unsigned tier, const struct kvc_place *p)
{
	return revive(c, ino) ?: put(c, KVC_T_PLACE, ino, tier, NULL, p, sizeof *p);
}

int kvc_place_del(struct kvc_catalog *c, uint64_t ino, unsigned tier)
{
	if (kvc_wiped(c, ino))
		return 0;
	return put(c, KVC_T_PLACE, ino, tier, NULL, NULL, 0);
}

/* ---- paths that were deleted here ---- */

int kvc_gone_get(struct kvc_catalog *c, const struct kvc_where *path, uint64_t now_ns)
{
	struct kvc_change *x;
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int got = known(c, KVC_T_GONE, path->at, path->hi, NULL, 0, &x);

	if (!got)
		return *(const uint64_t *)x->value > now_ns ? 0 : -ENOENT;
	if (got < 0)
		return got;
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_GONE_GET, "iii", I(path->at), I(path->hi), I(now_ns));
	return one(n, st, kvc_sql_step(n, st));
}

int kvc_gone_put(struct kvc_catalog *c, const struct kvc_where *path, uint64_t until_ns)
{
	return put(c, KVC_T_GONE, path->at, path->hi, NULL, &until_ns, sizeof until_ns);
}

int kvc_gone_del(struct kvc_catalog *c, const struct kvc_where *path)
{
	return put(c, KVC_T_GONE, path->at, path->hi, NULL, NULL, 0);
}

/*
 * Expired rows have no effect any more, so they are only deleted from SQLite, with the next batch.
 */
int kvc_gone_purge(struct kvc_catalog *c, uint64_t now_ns)
{
	struct kvc_conn *n = kvc_reader_get_held(c);
	sqlite3_stmt *st = kvc_sql(n, ST_GONE_FIRST, "");
	int got = kvc_sql_step(n, st);
	bool due = got == 1 && sqlite3_column_type(st, 0) != SQLITE_NULL &&
		   kvc_sql_u64(st, 0) <= now_ns;

	one(n, st, got);
	if (got < 0 || !due)
		return got < 0 ? got : 0;
	return put(c, KVC_T_PURGE, 0, 0, NULL, &now_ns, sizeof now_ns);
}

/* ---- attributes ---- */

static int give(const void *from, size_t n, void *value, size_t *len)
{
	size_t capacity = *len;

	*len = n;
	if (capacity && n > capacity)
		return -ERANGE;
	if (capacity && n)
		memcpy(value, from, n);
	return 0;
}

int kvc_xattr_get(struct kvc_catalog *c, uint64_t ino, const char *name, void *value, size_t *len)
{
	struct kvc_change *x;
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int got = known(c, KVC_T_XATTR, ino, 0, name, ino, &x);

	if (got <= 0)
		return got ?: give(x->value, x->len, value, len);
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_XATTR_GET, "is", I(ino), name);
	got = kvc_sql_step(n, st);
	if (got == 1)
		got = give(sqlite3_column_blob(st, 0), (size_t)sqlite3_column_bytes(st, 0), value,
			   len)
			      ?: 1;
	return one(n, st, got);
}

int kvc_bare_xattr_set(struct kvc_catalog *c, uint64_t ino, const char *name, const void *value,
		       size_t len)
{
	return revive(c, ino) ?: put(c, KVC_T_XATTR, ino, 0, name, len ? value : "", len);
}

int kvc_bare_xattr_del(struct kvc_catalog *c, uint64_t ino, const char *name)
{
	if (kvc_wiped(c, ino))
		return 0;
	return put(c, KVC_T_XATTR, ino, 0, name, NULL, 0);
}

/* ---- chunks ---- */

void kvc_chunk_columns(sqlite3_stmt *st, struct kvc_chunk_row *r)
{
	*r = (struct kvc_chunk_row){
		kvc_sql_u64(st, 0),
		kvc_sql_u64(st, 1),
		kvc_sql_u64(st, 2),
		kvc_sql_u64(st, 3),
		sqlite3_column_int64(st, 4),
		kvc_sql_u64(st, 5),
		kvc_sql_u64(st, 6),
		kvc_sql_u64(st, 7),
		(unsigned)sqlite3_column_int(st, 8),
		kvc_sql_u64(st, 9),
		kvc_sql_u64(st, 10),
		kvc_sql_u64(st, 11),
		kvc_sql_u64(st, 12),
		kvc_sql_u64(st, 13),
		kvc_sql_u64(st, 14),
	};
	if (r->policy >= KVC_CLASSES) /* another version, or damaged */
		r->policy = 0;
}

int kvc_chunk_get(struct kvc_catalog *c, uint64_t id, struct kvc_chunk_row *r)
{
	struct kvc_change *x;
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int got = known(c, KVC_T_CHUNK, id, 0, NULL, 0, &x);

	if (!got)
		memcpy(r, x->value, sizeof *r);
	if (got <= 0)
		return got;
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_CHUNK_GET, "i", I(id));
	got = kvc_sql_step(n, st);
	if (got == 1)
		kvc_chunk_columns(st, r);
	return one(n, st, got);
}

int kvc_chunk_put(struct kvc_catalog *c, const struct kvc_chunk_row *r)
{
	return put(c, KVC_T_CHUNK, r->id, 0, NULL, r, sizeof *r);
}

int kvc_chunk_del(struct kvc_catalog *c, uint64_t id)
{
	return put(c, KVC_T_CHUNK, id, 0, NULL, NULL, 0);
}
