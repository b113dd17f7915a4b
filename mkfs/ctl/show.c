/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl stats and config print files of .kvcachefs, as they are or as JSON; log shows or
 * sets the level of the log.
 */
#include "ctl.h"

#include "json.h"
#include "log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int kvm_mount_text(const char *mnt, const char *name, char **text)
{
	int fd = kvm_mount_open(mnt, name, O_RDONLY);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	size_t capacity = 0;
	ssize_t n;

	if (!f) {
		if (fd >= 0)
			close(fd);
		return fd < 0 ? 1 : kvm_fail("out of memory");
	}
	*text = NULL;
	errno = 0;
	n = getdelim(text, &capacity, 0, f);
	if (n < 0 && !errno)
		*text = realloc(*text, 1); /* the file is empty */
	if (n < 0 && *text)
		**text = 0;
	n = errno ? -errno : 0;
	fclose(f);
	if (!n && *text)
		return 0;
	free(*text);
	*text = NULL;
	return kvm_fail("%s: %s", name, kvc_why(n ? (int)-n : ENOMEM));
}

struct pair {
	const char *name, *value;
	bool told;
};

/* Splits the text into lines of a name, the separator `between`, and a value. Modifies the text. */
static int pairs_of(char *text, char between, struct pair **all, size_t *n)
{
	size_t capacity = 0;
	char *save = NULL;

	*all = NULL;
	*n = 0;
	for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		char *value = strchr(l, between);

		if (!value)
			continue;
		*value++ = 0;
		if (kvc_grow(all, *n, &capacity, sizeof **all))
			return kvm_fail("out of memory");
		(*all)[(*n)++] = (struct pair){ l, value + strspn(value, " "), false };
	}
	return 0;
}

static void put_value(struct kvm_json *j, const char *name, const char *value, bool number)
{
	if (number)
		kvm_json_number(j, name, strtoull(value, NULL, 10));
	else
		kvm_json_text(j, name, value);
}

/* Prints the pairs as members of an object. A name that occurs more than once becomes an array. */
static void put_pairs(struct kvm_json *j, struct pair *v, size_t n, bool numbers)
{
	for (size_t i = 0; i < n; i++) {
		bool many = false;

		for (size_t o = i + 1; o < n && !v[i].told && !many; o++)
			many = !strcmp(v[i].name, v[o].name);
		if (v[i].told)
			continue;
		if (!many) {
			put_value(j, v[i].name, v[i].value, numbers);
			continue;
		}
		kvm_json_begin(j, v[i].name, '[');
		for (size_t o = i; o < n; o++)
			if (o == i || !strcmp(v[i].name, v[o].name)) {
				v[o].told = true;
				put_value(j, NULL, v[o].value, numbers);
			}
		kvm_json_end(j, ']');
	}
}

/* Prints a file of .kvcachefs to stdout. */
static int print_file(int argc, char **argv, const char *name, char between)
{
	bool json = false;
	const struct kvm_option options[] = { { "json", &json, NULL }, { 0 } };
	struct kvm_json j = { stdout, false };
	KVC_MEM char *text = NULL;
	KVC_MEM struct pair *all = NULL;
	char mnt[KVM_PATH];
	size_t n;
	int err = kvm_options(&argc, argv, options)
			  ?: kvm_mount_of(argc ? argv[0] : NULL, mnt)
				     ?: kvm_mount_text(mnt, name, &text);

	if (!err && !json)
		fputs(text, stdout);
	if (err || !json)
		return err;
	err = pairs_of(text, between, &all, &n);
	if (err)
		return err;
	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "mount", mnt);
	kvm_json_begin(&j, name, '{');
	put_pairs(&j, all, n, between == ' ');
	kvm_json_end(&j, '}');
	kvm_json_end(&j, '}');
	putchar('\n');
	return 0;
}

int kvm_run_stats(int argc, char **argv)
{
	return print_file(argc, argv, "stats", ' ');
}

int kvm_run_config(int argc, char **argv)
{
	return print_file(argc, argv, "config", '=');
}

/* Prints the answer of .kvcachefs/control, as it is or as JSON. */
static int print_answer(const char *mnt, bool json, const char *name, char *answer)
{
	struct kvm_json j = { stdout, false };

	answer[strcspn(answer, "\n")] = 0;
	if (!json) {
		if (*answer)
			puts(answer);
		return 0;
	}
	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "mount", mnt);
	kvm_json_text(&j, name, answer);
	kvm_json_end(&j, '}');
	putchar('\n');
	return 0;
}

static bool is_level(const char *word)
{
	for (int i = 0; kvc_log_level_names[i]; i++)
		if (!strcmp(kvc_log_level_names[i], word))
			return true;
	return false;
}

int kvm_run_log(int argc, char **argv)
{
	bool json = false;
	const struct kvm_option options[] = { { "json", &json, NULL }, { 0 } };
	char mnt[KVM_PATH], words[32], answer[512];
	int err = kvm_options(&argc, argv, options);
	bool set = !err && argc && is_level(argv[0]);

	if (err)
		return err;
	if (argc == 2 && !set)
		return kvm_misused("log %s: give error, warn, info or debug", argv[0]);
	snprintf(words, sizeof words, "log%s%s", set ? " " : "", set ? argv[0] : "");
	return kvm_mount_of(argc > set ? argv[set] : NULL, mnt)
		       ?: kvm_control(mnt, words, answer, sizeof answer)
				  ?: print_answer(mnt, json, "level", answer);
}
