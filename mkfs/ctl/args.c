/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of kvcachectl's commands, the confirmation prompt, and times. See ctl.h. */
#include "ctl.h"

#include "near.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const struct kvm_command *kvm_command;

int kvm_misused(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	kvm_say(format, ap, "; see kvcachectl --help");
	va_end(ap);
	return 2;
}

/* Returns the row for "--NAME", "--NAME=VALUE", "-N" or "-NVALUE", or NULL. */
static const struct kvm_option *option_of(const char *word, const struct kvm_option *o)
{
	size_t n = word[1] == '-' ? strcspn(word + 2, "=") : 0;

	for (; o->name; o++)
		if (n > 1 ? strlen(o->name) == n && !strncmp(o->name, word + 2, n)
			  : !n && o->name[0] == word[1] && !o->name[1])
			return o;
	return NULL;
}

static int refuse_option(const char *word, const struct kvm_option *o)
{
	char name[64], text[96];
	struct kvc_near near = { .word = name, .prefix = "--" };

	snprintf(name, sizeof name, "%.*s", word[1] == '-' ? (int)strcspn(word + 2, "=") : 0,
		 word + 2);
	for (; o->name; o++)
		if (o->name[1])
			kvc_near_try(&near, o->name);
	return kvm_misused("%s does not have the option %s%s", kvm_command->name, word,
			   kvc_near_text(&near, text));
}

/* Returns the value in the option's own word, or NULL. */
static const char *value_in(const char *word)
{
	const char *equals = strchr(word, '=');

	if (word[1] != '-')
		return word[2] ? word + 2 : NULL;
	return equals ? equals + 1 : NULL;
}

int kvm_options(int *argc, char **argv, const struct kvm_option *options)
{
	int left = 0, n = *argc, i;

	for (i = 0; i < n && strcmp(argv[i], "--") != 0; i++) {
		const char *word = argv[i], *value;
		const struct kvm_option *o;

		if (*word != '-' || !word[1]) {
			argv[left++] = argv[i];
			continue;
		}
		o = option_of(word, options);
		if (!o)
			return refuse_option(word, options);
		value = value_in(word);
		if (o->flag && value)
			return kvm_misused("%s does not take a value", word);
		if (o->flag)
			*o->flag = true;
		else if (value)
			*o->value = value;
		else if (i + 1 < n)
			*o->value = argv[++i];
		else
			return kvm_misused("%s needs a value", word);
	}
	for (i++; i < n; i++)
		argv[left++] = argv[i];
	*argc = left;
	if (left < kvm_command->min)
		return kvm_misused("too few arguments; usage: kvcachectl %s %s", kvm_command->name,
				   kvm_command->args);
	if (left > kvm_command->max)
		return kvm_misused("unexpected argument %s; usage: kvcachectl %s %s",
				   argv[kvm_command->max], kvm_command->name, kvm_command->args);
	return 0;
}

int kvm_plain(int *argc, char **argv)
{
	static const struct kvm_option none[] = { { NULL, NULL, NULL } };

	return kvm_options(argc, argv, none);
}

int kvm_confirm(bool yes)
{
	char answer[16];

	if (yes)
		return 0;
	if (!isatty(STDIN_FILENO))
		return kvm_fail(
			"nothing is changed: stdin is not a terminal; give --yes to confirm");
	fprintf(stderr, "Continue? [y/N] ");
	if (fgets(answer, sizeof answer, stdin) &&
	    (!strcasecmp(answer, "y\n") || !strcasecmp(answer, "yes\n")))
		return 0;
	return kvm_fail("nothing is changed");
}

int kvm_size_arg(const char *name, const char *text, uint64_t least, const char *give,
		 uint64_t *bytes)
{
	char why[192];

	if (kvc_size_parse(text, bytes))
		return kvm_misused("%s: %s", name, kvc_size_why(text, why));
	return *bytes < least ? kvm_misused("%s %s: give %s", name, text, give) : 0;
}

int kvm_time_arg(const char *name, const char *text, uint64_t most, const char *give,
		 uint64_t *seconds)
{
	char why[192];

	if (kvc_time_parse(text, 1000, seconds))
		return kvm_misused("%s: %s", name, kvc_time_why(text, 1000, why));
	return !*seconds || *seconds > most ? kvm_misused("%s %s: give %s", name, text, give) : 0;
}

int kvm_time_parse(const char *text, uint64_t *seconds)
{
	return kvc_time_parse(text, 1000, seconds);
}

static const struct {
	char name;
	uint64_t s;
} units[] = {
	{ 'w', 604800 }, { 'd', 86400 }, { 'h', 3600 }, { 'm', 60 }, { 's', 1 },
};
#define UNITS (sizeof units / sizeof units[0])

const char *kvm_time_text(uint64_t seconds, char *buf)
{
	size_t i = 0;

	while (i < UNITS - 1 && seconds < 2 * units[i].s)
		i++;
	snprintf(buf, 32, "%" PRIu64 " %c", seconds / units[i].s, units[i].name);
	return buf;
}
