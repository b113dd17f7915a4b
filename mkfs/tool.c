/* SPDX-License-Identifier: Apache-2.0 */
/* See tool.h. */
#include "tool.h"

#include <stdio.h>

const char *kvm_name;

void kvm_say(const char *format, va_list ap, const char *end)
{
	(void)fflush(stdout); /* where both go to one file, in the order in which they were said */
	fprintf(stderr, "%s: ", kvm_name);
	vfprintf(stderr, format, ap);
	fprintf(stderr, "%s\n", end);
}

int kvm_fail(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	kvm_say(format, ap, "");
	va_end(ap);
	return 1;
}
