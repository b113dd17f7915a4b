/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl prefetch and lease: write lists of paths to .kvcachefs/lease. A folder is walked down
 * to its chunks. The memory is bounded: lists are written, and answers are read, in parts.
 */
#include "item.h"

#include "json.h"
#include "units.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

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

/* ---- the request ---- */

#define PATHS 512 /* chunks of one prefetch */
#define WAIT_MAX_S 60
#define LIST (64u << 10) /* bytes of a list that are written at once */

/* The paths of the command line become lists of chunks: a folder is walked down to its chunks. */
struct request {
	char mnt[KVM_PATH], list[LIST + PATH_MAX];
	size_t len, paths; /* of the list that is not written yet */
	bool hold, json;
	int fd; /* of a lease */
	struct kvm_json j;
	uint64_t chunks, files, bytes, failed; /* files and failed: lines of the answer */
	/* the first line with an error */
	int err;
	char failed_path[PATH_MAX];
};

/* Counts a line "PATH INODE SIZE STATE" of the answer, and prints it if a lease is held. */
static void answer_line(struct request *r, char *line)
{
	size_t n = strcspn(line, "\n"), path = n;
	int err;

	line[n] = 0;
	err = line_error(line, n);
	r->files += !err;
	r->failed += err != 0;
	if (err && !r->err) {
		r->err = err;
		for (int i = 0; i < 3 && path; i++)
			while (path && line[--path] != ' ')
				;
		snprintf(r->failed_path, sizeof r->failed_path, "%.*s", (int)path, line);
	}
	if (r->hold && r->json)
		json_line(&r->j, line);
	else if (r->hold)
		puts(line);
}

static int read_answer(struct request *r, int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	FILE *f = copy < 0 ? NULL : fdopen(copy, "r");
	KVC_MEM char *line = NULL;
	size_t capacity = 0;
	int err = 0;

	if (!f) {
		if (copy >= 0)
			close(copy);
		return kvm_fail("%s", kvc_why(errno));
	}
	errno = 0;
	do { /* a read that waits for files ends with EINTR every second */
		clearerr(f);
		while (getline(&line, &capacity, f) > 0)
			answer_line(r, line);
	} while (ferror(f) && errno == EINTR);
	if (ferror(f))
		err = kvm_fail("%s: %s", r->hold ? "lease" : "prefetch", kvc_why(errno));
	fclose(f);
	return err;
}

/* Writes the list. A prefetch is a request of its own for each list. */
static int send_list(struct request *r)
{
	KVC_FD int own = -1;
	int err, fd = r->fd;

	if (!r->len)
		return 0;
	if (!r->hold) {
		if ((own = fd = kvm_mount_open(r->mnt, "lease", O_RDWR)) < 0)
			return 1;
		if (kvm_lease_ask(fd, "prefetch", "prefetch\n", 9))
			return 1;
	}
	err = kvm_lease_ask(fd, r->hold ? "lease" : "prefetch", r->list, r->len);
	r->len = r->paths = 0;
	return err ?: r->hold ? 0 : read_answer(r, fd);
}

/* Adds a path, relative to the root of the mount, to the list. */
static int add_path(struct request *r, const char *below)
{
	r->len += (size_t)snprintf(r->list + r->len, PATH_MAX, "%s\n", below);
	return ++r->paths >= PATHS || r->len >= LIST ? send_list(r) : 0;
}

static int add_chunk(void *arg, const char *path, const struct kvm_item *it)
{
	struct request *r = arg;

	r->chunks++;
	r->bytes += it->bytes;
	return add_path(r, path + strlen(r->mnt) + 1);
}

/* path: absolute, in the mount. The daemon gives the error of a path that does not exist. */
static int add_whole(struct request *r, const char *path)
{
	struct stat st = { .st_mode = 0 };

	if (stat(path, &st) || !S_ISDIR(st.st_mode)) {
		r->chunks++;
		r->bytes += S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
		return add_path(r, path + strlen(r->mnt) + 1);
	}
	return kvm_item_each_chunk(path, add_chunk, r);
}

/* Adds a path of the command line. */
static int add_argument(struct request *r, const char *path)
{
	KVC_MEM char *whole = realpath(path, NULL);
	size_t n = strlen(r->mnt);

	if (!whole)
		return kvm_fail("%s: %s", path, kvc_why(errno));
	if (strncmp(whole, r->mnt, n) != 0 || (whole[n] && whole[n] != '/'))
		return kvm_fail("%s is not in the mount %s", path, r->mnt);
	return add_whole(r, whole);
}

/* Adds all paths. The first one may name the mount that the others are relative to. */
static int add_arguments(struct request *r, int n, char **paths)
{
	struct stat first, root;
	char path[PATH_MAX];
	int err = 0;

	if (!stat(paths[0], &first) && !stat(r->mnt, &root) && first.st_ino == root.st_ino &&
	    first.st_dev == root.st_dev) {
		if (n == 1)
			return kvm_misused("%s is the root of the mount; add the paths to load, "
					   "relative to it",
					   paths[0]);
		for (int i = 1; i < n && !err; i++) {
			if (snprintf(path, sizeof path, "%s/%s", r->mnt, paths[i]) >=
			    (int)sizeof path)
				return kvm_fail("%s: %s", paths[i], kvc_why(ENAMETOOLONG));
			err = add_whole(r, path);
		}
		return err;
	}
	for (int i = 0; i < n && !err; i++)
		err = add_argument(r, paths[i]);
	return err;
}

/* Returns 0 if the answers have a file. Otherwise returns 1 after a message that says why not. */
static int check_answers(const struct request *r)
{
	const char *what = r->hold ? "lease: nothing is leased" : "prefetch: nothing is loaded";
	char all[32];

	snprintf(all, sizeof all, "%" PRIu64, r->files + r->failed);
	if (r->files && r->failed)
		kvm_fail("%s: %" PRIu64 " of %s files failed; the first is %s: %s",
			 r->hold ? "lease" : "prefetch", r->failed, all, r->failed_path,
			 kvc_why(r->err));
	if (r->files)
		return 0;
	return r->err ? kvm_fail("%s: %s: %s", what, r->failed_path, kvc_why(r->err))
		      : kvm_fail("%s: the folders contain no files", what);
}

static void print_prefetched(struct request *r, int n)
{
	char size[32];

	if (!r->json) {
		printf("prefetching %" PRIu64 " chunk%s, %s\n", r->chunks,
		       r->chunks == 1 ? "" : "s", kvc_size_text(r->bytes, size));
		return;
	}
	kvm_json_begin(&r->j, NULL, '{');
	kvm_json_text(&r->j, "mount", r->mnt);
	kvm_json_number(&r->j, "paths", (uint64_t)n);
	kvm_json_number(&r->j, "chunks", r->chunks);
	kvm_json_number(&r->j, "bytes", r->bytes);
	kvm_json_number(&r->j, "files", r->files);
	kvm_json_number(&r->j, "failed", r->failed);
	kvm_json_end(&r->j, '}');
	putchar('\n');
}

/* Prints the answer, and keeps the lease until a signal. */
static int hold_lease(struct request *r)
{
	int err;

	if (r->json) {
		kvm_json_begin(&r->j, NULL, '{');
		kvm_json_begin(&r->j, "entries", '[');
	}
	err = r->chunks ? read_answer(r, r->fd) : 0;
	if (r->json) {
		kvm_json_end(&r->j, ']');
		kvm_json_end(&r->j, '}');
		putchar('\n');
	}
	if (err)
		return err;
	if (fflush(stdout))
		return kvm_fail("%s", kvc_why(errno));
	if (check_answers(r))
		return 1;
	pause();
	return 0;
}

/*
 * prefetch requests the files without waiting. lease prints the answer and keeps the lease until a
 * signal.
 */
static int request_lease(char **paths, int n, bool hold, bool json, uint64_t wait_s)
{
	KVC_MEM struct request *r = calloc(1, sizeof *r);
	char wait[32];
	KVC_FD int fd = -1;
	int err;

	if (!r)
		return kvm_fail("out of memory");
	r->hold = hold;
	r->json = json;
	r->fd = -1;
	r->j = (struct kvm_json){ stdout, false };
	if ((err = kvm_mount_of(paths[0], r->mnt)))
		return err;
	if (hold && (r->fd = fd = kvm_mount_open(r->mnt, "lease", O_RDWR)) < 0)
		return 1;
	if (wait_s) {
		snprintf(wait, sizeof wait, "wait %u\n", (unsigned)(wait_s * 1000));
		if (kvm_lease_ask(fd, "lease", wait, strlen(wait)))
			return 1;
	}
	if ((err = add_arguments(r, n, paths)) || (err = send_list(r)))
		return err;
	if (hold)
		return hold_lease(r);
	if (check_answers(r))
		return 1;
	print_prefetched(r, n);
	return 0;
}

int kvm_run_prefetch(int argc, char **argv)
{
	bool json = false;
	const struct kvm_option options[] = { { "json", &json, NULL }, { 0 } };
	int err = kvm_options(&argc, argv, options);

	return err ?: request_lease(argv, argc, false, json, 0);
}

int kvm_run_lease(int argc, char **argv)
{
	bool json = false;
	const char *wait = NULL;
	uint64_t wait_s = 0;
	const struct kvm_option options[] = {
		{ "json", &json, NULL },
		{ "wait", NULL, &wait },
		{ 0 },
	};
	int err = kvm_options(&argc, argv, options);

	if (!err && wait)
		err = kvm_time_arg("--wait", wait, WAIT_MAX_S, "a time from 1s to 60s", &wait_s);
	return err ?: request_lease(argv, argc, true, json, wait_s);
}
