/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of faults.c: parsing FAULTS, and choosing the calls that fail. Only faults.c includes
 * this.
 */
#ifndef FAULTS_RULES_H
#define FAULTS_RULES_H

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FDS 65536
#define RULES 16
#define HELD (1ull << 62)

static const char *const call_names[] = {
	"read", "write", "sync", "open", "alloc", "truncate", "unlink",   "rename",
	"link", "mkdir", "list", "seek", "stat",  "xattr",    "setxattr",
};
enum {
	READ,
	WRITE,
	SYNC,
	OPEN,
	ALLOC,
	TRUNCATE,
	UNLINK,
	RENAME,
	LINK,
	MKDIR,
	LIST,
	SEEK,
	STAT,
	XATTR,
	SETXATTR,
	MAKE,
	CALLS
};
#define ALL (~(1u << STAT | 1u << XATTR))
#define CHANGES (ALL & ~(1u << READ | 1u << OPEN | 1u << LIST | 1u << SEEK))

enum what { FAIL, SHORT, DELAY, HOLD, KILL, TORN };

static struct rule {
	unsigned calls;
	char path[PATH_MAX];
	uint64_t nth, count, at, len;
	enum what what;
	int value; /* the errno, or milliseconds */
} rules[RULES];
static unsigned nrules;

static struct counts {
	_Atomic uint64_t met, fired;
} none[RULES], *counts = none;

static _Atomic uint16_t mask_of[FDS]; /* rules that match the descriptor's path */

static void die(const char *what)
{
	dprintf(2, "faults: %s: %s\n", what, strerror(errno));
	abort();
}

/* ---- parsing ---- */

static unsigned calls_of(char *list)
{
	unsigned calls = 0;
	char *save = NULL;

	for (char *w = strtok_r(list, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
		unsigned c = 0;

		while (c < sizeof call_names / sizeof call_names[0] && strcmp(w, call_names[c]))
			c++;
		if (!strcmp(w, "all"))
			calls |= ALL;
		else if (!strcmp(w, "change"))
			calls |= CHANGES;
		else if (c < sizeof call_names / sizeof call_names[0])
			calls |= 1u << c;
		else
			die(w);
	}
	return calls;
}

static void what_of(struct rule *r, const char *w)
{
	if (!strcmp(w, "short")) {
		r->what = SHORT;
	} else if (!strcmp(w, "kill")) {
		r->what = KILL;
	} else if (!strcmp(w, "torn")) {
		r->what = TORN;
	} else if (!strcmp(w, "hold")) {
		r->what = HOLD;
	} else if (!strncmp(w, "delay:", 6)) {
		r->what = DELAY;
		r->value = (int)strtol(w + 6, NULL, 10);
	} else {
		for (r->value = 1; r->value < 200; r->value++) {
			const char *name = strerrorname_np(r->value);

			if (name && !strcmp(name, w))
				return;
		}
		die(w);
	}
}

static void read_rule(char *text)
{
	struct rule *r = &rules[nrules];
	char *save = NULL;

	*r = (struct rule){ .calls = ALL, .path = "*", .count = 1, .len = UINT64_MAX };
	for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
		char *value = strchr(w, '=');

		if (!value)
			die(w);
		*value++ = 0;
		if (!strcmp(w, "calls"))
			r->calls = calls_of(value);
		else if (!strcmp(w, "path"))
			snprintf(r->path, sizeof r->path, "%s", value);
		else if (!strcmp(w, "nth"))
			r->nth = strtoull(value, NULL, 10);
		else if (!strcmp(w, "count"))
			r->count = strtoull(value, NULL, 10);
		else if (!strcmp(w, "at"))
			r->at = strtoull(value, NULL, 10);
		else if (!strcmp(w, "len"))
			r->len = strtoull(value, NULL, 10);
		else if (!strcmp(w, "do"))
			what_of(r, value);
		else
			die(w);
	}
	if (r->what == SHORT)
		r->calls &= 1u << READ | 1u << WRITE;
	nrules++;
}

__attribute__((constructor)) static void start(void)
{
	const char *text = getenv("FAULTS"), *exe = getenv("FAULTS_EXE");
	const char *count = getenv("FAULTS_COUNT");
	char *copy = text ? strdup(text) : NULL, *save = NULL;

	if (!copy || (exe && strcmp(exe, program_invocation_short_name)))
		return;
	unsetenv("LD_PRELOAD");
	if (count) {
		int fd = (int)syscall(SYS_openat, AT_FDCWD, count, O_RDWR | O_CREAT | O_CLOEXEC,
				      0600);

		if (fd < 0 || syscall(SYS_ftruncate, fd, sizeof none))
			die(count);
		counts = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (counts == MAP_FAILED)
			die(count);
		syscall(SYS_close, fd);
	}
	for (char *r = strtok_r(copy, ";", &save); r; r = strtok_r(NULL, ";", &save)) {
		if (nrules == RULES)
			die("too many rules");
		read_rule(r);
	}
	free(copy);
}

/* ---- matching ---- */

static unsigned match_path(const char *path)
{
	unsigned mask = 0;

	for (unsigned i = 0; i < nrules; i++)
		if (!fnmatch(rules[i].path, path, 0))
			mask |= 1u << i;
	return mask;
}

/*
 * Returns a mask of the rules that match the absolute path. Links in the path's last part are not
 * followed.
 */
static unsigned match_at(int dir, const char *path)
{
	char base[PATH_MAX] = "", link[64], full[2 * PATH_MAX];
	int saved = errno;
	ssize_t n;

	if (!nrules || !path)
		return 0;
	if (*path != '/') {
		if (dir == AT_FDCWD) {
			if (!getcwd(base, sizeof base))
				*base = 0;
		} else {
			snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
			n = readlink(link, base, sizeof base - 1);
			base[n > 0 ? n : 0] = 0;
		}
	}
	snprintf(full, sizeof full, "%s%s%s", base, *path == '/' ? "" : "/", path);
	errno = saved;
	return match_path(full);
}

/* Returns the rule that fires for this call, or NULL. Carries out kills and delays itself. */
static const struct rule *fires(unsigned mask, unsigned call, uint64_t off, uint64_t len)
{
	const struct rule *hit = NULL;

	for (unsigned i = 0; mask && i < nrules; i++) {
		struct rule *r = &rules[i];
		uint64_t n;

		if (!(mask & 1u << i) || !(r->calls & 1u << call))
			continue;
		if (call <= WRITE &&
		    (off + len <= r->at || (r->len != UINT64_MAX && off >= r->at + r->len)))
			continue;
		n = atomic_fetch_add(&counts[i].met, 1) + 1;
		if (hit || !r->nth || n < r->nth || (r->count && n >= r->nth + r->count))
			continue;
		atomic_fetch_add(&counts[i].fired, 1);
		hit = r;
	}
	if (hit && (hit->what == KILL || (hit->what == TORN && call != WRITE)))
		syscall(SYS_kill, getpid(), SIGKILL);
	if (hit && hit->what == DELAY)
		usleep((useconds_t)hit->value * 1000);
	while (hit && hit->what == HOLD && atomic_load(&counts[hit - rules].met) < HELD)
		usleep(1000);
	return hit && (hit->what == DELAY || hit->what == HOLD) ? NULL : hit;
}

static unsigned mask(int fd)
{
	return fd >= 0 && fd < FDS ? atomic_load(&mask_of[fd]) : 0;
}

static long failed(const struct rule *r)
{
	errno = r->value;
	return -1;
}

/* A call that changes one or two names. */
#define BY_NAME(call, m, ...)                                  \
	({                                                     \
		const struct rule *r_ = fires(m, call, 0, 0);  \
		(int)(r_ ? failed(r_) : syscall(__VA_ARGS__)); \
	})

#endif
