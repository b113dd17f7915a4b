/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handler of writes that arrive as requests. Their data is in a buffer of libfuse. A ring entry
 * keeps its buffer until the reply. A thread that reads /dev/fuse reuses its buffer for the next
 * request as soon as the handler returns, so a write that waits needs a copy of its data. A copy
 * has up to 1 MiB, and thousands of writes may wait. So the memory for copies is bounded
 * (wait_slots.h, budget.h), and a write is copied only if it waits. A write that gets no memory for
 * its copy does not wait; it fails as at its deadline.
 *
 * The copy is not made under the engine's locks: the memory is allocated before the engine parks
 * the call, and the handler fills it afterwards. Until then the data is LENT, and an answerer that
 * wakes the call only sets WOKEN; the handler then runs the call.
 */
#include "fs.h"

#include <stdlib.h>
#include <string.h>

enum { LENT, WOKEN, OWNED }; /* c->data_state */

/* Reserves a wait slot and the copy's memory. The engine's locks may be held. */
static bool place_write(struct kvc_wait *w)
{
	struct call *c = (struct call *)w;

	if (!kvfs_call_slot(c))
		return false;
	return c->copy || atomic_load(&c->data_state) == OWNED || kvfs_call_copy(c, (size_t)c->len);
}

static int write_data(struct call *c, size_t *n)
{
	/* The call has no copy of its data, so it cannot continue after its wait. */
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
	kvfs_call_free(c);
}

static void run_write(struct call *c)
{
	size_t n = 0;
	int err = write_data(c, &n);

	if (!kvfs_call_waits(c, &err))
		end_write(c, err, n);
}

static void wake_write(struct kvc_wait *w)
{
	struct call *c = (struct call *)w;
	int state = LENT;

	if (!atomic_compare_exchange_strong(&c->data_state, &state, WOKEN))
		kvfs_call_wake(w);
}

/* Copies the data of a parked write, and runs the call if it was woken in between. */
static void copy_data(struct call *c)
{
	int state = LENT;

	c->data = c->copy ? memcpy(c->copy, c->data, (size_t)c->len) : NULL;
	if (atomic_compare_exchange_strong(&c->data_state, &state, OWNED))
		return; /* the answerer may already have freed the call */
	atomic_store(&c->data_state, OWNED);
	kvfs_call_wake(&c->w);
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
	c = kvfs_call_new(req, ino, run_write, NULL, NULL);
	if (!c)
		return;
	c->w.wake = wake_write;
	c->w.may_park = place_write;
	c->fi = *fi;
	c->off = off;
	c->len = (off_t)size;
	c->data = buf;
	atomic_store(&c->data_state, kvfs_is_uring(req) ? OWNED : LENT);
	if (kvfs_is_uring(req)) {
		run_write(c);
		return;
	}
	err = write_data(c, &n);
	if (err == KVC_WAIT)
		copy_data(c);
	else if (err == KVC_LONG) /* a single request is never that large */
		end_write(c, -EFBIG, 0);
	else
		end_write(c, err, n);
}

void kvfs_ops_write(struct fuse_lowlevel_ops *ops)
{
	ops->write = op_write;
}
