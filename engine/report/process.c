/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metrics process_*, with the names and meanings of Prometheus' client libraries. They describe
 * the daemon's own process: the pool's pages belong to its tmpfs and are subtracted.
 */
#include "cache.h"

#include <dirent.h>
#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define P "process_"

static void one(FILE *out, const char *name, const char *type, const char *what, double value)
{
	fprintf(out, "# HELP " P "%s %s\n# TYPE " P "%s %s\n" P "%s %.15g\n", name, what, name,
		type, name, value);
}

/* Open descriptors. Since Linux 6.2 their number is the size of the folder. */
static double descriptors(void)
{
	struct stat st;
	double n = 0;
	DIR *d;

	if (!stat("/proc/self/fd", &st) && st.st_size > 0)
		return (double)st.st_size;
	d = opendir("/proc/self/fd");
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n > 3 ? n - 3 : 0; /* without ".", ".." and the folder itself */
}

/* Seconds since 1970 at which the process began; 0 if it is not known. */
static double start_time(void)
{
	char line[1024], *at;
	unsigned long long ticks = 0, boot = 0;
	FILE *f = fopen("/proc/self/stat", "re");

	/* the 22nd field; the second is a name in parentheses and may have spaces */
	at = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
	for (int i = 2; at && i < 22; i++)
		at = (at = strchr(at + 1, ' ')) ? at : NULL;
	if (at)
		ticks = strtoull(at + 1, NULL, 10);
	if (f)
		fclose(f);
	f = fopen("/proc/stat", "re");
	while (f && fgets(line, sizeof line, f) && sscanf(line, "btime %llu", &boot) != 1)
		;
	if (f)
		fclose(f);
	return boot ? (double)boot + (double)ticks / (double)sysconf(_SC_CLK_TCK) : 0;
}

static double seconds(const struct timeval *t)
{
	return (double)t->tv_sec + (double)t->tv_usec / 1e6;
}

void kvc_print_process(FILE *out)
{
	unsigned long long size = 0, resident = 0, shared = 0;
	double page = (double)sysconf(_SC_PAGESIZE);
	FILE *f = fopen("/proc/self/statm", "re");
	struct rusage u = { 0 };
	struct rlimit r = { 0 };

	if (f && fscanf(f, "%llu %llu %llu", &size, &resident, &shared) != 3)
		size = resident = shared = 0;
	if (f)
		fclose(f);
	getrusage(RUSAGE_SELF, &u);
	getrlimit(RLIMIT_NOFILE, &r);
	one(out, "cpu_seconds_total", "counter", "user and system CPU time of the daemon",
	    seconds(&u.ru_utime) + seconds(&u.ru_stime));
	one(out, "resident_memory_bytes", "gauge",
	    "resident memory of the daemon, without pages of files and of the pool",
	    (double)(resident - kvc_min(resident, shared)) * page);
	one(out, "virtual_memory_bytes", "gauge", "virtual memory of the daemon",
	    (double)size * page);
	one(out, "open_fds", "gauge", "open file descriptors of the daemon", descriptors());
	one(out, "max_fds", "gauge", "limit of open file descriptors of the daemon",
	    (double)r.rlim_cur);
	one(out, "start_time_seconds", "gauge", "start of the daemon, in seconds since 1970",
	    start_time());
}
