/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine as the FUSE side sees it: files and names whose bytes live in the pool and in tiers.
 *
 * Calls return 0 or a negative errno unless said otherwise, and may come from any thread. Those
 * that take a `struct kvc_wait` may also return KVC_WAIT: see caller.h.
 */
#ifndef KVC_CACHE_H
#define KVC_CACHE_H

#include "caller.h"
#include "catalog.h"
#include "options.h"
#include "stats.h"
#include "store.h"
#include "tier.h"

#include <stdio.h>
#include <sys/stat.h>

struct kvc;

/* Bytes of memory= that an engine with these tiers needs at least, beside the caller's. */
uint64_t kvc_cache_memory_least(struct kvc_tier *const *tiers, unsigned ntiers);
/*
 * Opens the engine over an opened store: checks, mounts the pool, recovers. Takes over the tiers on
 * success. caller_bytes: memory for requests, which memory= includes. On failure one line for
 * people in error[512].
 */
int kvc_cache_open(struct kvc **out, const struct kvc_options *o, struct kvc_store *s,
		   struct kvc_tier **tiers, unsigned ntiers, uint64_t caller_bytes, char *error);
int kvc_cache_start(struct kvc *k);
/*
 * Passthrough is known only when the kernel has answered: call before the first request. NULL ops:
 * none.
 */
void kvc_cache_set_events(struct kvc *k, const struct kvc_events *ev);
/*
 * The FUSE session is about to close: ends every wait, evicts no more, and makes no call of the
 * events after it returns.
 */
void kvc_cache_detach(struct kvc *k);
/*
 * After kvc_cache_detach: copies down what is due (unless keep_pool), commits, ends the threads. No
 * call may be under way after it.
 */
void kvc_cache_stop(struct kvc *k);
/*
 * Releases all; the pool is unmounted unless keep_pool is set or something could not be copied
 * down. False: threads were left behind in a tier that does not answer, and what they may still use
 * is not freed: the process is to end by _exit(2).
 */
bool kvc_cache_close(struct kvc *k);

struct kvc_stats *kvc_cache_stats(struct kvc *k);
const struct kvc_options *kvc_cache_options(struct kvc *k);

/* Nodes. lookup, make, link and create count a reference that the kernel gives back with forget. */
/*
 * Without w: -EAGAIN where it would have to ask a shared tier. With -ENOENT attr->ino is not 0
 * where the name may come back without the kernel's doing, so that it must not be remembered as
 * missing.
 */
int kvc_lookup(struct kvc *k, uint64_t parent, const char *name, struct kvc_row *attr,
	       struct kvc_wait *w);
/* Names of files in this folder come and go without the kernel's doing: it keeps none of them. */
bool kvc_lookup_fleeting(struct kvc *k, uint64_t parent);
/*
 * Names may come to be known without the kernel's asking: it must not remember for long that one is
 * missing.
 */
bool kvc_cache_shares(struct kvc *k);
void kvc_entry_forget(struct kvc *k, uint64_t ino, uint64_t n);
/* -ESTALE: a file that was dropped; the kernel then looks its name up again. */
int kvc_entry_getattr(struct kvc *k, uint64_t ino, struct kvc_row *attr);

enum {
	KVC_SET_MODE = 1,
	KVC_SET_UID = 2,
	KVC_SET_GID = 4,
	KVC_SET_SIZE = 8,
	KVC_SET_ATIME = 16,
	KVC_SET_MTIME = 32,
	KVC_SET_CTIME = 64
};
/* attr in: the new values; out: the whole. With w->err: what it waited for failed; it ends so. */
int kvc_io_setattr(struct kvc *k, uint64_t ino, unsigned set, struct kvc_row *attr,
		   struct kvc_wait *w);

/*
 * Makes a folder, a symbolic link (to target), a fifo, a socket or a device (its number is rdev),
 * by mode.
 */
struct kvc_caller {
	uint32_t uid, gid;
	uint32_t pid; /* of the thread */
};
int kvc_entry_make(struct kvc *k, uint64_t parent, const char *name, uint32_t mode,
		   const struct kvc_caller *who, const char *target, uint64_t rdev,
		   struct kvc_row *attr);
int kvc_entry_readlink(struct kvc *k, uint64_t ino, char *target, size_t capacity);
/* client: as in struct kvc_wait; who gives a file its first name has made its chunk. */
int kvc_entry_link(struct kvc *k, uint64_t ino, uint64_t parent, const char *name, uint64_t client,
		   struct kvc_row *attr);
/* May wait for a load where another name is left, and the only copy is under this one. */
int kvc_entry_unlink(struct kvc *k, uint64_t parent, const char *name, struct kvc_wait *w);
int kvc_entry_rmdir(struct kvc *k, uint64_t parent, const char *name);
/*
 * flags as renameat2: 0, RENAME_NOREPLACE or RENAME_EXCHANGE; others give EINVAL. May wait a moment
 * for the close of a file that is to replace another; w->err = -ETIMEDOUT then means: make the call
 * again. And for a load, where the only copy is under a name that goes.
 */
int kvc_rename(struct kvc *k, uint64_t parent, const char *name, uint64_t to, const char *to_name,
	       unsigned flags, struct kvc_wait *w);
/*
 * Calls fn for the names in a folder after the cookie `after` (a name's hash; 0: from the start)
 * until it answers non-zero. fn runs under the catalog's lock and may only copy.
 */
int kvc_readdir(struct kvc *k, uint64_t ino, uint64_t after, kvc_name_fn *fn, void *arg);
int kvc_entry_parent(struct kvc *k, uint64_t ino, uint64_t *parent);

struct kvc_opened {
	int backing; /* passthrough id, or 0: plain requests */
	/* with an id: reads and writes come by requests all the same, and only mappings pass */
	bool requests;
};
/*
 * To be called again also when w->err is set: it then cleans up and returns that. With name NULL
 * the file has none, as by O_TMPFILE, until kvc_entry_link gives it one.
 */
int kvc_open_create(struct kvc *k, uint64_t parent, const char *name, uint32_t mode, uint32_t uid,
		    uint32_t gid, int flags, struct kvc_row *attr, struct kvc_opened *out,
		    struct kvc_wait *w);
/*
 * -ESTALE: the file was dropped meanwhile; the kernel then looks the name up again. To be called
 * again also when w->err is set: it then cleans up and returns that.
 */
int kvc_open_file(struct kvc *k, uint64_t ino, int flags, struct kvc_opened *out,
		  struct kvc_wait *w);
/* One for each successful open or create, with its flags, and w->uid of that call. */
void kvc_open_release(struct kvc *k, uint64_t ino, int flags, uint32_t uid);
/*
 * A descriptor of the segment of an open file, for plain requests: valid until its release. -EBADF
 * when not open.
 */
int kvc_open_fd(struct kvc *k, uint64_t ino);
/* After its use: the kernel sends the release later, but only the kernel knows that. */
void kvc_open_fd_done(struct kvc *k);
/* Plain write: *n bytes written. Gets room first. With w->err: as kvc_io_setattr. */
int kvc_io_write(struct kvc *k, uint64_t ino, const void *buf, size_t len, off_t off, int flags,
		 size_t *n, struct kvc_wait *w);
int kvc_io_fallocate(struct kvc *k, uint64_t ino, int mode, off_t off, off_t len,
		     struct kvc_wait *w);
/* Of a file or a folder; returns once it would survive power loss. */
int kvc_io_fsync(struct kvc *k, uint64_t ino, struct kvc_wait *w);

struct kvc_statfs {
	/* bytes: all that can be stored, and what now can be without anything being dropped */
	uint64_t total, free;
	/* inodes with their further names: those that there are, and what catalog= has room for */
	uint64_t files, files_free;
};
/* Of what lies at or below `ino`: in a model with a quota, that is all there is. */
void kvc_statfs(struct kvc *k, uint64_t ino, struct kvc_statfs *s);

/* Who names paths himself, which the kernel then has not checked. */
struct kvc_asker {
	uint32_t uid, gid;
	uint32_t *groups; /* the others that he is in; the caller's, while the call runs */
	size_t ngroups;
	const atomic_bool *ends; /* where it is set, nobody waits any more; or NULL */
};
/* bits: 4 read, 1 search */
bool kvc_lease_asker_may(const struct kvc_asker *u, const struct kvc_row *r, uint32_t bits);

/*
 * Extended attributes. Those under user.kvcachefs. are the engine's own (xattr.c has their table).
 * A pin counts to the caller. What is set on a model may wait a moment for its files to follow; it
 * is set, and when it is woken the call is over. w NULL: root's, and without that moment. With
 * w->stage it waited for what was asked for, and w->err is how that ended. `user` NULL: the value
 * names no path, or it is root.
 */
int kvc_getxattr(struct kvc *k, uint64_t ino, const char *name, void *value, size_t *len);
int kvc_setxattr(struct kvc *k, uint64_t ino, const char *name, const void *value, size_t len,
		 int flags, const struct kvc_asker *user, struct kvc_wait *w);
int kvc_removexattr(struct kvc *k, uint64_t ino, const char *name, struct kvc_wait *w);
int kvc_listxattr(struct kvc *k, uint64_t ino, char *names, size_t *len);

/*
 * A lease (DESIGN section 8): the objects named by `paths` (newline separated, relative to the
 * mount; a folder means all files in it) stay in the pool until it is freed. PREFETCH loads without
 * holding, LOOK only tells what is there. What this user could not open for reading by that path
 * gets EACCES in its line. One that would take more than `most` bytes of memory is -EDQUOT; one of
 * more than KVC_LEASE_QUICK objects is -EAGAIN where it has to be `quick`, and then nothing has
 * been done: it takes long, as does its text.
 */
#define KVC_LEASE_QUICK 512u
struct kvc_lease;
enum kvc_lease_mode { KVC_LEASE_HOLD, KVC_LEASE_PREFETCH, KVC_LEASE_LOOK };
int kvc_lease_new(struct kvc *k, const char *paths, size_t len, enum kvc_lease_mode mode,
		  const struct kvc_asker *user, size_t most, bool quick, struct kvc_lease **out);
/* The memory that it takes, near enough. */
size_t kvc_lease_bytes(const struct kvc_lease *l);
/* Once all are resident: 0 and *text (the lease owns it). KVC_WAIT as usual. */
int kvc_lease_text(struct kvc *k, struct kvc_lease *l, const char **text, size_t *len,
		   struct kvc_wait *w);
void kvc_lease_free(struct kvc *k, struct kvc_lease *l);

/*
 * The contents of .kvcachefs/stats, /metrics and /config; config takes lines that only the FUSE
 * side knows.
 */
void kvc_text_stats(struct kvc *k, FILE *out);
void kvc_print_metrics(struct kvc *k, FILE *out);
void kvc_text_config(struct kvc *k, FILE *out);
/* Members of /status.json, each with a comma behind it (status.c). */
void kvc_print_status(struct kvc *k, FILE *out);
/* Why stores are not taken now, in a line; NULL: they are. */
const char *kvc_status_unready(struct kvc *k);
uint64_t kvc_status_pool_used(struct kvc *k);
/* What eviction policies say of themselves. */
void kvc_text_policies(struct kvc *k, FILE *out);
void kvc_print_models(struct kvc *k, FILE *out);
void kvc_status_print_slowest(struct kvc *k, FILE *out);
/* The state of each tier, a line for each class of calls (status.c). */
void kvc_status_print_tiers(struct kvc *k, FILE *out);
void kvc_sweep_print(struct kvc *k, FILE *out);

/*
 * Lines, from their opening on: the uses of chunks (trace.c); what happens to files (events.c).
 * Read gives what there is of them, *n bytes up to `capacity`; 0: none at the moment. Of one stream
 * one reads at a time. 0 or -ENOMEM.
 */
struct kvc_stream;
int kvc_trace_open(struct kvc *k, struct kvc_stream **out);
int kvc_events_open(struct kvc *k, struct kvc_stream **out);
int kvc_stream_read(struct kvc *k, struct kvc_stream *s, char *to, size_t capacity, size_t *n);
void kvc_stream_close(struct kvc *k, struct kvc_stream *s);
/*
 * What .kvcachefs/control takes, which it may change (control.c): "import", "rekey", "flush" and
 * "verify [tier=NAME] [rate=SIZE]" begin a sweep, "stop NAME" ends it; "log [LEVEL]"; "reload
 * OPTIONS". 0, -EINVAL (no such), -EBUSY (one
 * is under way), -ESRCH (none is); what there is to say goes to `answer`.
 */
int kvc_control(struct kvc *k, char *text, FILE *answer);

#endif
