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
	char end[64] = "; see kvcachectl --help";
	va_list ap;

	if (kvm_command)
		snprintf(end, sizeof end, "; see kvcachectl %s --help", kvm_command->name);
	va_start(ap, format);
	kvm_say(format, ap, end);
	va_end(ap);
	return 2;
}

/* Returns the row of an option, or NULL. name: the n characters after the dashes. */
static const struct kvm_option *option_of(const char *name, size_t n, const struct kvm_option *o)
{
	for (; o->name; o++)
		if (strlen(o->name) == n && !strncmp(o->name, name, n))
			return o;
	return NULL;
}

/* word: the option with its dashes */
static int refuse_option(const char *word, const struct kvm_option *o)
{
	char name[64], text[96];
	struct kvc_near near = { .word = name, .prefix = "--" };

	snprintf(name, sizeof name, "%.*s", word[1] == '-' ? (int)strcspn(word + 2, "=") : 0,
		 word + 2);
	for (; o->name; o++)
		if (o->name[1])
			kvc_near_try(&near, o->name);
	return kvm_misused("%s does not have the option %.*s%s", kvm_command->name,
			   (int)strcspn(word, "="), word, kvc_near_text(&near, text));
}

/*
 * Sets an option. value: the value in the option's own word, or NULL; the value is then *next, and
 * next is advanced. Returns 0, or 2 after a message.
 */
static int apply_option(const struct kvm_option *o, const char *name, const char *value,
			char ***next, char *const *end)
{
	if (o->flag && value)
		return kvm_misused("%s does not take a value", name);
	if (o->flag)
		*o->flag = true;
	else if (value)
		*o->value = value;
	else if (*next < end)
		*o->value = *(*next)++;
	else
		return kvm_misused("%s needs a value", name);
	return 0;
}

/* Sets "--NAME" or "--NAME=VALUE". */
static int set_long(const char *word, const struct kvm_option *options, char ***next,
		    char *const *end)
{
	size_t n = strcspn(word + 2, "=");
	const struct kvm_option *o = n > 1 ? option_of(word + 2, n, options) : NULL;
	char name[64];

	if (!o)
		return refuse_option(word, options);
	snprintf(name, sizeof name, "--%s", o->name);
	return apply_option(o, name, word[2 + n] ? word + 3 + n : NULL, next, end);
}

/* Sets "-N", "-NVALUE", or several letters such as "-lr", of which the last may have a value. */
static int set_letters(const char *word, const struct kvm_option *options, char ***next,
		       char *const *end)
{
	for (const char *at = word + 1; *at; at++) {
		const char name[3] = { '-', *at, 0 };
		const struct kvm_option *o = option_of(at, 1, options);
		const char *value = o && !o->flag && at[1] ? at + 1 : NULL;

		if (!o)
			return refuse_option(name, options);
		if (apply_option(o, name, value, next, end))
			return 2;
		if (!o->flag)
			return 0;
	}
	return 0;
}

int kvm_options(int *argc, char **argv, const struct kvm_option *options)
{
	char **at = argv, **end = argv + *argc;
	int left = 0;

	while (at < end && strcmp(*at, "--") != 0) {
		char *word = *at++;

		if (*word != '-' || !word[1])
			argv[left++] = word;
		else if (word[1] == '-' ? set_long(word, options, &at, end)
					: set_letters(word, options, &at, end))
			return 2;
	}
	while (at < end && ++at < end) /* the arguments after "--" */
		argv[left++] = *at;
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

	while (i < UNITS - 1 && seconds < 2 * units[i].s && seconds != units[i].s)
		i++;
	snprintf(buf, 32, "%" PRIu64 " %c", seconds / units[i].s, units[i].name);
	return buf;
}

const char *kvm_time_exact(uint64_t seconds, char *buf)
{
	size_t i = 0;

	while (seconds % units[i].s)
		i++;
	snprintf(buf, 32, "%" PRIu64 " %c", seconds / units[i].s, units[i].name);
	return buf;
}
