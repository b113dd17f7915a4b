/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libkvcachefs: a library for programs that need more from
 * a kvcachefs mount than file calls. It takes leases on many
 * objects at once, and transfers data between files and
 * memory, on the host or, if the library was built with
 * CUDA, on a GPU: parts of memory, or the tokens of a paged
 * KV cache. See libkvcachefs(3) and kvcachefs-gpu(7).
 *
 * This header has what a connector needs. Others have the
 * rest: kvcachefs_keys.h (chunk keys from tokens),
 * kvcachefs_names.h (names of files), kvcachefs_layout.h
 * (layouts of paged caches), kvcachefs_rope.h (keys at
 * other positions), kvcachefs_gpu.h (resources allocated
 * in advance, counters).
 *
 * Every fallible call returns 0 or a negative errno;
 * kvcachefs_error() has the details. Calls are safe from
 * any thread. A hasher, lease, buffer or transfer must be
 * used by one thread at a time; a queue may be used by
 * several threads. The library does not use the daemon's
 * internals: it works only through the mount.
 */
#ifndef KVCACHEFS_H
#define KVCACHEFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A message about the last failed call of this thread. Never NULL; valid until the thread's next
 * call.
 */
const char *kvcachefs_error(void);
/* "0.1.0", with " cuda" appended if the library was built with CUDA. */
const char *kvcachefs_version(void);

/* ---- Leases ---------------------------------------------------------------------------------- */

struct kvcachefs_object {
	const char *path; /* below the mount */
	uint64_t ino, size;
	int err;           /* 0: resident and leased; otherwise a negative errno */
	const char *state; /* the mount's word for its state */
};
struct kvcachefs_lease;
/*
 * Loads these objects into the pool and keeps them there until the lease is freed or the process
 * dies. A path may be a folder, which stands for all files in it. Waits until all objects are
 * loaded or have failed. Returns 0 even if single objects failed: see their err. err is -ENODATA, a
 * miss, if no tier served the object in time.
 */
int kvcachefs_lease_new(struct kvcachefs_lease **out, const char *mount, const char *const *paths,
			size_t n);
/*
 * The same, and waits up to wait_ms milliseconds (at most KVCACHEFS_WAIT_MS) for files that do not
 * exist yet or are still being written: until they are published here, or another node has them. A
 * file that has not arrived has the err -ENOENT. A folder that does not exist is not waited for.
 */
#define KVCACHEFS_WAIT_MS 60000u
int kvcachefs_lease_wait(struct kvcachefs_lease **out, const char *mount, const char *const *paths,
			 size_t n, unsigned wait_ms);
void kvcachefs_lease_free(struct kvcachefs_lease *l);
size_t kvcachefs_lease_count(const struct kvcachefs_lease *l);
const struct kvcachefs_object *kvcachefs_lease_object(const struct kvcachefs_lease *l, size_t i);
/*
 * The bytes of object i, read-only; valid until the lease is freed. The first call for an object
 * opens and maps it. While the cache of mappings (below) keeps the mapping, a later lease on the
 * same object reuses it without a system call, and so does a load, which also reuses the layout
 * that it has checked. A load on a device maps an object only when it is loaded again.
 */
int kvcachefs_lease_map(struct kvcachefs_lease *l, size_t i, const void **data, size_t *len);
/*
 * Keeps mappings of up to this many bytes for later leases; 0: none. A mapped object is an open
 * file to the mount and stays in the pool while its mapping is kept, so choose a part of the pool.
 * If a process never calls this, it keeps mappings up to a sixteenth of the pool (of the smallest
 * mount on which it took a lease), at most 4 GiB, and unmaps objects that it has not used for 5
 * seconds. With a limit set by this call, mappings are kept without a time limit. Half of the limit
 * also bounds the files prepared for stores (below). Returns when the mappings above the limit are
 * unmapped and unregistered. A thread of the library does so and waits until all work on the device
 * has ended.
 */
void kvcachefs_map_cache(size_t bytes);
/* Starts loading objects, without waiting and without a lease. */
int kvcachefs_prefetch(const char *mount, const char *const *paths, size_t n);
/*
 * Tells the mount whether the chunks of a prompt will be needed. The paths name the files or
 * folders of the chunks, from the beginning of the prompt; one call covers the whole prompt.
 * Initialize to zero.
 *
 * finished, priority low: the prompt will not be continued, so its chunks are evicted from the pool
 * before all others, until they are used again. A chunk from which another prompt continues stays.
 * superseded_by: the same, because a newer prompt of the same session replaces this one. The value
 * is the path of the newer prompt's last chunk. Chunks of the newer prompt are not affected.
 * demote: the same as finished, and chunks without a copy in a tier are copied now.
 * priority high: the chunks stay in the pool for an hour, as long as others can be evicted.
 * pause_s: the same, until the session continues, at most for pause_s seconds (up to 3600).
 * prefetch: starts to load the chunks.
 * ended: how the prompt's request ended: "tool" (with a call of a tool), "turn" (a person reads the
 * answer) or "closed" (the session ended, too). returns_s: the session's next request is expected
 * after about this many seconds (up to 3600); not together with ended. These two hints do not keep
 * or evict chunks: the policy learns from later requests how soon such chunks are used again.
 * tenant: assigns the chunks to this tenant; "none": to no tenant.
 *
 * Except for prefetch, the user must own the chunks. Hints do not survive a restart of the daemon.
 */
enum kvcachefs_priority {
	KVCACHEFS_PRIORITY_KEEP, /* no hint */
	KVCACHEFS_PRIORITY_LOW,
	KVCACHEFS_PRIORITY_NORMAL, /* ends earlier hints */
	KVCACHEFS_PRIORITY_HIGH
};
struct kvcachefs_hint {
	bool finished, prefetch, demote;
	enum kvcachefs_priority priority;
	unsigned pause_s;
	const char *superseded_by, *tenant; /* NULL: no hint */
	const char *ended;                  /* NULL: not known */
	unsigned returns_s;                 /* 0: not known */
};
/*
 * Gives the hint. Returns 0 even if single objects failed: *errors (NULL: not wanted) is their
 * number. -EINVAL: the hint is empty, contradicts itself or has a wrong value; -ENOENT:
 * superseded_by does not exist.
 */
int kvcachefs_hint(const char *mount, const struct kvcachefs_hint *h, const char *const *paths,
		   size_t n, size_t *errors);
/*
 * The currently resident objects, with one call to the mount: a lease that loads nothing. err is
 * -ENODATA for objects that are not in the pool. The shared tiers are not asked.
 */
int kvcachefs_look(struct kvcachefs_lease **out, const char *mount, const char *const *paths,
		   size_t n);

/*
 * Writes to *count the number of leading paths that are cached, in the pool or in any tier: the
 * longest prefix on which a lease is possible. Makes one call to the mount and loads nothing. A
 * path may be a folder: the folder counts if it has at least one file and all its files are
 * cached. -EINVAL: an invalid path; errors of the mount. Blocks only for that call.
 */
int kvcachefs_prefix(const char *mount, const char *const *paths, size_t n, size_t *count);
/*
 * The same, and sets *out to a lease on exactly these paths (NULL if *count is 0). Waits, like
 * kvcachefs_lease_new(), until they are loaded. A path that cannot be loaded ends the prefix before
 * it.
 */
int kvcachefs_prefix_lease(struct kvcachefs_lease **out, const char *mount,
			   const char *const *paths, size_t n, size_t *count);

/*
 * Sets bit i of `bits` (bit i % 8 of byte i / 8; (n / per + 7) / 8 bytes) if all paths of group i
 * are cached: paths [i * per, (i + 1) * per), such as the files of all ranks. `tiers`: in the pool
 * or in any tier; otherwise in the pool, and the shared tiers are not asked. Makes one call to the
 * mount, loads nothing and takes no lease. -EINVAL: per is 0, n is not a multiple of it, or an
 * invalid path; errors of the mount. On error bits is unchanged.
 */
int kvcachefs_exists(const char *mount, const char *const *paths, size_t n, size_t per, bool tiers,
		     uint8_t *bits);

/* ---- Plain buffers --------------------------------------------------------------------------- */

/*
 * The bytes of one file as memory, registered (pinned) for a CUDA device if a device is given (-1:
 * no device). For programs that copy data themselves. All these calls may block on the mount.
 */
struct kvcachefs_buffer;
/*
 * The bytes of a file, read-only, with a lease for the lifetime of the buffer. Errors are those of
 * the object (-ENOENT) and of the mount; -EISDIR: a folder; -ENODEV: no such device.
 */
int kvcachefs_buffer_open(struct kvcachefs_buffer **out, const char *mount, const char *path,
			  int device);
/*
 * The memory of a new file for that path, of len zero bytes. The path does not exist before
 * kvcachefs_buffer_publish(): the file and its folders are created under a temporary name, with the
 * space reserved. After an error such as -ENOSPC nothing is left behind. -EINVAL: the path does not
 * end with a name; -EXDEV, here or when it is published: the path leads out of the mount.
 */
int kvcachefs_buffer_new(struct kvcachefs_buffer **out, const char *mount, const char *path,
			 size_t len, int device);
/*
 * The memory of a buffer (NULL if it is empty or was published) and its length; valid until the
 * buffer is freed or published.
 */
void *kvcachefs_buffer_data(const struct kvcachefs_buffer *b, size_t *len);
/*
 * Whether the buffer is registered. A mount or driver may refuse the registration; the memory can
 * be used nevertheless.
 */
bool kvcachefs_buffer_pinned(const struct kvcachefs_buffer *b);
/*
 * Gives the new file its name and replaces an existing file. No device may use the memory any more;
 * it is unmapped. May be called once. After success or an error the buffer can only be freed.
 */
int kvcachefs_buffer_publish(struct kvcachefs_buffer *b);
/*
 * The same, under a path that differs from that of kvcachefs_buffer_new(), for programs that know
 * the name only when they know the bytes. Both paths should begin with the same folder; otherwise
 * the bytes may be copied. -EINVAL also for an empty path.
 */
int kvcachefs_buffer_publish_as(struct kvcachefs_buffer *b, const char *path);
/* Frees a buffer and removes a new file that was not published. NULL: nothing. */
void kvcachefs_buffer_free(struct kvcachefs_buffer *b);

/* ---- Transfers ------------------------------------------------------------------------------- */

struct kvcachefs_paged; /* kvcachefs_layout.h */
struct kvcachefs_rope;  /* kvcachefs_rope.h */

/*
 * The tokens, given by slots (block * block_size + offset; negative slots are skipped) or by block
 * ids (all slots of each block). Host arrays.
 */
struct kvcachefs_tokens {
	const int64_t *slots;
	const int64_t *block_ids;
	size_t n;    /* slots, or blocks */
	size_t skip; /* tokens at the beginning that are not touched */
};

/*
 * Bytes that are contiguous in memory and in the file. The memory is on the device of the call, or
 * in host memory if that is -1.
 */
struct kvcachefs_part {
	void *at;
	size_t len;      /* not 0 */
	uint64_t offset; /* in the file */
};
/* The parts of all items of a call; more are refused with -E2BIG. */
#define KVCACHEFS_PARTS_MOST (1u << 20)

/*
 * One file, and the tokens of a paged cache or the parts of memory that it holds. Initialize to
 * zero. With parts, `layer` only orders the steps of a queue's transfer, and tokens, rope, cache
 * and nlayers stay zero.
 */
struct kvcachefs_item {
	const char *path; /* below the mount */
	uint32_t layer, nlayers;
	struct kvcachefs_tokens tokens;
	/* loads: shift the keys during the load; NULL: no shift */
	const struct kvcachefs_rope *rope;
	/*
	 * The cache of the item; NULL: the cache of the call. Hybrid models have several caches of
	 * different shapes (full and window attention, indexer), each with its own pointers, all
	 * on the device of the call.
	 */
	const struct kvcachefs_paged *cache;
	/*
	 * Parts instead of tokens; NULL: tokens. Parts of a store must not overlap in the file,
	 * and bytes of the file that no part holds are zero. Parts of a load must not overlap in
	 * memory. A load may name a file in several items, for example in one for each layer.
	 * Contiguous parts are copied directly between the memory and the file's pages.
	 */
	const struct kvcachefs_part *parts;
	size_t nparts;
	/*
	 * With parts. Stores: the length of the file; 0: the end of the last part. Loads: the
	 * length that the file must have, otherwise -EPROTOTYPE; 0: any length.
	 */
	uint64_t size;
	/* stores: an existing file is not replaced; that is not an error */
	bool skip_existing;
	bool skipped; /* out: the file existed */
	int err;      /* out */
};

/* A tensor of pages: page i is `len` bytes at `at` + i * stride. */
struct kvcachefs_pages {
	void *at;
	uint64_t stride; /* bytes; at least len */
	size_t len;      /* not 0 */
};
/*
 * Writes the parts of pages ids[0 .. n) of each tensor to out, which has space for ntensors * n
 * parts, and returns their number. In the file the pages of a tensor are adjacent, and tensors
 * follow each other; with by_block the pages of a block are adjacent, and blocks follow each other.
 * Parts that are adjacent in memory and in the file are merged. A negative id is a hole: no part,
 * but space in the file. Sets *size to the length of the file with its holes; NULL: not wanted.
 */
size_t kvcachefs_pages_parts(const struct kvcachefs_pages *tensors, size_t ntensors,
			     const int64_t *ids, size_t n, bool by_block,
			     struct kvcachefs_part *out, uint64_t *size);

struct kvcachefs_transfer;
/*
 * Stores or loads many objects. With device >= 0 the work is ordered with `stream` (a cudaStream_t;
 * NULL: the default stream), and the call returns when all work is queued: work that is queued on
 * the stream later sees the loaded data and may change the memory of a store. With device -1 the
 * work is complete when the call returns. Files are created at their final size, written through
 * their pages, and published when the transfer is freed. The attribute user.kvc.layout keeps their
 * layout; a load with a different layout is refused (-EPROTOTYPE). Loads keep their objects in the
 * pool until they are copied. A failed store leaves no file. The arrays must stay valid until
 * kvcachefs_transfer_free(). -EXDEV: the path of an item leads out of the mount.
 *
 * If all items have parts, only the device of `p` counts, and NULL means host memory. Errors of
 * items with parts: -EINVAL: a part without bytes, overlapping parts, or tokens and parts in one
 * item; -ERANGE: a part beyond the end of the file; -EFAULT: memory that is not on the device;
 * -E2BIG for the whole call: too many parts. Files of parts have no layout.
 */
int kvcachefs_store(struct kvcachefs_transfer **out, const char *mount,
		    const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n,
		    void *stream);
int kvcachefs_load(struct kvcachefs_transfer **out, const char *mount,
		   const struct kvcachefs_paged *p, struct kvcachefs_item *items, size_t n,
		   void *stream);
/*
 * 0: complete; -EAGAIN: not complete yet; otherwise the error of the first failed item. Never
 * waits.
 */
int kvcachefs_transfer_poll(struct kvcachefs_transfer *t);
/* Waits until the transfer is complete. */
int kvcachefs_transfer_wait(struct kvcachefs_transfer *t);
/* Waits, publishes the stored files, releases the leases, and frees the transfer. */
int kvcachefs_transfer_free(struct kvcachefs_transfer *t);

/* ---- A queue of transfers -------------------------------------------------------------------- */

/*
 * Transfers for one mount. The threads of a queue perform the leases, opens, registrations, copies
 * and publishing, layer by layer. All calls except kvcachefs_queue_free() may be made from several
 * threads at the same time. Only kvcachefs_layer_wait() and kvcachefs_queue_free() wait for the
 * mount or a device. Several transfers run at once and end in any order. A load is certain to see
 * a store only if the completion of the store was taken before.
 *
 * Items of the same `layer` form a step, and steps run in the order of their layers. All layers of
 * an item are done in the step of its first layer. A transfer on a device accesses the cache after
 * the work that the stream had when the transfer was submitted.
 */
struct kvcachefs_queue;
/*
 * Sets *out to a queue with `threads` threads (0: 4, at most 64), each of which handles one
 * transfer at a time. Does not access the mount. -EINVAL, -ENOMEM, -EAGAIN (no thread), -EMFILE. A
 * queue does not survive a fork.
 */
int kvcachefs_queue_new(struct kvcachefs_queue **out, const char *mount, unsigned threads);
/*
 * Cancels all transfers, waits for the work in progress (as long as the mount and the devices
 * take), and frees the queue. Completions that were not taken are lost. No other call may use the
 * queue at that time. NULL: nothing.
 */
void kvcachefs_queue_free(struct kvcachefs_queue *q);
/*
 * An eventfd for poll(2) and similar calls: readable while a completion can be taken. The caller
 * must not read, write or close it. -1: q is NULL.
 */
int kvcachefs_queue_fd(const struct kvcachefs_queue *q);
/*
 * Submits a store or a load with the arguments of kvcachefs_store() and kvcachefs_load(), and
 * writes its number to *id. All arguments are copied, except three things that must stay valid
 * until the completion is taken: the memory of the cache or of the parts, the tables of a rotation
 * (inv_freq, cos_sin), and `items` itself, whose `err` and `skipped` are written before the
 * completion (or before kvcachefs_queue_free() returns). The completion returns `tag`.
 *
 * With a device the work is ordered after the work that is on `stream` at this moment, so a cache
 * can be stored while it is still being computed on the stream. Before the caller queues later work
 * on `stream`, it must call kvcachefs_layer_wait(); after a store, only if that work changes the
 * cache. The files of a store all appear at its end, and none if it was cancelled.
 *
 * -EAGAIN: the queue has KVCACHEFS_QUEUE_MOST transfers, including those whose completion was not
 * taken; -EINVAL: an invalid shape, or tokens without a cache; -E2BIG: too many parts; -ENODEV;
 * -EBUSY: the stream is being captured; -ENOMEM. After an error no transfer exists. All later
 * errors are reported by the completion.
 */
#define KVCACHEFS_QUEUE_MOST 1024
int kvcachefs_submit_store(struct kvcachefs_queue *q, const struct kvcachefs_paged *p,
			   struct kvcachefs_item *items, size_t n, void *stream, uint64_t tag,
			   uint64_t *id);
int kvcachefs_submit_load(struct kvcachefs_queue *q, const struct kvcachefs_paged *p,
			  struct kvcachefs_item *items, size_t n, void *stream, uint64_t tag,
			  uint64_t *id);

/*
 * Submits a lease on n paths, which form n / per groups of `per` paths: one group for each block,
 * one path for each rank. `prefix`: looks up the longest prefix of cached groups, loads its
 * objects into the pool and holds them, as kvcachefs_prefix_lease() does; the completion's `count`
 * is the number of these groups. Otherwise the lease has all paths, as that of
 * kvcachefs_lease_new(), and `count` is the number of groups that are held whole; the err of each
 * object tells which. The paths are copied. The threads of transfers do not wait for leases: up to
 * 16 other threads do. Once the completion was taken, its lease belongs to the caller. The lease is
 * NULL if count is 0 or err is not 0.
 *
 * -EINVAL: per is 0, n is not a multiple of it, or a path is empty or contains a newline; -EAGAIN
 * and -ENOMEM as above, or a thread cannot be started.
 */
int kvcachefs_submit_lease(struct kvcachefs_queue *q, const char *const *paths, size_t n,
			   size_t per, bool prefix, uint64_t tag, uint64_t *id);

struct kvcachefs_completion {
	uint64_t tag, id;
	int err;         /* 0; the error of the first failed item; -ECANCELED */
	size_t failed;   /* number of items whose err is not 0 */
	char error[160]; /* the message of the error; "": none */
	size_t skipped;  /* number of items whose file existed */
	uint64_t bytes;  /* moved, by items that neither failed nor were skipped */
	uint64_t ns;     /* from the submission to the end */
	/* of kvcachefs_submit_lease(); NULL: none. The caller frees it. */
	struct kvcachefs_lease *lease;
	size_t count;
};
/*
 * Writes at most `capacity` completions to v and returns their number. Their work on the device is
 * complete too.
 */
size_t kvcachefs_take(struct kvcachefs_queue *q, struct kvcachefs_completion *v, size_t capacity);
/*
 * Waits until the items of layers 0 to `layer` are done: in the cache for a load; copied out for a
 * store, so that the cache may be changed. In host memory they are done when this call returns. On
 * a device this call returns when their work is queued, and work that is queued on `stream`
 * afterwards runs after it; a failure of the device itself is reported only by the completion.
 * Returns 0 or the error of the first failed item, which may be -ECANCELED. May be called again and
 * by several threads, and for the last 1024 transfers also after the completion was taken. -ENOENT:
 * the transfer does not exist or is older; -EBUSY: the stream is being captured.
 */
int kvcachefs_layer_wait(struct kvcachefs_queue *q, uint64_t id, uint32_t layer, void *stream);
/* The same without waiting; -EAGAIN: not done yet. */
int kvcachefs_layer_poll(struct kvcachefs_queue *q, uint64_t id, uint32_t layer, void *stream);
/*
 * Cancels a transfer. Work that has not started does not start. Work in progress is finished or
 * undone: a store leaves no file. 0: the completion, which may exist already, will have -ECANCELED;
 * until the completion the memory may still be accessed. -EALREADY: too late, the transfer ends
 * normally; -ENOENT: no such transfer.
 */
int kvcachefs_cancel(struct kvcachefs_queue *q, uint64_t id);

#ifdef __cplusplus
}
#endif
#endif
