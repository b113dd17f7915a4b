/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl prefetch and lease: write lists of paths to .kvcachefs/lease. */
#include "ctl.h"

#include "json.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Prints a path from the command line, made relative to the root of its mount. */
static int print_below(FILE *out, const char *mnt, const char *path)
{
	KVC_MEM char *whole = realpath(path, NULL);
	size_t n = strlen(mnt);

	if (!whole)
		return kvm_fail("%s: %s", path, kvc_why(errno));
	if (strncmp(whole, mnt, n) != 0 || (whole[n] && whole[n] != '/'))
		return kvm_fail("%s is not in the mount %s", path, mnt);
	fprintf(out, "%s\n", whole[n] ? whole + n + 1 : "");
	return 0;
}

/*
 * Prints the lines of the list. The first path may name the mount that the other paths are relative
 * to.
 */
static int print_paths(FILE *out, char mnt[KVM_PATH], int n, char **paths)
{
	struct stat first, root;
	int err = kvm_mount_of(paths[0], mnt);

	if (err)
		return err;
	if (!stat(paths[0], &first) && !stat(mnt, &root) && first.st_ino == root.st_ino &&
	    first.st_dev == root.st_dev) {
		if (n == 1)
			return kvm_misused("%s is the root of the mount; add the paths to load, "
					   "relative to it",
					   paths[0]);
		for (int i = 1; i < n; i++)
			fprintf(out, "%s\n", paths[i]);
		return 0;
	}
	for (int i = 0; i < n && !err; i++)
		err = print_below(out, mnt, paths[i]);
	return err;
}

/*
 * Parses "PATH INODE SIZE STATE" from its end: the path may contain any character except a newline.
 */
static void json_line(struct kvm_json *j, char *line)
{
	static const char *const names[] = { "state", "bytes", "inode" };

	kvm_json_begin(j, NULL, '{');
	for (int i = 0; i < 3; i++) {
		char *word = strrchr(line, ' ');

		if (!word)
			break;
		*word++ = 0;
		if (i)
			kvm_json_number(j, names[i], strtoull(word, NULL, 10));
		else
			kvm_json_text(j, names[i], word);
	}
	kvm_json_text(j, "path", line);
	kvm_json_end(j, '}');
}

static void print_lease(char *text, bool json)
{
	struct kvm_json j = { stdout, false };
	char *save = NULL;

	if (!json) {
		fputs(text, stdout);
		return;
	}
	kvm_json_begin(&j, NULL, '{');
	kvm_json_begin(&j, "entries", '[');
	for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save))
		json_line(&j, l);
	kvm_json_end(&j, ']');
	kvm_json_end(&j, '}');
	putchar('\n');
}

int kvm_lease_ask(int fd, const char *command, const char *list, size_t len)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = write(fd, list + at, len - at);

		if (n < 0)
			return kvm_fail("%s: %s", command, kvc_why(errno));
		at += (size_t)n;
	}
	return 0;
}

int kvm_lease_read(int fd, const char *command, char **text)
{
	size_t n = 0, capacity = 0;
	ssize_t got;

	do {
		if (n + 65536 > capacity) {
			char *p = realloc(*text, capacity = 2 * capacity + 65537);

			if (!p)
				return kvm_fail("out of memory");
			*text = p;
		}
		got = read(fd, *text + n, 65536);
		n += got > 0 ? (size_t)got : 0;
	} while (got > 0);
	if (got < 0)
		return kvm_fail("%s: %s", command, kvc_why(errno));
	(*text)[n] = 0;
	return 0;
}

/* The error of a line "PATH INODE SIZE STATE", or 0. Only the names of errors begin with E. */
static int line_error(const char *line, size_t n)
{
	const char *state = memrchr(line, ' ', n);
	size_t len = state ? n - (size_t)(++state - line) : 0;

	if (!len || *state != 'E')
		return 0;
	for (int err = 1; err < 256; err++) {
		const char *name = strerrorname_np(err);

		if (name && strlen(name) == len && !strncmp(name, state, len))
			return err;
	}
	return EIO;
}

/* Returns 0 if the answer has a file. Otherwise returns 1 after a message that gives the reason. */
static int check_answer(const char *text, bool hold)
{
	const char *what = hold ? "lease: nothing is leased" : "prefetch: nothing is loaded";
	int first = 0, path = 0;

	for (const char *l = text; *l;) {
		size_t n = strcspn(l, "\n");
		int err = line_error(l, n);

		if (!err)
			return 0;
		if (!first) { /* the path precedes inode, size and state */
			first = err;
			path = (int)n;
			for (int i = 0; i < 3 && path; i++)
				while (path && l[--path] != ' ')
					;
		}
		l += n + (l[n] == '\n');
	}
	if (!first)
		return kvm_fail(
			"%s: the folders contain no files; folders below them are not searched",
			what);
	return kvm_fail("%s: %.*s: %s", what, path, text, kvc_why(first));
}

static int hold_lease(int fd, bool json)
{
	KVC_MEM char *text = NULL, *answer = NULL;

	if (kvm_lease_read(fd, "lease", &text))
		return 1;
	if (!(answer = strdup(text)))
		return kvm_fail("out of memory");
	print_lease(text, json);
	if (fflush(stdout))
		return kvm_fail("%s", kvc_why(errno));
	if (check_answer(answer, true))
		return 1;
	pause();
	return 0;
}

/*
 * prefetch requests the files without waiting. lease prints the answer and keeps the lease until a
 * signal.
 */
static int request_lease(char **paths, int n, bool hold, bool json)
{
	struct kvm_json j = { stdout, false };
	KVC_MEM char *list = NULL, *answer = NULL;
	size_t len = 0;
	char mnt[KVM_PATH];
	FILE *text = open_memstream(&list, &len);
	KVC_FD int fd = -1;
	int err;

	if (!text)
		return kvm_fail("out of memory");
	if (!hold)
		fputs("prefetch\n", text);
	err = print_paths(text, mnt, n, paths);
	if (fclose(text))
		return kvm_fail("out of memory");
	if (err)
		return err;
	fd = kvm_mount_open(mnt, "lease", O_RDWR);
	if (fd < 0 || kvm_lease_ask(fd, "lease", list, len))
		return 1;
	if (hold)
		return hold_lease(fd, json);
	if (kvm_lease_read(fd, "prefetch", &answer) || check_answer(answer, false))
		return 1;
	if (json) {
		kvm_json_begin(&j, NULL, '{');
		kvm_json_text(&j, "mount", mnt);
		kvm_json_number(&j, "paths", (uint64_t)n);
		kvm_json_end(&j, '}');
		putchar('\n');
	}
	return 0;
}

int kvm_run_prefetch(int argc, char **argv)
{
	bool json = false;
	const struct kvm_option options[] = { { "json", &json, NULL }, { 0 } };
	int err = kvm_options(&argc, argv, options);

	return err ?: request_lease(argv, argc, false, json);
}

int kvm_run_lease(int argc, char **argv)
{
	bool json = false;
	const struct kvm_option options[] = { { "json", &json, NULL }, { 0 } };
	int err = kvm_options(&argc, argv, options);

	return err ?: request_lease(argv, argc, true, json);
}
