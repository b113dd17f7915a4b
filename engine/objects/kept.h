/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policies at work (policy/keep.h): whom the pool keeps, and whom the disk tier, where its
 * policy is more than a rank in the catalog. Each has an order of its own for each class of chunks
 * (base/policy.h). What is used, and by whom, they hear from used.c. All under k->lock.
 */
#ifndef KVC_KEPT_H
#define KVC_KEPT_H

#include "chunk.h"
#include "keep.h"

struct kvc_kept {
	bool ready;                                     /* recovery has told what is there */
	bool unsaved;                                   /* the last try failed */
	uint64_t bytes;                                 /* of the file, as last written */
	pthread_cond_t cond;                            /* the saver's */
	struct kvc_keep *keep[KVC_CACHES][KVC_CLASSES]; /* NULL: it had no chunk yet */
};

/* What a class's chunks are kept by: a row of kvc_policies. */
unsigned kvc_policy_of(const struct kvc *k, enum kvc_cache cache, unsigned class);
/* Has the cache an order of its own for the class, or does it go by the catalog's rank? */
bool kvc_kept_here(const struct kvc *k, enum kvc_cache cache, unsigned class);
/* Is what follows what to be learned for this class, where nobody tells? */
bool kvc_kept_learns(const struct kvc *k, unsigned class);
/* NULL: there is none, or no memory for it. */
struct kvc_keep *kvc_kept_of_locked(struct kvc *k, enum kvc_cache cache, unsigned class);

bool kvc_kept_has_locked(const struct kvc *k, enum kvc_cache cache, const struct kvc_chunk *c);
/* It is in this cache now. */
void kvc_kept_in_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c);
/*
 * This request, which is under way, has made it; it may be in the cache already (kvc_keep_claim).
 */
void kvc_kept_claim_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c,
			   struct kvc_request *r);
/* What it has in the pool, or below, has changed. */
void kvc_kept_resize_locked(struct kvc *k, const struct kvc_chunk *c);
/* It is there no more. evicted: and may be asked for again. */
void kvc_kept_out_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c, bool evicted);
/* It is in none any more, of whatever class it was. */
void kvc_kept_forget_locked(struct kvc *k, uint64_t id);
uint64_t kvc_kept_count_locked(const struct kvc *k, enum kvc_cache cache, unsigned class);
/* Who goes next; 0: nobody can. */
uint64_t kvc_kept_victim_locked(struct kvc *k, enum kvc_cache cache, unsigned class);
/* It cannot go now, nor what it follows; or it can again. */
void kvc_kept_aside_locked(struct kvc *k, enum kvc_cache cache, uint64_t id, unsigned class,
			   bool aside);
/* Its parent is known now (0: it has none). */
void kvc_kept_follow_locked(struct kvc *k, struct kvc_chunk *c, uint64_t parent);
/* What it follows need not stay in the pool for it, until it comes there again. */
void kvc_kept_part_locked(struct kvc *k, struct kvc_chunk *c);

/* A chunk of this class has left the pool, a tier, or all: it is counted. Needs no lock. */
enum { KVC_FROM_POOL = -1, KVC_FROM_ALL = -2 }; /* or a tier's number */
void kvc_kept_evicted(struct kvc *k, enum kvc_reason why, int from, unsigned class);

/* For its row: what this cache's policy knows of it. */
uint64_t kvc_kept_facts_locked(const struct kvc *k, enum kvc_cache cache,
			       const struct kvc_chunk *c);
/*
 * By its row: it is in this cache, as it was before. What it follows is found (join) when all are
 * there.
 */
void kvc_kept_restore_locked(struct kvc *k, enum kvc_cache cache, const struct kvc_chunk_row *r,
			     uint64_t bytes); /* 0: as the row says */
void kvc_kept_join_locked(struct kvc *k, enum kvc_cache cache, const struct kvc_chunk_row *r);
/* By its row, with *r as it was: taken out for a while, to be restored. */
void kvc_kept_take_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk_row *r);
/* By its row: is it there, and how many that are there follow it? */
bool kvc_kept_holds_locked(const struct kvc *k, enum kvc_cache cache,
			   const struct kvc_chunk_row *r);
uint32_t kvc_kept_followers_locked(const struct kvc *k, enum kvc_cache cache,
				   const struct kvc_chunk_row *r);
/* By its row: its class has changed. */
void kvc_kept_reclass_locked(struct kvc *k, const struct kvc_chunk_row *r, unsigned class);

/*
 * kept_save.c: what policies know beside, a file in the store: before the first call; and after the
 * last, when its thread has ended, which runs until k->stopping. Without locks.
 */
void kvc_kept_load(struct kvc *k);
void kvc_kept_save(struct kvc *k);
void *kvc_kept_saver(void *arg);
void kvc_kept_free(struct kvc *k);
/* What they say of themselves. */
void kvc_kept_text_locked(struct kvc *k, FILE *f);

#endif
