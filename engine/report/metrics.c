/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .kvcachefs/metrics, in Prometheus' text format 0.0.4: base units, _total after the names of
 * counters, HELP and TYPE before the samples of each family. kvcachefs-metrics(7) has the names,
 * and a test compares them.
 */
#include "cache.h"
#include "gauges.h"
#include "replacers.h"
#include "quote.h"
#include "model_stats.h"
#include "ops.h"
#include "tenants.h"
#include "tier_queue.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define P "kvcachefs_"

static void family(FILE *out, const char *name, const char *type, const char *what)
{
	bool total = !strcmp(type, "counter");

	fprintf(out, "# HELP " P "%s%s %s\n# TYPE " P "%s%s %s\n", name, total ? "_total" : "",
		what, name, total ? "_total" : "", type);
}

/* Prints the samples of a histogram, in seconds or bytes. `labels` may be empty. */
static void histogram(FILE *out, const char *name, const char *labels, uint64_t unit,
		      const struct kvc_histogram *h)
{
	double per = unit == KVC_IN_MIB ? 1 : 1e9;
	const char *comma = *labels ? "," : "", *open = *labels ? "{" : "",
		   *end = *labels ? "}" : "";
	uint64_t n = 0;

	for (unsigned i = 0; i < KVC_SPANS - 1; i++)
		fprintf(out, P "%s_bucket{%s%sle=\"%.10g\"} %" PRIu64 "\n", name, labels, comma,
			(double)(1u << i) * (double)unit / per, n += kvc_gauges_read(&h->n[i]));
	n += kvc_gauges_read(&h->n[KVC_SPANS - 1]);
	fprintf(out,
		P "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n" P "%s_sum%s%s%s %.9f\n" P
		  "%s_count%s%s%s %" PRIu64 "\n",
		name, labels, comma, n, name, open, labels, end,
		(double)kvc_gauges_read(&h->sum_ns) / per, name, open, labels, end, n);
}

/* One row per gauge of a tier. The first SIZES are left out for tiers that do not know them. */
#define SIZES 2
static const struct {
	const char *name, *type, *what;
	size_t at;
} tier_rows[] = {
#define AT(field) offsetof(struct kvc_tier_gauges, field)
	{ "tier_bytes", "gauge", "size of a tier, if it is known", AT(bytes) },
	{ "tier_used_bytes", "gauge", "bytes in use in a tier, if they are known", AT(used) },
	{ "tier_up", "gauge",
	  "1 if the tier is in use, 0 if its circuit breaker has suspended calls", AT(up) },
	{ "tier_copies_waiting", "gauge", "waiting copies to a tier", AT(waiting) },
	{ "tier_copies_failing", "gauge", "waiting copies to a tier that failed before",
	  AT(failing) },
	{ "tier_removals_waiting", "gauge", "failed or refused removals that wait for a retry",
	  AT(removals) },
	{ "tier_jobs_running", "gauge", "calls in progress to a tier", AT(running) },
	{ "tier_written_bytes", "counter", "bytes written to a tier by all mounts of the store",
	  AT(written) },
	{ "tier_today_bytes", "gauge", "bytes written to a tier since midnight UTC", AT(today) },
#undef AT
};

static void metrics_tiers(struct kvc *k, const struct kvc_tier_gauges *tier, FILE *out)
{
	for (size_t i = 0; i < sizeof tier_rows / sizeof tier_rows[0]; i++) {
		const char *total = strcmp(tier_rows[i].type, "counter") ? "" : "_total";

		family(out, tier_rows[i].name, tier_rows[i].type, tier_rows[i].what);
		kvc_tier_each(k, t) {
			if (i < SIZES && !tier[t].bytes && !tier[t].used)
				continue; /* not known */
			fprintf(out, P "%s%s{tier=\"%s\"} %" PRIu64 "\n", tier_rows[i].name, total,
				tier[t].label,
				*(const uint64_t *)((const char *)&tier[t] + tier_rows[i].at));
		}
	}
}

/* The devices of the disk tier. Their paths are in .kvcachefs/devices. */
static void metrics_devices(struct kvc *k, FILE *out)
{
	static const struct {
		const char *name, *type, *what;
	} rows[] = {
		{ "device_up", "gauge",
		  "1 if the device of the disk tier can be read and written" },
		{ "device_leaving", "gauge", "1 while the device is being removed" },
		{ "device_bytes", "gauge", "size of a device of the disk tier" },
		{ "device_used_bytes", "gauge", "bytes in use in a device of the disk tier" },
		{ "device_errors", "counter", "calls to a device that failed since the mount" },
	};
	struct kvc_tier_device d;

	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		family(out, rows[i].name, rows[i].type, rows[i].what);
		for (unsigned nr = 0; nr < KVC_DEVICES; nr++) {
			if (!kvc_gauges_device(k, nr, &d))
				continue;
			const uint64_t v[] = {
				!d.read_fails && !d.write_fails,
				d.leaving,
				d.total,
				d.used,
				d.errors,
			};

			fprintf(out, P "%s%s{device=\"%u\"} %" PRIu64 "\n", rows[i].name,
				strcmp(rows[i].type, "counter") ? "" : "_total", nr, v[i]);
		}
	}
}

/* The breaker, by class of calls. */
static void metrics_calls(struct kvc *k, const struct kvc_tier_gauges *tier, FILE *out)
{
	family(out, "tier_calls_up", "gauge",
	       "1 if calls of this class are made, 0 if they are suspended and probed");
	kvc_tier_each(k, t)
		for (unsigned i = 0; i < KVC_CALLS; i++)
			fprintf(out, P "tier_calls_up{tier=\"%s\",call=\"%s\"} %" PRIu64 "\n",
				tier[t].label, kvc_breaker_call_names[i], tier[t].call[i].up);
}

static void reason_counters(FILE *out, const char *name, const char *what,
			    const char *const names[], const _Atomic uint64_t n[], size_t from,
			    size_t to)
{
	family(out, name, "counter", what);
	for (size_t i = from; i < to; i++)
		fprintf(out, P "%s_total{reason=\"%s\"} %" PRIu64 "\n", name, names[i],
			kvc_gauges_read(&n[i]));
}

/*
 * Prints every reason for the mount's own policies, and reasons with a count for policies of
 * models.
 */
static void metrics_evictions(struct kvc *k, const struct kvc_tier_gauges *tier, FILE *out)
{
	family(out, "evictions_by_policy", "counter",
	       "chunks that left the pool (tier cpu), another tier, or all tiers (tier all)");
	for (unsigned n = 0; n < (KVC_PLACES + 1) * (KVC_CLASSES - 1) * KVC_REASONS_N; n++) {
		unsigned reason = n % KVC_REASONS_N, policy = n / KVC_REASONS_N % (KVC_CLASSES - 1);
		unsigned at = n / KVC_REASONS_N / (KVC_CLASSES - 1);
		bool pool = at == KVC_OF_POOL, all = at == KVC_PLACES;
		uint64_t v = kvc_gauges_read(&k->stats.evicted_by[at][policy][reason]);

		if (!v && (policy != kvc_replacers_policy_of(
					     k, pool ? KVC_CACHE_POOL : KVC_CACHE_DISK, 0) ||
			   (!pool && !all && !k->tier[at].t)))
			continue;
		fprintf(out,
			P "evictions_by_policy_total{tier=\"%s\",policy=\"%s\",reason=\"%s\"} "
			  "%" PRIu64 "\n",
			all    ? "all"
			: pool ? "cpu"
			       : tier[at].label,
			kvc_policy_names[policy], kvc_gauges_reason_names[reason], v);
	}
}

static void metrics_reasons(struct kvc *k, const struct kvc_tier_gauges *tier, FILE *out)
{
	const struct kvc_stats *s = &k->stats;
	char name[64];

	reason_counters(out, "evictions_by_reason", "chunks that left the pool or a tier",
			kvc_gauges_reason_names, s->evicted_for, 0, KVC_REASONS_N);
	reason_counters(out, "absent_after",
			"requests for missing names of chunks that were dropped for this reason",
			kvc_gauges_reason_names, s->absent_after, 0, KVC_REASONS_N);
	metrics_evictions(k, tier, out);
	reason_counters(out, "refused_chunks",
			"chunks that left the pool and were refused by the disk tier",
			kvc_gauges_refusal_names, s->refused_chunks, KVC_ADMISSION_OK + 1,
			KVC_REFUSALS_N);
	reason_counters(out, "refused_bytes",
			"bytes of refused chunks that have no copy in the disk tier",
			kvc_gauges_refusal_names, s->refused_bytes, KVC_ADMISSION_OK + 1,
			KVC_REFUSALS_N);
	for (size_t h = 0; h < kvc_gauges_histogram_rows_n; h++) {
		snprintf(name, sizeof name, "%s_seconds", kvc_gauges_histogram_rows[h].name);
		family(out, name, "histogram", kvc_gauges_histogram_rows[h].what);
		histogram(out, name, "", KVC_IN_SECONDS,
			  kvc_gauges_histogram(k, &kvc_gauges_histogram_rows[h]));
	}
	for (size_t h = 0; h < kvc_gauges_size_rows_n; h++) {
		const struct kvc_gauge *row = &kvc_gauges_size_rows[h];

		family(out, row->name, "histogram", row->what);
		histogram(out, row->name, "", KVC_IN_MIB, kvc_gauges_histogram(k, row));
	}
}

static const struct {
	const char *name;
	enum kvc_by by;
} operations[] = {
#define X(name, by, what) { #name, by },
	KVC_OPERATIONS(X)
#undef X
};

static void metrics_latency(struct kvc *k, const struct kvc_tier_gauges *tier, FILE *out)
{
	static const char name[] = "operation_seconds";
	char labels[96];

	family(out, name, "histogram",
	       "duration of successful operations, from the request to the answer");
	for (size_t i = 0; i < KVC_OPERATIONS_N; i++) {
		struct kvc_histogram sum;
		enum kvc_by by = operations[i].by;

		if (by != KVC_BY_TIERS) {
			snprintf(labels, sizeof labels, "operation=\"%s\"%s", operations[i].name,
				 by == KVC_BY_NONE ? "" : ",tier=\"cpu\"");
			kvc_stats_took(&k->stats, (enum kvc_operation)i, KVC_OF_POOL, &sum);
			histogram(out, name, labels, KVC_IN_MICROSECONDS, &sum);
		}
		if (by == KVC_BY_NONE || by == KVC_BY_POOL)
			continue;
		kvc_tier_each(k, t) {
			snprintf(labels, sizeof labels, "operation=\"%s\",tier=\"%s\"",
				 operations[i].name, tier[t].label);
			kvc_stats_took(&k->stats, (enum kvc_operation)i, t, &sum);
			histogram(out, name, labels, KVC_IN_MICROSECONDS, &sum);
		}
	}
}

static void metrics_locks(struct kvc *k, FILE *out)
{
	const struct {
		const char *labels;
		const struct kvc_lock *lock;
	} v[] = { { "lock=\"objects\"", &k->lock },
		  { "lock=\"catalog\"", kvc_catalog_lock_of(k->cat) } };

	family(out, "lock_held_seconds", "histogram",
	       "time for which a lock was held, measured for one in 64 holds");
	for (size_t i = 0; i < 2; i++)
		histogram(out, "lock_held_seconds", v[i].labels, KVC_IN_MICROSECONDS,
			  &v[i].lock->held);
	family(out, "lock_waited_seconds", "histogram",
	       "time that threads waited for a contended lock");
	for (size_t i = 0; i < 2; i++)
		histogram(out, "lock_waited_seconds", v[i].labels, KVC_IN_MICROSECONDS,
			  &v[i].lock->waited);
	family(out, "lock_longest_held_seconds", "gauge", "the longest measured hold of a lock");
	for (size_t i = 0; i < 2; i++)
		fprintf(out, P "lock_longest_held_seconds{%s} %.9f\n", v[i].labels,
			(double)kvc_gauges_read(&v[i].lock->longest_ns) / 1e9);
}

/* The longest commit of the last minutes, so that an alert ends when commits are fast again. */
static void metrics_commits(struct kvc *k, FILE *out)
{
	family(out, "commit_longest_seconds", "gauge",
	       "the longest catalog transaction of the last ten minutes");
	fprintf(out, P "commit_longest_seconds %.9f\n",
		(double)kvc_latency_longest(k, KVC_OP_commit) / 1e9);
}

static void metrics_model(FILE *out, const char *family_name, const char *name, const char *result,
			  uint64_t n)
{
	fprintf(out, P "%s_total{model=", family_name);
	kvc_quote(out, name);
	fprintf(out, ",result=\"%s\"} %" PRIu64 "\n", result, n);
}

static void metrics_model_asked(FILE *out, const char *name, const struct kvc_opens *n)
{
	metrics_model(out, "model_asked", name, "found", n->found);
	metrics_model(out, "model_asked", name, "absent", n->absent);
}

static void metrics_model_opens(FILE *out, const char *name, const struct kvc_opens *n)
{
	metrics_model(out, "model_opens", name, "hit", n->hits);
	metrics_model(out, "model_opens", name, "miss", n->misses);
}

/* One row per gauge of what the files of a model use. */
static const struct {
	const char *name, *what;
	size_t at;
} use_rows[] = {
	{ "model_files", "files of a model", offsetof(struct kvc_model_use, files) },
	{ "model_bytes", "size of the files of a model, as a quota counts it",
	  offsetof(struct kvc_model_use, bytes) },
};

static void metrics_model_gauge(FILE *out, const char *name, const char *model, uint64_t v)
{
	fprintf(out, P "%s{model=", name);
	kvc_quote(out, model);
	fprintf(out, "} %" PRIu64 "\n", v);
}

static void metrics_model_tier(FILE *out, const char *model, const char *tier, uint64_t v)
{
	fputs(P "model_tier_bytes{model=", out);
	kvc_quote(out, model);
	fprintf(out, ",tier=\"%s\"} %" PRIu64 "\n", tier, v);
}

/* Left out while the files are counted, as no figure is known then. */
static void metrics_model_use(struct kvc *k, const struct kvc_tier_gauges *tier,
			      const struct kvc_top_models_list *list, FILE *out)
{
	family(out, "models_counted", "gauge",
	       "1 if the files of models are counted, 0 while they are being counted");
	fprintf(out, P "models_counted %d\n", list->counted);
	for (size_t r = 0; list->counted && r < sizeof use_rows / sizeof use_rows[0]; r++) {
		family(out, use_rows[r].name, "gauge", use_rows[r].what);
		for (size_t i = 0; i <= list->n; i++) {
			bool rest = i == list->n;
			const struct kvc_model_use *u = rest ? &list->rest_use : &list->v[i].use;

			if (rest || list->v[i].use_known)
				metrics_model_gauge(
					out, use_rows[r].name, rest ? "" : list->v[i].name,
					*(const uint64_t *)((const char *)u + use_rows[r].at));
		}
	}
	if (!list->counted)
		return;
	family(out, "model_tier_bytes", "gauge",
	       "bytes of the copies of a model's files in a tier below the pool");
	for (size_t i = 0; i <= list->n; i++) {
		bool rest = i == list->n;
		const struct kvc_model_use *u = rest ? &list->rest_use : &list->v[i].use;

		kvc_tier_each(k, t)
			if (rest || list->v[i].use_known)
				metrics_model_tier(out, rest ? "" : list->v[i].name, tier[t].label,
						   u->tier[t]);
	}
}

/* Only models that have a quota. Without any, the metrics are left out. */
static void metrics_model_quotas(const struct kvc_top_models_list *list, FILE *out)
{
	bool any = false;

	for (size_t i = 0; i < list->n; i++)
		any |= list->v[i].quota != 0;
	if (!any)
		return;
	family(out, "model_quota_bytes", "gauge", "quota of a model that has one");
	for (size_t i = 0; i < list->n; i++)
		if (list->v[i].quota)
			metrics_model_gauge(out, "model_quota_bytes", list->v[i].name,
					    list->v[i].quota);
	family(out, "model_quota_used_bytes", "gauge",
	       "bytes that count towards the quota of a model that has one");
	for (size_t i = 0; i < list->n; i++)
		if (list->v[i].quota)
			metrics_model_gauge(out, "model_quota_used_bytes", list->v[i].name,
					    list->v[i].quota_used);
}

static void metrics_model_evictions(const struct kvc_top_models_list *list, FILE *out)
{
	family(out, "model_evictions", "counter",
	       "chunks of a model that left the pool or a tier; see evictions_by_reason");
	for (size_t i = 0; i <= list->n; i++) {
		bool rest = i == list->n;

		for (unsigned r = 0; r < KVC_REASONS_N; r++) {
			fputs(P "model_evictions_total{model=", out);
			kvc_quote(out, rest ? "" : list->v[i].name);
			fprintf(out, ",reason=\"%s\"} %" PRIu64 "\n", kvc_gauges_reason_names[r],
				rest ? list->rest.evicted[r] : list->v[i].n.evicted[r]);
		}
	}
}

static void metrics_models(struct kvc *k, const struct kvc_tier_gauges *tier, FILE *out)
{
	struct kvc_top_models_list list;

	if (kvc_top_models(k, &list))
		return; /* out of memory: left out this time */
	family(out, "models", "gauge", "models of which at least one chunk was requested");
	fprintf(out, P "models %zu\n", list.models);
	family(out, "model_asked", "counter",
	       "requested chunks; the label model is empty for the sum of all others");
	for (size_t i = 0; i < list.n; i++)
		metrics_model_asked(out, list.v[i].name, &list.v[i].n);
	metrics_model_asked(out, "", &list.rest);
	family(out, "model_opens", "counter",
	       "opens; the label model is empty for the sum of all other models");
	for (size_t i = 0; i < list.n; i++)
		metrics_model_opens(out, list.v[i].name, &list.v[i].n);
	metrics_model_opens(out, "", &list.rest);
	family(out, "model_pool_bytes", "gauge", "bytes of a model's files in the pool");
	for (size_t i = 0; i < list.n; i++)
		metrics_model_gauge(out, "model_pool_bytes", list.v[i].name, list.v[i].pool_bytes);
	metrics_model_gauge(out, "model_pool_bytes", "", list.rest_pool_bytes);
	metrics_model_use(k, tier, &list, out);
	metrics_model_quotas(&list, out);
	metrics_model_evictions(&list, out);
	free(list.v);
}

#define TENANTS_SHOWN 100u

static const struct {
	const char *name, *type, *what;
	size_t at;
} tenant_rows[] = {
#define AT(member) offsetof(struct kvc_tenant, member)
	{ "tenant_quota_bytes", "gauge", "quota of a tenant; 0: none", AT(quota) },
	{ "tenant_share_bytes", "gauge", "share of the pool of a tenant; 0: none", AT(share) },
	{ "tenant_used_bytes", "gauge", "bytes that count towards the quota of a tenant",
	  AT(used) },
	{ "tenant_pool_bytes", "gauge", "bytes of a tenant in the pool", AT(pool) },
#define X(name, what) { "tenant_" #name, "counter", what, AT(name) },
	KVC_TENANT_COUNTERS(X)
#undef X
#undef AT
};

/*
 * Shows the oldest tenants individually and the others as a sum, with an empty label: so the
 * samples do not move between the two, and counters do not decrease.
 */
static void metrics_tenants(struct kvc *k, FILE *out)
{
	size_t n;
	struct kvc_tenant *all = kvc_tenants_copy(k, &n);

	if (!all)
		return; /* out of memory: left out this time */
	family(out, "tenants", "gauge", "tenants");
	fprintf(out, P "tenants %zu\n", n);
	for (size_t i = 0; i < sizeof tenant_rows / sizeof tenant_rows[0]; i++) {
		const char *total = strcmp(tenant_rows[i].type, "counter") ? "" : "_total";
		uint64_t rest = 0;

		family(out, tenant_rows[i].name, tenant_rows[i].type, tenant_rows[i].what);
		for (size_t j = 0; j < n; j++) {
			uint64_t v = *(const uint64_t *)((const char *)&all[j] + tenant_rows[i].at);

			if (j >= TENANTS_SHOWN) {
				rest += v;
				continue;
			}
			fprintf(out, P "%s%s{tenant=", tenant_rows[i].name, total);
			kvc_quote(out, all[j].name);
			fprintf(out, "} %" PRIu64 "\n", v);
		}
		fprintf(out, P "%s%s{tenant=\"\"} %" PRIu64 "\n", tenant_rows[i].name, total, rest);
	}
	free(all);
}

void kvc_print_metrics(struct kvc *k, FILE *out)
{
	struct kvc_tier_gauges tier[KVC_TIERS];
	struct kvc_gauges g;

	kvc_asked_settle(k);
	kvc_gauges(k, &g);
	kvc_tier_gauges(k, tier);
	family(out, "build_info", "gauge", "constant 1, labelled with the version");
	fprintf(out, P "build_info{version=\"%s\"} 1\n", KVC_VERSION);
#define X(name, metric, what)                \
	family(out, #metric, "gauge", what); \
	fprintf(out, P "%s %" PRIu64 "\n", #metric, g.name);
	KVC_GAUGES(X)
#undef X
	for (size_t i = 0; i < kvc_gauges_counter_rows_n; i++) {
		family(out, kvc_gauges_counter_rows[i].name, "counter",
		       kvc_gauges_counter_rows[i].what);
		fprintf(out, P "%s_total %" PRIu64 "\n", kvc_gauges_counter_rows[i].name,
			kvc_gauges_counter(k, i));
	}
	metrics_tiers(k, tier, out);
	metrics_calls(k, tier, out);
	metrics_devices(k, out);
	metrics_reasons(k, tier, out);
	metrics_latency(k, tier, out);
	metrics_commits(k, out);
	metrics_locks(k, out);
	metrics_models(k, tier, out);
	metrics_tenants(k, out);
}
