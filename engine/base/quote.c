/* SPDX-License-Identifier: Apache-2.0 */
/* Quoting of untrusted text (quote.h). */
#include "quote.h"

#include "util.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

/*
 * Returns the length of the UTF-8 character at s; 0 if it is not UTF-8 or is a control character.
 */
static size_t character(const unsigned char *s)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n = *s < 0x80 ? 1 : *s >> 5 == 6 ? 2 : *s >> 4 == 14 ? 3 : *s >> 3 == 30 ? 4 : 0;
	uint32_t c = n > 1 ? *s & (0x7fu >> n) : *s;

	for (size_t i = 1; i < n; i++) {
		if (s[i] >> 6 != 2)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	if ((c < ' ' && c != '\n') || (c >= 0x7f && c < 0xa0) || (c >= 0xd800 && c <= 0xdfff))
		return 0;
	return n && c >= least[n] && c <= 0x10ffff ? n : 0;
}

/* True if the text is printed unchanged. */
static bool plain(const char *text)
{
	const unsigned char *s = (const unsigned char *)text;
	size_t n = 1;

	if (!strncmp(text, REPLACEMENT, strlen(REPLACEMENT)))
		return false;
	while (*s && (n = character(s)))
		s += n;
	return n;
}

static void put(FILE *out, char c)
{
	if (c == '"' || c == '\\')
		fprintf(out, "\\%c", c);
	else if (c == '\n')
		fputs("\\n", out);
	else
		putc(c, out);
}

void kvc_quote(FILE *out, const char *text)
{
	bool is = plain(text);
	char hex[8];

	putc('"', out);
	if (!is)
		fputs(REPLACEMENT, out);
	for (; *text; text++) {
		snprintf(hex, sizeof hex, *text == '\\' ? "\\\\" : "\\x%02X", (unsigned char)*text);
		if (is || (*text >= ' ' && *text <= '~' && *text != '\\'))
			put(out, *text);
		else
			for (const char *h = hex; *h; h++)
				put(out, *h);
	}
	putc('"', out);
}

void kvc_quote_line(FILE *out, const char *text)
{
	while (*text) {
		size_t n = character((const unsigned char *)text);

		if (*text == '\n' || *text == '\\') {
			fputs(*text == '\n' ? "\\n" : "\\\\", out);
			n = 1;
		} else if (n) {
			fwrite(text, 1, n, out);
		} else {
			fprintf(out, "\\x%02X", (unsigned char)*text);
			n = 1;
		}
		text += n;
	}
}

void kvc_quote_one_line(char *text)
{
	while (*text) {
		size_t n = character((const unsigned char *)text);

		if (!n || *text == '\n')
			*text = '?';
		text += n ?: 1;
	}
}
