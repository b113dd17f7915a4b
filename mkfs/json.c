/* SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON to a stream. See json.h. */
#include "json.h"

#include <inttypes.h>
#include <string.h>

/* Returns the length of the valid UTF-8 character of at least two bytes at s, or 0. */
static unsigned utf8(const unsigned char *s)
{
	unsigned n = *s < 0xc2 ? 0 : *s < 0xe0 ? 2 : *s < 0xf0 ? 3 : *s < 0xf5 ? 4 : 0;

	for (unsigned i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((*s == 0xe0 && s[1] < 0xa0) || (*s == 0xed && s[1] > 0x9f) ||
	    (*s == 0xf0 && s[1] < 0x90) || (*s == 0xf4 && s[1] > 0x8f))
		return 0; /* overlong, a surrogate, or above U+10FFFF */
	return n;
}

static void put_text(FILE *out, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;

	putc('"', out);
	while (*s) {
		unsigned n = utf8(s);

		if (n)
			fwrite(s, 1, n, out);
		else if (*s == '"' || *s == '\\')
			fprintf(out, "\\%c", *s);
		else if (*s < ' ')
			fprintf(out, "\\u%04x", *s);
		else if (*s < 0x80)
			putc(*s, out);
		else
			fprintf(out, "\\udc%02x", *s);
		s += n ? n : 1;
	}
	putc('"', out);
}

static void put_name(struct kvm_json *j, const char *name)
{
	if (j->more)
		fputs(", ", j->out);
	j->more = true;
	if (name) {
		put_text(j->out, name);
		fputs(": ", j->out);
	}
}

void kvm_json_begin(struct kvm_json *j, const char *name, char what)
{
	put_name(j, name);
	putc(what, j->out);
	j->more = false;
}

void kvm_json_end(struct kvm_json *j, char what)
{
	putc(what, j->out);
	j->more = true;
}

void kvm_json_text(struct kvm_json *j, const char *name, const char *text)
{
	put_name(j, name);
	if (text)
		put_text(j->out, text);
	else
		fputs("null", j->out);
}

void kvm_json_number(struct kvm_json *j, const char *name, uint64_t v)
{
	put_name(j, name);
	fprintf(j->out, "%" PRIu64, v);
}

void kvm_json_share(struct kvm_json *j, const char *name, double v)
{
	put_name(j, name);
	fprintf(j->out, "%.6f", v);
}

void kvm_json_bool(struct kvm_json *j, const char *name, bool v)
{
	put_name(j, name);
	fputs(v ? "true" : "false", j->out);
}
