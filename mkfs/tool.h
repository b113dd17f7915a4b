/* SPDX-License-Identifier: Apache-2.0 */
/* What the tools share: one clear line and an exit status. */
#ifndef KVM_TOOL_H
#define KVM_TOOL_H

#include <stdarg.h>

/* Prints "NAME: message" to stderr and returns 1. */
int kvm_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same with an end to the line, for who returns something else. */
void kvm_say(const char *format, va_list ap, const char *end) __attribute__((format(printf, 1, 0)));
/* A word of the command line, for a message: an empty one is seen there, too. */
static inline const char *kvm_shown(const char *word)
{
	return *word ? word : "''";
}
extern const char *kvm_name;

#endif
