/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks in memory (chunk.c). All under k->lock. */
#ifndef KVC_CHUNK_H
#define KVC_CHUNK_H

#include "kvc.h"
#include "table.h"
#include "turns.h"

#define KVC_YOUNG_NS 300000000ull /* see kvc_chunk_young */

enum kvc_cache { KVC_CACHE_POOL, KVC_CACHE_DISK, KVC_CACHES }; /* replacers.h */
#define KVC_DISK 0u                                            /* the number of the disk tier */

struct kvc_node;
struct kvc_pin;

struct kvc_chunk {
	uint64_t id;
	struct kvc_slot slot; /* in k->chunks->table, by id */
	struct kvc_access use;
	uint64_t pin_until_ns, ttl_s, expires_ns;
	int64_t rank;
	unsigned policy;            /* its class (policy.h) */
	uint64_t parent;            /* what it follows, with KVC_TOLD, or 0 */
	uint64_t facts[KVC_CACHES]; /* as in its row, where a policy does not know better */
	/* the request that used it last, and the first file of it that was */
	uint64_t used_in;
	uint64_t used_first;   /* (access.h) */
	uint64_t quota;        /* the model whose quota it counts to; 0: none */
	struct kvc_pin *pin;   /* pin.h; NULL: none */
	uint64_t bytes;        /* that its nodes have in the pool: the sum of their in_pool */
	uint64_t most;         /* that they had there, with those that are below only now */
	struct kvc_list nodes; /* its nodes that have a segment */
	unsigned nnodes;
	unsigned inflight; /* nodes that hold a pointer */
	/* how often it was asked for, up to 2, and when that counted last (admission.h) */
	unsigned asked;
	uint64_t asked_ns;
	bool begun;        /* the disk tier has some of it */
	bool dirty, known; /* to be written; has a row */
	bool later;        /* only its accesses are to be written (access_save.c), and */
	enum { KVC_ACCESS_HELD, KVC_ACCESS_RELEASED, KVC_ACCESS_WANTED } queue; /* its list */
	bool due; /* they are written however little they differ from the row's */
	/* use.last_ns as the row has it, and used_in when that was written */
	uint64_t stored_ns, stored_in;
	bool gone;     /* its row was deleted and is not to come back */
	bool fresh;    /* a client made it, and policies do not know whose it is (access.h) */
	bool idle;     /* nobody took any of it in hand since a drop looked (names/chunk_drop.c) */
	bool detached; /* it is dropped: what is there of its files is for nobody any more */
	struct kvc_list dirty_link;
	struct kvc_list out, out_chain; /* pinned, and out of the pool's order (pin.h) */
};

struct kvc_chunks {
	struct kvc_table table;
	struct kvc_turns turns; /* of the pool */
	uint64_t clock_ns;      /* the last use stamp given out */
};

struct kvc_chunk *kvc_chunk_find_locked(struct kvc *k, uint64_t id);
/* One that is not in memory, from its row, or without one (NULL). NULL: out of memory. */
struct kvc_chunk *kvc_chunk_new_locked(struct kvc *k, uint64_t id, const struct kvc_chunk_row *r);
void kvc_chunk_leave_locked(struct kvc *k, struct kvc_node *n);
void kvc_chunk_add_locked(struct kvc *k, struct kvc_node *n);    /* it has a segment now */
void kvc_chunk_remove_locked(struct kvc *k, struct kvc_node *n); /* it has none any more */
void kvc_chunk_count_locked(struct kvc *k, struct kvc_node *n);  /* its room changed */
/* Later than all before. */
uint64_t kvc_chunk_next_stamp_locked(struct kvc *k);
/* It was used, just now. */
void kvc_chunk_stamp_locked(struct kvc *k, struct kvc_chunk *c);
void kvc_chunk_accessed_locked(struct kvc *k, struct kvc_chunk *c, bool hit);
void kvc_chunk_dirty_locked(struct kvc *k, struct kvc_chunk *c);
/* It has no files any more: its row goes. */
void kvc_chunk_forget_both(struct kvc *k, uint64_t id);
/* A chunk whose files were in another one: was used when that was, if later. */
void kvc_chunk_take_access_locked(struct kvc *k, struct kvc_chunk *c,
				  const struct kvc_chunk_row *r);
/* Who goes next of those with segments, put aside; NULL: nobody can. */
struct kvc_chunk *kvc_chunk_pop_locked(struct kvc *k);
/* After recovery: those that are in the pool are put in order, as they were. */
int kvc_chunks_ready_locked(struct kvc *k);
/* It may be evicted (again). */
void kvc_chunk_push_locked(struct kvc *k, struct kvc_chunk *c);
/* Its row as of now. */
void kvc_chunk_row(struct kvc *k, const struct kvc_chunk *c, struct kvc_chunk_row *r);
/* Its class and its quota are others now. */
void kvc_chunk_set_class_locked(struct kvc *k, struct kvc_chunk *c, unsigned class, uint64_t quota);
/* One of its files is taken in hand, or there is another: it is not dropped as it was looked at. */
static inline void kvc_chunk_mark_busy(struct kvc_chunk *c)
{
	if (c)
		c->idle = false;
}
/* It is dropped: it is nobody's victim any more. Until its files have gone (false). */
void kvc_chunk_detach_locked(struct kvc *k, struct kvc_chunk *c, bool cut);
/* Was it used so lately that somebody may be between two of its files? */
bool kvc_chunk_young(const struct kvc *k, uint64_t last_ns);
int64_t kvc_chunk_rank_row(struct kvc *k, const struct kvc_chunk_row *r);
/* A class gave a victim: its turn moves on. */
void kvc_chunk_class_gave_locked(struct kvc *k, struct kvc_turns *turns, unsigned class);
void kvc_chunk_settle_locked(struct kvc *k, struct kvc_chunk *c);
/* At the end. */
void kvc_chunks_free(struct kvc *k);

#endif
