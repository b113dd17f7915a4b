/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The FUSE side: libfuse's low-level interface in front of the engine. Each request is one call of
 * the engine; those that can wait are a `struct call` on the heap, whose `run` makes the engine's
 * call, and makes it again when the engine says so (late, from the engine's answerer). No handler
 * blocks on a tier.
 */
#ifndef KVFS_FS_H
#define KVFS_FS_H

#define FUSE_USE_VERSION 317

#include "aside.h"
#include "cache.h"
#include "http.h"
#include "leave.h"
#include "notify.h"
#include "place.h"
#include "ring.h"

#include <fuse_lowlevel.h>

struct kvfs {
	struct kvc *k;
	const struct kvc_store *store;
	struct fuse_session *se;
	const char *mountpoint;
	struct kvfs_http *http; /* NULL: not asked for */
	atomic_bool mounted;
	bool can_passthrough, want_uring;
	bool passthrough, uring; /* what the kernel agreed to */
	struct kvfs_ring ring;   /* where it comes by io_uring */
	uint64_t request_bytes;  /* of memory=: its queues, and buffers of other requests */
	struct kvfs_places places;
	struct kvfs_leave leave;
	struct kvfs_aside aside, sizes;
	double entry_timeout; /* how long the kernel may keep a name */
	double miss_timeout;  /* and that one is missing */
	bool left;            /* threads that hang in a tier were left behind, at the end */
	bool epochs, prunes;  /* how it can be told of names that went (session.c) */
	char passthrough_why[96], uring_why[160]; /* when not, why */
	/* the kernel agreed to io_uring, but libfuse did not get it up */
	atomic_bool uring_failed;
};

/*
 * The kernel keeps names and attributes this long: every change of ours that it has not asked for
 * is told to it (session.c says how). On kernels without epochs (before 6.16) names are kept for a
 * short time instead.
 */
#define KVFS_TIMEOUT 86400.0
#define KVFS_SHORT_TIMEOUT 1.0
/* With a shared tier another node may store a missing name at any time. */
#define KVFS_MISS_TIMEOUT 1.0
/*
 * Folders' attributes change with every name made or removed; a race of many leaves it an old
 * answer for so long.
 */
#define KVFS_FOLDER_TIMEOUT 1.0

#define KVFS_NAME_MAX 255 /* bytes; the kernel sends longer ones */

struct call {
	struct kvc_wait w; /* first */
	struct kvfs *f;
	fuse_req_t req;
	void (*run)(struct call *c);
	uint64_t ino, to;
	struct fuse_file_info fi;
	struct kvc_row attr;
	unsigned set;
	int mode;
	off_t off, len;
	const void *data;
	void *copy;      /* of data, where the buffer does not outlive the handler */
	unsigned copied; /* its pages, taken of kvfs_places.copies and the budget */
	atomic_int lent; /* write.c */
	char *name, *to_name;
	bool stores; /* see kvfs_stores */
	bool placed; /* it has a place of the queue that it came by (place.h) */
	struct kvfs_queue *queue;
	struct call *next; /* among those that are held, or set aside */
	void (*aside)(struct call *c);
	void (*run_aside)(struct call *c); /* after KVC_LONG: what `run` was */
};

static inline struct kvfs *kvfs_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}
/* A new call, ready to run; NULL after answering ENOMEM. Names are copied. */
struct call *kvfs_call(fuse_req_t req, uint64_t ino, void (*run)(struct call *), const char *name,
		       const char *to_name);
/* Did it come through io_uring? */
static inline bool kvfs_is_uring(fuse_req_t req)
{
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 18)
	return fuse_req_is_uring(req);
#else
	(void)req;
	return false;
#endif
}
/* Takes a place for a call to wait in, which kvfs_done gives back. False: none is free. */
bool kvfs_place(struct call *c);
/*
 * Allocates c->copy, `len` bytes, of the memory for waiting writes; kvfs_done frees it. False: the
 * user, or all users, have too much of that, or memory is short. Does not block; the engine's locks
 * may be held.
 */
bool kvfs_copy_new(struct call *c, size_t len);
/* Runs a woken call again. The wake of most calls (struct kvc_wait). */
void kvfs_wake(struct kvc_wait *w);
/* An answered call's memory. */
void kvfs_done(struct call *c);
/*
 * True when the call waits, or is set aside: nothing more to do. Otherwise *err is the result to
 * answer with.
 */
bool kvfs_waits(struct call *c, int *err);
/* Counts a request to change an inode, and refuses it where that is virtual: true, and answered. */
bool kvfs_refuse_virtual(fuse_req_t req, uint64_t ino);
/* The engine's results as an errno for the kernel (positive). */
int kvfs_errno(int err);
void kvfs_stat(const struct kvc_row *a, struct stat *st);
double kvfs_timeout(const struct kvc_row *a);

/* session.c */
/*
 * Decides what to ask the kernel for, and what memory requests take: before the engine is opened.
 * Tries io_uring in a child process. others: bytes of memory= that the engine needs at least.
 */
void kvfs_decide(struct kvfs *f, const struct kvc_options *o, uint64_t others);
int kvfs_serve(struct kvfs *f, const struct kvc_options *o, const char *store,
	       const char *mountpoint, int ready_fd);
/* This request came; tells by which way they come. */
void kvfs_came(struct kvfs *f, fuse_req_t req);
/* Do requests come through io_uring? */
bool kvfs_by_uring(struct kvfs *f);
/* And if not, why. */
const char *kvfs_uring_why(const struct kvfs *f);
/* http.c: 0, or a negative errno after a line on stderr. Stop before the engine. */
int kvfs_http_start(struct kvfs *f, const struct kvc_options *o);
void kvfs_http_stop(struct kvfs *f);
/* status.c. Why the mount takes no stores now; NULL: it does. */
const char *kvfs_unready(struct kvfs *f);
void kvfs_print_status(struct kvfs *f, FILE *out);
/* ops.c, xattr.c, io.c, write.c: handlers */
void kvfs_ops_names(struct fuse_lowlevel_ops *ops);
void kvfs_ops_xattrs(struct fuse_lowlevel_ops *ops);
void kvfs_ops_io(struct fuse_lowlevel_ops *ops);
void kvfs_ops_write(struct fuse_lowlevel_ops *ops);

/*
 * virtual.c: .kvcachefs/. Each answers the request and returns true when the inode is one of its
 * own.
 */
#define KVFS_VIRTUAL (1ull << 62)
static inline bool kvfs_is_virtual(uint64_t ino)
{
	return ino >= KVFS_VIRTUAL;
}
/* After the unmount: what is still open is closed. */
void kvfs_virtual_end(struct kvfs *f);
void kvfs_virtual_stat(uint64_t ino, struct stat *st);
bool kvfs_virtual_lookup(fuse_req_t req, uint64_t parent, const char *name);
void kvfs_virtual_getattr(fuse_req_t req, uint64_t ino);
/* Who calls, with all his groups: 0, or ENOMEM; u->groups is the caller's to free. */
int kvfs_user_of(fuse_req_t req, struct kvc_asker *u);
void kvfs_virtual_readdir(fuse_req_t req, uint64_t ino, size_t size, off_t off);
void kvfs_virtual_open(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi);
void kvfs_virtual_read(fuse_req_t req, uint64_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi);
void kvfs_virtual_write(fuse_req_t req, uint64_t ino, const char *buf, size_t size, off_t off,
			struct fuse_file_info *fi);
void kvfs_virtual_release(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi);

#endif
