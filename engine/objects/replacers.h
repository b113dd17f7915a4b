/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The replacers (policy/replacer.h) of this mount: one for each class of chunks (base/policy.h) in
 * the pool, and one for each class on the disk tier, unless the disk's policy is a rank in the
 * catalog. access/access.c reports accesses to them. All under k->lock.
 */
#ifndef KVC_REPLACERS_H
#define KVC_REPLACERS_H

#include "chunk.h"
#include "replacer.h"

struct kvc_replacers {
	bool ready;          /* recovery has restored the chunks of the pool */
	bool unsaved;        /* the last save failed */
	uint64_t bytes;      /* size of the last saved file */
	pthread_cond_t cond; /* wakes the saver thread */
	/* NULL: no chunk of the class yet */
	struct kvc_replacer *replacer[KVC_CACHES][KVC_CLASSES];
};

/* Returns the policy of a class in a cache: a row of kvc_policy_table. */
unsigned kvc_replacers_policy_of(const struct kvc *k, enum kvc_cache cache, unsigned class);
/*
 * Returns true if the cache has a replacer for the class; false if it uses the rank in the catalog.
 */
bool kvc_replacers_has_order(const struct kvc *k, enum kvc_cache cache, unsigned class);
/* Returns true if the parents of this class's chunks are inferred when no client reports them. */
bool kvc_replacers_infer_parents(const struct kvc *k, unsigned class);
/* Returns the replacer of a class, created if needed. NULL if it has none, or if out of memory. */
struct kvc_replacer *kvc_replacers_of_locked(struct kvc *k, enum kvc_cache cache, unsigned class);

/* Returns true if the chunk is in this cache's order. */
bool kvc_replacers_has_locked(const struct kvc *k, enum kvc_cache cache, const struct kvc_chunk *c);
/*
 * Adds the chunk to this cache's order. If out of memory, it is not added and cannot be a victim.
 */
void kvc_replacers_add_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c);
/*
 * Assigns the chunk to the request that created it. The chunk may be in the cache already
 * (kvc_replacer_claim).
 */
void kvc_replacers_claim_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c,
				struct kvc_request *r);
/*
 * The chunk was dropped and made again. Before the drop it had the id `earlier`, by which the
 * policies know it.
 */
void kvc_replacers_rename_locked(struct kvc *k, uint64_t earlier, const struct kvc_chunk *c);
/* The chunk's bytes in the pool or below have changed. */
void kvc_replacers_resize_locked(struct kvc *k, const struct kvc_chunk *c);
/*
 * Removes the chunk from the cache's order. evicted: the replacer may remember it, as it may be
 * requested again.
 */
void kvc_replacers_remove_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c,
				 bool evicted);
/* Removes the chunk from all orders of all classes. */
void kvc_replacers_forget_locked(struct kvc *k, uint64_t id);
/* Charges a victim to its class, so that the next victim may be another class's. */
void kvc_replacers_count_victim_locked(const struct kvc *k, struct kvc_replacer_turns *turns,
				       unsigned class);
/* Returns the class's next victim; 0 if no chunk can be evicted. */
uint64_t kvc_replacers_victim_locked(struct kvc *k, enum kvc_cache cache, unsigned class);
/* Excludes the chunk and its ancestors from eviction, or (false) ends the exclusion. */
void kvc_replacers_exclude_locked(struct kvc *k, enum kvc_cache cache, uint64_t id, unsigned class,
				  bool excluded);
/*
 * A client gave a hint about the chunk's next use, `outlook` (kvc_replacer_tell). Returns true if
 * the state in the chunk's row may have changed. The caller then has the row written again
 * (kvc_chunk_dirty_locked).
 */
bool kvc_replacers_tell_locked(struct kvc *k, struct kvc_chunk *c, uint8_t outlook);
/* Sets the chunk's parent in all caches (0: none). */
void kvc_replacers_set_parent_locked(struct kvc *k, struct kvc_chunk *c, uint64_t parent);
/* The parent of c need not stay in the pool because of c, until c enters the pool again. */
void kvc_replacers_unlink_parent_locked(struct kvc *k, struct kvc_chunk *c);

/*
 * Counts an eviction: a chunk of this class left the pool, a tier, or all of them. Needs no lock.
 */
enum { KVC_FROM_POOL = -1, KVC_FROM_ALL = -2 }; /* or a tier's number */
void kvc_replacers_evicted(struct kvc *k, enum kvc_reason why, int from, unsigned class);

/* Returns the state that the cache's policy keeps for the chunk, to be stored in its row. */
uint64_t kvc_replacers_saved_state_locked(const struct kvc *k, enum kvc_cache cache,
					  const struct kvc_chunk *c);
/*
 * Adds a chunk to this cache with the state in its row. bytes 0: the row's. Its parent is set
 * later, by kvc_replacers_join_locked, when all chunks have been restored.
 */
void kvc_replacers_restore_locked(struct kvc *k, enum kvc_cache cache,
				  const struct kvc_chunk_row *r, uint64_t bytes);
void kvc_replacers_join_locked(struct kvc *k, enum kvc_cache cache, const struct kvc_chunk_row *r);
/* Removes a chunk from the cache and stores its state in *r, so that it can be restored. */
void kvc_replacers_extract_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk_row *r);
/* Return whether the chunk is in the cache, and how many of its children are there. */
bool kvc_replacers_has_row_locked(const struct kvc *k, enum kvc_cache cache,
				  const struct kvc_chunk_row *r);
uint32_t kvc_replacers_children_locked(const struct kvc *k, enum kvc_cache cache,
				       const struct kvc_chunk_row *r);
/* Moves a chunk on the disk tier to another class. */
void kvc_replacers_reclass_locked(struct kvc *k, const struct kvc_chunk_row *r, unsigned class);

/*
 * The state of replacers that is not in the chunks' rows, in a file of the store
 * (access/replacer_save.c). kvc_replacers_load is called when recovery begins, kvc_replacers_save
 * at unmount, when the saver thread has ended. The saver runs until k->stopping. Without locks.
 */
void kvc_replacers_load(struct kvc *k);
/* Returns a number that changes with the state of any replacer. */
uint64_t kvc_replacers_changes_locked(const struct kvc *k);
void kvc_replacers_save(struct kvc *k);
void *kvc_replacers_saver(void *arg);
void kvc_replacers_free(struct kvc *k);
/* Writes the state of all replacers as text. */
void kvc_replacers_text_locked(struct kvc *k, FILE *f);

#endif
