/* SPDX-License-Identifier: Apache-2.0 */
/* See shadow.h: compares the catalog with the model. */
#include "shadow.h"

#include <stdio.h>
#include <string.h>

char wrong[512];

static int differs(const char *what, uint64_t a, uint64_t b, int err)
{
	snprintf(wrong, sizeof wrong, "%s %llu %llu: %d", what, (unsigned long long)a,
		 (unsigned long long)b, err);
	return 1;
}

#define GIVE_UP(err) ((err) < 0 && (err) != -ENOENT)

struct walk {
	const struct model *m;
	int p;
	int seen;
	uint64_t last_hash;
	char last[300];
	bool bad;
};

static int walk_name(void *arg, const struct kvc_name *n)
{
	struct walk *w = arg;
	int i;

	for (i = 0; i < NAMES && strcmp(name_text(i), n->name); i++)
		;
	w->bad |= i == NAMES || !w->m->name[w->p][i].there || w->m->name[w->p][i].ino != n->ino ||
		  w->m->name[w->p][i].kind != n->kind || n->hash != kvc_name_hash(n->name) ||
		  n->hash < w->last_hash ||
		  (n->hash == w->last_hash && strcmp(n->name, w->last) <= 0) ||
		  n->parent != parent_of(w->p);
	w->last_hash = n->hash;
	snprintf(w->last, sizeof w->last, "%s", n->name);
	return ++w->seen > NAMES ? w->bad = true : 0;
}

static int walk_of(void *arg, const struct kvc_name *n)
{
	struct walk *w = arg;

	w->bad |= n->ino != ino_of(w->p);
	return ++w->seen > PARENTS * NAMES ? w->bad = true : 0;
}

static int compare_names(struct kvc_catalog *c, const struct model *m)
{
	for (int p = 0; p < PARENTS; p++) {
		uint64_t after = draw(2) ? 0 : kvc_name_hash(name_text((int)draw(NAMES)));
		struct walk w = { .m = m, .p = p };
		int want = 0, err;

		for (int n = 0; n < NAMES; n++) {
			uint64_t ino;
			uint32_t kind;

			err = kvc_name_get(c, parent_of(p), name_text(n), &ino, &kind);
			if (GIVE_UP(err))
				return err;
			if (!err != m->name[p][n].there ||
			    (!err && (ino != m->name[p][n].ino || kind != m->name[p][n].kind)))
				return differs("name", (uint64_t)p, (uint64_t)n, err);
			if (m->name[p][n].there &&
			    kvc_name_absent(c, parent_of(p), kvc_name_hash(name_text(n))))
				return differs("filter", (uint64_t)p, (uint64_t)n, 0);
			want += m->name[p][n].there && kvc_name_hash(name_text(n)) > after;
		}
		err = kvc_name_each(c, parent_of(p), after, walk_name, &w);
		if (err < 0)
			return err;
		if (w.bad || w.seen != want)
			return differs("names of", (uint64_t)p, (uint64_t)w.seen, want);
	}
	for (int i = 0; i < INOS; i++) {
		struct walk w = { .m = m, .p = i };
		int want = 0, err = kvc_name_of(c, ino_of(i), walk_of, &w);

		for (int p = 0; p < PARENTS; p++)
			for (int n = 0; n < NAMES; n++)
				want += m->name[p][n].there && m->name[p][n].ino == ino_of(i);
		if (err < 0)
			return err;
		if (w.bad || w.seen != want)
			return differs("names of inode", (uint64_t)i, (uint64_t)w.seen, want);
	}
	return 0;
}

static int compare_attrs(struct kvc_catalog *c, const struct model *m, int i)
{
	char list[256], want[256];
	size_t len = sizeof list, n = 0;
	int err;
	static const int in_order[ATTRS] = { 1, 0, 2, 3 };

	for (int a = 0; a < ATTRS; a++) {
		uint8_t value[64];
		size_t l = sizeof value;

		err = kvc_xattr_get(c, ino_of(i), attr_text(a), value, &l);
		if (GIVE_UP(err))
			return err;
		if (!err != m->attr[i][a].there ||
		    (!err && (l != m->attr[i][a].len || memcmp(value, m->attr[i][a].value, l))))
			return differs("attribute", (uint64_t)i, (uint64_t)a, err);
		if (m->attr[i][in_order[a]].there)
			n += (size_t)sprintf(want + n, "%s", attr_text(in_order[a])) + 1;
	}
	err = kvc_xattr_list(c, ino_of(i), list, &len);
	if (GIVE_UP(err))
		return err;
	return len != n || memcmp(list, want, n) ? differs("attributes", (uint64_t)i, len, err) : 0;
}

static int compare_nodes(struct kvc_catalog *c, const struct model *m)
{
	for (int i = 0; i < INOS; i++) {
		struct kvc_row r;
		struct kvc_object_row o;
		struct kvc_place p[KVC_TIERS];
		char text[64];
		int err = kvc_row_get(c, ino_of(i), &r);

		if (GIVE_UP(err))
			return err;
		if (!err != m->row[i].there ||
		    (!err && (r.size != m->row[i].r.size || r.uid != m->row[i].r.uid ||
			      r.atime_ns != m->row[i].r.atime_ns || r.gid != m->row[i].r.gid ||
			      r.container != m->row[i].r.container || r.ino != ino_of(i))))
			return differs("row", (uint64_t)i, 0, err);
		err = kvc_object_get(c, ino_of(i), &o);
		if (GIVE_UP(err))
			return err;
		if (!err != m->object[i].there ||
		    (!err &&
		     (o.gen != m->object[i].o.gen || o.size != m->object[i].o.size ||
		      o.lower != m->object[i].o.lower || o.decoded != m->object[i].o.decoded ||
		      o.has_sum != m->object[i].o.has_sum ||
		      (o.has_sum && memcmp(o.sum.b, m->object[i].o.sum.b, 16)))))
			return differs("object", (uint64_t)i, 0, err);
		err = kvc_target_get(c, ino_of(i), text, sizeof text);
		if (GIVE_UP(err))
			return err;
		if (!err != m->target[i].there || (!err && strcmp(text, m->target[i].text)))
			return differs("target", (uint64_t)i, 0, err);
		if ((err = kvc_place_get(c, ino_of(i), p)))
			return err;
		for (unsigned t = 0; t < KVC_TIERS; t++)
			if (p[t].gen != m->place[i][t].gen ||
			    (p[t].gen && (p[t].where.at != m->place[i][t].where.at ||
					  p[t].codec != m->place[i][t].codec ||
					  p[t].error_ppm != m->place[i][t].error_ppm ||
					  p[t].worst_ppm != m->place[i][t].worst_ppm ||
					  memcmp(p[t].raw.b, m->place[i][t].raw.b, 16) ||
					  memcmp(p[t].sum.b, m->place[i][t].sum.b, 16))))
				return differs("place", (uint64_t)i, t, 0);
		if ((err = compare_attrs(c, m, i)))
			return err;
	}
	return 0;
}

static int compare_expired(struct kvc_catalog *c, const struct model *m)
{
	uint64_t now = draw(60);
	struct kvc_chunk_row r = { 0 };
	int seen = 0, want = 0, err;

	for (int i = 0; i < CHUNKS; i++)
		want += m->chunk[i].there && m->chunk[i].r.expires_ns &&
			m->chunk[i].r.expires_ns <= now;
	for (;;) {
		struct kvc_chunk_row last = r;
		int i;

		err = kvc_chunk_next_expired(c, now, &r);
		if (GIVE_UP(err))
			return err;
		if (err || ++seen > want)
			break;
		i = (int)r.id - 500;
		if (i < 0 || i >= CHUNKS || !m->chunk[i].there || !r.expires_ns ||
		    m->chunk[i].r.expires_ns != r.expires_ns || r.expires_ns > now ||
		    r.expires_ns < last.expires_ns ||
		    (r.expires_ns == last.expires_ns && r.id <= last.id))
			return differs("expired", now, r.id, 0);
	}
	return seen != want ? differs("expired", now, (uint64_t)seen, want) : 0;
}

/* Compares a walk over the chunks of a policy, or of a quota, in order. */
static int compare_order(struct kvc_catalog *c, const struct model *m, bool by_quota, uint64_t of)
{
	struct kvc_chunk_row r = { .rank = INT64_MIN, .policy = (unsigned)of };
	int seen = 0, want = 0, err;

	for (int i = 0; i < CHUNKS; i++)
		want += m->chunk[i].there &&
			(by_quota ? m->chunk[i].r.quota : m->chunk[i].r.policy) == of;
	for (;;) {
		struct kvc_chunk_row last = r;
		int i;

		err = by_quota ? kvc_chunk_next_quota(c, of, &r) : kvc_chunk_next_ranked(c, &r);
		if (GIVE_UP(err))
			return err;
		if (err || ++seen > want)
			break;
		i = (int)r.id - 500;
		if (i < 0 || i >= CHUNKS || !m->chunk[i].there || m->chunk[i].r.rank != r.rank ||
		    (by_quota ? m->chunk[i].r.quota != of : m->chunk[i].r.policy != of) ||
		    r.rank < last.rank || (r.rank == last.rank && r.id <= last.id))
			return differs("order", of, r.id, 0);
	}
	return seen != want ? differs("length of order", of, (uint64_t)seen, want) : 0;
}

/* Reading several chunks of a policy at once returns the same as reading one after another. */
static int compare_batches(struct kvc_catalog *c, uint64_t policy, size_t capacity)
{
	struct kvc_chunk_row one = { .rank = INT64_MIN, .policy = (unsigned)policy }, some[CHUNKS];
	struct kvc_chunk_row after = one;
	size_t n;
	int err;

	do {
		err = kvc_chunk_ranked(c, &after, capacity, some, &n);
		if (GIVE_UP(err))
			return err;
		if (n > capacity || (!err && n < capacity))
			return differs("rows at once", policy, n, (int)capacity);
		for (size_t i = 0; i < n; i++) {
			int got = kvc_chunk_next_ranked(c, &one);

			if (GIVE_UP(got))
				return got;
			if (got || one.id != some[i].id || one.rank != some[i].rank)
				return differs("row at once", policy, some[i].id, got);
		}
		after = n ? some[n - 1] : after;
		after.policy = (unsigned)policy;
	} while (!err);
	err = kvc_chunk_next_ranked(c, &one);
	if (GIVE_UP(err))
		return err;
	return err ? 0 : differs("end of rows at once", policy, one.id, 0);
}

static int compare_chunks(struct kvc_catalog *c, const struct model *m)
{
	int err;

	for (int i = 0; i < CHUNKS; i++) {
		struct kvc_chunk_row r;

		err = kvc_chunk_get(c, 500 + (uint64_t)i, &r);
		if (GIVE_UP(err))
			return err;
		if (!err != m->chunk[i].there ||
		    (!err && (r.rank != m->chunk[i].r.rank || r.hits != m->chunk[i].r.hits ||
			      r.quota != m->chunk[i].r.quota)))
			return differs("chunk", (uint64_t)i, 0, err);
	}
	for (uint64_t p = 0; p < 3; p++)
		if ((err = compare_order(c, m, false, p)) ||
		    (err = compare_batches(c, p, 1 + (m->chunk[0].r.hits + p) % CHUNKS)))
			return err;
	for (uint64_t q = 40; q < 42; q++)
		if ((err = compare_order(c, m, true, q)))
			return err;
	return compare_expired(c, m);
}

static int compare_rest(struct kvc_catalog *c, const struct model *m)
{
	char key[64] = "quota:", value[64], text[64];
	int seen = 0, want = 0, err;

	for (int i = 0; i < GONES; i++) {
		struct kvc_where w = gone_of(i);

		err = kvc_gone_get(c, &w, clock_ns);
		if (GIVE_UP(err))
			return err;
		if (!err != (m->gone[i] > clock_ns))
			return differs("gone", (uint64_t)i, m->gone[i], err);
	}
	for (int i = 0; i < METAS; i++) {
		err = kvc_meta_get(c, meta_text(i), text, sizeof text);
		if (GIVE_UP(err))
			return err;
		if (!err != !!m->meta[i][0] || (!err && strcmp(text, m->meta[i])))
			return differs("meta", (uint64_t)i, 0, err);
		want += i >= 1 && i <= 3 && m->meta[i][0];
	}
	while (!(err = kvc_meta_next(c, "quota:", key, value, sizeof value))) {
		if ((err = kvc_meta_get(c, key, text, sizeof text)))
			break;
		if (++seen > METAS || strcmp(text, value))
			break;
	}
	if (GIVE_UP(err))
		return err;
	return err != -ENOENT || seen != want
		       ? differs("metas", (uint64_t)seen, (uint64_t)want, err)
		       : 0;
}

int compare(struct kvc_catalog *c, const struct model *m)
{
	int err = compare_names(c, m) ?: compare_nodes(c, m);

	return err ?: compare_chunks(c, m) ?: compare_rest(c, m);
}
