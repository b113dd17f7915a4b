/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes that a client chose, as text between quotes, which JSON and a label of Prometheus take
 * alike. Text in UTF-8 reads as itself. What is none, or has control characters other than a
 * newline, which a terminal might obey, begins with U+FFFD, and what is not printable ASCII is \xFF
 * then, a backslash \\; so no two read the same.
 */
#ifndef KVC_QUOTE_H
#define KVC_QUOTE_H

#include <stdio.h>

void kvc_quote(FILE *out, const char *text);
/*
 * Prints text for a terminal, without quotes. Control characters, C1 controls and bytes that are
 * not UTF-8 become \xFF, a newline \n, a backslash \\. So the text stays one line and commands
 * nothing.
 */
void kvc_quote_line(FILE *out, const char *text);

#endif
