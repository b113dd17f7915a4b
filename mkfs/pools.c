/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the pools in memory. A pool that is its own tmpfs is found in the list of mounts, wherever
 * run= has put it. A pool that is a folder of another tmpfs is found only in the folder that the
 * caller names. See pools.h.
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

/* Returns true if the pool's store is still at its path and would use this pool. */
static bool is_wanted(const struct kvc_owner *o)
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
	if (err) /* damaged or unreadable now: it may be repaired */
		return true;
	return kvc_owner_of(s, -1, &now) || kvc_owner_same(&now, o);
}

/* Prefixes of segment names in a pool (engine/objects/node.h). */
static bool is_segment(const char *name)
{
	return strchr("wolp", name[0]) && name[1] == '-';
}

/* Counts the pool's files and bytes. For a pool with its own tmpfs, the tmpfs reports the bytes. */
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
 * Reads the pool's mark and state. Returns 0, or a negative errno if the mark may exist but cannot
 * be read. To a user without permission to read the pool, it looks like a pool without a mark.
 */
static int read_state(struct kvm_pool *p)
{
	int err = kvc_owner_read(p->path, &p->owner);

	p->marked = !err;
	p->lives = p->marked && kvc_owner_lives(p->path);
	p->wanted = p->marked && is_wanted(&p->owner);
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
	if ((err = read_state(&p)))
		return err;
	measure(&p);
	return v->fn(v->arg, &p);
}

int kvm_pools_each(const char *folder, int (*fn)(void *arg, const struct kvm_pool *p), void *arg)
{
	const char *base = folder ?: "/run/kvcachefs";
	int got = kvm_mounts_each(visit_mounted, &(struct visit){ fn, arg });
	DIR *d = got ? NULL : opendir(base);
	struct dirent *e = NULL;
	struct stat up, st;

	if (!got && !d && (folder || errno != ENOENT))
		got = -errno;
	while (!got && d && (errno = 0, e = readdir(d))) {
		struct kvm_pool p = { .mounted = false };

		if (e->d_name[0] == '.' || fstat(dirfd(d), &up) ||
		    fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
		    !S_ISDIR(st.st_mode) || st.st_dev != up.st_dev)
			continue; /* not a folder, or a mount: already visited */
		snprintf(p.path, sizeof p.path, "%s/%s", base, e->d_name);
		if ((got = read_state(&p)))
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

/* Removes the files that belong to a pool: segments and the mark. */
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
	 * A lazy unmount: processes that still map files of a dead daemon keep their pages. Pools
	 * of older daemons, which have no mark, may be in use, so they are unmounted only if they
	 * are not busy.
	 */
	int how = UMOUNT_NOFOLLOW | (p->marked ? MNT_DETACH : 0), err;
	struct kvm_pool now = *p;
	char folder[sizeof p->path];
	KVC_FD int lock = -1;

	/* A starting daemon locks the folder until it has found and marked its pool. */
	snprintf(folder, sizeof folder, "%s", p->path);
	lock = open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (lock >= 0 && flock(lock, LOCK_EX))
		return -errno;
	if ((err = read_state(&now)))
		return err;
	if (now.lives)
		return -EBUSY;
	if (now.marked != p->marked || (now.wanted && !p->wanted))
		return -ESTALE;
	err = p->mounted ? (umount2(p->path, how) ? -errno : 0) : empty_folder(p->path);
	return err ?: rmdir(p->path) ? -errno : 0;
}
