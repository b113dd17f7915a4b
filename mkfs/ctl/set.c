/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcachectl pin, unpin, ttl, quota, policy and evict: set the attributes user.kvcachefs.*. Values
 * are in user units, and errors say how to fix them (table `troubles`). The commands print nothing
 * on success. If one path fails, they continue with the others. pin, unpin and evict apply to all
 * chunks in a folder, a model or a mount.
 */
#include "item.h"

#include "policy.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

#define PREFIX "user.kvcachefs."
#define QUOTA_MIN (1u << 20)
#define TIME_MAX 7000000000ull /* seconds; now plus this time must fit in a timestamp */

static const struct {
	const char *attr;
	int err;
	const char *text;
} troubles[] = {
	{ "pin", EINVAL,
	  "not a chunk or a file of a chunk; kvcachectl ls --recursive lists chunks" },
	{ "pin", EDQUOT,
	  "its owner has reached the limit of pins=: unpin another chunk, or mount with a larger "
	  "pins=" },
	{ "pin", ENOSPC,
	  "the limit of pins= is reached: unpin another chunk, or mount with a larger pins=" },
	{ "ttl", EINVAL, "it is not a chunk, a file of a chunk, or a model's folder" },
	{ "quota", EINVAL, "it is not a model; give a folder in the root of the mount" },
	{ "policy", EINVAL, "it is not a model; give a folder in the root of the mount" },
	{ "demote", EBUSY,
	  "a file in it is open, leased, pinned, mapped, in recent use, or has no other copy: try "
	  "again later, or unpin it" },
	{ "demote", ENODEV,
	  "it stays in memory, because no tier can take a copy; --from all drops it" },
	{ "demote", ETIMEDOUT, "it takes longer than deadline=; try again to continue" },
};

static int trouble(const char *path, const char *attr, int err)
{
	for (size_t i = 0; i < sizeof troubles / sizeof troubles[0]; i++)
		if (troubles[i].err == err && !strcmp(troubles[i].attr, attr))
			return kvm_fail("%s: %s", path, troubles[i].text);
	return kvm_fail("%s: %s", path, kvc_why(err));
}

/* Returns 1 with the value, 0 if the attribute is not set, or a negative errno. */
static int get_attr(const char *path, const char *attr, char value[256])
{
	char name[64];
	ssize_t n;

	snprintf(name, sizeof name, PREFIX "%s", attr);
	n = getxattr(path, name, value, 255);
	value[n > 0 ? n : 0] = 0;
	if (n >= 0)
		return 1;
	return errno == ENODATA || errno == ENOTSUP || errno == EINVAL ? 0 : -errno;
}

/*
 * Sets the attribute, or removes it if value is NULL. Refuses paths outside of kvcachefs, where it
 * would be an ordinary attribute.
 */
static int set_attr(const char *path, const char *attr, const char *value)
{
	char name[64], mnt[KVM_PATH];

	if (kvm_mount_of(path, mnt))
		return 1;
	snprintf(name, sizeof name, PREFIX "%s", attr);
	if (value ? !setxattr(path, name, value, strlen(value), 0)
		  : !removexattr(path, name) || errno == ENODATA)
		return 0;
	return trouble(path, attr, errno);
}

static int set_all(int n, char **paths, const char *attr, const char *value)
{
	int failed = 0;

	for (int i = 0; i < n; i++)
		failed |= set_attr(paths[i], attr, value);
	return failed;
}

/* ---- all chunks at and below a path ---- */

#define SHOWN 10u /* errors that are shown one by one */

struct setter {
	const char *attr, *value;
	uint64_t done, failed, bytes;
	bool stops; /* at the first error */
};

static int set_chunk(void *arg, const char *path, const struct kvm_item *it)
{
	char name[64];
	struct setter *s = arg;
	int err;

	snprintf(name, sizeof name, PREFIX "%s", s->attr);
	if (!setxattr(path, name, s->value, strlen(s->value), 0)) {
		s->done++;
		s->bytes += it->bytes;
		return 0;
	}
	if (errno == ENOENT || errno == ESTALE) /* dropped in between */
		return 0;
	if (errno == EINVAL && !strcmp(s->attr, "demote")) {
		s->failed++;
		return kvm_fail("%s: this mount has no tier %s; give cpu, all, or a tier that "
				"kvcachectl config lists",
				path, s->value);
	}
	err = errno;
	if (s->failed++ < SHOWN)
		trouble(path, s->attr, err);
	return s->stops && (err == ENOSPC || err == EDQUOT);
}

/* done: the word for what was done, such as pinned. */
static int set_chunks(int n, char **paths, struct setter *s, const char *done)
{
	int failed = 0;

	for (int i = 0; i < n; i++) {
		uint64_t before = s->done;
		int err;

		s->failed = 0;
		err = kvm_item_each_chunk(paths[i], set_chunk, s);
		if (s->failed > SHOWN)
			kvm_fail("%s: %" PRIu64 " more chunks failed", paths[i], s->failed - SHOWN);
		if (s->failed && s->done > before)
			kvm_fail("%s: %" PRIu64 " of its chunks were %s", paths[i],
				 s->done - before, done);
		if (!err && !s->failed && s->done == before)
			err = kvm_fail(
				"%s: it has no chunks; kvcachectl ls --recursive lists chunks",
				paths[i]);
		failed |= err || s->failed;
	}
	return failed;
}

int kvm_run_pin(int argc, char **argv)
{
	const char *time = NULL;
	const struct kvm_option options[] = { { "for", NULL, &time }, { 0 } };
	uint64_t s = 1; /* permanently */
	char value[32];
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	if (time && (kvm_time_parse(time, &s) || s < 2 || s > TIME_MAX))
		return kvm_misused(
			"--for %s: give a time of 2s or more, such as 90s, 10m, 2h, 7d or 4w",
			time);
	snprintf(value, sizeof value, "%" PRIu64, s);
	return set_chunks(argc, argv,
			  &(struct setter){ .attr = "pin", .value = value, .stops = true },
			  "pinned");
}

int kvm_run_unpin(int argc, char **argv)
{
	int err = kvm_plain(&argc, argv);

	return err
		       ?: set_chunks(argc, argv, &(struct setter){ .attr = "pin", .value = "0" },
				     "unpinned");
}

int kvm_run_ttl(int argc, char **argv)
{
	uint64_t s = 0;
	char value[32];
	int err = kvm_plain(&argc, argv);

	if (err)
		return err;
	if (strcmp(argv[0], "never") != 0 && (kvm_time_parse(argv[0], &s) || !s || s > TIME_MAX))
		return kvm_misused("ttl %s: give a time such as 90s, 10m, 2h, 7d or 4w, or never",
				   kvm_shown(argv[0]));
	snprintf(value, sizeof value, "%" PRIu64, s);
	return set_all(argc - 1, argv + 1, "ttl", value);
}

/* Returns true if the folder is known to be empty. If it cannot be read, the warning is shown. */
static bool is_empty(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;
	bool any = !d;

	while (d && !any && (errno = 0, e = readdir(d)))
		any = strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
	any |= d && !any && errno;
	if (d)
		closedir(d);
	return !any;
}

/*
 * Prints what the new quota would evict. Returns 1 if it would evict something, 0, or a negative
 * errno.
 */
static int warn_of_quota(const char *path, uint64_t bytes)
{
	char old[256], used[256], a[32], b[32];
	int has = get_attr(path, "quota", old), known = has > 0 ? get_attr(path, "used", used) : 0;

	if (has < 0 || known < 0)
		return kvc_min(has, known);
	if (has) {
		if (bytes >= strtoull(old, NULL, 10) || !known || strtoull(used, NULL, 10) <= bytes)
			return 0;
		fprintf(stderr, "%s has %s: chunks beyond %s are dropped, the coldest first.\n",
			path, kvc_size_text(strtoull(used, NULL, 10), a), kvc_size_text(bytes, b));
		return 1;
	}
	if (is_empty(path))
		return 0;
	fprintf(stderr,
		"%s has no quota yet: if it has more than %s, its coldest chunks are dropped.\n",
		path, kvc_size_text(bytes, b));
	return 1;
}

int kvm_run_quota(int argc, char **argv)
{
	bool yes = false, none;
	const struct kvm_option options[] = { { "yes", &yes, NULL }, { 0 } };
	int ask = 0;
	uint64_t bytes = 0;
	char value[32], mnt[KVM_PATH];
	int err = kvm_options(&argc, argv, options);

	if (err)
		return err;
	none = !strcmp(argv[0], "none");
	if (!none && kvm_size_arg("quota", argv[0], QUOTA_MIN,
				  "a size of 1M or more, such as 500G, or none", &bytes))
		return 2;
	for (int i = 1; i < argc && !none; i++) {
		if (kvm_mount_of(argv[i], mnt)) /* checks all paths before it changes anything */
			return 1;
		err = warn_of_quota(argv[i], bytes);
		if (err < 0)
			return kvm_fail("%s: %s", argv[i], kvc_why(-err));
		ask |= err;
	}
	if (ask && kvm_confirm(yes))
		return 1;
	snprintf(value, sizeof value, "%" PRIu64, bytes);
	return set_all(argc - 1, argv + 1, "quota", none ? NULL : value);
}

int kvm_run_policy(int argc, char **argv)
{
	int err = kvm_plain(&argc, argv), i = 0;
	char all[256] = "";
	bool none;

	if (err)
		return err;
	none = !strcmp(argv[0], "none");
	while (kvc_policy_names[i] && strcmp(kvc_policy_names[i], argv[0]) != 0)
		i++;
	if (!none && !kvc_policy_names[i]) {
		for (i = 0; kvc_policy_names[i]; i++)
			snprintf(all + strlen(all), sizeof all - strlen(all), "%s, ",
				 kvc_policy_names[i]);
		return kvm_misused("unknown policy %s; give one of %snone", argv[0], all);
	}
	return set_all(argc - 1, argv + 1, "policy", none ? NULL : argv[0]);
}

static int count_chunk(void *arg, const char *path, const struct kvm_item *it)
{
	struct setter *s = arg;

	(void)path;
	s->done++;
	s->bytes += it->bytes;
	return 0;
}

/*
 * Prints what will be evicted, and asks. Evicting from the pool loses nothing, because a copy is
 * made first.
 */
static int confirm_evict(int n, char **paths, const char *from, bool yes)
{
	char size[32];

	if (!strcmp(from, "cpu"))
		return 0;
	for (int i = 0; i < n; i++) {
		struct setter s = { .done = 0 };

		if (kvm_item_each_chunk(paths[i], count_chunk, &s))
			return 1;
		fprintf(stderr, "%s: %" PRIu64 " chunk%s, %s: ", paths[i], s.done,
			s.done == 1 ? "" : "s", kvc_size_text(s.bytes, size));
		if (!strcmp(from, "all"))
			fputs("dropped from memory and all tiers.\n", stderr);
		else
			fprintf(stderr,
				"removed from %s. A reboot loses data that is then only in memory, "
				"and other nodes no longer find the data in a shared tier.\n",
				from);
	}
	return kvm_confirm(yes);
}

int kvm_run_evict(int argc, char **argv)
{
	const char *from = "cpu";
	bool yes = false;
	const struct kvm_option options[] = { { "from", NULL, &from },
					      { "yes", &yes, NULL },
					      { 0 } };
	char mnt[KVM_PATH];
	int failed = kvm_options(&argc, argv, options);

	if (failed)
		return failed;
	if (!*from)
		return kvm_misused("--from: give a tier such as disk, or cpu, or all");
	for (int i = 0; i < argc; i++) /* checks all paths before it changes anything */
		if (kvm_mount_of(argv[i], mnt))
			return 1;
	if (confirm_evict(argc, argv, from, yes))
		return 1;
	return set_chunks(argc, argv, &(struct setter){ .attr = "demote", .value = from },
			  "evicted");
}
