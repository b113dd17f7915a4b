/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl reload: changes options of a mount in use. The options may come from the OPTIONS= line
 * of a file such as /etc/kvcachefs/NAME.conf, and can be saved there. The file has the syntax of
 * EnvironmentFile= in systemd.exec(5): NAME=VALUE, where the value may be in quotes.
 */
#include "ctl.h"

#include "atomic_file.h"
#include "json.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE 4000

/* Reads the whole file. The caller frees *text. Returns 0, or 1 after a message. */
static int read_conf(const char *path, char **text)
{
	FILE *f = fopen(path, "re");
	size_t capacity = 0;
	int err;

	*text = NULL;
	if (!f)
		return kvm_fail("%s: %s", path, kvc_why(errno));
	err = getdelim(text, &capacity, 0, f) < 0;
	if (err && !ferror(f)) { /* an empty file */
		free(*text);
		*text = strdup("");
		err = !*text;
	}
	err = err ? errno : 0;
	fclose(f);
	return err ? kvm_fail("%s: %s", path, kvc_why(err)) : 0;
}

/* Finds the last line NAME=VALUE. Returns the start of the line, or NULL. */
static const char *find_line(const char *text, const char *name)
{
	const char *found = NULL;
	size_t n = strlen(name);

	for (const char *at = text; at; at = strchr(at, '\n'), at = at ? at + 1 : NULL)
		if (!strncmp(at, name, n) && at[n] == '=')
			found = at;
	return found;
}

/* Copies the value of a line, without quotes. Returns false if it is too long. */
static bool copy_value(const char *line, char value[LINE])
{
	const char *from = strchr(line, '=') + 1, *end = from + strcspn(from, "\n");

	while (end > from && isspace((unsigned char)end[-1]))
		end--;
	if (end - from >= 2 && (*from == '"' || *from == '\'') && end[-1] == *from) {
		from++;
		end--;
	}
	if (end - from >= LINE)
		return false;
	snprintf(value, LINE, "%.*s", (int)(end - from), from);
	return true;
}

/* Copies the value of NAME= in the file. Returns 0, or 1 after a message. */
static int conf_value(const char *path, const char *text, const char *name, char value[LINE])
{
	const char *line = find_line(text, name);

	if (!line)
		return kvm_fail("%s: it has no line %s=", path, name);
	if (!copy_value(line, value))
		return kvm_fail("%s: the value of %s= is too long", path, name);
	return 0;
}

/* Does the list have an option of the same name as the option `word`? */
static bool has_option(const char *list, const char *word, size_t len)
{
	size_t name = strcspn(word, "=,");

	name = kvc_min(name, len);
	for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
		if (strcspn(at, "=,") == name && !strncmp(at, word, name))
			return true;
	return false;
}

/* Prints the old options that the new ones do not replace, and then the new ones. */
static void put_merged(FILE *f, const char *old, const char *new)
{
	const char *comma = "";

	fputs("OPTIONS=", f);
	for (const char *at = old; *at; at += strcspn(at, ","), at += *at == ',') {
		size_t len = strcspn(at, ",");

		if (!len || has_option(new, at, len))
			continue;
		fprintf(f, "%s%.*s", comma, (int)len, at);
		comma = ",";
	}
	fprintf(f, "%s%s\n", comma, new);
}

/*
 * Writes the file with the new options in its OPTIONS= line; kvm_atomic_file_close replaces it.
 * Returns 0, or 1 after a message; then nothing is open.
 */
static int save_begin(struct kvm_atomic_file *to, const char *path, const char *options)
{
	char old[LINE] = "";
	KVC_MEM char *text = NULL;
	const char *line, *rest = "";
	int err = read_conf(path, &text);

	if (err)
		return err;
	if ((line = find_line(text, "OPTIONS"))) {
		if (!copy_value(line, old))
			return kvm_fail("%s: the value of OPTIONS= is too long", path);
		rest = line + strcspn(line, "\n");
		rest += *rest == '\n';
	} else {
		line = text + strlen(text);
	}
	if ((err = kvm_atomic_file_open(to, path, 0644, false)))
		return kvm_fail("%s: %s", path, kvm_atomic_file_why(-err));
	fwrite(text, 1, (size_t)(line - text), to->f);
	if (line > text && line[-1] != '\n')
		putc('\n', to->f);
	put_merged(to->f, old, options);
	fputs(rest, to->f);
	return 0;
}

static int print_changed(const char *mnt, const char *changed)
{
	struct kvm_json j = { stdout, false };

	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "mount", mnt);
	kvm_json_text(&j, "changed", changed);
	kvm_json_end(&j, '}');
	putchar('\n');
	return 0;
}

int kvm_run_reload(int argc, char **argv)
{
	bool json = false;
	const char *text = NULL, *file = NULL, *save = NULL, *path;
	const struct kvm_option options[] = {
		{ "json", &json, NULL },
		{ "o", NULL, &text },
		{ "file", NULL, &file },
		{ "save", NULL, &save },
		{ 0 },
	};
	char mnt[KVM_PATH], words[LINE + 16] = "reload", answer[512], value[LINE], at[LINE];
	KVC_MEM char *conf = NULL;
	struct kvm_atomic_file to;
	int closed, err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	if ((file && !*file) || (save && !*save))
		return kvm_misused("reload: give the name of a file after --file and --save");
	if (text && file)
		return kvm_misused("reload: give -o OPTIONS or --file FILE, not both");
	if (save && !text)
		return kvm_misused("reload: --save %s needs -o OPTIONS", save);
	if (text && (!*text || strlen(text) >= LINE || strchr(text, '\n')))
		return kvm_misused("reload: give -o OPTIONS, such as -o high=95,low=85");
	path = argc ? argv[0] : NULL;
	if (file) {
		if (read_conf(file, &conf) || conf_value(file, conf, "OPTIONS", value) ||
		    (!path && conf_value(file, conf, "MOUNTPOINT", at)))
			return 1;
		text = value;
		path = path ?: at;
	}
	if (text)
		snprintf(words, sizeof words, "reload %s", text);
	if (kvm_mount_of(path, mnt) || (save && save_begin(&to, save, text)))
		return 1;
	err = kvm_control(mnt, words, answer, sizeof answer);
	closed = save ? kvm_atomic_file_close(&to, err ? -ECANCELED : 0) : 0;
	if (!err && closed)
		err = kvm_fail("%s: the options are in use, but not saved: %s", save,
			       kvm_atomic_file_why(-closed));
	answer[strcspn(answer, "\n")] = 0;
	return err || !json ? err : print_changed(mnt, text ?: answer);
}
