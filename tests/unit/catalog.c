/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog against a model of it: random changes, commits and failures, all reads compared all
 * the time; and a sweep, in which the Nth call that SQLite makes of its filesystem (or of malloc)
 * fails, once or from then on, for every N that a scripted workload has: what was acknowledged
 * stays readable, what was committed is there after a kill at that point.
 *
 * SEED repeats a random run, STEPS sets its length; SWEEP=all tries every error at every N.
 */
#include "catalog_check.h"
#include "catalog_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

/* ---- faults: a VFS over the default one, and malloc ---- */

enum fault { NONE, DISK, MEMORY };
static _Atomic enum fault armed; /* the catalog's threads come by, too */
static _Atomic long calls, fail_at, failures;
static _Atomic bool for_ever;
static _Atomic int fail_with;

static bool fails(enum fault of)
{
	if (armed != of)
		return false;
	calls++;
	if (!fail_at || (for_ever ? calls < fail_at : calls != fail_at))
		return false;
	failures++;
	return true;
}

static void arm(enum fault of, long at, bool ever, int with)
{
	armed = of;
	calls = failures = 0;
	fail_at = at;
	for_ever = ever;
	fail_with = with;
}

struct shim {
	sqlite3_file base;
	sqlite3_file *real;
};
static sqlite3_vfs *real_vfs, shim_vfs;
static sqlite3_io_methods shim_io;
#define REAL(f) (((struct shim *)(f))->real)

static int x_close(sqlite3_file *f)
{
	return REAL(f)->pMethods ? REAL(f)->pMethods->xClose(REAL(f)) : SQLITE_OK;
}
static int x_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
	return REAL(f)->pMethods->xRead(REAL(f), p, n, at);
}
static int x_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
	return fails(DISK) ? fail_with : REAL(f)->pMethods->xWrite(REAL(f), p, n, at);
}
static int x_truncate(sqlite3_file *f, sqlite3_int64 size)
{
	return fails(DISK) ? fail_with : REAL(f)->pMethods->xTruncate(REAL(f), size);
}
static int x_sync(sqlite3_file *f, int flags)
{
	return fails(DISK) ? fail_with : REAL(f)->pMethods->xSync(REAL(f), flags);
}
static int x_size(sqlite3_file *f, sqlite3_int64 *size)
{
	return REAL(f)->pMethods->xFileSize(REAL(f), size);
}
static int x_lock(sqlite3_file *f, int how)
{
	return REAL(f)->pMethods->xLock(REAL(f), how);
}
static int x_unlock(sqlite3_file *f, int how)
{
	return REAL(f)->pMethods->xUnlock(REAL(f), how);
}
static int x_reserved(sqlite3_file *f, int *out)
{
	return REAL(f)->pMethods->xCheckReservedLock(REAL(f), out);
}
static int x_control(sqlite3_file *f, int op, void *arg)
{
	return REAL(f)->pMethods->xFileControl(REAL(f), op, arg);
}
static int x_sector(sqlite3_file *f)
{
	return REAL(f)->pMethods->xSectorSize(REAL(f));
}
static int x_caps(sqlite3_file *f)
{
	return REAL(f)->pMethods->xDeviceCharacteristics(REAL(f));
}
static int x_shm_map(sqlite3_file *f, int page, int size, int extend, void volatile **out)
{
	return fails(DISK) ? fail_with
			   : REAL(f)->pMethods->xShmMap(REAL(f), page, size, extend, out);
}
static int x_shm_lock(sqlite3_file *f, int at, int n, int flags)
{
	return REAL(f)->pMethods->xShmLock(REAL(f), at, n, flags);
}
static void x_shm_barrier(sqlite3_file *f)
{
	REAL(f)->pMethods->xShmBarrier(REAL(f));
}
static int x_shm_unmap(sqlite3_file *f, int del)
{
	return REAL(f)->pMethods->xShmUnmap(REAL(f), del);
}

static int x_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out)
{
	struct shim *s = (struct shim *)f;
	int rc;

	(void)v;
	memset(s, 0, sizeof *s);
	s->real = (sqlite3_file *)(s + 1);
	if (fails(DISK))
		return SQLITE_CANTOPEN;
	rc = real_vfs->xOpen(real_vfs, name, s->real, flags, out);
	if (!rc)
		s->base.pMethods = &shim_io;
	return rc;
}

static void shim_register(void)
{
	real_vfs = sqlite3_vfs_find(NULL);
	shim_vfs = *real_vfs;
	shim_vfs.zName = "shim";
	shim_vfs.szOsFile = (int)sizeof(struct shim) + real_vfs->szOsFile;
	shim_vfs.xOpen = x_open;
	shim_io = (sqlite3_io_methods){
		.iVersion = 2,
		.xClose = x_close,
		.xRead = x_read,
		.xWrite = x_write,
		.xTruncate = x_truncate,
		.xSync = x_sync,
		.xFileSize = x_size,
		.xLock = x_lock,
		.xUnlock = x_unlock,
		.xCheckReservedLock = x_reserved,
		.xFileControl = x_control,
		.xSectorSize = x_sector,
		.xDeviceCharacteristics = x_caps,
		.xShmMap = x_shm_map,
		.xShmLock = x_shm_lock,
		.xShmBarrier = x_shm_barrier,
		.xShmUnmap = x_shm_unmap,
	};
	sqlite3_vfs_register(&shim_vfs, 1);
}

static sqlite3_mem_methods real_mem;
static void *mem_malloc(int n)
{
	return fails(MEMORY) ? NULL : real_mem.xMalloc(n);
}
static void *mem_realloc(void *p, int n)
{
	return fails(MEMORY) ? NULL : real_mem.xRealloc(p, n);
}

static void mem_register(void)
{
	sqlite3_mem_methods m;

	sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real_mem);
	m = real_mem;
	m.xMalloc = mem_malloc;
	m.xRealloc = mem_realloc;
	sqlite3_config(SQLITE_CONFIG_MALLOC, &m);
	sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0); /* so that more of it comes by here */
}

/* ---- the model ---- */

#define INOS 12
#define PARENTS 3
#define NAMES 10
#define ATTRS 4
#define CHUNKS 10
#define GONES 4
#define METAS 5

struct model {
	struct {
		bool there;
		uint64_t ino;
		uint32_t kind;
	} name[PARENTS][NAMES];
	struct {
		bool there;
		struct kvc_row r;
	} row[INOS];
	struct {
		bool there;
		char text[24];
	} target[INOS];
	struct {
		bool there;
		struct kvc_object_row o;
	} object[INOS];
	struct kvc_place place[INOS][KVC_TIERS];
	struct {
		bool there;
		size_t len;
		uint8_t value[24];
	} attr[INOS][ATTRS];
	struct {
		bool there;
		struct kvc_chunk_row r;
	} chunk[CHUNKS];
	uint64_t gone[GONES];
	char meta[METAS][24];
};

static struct model model;
static uint64_t clock_ns;
static uint64_t seed;

static uint64_t draw(uint64_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (seed >> 11) % n;
}

static const char *name_text(int i)
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

static const char *attr_text(int i)
{
	static const char *const all[ATTRS] = {
		"user.b",
		"user.a",
		"user.kvcachefs.unit",
		"user.zz",
	};

	return all[i];
}

static const char *meta_text(int i)
{
	static const char *const all[METAS] = { "policy", "quota:1f", "quota:2", "quota:a0", "zz" };

	return all[i];
}

static uint64_t ino_of(int i)
{
	return 100 + (uint64_t)i;
}

static struct kvc_where gone_of(int i)
{
	return (struct kvc_where){ .at = 7000 + (uint64_t)i, .hi = 9 };
}

/* Folders are numbers below the inodes', so that a name's folder may be anything. */
static uint64_t parent_of(int i)
{
	return 10 + (uint64_t)i;
}

/* ---- one random change, to both ---- */

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
	if ((err = kvc_row_del(c, ino_of(i))))
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
		.gen = draw(100), .size = draw(1 << 30), .lower = draw(2), .has_sum = draw(2)
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
	};

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

static int change(struct kvc_catalog *c)
{
	static int (*const all[])(struct kvc_catalog *) = {
		change_name, change_row,   change_object, change_place,
		change_attr, change_chunk, change_rest,
	};

	return all[draw(sizeof all / sizeof all[0])](c);
}

/* ---- comparing: 0, or the first difference in `wrong`; an error of the catalog is returned ----
 */

static char wrong[512];
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
			if (m->name[p][n].there && kvc_name_absent(c, parent_of(p), name_text(n)))
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
		      o.lower != m->object[i].o.lower || o.has_sum != m->object[i].o.has_sum ||
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

/* Walks those of a policy, or of a quota, in order. */
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
		if ((err = compare_order(c, m, false, p)))
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

static int compare(struct kvc_catalog *c, const struct model *m)
{
	int err = compare_names(c, m) ?: compare_nodes(c, m);

	return err ?: compare_chunks(c, m) ?: compare_rest(c, m);
}

/* ---- the cases ---- */

static char dir[256], path[300];

static void make_dir(void)
{
	const char *tmp = getenv("KV_CASE_TMP");

	snprintf(dir, sizeof dir, "%s/catXXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/catalog.sqlite", dir);
}

static void remove_dir(void)
{
	static const char *const tails[] = { "", "-wal", "-shm" };
	char name[400];

	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof name, "%s%s", path, tails[i]);
		unlink(name);
		snprintf(name, sizeof name, "%s/copy%s", dir, tails[i]);
		unlink(name);
	}
	rmdir(dir);
}

static void copy_file(const char *from, const char *to)
{
	FILE *in = fopen(from, "rb"), *out;
	char buf[65536];
	size_t n;

	unlink(to);
	if (!in)
		return;
	out = fopen(to, "wb");
	assert_non_null(out);
	while ((n = fread(buf, 1, sizeof buf, in)))
		assert_int_equal(fwrite(buf, 1, n, out), n);
	fclose(in);
	fclose(out);
}

static struct kvc_catalog *open_at(const char *at)
{
	struct kvc_catalog *c = NULL;
	char error[512] = "";

	if (kvc_catalog_open(&c, at, error))
		fail_msg("%s", error);
	kvc_catalog_lock(c);
	return c;
}

static void close_it(struct kvc_catalog *c)
{
	kvc_catalog_unlock(c);
	assert_int_equal(kvc_catalog_close(c), 0);
}

static void must(struct kvc_catalog *c, const struct model *m, const char *when)
{
	int err = compare(c, m);

	if (err)
		fail_msg("%s: %s", when, err > 0 ? wrong : strerror(-err));
}

/* A batch that is being written while changes go on, and fails or not. */
static void batch(struct kvc_catalog *c, bool breaks)
{
	int err;

	kvc_catalog_seal(c);
	for (uint64_t n = draw(20); n; n--)
		assert_int_equal(change(c), 0);
	must(c, &model, "while a batch is out");
	kvc_catalog_unlock(c);
	if (breaks)
		arm(DISK, 1, true, draw(2) ? SQLITE_IOERR_WRITE : SQLITE_FULL);
	err = kvc_catalog_write(c);
	if (!breaks)
		assert_int_equal(err, 0);
	arm(NONE, 0, false, 0);
	kvc_catalog_lock(c);
}

static void random_changes(void **state)
{
	int steps = getenv("STEPS") ? atoi(getenv("STEPS")) : 1500;
	struct kvc_catalog *c;

	(void)state;
	seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : kvc_now_ns() | 1;
	print_message("SEED=%llu\n", (unsigned long long)seed);
	make_dir();
	memset(&model, 0, sizeof model);
	assert_int_equal(kvc_catalog_create(path), 0);
	c = open_at(path);
	kvc_catalog_unlock(c);
	assert_int_equal(kvc_catalog_start(c, 1 << 20), 0);
	kvc_catalog_lock(c);
	for (int i = 0; i < steps; i++) {
		for (uint64_t n = draw(8); n; n--)
			assert_int_equal(change(c), 0);
		must(c, &model, "after changes");
		switch (draw(8)) {
		case 0: assert_int_equal(kvc_catalog_commit(c), 0); break;
		case 1: batch(c, false); break;
		case 2: batch(c, true); break;
		case 3:
			arm(DISK, 1, true, SQLITE_IOERR_WRITE);
			kvc_catalog_commit(c);
			arm(NONE, 0, false, 0);
			break;
		}
		must(c, &model, "after a commit");
		if (!draw(100)) {
			close_it(c);
			c = open_at(path);
			must(c, &model, "after it was opened again");
			kvc_catalog_unlock(c);
			assert_int_equal(kvc_catalog_start(c, 1 << 20), 0);
			kvc_catalog_lock(c);
		}
	}
	close_it(c);
	c = open_at(path);
	must(c, &model, "at the end");
	close_it(c);
	remove_dir();
}

#define ROUNDS 6

struct state {
	struct model m[ROUNDS + 1]; /* what a kill may leave: the last that was committed, and what
				       was tried since */
	int n;
};
static struct state may;

/* What a kill now would leave is one of those. */
static void check_kill(const char *when)
{
	char from[400], to[400], copy[400];
	struct kvc_catalog *c;
	int i;

	for (i = 0; i < 2; i++) {
		snprintf(from, sizeof from, "%s%s", path, i ? "-wal" : "");
		snprintf(to, sizeof to, "%s/copy%s", dir, i ? "-wal" : "");
		copy_file(from, to);
	}
	snprintf(to, sizeof to, "%s/copy-shm", dir);
	unlink(to);
	snprintf(copy, sizeof copy, "%s/copy", dir);
	c = open_at(copy);
	for (i = 0; i < may.n && compare(c, &may.m[i]); i++)
		;
	if (i == may.n)
		fail_msg("%s: after a kill: %s", when, wrong);
	close_it(c);
}

/* The workload. Returns whether all its commits went well. */
static bool workload(enum fault of, long at, bool ever, int with, bool kill)
{
	struct kvc_catalog *c = NULL;
	char error[512] = "", when[100];
	bool good = true;
	int err;

	snprintf(when, sizeof when, "%s call %ld fails %s with %d",
		 of == MEMORY ? "memory" : "disk", at, ever ? "for ever" : "once", with);
	seed = 4711;
	clock_ns = 1000;
	make_dir();
	memset(&model, 0, sizeof model);
	assert_int_equal(kvc_catalog_create(path), 0);
	may.m[0] = model;
	may.n = 1;
	arm(of, at, ever, with);
	if (kvc_catalog_open(&c, path, error)) {
		assert_true(failures > 0);
		for_ever = false; /* the next try */
		fail_at = 0;
		c = open_at(path);
		kvc_catalog_unlock(c);
	}
	kvc_catalog_lock(c);
	for (int round = 0; round < ROUNDS; round++) {
		for (int n = 0; n < 40; n++)
			if ((err = change(c)) && !failures)
				fail_msg("%s: a change fails with %s", when, strerror(-err));
		/* With the fault in force a read may fail, but it may not be wrong. */
		err = compare(c, &model);
		if (err > 0 || (err && !failures))
			fail_msg("%s: before a commit: %s", when, err > 0 ? wrong : strerror(-err));
		may.m[may.n++] = model;
		err = kvc_catalog_commit(c);
		if (!err) {
			may.m[0] = model;
			may.n = 1;
		} else if (!failures) {
			fail_msg("%s: a commit fails with %s", when, strerror(-err));
		}
		good &= !err;
		err = compare(c, &model);
		if (err > 0)
			fail_msg("%s: after a commit: %s", when, wrong);
		if (round % 2)
			kvc_catalog_checkpoint(c);
	}
	long all = calls;
	long failed = failures;

	arm(NONE, 0, false, 0);
	if (kill && failed)
		check_kill(when);
	must(c, &model, when);
	assert_int_equal(kvc_catalog_commit(c), 0);
	must(c, &model, when);
	close_it(c);
	c = open_at(path);
	must(c, &model, when);
	close_it(c);
	assert_int_equal(kvc_check_pages(path, false, (kvc_found_fn *)NULL, NULL), 0);
	remove_dir();
	calls = all;
	failures = failed;
	return good;
}

static void sweep(enum fault of, const int *codes, int ncodes, long step)
{
	bool every = getenv("SWEEP") && !strcmp(getenv("SWEEP"), "all");
	long n, hit = 0, bad = 0;

	assert_true(workload(of, 0, false, 0, false));
	n = calls;
	assert_true(n > 50);
	if (every)
		step = 1;
	for (long at = 1; at <= n; at += step)
		for (int ever = 0; ever < 2; ever++)
			for (int i = 0; i < ncodes; i++) {
				if (!every && i != at / step % ncodes)
					continue;
				bad += !workload(of, at, ever, codes[i], true);
				hit += failures > 0;
			}
	print_message("%ld calls, %ld runs met a failure, in %ld of them a commit failed\n", n, hit,
		      bad);
	assert_true(hit > n / step);
	assert_true(bad > 10);
}

static void disk_fails(void **state)
{
	static const int codes[] = { SQLITE_FULL, SQLITE_IOERR_WRITE, SQLITE_IOERR_NOMEM };

	(void)state;
	sweep(DISK, codes, 3, 1);
}

static void memory_fails(void **state)
{
	static const int code = SQLITE_NOMEM;

	(void)state;
	sweep(MEMORY, &code, 1, 97);
}

/* The log stays near its bound however many commits come, and shrinks when nothing goes on. */
static void log_bound(void **state)
{
	const uint64_t bound = 2 << 20;
	struct kvc_catalog_state s;
	struct kvc_catalog *c;
	uint64_t most = 0;

	(void)state;
	seed = 99;
	make_dir();
	assert_int_equal(kvc_catalog_create(path), 0);
	c = open_at(path);
	kvc_catalog_unlock(c);
	assert_int_equal(kvc_catalog_start(c, bound), 0);
	for (uint64_t i = 0; i < 4000; i++) {
		struct kvc_row r = {
			.ino = 1000 + i * 7919 % 100000,
			.mode = S_IFREG | 0644,
			.nlink = 1,
			.size = i,
		};

		kvc_catalog_gate(c);
		kvc_catalog_lock(c);
		for (int n = 0; n < 8; n++, r.ino += 1237)
			assert_int_equal(kvc_row_put(c, &r, NULL), 0);
		kvc_catalog_seal(c);
		kvc_catalog_unlock(c);
		assert_int_equal(kvc_catalog_write(c), 0);
		kvc_catalog_state(c, &s);
		most = kvc_max(most, s.log_bytes);
	}
	print_message("the log was %llu KiB at most\n", (unsigned long long)most >> 10);
	assert_true(most > bound / 2 && most < 3 * bound);
	for (int i = 0; i < 300; i++) {
		kvc_catalog_state(c, &s);
		if (s.log_bytes <= 256 << 10)
			break;
		usleep(100000);
	}
	assert_true(s.log_bytes <= 256 << 10);
	kvc_catalog_lock(c);
	close_it(c);
	remove_dir();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_changes),
		cmocka_unit_test(disk_fails),
		cmocka_unit_test(memory_fails),
		cmocka_unit_test(log_bound),
	};

	mem_register();
	shim_register();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
