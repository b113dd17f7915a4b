/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Findings from the counters of a mount: why requested names are missing, why opens wait for a
 * load, and which calls are delayed or refused. A share of fewer than KVM_ENOUGH requests, opens or
 * stores is not judged. A cause is a finding if it costs at least LEAST points of the share. See
 * doctor.h.
 */
#include "doctor.h"

#include "stats.h"

#include <inttypes.h>
#include <string.h>

#define LEAST 1. /* points: hundredths of the requests or opens */
#define MOST_OF .75

static double points(uint64_t part, uint64_t all)
{
	return all ? 100 * (double)part / (double)all : 0;
}

/* The gain of a larger cache: the bytes to add, and the missed requests that become hits. */
struct gain {
	uint64_t bytes, requests;
};

/*
 * The size that turns most of the counted misses into hits. The histogram counts, for each miss,
 * the bytes that left the cache between the eviction of the chunk and the request for it.
 */
static struct gain gain_of(const struct kvm_facts *f, const char *histogram)
{
	struct kvm_spans s;
	struct gain g = { 0 };
	uint64_t sum = 0;

	kvm_facts_spans(f, histogram, "", &s);
	for (size_t i = 0; i < s.count && !g.bytes; i++) {
		sum += s.n[i];
		if (s.total && (double)sum >= MOST_OF * (double)s.total)
			g = (struct gain){ (uint64_t)s.le[i], sum };
	}
	return g;
}

static uint64_t absent_after(const struct kvm_facts *f, const char *reason)
{
	char name[64];

	snprintf(name, sizeof name, "absent_after_%s", reason);
	return kvm_fact(f, name);
}

/* The names that were asked for and not found, by the reason for which they had been dropped. */
struct missing {
	const char *reason, *id, *because;
};
static const struct missing missing[] = {
	{ "tier", "disk-small", "the disk tier was full" },
	{ "pool", "pool-small-no-copy", "the pool was full and no tier had a copy" },
	{ "quota", "quota-small", "their model had reached its quota" },
	{ "tenant", "tenant-quota-small", "their tenant had reached its quota" },
	{ "ttl", "ttl-short", "their ttl had run out" },
	{ "behind", "copies-behind", "copies to the tiers lagged behind the stores" },
	{ "demote", "evicted-by-request", "a client or an operator had evicted them" },
	{ "refused", "admission-refuses", "the disk tier had not admitted them" },
};
#define MISSING (sizeof missing / sizeof missing[0])

static void remedy_of_size(struct kvm_diagnosis *d, struct kvm_finding *v, bool disk,
			   const struct gain *g)
{
	char size[32];
	uint64_t now = kvm_fact(d->f, disk ? "tier_disk_bytes" : "pool_bytes");

	kvm_doctor_size(now + kvc_max(g->bytes, 1 << 20), size);
	if (!disk)
		kvm_doctor_remedy(v, "cpu", size, "Mount with the option cpu=%s.", size);
	else
		kvm_doctor_remedy(
			v, "grow", size,
			"Give the store a disk tier of %s (kvcachectl grow enlarges a device, and "
			"kvcachectl add adds one), or add a shared tier with the option remote=.",
			size);
}

/* The disk tier refuses a chunk because of admit=twice, of daily=, or because of its policy. */
static const struct missing refused_by_policy = {
	"refused",
	"disk-refuses",
	"the policy of the disk tier kept other chunks",
};

static bool refused_for(const struct kvm_facts *f, const char *reason)
{
	static const char *const reasons[] = { "twice", "daily", "worth" };
	char name[64];
	uint64_t n;

	snprintf(name, sizeof name, "refused_%s_chunks", reason);
	n = kvm_fact(f, name);
	for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
		snprintf(name, sizeof name, "refused_%s_chunks", reasons[i]);
		if (kvm_fact(f, name) > n)
			return false;
	}
	return n > 0;
}

static void remedy_of_refusal(struct kvm_diagnosis *d, struct kvm_finding *v)
{
	const struct kvm_facts *f = d->f;
	char value[32];

	if (refused_for(f, "worth")) {
		kvm_doctor_remedy(v, "grow", "",
				  "Give the store a larger disk tier (kvcachectl grow enlarges a "
				  "device, and kvcachectl add adds one), or mount with another "
				  "disk_policy=; kvcachefs-policies(7) compares the policies.");
	} else if (refused_for(f, "daily")) {
		kvm_doctor_size(2 * kvm_facts_option(f, "daily"), value);
		kvm_doctor_remedy(v, "daily", value, "Run kvcachectl reload -o daily=%s %s.", value,
				  f->mnt);
	} else {
		kvm_doctor_remedy(v, "admit", "all", "Run kvcachectl reload -o admit=all %s.",
				  f->mnt);
	}
}

/* The finding for one reason. n: requests for names that were dropped for it. */
static void find_missing(struct kvm_diagnosis *d, const struct missing *m, uint64_t n,
			 uint64_t asked)
{
	const struct kvm_facts *f = d->f;
	bool space = !strcmp(m->reason, "tier") || !strcmp(m->reason, "pool");
	struct gain g = space ? gain_of(f, "drop_gap_bytes") : (struct gain){ 0 };
	uint64_t kept = kvc_min(g.requests, n), deadline = kvm_facts_option(f, "pace");
	char more[32] = "", text[96] = "", buf[KVM_PATH], value[32];
	struct kvm_finding *v;

	if (!strcmp(m->reason, "refused") && refused_for(f, "worth"))
		m = &refused_by_policy;
	if (kept)
		snprintf(text, sizeof text, " %s of %s more: about +%.1f points.",
			 *m->reason == 't' ? "A disk tier" : "A pool", kvc_size_text(g.bytes, more),
			 points(kept, asked));
	v = kvm_doctor_find(d, m->id, 10 * points(n, asked), NULL, NULL,
			    "%.1f%% of the requested names (%" PRIu64 " of %" PRIu64
			    ") had been dropped, because %s.%s",
			    points(n, asked), n, asked, m->because, text);
	if (space && *m->reason == 'p' && !strcmp(kvm_facts_setting(f, "disk", buf), "off") &&
	    !*kvm_facts_setting(f, "tier", buf))
		kvm_doctor_remedy(
			v, "disk", "on",
			"Mount with the option disk=on, which keeps evicted chunks in the "
			"store.");
	else if (space)
		remedy_of_size(d, v, *m->reason == 't', &g);
	else if (!strcmp(m->reason, "quota"))
		kvm_doctor_remedy(v, "quota", "",
				  "Run kvcachectl quotas %s, and raise the quota of "
				  "the full models with kvcachectl quota.",
				  f->mnt);
	else if (!strcmp(m->reason, "tenant"))
		kvm_doctor_remedy(v, "tenant", "",
				  "Run kvcachectl tenants %s, and raise the quota "
				  "of the full tenants with kvcachectl tenant --quota.",
				  f->mnt);
	else if (!strcmp(m->reason, "ttl"))
		kvm_doctor_remedy(v, "ttl", "", "Give the models a longer ttl: kvcachectl ttl.");
	else if (!strcmp(m->reason, "demote"))
		kvm_doctor_remedy(v, "", "",
				  "Look for clients that evict chunks with the attribute "
				  "user.kvcachefs.demote, or with kvcachectl evict.");
	else if (!strcmp(m->reason, "behind")) {
		snprintf(value, sizeof value, "%" PRIu64, kvc_max(2 * deadline, 100));
		kvm_doctor_remedy(v, "pace", value,
				  "Run kvcachectl reload -o pace=%s %s, so that "
				  "stores wait longer for the copies, or use a faster disk.",
				  value, f->mnt);
	} else {
		remedy_of_refusal(d, v);
	}
}

/* Requests for names that had been stored and dropped, at most `absent`. */
static uint64_t absent_after_drop(const struct kvm_facts *f, uint64_t absent)
{
	uint64_t known = 0;

	for (size_t i = 0; i < MISSING; i++)
		known += absent_after(f, missing[i].reason);
	return kvc_min(known, absent);
}

static void say_absent(struct kvm_diagnosis *d, uint64_t absent, uint64_t asked)
{
	struct kvm_spans gap;
	uint64_t known = absent_after_drop(d->f, absent);
	char then[48];

	kvm_facts_spans(d->f, "drop_gap_seconds", "", &gap);
	kvm_doctor_say(d,
		       "%.1f%% of the requested names were never stored here, or left before the "
		       "mount began or very long ago. %.1f%% had been dropped.",
		       points(absent - known, asked), points(known, asked));
	if (gap.total >= 10)
		kvm_doctor_say(d, "Half of the dropped names were requested within %s of the drop.",
			       kvm_doctor_time(kvm_spans_quantile(&gap, .5), then));
}

static void judge_found(struct kvm_diagnosis *d)
{
	const struct kvm_facts *f = d->f;
	uint64_t found = kvm_fact(f, "found"), absent = kvm_fact(f, "absent");
	uint64_t asked = found + absent, stored = kvm_fact(f, "publishes");

	/* engine/ops/asked.c does not count a name that its thread creates within 300 ms */
	if (stored >= KVM_ENOUGH && absent < stored / 2)
		kvm_doctor_note(d,
				"Clients stored %" PRIu64 " files, but only %" PRIu64 " missing "
				"names were counted. A name that the same thread creates within "
				"300 ms is not counted, so the share of found chunks may be too "
				"high.",
				stored, absent);
	if (asked < KVM_ENOUGH) {
		kvm_doctor_note(d,
				"Clients asked for %" PRIu64 " chunks%s since the mount began. "
				"That is too little to judge the share of found chunks.%s",
				asked, stored ? "" : " and stored no file",
				stored ? ""
				       : " If engines are at work: check that their folder is in "
					 "this mount, and that they may write to it. Repeated "
					 "questions for a missing name are not counted.");
		return;
	}
	kvm_doctor_say(d,
		       "Clients asked for %" PRIu64
		       " chunks since the mount began, and %.1f%% were "
		       "found.",
		       asked, points(found, asked));
	if (absent)
		say_absent(d, absent, asked);
	if (!found && stored >= KVM_ENOUGH && !absent_after_drop(f, absent))
		kvm_doctor_remedy(
			kvm_doctor_find(
				d, "names-differ", 900, NULL, NULL,
				"No requested name was ever stored, although clients stored "
				"%" PRIu64 " files: they compute other names when they ask "
				"than when they store.",
				stored),
			"", "",
			"Give all engines the same model revision, block size, and PYTHONHASHSEED, "
			"and compare their names with kvcachectl hash.");
	for (size_t i = 0; i < MISSING; i++) {
		uint64_t n = absent_after(f, missing[i].reason);

		if (points(n, asked) >= LEAST)
			find_missing(d, &missing[i], n, asked);
	}
}

/* Opens that had to wait for a load. */
static void judge_pool(struct kvm_diagnosis *d)
{
	const struct kvm_facts *f = d->f;
	uint64_t hits = kvm_fact(f, "pool_hits"), misses = kvm_fact(f, "pool_misses");
	uint64_t opens = hits + misses;
	struct gain g = gain_of(f, "evict_gap_bytes");
	struct kvm_spans age, gap;
	char more[32], value[32], a[48], b[48];

	if (opens < KVM_ENOUGH) {
		kvm_doctor_note(d,
				"Clients opened %" PRIu64
				" stored files since the mount began. That "
				"is too little to judge the share in memory.",
				opens);
		return;
	}
	kvm_doctor_say(d, "Of %" PRIu64 " opens of stored files, %.1f%% found the file in memory.",
		       opens, points(hits, opens));
	kvm_facts_spans(f, "eviction_age_seconds", "", &age);
	kvm_facts_spans(f, "use_gap_seconds", "", &gap);
	if (age.total >= 10 && gap.total >= 10)
		kvm_doctor_say(d,
			       "Half of the evicted chunks were younger than %s; half of the "
			       "repeated uses came within %s.",
			       kvm_doctor_time(kvm_spans_quantile(&age, .5), a),
			       kvm_doctor_time(kvm_spans_quantile(&gap, .5), b));
	g.requests = kvc_min(g.requests, misses);
	if (points(g.requests, opens) < 3 * LEAST)
		return;
	kvm_doctor_size(kvm_fact(f, "pool_bytes") + g.bytes, value);
	kvm_doctor_find(d, "pool-small", 3 * points(g.requests, opens), "cpu", value,
			"%.1f%% of the opens waited for a load, because the pool had evicted the "
			"chunk. A pool of %s more: about +%.1f points in memory.",
			points(misses, opens), kvc_size_text(g.bytes, more),
			points(g.requests, opens));
}

/* Stores that were delayed. */
static void judge_stores(struct kvm_diagnosis *d)
{
	const struct kvm_facts *f = d->f;
	uint64_t creates = kvm_fact(f, "creates"), paced = kvm_fact(f, "paced");
	uint64_t behind = kvm_fact(f, "behind_drops"), refused = kvm_fact(f, "room_refusals");
	char buf[KVM_PATH], value[32];
	struct kvm_finding *v;

	if (creates >= KVM_ENOUGH && points(paced, creates) >= 5 * LEAST) {
		v = kvm_doctor_find(
			d, "stores-throttled", 100 + points(paced, creates), NULL, NULL,
			"%" PRIu64 " writes were delayed while %" PRIu64
			" files were stored, because copies to the tiers lagged; %" PRIu64
			" chunks were dropped before a tier had them.",
			paced, creates, behind);
		if (strcmp(kvm_facts_setting(f, "admit", buf), "twice") != 0)
			kvm_doctor_remedy(
				v, "admit", "twice",
				"Run kvcachectl reload -o admit=twice %s, which copies only "
				"chunks that were requested twice, or use a faster disk.",
				f->mnt);
		else
			kvm_doctor_remedy(v, "", "", "Put the store on a faster disk.");
	}
	if (refused) {
		kvm_doctor_size(2 * kvm_fact(f, "pool_bytes"), value);
		kvm_doctor_find(d, "pool-no-space", 400, "cpu", value,
				"%" PRIu64
				" creates or writes were refused with ENOSPC, because the "
				"pool had no space in time.",
				refused);
	}
}

/* Limits that refused something. */
static void judge_limits(struct kvm_diagnosis *d)
{
	const struct kvm_facts *f = d->f;
	uint64_t n, m;
	char value[32];

	n = kvm_fact(f, "quota_refusals");
	if (n)
		kvm_doctor_remedy(
			kvm_doctor_find(d, "quota-refuses", 350, NULL, NULL,
					"%" PRIu64 " creates or writes were refused with "
					"EDQUOT, because a model or tenant was full.",
					n),
			"quota", "",
			"Run kvcachectl quotas %s and kvcachectl tenants %s, and raise the "
			"quota of the full ones.",
			f->mnt, f->mnt);
	n = kvm_fact(f, "share_refusals");
	if (n) {
		snprintf(value, sizeof value, "%" PRIu64,
			 kvc_min(kvm_facts_option(f, "share") + 10, 100));
		kvm_doctor_find(d, "share-refuses", 340, "share", value,
				"%" PRIu64 " opens, leases or writes were refused, because a user "
				"reached share=.",
				n);
	}
	n = kvm_fact(f, "pin_refusals");
	m = kvm_fact(f, "pool_bytes");
	if (n || points(kvm_fact(f, "pinned_pool_bytes"), m) >
			 .8 * (double)kvm_facts_option(f, "pins")) {
		char pinned[32];

		kvm_doctor_remedy(
			kvm_doctor_find(
				d, "pins-fill-pool", 300, NULL, NULL,
				"Pinned chunks use %s, %.0f%% of the pool, of at most %" PRIu64
				"%% (pins=); %" PRIu64 " pins were refused.",
				kvc_size_text(kvm_fact(f, "pinned_pool_bytes"), pinned),
				points(kvm_fact(f, "pinned_pool_bytes"), m),
				kvm_facts_option(f, "pins"), n),
			"unpin", "",
			"Run kvcachectl pins %s, and unpin chunks with kvcachectl unpin.", f->mnt);
	}
	n = kvm_fact(f, "memory_waits") + kvm_fact(f, "memory_refusals");
	if (n) {
		kvm_doctor_size(2 * kvm_fact(f, "memory_bytes"), value);
		kvm_doctor_find(d, "memory-limit", 250, "memory", value,
				"%" PRIu64 " operations waited or were refused, because the daemon "
				"reached its limit memory=.",
				n);
	}
}

/* How a suspended class of calls affects users. */
static const char *effect_of(const char *call)
{
	if (!strcmp(call, "read"))
		return ", so its chunks are missing until it answers";
	return !strcmp(call, "write") ? ", so it gets no copies until it accepts them" : "";
}

/* Tiers that are not used, fail, are slow, or hold damaged copies. */
static void judge_calls(struct kvm_diagnosis *d)
{
	const struct kvm_facts *f = d->f;

	for (size_t i = 0; i < f->calls.n; i++) {
		const struct kvm_call *c = &f->calls.of[i];
		bool disk = !strncmp(c->tier, "disk", 4), refused = !strcmp(c->state, "refused");
		struct kvm_finding *v;

		if (!strcmp(c->state, "closed"))
			continue;
		v = kvm_doctor_find(d, refused ? "tier-refuses" : "tier-out", refused ? 500 : 2000,
				    NULL, NULL, "The tier %s is not used for %s calls (%s: %s)%s.",
				    c->tier, c->call, c->state,
				    strcmp(c->reason, "-") ? c->reason : "no answer",
				    effect_of(c->call));
		kvm_doctor_remedy(
			v, disk ? "" : "remote", "",
			disk ? "Check the disk of the store (dmesg, %s/.kvcachefs/log)."
			     : "Check the server, its credentials and its free space, or mount "
			       "without this remote=. The log has the errors: %s/.kvcachefs/log.",
			f->mnt);
	}
}

static void judge_speed(struct kvm_diagnosis *d)
{
	const struct kvm_facts *f = d->f;
	const char *last = "";
	char labels[64], p50[48], p90[48];

	for (size_t i = 0; i < f->calls.n; i++) {
		const char *tier = f->calls.of[i].tier;
		struct kvm_spans s;

		if (!strcmp(tier, last))
			continue;
		last = tier;
		snprintf(labels, sizeof labels, "operation=\"load\",tier=\"%s\"", tier);
		kvm_facts_spans(f, "operation_seconds", labels, &s);
		if (s.total < 20 || kvm_spans_quantile(&s, .9) < .2)
			continue;
		kvm_doctor_remedy(
			kvm_doctor_find(
				d, "tier-slow", 150, NULL, NULL,
				"Loads from the tier %s are slow: half take up to %s, a tenth "
				"longer than %s (%" PRIu64 " loads).",
				tier, kvm_doctor_time(kvm_spans_quantile(&s, .5), p50),
				kvm_doctor_time(kvm_spans_quantile(&s, .9) / 2, p90), s.total),
			strncmp(tier, "disk", 4) ? "remote" : "--device", "",
			strncmp(tier, "disk", 4)
				? "Move the server of this remote= closer, or make the disk tier, "
				  "which is asked first, larger."
				: "Put the store on a faster device (mkfs.kvcachefs --device).");
	}
}

static void judge_failures(struct kvm_diagnosis *d)
{
	const struct kvm_facts *f = d->f;
	uint64_t opens = kvm_fact(f, "pool_hits") + kvm_fact(f, "pool_misses"), n;
	char value[32], buf[KVM_PATH];

	n = kvm_fact(f, "load_timeouts") + kvm_fact(f, "unserved_loads");
	if (n && points(n, opens) >= LEAST) {
		snprintf(value, sizeof value, "%" PRIu64, 2 * kvm_facts_option(f, "deadline"));
		kvm_doctor_find(d, "loads-time-out", 700, "deadline", value,
				"%" PRIu64
				" opens (%.1f%%) became misses, because no tier answered "
				"within deadline=.",
				n, points(n, opens));
	}
	n = kvm_fact(f, "corrupt");
	if (n)
		kvm_doctor_remedy(
			kvm_doctor_find(d, "damaged-copies", 800, NULL, NULL,
					"%" PRIu64
					" damaged copies were found in a tier and discarded.",
					n),
			"verify", "",
			*kvm_facts_setting(f, "keyfile", buf) &&
					*kvm_facts_setting(f, "remote", buf)
				? "Check that all nodes of the shared tier have the same key file. "
				  "Then run kvcachectl verify %s, and check the disk and the "
				  "server."
				: "Run kvcachectl verify %s, and check the disk or server.",
			f->mnt);
	n = kvm_fact(f, "unsealable");
	if (n)
		kvm_doctor_remedy(
			kvm_doctor_find(d, "key-missing", 600, NULL, NULL,
					"%" PRIu64 " copies could not be read, because the key "
					"file lacks their key.",
					n),
			"keyfile", "",
			"Check that all nodes of the shared tier have the same key file: add the "
			"keys of the other nodes to the file of keyfile=, and run kvcachectl "
			"reload %s.",
			f->mnt);
	if (!kvm_fact(f, "catalog_ok"))
		kvm_doctor_remedy(
			kvm_doctor_find(d, "catalog-stuck", 5000, NULL, NULL,
					"The catalog cannot write, so changes are refused."),
			"", "",
			"Free space on the filesystem of the store, or check its disk. The log "
			"has the errors: %s/.kvcachefs/log.",
			f->mnt);
}

void kvm_causes(struct kvm_diagnosis *d)
{
	judge_found(d);
	judge_pool(d);
	judge_stores(d);
	judge_limits(d);
	judge_calls(d);
	judge_speed(d);
	judge_failures(d);
}
