/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policies at work (policy/replacer.h): whom the pool keeps, and whom the disk tier, where its
 * policy is more than a rank in the catalog. Each has an order of its own for each class of chunks
 * (base/policy.h). What is used, and by whom, they hear from access.c. All under k->lock.
 */
#ifndef KVC_REPLACERS_H
#define KVC_REPLACERS_H

#include "chunk.h"
#include "replacer.h"

struct kvc_replacers {
	bool ready;          /* recovery has told what is there */
	bool unsaved;        /* the last try failed */
	uint64_t bytes;      /* of the file, as last written */
	pthread_cond_t cond; /* the saver's */
	struct kvc_replacer *replacer[KVC_CACHES][KVC_CLASSES]; /* NULL: it had no chunk yet */
};

/* What a class's chunks are kept by: a row of kvc_policy_table. */
unsigned kvc_replacers_policy_of(const struct kvc *k, enum kvc_cache cache, unsigned class);
/* Has the cache an order of its own for the class, or does it go by the catalog's rank? */
bool kvc_replacers_has_order(const struct kvc *k, enum kvc_cache cache, unsigned class);
/* Is what follows what to be learned for this class, where nobody tells? */
bool kvc_replacers_infer_parents(const struct kvc *k, unsigned class);
/* NULL: there is none, or no memory for it. */
struct kvc_replacer *kvc_replacers_of_locked(struct kvc *k, enum kvc_cache cache, unsigned class);

bool kvc_replacers_has_locked(const struct kvc *k, enum kvc_cache cache, const struct kvc_chunk *c);
/* It is in this cache now. */
void kvc_replacers_add_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c);
/*
 * This request, which is under way, has made it; it may be in the cache already
 * (kvc_replacer_claim).
 */
void kvc_replacers_claim_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c,
				struct kvc_request *r);
/* What it has in the pool, or below, has changed. */
void kvc_replacers_resize_locked(struct kvc *k, const struct kvc_chunk *c);
/* It is there no more. evicted: and may be asked for again. */
void kvc_replacers_remove_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c,
				 bool evicted);
/* It is in none any more, of whatever class it was. */
void kvc_replacers_forget_locked(struct kvc *k, uint64_t id);
uint64_t kvc_replacers_count_locked(const struct kvc *k, enum kvc_cache cache, unsigned class);
/* Who goes next; 0: nobody can. */
uint64_t kvc_replacers_victim_locked(struct kvc *k, enum kvc_cache cache, unsigned class);
/* It cannot go now, nor what it follows; or it can again. */
void kvc_replacers_exclude_locked(struct kvc *k, enum kvc_cache cache, uint64_t id, unsigned class,
				  bool aside);
/* Its parent is known now (0: it has none). */
void kvc_replacers_set_parent_locked(struct kvc *k, struct kvc_chunk *c, uint64_t parent);
/* What it follows need not stay in the pool for it, until it comes there again. */
void kvc_replacers_part_locked(struct kvc *k, struct kvc_chunk *c);

/* A chunk of this class has left the pool, a tier, or all: it is counted. Needs no lock. */
enum { KVC_FROM_POOL = -1, KVC_FROM_ALL = -2 }; /* or a tier's number */
void kvc_replacers_evicted(struct kvc *k, enum kvc_reason why, int from, unsigned class);

/* For its row: what this cache's policy knows of it. */
uint64_t kvc_replacers_saved_state_locked(const struct kvc *k, enum kvc_cache cache,
					  const struct kvc_chunk *c);
/*
 * By its row: it is in this cache, as it was before. What it follows is found (join) when all are
 * there.
 */
void kvc_replacers_restore_locked(struct kvc *k, enum kvc_cache cache,
				  const struct kvc_chunk_row *r,
				  uint64_t bytes); /* 0: as the row says */
void kvc_replacers_join_locked(struct kvc *k, enum kvc_cache cache, const struct kvc_chunk_row *r);
/* By its row, with *r as it was: taken out for a while, to be restored. */
void kvc_replacers_take_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk_row *r);
/* By its row: is it there, and how many that are there follow it? */
bool kvc_replacers_holds_locked(const struct kvc *k, enum kvc_cache cache,
				const struct kvc_chunk_row *r);
uint32_t kvc_replacers_children_locked(const struct kvc *k, enum kvc_cache cache,
				       const struct kvc_chunk_row *r);
/* By its row: its class has changed. */
void kvc_replacers_reclass_locked(struct kvc *k, const struct kvc_chunk_row *r, unsigned class);

/*
 * replacer_save.c: what policies know beside, a file in the store: before the first call; and after
 * the last, when its thread has ended, which runs until k->stopping. Without locks.
 */
void kvc_replacers_load(struct kvc *k);
void kvc_replacers_save(struct kvc *k);
void *kvc_replacers_saver(void *arg);
void kvc_replacers_free(struct kvc *k);
/* What they say of themselves. */
void kvc_replacers_text_locked(struct kvc *k, FILE *f);

#endif
