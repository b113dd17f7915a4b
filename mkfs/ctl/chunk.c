/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl ls and stat: the state of files and chunks, from the attributes user.kvcachefs.*
 * (table `attrs`; kvcachefs-attributes(7) describes them). Listing does not load objects and does
 * not count as an access.
 */
#include "item.h"

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

enum form { TEXT, LIST, NUMBER, SIZE, SECONDS, PIN, NUMBERS };

static const struct {
	const char *name;
	enum form form;
} attrs[] = {
	{ "tiers", LIST },     { "state", TEXT },         { "hits", NUMBER },
	{ "pin", PIN },        { "ttl", SECONDS },        { "parent", TEXT },
	{ "parent_by", TEXT }, { "checksum", TEXT },      { "quota", SIZE },
	{ "used", SIZE },      { "policy", TEXT },        { "codec", TEXT },
	{ "layers", NUMBER },  { "shared", TEXT },        { "unit", TEXT },
	{ "unit_now", TEXT },  { "survey", TEXT },        { "files", NUMBER },
	{ "bytes", SIZE },     { "tier_bytes", NUMBERS }, { "evicted", NUMBERS },
	{ "layout", TEXT },    { "tenant", TEXT },        { "error", TEXT },
};
#define ATTRS (sizeof attrs / sizeof attrs[0])

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
	} else if (form == NUMBERS) { /* NAME=NUMBER,... */
		kvm_json_begin(j, name, '{');
		for (char *w = strtok_r(value, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
			char *is = strchr(w, '=');

			if (!is)
				continue;
			*is = 0;
			kvm_json_number(j, w, strtoull(is + 1, NULL, 10));
		}
		kvm_json_end(j, '}');
	} else {
		kvm_json_number(j, name, strtoull(value, NULL, 10));
	}
}

/* A chunk in the root has the attributes of a model, too, but shows those of the chunk. */
static bool is_shown(const struct kvm_item *it, const char *name)
{
	return !kvm_item_has_files(it) ||
	       (strcmp(name, "files") != 0 && strcmp(name, "bytes") != 0);
}

/* Returns 0, or the negative errno of an attribute that could not be read. */
static int print_chunk_json(struct kvm_json *j, const char *key, const char *name, const char *path,
			    const struct kvm_item *it)
{
	char value[KVM_VALUE];
	int failed = 0;

	kvm_json_begin(j, NULL, '{');
	kvm_json_text(j, key, name);
	kvm_json_text(j, "is", it->is);
	if (kvm_item_has_files(it)) {
		kvm_json_number(j, "bytes", it->bytes);
		kvm_json_number(j, "files", it->files);
		kvm_json_number(j, "last_use", (uint64_t)(it->used > 0 ? it->used : 0));
	}
	for (size_t i = 0; i < ATTRS; i++)
		if (is_shown(it, attrs[i].name) &&
		    kvm_item_attr(path, attrs[i].name, value, &failed) > 0)
			print_attr_json(j, attrs[i].form, attrs[i].name, value);
	kvm_json_end(j, '}');
	return failed;
}

static const char *text_of(enum form form, const char *value, char buf[KVM_VALUE])
{
	uint64_t v = strtoull(value, NULL, 10);

	if (form == SIZE)
		return kvc_size_text(v, buf);
	if (form == PIN && v == 1)
		return "for ever";
	if (form == SECONDS || form == PIN)
		return v ? kvm_time_text(v, buf) : "no";
	snprintf(buf, KVM_VALUE, "%s", value);
	return *buf ? buf : "-";
}

static const char *used_text(const struct kvm_item *it, char buf[32])
{
	int64_t now = (int64_t)(kvc_now_ns() / 1000000000);

	return kvm_time_text(now > it->used ? (uint64_t)(now - it->used) : 0, buf);
}

static int print_stat(const char *name, const char *path, const struct kvm_item *it)
{
	char value[KVM_VALUE], buf[KVM_VALUE], when[32];
	int failed = 0;

	kvc_quote_line(stdout, name);
	printf("\n  %-10s %s\n", "is", it->is);
	if (kvm_item_has_files(it))
		printf("  %-10s %s in %" PRIu64 " file%s\n  %-10s %s ago\n", "size",
		       kvc_size_text(it->bytes, buf), it->files, it->files == 1 ? "" : "s",
		       "last use", used_text(it, when));
	for (size_t i = 0; i < ATTRS; i++)
		if (is_shown(it, attrs[i].name) &&
		    kvm_item_attr(path, attrs[i].name, value, &failed) > 0)
			printf("  %-10s %s\n", attrs[i].name, text_of(attrs[i].form, value, buf));
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
		struct kvm_item it;
		int err;

		if (kvm_mount_of(argv[i], mnt)) {
			failed = 1;
			continue;
		}
		err = !realpath(argv[i], path) || stat(mnt, &root) ? -errno
								   : kvm_item_get(path, &root, &it);
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
	size_t base; /* offset in a path at which the listed name begins */
	int failed;
};

/* Writes the size and the number of files, for a model as well; "-": not known. */
static void sizes_of(const char *path, const struct kvm_item *it, char size[32],
		     char files[KVM_VALUE])
{
	char value[KVM_VALUE];

	snprintf(size, 32, "-");
	snprintf(files, KVM_VALUE, "%" PRIu64, it->files);
	if (kvm_item_has_files(it)) {
		kvc_size_text(it->bytes, size);
	} else if (!strcmp(it->is, "model")) {
		if (kvm_item_attr(path, "files", files, NULL) <= 0)
			snprintf(files, KVM_VALUE, "-");
		if (kvm_item_attr(path, "bytes", value, NULL) > 0)
			kvc_size_text(strtoull(value, NULL, 10), size);
	}
}

/* Returns 0, or the negative errno of an attribute that could not be read. */
static int print_chunk(const char *name, const char *path, const struct kvm_item *it)
{
	char value[KVM_VALUE], buf[KVM_VALUE], size[32], files[KVM_VALUE], when[32];
	int failed = 0;

	sizes_of(path, it, size, files);
	printf("%10s %6s %-14s", size, files,
	       kvm_item_attr(path, "tiers", value, &failed) > 0 && *value ? value : "-");
	printf(" %-14s", kvm_item_attr(path, "state", value, &failed) > 0 ? value : it->is);
	printf(" %6s", kvm_item_attr(path, "hits", value, &failed) > 0 ? value : "-");
	printf(" %-8s",
	       kvm_item_attr(path, "pin", value, &failed) > 0 ? text_of(PIN, value, buf) : "-");
	printf(" %-6s",
	       kvm_item_attr(path, "ttl", value, &failed) > 0 ? text_of(SECONDS, value, buf) : "-");
	printf(" %-7s ", kvm_item_has_files(it) ? used_text(it, when) : "-");
	kvc_quote_line(stdout, name);
	puts(strcmp(it->is, "file") && strcmp(it->is, "other") ? "/" : "");
	return failed;
}

static int list_one(struct listing *l, const char *name, const char *path,
		    const struct kvm_item *it)
{
	int err = l->json ? print_chunk_json(&l->j, "name", name, path, it)
			  : print_chunk(name, path, it);

	return err ? kvm_fail("%s: %s", path, kvc_why(-err)) : 0;
}

/* Lists an entry, and goes on after a failure. Entries that are removed in between are skipped. */
static int list_entry(void *arg, const char *path)
{
	struct listing *l = arg;
	struct kvm_item it;
	int err = kvm_item_get(path, &l->root, &it);

	if (err)
		err = err == -ENOENT ? 0 : kvm_fail("%s: %s", path, kvc_why(-err));
	else if (!l->recursive || kvm_item_has_files(&it) || !strcmp(it.is, "other"))
		err = list_one(l, path + l->base, path, &it);
	else
		err = kvm_item_each_entry(path, list_entry, l);
	l->failed |= err;
	return 0;
}

int kvm_run_ls(int argc, char **argv)
{
	struct listing l = { .j = { stdout, false } };
	bool lines = false; /* -l of ls(1) is accepted; the output has no other form */
	const struct kvm_option options[] = { { "json", &l.json, NULL },
					      { "recursive", &l.recursive, NULL },
					      { "r", &l.recursive, NULL },
					      { "l", &lines, NULL },
					      { 0 } };
	char mnt[KVM_PATH], path[PATH_MAX];
	struct kvm_item it;
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	if (kvm_mount_of(argc ? argv[0] : NULL, mnt))
		return 1;
	if (!realpath(argc ? argv[0] : mnt, path) || stat(mnt, &l.root) ||
	    (err = kvm_item_get(path, &l.root, &it)))
		return kvm_fail("%s: %s", argc ? argv[0] : mnt, kvc_why(err ? -err : errno));
	if (l.json) {
		kvm_json_begin(&l.j, NULL, '{');
		kvm_json_text(&l.j, "path", path);
		kvm_json_begin(&l.j, "entries", '[');
	} else {
		printf("%10s %6s %-14s %-14s %6s %-8s %-6s %-7s %s\n", "SIZE", "FILES", "TIERS",
		       "STATE", "HITS", "PIN", "TTL", "USED", "NAME");
	}
	l.base = strlen(path) + (strcmp(path, "/") != 0);
	if (!strcmp(it.is, "file") || !strcmp(it.is, "other"))
		err = list_one(&l, basename(path), path, &it);
	else
		err = kvm_item_each_entry(path, list_entry, &l);
	l.failed |= err;
	if (l.json) {
		kvm_json_end(&l.j, ']');
		kvm_json_end(&l.j, '}');
		putchar('\n');
	}
	return l.failed;
}
