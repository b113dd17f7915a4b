/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry of tenants, and what each of them uses. Root or the daemon's user makes a tenant;
 * objects/tenant_set.c stores it, and decides which tenant a chunk belongs to. A chunk has at most
 * one.
 *
 *   quota   bytes of all chunks of the tenant, in the pool and in the tiers of this store. Above
 *           it, the quota keeper drops whole chunks of the tenant (evict/quota_keeper.c). No store
 *           waits or is refused, so the sum may exceed the quota for a moment.
 *   share   bytes of the pool. A tenant may have more as long as the pool has space; when it has
 *           none, the tenants above their shares lose chunks first (evict/evict.c).
 *
 * A chunk is charged the bytes that its files take in the pool, or took before they were evicted
 * (c->peak_bytes). Its row stores that number, so the sums need no walk over files: after a kill
 * they are read from the rows.
 *
 * Each tenant has a list of its chunks in the pool, in the order of their last use. A chunk that is
 * used soon after its parent is put before the parent, so that the end of a prompt precedes its
 * beginning. Chunks with children in the pool are no victims: once a search for a victim has found
 * them, they are in a second list, so that later searches do not look at them again and again.
 */
#include "tenant.h"

#include <string.h>
#include <unistd.h>

#define SOON_NS 1000000000ull
#define LOOKS 32 /* tenants that one search looks at */

struct kvc_tenant *kvc_tenant_of_locked(const struct kvc *k, uint64_t number)
{
	struct kvc_slot *s = number && k->tenants->table.n
				     ? kvc_table_find(&k->tenants->table, number)
				     : NULL;

	return s ? kvc_of(s, struct kvc_tenant, slot) : NULL;
}

struct kvc_tenant *kvc_tenant_find_locked(const struct kvc *k, const char *name)
{
	kvc_table_each(&k->tenants->table, s) {
		struct kvc_tenant *t = kvc_of(s, struct kvc_tenant, slot);

		if (!strcmp(t->name, name))
			return t;
	}
	return NULL;
}

struct kvc_tenant *kvc_tenant_add_locked(struct kvc *k, uint64_t number, const char *name)
{
	struct kvc_tenant *t = calloc(1, sizeof *t);

	if (!t)
		return NULL;
	snprintf(t->name, sizeof t->name, "%s", name);
	t->uid = KVC_TENANT_NOBODY;
	kvc_list_init(&t->order);
	kvc_list_init(&t->parents);
	kvc_list_init(&t->over);
	t->slot.key = number;
	kvc_table_add(&k->tenants->table, &t->slot);
	k->tenants->last = kvc_max(k->tenants->last, number);
	return t;
}

/* The chunk has no place in either list. */
static void append(struct kvc_tenant *t, struct kvc_chunk *c, bool as_parent)
{
	c->tenant.as_parent = as_parent;
	kvc_list_add_tail(as_parent ? &t->parents : &t->order, &c->tenant.link);
}

void kvc_tenant_put_last_locked(struct kvc_tenant *t, struct kvc_chunk *c, bool as_parent)
{
	if (kvc_list_empty(&c->tenant.link))
		return;
	kvc_list_del(&c->tenant.link);
	append(t, c, as_parent);
}

/* The tenant's share or its bytes in the pool have changed. */
static void sort_locked(struct kvc *k, struct kvc_tenant *t)
{
	uint64_t excess = t->share && t->pool > t->share ? t->pool - t->share : 0;
	struct kvc_list *to = excess ? &k->tenants->over[63 - __builtin_clzll(excess)] : NULL;

	kvc_list_del(&t->over);
	if (to)
		kvc_list_add_tail(to, &t->over);
}

void kvc_tenant_share_locked(struct kvc *k, struct kvc_tenant *t, uint64_t share)
{
	t->share = share;
	sort_locked(k, t);
}

void kvc_tenant_remove_locked(struct kvc *k, struct kvc_tenant *t)
{
	kvc_list_del(&t->over);
	/* in one step each, however many they are */
	kvc_list_splice(&k->tenants->orphans, &t->order);
	kvc_list_splice(&k->tenants->orphans, &t->parents);
	kvc_table_del(&k->tenants->table, &t->slot);
	free(t);
}

bool kvc_tenant_allows(const struct kvc_tenant *t, uint32_t uid)
{
	return !uid || uid == geteuid() || t->uid == uid;
}

void kvc_tenant_loaded_locked(struct kvc *k, struct kvc_chunk *c, const struct kvc_chunk_row *r)
{
	c->tenant.number = r->tenant;
	c->tenant.used = kvc_tenant_of_locked(k, r->tenant) ? r->bytes : 0;
}

void kvc_tenant_count_locked(struct kvc *k, struct kvc_chunk *c)
{
	struct kvc_tenant *t = kvc_tenant_of_locked(k, c->tenant.number);
	uint64_t used = c->row_deleted ? 0 : c->peak_bytes;
	/* a chunk that leaves must not cause others of the tenant to leave */
	uint64_t pool = c->standing == KVC_LEAVES ? 0 : c->bytes;

	if (!c->tenant.number)
		return;
	if (!c->nnodes) {
		kvc_list_del(&c->tenant.link);
		c->tenant.taken = false;
	}
	if (!t)
		return;
	t->used += used - c->tenant.used;
	t->pool += pool - c->tenant.pool;
	if (pool != c->tenant.pool)
		sort_locked(k, t);
	c->tenant.used = used;
	c->tenant.pool = pool;
	if (c->nnodes && c->standing != KVC_LEAVES && kvc_list_empty(&c->tenant.link) &&
	    !c->tenant.taken)
		append(t, c, false);
}

void kvc_tenant_move_locked(struct kvc *k, struct kvc_chunk *c, uint64_t number)
{
	struct kvc_tenant *t = kvc_tenant_of_locked(k, c->tenant.number);

	if (t) {
		t->used -= c->tenant.used;
		t->pool -= c->tenant.pool;
		sort_locked(k, t);
	}
	kvc_list_del(&c->tenant.link);
	c->tenant.used = c->tenant.pool = 0;
	c->tenant.number = number;
	kvc_tenant_count_locked(k, c);
}

void kvc_tenant_row_locked(struct kvc *k, uint64_t number, uint64_t bytes, bool add)
{
	struct kvc_tenant *t = kvc_tenant_of_locked(k, number);

	if (t)
		t->used = add ? t->used + bytes : t->used - kvc_min(bytes, t->used);
}

void kvc_tenant_accessed_locked(struct kvc *k, struct kvc_chunk *c, struct kvc_chunk *before)
{
	struct kvc_tenant *t = kvc_tenant_of_locked(k, c->tenant.number);

	if (!t)
		return;
	if (kvc_list_empty(&c->tenant.link))
		return;
	kvc_tenant_put_last_locked(t, c, false);
	if (!before || before->tenant.number != c->tenant.number ||
	    before->use.last_ns + SOON_NS <= c->use.last_ns)
		return;
	if (before->tenant.as_parent || kvc_list_empty(&before->tenant.link))
		return;
	kvc_list_del(&c->tenant.link);
	kvc_list_add_tail(&before->tenant.link, &c->tenant.link);
}

uint64_t kvc_tenant_wanted(const struct kvc *k, struct kvc_tenant *t)
{
	return t->quota ? kvc_reservation_excess(t->used, t->quota, &k->opt, &t->trimming) : 0;
}

struct kvc_tenant *kvc_tenant_over_locked(const struct kvc *k)
{
	struct kvc_tenant *most = NULL;
	unsigned looks = 0;

	for (int i = 63; i >= 0 && !most; i--)
		kvc_list_each(e, &k->tenants->over[i]) {
			struct kvc_tenant *t = kvc_of(e, struct kvc_tenant, over);

			if (!most || t->pool - t->share > most->pool - most->share)
				most = t;
			if (++looks == LOOKS)
				break;
		}
	return most;
}

void kvc_tenant_take_locked(struct kvc_chunk *c)
{
	kvc_list_del(&c->tenant.link);
	c->tenant.taken = true;
}

void kvc_tenant_back_locked(struct kvc *k, struct kvc_chunk *c)
{
	struct kvc_tenant *t = c->tenant.taken ? kvc_tenant_of_locked(k, c->tenant.number) : NULL;

	c->tenant.taken = false;
	if (t && c->nnodes) {
		c->tenant.as_parent = false;
		kvc_list_add_head(&t->order, &c->tenant.link);
	}
}

void kvc_tenants_free(struct kvc *k)
{
	kvc_table_each(&k->tenants->table, s)
		free(kvc_of(s, struct kvc_tenant, slot));
	kvc_table_fini(&k->tenants->table);
}
