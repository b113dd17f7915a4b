/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool: a tmpfs of our own with one file (segment) for each object, all in one folder. The name
 * of a segment contains its state and so survives the daemon: KIND-INO-GEN with numbers in hex
 * (objects/node.h lists the kinds). If tmpfs cannot be mounted (no CAP_SYS_ADMIN) and run= is on a
 * tmpfs, a folder there is the pool, and only our account limits its size.
 *
 * The pool is named after the store's uuid. Copies of a store have the same uuid, so each copy gets
 * its own pool with a suffix .1, .2 and so on. The marks in the pools identify their owners
 * (base/owner.h).
 */
#include "pool.h"

#include "log.h"
#include "memory.h"
#include "options.h"
#include "owner.h"
#include "store.h"
#include "util.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>

/*
 * A passthrough write beyond the prepared size of its file takes pages that the account learns of
 * only at the close. A sixteenth of the tmpfs, and at most this much, is kept out of the account
 * for such growth.
 */
#define GROWTH_MAX (256ull << 20)
#define UNSYNCED ".unsynced" /* see kvc_pool_set_unsynced() */
#define MARKS (1u << 20)     /* for the new mark in a pool that exceeds its limit */
#define COPIES 256           /* maximum number of pools in one folder of copies of one store */

/* how to fix a refused run= */
#define NO_RIGHT \
	" (run as root, or give run= a folder of your own on a tmpfs, such as /dev/shm/kvcachefs)"

static bool is_tmpfs(const char *path)
{
	struct statfs s;

	return !statfs(path, &s) && s.f_type == TMPFS_MAGIC;
}

/*
 * Is path the root of a tmpfs mount? Returns 1, 0 (also if path does not exist), or a negative
 * errno.
 */
static int is_own_tmpfs(const char *path)
{
	char up[600];
	struct stat a, b;
	struct statfs s;

	if (stat(path, &a))
		return errno == ENOENT ? 0 : -errno;
	snprintf(up, sizeof up, "%s/..", path);
	if (stat(up, &b) || (a.st_dev != b.st_dev && statfs(path, &s)))
		return -errno;
	return a.st_dev != b.st_dev && s.f_type == TMPFS_MAGIC;
}

/*
 * Makes the folder of run= if only its last component is missing. A missing parent is more likely a
 * typing error than a request for new folders.
 */
static int make_run_dir(const char *path, bool *made, char *error)
{
	char up[600];
	size_t n = strlen(path);
	int err;

	*made = !mkdir(path, 0755);
	err = *made || errno == EEXIST ? 0 : -errno;
	if (*made)
		kvc_info("created the folder %s for pools", path);
	if (!err || !access(path, F_OK))
		return 0;
	while (n > 1 && path[n - 1] == '/')
		n--;
	while (n > 1 && path[n - 1] != '/')
		n--;
	while (n > 1 && path[n - 1] == '/')
		n--;
	snprintf(up, sizeof up, "%.*s", (int)n, path);
	if (err == -ENOENT && access(up, F_OK) && errno == ENOENT)
		snprintf(error, 512,
			 "cannot create the folder run=%s: %s does not exist; create it, or give "
			 "another run=",
			 path, up);
	else if (err == -EACCES || err == -EPERM)
		snprintf(error, 512, "cannot create the folder run=%s: %s%s", path, strerror(-err),
			 NO_RIGHT);
	else
		snprintf(error, 512, "cannot create the folder run=%s: %s", path, kvc_why(-err));
	return err;
}

/* Returns 1 if the folder is empty or does not exist, 0 if it is not empty, or a negative errno. */
static int is_empty(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;
	int empty = 1;

	if (!d)
		return errno == ENOENT ? 1 : -errno;
	while (empty == 1 && (errno = 0, e = readdir(d)))
		empty = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
	if (empty == 1 && errno)
		empty = -errno;
	closedir(d);
	return empty;
}

/*
 * Chooses the pool of this store among those of its copies, or an unused name. The caller holds the
 * lock of the folder until the pool is marked. A pool whose mark cannot be read is an error: it may
 * be ours and hold the only copies of files.
 */
static int choose(struct kvc_pool *p, const struct kvc_options *o, const struct kvc_owner *us,
		  char *error)
{
	struct kvc_owner its = { .dir = "" }, first = { .dir = "" };
	char path[sizeof p->path];

	*p->path = 0;
	for (unsigned n = 0; n < COPIES; n++) {
		int err, empty = 0;

		snprintf(path, sizeof path, "%s/%s", o->run_dir, us->uuid);
		if (n)
			snprintf(path + strlen(path), 8, ".%u", n);
		err = kvc_owner_read(path, &its);
		if (!err && kvc_owner_same(&its, us)) {
			memcpy(p->path, path, sizeof path);
			p->found = true;
			return 0;
		}
		if (err == -ENOENT && (empty = is_empty(path)) < 0)
			err = empty;
		if (err && err != -ENOENT) {
			snprintf(error, 512, "cannot find the owner of the pool %s: %s", path,
				 kvc_why(-err));
			return err;
		}
		/* an unused name; or the first, with an earlier daemon's pool that has no mark */
		if (err == -ENOENT && (empty || !n) && !*p->path) {
			memcpy(p->path, path, sizeof path);
			p->found = !empty;
		} else if (!err && !n) {
			first = its;
		}
	}
	if (!*p->path) {
		snprintf(error, 512,
			 "cannot create a pool below %s: %u copies of this store have pools there",
			 o->run_dir, COPIES);
		return -EMFILE;
	}
	if (*first.dir)
		kvc_info("the store %s is a copy of the store at %s: it gets its own pool, %s",
			 us->dir, first.dir, p->path);
	return 0;
}

/* Mounts the tmpfs with those of the wanted options that this kernel supports. */
static int mount_tmpfs(struct kvc_pool *p, const struct kvc_options *o, uint64_t size,
		       unsigned long flags)
{
	char mpol[80] = "", data[512];
	int err = 0;

	if (*o->numa) {
		snprintf(mpol, sizeof mpol, ",mpol=%s", o->numa);
		for (char *c = mpol + 1; *c; c++)
			if (*c == ';')
				*c = ',';
	}
	for (int without = 0; without < 4; without++) {
		p->huge = !(without & 1) && strcmp(kvc_options_huge_names[o->huge], "never");
		p->noswap = !(without & 2);
		snprintf(data, sizeof data, "size=%" PRIu64 ",nr_inodes=0,mode=0700%s%s%s%s", size,
			 without & 1 ? "" : ",huge=",
			 without & 1 ? "" : kvc_options_huge_names[o->huge],
			 p->noswap ? ",noswap" : "", mpol);
		if (!mount("kvcachefs", p->path, "tmpfs", flags | MS_NOSUID | MS_NODEV | MS_NOEXEC,
			   data))
			return 0;
		err = -errno;
		if (err != -EINVAL)
			break;
	}
	return err;
}

/*
 * Can the machine and the daemon's memory cgroup provide the memory that the pool does not have
 * yet?
 */
static int fits(const struct kvc_pool *p, uint64_t there, char *error)
{
	uint64_t avail, group = kvc_memory_group_max();
	char a[32], b[32];

	avail = kvc_memory_available();
	if (p->size > there && p->size - there > avail) {
		snprintf(error, 512,
			 "cpu=%s is more than this machine's free memory (%s); give a smaller cpu=",
			 kvc_size_text(p->size, a), kvc_size_text(avail + there, b));
		return -ENOMEM;
	}
	if (p->size > group) {
		snprintf(error, 512,
			 "cpu=%s is more than the daemon's memory cgroup allows (%s); give a "
			 "smaller cpu=, or a larger memory.max to the cgroup",
			 kvc_size_text(p->size, a), kvc_size_text(group, b));
		return -ENOMEM;
	}
	return 0;
}

/*
 * Does the tmpfs that contains the pool's folder have enough space? The tmpfs of a container is
 * often small.
 */
static int shares(const struct kvc_pool *p, char *error)
{
	DIR *d = opendir(p->path);
	uint64_t there = 0, capacity;
	struct dirent *e;
	struct statfs st;
	struct stat file;
	char a[32], b[32];

	while (d && (e = readdir(d)))
		if (!fstatat(dirfd(d), e->d_name, &file, AT_SYMLINK_NOFOLLOW))
			there += (uint64_t)file.st_blocks * 512;
	if (d)
		closedir(d);
	if (statfs(p->path, &st) || !st.f_blocks) /* a tmpfs without a limit */
		return 0;
	capacity = there + st.f_bavail * (uint64_t)st.f_bsize;
	if (p->size <= capacity)
		return 0;
	snprintf(error, 512,
		 "cpu=%s is more than the tmpfs at %s has free (%s); give a smaller cpu=, or "
		 "enlarge the tmpfs (mount -o remount,size=; a container's shm size)",
		 kvc_size_text(p->size, a), p->path, kvc_size_text(capacity, b));
	if (!there)
		rmdir(p->path);
	return -ENOMEM;
}

/*
 * Is the tmpfs mounted already, and how much does it hold? A second mount over it would hide its
 * contents.
 */
static int look(struct kvc_pool *p, uint64_t *there, char *error)
{
	int is = is_own_tmpfs(p->path);
	struct statfs st;

	p->mounted = is > 0;
	p->found |= p->mounted;
	if (p->mounted && statfs(p->path, &st))
		is = -errno;
	if (is < 0)
		snprintf(error, 512, "cannot examine the pool %s: %s", p->path, kvc_why(-is));
	else if (is)
		*there = (st.f_blocks - st.f_bfree) * (uint64_t)st.f_bsize;
	return is < 0 ? is : 0;
}

/* Chooses the pool and mounts its tmpfs. The folder is locked. */
static int open_locked(struct kvc_pool *p, const struct kvc_options *o, const struct kvc_owner *us,
		       char *error)
{
	uint64_t there = 0;
	int err;

	p->size = o->cpu_bytes / KVC_PAGE * KVC_PAGE;
	p->bytes = p->size - kvc_min(p->size / 16, GROWTH_MAX) / KVC_PAGE * KVC_PAGE;
	if ((err = choose(p, o, us, error)) || (err = look(p, &there, error)) ||
	    (err = fits(p, there, error)))
		return err;
	if (mkdir(p->path, 0700) && errno != EEXIST) {
		err = -errno;
		if (err == -EACCES || err == -EPERM)
			snprintf(error, 512, "cannot create %s for the pool: %s%s", p->path,
				 strerror(-err), NO_RIGHT);
		else
			snprintf(error, 512, "cannot create %s for the pool: %s", p->path,
				 kvc_why(-err));
		return err;
	}
	p->large = there > p->size;
	err = mount_tmpfs(p, o, p->large ? there + MARKS : p->size, p->mounted ? MS_REMOUNT : 0);
	if (p->large && !err)
		kvc_info("the pool %s is larger than cpu=: the coldest chunks are evicted before "
			 "new data is accepted",
			 p->path);
	if (err == -EPERM && is_tmpfs(p->path)) {
		if ((err = shares(p, error)))
			return err;
		kvc_info("no permission to mount a tmpfs: the pool is a folder of the tmpfs at %s",
			 o->run_dir);
		p->noswap = p->huge = false;
	} else if (!err) {
		p->mounted = true;
	}
	if (err) {
		snprintf(error, 512, "cannot mount the pool's tmpfs at %s: %s%s", p->path,
			 strerror(-err), err == -EPERM ? NO_RIGHT : "");
		if (err == -EINVAL && *o->numa)
			snprintf(
				error + strlen(error), 512 - strlen(error),
				"; numa=%s must be a policy of this machine; see mpol= in tmpfs(5)",
				o->numa);
		rmdir(p->path);
		return err;
	}
	p->mark = kvc_owner_mark(p->path, us);
	p->dir = p->mark < 0 ? p->mark : open(p->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (p->dir < 0) {
		err = p->mark < 0 ? p->mark : -errno;
		p->dir = -1;
		snprintf(error, 512, "cannot open the pool %s: %s", p->path, kvc_why(-err));
		kvc_pool_close(p, p->found);
	}
	if (!err && !faccessat(p->dir, UNSYNCED, F_OK, AT_SYMLINK_NOFOLLOW))
		atomic_store(&p->unsynced, true);
	return err;
}

int kvc_pool_open(struct kvc_pool *p, const struct kvc_options *o, const struct kvc_store *s,
		  char *error)
{
	struct kvc_owner us;
	KVC_FD int folder = -1;
	bool made;
	int err;

	memset(p, 0, sizeof *p);
	p->dir = p->mark = -1;
	if ((err = kvc_owner_of(s, s->lock_fd, &us))) {
		snprintf(error, 512, "cannot examine the superblock of %s: %s", s->dir,
			 strerror(-err));
		return err;
	}
	if ((err = make_run_dir(o->run_dir, &made, error)))
		return err;
	/* if the folder cannot be opened for one of these reasons, open_locked reports it */
	folder = open(o->run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0 ? errno != ENOENT && errno != ENOTDIR && errno != EACCES
		       : flock(folder, LOCK_EX)) {
		err = -errno;
		snprintf(error, 512, "cannot lock %s: %s", o->run_dir, kvc_why(-err));
		return err;
	}
	err = open_locked(p, o, &us, error);
	if (err && made)
		rmdir(o->run_dir);
	return err;
}

void kvc_pool_shrink(struct kvc_pool *p)
{
	char data[64];

	if (!p->large)
		return;
	snprintf(data, sizeof data, "size=%" PRIu64 "%s", p->size, p->noswap ? ",noswap" : "");
	p->large = mount("kvcachefs", p->path, "tmpfs",
			 MS_REMOUNT | MS_NOSUID | MS_NODEV | MS_NOEXEC, data);
}

uint64_t kvc_pool_real_used(const struct kvc_pool *p)
{
	struct statfs s;

	return p->mounted && !fstatfs(p->dir, &s) ? (s.f_blocks - s.f_bfree) * (uint64_t)s.f_bsize
						  : 0;
}

/* Removes the segments of a pool that is a folder: an unmount does not remove them. */
static void remove_segments(struct kvc_pool *p)
{
	int fd = openat(p->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct kvc_segment s;
	struct dirent *e;

	if (!d && fd >= 0)
		close(fd);
	while (d && (e = readdir(d)))
		if (kvc_pool_segment_parse(e->d_name, &s))
			unlinkat(p->dir, e->d_name, 0);
	if (d)
		closedir(d);
}

void kvc_pool_set_unsynced(struct kvc_pool *p, bool on)
{
	int fd;

	if (atomic_exchange(&p->unsynced, on) == on)
		return;
	if (!on) {
		unlinkat(p->dir, UNSYNCED, 0);
		return;
	}
	fd = openat(p->dir, UNSYNCED, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		kvc_warn("cannot record in the pool %s that a sync has failed: %s; if the daemon "
			 "is killed, run kvcachectl verify after the next mount",
			 p->path, strerror(errno));
	else
		close(fd);
}

bool kvc_pool_is_unsynced(const struct kvc_pool *p)
{
	return atomic_load(&p->unsynced);
}

void kvc_pool_close(struct kvc_pool *p, bool keep)
{
	char mark[600];

	if (!keep && !p->mounted) {
		remove_segments(p);
		kvc_pool_set_unsynced(p, false);
	}
	if (p->dir >= 0)
		close(p->dir);
	p->dir = -1;
	if (!keep && !p->mounted) {
		snprintf(mark, sizeof mark, "%s/" KVC_OWNER_MARK, p->path);
		unlink(mark);
	}
	if (p->mark >= 0)
		close(p->mark);
	p->mark = -1;
	if (keep)
		return;
	if (p->mounted && umount2(p->path, MNT_DETACH))
		kvc_warn("cannot unmount the pool %s: %s", p->path, strerror(errno));
	if (rmdir(p->path) && errno != ENOENT)
		kvc_warn("cannot remove the folder %s of the pool: %s; remove it when no kvcachefs "
			 "uses it",
			 p->path, strerror(errno));
}

/* Writes at most 36 bytes to buf, which has 48. Called for each create, publish and unlink. */
static const char *segment_name(const struct kvc_segment *s, char *buf)
{
	char *end = buf;

	*end++ = s->kind;
	*end++ = '-';
	end = kvc_put_hex(end, s->ino);
	*end++ = '-';
	*kvc_put_hex(end, s->gen) = 0;
	return buf;
}

/*
 * Parses "-" and a hex number at *p and moves *p past it. The caller detects errors by writing the
 * name again and comparing it.
 */
static uint64_t parse_hex(const char **p)
{
	static const char digits[] = "0123456789abcdef";
	const char *at = *p + (**p == '-'), *d;
	uint64_t n = 0;

	for (; *at && (d = strchr(digits, *at)); at++)
		n = n << 4 | (uint64_t)(d - digits);
	*p = at;
	return n;
}

bool kvc_pool_segment_parse(const char *name, struct kvc_segment *s)
{
	const char *at = name + (*name != 0);
	char check[48];

	s->kind = *name;
	s->ino = parse_hex(&at);
	s->gen = parse_hex(&at);
	return s->kind && strchr("wolp", s->kind) && !strcmp(segment_name(s, check), name);
}

int kvc_pool_segment_open(struct kvc_pool *p, const struct kvc_segment *s, int flags)
{
	char name[48];
	int fd = openat(p->dir, segment_name(s, name), flags | O_CLOEXEC | O_NOFOLLOW, 0600);

	return fd < 0 ? -errno : fd;
}

int kvc_pool_segment_mark(struct kvc_pool *p, const struct kvc_segment *s, bool decoded)
{
	mode_t mode = 0600 | (decoded ? KVC_SEGMENT_DECODED : 0);
	char name[48];

	return fchmodat(p->dir, segment_name(s, name), mode, 0) ? -errno : 0;
}

int kvc_pool_segment_stat(struct kvc_pool *p, const struct kvc_segment *s, struct stat *st)
{
	char name[48];

	return fstatat(p->dir, segment_name(s, name), st, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
}

int kvc_pool_segment_rename(struct kvc_pool *p, const struct kvc_segment *from,
			    const struct kvc_segment *to)
{
	char a[48], b[48];

	return renameat(p->dir, segment_name(from, a), p->dir, segment_name(to, b)) ? -errno : 0;
}

int kvc_pool_segment_remove(struct kvc_pool *p, const struct kvc_segment *s)
{
	char name[48];

	return unlinkat(p->dir, segment_name(s, name), 0) ? -errno : 0;
}

/*
 * A mapping of a passthrough file outlives its FUSE file, and the daemon does not learn when it
 * ends. The kernel counts such users of the segment, and an attempt to take a lease shows them:
 * F_RDLCK fails while another process may write, F_WRLCK while another process has the segment
 * open. If the attempt fails for lack of memory or descriptors, the segment counts as in use. If
 * leases are disabled (fs.leases-enable), the kernel has looked for users before it refuses.
 */
static bool leased(int fd, int how)
{
	if (fcntl(fd, F_SETLEASE, how))
		return errno != EAGAIN && errno != ENOMEM;
	fcntl(fd, F_SETLEASE, F_UNLCK);
	return true;
}

bool kvc_pool_segment_in_use(struct kvc_pool *p, const struct kvc_segment *s, bool for_writing)
{
	KVC_FD int fd = kvc_pool_segment_open(p, s, O_RDONLY);

	return fd < 0 ? fd != -ENOENT : !leased(fd, for_writing ? F_RDLCK : F_WRLCK);
}
