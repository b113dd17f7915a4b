/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The FUSE side: libfuse's low-level interface in front of the engine. Each request makes one call
 * to the engine. A request that may wait is a `struct call` on the heap, whose `run` makes that
 * call. If the engine parks the call, the engine's answerer thread later wakes it and `run` is
 * called again. No handler blocks on a tier.
 */
#ifndef KVFS_FS_H
#define KVFS_FS_H

#define FUSE_USE_VERSION 317

#include "defer.h"
#include "cache.h"
#include "http.h"
#include "shutdown.h"
#include "service.h"
#include "wait_slots.h"
#include "ring.h"

#include <fuse_lowlevel.h>

struct kvfs {
	struct kvc *k;
	const struct kvc_store *store;
	struct fuse_session *se;
	const char *mountpoint;
	dev_t dev;                /* of the mounted filesystem; 0: not known */
	struct kvfs_http *http;   /* NULL: no metrics= option */
	struct kvfs_nodes *nodes; /* NULL: no peer_listen= option */
	atomic_bool mounted;
	bool can_passthrough, want_uring;
	bool passthrough, uring; /* in use: the kernel agreed */
	struct kvfs_ring ring;   /* sizes of the io_uring queues */
	uint64_t request_bytes;  /* part of memory= for ring queues and request buffers */
	struct kvfs_wait_slots slots;
	struct kvfs_shutdown shutdown;
	struct kvfs_worker lease_worker, long_lease_worker, size_worker, cluster_worker;
	uint64_t begun_ns;    /* start of the daemon, by kvc_mono_ns */
	double entry_timeout; /* seconds that the kernel may cache a name */
	double miss_timeout;  /* seconds that it may cache a missing name */
	/* at the end, threads that hang in a tier were left running */
	bool threads_left;
	bool epochs, prunes; /* the kernel supports epochs and prune notifications (session.c) */
	char passthrough_why[96], uring_why[160]; /* reasons if not in use */
	/* the kernel agreed to io_uring, but libfuse could not start its queues */
	atomic_bool uring_failed;
};

/*
 * Seconds that the kernel caches names and attributes. The daemon notifies the kernel of each
 * change that the kernel did not request itself (session.c). On kernels without epochs (before
 * 6.16), names are cached for KVFS_SHORT_TIMEOUT instead.
 */
#define KVFS_TIMEOUT 86400.0
#define KVFS_SHORT_TIMEOUT 1.0
/* With a shared tier, another node may store a missing name at any time. */
#define KVFS_MISS_TIMEOUT 1.0
/*
 * Each name that is made or removed changes its folder's attributes. If many such calls run at
 * once, the kernel may cache outdated attributes, for at most this time.
 */
#define KVFS_FOLDER_TIMEOUT 1.0

#define KVFS_NAME_MAX 255 /* bytes; the kernel also sends longer names */

struct call {
	struct kvc_wait w; /* must be first */
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
	void *copy;      /* copy of data, if the request's buffer is reused */
	unsigned copied; /* pages of the copy, charged to kvfs_wait_slots.copies and the budget */
	atomic_int data_state; /* see write.c */
	char *name, *to_name;
	bool is_writer; /* counted by kvfs_writer_begin */
	bool has_slot;  /* holds a wait slot of `queue` (wait_slots.h) */
	struct kvfs_queue *queue;
	struct call *next; /* in a list of held or deferred calls */
	void (*deferred)(struct call *c);
	void (*run_deferred)(struct call *c); /* after KVC_LONG: the original `run` */
};

static inline struct kvfs *kvfs_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}
/*
 * Allocates a call that is ready to run. The names (NULL: none) are copied. Returns NULL after it
 * has answered the request with ENOMEM. Free the call with kvfs_call_free.
 */
struct call *kvfs_call_new(fuse_req_t req, uint64_t ino, void (*run)(struct call *),
			   const char *name, const char *to_name);
/* True if the request arrived through io_uring. */
static inline bool kvfs_is_uring(fuse_req_t req)
{
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 18)
	return fuse_req_is_uring(req);
#else
	(void)req;
	return false;
#endif
}
/*
 * Takes a wait slot for the call, if it has none. kvfs_call_free returns the slot. Returns false if
 * no slot is free. Does not block; the engine's locks may be held.
 */
bool kvfs_call_slot(struct call *c);
/*
 * Allocates c->copy of `len` bytes and charges it to the memory for waiting writes. kvfs_call_free
 * frees it. Returns false if the user or all users together have too much of that memory, or if
 * malloc fails. Does not block; the engine's locks may be held.
 */
bool kvfs_call_copy(struct call *c, size_t len);
/* Runs a woken call again. This is the `wake` of most calls (struct kvc_wait). */
void kvfs_call_wake(struct kvc_wait *w);
/* Frees a call that was answered, with its wait slot, copy and names. */
void kvfs_call_free(struct call *c);
/*
 * Returns true if the call was parked or deferred, and then takes ownership of it. Otherwise *err
 * is the result, and the caller answers the request and frees the call.
 */
bool kvfs_call_waits(struct call *c, int *err);
/*
 * Counts a request that changes an inode. If the inode is virtual, answers EPERM and returns true.
 */
bool kvfs_refuse_virtual(fuse_req_t req, uint64_t ino);
/* Converts an engine result (0 or a negative errno) to a positive errno for the kernel. */
int kvfs_errno(int err);
void kvfs_stat(const struct kvc_row *a, struct stat *st);
double kvfs_attr_timeout(const struct kvc_row *a);

/* session.c */
/*
 * Chooses passthrough and io_uring, and the memory that requests use (f->request_bytes), before the
 * engine is opened. The engine needs at least `others` bytes of memory=. Tries io_uring in a
 * child process, so it may block for some milliseconds.
 */
void kvfs_choose_modes(struct kvfs *f, const struct kvc_options *o, uint64_t others);
int kvfs_serve(struct kvfs *f, const struct kvc_options *o, const char *store,
	       const char *mountpoint, int ready_fd);
/* Call it for a request: detects that libfuse did not start io_uring, and logs that once. */
void kvfs_note_transport(struct kvfs *f, fuse_req_t req);
/* True if requests arrive through io_uring. */
bool kvfs_uses_uring(struct kvfs *f);
/* Why io_uring is not in use. The text is constant or owned by f. */
const char *kvfs_uring_why(const struct kvfs *f);
/*
 * http.c. Starts the HTTP endpoint if metrics= is set. Returns 0, or a negative errno after a line
 * on stderr. Stop it before the engine is closed.
 */
int kvfs_http_start(struct kvfs *f, const struct kvc_options *o);
void kvfs_http_stop(struct kvfs *f);
/* status.c. Why the mount does not accept stores now; NULL if it does. */
const char *kvfs_unready(struct kvfs *f);
void kvfs_print_status(struct kvfs *f, FILE *out);
void kvfs_print_metrics(struct kvfs *f, FILE *out);
/* ops.c, xattr.c, io.c, write.c: handlers */
void kvfs_ops_names(struct fuse_lowlevel_ops *ops);
void kvfs_ops_xattrs(struct fuse_lowlevel_ops *ops);
void kvfs_ops_io(struct fuse_lowlevel_ops *ops);
void kvfs_ops_write(struct fuse_lowlevel_ops *ops);

/*
 * virtual.c: the files of .kvcachefs/. kvfs_virtual_lookup returns true if it has answered the
 * request. The other functions require a virtual inode and answer the request.
 */
#define KVFS_VIRTUAL (1ull << 62)
static inline bool kvfs_is_virtual(uint64_t ino)
{
	return ino >= KVFS_VIRTUAL;
}
/* Closes all files that are still open, after the unmount. */
void kvfs_virtual_close_all(struct kvfs *f);
void kvfs_virtual_stat(uint64_t ino, struct stat *st);
bool kvfs_virtual_lookup(fuse_req_t req, uint64_t parent, const char *name);
void kvfs_virtual_getattr(fuse_req_t req, uint64_t ino);
/*
 * Fills u with the caller's uid, gid and supplementary groups. Returns 0 or ENOMEM. The caller
 * frees u->groups.
 */
int kvfs_asker(fuse_req_t req, struct kvc_asker *u);
void kvfs_virtual_readdir(fuse_req_t req, uint64_t ino, size_t size, off_t off);
void kvfs_virtual_open(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi);
void kvfs_virtual_read(fuse_req_t req, uint64_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi);
void kvfs_virtual_write(fuse_req_t req, uint64_t ino, const char *buf, size_t size, off_t off,
			struct fuse_file_info *fi);
void kvfs_virtual_release(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi);

#endif
