/* SPDX-License-Identifier: Apache-2.0 */
/* The name that is nearest to a mistyped word. See near.h. */
#include "near.h"

#include "util.h"

#include <ctype.h>
#include <string.h>

#define LETTERS 32 /* longer words and names are not compared */

static int letter(char c)
{
	return c == '_' ? '-' : tolower((unsigned char)c);
}

/* The number of single changes between two words, where an exchange of neighbours is one change. */
static size_t distance(const char *a, size_t na, const char *b, size_t nb)
{
	size_t d[LETTERS + 1][LETTERS + 1];

	for (size_t i = 0; i <= na; i++)
		for (size_t j = 0; j <= nb; j++) {
			if (!i || !j) {
				d[i][j] = i + j;
				continue;
			}
			d[i][j] = d[i - 1][j - 1] + (letter(a[i - 1]) != letter(b[j - 1]));
			d[i][j] = kvc_min(d[i][j], kvc_min(d[i - 1][j], d[i][j - 1]) + 1);
			if (i > 1 && j > 1 && letter(a[i - 1]) == letter(b[j - 2]) &&
			    letter(a[i - 2]) == letter(b[j - 1]))
				d[i][j] = kvc_min(d[i][j], d[i - 2][j - 2] + 1);
		}
	return d[na][nb];
}

static bool begins(const char *name, const char *word, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (letter(name[i]) != letter(word[i]))
			return false;
	return true;
}

void kvc_near_try(struct kvc_near *n, const char *name)
{
	size_t typed = strlen(n->word), len = strlen(name), d;

	if (!typed || typed > LETTERS || len > LETTERS || len < 2)
		return;
	d = distance(n->word, typed, name, len);
	if (typed >= 3 && len > typed && begins(name, n->word, typed))
		d = 1;
	if (d > kvc_max(1, len / 3) || d >= kvc_min(typed, len) || (n->best && d >= n->distance))
		return;
	n->best = name;
	n->distance = d;
}

const char *kvc_near_text(const struct kvc_near *n, char text[96])
{
	*text = 0;
	if (n->best)
		snprintf(text, 96, " (did you mean '%.8s%.64s'?)", n->prefix ?: "", n->best);
	return text;
}
