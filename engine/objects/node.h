/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes in memory, and the life of an object. All under k->lock.
 *
 * The states of an object (n->state), and the segment that it has in the pool:
 *
 *   state      segment                         next states
 *   NONE       (not a regular file)            -
 *   OPEN       w-ino-gen (never published)     RESIDENT, BOTH: last writer's close; GONE
 *              or o-ino-gen (published as gen
 *              and open for writing again)
 *   RESIDENT   p-ino-gen                       OPEN; BOTH: a tier has it; GONE
 *   BOTH       p-ino-gen                       OPEN; RESIDENT: the tier lost it; LOWER: evicted;
 *                                              GONE
 *   LOWER      none                            LOADING; OPEN: created, or truncated to nothing;
 *                                              RESIDENT, BOTH: the next mount finds its segment;
 *                                              GONE: also if every copy was bad
 *   LOADING    l-ino-gen                       BOTH; LOWER: the load failed; GONE: unlinked
 *   GONE       none                            -
 *
 * After a kill, the name of a segment decides what recovery does. A p segment is kept if its
 * generation is the catalog's or newer. An o segment is kept if nothing was written to it: its
 * mtime is still KVC_MARK_NS, which was set when it was opened. Otherwise it is removed and a lower
 * copy serves. w and l segments are removed. A p segment with that mark must be compared with its
 * lower copies (n->segment.verify); its own mtime is restored after the comparison.
 *
 * Copies with loss. The segment has the written bytes until the object has left the pool and
 * returned from a copy that was coded with loss. Then it has the decoded bytes and is marked
 * (KVC_SEGMENT_DECODED), the row of the object is `decoded` and has their sum, and copies that
 * decode to other bytes are made again. The mark precedes the first read of these bytes; the rows
 * follow with the next commit. So recovery sums a marked segment whose row is not `decoded`, and
 * finds the copy that it is from.
 *
 * Order on disk. Adding a copy: frame, placement row, commit; only then may the segment be evicted.
 * If the row replaces the row of a copy that an fsync may have stored, the frame is synced first.
 * Deleting a file: row deleted, commit; only then is its segment freed. Its extents are freed after
 * the commit is on stable storage (deferred_free.c).
 */
#ifndef KVC_NODE_H
#define KVC_NODE_H

#include "chunk.h"
#include "kvc.h"
#include "table.h"
#include "wait.h"

#include <sys/stat.h>

/*
 * mtime of a segment that was not written to since it was opened for writing: the largest possible
 * time, which no client can set (ops/io.c)
 */
#define KVC_MARK_NS ((uint64_t)INT64_MAX)

enum kvc_state {
	KVC_NONE,
	KVC_OPEN,
	KVC_RESIDENT,
	KVC_BOTH,
	KVC_LOWER,
	KVC_LOADING,
	KVC_GONE,
	KVC_STATES
};
extern const char *const kvc_file_state_names[];

/* A node's copy in one tier. */
struct kvc_node_tier {
	/* Written by objects/file.c. */
	struct kvc_place place;
	/* Written by objects/tier_queue.c. The job that makes the copy, while it is queued. */
	struct kvc_job *queued;
};

/*
 * A file, folder or other inode in memory. Each part is written by the source file that its comment
 * names, and initialized by kvc_node_new_locked and node_load_locked; other source files only read
 * it (tests/mounted/source/writers.py). Every file in the pool has a node, so small members are
 * placed side by side to save memory.
 */
struct kvc_node {
	/* Each operation writes the attributes that it changes, and marks the node dirty. */
	struct kvc_row row;
	struct kvc_slot slot; /* in k->nodes->table, by row.ino */
	struct kvc_paid paid; /* what its owner's usage was charged for the row (catalog/usage.c) */
	/* Written by objects/node.c. The uses that keep the node in memory. */
	struct {
		uint64_t kernel; /* references of the kernel: lookups that it has not forgotten */
		unsigned engine; /* references of workers, leases and operations in progress */
		unsigned opens, writers, leases;
		/*
		 * opens that wait for memory, and for a folder also creates in it; while any waits,
		 * the chunk is not dropped
		 */
		unsigned waiting;
	} refs;
	/* Written by objects/node.c. What the next commit writes. */
	struct {
		struct kvc_list link; /* on k->committer->nodes while it is dirty */
		bool dirty;           /* the row must be written */
		bool touched;         /* its atime must be written when it leaves memory */
		bool lost;            /* its row was deleted: it was unlinked or dropped */
	} commit;
	/* Written by objects/node.c. Calls that wait for the node. */
	struct {
		/* opens and leases wait for the load, renames for the publish */
		struct kvc_list ready;
		struct kvc_list sync; /* fsyncs; w->stage is an enum kvc_sync */
	} wait;
	/* Written by objects/file.c. A file without names lingers (kvc_file_linger_locked). */
	struct {
		struct kvc_list link; /* on a list of k->committer->lingering */
		uint64_t bytes;       /* its part of k->reservations.leaving */
	} linger;
	/*
	 * Written by names/dir_invalidate.c. A file whose names were removed by a drop, not a
	 * client.
	 */
	bool dropped;
	/* Written by names/tmpfile.c. It has no name yet. */
	bool unnamed;

	/* Folders */

	/*
	 * Written by names/remote_lookup.c. A file or folder in it was deleted because it could not
	 * be read.
	 */
	bool unread;
	/* Written by names/chunking.c. The chunks that its files belong to. */
	struct {
		bool splitting; /* its files are being moved to other chunks */
		/* a job to move its files is queued or runs; the job must run once more */
		bool regroup, regroup_again;
		/* its own user.kvcachefs.unit. 0: not read yet; 1: not set; 2 + enum kvc_unit */
		int8_t unit_set;
		/*
		 * The burst that filled the folder: the number of files, and when the folder was
		 * created (0: not known) and last filled
		 */
		unsigned files;
		uint64_t made_ns, filled_ns;
	} chunking;
	/* Written by objects/folder.c. */
	struct {
		uint64_t bytes; /* bytes of the files of the burst that filled it */
		/*
		 * 1 + the number of its files that count towards a complete chunk, or 0: not
		 * counted. Counting ends when it reaches published_of (names/incomplete.c).
		 */
		unsigned published, published_of;
	} content;
	/* Written by names/dir_invalidate.c. Set if it was dropped with its chunk. */
	struct kvc_dropped_dir *dropped_dir;
	/* Written by names/chunk_drop.c. Set while the chunk of this folder or file is dropped. */
	struct kvc_drop *drop;

	/* Regular files */

	/* Written by objects/file.c. kvc_file_become_locked alone changes it. */
	enum kvc_state state : 8;
	/* Written by access/admission.c. No copy is requested, since admission refused it. */
	bool refused;
	/* Written by ops/open.c and ops/hit.c. Its opens use plain requests, not passthrough. */
	bool plain;
	/* Written by objects/account.c. Its bytes are in k->account->requested. */
	bool copy_requested;
	/*
	 * Written by objects/tier_queue.c. A bit for each tier: a job of a copy is queued or runs.
	 */
	uint8_t copying;
	/* Written by tiering/spill.c. */
	struct {
		bool failing;     /* the last copy to a tier failed */
		uint8_t failures; /* number of consecutive failures */
	} spill;
	/*
	 * Written by objects/file.c. The copies in the tiers; the masks have a bit for each tier.
	 */
	struct {
		bool recorded; /* the catalog may have placement rows of it */
		bool unshared; /* created by this mount; no copy to a shared tier was begun since */
		/* no copy can be made until the file changes or the next mount */
		uint8_t uncopyable;
		/* the copy must be made again, and is kept until that is done */
		uint8_t resealing;
		/* an old copy under an earlier name is removed by the next copy */
		uint8_t old_name;
		uint64_t txn; /* the transaction that records the newest placement */
		/*
		 * as in struct kvc_place: the error that another node told with the decoded bytes
		 * of this generation. That node's frame is no copy, so no placement records it.
		 */
		uint32_t lent_error_ppm, lent_worst_ppm;
	} copies;
	/* Written by objects/file.c. The segment in the pool. */
	struct {
		int fd, backing; /* -1 and 0 if there is none; fd is writable only in state OPEN */
		bool fresh;      /* the segment's name begins with w-, not o- */
		bool never_published; /* created by this mount and never published */
		bool unpublished;     /* closed, but it could not be renamed: still OPEN */
		/*
		 * it was open for writing and seems unchanged: compare it before trusting a lower
		 * copy
		 */
		bool verify;
		bool snapshot; /* fsync waits for a copy of the file's current contents */
		/* an earlier daemon left it; this one did not load it from a copy */
		bool inherited;
		/* OPEN: its mtime when the mode was set; a later write clears the set-id bits */
		uint64_t mode_ns;
		/* bytes, from the start of the file, that are preallocated for plain writes */
		uint64_t prepared;
		/* changes whenever the contents may have changed: tells a copy that it is stale */
		uint64_t epoch;
		/*
		 * when it got a temporary name, or was last closed with one (names/incomplete.h);
		 * 0: its name is not temporary
		 */
		uint64_t temporary_ns;
	} segment;
	/* Written by objects/file.c. */
	struct kvc_object_row object;
	/* Written by objects/account.c. The first folder of its path, whose quota is charged. */
	uint64_t model;
	/* Written by objects/account.c. The bytes that it counts. */
	struct {
		uint64_t reserved; /* for the segment: its part of k->reservations.used */
		uint64_t copied;   /* its part of k->reservations.copied */
		uint64_t uncopied; /* its part of k->reservations.uncopied */
		uint64_t charged;  /* to its model, and to the model's quota if it has one */
		bool file;         /* it is one of its model's files */
		/* preallocated when it was opened to be rewritten: part of k->reservations.ahead */
		uint64_t preallocated;
		/* write=back: on k->account->uncopied until a copy is requested */
		struct kvc_list link;
	} acct;
	/* Written by telemetry/model_stats.c. The statistics that count its bytes in the pool. */
	struct {
		struct kvc_model_stats *in;
		uint64_t bytes; /* the number that they count */
	} counted;
	/* Written by limits/pin.c. The pin that counts it (limits/pin.h). */
	struct {
		uint64_t serial, bytes;
	} pin;
	/* Written by limits/user.c. The users that have it open or leased (limits/user.h). */
	struct {
		struct kvc_share_entry *entries;
		uint64_t bytes; /* bytes that each of them is charged */
	} share;
	/* Written by objects/chunk.c and objects/membership.c. */
	struct kvc_chunk *chunk;
	/* Written by objects/chunk.c. A node with a segment is part of its chunk in the pool. */
	struct {
		struct kvc_list link; /* on chunk->nodes */
		uint64_t bytes;       /* its part of chunk->bytes */
	} part;
	/* Written by tiering/load.c. The last load. */
	struct {
		int error;
		uint8_t tier;
	} load;
	/* Written by objects/tier_queue.c. The load, while it is queued. */
	struct kvc_job *queued_load;
	struct kvc_node_tier in[]; /* by tier: k->tier_slots elements */
};

/*
 * The progress of an fsync. ASKED: no copy to a tier has begun since the fsync. BEGUN(tier): a copy
 * to this tier has begun since. COPIED: a copy is made. DONE: it waits only for the commit.
 */
enum kvc_sync { KVC_SYNC_ASKED, KVC_SYNC_COPIED, KVC_SYNC_DONE };
#define KVC_SYNC_BEGUN(tier) (-1 - (int)(tier))

struct kvc_nodes {
	struct kvc_table table;
	/* opens that are not released, except those of joint holds; nodes RESIDENT or BOTH */
	uint64_t opens, resident;
	uint64_t backings;                                 /* segments registered for passthrough */
	_Alignas(KVC_CACHE_LINE) _Atomic uint64_t fd_uses; /* see kvc_open_fd_done; any thread */
};

static inline bool kvc_node_has_segment(const struct kvc_node *n)
{
	return n->state == KVC_OPEN || n->state == KVC_RESIDENT || n->state == KVC_BOTH;
}

/*
 * Returns true if the node's chunk is being dropped: the node is destroyed soon, and callers must
 * treat it as deleted.
 */
static inline bool kvc_node_detached(const struct kvc_node *n)
{
	return n->chunk && n->chunk->detached;
}

/* Returns true if the file is deleted or is about to be. */
static inline bool kvc_node_gone(const struct kvc_node *n)
{
	return n->state == KVC_GONE || kvc_node_detached(n);
}

/* Returns true if the kernel knows the inode; otherwise it needs no notification about it. */
static inline bool kvc_node_kernel_knows(const struct kvc_node *n)
{
	return n->refs.kernel || n->row.ino == KVC_ROOT;
}

/*
 * Returns the ctime of a file whose segment was last written at mtime. An mtime in the future was
 * set by a client and does not count.
 */
static inline uint64_t kvc_node_ctime(uint64_t ctime_ns, uint64_t mtime_ns)
{
	return (int64_t)mtime_ns > (int64_t)kvc_now_ns() ? ctime_ns : kvc_later(ctime_ns, mtime_ns);
}

/*
 * Clears the set-id bits of a file that was written or got another owner, as any filesystem does.
 */
static inline void kvc_node_drop_setid(struct kvc_row *row)
{
	row->mode &= ~(uint32_t)S_ISUID;
	if (row->mode & S_IXGRP)
		row->mode &= ~(uint32_t)S_ISGID;
}

/* Number of opens that are not released. */
uint64_t kvc_node_opens_locked(const struct kvc *k);
/* Returns the node if it is in memory, or NULL. A joint hold of the lock suffices. */
struct kvc_node *kvc_node_find_locked(struct kvc *k, uint64_t ino);
/* Gets a node from memory or the catalog. Returns 0 with *n, -ENOENT, -ENOMEM or -EIO. */
int kvc_node_get_both(struct kvc *k, uint64_t ino, struct kvc_node **n);
/* The same with rows that the caller has read and that are still current (kvc_peek_holds). */
int kvc_node_get_peeked_both(struct kvc *k, const struct kvc_peek *p, struct kvc_node **n);
/* The same for a file whose model is known, while no folder moves: reads nothing. */
int kvc_node_get_modeled_locked(struct kvc *k, const struct kvc_peek *p, uint64_t model,
				struct kvc_node **n);
/* Creates a node for this row, without references. Returns NULL if out of memory. */
struct kvc_node *kvc_node_new_locked(struct kvc *k, const struct kvc_row *row);
/* Frees the node if nothing needs it in memory. Call it after putting a reference. */
void kvc_node_settle_locked(struct kvc *k, struct kvc_node *n);
/* Marks the node dirty: the next commit writes its row. */
void kvc_node_dirty_locked(struct kvc *k, struct kvc_node *n);
/* Marks the node clean: the next commit does not write its row. */
void kvc_node_clean_locked(struct kvc *k, struct kvc_node *n);
/* The node's row was written: nothing of it is left to write. */
void kvc_node_written_locked(struct kvc *k, struct kvc_node *n);
/*
 * Fills *attr with the node's current attributes; those of an open file are read from its segment.
 */
void kvc_node_attr_locked(struct kvc *k, struct kvc_node *n, struct kvc_row *attr);
/* Reads the row of a node, whether or not the node is in memory. */
int kvc_node_row_both(struct kvc *k, uint64_t ino, struct kvc_row *row);
/* A file more than this many folders below its model belongs to no model. */
#define KVC_DEPTH_MAX 4096u
/*
 * Gets the model of a folder; 0 for the root. -ENOENT: a folder above is missing; -ELOOP: the
 * folder is too deep; after an error *model is 0. kvc_node_model_of_row_both begins with the
 * folder's row.
 */
int kvc_node_model_both(struct kvc *k, uint64_t folder, uint64_t *model);
int kvc_node_model_of_row_both(struct kvc *k, const struct kvc_row *folder, uint64_t *model);
/*
 * Gets the model of the files in a folder: 0 also if a folder above is missing or the folder is too
 * deep. up: the parent of the folder, as it was read without locks, or 0. moves: if not NULL, gets
 * the moves of the folder and of those above it (telemetry/model_moves.h).
 */
struct kvc_model_move_path;
int kvc_node_files_model_both(struct kvc *k, uint64_t folder, uint64_t up, uint64_t *model,
			      struct kvc_model_move_path *moves);
/* At unmount. */
void kvc_node_free_all(struct kvc *k);

/* References of the engine. Call kvc_node_settle_locked after putting the last one. */
static inline void kvc_node_ref_locked(struct kvc_node *n)
{
	n->refs.engine++;
}

static inline void kvc_node_unref_locked(struct kvc_node *n)
{
	n->refs.engine--;
}

/* A reply gives the kernel a reference; a forget gives back `count` of them. */
static inline void kvc_node_looked_up_locked(struct kvc_node *n)
{
	n->refs.kernel++;
}

static inline void kvc_node_forgotten_locked(struct kvc_node *n, uint64_t count)
{
	n->refs.kernel -= kvc_min(count, n->refs.kernel);
}

/* An open begins or ends. */
static inline void kvc_node_opened_locked(struct kvc_node *n, bool writes)
{
	n->refs.opens++;
	n->refs.writers += writes;
}

static inline void kvc_node_closed_locked(struct kvc_node *n, bool writes)
{
	n->refs.opens--;
	n->refs.writers -= writes && n->refs.writers;
}

/* A call writes to the file with the locks released: the file is not published until it ends. */
static inline void kvc_node_write_begin_locked(struct kvc_node *n)
{
	n->refs.engine++;
	n->refs.writers++;
}

static inline void kvc_node_write_end_locked(struct kvc_node *n)
{
	n->refs.engine--;
	n->refs.writers--;
}

/* A lease on the object begins or ends. */
static inline void kvc_node_leased_locked(struct kvc_node *n)
{
	n->refs.leases++;
}

static inline void kvc_node_unleased_locked(struct kvc_node *n)
{
	n->refs.leases--;
}

/* A call begins or stops waiting for memory. */
static inline void kvc_node_waits_locked(struct kvc_node *n)
{
	n->refs.waiting++;
}

static inline void kvc_node_waited_locked(struct kvc_node *n)
{
	n->refs.waiting--;
}

/* The access time has changed. */
static inline void kvc_node_touch_locked(struct kvc_node *n)
{
	n->commit.touched = true;
}

/* The row was deleted (true), or is written again. */
static inline void kvc_node_set_lost_locked(struct kvc_node *n, bool lost)
{
	n->commit.lost = lost;
}

/* Parks a call until the object is loaded or published. Returns KVC_WAIT. */
static inline int kvc_node_park_locked(struct kvc *k, struct kvc_node *n, struct kvc_wait *w)
{
	return kvc_wait_park_locked(k, &n->wait.ready, w);
}

/* Wakes these calls with this result. */
static inline void kvc_node_wake_locked(struct kvc *k, struct kvc_node *n, int err)
{
	kvc_wait_wake_all_locked(k, &n->wait.ready, err);
}

/* Parks an fsync until a copy is made. Returns KVC_WAIT. */
static inline int kvc_node_park_sync_locked(struct kvc *k, struct kvc_node *n, struct kvc_wait *w)
{
	return kvc_wait_park_locked(k, &n->wait.sync, w);
}

/* Wakes all fsyncs with this result. */
static inline void kvc_node_wake_sync_locked(struct kvc *k, struct kvc_node *n, int err)
{
	kvc_wait_wake_all_locked(k, &n->wait.sync, err);
}

#endif
