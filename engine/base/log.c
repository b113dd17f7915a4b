/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log (log.h): formats a line, sends it to stderr, syslog, the journal or a file, and keeps it
 * in a ring.
 */
#include "log.h"

#include "util.h"

#include <fcntl.h>
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
static _Atomic enum kvc_log_to target;
static atomic_bool use_journal;
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

/* The file of the log. The lock also keeps lines whole, and is a leaf. */
static struct {
	pthread_mutex_t lock;
	int fd; /* -1: no file */
	char path[256];
} file = { .lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1 };

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

void kvc_log_setup(enum kvc_log_to to, bool debug)
{
	most = debug ? KVC_DEBUG : KVC_INFO;
	if (to != KVC_LOG_STDERR && target == KVC_LOG_STDERR)
		openlog("kvcachefs", LOG_PID, LOG_DAEMON);
	target = to;
	use_journal = to == KVC_LOG_STDERR && to_journal();
}

int kvc_log_file_open(const char *path)
{
	int fd = kvc_open_own(path, O_WRONLY | O_CREAT | O_APPEND), old;

	if (fd < 0)
		return fd;
	pthread_mutex_lock(&file.lock);
	old = file.fd;
	file.fd = fd;
	if (path != file.path)
		snprintf(file.path, sizeof file.path, "%s", path);
	pthread_mutex_unlock(&file.lock);
	if (old >= 0)
		close(old);
	return 0;
}

int kvc_log_file_reopen(void)
{
	return file.fd < 0 ? 0 : kvc_log_file_open(file.path);
}

/* Appends the line to the log's file. Returns false if the log has no file. */
static bool write_to_file(enum kvc_level level, const char *text)
{
	char line[1152], when[32];
	struct timespec now;
	struct tm tm;
	int n, err = errno;
	bool has;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	(void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
	n = snprintf(line, sizeof line, "%s.%03ldZ %s %s\n", when, now.tv_nsec / 1000000,
		     kvc_log_level_names[level], text);
	pthread_mutex_lock(&file.lock);
	has = file.fd >= 0;
	/* a line that does not fit on the disk is lost; the ring in memory still has it */
	if (has && write(file.fd, line, (size_t)n) < 0)
		has = true;
	pthread_mutex_unlock(&file.lock);
	errno = err;
	return has;
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
	bool in_file;
	va_list ap;

	if (level > most)
		return;
	va_start(ap, format);
	vsnprintf(line, sizeof line, format, ap);
	va_end(ap);
	kvc_quote_one_line(line);
	keep(level, line);
	in_file = write_to_file(level, line);
	if (!in_file && target != KVC_LOG_STDERR)
		syslog(priority[level], "%s", line);
	if (target == KVC_LOG_SYSLOG ||
	    ((target == KVC_LOG_STARTING || in_file) && level > KVC_WARN))
		return;
	if (use_journal)
		fprintf(stderr, "<%d>%s\n", priority[level], line);
	else
		fprintf(stderr, "kvcachefs: %s\n", line);
}
