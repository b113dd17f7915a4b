/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dir tier, dir:///PATH: a folder on a filesystem that other nodes mount too (NFS, Lustre,
 * CephFS). Each frame is one file, PATH/HH/HEX, HEX the 32 digits of its name and HH the first two.
 * It is written under a temporary name of its own, brought to stable storage and renamed, so many
 * writers are safe and a reader sees a whole frame or none.
 *
 * A folder below which no filesystem is mounted looks like an empty one. So it has to be the folder
 * that was there at first: the same inode on the same device, or one with the same mark
 * (dir_mark.c), which the store remembers. In another folder nothing is put, and nothing is
 * missing.
 *
 * Others write there too: every call opens the folder anew, goes down from it without following
 * links, and reads regular files only. What they put in a frame's place is a damaged frame. Nothing
 * waits for the filesystem but these calls: what usage() tells is as of one of them.
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

#define LOOK_NS 1000000000ull /* between two looks at how full it is */

struct first_look;

/* The folder that was there at first. */
struct known {
	dev_t dev; /* 0: not seen yet */
	ino_t ino;
	char id[33]; /* of its mark; "": it has none, or it could not be read */
};

struct dir {
	struct kvc_tier tier;
	char path[512];
	_Atomic int refs;
	char *store;         /* the store's folder, or NULL */
	char kept_as[300];   /* what the store's files are named after: its uuid and the tier */
	char remembered[33]; /* the mark that the store knew at the start, or "" */
	struct kvct_dir_temps *temps;
	_Atomic uint64_t total, used, looked_ns;
	_Atomic bool elsewhere; /* it was said that another folder is there */
	pthread_mutex_t lock;   /* of what follows; no call waits for the filesystem under it */
	struct known known;
	bool remembers;          /* the store remembers the mark, or is not to be told */
	struct first_look *late; /* it was not back in time; or NULL */
};

static struct dir *of(struct kvc_tier *t)
{
	return kvc_of(t, struct dir, tier);
}

/* The first look at the folder, by a thread of its own: its server may be dead. */
struct first_look {
	struct dir d; /* what it learns of it */
	int err;
	_Atomic bool done;
	_Atomic int refs;
};

static void drop_look(struct first_look *l)
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
	drop_look(d->late);
	kvct_dir_temps_free(d->temps);
	pthread_mutex_destroy(&d->lock);
	free(d->store);
	free(d);
}

static int dir_start(struct kvc_tier *t)
{
	struct dir *d = of(t);

	d->remembers = !d->store || *d->remembered; /* no other thread is there yet */
	return kvct_dir_temps_start(d->temps, d->store, d->kept_as);
}

static void dir_stop(struct kvc_tier *t)
{
	kvct_dir_temps_stop(of(t)->temps);
}

static void dir_close(struct kvc_tier *t)
{
	kvct_dir_put(of(t));
}

/* A frame's folder and its file's name in it. */
struct place {
	int root, sub; /* -1: not open */
	mode_t mode;   /* of what is made there: 0600, and for a group or all as root is writable */
	bool ours;     /* root is the folder that was there at first */
	char hex[33];
};

static void leave(struct place *p)
{
	kvc_close_fd(&p->sub);
	kvc_close_fd(&p->root);
}

static void measure(struct dir *d, int root)
{
	struct statvfs v;

	if (fstatvfs(root, &v))
		return;
	atomic_store(&d->total, v.f_blocks * v.f_frsize);
	atomic_store(&d->used, (v.f_blocks - v.f_bfree) * v.f_frsize);
}

static void know(struct dir *d, const struct stat *st, const char *id)
{
	pthread_mutex_lock(&d->lock);
	d->known.dev = st->st_dev;
	d->known.ino = st->st_ino;
	if (id)
		memcpy(d->known.id, id, sizeof d->known.id);
	pthread_mutex_unlock(&d->lock);
}

/* Now and then, from calls that wait for the filesystem anyway: how full it is, and its mark. */
static void look(struct dir *d, int root)
{
	uint64_t now = kvc_mono_ns();
	char id[33], its[33];

	if (atomic_load(&d->looked_ns) && now - atomic_load(&d->looked_ns) < LOOK_NS)
		return;
	atomic_store(&d->looked_ns, now);
	measure(d, root);
	pthread_mutex_lock(&d->lock);
	bool remembers = d->remembers;

	memcpy(id, d->known.id, sizeof id);
	pthread_mutex_unlock(&d->lock);
	if (*id && faccessat(root, KVCT_DIR_MARK, F_OK, AT_SYMLINK_NOFOLLOW) && errno == ENOENT) {
		kvct_dir_mark_make(root, id); /* somebody has removed it */
	} else if (*id && kvct_dir_mark_read(root, its) && strcmp(id, its)) {
		know(d, &(struct stat){ 0 }, NULL); /* the device's number was given again */
		return;
	}
	if (!*id && !kvct_dir_mark_read(root, id)) {
		kvct_dir_mark_make(root, NULL);
		if (!kvct_dir_mark_read(root, id))
			return;
	}
	if (!remembers && !kvct_dir_mark_remember(d->store, d->kept_as, id))
		remembers = true;
	pthread_mutex_lock(&d->lock);
	memcpy(d->known.id, id, sizeof id);
	d->remembers = remembers;
	pthread_mutex_unlock(&d->lock);
}

/* The first look counts, unless the store remembers another mark. */
static void adopt_look(struct dir *d, const struct dir *look)
{
	if (!*d->known.id || !strcmp(d->known.id, look->known.id))
		d->known = look->known;
}

/* What is known of the folder by now; the first look was at the one that was there then. */
static struct known known(struct dir *d)
{
	struct known k;

	pthread_mutex_lock(&d->lock);
	if (!d->known.dev && d->late && atomic_load(&d->late->done) && !d->late->err)
		adopt_look(d, &d->late->d);
	k = d->known;
	pthread_mutex_unlock(&d->lock);
	return k;
}

/* Is it the folder that was there at first, maybe mounted anew? */
static bool is_ours(struct dir *d, int root)
{
	struct known k = known(d);
	struct stat st;
	char id[33];
	bool same;

	if (fstat(root, &st))
		return false;
	same = k.dev == st.st_dev && k.ino == st.st_ino;
	if (!same && kvct_dir_mark_read(root, id) && (*k.id ? !strcmp(k.id, id) : !k.dev)) {
		know(d, &st, id);
		same = true;
	}
	if (!same && !atomic_exchange(&d->elsewhere, true))
		kvc_warn("tier dir: %s is not the folder that this store used before (its mark %s "
			 "is missing or different): mount the share there. If the folder was "
			 "replaced on purpose, unmount, remove %s/dir-remotes, and mount again",
			 d->path, KVCT_DIR_MARK, d->store ? d->store : "STORE");
	if (same && atomic_exchange(&d->elsewhere, false))
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
 * The mode of new files. A folder that its group, or everybody, may write to is shared by several
 * users: each of them has to read and replace the frames of the others.
 */
static mode_t mode_in(int root)
{
	struct stat st;

	if (fstat(root, &st))
		return 0600;
	return 0600 | (st.st_mode & S_IWGRP ? 0060 : 0) | (st.st_mode & S_IWOTH ? 0006 : 0);
}

/* With the same rights as its files, whatever the umask is. It inherits a set-group-ID bit. */
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

/* Opens the folder of a frame; MAKE: it is made where it is missing; OURS: in our folder only. */
static int enter_once(struct dir *d, const struct kvc_where *w, int how, struct place *p)
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
		look(d, p->root);
	else if (how & OURS)
		return -ENOTCONN;
	p->sub = openat(p->root, sub, flags | O_NOFOLLOW);
	if (p->sub < 0 && errno == ENOENT && (how & MAKE)) {
		err = make_folder(p->root, sub, p->mode);
		p->sub = err ? -1 : openat(p->root, sub, flags | O_NOFOLLOW);
	}
	return err ?: p->sub < 0 ? -errno : 0;
}

/* The same, and once more if NFS says that what it knew of the path is stale. */
static int enter(struct dir *d, const struct kvc_where *w, int how, struct place *p)
{
	int err = enter_once(d, w, how, p);

	if (err != -ESTALE)
		return err;
	leave(p);
	return enter_once(d, w, how, p);
}

/*
 * What a filesystem's error says in the terms of tier.h. Not there, or damaged, is a frame only in
 * our folder: an NFS that is not mounted any more has lost nothing.
 */
static int said(const struct place *p, int err)
{
	if (err && p->root >= 0 && !p->ours)
		return -ENOTCONN;
	switch (err) {
	case -ENOENT: return p->root < 0 ? -ENOTCONN : err;
	case -ELOOP:
	case -EISDIR:
	case -ENXIO: return -EBADMSG; /* something else in its place */
	case -ENOTDIR: return p->root < 0 ? -ENOTCONN : -EBADMSG;
	case -EACCES:
	case -EPERM: return p->sub < 0 ? err : -EIO; /* of one file */
	case -ESTALE:
	case -ENOKEY:
	case -EPROTO: return -EIO; /* these mean something else above */
	default: return err;
	}
}

/*
 * The same of a call that changes a folder: no permission is about the folder, not about a frame.
 */
static int changed(const struct place *p, int err)
{
	bool denied = err == -EACCES || err == -EPERM;

	return denied && p->root >= 0 && p->ours ? -EACCES : said(p, err);
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

static int put_file(struct dir *d, struct place *at, const struct kvc_put *p)
{
	const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	char tmp[KVCT_DIR_TEMP];
	int note = kvct_dir_temps_begin(d->temps, at->hex, tmp);
	int fd = openat(at->sub, tmp, flags, 0600), err = fd < 0 ? -errno : 0;
	bool gone = true;

	if (err == -ESTALE) {
		leave(at);
		err = enter(d, &p->name, MAKE | OURS, at);
		fd = err ? -1 : openat(at->sub, tmp, flags, 0600);
		err = err ?: fd < 0 ? -errno : 0;
	}

	if (err) { /* after a lost answer it may have been made */
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
	struct dir *d = of(t);
	struct place at;
	int err = enter(d, &p->name, MAKE | OURS, &at) ?: put_file(d, &at, p);

	err = changed(&at, err);
	leave(&at);
	if (err) /* what stands in its way is not for us to remove */
		return err == -EBADMSG || err == -ENOENT ? -EIO : err;
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

static int get_once(struct dir *d, const struct kvc_where *w, uint64_t off, const struct iovec *iov,
		    int n, struct place *at)
{
	KVC_FD int fd = -1;
	int err = enter(d, w, 0, at);

	if (!err && (fd = kvct_dir_file(at->sub, at->hex)) < 0)
		err = fd;
	return err ?: read_padded(fd, iov, n, off);
}

static int dir_get(struct kvc_tier *t, const struct kvc_where *w, uint64_t off,
		   const struct iovec *iov, int n)
{
	struct dir *d = of(t);
	struct place at;
	struct stat st;
	int err = get_once(d, w, off, iov, n, &at);

	if (err ==
	    -ESTALE) { /* NFS: another node has replaced the file since its name was looked up */
		leave(&at);
		err = get_once(d, w, off, iov, n, &at);
	}
	/* Without a mark a frame of ours tells that it is the folder, mounted anew. */
	if (!err && !at.ours && !*known(d).id && !fstat(at.root, &st))
		know(d, &st, NULL);
	err = said(&at, err);
	leave(&at);
	return err;
}

static int dir_remove(struct kvc_tier *t, const struct kvc_where *w)
{
	struct dir *d = of(t);
	struct place at;
	int err = enter(d, w, OURS, &at);

	if (!err && unlinkat(at.sub, at.hex, 0))
		err = -errno;
	if (err == -ESTALE) {
		leave(&at);
		err = enter(d, w, OURS, &at) ?: unlinkat(at.sub, at.hex, 0) ? -errno : 0;
	}
	err = changed(&at, err);
	leave(&at);
	return err == -ENOENT ? 0 : err == -EBADMSG ? -EIO : err;
}

/* A list under way. */
struct listing {
	struct kvc_frame *f;
	uint8_t *page;
	/* the last error of what could not be read: the others are listed all the same */
	int unread;
	int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f);
	void *arg;
};

static int list_one(const struct place *at, const char *name, struct listing *l)
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
	err = err == -ENODATA ? -EBADMSG : said(at, err);
	if (err && !kvct_of_one(err))
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
			l->unread = said(at, err);
		kvc_close_fd(&at->sub);
		return 0;
	}
	while (!err && (errno = 0, e = readdir(dp)))
		err = list_one(at, e->d_name, l);
	if (!err && errno)
		l->unread = said(at, -errno);
	closedir(dp);
	return err;
}

static int dir_list(struct kvc_tier *t,
		    int (*fn)(void *arg, const struct kvc_where *w, const struct kvc_frame *f),
		    void *arg)
{
	KVC_FD int root = kvct_dir_root(of(t), O_PATH | O_DIRECTORY | O_CLOEXEC);
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
	struct dir *d = of(t);

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

static void *first_look(void *arg)
{
	struct first_look *l = arg;
	KVC_FD int root = open(l->d.path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	if (root < 0 || fstat(root, &st) || access(l->d.path, R_OK | X_OK)) {
		l->err = -errno;
	} else {
		l->d.known.dev = st.st_dev;
		l->d.known.ino = st.st_ino;
		measure(&l->d, root);
		/* where it is missing the first call makes it: this mount may yet be refused */
		kvct_dir_mark_read(root, l->d.known.id);
	}
	atomic_store(&l->done, true);
	drop_look(l);
	return NULL;
}

/*
 * Is it a folder that can be read? Whether it can be written to is seen by the first copy. 0 also
 * if that is not known within the time.
 */
static int check_folder(struct dir *d, uint64_t deadline_ms)
{
	uint64_t until = kvc_mono_ns() + deadline_ms * 1000000;
	struct first_look *l = calloc(1, sizeof *l);
	sigset_t all, old;
	pthread_t thread;
	int err = l ? 0 : -ENOMEM;

	if (err)
		return err;
	memcpy(l->d.path, d->path, sizeof d->path);
	pthread_mutex_init(&l->d.lock, NULL);
	atomic_store(&l->refs, 2);
	sigfillset(&all); /* signals are for the thread that serves */
	pthread_sigmask(SIG_BLOCK, &all, &old);
	err = -pthread_create(&thread, NULL, first_look, l);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (err) {
		atomic_store(&l->refs, 1);
		drop_look(l);
		return err;
	}
	if (kvc_join(thread, until)) {
		pthread_detach(thread);
		kvc_warn("tier dir: %s does not answer; the next access tries again", d->path);
		d->late = l;
		return 0;
	}
	if (!(err = l->err)) {
		adopt_look(d, &l->d);
		atomic_store(&d->total, atomic_load(&l->d.total));
		atomic_store(&d->used, atomic_load(&l->d.used));
	}
	drop_look(l);
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
	snprintf(d->kept_as, sizeof d->kept_as, "%s %s", u->store_id ? u->store_id : "",
		 d->tier.id);
	d->remembers = true; /* tools do not write to the store */
	if (d->store && kvct_dir_mark_remembered(d->store, d->kept_as, d->remembered))
		memcpy(d->known.id, d->remembered, sizeof d->known.id);
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
