/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a mount that do not fit the machine or each other, for kvcachectl doctor. */
#include "doctor.h"

#include "memory.h"

#include <inttypes.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/vfs.h>

#define CLOSE 3u  /* percent between the watermarks; with less, evictions are small and frequent */
#define UNUSED 70 /* high= below this leaves much of the pool unused */

static void judge_modes(struct kvm_diagnosis *d)
{
	const struct kvm_facts *f = d->f;
	char is[KVM_PATH], set[KVM_PATH], why[KVM_PATH];
	struct kvm_finding *v;

	if (strcmp(kvm_facts_setting(f, "served_by", is), "passthrough") != 0) {
		kvm_facts_setting(f, "passthrough_is_off", why);
		v = kvm_doctor_find(
			d, "no-passthrough", 220, NULL, NULL,
			"Reads and writes are served by %s instead of passthrough, which "
			"costs a copy of all bytes%s%.200s%s.",
			is, *why ? " (" : "", why, *why ? ")" : "");
		if (!strcmp(kvm_facts_setting(f, "passthrough", set), "off"))
			kvm_doctor_remedy(v, "passthrough", "auto",
					  "Mount without the option passthrough=off.");
		else
			kvm_doctor_remedy(v, "passthrough", "on",
					  "Mount as root on Linux 6.9 or newer. The option "
					  "passthrough=on makes a mount without it fail.");
	}
	if (strcmp(kvm_facts_setting(f, "requests_by", is), "io_uring") != 0) {
		v = kvm_doctor_find(
			d, "no-io-uring", 210, NULL, NULL,
			"Requests come through %s instead of io_uring, which makes each "
			"open slower.",
			is);
		if (!strcmp(kvm_facts_setting(f, "io_uring", set), "off"))
			kvm_doctor_remedy(v, "io_uring", "auto",
					  "Mount without the option io_uring=off.");
		else
			kvm_doctor_remedy(v, "io_uring", "on",
					  "Run 'echo Y > /sys/module/fuse/parameters/enable_uring' "
					  "as root on Linux 6.14 or newer, and mount again.");
	}
}

/* The mount checks this at its start; other programs may have taken the memory since. */
static void judge_memory(struct kvm_diagnosis *d)
{
	const struct kvm_facts *f = d->f;
	uint64_t pool = kvm_fact(f, "pool_bytes"), used;
	uint64_t free = kvc_memory_available(), rest;
	char a[32], b[32], value[32];

	/* pages that prefault= holds are allocated, so they are not free memory */
	used = kvm_fact(f, "pool_used_bytes") + kvm_fact(f, "prefault_held");
	rest = pool - kvc_min(pool, used);
	if (free != UINT64_MAX && rest > free)
		kvm_doctor_find(
			d, "pool-exceeds-memory", 3000, "cpu",
			kvm_doctor_size(used + free / 2, value),
			"The pool can grow by %s, but only %s of the machine's memory is free: "
			"stores fail or the kernel ends processes before the pool is full.",
			kvc_size_text(rest, a), kvc_size_text(free, b));
}

static void judge_watermarks(struct kvm_diagnosis *d)
{
	const struct kvm_facts *f = d->f;
	uint64_t high = kvm_facts_option(f, "high"), low = kvm_facts_option(f, "low");
	char value[32];

	if (high - low < CLOSE) {
		snprintf(value, sizeof value, "%" PRIu64, high > 10 ? high - 10 : 1);
		kvm_doctor_find(d, "watermarks-close", 160, "low", value,
				"The watermarks high=%" PRIu64 " and low=%" PRIu64
				" are close: each "
				"eviction frees little, so stores often wait for the next one.",
				high, low);
	}
	if (high < UNUSED)
		kvm_doctor_find(d, "pool-unused", 200 + (double)(90 - high), "high", "90",
				"high=%" PRIu64 " leaves %" PRIu64 "%% of the pool and of the disk "
				"tier unused.",
				high, 100 - high);
}

static void judge_store(struct kvm_diagnosis *d)
{
	char path[KVM_PATH], disk[KVM_PATH];
	struct statfs fs;

	kvm_facts_setting(d->f, "store", path);
	if (strcmp(kvm_facts_setting(d->f, "disk", disk), "off") != 0 && !statfs(path, &fs) &&
	    (uint64_t)fs.f_type == TMPFS_MAGIC)
		kvm_doctor_remedy(
			kvm_doctor_find(
				d, "store-on-tmpfs", 1500, NULL, NULL,
				"The store %.300s is on a tmpfs: its disk tier takes memory, "
				"and a reboot loses it.",
				path),
			"STORE", "", "Make the store on a disk: mkfs.kvcachefs(8).");
}

static void judge_daily(struct kvm_diagnosis *d)
{
	const struct kvm_facts *f = d->f;
	uint64_t daily = kvm_facts_option(f, "daily");
	uint64_t today = kvm_fact(f, "tier_disk_today_bytes");
	char a[32], b[32], value[32];

	if (!daily || today < daily / 5 * 4)
		return;
	kvm_doctor_find(d, "daily-used", 320, "daily", kvm_doctor_size(2 * daily, value),
			"%s of the %s that may be written to the disk tier per day are written; "
			"%" PRIu64 " chunks were refused for this.",
			kvc_size_text(today, a), kvc_size_text(daily, b),
			kvm_fact(f, "refused_daily_chunks"));
}

static void judge_tests(struct kvm_diagnosis *d)
{
	char shim[KVM_PATH];

	if (*kvm_facts_setting(d->f, "shim", shim))
		kvm_doctor_remedy(
			kvm_doctor_find(
				d, "faults-injected", 1000, NULL, NULL,
				"The option shim=%.100s makes tiers slow or fail on purpose.",
				shim),
			"shim", "", "Mount without the option shim=, which is for tests.");
	if (kvm_facts_option(d->f, "debug"))
		kvm_doctor_remedy(
			kvm_doctor_find(d, "debug-log", 20, NULL, NULL,
					"The daemon logs debug messages, which costs time."),
			"debug", "", "Mount without the option debug.");
}

void kvm_settings(struct kvm_diagnosis *d)
{
	judge_modes(d);
	judge_memory(d);
	judge_watermarks(d);
	judge_store(d);
	judge_daily(d);
	judge_tests(d);
}
