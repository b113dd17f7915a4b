/* SPDX-License-Identifier: Apache-2.0 */
/* See log.h. */
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <syslog.h>

/* set anew when the daemon leaves its terminal, with threads running */
static atomic_bool use_syslog, with_debug;

void kvc_log_setup(bool to_syslog, bool debug)
{
	with_debug = debug;
	if (to_syslog && !use_syslog)
		openlog("kvcachefs", LOG_PID, LOG_DAEMON);
	use_syslog = to_syslog;
}

void kvc_log(enum kvc_level level, const char *format, ...)
{
	static const int priority[] = { LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG };
	char line[1024];
	va_list ap;

	if (level == KVC_DEBUG && !with_debug)
		return;
	va_start(ap, format);
	vsnprintf(line, sizeof line, format, ap);
	va_end(ap);
	if (use_syslog)
		syslog(priority[level], "%s", line);
	else
		fprintf(stderr, "kvcachefs: %s\n", line);
}
