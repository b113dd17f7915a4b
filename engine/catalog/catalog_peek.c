/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads without the catalog's lock; see catalog.h. A read takes the lock briefly to ask the
 * overlay. If the overlay has no change of the row, the read then asks SQLite without the lock.
 * Changes that the overlay had dropped before are in SQLite's snapshot. Later changes may or may
 * not be in it. So each answer was true at some time between the beginning and the end of the call,
 * which is all that a lookup can promise. A caller that builds on the answer (a node in memory)
 * checks under the lock that it is still current.
 */
#include "catalog_priv.h"

#include <string.h>
#include <sys/stat.h>

#define I(v) ((sqlite3_int64)(v))

int kvc_peek_name(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t hash,
		  struct kvc_peek *p)
{
	const struct kvc_named *is;
	struct kvc_change *x;
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int got = 1;

	memset(p, 0, sizeof *p);
	kvc_catalog_lock(c);
	p->age = c->over.drops;
	x = kvc_overlay_find(&c->over, KVC_T_NAME, parent, hash, name);
	if (x) {
		const struct kvc_name_value *v = x->value;

		got = x->gone ? -ENOENT : 0;
		p->ino = got ? 0 : v->ino;
		p->kind = got ? 0 : v->kind;
	} else if ((is = kvc_overlay_cache_find(&c->over, parent, hash, name))) {
		got = is->ino ? 0 : -ENOENT;
		p->ino = is->ino;
		p->kind = is->kind;
	}
	kvc_catalog_unlock(c);
	if (got <= 0)
		return got;
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_NAME_GET, "iis", I(parent), I(hash), name);
	got = kvc_sql_step(n, st);
	if (got == 1) {
		p->ino = kvc_sql_u64(st, 0);
		p->kind = (uint32_t)sqlite3_column_int(st, 1);
	}
	kvc_sql_done(st);
	kvc_reader_put(n);
	return got < 0 ? got : got ? 0 : -ENOENT;
}

/* Does the overlay have a change of the inode that kvc_peek_node would need? */
static bool pending(struct kvc_catalog *c, uint64_t ino)
{
	bool any = kvc_overlay_find(&c->over, KVC_T_ROW, ino, 0, NULL) ||
		   kvc_overlay_find(&c->over, KVC_T_OBJECT, ino, 0, NULL);

	for (unsigned t = 0; t < KVC_TIERS && !any; t++)
		any = kvc_overlay_find(&c->over, KVC_T_PLACE, ino, t, NULL);
	return any;
}

static int object_of(struct kvc_conn *n, struct kvc_peek *p)
{
	sqlite3_stmt *st = kvc_sql(n, ST_OBJECT_GET, "i", I(p->ino));
	int got = kvc_sql_step(n, st);

	if (got == 1)
		kvc_object_columns(st, 0, &p->object);
	kvc_sql_done(st);
	st = got < 0 ? NULL : kvc_sql(n, ST_PLACE_GET, "i", I(p->ino));
	while (st && (got = kvc_sql_step(n, st)) == 1) {
		uint64_t t = kvc_sql_u64(st, 0);

		if (t < KVC_TIERS)
			p->place[t] = kvc_place_columns(st);
	}
	kvc_sql_done(st);
	return got;
}

int kvc_peek_node(struct kvc_catalog *c, struct kvc_peek *p)
{
	struct kvc_conn *n;
	sqlite3_stmt *row;
	bool there;
	int got;

	kvc_catalog_lock(c);
	there = !pending(c, p->ino);
	kvc_catalog_unlock(c);
	if (!there)
		return 0;
	n = kvc_reader_get_held(c);
	/* until this statement is done, all reads use one snapshot */
	row = kvc_sql(n, ST_ROW_GET, "i", I(p->ino));
	there = (got = kvc_sql_step(n, row)) == 1;
	if (there)
		kvc_row_columns(row, &p->row);
	if (there && S_ISREG(p->row.mode))
		got = object_of(n, p);
	kvc_sql_done(row);
	kvc_reader_put(n);
	p->node = there && got >= 0;
	return got < 0 ? got : 0;
}

bool kvc_peek_holds(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t hash,
		    const struct kvc_peek *p)
{
	return kvc_peek_inode_holds(c, p) &&
	       !kvc_overlay_name_since(&c->over, parent, hash, p->age) &&
	       !kvc_overlay_find(&c->over, KVC_T_NAME, parent, hash, name);
}

bool kvc_peek_absent_holds(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t hash,
			   const struct kvc_peek *p)
{
	return !p->ino && !kvc_overlay_name_since(&c->over, parent, hash, p->age) &&
	       !kvc_overlay_find(&c->over, KVC_T_NAME, parent, hash, name);
}

bool kvc_peek_inode_holds(struct kvc_catalog *c, const struct kvc_peek *p)
{
	return p->node && !kvc_overlay_inode_since(&c->over, p->ino, p->age) && !pending(c, p->ino);
}

int kvc_peek_inode(struct kvc_catalog *c, uint64_t ino, struct kvc_peek *p)
{
	memset(p, 0, sizeof *p);
	p->ino = ino;
	kvc_catalog_lock(c);
	p->age = c->over.drops;
	kvc_catalog_unlock(c);
	return kvc_peek_node(c, p);
}

/* ---- deleted paths of shared tiers ---- */

int kvc_peek_gone(struct kvc_catalog *c, const struct kvc_where *path, uint64_t now_ns,
		  struct kvc_peek_gone *p)
{
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int got;

	*p = (struct kvc_peek_gone){ .path = *path };
	kvc_catalog_lock(c);
	p->age = c->over.drops;
	kvc_catalog_unlock(c);
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_GONE_GET, "iii", I(path->at), I(path->hi), I(now_ns));
	got = kvc_sql_step(n, st);
	kvc_sql_done(st);
	kvc_reader_put(n);
	p->read = got >= 0;
	p->is = got == 1;
	return got < 0 ? got : 0;
}

int kvc_gone_get_peeked(struct kvc_catalog *c, const struct kvc_where *path, uint64_t now_ns,
			const struct kvc_peek_gone *p)
{
	const struct kvc_change *x = kvc_overlay_find(&c->over, KVC_T_GONE, path->at, path->hi,
						      NULL);

	if (x)
		return !x->gone && *(const uint64_t *)x->value > now_ns ? 0 : -ENOENT;
	if (!p->read || p->path.at != path->at || p->path.hi != path->hi ||
	    kvc_overlay_gone_since(&c->over, path->at, path->hi, p->age))
		return -EAGAIN;
	return p->is ? 0 : -ENOENT;
}

/* ---- the names of an inode ---- */

static int take_names(struct kvc_conn *n, const struct kvc_name_at *at, struct kvc_peek_names *p)
{
	sqlite3_stmt *st = kvc_sql(n, ST_NAME_OF_SOME, "iii", I(p->ino), I(at->parent),
				   I(at->hash));
	int got;

	while ((got = kvc_sql_step(n, st)) == 1 && p->n < KVC_PEEK_NAMES) {
		const char *name = (const char *)sqlite3_column_text(st, 2);
		struct kvc_peek_name *x;

		if (!name || strlen(name) >= sizeof x->name)
			break;
		if (kvc_grow(&p->v, p->n, &p->capacity, sizeof *p->v)) {
			kvc_sql_done(st);
			return -ENOMEM;
		}
		x = &p->v[p->n++];
		x->parent = kvc_sql_u64(st, 0);
		x->hash = kvc_sql_u64(st, 1);
		x->kind = (uint32_t)sqlite3_column_int(st, 4);
		memcpy(x->name, name, strlen(name) + 1);
	}
	kvc_sql_done(st);
	p->all = !got && !at->parent && !at->hash;
	return got < 0 ? got : 0;
}

int kvc_peek_names(struct kvc_catalog *c, uint64_t ino, const struct kvc_name_at *at,
		   struct kvc_peek_names *p)
{
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int err, got = 0;
	bool attrs;

	p->ino = ino;
	p->n = 0;
	p->all = p->bare = false;
	kvc_catalog_lock(c);
	p->age = c->over.drops;
	attrs = kvc_usage_attrs(c);
	kvc_catalog_unlock(c);
	n = kvc_reader_get_held(c);
	err = take_names(n, at, p);
	if (!err && attrs) {
		st = kvc_sql(n, ST_XATTR_LIST, "i", I(ino));
		got = kvc_sql_step(n, st);
		kvc_sql_done(st);
		p->bare = !got;
	}
	kvc_reader_put(n);
	if (err || got < 0)
		p->all = p->bare = false;
	return err ?: got < 0 ? got : 0;
}

/* Reads a row of another table that belongs to a row of kvc_peek_rows. */
static int beside(struct kvc_conn *n, enum kvc_statement s, uint64_t id, struct kvc_peeked *p)
{
	sqlite3_stmt *st = kvc_sql(n, s, "i", I(id));
	int got = kvc_sql_step(n, st);

	if (got == 1 && s == ST_ROW_GET)
		kvc_row_columns(st, &p->folder);
	else if (got == 1)
		kvc_chunk_columns(st, &p->chunk);
	kvc_sql_done(st);
	return got < 0 ? got : 0;
}

int kvc_peek_rows(struct kvc_catalog *c, uint64_t after, uint64_t below, size_t capacity,
		  struct kvc_peeked *out, size_t *count)
{
	struct kvc_conn *n;
	sqlite3_stmt *st;
	uint64_t age;
	int got = 0, err = 0;

	kvc_catalog_lock(c);
	age = c->age;
	kvc_catalog_unlock(c);
	n = kvc_reader_get(c);
	st = kvc_sql(n, ST_ROW_SOME, "iii", I(after), I(below), I(capacity));
	for (*count = 0; *count < capacity && (got = kvc_sql_step(n, st)) == 1; ++*count) {
		out[*count] = (struct kvc_peeked){ .age = age };
		kvc_row_columns(st, &out[*count].row);
	}
	kvc_sql_done(st);
	err = got < 0 ? got : 0;
	for (size_t i = 0; i < *count && !err; i++) {
		struct kvc_peeked *p = &out[i];

		if (S_ISDIR(p->row.mode))
			;
		else if (i && p[-1].folder.ino == p->row.parent)
			p->folder = p[-1].folder;
		else
			err = beside(n, ST_ROW_GET, p->row.parent, p);
		err = err ?: beside(n, ST_CHUNK_GET, p->row.ino, p);
	}
	kvc_reader_put(n);
	return err;
}

unsigned kvc_peeked_holds(struct kvc_catalog *c, const struct kvc_peeked *p)
{
	unsigned holds = 0;

	if (p->age != c->age)
		return 0;
	if (!kvc_overlay_find(&c->over, KVC_T_ROW, p->row.ino, 0, NULL))
		holds |= KVC_PEEKED_ROW;
	if (p->folder.ino && !kvc_overlay_find(&c->over, KVC_T_ROW, p->folder.ino, 0, NULL))
		holds |= KVC_PEEKED_FOLDER;
	if (!kvc_overlay_find(&c->over, KVC_T_CHUNK, p->row.ino, 0, NULL))
		holds |= KVC_PEEKED_CHUNK;
	return holds;
}

/* ---- many inodes, for a restart ---- */

#define GAP 8 /* maximum distance of two inode numbers that one statement reads */

static void peek_take_row(sqlite3_stmt *st, struct kvc_peeked_object *p)
{
	p->is.node = true;
	kvc_row_columns(st, &p->is.row);
	kvc_object_columns(st, 14, &p->is.object);
	p->folder_parent = kvc_sql_u64(st, 19);
}

static void peek_take_place(sqlite3_stmt *st, struct kvc_peeked_object *p)
{
	uint64_t tier = kvc_sql_u64(st, 0);

	if (tier < KVC_TIERS)
		p->is.place[tier] = kvc_place_columns(st);
}

static void peek_take_chunk(sqlite3_stmt *st, struct kvc_peeked_object *p)
{
	kvc_chunk_columns(st, &p->chunk);
}

/*
 * Runs s over the numbers in v, and passes each row to the elements with the number in column `at`.
 */
static int peek_range(struct kvc_conn *n, enum kvc_statement s, int at,
		      void (*take)(sqlite3_stmt *, struct kvc_peeked_object *),
		      struct kvc_peeked_object *v, size_t count)
{
	sqlite3_stmt *st = kvc_sql(n, s, "ii", I(v[0].is.ino), I(v[count - 1].is.ino));
	size_t first = 0;
	int got;

	while ((got = kvc_sql_step(n, st)) == 1) {
		uint64_t ino = kvc_sql_u64(st, at);

		while (first < count && v[first].is.ino < ino)
			first++;
		for (size_t i = first; i < count && v[i].is.ino == ino; i++)
			take(st, &v[i]);
	}
	kvc_sql_done(st);
	return got;
}

/* Reads the row of a chunk once for consecutive files of the chunk. */
static int peek_chunks(struct kvc_conn *n, struct kvc_peeked_object *v, size_t count)
{
	const struct kvc_peeked_object *last = NULL;
	int err = peek_range(n, ST_PEEK_CHUNKS, 0, peek_take_chunk, v, count);

	for (size_t i = 0; i < count && !err; i++) {
		struct kvc_peeked_object *p = &v[i];
		sqlite3_stmt *st;
		int got;

		if (!p->is.node || p->is.row.chunk == p->is.ino)
			continue;
		p->chunk = (struct kvc_chunk_row){ 0 };
		if (last && last->is.row.chunk == p->is.row.chunk) {
			p->chunk = last->chunk;
			continue;
		}
		last = p;
		st = kvc_sql(n, ST_CHUNK_GET, "i", I(p->is.row.chunk));
		if ((got = kvc_sql_step(n, st)) == 1)
			kvc_chunk_columns(st, &p->chunk);
		err = got < 0 ? got : 0;
		kvc_sql_done(st);
	}
	return err;
}

int kvc_peek_objects(struct kvc_catalog *c, struct kvc_peeked_object *v, size_t n)
{
	uint64_t age = atomic_load(&c->age); /* taken before the snapshot begins */
	struct kvc_conn *r = kvc_reader_get_held(c);
	int err = 0;

	for (size_t i = 0; i < n; i++)
		v[i] = (struct kvc_peeked_object){ .is.ino = v[i].is.ino, .is.age = age };
	for (size_t from = 0, to; from < n && !err; from = to) {
		for (to = from + 1; to < n && v[to].is.ino - v[to - 1].is.ino <= GAP; to++)
			;
		err = peek_range(r, ST_PEEK_ROWS, 0, peek_take_row, v + from, to - from);
		err = err
			      ?: peek_range(r, ST_PEEK_PLACES, 11, peek_take_place, v + from,
					    to - from);
		err = err ?: peek_chunks(r, v + from, to - from);
	}
	kvc_reader_put(r);
	return err;
}

bool kvc_peeked_object_holds(struct kvc_catalog *c, const struct kvc_peeked_object *p)
{
	return p->is.age == c->age && !pending(c, p->is.ino) &&
	       (!p->is.node ||
		(!kvc_overlay_find(&c->over, KVC_T_CHUNK, p->is.row.chunk, 0, NULL) &&
		 !kvc_overlay_find(&c->over, KVC_T_ROW, p->is.row.parent, 0, NULL)));
}
