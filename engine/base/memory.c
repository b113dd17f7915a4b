/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the machine and the daemon's memory cgroup can still give, and whether freed
 * memory stays with the guest. Each call reads /proc and /sys; a file that cannot be read sets
 * no limit. The last function is about the allocator.
 */
#include "memory.h"

#include "util.h"

#include <glob.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

/* a sixteenth of every limit is left to the kernel */
#define SPARE(bound) ((bound) / 16)

/* Returns a line "NAME: number kB" of /proc/meminfo in bytes. */
static uint64_t meminfo(const char *name)
{
	FILE *f = fopen("/proc/meminfo", "re");
	size_t len = strlen(name);
	unsigned long long kb = 0;
	char line[128];

	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, name, len) && sscanf(line + len, ": %llu kB", &kb) == 1)
			break;
	if (f)
		fclose(f);
	return (uint64_t)kb << 10;
}

uint64_t kvc_memory_total(void)
{
	return meminfo("MemTotal") ?: UINT64_MAX;
}

uint64_t kvc_memory_available(void)
{
	return meminfo("MemAvailable") ?: UINT64_MAX;
}

/* Returns the number in a file; UINT64_MAX if it is "max" or there is no such file. */
static uint64_t number(const char *dir, const char *name)
{
	char path[1200];
	unsigned long long v;
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	f = fopen(path, "re");
	if (!f)
		return UINT64_MAX;
	if (fscanf(f, "%llu", &v) != 1)
		v = UINT64_MAX;
	fclose(f);
	return v;
}

/*
 * Returns the bytes that a cgroup and those above it can still give, less a reserve, or, if `usage`
 * is NULL, their lowest limit. `path` is below `root`.
 */
static uint64_t group_spare(const char *root, char *path, const char *limit, const char *usage)
{
	uint64_t spare = UINT64_MAX;
	char dir[1100];

	for (;;) {
		snprintf(dir, sizeof dir, "%s%s", root, path);
		uint64_t max = number(dir, limit), used = usage ? number(dir, usage) : 0;
		char *slash = strrchr(path, '/');

		if (!usage)
			spare = kvc_min(spare, max);
		else if (max != UINT64_MAX && used != UINT64_MAX)
			spare = kvc_min(spare, max - kvc_min(max, kvc_min(max, used) + SPARE(max)));
		if (!slash)
			return spare;
		*slash = 0;
	}
}

/* Returns the minimum of group_spare over all memory cgroups of the daemon. */
static uint64_t groups(bool want_spare)
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	uint64_t spare = UINT64_MAX;
	char line[1024];

	while (f && fgets(line, sizeof line, f)) {
		char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;

		line[strcspn(line, "\n")] = 0;
		if (!path)
			continue;
		*path++ = 0;
		uint64_t here = UINT64_MAX;

		if (!names[1])
			here = group_spare("/sys/fs/cgroup", path, "memory.max",
					   want_spare ? "memory.current" : NULL);
		else if (!strcmp(names + 1, "memory"))
			here = group_spare("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes",
					   want_spare ? "memory.usage_in_bytes" : NULL);
		spare = kvc_min(spare, here);
	}
	if (f)
		fclose(f);
	return spare;
}

uint64_t kvc_memory_group_max(void)
{
	return groups(false);
}

uint64_t kvc_memory_spare(void)
{
	uint64_t available = kvc_memory_available(), keep = SPARE(meminfo("MemTotal"));

	return kvc_min(available - kvc_min(available, keep), groups(true));
}

bool kvc_memory_reported(void)
{
	static const unsigned reporting = 5; /* VIRTIO_BALLOON_F_REPORTING */
	bool yes = false;
	char bits[80]; /* one digit per feature, the lowest first */
	glob_t g;

	if (glob("/sys/bus/virtio/drivers/virtio_balloon/virtio*/features", 0, NULL, &g))
		return false;
	for (size_t i = 0; i < g.gl_pathc; i++) {
		FILE *f = fopen(g.gl_pathv[i], "re");

		if (f && fgets(bits, sizeof bits, f) && strlen(bits) > reporting)
			yes |= bits[reporting] == '1';
		if (f)
			fclose(f);
	}
	globfree(&g);
	return yes;
}

void kvc_memory_trim(void)
{
#ifdef __GLIBC__
	malloc_trim(0);
#endif
}
