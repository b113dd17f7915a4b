/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads traces. Lines of the usual form are parsed by line.h, which takes a tenth of the time;
 * SQLite parses the other lines as JSON. See replay.h.
 */
#include "replay.h"

#include "chain.h"
#include "line.h"
#include "tool.h"

#include <sqlite3.h>
#include <string.h>

/*
 * End of the valid timestamps, in ms: timestamps since 1970 are valid until the year 2286. As ns
 * they still fit in 64 bits.
 */
#define MS_END 1e13

/* Makes room for one more element. */
static int grow_array(void *array, size_t bytes, uint64_t n)
{
	void **v = array, *p;

	if (n & (n - 1) || (n && n < 1024))
		return 0; /* capacities are powers of two, from 1024 on */
	p = realloc(*v, (n ? n * 2 : 1024) * bytes);
	if (!p)
		return -ENOMEM;
	*v = p;
	return 0;
}

static bool has_controls(const char *text)
{
	while ((unsigned char)*text >= ' ')
		text++;
	return *text;
}

/*
 * Parses one request, in rows: its time, its model, what was known about the next one, its chunks,
 * and their sizes.
 */
static int parse_json(struct kvm_line *l, sqlite3_stmt *st)
{
	int got = sqlite3_step(st), err = 0;
	const char *model, *ended;

	l->id.n = l->bytes.n = 0;
	l->ms = got == SQLITE_ROW ? sqlite3_column_double(st, 0) : 0;
	if (got == SQLITE_ROW)
		got = sqlite3_step(st);
	if (got != SQLITE_ROW)
		return got == SQLITE_NOMEM ? -ENOMEM : -EINVAL;
	model = (const char *)sqlite3_column_text(st, 0);
	if (model && (strlen(model) >= sizeof l->model || has_controls(model)))
		return -EINVAL;
	snprintf(l->model, sizeof l->model, "%s", model ?: "");
	if (sqlite3_step(st) != SQLITE_ROW)
		return -EINVAL;
	ended = (const char *)sqlite3_column_text(st, 0);
	if (ended && strlen(ended) >= sizeof l->ended)
		return -EINVAL;
	snprintf(l->ended, sizeof l->ended, "%s", ended ?: "");
	if (sqlite3_step(st) != SQLITE_ROW)
		return -EINVAL;
	l->returns = sqlite3_column_double(st, 0);
	while (!err && (got = sqlite3_step(st)) == SQLITE_ROW) {
		bool size = sqlite3_column_int(st, 1) > 0;

		err = kvm_numbers_add(size ? &l->bytes : &l->id,
				      (uint64_t)sqlite3_column_int64(st, 0));
		if (!size && sqlite3_column_type(st, 0) != SQLITE_INTEGER)
			return -EINVAL;
	}
	return err ?: got == SQLITE_DONE ? 0 : got == SQLITE_NOMEM ? -ENOMEM : -EINVAL;
}

/* The last size of a chunk counts. */
static void set_size(struct kvm_trace *t, const struct kvm_line *l, uint64_t i, uint32_t slot)
{
	uint64_t bytes = l->bytes.n == l->id.n ? l->bytes.v[i] : 0;

	if (bytes && bytes < KVM_BYTES_MOST)
		t->bytes[slot] = bytes;
}

/* Chunks without a size get the mean size. */
static void fill_sizes(struct kvm_trace *t)
{
	double all = 0;
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->chunks; i++) {
		all += (double)t->bytes[i];
		n += t->bytes[i] > 0;
	}
	t->mean = n ? (uint64_t)(all / n) : 0;
	for (uint32_t i = 0; i < t->chunks && n; i++)
		t->bytes[i] = t->bytes[i] ?: t->mean;
}

/* Numbers of the trace's chunks and models. */
struct words {
	struct kvc_chain ids, models;
};

/* Sets the model of the next request. */
static int set_request_model(struct kvm_trace *t, struct kvc_chain *models, const char *name)
{
	uint32_t last = t->requests ? t->model[t->requests - 1] : 0, slot;
	struct kvc_sum sum;
	uint64_t key;

	if (grow_array(&t->model, sizeof *t->model, t->requests))
		return -ENOMEM;
	if (t->requests && !strcmp(t->model_name[last], name)) {
		t->model[t->requests] = last;
		return 0;
	}
	sum = kvc_sum_of(name, strlen(name));
	memcpy(&key, sum.b, sizeof key);
	slot = kvc_chain_find(models, key ?: 1);
	if (slot == KVC_NO_SLOT) {
		if (grow_array(&t->model_name, sizeof *t->model_name, t->models))
			return -ENOMEM;
		slot = kvc_chain_add(models, key ?: 1, KVC_NO_SLOT, 0);
		if (slot == KVC_NO_SLOT || !(t->model_name[slot] = strdup(name)))
			return -ENOMEM;
		t->models++;
	}
	t->model[t->requests] = slot;
	return 0;
}

/* Returns the outlook after the request; a known time tells more than the way in which it ended. */
static int parse_outlook(const struct kvm_line *l, uint8_t *outlook)
{
	static const struct {
		const char *word;
		uint8_t outlook;
	} words[] = {
		{ "", KVC_OUTLOOK_NONE },
		{ "tool", KVC_OUTLOOK_TOOL },
		{ "turn", KVC_OUTLOOK_TURN },
		{ "closed", KVC_OUTLOOK_CLOSED },
	};

	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
		if (!strcmp(l->ended, words[i].word)) {
			*outlook = l->returns > 0 && l->returns < 1e9
					   ? kvc_replacer_returns((uint64_t)l->returns)
					   : words[i].outlook;
			return 0;
		}
	return -EINVAL;
}

/* The same number in two models means two chunks. */
static uint64_t chunk_key(uint32_t model, uint64_t id)
{
	return ((model ? kvc_chain_hash(model) : 0) ^ (id + 1)) ?: UINT64_MAX;
}

static int take_request(struct kvm_trace *t, struct words *w, const struct kvm_line *l)
{
	struct kvc_chain *ids = &w->ids;

	if (set_request_model(t, &w->models, l->model) ||
	    grow_array(&t->at, sizeof *t->at, t->requests + 1ull) ||
	    grow_array(&t->ms, sizeof *t->ms, t->requests) ||
	    grow_array(&t->outlook, sizeof *t->outlook, t->requests))
		return -ENOMEM;
	if (parse_outlook(l, &t->outlook[t->requests]))
		return -EINVAL;
	t->ms[t->requests] = l->ms > 0 && l->ms < MS_END ? l->ms : 0;
	for (uint64_t i = 0; i < l->id.n; i++) {
		uint64_t id = chunk_key(t->model[t->requests], l->id.v[i]);
		uint32_t slot = kvc_chain_find(ids, id);

		if (slot == KVC_NO_SLOT) {
			if (grow_array(&t->bytes, sizeof *t->bytes, ids->n))
				return -ENOMEM;
			slot = kvc_chain_add(ids, id, KVC_NO_SLOT, 0);
			if (slot != KVC_NO_SLOT)
				t->bytes[slot] = 0;
		}
		if (slot == KVC_NO_SLOT || grow_array(&t->id, sizeof *t->id, t->accesses))
			return -ENOMEM;
		set_size(t, l, i, slot);
		t->id[t->accesses++] = slot;
	}
	t->at[++t->requests] = t->accesses;
	return 0;
}

static int read_all(struct kvm_trace *t, FILE *f, struct words *w, sqlite3_stmt *st,
		    struct kvm_line *l)
{
	KVC_MEM char *line = NULL;
	size_t capacity = 0;
	unsigned long long lost;
	uint64_t nr = 0;
	ssize_t n;
	int err;

	while ((n = getline(&line, &capacity, f)) > 0) {
		nr++;
		if (strspn(line, " \t\r\n") == (size_t)n)
			continue;
		err = strlen(line) == (size_t)n ? kvm_line_read(l, line) : -EINVAL;
		if (err == -EINVAL && sscanf(line, " { \"lost\" : %llu }", &lost) == 1) {
			t->lost += lost;
			continue;
		}
		if (err == -EINVAL) {
			sqlite3_reset(st);
			sqlite3_bind_text(st, 1, line, (int)n, SQLITE_STATIC);
			err = parse_json(l, st);
		}
		err = err ?: take_request(t, w, l);
		if (err == -EINVAL)
			return kvm_fail("%s, line %llu: not a request; a request is {\"hash_ids\": "
					"[NUMBER, ...]}",
					t->name, (unsigned long long)nr);
		if (err)
			return kvm_fail("%s: %s", t->name, kvc_why(-err));
	}
	t->chunks = w->ids.n;
	fill_sizes(t);
	if (ferror(f))
		return kvm_fail("%s: %s", t->name, kvc_why(errno));
	return t->accesses ? 0 : kvm_fail("%s has no requests with chunks", t->name);
}

int kvm_trace_read(struct kvm_trace *t, const char *path)
{
	/* A line without hash_ids gives one extra row, which is not a number. */
	static const char *const sql =
		"SELECT json_extract(?1, '$.timestamp'), 0 "
		"UNION ALL SELECT json_extract(?1, '$.model'), 0 "
		"UNION ALL SELECT json_extract(?1, '$.ended'), 0 "
		"UNION ALL SELECT json_extract(?1, '$.returns'), 0 "
		"UNION ALL SELECT value, 0 FROM json_each(?1, '$.hash_ids') "
		"UNION ALL SELECT 'none', 0 WHERE json_type(?1, '$.hash_ids') IS NOT 'array' "
		"UNION ALL SELECT value, 1 FROM json_each(?1, '$.bytes')";
	FILE *f = fopen(path, "re");
	sqlite3 *db = NULL;
	sqlite3_stmt *st = NULL;
	struct kvm_line line = { 0 };
	struct words w = { 0 };
	int rc;

	*t = (struct kvm_trace){ .name = path };
	if (!f)
		return kvm_fail("%s: %s", kvm_shown(path), kvc_why(errno));
	if (kvc_chain_init(&w.ids, false, false) || kvc_chain_init(&w.models, false, false)) {
		kvc_chain_fini(&w.ids);
		kvc_chain_fini(&w.models);
		fclose(f);
		return kvm_fail("%s", kvc_why(ENOMEM));
	}
	t->at = calloc(1024, sizeof *t->at);
	if (!t->at || sqlite3_open(":memory:", &db) || sqlite3_prepare_v2(db, sql, -1, &st, NULL))
		rc = kvm_fail("cannot read JSON: %s", db ? sqlite3_errmsg(db) : kvc_why(ENOMEM));
	else
		rc = read_all(t, f, &w, st, &line);
	kvm_line_fini(&line);
	sqlite3_finalize(st);
	sqlite3_close(db);
	kvc_chain_fini(&w.ids);
	kvc_chain_fini(&w.models);
	fclose(f);
	return rc;
}

void kvm_trace_free(struct kvm_trace *t)
{
	free(t->id);
	free(t->at);
	free(t->ms);
	free(t->outlook);
	free(t->bytes);
	free(t->model);
	for (uint32_t i = 0; i < t->models; i++)
		free(t->model_name[i]);
	free(t->model_name);
	*t = (struct kvm_trace){ 0 };
}
