/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's part of /status.json: members of an object, each followed by a comma.
 * kvcachefs-metrics(7) describes it. Also prints .kvcachefs/slowest, tiers and devices, which show
 * some of these members even if metrics= is not given.
 */
#include "cache.h"
#include "gauges.h"
#include "quote.h"
#include "ops.h"
#include "model_stats.h"
#include "tier_queue.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Prints a number, or null if it is not known. */
static void put_known(FILE *out, uint64_t bytes, bool known)
{
	if (known)
		fprintf(out, "%" PRIu64, bytes);
	else
		fputs("null", out);
}

/* The breaker, by class of calls. */
static void status_calls(FILE *out, const struct kvc_call_figures v[KVC_CALLS])
{
	fputs(",\"calls\":{", out);
	for (unsigned i = 0; i < KVC_CALLS; i++)
		fprintf(out,
			"%s\"%s\":{\"state\":\"%s\",\"reason\":\"%s\",\"next_ms\":%" PRIu64 "}",
			i ? "," : "", kvc_breaker_call_names[i], v[i].state, v[i].reason,
			v[i].next_ms);
	fputs("}", out);
}

static void status_tiers(struct kvc *k, const struct kvc_gauges *g, FILE *out)
{
	struct kvc_tier_gauges tier[KVC_TIERS];

	kvc_tier_gauges(k, tier);
	fprintf(out,
		"\"tiers\":[{\"name\":\"cpu\",\"used_bytes\":%" PRIu64 ",\"limit_bytes\":%" PRIu64
		",\"breaker\":null,\"up\":true,\"calls\":null,\"waiting\":%" PRIu64
		",\"failing\":0,\"running\":0,\"removals\":0,\"written_bytes\":null,\"today_"
		"bytes\":null}",
		g->pool_used_bytes, g->pool_bytes, g->room_waiters);
	for (unsigned i = 0; i < k->ntiers; i++) {
		const struct kvc_tier_gauges *t = &tier[k->order[i]];

		fprintf(out, ",{\"name\":\"%s\",\"used_bytes\":", t->label);
		put_known(out, t->used, t->bytes || t->used);
		fputs(",\"limit_bytes\":", out);
		put_known(out, t->bytes, t->bytes);
		fprintf(out,
			",\"breaker\":\"%s\",\"up\":%s,\"waiting\":%" PRIu64 ",\"failing\":%" PRIu64
			",\"running\":%" PRIu64 ",\"removals\":%" PRIu64
			",\"written_bytes\":%" PRIu64 ",\"today_bytes\":%" PRIu64,
			t->breaker, t->up ? "true" : "false", t->waiting, t->failing, t->running,
			t->removals, t->written, t->today);
		status_calls(out, t->call);
		fputs("}", out);
	}
	fputs("],\n", out);
}

static void status_devices(struct kvc *k, FILE *out)
{
	struct kvc_tier_device d;
	bool any = false;

	fputs("\"devices\":[", out);
	for (unsigned i = 0; i < KVC_DEVICES; i++) {
		if (!kvc_gauges_device(k, i, &d))
			continue;
		fprintf(out, "%s{\"device\":%u,\"path\":", any ? "," : "", i);
		kvc_quote(out, d.path);
		fprintf(out,
			",\"state\":\"%s\",\"bytes\":%" PRIu64 ",\"used_bytes\":%" PRIu64
			",\"errors\":%" PRIu64 "}",
			kvc_gauges_device_state(&d), d.total, d.used, d.errors);
		any = true;
	}
	fputs("],\n", out);
}

void kvc_status_print_devices(struct kvc *k, FILE *out)
{
	struct kvc_tier_device d;

	fputs("device state bytes used_bytes errors path\n", out);
	for (unsigned i = 0; i < KVC_DEVICES; i++)
		if (kvc_gauges_device(k, i, &d))
			fprintf(out, "%u %s %" PRIu64 " %" PRIu64 " %" PRIu64 " %s\n", i,
				kvc_gauges_device_state(&d), d.total, d.used, d.errors, d.path);
}

void kvc_status_print_tiers(struct kvc *k, FILE *out)
{
	struct kvc_tier_gauges tier[KVC_TIERS];

	kvc_tier_gauges(k, tier);
	fputs("tier call state next_ms reason\n", out);
	for (unsigned i = 0; i < k->ntiers; i++)
		for (unsigned c = 0; c < KVC_CALLS; c++) {
			const struct kvc_tier_gauges *t = &tier[k->order[i]];

			fprintf(out, "%s %s %s %" PRIu64 " %s\n", t->label,
				kvc_breaker_call_names[c], t->call[c].state, t->call[c].next_ms,
				*t->call[c].reason ? t->call[c].reason : "-");
		}
}

static void put_opens(FILE *out, const struct kvc_opens *n)
{
	fprintf(out,
		"\"found\":%" PRIu64 ",\"absent\":%" PRIu64 ",\"hits\":%" PRIu64
		",\"misses\":%" PRIu64,
		n->found, n->absent, n->hits, n->misses);
}

/* What the files use; null if it is not known. */
static void put_use(struct kvc *k, FILE *out, const struct kvc_model_use *u, bool known)
{
	uint64_t remote = 0;

	kvc_tier_each(k, t)
		remote += t == KVC_DISK ? 0 : u->tier[t];
	fputs(",\"files\":", out);
	put_known(out, u->files, known);
	fputs(",\"bytes\":", out);
	put_known(out, u->bytes, known);
	fputs(",\"disk_bytes\":", out);
	put_known(out, u->tier[KVC_DISK], known);
	fputs(",\"remote_bytes\":", out);
	put_known(out, remote, known);
}

static void put_evicted(FILE *out, const struct kvc_opens *n)
{
	fputs(",\"evicted\":{", out);
	for (unsigned r = 0; r < KVC_REASONS_N; r++)
		fprintf(out, "%s\"%s\":%" PRIu64, r ? "," : "", kvc_gauges_reason_names[r],
			n->evicted[r]);
	putc('}', out);
}

static void status_models(struct kvc *k, FILE *out)
{
	struct kvc_top_models_list list;

	if (kvc_top_models(k, &list))
		list = (struct kvc_top_models_list){ 0 };
	fprintf(out, "\"models_count\":%zu,\"models_counted\":%s,\"models\":[", list.models,
		list.counted ? "true" : "false");
	for (size_t i = 0; i < list.n; i++) {
		fputs(i ? ",\n{\"name\":" : "{\"name\":", out);
		kvc_quote(out, list.v[i].name);
		putc(',', out);
		put_opens(out, &list.v[i].total);
		fprintf(out, ",\"pool_bytes\":%" PRIu64, list.v[i].pool_bytes);
		put_use(k, out, &list.v[i].use, list.v[i].use_known);
		fputs(",\"quota\":", out);
		put_known(out, list.v[i].quota, list.v[i].quota);
		fputs(",\"used\":", out);
		put_known(out, list.v[i].quota_used, list.v[i].quota);
		put_evicted(out, &list.v[i].total);
		kvc_model_stats_subtract(&list.all, &list.v[i].total);
		putc('}', out);
	}
	fputs("],\n\"models_rest\":{", out);
	put_opens(out, &list.all);
	fprintf(out, ",\"pool_bytes\":%" PRIu64, list.rest_pool_bytes);
	put_use(k, out, &list.rest_use, list.counted);
	put_evicted(out, &list.all);
	fputs("},\n", out);
	free(list.v);
}

static const char *const operation_names[] = {
#define X(name, by, what) #name,
	KVC_OPERATIONS(X)
#undef X
};

/* Returns the name of the place of an operation, or NULL if the operation belongs to no tier. */
static const char *place_name(enum kvc_operation op, unsigned place,
			      const struct kvc_tier_gauges tier[KVC_TIERS])
{
	if (place != KVC_OF_POOL)
		return tier[place].label;
	return op == KVC_OP_commit || op == KVC_OP_rename ? NULL : "cpu";
}

/* One of the slowest operations, as text. */
struct slow_text {
	const char *operation, *tier; /* tier NULL: no tier */
	char model[256];              /* "": no model, or the model has no name any more */
	double seconds, ago_seconds;
};

/* Collects the slowest operations, slowest first; returns their number. */
static size_t slowest_as_text(struct kvc *k, struct slow_text w[KVC_SLOWEST],
			      struct kvc_tier_gauges tier[KVC_TIERS])
{
	struct kvc_latency_slow v[KVC_SLOWEST];
	size_t n = kvc_latency_slowest(k, v);
	uint64_t now = kvc_mono_ns();

	kvc_tier_gauges(k, tier);
	for (size_t i = 0; i < n; i++) {
		w[i] = (struct slow_text){
			.operation = operation_names[v[i].op],
			.tier = place_name(v[i].op, v[i].tier, tier),
			.seconds = (double)v[i].took_ns / 1e9,
			.ago_seconds = (double)(now - kvc_min(now, v[i].ended_ns)) / 1e9,
		};
		if (!v[i].model || kvc_top_models_name(k, v[i].model, w[i].model) != 1)
			*w[i].model = 0;
	}
	return n;
}

static void status_slowest(struct kvc *k, FILE *out)
{
	struct kvc_tier_gauges tier[KVC_TIERS];
	struct slow_text w[KVC_SLOWEST];
	size_t n = slowest_as_text(k, w, tier);

	fputs("\"slowest\":[", out);
	for (size_t i = 0; i < n; i++) {
		fprintf(out, "%s{\"operation\":\"%s\",\"tier\":", i ? ",\n" : "", w[i].operation);
		fprintf(out, w[i].tier ? "\"%s\"" : "null", w[i].tier);
		fputs(",\"model\":", out);
		if (*w[i].model)
			kvc_quote(out, w[i].model);
		else
			fputs("null", out);
		fprintf(out, ",\"seconds\":%.6f,\"ago_seconds\":%.1f}", w[i].seconds,
			w[i].ago_seconds);
	}
	fputs("],\n", out);
}

/* Same format as .kvcachefs/models: a header line, and the name last. */
void kvc_status_print_slowest(struct kvc *k, FILE *out)
{
	struct kvc_tier_gauges tier[KVC_TIERS];
	struct slow_text w[KVC_SLOWEST];
	size_t n = slowest_as_text(k, w, tier);

	fputs("seconds ago_seconds operation tier name\n", out);
	for (size_t i = 0; i < n; i++) {
		fprintf(out, "%.6f %.1f %s %s ", w[i].seconds, w[i].ago_seconds, w[i].operation,
			w[i].tier ?: "-");
		if (*w[i].model)
			kvc_put_plain(out, w[i].model, strlen(w[i].model));
		else
			fputs("//", out);
		fputc('\n', out);
	}
}

/* Why chunks left the pool or a tier, and for which reasons requested names had been dropped. */
static void status_reasons(struct kvc *k, FILE *out)
{
	static const char *const what[] = {
#define X(name, what) what,
		KVC_REASONS(X)
#undef X
	};

	fputs("\"reasons\":[", out);
	for (size_t i = 0; i < KVC_REASONS_N; i++)
		fprintf(out,
			"%s{\"reason\":\"%s\",\"what\":\"%s\",\"evicted_chunks\":%" PRIu64
			",\"absent_after\":%" PRIu64 "}",
			i ? ",\n" : "", kvc_gauges_reason_names[i], what[i],
			kvc_gauges_read(&k->stats.evicted_for[i]),
			kvc_gauges_read(&k->stats.absent_after[i]));
	fputs("],\n", out);
}

static void put_quantiles(FILE *out, const char *name, const uint64_t n[KVC_SPANS])
{
	static const struct {
		const char *name;
		double part;
	} rows[] = { { "p50", .5 }, { "p90", .9 }, { "p99", .99 } };
	uint64_t total = 0;

	for (unsigned i = 0; i < KVC_SPANS; i++)
		total += n[i];
	fprintf(out, ",\"%s\":{\"count\":%" PRIu64, name, total);
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
		if (total)
			fprintf(out, ",\"%s_seconds\":%.9f", rows[i].name,
				kvc_histogram_quantile(n, rows[i].part) / 1e6);
		else
			fprintf(out, ",\"%s_seconds\":null", rows[i].name);
	fputs("}", out);
}

/* Quantiles of the durations, recent and since the start, of the operations that occurred. */
static void status_latency(struct kvc *k, const struct kvc_stats_durations *then, FILE *out)
{
	struct kvc_tier_gauges tier[KVC_TIERS];
	struct kvc_stats_durations now;
	const char *space = "";

	kvc_tier_gauges(k, tier);
	kvc_stats_durations(&k->stats, &now);
	fprintf(out, "\"latency\":{\"seconds\":%.1f,\"operations\":[",
		(double)(kvc_mono_ns() - then->ns) / 1e9);
	for (unsigned op = 0; op < KVC_OPERATIONS_N; op++)
		for (unsigned i = 0; i < KVC_PLACES; i++) {
			/* the pool first */
			unsigned place = i ? i - 1 : KVC_OF_POOL;
			const uint64_t *all = now.n[op][place];
			uint64_t recent[KVC_SPANS], total = 0;
			const char *label = place_name((enum kvc_operation)op, place, tier);

			for (unsigned j = 0; j < KVC_SPANS; j++) {
				recent[j] = all[j] - then->n[op][place][j];
				total += all[j];
			}
			if (!total)
				continue;
			fprintf(out, "%s{\"operation\":\"%s\",\"tier\":", space,
				operation_names[op]);
			fprintf(out, label ? "\"%s\"" : "null", label);
			put_quantiles(out, "recent", recent);
			put_quantiles(out, "since_start", all);
			fputs("}", out);
			space = ",\n";
		}
	fputs("]},\n", out);
}

void kvc_print_status(struct kvc *k, const struct kvc_stats_durations *then, FILE *out)
{
	struct kvc_gauges g;

	kvc_asked_settle(k);
	kvc_gauges(k, &g);
	status_tiers(k, &g, out);
	status_devices(k, out);
	fputs("\"gauges\":{\"tiers\":", out);
	fprintf(out, "%u", k->ntiers);
#define X(name, metric, what) fprintf(out, ",\n\"" #metric "\":%" PRIu64, g.name);
	KVC_GAUGES(X)
#undef X
	fputs("},\n\"counters\":{", out);
	for (size_t i = 0; i < kvc_gauges_counter_rows_n; i++)
		fprintf(out, "%s\"%s\":%" PRIu64, i ? ",\n" : "", kvc_gauges_counter_rows[i].name,
			kvc_gauges_counter(k, i));
	fputs("},\n", out);
	status_reasons(k, out);
	status_models(k, out);
	status_latency(k, then, out);
	status_slowest(k, out);
}

const char *kvc_status_unready(struct kvc *k)
{
	struct kvc_catalog_state c;

	kvc_catalog_state(k->cat, &c);
	if (kvc_stopping(k))
		return "the mount is ending";
	return c.ok ? NULL
		    : "the catalog accepts no changes, because its disk is full or fails; see the "
		      "log";
}

uint64_t kvc_status_pool_used(struct kvc *k)
{
	struct kvc_gauges g;

	kvc_gauges(k, &g);
	return g.pool_used_bytes;
}
