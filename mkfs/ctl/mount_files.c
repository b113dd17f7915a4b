/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which mount a command of kvcachectl means. See ctl.h. A path tells by the device
 * that it is on: so it may be anything in the mount, also by a bind mount or a symbolic link.
 */
#include "ctl.h"

#include "mounts.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

/* Only what is missing there, or of another kind, says that it is none. */
static int no_mount(const char *path, int err)
{
	path = kvm_shown(path);
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
	bool any; /* device */
	dev_t dev;
	unsigned found;
	bool part;     /* a folder of it is mounted, at least */
	int err;       /* its daemon has died */
	int unseen;    /* why one could not be looked at, which is no absence */
	char *mnt;     /* the first that was found */
	FILE *choices; /* all, for people */
};

/*
 * A dead daemon's mount may still tell its attributes, and list a folder, which the kernel keeps,
 * but not this. Its death cancels what it was asked last; who asks again is told.
 */
static int unserved(const char *path)
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
 * Is this mount what is seen at its path, and not below another? What cannot be told of a path that
 * is there is kept.
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

static int is_it(void *arg, const struct kvm_mounted *m)
{
	struct search *s = arg;

	if (!is_ours(m) || m->dev != s->dev)
		return 0;
	s->part = true;
	if (strcmp(m->root, "/") != 0 || !is_seen(s, m))
		return 0; /* a part of it, or hidden below another mount */
	if ((s->err = unserved(m->path)))
		return 1;
	snprintf(s->mnt, KVM_PATH, "%s", m->path);
	s->found = 1;
	return 1;
}

/* Of those that somebody serves; who asks one that has just died is told so by it. */
static int is_one(void *arg, const struct kvm_mounted *m)
{
	struct search *s = arg;
	struct statfs fs;

	if (!is_ours(m) || strcmp(m->root, "/") != 0 || (s->found && m->dev == s->dev))
		return 0;
	/*
	 * a dead daemon's mount may still tell its attributes, which the kernel keeps, but not this
	 */
	if (!is_seen(s, m) || statfs(m->path, &fs))
		return 0;
	if (!s->found++)
		snprintf(s->mnt, KVM_PATH, "%s", m->path);
	s->dev = m->dev;
	fprintf(s->choices, " %s", m->path);
	return 0;
}

static int the_only_one(char mnt[KVM_PATH])
{
	KVC_MEM char *text = NULL;
	char first[KVM_PATH];
	size_t len = 0;
	struct search s = { .mnt = first, .choices = open_memstream(&text, &len) };
	int err;

	if (!s.choices)
		return kvm_fail("out of memory");
	err = kvm_mounts_each(is_one, &s);
	if (fclose(s.choices))
		return kvm_fail("out of memory");
	if (err < 0)
		return kvm_fail("/proc/self/mountinfo: %s", kvc_why(-err));
	if (!s.found && s.unseen)
		return kvm_fail("cannot read the list of mounts: %s", kvc_why(s.unseen));
	if (!s.found)
		return kvm_fail(
			"no kvcachefs is mounted; mount one with kvcachefs STORE MOUNTPOINT");
	if (s.found > 1)
		return kvm_fail("%u are mounted; give the path of one:%s", s.found, text);
	memcpy(mnt, first, KVM_PATH);
	return 0;
}

int kvm_mount_of(const char *inside, char mnt[KVM_PATH])
{
	struct search s = { .mnt = mnt };
	struct stat st;
	int err;

	if (!inside)
		return the_only_one(mnt);
	if (stat(inside, &st))
		return no_mount(inside, errno);
	s.dev = st.st_dev;
	err = kvm_mounts_each(is_it, &s);
	if (err < 0)
		return kvm_fail("/proc/self/mountinfo: %s", kvc_why(-err));
	if (s.err)
		return no_mount(inside, s.err);
	if (!s.found && s.unseen)
		return no_mount(inside, s.unseen);
	if (!s.found && s.part)
		return kvm_fail("%s: only a part of this kvcachefs is mounted here; give a path in "
				"a mount of its root",
				inside);
	return s.found ? 0 : no_mount(inside, 0);
}

int kvm_mount_open(const char *mnt, const char *name, int flags)
{
	char path[KVM_PATH + 64];
	int fd;

	snprintf(path, sizeof path, "%s/.kvcachefs/%s", mnt, name);
	fd = open(path, flags | O_CLOEXEC);
	if (fd < 0)
		no_mount(errno == ENOTCONN ? mnt : path, errno);
	return fd;
}
