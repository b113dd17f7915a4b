/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all tools: error messages of one line, and the exit status. */
#ifndef KVM_TOOL_H
#define KVM_TOOL_H

#include <stdarg.h>

/* Prints "NAME: message" to stderr and returns 1. */
int kvm_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints "NAME: message" and `end` to stderr, for callers that return another status. */
void kvm_say(const char *format, va_list ap, const char *end) __attribute__((format(printf, 1, 0)));
/* An argument as shown in a message: an empty string becomes ''. */
static inline const char *kvm_shown(const char *word)
{
	return *word ? word : "''";
}
extern const char *kvm_name;

#endif
