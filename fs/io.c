/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handlers for open files. With passthrough, the kernel moves the data itself, and the daemon only
 * sees open, create and release. Without passthrough, files use direct I/O, so their bytes are only
 * in the pool and not also in the page cache.
 */
#include "fs.h"

#include <fcntl.h>
#include <string.h>

static void count_io_request(fuse_req_t req)
{
	kvc_count(kvc_cache_stats(kvfs_of(req)->k), requests);
}

static void set_open_reply(struct fuse_file_info *fi, const struct kvc_opened *o, uint32_t uid)
{
	fi->fh = uid; /* the release request does not carry the uid */
	if (o->backing)
		fi->backing_id = o->backing;
	if (!o->backing || o->requests) /* direct I/O takes precedence over passthrough */
		fi->direct_io = 1;
	fi->parallel_direct_writes = 1;
	fi->noflush = 0;
}

static void run_open(struct call *c)
{
	struct kvc_opened o = { 0 };
	int err;

	if (!kvfs_writer_begin(c))
		return;
	err = kvc_open_file(c->f->k, c->ino, c->fi.flags, &o, &c->w);
	if (kvfs_call_waits(c, &err))
		return;
	if (err) {
		kvfs_writer_end(c->f, c->fi.flags);
		fuse_reply_err(c->req, kvfs_errno(err));
	} else {
		set_open_reply(&c->fi, &o, c->w.uid);
		/* The open was interrupted: the kernel will not send a release. */
		if (fuse_reply_open(c->req, &c->fi) == -ENOENT) {
			kvc_open_release(c->f->k, c->ino, c->fi.flags, c->w.uid);
			kvfs_writer_end(c->f, c->fi.flags);
		}
	}
	kvfs_call_free(c);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct call *c;

	count_io_request(req);
	if (kvfs_is_virtual(ino)) {
		kvfs_virtual_open(req, ino, fi);
		return;
	}
	c = kvfs_call_new(req, ino, run_open, NULL, NULL);
	if (!c)
		return;
	c->fi = *fi;
	c->run(c);
}

static void run_create(struct call *c)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(c->req);
	struct kvc_opened o = { 0 };
	struct fuse_entry_param e = { .entry_timeout = c->f->entry_timeout };
	int err;

	if (!kvfs_writer_begin(c))
		return;
	err = kvc_open_create(c->f->k, c->ino, c->name, (uint32_t)c->mode, ctx->uid, ctx->gid,
			      c->fi.flags, &c->attr, &o, &c->w);
	if (kvfs_call_waits(c, &err))
		return;
	if (err) {
		kvfs_writer_end(c->f, c->fi.flags);
		fuse_reply_err(c->req, kvfs_errno(err));
	} else {
		uint64_t ino = e.ino = c->attr.ino;

		e.attr_timeout = kvfs_attr_timeout(&c->attr);
		if (kvc_lookup_uncacheable(c->f->k, c->ino))
			e.entry_timeout = 0;
		kvfs_stat(&c->attr, &e.attr);
		set_open_reply(&c->fi, &o, c->w.uid);
		if (fuse_reply_create(c->req, &e, &c->fi) == -ENOENT) {
			kvc_open_release(c->f->k, ino, c->fi.flags, c->w.uid);
			kvc_entry_forget(c->f->k, ino, 1);
			kvfs_writer_end(c->f, c->fi.flags);
		}
	}
	kvfs_call_free(c);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	struct call *c;

	count_io_request(req);
	if (kvfs_is_virtual(parent) || (parent == KVC_ROOT && !strcmp(name, ".kvcachefs"))) {
		fuse_reply_err(req, EPERM);
		return;
	}
	if (strlen(name) > KVFS_NAME_MAX) {
		fuse_reply_err(req, ENAMETOOLONG);
		return;
	}
	kvc_asked_made(kvfs_of(req)->k, parent, name, (uint32_t)fuse_req_ctx(req)->pid);
	c = kvfs_call_new(req, parent, run_create, name, NULL);
	if (!c)
		return;
	c->fi = *fi;
	c->mode = (int)mode;
	c->run(c);
}

/* Like op_create, but the file has no name until link gives it one. */
static void op_tmpfile(fuse_req_t req, fuse_ino_t parent, mode_t mode, struct fuse_file_info *fi)
{
	struct call *c;

	count_io_request(req);
	if (kvfs_is_virtual(parent)) {
		fuse_reply_err(req, EPERM);
		return;
	}
	c = kvfs_call_new(req, parent, run_create, NULL, NULL);
	if (!c)
		return;
	c->fi = *fi;
	c->mode = (int)mode;
	c->run(c);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	if (kvfs_is_virtual(ino)) {
		kvfs_virtual_release(req, ino, fi);
		return;
	}
	kvc_open_release(kvfs_of(req)->k, ino, fi->flags, (uint32_t)fi->fh);
	kvfs_writer_end(kvfs_of(req), fi->flags);
	fuse_reply_err(req, 0);
}

/* No data is buffered here. After ENOSYS, the kernel never sends a flush again. */
static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	(void)fi;
	fuse_reply_err(req, ENOSYS);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	struct fuse_bufvec v = FUSE_BUFVEC_INIT(size);
	struct kvc *k = kvfs_of(req)->k; /* req is invalid after the reply */
	int fd;

	count_io_request(req);
	if (kvfs_is_virtual(ino)) {
		kvfs_virtual_read(req, ino, size, off, fi);
		return;
	}
	kvc_count(kvc_cache_stats(k), plain_reads);
	fd = kvc_open_fd(k, ino);
	if (fd < 0) {
		fuse_reply_err(req, kvfs_errno(fd));
		return;
	}
	v.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	v.buf[0].fd = fd;
	v.buf[0].pos = off;
	fuse_reply_data(req, &v, 0);
	kvc_open_fd_done(k);
}

static void run_fallocate(struct call *c)
{
	int err = c->w.err ?: kvc_io_fallocate(c->f->k, c->ino, c->mode, c->off, c->len, &c->w);

	if (kvfs_call_waits(c, &err))
		return;
	fuse_reply_err(c->req, kvfs_errno(err));
	kvfs_call_free(c);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
			 struct fuse_file_info *fi)
{
	struct call *c;

	(void)fi;
	count_io_request(req);
	if (kvfs_is_virtual(ino)) {
		fuse_reply_err(req, EPERM);
		return;
	}
	c = kvfs_call_new(req, ino, run_fallocate, NULL, NULL);
	if (!c)
		return;
	c->mode = mode;
	c->off = off;
	c->len = len;
	c->run(c);
}

static void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
		     struct fuse_file_info *fi)
{
	int fd = kvfs_is_virtual(ino) ? -EINVAL : kvc_open_fd(kvfs_of(req)->k, ino);
	off_t at;

	(void)fi;
	count_io_request(req);
	if (fd < 0) {
		fuse_reply_err(req, kvfs_errno(fd));
		return;
	}
	/* SEEK_DATA or SEEK_HOLE: the descriptor's position is not used */
	at = lseek(fd, off, whence);
	kvc_open_fd_done(kvfs_of(req)->k);
	if (at < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_lseek(req, at);
}

void kvfs_ops_io(struct fuse_lowlevel_ops *ops)
{
	ops->open = op_open;
	ops->create = op_create;
	ops->tmpfile = op_tmpfile;
	ops->release = op_release;
	ops->flush = op_flush;
	ops->read = op_read;
	ops->fallocate = op_fallocate;
	ops->lseek = op_lseek;
}
