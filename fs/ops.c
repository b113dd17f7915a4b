/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers for names and inodes, and the life of a `struct call`. See fs.h. */
#include "fs.h"

#include "budget.h"
#include "process.h"

#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

double kvfs_attr_timeout(const struct kvc_row *a)
{
	if (S_ISDIR(a->mode))
		return KVFS_FOLDER_TIMEOUT;
	/* A write clears set-id bits, and the kernel relies on the daemon to report that. */
	return a->mode & (S_ISUID | S_ISGID) ? 0 : KVFS_TIMEOUT;
}

void kvfs_stat(const struct kvc_row *a, struct stat *st)
{
	*st = (struct stat){
		.st_ino = a->ino,
		.st_mode = a->mode,
		.st_nlink = a->nlink,
		.st_uid = a->uid,
		.st_gid = a->gid,
		.st_size = kvc_catalog_is_device(a->mode) ? 0 : (off_t)a->size,
		.st_rdev = kvc_catalog_is_device(a->mode) ? (dev_t)a->size : 0,
		.st_blocks = (blkcnt_t)a->blocks,
		.st_blksize = 4096,
		.st_atim = kvc_file_time(a->atime_ns),
		.st_mtim = kvc_file_time(a->mtime_ns),
		.st_ctim = kvc_file_time(a->ctime_ns),
	};
}

static uint64_t client_of(fuse_req_t req)
{
	uint32_t thread = (uint32_t)fuse_req_ctx(req)->pid & (KVC_CLIENTS_END - 1);

	return kvc_client(kvfs_process_of(thread), thread);
}

void kvfs_call_wake(struct kvc_wait *w)
{
	struct call *c = (struct call *)w;

	kvc_count(kvc_cache_stats(c->f->k), late_replies);
	c->run(c);
}

static bool is_root(const struct call *c)
{
	return !c->w.uid || c->w.uid == geteuid();
}

bool kvfs_call_slot(struct call *c)
{
	c->has_slot = c->has_slot || kvfs_wait_slot_take(c->queue, c->w.uid, is_root(c), 1);
	return c->has_slot;
}

bool kvfs_call_copy(struct call *c, size_t len)
{
	unsigned pages = (unsigned)(kvc_round_up(len ? len : 1, KVC_PAGE) / KVC_PAGE);

	if (!kvfs_wait_slot_take(&c->f->slots.copies, c->w.uid, is_root(c), pages))
		return false;
	if (kvc_budget_reserve(KVC_BUDGET_WRITE, (uint64_t)pages * KVC_PAGE)) {
		kvfs_wait_slot_give(&c->f->slots.copies, c->w.uid, pages);
		return false;
	}
	c->copied = pages;
	c->copy = malloc(len ? len : 1); /* on failure, kvfs_call_free returns the pages */
	return c->copy != NULL;
}

static void copy_free(struct call *c)
{
	free(c->copy);
	if (!c->copied)
		return;
	kvc_budget_release(KVC_BUDGET_WRITE, (uint64_t)c->copied * KVC_PAGE);
	kvfs_wait_slot_give(&c->f->slots.copies, c->w.uid, c->copied);
}

static bool call_slot_hook(struct kvc_wait *w)
{
	struct call *c = (struct call *)w;

	return kvfs_call_slot(c) && (!w->patient || kvfs_wait_slot_spare(c->queue));
}

struct call *kvfs_call_new(fuse_req_t req, uint64_t ino, void (*run)(struct call *),
			   const char *name, const char *to_name)
{
	struct call *c = calloc(1, sizeof *c);

	if (c &&
	    ((name && !(c->name = strdup(name))) || (to_name && !(c->to_name = strdup(to_name))))) {
		free(c->name);
		free(c);
		c = NULL;
	}
	if (!c) {
		fuse_reply_err(req, ENOMEM);
		return NULL;
	}
	c->w.wake = kvfs_call_wake;
	c->w.may_park = call_slot_hook;
	c->queue = kvfs_queue_here(&kvfs_of(req)->slots, kvfs_is_uring(req));
	c->w.uid = fuse_req_ctx(req)->uid;
	c->w.client = client_of(req);
	c->f = kvfs_of(req);
	c->req = req;
	c->ino = ino;
	c->run = run;
	return c;
}

void kvfs_call_free(struct call *c)
{
	if (c->has_slot)
		kvfs_wait_slot_give(c->queue, c->w.uid, 1);
	copy_free(c);
	free(c->name);
	free(c->to_name);
	free(c);
}

/* Called by the answerer after a wake. The answerer must not block, so it defers the call again. */
static void run_deferred_size(struct call *c)
{
	kvfs_defer(&c->f->size_worker, c, c->run_deferred);
}

bool kvfs_call_waits(struct call *c, int *err)
{
	if (*err == KVC_LONG && !kvfs_call_slot(c)) { /* a queued call counts as waiting */
		kvc_count(kvc_cache_stats(c->f->k), waits_refused);
		c->w.err = -ETIMEDOUT;
		c->run(c);
		return true;
	}
	if (*err == KVC_LONG) {
		c->w.deferred = true;
		c->run_deferred = c->run;
		c->run = run_deferred_size;
		run_deferred_size(c);
		return true;
	}
	return *err == KVC_WAIT;
}

static void count_request(fuse_req_t req)
{
	kvc_count(kvc_cache_stats(kvfs_of(req)->k), requests);
}

static void reply_entry(fuse_req_t req, uint64_t parent, int err, const struct kvc_row *a)
{
	struct fuse_entry_param e = { .entry_timeout = kvfs_of(req)->entry_timeout };

	/* The kernel caches that the name is missing, and forgets it if this mount creates it. */
	if (err == -ENOENT) {
		e.entry_timeout = a->ino ? 0 : kvfs_of(req)->miss_timeout;
		fuse_reply_entry(req, &e);
		return;
	}
	if (err) {
		fuse_reply_err(req, kvfs_errno(err));
		return;
	}
	e.ino = a->ino;
	e.attr_timeout = kvfs_attr_timeout(a);
	if (!a->nlink) /* a dropped file, shown one last time: not cached */
		e.entry_timeout = e.attr_timeout = 0;
	if (S_ISREG(a->mode) && kvc_lookup_uncacheable(kvfs_of(req)->k, parent))
		e.entry_timeout = 0;
	kvfs_stat(a, &e.attr);
	/* interrupted: the kernel did not take the reference */
	if (fuse_reply_entry(req, &e) == -ENOENT)
		kvc_entry_forget(kvfs_of(req)->k, a->ino, 1);
}

static void reply_new(fuse_req_t req, uint64_t parent, int err, const struct kvc_row *a)
{
	if (err)
		fuse_reply_err(req, kvfs_errno(err));
	else
		reply_entry(req, parent, 0, a);
}

static void reply_lookup(fuse_req_t req, uint64_t parent, const char *name, int err,
			 const struct kvc_row *a)
{
	if (err == -ENOENT)
		kvc_asked_absent(kvfs_of(req)->k, parent, name, (uint32_t)fuse_req_ctx(req)->pid);
	reply_entry(req, parent, err, a);
}

static void run_lookup(struct call *c)
{
	int err = c->w.err == -ETIMEDOUT ? 0 : c->w.err; /* kvc_lookup handles a timeout itself */

	err = err ?: kvc_lookup(c->f->k, c->ino, c->name, &c->attr, &c->w);
	if (kvfs_call_waits(c, &err))
		return;
	reply_lookup(c->req, c->ino, c->name, err, &c->attr);
	kvfs_call_free(c);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct kvc_row a;
	struct call *c;
	int err;

	count_request(req);
	if (strlen(name) > KVFS_NAME_MAX) {
		fuse_reply_err(req, ENAMETOOLONG);
		return;
	}
	if (kvfs_virtual_lookup(req, parent, name))
		return;
	err = kvc_lookup(kvfs_of(req)->k, parent, name, &a, NULL);
	if (err != -EAGAIN) {
		reply_lookup(req, parent, name, err, &a);
		return;
	}
	c = kvfs_call_new(req, parent, run_lookup, name, NULL); /* a shared tier must be asked */
	if (c)
		c->run(c);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
	kvc_entry_forget(kvfs_of(req)->k, ino, n);
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count_, struct fuse_forget_data *v)
{
	for (size_t i = 0; i < count_; i++)
		kvc_entry_forget(kvfs_of(req)->k, v[i].ino, v[i].nlookup);
	fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct kvc_row a;
	struct stat st;
	int err;

	(void)fi;
	count_request(req);
	if (kvfs_is_virtual(ino)) {
		kvfs_virtual_getattr(req, ino);
		return;
	}
	err = kvc_entry_getattr(kvfs_of(req)->k, ino, &a);
	if (err) {
		fuse_reply_err(req, kvfs_errno(err));
		return;
	}
	kvfs_stat(&a, &st);
	fuse_reply_attr(req, &st, kvfs_attr_timeout(&a));
}

#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 18)
static struct statx_timestamp stamp(struct timespec t)
{
	return (struct statx_timestamp){ .tv_sec = t.tv_sec, .tv_nsec = (uint32_t)t.tv_nsec };
}

/* The kernel sends this request if a caller asks for the birth time. */
static void op_statx(fuse_req_t req, fuse_ino_t ino, int flags, int mask, struct fuse_file_info *fi)
{
	struct kvc_row a;
	struct stat st;
	struct statx x = { .stx_mask = STATX_BASIC_STATS, .stx_blksize = 4096 };
	double timeout = 1;
	int err = 0;

	(void)flags;
	(void)mask;
	(void)fi;
	count_request(req);
	if (kvfs_is_virtual(ino)) {
		kvfs_virtual_stat(ino, &st); /* virtual files have no birth time */
	} else if (!(err = kvc_entry_getattr(kvfs_of(req)->k, ino, &a))) {
		kvfs_stat(&a, &st);
		x.stx_mask |= STATX_BTIME;
		x.stx_btime = stamp(kvc_file_time(a.btime_ns));
		timeout = kvfs_attr_timeout(&a);
	}
	if (err) {
		fuse_reply_err(req, kvfs_errno(err));
		return;
	}
	x.stx_ino = st.st_ino;
	x.stx_mode = (uint16_t)st.st_mode;
	x.stx_nlink = (uint32_t)st.st_nlink;
	x.stx_uid = st.st_uid;
	x.stx_gid = st.st_gid;
	x.stx_rdev_major = major(st.st_rdev);
	x.stx_rdev_minor = minor(st.st_rdev);
	x.stx_size = (uint64_t)st.st_size;
	x.stx_blocks = (uint64_t)st.st_blocks;
	x.stx_atime = stamp(st.st_atim);
	x.stx_mtime = stamp(st.st_mtim);
	x.stx_ctime = stamp(st.st_ctim);
	fuse_reply_statx(req, 0, &x, timeout);
}
#endif

static void run_setattr(struct call *c)
{
	struct stat st;
	int err = kvc_io_setattr(c->f->k, c->ino, c->set, &c->attr, &c->w);

	if (kvfs_call_waits(c, &err))
		return;
	if (err) {
		fuse_reply_err(c->req, kvfs_errno(err));
	} else {
		kvfs_stat(&c->attr, &st);
		fuse_reply_attr(c->req, &st, kvfs_attr_timeout(&c->attr));
	}
	kvfs_call_free(c);
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int to_set,
		       struct fuse_file_info *fi)
{
	static const struct {
		int fuse;
		unsigned kvc;
	} map[] = { { FUSE_SET_ATTR_MODE, KVC_SET_MODE },
		    { FUSE_SET_ATTR_UID, KVC_SET_UID },
		    { FUSE_SET_ATTR_GID, KVC_SET_GID },
		    { FUSE_SET_ATTR_SIZE, KVC_SET_SIZE },
		    { FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW, KVC_SET_ATIME },
		    { FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW, KVC_SET_MTIME },
		    { FUSE_SET_ATTR_CTIME, KVC_SET_CTIME } };
	struct call *c;
	uint64_t now = kvc_now_ns();

	(void)fi;
	count_request(req);
	if (kvfs_is_virtual(ino)) {
		/* Opening a virtual file with O_TRUNC sets its size and times, which is ignored. */
		if (to_set & ~(FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW |
			       FUSE_SET_ATTR_CTIME))
			fuse_reply_err(req, EPERM);
		else
			kvfs_virtual_getattr(req, ino);
		return;
	}
	c = kvfs_call_new(req, ino, run_setattr, NULL, NULL);
	if (!c)
		return;
	for (size_t i = 0; i < sizeof map / sizeof map[0]; i++)
		if (to_set & map[i].fuse)
			c->set |= map[i].kvc;
	c->attr = (struct kvc_row){
		.mode = st->st_mode,
		.uid = st->st_uid,
		.gid = st->st_gid,
		.size = (uint64_t)st->st_size,
		.atime_ns = to_set & FUSE_SET_ATTR_ATIME_NOW ? now : kvc_ns(st->st_atim),
		.mtime_ns = to_set & FUSE_SET_ATTR_MTIME_NOW ? now : kvc_ns(st->st_mtim),
		.ctime_ns = kvc_ns(st->st_ctim)
	};
	c->run(c);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char target[4097];
	int err = kvc_entry_readlink(kvfs_of(req)->k, ino, target, sizeof target);

	count_request(req);
	if (err)
		fuse_reply_err(req, kvfs_errno(err));
	else
		fuse_reply_readlink(req, target);
}

bool kvfs_refuse_virtual(fuse_req_t req, uint64_t ino)
{
	count_request(req);
	if (kvfs_is_virtual(ino))
		fuse_reply_err(req, EPERM);
	return kvfs_is_virtual(ino);
}

/*
 * For calls that change a name. If the name is too long or virtual, answers the call with an error
 * and returns true. The lookup that the kernel sent just before is part of the call, and does not
 * count as a request for a missing name.
 */
static bool refuse_name(fuse_req_t req, uint64_t parent, const char *name)
{
	if (kvfs_refuse_virtual(req, parent))
		return true;
	if (strlen(name) > KVFS_NAME_MAX) {
		fuse_reply_err(req, ENAMETOOLONG);
		return true;
	}
	if (parent == KVC_ROOT && !strcmp(name, ".kvcachefs")) {
		fuse_reply_err(req, EPERM);
		return true;
	}
	kvc_asked_made(kvfs_of(req)->k, parent, name, (uint32_t)fuse_req_ctx(req)->pid);
	return false;
}

static struct kvc_caller caller_of(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	return (struct kvc_caller){ ctx->uid, ctx->gid, (uint32_t)ctx->pid };
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	const struct kvc_caller who = caller_of(req);
	struct kvc_row a;

	if (!refuse_name(req, parent, name))
		reply_new(req, parent,
			  kvc_entry_make(kvfs_of(req)->k, parent, name, S_IFDIR | (mode & 07777),
					 &who, NULL, 0, &a),
			  &a);
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	const struct kvc_caller who = caller_of(req);
	struct kvc_row a;

	if (!refuse_name(req, parent, name))
		reply_new(req, parent,
			  kvc_entry_make(kvfs_of(req)->k, parent, name, S_IFLNK | 0777, &who,
					 target, 0, &a),
			  &a);
}

static void run_mknod(struct call *c)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(c->req);
	struct kvc_opened o;
	int err = kvc_open_create(c->f->k, c->ino, c->name, (uint32_t)c->mode, ctx->uid, ctx->gid,
				  O_WRONLY | O_EXCL, &c->attr, &o, &c->w);

	if (kvfs_call_waits(c, &err))
		return;
	if (!err)
		kvc_open_release(c->f->k, c->attr.ino, O_WRONLY, c->w.uid);
	reply_new(c->req, c->ino, err, &c->attr);
	kvfs_call_free(c);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	const struct kvc_caller who = caller_of(req);
	struct kvc_row a;
	struct call *c;

	if (refuse_name(req, parent, name))
		return;
	if (!S_ISREG(mode)) {
		reply_new(req, parent,
			  kvc_entry_make(kvfs_of(req)->k, parent, name, mode & (S_IFMT | 07777),
					 &who, NULL, kvc_catalog_is_device(mode) ? rdev : 0, &a),
			  &a);
		return;
	}
	c = kvfs_call_new(req, parent, run_mknod, name, NULL);
	if (!c)
		return;
	c->mode = (int)mode;
	c->run(c);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	struct kvc_row a;

	if (!refuse_name(req, parent, name) && !kvfs_refuse_virtual(req, ino))
		reply_new(req, parent,
			  kvc_entry_link(kvfs_of(req)->k, ino, parent, name, client_of(req), &a),
			  &a);
}

static void run_unlink(struct call *c)
{
	int err = c->w.err == -ESHUTDOWN ? c->w.err
					 : kvc_entry_unlink(c->f->k, c->ino, c->name, &c->w);

	if (kvfs_call_waits(c, &err))
		return;
	fuse_reply_err(c->req, kvfs_errno(err));
	kvfs_call_free(c);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct call *c;

	if (refuse_name(req, parent, name))
		return;
	if ((c = kvfs_call_new(req, parent, run_unlink, name, NULL)))
		c->run(c);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	if (!refuse_name(req, parent, name))
		fuse_reply_err(req, kvfs_errno(kvc_entry_rmdir(kvfs_of(req)->k, parent, name)));
}

static void run_rename(struct call *c)
{
	int err = c->w.err == -ESHUTDOWN ? c->w.err
					 : kvc_rename(c->f->k, c->ino, c->name, c->to, c->to_name,
						      (unsigned)c->mode, &c->w);

	if (kvfs_call_waits(c, &err))
		return;
	fuse_reply_err(c->req, kvfs_errno(err));
	kvfs_call_free(c);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t to,
		      const char *to_name, unsigned flags)
{
	struct call *c;

	if (refuse_name(req, parent, name) || refuse_name(req, to, to_name))
		return;
	c = kvfs_call_new(req, parent, run_rename, name, to_name);
	if (!c)
		return;
	c->to = to;
	c->mode = (int)flags;
	c->run(c);
}

/* With ENOSYS, the kernel lists and caches folders without opening them. */
static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	(void)fi;
	fuse_reply_err(req, ENOSYS);
}

struct listing {
	fuse_req_t req;
	char *buf;
	size_t size, used;
};

static bool list_add(struct listing *l, const char *name, uint64_t ino, uint32_t kind, off_t off)
{
	struct stat st = { .st_ino = ino, .st_mode = kind };
	size_t n = fuse_add_direntry(l->req, l->buf + l->used, l->size - l->used, name, &st, off);

	if (n > l->size - l->used)
		return false;
	l->used += n;
	return true;
}

static int list_name(void *arg, const struct kvc_name *n)
{
	return !list_add(arg, n->name, n->ino, n->kind, (off_t)n->hash);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	struct listing l = { .req = req, .size = size };
	uint64_t parent = ino;
	int err = 0;

	(void)fi;
	count_request(req);
	if (kvfs_is_virtual(ino)) {
		kvfs_virtual_readdir(req, ino, size, off);
		return;
	}
	l.buf = malloc(size);
	if (!l.buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	if (off < 2)
		err = kvc_entry_parent(kvfs_of(req)->k, ino, &parent);
	bool more = (off >= 1 || list_add(&l, ".", ino, S_IFDIR, 1)) &&
		    (off >= 2 || list_add(&l, "..", parent, S_IFDIR, 2));

	if (!err && more)
		err = kvc_readdir(kvfs_of(req)->k, ino, off < 2 ? 2 : (uint64_t)off, list_name, &l);
	if (err)
		fuse_reply_err(req, kvfs_errno(err));
	else
		fuse_reply_buf(req, l.buf, l.used);
	free(l.buf);
}

static void run_fsync(struct call *c)
{
	int err = c->w.err ?: kvc_io_fsync(c->f->k, c->ino, &c->w);

	if (kvfs_call_waits(c, &err))
		return;
	fuse_reply_err(c->req, kvfs_errno(err));
	kvfs_call_free(c);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	struct call *c;

	(void)datasync;
	(void)fi;
	count_request(req);
	if (kvfs_is_virtual(ino)) {
		fuse_reply_err(req, 0);
		return;
	}
	c = kvfs_call_new(req, ino, run_fsync, NULL, NULL);
	if (c)
		c->run(c);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct kvc_statfs s;
	struct statvfs v = { .f_bsize = 4096, .f_frsize = 4096, .f_namemax = KVFS_NAME_MAX };

	count_request(req);
	kvc_statfs(kvfs_of(req)->k, kvfs_is_virtual(ino) ? KVC_ROOT : ino, &s);
	v.f_blocks = s.total / 4096;
	v.f_bfree = v.f_bavail = s.free / 4096;
	v.f_files = s.files + s.files_free;
	v.f_ffree = v.f_favail = s.files_free;
	fuse_reply_statfs(req, &v);
}

void kvfs_ops_names(struct fuse_lowlevel_ops *ops)
{
	ops->lookup = op_lookup;
	ops->forget = op_forget;
	ops->forget_multi = op_forget_multi;
	ops->getattr = op_getattr;
	ops->setattr = op_setattr;
	ops->readlink = op_readlink;
	ops->mkdir = op_mkdir;
	ops->mknod = op_mknod;
	ops->symlink = op_symlink;
	ops->link = op_link;
	ops->unlink = op_unlink;
	ops->rmdir = op_rmdir;
	ops->rename = op_rename;
	ops->opendir = op_opendir;
	ops->readdir = op_readdir;
	ops->fsync = op_fsync;
	ops->fsyncdir = op_fsync;
	ops->statfs = op_statfs;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 18)
	ops->statx = op_statx;
#endif
}
