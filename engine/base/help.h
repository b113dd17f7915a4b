/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a --help, in lines of at most 100 columns. */
#ifndef KVC_HELP_H
#define KVC_HELP_H

#include <stdio.h>

/*
 * Prints a row: two spaces, the left part, and the text from the given column on. If the left part
 * is too long for that, the text begins on the next line. Breaks lines at spaces that are not in
 * [brackets].
 */
void kvc_help_row(FILE *out, const char *left, unsigned column, const char *text);

#endif
