/* SPDX-License-Identifier: Apache-2.0 */
/* What .kvcachefs/ shows: stats for people, metrics for Prometheus, config as in effect. */
#include "cache.h"
#include "drop.h"
#include "node.h"
#include "pin.h"
#include "prefault.h"
#include "tierq.h"
#include "trash.h"

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
		pinned_disk_bytes, catalog_inode_bytes, catalog_attribute_bytes, catalog_limit;
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
}

void kvc_print_config(struct kvc *k, FILE *out)
{
	struct kvc_prefaulted p;

	kvc_lock(k);
	kvc_prefault_show_locked(k, &p);
	kvc_unlock(k);
	kvc_options_print(&k->opt, out);
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
