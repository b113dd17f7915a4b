/* SPDX-License-Identifier: Apache-2.0 */
/* What .kvcachefs/ shows: stats for people, metrics for Prometheus, config as in effect. */
#include "cache.h"
#include "drop.h"
#include "kept.h"
#include "node.h"
#include "pin.h"
#include "prefault.h"
#include "tierq.h"
#include "trash.h"
#include "used.h"

#include <inttypes.h>
#include <string.h>

static const struct {
	const char *name, *what;
	size_t at;
} counters[] = {
#define X(name, what) { #name, what, offsetof(struct kvc_stats, name) },
	KVC_COUNTERS(X)
#undef X
};
#define NCOUNTERS (sizeof counters / sizeof counters[0])

struct gauges {
	uint64_t pool_bytes, pool_used_bytes, files_open, objects_resident, nodes_in_memory,
		room_waiters, jobs, catalog_ok, catalog_pending_bytes, catalog_log_bytes,
		unsynced_bytes, drop_files, copies_failing, pins, pinned_pool_bytes,
		pinned_disk_bytes, catalog_inode_bytes, catalog_attribute_bytes, catalog_limit,
		trace_readers;
	uint64_t prefault_bytes, prefault_total, prefault_held;
};

#define GAUGES(X)                                                                                 \
	X(pool_bytes, "bound of the pool")                                                        \
	X(pool_used_bytes, "bytes of the pool accounted for")                                     \
	X(files_open, "opens that have not been released")                                        \
	X(objects_resident, "published objects in the pool")                                      \
	X(nodes_in_memory, "nodes held in memory")                                                \
	X(room_waiters, "requests that wait for room")                                            \
	X(jobs, "tier operations queued or running")                                              \
	X(catalog_ok, "1: the catalog writes and takes changes; 0: it waits for space or a disk") \
	X(catalog_pending_bytes, "memory that changes take which are not committed yet")          \
	X(catalog_log_bytes, "size of the catalog's log")                                         \
	X(unsynced_bytes, "bytes in the tiers that are freed once the log is on stable storage")  \
	X(drop_files, "files that a drop worked on under one hold of the locks, at the most")     \
	X(copies_failing, "copies that failed and wait to be tried again, later each time")       \
	X(pins, "chunks that are pinned")                                                         \
	X(pinned_pool_bytes, "bytes that they have in the pool")                                  \
	X(pinned_disk_bytes, "bytes that their files take")                                       \
	X(catalog_inode_bytes, "what inodes and names count towards catalog=")                    \
	X(catalog_attribute_bytes, "and attributes")                                              \
	X(catalog_limit, "what they may come to; 0: anything")                                    \
	X(trace_readers, "who records what is used (kvcachectl trace)")                           \
	X(prefault_bytes, "bytes of the pool touched ahead so far")                               \
	X(prefault_total, "bytes of the pool to be touched ahead")                                \
	X(prefault_held, "bytes touched ahead and not yet given back")

static struct gauges gauges(struct kvc *k)
{
	struct kvc_catalog_state c;
	struct kvc_prefaulted p;
	uint64_t inodes, attrs, limit;
	struct gauges g;

	kvc_catalog_state(k->cat, &c);
	kvc_usage_show(k->cat, &inodes, &attrs, &limit);
	kvc_lock(k);
	kvc_prefault_show_locked(k, &p);
	g = (struct gauges){
		k->pool.size,
		k->room.used - kvc_min(k->room.used, p.held),
		k->nodes->opens,
		k->nodes->resident,
		k->nodes->table.n,
		0,
		k->work->queued + k->work->running + k->trash->nunsynced,
		c.ok,
		c.pending_bytes,
		c.log_bytes,
		k->trash->unsynced_bytes,
		k->drops->most,
		0,
		k->pins->table.n,
		k->pins->pool,
		k->pins->disk,
		inodes,
		attrs,
		limit,
		k->used->record ? k->used->record->readers : 0,
		p.bytes,
		p.total,
		p.held,
	};
	kvc_list_each(e, &k->room.waiters)
		g.room_waiters++;
	kvc_tier_each(k, t)
		g.copies_failing += k->tier[t].nagain;
	kvc_unlock(k);
	return g;
}

static uint64_t counter(struct kvc *k, size_t i)
{
	return atomic_load_explicit((_Atomic uint64_t *)((char *)&k->stats + counters[i].at),
				    memory_order_relaxed);
}

static const struct {
	const char *name, *what;
	size_t at;
} histograms[] = {
#define X(name, what) { #name, what, offsetof(struct kvc_stats, name) },
	KVC_HISTOGRAMS(X)
#undef X
};
#define NHISTOGRAMS (sizeof histograms / sizeof histograms[0])

static const struct kvc_histogram *histogram(struct kvc *k, size_t i)
{
	return (const void *)((const char *)&k->stats + histograms[i].at);
}

static const char *const reasons[] = {
#define X(name, what) #name,
	KVC_REASONS(X)
#undef X
};

static const char *const refusals[] = { NULL, /* none */
#define X(name, what) #name,
					KVC_REFUSALS(X)
#undef X
};

static uint64_t counted(const _Atomic uint64_t *n)
{
	return atomic_load_explicit(n, memory_order_relaxed);
}

static struct kvc_written written(struct kvc *k, unsigned tier)
{
	struct kvc_written w;

	kvc_lock(k);
	w = kvc_written_show_locked(k, tier);
	kvc_unlock(k);
	return w;
}

/* Why and when chunks go. Of the times only those that have come about. */
static void why_stats(struct kvc *k, FILE *out)
{
	kvc_tier_each(k, t) {
		const char *name = k->tier[t].t->ops->name;
		struct kvc_written w = written(k, t);

		fprintf(out, "tier_%s_written_bytes %" PRIu64 "\n", name, w.all);
		fprintf(out, "tier_%s_today_bytes %" PRIu64 "\n", name, w.today);
	}
	for (size_t i = 0; i < KVC_REASONS_N; i++)
		fprintf(out, "evicted_for_%-10s %" PRIu64 "\n", reasons[i],
			counted(&k->stats.evicted_for[i]));
	for (size_t i = KVC_ADMITTED + 1; i < KVC_REFUSALS_N; i++)
		fprintf(out, "refused_%s_chunks %" PRIu64 "\nrefused_%s_bytes %" PRIu64 "\n",
			refusals[i], counted(&k->stats.refused_chunks[i]), refusals[i],
			counted(&k->stats.refused_bytes[i]));
	for (size_t h = 0; h < NHISTOGRAMS; h++)
		for (unsigned i = 0; i < KVC_SPANS; i++) {
			uint64_t n = counted(&histogram(k, h)->n[i]);

			if (n)
				fprintf(out, "%s_%us%s %" PRIu64 "\n", histograms[h].name,
					1u << kvc_min(i, KVC_SPANS - 2),
					i == KVC_SPANS - 1 ? "_and_more" : "", n);
		}
}

static void refusal_metrics(struct kvc *k, FILE *out)
{
	fprintf(out, "# HELP kvcachefs_refused_chunks_total chunks that left the pool and that the "
		     "disk tier did not let in, by why\n"
		     "# TYPE kvcachefs_refused_chunks_total counter\n");
	for (size_t i = KVC_ADMITTED + 1; i < KVC_REFUSALS_N; i++)
		fprintf(out, "kvcachefs_refused_chunks_total{reason=\"%s\"} %" PRIu64 "\n",
			refusals[i], counted(&k->stats.refused_chunks[i]));
	fprintf(out, "# HELP kvcachefs_refused_bytes_total what of them it has no copy of\n"
		     "# TYPE kvcachefs_refused_bytes_total counter\n");
	for (size_t i = KVC_ADMITTED + 1; i < KVC_REFUSALS_N; i++)
		fprintf(out, "kvcachefs_refused_bytes_total{reason=\"%s\"} %" PRIu64 "\n",
			refusals[i], counted(&k->stats.refused_bytes[i]));
}

static void why_metrics(struct kvc *k, FILE *out)
{
	fprintf(out, "# HELP kvcachefs_evictions_by_reason_total chunks that left the pool or a "
		     "tier, by why\n"
		     "# TYPE kvcachefs_evictions_by_reason_total counter\n");
	for (size_t i = 0; i < KVC_REASONS_N; i++)
		fprintf(out, "kvcachefs_evictions_by_reason_total{reason=\"%s\"} %" PRIu64 "\n",
			reasons[i], counted(&k->stats.evicted_for[i]));
	refusal_metrics(k, out);
	for (size_t h = 0; h < NHISTOGRAMS; h++) {
		const struct kvc_histogram *x = histogram(k, h);
		const char *name = histograms[h].name;
		uint64_t n = 0;

		fprintf(out,
			"# HELP kvcachefs_%s_seconds %s\n# TYPE kvcachefs_%s_seconds histogram\n",
			name, histograms[h].what, name);
		for (unsigned i = 0; i < KVC_SPANS - 1; i++)
			fprintf(out, "kvcachefs_%s_seconds_bucket{le=\"%u\"} %" PRIu64 "\n", name,
				1u << i, n += counted(&x->n[i]));
		n += counted(&x->n[KVC_SPANS - 1]);
		fprintf(out,
			"kvcachefs_%s_seconds_bucket{le=\"+Inf\"} %" PRIu64 "\n"
			"kvcachefs_%s_seconds_sum %.3f\nkvcachefs_%s_seconds_count %" PRIu64 "\n",
			name, n, name, (double)counted(&x->sum_ns) / 1e9, name, n);
	}
	fprintf(out, "# HELP kvcachefs_tier_written_bytes_total bytes written to a tier in all\n"
		     "# TYPE kvcachefs_tier_written_bytes_total counter\n");
	kvc_tier_each(k, t)
		fprintf(out, "kvcachefs_tier_written_bytes_total{tier=\"%s\"} %" PRIu64 "\n",
			k->tier[t].t->ops->name, written(k, t).all);
	fprintf(out,
		"# HELP kvcachefs_tier_today_bytes bytes written to a tier since midnight UTC\n"
		"# TYPE kvcachefs_tier_today_bytes gauge\n");
	kvc_tier_each(k, t)
		fprintf(out, "kvcachefs_tier_today_bytes{tier=\"%s\"} %" PRIu64 "\n",
			k->tier[t].t->ops->name, written(k, t).today);
}

void kvc_print_stats(struct kvc *k, FILE *out)
{
	struct gauges g = gauges(k);

#define X(name, what) fprintf(out, "%-22s %" PRIu64 "\n", #name, g.name);
	GAUGES(X)
#undef X
	kvc_tier_each(k, t) {
		struct kvc_tier_usage u;
		bool up;

		k->tier[t].t->ops->usage(k->tier[t].t, &u);
		kvc_lock(k);
		up = !k->tier[t].open_until_ns && !k->tier[t].stuck;
		kvc_unlock(k);
		fprintf(out, "tier_%s_bytes %*s %" PRIu64 "\n", k->tier[t].t->ops->name,
			(int)(10 - strlen(k->tier[t].t->ops->name)), "", u.total);
		fprintf(out, "tier_%s_used_bytes %*s %" PRIu64 "\n", k->tier[t].t->ops->name,
			(int)(5 - strlen(k->tier[t].t->ops->name)), "", u.used);
		fprintf(out, "tier_%s_up %*s %d\n", k->tier[t].t->ops->name,
			(int)(13 - strlen(k->tier[t].t->ops->name)), "", up);
	}
	for (size_t i = 0; i < NCOUNTERS; i++)
		fprintf(out, "%-22s %" PRIu64 "\n", counters[i].name, counter(k, i));
	why_stats(k, out);
	kvc_holds_print(out);
}

void kvc_print_metrics(struct kvc *k, FILE *out)
{
	struct gauges g = gauges(k);

#define X(name, what)                                                                            \
	fprintf(out,                                                                             \
		"# HELP kvcachefs_%s %s\n# TYPE kvcachefs_%s gauge\nkvcachefs_%s %" PRIu64 "\n", \
		#name, what, #name, #name, g.name);
	GAUGES(X)
#undef X
	fprintf(out,
		"# HELP kvcachefs_tier_bytes size of a tier\n# TYPE kvcachefs_tier_bytes gauge\n");
	kvc_tier_each(k, t) {
		struct kvc_tier_usage u;

		k->tier[t].t->ops->usage(k->tier[t].t, &u);
		fprintf(out, "kvcachefs_tier_bytes{tier=\"%s\"} %" PRIu64 "\n",
			k->tier[t].t->ops->name, u.total);
	}
	fprintf(out, "# HELP kvcachefs_tier_used_bytes bytes in use in a tier\n# TYPE "
		     "kvcachefs_tier_used_bytes gauge\n");
	kvc_tier_each(k, t) {
		struct kvc_tier_usage u;

		k->tier[t].t->ops->usage(k->tier[t].t, &u);
		fprintf(out, "kvcachefs_tier_used_bytes{tier=\"%s\"} %" PRIu64 "\n",
			k->tier[t].t->ops->name, u.used);
	}
	for (size_t i = 0; i < NCOUNTERS; i++)
		fprintf(out,
			"# HELP kvcachefs_%s_total %s\n# TYPE kvcachefs_%s_total "
			"counter\nkvcachefs_%s_total %" PRIu64 "\n",
			counters[i].name, counters[i].what, counters[i].name, counters[i].name,
			counter(k, i));
	why_metrics(k, out);
}

void kvc_print_config(struct kvc *k, FILE *out)
{
	struct kvc_prefaulted p;
	struct kvc_options o;

	kvc_lock(k);
	kvc_prefault_show_locked(k, &p);
	o = k->opt;
	kvc_unlock(k);
	kvc_options_print(&o, out);
	fprintf(out,
		"store=%s\nuuid=%s\npool=%s\npool_is=%s\npool_noswap=%s\npool_huge=%s\npool_warm=%"
		"s\n",
		k->store->dir, k->store->uuid_text, k->pool.path,
		k->pool.mounted ? "a tmpfs of its own" : "a folder", k->pool.noswap ? "yes" : "no",
		k->pool.huge ? "yes" : "no", k->pool.warm ? "yes" : "no");
	fprintf(out, "prefault_is=%s\n", p.what);
	for (unsigned i = 0; i < k->ntiers; i++)
		fprintf(out, "tier=%s\n", k->tier[k->order[i]].t->id);
	fprintf(out, "sealing=%s\n", k->keys ? "on" : "off");
}

void kvc_print_policies(struct kvc *k, FILE *out)
{
	kvc_lock(k);
	kvc_kept_text_locked(k, out);
	kvc_unlock(k);
}
