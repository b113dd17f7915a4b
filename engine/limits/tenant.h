/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants: the chunks of one customer, session group or cache salt, over all models (tenant.c). All
 * under k->lock.
 */
#ifndef KVC_TENANT_H
#define KVC_TENANT_H

#include "chunk.h"
#include "kvc.h"

#define KVC_TENANTS 1024u   /* maximum number of tenants */
#define KVC_TENANT_NAME 129 /* bytes of a name, including the final 0 */
/* only root and the daemon's user may assign chunks to the tenant */
#define KVC_TENANT_NOBODY (-1ll)

/* clang-format off: a table */
/*      name      what it counts */
#define KVC_TENANT_COUNTERS(X)                                                    \
	X(hits, "opens of its files that the pool answered")                      \
	X(misses, "opens of its files that waited for a load")                    \
	X(evicted, "chunks evicted from the pool because it was above its share") \
	X(dropped, "chunks dropped because it was above its quota")
/* clang-format on */

struct kvc_tenant {
	struct kvc_slot slot; /* in k->tenants->table, by its number, which is never used again */
	char name[KVC_TENANT_NAME];
	uint64_t quota, share; /* bytes: limits of `used` and `pool`; 0: no limit */
	int64_t uid;           /* the user that may assign its chunks, or KVC_TENANT_NOBODY */
	uint64_t used; /* bytes: the sum of c->peak_bytes of its chunks, in the pool or not */
	uint64_t pool; /* bytes that its chunks have in the pool now */
	struct kvc_list order; /* its chunks in the pool, the next victim first */
	/* those of them that the search for a victim found to have children in the pool */
	struct kvc_list parents;
	struct kvc_list over; /* in k->tenants->over, while it is above its share */
	bool trimming;        /* it was above high= of its quota and has not reached low= yet */
	uint64_t looked_ns;   /* evict/quota_keeper.c: time of the last turn that freed nothing */
#define X(name, what) uint64_t name;
	KVC_TENANT_COUNTERS(X)
#undef X
};

struct kvc_tenants {
	struct kvc_table table;
	struct kvc_table folders; /* objects/tenant_set.c */
	struct kvc_list orphans;  /* chunks of removed tenants, until they leave the pool */
	/*
	 * Tenants above their shares, by log2 of the excess in bytes, so that the search for the
	 * one that is most above does not look at all tenants.
	 */
	struct kvc_list over[64];
	uint64_t last; /* the newest number */
	uint64_t at;   /* evict/quota_keeper.c: the tenant whose turn was last */
};

/* Return the tenant with this number or name, or NULL. */
struct kvc_tenant *kvc_tenant_of_locked(const struct kvc *k, uint64_t number);
struct kvc_tenant *kvc_tenant_find_locked(const struct kvc *k, const char *name);
/* Adds a tenant. Returns NULL if out of memory. */
struct kvc_tenant *kvc_tenant_add_locked(struct kvc *k, uint64_t number, const char *name);
/* Removes a tenant. Its chunks in memory then have no tenant, and its number in rows means no
 * tenant. */
void kvc_tenant_remove_locked(struct kvc *k, struct kvc_tenant *t);
/* May this user assign its chunks to the tenant? */
bool kvc_tenant_allows(const struct kvc_tenant *t, uint32_t uid);
/* The chunk was created from its row: the sums contain it already. */
void kvc_tenant_loaded_locked(struct kvc *k, struct kvc_chunk *c, const struct kvc_chunk_row *r);
/* Moves a chunk in memory to a tenant (0: none). The caller writes the row. */
void kvc_tenant_move_locked(struct kvc *k, struct kvc_chunk *c, uint64_t number);
/* The chunk's bytes, nodes, standing or row_deleted have changed. Cheap without a tenant. */
void kvc_tenant_count_locked(struct kvc *k, struct kvc_chunk *c);
/* The bytes of a chunk that is not in memory are added to or removed from its tenant. */
void kvc_tenant_row_locked(struct kvc *k, uint64_t number, uint64_t bytes, bool add);
/* The chunk was used. before: its parent, if that is in memory */
void kvc_tenant_accessed_locked(struct kvc *k, struct kvc_chunk *c, struct kvc_chunk *before);
/* Counts an event of the chunk's tenant, if it has one; `what` is a counter. */
#define kvc_tenant_tell_locked(k, c, what)                                                     \
	do {                                                                                   \
		struct kvc_tenant *tenant_ = (c) ? kvc_tenant_of_locked(k, (c)->tenant.number) \
						 : NULL;                                       \
		if (tenant_)                                                                   \
			tenant_->what++;                                                       \
	} while (0)
/* Returns how many bytes the tenant should lose now, from above high= down to low= of its quota. */
uint64_t kvc_tenant_wanted(const struct kvc *k, struct kvc_tenant *t);
/* The tenant's share was set. */
void kvc_tenant_share_locked(struct kvc *k, struct kvc_tenant *t, uint64_t share);
/*
 * Returns the tenant that exceeds its share of the pool the most, or NULL. If many tenants exceed
 * theirs by similar amounts, the result may be any whose excess is at least half the largest.
 */
struct kvc_tenant *kvc_tenant_over_locked(const struct kvc *k);
/*
 * The chunk, which is the next victim, leaves its tenant's order until kvc_tenant_back_locked, so
 * that the same pass does not find it again.
 */
void kvc_tenant_take_locked(struct kvc_chunk *c);
/*
 * Moves a chunk to the end of its tenant's order, or of its parents. A chunk without a place in
 * either stays without one.
 */
void kvc_tenant_put_last_locked(struct kvc_tenant *t, struct kvc_chunk *c, bool as_parent);
void kvc_tenant_back_locked(struct kvc *k, struct kvc_chunk *c);
/* At unmount. */
void kvc_tenants_free(struct kvc *k);

#endif
