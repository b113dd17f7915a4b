/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual files for people: stats, the configuration in effect, policies, and locks. */
#include "cache.h"
#include "gauges.h"
#include "ops.h"
#include "replacers.h"
#include "prefault.h"
#include "tier_queue.h"

#include <inttypes.h>
#include <string.h>

/* Bytes written to tiers, counts by reason, and histograms (only spans with a count). */
static void print_reasons(struct kvc *k, const struct kvc_tier_gauges *tier, FILE *out)
{
	const struct kvc_stats *s = &k->stats;

	kvc_tier_each(k, t)
		fprintf(out, "tier_%s_written_bytes %" PRIu64 "\ntier_%s_today_bytes %" PRIu64 "\n",
			tier[t].name, tier[t].written, tier[t].name, tier[t].today);
	for (size_t i = 0; i < KVC_REASONS_N; i++)
		fprintf(out, "evicted_for_%-10s %" PRIu64 "\n", kvc_gauges_reason_names[i],
			kvc_gauges_read(&s->evicted_for[i]));
	for (size_t i = 0; i < KVC_REASONS_N; i++)
		fprintf(out, "absent_after_%-9s %" PRIu64 "\n", kvc_gauges_reason_names[i],
			kvc_gauges_read(&s->absent_after[i]));
	for (size_t i = KVC_ADMISSION_OK + 1; i < KVC_REFUSALS_N; i++)
		fprintf(out, "refused_%s_chunks %" PRIu64 "\nrefused_%s_bytes %" PRIu64 "\n",
			kvc_gauges_refusal_names[i], kvc_gauges_read(&s->refused_chunks[i]),
			kvc_gauges_refusal_names[i], kvc_gauges_read(&s->refused_bytes[i]));
	for (size_t h = 0; h < kvc_gauges_histogram_rows_n; h++)
		for (unsigned i = 0; i < KVC_SPANS; i++) {
			uint64_t n = kvc_gauges_read(
				&kvc_gauges_histogram(k, &kvc_gauges_histogram_rows[h])->n[i]);

			if (n)
				fprintf(out, "%s_%us%s %" PRIu64 "\n",
					kvc_gauges_histogram_rows[h].name,
					1u << kvc_min(i, KVC_SPANS - 2),
					i == KVC_SPANS - 1 ? "_and_more" : "", n);
		}
	for (size_t h = 0; h < kvc_gauges_size_rows_n; h++)
		for (unsigned i = 0; i < KVC_SPANS; i++) {
			uint64_t n = kvc_gauges_read(
				&kvc_gauges_histogram(k, &kvc_gauges_size_rows[h])->n[i]);

			if (n)
				fprintf(out, "%s_%uMiB%s %" PRIu64 "\n",
					kvc_gauges_size_rows[h].name,
					1u << kvc_min(i, KVC_SPANS - 2),
					i == KVC_SPANS - 1 ? "_and_more" : "", n);
		}
}

void kvc_text_stats(struct kvc *k, FILE *out)
{
	struct kvc_tier_gauges tier[KVC_TIERS];
	struct kvc_gauges g;

	kvc_asked_settle(k);
	kvc_gauges(k, &g);
	kvc_tier_gauges(k, tier);
#define X(name, metric, what) fprintf(out, "%-22s %" PRIu64 "\n", #name, g.name);
	KVC_GAUGES(X)
#undef X
	kvc_tier_each(k, t) {
		const char *name = tier[t].name;
		int n = (int)strlen(name);

		fprintf(out, "tier_%s_bytes %*s %" PRIu64 "\n", name, 10 - n, "", tier[t].bytes);
		fprintf(out, "tier_%s_used_bytes %*s %" PRIu64 "\n", name, 5 - n, "", tier[t].used);
		fprintf(out, "tier_%s_up %*s %" PRIu64 "\n", name, 13 - n, "", tier[t].up);
		for (unsigned i = 0; i < KVC_CALLS; i++)
			fprintf(out, "tier_%s_%s_up %" PRIu64 "\n", name, kvc_breaker_call_names[i],
				tier[t].call[i].up);
	}
	for (size_t i = 0; i < kvc_gauges_counter_rows_n; i++)
		fprintf(out, "%-22s %" PRIu64 "\n", kvc_gauges_counter_rows[i].name,
			kvc_gauges_counter(k, i));
	fprintf(out, "%-22s %" PRIu64 "\n", "commit_longest_ms",
		(kvc_latency_longest(k, KVC_OP_commit) + 999999) / 1000000);
	print_reasons(k, tier, out);
	kvc_lock_profile_print(out);
}

void kvc_text_config(struct kvc *k, FILE *out)
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

void kvc_text_policies(struct kvc *k, FILE *out)
{
	kvc_lock(k);
	kvc_replacers_text_locked(k, out);
	kvc_unlock(k);
}

void kvc_text_locks(struct kvc *k, FILE *out)
{
	fputs("# lock: holds, their total (us), waits, their total (us)\n"
	      "# lock:function:line: waits, their total (us), waits of others, their total (us)\n",
	      out);
	kvc_lock_waits_print(&k->lock, "objects", out);
	kvc_lock_waits_print(kvc_catalog_lock_of(k->cat), "tree", out);
}
