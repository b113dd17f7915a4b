/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /status.json and the metrics: the engine's parts (engine/report/), and the state of fs/.
 */
#include "fs.h"

#include "quote.h"

#include <inttypes.h>
#include <time.h>

#define NOW_S 60u /* interval of the hit ratio "now": the last minute */

static void print_share(FILE *out, uint64_t part, uint64_t all)
{
	if (all)
		fprintf(out, "%.4f", (double)part / (double)all);
	else
		fputs("null", out);
}

static void print_hits(FILE *out, const char *name, const struct kvfs_sample *to,
		       const struct kvfs_sample *from, const char *end)
{
	uint64_t found = to->found - from->found, asked = found + to->absent - from->absent;
	uint64_t n = to->hits - from->hits, all = n + to->misses - from->misses;

	fprintf(out,
		"\"%s\":{\"seconds\":%.1f,\"found\":%" PRIu64 ",\"absent\":%" PRIu64
		",\"found_share\":",
		name, (double)(to->ns - kvc_min(to->ns, from->ns)) / 1e9, found, asked - found);
	print_share(out, found, asked);
	fprintf(out, ",\"hits\":%" PRIu64 ",\"misses\":%" PRIu64 ",\"share\":", n, all - n);
	print_share(out, n, all);
	fprintf(out, "}%s", end);
}

const char *kvfs_unready(struct kvfs *f)
{
	return atomic_load(&f->mounted) ? kvc_status_unready(f->k) : "the mount is not ready yet";
}

void kvfs_print_status(struct kvfs *f, FILE *out)
{
	struct kvfs_history *h = &f->http->history;
	struct kvfs_sample now = kvfs_sample_now(f->k), none = { .ns = f->http->begun_ns }, then;
	const char *unready = kvfs_unready(f);
	struct kvc_stats_durations durations;

	then = kvfs_history_before(h, &now, NOW_S);
	fputs("{\"version\":\"" KVC_VERSION "\",\n\"mountpoint\":", out);
	kvc_quote(out, f->mountpoint);
	fprintf(out, ",\n\"time\":%lld,\"uptime_seconds\":%.0f,\n\"ready\":%s,\"why_not\":",
		(long long)time(NULL), (double)(now.ns - f->http->begun_ns) / 1e9,
		unready ? "false" : "true");
	if (unready)
		kvc_quote(out, unready);
	else
		fputs("null", out);
	fprintf(out, ",\n\"served_by\":\"%s\",\"requests_by\":\"%s\",\n\"hits\":{",
		f->passthrough ? "passthrough" : "plain requests",
		kvfs_uses_uring(f) ? "io_uring" : "/dev/fuse");
	print_hits(out, "now", &now, &then, ",");
	print_hits(out, "since_start", &now, &none, "},\n");
	kvfs_history_durations(h, &now, &durations);
	kvc_print_status(f->k, &durations, out);
	fputs("\"history\":", out);
	kvfs_history_print(h, &now, out);
	fputs("}\n", out);
}

void kvfs_print_metrics(struct kvfs *f, FILE *out)
{
	kvc_print_metrics(f->k, out);
	fprintf(out,
		"# HELP kvcachefs_passthrough 1 if the kernel moves data between callers and the "
		"pool, 0 if the daemon does\n"
		"# TYPE kvcachefs_passthrough gauge\nkvcachefs_passthrough %d\n"
		"# HELP kvcachefs_io_uring 1 if requests arrive through io_uring, 0 if through "
		"/dev/fuse\n"
		"# TYPE kvcachefs_io_uring gauge\nkvcachefs_io_uring %d\n",
		f->passthrough, kvfs_uses_uring(f));
	kvc_print_process(out);
}
