/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a --help (help.h). */
#include "help.h"

#include <stdbool.h>
#include <string.h>

#define WIDTH 100 /* columns of a line */

/* Prints words from a column on, in lines of at most WIDTH columns that are indented. */
static void put_words(FILE *out, const char *text, unsigned column, unsigned indent)
{
	unsigned len, depth;
	bool begins = true;

	for (; *text; text += len + (text[len] == ' ')) {
		for (len = depth = 0; text[len] && (depth || text[len] != ' '); len++)
			depth += (text[len] == '[') - (text[len] == ']');
		if (!begins && column + 1 + len > WIDTH) {
			fprintf(out, "\n%*s", (int)indent, "");
			column = indent;
			begins = true;
		}
		fprintf(out, "%s%.*s", begins ? "" : " ", (int)len, text);
		column += !begins + len;
		begins = false;
	}
}

void kvc_help_row(FILE *out, const char *left, unsigned column, const char *text)
{
	size_t end = 2 + strlen(left);

	fputs("  ", out);
	put_words(out, left, 2, 6);
	if (end < column)
		fprintf(out, "%*s", (int)(column - end), "");
	else
		fprintf(out, "\n%*s", (int)column, "");
	put_words(out, text, column, column);
	fputc('\n', out);
}
