/* SPDX-License-Identifier: Apache-2.0 */
/* What the library's files share. */
#ifndef KVCACHEFS_PRIV_H
#define KVCACHEFS_PRIV_H

#include "kvcachefs.h"

#include <errno.h>

#ifdef __cplusplus
extern "C" {
#endif
/* Notes what went wrong for kvcachefs_error() and returns err. */
int kvcachefs_fail(int err, const char *format, ...)
	__attribute__((format(printf, 2, 3), visibility("hidden")));
#ifdef __cplusplus
}
#endif

#endif
