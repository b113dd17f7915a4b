/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quotes bytes that a client chose, as text that is valid in JSON and in a label of Prometheus.
 * Text in UTF-8 is unchanged. Any other text (not UTF-8, or with control characters other than
 * newline, which a terminal might obey) begins with U+FFFD; after it, bytes that are not printable
 * ASCII are written as \xHH (two hex digits) and a backslash as \\. So no two inputs have the same
 * result.
 */
#ifndef KVC_QUOTE_H
#define KVC_QUOTE_H

#include <stdio.h>

void kvc_quote(FILE *out, const char *text);
/*
 * Prints text for a terminal, without quotes. Control characters, C1 controls and bytes that are
 * not UTF-8 become \xHH, a newline \n, a backslash \\. So the text stays one line and contains no
 * commands for the terminal.
 */
void kvc_quote_line(FILE *out, const char *text);

#endif
