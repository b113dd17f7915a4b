/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cores [-s SECONDS] [-b BYTES] [-l LEVELS] [-c CASES] NAME=MOUNT...: measures how the calls
 * per second grow with the number of callers, in several mounts. The others are compared with the
 * first mount. LEVELS are numbers of callers (1,2,4,8,16); each is measured with
 * threads of one process and with processes. The callers of a mount run for a moment, then those of
 * the next; a figure is the median of ROUNDS moments. The whole run takes about SECONDS (150); on a
 * machine that is too busy for it, the last figures are of one moment each.
 *
 * Each caller has a folder of its own with FILES files of BYTES bytes. Cases: hit (open, read all,
 * close), open (open, close), store (create under a temporary name, write BYTES, close, rename),
 * stat (of a name that the kernel has cached), lookup (stat of a name that it has not
 * cached: a remount without changes first makes it forget the mount's names), absent (stat of a
 * missing name, each name once) and create (create, close).
 *
 * If MOUNT/.kvcachefs/locks exists, prints the waits for locks during the largest level of a case.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cores_locks.h"

#define WORKERS 64
#define TARGETS 8
#define LEVELS 16
#define FILES 32
#define LOOKUPS 1024             /* files of a caller that the case lookup looks up once each */
#define MADE 2048                /* most files that a caller makes in one moment */
#define STORED_BYTES (128 << 20) /* most bytes that all callers store in one moment */
#define ROUNDS 5
#define LEAST_NS 8000000ull /* shortest length of a moment */
#define PATH 512

enum kind { HIT, OPEN, LOOKUP, ABSENT, STAT, CREATE, STORE, KINDS };
static const char *const kinds[KINDS] = {
	"hit", "open", "lookup", "absent", "stat", "create", "store",
};

static size_t size = 128 << 10;
static double seconds = 150;

/* Shared with the processes of a moment. */
static struct shared {
	pthread_barrier_t go;
	_Atomic int failed;
	char why[256];
	struct {
		uint64_t calls, start_ns, end_ns;
	} of[WORKERS];
} *sh;

struct moment {
	const char *dir;
	enum kind kind;
	unsigned workers, serial;
	uint64_t length_ns;
	bool forgets; /* a name can be looked up once */
};

struct worker {
	const struct moment *m;
	unsigned i;
	char *buf;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void __attribute__((format(printf, 1, 2), noreturn)) die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("cores: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	exit(1);
}

/* The first failure of a moment ends the run. */
static bool fail(const char *call, const char *path)
{
	int err = errno;

	if (!atomic_exchange(&sh->failed, 1))
		snprintf(sh->why, sizeof sh->why, "%s of %s: %s", call, path, strerror(err));
	return false;
}

static bool write_file(const char *path, const char *buf, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	bool ok = fd >= 0 && (!bytes || write(fd, buf, bytes) == (ssize_t)bytes);

	if (!ok)
		fail("a store", path);
	if (fd >= 0)
		close(fd);
	return ok;
}

static bool call_hit(const char *path, char *buf, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || (bytes && pread(fd, buf, bytes, 0) != (ssize_t)bytes)) {
		fail("a read", path);
		if (fd >= 0)
			close(fd);
		return false;
	}
	close(fd);
	return true;
}

/* The path that the nth call of a worker uses. */
static void path_of(const struct worker *w, uint64_t n, char *path)
{
	const struct moment *m = w->m;
	static const char letter[KINDS] = { 'f', 'f', 'l', 'a', 'f', 'c', 's' };
	unsigned long long number = m->kind == STORE || m->kind == CREATE ? n
				    : m->kind == LOOKUP                   ? n % LOOKUPS
									  : n % FILES;

	if (m->kind == ABSENT)
		snprintf(path, PATH, "%s/w%u/a%u-%llu", m->dir, w->i, m->serial,
			 (unsigned long long)n);
	else
		snprintf(path, PATH, "%s/w%u/%c%llu", m->dir, w->i, letter[m->kind], number);
}

static bool call(const struct worker *w, uint64_t n)
{
	char path[PATH], temporary[PATH + 8];
	struct stat st;

	path_of(w, n, path);
	switch (w->m->kind) {
	case HIT: return call_hit(path, w->buf, size);
	case OPEN: return call_hit(path, w->buf, 0);
	case STORE:
		snprintf(temporary, sizeof temporary, "%s.tmp", path);
		return write_file(temporary, w->buf, size) &&
		       (!rename(temporary, path) || fail("a rename", path));
	case STAT:
	case LOOKUP: return !stat(path, &st) || fail("stat", path);
	case ABSENT:
		if (stat(path, &st) == 0)
			errno = EEXIST;
		return errno == ENOENT || fail("stat of a missing name", path);
	case CREATE: return write_file(path, NULL, 0);
	default: return false;
	}
}

/* Most calls of a worker in one moment. */
static uint64_t most_calls(const struct moment *m)
{
	switch (m->kind) {
	case LOOKUP: return m->forgets ? LOOKUPS : UINT64_MAX;
	case CREATE: return MADE;
	case STORE: {
		uint64_t n = STORED_BYTES / size / m->workers;

		return n < 1 ? 1 : n > MADE ? MADE : n;
	}
	default: return UINT64_MAX;
	}
}

static void *work(void *arg)
{
	struct worker *w = arg;
	const struct moment *m = w->m;
	/* reading the clock costs as much as a tenth of a stat */
	uint64_t start, end, now, most = most_calls(m), n = 0,
				  each = m->kind == STAT || m->kind == LOOKUP ? 16 : 1;
	char path[PATH];
	struct stat st;
	bool ok = true;

	snprintf(path, sizeof path, "%s/w%u", m->dir, w->i);
	ok = !stat(path, &st) || fail("stat", path);
	if (m->kind == HIT || m->kind == OPEN || m->kind == STAT)
		for (uint64_t i = 0; ok && i < FILES; i++) {
			path_of(w, i, path);
			ok = !stat(path, &st) || fail("stat", path);
		}
	pthread_barrier_wait(&sh->go);
	start = now = now_ns();
	end = start + m->length_ns;
	while (ok && now < end && n < most) {
		for (uint64_t i = 0; ok && i < each && n < most; i++)
			ok = call(w, n++);
		now = now_ns();
	}
	sh->of[w->i].calls = n;
	sh->of[w->i].start_ns = start;
	sh->of[w->i].end_ns = now;
	pthread_barrier_wait(&sh->go);
	if (m->kind == STORE || m->kind == CREATE)
		for (uint64_t i = 0; i < n; i++) {
			path_of(w, i, path);
			unlink(path);
		}
	return NULL;
}

static void run_threads(struct worker *w, unsigned n)
{
	pthread_t thread[WORKERS];

	for (unsigned i = 0; i < n; i++)
		if (pthread_create(&thread[i], NULL, work, &w[i]))
			die("cannot start %u threads", n);
	for (unsigned i = 0; i < n; i++)
		pthread_join(thread[i], NULL);
}

static void run_processes(struct worker *w, unsigned n)
{
	pid_t child[WORKERS];
	int status;

	for (unsigned i = 0; i < n; i++) {
		child[i] = fork();
		if (child[i] < 0)
			die("cannot start %u processes: %s", n, strerror(errno));
		if (!child[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			work(&w[i]);
			_exit(0);
		}
	}
	for (unsigned i = 0; i < n; i++)
		if (waitpid(child[i], &status, 0) != child[i] || status)
			die("a process of the measurement ended early");
}

/* Returns the seconds between the start of the first of n callers and the end of the last. */
static double elapsed_s(unsigned n)
{
	uint64_t start = sh->of[0].start_ns, end = 0;

	for (unsigned i = 0; i < n; i++) {
		start = sh->of[i].start_ns < start ? sh->of[i].start_ns : start;
		end = sh->of[i].end_ns > end ? sh->of[i].end_ns : end;
	}
	return (double)(end - start) / 1e9;
}

/* A mount, and its lines of .kvcachefs/locks. */
struct target {
	const char *name;
	char mount[PATH - 64], dir[PATH - 32];
	bool locks;
};
static struct target targets[TARGETS];
static unsigned ntargets;

/* The kernel forgets the cached names of a mount when it is mounted again with the same flags. */
static void forget_names(const struct target *t)
{
	struct statvfs s;
	unsigned long flags = MS_REMOUNT;

	if (statvfs(t->mount, &s))
		die("statvfs of %s: %s", t->mount, strerror(errno));
	flags |= (s.f_flag & ST_NOSUID ? MS_NOSUID : 0) | (s.f_flag & ST_NODEV ? MS_NODEV : 0) |
		 (s.f_flag & ST_NOEXEC ? MS_NOEXEC : 0) | (s.f_flag & ST_NOATIME ? MS_NOATIME : 0) |
		 (s.f_flag & ST_RELATIME ? MS_RELATIME : 0);
	if (mount(NULL, t->mount, NULL, flags, NULL))
		die("remount of %s: %s (run it as root)", t->mount, strerror(errno));
}

/* Reads the value of a name in .kvcachefs/stats. */
static uint64_t stat_value(const struct target *t, const char *name)
{
	char path[PATH], line[256];
	unsigned long long v = 0, is;
	size_t n = strlen(name);
	FILE *f;

	snprintf(path, sizeof path, "%s/.kvcachefs/stats", t->mount);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, name, n) && line[n] == ' ' && sscanf(line + n, "%llu", &is) == 1)
			v = is;
	if (f)
		fclose(f);
	return v;
}

/* Waits until the daemon has no work left from a moment: freed segments, and copies to tiers. */
static void settle(const struct target *t)
{
	for (int i = 0; t->locks && i < 100; i++) {
		if (!stat_value(t, "jobs") &&
		    stat_value(t, "pool_used") < stat_value(t, "pool_bytes") / 2)
			return;
		usleep(5000);
	}
}

static double run_moment(const struct target *t, enum kind kind, unsigned workers, bool processes,
			 uint64_t length_ns)
{
	static unsigned serial;
	static char *buf;
	struct moment m = { t->dir, kind, workers, serial++, length_ns, t->locks };
	struct worker w[WORKERS];
	pthread_barrierattr_t attr;
	double calls = 0;

	if (!buf) {
		buf = mmap(NULL, size * WORKERS, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		if (buf == MAP_FAILED)
			die("out of memory");
		memset(buf, 'k', size * WORKERS);
	}
	if (kind == LOOKUP)
		forget_names(t);
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&sh->go, &attr, workers);
	for (unsigned i = 0; i < workers; i++)
		w[i] = (struct worker){ &m, i, buf + i * size };
	if (processes)
		run_processes(w, workers);
	else
		run_threads(w, workers);
	pthread_barrier_destroy(&sh->go);
	if (sh->failed)
		die("%s: %s", t->name, sh->why);
	if (kind == STORE || kind == CREATE)
		settle(t);
	for (unsigned i = 0; i < workers; i++)
		calls += (double)sh->of[i].calls;
	return calls / elapsed_s(workers);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static struct wait_line sum[TARGETS][LINES], now[LINES], before[LINES];
static unsigned nsum[TARGETS];
static double locked_s[TARGETS];

/*
 * Moments that are left and done, the time that the done ones took, and the sum of their lengths.
 */
static uint64_t began_ns, first_ns, done, left, lengths_ns;

/* True if the machine is too busy for the run to end after `seconds`. */
static bool late(void)
{
	return now_ns() - began_ns > (uint64_t)(seconds * 1e9);
}

/* Measures one level of a case in all mounts. */
static void measure(enum kind kind, unsigned workers, bool processes, bool profiled,
		    uint64_t length_ns, double rate[TARGETS])
{
	double all[TARGETS][ROUNDS];
	unsigned rounds = late() ? 1 : ROUNDS;

	for (unsigned r = 0; r < rounds; r++)
		for (unsigned i = 0; i < ntargets; i++) {
			unsigned t = (i + r) % ntargets, nbefore;

			nbefore = profiled && targets[t].locks
					  ? read_locks(targets[t].mount, before)
					  : 0;
			all[t][r] = run_moment(&targets[t], kind, workers, processes, length_ns);
			if (profiled) {
				unsigned n = targets[t].locks ? read_locks(targets[t].mount, now)
							      : 0;

				subtract(now, n, before, nbefore);
				add_lines(sum[t], &nsum[t], now, n);
				locked_s[t] += elapsed_s(workers);
			}
		}
	for (unsigned t = 0; t < ntargets; t++) {
		qsort(all[t], rounds, sizeof all[t][0], by_value);
		rate[t] = all[t][rounds / 2];
	}
}

static const char *explain(enum kind kind)
{
	static const char *const text[KINDS] = {
		[HIT] = "open, read all, close",
		[OPEN] = "open, close",
		[STORE] = "create, write, close, rename",
		[STAT] = "stat of a cached name",
		[LOOKUP] = "stat of a forgotten name",
		[ABSENT] = "stat of a missing name",
		[CREATE] = "create, close",
	};

	return text[kind];
}

/* A moment that makes files is followed by a longer one that removes them. */
static unsigned weight(enum kind kind)
{
	return kind == STORE || kind == CREATE ? 3 : 1;
}

/* The length of the next moments, with which the run ends after `seconds`. */
static uint64_t next_length_ns(void)
{
	uint64_t t = now_ns(), end = began_ns + (uint64_t)(seconds * 1e9);
	/* starting the callers, waiting for the daemon */
	uint64_t more = done ? (t - first_ns - lengths_ns) / done : 2000000;
	uint64_t each = t < end ? (end - t) / left : 0;

	return each > more + LEAST_NS ? each - more : LEAST_NS;
}

static void run_case(enum kind kind, const unsigned *level, unsigned nlevels)
{
	double rate[TARGETS], one[TARGETS];
	unsigned cores = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t length_ns = 0, moments;

	printf("\n%s: %s", kinds[kind], explain(kind));
	if (kind == HIT || kind == STORE)
		printf(", %zu KiB", size >> 10);
	printf("\n%-14s", "callers");
	for (unsigned t = 0; t < ntargets; t++)
		printf(t ? "  %24s" : "  %17s", targets[t].name);
	putchar('\n');
	memset(nsum, 0, sizeof nsum);
	memset(sum, 0, sizeof sum);
	memset(locked_s, 0, sizeof locked_s);
	for (int processes = 0; processes < 2; processes++)
		for (unsigned i = 0; i < nlevels; i++) {
			if (processes && level[i] == 1)
				continue;
			length_ns = next_length_ns();
			measure(kind, level[i], processes, i + 1 == nlevels, length_ns, rate);
			moments = (uint64_t)ntargets * ROUNDS * weight(kind);
			done += moments;
			left -= moments;
			lengths_ns += moments * length_ns;
			if (!i)
				memcpy(one, rate, sizeof one);
			printf("%3u%s %-9s", level[i], level[i] > cores ? "*" : " ",
			       processes ? "processes" : "threads");
			for (unsigned t = 0; t < ntargets; t++) {
				printf("  %10.0f %5.2fx", rate[t], rate[t] / one[t]);
				if (t)
					printf(" %5.2f ", rate[t] / one[t] / (rate[0] / one[0]));
			}
			putchar('\n');
			(void)fflush(stdout);
		}
	printf("  the last moments took %.0f ms each\n", (double)length_ns / 1e6);
	for (unsigned t = 0; t < ntargets; t++)
		if (targets[t].locks)
			print_locks(targets[t].name, sum[t], nsum[t], locked_s[t]);
	(void)fflush(stdout);
}

/* Each caller's folder with its files. */
static void *set_up(void *arg)
{
	struct worker *w = arg;
	char path[PATH];

	snprintf(path, sizeof path, "%s/w%u", w->m->dir, w->i);
	if (mkdir(path, 0755)) {
		fail("mkdir", path);
		return NULL;
	}
	for (unsigned i = 0; i < FILES; i++) {
		snprintf(path, sizeof path, "%s/w%u/f%u", w->m->dir, w->i, i);
		if (!write_file(path, w->buf, size))
			return NULL;
	}
	for (unsigned i = 0; i < (w->m->kind == LOOKUP ? LOOKUPS : 0); i++) {
		snprintf(path, sizeof path, "%s/w%u/l%u", w->m->dir, w->i, i);
		if (!write_file(path, NULL, 0))
			return NULL;
	}
	return NULL;
}

static void set_up_target(struct target *t, unsigned workers, bool lookups)
{
	struct moment m = { .dir = t->dir, .kind = lookups ? LOOKUP : HIT, .workers = workers };
	struct worker w[WORKERS];
	pthread_t thread[WORKERS];
	char *buf = malloc(size), path[PATH];

	if (!buf)
		die("out of memory");
	memset(buf, 'k', size);
	snprintf(path, sizeof path, "%s/.kvcachefs/locks", t->mount);
	t->locks = !access(path, R_OK);
	snprintf(t->dir, sizeof t->dir, "%s/cores", t->mount);
	if (mkdir(t->dir, 0755))
		die("mkdir of %s: %s", t->dir, strerror(errno));
	for (unsigned i = 0; i < workers; i++) {
		w[i] = (struct worker){ &m, i, buf };
		if (pthread_create(&thread[i], NULL, set_up, &w[i]))
			die("cannot start %u threads", workers);
	}
	for (unsigned i = 0; i < workers; i++)
		pthread_join(thread[i], NULL);
	free(buf);
	if (sh->failed)
		die("%s: %s", t->name, sh->why);
	settle(t);
}

static unsigned parse_numbers(char *text, unsigned *out)
{
	unsigned n = 0;

	for (char *w = strtok(text, ","); w; w = strtok(NULL, ",")) {
		unsigned long v = strtoul(w, NULL, 10);

		if (n == LEVELS || v < 1 || v > WORKERS)
			die("a level is a number from 1 to %d, not %s", WORKERS, w);
		out[n++] = (unsigned)v;
	}
	return n;
}

static unsigned parse_cases(char *text, bool wanted[KINDS])
{
	unsigned n = 0;

	for (char *w = strtok(text, ","); w; w = strtok(NULL, ",")) {
		int i = 0;

		while (i < KINDS && strcmp(kinds[i], w))
			i++;
		if (i == KINDS)
			die("no case is named %s", w);
		n += !wanted[i];
		wanted[i] = true;
	}
	return n;
}

int main(int argc, char **argv)
{
	char levels_text[] = "1,2,4,8,16",
	     cases_text[] = "hit,open,lookup,absent,stat,create,store";
	char *cases = cases_text, *levels = levels_text;
	unsigned level[LEVELS], nlevels, ncases, most = 0;
	bool wanted[KINDS] = { false };
	int c;

	began_ns = now_ns();
	while ((c = getopt(argc, argv, "s:b:l:c:")) != -1)
		switch (c) {
		case 's': seconds = strtod(optarg, NULL); break;
		case 'b': size = strtoull(optarg, NULL, 10); break;
		case 'l': levels = optarg; break;
		case 'c': cases = optarg; break;
		default: return 2;
		}
	nlevels = parse_numbers(levels, level);
	ncases = parse_cases(cases, wanted);
	if (optind == argc || argc - optind > TARGETS || !nlevels || !ncases || !size)
		die("usage: cores [-s SECONDS] [-b BYTES] [-l LEVELS] [-c CASES] NAME=MOUNT...");
	sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sh == MAP_FAILED)
		die("out of memory");
	for (unsigned i = 0; i < nlevels; i++)
		most = level[i] > most ? level[i] : most;
	for (; optind < argc; optind++, ntargets++) {
		char *is = strchr(argv[optind], '=');

		if (!is)
			die("give NAME=MOUNT, not %s", argv[optind]);
		*is = 0;
		targets[ntargets].name = argv[optind];
		snprintf(targets[ntargets].mount, sizeof targets[0].mount, "%s", is + 1);
		set_up_target(&targets[ntargets], most, wanted[LOOKUP]);
	}
	for (int i = 0; i < KINDS; i++)
		if (wanted[i])
			left += (uint64_t)ntargets * ROUNDS * (2 * nlevels - (*level == 1)) *
				weight((enum kind)i);
	first_ns = now_ns();
	alarm((unsigned)(seconds * 1.2) + 5); /* ends the run if a mount hangs */
	printf("%ld cores; medians of %d moments. Columns: calls a second, times the "
	       "rate of one caller,\nand for all but %s the latter divided by that of %s. *: more "
	       "callers than cores.\n",
	       sysconf(_SC_NPROCESSORS_ONLN), ROUNDS, targets[0].name, targets[0].name);
	for (int i = 0; i < KINDS; i++)
		if (wanted[i])
			run_case((enum kind)i, level, nlevels);
	return 0;
}
