/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks in memory (chunk.c). All under k->lock. */
#ifndef KVC_CHUNK_H
#define KVC_CHUNK_H

#include "hints.h"
#include "kvc.h"
#include "table.h"
#include "replacer.h"

#define KVC_YOUNG_NS 300000000ull /* see kvc_chunk_young */

enum kvc_cache { KVC_CACHE_POOL, KVC_CACHE_DISK, KVC_CACHES }; /* replacers.h */
#define KVC_DISK 0u                                            /* the number of the disk tier */

struct kvc_node;
struct kvc_pin;

/* What the pool's policy has decided about a chunk (leaving.h). */
enum kvc_standing {
	KVC_KEPT,   /* it is in the policy's order */
	KVC_ENTERS, /* a client is creating it, and the policy has not been asked yet */
	KVC_LEAVES, /* it is in no order, and is evicted when its space is needed */
	KVC_STANDINGS,
};

struct kvc_chunk {
	uint64_t id;
	struct kvc_slot slot;  /* in k->chunks->table, by id */
	struct kvc_access use; /* when it was created and last used, and its hits (policy.h) */
	uint64_t pin_until_ns, ttl_s, expires_ns;
	int64_t rank;
	unsigned policy; /* its class (base/policy.h) */
	/* id of the preceding chunk, or 0; KVC_TOLD is set if a client reported it */
	uint64_t parent;
	/*
	 * state of each cache's policy, as stored in the row; used while the policy has no newer
	 * state
	 */
	uint64_t saved_state[KVC_CACHES];
	/*
	 * the request that used the chunk last, and the first file of the chunk that it used
	 * (access.h)
	 */
	uint64_t last_request;
	uint64_t first_file;
	uint64_t quota;             /* the model whose quota is charged; 0: none */
	struct kvc_hints hints;     /* hints of clients about its future (objects/hinted.h) */
	enum kvc_standing standing; /* while it has files in the pool (objects/leaving.h) */
	struct kvc_pin *pin;        /* NULL: not pinned (limits/pin.h) */
	/* limits/tenant.h */
	struct {
		uint64_t number;      /* its tenant; 0: none */
		uint64_t used, pool;  /* its bytes in the tenant's sums of these names */
		struct kvc_list link; /* on the tenant's order or parents, while in the pool */
		bool taken;           /* it left that list as a victim */
		bool as_parent;       /* it is on the list of parents */
	} tenant;
	uint64_t bytes; /* bytes of its nodes in the pool: the sum of their part.bytes */
	/*
	 * like `bytes`, but an eviction does not reduce it: the size of the chunk when all of it is
	 * in the pool. Files that are deleted while they are not in the pool still count.
	 */
	uint64_t peak_bytes;
	struct kvc_list nodes; /* its nodes that have a segment */
	unsigned nnodes;
	unsigned refs; /* references: nodes whose n->chunk is this chunk, and callers */
	/*
	 * number of requests for it, at most 2, and the time of the last one that counted
	 * (access/admission.h)
	 */
	unsigned requests;
	uint64_t requested_ns;
	bool on_disk; /* the disk tier has a copy of at least one of its files */
	/*
	 * the disk tier's policy does not keep it; bytes of its copy that are awaited
	 * (objects/disk_victims.h)
	 */
	struct {
		bool refused;
		uint64_t awaited;
	} disk;
	/* dirty: must be written; known: its row in the catalog is current but for accesses */
	bool dirty, known;
	/* dirty only because of its accesses (access_save.c); then `queue` is its list */
	bool accesses_only;
	enum { KVC_ACCESS_HELD, KVC_ACCESS_RELEASED, KVC_ACCESS_WANTED } queue;
	bool due; /* write the accesses even if they differ little from the row's */
	/* use.last_ns in the row, and last_request when the row was written */
	uint64_t stored_ns, stored_in;
	bool row_deleted; /* its row was deleted and must not be written again */
	/*
	 * a client is creating it; policies do not know yet which request it belongs to
	 * (access/access.h)
	 */
	bool fresh;
	/* no call has used any of its files since a drop checked it (names/chunk_drop.c) */
	_Atomic bool idle;
	bool detached; /* it is being dropped: its remaining files are invisible to callers */
	struct kvc_list dirty_link;
	/* while pinned and excluded from the pool's order (limits/pin.h) */
	struct kvc_list excluded_link, chained_link;
};

struct kvc_chunks {
	struct kvc_table table;
	struct kvc_list finished; /* chunks in the pool that are not needed any more (hinted.c) */
	/*
	 * Chunks that leave the pool, the longest waiting first, and the bytes of the pool's chunks
	 * by standing (leaving.c).
	 */
	struct kvc_list unwanted, victims;
	uint64_t bytes[KVC_STANDINGS];
	struct kvc_replacer_turns turns; /* turns of the classes in the pool */
	uint64_t clock_ns;               /* the last time of use that was issued */
	/*
	 * when the access that is being recorded happened, if it is recorded late
	 * (access/access_queue.c): by the store's clock and by kvc_mono_ns; 0: now
	 */
	uint64_t happened_ns, happened_mono_ns;
};

/* Returns the chunk if it is in memory, or NULL. */
struct kvc_chunk *kvc_chunk_find_locked(struct kvc *k, uint64_t id);
/*
 * Creates a chunk that is not in memory, from its row r, or without a row (NULL). The new chunk has
 * no reference. Returns NULL if out of memory.
 */
struct kvc_chunk *kvc_chunk_new_locked(struct kvc *k, uint64_t id, const struct kvc_chunk_row *r);
/* The node leaves its chunk: puts the node's reference, which may free the chunk. */
void kvc_chunk_leave_locked(struct kvc *k, struct kvc_node *n);
/* Update the chunk's list and bytes after a change of one of its nodes. */
void kvc_chunk_add_locked(struct kvc *k, struct kvc_node *n);    /* it got a segment */
void kvc_chunk_remove_locked(struct kvc *k, struct kvc_node *n); /* it lost its segment */
void kvc_chunk_count_locked(struct kvc *k, struct kvc_node *n);  /* its size changed */
/* Moves a node to the beginning or the end of the chunk's list. */
void kvc_chunk_move_first_locked(struct kvc_chunk *c, struct kvc_node *n);
void kvc_chunk_move_last_locked(struct kvc_chunk *c, struct kvc_node *n);
/*
 * Returns the current time, or a later one if needed, so that each stamp is above all earlier ones.
 */
uint64_t kvc_chunk_next_stamp_locked(struct kvc *k);
/* Records a use now: sets the time of the last use and the rank. */
void kvc_chunk_stamp_locked(struct kvc *k, struct kvc_chunk *c);
/* Records an access, which marks the chunk dirty. hit: count it as a hit. */
void kvc_chunk_accessed_locked(struct kvc *k, struct kvc_chunk *c, bool hit);
/* Marks the chunk dirty: the committer writes its row, or only its accesses if it is known. */
void kvc_chunk_dirty_locked(struct kvc *k, struct kvc_chunk *c);
/*
 * Deletes the row of a chunk that has no files any more, and its pin. Frees the chunk if nothing
 * refers to it.
 */
void kvc_chunk_forget_both(struct kvc *k, uint64_t id);
/*
 * Merges the accesses of the chunk r, from which c took over files: c gets the later time of use,
 * the earlier time of creation and the larger number of hits.
 */
void kvc_chunk_merge_access_locked(struct kvc *k, struct kvc_chunk *c,
				   const struct kvc_chunk_row *r);
/*
 * Returns the next victim of the pool and excludes it from the order; NULL if no chunk can be
 * evicted. kvc_chunk_push_locked puts it back.
 */
struct kvc_chunk *kvc_chunk_pop_locked(struct kvc *k);
/*
 * Called once after recovery: puts the chunks that are in the pool into the order that they had
 * before. Returns 0 or -ENOMEM.
 */
int kvc_chunks_ready_locked(struct kvc *k);
/* Puts the chunk into the pool's order, or back into it: it may be evicted. */
void kvc_chunk_push_locked(struct kvc *k, struct kvc_chunk *c);
/* Fills *r with the chunk's current row. */
void kvc_chunk_row(struct kvc *k, const struct kvc_chunk *c, struct kvc_chunk_row *r);
/* Sets the chunk's class and quota; a new class moves it to that class's order. */
void kvc_chunk_set_class_locked(struct kvc *k, struct kvc_chunk *c, unsigned class, uint64_t quota);
/*
 * Called when one of its files is about to be used, or a file joins it: a drop that has checked the
 * chunk must check it again. c may be NULL.
 */
static inline void kvc_chunk_mark_busy(struct kvc_chunk *c)
{
	/* any joint hold may do this; most find nothing to change */
	if (c && atomic_load_explicit(&c->idle, memory_order_relaxed))
		atomic_store_explicit(&c->idle, false, memory_order_relaxed);
}
/* Begins (true) or ends (false) a drop of the chunk. A detached chunk is in no eviction order. */
void kvc_chunk_detach_locked(struct kvc *k, struct kvc_chunk *c, bool detached);
/* Returns true if the last use is so recent that a client may be between two files of the chunk. */
bool kvc_chunk_young(const struct kvc *k, uint64_t last_ns);
/* Returns the rank that the policy of its class gives to the row. */
int64_t kvc_chunk_rank_row(struct kvc *k, const struct kvc_chunk_row *r);
/* Frees the chunk if nothing needs it in memory. Call it after putting a reference. */
void kvc_chunk_settle_locked(struct kvc *k, struct kvc_chunk *c);
/* At unmount. */
void kvc_chunks_free(struct kvc *k);

#endif
