/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mount options: refused options change nothing and give one line; accepted ones are printed so
 * that they can be given again.
 *
 * Input: the text.
 * Longest input: 2048
 * Covers: engine/base/options.c, engine/base/util.c
 */
#include "fuzz.h"
#include "options.h"

#include <ctype.h>

/* Checks each printed line. An empty number means that the option is not set, and stays so. */
static void again(const struct kvc_options *o)
{
	struct kvc_options b;
	char *text = NULL, *save = NULL, error[256];
	size_t len;
	FILE *f = open_memstream(&text, &len);

	fuzz_must(f);
	kvc_options_print(o, f);
	fuzz_must(!fclose(f));
	kvc_options_init(&b);
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		const char *value = strchr(line, '=');

		fuzz_must(value);
		if (!strncmp(line, "generic=", 8))
			memcpy(b.generic, o->generic, sizeof b.generic), b.atime = o->atime;
		else
			fuzz_must(!kvc_options_parse(&b, line, error) || !value[1]);
	}
	free(text);
	fuzz_must(!memcmp(o, &b, sizeof b));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kvc_options o, before;
	struct fuzz_in in = { data, size };
	char *text = fuzz_text(&in, 0), error[256] = "";
	const char *port;
	int err;

	kvc_options_init(&o);
	before = o;
	err = kvc_options_parse(&o, text, error);
	fuzz_must(!err || err == -EINVAL);
	if (err) {
		fuzz_must(!memcmp(&o, &before, sizeof o) && *error && memchr(error, 0, 256));
	} else {
		fuzz_must(o.cpu_bytes >= 16 << 20 && o.high_pct <= 100 && o.level <= 19);
		if (!kvc_options_check(&o, error)) {
			fuzz_must(o.low_pct < o.high_pct);
			port = strrchr(o.metrics, ':');
			fuzz_must(!port || isdigit((unsigned char)port[1]));
		}
		/* secrets in a URL are not printed, and a newline splits a line */
		if (!strchr(o.remote, '@') && !strchr(text, '\n'))
			again(&o);
	}
	free(text);
	return 0;
}
