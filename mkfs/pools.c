/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See pools.h. A pool of its own is found among the mounts, wherever run= was; one that is a folder
 * of another tmpfs only in the folder where it is looked for.
 */
#include "pools.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
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

static uint64_t bytes_of(const char *path, bool mounted)
{
	struct statfs fs;
	DIR *d = mounted ? NULL : opendir(path);
	struct dirent *e;
	struct stat st;
	uint64_t sum = 0;

	if (mounted)
		return statfs(path, &fs) ? 0 : (fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize;
	while (d && (e = readdir(d)))
		if (!fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode))
			sum += (uint64_t)st.st_blocks * 512;
	if (d)
		closedir(d);
	return sum;
}

static void look(struct kvm_pool *p)
{
	p->marked = !kvc_owner_read(p->path, &p->owner);
	p->lives = p->marked && kvc_owner_lives(p->path);
	p->wanted = p->marked && wanted(&p->owner);
	p->bytes = bytes_of(p->path, p->mounted);
}

/* As /proc/self/mountinfo writes it: spaces and the like are octal there. */
static void unescape(const char *from, size_t len, char *to, size_t room)
{
	size_t n = 0;

	for (size_t i = 0; i < len && n + 1 < room; i++) {
		unsigned c = (unsigned char)from[i];

		if (c == '\\' && i + 3 < len && sscanf(from + i + 1, "%3o", &c) == 1)
			i += 3;
		to[n++] = (char)c;
	}
	to[n] = 0;
}

static int each_mounted(int (*fn)(void *arg, const struct kvm_pool *p), void *arg)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	KVC_MEM char *line = NULL;
	size_t room = 0;
	int got = f ? 0 : -errno;

	while (f && !got && getline(&line, &room, f) > 0) {
		struct kvm_pool p = { .mounted = true };
		const char *at = line;

		if (!strstr(line, " - tmpfs kvcachefs "))
			continue;
		for (int i = 0; i < 4 && at; i++) /* the fifth field is where it is mounted */
			at = (at = strchr(at, ' ')) ? at + 1 : NULL;
		if (!at)
			continue;
		unescape(at, strcspn(at, " "), p.path, sizeof p.path);
		look(&p);
		got = fn(arg, &p);
	}
	if (f)
		fclose(f);
	return got;
}

int kvm_pools_each(const char *folder, int (*fn)(void *arg, const struct kvm_pool *p), void *arg)
{
	const char *base = folder ?: "/run/kvcachefs";
	int got = each_mounted(fn, arg);
	DIR *d = got ? NULL : opendir(base);
	struct dirent *e;
	struct stat up, st;

	if (!got && !d && (folder || errno != ENOENT))
		got = -errno;
	while (!got && d && (e = readdir(d))) {
		struct kvm_pool p = { .mounted = false };

		if (e->d_name[0] == '.' || fstat(dirfd(d), &up) ||
		    fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
		    !S_ISDIR(st.st_mode) || st.st_dev != up.st_dev)
			continue; /* or one that is mounted: seen already */
		snprintf(p.path, sizeof p.path, "%s/%s", base, e->d_name);
		look(&p);
		if (p.marked)
			got = fn(arg, &p);
	}
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
		if ((strchr("wolp", e->d_name[0]) && e->d_name[1] == '-') ||
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

	if (p->lives)
		return -EBUSY;
	err = p->mounted ? (umount2(p->path, how) ? -errno : 0) : empty_folder(p->path);
	return err ?: rmdir(p->path) ? -errno : 0;
}
