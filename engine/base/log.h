/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: stderr in the foreground, syslog in a daemon, or a file. One line for each event, with
 * its cause if that is known. The last few hundred lines are kept in memory.
 */
#ifndef KVC_LOG_H
#define KVC_LOG_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

enum kvc_level { KVC_ERROR, KVC_WARN, KVC_INFO, KVC_DEBUG };
extern const char *const kvc_log_level_names[]; /* ended by NULL */

enum kvc_log_to {
	KVC_LOG_STDERR,
	/* a daemon that starts: errors and warnings to stderr, all lines to syslog */
	KVC_LOG_STARTING,
	KVC_LOG_SYSLOG,
};
/*
 * Sets where further lines are sent. The file of kvc_log_file_open replaces syslog; stderr then
 * gets only errors and warnings, and nothing with KVC_LOG_SYSLOG. `debug` also logs KVC_DEBUG.
 */
void kvc_log_setup(enum kvc_log_to to, bool debug);
/*
 * Sends further lines to the end of this file, each after its time and level. The file is made with
 * mode 0600; it must be a regular file of root or of this process's user, and no symbolic link.
 * kvc_log_file_reopen opens the same path again, for a file that was renamed, and does nothing if
 * the log has no file. Both return 0 or a negative errno; the log is then unchanged.
 */
int kvc_log_file_open(const char *path);
int kvc_log_file_reopen(void);
/*
 * The least severe level that is logged. kvc_log_level_set returns 0, or -EINVAL if no level has
 * that name.
 */
enum kvc_level kvc_log_level(void);
int kvc_log_level_set(const char *name);
/* Prints the last lines, each after its time (UTC) and level. */
void kvc_log_print(FILE *out);
void kvc_log(enum kvc_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define kvc_error(...) kvc_log(KVC_ERROR, __VA_ARGS__)
#define kvc_warn(...) kvc_log(KVC_WARN, __VA_ARGS__)
#define kvc_info(...) kvc_log(KVC_INFO, __VA_ARGS__)
#define kvc_debug(...) kvc_log(KVC_DEBUG, __VA_ARGS__)

#endif
