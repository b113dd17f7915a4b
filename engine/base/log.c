/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log (log.h): formats a line, sends it to stderr, syslog or the journal, and keeps it in a
 * ring.
 */
#include "log.h"

#include "util.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#define LINES 512 /* lines in the ring */
#define LINE 512  /* bytes of a line, at most */

const char *const kvc_log_level_names[] = { "error", "warn", "info", "debug", NULL };

/* changed at run time: when the daemon detaches from its terminal, or on request */
static atomic_bool use_syslog, use_journal;
static _Atomic enum kvc_level most = KVC_INFO;

struct line {
	enum kvc_level level;
	struct timespec at;
	char text[LINE];
};
static struct {
	pthread_mutex_t lock; /* a leaf */
	struct line v[LINES];
	size_t n; /* lines logged since the start */
} kept = { .lock = PTHREAD_MUTEX_INITIALIZER };

/*
 * True if stderr is connected to the journal of a service manager, in which lines have priorities.
 */
static bool to_journal(void)
{
	const char *text = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	return text && sscanf(text, "%llu:%llu", &dev, &ino) == 2 && !fstat(STDERR_FILENO, &st) &&
	       st.st_dev == dev && st.st_ino == ino;
}

void kvc_log_setup(bool to_syslog, bool debug)
{
	most = debug ? KVC_DEBUG : KVC_INFO;
	if (to_syslog && !use_syslog)
		openlog("kvcachefs", LOG_PID, LOG_DAEMON);
	use_syslog = to_syslog;
	use_journal = !to_syslog && to_journal();
}

enum kvc_level kvc_log_level(void)
{
	return most;
}

int kvc_log_level_set(const char *name)
{
	for (int i = 0; kvc_log_level_names[i]; i++)
		if (!strcmp(kvc_log_level_names[i], name)) {
			most = (enum kvc_level)i;
			return 0;
		}
	return -EINVAL;
}

static void keep(enum kvc_level level, const char *text)
{
	struct line *l;

	pthread_mutex_lock(&kept.lock);
	l = &kept.v[kept.n++ % LINES];
	l->level = level;
	clock_gettime(CLOCK_REALTIME, &l->at);
	snprintf(l->text, sizeof l->text, "%s", text);
	pthread_mutex_unlock(&kept.lock);
}

void kvc_log_print(FILE *out)
{
	struct line l;
	struct tm tm;
	char when[32];
	size_t i = 0, n;

	do {
		pthread_mutex_lock(&kept.lock);
		n = kept.n;
		if (n > LINES && i < n - LINES)
			i = n - LINES;
		if (i < n)
			l = kept.v[i % LINES];
		pthread_mutex_unlock(&kept.lock);
		if (i >= n)
			break;
		gmtime_r(&l.at.tv_sec, &tm);
		(void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
		fprintf(out, "%s.%03ldZ %s %s\n", when, l.at.tv_nsec / 1000000,
			kvc_log_level_names[l.level], l.text);
	} while (++i < n);
}

void kvc_log(enum kvc_level level, const char *format, ...)
{
	static const int priority[] = { LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG };
	char line[1024];
	va_list ap;

	if (level > most)
		return;
	va_start(ap, format);
	vsnprintf(line, sizeof line, format, ap);
	va_end(ap);
	kvc_quote_one_line(line);
	keep(level, line);
	if (use_syslog)
		syslog(priority[level], "%s", line);
	else if (use_journal)
		fprintf(stderr, "<%d>%s\n", priority[level], line);
	else
		fprintf(stderr, "kvcachefs: %s\n", line);
}
