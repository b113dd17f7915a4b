/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that virtual.c and virtual_lease.c share. */
#ifndef KVFS_VIRTUAL_PRIV_H
#define KVFS_VIRTUAL_PRIV_H

#include "fs.h"

#include <pthread.h>

/* The thread that takes a lease, by the number of objects: a handler, or one of two workers. */
enum list_size { LIST_QUICK, LIST_MIDDLE, LIST_LONG };

/*
 * An open virtual file. Different threads may open, read and close it; the release is the last
 * call. Once a lease turns out to be larger than LIST_QUICK, only the worker of its size (defer.h)
 * takes its lock; handlers and the answerer do not.
 */
struct handle {
	struct kvc_list link; /* in open_handles */
	pthread_mutex_t lock;
	_Atomic enum list_size list; /* may grow; see kvfs_lease_take */
	char *text;
	size_t len, capacity;
	size_t charged; /* see text.h */
	struct kvc_stream *stream;
	struct kvc_lease *lease;
	bool tried;            /* the lease was taken, or the nodes were asked */
	size_t base;           /* the position at which the answer begins */
	struct kvc_asker user; /* of the open */
};

/* ---- virtual.c ---- */

struct handle *kvfs_handle_of(const struct fuse_file_info *fi);
/* Locks the handle for a handler. Returns false if a worker takes the lease. */
bool kvfs_handle_lock(struct handle *h);
/*
 * Charges `bytes` to the handle (text.h). Returns 0, -EDQUOT or -ENOMEM. A smaller charge always
 * succeeds.
 */
int kvfs_handle_charge(struct handle *h, size_t bytes);
/* Ends the lease or stream of the handle and frees it. No other call uses the handle. */
void kvfs_handle_close(struct kvfs *f, struct handle *h);
/*
 * Copies the requested part of the text to *part, which the caller frees. The release may follow
 * the reply at once and free the text.
 */
size_t kvfs_copy_part(const char *text, size_t len, size_t size, off_t off, char **part);
/* Answers with n bytes, or with ENOMEM if part is NULL, and frees them. */
void kvfs_reply_part(fuse_req_t req, char *part, size_t n);
/*
 * Queues the call for a worker. A queued call counts as waiting. If it gets no wait slot, it fails
 * as at its deadline.
 */
void kvfs_defer_read(struct kvfs_worker *worker, struct call *c, void (*run)(struct call *c));

/* ---- virtual_lease.c ---- */

/*
 * Takes the lease for the written list. off: position of the first read. Returns -EAGAIN if
 * h->list was too small and has grown, so that another thread must take the lease. The caller holds
 * h->lock.
 */
int kvfs_lease_take(struct kvfs *f, struct handle *h, off_t off);
/* Must the list be handled although nobody has read the answer? */
bool kvfs_lease_is_prefetch(const struct handle *h);
/* A read of the answer. */
void kvfs_lease_read(struct call *c);
/*
 * The release of a handle whose lease another thread must take, or that looks names up. Also called
 * when the call is woken: the lookups of a long list are continued by the worker of its size.
 */
void kvfs_lease_release(struct call *c);

#endif
