/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount(8) passes all options of the mount, not only the new ones. Options of the kernel that the
 * mount already has are left out. The daemon gets the rest through .kvcachefs/control, as from
 * kvcachectl reload: it changes all options, or refuses them in one line that names those that
 * cannot change. See remount.h.
 */
#include "remount.h"

#include "mounts.h"
#include "options.h"
#include "tool.h"
#include "util.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

/*
 * Options of mount(2), and the flag of statvfs(3) that is set, or not set, if the mount has the
 * option.
 */
static const struct {
	const char *name;
	unsigned long flag;
	bool set;
} flags[] = {
	{ "ro", ST_RDONLY, true },
	{ "rw", ST_RDONLY, false },
	{ "nosuid", ST_NOSUID, true },
	{ "suid", ST_NOSUID, false },
	{ "nodev", ST_NODEV, true },
	{ "dev", ST_NODEV, false },
	{ "noexec", ST_NOEXEC, true },
	{ "exec", ST_NOEXEC, false },
	{ "sync", ST_SYNCHRONOUS, true },
	{ "async", ST_SYNCHRONOUS, false },
	{ "nodiratime", ST_NODIRATIME, true },
	{ "noatime", ST_NOATIME, true },
	{ "relatime", ST_RELATIME, true },
};
/* Words of /proc/mounts that libfuse and the kernel added. */
static const char *const added[] = {
	"remount",   "default_permissions", "seclabel", "user_id=",
	"group_id=", "max_read=",           "blksize=", NULL,
};

static bool is_added(const char *word)
{
	for (size_t i = 0; added[i]; i++) {
		size_t n = strlen(added[i]);

		if (!strncmp(word, added[i], n) && (added[i][n - 1] == '=' || !word[n]))
			return true;
	}
	return false;
}

static bool has_flag(unsigned long have, const char *word)
{
	for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
		if (!strcmp(flags[i].name, word))
			return !(have & flags[i].flag) == !flags[i].set;
	return false;
}

bool kvm_remount_asked(const char *options)
{
	KVC_MEM char *copy = strdup(options);
	char *at = copy, *word = NULL;

	while (copy && (word = kvc_options_next(&at)) && strcmp(word, "remount") != 0)
		;
	return word;
}

/* Prints the options that may have to change. `have`: f_flag of statvfs(3). */
static int put_changes(FILE *out, const char *options, unsigned long have)
{
	KVC_MEM char *copy = strdup(options);
	char *at = copy, *word;
	const char *comma = "";

	if (!copy)
		return -ENOMEM;
	while ((word = kvc_options_next(&at))) {
		if (is_added(word) || has_flag(have, word))
			continue;
		fprintf(out, "%s%s", comma, word);
		comma = ",";
	}
	return 0;
}

struct at {
	const char *path;
	bool found, ours;
	char store[4096];
};

/* The last mount on the path is the visible one. */
static int match_path(void *arg, const struct kvm_mounted *m)
{
	struct at *at = arg;

	if (strcmp(m->path, at->path) != 0)
		return 0;
	at->found = true;
	at->ours = !strcmp(m->type, "fuse.kvcachefs");
	snprintf(at->store, sizeof at->store, "%s", m->source);
	return 0;
}

/* Checks that the store is mounted there. Returns 0, or 1 after a message. */
static int check_mount(const char *store, const char *mountpoint)
{
	KVC_MEM char *real = realpath(mountpoint, NULL), *source = realpath(store, NULL);
	struct at at = { .path = real ?: mountpoint };
	int err = kvm_mounts_each(match_path, &at);

	if (err < 0)
		return kvm_fail("/proc/self/mountinfo: %s", kvc_why(-err));
	if (!at.found || !at.ours)
		return kvm_fail("remount: %s is not the mount point of a kvcachefs; findmnt -t "
				"fuse.kvcachefs lists the mounts",
				mountpoint);
	if (strcmp(at.store, source ?: store) != 0)
		return kvm_fail("remount: the store on %s is %s, not %s; unmount it first, or give "
				"its own mount point",
				mountpoint, at.store, store);
	return 0;
}

/* Passes the changes to the daemon. Returns 0, or 1 after a message. */
static int send_changes(const char *mountpoint, const char *words)
{
	char path[4096 + 32], answer[512];
	KVC_FD int fd = -1;
	ssize_t n;
	int err;

	snprintf(path, sizeof path, "%s/.kvcachefs/control", mountpoint);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return kvm_fail("remount: %s: %s", path, kvc_why(errno));
	if (write(fd, words, strlen(words)) >= 0)
		return 0;
	err = errno;
	n = pread(fd, answer, sizeof answer - 1, 0);
	answer[n > 0 ? n : 0] = 0;
	answer[strcspn(answer, "\n")] = 0;
	return kvm_fail("remount: %s", *answer ? answer : kvc_why(err));
}

int kvm_remount(const char *store, const char *mountpoint, const char *options)
{
	KVC_MEM char *words = NULL;
	size_t len = 0;
	struct statvfs v;
	FILE *out;
	int err;

	if (statvfs(mountpoint, &v)) {
		if (errno == ENOTCONN || errno == ECONNABORTED || errno == ECANCELED)
			return kvm_fail("remount: the daemon of the mount on %s has ended; mount "
					"its store again without remount",
					mountpoint);
		return kvm_fail("remount: %s: %s", mountpoint, kvc_why(errno));
	}
	if (check_mount(store, mountpoint))
		return 1;
	if (!(out = open_memstream(&words, &len)))
		return kvm_fail("out of memory");
	fputs("reload ", out);
	err = put_changes(out, options, v.f_flag);
	if (fclose(out) || err)
		return kvm_fail("out of memory");
	return !strcmp(words, "reload ") ? 0 : send_changes(mountpoint, words);
}
