/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes that a client chose, as text between quotes that its reader takes: for JSON, and for a
 * label of Prometheus. Text in UTF-8 reads as itself. Bytes that are none begin with U+FFFD, and
 * those above 127 and backslashes are \xFF and \\ then; so no two read the same.
 */
#ifndef KVC_QUOTE_H
#define KVC_QUOTE_H

#include <stdio.h>

void kvc_quote_json(FILE *out, const char *text);
void kvc_quote_label(FILE *out, const char *text);

#endif
