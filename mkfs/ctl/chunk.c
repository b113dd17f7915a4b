/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl ls and stat: the state of files and chunks, from the attributes user.kvcachefs.*
 * (table `attrs`; kvcachefs(8) describes them). Listing does not load objects and does not count as
 * an access.
 */
#include "ctl.h"

#include "json.h"
#include "quote.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define VALUE 1100 /* maximum length of an attribute's value, plus the final zero */

enum form { TEXT, LIST, NUMBER, SIZE, SECONDS, PIN };

static const struct {
	const char *name;
	enum form form;
} attrs[] = {
	{ "tiers", LIST },    { "state", TEXT },  { "hits", NUMBER },    { "pin", PIN },
	{ "ttl", SECONDS },   { "parent", TEXT }, { "parent_by", TEXT }, { "checksum", TEXT },
	{ "quota", SIZE },    { "used", SIZE },   { "policy", TEXT },    { "codec", TEXT },
	{ "layers", NUMBER }, { "shared", TEXT }, { "unit", TEXT },      { "unit_now", TEXT },
	{ "survey", TEXT },
};
#define ATTRS (sizeof attrs / sizeof attrs[0])

struct item {
	const char *is; /* file, chunk (a folder that is one chunk), model, folder or other */
	uint64_t bytes, files;
	/* last open for reading of any of its files, in seconds since 1970; 0: none */
	int64_t used;
};

/*
 * Returns 1 with the value. Returns 0 if the attribute does not exist, is not permitted, or its
 * file is being removed. Otherwise returns a negative errno, which is also stored in *failed (may
 * be NULL).
 */
static int attr_of(const char *path, const char *name, char value[VALUE], int *failed)
{
	static const int none[] = { ENODATA, ENOTSUP, EACCES, EPERM, ENOENT, ESTALE, EINVAL };
	char whole[64];
	ssize_t n;

	snprintf(whole, sizeof whole, "user.kvcachefs.%s", name);
	n = lgetxattr(path, whole, value, VALUE - 1);
	value[n > 0 ? n : 0] = 0;
	for (size_t i = 0; i < sizeof none / sizeof *none && n < 0; i++)
		if (errno == none[i])
			return 0;
	if (n >= 0)
		return 1;
	if (failed)
		*failed = -errno;
	return -errno;
}

static void add_file(struct item *it, const struct stat *st)
{
	it->files++;
	it->bytes += (uint64_t)st->st_size;
	if (st->st_atime > it->used)
		it->used = st->st_atime;
}

/* Adds up the files of a chunk's folder. Files that are removed in between are skipped. */
static int add_files(struct item *it, const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;
	struct stat st;
	int err = 0;

	if (!d)
		return -errno;
	while (!err && (errno = 0, e = readdir(d)))
		if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
			err = errno == ENOENT ? 0 : -errno;
		else if (S_ISREG(st.st_mode))
			add_file(it, &st);
	err = err ?: -errno;
	closedir(d);
	return err;
}

static int examine(const char *path, const struct stat *root, struct item *it)
{
	char value[VALUE], up[KVM_PATH + 8];
	struct stat st;
	int chunk;

	*it = (struct item){ .is = "other" };
	if (lstat(path, &st))
		return -errno;
	if (S_ISREG(st.st_mode)) {
		it->is = "file";
		add_file(it, &st);
		return 0;
	}
	if (!S_ISDIR(st.st_mode))
		return 0;
	chunk = attr_of(path, "tiers", value, NULL);
	if (chunk < 0)
		return chunk;
	if (chunk) {
		it->is = "chunk";
		return add_files(it, path);
	}
	it->is = "folder";
	if (st.st_ino == root->st_ino)
		return 0;
	snprintf(up, sizeof up, "%s/..", path);
	if (stat(up, &st))
		return -errno;
	if (st.st_ino == root->st_ino)
		it->is = "model";
	return 0;
}

static bool has_files(const struct item *it)
{
	return !strcmp(it->is, "file") || !strcmp(it->is, "chunk");
}

static void print_attr_json(struct kvm_json *j, enum form form, const char *name, char *value)
{
	char *save = NULL;

	if (form == TEXT) {
		kvm_json_text(j, name, value);
	} else if (form == LIST) {
		kvm_json_begin(j, name, '[');
		for (char *w = strtok_r(value, ",", &save); w; w = strtok_r(NULL, ",", &save))
			kvm_json_text(j, NULL, w);
		kvm_json_end(j, ']');
	} else {
		kvm_json_number(j, name, strtoull(value, NULL, 10));
	}
}

/* Returns 0, or the negative errno of an attribute that could not be read. */
static int print_chunk_json(struct kvm_json *j, const char *key, const char *name, const char *path,
			    const struct item *it)
{
	char value[VALUE];
	int failed = 0;

	kvm_json_begin(j, NULL, '{');
	kvm_json_text(j, key, name);
	kvm_json_text(j, "is", it->is);
	if (has_files(it)) {
		kvm_json_number(j, "bytes", it->bytes);
		kvm_json_number(j, "files", it->files);
		kvm_json_number(j, "last_use", (uint64_t)(it->used > 0 ? it->used : 0));
	}
	for (size_t i = 0; i < ATTRS; i++)
		if (attr_of(path, attrs[i].name, value, &failed) > 0)
			print_attr_json(j, attrs[i].form, attrs[i].name, value);
	kvm_json_end(j, '}');
	return failed;
}

static const char *text_of(enum form form, const char *value, char buf[VALUE])
{
	uint64_t v = strtoull(value, NULL, 10);

	if (form == SIZE)
		return kvc_size_text(v, buf);
	if (form == PIN && v == 1)
		return "for ever";
	if (form == SECONDS || form == PIN)
		return v ? kvm_time_text(v, buf) : "no";
	snprintf(buf, VALUE, "%s", value);
	return *buf ? buf : "-";
}

static const char *used_text(const struct item *it, char buf[32])
{
	int64_t now = (int64_t)(kvc_now_ns() / 1000000000);

	return kvm_time_text(now > it->used ? (uint64_t)(now - it->used) : 0, buf);
}

static int print_stat(const char *name, const char *path, const struct item *it)
{
	char value[VALUE], buf[VALUE], when[32];
	int failed = 0;

	kvc_quote_line(stdout, name);
	printf("\n  %-9s %s\n", "is", it->is);
	if (has_files(it))
		printf("  %-9s %s in %" PRIu64 " file%s\n  %-9s %s ago\n", "size",
		       kvc_size_text(it->bytes, buf), it->files, it->files == 1 ? "" : "s",
		       "last use", used_text(it, when));
	for (size_t i = 0; i < ATTRS; i++)
		if (attr_of(path, attrs[i].name, value, &failed) > 0)
			printf("  %-9s %s\n", attrs[i].name, text_of(attrs[i].form, value, buf));
	return failed;
}

int kvm_run_stat(int argc, char **argv)
{
	bool json = false;
	const struct kvm_option options[] = { { "json", &json, NULL }, { 0 } };
	struct kvm_json j = { stdout, false };
	int failed = kvm_options(&argc, argv, options);

	if (failed)
		return failed;
	if (json) {
		kvm_json_begin(&j, NULL, '{');
		kvm_json_begin(&j, "entries", '[');
	}
	for (int i = 0; i < argc; i++) {
		char mnt[KVM_PATH], path[PATH_MAX];
		struct stat root;
		struct item it;
		int err;

		if (kvm_mount_of(argv[i], mnt)) {
			failed = 1;
			continue;
		}
		err = !realpath(argv[i], path) || stat(mnt, &root) ? -errno
								   : examine(path, &root, &it);
		if (!err)
			err = json ? print_chunk_json(&j, "path", argv[i], path, &it)
				   : print_stat(argv[i], path, &it);
		if (err)
			failed = kvm_fail("%s: %s", argv[i], kvc_why(-err));
	}
	if (json) {
		kvm_json_end(&j, ']');
		kvm_json_end(&j, '}');
		putchar('\n');
	}
	return failed;
}

struct listing {
	bool recursive, json;
	struct kvm_json j;
	struct stat root;
	int failed;
};

/* Returns 0, or the negative errno of an attribute that could not be read. */
static int print_chunk(const char *name, const char *path, const struct item *it)
{
	char value[VALUE], buf[VALUE], size[32], when[32];
	int failed = 0;

	printf("%10s %6" PRIu64 " %-14s", has_files(it) ? kvc_size_text(it->bytes, size) : "-",
	       it->files, attr_of(path, "tiers", value, &failed) > 0 && *value ? value : "-");
	printf(" %-14s", attr_of(path, "state", value, &failed) > 0 ? value : it->is);
	printf(" %6s", attr_of(path, "hits", value, &failed) > 0 ? value : "-");
	printf(" %-8s", attr_of(path, "pin", value, &failed) > 0 ? text_of(PIN, value, buf) : "-");
	printf(" %-6s",
	       attr_of(path, "ttl", value, &failed) > 0 ? text_of(SECONDS, value, buf) : "-");
	printf(" %-7s ", has_files(it) ? used_text(it, when) : "-");
	kvc_quote_line(stdout, name);
	puts(strcmp(it->is, "file") && strcmp(it->is, "other") ? "/" : "");
	return failed;
}

static int list_one(struct listing *l, const char *name, const char *path, const struct item *it)
{
	int err = l->json ? print_chunk_json(&l->j, "name", name, path, it)
			  : print_chunk(name, path, it);

	return err ? kvm_fail("%s: %s", path, kvc_why(-err)) : 0;
}

static int list_folder(struct listing *l, const char *path, size_t base);

/* Lists an entry. Entries that are removed in between are skipped. */
static int list_entry(struct listing *l, const char *path, size_t base)
{
	struct item it;
	int err = examine(path, &l->root, &it);

	if (err)
		return err == -ENOENT ? 0 : kvm_fail("%s: %s", path, kvc_why(-err));
	if (!l->recursive || has_files(&it) || !strcmp(it.is, "other"))
		return list_one(l, path + base, path, &it);
	return list_folder(l, path, base);
}

/* offset in a path at which the listed name begins */
static int list_folder(struct listing *l, const char *path, size_t base)
{
	struct dirent **e = NULL;
	int n = scandir(path, &e, NULL, alphasort), failed = 0;

	if (n < 0)
		return errno == ENOENT ? 0 : kvm_fail("%s: %s", path, kvc_why(errno));
	for (int i = 0; i < n; i++) {
		/* on the heap: a deep tree would need too much stack */
		KVC_MEM char *below = NULL;

		if (strcmp(e[i]->d_name, ".") != 0 && strcmp(e[i]->d_name, "..") != 0)
			failed |= asprintf(&below, "%s/%s", path, e[i]->d_name) < 0
					  ? kvm_fail("out of memory")
					  : list_entry(l, below, base);
		free(e[i]);
	}
	free(e);
	return failed;
}

int kvm_run_ls(int argc, char **argv)
{
	struct listing l = { .j = { stdout, false } };
	const struct kvm_option options[] = { { "json", &l.json, NULL },
					      { "recursive", &l.recursive, NULL },
					      { 0 } };
	char mnt[KVM_PATH], path[PATH_MAX];
	struct item it;
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	if (kvm_mount_of(argc ? argv[0] : NULL, mnt))
		return 1;
	if (!realpath(argc ? argv[0] : mnt, path) || stat(mnt, &l.root) ||
	    (err = examine(path, &l.root, &it)))
		return kvm_fail("%s: %s", argc ? argv[0] : mnt, kvc_why(err ? -err : errno));
	if (l.json) {
		kvm_json_begin(&l.j, NULL, '{');
		kvm_json_text(&l.j, "path", path);
		kvm_json_begin(&l.j, "entries", '[');
	} else {
		printf("%10s %6s %-14s %-14s %6s %-8s %-6s %-7s %s\n", "SIZE", "FILES", "TIERS",
		       "STATE", "HITS", "PIN", "TTL", "USED", "NAME");
	}
	if (!strcmp(it.is, "file") || !strcmp(it.is, "other"))
		l.failed = list_one(&l, basename(path), path, &it);
	else
		l.failed = list_folder(&l, path, strlen(path) + (strcmp(path, "/") != 0));
	if (l.json) {
		kvm_json_end(&l.j, ']');
		kvm_json_end(&l.j, '}');
		putchar('\n');
	}
	return l.failed;
}
