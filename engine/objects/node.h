/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes in memory, and the life of an object. All under k->lock.
 *
 * An object's life (n->state), and which segment the pool has:
 *
 *   state      segment                         goes to
 *   NONE       (not a regular file)            -
 *   OPEN       w-ino-gen (never published)     RESIDENT, BOTH: last writer's close; GONE
 *              or o-ino-gen (published as gen
 *              and open for writing again)
 *   RESIDENT   p-ino-gen                       OPEN; BOTH: a tier has it; GONE
 *   BOTH       p-ino-gen                       OPEN; RESIDENT: the tier lost it; LOWER: evicted;
 *                                              GONE
 *   LOWER      none                            LOADING; OPEN: truncated to nothing; GONE
 *   LOADING    l-ino-gen                       BOTH; LOWER: the load failed; GONE: unlinked or
 *                                              every copy was bad
 *   GONE       none                            -
 *
 * After a kill the name of a segment tells all: p is taken over when its generation is the
 * catalog's or newer; o is taken over when nothing was written (its mtime is still KVC_MARK_NS, set
 * when it was opened), else it is removed and a lower copy serves; w and l are removed. A p with
 * that mark is to be compared with its lower copies (n->verify): it has its own time again when
 * that was done.
 *
 * Order on disk: frame, placement row, commit; only then may the segment go. Row deleted, commit;
 * only then are its segment freed; and brought to stable storage; only then its extents
 * (deferred_free.c).
 */
#ifndef KVC_NODE_H
#define KVC_NODE_H

#include "chunk.h"
#include "kvc.h"
#include "table.h"

#include <sys/stat.h>

/*
 * mtime of a segment that nobody wrote to since it was opened for writing: the last there is, which
 * no client can set (ops/io.c)
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

/* What a file has of a tier. */
struct kvc_node_tier {
	struct kvc_place place;
	struct kvc_job *queued; /* the job that copies it there, while it is queued */
};

/* One a file in the pool, and more: so small members are beside each other. */
struct kvc_node {
	struct kvc_row row;
	struct kvc_slot slot; /* in k->nodes->table, by row.ino */
	uint64_t nlookup;     /* references of the kernel */
	struct kvc_paid paid; /* for its row in the catalog */
	struct kvc_list dirty_link;
	struct kvc_list lingers; /* lost, and still to be opened (kvc_file_linger_locked) */
	uint64_t leaving;        /* while it is there: its part of k->reservations.leaving */
	/* references of the engine's own: workers, leases, operations under way */
	unsigned refs;
	/* opens, and of a folder creates in it, that wait for room: its chunk is not dropped */
	unsigned waiting;
	bool dirty, touched; /* to be written; its atime is, when it leaves memory */
	bool lost;           /* it has no row any more: unlinked or dropped */
	bool dropped;        /* a file whose names went without the kernel's asking */
	bool unnamed;        /* it has no name yet (names/tmpfile.c) */

	/* folders */
	bool splitting;              /* its files are being given to other chunks */
	bool regroup, regroup_again; /* a job is to do that, or does; and then once more */
	/* its own user.kvcachefs.unit: 0 not looked up; 1 none; 2 + enum kvc_unit */
	int8_t unit_set;
	/*
	 * 1 + how many of its files count for a whole chunk, where counting ended at published_of;
	 * 0: not counted
	 */
	unsigned published, published_of;
	/*
	 * when it was made (0: not known) and last filled, with how many files and bytes
	 * (names/chunking.c)
	 */
	unsigned files;
	uint64_t made_ns, filled_ns, fill_bytes;
	/* it was dropped with its chunk (names/dir_invalidate.c) */
	struct kvc_dropped_dir *dropped_dir;
	struct kvc_drop *drop; /* its chunk is being dropped (names/chunk_drop.c) */

	/* regular files */
	bool unborn;     /* made here, and never published since */
	bool has_places; /* the catalog may have rows of places */
	bool asked;      /* it was taken from `behind`: its bytes are in k->account->asked */
	bool plain;      /* how it is open now */
	bool fresh;      /* the segment is a w-, not an o- */
	/* was open for writing and seems untouched: compare before trusting the lower copy */
	bool verify;
	bool unpublished; /* closed, but its segment would not take its name: it is OPEN still */
	bool failing;     /* the last spill failed */
	bool refused;     /* no copy is asked for: it is not let in (admission.h) */
	bool unshared;    /* made here, and no copy to a shared tier was begun since */
	bool snapshot;    /* fsync waits for a copy of the file as it is now */
	bool unread;      /* a folder: a file in it was deleted that could not be read */
	uint8_t loaded;   /* the tier of the last load */
	uint8_t tries;    /* how often, one after the other */
	/* bits per tier: a job is queued or runs; */
	uint8_t spilling;
	/* no copy can be made before the file changes, or the mount; */
	uint8_t hopeless;
	/* its copy is to be made anew, and stays until that is done; */
	uint8_t resealing;
	/* where its copy is under an earlier name that one goes with the next copy */
	uint8_t left;
	enum kvc_state state : 8;
	int load_error; /* of the last load */
	unsigned nopen, nwriters, leases;
	int fd, backing; /* -1 and 0 while not there; fd is to write with while OPEN only */
	struct kvc_object_row object;
	uint64_t place_txn; /* the transaction that records the newest placement */
	uint64_t reserved;  /* bytes accounted for the segment */
	uint64_t charged;   /* bytes counted to its model's quota */
	uint64_t uncopied;  /* bytes counted to k->reservations.uncopied */
	/* with write=back: in k->account->behind while no copy was asked for */
	struct kvc_list behind;
	/* open: its segment's mtime when its mode was set; a write since takes set-id bits */
	uint64_t mode_ns;
	uint64_t prepared; /* bytes from the start that are prepared for plain writes */
	/* what was prepared when it was opened to be written anew; part of k->reservations.ahead */
	uint64_t ahead;
	uint64_t copied; /* its part of k->reservations.copied */
	/*
	 * when it got a temporary name, or was closed after that (names/incomplete.h); 0: it has
	 * none
	 */
	uint64_t temporary_ns;
	/* counts openings for writing, so a copy knows that it is old */
	uint64_t epoch;
	uint64_t model;
	struct kvc_model_stats *tally; /* that counts its room, and how much (model_stats.h) */
	uint64_t tallied;
	struct kvc_chunk *chunk;
	struct kvc_list chunk_link;
	uint64_t in_pool;                /* its part of chunk->bytes */
	uint64_t pin_serial, pin_weight; /* the pin that counts it, and with how much (pin.h) */
	struct kvc_user_hold *holders;   /* user_share.h */
	uint64_t held;                   /* what each of them is charged */
	/* opens and leases that wait for the load, renames that wait for the publish */
	struct kvc_list waiters;
	struct kvc_list sync_waiters; /* w->stage: enum kvc_sync */
	struct kvc_node_tier in[];    /* by tier: k->seats of them */
};

/* How far an fsync is: asked for a copy; one to a tier has begun since; made; committed. */
enum kvc_sync { KVC_SYNC_ASKED, KVC_SYNC_COPIED, KVC_SYNC_DONE };
#define KVC_SYNC_BEGUN(tier) (-1 - (int)(tier))

struct kvc_nodes {
	struct kvc_table table;
	uint64_t opens, resident; /* opens not released; nodes RESIDENT or BOTH */
	uint64_t backings;        /* segments registered for passthrough */
	_Atomic uint64_t fd_uses; /* see kvc_open_fd_done; any thread */
};

static inline bool kvc_has_segment(const struct kvc_node *n)
{
	return n->state == KVC_OPEN || n->state == KVC_RESIDENT || n->state == KVC_BOTH;
}

/* Its chunk is dropped, and it goes in a moment: for everybody else it has gone. */
static inline bool kvc_node_cut(const struct kvc_node *n)
{
	return n->chunk && n->chunk->detached;
}

/* There is no file any more, or will not be one in a moment. */
static inline bool kvc_node_gone(const struct kvc_node *n)
{
	return n->state == KVC_GONE || kvc_node_cut(n);
}

/* Does the kernel know this node? What it does not know it need not be told of. */
static inline bool kvc_kernel_knows(const struct kvc_node *n)
{
	return n->nlookup || n->row.ino == KVC_ROOT;
}

/* The ctime of a file whose segment was last written at mtime; one to come is a client's wish. */
static inline uint64_t kvc_ctime(uint64_t ctime_ns, uint64_t mtime_ns)
{
	return (int64_t)mtime_ns > (int64_t)kvc_now_ns() ? ctime_ns : kvc_later(ctime_ns, mtime_ns);
}

/* Written or given away: the set-id bits go, as they do on any filesystem. */
static inline void kvc_drop_setid(struct kvc_row *row)
{
	row->mode &= ~(uint32_t)S_ISUID;
	if (row->mode & S_IXGRP)
		row->mode &= ~(uint32_t)S_ISGID;
}

struct kvc_node *kvc_node_find_locked(struct kvc *k, uint64_t ino);
/* From memory or the catalog. 0 with *n, -ENOENT, -ENOMEM, -EIO. */
int kvc_node_get_both(struct kvc *k, uint64_t ino, struct kvc_node **n);
/* The same with what was read already, and still is so (kvc_peek_holds). */
int kvc_node_get_peeked_both(struct kvc *k, const struct kvc_peek *p, struct kvc_node **n);
/* The same for a file whose model is known: reads nothing. */
int kvc_node_get_modeled_locked(struct kvc *k, const struct kvc_peek *p, uint64_t model,
				struct kvc_node **n);
struct kvc_node *kvc_node_new_locked(struct kvc *k, const struct kvc_row *row);
/* Frees it if nothing needs it in memory. Call after dropping any reference. */
void kvc_node_settle_locked(struct kvc *k, struct kvc_node *n);
void kvc_node_dirty_locked(struct kvc *k, struct kvc_node *n);
/* The node's attributes as of now (an open file's come from its segment). */
void kvc_node_attr_locked(struct kvc *k, struct kvc_node *n, struct kvc_row *attr);
/* The row of a node, in memory or not. */
int kvc_node_row_both(struct kvc *k, uint64_t ino, struct kvc_row *row);
/* The model of what lies in this folder; 0 at the root. */
int kvc_node_model_both(struct kvc *k, uint64_t folder, uint64_t *model);
/* The same from the folder's row, with the folder's depth below the root. */
int kvc_node_model_of_row_both(struct kvc *k, const struct kvc_row *folder, uint64_t *model,
			       unsigned *depth);
/* At the end. */
void kvc_node_free_all(struct kvc *k);

#endif
