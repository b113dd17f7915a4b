/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks in memory, and the order in which they leave it (chunk.c). All under k->lock. */
#ifndef KVC_CHUNK_H
#define KVC_CHUNK_H

#include "kvc.h"
#include "table.h"

#define KVC_YOUNG_NS 300000000ull /* see kvc_chunk_young */

struct kvc_node;
struct kvc_pin;

struct kvc_chunk {
	uint64_t id;
	struct kvc_slot slot; /* in k->chunks->table, by id */
	struct kvc_use use;
	uint64_t pin_until_ns, ttl_s, expires_ns;
	int64_t rank;
	unsigned policy;       /* its class (policy.h) */
	uint64_t quota;        /* the model whose quota it counts to; 0: none */
	struct kvc_pin *pin;   /* pin.h; NULL: none */
	uint64_t bytes;        /* that its nodes have in the pool: the sum of their in_pool */
	size_t heap_at;        /* index in its class's heap + 1; 0: not in it */
	struct kvc_list nodes; /* its nodes that have a segment */
	unsigned nnodes;
	unsigned inflight; /* nodes that hold a pointer */
	bool dirty, known; /* to be written; has a row */
	bool gone;         /* its row was deleted and is not to come back */
	bool quiet;        /* nobody took any of it in hand since a drop looked (names/bury.c) */
	bool cut;          /* it is dropped: what is there of its files is for nobody any more */
	struct kvc_list dirty_link;
};

/* Chunks with segments in the pool, lowest rank first. */
struct kvc_heap {
	struct kvc_chunk **v;
	size_t n, room;
};

struct kvc_chunks {
	struct kvc_table table;
	struct kvc_heap heap[KVC_CLASSES];
	/* whose is the lowest gives next; each victim moves it on by its part of the class */
	double turn[KVC_CLASSES];
	uint64_t clock_ns; /* the last use stamp given out */
};

struct kvc_chunk *kvc_chunk_find_locked(struct kvc *k, uint64_t id);
/* One that is not in memory, from its row, or without one (NULL). NULL: out of memory. */
struct kvc_chunk *kvc_chunk_new_locked(struct kvc *k, uint64_t id, const struct kvc_chunk_row *r);
void kvc_chunk_leave_locked(struct kvc *k, struct kvc_node *n);
void kvc_chunk_add_locked(struct kvc *k, struct kvc_node *n);    /* it has a segment now */
void kvc_chunk_remove_locked(struct kvc *k, struct kvc_node *n); /* it has none any more */
void kvc_chunk_count_locked(struct kvc *k, struct kvc_node *n);  /* its room changed */
void kvc_chunk_used_locked(struct kvc *k, struct kvc_chunk *c, bool hit);
void kvc_chunk_dirty_locked(struct kvc *k, struct kvc_chunk *c);
/* It has no files any more: its row goes. */
void kvc_chunk_forget_both(struct kvc *k, uint64_t id);
/* A chunk whose files were in another one: was used when that was, if later. */
void kvc_chunk_take_use_locked(struct kvc *k, struct kvc_chunk *c, const struct kvc_chunk_row *r);
/* lowest rank with segments, out of the heap */
struct kvc_chunk *kvc_chunk_pop_locked(struct kvc *k);
void kvc_chunk_push_locked(struct kvc *k, struct kvc_chunk *c);
void kvc_chunk_row(const struct kvc_chunk *c, struct kvc_chunk_row *r);
/* Its class and its quota are others now. */
void kvc_chunk_set_class_locked(struct kvc *k, struct kvc_chunk *c, unsigned class, uint64_t quota);
/* One of its files is taken in hand, or there is another: it is not dropped as it was looked at. */
static inline void kvc_chunk_stir(struct kvc_chunk *c)
{
	if (c)
		c->quiet = false;
}
/* It is dropped: it is nobody's victim any more. Until its files have gone (false). */
void kvc_chunk_cut_locked(struct kvc *k, struct kvc_chunk *c, bool cut);
/* Was it used so lately that somebody may be between two of its files? */
bool kvc_chunk_young(const struct kvc *k, uint64_t last_ns);
int64_t kvc_chunk_rank_row(struct kvc *k, const struct kvc_chunk_row *r);
/* Of the classes in the mask the one that gives next (-1: none); and its turn moves on. */
int kvc_class_next(const double turn[KVC_CLASSES], unsigned mask);
void kvc_class_gave_locked(struct kvc *k, double turn[KVC_CLASSES], unsigned class);
void kvc_chunk_settle_locked(struct kvc *k, struct kvc_chunk *c);
/* At the end. */
void kvc_chunks_free(struct kvc *k);

#endif
