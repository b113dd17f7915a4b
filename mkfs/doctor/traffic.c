/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records the requests to a mount, and replays them with the mount's own policies, other policies,
 * and other sizes. See doctor.h and replay.h.
 *
 * A replay begins with empty caches, and says something about a cache only if the chunks of the
 * trace do not fit in it: otherwise nothing is evicted. So short traces of large mounts are judged
 * by their counters alone (causes.c).
 */
#include "doctor.h"

#include "item.h"
#include "replay.h"
#include "trace.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <string.h>

#define LEAST 3.     /* percentage points that a recommended setting must gain */
#define FULL 12 / 10 /* a cache is judged if the trace's chunks have this many times its size */
#define CELLS 16

struct kvm_traffic {
	const struct kvm_facts *f;
	FILE *file;            /* of a recording */
	struct kvm_join *join; /* the names of a recording's models; NULL: the trace has them */
	struct kvm_trace trace;
	uint64_t seconds; /* 0 for a trace from a file */
	bool empty;
};

/* Returns a file without a name, which its close removes, or NULL after a message. */
static FILE *temporary_file(void)
{
	const char *dir = getenv("TMPDIR");
	int fd = open(dir && *dir ? dir : "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "w+");

	if (!f) {
		kvm_fail("no temporary file: %s", kvc_why(errno));
		if (fd >= 0)
			close(fd);
	}
	return f;
}

int kvm_traffic_open(struct kvm_traffic **out, const struct kvm_facts *f, const char *file,
		     uint64_t seconds)
{
	struct kvm_traffic *t = calloc(1, sizeof *t);
	struct kvm_joined joined;
	char path[64];

	if (!t)
		return kvm_fail("out of memory");
	*out = t;
	t->f = f;
	if (file)
		return kvm_trace_read(&t->trace, file);
	t->seconds = seconds;
	if (!(t->file = temporary_file()))
		return 1;
	if (kvm_trace_record(f->mnt, seconds, t->file, &t->join))
		return 1;
	if (fflush(t->file))
		return kvm_fail("temporary file: %s", kvc_why(errno));
	kvm_join_show(t->join, &joined);
	t->empty = !joined.requests;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(t->file));
	return t->empty ? 0 : kvm_trace_read(&t->trace, path);
}

void kvm_traffic_close(struct kvm_traffic *t)
{
	if (!t)
		return;
	kvm_trace_free(&t->trace);
	if (t->join)
		kvm_join_close(t->join);
	if (t->file)
		fclose(t->file);
	free(t);
}

static int policy_of(const char *name)
{
	for (int i = 0; kvc_policy_names[i]; i++)
		if (!strcmp(kvc_policy_names[i], name))
			return i;
	return -1;
}

/* The policies that the mount's models have of their own. */
static uint8_t *classes_of(const struct kvm_traffic *t)
{
	uint8_t *class = calloc(t->trace.models, sizeof *class);

	for (uint32_t i = 0; class && i < t->trace.models; i++) {
		char path[2 * KVM_PATH], value[KVM_VALUE];
		const char *name = t->trace.model_name[i];
		uint64_t requests;
		int policy;

		if (t->join && *name)
			name = kvm_join_model(t->join, strtoull(name, NULL, 10), &requests);
		if (!name || !*name)
			continue;
		snprintf(path, sizeof path, "%s/%s", t->f->mnt, name);
		if (kvm_item_attr(path, "policy", value, NULL) == 1 &&
		    (policy = policy_of(value)) >= 0)
			class[i] = (uint8_t)(1 + policy);
	}
	return class;
}

struct sizes {
	uint64_t pool, disk; /* bytes that the policies keep, between the watermarks */
	uint64_t all;        /* bytes of the trace's chunks */
	unsigned policy, disk_policy;
};

static struct sizes sizes_of(const struct kvm_traffic *t)
{
	const struct kvm_facts *f = t->f;
	uint64_t pct = (kvm_facts_option(f, "high") + kvm_facts_option(f, "low")) / 2;
	char name[KVM_PATH];
	int policy;
	struct sizes s = {
		.pool = kvm_fact(f, "pool_bytes") / 100 * pct,
		.disk = kvm_fact(f, "tier_disk_bytes") / 100 * pct,
	};

	policy = policy_of(kvm_facts_setting(f, "policy", name));
	s.policy = policy < 0 ? 0 : (unsigned)policy;
	policy = policy_of(kvm_facts_setting(f, "disk_policy", name)); /* -1: the same */
	s.disk_policy = policy < 0 ? s.policy : (unsigned)policy;
	for (uint32_t i = 0; i < t->trace.chunks; i++)
		s.all += t->trace.bytes[i];
	return s;
}

/* A simulated configuration. The first one is that of the mount. */
struct trial {
	unsigned policy, disk_policy;
	uint64_t pool, disk;
	struct kvm_cell cell;
};

static struct trial trial_of(unsigned policy, unsigned disk_policy, uint64_t pool, uint64_t disk)
{
	return (struct trial){
		.policy = policy,
		.disk_policy = disk_policy,
		.pool = pool,
		.disk = disk,
	};
}

static void set_cell(const struct kvm_traffic *t, struct trial *x, struct kvm_part *part)
{
	uint64_t mean = kvc_max(t->trace.mean, 1);

	x->cell = (struct kvm_cell){
		.pool = { x->policy, kvc_max(x->pool / mean, 1), 1 },
		.disk = { x->disk_policy, x->disk ? kvc_max(x->disk / mean, 1) : 0, 1 },
		.pool_capacity = x->pool,
		.disk_capacity = x->disk,
		.in_bytes = true,
		.part = part,
	};
}

/* Runs the trials. Returns 0, or 1 after a message. */
static int run_trials(struct kvm_traffic *t, struct trial *x, unsigned n)
{
	KVC_MEM uint8_t *class = classes_of(t);
	KVC_MEM struct kvm_part *part = calloc((size_t)n * t->trace.models, sizeof *part);
	struct kvm_setup setup = { .chain = KVM_TOLD, .clients = 1, .threads = 1, .class = class };

	if (!class || !part)
		return kvm_fail("out of memory");
	for (unsigned i = 0; i < n; i++) {
		set_cell(t, &x[i], part + (size_t)i * t->trace.models);
		if (kvm_replay(&t->trace, &setup, &x[i].cell))
			return kvm_fail("out of memory");
	}
	return 0;
}

static double found(const struct trial *x)
{
	return 100 * (x->cell.share.pool + x->cell.share.disk);
}

static double in_pool(const struct trial *x)
{
	return 100 * x->cell.share.pool;
}

/*
 * Recommends a policy that finds at least LEAST points more, or one that finds at least LEAST
 * points more in memory and not less in total.
 */
static void judge_policies(struct kvm_diagnosis *d, const struct trial *now, const struct trial *x,
			   unsigned n, bool disk)
{
	const struct trial *best = NULL;
	double more, most = LEAST;

	for (unsigned i = 0; i < n; i++) {
		more = found(&x[i]) - found(now);
		if (more >= 0) /* not kvc_max, which takes integers */
			more = fmax(more, in_pool(&x[i]) - in_pool(now));
		if (more >= most) {
			best = &x[i];
			most = more;
		}
	}
	if (!best)
		return;
	more = found(best) - found(now);
	kvm_doctor_find(
		d, "policy", 10 * most, "policy", kvc_policy_names[best->policy],
		"In a replay of the recorded requests, the policy %s finds %.1f%% of the chunks "
		"and %s %.1f%%%s: %+.1f points%s.",
		kvc_policy_names[now->policy], more < LEAST ? in_pool(now) : found(now),
		kvc_policy_names[best->policy], more < LEAST ? in_pool(best) : found(best),
		more < LEAST ? " in memory" : "", most,
		disk && more >= LEAST ? ", pool and disk together" : "");
}

static void judge_size(struct kvm_diagnosis *d, const struct trial *now, const struct trial *x,
		       bool pool)
{
	double more = pool ? in_pool(x) - in_pool(now) : found(x) - found(now);
	uint64_t bytes = pool ? x->pool - now->pool : x->disk - now->disk;
	uint64_t total = kvm_fact(d->f, pool ? "pool_bytes" : "tier_disk_bytes");
	char a[32], value[32];
	struct kvm_finding *v;

	if (more < LEAST)
		return;
	/* `bytes` is what the policies keep, a part of the size */
	kvm_doctor_size(total + total / 2, value);
	v = kvm_doctor_find(
		d, pool ? "replay-pool-size" : "replay-disk-size",
		(pool && now->disk ? 3 : 10) * more, pool ? "cpu" : NULL, value,
		"In a replay of the recorded requests, a %s of %s more gives %+.1f points "
		"(%.1f%% instead of %.1f%%%s).",
		pool ? "pool" : "disk tier", kvc_size_text(bytes, a), more,
		pool ? in_pool(x) : found(x), pool ? in_pool(now) : found(now),
		pool && now->disk ? " in memory" : "");
	if (!pool)
		kvm_doctor_remedy(v, "grow", value,
				  "Give the store a disk tier of %s (kvcachectl grow enlarges a "
				  "device, and kvcachectl add adds one).",
				  value);
}

int kvm_traffic_judge(struct kvm_traffic *t, struct kvm_diagnosis *d)
{
	struct trial x[CELLS];
	struct sizes s;
	char a[32], b[32], of[64];
	unsigned n = 1;
	bool disk;

	snprintf(of, sizeof of, t->seconds ? "recording of %" PRIu64 " s" : "trace", t->seconds);
	if (t->empty || t->trace.accesses < 2 * KVM_ENOUGH) {
		kvm_doctor_note(d,
				"The %s has %" PRIu64
				" accesses to chunks, too few to replay. Record "
				"while clients work, or longer: --for.",
				of, t->empty ? 0 : t->trace.accesses);
		return 0;
	}
	s = sizes_of(t);
	disk = s.disk > 0;
	kvm_doctor_say(d, "The %s has %" PRIu32 " requests for %" PRIu32 " chunks of %s.", of,
		       t->trace.requests, t->trace.chunks, kvc_size_text(s.all, a));
	if (!t->trace.mean || s.all < s.pool * FULL) {
		kvm_doctor_note(d,
				"The %s has chunks of %s, which fit in the pool of %s, so a replay "
				"cannot compare policies and sizes. Record longer: --for.",
				of, kvc_size_text(s.all, a), kvc_size_text(s.pool, b));
		return 0;
	}
	x[0] = trial_of(s.policy, s.disk_policy, s.pool, s.disk);
	x[n++] = trial_of(s.policy, s.disk_policy, s.pool + s.pool / 2, s.disk);
	x[n++] = trial_of(s.policy, s.disk_policy, s.pool, s.disk + s.disk / 2);
	for (unsigned i = 0; kvc_policy_names[i] && n < CELLS; i++)
		if (i != s.policy)
			x[n++] = trial_of(i, i, s.pool, s.disk);
	if (run_trials(t, x, n))
		return 1;
	kvm_doctor_say(d,
		       "Replayed with the mount's policies from empty caches, %.1f%% of its second "
		       "half are found, %.1f%% in memory.",
		       found(&x[0]), in_pool(&x[0]));
	judge_size(d, &x[0], &x[1], true);
	if (disk && s.all >= s.disk * FULL)
		judge_size(d, &x[0], &x[2], false);
	else if (disk)
		kvm_doctor_note(
			d,
			"The chunks of the %s fit in the disk tier, so a replay cannot tell what "
			"a larger one would give.",
			of);
	judge_policies(d, &x[0], &x[3], n - 3, disk);
	return 0;
}
