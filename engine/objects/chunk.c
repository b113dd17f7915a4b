/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks: what is evicted as one. In memory are those with a segment in the pool, those in use, and
 * those whose row is to be written; the ones with segments are in binary heaps by rank, lowest
 * first, one for each class of policies.
 */
#include "chunk.h"

#include "clock.h"
#include "dirty.h"
#include "node.h"
#include "pin.h"

#include <string.h>

/* Order by (rank, id), so that it is total and a restart finds the same. */
static bool before(const struct kvc_chunk *a, const struct kvc_chunk *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->id < b->id;
}

static void place(struct kvc_heap *h, size_t at, struct kvc_chunk *c)
{
	h->v[at] = c;
	c->heap_at = at + 1;
}

static void sift(struct kvc_heap *h, size_t at)
{
	struct kvc_chunk *c = h->v[at];

	while (at && before(c, h->v[(at - 1) / 2])) {
		place(h, at, h->v[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	for (size_t child; (child = 2 * at + 1) < h->n; at = child) {
		if (child + 1 < h->n && before(h->v[child + 1], h->v[child]))
			child++;
		if (!before(h->v[child], c))
			break;
		place(h, at, h->v[child]);
	}
	place(h, at, c);
}

static void heap_remove(struct kvc *k, struct kvc_chunk *c)
{
	struct kvc_heap *h = &k->chunks->heap[c->policy];
	size_t at = c->heap_at - 1;
	struct kvc_chunk *last = h->v[--h->n];

	c->heap_at = 0;
	if (last != c) {
		place(h, at, last);
		sift(h, at);
	}
}

void kvc_chunk_push_locked(struct kvc *k, struct kvc_chunk *c)
{
	struct kvc_heap *h = &k->chunks->heap[c->policy];

	if (c->heap_at || !c->nnodes || c->cut)
		return;
	if (kvc_grow(&h->v, h->n, &h->room, sizeof *h->v))
		/*
		 * out of memory: it is tried again with its next use, until then it is not evicted
		 */
		return;
	place(h, h->n++, c);
	sift(h, h->n - 1);
}

static const struct kvc_policy *policy(const struct kvc *k, unsigned class)
{
	return &kvc_policies[class ? class - 1 : (unsigned)k->opt.policy];
}

int kvc_class_next(const double turn[KVC_CLASSES], unsigned mask)
{
	int best = -1;

	for (int i = 0; i < KVC_CLASSES; i++)
		if ((mask & (1u << i)) && (best < 0 || turn[i] < turn[best]))
			best = i;
	return best;
}

void kvc_class_gave_locked(struct kvc *k, double turn[KVC_CLASSES], unsigned class)
{
	/* who had nothing to give for a while does not make up for it */
	for (int i = 0; i < KVC_CLASSES; i++)
		turn[i] = turn[i] > turn[class] ? turn[i] : turn[class];
	turn[class] += 1.0 / (double)(1 + k->chunks->heap[class].n);
}

struct kvc_chunk *kvc_chunk_pop_locked(struct kvc *k)
{
	struct kvc_chunk *c;
	unsigned mask = 0;
	int class;

	for (int i = 0; i < KVC_CLASSES; i++)
		mask |= k->chunks->heap[i].n ? 1u << i : 0;
	class = kvc_class_next(k->chunks->turn, mask);
	if (class < 0)
		return NULL;
	c = k->chunks->heap[class].v[0];
	heap_remove(k, c);
	return c;
}

struct kvc_chunk *kvc_chunk_find_locked(struct kvc *k, uint64_t id)
{
	struct kvc_slot *s = kvc_table_find(&k->chunks->table, id);

	return s ? kvc_of(s, struct kvc_chunk, slot) : NULL;
}

static struct kvc_use use_of(const struct kvc_chunk_row *r)
{
	return (struct kvc_use){ r->created_ns, r->last_ns, r->hits };
}

int64_t kvc_chunk_rank_row(struct kvc *k, const struct kvc_chunk_row *r)
{
	struct kvc_use u = use_of(r);

	return policy(k, r->policy)->rank(&u);
}

struct kvc_chunk *kvc_chunk_new_locked(struct kvc *k, uint64_t id, const struct kvc_chunk_row *r)
{
	struct kvc_chunk *c = calloc(1, sizeof *c);

	if (!c)
		return NULL;
	c->id = id;
	if (r) {
		c->use = use_of(r);
		c->pin_until_ns = r->pin_until_ns;
		c->ttl_s = r->ttl_s;
		c->expires_ns = r->expires_ns;
		c->rank = r->rank;
		c->policy = r->policy;
		c->quota = r->quota;
		c->known = true;
	}
	kvc_list_init(&c->nodes);
	kvc_list_init(&c->dirty_link);
	c->slot.key = c->id;
	kvc_table_add(&k->chunks->table, &c->slot);
	kvc_pin_meet_locked(k, c);
	return c;
}

void kvc_chunk_settle_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (c->inflight || c->dirty)
		return;
	if (c->heap_at)
		heap_remove(k, c);
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
	c->inflight--;
	kvc_chunk_settle_locked(k, c);
}

void kvc_chunk_count_locked(struct kvc *k, struct kvc_node *n)
{
	uint64_t now = kvc_list_empty(&n->chunk_link) ? 0 : n->room, was = n->in_pool;

	if (!n->chunk || now == was)
		return;
	n->in_pool = now;
	n->chunk->bytes += now - was;
	if (n->chunk->pin)
		kvc_pin_pool_locked(k, n->chunk->pin, (int64_t)(now - was));
}

void kvc_chunk_add_locked(struct kvc *k, struct kvc_node *n)
{
	if (!n->chunk || !kvc_list_empty(&n->chunk_link))
		return;
	kvc_list_add_tail(&n->chunk->nodes, &n->chunk_link);
	n->chunk->nnodes++;
	kvc_chunk_count_locked(k, n);
	kvc_chunk_push_locked(k, n->chunk);
}

void kvc_chunk_remove_locked(struct kvc *k, struct kvc_node *n)
{
	if (!n->chunk || kvc_list_empty(&n->chunk_link))
		return;
	kvc_list_del(&n->chunk_link);
	kvc_chunk_count_locked(k, n);
	if (!--n->chunk->nnodes && n->chunk->heap_at)
		heap_remove(k, n->chunk);
}

void kvc_chunk_dirty_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (!c->dirty && !c->gone) {
		c->dirty = true;
		kvc_list_add_tail(&k->dirty->chunks, &c->dirty_link);
	}
}

/* Stamps go up with every use, so that the order of uses is total. */
void kvc_chunk_used_locked(struct kvc *k, struct kvc_chunk *c, bool hit)
{
	uint64_t now = kvc_clock_ns(k);

	k->chunks->clock_ns = now > k->chunks->clock_ns ? now : k->chunks->clock_ns + 1;
	c->use.last_ns = k->chunks->clock_ns;
	if (!c->use.created_ns)
		c->use.created_ns = k->chunks->clock_ns;
	c->use.hits += hit;
	c->rank = policy(k, c->policy)->rank(&c->use);
	if (c->heap_at)
		sift(&k->chunks->heap[c->policy], c->heap_at - 1);
	kvc_chunk_dirty_locked(k, c);
}

void kvc_chunk_forget_both(struct kvc *k, uint64_t id)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, id);

	kvc_chunk_del(k->cat, id);
	kvc_pin_forget_both(k, id);
	if (!c)
		return;
	c->gone = true;
	if (c->dirty)
		kvc_list_del(&c->dirty_link);
	c->dirty = false;
	kvc_chunk_settle_locked(k, c);
}

void kvc_chunk_cut_locked(struct kvc *k, struct kvc_chunk *c, bool cut)
{
	c->cut = cut;
	if (cut && c->heap_at)
		heap_remove(k, c);
}

void kvc_chunk_take_use_locked(struct kvc *k, struct kvc_chunk *c, const struct kvc_chunk_row *r)
{
	if (r->last_ns > c->use.last_ns)
		c->use.last_ns = r->last_ns;
	if (!c->use.created_ns || (r->created_ns && r->created_ns < c->use.created_ns))
		c->use.created_ns = r->created_ns;
	c->use.hits = kvc_max(c->use.hits, r->hits);
	c->rank = policy(k, c->policy)->rank(&c->use);
	if (c->heap_at)
		sift(&k->chunks->heap[c->policy], c->heap_at - 1);
	c->known = false; /* write it with the next commit */
	kvc_chunk_dirty_locked(k, c);
}

void kvc_chunk_row(const struct kvc_chunk *c, struct kvc_chunk_row *r)
{
	*r = (struct kvc_chunk_row){
		c->id,           c->use.created_ns, c->use.last_ns, c->use.hits, c->rank,
		c->pin_until_ns, c->ttl_s,          c->expires_ns,  c->policy,   c->quota,
	};
}

void kvc_chunk_set_class_locked(struct kvc *k, struct kvc_chunk *c, unsigned class, uint64_t quota)
{
	if (c->heap_at)
		heap_remove(k, c);
	c->policy = class;
	c->quota = quota;
	c->rank = policy(k, class)->rank(&c->use);
	kvc_chunk_push_locked(k, c);
	c->known = false; /* write it with the next commit */
	kvc_chunk_dirty_locked(k, c);
}

bool kvc_chunk_young(const struct kvc *k, uint64_t last_ns)
{
	uint64_t now = kvc_clock_ns(k);

	/* A stamp of the future is an older daemon's, by a wall clock that was wrong. */
	return last_ns + KVC_YOUNG_NS > now && last_ns < now + KVC_YOUNG_NS;
}

void kvc_chunks_free(struct kvc *k)
{
	kvc_table_each(&k->chunks->table, s)
		free(kvc_of(s, struct kvc_chunk, slot));
	kvc_table_fini(&k->chunks->table);
	for (int i = 0; i < KVC_CLASSES; i++)
		free(k->chunks->heap[i].v);
}
