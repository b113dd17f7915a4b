/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: stderr in the foreground, syslog after daemonising. One line where a cause is known.
 */
#ifndef KVC_LOG_H
#define KVC_LOG_H

#include <stdbool.h>

enum kvc_level { KVC_ERROR, KVC_WARN, KVC_INFO, KVC_DEBUG };

/* From now on to syslog (true) or stderr (false); `debug` lets KVC_DEBUG through. */
void kvc_log_setup(bool to_syslog, bool debug);
void kvc_log(enum kvc_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define kvc_error(...) kvc_log(KVC_ERROR, __VA_ARGS__)
#define kvc_warn(...) kvc_log(KVC_WARN, __VA_ARGS__)
#define kvc_info(...) kvc_log(KVC_INFO, __VA_ARGS__)
#define kvc_debug(...) kvc_log(KVC_DEBUG, __VA_ARGS__)

#endif
