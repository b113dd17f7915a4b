/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the mount that a kvcachectl command refers to, and opens its files. A mount is identified
 * by the device number of the path, so the path may be any file in the mount, and may lead through
 * a bind mount or a symbolic link. See ctl.h.
 */
#include "ctl.h"

#include "mounts.h"

#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

/*
 * Prints why path is not in a usable mount. Only ENOENT and similar errors are reported as "no
 * mount"; other errors are reported as they are.
 */
static int print_no_mount(const char *path, int err)
{
	path = kvm_shown(path);
	if (err == ECANCELED) /* a call that was under way when the daemon ended */
		err = ENOTCONN;
	if (err && err != ENOTCONN && err != ECONNABORTED && err != ENOENT && err != ENOTDIR)
		return kvm_fail("%s: %s", path, kvc_why(err));
	return err == ENOTCONN || err == ECONNABORTED
		       ? kvm_fail("%s: the daemon of this mount has ended; mount its store again, "
				  "or unmount it",
				  path)
	       : err == 0 ? kvm_fail("%s is not in a kvcachefs mount; findmnt -t fuse.kvcachefs "
				     "lists the mounts",
				     path)
			  : kvm_fail("%s: %s; give a path in a kvcachefs mount (findmnt -t "
				     "fuse.kvcachefs lists the mounts)",
				     path, strerror(err));
}

struct search {
	bool any; /* match any device */
	dev_t dev;
	unsigned found;
	bool part;     /* a folder of this filesystem is mounted */
	int err;       /* its daemon is dead */
	int unseen;    /* errno of a mount that could not be examined */
	char *mnt;     /* the first mount that was found */
	FILE *choices; /* all mounts, for the message */
};

/*
 * Returns the error of the mount's daemon, or 0. The kernel may answer stat and readdir of a dead
 * daemon's mount from its caches, but not statfs. A dying daemon cancels its last request; the next
 * request gets the final error.
 */
static int daemon_error(const char *path)
{
	struct statfs fs;
	int err;

	do
		err = statfs(path, &fs) ? errno : 0;
	while (err == ECANCELED && !usleep(1000));
	return err == ENOTCONN || err == ECONNABORTED ? err : 0;
}

static bool is_ours(const struct kvm_mounted *m)
{
	return !strcmp(m->type, "fuse.kvcachefs");
}

/*
 * Returns true if the mount is visible at its path, and not hidden by another mount. Sets s->unseen
 * if an existing path cannot be examined.
 */
static bool is_seen(struct search *s, const struct kvm_mounted *m)
{
	struct stat st;

	if (!stat(m->path, &st))
		return st.st_dev == m->dev;
	if (errno != ENOENT && errno != ENOTDIR && errno != EACCES && errno != ENOTCONN &&
	    errno != ECONNABORTED)
		s->unseen = errno;
	return false;
}

static int match_device(void *arg, const struct kvm_mounted *m)
{
	struct search *s = arg;

	if (!is_ours(m) || m->dev != s->dev)
		return 0;
	s->part = true;
	if (strcmp(m->root, "/") != 0 || !is_seen(s, m))
		return 0; /* a part of the filesystem, or hidden by another mount */
	if ((s->err = daemon_error(m->path)))
		return 1;
	snprintf(s->mnt, KVM_PATH, "%s", m->path);
	s->found = 1;
	return 1;
}

/*
 * Counts the mounts that a daemon serves. A mount whose daemon has just died gives an error later.
 */
static int collect_mount(void *arg, const struct kvm_mounted *m)
{
	struct search *s = arg;
	struct statfs fs;

	if (!is_ours(m) || strcmp(m->root, "/") != 0 || (s->found && m->dev == s->dev))
		return 0;
	/* The kernel may answer stat of a dead daemon's mount from its cache, but not statfs. */
	if (!is_seen(s, m) || statfs(m->path, &fs))
		return 0;
	if (!s->found++)
		snprintf(s->mnt, KVM_PATH, "%s", m->path);
	s->dev = m->dev;
	fprintf(s->choices, " %s", m->path);
	return 0;
}

/* True if the working directory is in a mount that a daemon serves. */
static bool around_cwd(char mnt[KVM_PATH])
{
	struct search s = { .mnt = mnt };
	struct stat st;

	if (stat(".", &st))
		return false;
	s.dev = st.st_dev;
	return kvm_mounts_each(match_device, &s) >= 0 && s.found;
}

/* The only mount, or among several the one that contains the working directory. */
static int the_only_one(char mnt[KVM_PATH])
{
	KVC_MEM char *text = NULL;
	char first[KVM_PATH];
	size_t len = 0;
	struct search s = { .mnt = first, .choices = open_memstream(&text, &len) };
	int err;

	if (!s.choices)
		return kvm_fail("out of memory");
	err = kvm_mounts_each(collect_mount, &s);
	if (fclose(s.choices))
		return kvm_fail("out of memory");
	if (err < 0)
		return kvm_fail("/proc/self/mountinfo: %s", kvc_why(-err));
	if (!s.found && s.unseen)
		return kvm_fail("cannot read the list of mounts: %s", kvc_why(s.unseen));
	if (!s.found)
		return kvm_fail(
			"no kvcachefs is mounted; mount one with kvcachefs STORE MOUNTPOINT");
	if (s.found > 1 && around_cwd(mnt))
		return 0;
	if (s.found > 1)
		return kvm_fail("%u kvcachefs filesystems are mounted; give the path of one:%s",
				s.found, text);
	memcpy(mnt, first, KVM_PATH);
	return 0;
}

/* Reports that the path does not exist, and names the mount that it is in, if any. */
static int print_missing(const char *path, int err)
{
	char mnt[KVM_PATH] = "";
	KVC_MEM char *above = strdup(path);
	struct search s = { .mnt = mnt };
	struct stat st;

	while (above && strcmp(above, "/") != 0 && strcmp(above, ".") != 0 && stat(above, &st)) {
		char *parent = strdup(dirname(above));

		free(above);
		above = parent;
	}
	if (!above || err != ENOENT || stat(above, &st))
		return print_no_mount(path, err);
	s.dev = st.st_dev;
	if (kvm_mounts_each(match_device, &s) < 0 || !s.found)
		return print_no_mount(path, err);
	return kvm_fail("%s: No such file or directory in the mount %s; kvcachectl ls lists what "
			"exists, and mkdir makes the folder of a model",
			path, mnt);
}

int kvm_mount_of(const char *inside, char mnt[KVM_PATH])
{
	struct search s = { .mnt = mnt };
	struct stat st;
	int err;

	if (!inside)
		return the_only_one(mnt);
	if (stat(inside, &st))
		return print_missing(inside, errno);
	s.dev = st.st_dev;
	err = kvm_mounts_each(match_device, &s);
	if (err < 0)
		return kvm_fail("/proc/self/mountinfo: %s", kvc_why(-err));
	if (s.err)
		return print_no_mount(inside, s.err);
	if (!s.found && s.unseen)
		return print_no_mount(inside, s.unseen);
	if (!s.found && s.part)
		return kvm_fail("%s: only a part of this kvcachefs is mounted here; give a path in "
				"a mount of its root",
				inside);
	return s.found ? 0 : print_no_mount(inside, 0);
}

struct dead {
	const char *path; /* absolute */
	char *mnt, *store;
	size_t len; /* of the longest mount point that is above the path */
};

static int match_dead(void *arg, const struct kvm_mounted *m)
{
	struct dead *d = arg;
	size_t n = strlen(m->path);

	if (!strncmp(d->path, m->path, n) && (!d->path[n] || d->path[n] == '/') && n >= d->len) {
		d->len = n;
		*d->mnt = 0;
		if (is_ours(m) && daemon_error(m->path)) {
			snprintf(d->mnt, KVM_PATH, "%s", m->path);
			snprintf(d->store, KVM_PATH, "%s", m->source);
		}
	}
	return 0;
}

bool kvm_mount_is_dead(const char *inside, char mnt[KVM_PATH], char store[KVM_PATH])
{
	char cwd[KVM_PATH], path[2 * KVM_PATH];
	struct dead d = { .path = path, .mnt = mnt, .store = store };

	*mnt = 0;
	if (*inside != '/' && !getcwd(cwd, sizeof cwd))
		return false;
	snprintf(path, sizeof path, "%s%s%s", *inside == '/' ? "" : cwd, *inside == '/' ? "" : "/",
		 inside);
	return kvm_mounts_each(match_dead, &d) >= 0 && *mnt;
}

int kvm_mount_open(const char *mnt, const char *name, int flags)
{
	char path[KVM_PATH + 64];
	int fd;

	snprintf(path, sizeof path, "%s/.kvcachefs/%s", mnt, name);
	fd = open(path, flags | O_CLOEXEC);
	if (fd < 0)
		print_no_mount(errno == ENOTCONN ? mnt : path, errno);
	return fd;
}
