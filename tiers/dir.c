/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dir tier, dir:///PATH: a folder on a filesystem that other nodes mount too (NFS, Lustre,
 * CephFS). Each frame is one file, PATH/HH/HEX, where HEX is the 32 digits of its name and HH the
 * first two. The file is written under a unique temporary name, synced and renamed, so many nodes
 * may write and a reader sees a whole frame or none.
 *
 * If the filesystem is not mounted, the folder looks empty. So the folder must be the one that the
 * tier used first: the same inode on the same device, or a folder with the same mark (dir_mark.c),
 * which the store remembers. In any other folder nothing is stored, and no frame counts as missing.
 *
 * Other nodes may put anything into the folder. Every call opens the folder again, descends without
 * following links, and reads regular files only. Anything else in the place of a frame is a damaged
 * frame. Only these calls wait for the filesystem; usage() reports values that an earlier call has
 * read.
 *
 * The tier's workers enter. One more thread checks the folder at mount, and one removes temporary
 * files (dir_temps.c).
 */
#include "dir.h"
#include "registry.h"

#include "log.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define PIECE (1u << 20)

#define USAGE_NS 1000000000ull /* time between two calls of statvfs */

struct first_check;

/* Identifies the folder that the tier used first. */
struct first_folder {
	dev_t dev; /* 0: not known yet */
	ino_t ino;
	char id[33]; /* the id of its mark; "": no mark, or it could not be read */
};

struct dir {
	struct kvc_tier tier;
	char path[512];
	_Atomic int refs;
	char *store; /* the store's folder, or NULL */
	/* the store's files are named after this: the store's uuid and the tier's id */
	char file_id[300];
	char remembered[33]; /* the mark that the store remembered at mount, or "" */
	struct kvct_dir_temps *temps;
	_Atomic uint64_t total, used, checked_ns;
	_Atomic bool wrong_folder; /* the log says that another folder is at the path */
	/* guards the members below; no call waits for the filesystem while holding it */
	pthread_mutex_t lock;
	struct first_folder first_folder;
	bool remembers;                 /* the store remembers the mark, or must not be written */
	struct first_check *late_check; /* a first check that did not finish in time, or NULL */
};

static struct dir *dir_of(struct kvc_tier *t)
{
	return kvc_of(t, struct dir, tier);
}

/* The first check of the folder, by a separate thread since the server may be dead. */
struct first_check {
	struct dir d; /* receives the result */
	int err;
	_Atomic bool done;
	_Atomic int refs;
};

static void first_check_put(struct first_check *l)
{
	if (l && atomic_fetch_sub(&l->refs, 1) == 1) {
		pthread_mutex_destroy(&l->d.lock);
		free(l);
	}
}

void kvct_dir_get(struct dir *d)
{
	atomic_fetch_add(&d->refs, 1);
}

void kvct_dir_put(struct dir *d)
{
	if (atomic_fetch_sub(&d->refs, 1) != 1)
		return;
	first_check_put(d->late_check);
	kvct_dir_temps_free(d->temps);
	pthread_mutex_destroy(&d->lock);
	free(d->store);
	free(d);
}

static int dir_start(struct kvc_tier *t)
{
	struct dir *d = dir_of(t);

	d->remembers = !d->store || *d->remembered; /* no other thread runs yet */
	return kvct_dir_temps_start(d->temps, d->store, d->file_id);
}

static void dir_stop(struct kvc_tier *t)
{
	kvct_dir_temps_stop(dir_of(t)->temps);
}

static void dir_close(struct kvc_tier *t)
{
	kvct_dir_put(dir_of(t));
}

/* The folder of a frame, and the name of its file. */
struct place {
	int root, sub; /* -1: not open */
	/* mode of new files: 0600, plus the folder's rights for its group and for others */
	mode_t mode;
	bool ours; /* root is the folder that the tier used first */
	char hex[33];
};

static void place_close(struct place *p)
{
	kvc_close_fd(&p->sub);
	kvc_close_fd(&p->root);
}

static void update_usage(struct dir *d, int root)
{
	struct statvfs v;

	if (fstatvfs(root, &v))
		return;
	atomic_store(&d->total, v.f_blocks * v.f_frsize);
	atomic_store(&d->used, (v.f_blocks - v.f_bfree) * v.f_frsize);
}

static void remember_folder(struct dir *d, const struct stat *st, const char *id)
{
	pthread_mutex_lock(&d->lock);
	d->first_folder.dev = st->st_dev;
	d->first_folder.ino = st->st_ino;
	if (id)
		memcpy(d->first_folder.id, id, sizeof d->first_folder.id);
	pthread_mutex_unlock(&d->lock);
}

/*
 * Reads the free space and the mark, once per second at most. Called from calls that wait for the
 * filesystem anyway.
 */
static void check_folder_state(struct dir *d, int root)
{
	uint64_t now = kvc_mono_ns();
	char id[33], its[33];

	if (atomic_load(&d->checked_ns) && now - atomic_load(&d->checked_ns) < USAGE_NS)
		return;
	atomic_store(&d->checked_ns, now);
	update_usage(d, root);
	pthread_mutex_lock(&d->lock);
	bool remembers = d->remembers;

	memcpy(id, d->first_folder.id, sizeof id);
	pthread_mutex_unlock(&d->lock);
	if (*id && faccessat(root, KVCT_DIR_MARK, F_OK, AT_SYMLINK_NOFOLLOW) && errno == ENOENT) {
		kvct_dir_mark_make(root, id); /* the mark was removed: create it again */
	} else if (*id && kvct_dir_mark_read(root, its) && strcmp(id, its)) {
		/* another filesystem has the same device number */
		remember_folder(d, &(struct stat){ 0 }, NULL);
		return;
	}
	if (!*id && !kvct_dir_mark_read(root, id)) {
		kvct_dir_mark_make(root, NULL);
		if (!kvct_dir_mark_read(root, id))
			return;
	}
	if (!remembers && !kvct_dir_mark_remember(d->store, d->file_id, id))
		remembers = true;
	pthread_mutex_lock(&d->lock);
	memcpy(d->first_folder.id, id, sizeof id);
	d->remembers = remembers;
	pthread_mutex_unlock(&d->lock);
}

/* Accepts the result of the first check, unless the store remembers another mark. */
static void first_check_adopt(struct dir *d, const struct dir *checked)
{
	if (!*d->first_folder.id || !strcmp(d->first_folder.id, checked->first_folder.id))
		d->first_folder = checked->first_folder;
}

/* Returns the identity of the folder, with the result of a late first check. */
static struct first_folder first_folder(struct dir *d)
{
	struct first_folder k;

	pthread_mutex_lock(&d->lock);
	if (!d->first_folder.dev && d->late_check && atomic_load(&d->late_check->done) &&
	    !d->late_check->err)
		first_check_adopt(d, &d->late_check->d);
	k = d->first_folder;
	pthread_mutex_unlock(&d->lock);
	return k;
}

/* Is this the folder that the tier used first, possibly mounted again? */
static bool is_ours(struct dir *d, int root)
{
	struct first_folder k = first_folder(d);
	struct stat st;
	char id[33];
	bool same;

	if (fstat(root, &st))
		return false;
	same = k.dev == st.st_dev && k.ino == st.st_ino;
	if (!same && kvct_dir_mark_read(root, id) && (*k.id ? !strcmp(k.id, id) : !k.dev)) {
		remember_folder(d, &st, id);
		same = true;
	}
	if (!same && !atomic_exchange(&d->wrong_folder, true))
		kvc_warn("tier dir: %s is not the folder that this store used before (its file %s "
			 "is missing or different): mount the share there. If the folder was "
			 "replaced on purpose, unmount, remove %s/dir-remotes, and mount again",
			 d->path, KVCT_DIR_MARK, d->store ? d->store : "STORE");
	if (same && atomic_exchange(&d->wrong_folder, false))
		kvc_info("tier dir: %s is available again", d->path);
	return same;
}

int kvct_dir_root(struct dir *d, int flags)
{
	int root = kvct_dir_openat(AT_FDCWD, d->path, flags);

	if (root < 0)
		return root;
	if (is_ours(d, root))
		return root;
	close(root);
	return -ENOTCONN;
}

enum { MAKE = 1, OURS = 2 };

/*
 * Returns the mode of new files. A folder that its group or everybody may write to is shared by
 * several users, and each of them must be able to read and replace the frames of the others.
 */
static mode_t mode_in(int root)
{
	struct stat st;

	if (fstat(root, &st))
		return 0600;
	return 0600 | (st.st_mode & S_IWGRP ? 0060 : 0) | (st.st_mode & S_IWOTH ? 0006 : 0);
}

/*
 * Creates a subfolder with the same rights as the files, whatever the umask is. It inherits the
 * set-group-ID bit.
 */
static int make_folder(int root, const char *name, mode_t mode)
{
	struct stat st;

	mode |= (mode & 0222) >> 1;
	if (mkdirat(root, name, mode))
		return errno == EEXIST ? 0 : -errno;
	KVC_FD int fd = openat(root, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd >= 0 && !fstat(fd, &st) && st.st_uid == geteuid())
		fchmod(fd, mode | (st.st_mode & S_ISGID));
	return 0;
}

/*
 * Opens the folder of a frame. MAKE: creates it if it is missing. OURS: only in the folder that the
 * tier used first.
 */
static int place_open_once(struct dir *d, const struct kvc_where *w, int how, struct place *p)
{
	const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
	char sub[3];
	int err = 0;

	kvc_frame_where_text(w, p->hex);
	snprintf(sub, sizeof sub, "%.2s", p->hex);
	p->sub = -1;
	p->ours = false;
	p->mode = 0600;
	p->root = open(d->path, flags);
	if (p->root < 0)
		return -errno;
	if (how & MAKE)
		p->mode = mode_in(p->root);
	p->ours = is_ours(d, p->root);
	if (p->ours)
		check_folder_state(d, p->root);
	else if (how & OURS)
		return -ENOTCONN;
	p->sub = openat(p->root, sub, flags | O_NOFOLLOW);
	if (p->sub < 0 && errno == ENOENT && (how & MAKE)) {
		err = make_folder(p->root, sub, p->mode);
		p->sub = err ? -1 : openat(p->root, sub, flags | O_NOFOLLOW);
	}
	return err ?: p->sub < 0 ? -errno : 0;
}

/* The same; tries again once if NFS reports a stale handle. */
static int place_open(struct dir *d, const struct kvc_where *w, int how, struct place *p)
{
	int err = place_open_once(d, w, how, p);

	if (err != -ESTALE)
		return err;
	place_close(p);
	return place_open_once(d, w, how, p);
}

/*
 * Maps an error of the filesystem to an error of tier.h. A frame can be missing or damaged only in
 * the tier's own folder: an NFS share that is no longer mounted has lost nothing.
 */
static int dir_error(const struct place *p, int err)
{
	if (err && p->root >= 0 && !p->ours)
		return -ENOTCONN;
	switch (err) {
	case -ENOENT: return p->root < 0 ? -ENOTCONN : err;
	case -ELOOP:
	case -EISDIR:
	case -ENXIO: return -EBADMSG; /* something else is in the frame's place */
	case -ENOTDIR: return p->root < 0 ? -ENOTCONN : -EBADMSG;
	case -EACCES:
	case -EPERM: return p->sub < 0 ? err : -EIO; /* about one file */
	case -ESTALE:
	case -ENOKEY:
	case -EPROTO: return -EIO; /* these have other meanings in the engine */
	default: return err;
	}
}

/*
 * Maps the error of a call that changes a folder: a permission error is about the folder, not about
 * one frame.
 */
static int dir_change_error(const struct place *p, int err)
{
	bool denied = err == -EACCES || err == -EPERM;

	return denied && p->root >= 0 && p->ours ? -EACCES : dir_error(p, err);
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

static int dir_put_file(struct dir *d, struct place *at, const struct kvc_put *p)
{
	const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	char tmp[KVCT_DIR_TEMP];
	int note = kvct_dir_temps_begin(d->temps, at->hex, tmp);
	int fd = openat(at->sub, tmp, flags, 0600), err = fd < 0 ? -errno : 0;
	bool gone = true;

	if (err == -ESTALE) {
		place_close(at);
		err = place_open(d, &p->name, MAKE | OURS, at);
		fd = err ? -1 : openat(at->sub, tmp, flags, 0600);
		err = err ?: fd < 0 ? -errno : 0;
	}

	if (err) { /* if the server's answer was lost, the file may exist */
		kvct_dir_temps_end(d->temps, note, tmp, err != -EIO && err != -ETIMEDOUT);
		return err;
	}
	err = at->mode != 0600 && fchmod(fd, at->mode) ? -errno : 0;
	err = err ?: write_all(fd, p);
	if (close(fd) && !err)
		err = -errno;
	if (!err && renameat(at->sub, tmp, at->sub, at->hex))
		err = -errno;
	if (err)
		gone = !unlinkat(at->sub, tmp, 0) || errno == ENOENT;
	kvct_dir_temps_end(d->temps, note, tmp, gone);
	return err;
}

static int dir_put(struct kvc_tier *t, const struct kvc_put *p, struct kvc_where *out)
{
	struct dir *d = dir_of(t);
	struct place at;
	int err = place_open(d, &p->name, MAKE | OURS, &at) ?: dir_put_file(d, &at, p);

	err = dir_change_error(&at, err);
	place_close(&at);
	if (err) /* do not remove something else that is in the frame's place */
		return err == -EBADMSG || err == -ENOENT ? -EIO : err;
	*out = p->name;
	out->len = KVC_FRAME_HEADER + kvc_round_up(p->stored_len, KVC_PAGE);
	return 0;
}

static int get_once(struct dir *d, const struct kvc_where *w, uint64_t off, const struct iovec *iov,
		    int n, struct place *at)
{
	KVC_FD int fd = -1;
	int err = place_open(d, w, 0, at);

	if (!err && (fd = kvct_dir_file(at->sub, at->hex)) < 0)
		err = fd;
	return err ?: kvct_dir_read(fd, iov, n, off);
}

static int dir_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		   const struct iovec *iov, int n)
{
	struct dir *d = dir_of(t);
	struct place at;
	struct stat st;
	int err = get_once(d, w, off, iov, n, &at);

	if (err == -ESTALE) { /* NFS: another node has replaced the file since the lookup */
		place_close(&at);
		err = get_once(d, w, off, iov, n, &at);
	}
	/* Without a mark, a frame of ours proves that this is the same folder, mounted again. */
	if (!err && !at.ours && !*first_folder(d).id && !fstat(at.root, &st))
		remember_folder(d, &st, NULL);
	err = dir_error(&at, err);
	place_close(&at);
	return err;
}

static int dir_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	struct dir *d = dir_of(t);
	struct place at;
	int err = place_open(d, w, OURS, &at);

	if (!err && unlinkat(at.sub, at.hex, 0))
		err = -errno;
	if (err == -ESTALE) {
		place_close(&at);
		err = place_open(d, w, OURS, &at) ?: unlinkat(at.sub, at.hex, 0) ? -errno : 0;
	}
	err = dir_change_error(&at, err);
	place_close(&at);
	return err == -ENOENT ? 0 : err == -EBADMSG ? -EIO : err;
}

/* The state of a list. */
struct listing {
	struct kvc_frame *f;
	uint8_t *page;
	/* the last error of a file or folder that could not be read; the others are listed */
	int unread;
	int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f);
	void *arg;
};

static int dir_list_file(const struct place *at, const char *name, struct listing *l)
{
	struct kvc_where w = { 0 };
	KVC_FD int fd = -1;
	unsigned long long a, b;
	int end = 0, err;

	if (strlen(name) != 32 || sscanf(name, "%16llx%16llx%n", &a, &b, &end) != 2 || end != 32)
		return 0;
	w.at = a;
	w.hi = b;
	fd = kvct_dir_file(at->sub, name);
	err = fd < 0 ? fd : kvc_pread_all(fd, l->page, KVC_FRAME_HEADER, 0);
	err = err == -ENODATA ? -EBADMSG : dir_error(at, err);
	if (err && !kvct_is_frame_error(err))
		l->unread = err;
	return err || kvc_frame_decode(l->page, l->f) ? 0 : l->fn(l->arg, &w, l->f);
}

static int list_folder(struct place *at, unsigned i, struct listing *l)
{
	struct dirent *e;
	int err = 0;
	char sub[3];
	DIR *dp;

	snprintf(sub, sizeof sub, "%02x", i);
	at->sub = kvct_dir_openat(at->root, sub, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
	dp = at->sub < 0 ? NULL : fdopendir(at->sub);
	if (!dp) {
		err = at->sub < 0 ? at->sub : -errno;
		if (err != -ENOENT && err != -ENOTDIR && err != -ELOOP)
			l->unread = dir_error(at, err);
		kvc_close_fd(&at->sub);
		return 0;
	}
	while (!err && (errno = 0, e = readdir(dp)))
		err = dir_list_file(at, e->d_name, l);
	if (!err && errno)
		l->unread = dir_error(at, -errno);
	closedir(dp);
	return err;
}

static int dir_list(struct kvc_tier *t,
		    int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		    void *arg)
{
	KVC_FD int root = kvct_dir_root(dir_of(t), O_PATH | O_DIRECTORY | O_CLOEXEC);
	KVC_MEM uint8_t *page = malloc(KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = malloc(sizeof *f);
	struct listing l = { .f = f, .page = page, .fn = fn, .arg = arg };
	struct place at = { .root = root, .ours = true };
	int err = root < 0 ? root : page && f ? 0 : -ENOMEM;

	for (unsigned i = 0; i < 256 && !err; i++)
		err = list_folder(&at, i, &l);
	return err ?: l.unread;
}

static void dir_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	struct dir *d = dir_of(t);

	*u = (struct kvc_tier_usage){
		.total = atomic_load(&d->total),
		.used = atomic_load(&d->used),
	};
}

static const struct kvc_tier_ops dir_ops = {
	.name = "dir",
	.caps = KVC_TIER_SHARED | KVC_TIER_DURABLE | KVC_TIER_MEDIA | KVC_TIER_PATIENT,
	.start = dir_start,
	.stop = dir_stop,
	.close = dir_close,
	.put = dir_put,
	.get = dir_get,
	.remove = dir_remove,
	.list = dir_list,
	.usage = dir_usage,
};

static void *first_check(void *arg)
{
	struct first_check *l = arg;
	KVC_FD int root = open(l->d.path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	if (root < 0 || fstat(root, &st) || access(l->d.path, R_OK | X_OK)) {
		l->err = -errno;
	} else {
		l->d.first_folder.dev = st.st_dev;
		l->d.first_folder.ino = st.st_ino;
		update_usage(&l->d, root);
		/*
		 * if the mark is missing the first call creates it; this mount may still be refused
		 */
		kvct_dir_mark_read(root, l->d.first_folder.id);
	}
	atomic_store(&l->done, true);
	first_check_put(l);
	return NULL;
}

/*
 * Is the path a readable folder? The first copy finds out whether it is writable. Also returns 0 if
 * no answer arrives before the deadline.
 */
static int check_folder(struct dir *d, uint64_t deadline_ms)
{
	uint64_t until = kvc_mono_ns() + deadline_ms * 1000000;
	struct first_check *l = calloc(1, sizeof *l);
	sigset_t all, old;
	pthread_t thread;
	int err = l ? 0 : -ENOMEM;

	if (err)
		return err;
	memcpy(l->d.path, d->path, sizeof d->path);
	pthread_mutex_init(&l->d.lock, NULL);
	atomic_store(&l->refs, 2);
	sigfillset(&all); /* signals are for the serving thread */
	pthread_sigmask(SIG_BLOCK, &all, &old);
	err = -pthread_create(&thread, NULL, first_check, l);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (err) {
		atomic_store(&l->refs, 1);
		first_check_put(l);
		return err;
	}
	if (kvc_join(thread, until)) {
		pthread_detach(thread);
		kvc_warn("tier dir: %s does not answer; the next access tries again", d->path);
		d->late_check = l;
		return 0;
	}
	if (!(err = l->err)) {
		first_check_adopt(d, &l->d);
		atomic_store(&d->total, atomic_load(&l->d.total));
		atomic_store(&d->used, atomic_load(&l->d.used));
	}
	first_check_put(l);
	return err;
}

int kvct_dir_open(const struct kvct_url *u, uint64_t deadline_ms, struct kvc_tier **out,
		  char *error)
{
	static const char *const params[] = { NULL };
	struct dir *d;
	int err;

	if (kvct_url_check(u, params, error))
		return -EINVAL;
	if (*u->host || !*u->path || strlen(u->path) + 2 > sizeof d->path) {
		snprintf(error, 512, "option remote: give the folder as dir:///PATH");
		return -EINVAL;
	}
	d = calloc(1, sizeof *d);
	if (!d) {
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	snprintf(d->path, sizeof d->path, "/%s", u->path);
	pthread_mutex_init(&d->lock, NULL);
	atomic_store(&d->refs, 1);
	d->temps = kvct_dir_temps_new(d);
	d->store = u->store ? strdup(u->store) : NULL;
	if (!d->temps || (u->store && !d->store)) {
		snprintf(error, 512, "out of memory");
		dir_close(&d->tier);
		return -ENOMEM;
	}
	snprintf(d->tier.id, sizeof d->tier.id, "dir:%.240s", d->path);
	snprintf(d->file_id, sizeof d->file_id, "%s %s", u->store_id ? u->store_id : "",
		 d->tier.id);
	d->remembers = true; /* tools do not write to the store */
	if (d->store && kvct_dir_mark_remembered(d->store, d->file_id, d->remembered))
		memcpy(d->first_folder.id, d->remembered, sizeof d->first_folder.id);
	err = check_folder(d, deadline_ms);
	if (err) {
		snprintf(error, 512,
			 "option remote: %s is not a readable folder; check the path and its "
			 "permissions",
			 d->path);
		dir_close(&d->tier);
		return err;
	}
	d->tier.ops = &dir_ops;
	*out = &d->tier;
	return 0;
}
