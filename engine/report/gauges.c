/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the gauges; see gauges.h. */
#include "gauges.h"

#include "budget.h"
#include "dir_invalidate.h"
#include "pin.h"
#include "prefault.h"
#include "tier_queue.h"
#include "deferred_free.h"
#include "access.h"

#include <string.h>

#define X(name, what) { #name, what, kvc_counter_at(name) },
const struct kvc_gauge kvc_gauges_counter_rows[] = { KVC_COUNTERS(X) };
#undef X
#define X(name, what) { #name, what, offsetof(struct kvc_stats, name) },
const struct kvc_gauge kvc_gauges_histogram_rows[] = { KVC_HISTOGRAMS(X) };
const struct kvc_gauge kvc_gauges_size_rows[] = { KVC_SIZE_HISTOGRAMS(X) };
#undef X
const size_t kvc_gauges_size_rows_n = sizeof kvc_gauges_size_rows / sizeof kvc_gauges_size_rows[0];
const size_t kvc_gauges_counter_rows_n = sizeof kvc_gauges_counter_rows /
					 sizeof kvc_gauges_counter_rows[0];
const size_t kvc_gauges_histogram_rows_n = sizeof kvc_gauges_histogram_rows /
					   sizeof kvc_gauges_histogram_rows[0];

#define X(name, what) #name,
const char *const kvc_gauges_reason_names[] = { KVC_REASONS(X) };
const char *const kvc_gauges_refusal_names[] = { NULL /* not a refusal */, KVC_REFUSALS(X) };
#undef X

void kvc_gauges(struct kvc *k, struct kvc_gauges *g)
{
	struct kvc_catalog_state c;
	struct kvc_budget_state b;
	struct kvc_prefaulted p;

	*g = (struct kvc_gauges){ 0 };
	kvc_catalog_state(k->cat, &c);
	g->catalog_ok = c.ok;
	g->catalog_pending_bytes = c.pending_bytes;
	g->catalog_log_bytes = c.log_bytes;
	kvc_usage_show(k->cat, &g->catalog_inode_bytes, &g->catalog_attribute_bytes,
		       &g->catalog_limit);
	kvc_budget_state(&b);
	g->memory_bytes = b.limit;
	g->memory_fixed_bytes = b.fixed;
	g->memory_used_bytes = b.used;
	g->memory_peak_bytes = b.peak;
	kvc_lock(k);
	kvc_prefault_show_locked(k, &p);
	g->prefault_bytes = p.bytes;
	g->prefault_total = p.total;
	g->prefault_held = p.held;
	g->pool_bytes = k->pool.size;
	g->pool_used_bytes = k->reservations.used - kvc_min(k->reservations.used, p.held);
	g->files_open = kvc_node_opens_locked(k);
	g->objects_resident = k->nodes->resident;
	g->nodes_in_memory = k->nodes->table.n;
	g->jobs = k->work->queued + k->work->running + k->deferred_free->nunsynced;
	g->unsynced_bytes = k->deferred_free->unsynced_bytes;
	g->drop_files = k->drops->most;
	g->pins = k->pins->table.n;
	g->pinned_pool_bytes = k->pins->pool;
	g->pinned_disk_bytes = k->pins->disk;
	g->daily = k->opt.daily_bytes;
	g->trace_readers = k->access_ring ? k->access_ring->readers : 0;
	kvc_list_each(e, &k->reservations.waiters)
		g->room_waiters++;
	kvc_tier_each(k, t)
		g->copies_failing += k->tier[t].queue.nfailed;
	kvc_unlock(k);
}

/* One word for all classes of calls: the worst. Classes that the tier refuses do not count. */
static const char *breaker_locked(const struct kvc *k, unsigned t)
{
	const struct kvc_tier_state *ts = &k->tier[t];
	const char *worst = "closed";

	if (ts->threads.stuck || kvc_tier_hangs_locked(k, t))
		return "hangs";
	for (unsigned i = 0; i < KVC_CALLS; i++) {
		if (ts->breaker.of[i].is != KVC_BREAKER_OUT)
			continue;
		if (kvc_tier_out_locked(k, t, (enum kvc_call)i))
			return "open";
		worst = "half open";
	}
	return worst;
}

static void calls_locked(const struct kvc_tier_state *ts, struct kvc_call_figures v[KVC_CALLS])
{
	uint64_t now = kvc_mono_ns();

	for (unsigned i = 0; i < KVC_CALLS; i++) {
		const struct kvc_breaker_class *c = &ts->breaker.of[i];
		bool closed = c->is == KVC_BREAKER_CLOSED;

		v[i].up = closed && !ts->threads.stuck;
		v[i].next_ms = closed || c->until_ns < now ? 0 : (c->until_ns - now) / 1000000;
		v[i].state = ts->threads.stuck
				     ? "hangs"
				     : kvc_breaker_word(&ts->breaker, (enum kvc_call)i, now);
		snprintf(v[i].reason, sizeof v[i].reason, "%s",
			 closed ? "" : kvc_breaker_reason(c->why));
	}
}

void kvc_tier_gauges(struct kvc *k, struct kvc_tier_gauges v[KVC_TIERS])
{
	memset(v, 0, KVC_TIERS * sizeof *v);
	for (unsigned i = 0; i < k->ntiers; i++) {
		unsigned t = k->order[i], same = 1;
		struct kvc_tier_state *ts = &k->tier[t];
		struct kvc_tier_gauges *f = &v[t];
		struct kvc_tier_usage u;
		struct kvc_wear w;

		ts->t->ops->usage(ts->t, &u);
		f->name = ts->t->ops->name;
		for (unsigned j = 0; j < i; j++)
			same += !strcmp(k->tier[k->order[j]].t->ops->name, f->name);
		snprintf(f->label, sizeof f->label, same > 1 ? "%s-%u" : "%s", f->name, same);
		f->bytes = u.total;
		f->used = u.used;
		kvc_lock(k);
		w = kvc_wear_show_locked(k, t);
		f->written = w.all;
		f->today = w.today;
		f->breaker = breaker_locked(k, t);
		f->up = !strcmp(f->breaker, "closed");
		calls_locked(ts, f->call);
		f->removals = ts->queue.nremovals;
		f->waiting = ts->queue.ncopies;
		f->failing = ts->queue.nfailed;
		f->running = ts->threads.running;
		kvc_unlock(k);
	}
}

bool kvc_gauges_device(struct kvc *k, unsigned nr, struct kvc_tier_device *d)
{
	struct kvc_tier *t = k->tier[KVC_DISK].t;

	return t && t->ops->device && !t->ops->device(t, nr, d);
}

const char *kvc_gauges_device_state(const struct kvc_tier_device *d)
{
	return d->read_fails && d->write_fails ? "fails"
	       : d->read_fails                 ? "reads-fail"
	       : d->write_fails                ? "writes-fail"
	       : d->leaving                    ? "leaving"
					       : "up";
}
