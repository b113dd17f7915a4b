/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks over many rows; see catalog.h. If a call waits for the walk, the walk merges the overlay's
 * order with SQLite's; for a row that both have, the overlay's value counts. Other walks, over
 * whole tables, ask SQLite alone after the pending changes are committed (kvc_catalog_flush).
 */
#include "catalog_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define I(v) ((sqlite3_int64)(v))
#define BATCH 256
#define SKIPPED 4         /* number of consecutive deleted names that is worth a hint */
#define HEAVY (16u << 20) /* an overlay of this many bytes is written during a long walk */

static int done(struct kvc_conn *n, sqlite3_stmt *st, int got)
{
	kvc_sql_done(st);
	kvc_reader_put(n);
	return got;
}

/* Returns the smallest key in the overlay that is above `after` and begins with prefix. */
static const struct kvc_change *meta_after(struct kvc_catalog *c, const char *prefix,
					   const char *after)
{
	const struct kvc_change *best = NULL;

	if (!c->over.count[KVC_T_META])
		return NULL;
	kvc_table_each(&c->over.table, s) { /* a scan of all changes: rarely called */
		const struct kvc_change *x = kvc_of(s, struct kvc_change, slot);

		if (x->table == KVC_T_META && !x->gone &&
		    !strncmp(x->text, prefix, strlen(prefix)) && strcmp(x->text, after) > 0 &&
		    (!best || strcmp(x->text, best->text) < 0))
			best = x;
	}
	return best;
}

int kvc_meta_next(struct kvc_catalog *c, const char *prefix, char *key, char *value,
		  size_t capacity)
{
	struct kvc_conn *n = kvc_reader_get_held(c);
	const struct kvc_change *x;
	char after[64], end[64];
	sqlite3_stmt *st;
	const char *k = NULL, *v = NULL;
	int got;

	snprintf(after, sizeof after, "%s", key);
	/* `end` excludes the keys of other prefixes, which may be many */
	snprintf(end, sizeof end, "%s", prefix);
	end[strlen(end) - 1]++;
	x = meta_after(c, prefix, after);
	st = kvc_sql(n, ST_META_EACH, "ss", after, end);
	while ((got = kvc_sql_step(n, st)) == 1) {
		k = (const char *)sqlite3_column_text(st, 0);
		if (k && !kvc_overlay_find(&c->over, KVC_T_META, 0, 0, k))
			break;
	}
	if (got == 1)
		v = (const char *)sqlite3_column_text(st, 1);
	if (x && (got == 0 || (got == 1 && strcmp(x->text, k) < 0))) {
		k = x->text;
		v = x->value;
		got = 1;
	}
	if (got == 1) {
		snprintf(key, sizeof after, "%s", k);
		snprintf(value, capacity, "%s", v ? v : "");
	}
	got = done(n, st, got);
	return got < 0 ? got : got ? 0 : -ENOENT;
}

/* ---- names ---- */

static struct kvc_name name_columns(sqlite3_stmt *st)
{
	return (struct kvc_name){ kvc_sql_u64(st, 0), kvc_sql_u64(st, 1), kvc_sql_u64(st, 3),
				  (uint32_t)sqlite3_column_int(st, 4),
				  (const char *)sqlite3_column_text(st, 2) };
}

static struct kvc_name name_of(const struct kvc_change *x)
{
	const struct kvc_name_value *v = x->value;

	return (struct kvc_name){ x->a, x->b, v->ino, v->kind, x->text };
}

static int order(const struct kvc_name *n, const struct kvc_change *x)
{
	return n->hash != x->b ? (n->hash < x->b ? -1 : 1) : strcmp(n->name, x->text);
}

int kvc_name_each(struct kvc_catalog *c, uint64_t parent, uint64_t after, kvc_name_fn *fn,
		  void *arg)
{
	struct kvc_conn *n = kvc_reader_get_held(c);
	sqlite3_stmt *st = kvc_sql(n, ST_NAME_EACH, "ii", I(parent), I(after));
	struct kvc_change *x = kvc_overlay_after(&c->over, KVC_IX_NAME, parent, after, 0, NULL);
	int got = kvc_sql_step(n, st), end = 0;

	while (got >= 0 && !end) {
		struct kvc_name name = { 0 };
		/* < 0: SQLite's row is next; > 0: the overlay's; 0: both have the same row */
		int which;

		x = x && x->a == parent ? x : NULL;
		if (got == 1)
			name = name_columns(st);
		if (!x && !got)
			break;
		which = !x ? -1 : !got ? 1 : order(&name, x);
		if (which < 0) {
			end = fn(arg, &name);
		} else if (!x->gone) {
			name = name_of(x);
			end = fn(arg, &name);
		}
		if (which <= 0 && !end)
			got = kvc_sql_step(n, st);
		if (which >= 0 && !end)
			x = kvc_overlay_after(&c->over, KVC_IX_NAME, x->a, x->b, 0, x->text);
	}
	done(n, st, 0);
	return got < 0 ? got : end;
}

/* Calls fn for the overlay's names of an inode. */
static int names_pending(struct kvc_catalog *c, uint64_t ino, kvc_name_fn *fn, void *arg)
{
	struct kvc_change *x = kvc_overlay_after(&c->over, KVC_IX_OF, ino, 0, 0, "");
	struct kvc_name name;
	int end = 0;

	for (; x && ((struct kvc_name_value *)x->value)->ino == ino && !end;
	     x = kvc_overlay_after(&c->over, KVC_IX_OF, ino, x->a, x->b, x->text)) {
		name = name_of(x);
		end = fn(arg, &name);
	}
	return end;
}

/* Remembers a run of deleted names, so that the next call does not walk over them again. */
struct skipped {
	/*
	 * all names up to `done` are deleted; `at`: the last one, whose hash other names may have
	 */
	struct kvc_name_at done, at;
	unsigned n;
};

static void skip(struct skipped *s, const struct kvc_name *name)
{
	if (s->at.parent != name->parent || s->at.hash != name->hash)
		s->done = s->at;
	s->at = (struct kvc_name_at){ name->parent, name->hash };
	s->n++;
}

int kvc_name_of(struct kvc_catalog *c, uint64_t ino, kvc_name_fn *fn, void *arg)
{
	struct kvc_hint *h = &c->hint[ino % KVC_BARE];
	bool known = h->ino == ino && !kvc_overlay_names_since(&c->over, ino, h->age), any = false;
	struct kvc_name_at from = known ? h->at : (struct kvc_name_at){ 0 };
	struct skipped s = { .done = from, .at = from };
	uint64_t age = known ? h->age : c->over.drops;
	struct kvc_conn *n;
	struct kvc_name name;
	sqlite3_stmt *st;
	int got, end = names_pending(c, ino, fn, arg);

	if (end)
		return end;
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_NAME_OF_SOME, "iii", I(ino), I(from.parent), I(from.hash));
	while ((got = kvc_sql_step(n, st)) == 1) {
		name = name_columns(st);
		if (kvc_overlay_find(&c->over, KVC_T_NAME, name.parent, name.hash, name.name)) {
			if (!any)
				skip(&s, &name);
			continue;
		}
		any = true;
		if ((got = fn(arg, &name)))
			break;
	}
	if (s.n >= SKIPPED)
		*h = (struct kvc_hint){ ino, age, s.done };
	return done(n, st, got);
}

/* Are the names in p still all names that SQLite has of the inode? */
static bool names_hold(struct kvc_catalog *c, const struct kvc_peek_names *p)
{
	bool hold = p->all && !kvc_overlay_names_since(&c->over, p->ino, p->age);

	for (size_t i = 0; i < p->n && hold; i++)
		hold = !kvc_overlay_name_since(&c->over, p->v[i].parent, p->v[i].hash, p->age);
	return hold;
}

int kvc_name_of_peeked(struct kvc_catalog *c, const struct kvc_peek_names *p, kvc_name_fn *fn,
		       void *arg)
{
	int end;

	if (p->bare)
		c->bare[p->ino % KVC_BARE] = (struct kvc_bare){ p->ino, p->age };
	if (!names_hold(c, p))
		return kvc_name_of(c, p->ino, fn, arg);
	end = names_pending(c, p->ino, fn, arg);
	for (size_t i = 0; i < p->n && !end; i++) {
		const struct kvc_peek_name *x = &p->v[i];
		struct kvc_name name = { x->parent, x->hash, p->ino, x->kind, x->name };

		if (!kvc_overlay_find(&c->over, KVC_T_NAME, x->parent, x->hash, x->name))
			end = fn(arg, &name);
	}
	return end;
}

int kvc_name_of_some(struct kvc_catalog *c, uint64_t ino, struct kvc_name_at *at, size_t rows,
		     kvc_name_fn *fn, void *arg)
{
	struct kvc_change *x = kvc_overlay_after(&c->over, KVC_IX_OF, ino, 0, 0, "");
	struct kvc_conn *n;
	struct kvc_name name;
	sqlite3_stmt *st;
	size_t looks = 0;
	int got, err = 0;

	for (; x && ((struct kvc_name_value *)x->value)->ino == ino && looks < rows && !err;
	     x = kvc_overlay_after(&c->over, KVC_IX_OF, ino, x->a, x->b, x->text)) {
		name = name_of(x);
		err = fn(arg, &name);
		looks++;
	}
	if (err || looks == rows)
		return err ?: 1;
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_NAME_OF_SOME, "iii", I(ino), I(at->parent), I(at->hash));
	while ((got = kvc_sql_step(n, st)) == 1 && !err) {
		name = name_columns(st);
		/* stop only between two hashes, so that no name is skipped */
		if (looks >= rows && (name.parent != at->parent || name.hash != at->hash))
			break;
		*at = (struct kvc_name_at){ name.parent, name.hash };
		looks++;
		if (!kvc_overlay_find(&c->over, KVC_T_NAME, name.parent, name.hash, name.name))
			err = fn(arg, &name);
	}
	done(n, st, 0);
	return err ?: got;
}

/* ---- attributes ---- */

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

struct texts {
	const char **v;
	size_t n, capacity;
};

/* Collects the names of an inode's attributes in the overlay, in order. */
static int pending_xattrs(struct kvc_catalog *c, uint64_t ino, struct texts *t)
{
	for (struct kvc_change *x = NULL; (x = kvc_overlay_xattr(&c->over, ino, x));)
		if (!x->gone) {
			if (kvc_grow(&t->v, t->n, &t->capacity, sizeof *t->v))
				return -ENOMEM;
			t->v[t->n++] = x->text;
		}
	if (t->n)
		qsort(t->v, t->n, sizeof *t->v, by_text);
	return 0;
}

static int list_one(char *list, size_t capacity, size_t *used, const char *name)
{
	size_t n = strlen(name) + 1;

	if (capacity && *used + n > capacity)
		return -ERANGE;
	if (capacity)
		memcpy(list + *used, name, n);
	*used += n;
	return 0;
}

int kvc_xattr_list(struct kvc_catalog *c, uint64_t ino, char *list, size_t *len)
{
	size_t used = 0, capacity = *len, i = 0;
	struct texts t = { 0 };
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int err = pending_xattrs(c, ino, &t), got = 0;

	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_XATTR_LIST, "i", I(ino));
	while (!err && !kvc_wiped(c, ino) && (got = kvc_sql_step(n, st)) == 1) {
		const char *name = (const char *)sqlite3_column_text(st, 0);

		if (kvc_overlay_find(&c->over, KVC_T_XATTR, ino, 0, name))
			continue;
		while (!err && i < t.n && strcmp(t.v[i], name) < 0)
			err = list_one(list, capacity, &used, t.v[i++]);
		err = err ?: list_one(list, capacity, &used, name);
	}
	done(n, st, 0);
	while (!err && got >= 0 && i < t.n)
		err = list_one(list, capacity, &used, t.v[i++]);
	free(t.v);
	*len = used;
	return err ?: got < 0 ? got : 0;
}

static void sum_one(struct kvc_xattr_sum *sum, const char *except, const char *name, size_t value)
{
	if (!strcmp(name, except))
		return;
	sum->n++;
	sum->names += strlen(name) + 1;
	sum->values += value;
}

/* Is it known that SQLite has no attribute of this inode? */
static bool is_bare(struct kvc_catalog *c, uint64_t ino)
{
	const struct kvc_bare *b = &c->bare[ino % KVC_BARE];

	return b->ino == ino && !kvc_overlay_inode_since(&c->over, ino, b->age);
}

int kvc_xattr_sum(struct kvc_catalog *c, uint64_t ino, const char *except,
		  struct kvc_xattr_sum *sum)
{
	struct kvc_conn *n;
	sqlite3_stmt *st;
	int got = 0;

	*sum = (struct kvc_xattr_sum){ 0 };
	for (struct kvc_change *x = NULL; (x = kvc_overlay_xattr(&c->over, ino, x));)
		if (!x->gone)
			sum_one(sum, except, x->text, x->len);
	if (kvc_wiped(c, ino) || is_bare(c, ino))
		return 0;
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_XATTR_SIZES, "i", I(ino));
	while ((got = kvc_sql_step(n, st)) == 1) {
		const char *name = (const char *)sqlite3_column_text(st, 0);

		if (!kvc_overlay_find(&c->over, KVC_T_XATTR, ino, 0, name))
			sum_one(sum, except, name, kvc_sql_u64(st, 1));
	}
	return done(n, st, got);
}

/* ---- chunks ---- */

/*
 * Returns the first pending row after r in the order ix, or NULL if none exists. `first` is the
 * policy class, the model or the tenant that the row must have. In the order of expiry it is a
 * time, and the chunk must have expired by then.
 */
static const struct kvc_chunk_row *pending_after(struct kvc_catalog *c, enum kvc_order ix,
						 uint64_t first, const struct kvc_chunk_row *r)
{
	const struct kvc_change *x =
		ix == KVC_IX_EXPIRE ? kvc_overlay_after(&c->over, ix, r->expires_ns, r->id, 0, NULL)
				    : kvc_overlay_after(&c->over, ix, first,
							kvc_overlay_rank(r->rank), r->id, NULL);
	const struct kvc_chunk_row *row = x ? x->value : NULL;
	bool belongs = row && (ix == KVC_IX_RANK     ? row->policy == first
			       : ix == KVC_IX_QUOTA  ? row->quota == first
			       : ix == KVC_IX_TENANT ? row->tenant == first
						     : row->expires_ns <= first);

	return belongs ? row : NULL;
}

static bool is_before(enum kvc_order ix, const struct kvc_chunk_row *a,
		      const struct kvc_chunk_row *b)
{
	if (ix == KVC_IX_EXPIRE)
		return a->expires_ns != b->expires_ns ? a->expires_ns < b->expires_ns
						      : a->id < b->id;
	return a->rank != b->rank ? a->rank < b->rank : a->id < b->id;
}

/* Returns the next row of a query for which there is no pending change: 1, or 0 at the end. */
static int next_unchanged(struct kvc_catalog *c, struct kvc_conn *n, sqlite3_stmt *st,
			  struct kvc_chunk_row *r)
{
	int got;

	while ((got = kvc_sql_step(n, st)) == 1)
		if (!kvc_overlay_find(&c->over, KVC_T_CHUNK, kvc_sql_u64(st, 0), 0, NULL))
			break;
	if (got == 1)
		kvc_chunk_columns(st, r);
	return got;
}

/*
 * Collects up to `capacity` rows after `r` in that order, from the query and from the pending
 * changes.
 */
static int next_chunks(struct kvc_catalog *c, struct kvc_conn *n, sqlite3_stmt *st,
		       enum kvc_order ix, uint64_t first, const struct kvc_chunk_row *r,
		       size_t capacity, struct kvc_chunk_row *out, size_t *count)
{
	const struct kvc_chunk_row *over = pending_after(c, ix, first, r);
	struct kvc_chunk_row row;
	int got = next_unchanged(c, n, st, &row);

	for (*count = 0; *count < capacity && got >= 0 && (got || over); (*count)++) {
		bool is_pending = !got || (over && is_before(ix, over, &row));

		out[*count] = is_pending ? *over : row;
		if (*count + 1 == capacity)
			continue;
		if (is_pending)
			over = pending_after(c, ix, first, &out[*count]);
		else
			got = next_unchanged(c, n, st, &row);
	}
	done(n, st, 0);
	return got < 0 ? got : *count < capacity ? -ENOENT : 0;
}

int kvc_chunk_ranked(struct kvc_catalog *c, const struct kvc_chunk_row *after, size_t capacity,
		     struct kvc_chunk_row *out, size_t *count)
{
	uint64_t class = after->policy;
	struct kvc_conn *n = kvc_reader_get_held(c);
	sqlite3_stmt *st = kvc_sql(n, ST_CHUNK_RANKED, "iii", I(class), I(after->rank),
				   I(after->id));

	return next_chunks(c, n, st, KVC_IX_RANK, class, after, capacity, out, count);
}

int kvc_chunk_next_ranked(struct kvc_catalog *c, struct kvc_chunk_row *r)
{
	size_t n;

	return kvc_chunk_ranked(c, r, 1, r, &n);
}

/* Gets the next chunk of an owner (a model or a tenant), in an order that begins with the owner. */
static int next_owned(struct kvc_catalog *c, enum kvc_statement which, enum kvc_order index,
		      uint64_t owner, struct kvc_chunk_row *r)
{
	struct kvc_conn *n;
	sqlite3_stmt *st;
	size_t one;

	if (!owner)
		return -ENOENT;
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, which, "iii", I(owner), I(r->rank), I(r->id));
	return next_chunks(c, n, st, index, owner, r, 1, r, &one);
}

int kvc_chunk_next_quota(struct kvc_catalog *c, uint64_t model, struct kvc_chunk_row *r)
{
	return next_owned(c, ST_CHUNK_QUOTA, KVC_IX_QUOTA, model, r);
}

int kvc_chunk_next_tenant(struct kvc_catalog *c, uint64_t tenant, struct kvc_chunk_row *r)
{
	return next_owned(c, ST_CHUNK_TENANT, KVC_IX_TENANT, tenant, r);
}

int kvc_chunk_tenants(struct kvc_catalog *c,
		      void (*fn)(void *arg, uint64_t tenant, uint64_t chunks, uint64_t bytes),
		      void *arg)
{
	int got = kvc_catalog_flush(c, 1u << KVC_T_CHUNK);
	struct kvc_conn *n;
	sqlite3_stmt *st;

	if (got)
		return got;
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_CHUNK_TENANTS, "");
	while ((got = kvc_sql_step(n, st)) == 1)
		fn(arg, kvc_sql_u64(st, 0), kvc_sql_u64(st, 1), kvc_sql_u64(st, 2));
	return done(n, st, got);
}

int kvc_chunk_next_expired(struct kvc_catalog *c, uint64_t now_ns, struct kvc_chunk_row *r)
{
	struct kvc_conn *n = kvc_reader_get_held(c);
	sqlite3_stmt *st = kvc_sql(n, ST_CHUNK_EXPIRED, "iii", I(r->expires_ns), I(r->id),
				   I(now_ns));
	size_t one;

	return next_chunks(c, n, st, KVC_IX_EXPIRE, now_ns, r, 1, r, &one);
}

int kvc_chunk_some_pinned(struct kvc_catalog *c, uint64_t after, size_t capacity,
			  struct kvc_chunk_row *out, size_t *count)
{
	int got = kvc_catalog_flush(c, 1u << KVC_T_CHUNK);
	struct kvc_conn *n;
	sqlite3_stmt *st;

	*count = 0;
	if (got)
		return got;
	n = kvc_reader_get_held(c);
	st = kvc_sql(n, ST_CHUNK_PINNED, "ii", I(after), I(capacity));
	while (*count < capacity && (got = kvc_sql_step(n, st)) == 1)
		kvc_chunk_columns(st, &out[(*count)++]);
	got = done(n, st, got);
	return got < 0 ? got : 0;
}

struct rows {
	struct kvc_chunk_row *v;
	size_t n, capacity;
};

/* Collects the chunks of a query. After an error *a is empty. */
static int chunks(struct kvc_catalog *c, struct kvc_conn *n, sqlite3_stmt *st, struct rows *a)
{
	int got, err = 0;

	(void)c;
	while (!err && (got = kvc_sql_step(n, st))) {
		err = got < 0 ? got : kvc_grow(&a->v, a->n, &a->capacity, sizeof *a->v);
		if (!err)
			kvc_chunk_columns(st, &a->v[a->n++]);
	}
	done(n, st, 0);
	if (err) {
		free(a->v);
		*a = (struct rows){ 0 };
	}
	return err;
}

int kvc_chunk_rerank(struct kvc_catalog *c, int64_t (*rank)(const struct kvc_chunk_row *r))
{
	uint64_t after = 0;
	size_t n;
	int err;

	do {
		struct rows a = { 0 };
		struct kvc_conn *r;

		/*
		 * commit pending changes first; the walk's own changes concern earlier rows, so
		 * commit them only when they become many
		 */
		err = !after || c->over.bytes > HEAVY ? kvc_catalog_flush(c, 0) : 0;
		if (err)
			return err;
		r = kvc_reader_get_held(c);
		err = chunks(c, r, kvc_sql(r, ST_CHUNK_ALL, "i", I(after)), &a);
		for (size_t i = 0; i < a.n && !err; i++) {
			a.v[i].rank = rank(&a.v[i]);
			if (!a.v[i].policy)
				a.v[i].facts = a.v[i].pool_facts = 0;
			after = a.v[i].id;
			err = kvc_chunk_put(c, &a.v[i]);
		}
		n = a.n;
		free(a.v);
	} while (!err && n == 1024);
	return err;
}

/* ---- objects and placements ---- */

int kvc_object_each_unplaced(struct kvc_catalog *c,
			     int (*fn)(void *arg, uint64_t ino, const struct kvc_object_row *o),
			     void *arg)
{
	struct {
		uint64_t ino;
		struct kvc_object_row o;
	} batch[BATCH];
	uint64_t after = 0;
	int n, got = 0;

	do {
		/* fn changes only objects that it was given, or deletes later ones */
		int err = !after || c->over.bytes > HEAVY ? kvc_catalog_flush(c, 0) : 0;

		if (err)
			return err;
		struct kvc_conn *r = kvc_reader_get_held(c);
		sqlite3_stmt *st = kvc_sql(r, ST_OBJECT_UNPLACED, "i", I(after));

		for (n = 0; n < BATCH && (got = kvc_sql_step(r, st)) == 1; n++) {
			batch[n].ino = after = kvc_sql_u64(st, 0);
			kvc_object_columns(st, 1, &batch[n].o);
		}
		done(r, st, 0);
		if (n < BATCH && got < 0)
			return got;
		for (int i = 0; i < n; i++) {
			const struct kvc_change *x = kvc_overlay_find(&c->over, KVC_T_OBJECT,
								      batch[i].ino, 0, NULL);

			if (kvc_wiped(c, batch[i].ino) ||
			    (x && (x->gone || ((struct kvc_object_row *)x->value)->lower)))
				continue;
			if ((got = fn(arg, batch[i].ino, &batch[i].o)))
				return got;
		}
	} while (n == BATCH);
	return 0;
}

int kvc_place_each(struct kvc_catalog *c, unsigned tier,
		   int (*fn)(void *arg, uint64_t ino, const struct kvc_place *p), void *arg)
{
	int got = kvc_catalog_flush(c, 1u << KVC_T_PLACE | 1u << KVC_T_ROW);
	struct kvc_conn *n;
	sqlite3_stmt *st;

	if (got)
		return got;
	n = kvc_scan_get(c);
	st = kvc_sql(n, ST_PLACE_EACH, "i", I(tier));
	while ((got = kvc_sql_step(n, st)) == 1) {
		struct kvc_place p = kvc_place_columns(st);

		if ((got = fn(arg, kvc_sql_u64(st, 11), &p)))
			break;
	}
	return done(n, st, got);
}

int kvc_place_next(struct kvc_catalog *c, uint64_t *ino, unsigned *tier, size_t capacity,
		   struct kvc_placed *out, size_t *count)
{
	struct kvc_conn *n = kvc_reader_get_held(c);
	sqlite3_stmt *st;
	int got = 0;

	*count = 0;
	st = kvc_sql(n, ST_PLACE_NEXT, "ii", I(*ino), I(*tier));
	for (; *count < capacity && (got = kvc_sql_step(n, st)) == 1; ++*count) {
		out[*count].ino = *ino = kvc_sql_u64(st, 11);
		out[*count].tier = *tier = (unsigned)kvc_sql_u64(st, 0);
		out[*count].place = kvc_place_columns(st);
	}
	got = done(n, st, got);
	return got < 0 ? got : 0;
}
