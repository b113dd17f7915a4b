/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl status: a mount on one screen, from .kvcachefs/stats, .kvcachefs/config, the classes
 * of calls (calls.c), the models (models.c) and the slowest operations (slowest.c). A figure that
 * an older daemon lacks counts as 0. With --interval the figures are read again and again, and the
 * output also shows the difference of two readings.
 */
#include "ctl.h"

#include "json.h"
#include "quote.h"
#include "stats.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct figure {
	char name[64];
	uint64_t v;
};

struct figures {
	struct figure *v;
	size_t n, capacity;
	uint64_t at_ns; /* time of reading */
};

struct mount {
	char path[KVM_PATH], *config;
	struct kvm_slow slowest[KVM_SLOWEST];
	size_t slow;
	struct kvm_calls calls;
	struct kvm_models models;
	char *devices;             /* .kvcachefs/devices; NULL: an older daemon lacks it */
	struct figures first, now; /* `first` is empty without an interval */
};

/* Opens a file of .kvcachefs as a stream. Returns NULL after a message. */
static FILE *open_text(const char *mnt, const char *name)
{
	int fd = kvm_mount_open(mnt, name, O_RDONLY);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");

	if (!f && fd >= 0) {
		kvm_fail("out of memory");
		close(fd);
	}
	return f;
}

static int read_figures(const char *mnt, struct figures *all)
{
	FILE *f = open_text(mnt, "stats");
	struct figure one;
	int err = 0;

	if (!f)
		return 1;
	while (!err && fscanf(f, "%63s %" SCNu64, one.name, &one.v) == 2) {
		err = kvc_grow(&all->v, all->n, &all->capacity, sizeof *all->v);
		if (!err)
			all->v[all->n++] = one;
	}
	if (err)
		kvm_fail("out of memory");
	else if (ferror(f) || !all->n)
		err = kvm_fail("%s: cannot read the counters", mnt);
	fclose(f);
	all->at_ns = kvc_mono_ns();
	return err != 0;
}

/* Returns the n-th figure of that name; tiers of the same kind have the same names. */
static uint64_t nth_figure(const struct figures *all, const char *name, unsigned n)
{
	for (size_t i = 0; i < all->n; i++)
		if (!strcmp(all->v[i].name, name) && !n--)
			return all->v[i].v;
	return 0;
}

static uint64_t figure(const struct figures *all, const char *name)
{
	return nth_figure(all, name, 0);
}

/* Copies the value of "name=" in the config. */
static const char *setting(const struct mount *m, const char *name, char *buf, size_t capacity)
{
	size_t n = strlen(name);
	const char *at = m->config;

	while (at && (strncmp(at, name, n) != 0 || at[n] != '='))
		at = (at = strchr(at, '\n')) ? at + 1 : NULL;
	snprintf(buf, capacity, "%.*s", at ? (int)strcspn(at + n + 1, "\n") : 0,
		 at ? at + n + 1 : "");
	return buf;
}

struct tier {
	char name[48];
	uint64_t used, limit, written, today; /* used and limit 0: not known */
	bool up, pool;
};

/* Fills in the pool (i = 0) or the i-th tier. Returns false if there is none. */
static bool tier_at(const struct figures *all, unsigned i, struct tier *t)
{
	unsigned before = 0, seen = 0;
	char name[80];
	int end;

	*t = (struct tier){ .name = "cpu", .up = true, .pool = true };
	t->used = figure(all, "pool_used_bytes");
	t->limit = figure(all, "pool_bytes");
	if (!i)
		return true;
	for (size_t at = 0; at < all->n; at++) {
		end = 0;
		if (sscanf(all->v[at].name, "tier_%47[a-z0-9]_up%n", t->name, &end) != 1 || !end ||
		    all->v[at].name[end] || ++seen != i)
			continue;
		for (size_t b = 0; b < at; b++)
			before += !strcmp(all->v[b].name, all->v[at].name);
		t->pool = false;
		t->up = all->v[at].v;
		snprintf(name, sizeof name, "tier_%s_bytes", t->name);
		t->limit = nth_figure(all, name, before);
		snprintf(name, sizeof name, "tier_%s_used_bytes", t->name);
		t->used = nth_figure(all, name, before);
		snprintf(name, sizeof name, "tier_%s_written_bytes", t->name);
		t->written = nth_figure(all, name, before);
		snprintf(name, sizeof name, "tier_%s_today_bytes", t->name);
		t->today = nth_figure(all, name, before);
		return true;
	}
	return false;
}

/* Figures that are printed as they are; .kvcachefs/metrics describes them. */
static const struct row {
	const char *name, *what;
	bool bytes;
} queues[] = {
	{ "jobs", "copies and loads queued or running", false },
	{ "room_waiters", "calls waiting for space", false },
	{ "copies_failing", "copies to be retried", false },
	{ "unsynced_bytes", "freed, waiting for a sync of the disk", true },
	{ "catalog_pending_bytes", "changes to be committed", true },
	{ "files_open", "files open", false },
}, pins[] = {
	{ "pins", "chunks pinned", false },
	{ "pinned_pool_bytes", "of the pool pinned", true },
};

static const char *const reasons[] = {
#define X(name, what) #name,
	KVC_REASONS(X)
#undef X
};
#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* Chunks that clients asked for since `first`, and how many of their opens hit the pool. */
struct hits {
	uint64_t asked, found, opens, hits, loaded, stored;
	double seconds;
};

/* The increase of a counter; a counter of a daemon that was started in between begins at 0. */
static uint64_t increase(const struct figures *now, const struct figures *first, const char *name)
{
	uint64_t v = figure(now, name), was = figure(first, name);

	return v >= was ? v - was : v;
}

static struct hits hits_of(const struct figures *now, const struct figures *first)
{
	struct hits h;

	h.found = increase(now, first, "found");
	h.asked = h.found + increase(now, first, "absent");
	h.hits = increase(now, first, "pool_hits");
	h.opens = h.hits + increase(now, first, "pool_misses");
	h.loaded = increase(now, first, "load_bytes");
	h.stored = increase(now, first, "spill_bytes");
	h.seconds = (double)(now->at_ns - first->at_ns) / 1e9;
	return h;
}

static void json_share(struct kvm_json *j, const char *name, uint64_t part, uint64_t all)
{
	if (all)
		kvm_json_share(j, name, (double)part / (double)all);
	else
		kvm_json_text(j, name, NULL);
}

static void json_hits(struct kvm_json *j, const char *name, const struct hits *h, bool interval)
{
	kvm_json_begin(j, name, '{');
	kvm_json_number(j, "asked", h->asked);
	kvm_json_number(j, "found", h->found);
	json_share(j, "found_share", h->found, h->asked);
	kvm_json_number(j, "opens", h->opens);
	kvm_json_number(j, "hits", h->hits);
	json_share(j, "share", h->hits, h->opens);
	kvm_json_number(j, "loaded_bytes", h->loaded);
	kvm_json_number(j, "stored_bytes", h->stored);
	if (interval)
		kvm_json_share(j, "seconds", h->seconds);
	kvm_json_end(j, '}');
}

static void json_tiers(struct kvm_json *j, const struct figures *all, const struct kvm_calls *c)
{
	struct tier t;

	kvm_json_begin(j, "tiers", '[');
	for (unsigned i = 0; tier_at(all, i, &t); i++) {
		kvm_json_begin(j, NULL, '{');
		kvm_json_text(j, "tier", t.name);
		if (t.used || t.limit)
			kvm_json_number(j, "used_bytes", t.used);
		else
			kvm_json_text(j, "used_bytes", NULL);
		kvm_json_number(j, "limit_bytes", t.limit);
		kvm_json_bool(j, "up", t.up);
		if (!t.pool) {
			kvm_json_number(j, "written_bytes", t.written);
			kvm_json_number(j, "today_bytes", t.today);
			kvm_calls_json(j, c, i - 1);
		}
		kvm_json_end(j, '}');
	}
	kvm_json_end(j, ']');
}

static void print_status_json(const struct mount *m, const struct hits *all,
			      const struct hits *lately)
{
	static const char *const settings[] = {
		"store", "uuid", "served_by", "requests_by", "policy", "disk_policy", "sealing",
	};
	struct kvm_json j = { stdout, false };
	char text[KVM_PATH], name[64];

	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "mount", m->path);
	for (size_t i = 0; i < COUNT(settings); i++)
		kvm_json_text(&j, settings[i], setting(m, settings[i], text, sizeof text));
	json_tiers(&j, &m->now, &m->calls);
	if (m->devices)
		kvm_devices_json(&j, m->devices);
	kvm_json_begin(&j, "hits", '{');
	json_hits(&j, "since_start", all, false);
	if (lately)
		json_hits(&j, "lately", lately, true);
	kvm_json_end(&j, '}');
	kvm_models_json(&j, &m->models);
	kvm_json_begin(&j, "queues", '{');
	for (size_t i = 0; i < COUNT(queues); i++)
		kvm_json_number(&j, queues[i].name, figure(&m->now, queues[i].name));
	kvm_json_end(&j, '}');
	kvm_json_begin(&j, "pinned", '{');
	for (size_t i = 0; i < COUNT(pins); i++)
		kvm_json_number(&j, pins[i].name, figure(&m->now, pins[i].name));
	kvm_json_end(&j, '}');
	kvm_json_begin(&j, "breakers", '{');
	kvm_json_number(&j, "opened", figure(&m->now, "breaker_opened"));
	kvm_json_number(&j, "closed", figure(&m->now, "breaker_closed"));
	kvm_json_end(&j, '}');
	kvm_json_begin(&j, "evicted_for", '{');
	for (size_t i = 0; i < COUNT(reasons); i++) {
		snprintf(name, sizeof name, "evicted_for_%s", reasons[i]);
		kvm_json_number(&j, reasons[i], figure(&m->now, name));
	}
	kvm_json_end(&j, '}');
	kvm_slowest_json(&j, m->slowest, m->slow);
	kvm_json_bool(&j, "catalog_ok", figure(&m->now, "catalog_ok"));
	kvm_json_end(&j, '}');
	putchar('\n');
}

/*
 * OUT: calls of at least one class fail or hang. part: the tier answers, but refuses calls of at
 * least one class. up: all calls are made.
 */
static const char *state_of(const struct tier *t, const struct kvm_calls *c, unsigned i)
{
	return !t->up ? "OUT" : !t->pool && kvm_calls_suspended(c, i - 1) ? "part" : "up";
}

static void print_tiers(const struct figures *all, const struct kvm_calls *c)
{
	char used[32], limit[32], today[32];
	struct tier t;

	printf("\n%-8s %10s %10s %6s  %-8s %14s\n", "tier", "used", "of", "full", "is",
	       "written today");
	for (unsigned i = 0; tier_at(all, i, &t); i++) {
		printf("%-8s %10s %10s", t.name,
		       t.used || t.limit ? kvc_size_text(t.used, used) : "-",
		       t.limit ? kvc_size_text(t.limit, limit) : "-");
		if (t.limit)
			printf(" %5.1f%%", 100 * (double)t.used / (double)t.limit);
		else
			printf(" %6s", "-");
		printf("  %-8s %14s\n", state_of(&t, c, i),
		       t.pool ? "-" : kvc_size_text(t.today, today));
	}
	kvm_calls_print(c);
}

static void print_share(uint64_t part, uint64_t all)
{
	if (all)
		printf(" %8.1f%%", 100 * (double)part / (double)all);
	else
		printf(" %9s", "-");
}

static void print_hits(const char *when, const struct hits *h)
{
	char loaded[32], stored[32];

	printf("%-14s %8" PRIu64, when, h->asked);
	print_share(h->found, h->asked);
	printf(" %8" PRIu64, h->opens);
	print_share(h->hits, h->opens);
	printf(" %9s %9s\n", kvc_size_text(h->loaded, loaded), kvc_size_text(h->stored, stored));
}

static void print_rows(const struct figures *all, const char *head, const struct row *r, size_t n)
{
	char size[32];

	printf("%s", head);
	for (size_t i = 0; i < n; i++) {
		uint64_t v = figure(all, r[i].name);

		snprintf(size, sizeof size, "%" PRIu64, v);
		printf("%12s  %s\n", r[i].bytes ? kvc_size_text(v, size) : size, r[i].what);
	}
}

static void print_status(const struct mount *m, const struct hits *all, const struct hits *lately)
{
	char a[KVM_PATH], b[256], c[256], when[32];

	kvc_quote_line(stdout, m->path);
	printf(" of the store ");
	kvc_quote_line(stdout, setting(m, "store", a, sizeof a));
	putchar('\n');
	printf("served by %s, requests by %s; policy %s, sealing %s\n",
	       setting(m, "served_by", a, sizeof a), setting(m, "requests_by", b, sizeof b),
	       setting(m, "policy", c, sizeof c), setting(m, "sealing", when, sizeof when));
	print_tiers(&m->now, &m->calls);
	if (m->devices)
		kvm_devices_print(m->devices);
	printf("\n%-14s %8s %9s %8s %9s %9s %9s\n", "chunks", "asked", "found", "opens",
	       "in memory", "loaded", "copied");
	if (lately) {
		snprintf(when, sizeof when, "last %.1f s", lately->seconds);
		print_hits(when, lately);
	}
	print_hits("since the start", all);
	kvm_models_print(&m->models);
	print_rows(&m->now, "\n", queues, COUNT(queues));
	print_rows(&m->now, "", pins, COUNT(pins));
	printf("%12" PRIu64 "  times a breaker suspended a tier\n",
	       figure(&m->now, "breaker_opened"));
	printf("\nchunks evicted, by reason:");
	for (size_t i = 0; i < COUNT(reasons); i++) {
		snprintf(b, sizeof b, "evicted_for_%s", reasons[i]);
		printf(" %s %" PRIu64, reasons[i], figure(&m->now, b));
	}
	printf("\n");
	kvm_slowest_print(m->slowest, m->slow);
	printf("%s", figure(&m->now, "catalog_ok") ? ""
						   : "The catalog cannot write: free space on the "
						     "store's filesystem, or check its disk.\n");
}

/* Reads the present state, and prints it. m->first: the state before an interval, or nothing. */
static int show_status(struct mount *m, bool json)
{
	static const struct figures none;
	char file[KVM_PATH + 32];
	struct hits all, lately;
	int err = read_figures(m->path, &m->now) ?: kvm_mount_text(m->path, "config", &m->config);

	m->calls = (struct kvm_calls){ 0 };
	err = err ?: kvm_calls(m->path, &m->calls);
	snprintf(file, sizeof file, "%s/.kvcachefs/devices", m->path);
	if (!err && !access(file, F_OK))
		err = kvm_mount_text(m->path, "devices", &m->devices);
	err = err ?: kvm_models(m->path, &m->models);
	err = err ?: kvm_slowest(m->path, m->slowest, &m->slow);
	if (err)
		return err;
	all = hits_of(&m->now, &none);
	lately = hits_of(&m->now, &m->first);
	(json ? print_status_json : print_status)(m, &all, m->first.v ? &lately : NULL);
	return fflush(stdout) ? kvm_fail("stdout: %s", kvc_why(errno)) : 0;
}

/* Prints the state after each interval. count: number of intervals; 0: until a signal. */
static int follow_status(struct mount *m, uint64_t s, uint64_t count, bool json)
{
	int err = read_figures(m->path, &m->first);

	for (uint64_t i = 0; !err && (!count || i < count); i++) {
		sleep((unsigned)s);
		if (i && !json)
			putchar('\n');
		err = show_status(m, json);
		free(m->first.v);
		free(m->config);
		free(m->devices);
		m->first = m->now;
		m->now = (struct figures){ 0 };
		m->config = m->devices = NULL;
	}
	return err;
}

int kvm_run_status(int argc, char **argv)
{
	bool json = false;
	const char *interval = NULL, *count = NULL;
	const struct kvm_option options[] = { { "json", &json, NULL },
					      { "interval", NULL, &interval },
					      { "count", NULL, &count },
					      { 0 } };
	struct mount m = { .config = NULL };
	uint64_t s = 0, n = 0;
	char *end = NULL;
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	if (interval &&
	    (err = kvm_time_arg("--interval", interval, 3600, "a time from 1s to 1h", &s)))
		return err;
	if (count)
		n = strtoull(count, &end, 10);
	if (count && (*count < '0' || *count > '9' || *end || !n))
		return kvm_misused("--count %s: give a number, 1 or more", kvm_shown(count));
	if (count && !interval)
		return kvm_misused("--count %s needs --interval", count);
	err = kvm_mount_of(argc ? argv[0] : NULL, m.path);
	if (!err)
		err = s ? follow_status(&m, s, n, json) : show_status(&m, json);
	free(m.first.v);
	free(m.now.v);
	free(m.config);
	free(m.devices);
	return err;
}
