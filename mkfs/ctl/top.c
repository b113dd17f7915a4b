/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl top: the activity of each model per second, from two or more readings of
 * .kvcachefs/models (engine/report/models.c). On a terminal, the screen is refreshed in place and
 * restored at the end, keys choose the order, and columns that do not fit are left out. Otherwise
 * each interval is printed as a block of lines, or as a line of JSON.
 */
#include "ctl.h"

#include "json.h"

#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>

enum {
	FOUND,
	ABSENT,
	HITS,
	MISSES,
	CREATES,
	LOADED,
	COPIED,
	POOL,
	FILES,
	BYTES,
	DISK,
	REMOTE,
	QUOTA,
	USED,
	COLUMNS
};
static const char *const columns[COLUMNS] = {
	"found",      "absent", "hits",  "misses",     "creates",      "load_bytes", "spill_bytes",
	"pool_bytes", "files",  "bytes", "disk_bytes", "remote_bytes", "quota",      "used",
};
#define UNKNOWN UINT64_MAX /* the mount does not know the number now: "-" */

struct model {
	const char *name; /* points into the text */
	uint64_t v[COLUMNS];
	uint64_t uses; /* in the interval: opens, missing names and created files */
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
	const char *sort; /* one of sorts[].name */
	bool json, screen, keys, colour;
	bool key_list; /* the keys are listed above the table */
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

		line += strspn(line, " ");
		if (*line == '-') {
			v = UNKNOWN;
			end = line + 1;
		}
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
		m->uses = d[HITS] + d[MISSES] + d[ABSENT] + d[CREATES];
	}
}

/* ---- columns and orders ---- */

enum shown {
	ASKED,
	FOUND_SHARE,
	OPENS,
	MEMORY,
	CREATED,
	LOADED_RATE,
	COPIED_RATE,
	POOL_SIZE,
	DISK_SIZE
};

/* Columns with a higher rank are left out first on a narrow terminal. */
static const struct {
	const char *title;
	int width;
	unsigned rank;
} shown[] = {
	[ASKED] = { "asked/s", 8, 1 },        [FOUND_SHARE] = { "found", 6, 0 },
	[OPENS] = { "opens/s", 8, 3 },        [MEMORY] = { "in memory", 9, 4 },
	[CREATED] = { "creates/s", 9, 7 },    [LOADED_RATE] = { "loaded/s", 9, 5 },
	[COPIED_RATE] = { "copied/s", 9, 6 }, [POOL_SIZE] = { "pool", 9, 2 },
	[DISK_SIZE] = { "disk", 9, 8 },
};
#define SHOWN (sizeof shown / sizeof shown[0])
#define NAME_LEAST 12 /* columns of the name of a model */
#define NAME_MOST 60

/* Orders: by use (opens, absent names and created files), by a column, or by name. */
enum { BY_USE = SHOWN, BY_NAME };
static const struct {
	char key;
	const char *name;
	unsigned by;
} sorts[] = {
	{ 'u', "use", BY_USE },         { 'a', "asked", ASKED },
	{ 'f', "found", FOUND_SHARE },  { 'o', "opens", OPENS },
	{ 'm', "memory", MEMORY },      { 'c', "creates", CREATED },
	{ 'l', "loaded", LOADED_RATE }, { 'w', "copied", COPIED_RATE },
	{ 'p', "pool", POOL_SIZE },     { 'n', "name", BY_NAME },
};
#define SORTS (sizeof sorts / sizeof sorts[0])

/* The share in percent, or -1 if both are 0. */
static double percent(double part, double rest)
{
	return part + rest > 0 ? 100 * part / (part + rest) : -1;
}

static double column_value(const struct model *m, unsigned column)
{
	switch (column) {
	case ASKED: return m->rate[FOUND] + m->rate[ABSENT];
	case FOUND_SHARE: return percent(m->rate[FOUND], m->rate[ABSENT]);
	case OPENS: return m->rate[HITS] + m->rate[MISSES];
	case MEMORY: return percent(m->rate[HITS], m->rate[MISSES]);
	case CREATED: return m->rate[CREATES];
	case LOADED_RATE: return m->rate[LOADED];
	case COPIED_RATE: return m->rate[COPIED];
	case POOL_SIZE: return (double)m->v[POOL];
	case DISK_SIZE: return m->v[DISK] == UNKNOWN ? -1 : (double)m->v[DISK];
	default: return (double)m->uses;
	}
}

/*
 * The largest value comes first. For shares, the smallest comes first, because a low hit ratio is
 * the problem to look for. Models with the same value are ordered by their bytes in the pool, and
 * then by name.
 */
static int by_column(const void *a, const void *b, void *arg)
{
	const struct model *x = a, *y = b;
	unsigned by = *(const unsigned *)arg;
	double dx = column_value(x, by), dy = column_value(y, by);

	if (by == BY_NAME)
		return by_name(a, b);
	if ((by == FOUND_SHARE || by == MEMORY) && dx >= 0 && dy >= 0) {
		dx = -dx;
		dy = -dy;
	} else if (by == FOUND_SHARE || by == MEMORY) { /* without a share: last */
		dx = dx >= 0;
		dy = dy >= 0;
	}
	if (dx != dy)
		return dx < dy ? 1 : -1;
	if (x->v[POOL] != y->v[POOL])
		return x->v[POOL] < y->v[POOL] ? 1 : -1;
	return by_name(a, b);
}

static unsigned order_of(const struct top *t)
{
	for (size_t i = 0; i < SORTS; i++)
		if (!strcmp(sorts[i].name, t->sort))
			return sorts[i].by;
	return BY_USE;
}

static const char *cell(const struct model *m, unsigned column, char buf[32])
{
	double v = column_value(m, column);

	if (column == DISK_SIZE && v < 0)
		return "-";
	if (column == FOUND_SHARE || column == MEMORY)
		snprintf(buf, 32, v < 0 ? "-" : "%.1f%%", v);
	else if (column == LOADED_RATE || column == COPIED_RATE || column == POOL_SIZE ||
		 column == DISK_SIZE)
		kvc_size_text((uint64_t)v, buf);
	else
		snprintf(buf, 32, "%.1f", v);
	return buf;
}

/* Red, yellow or green for a share; NULL: no colour. */
static const char *colour_of(const struct top *t, unsigned column, double v)
{
	if (!t->colour || (column != FOUND_SHARE && column != MEMORY) || v < 0)
		return NULL;
	return v < 50 ? "\033[31m" : v < 80 ? "\033[33m" : "\033[32m";
}

/* The layout of a screen: the columns that fit, and the width of the names. */
struct layout {
	bool has[SHOWN];
	int name;
	const char *end; /* of each line */
};

static struct layout fit(const struct top *t, int width)
{
	struct layout l = { .name = NAME_MOST, .end = t->screen ? "\033[K" : "" };
	int left = t->screen ? width - 2 - NAME_LEAST : INT_MAX;

	for (unsigned rank = 0; rank < SHOWN; rank++)
		for (unsigned c = 0; c < SHOWN; c++)
			if (shown[c].rank == rank && left >= shown[c].width + (rank > 0)) {
				l.has[c] = true;
				left -= shown[c].width + (rank > 0);
			} else if (shown[c].rank == rank) {
				left = 0; /* columns of a higher rank are left out, too */
			}
	if (t->screen)
		l.name = kvc_min(NAME_MOST, (unsigned)left + NAME_LEAST);
	return l;
}

/*
 * Cuts a name to a width, in its middle, because names of models often differ at their ends. Names
 * are escaped and have ASCII characters only.
 */
static const char *cut_name(const char *name, size_t width, char cut[NAME_MOST + 1])
{
	size_t n = strlen(name), end = width / 2;

	if (n <= width)
		return name;
	snprintf(cut, NAME_MOST + 1, "%.*s~%s", (int)(width - 1 - end), name, name + n - end);
	return cut;
}

static void print_model(const struct top *t, const struct layout *l, const struct model *m,
			const char *name)
{
	const char *space = "", *colour;
	char buf[32], cut[NAME_MOST + 1];

	for (unsigned c = 0; c < SHOWN; c++) {
		if (!l->has[c])
			continue;
		colour = colour_of(t, c, column_value(m, c));
		printf("%s%s%*s%s", space, colour ?: "", shown[c].width, cell(m, c, buf),
		       colour ? "\033[0m" : "");
		space = " ";
	}
	printf("  %s%s\n", cut_name(name, (size_t)l->name, cut), l->end);
}

/* Prints up to `capacity` models. */
static void print_top(const struct top *t, const struct sample *s, size_t capacity, int width)
{
	struct layout l = fit(t, width);
	struct model all = { .name = "" };
	unsigned by = order_of(t);
	const char *space = "";

	for (size_t i = 0; i < s->n; i++)
		for (int c = 0; c < COLUMNS; c++) {
			all.rate[c] += s->v[i].rate[c];
			all.v[c] = all.v[c] == UNKNOWN || s->v[i].v[c] == UNKNOWN
					   ? UNKNOWN
					   : all.v[c] + s->v[i].v[c];
		}
	if (t->colour)
		fputs("\033[1m", stdout);
	for (unsigned c = 0; c < SHOWN; c++)
		if (l.has[c]) {
			/* the column of the order is underlined */
			printf("%s%*s%s%s%s", space, shown[c].width - (int)strlen(shown[c].title),
			       "", t->colour && by == c ? "\033[4m" : "", shown[c].title,
			       t->colour && by == c ? "\033[24m" : "");
			space = " ";
		}
	printf("  %s%s%s\n", "model", t->colour ? "\033[0m" : "", l.end);
	print_model(t, &l, &all, "(all)");
	for (size_t i = 0; i < s->n && i < capacity; i++) {
		const char *name = s->v[i].name;

		print_model(t, &l, &s->v[i],
			    !strcmp(name, "/")    ? "(files in the root)"
			    : !strcmp(name, "//") ? "(others)"
						  : name);
	}
}

/* null: the number is not known. */
static void put_known(struct kvm_json *j, const char *name, uint64_t v)
{
	if (v == UNKNOWN)
		kvm_json_text(j, name, NULL);
	else
		kvm_json_number(j, name, v);
}

static void print_top_json(const struct top *t, const struct sample *s)
{
	struct kvm_json j = { stdout, false };

	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "mount", t->mnt);
	kvm_json_share(&j, "seconds", t->seconds);
	kvm_json_begin(&j, "models", '[');
	for (size_t i = 0; i < s->n; i++) {
		const struct model *m = &s->v[i];
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
		for (int c = FILES; c < COLUMNS; c++)
			put_known(&j, columns[c], m->v[c]);
		kvm_json_end(&j, '}');
	}
	kvm_json_end(&j, ']');
	kvm_json_end(&j, '}');
	putchar('\n');
}

/* The keys and their orders, in lines of this width. Returns the number of lines. */
static unsigned print_keys(int width)
{
	unsigned lines = 1;
	int at = 0, n;
	char one[32];

	for (size_t i = 0; i < SORTS; i++) {
		n = snprintf(one, sizeof one, "%c %s", sorts[i].key, sorts[i].name);
		if (at && at + 2 + n > width) {
			printf("\033[K\n");
			at = 0;
			lines++;
		}
		printf("%s%s", at ? "  " : "", one);
		at += n + (at ? 2 : 0);
	}
	printf("\033[K\n");
	return lines;
}

/* The lines above the table. Returns their number. */
static unsigned print_heading(const struct top *t, int width)
{
	char line[160];
	size_t n = strlen(t->mnt);
	int most = width < 150 ? width : 150;

	/* the end of a long path says more than its beginning */
	printf("\033[H%s%s\033[K\n", n > (size_t)most ? "~" : "",
	       n > (size_t)most ? t->mnt + n - (size_t)most + 1 : t->mnt);
	snprintf(line, sizeof line, "%.1f s by %s; q quits%s", t->seconds, t->sort,
		 t->keys ? ", ? keys" : "");
	printf("%.*s\033[K\n", width, line);
	return 2 + (t->key_list ? print_keys(width) : 0);
}

static void show_top(const struct top *t, struct sample *s)
{
	struct winsize w = { .ws_row = 24, .ws_col = 80 };
	unsigned by = order_of(t), above;

	qsort_r(s->v, s->n, sizeof *s->v, by_column, &by);
	if (t->json) {
		print_top_json(t, s);
	} else if (t->screen) {
		if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) || w.ws_row < 8)
			w.ws_row = 24;
		if (w.ws_col < 20)
			w.ws_col = 80;
		above = print_heading(t, w.ws_col) + 3; /* and the titles, the sum, the cursor */
		print_top(t, s, w.ws_row > above ? w.ws_row - above : 0, w.ws_col);
		printf("\033[J");
	} else {
		print_top(t, s, SIZE_MAX, 0);
		putchar('\n');
	}
	qsort(s->v, s->n, sizeof *s->v, by_name);
}

/* Prepares the terminal: the alternate screen, and keys without Enter. */
static void screen_open(struct top *t)
{
	struct termios raw;

	const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");

	t->screen = !t->json && isatty(STDOUT_FILENO);
	t->colour = t->screen && !(no_colour && *no_colour) && !(term && !strcmp(term, "dumb"));
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

/*
 * Returns false if the key ends the command. Another order, or the list of the keys, is shown at
 * once, with the last sample.
 */
static bool press_key(struct top *t, char key)
{
	bool change = key == '?' || key == 'h';

	if (key == 'q' || key == 'Q' || key == 4)
		return false;
	if (change)
		t->key_list = !t->key_list;
	for (size_t i = 0; i < SORTS; i++)
		if (sorts[i].key == key && t->sort != sorts[i].name) {
			t->sort = sorts[i].name;
			change = true;
		}
	if (change && t->seconds > 0)
		show_top(t, &t->before);
	(void)fflush(stdout);
	return true;
}

/* Waits for s seconds. Returns false if the command should end. */
static bool wait_interval(struct top *t, uint64_t s)
{
	uint64_t until = kvc_mono_ns() + s * 1000000000, now;
	struct pollfd in = { STDIN_FILENO, POLLIN, 0 };
	char key;

	while (!leaving && (now = kvc_mono_ns()) < until)
		if (poll(&in, t->keys, (int)((until - now) / 1000000) + 1) > 0 &&
		    (read(STDIN_FILENO, &key, 1) != 1 || !press_key(t, key)))
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
		show_top(t, &t->now);
		if (fflush(stdout))
			err = kvm_fail("stdout: %s", kvc_why(errno));
	}
	return err;
}

int kvm_run_top(int argc, char **argv)
{
	struct sigaction act = { .sa_handler = restore_terminal };
	struct top t = { .json = false };
	const char *interval = "2", *count = NULL, *sort = "use";
	const struct kvm_option options[] = { { "json", &t.json, NULL },
					      { "interval", NULL, &interval },
					      { "count", NULL, &count },
					      { "sort", NULL, &sort },
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
	for (size_t i = 0; i < SORTS; i++)
		if (!strcmp(sorts[i].name, sort))
			t.sort = sorts[i].name;
	if (!t.sort)
		return kvm_misused("--sort %s: give use, asked, found, opens, memory, creates, "
				   "loaded, copied, pool or name",
				   kvm_shown(sort));
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
