/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks, the unit of eviction. Chunks with a segment in the pool, chunks in use, and chunks whose
 * row must be written are in memory. replacers.c orders the ones with segments for eviction.
 */
#include "chunk.h"

#include "access_state.h"
#include "clock.h"
#include "committer.h"
#include "disk_victims.h"
#include "file.h"
#include "hinted.h"
#include "leaving.h"
#include "replacers.h"
#include "node.h"
#include "pin.h"
#include "tenant.h"

#include <string.h>

/* Ends the exclusion of the chunk from the pool's order by a pin (limits/pin.h). */
static void end_exclusion(struct kvc_chunk *c)
{
	kvc_list_del(&c->excluded_link);
	kvc_list_del(&c->chained_link);
}

void kvc_chunk_push_locked(struct kvc *k, struct kvc_chunk *c)
{
	end_exclusion(c);
	if (c->standing != KVC_LEAVES)
		kvc_tenant_back_locked(k, c);
	kvc_hinted_pushed_locked(k, c);
	if (!c->nnodes || c->detached || !k->replacers->ready)
		return;
	if (kvc_leaving_pushed_locked(k, c))
		return;
	if (kvc_replacers_has_locked(k, KVC_CACHE_POOL, c)) {
		kvc_replacers_exclude_locked(k, KVC_CACHE_POOL, c->id, c->policy, false);
	} else {
		kvc_replacers_add_locked(k, KVC_CACHE_POOL, c);
		kvc_leaving_entered_locked(k, c);
	}
}

/* The policy that defines the rank in the catalog, which tiers use. */
static const struct kvc_policy *rank_policy(const struct kvc *k, unsigned class)
{
	return &kvc_policy_table[kvc_replacers_policy_of(k, KVC_CACHE_DISK, class)];
}

struct kvc_chunk *kvc_chunk_find_locked(struct kvc *k, uint64_t id)
{
	struct kvc_slot *s = kvc_table_find(&k->chunks->table, id);

	return s ? kvc_of(s, struct kvc_chunk, slot) : NULL;
}

static int by_last_use(const void *a, const void *b)
{
	const struct kvc_access *x = &(*(struct kvc_chunk *const *)a)->use;
	const struct kvc_access *y = &(*(struct kvc_chunk *const *)b)->use;

	return x->last_ns < y->last_ns ? -1 : x->last_ns > y->last_ns;
}

/*
 * Chunks whose rows have a policy state are restored with it. A chunk that was used just before a
 * kill, or whose row was written by an earlier daemon, may have no state: such chunks are added
 * after the others, in the order of their last use.
 */
int kvc_chunks_ready_locked(struct kvc *k)
{
	struct kvc_chunk **v = NULL;
	struct kvc_chunk_row r;
	size_t n = 0, capacity = 0;

	kvc_table_each(&k->chunks->table, s) {
		struct kvc_chunk *c = kvc_of(s, struct kvc_chunk, slot);

		if (!c->nnodes)
			continue;
		if (kvc_grow(&v, n, &capacity, sizeof *v)) {
			free(v);
			return -ENOMEM;
		}
		v[n++] = c;
		kvc_chunk_row(k, c, &r);
		if (r.pool_facts)
			kvc_replacers_restore_locked(k, KVC_CACHE_POOL, &r, c->bytes);
	}
	if (n)
		qsort(v, n, sizeof *v, by_last_use);
	for (size_t i = 0; i < n; i++)
		if (!v[i]->saved_state[KVC_CACHE_POOL])
			kvc_replacers_add_locked(k, KVC_CACHE_POOL, v[i]);
	for (size_t i = 0; i < n; i++) {
		kvc_chunk_row(k, v[i], &r);
		kvc_replacers_join_locked(k, KVC_CACHE_POOL, &r);
	}
	free(v);
	k->replacers->ready = true;
	return 0;
}

struct kvc_chunk *kvc_chunk_pop_locked(struct kvc *k)
{
	struct kvc_replacer *const *replacers = k->replacers->replacer[KVC_CACHE_POOL];
	unsigned class;
	uint64_t id;

	while ((id = kvc_replacer_turns_victim(&k->chunks->turns, replacers, &class))) {
		struct kvc_chunk *c = kvc_chunk_find_locked(k, id);

		if (c) {
			kvc_replacers_exclude_locked(k, KVC_CACHE_POOL, c->id, c->policy, true);
			return c;
		}
		/* the chunk is unknown: remove the id from the orders */
		kvc_replacers_forget_locked(k, id);
	}
	return NULL;
}

static struct kvc_access access_of_row(const struct kvc_chunk_row *r)
{
	return (struct kvc_access){ r->created_ns, r->last_ns, r->hits };
}

int64_t kvc_chunk_rank_row(struct kvc *k, const struct kvc_chunk_row *r)
{
	struct kvc_access u = access_of_row(r);

	return rank_policy(k, r->policy)->rank(&u);
}

struct kvc_chunk *kvc_chunk_new_locked(struct kvc *k, uint64_t id, const struct kvc_chunk_row *r)
{
	struct kvc_chunk *c = calloc(1, sizeof *c);

	if (!c)
		return NULL;
	c->id = id;
	if (r) {
		c->use = access_of_row(r);
		c->pin_until_ns = r->pin_until_ns;
		c->ttl_s = r->ttl_s;
		c->expires_ns = r->expires_ns;
		c->rank = r->rank;
		c->policy = r->policy;
		c->quota = r->quota;
		c->parent = r->parent;
		c->saved_state[KVC_CACHE_DISK] = r->facts;
		c->saved_state[KVC_CACHE_POOL] = r->pool_facts;
		c->peak_bytes = r->bytes;
		c->stored_ns = r->last_ns;
		c->requests = !!r->hits + !k->started;
		/* no file of it is in the pool, so its copies are on the disk */
		c->on_disk = k->started && !k->shared;
		c->known = true;
		kvc_tenant_loaded_locked(k, c, r);
	}
	kvc_list_init(&c->nodes);
	kvc_list_init(&c->tenant.link);
	kvc_list_init(&c->hints.link);
	kvc_list_init(&c->dirty_link);
	kvc_list_init(&c->excluded_link);
	kvc_list_init(&c->chained_link);
	c->slot.key = c->id;
	kvc_table_add(&k->chunks->table, &c->slot);
	kvc_pin_link_chunk_locked(k, c);
	if (r && kvc_access_state_apply_locked(k, c)) {
		c->rank = rank_policy(k, c->policy)->rank(&c->use);
		kvc_chunk_dirty_locked(k, c);
	}
	return c;
}

void kvc_chunk_settle_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (c->refs || (c->dirty && !kvc_committer_access_release_locked(k, c)))
		return;
	kvc_replacers_remove_locked(k, KVC_CACHE_POOL, c, false);
	kvc_disk_victims_arrived_locked(k, c);
	end_exclusion(c);
	kvc_list_del(&c->tenant.link);
	kvc_list_del(&c->hints.link);
	kvc_table_del(&k->chunks->table, &c->slot);
	if (c->pin)
		c->pin->chunk = NULL;
	free(c);
}

void kvc_chunk_leave_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_chunk *c = n->chunk;

	if (!c)
		return;
	kvc_chunk_remove_locked(k, n);
	n->chunk = NULL;
	c->refs--;
	kvc_chunk_settle_locked(k, c);
}

void kvc_chunk_count_locked(struct kvc *k, struct kvc_node *n)
{
	uint64_t now = kvc_list_empty(&n->part.link) ? 0 : n->acct.reserved, was = n->part.bytes;
	struct kvc_chunk *c = n->chunk;
	uint64_t peak = c ? c->peak_bytes : 0;

	if (!c || now == was)
		return;
	n->part.bytes = now;
	c->bytes += now - was;
	kvc_leaving_count_locked(k, c, now - was);
	if (c->pin)
		kvc_pin_pool_locked(k, c->pin, (int64_t)(now - was));
	if (n->state != KVC_LOWER) { /* an eviction does not change the chunk's peak_bytes */
		if (now < was)
			c->peak_bytes -= kvc_min(was - now, c->peak_bytes);
		c->peak_bytes = kvc_max(c->peak_bytes, c->bytes);
		kvc_replacers_resize_locked(k, c);
	}
	if (c->known && c->peak_bytes != peak) { /* sums of tenants are made from the row */
		c->known = false;
		kvc_chunk_dirty_locked(k, c);
	}
	kvc_tenant_count_locked(k, c);
}

void kvc_chunk_add_locked(struct kvc *k, struct kvc_node *n)
{
	if (!n->chunk || !kvc_list_empty(&n->part.link))
		return;
	kvc_list_add_tail(&n->chunk->nodes, &n->part.link);
	n->chunk->nnodes++;
	n->chunk->on_disk |= kvc_file_placed_in(n, KVC_DISK);
	kvc_chunk_count_locked(k, n);
	kvc_tenant_count_locked(k, n->chunk); /* an empty file changes no bytes */
	kvc_chunk_push_locked(k, n->chunk);
}

void kvc_chunk_remove_locked(struct kvc *k, struct kvc_node *n)
{
	if (!n->chunk || kvc_list_empty(&n->part.link))
		return;
	kvc_list_del(&n->part.link);
	kvc_chunk_count_locked(k, n);
	if (!--n->chunk->nnodes) {
		end_exclusion(n->chunk);
		kvc_tenant_count_locked(k, n->chunk);
		kvc_leaving_left_locked(k, n->chunk);
		kvc_disk_victims_arrived_locked(k, n->chunk);
		kvc_replacers_remove_locked(k, KVC_CACHE_POOL, n->chunk, n->state == KVC_LOWER);
	}
}

void kvc_chunk_dirty_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (c->row_deleted || (c->dirty && (c->known || !c->accesses_only)))
		return;
	kvc_committer_access_unlink_locked(k, c); /* more than its accesses has changed */
	c->dirty = true;
	if (c->known)
		kvc_committer_access_held_locked(k, c);
	else
		kvc_list_add_tail(&k->committer->chunks, &c->dirty_link);
}

void kvc_chunk_move_first_locked(struct kvc_chunk *c, struct kvc_node *n)
{
	kvc_list_del(&n->part.link);
	kvc_list_add_head(&c->nodes, &n->part.link);
}

void kvc_chunk_move_last_locked(struct kvc_chunk *c, struct kvc_node *n)
{
	kvc_list_del(&n->part.link);
	kvc_list_add_tail(&c->nodes, &n->part.link);
}

/* Stamps increase with every use, so that the order of uses is total. */
uint64_t kvc_chunk_next_stamp_locked(struct kvc *k)
{
	uint64_t now = k->chunks->happened_ns ?: kvc_clock_ns(k);

	return k->chunks->clock_ns = now > k->chunks->clock_ns ? now : k->chunks->clock_ns + 1;
}

void kvc_chunk_stamp_locked(struct kvc *k, struct kvc_chunk *c)
{
	c->use.last_ns = kvc_chunk_next_stamp_locked(k);
	c->rank = rank_policy(k, c->policy)->rank(&c->use);
}

void kvc_chunk_accessed_locked(struct kvc *k, struct kvc_chunk *c, bool hit)
{
	uint64_t parent = c->tenant.number ? c->parent & ~KVC_TOLD : 0;

	c->use.hits += hit;
	kvc_hinted_accessed_locked(c);
	kvc_chunk_stamp_locked(k, c);
	kvc_tenant_accessed_locked(k, c, parent ? kvc_chunk_find_locked(k, parent) : NULL);
	if (!c->use.created_ns) {
		c->use.created_ns = c->use.last_ns;
		c->rank = rank_policy(k, c->policy)->rank(&c->use);
	}
	kvc_chunk_dirty_locked(k, c);
}

void kvc_chunk_forget_both(struct kvc *k, uint64_t id)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, id);
	struct kvc_chunk_row r;

	if (!c && k->tenants->table.n && !kvc_chunk_get(k->cat, id, &r))
		kvc_tenant_row_locked(k, r.tenant, r.bytes, false);
	kvc_chunk_del(k->cat, id);
	kvc_pin_forget_both(k, id);
	kvc_replacers_forget_locked(k, id);
	kvc_disk_victims_remove_locked(k, id);
	if (!c)
		return;
	c->row_deleted = true;
	kvc_tenant_count_locked(k, c);
	kvc_committer_access_unlink_locked(k, c);
	kvc_chunk_settle_locked(k, c);
}

void kvc_chunk_detach_locked(struct kvc *k, struct kvc_chunk *c, bool detached)
{
	c->detached = detached;
	if (!detached)
		return;
	kvc_replacers_remove_locked(k, KVC_CACHE_POOL, c, true);
	kvc_leaving_detached_locked(k, c);
}

void kvc_chunk_merge_access_locked(struct kvc *k, struct kvc_chunk *c,
				   const struct kvc_chunk_row *r)
{
	if (r->last_ns > c->use.last_ns)
		c->use.last_ns = r->last_ns;
	if (!c->use.created_ns || (r->created_ns && r->created_ns < c->use.created_ns))
		c->use.created_ns = r->created_ns;
	c->use.hits = kvc_max(c->use.hits, r->hits);
	c->requests = kvc_max(c->requests, 1u + !!r->hits);
	c->rank = rank_policy(k, c->policy)->rank(&c->use);
	c->known = false; /* the next commit writes the row */
	kvc_chunk_dirty_locked(k, c);
}

void kvc_chunk_row(struct kvc *k, const struct kvc_chunk *c, struct kvc_chunk_row *r)
{
	*r = (struct kvc_chunk_row){
		c->id,
		c->use.created_ns,
		c->use.last_ns,
		c->use.hits,
		c->rank,
		c->pin_until_ns,
		c->ttl_s,
		c->expires_ns,
		c->policy,
		c->quota,
		c->parent,
		kvc_replacers_saved_state_locked(k, KVC_CACHE_DISK, c),
		kvc_replacers_saved_state_locked(k, KVC_CACHE_POOL, c),
		c->peak_bytes,
		c->tenant.number,
	};
}

void kvc_chunk_set_class_locked(struct kvc *k, struct kvc_chunk *c, unsigned class, uint64_t quota)
{
	if (c->policy != class) {
		struct kvc_chunk_row r;

		kvc_chunk_row(k, c, &r);
		kvc_replacers_remove_locked(k, KVC_CACHE_POOL, c, false);
		kvc_disk_victims_remove_locked(k, c->id);
		kvc_disk_victims_kept_locked(k, c, 0); /* the new policy has refused nothing yet */
		kvc_replacers_reclass_locked(k, &r, class);
		c->policy = class;
		/* the state of another policy means nothing here */
		memset(c->saved_state, 0, sizeof c->saved_state);
		c->rank = rank_policy(k, class)->rank(&c->use);
		kvc_chunk_push_locked(k, c);
	}
	c->quota = quota;
	c->known = false; /* the next commit writes the row */
	kvc_chunk_dirty_locked(k, c);
}

bool kvc_chunk_young(const struct kvc *k, uint64_t last_ns)
{
	uint64_t now = k->chunks->happened_ns ?: kvc_clock_ns(k);

	/* A stamp in the future is from an earlier daemon, whose wall clock was wrong. */
	return last_ns + KVC_YOUNG_NS > now && last_ns < now + KVC_YOUNG_NS;
}

void kvc_chunks_free(struct kvc *k)
{
	kvc_table_each(&k->chunks->table, s)
		free(kvc_of(s, struct kvc_chunk, slot));
	kvc_table_fini(&k->chunks->table);
	kvc_access_state_free(k);
}
