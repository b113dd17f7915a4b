/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl tenants prints .kvcachefs/tenants (engine/report/tenants.c); kvcachectl tenant makes,
 * changes and removes tenants by the attribute user.kvcachefs.tenants of the mount's root, and
 * assigns folders to them by user.kvcachefs.tenant.
 */
#include "ctl.h"

#include "json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define LEAST (1u << 20)

/* The first columns of .kvcachefs/tenants; others are printed by --json only. */
enum { QUOTA, SHARE, USED, POOL, USER, HITS, MISSES, SHOWN };
static const char *const heads[SHOWN] = {
	"QUOTA", "SHARE", "USED", "POOL", "USER", "HITS", "MISSES",
};

static const char *shown(int column, const char *word, char *buf)
{
	uint64_t v = strtoull(word, NULL, 10);

	if (column > POOL)
		return word;
	return (column == QUOTA || column == SHARE) && !v ? "-" : kvc_size_text(v, buf);
}

static void print_tenant(char *line)
{
	char *save = NULL, buf[32];
	int i = 0;

	for (char *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save), i++)
		if (i < SHOWN)
			printf("%8s  ", shown(i, w, buf));
		else if (!*save)
			puts(w);
}

static void put_tenant(struct kvm_json *j, const char *names, char *line)
{
	char *copy = strdup(names), *a = NULL, *b = NULL, *w = strtok_r(line, " ", &b);

	kvm_json_begin(j, NULL, '{');
	for (char *n = copy ? strtok_r(copy, " ", &a) : NULL; n && w;
	     n = strtok_r(NULL, " ", &a), w = strtok_r(NULL, " ", &b))
		if (!strcmp(n, "name") || (!strcmp(n, "uid") && !strcmp(w, "-")))
			kvm_json_text(j, n, strcmp(n, "name") ? NULL : w);
		else
			kvm_json_number(j, n, strtoull(w, NULL, 10));
	kvm_json_end(j, '}');
	free(copy);
}

int kvm_run_tenants(int argc, char **argv)
{
	bool json = false;
	const struct kvm_option options[] = { { "json", &json, NULL }, { 0 } };
	struct kvm_json j = { stdout, false };
	KVC_MEM char *text = NULL;
	char mnt[KVM_PATH], *save = NULL, *names, *line;
	int err = kvm_options(&argc, argv, options)
			  ?: kvm_mount_of(argc ? argv[0] : NULL, mnt)
				     ?: kvm_mount_text(mnt, "tenants", &text);

	if (err)
		return err;
	names = strtok_r(text, "\n", &save);
	if (json) {
		kvm_json_begin(&j, NULL, '{');
		kvm_json_text(&j, "mount", mnt);
		kvm_json_begin(&j, "tenants", '[');
	} else if (!*save) {
		puts("no tenants");
	} else {
		for (int i = 0; i < SHOWN; i++)
			printf("%8s  ", heads[i]);
		puts("NAME");
	}
	while (names && (line = strtok_r(NULL, "\n", &save)))
		if (json)
			put_tenant(&j, names, line);
		else
			print_tenant(line);
	if (json) {
		kvm_json_end(&j, ']');
		kvm_json_end(&j, '}');
		putchar('\n');
	}
	return 0;
}

/* Adds " WORD=BYTES" to the request. */
static int add_size(char *to, size_t capacity, const char *word, const char *size)
{
	size_t n = strlen(to);
	uint64_t bytes = 0;
	char name[32];

	if (!size)
		return 0;
	snprintf(name, sizeof name, "--%s", word);
	if (strcmp(size, "none") != 0 &&
	    kvm_size_arg(name, size, LEAST, "a size of 1M or more, such as 500G, or none", &bytes))
		return 2;
	snprintf(to + n, capacity - n, " %s=%" PRIu64, word, bytes);
	return 0;
}

static int add_user(char *to, size_t capacity, const char *uid)
{
	size_t n = strlen(to), digits;

	if (!uid)
		return 0;
	digits = strspn(uid, "0123456789");
	if (strcmp(uid, "none") != 0 &&
	    (!digits || uid[digits] || digits > 10 || strtoull(uid, NULL, 10) >= UINT32_MAX))
		return kvm_misused("--user %s: give the number of a user, such as 1000, or none",
				   kvm_shown(uid));
	snprintf(to + n, capacity - n, " uid=%s", uid);
	return 0;
}

static int refused(const char *what, const char *name, int err)
{
	if (err == EINVAL)
		return kvm_fail("tenant %s: a name has 1 to 128 characters other than spaces, /, = "
				"and quotes, and the name none is reserved",
				kvm_shown(name));
	if (err == ENOENT)
		return kvm_fail("tenant %s does not exist; kvcachectl tenants lists the tenants",
				kvm_shown(name));
	if (err == EPERM || err == EACCES)
		return kvm_fail("%s: only root and the user that runs the daemon may change "
				"tenants",
				what);
	if (err == ENOSPC)
		return kvm_fail("tenant %s: the mount has 1024 tenants; remove one", name);
	return kvm_fail("%s: %s", what, kvc_why(err));
}

/* Assigns the folder's future chunks to the tenant, or to no tenant. */
static int give_folder(const char *folder, const char *name)
{
	static const char attr[] = "user.kvcachefs.tenant";
	bool none = !strcmp(name, "none");
	char mnt[KVM_PATH];
	struct stat st;

	if (kvm_mount_of(folder, mnt))
		return 1;
	/* the same attribute of a file assigns the present chunk */
	if (!stat(folder, &st) && !S_ISDIR(st.st_mode))
		return kvm_fail("%s: it is not a folder; kvcachectl hint --tenant assigns chunks",
				folder);
	if (none ? !removexattr(folder, attr) || errno == ENODATA
		 : !setxattr(folder, attr, name, strlen(name), 0))
		return 0;
	if (errno == EINVAL)
		return kvm_fail(
			"%s: tenant %s does not exist; kvcachectl tenants lists the tenants",
			folder, kvm_shown(name));
	return kvm_fail("%s: %s", folder, kvc_why(errno));
}

static void print_changed_tenant(const char *mnt, const char *name, const char *folder,
				 bool removed)
{
	struct kvm_json j = { stdout, false };

	kvm_json_begin(&j, NULL, '{');
	kvm_json_text(&j, "mount", mnt);
	kvm_json_text(&j, "tenant", name);
	kvm_json_text(&j, "folder", folder);
	kvm_json_bool(&j, "removed", removed);
	kvm_json_end(&j, '}');
	putchar('\n');
}

int kvm_run_tenant(int argc, char **argv)
{
	const char *quota = NULL, *share = NULL, *user = NULL, *folder = NULL, *name;
	bool gone = false, json = false;
	const struct kvm_option options[] = {
		{ "quota", NULL, &quota },
		{ "share", NULL, &share },
		{ "user", NULL, &user },
		{ "folder", NULL, &folder },
		{ "remove", &gone, NULL },
		{ "json", &json, NULL },
		{ 0 },
	};
	char mnt[KVM_PATH], text[512];
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	name = argv[0];
	if (gone && (quota || share || user || folder))
		return kvm_misused(
			"--remove cannot be combined with --quota, --share, --user or --folder");
	/* a space would begin a word of the request */
	if (!*name || strlen(name) > 256 || strchr(name, ' '))
		return refused(name, name, EINVAL);
	snprintf(text, sizeof text, "%s%s", name, gone ? " remove" : "");
	err = add_size(text, sizeof text, "quota", quota)
		      ?: add_size(text, sizeof text, "share", share)
				 ?: add_user(text, sizeof text, user);
	if (err || kvm_mount_of(argc > 1 ? argv[1] : folder, mnt))
		return err ?: 1;
	/* --folder alone changes no tenant, so the user of the tenant may use it */
	if ((!folder || quota || share || user) &&
	    setxattr(mnt, "user.kvcachefs.tenants", text, strlen(text), 0))
		return refused(mnt, name, errno);
	err = folder ? give_folder(folder, name) : 0;
	if (!err && json)
		print_changed_tenant(mnt, name, folder, gone);
	return err;
}
