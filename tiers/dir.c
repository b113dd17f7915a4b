/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dir tier, dir:///PATH: a folder on a filesystem that other nodes mount too (NFS, Lustre,
 * CephFS). Each frame is one file, PATH/HH/HEX, HEX the 32 digits of its name and HH the first two.
 * It is written under a temporary name of its own, brought to stable storage and renamed, so many
 * writers are safe and a reader sees a whole frame or none.
 *
 * No state but the folder: every call stands for itself.
 */
#include "registry.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define PIECE (1u << 20)

struct dir {
	struct kvc_tier tier;
	char path[512];
	char host[65]; /* part of temporary names */
	_Atomic unsigned long count;
};

static struct dir *of(struct kvc_tier *t)
{
	return kvc_of(t, struct dir, tier);
}

static void file_of(const struct dir *d, const struct kvc_where *w, char *buf, size_t room)
{
	char hex[33];

	kvc_where_text(w, hex);
	snprintf(buf, room, "%s/%.2s/%s", d->path, hex, hex);
}

static void dir_close(struct kvc_tier *t)
{
	free(of(t));
}

static int write_all(int fd, const struct kvc_put *p)
{
	KVC_MEM uint8_t *buf = aligned_alloc(KVC_PAGE, PIECE);
	int err = buf ? 0 : -ENOMEM;

	for (uint64_t off = 0; off < p->stored_len && !err;) {
		size_t len = kvc_min(p->stored_len - off, PIECE);

		err = p->read(p->arg, buf, len, off)
			      ?: kvc_pwrite_all(fd, buf, len, (off_t)(KVC_FRAME_HEADER + off));
		off += len;
	}
	err = err ?: p->head(p->arg, buf) ?: kvc_pwrite_all(fd, buf, KVC_FRAME_HEADER, 0);
	return err ?: fdatasync(fd) ? -errno : 0;
}

static int dir_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct dir *d = of(t);
	char path[700], tmp[900];
	int fd, err;

	file_of(d, &p->name, path, sizeof path);
	snprintf(tmp, sizeof tmp, "%s.tmp.%s.%d.%lu", path, d->host, (int)getpid(),
		 atomic_fetch_add(&d->count, 1));
	fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 && errno == ENOENT) {
		char *slash = strrchr(path, '/');

		*slash = 0;
		if (mkdir(path, 0700) && errno != EEXIST)
			return -errno;
		*slash = '/';
		fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	}
	if (fd < 0)
		return -errno;
	err = write_all(fd, p);
	if (close(fd) && !err)
		err = -errno;
	if (!err && rename(tmp, path))
		err = -errno;
	if (err) {
		unlink(tmp);
		return err;
	}
	*out = p->name;
	out->len = KVC_FRAME_HEADER + kvc_round_up(p->stored_len, KVC_PAGE);
	return 0;
}

/* Beyond the end of the frame, up to its last page, are zeros. */
static int read_padded(int fd, const struct iovec *iov, int n, uint64_t off)
{
	struct stat st;
	uint64_t end;

	if (fstat(fd, &st))
		return -errno;
	end = kvc_round_up((uint64_t)st.st_size, KVC_PAGE);
	for (int i = 0; i < n; i++) {
		uint64_t want = iov[i].iov_len,
			 have = off < (uint64_t)st.st_size
					? kvc_min(want, (uint64_t)st.st_size - off)
					: 0;
		int err;

		if (off + want > end)
			return -EBADMSG;
		if (have && (err = kvc_pread_all(fd, iov[i].iov_base, have, (off_t)off)))
			return err == -ENODATA ? -EBADMSG : err;
		memset((char *)iov[i].iov_base + have, 0, want - have);
		off += want;
	}
	return 0;
}

static int dir_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		   const struct iovec *iov, int n)
{
	char path[700];
	KVC_FD int fd = -1;

	file_of(of(t), w, path, sizeof path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -errno : read_padded(fd, iov, n, off);
}

static int dir_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	char path[700];

	file_of(of(t), w, path, sizeof path);
	return unlink(path) && errno != ENOENT ? -errno : 0;
}

static int list_one(struct dir *d, const char *sub, const char *name, uint8_t *page,
		    struct kvc_frame *f,
		    int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		    void *arg)
{
	struct kvc_where w = { 0 };
	char path[1024];
	KVC_FD int fd = -1;
	unsigned long long a, b;
	int end = 0;

	if (strlen(name) != 32 || sscanf(name, "%16llx%16llx%n", &a, &b, &end) != 2 || end != 32)
		return 0;
	w.at = a;
	w.hi = b;
	snprintf(path, sizeof path, "%s/%s/%s", d->path, sub, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || kvc_pread_all(fd, page, KVC_FRAME_HEADER, 0) || kvc_frame_decode(page, f))
		return 0;
	return fn(arg, &w, f);
}

static int dir_list(struct kvc_tier *t,
		    int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		    void *arg)
{
	struct dir *d = of(t);
	KVC_MEM uint8_t *page = malloc(KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = malloc(sizeof *f);
	int err = page && f ? 0 : -ENOMEM;

	for (unsigned i = 0; i < 256 && !err; i++) {
		char sub[3], path[700];
		struct dirent *e;
		DIR *dp;

		snprintf(sub, sizeof sub, "%02x", i);
		snprintf(path, sizeof path, "%s/%s", d->path, sub);
		dp = opendir(path);
		while (dp && !err && (e = readdir(dp)))
			err = list_one(d, sub, e->d_name, page, f, fn, arg);
		if (dp)
			closedir(dp);
	}
	return err;
}

static void dir_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	struct statvfs v;

	*u = (struct kvc_tier_usage){ 0 };
	if (!statvfs(of(t)->path, &v)) {
		u->total = v.f_blocks * v.f_frsize;
		u->used = (v.f_blocks - v.f_bfree) * v.f_frsize;
	}
}

static const struct kvc_tier_ops dir_ops = {
	.name = "dir",
	.caps = KVC_TIER_SHARED | KVC_TIER_DURABLE | KVC_TIER_MEDIA | KVC_TIER_PATIENT,
	.close = dir_close,
	.put = dir_put,
	.get = dir_get,
	.remove = dir_remove,
	.list = dir_list,
	.usage = dir_usage,
};

int kvct_dir_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		  char *error)
{
	static const char *const params[] = { NULL };
	struct dir *d;
	struct stat st;
	int err = 0;

	/* A filesystem's calls cannot have one: its own mount options do (soft, timeo= for NFS). */
	(void)deadline_ms;
	if (kvct_url_check(u, params, error))
		return -EINVAL;
	if (*u->host || !*u->path || strlen(u->path) + 2 > sizeof d->path) {
		snprintf(error, 512, "option remote: a folder is given as dir:///PATH");
		return -EINVAL;
	}
	d = calloc(1, sizeof *d);
	if (!d) {
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	snprintf(d->path, sizeof d->path, "/%s", u->path);
	if (stat(d->path, &st))
		err = -errno;
	else if (!S_ISDIR(st.st_mode))
		err = -ENOTDIR;
	else if (access(d->path, R_OK | W_OK | X_OK))
		err = -errno;
	if (err) {
		snprintf(error, 512, "option remote: %s is no folder that can be written to",
			 d->path);
		free(d);
		return err;
	}
	if (gethostname(d->host, sizeof d->host - 1))
		snprintf(d->host, sizeof d->host, "node");
	snprintf(d->tier.id, sizeof d->tier.id, "dir:%.240s", d->path);
	d->tier.ops = &dir_ops;
	*out = &d->tier;
	return 0;
}
