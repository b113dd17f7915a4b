/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handler of plain writes. Their data lies in a buffer of libfuse's. A ring entry keeps its
 * buffer until the reply. A thread that reads /dev/fuse uses its buffer for the next request as
 * soon as the handler returns, so a write that waits needs a copy of its data. A copy has up to
 * 1 MiB, and thousands of writes may wait, so the memory for copies is bounded (place.h, budget.h),
 * and a write is copied only if it waits. Without memory for the copy a write fails as at its
 * deadline: it does not wait.
 *
 * The copy is made without the engine's locks: the memory is allocated before the engine parks the
 * call, and the handler fills it afterwards. Until then the data is LENT, and an answerer that
 * wakes the call leaves it to the handler.
 */
#include "fs.h"

#include <stdlib.h>
#include <string.h>

enum { LENT, WOKEN, KEPT }; /* c->lent */

/* The engine's locks may be held. */
static bool place_write(struct kvc_wait *w)
{
	struct call *c = (struct call *)w;

	if (!kvfs_place(c))
		return false;
	return c->copy || atomic_load(&c->lent) == KEPT || kvfs_copy_new(c, (size_t)c->len);
}

static int write_data(struct call *c, size_t *n)
{
	/* no copy could be made: whatever it waited for, it cannot go on */
	if (!c->data && !c->w.err)
		c->w.err = -ENOSPC;
	return kvc_io_write(c->f->k, c->ino, c->data, (size_t)c->len, c->off, c->fi.flags, n,
			    &c->w);
}

static void end_write(struct call *c, int err, size_t n)
{
	if (err)
		fuse_reply_err(c->req, kvfs_errno(err));
	else
		fuse_reply_write(c->req, n);
	kvfs_done(c);
}

static void run_write(struct call *c)
{
	size_t n = 0;
	int err = write_data(c, &n);

	if (!kvfs_waits(c, &err))
		end_write(c, err, n);
}

static void wake_write(struct kvc_wait *w)
{
	struct call *c = (struct call *)w;
	int lent = LENT;

	if (!atomic_compare_exchange_strong(&c->lent, &lent, WOKEN))
		kvfs_wake(w);
}

/* Makes the copy of a parked write, and runs it if it was woken meanwhile. */
static void keep_data(struct call *c)
{
	int lent = LENT;

	c->data = c->copy ? memcpy(c->copy, c->data, (size_t)c->len) : NULL;
	if (atomic_compare_exchange_strong(&c->lent, &lent, KEPT))
		return; /* the answerer may have freed it */
	atomic_store(&c->lent, KEPT);
	kvfs_wake(&c->w);
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
		     struct fuse_file_info *fi)
{
	struct call *c;
	size_t n = 0;
	int err;

	kvc_count(kvc_cache_stats(kvfs_of(req)->k), requests);
	if (kvfs_is_virtual(ino)) {
		kvfs_virtual_write(req, ino, buf, size, off, fi);
		return;
	}
	c = kvfs_call(req, ino, run_write, NULL, NULL);
	if (!c)
		return;
	c->w.wake = wake_write;
	c->w.place = place_write;
	c->fi = *fi;
	c->off = off;
	c->len = (off_t)size;
	c->data = buf;
	atomic_store(&c->lent, kvfs_is_uring(req) ? KEPT : LENT);
	if (kvfs_is_uring(req)) {
		run_write(c);
		return;
	}
	err = write_data(c, &n);
	if (err == KVC_WAIT)
		keep_data(c);
	else if (err == KVC_LONG) /* one request is never that large */
		end_write(c, -EFBIG, 0);
	else
		end_write(c, err, n);
}

void kvfs_ops_write(struct fuse_lowlevel_ops *ops)
{
	ops->write = op_write;
}
