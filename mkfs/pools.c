/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See pools.h. A pool of its own is found among the mounts, wherever run= was; one that is a folder
 * of another tmpfs only in the folder where it is looked for.
 */
#include "pools.h"

#include "mounts.h"

#include <dirent.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>

/* Is its store where it was, and would it find this pool? */
static bool wanted(const struct kvc_owner *o)
{
	KVC_MEM struct kvc_store *s = calloc(1, sizeof *s);
	struct kvc_owner now;
	bool known;
	int err;

	if (!s)
		return true;
	snprintf(s->dir, sizeof s->dir, "%s", o->dir);
	err = kvc_super_load(s, KVC_STORE_SUPER, &known);
	if (err == -ENOENT || err == -ENOTDIR)
		return false;
	if (err) /* damaged, or not to be read now: it may be mended */
		return true;
	return kvc_owner_of(s, -1, &now) || kvc_owner_same(&now, o);
}

/* As the engine names what lies there (engine/objects/node.h). */
static bool is_segment(const char *name)
{
	return strchr("wolp", name[0]) && name[1] == '-';
}

/* What lies in it. One that is mounted tells what it takes as a whole. */
static void measure(struct kvm_pool *p)
{
	DIR *d = opendir(p->path);
	struct dirent *e;
	struct statfs fs;
	struct stat st;

	while (d && (e = readdir(d))) {
		if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
			continue;
		p->files += is_segment(e->d_name);
		p->bytes += (uint64_t)st.st_blocks * 512;
		if (!strcmp(e->d_name, KVC_OWNER_MARK))
			p->changed = st.st_mtime;
	}
	if (d && !fstat(dirfd(d), &st) && st.st_mtime > p->changed)
		p->changed = st.st_mtime;
	if (d)
		closedir(d);
	if (p->mounted && !statfs(p->path, &fs))
		p->bytes = (fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize;
}

/*
 * 0, or why it is not known whose it is: a mark that cannot be read may be there. Who may not look
 * at all is told of a pool without one.
 */
static int look(struct kvm_pool *p)
{
	int err = kvc_owner_read(p->path, &p->owner);

	p->marked = !err;
	p->lives = p->marked && kvc_owner_lives(p->path);
	p->wanted = p->marked && wanted(&p->owner);
	return err == -ENOENT || err == -EBADMSG || err == -EACCES ? 0 : err;
}

struct visit {
	int (*fn)(void *arg, const struct kvm_pool *p);
	void *arg;
};

static int visit_mounted(void *arg, const struct kvm_mounted *m)
{
	const struct visit *v = arg;
	struct kvm_pool p = { .mounted = true };
	int err;

	if (strcmp(m->type, "tmpfs") != 0 || strcmp(m->source, "kvcachefs") != 0)
		return 0;
	snprintf(p.path, sizeof p.path, "%s", m->path);
	if ((err = look(&p)))
		return err;
	measure(&p);
	return v->fn(v->arg, &p);
}

int kvm_pools_each(const char *folder, int (*fn)(void *arg, const struct kvm_pool *p), void *arg)
{
	const char *base = folder ?: "/run/kvcachefs";
	int got = kvm_mounts_each(visit_mounted, &(struct visit){ fn, arg });
	DIR *d = got ? NULL : opendir(base);
	struct dirent *e;
	struct stat up, st;

	if (!got && !d && (folder || errno != ENOENT))
		got = -errno;
	while (!got && d && (errno = 0, e = readdir(d))) {
		struct kvm_pool p = { .mounted = false };

		if (e->d_name[0] == '.' || fstat(dirfd(d), &up) ||
		    fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
		    !S_ISDIR(st.st_mode) || st.st_dev != up.st_dev)
			continue; /* or one that is mounted: seen already */
		snprintf(p.path, sizeof p.path, "%s/%s", base, e->d_name);
		if ((got = look(&p)))
			break;
		measure(&p);
		if (p.marked)
			got = fn(arg, &p);
	}
	if (!got && d && !e)
		got = -errno;
	if (d)
		closedir(d);
	return got;
}

/* Only what a pool has in it: segments and its mark. */
static int empty_folder(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;
	int err = d ? 0 : -errno;

	while (d && (e = readdir(d)))
		if (is_segment(e->d_name) ||
		    !strncmp(e->d_name, KVC_OWNER_MARK, strlen(KVC_OWNER_MARK)))
			if (unlinkat(dirfd(d), e->d_name, 0))
				err = -errno;
	if (d)
		closedir(d);
	return err;
}

int kvm_pool_free(const struct kvm_pool *p)
{
	/*
	 * Who still has a mapping of a dead daemon's file keeps that; an older daemon has no mark.
	 */
	int how = UMOUNT_NOFOLLOW | (p->marked ? MNT_DETACH : 0), err;
	struct kvm_pool now = *p;
	char folder[sizeof p->path];
	KVC_FD int lock = -1;

	/* a daemon that comes holds it from when it looks for its pool until that is marked */
	snprintf(folder, sizeof folder, "%s", p->path);
	lock = open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (lock >= 0 && flock(lock, LOCK_EX))
		return -errno;
	if ((err = look(&now)))
		return err;
	if (now.lives)
		return -EBUSY;
	if (now.marked != p->marked || (now.wanted && !p->wanted))
		return -ESTALE;
	err = p->mounted ? (umount2(p->path, how) ? -errno : 0) : empty_folder(p->path);
	return err ?: rmdir(p->path) ? -errno : 0;
}
