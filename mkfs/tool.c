/* SPDX-License-Identifier: Apache-2.0 */
/* See tool.h. */
#include "tool.h"

#include <stdarg.h>
#include <stdio.h>

const char *kvm_name;

int kvm_fail(const char *format, ...)
{
	va_list ap;

	fprintf(stderr, "%s: ", kvm_name);
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fprintf(stderr, "\n");
	return 1;
}
