/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog: names, attributes, placements and eviction state in SQLite (WAL mode). Only this
 * folder uses SQLite. kvcachefs-format(5) documents the tables.
 *
 * A change goes into an overlay in memory, where every later read sees it. kvc_catalog_seal() turns
 * the pending changes into a batch. kvc_catalog_write() writes the batch in one transaction and
 * removes it from memory only after its COMMIT has returned. A failed batch is written again
 * together with the changes made since. Segments and extents that a transaction makes obsolete may
 * be freed only after it is committed: kvc_catalog_txn() returns the transaction's number.
 *
 * Unless stated otherwise, every function needs the catalog's lock, blocks for a few page accesses,
 * and returns 0, -ENOENT (no such row), -ENOMEM or -EIO (the database is damaged or unreadable;
 * logged once). A change can fail only with -ENOMEM, and then nothing is changed.
 */
#ifndef KVC_CATALOG_H
#define KVC_CATALOG_H

#include "lock.h"
#include "policy.h"
#include "tier.h"
#include "util.h"

#include <sys/stat.h>

struct kvc_catalog;

/*
 * Maximum number of tiers of a store. Placements contain a tier's number: 0 is the disk, the other
 * tiers are shared.
 */
#define KVC_TIERS 4

#define KVC_ROOT 1 /* inode number of the root folder */

enum { KVC_CONTAINER = 1, KVC_BUCKETS = 2 };
struct kvc_row { /* attributes of an inode */
	uint64_t ino;
	uint32_t mode, uid, gid, nlink; /* mode with its S_IFMT bits */
	/* in bytes (for a device node: its device number), and in 512-byte blocks */
	uint64_t size, blocks;
	uint64_t atime_ns, mtime_ns, ctime_ns, btime_ns;
	/* a folder: its parent; a file: the folder of its newest name */
	uint64_t parent;
	uint64_t chunk; /* a file: the id of its chunk */
	/*
	 * A folder: KVC_CONTAINER if it is known not to be a chunk, KVC_BUCKETS if the folders two
	 * levels below it are containers. A file: its companion (names/chunking.c).
	 */
	uint64_t container;
};

static inline bool kvc_catalog_is_device(uint32_t mode)
{
	return S_ISCHR(mode) || S_ISBLK(mode);
}

struct kvc_object_row {
	uint64_t gen; /* number of publishes; 0: never published */
	uint64_t size;
	struct kvc_sum sum;
	bool has_sum;
	bool lower; /* a tier below the pool has this generation */
	/*
	 * The bytes are not those that were written: they returned from a copy that was coded with
	 * loss, and parts may have been overwritten since. They are never coded with loss again.
	 */
	bool decoded;
};

#define KVC_PLACE_CODED 256u
/*
 * The copy is in a shared tier under an earlier name of the object, where a copy of another object
 * may replace it at any time. It counts as a copy only after a restart without the segment, when
 * no other copy exists.
 */
#define KVC_PLACE_LEFT 512u
struct kvc_place {
	uint64_t gen; /* generation of the stored object; 0: the tier has no copy */
	struct kvc_where where;
	uint32_t codec, key; /* enum kvc_codec with KVC_PLACE_ flags, and the id of the key or 0 */
	/* stored_sum of the frame, which identifies the version; zero: not recorded */
	struct kvc_sum sum;
	/*
	 * The sum of the bytes that the copy decodes to, if these may differ from the object's
	 * bytes: if the copy was coded with loss, or has bytes that the object had before it became
	 * `decoded`. Zero: they are the object's bytes; or the copy was coded with loss and found
	 * sealed in a shared tier, so the sum is not known.
	 */
	struct kvc_sum raw;
	/* the error of these bytes, relative to the written bytes, in millionths; of all, and of
	 * the worst block */
	uint32_t error_ppm, worst_ppm;
};

/* Was the copy coded with loss? */
bool kvc_place_lossy(const struct kvc_place *p);
/*
 * Sets *sum to the sum of the bytes that the copy decodes to. False: it is not known. The second
 * function tells whether these bytes certainly differ from those that the object has now.
 */
bool kvc_place_raw(const struct kvc_object_row *o, const struct kvc_place *p, struct kvc_sum *sum);
bool kvc_place_differs(const struct kvc_object_row *o, const struct kvc_place *p);

struct kvc_chunk_row {
	uint64_t id, created_ns, last_ns, hits;
	int64_t rank;
	uint64_t pin_until_ns;      /* INT64_MAX: pinned without a limit */
	uint64_t ttl_s, expires_ns; /* 0: none */
	unsigned policy;            /* the policy class (policy.h) */
	uint64_t quota;             /* the model to whose quota the chunk counts; 0: none */
	uint64_t parent;            /* the parent chunk in the prompt, or 0 */
	/*
	 * state that the policies of the disk tier and of the pool store for the chunk
	 * (policy/replacer.h); 0: none
	 */
	uint64_t facts, pool_facts;
	uint64_t bytes;  /* bytes in the pool, evicted ones included; 0: unknown */
	uint64_t tenant; /* number of its tenant (limits/tenant.h); 0: none */
};
/* flag in parent: a client reported the parent; it was not inferred */
#define KVC_TOLD (1ull << 63)

/* Creates an empty catalog with a root folder at path, which must not exist. Needs no lock. */
int kvc_catalog_create(const char *path);
/*
 * Opens a catalog for reading and writing. Returns 0 and the catalog in *out, or writes one line to
 * error[512] and returns -ENOENT, -EBADMSG (damaged: run fsck.kvcachefs), -EPROTO (another format)
 * or -EIO. The caller closes it with kvc_catalog_close.
 */
int kvc_catalog_open(struct kvc_catalog **out, const char *path, char *error);
/*
 * Opens a catalog for reading only, also on a read-only filesystem. Changes and creates no file,
 * even after a daemon was killed. No process may have the catalog open. Errors as above.
 */
int kvc_catalog_open_read(struct kvc_catalog **out, const char *path, char *error);
/*
 * From now on the catalog frees the store's reserve file if the filesystem is full. Tools do not
 * call it. Needs no lock.
 */
void kvc_catalog_use_reserve(struct kvc_catalog *c);
/*
 * Starts the catalog's threads: the checkpoint thread, which keeps the log at about log_bytes, and
 * the thread that fills the filter of names. Returns 0 or -errno. Tools do not call it. Neither
 * function needs the lock.
 */
int kvc_catalog_start(struct kvc_catalog *c, uint64_t log_bytes);
void kvc_catalog_stop(struct kvc_catalog *c);
/*
 * If `still` is true, the caller promises not to call functions that change rows in SQLite directly
 * (repair, rebuild) until it calls again with false. Readers may then keep their snapshots between
 * calls, as they do after kvc_catalog_start. For use before the start.
 */
void kvc_catalog_still(struct kvc_catalog *c, bool still);
/*
 * After a rebuild, in which every file is a chunk of its own: makes chunks of folders whose files
 * were created together.
 */
int kvc_catalog_group(struct kvc_catalog *c);
/* Discards all changes that are not committed. */
void kvc_catalog_rollback(struct kvc_catalog *c);
/* Commits the pending changes and closes the catalog. After an error these changes are lost. */
int kvc_catalog_close(struct kvc_catalog *c);
void kvc_catalog_lock_at(struct kvc_catalog *c, struct kvc_lock_profile *here);
#define kvc_catalog_lock(c) kvc_catalog_lock_at(c, KVC_HERE("tree"))
void kvc_catalog_unlock(struct kvc_catalog *c);
/* the lock, for its lock profile */
const struct kvc_lock *kvc_catalog_lock_of(const struct kvc_catalog *c);
void kvc_catalog_pause(struct kvc_catalog *c); /* see kvc_lock_pause */

/* Returns the number of the transaction that takes the current changes. Any thread may call it. */
uint64_t kvc_catalog_txn(struct kvc_catalog *c);
/*
 * Returns the number of pending changes, which the next seal makes a batch. Any thread may call it.
 */
size_t kvc_catalog_changes(struct kvc_catalog *c);
/*
 * Writes and commits the pending changes. After a failure nothing is lost and the caller may try
 * again. Keeps the lock throughout.
 */
int kvc_catalog_commit(struct kvc_catalog *c);
/*
 * The two steps of a commit, for the committer. kvc_catalog_seal makes the pending changes a batch
 * and returns its transaction number. kvc_catalog_write writes the batch and returns 0 once it is
 * committed. Call kvc_catalog_write after every seal, from the same thread, without the lock.
 */
uint64_t kvc_catalog_seal(struct kvc_catalog *c);
int kvc_catalog_write(struct kvc_catalog *c);
/* Waits if the log is about to restart (checkpoint.c). Call it before a seal, without locks. */
void kvc_catalog_gate(struct kvc_catalog *c);
/* Syncs the log to stable storage, after a commit. Needs no lock. */
int kvc_catalog_sync(struct kvc_catalog *c);
/* Copies as much of the log as possible into the database. Needs no lock. */
void kvc_catalog_checkpoint(struct kvc_catalog *c);

/*
 * May a call make a change that a user requests? Returns 0, or -ENOSPC or -EIO with which the call
 * must fail before it changes anything: commits fail and the pending changes use all of their
 * memory, or the filesystem is full. Removals are allowed for longer. Needs no lock.
 */
int kvc_catalog_accepts(struct kvc_catalog *c, bool removal);

/*
 * Allocates memory for the next n changes, so that a call that makes several changes makes all of
 * them or none. Returns 0 or -ENOMEM.
 */
int kvc_catalog_spare(struct kvc_catalog *c, size_t n);
#define KVC_SPARES 32 /* enough for a call that changes one file and its folders */

struct kvc_catalog_state {
	uint64_t pending_bytes; /* memory of the uncommitted changes */
	uint64_t log_bytes;     /* size of the log file */
	bool ok;                /* the last commit succeeded */
};
/* Needs no lock. */
void kvc_catalog_state(struct kvc_catalog *c, struct kvc_catalog_state *s);

/*
 * kvc_meta_read returns 1; 0 if the key does not exist; or a negative errno. The others return 0 or
 * a negative errno; kvc_meta_get returns -ENOENT if the key does not exist.
 */
int kvc_meta_read(struct kvc_catalog *c, const char *key, char *value, size_t capacity);
int kvc_meta_get(struct kvc_catalog *c, const char *key, char *value, size_t capacity);
int kvc_meta_set(struct kvc_catalog *c, const char *key, const char *value);
int kvc_meta_del(struct kvc_catalog *c, const char *key);
/*
 * Returns in `key` (in and out, 64 bytes) and `value` the next key after `key` that begins with
 * `prefix`. Returns 0, -ENOENT if there is none, or another negative errno.
 */
int kvc_meta_next(struct kvc_catalog *c, const char *prefix, char *key, char *value,
		  size_t capacity);

/* Names. A name has at most 255 bytes. `kind` is the S_IFMT bits. */
struct kvc_name {
	uint64_t parent, hash, ino;
	uint32_t kind;
	const char *name;
};
/* a non-zero result ends the walk and is returned */
typedef int kvc_name_fn(void *arg, const struct kvc_name *n);
int kvc_name_get(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t *ino,
		 uint32_t *kind);
/* The same for a caller that has computed hash = kvc_name_hash(name). */
int kvc_name_get_hashed(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t hash,
			uint64_t *ino, uint32_t *kind);
/*
 * Is it certain that no name with this hash (kvc_name_hash) exists? Uses memory only and needs no
 * lock; false if memory alone cannot tell.
 */
bool kvc_name_absent(struct kvc_catalog *c, uint64_t parent, uint64_t hash);
/*
 * Lock-free lookups. kvc_peek_name reads a committed name; kvc_peek_node reads the rows of its
 * inode that kvc_node_get_both needs, and leaves p->node false if they must be read under the lock.
 * Both need no lock. kvc_peek_holds, under the lock: is everything that was read still current?
 */
struct kvc_peek {
	/*
	 * kvc_peek_objects: c->age before the read; otherwise the overlay's `drops` before the read
	 */
	uint64_t age;
	uint64_t ino;
	uint32_t kind;
	bool node;
	struct kvc_row row;
	struct kvc_object_row object;
	struct kvc_place place[KVC_TIERS];
};
int kvc_peek_name(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t hash,
		  struct kvc_peek *p);
int kvc_peek_node(struct kvc_catalog *c, struct kvc_peek *p);
bool kvc_peek_holds(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t hash,
		    const struct kvc_peek *p);
/* Under the lock: did kvc_peek_name return -ENOENT, and is that still so? */
bool kvc_peek_absent_holds(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t hash,
			   const struct kvc_peek *p);
/*
 * The same for an inode. kvc_peek_inode needs no lock and returns 0 or -EIO; p->node tells whether
 * the rows were read. kvc_peek_inode_holds, under the lock: is p->node set and everything current?
 */
int kvc_peek_inode(struct kvc_catalog *c, uint64_t ino, struct kvc_peek *p);
bool kvc_peek_inode_holds(struct kvc_catalog *c, const struct kvc_peek *p);
/* A position in the list of an inode's names; zero: before the first name. */
struct kvc_name_at {
	uint64_t parent, hash;
};
/*
 * Reads the first committed names of an inode after *at. Needs no lock. p is zero before its first
 * use; the caller frees p->v, also after an error. Returns 0, -ENOMEM or -EIO; after an error
 * p->all is false.
 */
#define KVC_PEEK_NAMES 32
struct kvc_peek_names {
	uint64_t age; /* the overlay's `drops` before the read */
	uint64_t ino;
	/* v has all names; false: there may be others (too many, *at was not zero, or an error) */
	bool all;
	bool bare; /* the inode was found to have no extended attributes; false: not known */
	size_t n, capacity;
	struct kvc_peek_name {
		uint64_t parent, hash;
		uint32_t kind;
		char name[256];
	} *v;
};
int kvc_peek_names(struct kvc_catalog *c, uint64_t ino, const struct kvc_name_at *at,
		   struct kvc_peek_names *p);
int kvc_name_put(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t ino,
		 uint32_t kind);
/* The same for a caller that has computed hash = kvc_name_hash(name). */
int kvc_name_put_hashed(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t hash,
			uint64_t ino, uint32_t kind);
int kvc_name_del(struct kvc_catalog *c, uint64_t parent, const char *name);
/*
 * Calls fn for all names in a folder that have a hash above `after`, in order of their hash. fn may
 * not change the catalog.
 */
int kvc_name_each(struct kvc_catalog *c, uint64_t parent, uint64_t after, kvc_name_fn *fn,
		  void *arg);
/* Calls fn for all names of an inode. fn may not change the catalog. */
int kvc_name_of(struct kvc_catalog *c, uint64_t ino, kvc_name_fn *fn, void *arg);
/*
 * The same, but asks SQLite only if the names in p, which kvc_peek_names has read, are not current.
 */
int kvc_name_of_peeked(struct kvc_catalog *c, const struct kvc_peek_names *p, kvc_name_fn *fn,
		       void *arg);
/*
 * Calls fn for some names of an inode whose names are all being deleted. Examines about `rows`
 * rows, deleted ones included. *at is zero before the first call. The caller deletes each name that
 * fn receives before the next call. Returns 1: call again, even if fn was not called; 0: no name is
 * left; or the result of fn.
 */
int kvc_name_of_some(struct kvc_catalog *c, uint64_t ino, struct kvc_name_at *at, size_t rows,
		     kvc_name_fn *fn, void *arg);

int kvc_row_get(struct kvc_catalog *c, uint64_t ino, struct kvc_row *r);
/*
 * The bytes that an inode's owner is charged for its row (usage.c). All zero: the row is not in the
 * catalog.
 */
struct kvc_paid {
	bool is;
	uint32_t uid;
	uint64_t bytes;
};
/* Returns the charge for a row that is in the catalog. */
struct kvc_paid kvc_usage_paid_for(const struct kvc_row *r);
/*
 * paid: the charge so far, which the function updates. NULL, for tools: the account is rebuilt at
 * the next start.
 */
int kvc_row_put(struct kvc_catalog *c, const struct kvc_row *r, struct kvc_paid *paid);
/*
 * Deletes the row with its extended attributes, link target, object and placements. If paid is
 * NULL, the function looks up the charge.
 */
int kvc_row_del(struct kvc_catalog *c, uint64_t ino, struct kvc_paid *paid);
int kvc_row_max(struct kvc_catalog *c, uint64_t *max);
/*
 * Reads the committed rows of the next inodes above `after` and below `below`, each with the row of
 * its folder, and with the row of the chunk whose id is the inode's number, if it exists. In this
 * struct, age is the value of c->age before the read. kvc_peek_rows needs no lock.
 * kvc_peeked_holds, under the lock, returns which of the three rows are still current, as a mask of
 * KVC_PEEKED_.
 */
struct kvc_peeked {
	uint64_t age;
	struct kvc_row row, folder; /* folder.ino 0: the row is a folder itself */
	struct kvc_chunk_row chunk;
};
#define KVC_PEEKED_ROW 1u
#define KVC_PEEKED_FOLDER 2u
#define KVC_PEEKED_CHUNK 4u
int kvc_peek_rows(struct kvc_catalog *c, uint64_t after, uint64_t below, size_t capacity,
		  struct kvc_peeked *out, size_t *count);
unsigned kvc_peeked_holds(struct kvc_catalog *c, const struct kvc_peeked *p);
/*
 * Reads the committed rows of many inodes, for a restart. v[0..n) have is.ino set, in ascending
 * order; a number may occur more than once. One statement for each table reads inodes that are
 * close to each other. Needs no lock; several threads may call it. Returns 0, or a negative errno
 * and v is undefined.
 *
 * kvc_peeked_object_holds, under the lock: are the rows still current?
 */
struct kvc_peeked_object {
	struct kvc_peek is;         /* is.node: the inode has a row; is.kind is not set */
	struct kvc_chunk_row chunk; /* id 0: the inode has no chunk */
	uint64_t folder_parent;     /* parent of its folder; 0: the folder has no row */
};
int kvc_peek_objects(struct kvc_catalog *c, struct kvc_peeked_object *v, size_t n);
bool kvc_peeked_object_holds(struct kvc_catalog *c, const struct kvc_peeked_object *p);
/* Returns how many threads can read at the same time without the lock. */
unsigned kvc_catalog_readers(const struct kvc_catalog *c);
int kvc_target_get(struct kvc_catalog *c, uint64_t ino, char *target, size_t capacity);
int kvc_target_put(struct kvc_catalog *c, uint64_t ino, const char *target);

int kvc_object_get(struct kvc_catalog *c, uint64_t ino, struct kvc_object_row *o);
int kvc_object_put(struct kvc_catalog *c, uint64_t ino, const struct kvc_object_row *o);
/*
 * Calls fn for all objects that no tier has. fn may change the catalog, so the function reads the
 * objects in batches and commits pending changes between batches.
 */
int kvc_object_each_unplaced(struct kvc_catalog *c,
			     int (*fn)(void *arg, uint64_t ino, const struct kvc_object_row *o),
			     void *arg);

int kvc_place_get(struct kvc_catalog *c, uint64_t ino, struct kvc_place place[KVC_TIERS]);
/* Returns the placement of a frame that is stored at w. */
struct kvc_place kvc_place_of(uint64_t gen, const struct kvc_where *w, const struct kvc_frame *f);
int kvc_place_put(struct kvc_catalog *c, uint64_t ino, unsigned tier, const struct kvc_place *p);
int kvc_place_del(struct kvc_catalog *c, uint64_t ino, unsigned tier);
int kvc_place_each(struct kvc_catalog *c, unsigned tier,
		   int (*fn)(void *arg, uint64_t ino, const struct kvc_place *p), void *arg);

struct kvc_placed {
	uint64_t ino;
	unsigned tier;
	struct kvc_place place;
};
/*
 * Returns up to `capacity` placements after (*ino, *tier) and sets these to the last placement
 * returned; *n is 0 at the end. Needs no lock. Reads committed rows only: a caller that must not
 * miss a placement waits for a commit first (jobs/sweep.h), and checks whether the returned
 * placements are still current.
 */
int kvc_place_next(struct kvc_catalog *c, uint64_t *ino, unsigned *tier, size_t capacity,
		   struct kvc_placed *out, size_t *n);

/*
 * Paths that were deleted on this node while a shared tier still has them. A lookup does not ask
 * the tier for them until until_ns. kvc_gone_get returns 0 if the path is remembered.
 */
int kvc_gone_get(struct kvc_catalog *c, const struct kvc_where *path, uint64_t now_ns);
/*
 * kvc_gone_get in two steps. kvc_peek_gone reads from SQLite and needs no lock; it returns 0 or
 * -EIO, and the result is in *p. kvc_gone_get_peeked, under the lock, never reads from SQLite: it
 * returns 0, -ENOENT, or -EAGAIN if *p is zero, of another path or not current.
 */
struct kvc_peek_gone {
	struct kvc_where path;
	uint64_t age;
	bool read, is; /* the table was read, and has the path */
};
int kvc_peek_gone(struct kvc_catalog *c, const struct kvc_where *path, uint64_t now_ns,
		  struct kvc_peek_gone *p);
int kvc_gone_get_peeked(struct kvc_catalog *c, const struct kvc_where *path, uint64_t now_ns,
			const struct kvc_peek_gone *p);
int kvc_gone_put(struct kvc_catalog *c, const struct kvc_where *path, uint64_t until_ns);
int kvc_gone_del(struct kvc_catalog *c, const struct kvc_where *path);
int kvc_gone_purge(struct kvc_catalog *c, uint64_t now_ns);

int kvc_xattr_get(struct kvc_catalog *c, uint64_t ino, const char *name, void *value,
		  size_t *len /* in: capacity, out: length */);
int kvc_xattr_set(struct kvc_catalog *c, uint64_t ino, const char *name, const void *value,
		  size_t len);
int kvc_xattr_del(struct kvc_catalog *c, uint64_t ino, const char *name);
/*
 * Returns all names as listxattr does, each with its NUL. *len is the capacity on entry and the
 * length on return. -ERANGE: the capacity is too small.
 */
int kvc_xattr_list(struct kvc_catalog *c, uint64_t ino, char *names, size_t *len);
/*
 * The total size in bytes of all attributes of an inode except `except`: names as kvc_xattr_list
 * returns them, and values. n: their number.
 */
struct kvc_xattr_sum {
	size_t n, names, values;
};
int kvc_xattr_sum(struct kvc_catalog *c, uint64_t ino, const char *except,
		  struct kvc_xattr_sum *sum);

int kvc_chunk_get(struct kvc_catalog *c, uint64_t id, struct kvc_chunk_row *r);
int kvc_chunk_put(struct kvc_catalog *c, const struct kvc_chunk_row *r);
int kvc_chunk_del(struct kvc_catalog *c, uint64_t id);
/*
 * Updates the columns that accesses change (created_ns, last_ns, hits, rank, parent, facts,
 * pool_facts, bytes) in the committed rows of n chunks, in a separate transaction that bypasses the
 * overlay. A pending change of the same row is written later and wins. Chunks without a row are
 * skipped. *bytes is set to the number of bytes that this writes to the log and later to the
 * database. Needs no lock; blocks for the length of a commit. Returns 0, or a negative errno and
 * nothing was changed.
 */
int kvc_catalog_put_accesses(struct kvc_catalog *c, const struct kvc_chunk_row *r, size_t n,
			     uint64_t *bytes);
/*
 * Returns in *r the next chunk after r's own pair in ascending order of (rank, id); begin with rank
 * INT64_MIN. The first function returns chunks of r's policy class, the second chunks that count
 * towards the quota of a model, the third chunks of a tenant.
 */
int kvc_chunk_next_ranked(struct kvc_catalog *c, struct kvc_chunk_row *r);
int kvc_chunk_next_quota(struct kvc_catalog *c, uint64_t model, struct kvc_chunk_row *r);
int kvc_chunk_next_tenant(struct kvc_catalog *c, uint64_t tenant, struct kvc_chunk_row *r);
/*
 * Calls fn with the number of each tenant that has chunks, and the sum of their bytes. Commits
 * pending changes of chunks first. Reads all rows of these chunks.
 */
int kvc_chunk_tenants(struct kvc_catalog *c,
		      void (*fn)(void *arg, uint64_t tenant, uint64_t chunks, uint64_t bytes),
		      void *arg);
/*
 * Returns up to `capacity` chunks of a policy class at once. -ENOENT: these *count chunks are the
 * last.
 */
int kvc_chunk_ranked(struct kvc_catalog *c, const struct kvc_chunk_row *after, size_t capacity,
		     struct kvc_chunk_row *out, size_t *count);
/*
 * Returns in *r the next chunk whose ttl has expired, after r's own pair in ascending order of
 * (expires_ns, id); begin with zeroes.
 */
int kvc_chunk_next_expired(struct kvc_catalog *c, uint64_t now_ns, struct kvc_chunk_row *r);
/*
 * Returns up to `capacity` pinned chunks with ids above `after`, by id. Commits pending changes of
 * chunks first.
 */
int kvc_chunk_some_pinned(struct kvc_catalog *c, uint64_t after, size_t capacity,
			  struct kvc_chunk_row *out, size_t *n);
/*
 * Starts to count what users have in the catalog, with a limit in bytes (0: no limit). Call it
 * before any change. Tools do not call it.
 */
int kvc_usage_start(struct kvc_catalog *c, uint64_t limit);
/*
 * May this user add an inode (if `inode`) and attributes of `attrs` bytes? Returns 0, -ENOSPC (all
 * users together have too much) or -EDQUOT (this user has).
 */
int kvc_usage_allows(struct kvc_catalog *c, uint32_t uid, bool inode, size_t attrs);
/* Bytes that are charged for an inode, and for each of its names beyond the first. */
#define KVC_USAGE_INODE 1024u
/* Returns the counted bytes and the limit. Takes the lock. */
void kvc_usage_show(struct kvc_catalog *c, uint64_t *inodes, uint64_t *attrs, uint64_t *limit);
/*
 * Gives every chunk a new rank. Clears the stored state of the mount's own policy, which has
 * changed.
 */
int kvc_chunk_rerank(struct kvc_catalog *c, int64_t (*rank)(const struct kvc_chunk_row *r));

#endif
