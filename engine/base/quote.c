/* SPDX-License-Identifier: Apache-2.0 */
/* See quote.h. */
#include "quote.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

/* The length of the character that begins here; 0: it is not UTF-8. */
static size_t utf8(const unsigned char *s)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n = *s < 0x80 ? 1 : *s >> 5 == 6 ? 2 : *s >> 4 == 14 ? 3 : *s >> 3 == 30 ? 4 : 0;
	uint32_t c = n > 1 ? *s & (0x7fu >> n) : *s;

	for (size_t i = 1; i < n; i++) {
		if (s[i] >> 6 != 2)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	return n && c >= least[n] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff) ? n : 0;
}

/* Reads as itself, and as nothing else does. */
static bool plain(const char *text)
{
	const unsigned char *s = (const unsigned char *)text;
	size_t n = 1;

	if (!strncmp(text, REPLACEMENT, strlen(REPLACEMENT)))
		return false;
	while (*s && (n = utf8(s)))
		s += n;
	return n;
}

static void put(FILE *out, unsigned char c, bool json)
{
	if (c == '"' || c == '\\')
		fprintf(out, "\\%c", c);
	else if (c == '\n')
		fputs("\\n", out);
	else if (json && (c < ' ' || c == 127))
		fprintf(out, "\\u%04x", c);
	else
		putc(c, out);
}

static void quote(FILE *out, const char *text, bool json)
{
	bool is = plain(text);
	char hex[8];

	putc('"', out);
	if (!is)
		fputs(REPLACEMENT, out);
	for (const unsigned char *s = (const unsigned char *)text; *s; s++) {
		snprintf(hex, sizeof hex, *s == '\\' ? "\\\\" : "\\x%02X", *s);
		if (is || (*s < 0x80 && *s != '\\'))
			put(out, *s, json);
		else
			for (const char *h = hex; *h; h++)
				put(out, (unsigned char)*h, json);
	}
	putc('"', out);
}

void kvc_quote_json(FILE *out, const char *text)
{
	quote(out, text, true);
}

void kvc_quote_label(FILE *out, const char *text)
{
	quote(out, text, false);
}
