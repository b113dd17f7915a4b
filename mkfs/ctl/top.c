/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl top: the activity of each model per second, from two or more readings of
 * .kvcachefs/models (engine/report/models.c). On a terminal, the screen is refreshed in place and
 * restored at the end. Otherwise each interval is printed as a block of lines, or as a line of
 * JSON.
 */
#include "ctl.h"

#include "json.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>

enum { FOUND, ABSENT, HITS, MISSES, CREATES, LOADED, COPIED, POOL, COLUMNS };
static const char *const columns[COLUMNS] = {
	"found", "absent", "hits", "misses", "creates", "load_bytes", "spill_bytes", "pool_bytes",
};

struct model {
	const char *name; /* points into the text */
	uint64_t v[COLUMNS];
	uint64_t uses; /* in the interval: opens, and requests for names that do not exist */
	double rate[COLUMNS];
};

struct sample {
	char *text;
	struct model *v;
	size_t n, capacity;
	uint64_t at_ns;
};

struct top {
	char mnt[KVM_PATH];
	struct sample before, now;
	double seconds;
	bool json, screen, keys;
	struct termios was;
};

static volatile sig_atomic_t leaving;

static void restore_terminal(int sig)
{
	(void)sig;
	leaving = 1;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct model *)a)->name, ((const struct model *)b)->name);
}

/* Sorts by uses and files created, then by bytes in the pool. */
static int by_use(const void *a, const void *b)
{
	const struct model *x = a, *y = b;
	double dx = (double)x->uses + x->rate[CREATES], dy = (double)y->uses + y->rate[CREATES];

	if (dx != dy)
		return dx < dy ? 1 : -1;
	if (x->v[POOL] != y->v[POOL])
		return x->v[POOL] < y->v[POOL] ? 1 : -1;
	return by_name(a, b);
}

static void sample_free(struct sample *s)
{
	free(s->text);
	free(s->v);
	*s = (struct sample){ 0 };
}

/*
 * Parses a line of numbers and a name; column[i] is the index of the i-th column in m (-1:
 * unknown).
 */
static bool parse_model(char *line, const int *column, unsigned n, struct model *m)
{
	char *end;

	memset(m, 0, sizeof *m);
	for (unsigned i = 0; i < n; i++, line = end) {
		uint64_t v = strtoull(line, &end, 10);

		if (end == line)
			return false;
		if (column[i] >= 0)
			m->v[column[i]] = v;
	}
	m->name = line + strspn(line, " ");
	return *m->name;
}

static unsigned read_head(char *head, int *column, unsigned capacity)
{
	unsigned n = 0;
	char *save;

	for (char *w = strtok_r(head, " ", &save); w && n < capacity;
	     w = strtok_r(NULL, " ", &save)) {
		if (!strcmp(w, "name"))
			return n;
		column[n] = -1;
		for (int c = 0; c < COLUMNS; c++)
			if (!strcmp(columns[c], w))
				column[n] = c;
		n++;
	}
	return 0;
}

static int take_sample(struct top *t)
{
	struct sample *s = &t->now;
	int column[64], err = kvm_mount_text(t->mnt, "models", &s->text);
	char *save, *line = err ? NULL : strtok_r(s->text, "\n", &save);
	unsigned n = line ? read_head(line, column, 64) : 0;

	if (err)
		return err;
	s->at_ns = kvc_mono_ns();
	while (n && (line = strtok_r(NULL, "\n", &save))) {
		struct model m;

		if (!parse_model(line, column, n, &m))
			continue;
		if (kvc_grow(&s->v, s->n, &s->capacity, sizeof *s->v))
			return kvm_fail("out of memory");
		s->v[s->n++] = m;
	}
	if (!n)
		return kvm_fail("%s: cannot read the mount's list of models; use the kvcachectl of "
				"the same version",
				t->mnt);
	qsort(s->v, s->n, sizeof *s->v, by_name);
	return 0;
}

/* Computes the difference of the two samples. */
static void compute_rates(struct top *t)
{
	t->seconds = (double)(t->now.at_ns - t->before.at_ns) / 1e9;
	for (size_t i = 0; i < t->now.n; i++) {
		struct model *m = &t->now.v[i];
		const struct model *b = t->before.n ? bsearch(m, t->before.v, t->before.n,
							      sizeof *m, by_name)
						    : NULL;
		uint64_t d[COLUMNS];

		for (int c = 0; c < COLUMNS; c++) {
			d[c] = m->v[c] - (b ? kvc_min(b->v[c], m->v[c]) : 0);
			m->rate[c] = (double)d[c] / t->seconds;
		}
		m->uses = d[HITS] + d[MISSES] + d[ABSENT];
	}
}

static const char *share(double part, double rest, char *buf)
{
	if (part + rest > 0)
		snprintf(buf, 32, "%.1f%%", 100 * part / (part + rest));
	else
		snprintf(buf, 32, "-");
	return buf;
}

static void print_model(const struct model *m, const char *name, const char *end)
{
	char found[32], hits[32], loaded[32], copied[32], pool[32];

	printf("%8.1f %6s %8.1f %9s %9.1f %9s %9s %9s  %.60s%s\n", m->rate[FOUND] + m->rate[ABSENT],
	       share(m->rate[FOUND], m->rate[ABSENT], found), m->rate[HITS] + m->rate[MISSES],
	       share(m->rate[HITS], m->rate[MISSES], hits), m->rate[CREATES],
	       kvc_size_text((uint64_t)m->rate[LOADED], loaded),
	       kvc_size_text((uint64_t)m->rate[COPIED], copied), kvc_size_text(m->v[POOL], pool),
	       name, end);
}

/* Prints up to `capacity` models. */
static void print_top(struct top *t, size_t capacity, const char *end)
{
	struct model all = { .name = "" };

	for (size_t i = 0; i < t->now.n; i++)
		for (int c = 0; c < COLUMNS; c++) {
			all.rate[c] += t->now.v[i].rate[c];
			all.v[c] += t->now.v[i].v[c];
		}
	printf("%8s %6s %8s %9s %9s %9s %9s %9s  %s%s\n", "asked/s", "found", "opens/s",
	       "in memory", "creates/s", "loaded/s", "copied/s", "pool", "model", end);
	print_model(&all, "(all)", end);
	for (size_t i = 0; i < t->now.n && i < capacity; i++) {
		const char *name = t->now.v[i].name;

		print_model(&t->now.v[i],
			    !strcmp(name, "/")    ? "(files in the root)"
			    : !strcmp(name, "//") ? "(others)"
						  : name,
			    end);
	}
}

static void print_top_json(struct top *t)
{
	struct kvm_json j = { stdout, false };

	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "mount", t->mnt);
	kvm_json_share(&j, "seconds", t->seconds);
	kvm_json_begin(&j, "models", '[');
	for (size_t i = 0; i < t->now.n; i++) {
		const struct model *m = &t->now.v[i];
		double opens = m->rate[HITS] + m->rate[MISSES];
		double asked = m->rate[FOUND] + m->rate[ABSENT];

		kvm_json_begin(&j, NULL, '{');
		kvm_json_text(&j, "model", m->name);
		kvm_json_share(&j, "asked_s", asked);
		if (asked > 0)
			kvm_json_share(&j, "found_share", m->rate[FOUND] / asked);
		else
			kvm_json_text(&j, "found_share", NULL);
		kvm_json_share(&j, "opens_s", opens);
		if (opens > 0)
			kvm_json_share(&j, "share", m->rate[HITS] / opens);
		else
			kvm_json_text(&j, "share", NULL);
		kvm_json_share(&j, "creates_s", m->rate[CREATES]);
		kvm_json_share(&j, "loaded_bytes_s", m->rate[LOADED]);
		kvm_json_share(&j, "copied_bytes_s", m->rate[COPIED]);
		kvm_json_number(&j, "pool_bytes", m->v[POOL]);
		kvm_json_end(&j, '}');
	}
	kvm_json_end(&j, ']');
	kvm_json_end(&j, '}');
	putchar('\n');
}

static void show_top(struct top *t)
{
	struct winsize w = { .ws_row = 24 };

	qsort(t->now.v, t->now.n, sizeof *t->now.v, by_use);
	if (t->json) {
		print_top_json(t);
	} else if (t->screen) {
		if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) || w.ws_row < 8)
			w.ws_row = 24;
		printf("\033[H%.70s, over %.1f s; press q to quit\033[K\n\033[K\n", t->mnt,
		       t->seconds);
		print_top(t, w.ws_row - 5u, "\033[K");
		printf("\033[J");
	} else {
		print_top(t, SIZE_MAX, "");
		putchar('\n');
	}
	qsort(t->now.v, t->now.n, sizeof *t->now.v, by_name);
}

/* Prepares the terminal: the alternate screen, and keys without Enter. */
static void screen_open(struct top *t)
{
	struct termios raw;

	t->screen = !t->json && isatty(STDOUT_FILENO);
	t->keys = t->screen && !tcgetattr(STDIN_FILENO, &t->was);
	if (t->keys) {
		raw = t->was;
		raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
		raw.c_cc[VSUSP] = _POSIX_VDISABLE;
		tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	}
	if (t->screen)
		fputs("\033[?1049h\033[?25l", stdout);
}

static void screen_close(struct top *t)
{
	if (t->screen)
		fputs("\033[?25h\033[?1049l", stdout);
	(void)fflush(stdout);
	if (t->keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &t->was);
}

/* Waits for s seconds. Returns false if the command should end. */
static bool wait_interval(const struct top *t, uint64_t s)
{
	uint64_t until = kvc_mono_ns() + s * 1000000000, now;
	struct pollfd in = { STDIN_FILENO, POLLIN, 0 };
	char key;

	while (!leaving && (now = kvc_mono_ns()) < until)
		if (poll(&in, t->keys, (int)((until - now) / 1000000) + 1) > 0 &&
		    (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q' || key == 4))
			return false;
	return !leaving;
}

static int run_top(struct top *t, uint64_t interval, uint64_t count)
{
	int err = take_sample(t);

	for (uint64_t i = 0; !err && (!count || i < count); i++) {
		sample_free(&t->before);
		t->before = t->now;
		t->now = (struct sample){ 0 };
		if (!wait_interval(t, interval))
			break;
		err = take_sample(t);
		if (err)
			break;
		compute_rates(t);
		show_top(t);
		if (fflush(stdout))
			err = kvm_fail("stdout: %s", kvc_why(errno));
	}
	return err;
}

int kvm_run_top(int argc, char **argv)
{
	struct sigaction act = { .sa_handler = restore_terminal };
	struct top t = { .json = false };
	const char *interval = "2", *count = NULL;
	const struct kvm_option options[] = { { "json", &t.json, NULL },
					      { "interval", NULL, &interval },
					      { "count", NULL, &count },
					      { 0 } };
	uint64_t s = 0, n = 0;
	char *end = NULL;
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	if ((err = kvm_time_arg("--interval", interval, 3600, "a time from 1s to 1h", &s)))
		return err;
	if (count)
		n = strtoull(count, &end, 10);
	if (count && (*count < '0' || *count > '9' || *end || !n))
		return kvm_misused("--count %s: give a number, 1 or more", kvm_shown(count));
	err = kvm_mount_of(argc ? argv[0] : NULL, t.mnt);
	if (err)
		return err;
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGHUP, &act, NULL);
	screen_open(&t);
	err = run_top(&t, s, n);
	screen_close(&t);
	sample_free(&t.before);
	sample_free(&t.now);
	return err;
}
