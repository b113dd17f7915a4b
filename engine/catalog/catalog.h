/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog: names, attributes, where each object is, and the eviction state, in SQLite (WAL
 * mode). This is the only room that knows SQLite. kvcachefs-format(5) documents the tables.
 *
 * A change goes into an overlay in memory, where every later read sees it; kvc_catalog_seal() makes
 * what is there a batch and kvc_catalog_write() writes it in one transaction, and drops it from
 * memory only when its COMMIT has returned. A batch that fails is tried again with what came since.
 * What a transaction makes dispensable (segments, extents) may be freed only after it is committed:
 * kvc_catalog_txn() numbers them.
 *
 * Unless said otherwise every function needs the catalog's lock, blocks for the time of a few page
 * accesses, and returns 0, -ENOENT (no such row), -ENOMEM or -EIO (the database is damaged or
 * unreadable; logged once). A change can only fail with -ENOMEM, and then has not happened.
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
 * lower tiers a store can have; placements name them by number, 0 is the disk, the others shared
 * tiers
 */
#define KVC_TIERS 4

#define KVC_ROOT 1 /* the number of the root folder */

enum { KVC_CONTAINER = 1, KVC_BUCKETS = 2 };
struct kvc_row { /* a node */
	uint64_t ino;
	uint32_t mode, uid, gid, nlink; /* mode with its S_IFMT bits */
	uint64_t size, blocks;          /* bytes (a device's: its number), and 512-byte blocks */
	uint64_t atime_ns, mtime_ns, ctime_ns, btime_ns;
	/* a folder: its parent. A file: the folder of its newest name */
	uint64_t parent;
	uint64_t chunk; /* a file: its chunk's id */
	/*
	 * A folder: KVC_CONTAINER it is known to be no chunk, KVC_BUCKETS those two levels down are
	 * none; a file: its companion (names/chunking.c).
	 */
	uint64_t container;
};

static inline bool kvc_is_device(uint32_t mode)
{
	return S_ISCHR(mode) || S_ISBLK(mode);
}

struct kvc_object_row {
	uint64_t gen; /* counts publishes; 0: never published */
	uint64_t size;
	struct kvc_sum sum;
	bool has_sum;
	bool lower; /* a lower tier has this generation */
};

#define KVC_PLACE_CODED 256u
/*
 * In a shared tier: under an earlier name of the object, where the copy of another may take its
 * place at any time. It is all that a start finds which finds no segment, and counts for no more.
 */
#define KVC_PLACE_LEFT 512u
struct kvc_place {
	uint64_t gen; /* of the object that lies there; 0: nothing does */
	struct kvc_where where;
	uint32_t codec, key; /* enum kvc_codec with KVC_PLACE_..., and the key's id or 0 */
	/* stored_sum of the frame, which tells its version; zero: recorded by an older daemon */
	struct kvc_sum sum;
};

struct kvc_chunk_row {
	uint64_t id, created_ns, last_ns, hits;
	int64_t rank;
	uint64_t pin_until_ns;      /* INT64_MAX: for ever */
	uint64_t ttl_s, expires_ns; /* 0: none */
	unsigned policy;            /* its class, see policy.h */
	uint64_t quota;             /* the model whose quota it counts to; 0: none */
	uint64_t parent;            /* the chunk that it follows in prompts, or 0 */
	/* what the policies of disk and pool know of it (policy/replacer.h); 0: nothing */
	uint64_t facts, pool_facts;
	uint64_t bytes; /* that it had in the pool at most; 0: not known */
};
#define KVC_TOLD (1ull << 63) /* in parent: somebody said so, it was not learned */

/* Makes an empty catalog with a root folder at path (which must not exist). Needs no lock. */
int kvc_catalog_create(const char *path);
/*
 * Opens it. 0, or one line for people in error[512] and -ENOENT, -EBADMSG (damaged: run
 * fsck.kvcachefs), -EPROTO (newer), -EIO.
 */
int kvc_catalog_open(struct kvc_catalog **out, const char *path, char *error);
/*
 * The same to read only, also from a filesystem that is: no file is changed or made, whatever a
 * killed daemon left. For a catalog that nobody has open.
 */
int kvc_catalog_look(struct kvc_catalog **out, const char *path, char *error);
/*
 * From now on the store's reserve is given up when there is no space. Tools do without. Needs no
 * lock.
 */
void kvc_catalog_use_reserve(struct kvc_catalog *c);
/*
 * Starts its threads: the checkpoints, which keep the log at about log_bytes, and the one that
 * fills the filter of names. 0 or -errno. Tools do without. Needs no lock, nor does stop.
 */
int kvc_catalog_start(struct kvc_catalog *c, uint64_t log_bytes);
void kvc_catalog_stop(struct kvc_catalog *c);
/*
 * Before the start, where what mends or rebuilds changes rows in SQLite itself: until the same is
 * said with false none of that is called, so that readers may keep their snapshots from call to
 * call, as they do after the start.
 */
void kvc_catalog_still(struct kvc_catalog *c, bool still);
/*
 * After a rebuild entered every file as a chunk of its own: folders whose files were made together
 * are chunks.
 */
int kvc_catalog_group(struct kvc_catalog *c);
/* Gives up what is not committed yet. */
void kvc_catalog_rollback(struct kvc_catalog *c);
/* Commits what is pending and closes; with an error that is lost. */
int kvc_catalog_close(struct kvc_catalog *c);
void kvc_catalog_lock_at(struct kvc_catalog *c, struct kvc_lock_profile *here);
#define kvc_catalog_lock(c) kvc_catalog_lock_at(c, KVC_HERE("tree"))
void kvc_catalog_unlock(struct kvc_catalog *c);
/* The lock itself, for its figures. */
const struct kvc_lock *kvc_catalog_lock_of(const struct kvc_catalog *c);
void kvc_catalog_pause(struct kvc_catalog *c); /* see kvc_lock_pause */

/* The number of the transaction that changes go into now; any thread. */
uint64_t kvc_catalog_txn(struct kvc_catalog *c);
/* How many changes the next seal makes a batch of; any thread. */
size_t kvc_catalog_changes(struct kvc_catalog *c);
/*
 * Writes and commits what is pending. On failure nothing is lost: try again. Keeps the lock all the
 * time.
 */
int kvc_catalog_commit(struct kvc_catalog *c);
/*
 * The same in two steps, for the committer: makes what is pending a batch and returns its number;
 * and, without the lock, from the same thread, writes it. 0: committed. Every seal is followed by a
 * write.
 */
uint64_t kvc_catalog_seal(struct kvc_catalog *c);
int kvc_catalog_write(struct kvc_catalog *c);
/* Before a seal, without locks: where the log is to be restarted this waits a moment for it. */
void kvc_catalog_gate(struct kvc_catalog *c);
/* After a commit: brings the log to stable storage. Needs no lock. */
int kvc_catalog_sync(struct kvc_catalog *c);
/* Moves what it can of the log into the database. Needs no lock. */
void kvc_catalog_checkpoint(struct kvc_catalog *c);

/*
 * May a call make a change that a user asks for? 0, or the error that the call fails with, before
 * it changes anything: -ENOSPC or -EIO while commits fail and the changes that wait take all the
 * memory they may, or the filesystem is full. A removal may be made longer. Needs no lock.
 */
int kvc_catalog_takes(struct kvc_catalog *c, bool removal);

/*
 * What a call does in several changes is done whole: before the first of them memory is put by for
 * the next n, so that none of them fails. 0 or -ENOMEM.
 */
int kvc_catalog_spare(struct kvc_catalog *c, size_t n);
#define KVC_SPARES 32 /* enough for what one call does about one file and its folders */

struct kvc_catalog_state {
	uint64_t pending_bytes; /* of memory, for changes that are not committed */
	uint64_t log_bytes;     /* the size of the log's file */
	bool ok;                /* the last commit went well */
};
/* Needs no lock. */
void kvc_catalog_state(struct kvc_catalog *c, struct kvc_catalog_state *s);

/* 1, 0 where there is no such key, or an error. */
int kvc_meta_read(struct kvc_catalog *c, const char *key, char *value, size_t capacity);
int kvc_meta_get(struct kvc_catalog *c, const char *key, char *value, size_t capacity);
int kvc_meta_set(struct kvc_catalog *c, const char *key, const char *value);
int kvc_meta_del(struct kvc_catalog *c, const char *key);
/* The next key after `key` (in and out, 64 bytes) that begins with `prefix`. */
int kvc_meta_next(struct kvc_catalog *c, const char *prefix, char *key, char *value,
		  size_t capacity);

/* Names. A name is at most 255 bytes. `kind` is S_IFMT bits. */
struct kvc_name {
	uint64_t parent, hash, ino;
	uint32_t kind;
	const char *name;
};
/* non-zero ends the walk and is returned */
typedef int kvc_name_fn(void *arg, const struct kvc_name *n);
int kvc_name_get(struct kvc_catalog *c, uint64_t parent, const char *name, uint64_t *ino,
		 uint32_t *kind);
/*
 * Is this name surely not there? Needs no lock; by memory alone, so false where that does not tell.
 */
bool kvc_name_absent(struct kvc_catalog *c, uint64_t parent, const char *name);
/*
 * The same, and what kvc_node_get_both reads of its inode, without the lock being held over SQLite:
 * needs no lock. kvc_peek_node leaves p->node false where it is better read under the lock.
 * kvc_peek_holds, under the lock: is all of it still so?
 */
struct kvc_peek {
	uint64_t age, ino;
	uint32_t kind;
	bool node;
	struct kvc_row row;
	struct kvc_object_row object;
	struct kvc_place place[KVC_TIERS];
};
int kvc_peek_name(struct kvc_catalog *c, uint64_t parent, const char *name, struct kvc_peek *p);
int kvc_peek_node(struct kvc_catalog *c, struct kvc_peek *p);
bool kvc_peek_holds(struct kvc_catalog *c, uint64_t parent, const char *name,
		    const struct kvc_peek *p);
/*
 * The same for an inode alone. kvc_peek_inode needs no lock; 0 or -EIO, and p->node tells whether
 * anything was read. kvc_peek_inode_holds, under the lock: is p->node set, and all of it current?
 */
int kvc_peek_inode(struct kvc_catalog *c, uint64_t ino, struct kvc_peek *p);
bool kvc_peek_inode_holds(struct kvc_catalog *c, const struct kvc_peek *p);
/* A place in the names of an inode; zero: before the first. */
struct kvc_name_at {
	uint64_t parent, hash;
};
/*
 * The first committed names of an inode after *at, read without the lock. p is zero before the
 * first use; the caller frees p->v, also after an error. 0, -ENOMEM or -EIO: then p->all is false.
 */
#define KVC_PEEK_NAMES 32
struct kvc_peek_names {
	uint64_t age, ino;
	bool all;  /* these are all names; false: more than KVC_PEEK_NAMES, or an error */
	bool bare; /* the inode has no attributes */
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
int kvc_name_del(struct kvc_catalog *c, uint64_t parent, const char *name);
/*
 * All names in a folder whose hash is above `after`, in order of hash. fn may not change the
 * catalog.
 */
int kvc_name_each(struct kvc_catalog *c, uint64_t parent, uint64_t after, kvc_name_fn *fn,
		  void *arg);
/* All names of a node. fn may not change the catalog. */
int kvc_name_of(struct kvc_catalog *c, uint64_t ino, kvc_name_fn *fn, void *arg);
/* The same, and asks SQLite only if what was read of the names, p, is not current. */
int kvc_name_of_peeked(struct kvc_catalog *c, const struct kvc_peek_names *p, kvc_name_fn *fn,
		       void *arg);
/*
 * Some names of a node whose names are all being deleted: looks at about `rows` of them, deleted
 * ones included. *at is zero before the first call; the caller deletes every name it is given
 * before the next. 1: call again, also if no name was given; 0: no name is left; or what fn
 * returned.
 */
int kvc_name_of_some(struct kvc_catalog *c, uint64_t ino, struct kvc_name_at *at, size_t rows,
		     kvc_name_fn *fn, void *arg);

int kvc_row_get(struct kvc_catalog *c, uint64_t ino, struct kvc_row *r);
/* What was paid for a row in its owner's account (usage.c). All zero: it is not in the catalog. */
struct kvc_paid {
	bool is;
	uint32_t uid;
	uint64_t bytes;
};
/* As for a row that is in the catalog. */
struct kvc_paid kvc_usage_paid_for(const struct kvc_row *r);
/* *paid: what was when it was put before; NULL: by a tool, and all is counted at the next start. */
int kvc_row_put(struct kvc_catalog *c, const struct kvc_row *r, struct kvc_paid *paid);
/* With its xattrs, link target, object and placements. paid NULL: who has paid is looked up. */
int kvc_row_del(struct kvc_catalog *c, uint64_t ino, struct kvc_paid *paid);
int kvc_row_max(struct kvc_catalog *c, uint64_t *max);
/*
 * The next inodes above `after` and below that bound, of committed rows, with the rows of their
 * folders and chunks (id 0: it has none). Changes since are left to the caller, who asks under the
 * lock which of the three still hold. kvc_peek_rows needs no lock.
 */
struct kvc_peeked {
	uint64_t age;
	struct kvc_row row, folder; /* folder: ino 0, where it is one itself */
	struct kvc_chunk_row chunk;
};
#define KVC_PEEKED_ROW 1u
#define KVC_PEEKED_FOLDER 2u
#define KVC_PEEKED_CHUNK 4u
int kvc_peek_rows(struct kvc_catalog *c, uint64_t after, uint64_t below, size_t capacity,
		  struct kvc_peeked *out, size_t *count);
unsigned kvc_peeked_holds(struct kvc_catalog *c, const struct kvc_peeked *p);
/*
 * The committed rows of many inodes, for a restart. v[0..n) have is.ino set, in ascending order;
 * the same number may occur more than once. Inodes that are close to each other are read by one
 * statement a table. Needs no lock; several threads may call it. 0, or a negative errno and v is
 * undefined.
 *
 * kvc_peeked_object_holds, with the lock: are the rows still as they were read?
 */
struct kvc_peeked_object {
	struct kvc_peek is;         /* is.node: the inode has a row; is.kind is not set */
	struct kvc_chunk_row chunk; /* id 0: it has none */
	uint64_t folder_parent;     /* its folder's parent; 0: the folder has no row */
};
int kvc_peek_objects(struct kvc_catalog *c, struct kvc_peeked_object *v, size_t n);
bool kvc_peeked_object_holds(struct kvc_catalog *c, const struct kvc_peeked_object *p);
/* How many threads can read at the same time without a lock. */
unsigned kvc_catalog_readers(const struct kvc_catalog *c);
int kvc_target_get(struct kvc_catalog *c, uint64_t ino, char *target, size_t capacity);
int kvc_target_put(struct kvc_catalog *c, uint64_t ino, const char *target);

int kvc_object_get(struct kvc_catalog *c, uint64_t ino, struct kvc_object_row *o);
int kvc_object_put(struct kvc_catalog *c, uint64_t ino, const struct kvc_object_row *o);
/*
 * Objects that no lower tier has; commits what is pending, now and then. fn may change the catalog,
 * and so gets them in batches.
 */
int kvc_object_each_unplaced(struct kvc_catalog *c,
			     int (*fn)(void *arg, uint64_t ino, const struct kvc_object_row *o),
			     void *arg);

int kvc_place_get(struct kvc_catalog *c, uint64_t ino, struct kvc_place place[KVC_TIERS]);
/* A place as a frame is stored there. */
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
 * Up to `capacity` placements after (*ino, *tier), which move on to the last one given; *n is 0 at
 * the end. Of what is committed alone: the overlay has not the rows that belong to its names before
 * the committer puts them there, so nobody else may write it while a cache lives.
 */
int kvc_place_next(struct kvc_catalog *c, uint64_t *ino, unsigned *tier, size_t capacity,
		   struct kvc_placed *out, size_t *n);

/*
 * Paths that were deleted here while a shared tier still has them: not asked for again before that
 * time. kvc_gone_get: 0 while one is remembered.
 */
int kvc_gone_get(struct kvc_catalog *c, const struct kvc_where *path, uint64_t now_ns);
int kvc_gone_put(struct kvc_catalog *c, const struct kvc_where *path, uint64_t until_ns);
int kvc_gone_del(struct kvc_catalog *c, const struct kvc_where *path);
int kvc_gone_purge(struct kvc_catalog *c, uint64_t now_ns);

int kvc_xattr_get(struct kvc_catalog *c, uint64_t ino, const char *name, void *value,
		  size_t *len /* in: room */);
int kvc_xattr_set(struct kvc_catalog *c, uint64_t ino, const char *name, const void *value,
		  size_t len);
int kvc_xattr_del(struct kvc_catalog *c, uint64_t ino, const char *name);
/*
 * All names, each with its NUL, as listxattr gives them: *len in: room, out: bytes. -ERANGE where
 * it does not fit.
 */
int kvc_xattr_list(struct kvc_catalog *c, uint64_t ino, char *names, size_t *len);
/*
 * What all attributes of an inode but `except` are, in bytes: as kvc_xattr_list gives the names,
 * and the values. *n of them.
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
 * Updates what accesses change (created_ns, last_ns, hits, rank, parent, facts, pool_facts, bytes)
 * in the committed rows of these n chunks, in a transaction of its own, past the overlay. A pending
 * change of the same row is written later and wins. Chunks without a row are skipped. *bytes is set
 * to what that writes, to the log and later to the database. Needs no lock; blocks for the length
 * of a commit. 0, or a negative errno and nothing was changed.
 */
int kvc_catalog_put_accesses(struct kvc_catalog *c, const struct kvc_chunk_row *r, size_t n,
			     uint64_t *bytes);
/*
 * The next chunk by ascending (rank, id) after r's own pair (begin with rank INT64_MIN), into *r:
 * of those in r's policy class, or of those that count to the quota of a model.
 */
int kvc_chunk_next_ranked(struct kvc_catalog *c, struct kvc_chunk_row *r);
int kvc_chunk_next_quota(struct kvc_catalog *c, uint64_t model, struct kvc_chunk_row *r);
/* Up to `capacity` of the former at once; -ENOENT: these (*count) are all that are left. */
int kvc_chunk_ranked(struct kvc_catalog *c, const struct kvc_chunk_row *after, size_t capacity,
		     struct kvc_chunk_row *out, size_t *count);
/*
 * The next of those whose ttl has run out by ascending (expires_ns, id), after r's own pair (begin
 * with zeroes), into *r.
 */
int kvc_chunk_next_expired(struct kvc_catalog *c, uint64_t now_ns, struct kvc_chunk_row *r);
/*
 * Up to `capacity` chunks above `after` that have a pin, by id. Commits what is pending of chunks.
 */
int kvc_chunk_some_pinned(struct kvc_catalog *c, uint64_t after, size_t capacity,
			  struct kvc_chunk_row *out, size_t *n);
/*
 * From now on what users have in the catalog is counted, and bounded by that many bytes (0: not).
 * Before anything is changed; tools do without.
 */
int kvc_usage_start(struct kvc_catalog *c, uint64_t limit);
/*
 * May this user have an inode more, and attributes of so many bytes? 0, -ENOSPC (all have too much)
 * or -EDQUOT (he has).
 */
int kvc_usage_allows(struct kvc_catalog *c, uint32_t uid, bool inode, size_t attrs);
/* What an inode counts there, and each further name of one, in bytes. */
#define KVC_USAGE_INODE 1024u
/* Takes the lock. */
void kvc_usage_show(struct kvc_catalog *c, uint64_t *inodes, uint64_t *attrs, uint64_t *limit);
/*
 * Gives every chunk a new rank; of the mount's own policy, which is another now, nothing is known.
 */
int kvc_chunk_rerank(struct kvc_catalog *c, int64_t (*rank)(const struct kvc_chunk_row *r));

#endif
