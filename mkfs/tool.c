/* SPDX-License-Identifier: Apache-2.0 */
/* Error messages of the tools. See tool.h. */
#include "tool.h"

#include "util.h"

#include <stdio.h>

const char *kvm_name;

void kvm_say(const char *format, va_list ap, const char *end)
{
	KVC_MEM char *text = NULL; /* on the heap, because paths can be long */

	if (vasprintf(&text, format, ap) < 0)
		text = NULL;
	else
		kvc_quote_one_line(text);
	(void)fflush(stdout); /* keeps the order if stdout and stderr are the same file */
	fprintf(stderr, "%s: %s%s\n", kvm_name, text ? text : "out of memory", end);
}

int kvm_fail(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	kvm_say(format, ap, "");
	va_end(ap);
	return 1;
}
