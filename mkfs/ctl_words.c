/* SPDX-License-Identifier: Apache-2.0 */
/* The words of a command of kvcachectl, what is asked before it is done, and times. See ctl.h. */
#include "ctl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int kvm_misused(const char *format, ...)
{
	va_list ap;

	fprintf(stderr, "%s: ", kvm_name);
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fprintf(stderr, "; see kvcachectl --help\n");
	return 2;
}

/* "NAME" or "NAME=VALUE" of one of them. */
static const struct kvm_option *option_of(const char *word, const struct kvm_option *o)
{
	size_t n = strcspn(word, "=");

	while (o->name && (strlen(o->name) != n || strncmp(o->name, word, n) != 0))
		o++;
	return o->name ? o : NULL;
}

int kvm_options(int *argc, char **argv, const struct kvm_option *options)
{
	int left = 0, n = *argc, i;

	for (i = 0; i < n && strcmp(argv[i], "--") != 0; i++) {
		const char *word = argv[i], *equals = strchr(word, '=');
		const struct kvm_option *o;

		if (*word != '-' || !word[1]) {
			argv[left++] = argv[i];
			continue;
		}
		o = word[1] == '-' ? option_of(word + 2, options) : NULL;
		if (!o)
			return kvm_misused("there is no option %s here", word);
		if (o->flag && equals)
			return kvm_misused("--%s takes no value", o->name);
		if (o->flag)
			*o->flag = true;
		else if (equals)
			*o->value = equals + 1;
		else if (i + 1 < n)
			*o->value = argv[++i];
		else
			return kvm_misused("--%s wants a value", o->name);
	}
	for (i++; i < n; i++)
		argv[left++] = argv[i];
	*argc = left;
	return 0;
}

int kvm_confirm(bool yes)
{
	char answer[16];

	if (yes)
		return 0;
	if (!isatty(STDIN_FILENO))
		return kvm_fail("nothing is done: nobody can be asked here, --yes agrees");
	fprintf(stderr, "Go on? [y/N] ");
	if (fgets(answer, sizeof answer, stdin) &&
	    (!strcasecmp(answer, "y\n") || !strcasecmp(answer, "yes\n")))
		return 0;
	return kvm_fail("nothing is done");
}

static const struct {
	char name;
	uint64_t s;
} units[] = {
	{ 'w', 604800 }, { 'd', 86400 }, { 'h', 3600 }, { 'm', 60 }, { 's', 1 },
};
#define UNITS (sizeof units / sizeof units[0])

int kvm_time_parse(const char *text, uint64_t *seconds)
{
	uint64_t v;
	char *end;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno)
		return -ERANGE;
	for (size_t i = 0; *end && i < UNITS; i++)
		if (*end == units[i].name && !end[1]) {
			if (__builtin_mul_overflow(v, units[i].s, &v))
				return -ERANGE;
			end++;
		}
	if (*end)
		return -EINVAL;
	*seconds = v;
	return 0;
}

const char *kvm_time_text(uint64_t seconds, char *buf)
{
	size_t i = 0;

	while (i < UNITS - 1 && seconds < 2 * units[i].s)
		i++;
	snprintf(buf, 32, "%" PRIu64 " %c", seconds / units[i].s, units[i].name);
	return buf;
}
