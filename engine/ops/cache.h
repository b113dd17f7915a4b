/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface of the engine to the FUSE side: files and names whose bytes live in the pool and in
 * tiers.
 *
 * Unless a comment says otherwise, a call returns 0 or a negative errno, takes its own locks and
 * may be made from any thread. A call with a `struct kvc_wait` never blocks for a load or for
 * space: it may return KVC_WAIT, and is made again later with the same arguments (caller.h). Files
 * and folders are named by their inode numbers.
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

/*
 * START AND END. A mount calls, in this order: open, start, set_events, then any requests, detach,
 * stop, close.
 */

/*
 * The minimum value of memory= (bytes) for an engine with these options and tiers, without the
 * memory that the caller needs for requests.
 */
uint64_t kvc_cache_memory_least(const struct kvc_options *o, struct kvc_tier *const *tiers,
				unsigned ntiers);
/*
 * Opens the engine on an open store: checks it, mounts the pool and recovers the state of an
 * earlier daemon. caller_bytes is the caller's part of memory=. After success the engine owns the
 * tiers. After a failure the caller still owns them, and error (512 bytes) holds one line for the
 * user.
 */
int kvc_cache_open(struct kvc **out, const struct kvc_options *o, struct kvc_store *s,
		   struct kvc_tier **tiers, unsigned ntiers, uint64_t caller_bytes, char *error);
/* Starts the threads. After a failure no thread runs, and the caller must still call close. */
int kvc_cache_start(struct kvc *k);
/*
 * Sets the hooks into the FUSE side; *ev is copied. A hook that is NULL is not called. Call it
 * before the first request is served, once the kernel has said whether it offers passthrough.
 */
void kvc_cache_set_events(struct kvc *k, const struct kvc_events *ev);
/*
 * Call it when the FUSE session is about to close. Ends every wait with -ESHUTDOWN and stops
 * eviction. No hook is called after this call has returned.
 */
void kvc_cache_detach(struct kvc *k);
/*
 * Makes the copies that tiers lack, commits, and ends the threads. No other call may be in progress
 * then, and only kvc_cache_close may follow. Blocks.
 */
void kvc_cache_stop(struct kvc *k);
/*
 * Frees the engine. Unmounts the pool, unless keep_pool is set or an object could not be copied to
 * a tier. Returns false if threads still hang in a tier that does not answer: the memory that they
 * may use is not freed, and the process has to end with _exit(2).
 */
bool kvc_cache_close(struct kvc *k);

struct kvc_stats *kvc_cache_stats(struct kvc *k);
const struct kvc_options *kvc_cache_options(struct kvc *k);

/*
 * NAMES AND ATTRIBUTES. A successful lookup, make, link or create adds one to the kernel's lookup
 * count of the inode; kvc_entry_forget subtracts. The kernel has checked permissions, except where
 * a struct kvc_asker is passed.
 */

/*
 * Finds a name in a folder and gives its attributes. With w NULL the result is -EAGAIN if a shared
 * tier would have to be asked. If the result is -ENOENT, a nonzero attr->ino means that the name
 * may appear without a request from the kernel: the kernel must not cache it as missing.
 */
int kvc_lookup(struct kvc *k, uint64_t parent, const char *name, struct kvc_row *attr,
	       struct kvc_wait *w);
/*
 * True if files in this folder appear and disappear without requests from the kernel, so that it
 * must cache none of their names.
 */
bool kvc_lookup_uncacheable(struct kvc *k, uint64_t parent);
/*
 * True if other nodes can add names through a shared tier. The kernel must then not cache missing
 * names for long.
 */
bool kvc_cache_shares(struct kvc *k);
/*
 * A client's thread (its id; 0: not known) asked for a name that does not exist: counts it, unless
 * kvc_asked_made follows soon. kvc_asked_made: the thread is about to create the name.
 */
void kvc_asked_absent(struct kvc *k, uint64_t parent, const char *name, uint32_t thread);
void kvc_asked_made(struct kvc *k, uint64_t parent, const char *name, uint32_t thread);
/* Subtracts n from the kernel's lookup count of an inode. */
void kvc_entry_forget(struct kvc *k, uint64_t ino, uint64_t n);
/* Returns -ESTALE if the file was dropped; the kernel then looks its name up again. */
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
/*
 * Sets the attributes in `set` (KVC_SET_ bits) to the values in *attr, and gives all attributes in
 * *attr. A call that is made again with w->err set cleans up and returns w->err.
 */
int kvc_io_setattr(struct kvc *k, uint64_t ino, unsigned set, struct kvc_row *attr,
		   struct kvc_wait *w);

struct kvc_caller {
	uint32_t uid, gid;
	uint32_t pid; /* id of the calling thread */
};
/*
 * Makes a folder, a symbolic link to `target`, a fifo, a socket, or a device with the number rdev,
 * as `mode` says. target is NULL for all but symbolic links.
 */
int kvc_entry_make(struct kvc *k, uint64_t parent, const char *name, uint32_t mode,
		   const struct kvc_caller *caller, const char *target, uint64_t rdev,
		   struct kvc_row *attr);
/* Copies the target of a symbolic link, with a final 0. Returns -EINVAL if ino is not one. */
int kvc_entry_readlink(struct kvc *k, uint64_t ino, char *target, size_t capacity);
/*
 * Adds a name to a file. client: as in struct kvc_wait; the client that gives a file its first name
 * counts as the creator of the chunk. Returns -EXDEV if the name would be in another model and
 * either model has settings of its own.
 */
int kvc_entry_link(struct kvc *k, uint64_t ino, uint64_t parent, const char *name, uint64_t client,
		   struct kvc_row *attr);
/*
 * Removes the name of a file. Waits for a load if the file has another name and its only copy is
 * stored in a shared tier under this one.
 */
int kvc_entry_unlink(struct kvc *k, uint64_t parent, const char *name, struct kvc_wait *w);
/* Removes an empty folder. Files that an incomplete chunk hides do not count, and are removed. */
int kvc_entry_rmdir(struct kvc *k, uint64_t parent, const char *name);
/*
 * Renames as renameat2(2) does; flags is 0, RENAME_NOREPLACE or RENAME_EXCHANGE, and any other
 * value gives -EINVAL. Waits for a load if the only copy of a file is stored in a shared tier under
 * a name that changes. Waits up to 50 ms for the close of an unfinished file that is to replace
 * another: after that wait w->err is -ETIMEDOUT, and the call must be made again nevertheless.
 */
int kvc_rename(struct kvc *k, uint64_t parent, const char *name, uint64_t to, const char *to_name,
	       unsigned flags, struct kvc_wait *w);
/*
 * Calls fn for the names in a folder whose hash is above `after` (0: all names) until fn returns
 * nonzero. fn runs under the catalog's lock: it may only copy.
 */
int kvc_readdir(struct kvc *k, uint64_t ino, uint64_t after, kvc_name_fn *fn, void *arg);
/* Gives the parent folder of an inode; a file with several names has one parent at a time. */
int kvc_entry_parent(struct kvc *k, uint64_t ino, uint64_t *parent);

/*
 * OPEN FILES. Each successful open or create is paired with one kvc_open_release. A call that
 * waited is also made again when w->err is set: it then cleans up and returns that error.
 */

struct kvc_opened {
	int backing; /* passthrough id; 0: the kernel sends each read and write as a request */
	/* if backing is not 0: only mappings use passthrough; reads and writes are requests */
	bool requests;
};
/*
 * Makes and opens a file. With name NULL it has no name (O_TMPFILE) until kvc_entry_link gives it
 * its first. Without O_EXCL, an existing regular file of that name is opened instead; any other
 * existing name gives -EEXIST.
 */
int kvc_open_create(struct kvc *k, uint64_t parent, const char *name, uint32_t mode, uint32_t uid,
		    uint32_t gid, int flags, struct kvc_row *attr, struct kvc_opened *out,
		    struct kvc_wait *w);
/*
 * Opens a file; an object outside the pool is loaded first. Returns -ESTALE if the file was
 * dropped: the kernel then looks its name up again. Returns -ENOENT to a reader if no tier served
 * the load in time (load.h).
 */
int kvc_open_file(struct kvc *k, uint64_t ino, int flags, struct kvc_opened *out,
		  struct kvc_wait *w);
/* Ends one open. flags and uid (w->uid) are those of the open. */
void kvc_open_release(struct kvc *k, uint64_t ino, int flags, uint32_t uid);
/*
 * After an unmount: ends the opens of all files that are still open for writing. The kernel
 * unmounts only if no file is open, but it answers close() before it sends the release, and an
 * unmount discards releases that the daemon has not read.
 */
void kvc_open_release_writers(struct kvc *k);
/*
 * Gives a descriptor of an open file's segment, to serve reads and writes that are requests. The
 * engine owns it, and it is valid until the release. Returns -EBADF if the file is not open. Call
 * kvc_open_fd_done after each use.
 */
int kvc_open_fd(struct kvc *k, uint64_t ino);
/*
 * Orders the use of a descriptor before the close that a later release may cause. The kernel sends
 * the release after the reply, but the memory model does not know that.
 */
void kvc_open_fd_done(struct kvc *k);
/*
 * Writes all len bytes at off (O_APPEND in flags: at the end); *n is then len. Reserves the space
 * first, and may wait for it. With w->err it behaves as kvc_io_setattr.
 */
int kvc_io_write(struct kvc *k, uint64_t ino, const void *buf, size_t len, off_t off, int flags,
		 size_t *n, struct kvc_wait *w);
/*
 * Behaves as fallocate(2) with mode 0, FALLOC_FL_KEEP_SIZE, _PUNCH_HOLE or _ZERO_RANGE; any other
 * mode gives -EOPNOTSUPP. Returns KVC_LONG if the range is large and w->deferred is not set.
 */
int kvc_io_fallocate(struct kvc *k, uint64_t ino, int mode, off_t off, off_t len,
		     struct kvc_wait *w);
/*
 * Returns 0 once a file or the name of a folder would survive a loss of power. The files in a
 * folder need an fsync of their own.
 */
int kvc_io_fsync(struct kvc *k, uint64_t ino, struct kvc_wait *w);

struct kvc_statfs {
	/* bytes that can be stored in total, and that can be stored now without dropping chunks */
	uint64_t total, free;
	/* inodes and additional hard links: existing ones, and those that catalog= still allows */
	uint64_t files, files_free;
};
/* Fills *s. At or below a model with a quota, the quota is the whole filesystem. */
void kvc_statfs(struct kvc *k, uint64_t ino, struct kvc_statfs *s);

/* A user that names paths in text, so that the kernel has not checked permissions. */
struct kvc_asker {
	uint32_t uid, gid;
	uint32_t *groups; /* supplementary groups; owned by the caller */
	size_t ngroups;
	const atomic_bool *ends; /* set when the user no longer waits for the result; or NULL */
};
/* True if the user has these permissions on r; bits: 4 read, 1 search. Root has all. */
bool kvc_lease_asker_may(const struct kvc_asker *u, const struct kvc_row *r, uint32_t bits);

/*
 * EXTENDED ATTRIBUTES. Names that begin with user.kvcachefs. are the engine's own (virtuals.c has
 * their table). As in getxattr(2), *len is the size of the buffer on entry (0: only return the
 * length) and the length of the result on return.
 *
 * A pin is charged to w->uid. A call that changes a setting of a model takes effect at once, and
 * may then wait a short time until the setting has been applied to the model's files. When this
 * wait ends, the call has succeeded and is not made again. If w->stage is set, the call waits for
 * the operation that it requested (demote), and w->err is the result of the operation. w NULL: the
 * call is root's and does not wait. user NULL: the value names no path, or the caller is root.
 */
int kvc_getxattr(struct kvc *k, uint64_t ino, const char *name, void *value, size_t *len);
int kvc_setxattr(struct kvc *k, uint64_t ino, const char *name, const void *value, size_t len,
		 int flags, const struct kvc_asker *user, struct kvc_wait *w);
int kvc_removexattr(struct kvc *k, uint64_t ino, const char *name, struct kvc_wait *w);
int kvc_listxattr(struct kvc *k, uint64_t ino, char *names, size_t *len);

/*
 * LEASES (kvcachefs-files(5)). A lease keeps the objects named by `paths` in the pool until it is
 * freed. Paths are separated by newlines and relative to the mount; a folder stands for all files
 * in it. KVC_LEASE_PREFETCH loads objects but does not keep them; KVC_LEASE_LOOK only reports their
 * state. With KVC_LEASE_HINT the first line has the words of a hint (hint.h), which is applied to
 * the objects; -EINVAL: a word is wrong.
 *
 * A path that the user may not open for reading gets EACCES in its line. A lease of more than
 * `most` bytes of memory is refused with -EDQUOT. A lease of more than `objects` objects is refused
 * with -EAGAIN and without effect, because the time for a lease and its text grows with their
 * number: up to KVC_LEASE_QUICK they take about a millisecond, up to KVC_LEASE_MIDDLE tens of
 * milliseconds, and seconds without a limit (SIZE_MAX). With wait_ms, a lease (KVC_LEASE_HOLD)
 * waits so long for names that do not exist yet.
 */
#define KVC_LEASE_QUICK 512u
#define KVC_LEASE_MIDDLE 16384u
#define KVC_LEASE_WAIT_MS 60000u /* maximum of wait_ms */
struct kvc_lease;
enum kvc_lease_mode { KVC_LEASE_HOLD, KVC_LEASE_PREFETCH, KVC_LEASE_LOOK, KVC_LEASE_HINT };
struct kvc_lease_kind {
	enum kvc_lease_mode mode;
	unsigned wait_ms; /* 0: it does not wait for names */
	bool here;        /* no shared tier is asked for names */
	bool again;       /* look up names that no shared tier had a moment ago, too */
	size_t most, objects;
};
/*
 * On success the caller owns *out and frees it with kvc_lease_free. If *out is not started, names
 * are missing that a shared tier may have, or that the lease waits for: the caller calls
 * kvc_lease_start before kvc_lease_text.
 */
int kvc_lease_new(struct kvc *k, const char *paths, size_t len, const struct kvc_lease_kind *kind,
		  const struct kvc_asker *user, struct kvc_lease **out);
bool kvc_lease_started(const struct kvc_lease *l);
/* True if the lease waits for names, and is not started. */
bool kvc_lease_waits(const struct kvc_lease *l);
/*
 * Looks up the missing names in the shared tiers, waits for them if the lease does, and then starts
 * the loads. Returns 0, KVC_WAIT, or an error, after which the lease can only be freed; but after
 * -EINTR, which ends a call that has waited for a second, the next call goes on. user: as for
 * kvc_lease_new.
 */
int kvc_lease_start(struct kvc *k, struct kvc_lease *l, const struct kvc_asker *user,
		    struct kvc_wait *w);
/* Sets a bit for each line of the list (peer_sign.h) of which the lease has an object. */
void kvc_lease_bits(const struct kvc_lease *l, uint8_t *bits, size_t lines);
/* Approximate memory of a lease and its text, in bytes. */
size_t kvc_lease_bytes(const struct kvc_lease *l);
/*
 * Gives the text of a lease, one line per object; the lease owns it. With KVC_LEASE_HOLD it first
 * waits until no object of the lease is being loaded.
 */
int kvc_lease_text(struct kvc *k, struct kvc_lease *l, const char **text, size_t *len,
		   struct kvc_wait *w);
void kvc_lease_free(struct kvc *k, struct kvc_lease *l);

/*
 * REPORTS. Each call writes the text of a virtual file, or of a part of one, to `out`. The FUSE
 * side adds its own lines.
 */

/* .kvcachefs/stats, /metrics and the engine's part of /config. */
void kvc_text_stats(struct kvc *k, FILE *out);
void kvc_print_metrics(struct kvc *k, FILE *out);
void kvc_print_process(FILE *out); /* the metrics process_* */
void kvc_text_config(struct kvc *k, FILE *out);
/*
 * Lines of a name and a number: files, bytes (of all files, once they are counted), opens_cpu,
 * opens_disk, opens_remote (one for each remote), and those of kvc_text_stats.
 */
void kvc_text_node(struct kvc *k, FILE *out);
/*
 * Members of /status.json, each followed by a comma. then: the durations at an earlier time; the
 * member latency also has quantiles of the operations since that time.
 */
void kvc_print_status(struct kvc *k, const struct kvc_stats_durations *then, FILE *out);
/* The reason why stores are refused now, in one line; NULL if they are accepted. */
const char *kvc_status_unready(struct kvc *k);
/* Bytes of the pool in use. */
uint64_t kvc_status_pool_used(struct kvc *k);
/* The state of the eviction policies. */
void kvc_text_policies(struct kvc *k, FILE *out);
/* Holds and waits of the engine's two locks, and of the places that take them. */
void kvc_text_locks(struct kvc *k, FILE *out);
void kvc_print_models(struct kvc *k, FILE *out);
void kvc_print_tenants(struct kvc *k, FILE *out);
void kvc_status_print_slowest(struct kvc *k, FILE *out);
/* The state of each tier, one line per class of calls. */
void kvc_status_print_tiers(struct kvc *k, FILE *out);
/* The devices of the disk tier, one per line. */
void kvc_status_print_devices(struct kvc *k, FILE *out);
void kvc_sweep_print(struct kvc *k, FILE *out);

/*
 * STREAMS of lines: accesses to chunks (trace.c) and changes of files (events.c). A stream has the
 * lines since it was opened. kvc_stream_read copies up to `capacity` bytes and gives their number
 * in *n; 0 means that no line is ready. A stream has one reader at a time. Opens and reads fail
 * only with -ENOMEM.
 */
struct kvc_stream;
int kvc_trace_open(struct kvc *k, struct kvc_stream **out);
int kvc_events_open(struct kvc *k, struct kvc_stream **out);
int kvc_stream_read(struct kvc *k, struct kvc_stream *s, char *to, size_t capacity, size_t *n);
void kvc_stream_close(struct kvc *k, struct kvc_stream *s);
/*
 * Runs a command that was written to .kvcachefs/control:
 *
 *   import | rekey | flush | verify [tier=NAME] [rate=SIZE]
 *   add | grow | remove | stay KIND SIZE FORCE PATH
 *                      starts the sweep of this name (jobs/sweep.h)
 *   stop NAME          asks the running sweep NAME to stop
 *   log [LEVEL]        sets the level of the log, and writes the current level to `answer`
 *   reload [OPTIONS]   changes mount options; without OPTIONS, reads the key file again and opens
 *                      the log file again
 *
 * Writes messages to `answer`, and modifies `text`. Returns 0 or a negative errno: -EINVAL for an
 * unknown command or wrong arguments, -EBUSY if a sweep is already running, -ESRCH if the named
 * sweep is not running, -ESHUTDOWN if the mount has not started or is ending.
 */
int kvc_control(struct kvc *k, char *text, FILE *answer);

#endif
