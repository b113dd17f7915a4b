/* SPDX-License-Identifier: Apache-2.0 */
/* See replay.h: traces, and their replay. SQLite reads the JSON. */
#include "replay.h"

#include "chain.h"
#include "tool.h"

#include <sqlite3.h>
#include <string.h>

/* Room for one more element. */
static int room_for(void *array, size_t bytes, uint64_t n)
{
	void **v = array, *p;

	if (n & (n - 1) || (n && n < 1024))
		return 0; /* arrays double at powers of two, from 1024 on */
	p = realloc(*v, (n ? n * 2 : 1024) * bytes);
	if (!p)
		return -ENOMEM;
	*v = p;
	return 0;
}

/* One request. ids: from the numbers of the file to ours. */
static int take_line(struct kvm_trace *t, struct kvc_chain *ids, sqlite3_stmt *st)
{
	int got;

	if (room_for(&t->at, sizeof *t->at, t->requests + 1ull))
		return -ENOMEM;
	while ((got = sqlite3_step(st)) == SQLITE_ROW) {
		uint64_t id = (uint64_t)sqlite3_column_int64(st, 0) + 1 ?: UINT64_MAX;
		uint32_t slot = kvc_chain_find(ids, id);

		if (sqlite3_column_type(st, 0) != SQLITE_INTEGER)
			return -EINVAL;
		if (slot == KVC_NO_SLOT)
			slot = kvc_chain_add(ids, id, KVC_NO_SLOT, 0);
		if (slot == KVC_NO_SLOT || room_for(&t->id, sizeof *t->id, t->accesses))
			return -ENOMEM;
		t->id[t->accesses++] = slot;
	}
	t->at[++t->requests] = t->accesses;
	return got == SQLITE_DONE ? 0 : got == SQLITE_NOMEM ? -ENOMEM : -EINVAL;
}

static int take_all(struct kvm_trace *t, FILE *f, struct kvc_chain *ids, sqlite3_stmt *st)
{
	KVC_MEM char *line = NULL;
	size_t room = 0;
	uint64_t nr = 0;
	ssize_t n;
	int err;

	while ((n = getline(&line, &room, f)) > 0) {
		nr++;
		if (strspn(line, " \t\r\n") == (size_t)n)
			continue;
		sqlite3_reset(st);
		sqlite3_bind_text(st, 1, line, (int)n, SQLITE_STATIC);
		err = take_line(t, ids, st);
		if (err == -EINVAL)
			return kvm_fail("%s, line %llu: not a request, which is {\"hash_ids\": "
					"[NUMBER, ...]}",
					t->name, (unsigned long long)nr);
		if (err)
			return kvm_fail("%s: %s", t->name, strerror(-err));
	}
	t->chunks = ids->n;
	return t->accesses ? 0 : kvm_fail("%s has no request with a chunk", t->name);
}

int kvm_trace_read(struct kvm_trace *t, const char *path)
{
	/* a line without hash_ids gives one row that is no number */
	static const char *const sql =
		"SELECT value FROM json_each(?1, '$.hash_ids') "
		"UNION ALL SELECT 'none' WHERE json_type(?1, '$.hash_ids') IS NOT 'array'";
	FILE *f = fopen(path, "re");
	sqlite3 *db = NULL;
	sqlite3_stmt *st = NULL;
	struct kvc_chain ids;
	int rc;

	*t = (struct kvm_trace){ .name = path };
	if (!f)
		return kvm_fail("%s: %s", path, strerror(errno));
	if (kvc_chain_init(&ids, false, false)) {
		fclose(f);
		return kvm_fail("%s", strerror(ENOMEM));
	}
	t->at = calloc(1024, sizeof *t->at);
	if (!t->at || sqlite3_open(":memory:", &db) || sqlite3_prepare_v2(db, sql, -1, &st, NULL))
		rc = kvm_fail("cannot read JSON: %s", db ? sqlite3_errmsg(db) : strerror(ENOMEM));
	else
		rc = take_all(t, f, &ids, st);
	sqlite3_finalize(st);
	sqlite3_close(db);
	kvc_chain_fini(&ids);
	fclose(f);
	return rc;
}

void kvm_trace_free(struct kvm_trace *t)
{
	free(t->id);
	free(t->at);
	*t = (struct kvm_trace){ 0 };
}

/* One cache of a replay. */
struct cache {
	struct kvc_keep *keep;
	struct kvc_request request;
	uint64_t room;
	bool whole; /* all of the request so far is here */
};

static int open_cache(struct cache *c, const struct kvc_keep_conf *conf)
{
	*c = (struct cache){ .room = conf ? conf->chunks : 0 };
	return conf && conf->chunks ? kvc_keep_open(&c->keep, conf) : 0;
}

static void close_cache(struct cache *c)
{
	kvc_keep_close(c->keep);
	kvc_request_free(&c->request);
}

/* Asks for a chunk, and stores it where it is not there: 1: it was there. */
static int ask(struct cache *c, uint64_t id, uint64_t parent)
{
	uint64_t victim;

	if (!c->keep)
		return 0;
	if (kvc_keep_touch(c->keep, &c->request, id))
		return 1;
	if (parent && !c->whole)
		return 0; /* without what it follows it is of no use */
	if (kvc_keep_chunks(c->keep) >= c->room) {
		victim = kvc_keep_victim(c->keep);
		if (!victim || !kvc_keep_wants(c->keep, &c->request, 1, victim)) {
			c->whole = false;
			return 0;
		}
		kvc_keep_del(c->keep, victim, true);
	}
	return kvc_keep_add(c->keep, &c->request, id, parent, 1);
}

int kvm_replay(const struct kvm_trace *t, const struct kvc_keep_conf *pool,
	       const struct kvc_keep_conf *disk, bool chains, struct kvm_share *out)
{
	struct cache c[2];
	uint64_t asked = 0, hits[2] = { 0 }, began = kvc_mono_ns();
	int err = open_cache(&c[0], pool) ?: open_cache(&c[1], disk), got[2];

	for (uint32_t r = 0; r < t->requests && !err; r++) {
		bool all = true;

		for (int i = 0; i < 2 && c[i].keep; i++) {
			kvc_keep_begin(c[i].keep, &c[i].request);
			c[i].whole = true;
		}
		for (uint64_t a = t->at[r]; a < t->at[r + 1] && !err; a++) {
			uint64_t parent = chains && a > t->at[r] ? t->id[a - 1] + 1ull : 0;

			for (int i = 0; i < 2; i++)
				if ((got[i] = ask(&c[i], t->id[a] + 1ull, parent)) < 0)
					err = got[i];
			all = all && (got[0] > 0 || got[1] > 0);
			if (r < t->requests / 2)
				continue;
			asked++;
			hits[0] += all && got[0] > 0;
			hits[1] += all && got[0] <= 0;
		}
		for (int i = 0; i < 2 && c[i].keep; i++)
			kvc_keep_end(c[i].keep, &c[i].request);
	}
	*out = (struct kvm_share){
		.pool = asked ? (double)hits[0] / (double)asked : 0,
		.disk = asked ? (double)hits[1] / (double)asked : 0,
		.accesses_per_s = (double)t->accesses * 1e9 / (double)(kvc_mono_ns() - began + 1),
		.bytes = c[0].keep ? kvc_keep_bytes(c[0].keep) : 0,
	};
	if (c[0].keep)
		kvc_keep_text(c[0].keep, out->text, sizeof out->text);
	close_cache(&c[0]);
	close_cache(&c[1]);
	return err;
}
