/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl replay TRACE...: computes the hit ratio that each policy would have had on a trace,
 * for each capacity, and the optimum.
 */
#include "replay_priv.h"

#include "atomic_file.h"
#include "ctl.h"

#include <sched.h>
#include <string.h>

#define MOST (1ull << 30) /* chunks */
#define TIMES 10          /* --tiers: the disk holds this many times the chunks of the pool */

static void all_policies(struct replay *o)
{
	for (; kvc_policy_names[o->npolicies]; o->npolicies++) {
		struct pair *p = &o->policy[o->npolicies];

		p->pool = p->disk = o->npolicies;
		snprintf(p->name, sizeof p->name, "%s", kvc_policy_names[o->npolicies]);
	}
}

/* Parses A, or A:B: policy A for the pool, B for the disk. */
static int parse_policy(struct replay *o, char *names)
{
	struct pair *p = &o->policy[o->npolicies];
	char *disk = strchr(names, ':');
	int of_pool, of_disk;

	if (disk)
		*disk++ = 0;
	of_pool = kvm_replay_policy(names);
	if (of_pool < 0)
		return 2;
	of_disk = disk ? kvm_replay_policy(disk) : of_pool;
	if (of_disk < 0)
		return 2;
	p->pool = (unsigned)of_pool;
	p->disk = (unsigned)of_disk;
	snprintf(p->name, sizeof p->name, "%s%s%s", names, disk ? ":" : "", disk ?: "");
	o->npolicies++;
	return 0;
}

static int take_policies(struct replay *o, const char *names)
{
	KVC_MEM char *list = strdup(names);
	int err = 0;

	if (!list)
		return kvm_fail("out of memory");
	o->npolicies = 0;
	for (char *at, *name = strtok_r(list, ",", &at); name && !err;
	     name = strtok_r(NULL, ",", &at))
		err = o->npolicies < POLICIES
			      ? parse_policy(o, name)
			      : kvm_misused("--policy %s: too many policies, give at most %d",
					    kvm_shown(names), POLICIES);
	if (!err && !o->npolicies)
		err = kvm_misused("--policy %s: give the name of a policy", kvm_shown(names));
	return err;
}

/* Parses a number of chunks, with the suffix K or M for thousands or millions. */
static bool parse_count(const char *text, char **end, uint64_t *n)
{
	if (*text < '1' || *text > '9')
		return false;
	errno = 0;
	*n = strtoull(text, end, 10);
	if (**end == 'K' || **end == 'M') {
		if (__builtin_mul_overflow(*n, **end == 'K' ? 1000u : 1000000u, n))
			return false;
		++*end;
	}
	return !errno && *n < MOST;
}

static const char *const units[] = { "KiB", "MiB", "GiB", "TiB", NULL };

const char *kvm_capacity_text(uint64_t capacity, bool in_bytes)
{
	static _Thread_local char text[32];
	unsigned i = 0;

	if (in_bytes)
		for (capacity /= 1024; units[i + 1] && capacity % 1024 == 0; i++)
			capacity /= 1024;
	snprintf(text, sizeof text, "%llu%s", (unsigned long long)capacity,
		 in_bytes ? units[i] : "");
	return text;
}

/* Parses a number of chunks, or of bytes, which always have a unit. */
static bool parse_amount(char *text, char **end, uint64_t *n, bool *in_bytes)
{
	size_t digits = strspn(text, "0123456789");

	for (unsigned i = 0; units[i] && digits < 10; i++)
		if (!strncmp(text + digits, units[i], 3)) {
			*in_bytes = true;
			*n = strtoull(text, end, 10) << 10 * (i + 1);
			*end += 3;
			return *text != '0' && *n < KVM_BYTES_MOST;
		}
	*in_bytes = false;
	return parse_count(text, end, n);
}

/* Parses POOL or POOL:DISK; both are in chunks or both in bytes. */
static bool parse_capacity(struct replay *o, unsigned i, char *text)
{
	bool in_bytes, also;
	char *end = text;

	o->disk[i] = 0;
	if (!parse_amount(text, &end, &o->pool[i], &in_bytes) || (i && in_bytes != o->in_bytes))
		return false;
	o->in_bytes = in_bytes;
	if (*end == ':' && (!parse_amount(end + 1, &end, &o->disk[i], &also) || also != in_bytes))
		return false;
	if (o->all_tiers && !o->disk[i])
		o->disk[i] = o->pool[i] * TIMES;
	o->tiers |= o->disk[i] != 0;
	return !*end && o->disk[i] < (in_bytes ? KVM_BYTES_MOST : MOST);
}

static int take_capacities(struct replay *o, const char *numbers)
{
	KVC_MEM char *list = strdup(numbers);

	if (!list)
		return kvm_fail("out of memory");
	o->ncapacities = 0;
	for (char *at, *text = strtok_r(list, ",", &at); text; text = strtok_r(NULL, ",", &at)) {
		unsigned i = o->ncapacities;

		if (i == CAPACITIES)
			return kvm_misused("--capacity %s: too many capacities, give at most %d",
					   kvm_shown(numbers), CAPACITIES);
		if (!parse_capacity(o, i, text))
			return kvm_misused("--capacity: %s is not a capacity; give a number of "
					   "chunks such as 5000, a size such as 64GiB (for all "
					   "capacities), or POOL:DISK of either",
					   text);
		if (i && o->pool[i] <= o->pool[i - 1])
			return kvm_misused("--capacity %s: %s follows a larger capacity; sort them "
					   "in ascending order",
					   kvm_shown(numbers), text);
		o->ncapacities++;
	}
	return o->ncapacities
		       ? 0
		       : kvm_misused("--capacity %s: give a number of chunks", kvm_shown(numbers));
}

static int take_chain(struct replay *o, const char *name)
{
	static const char *const names[] = {
		[KVM_NONE] = "none",
		[KVM_TOLD] = "told",
		[KVM_LEARNED] = "learned",
	};

	for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(name, names[i])) {
			o->setup.chain = i;
			return 0;
		}
	return kvm_misused("--chain %s: give told, learned or none", kvm_shown(name));
}

static int take_clients(struct replay *o, const char *text)
{
	uint64_t n;
	char *end = NULL;

	if (!parse_count(text, &end, &n) || *end || n > KVM_CLIENTS)
		return kvm_misused("--clients %s: give a number from 1 to %d", kvm_shown(text),
				   KVM_CLIENTS);
	o->setup.clients = (uint32_t)n;
	return 0;
}

static int take_threads(struct replay *o, const char *text)
{
	uint64_t n;
	char *end = NULL;

	if (!parse_count(text, &end, &n) || *end || n > KVM_THREADS)
		return kvm_misused("--threads %s: give a number from 1 to %d", kvm_shown(text),
				   KVM_THREADS);
	o->setup.threads = (uint32_t)n;
	return 0;
}

static int take_seed(struct replay *o, const char *text)
{
	char *end = NULL;

	o->seed = strtoull(text, &end, 10);
	return *text < '0' || *text > '9' || *end
		       ? kvm_misused("--seed: %s is not a number", kvm_shown(text))
		       : 0;
}

static int take_jobs(struct replay *o, const char *text)
{
	uint64_t n;
	char *end = NULL;

	if (!parse_count(text, &end, &n) || *end || n > KVM_JOBS)
		return kvm_misused("--jobs %s: give a number from 1 to %d", kvm_shown(text),
				   KVM_JOBS);
	o->jobs = (unsigned)n;
	return 0;
}

/* Returns the number of CPUs that this process may use. */
static unsigned usual_jobs(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof set, &set)
		       ? 1
		       : (unsigned)kvc_min((unsigned)CPU_COUNT(&set), KVM_JOBS);
}

static int parse_replay_options(struct replay *o, int *argc, char **argv)
{
	const char *policies = NULL, *capacities = NULL, *chain = NULL, *seed = NULL,
		   *clients = NULL, *threads = NULL, *jobs = NULL, *models = NULL;
	const struct kvm_option options[] = {
		{ "policy", NULL, &policies },
		{ "capacity", NULL, &capacities },
		{ "chain", NULL, &chain },
		{ "seed", NULL, &seed },
		{ "svg", NULL, &o->svg },
		{ "verbose", &o->verbose, NULL },
		{ "clients", NULL, &clients },
		{ "threads", NULL, &threads },
		{ "json", &o->json, NULL },
		{ "tiers", &o->all_tiers, NULL },
		{ "jobs", NULL, &jobs },
		{ "model", NULL, &models },
		{ 0 },
	};
	int err = kvm_options(argc, argv, options);

	if (!err && policies)
		err = take_policies(o, policies);
	if (!err)
		err = take_capacities(o, capacities ?: "1000,5000,10000,20000");
	if (!err && !o->tiers && policies && strchr(policies, ':'))
		err = kvm_misused(
			"--policy %s: a policy for the disk needs --tiers, or --capacity POOL:DISK",
			kvm_shown(policies));
	if (!err && models)
		err = kvm_replay_models(o, models);
	if (!err && chain)
		err = take_chain(o, chain);
	if (!err && seed)
		err = take_seed(o, seed);
	if (!err && clients)
		err = take_clients(o, clients);
	if (!err && threads)
		err = take_threads(o, threads);
	if (!err && jobs)
		err = take_jobs(o, jobs);
	return err;
}

/*
 * Makes the configuration of a replacer, with the number of chunks that fit, for the policies that
 * use it. For a capacity in bytes, the number is computed from the mean size.
 */
static struct kvc_replacer_conf conf_of(const struct replay *o, const struct kvm_trace *t,
					unsigned policy, uint64_t capacity)
{
	uint64_t chunks = o->in_bytes ? kvc_max(capacity / t->mean, 1) : capacity;

	return (struct kvc_replacer_conf){ policy, capacity ? chunks : 0, o->seed };
}

/*
 * Allocates all cells of a trace: for each capacity the cells of the policies and of the optimum.
 * *part is the memory of their parts. The caller frees both.
 */
static struct kvm_cell *cells_of(const struct replay *o, const struct kvm_trace *t,
				 struct kvm_part **part)
{
	unsigned row = o->npolicies + 1;
	size_t n = (size_t)row * o->ncapacities;
	struct kvm_cell *cell = calloc(n, sizeof *cell);

	*part = calloc(n * t->models, sizeof **part);
	if (!*part) {
		free(cell);
		return NULL;
	}
	for (unsigned i = 0; cell && i < n; i++) {
		unsigned p = i % row, c = i / row;
		const struct pair *pair = &o->policy[p % o->npolicies];

		cell[i].is_optimum = p == o->npolicies;
		cell[i].in_bytes = o->in_bytes;
		cell[i].part = *part + (size_t)i * t->models;
		cell[i].pool_capacity = o->pool[c];
		cell[i].disk_capacity = o->disk[c];
		cell[i].pool = conf_of(o, t, pair->pool, o->pool[c]);
		cell[i].disk = conf_of(o, t, pair->disk, o->disk[c]);
	}
	return cell;
}

/* Prints the row of one capacity when its cells are ready. */
static int replay_row(struct replay *o, const struct kvm_trace *t, struct kvm_jobs *j,
		      struct kvm_cell *cell, unsigned c, double share[][CAPACITIES])
{
	unsigned row = o->npolicies + 1;
	struct kvm_cell *s = &cell[c * row];

	for (unsigned p = 0; p < row; p++) {
		if (kvm_jobs_wait(j, c * row + p))
			return kvm_fail("out of memory");
		share[p][c] = s[p].is_optimum ? s[p].optimum : s[p].share.pool + s[p].share.disk;
		if (o->verbose && !s[p].is_optimum)
			kvm_show_more(o, p, &s[p]);
	}
	kvm_show_row(o, t, c, s);
	return 0;
}

static int replay_cells(struct replay *o, const struct kvm_trace *t, struct kvm_cell *cell,
			double share[][CAPACITIES])
{
	unsigned n = (o->npolicies + 1) * o->ncapacities;
	struct kvm_jobs *j = kvm_jobs_start(t, &o->setup, cell, n, o->jobs);
	uint64_t began = kvc_mono_ns();
	int err = j ? 0 : kvm_fail("out of memory");

	if (!err)
		kvm_show_heads(o, t);
	for (unsigned c = 0; c < o->ncapacities && !err; c++)
		err = replay_row(o, t, j, cell, c, share);
	kvm_jobs_end(j);
	if (err)
		return err;
	if (o->verbose)
		fprintf(stderr, "all replays: %.0f accesses a second in %u threads\n",
			(double)t->accesses * o->npolicies * o->ncapacities * 1e9 /
				(double)(kvc_mono_ns() - began + 1),
			(unsigned)kvc_min(o->jobs, n));
	kvm_show_end(o);
	return 0;
}

/*
 * Computes the hit ratios of one trace: share[policy][capacity], with the optimum after the last
 * policy.
 */
static int replay_one(struct replay *o, const struct kvm_trace *t, double share[][CAPACITIES])
{
	KVC_MEM uint8_t *class = kvm_replay_classes(o, t);
	KVC_MEM struct kvm_part *part = NULL;
	KVC_MEM struct kvm_cell *cell = NULL;
	int err;

	if (!class)
		return 1;
	cell = cells_of(o, t, &part);
	if (!cell)
		return kvm_fail("out of memory");
	o->setup.class = class;
	err = replay_cells(o, t, cell, share);
	o->setup.class = NULL;
	return err;
}

static void chart(const struct replay *o, FILE *out, int nr, const char *name,
		  double share[][CAPACITIES])
{
	struct kvm_curve curve[POLICIES + 1];

	for (unsigned p = 0; p <= o->npolicies; p++)
		curve[p] = (struct kvm_curve){
			p < o->npolicies ? o->policy[p].name : "optimum",
			share[p],
		};
	kvm_chart(out, nr * KVM_CHART_HEIGHT, name, o->pool, o->ncapacities, o->in_bytes, curve,
		  o->npolicies + 1);
}

static int replay_traces(struct replay *o, FILE *svg, char **traces, int n)
{
	int err = 0;

	if (svg)
		fprintf(svg,
			"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\">\n"
			"<style>text{font:13px sans-serif;fill:#222}.grid{stroke:#ccc}"
			"@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#444}}"
			"</style>\n",
			KVM_CHART_WIDTH, n * KVM_CHART_HEIGHT);
	for (int i = 0; i < n && !err; i++) {
		double share[POLICIES + 1][CAPACITIES];
		struct kvm_trace t;

		err = kvm_trace_read(&t, traces[i]);
		if (!err && o->in_bytes && !t.mean)
			err = kvm_fail("%s has no sizes (\"bytes\"): give --capacity in chunks",
				       t.name);
		err = err ?: replay_one(o, &t, share);
		if (!err && svg)
			chart(o, svg, i, traces[i], share);
		kvm_trace_free(&t);
	}
	if (svg)
		fprintf(svg, "</svg>\n");
	return err;
}

/* Writes the file only if everything succeeded; otherwise an existing file stays unchanged. */
static int write_file(const char *path, const char *text, size_t len)
{
	struct kvm_atomic_file b;
	int err = kvm_atomic_file_open(&b, path, 0666, false);

	if (!err) {
		err = fwrite(text, 1, len, b.f) == len ? 0 : -errno;
		err = kvm_atomic_file_close(&b, err);
	}
	return err ? kvm_fail("--svg %s: %s", kvm_shown(path), kvm_atomic_file_why(-err)) : 0;
}

static int replay(struct replay *o, char **traces, int n)
{
	KVC_MEM char *text = NULL;
	size_t len = 0;
	FILE *svg = NULL;
	int err;

	if (o->svg && !(svg = open_memstream(&text, &len)))
		return kvm_fail("%s", kvc_why(errno));
	if (o->json) {
		kvm_json_begin(&o->out, NULL, '{');
		kvm_json_begin(&o->out, "traces", '[');
	}
	err = replay_traces(o, svg, traces, n);
	if (o->json && !err) {
		kvm_json_end(&o->out, ']');
		kvm_json_end(&o->out, '}');
		putchar('\n');
	}
	if (svg && fclose(svg))
		return kvm_fail("%s", kvc_why(errno));
	return err ?: svg ? write_file(o->svg, text, len) : 0;
}

int kvm_run_replay(int argc, char **argv)
{
	struct replay o = {
		.seed = 1,
		.jobs = usual_jobs(),
		.setup = { .chain = KVM_TOLD, .clients = 1, .threads = 1 },
		.out = { stdout, false },
	};
	int err;

	all_policies(&o);
	err = parse_replay_options(&o, &argc, argv);
	if (!err)
		err = replay(&o, argv, argc);
	free(o.own_text);
	return err;
}
