/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks: what is evicted as one. In memory are those with a segment in the pool, those in use, and those whose
 * row is to be written; the ones with segments are in a binary heap by rank, lowest first.
 */
#include "core.h"

#include <string.h>

static struct kvc_chunk **bucket(struct kvc *k, uint64_t id)
{
	return &k->chunks[(id * 0x9e3779b97f4a7c15ull) >> 48 & (KVC_HASH_SIZE - 1)];
}

/* The heap. Order by (rank, id), so that it is total and a restart finds the same. */
static bool before(const struct kvc_chunk *a, const struct kvc_chunk *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->id < b->id;
}

static void place(struct kvc *k, size_t at, struct kvc_chunk *c)
{
	k->heap[at] = c;
	c->heap_at = at + 1;
}

static void sift(struct kvc *k, size_t at)
{
	struct kvc_chunk *c = k->heap[at];

	while (at && before(c, k->heap[(at - 1) / 2])) {
		place(k, at, k->heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	for (size_t child; (child = 2 * at + 1) < k->nheap; at = child) {
		if (child + 1 < k->nheap && before(k->heap[child + 1], k->heap[child]))
			child++;
		if (!before(k->heap[child], c))
			break;
		place(k, at, k->heap[child]);
	}
	place(k, at, c);
}

static void heap_remove(struct kvc *k, struct kvc_chunk *c)
{
	size_t at = c->heap_at - 1;
	struct kvc_chunk *last = k->heap[--k->nheap];

	c->heap_at = 0;
	if (last != c) {
		place(k, at, last);
		sift(k, at);
	}
}

void kvc_chunk_push_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (c->heap_at || !c->nnodes)
		return;
	if (kvc_grow(&k->heap, k->nheap, &k->heap_room, sizeof *k->heap))
		return; /* out of memory: it is tried again with its next use, until then it is not evicted */
	place(k, k->nheap++, c);
	sift(k, k->nheap - 1);
}

struct kvc_chunk *kvc_chunk_pop_locked(struct kvc *k)
{
	struct kvc_chunk *c = k->nheap ? k->heap[0] : NULL;

	if (c)
		heap_remove(k, c);
	return c;
}

struct kvc_chunk *kvc_chunk_find_locked(struct kvc *k, uint64_t id)
{
	struct kvc_chunk *c = *bucket(k, id);

	while (c && c->id != id)
		c = c->hash_next;
	return c;
}

static int64_t rank(const struct kvc *k, const struct kvc_use *u)
{
	return kvc_policies[k->opt.policy].rank(u);
}

int64_t kvc_chunk_rank_row(struct kvc *k, const struct kvc_chunk_row *r)
{
	struct kvc_use u = { r->created_ns, r->last_ns, r->hits };

	return rank(k, &u);
}

int kvc_chunk_join_both(struct kvc *k, struct kvc_node *n)
{
	struct kvc_chunk *c;
	struct kvc_chunk_row r;
	int err;

	if (n->chunk)
		return 0;
	c = kvc_chunk_find_locked(k, n->row.chunk);
	if (!c) {
		err = kvc_chunk_get(k->cat, n->row.chunk, &r);
		if (err && err != -ENOENT)
			return err;
		c = calloc(1, sizeof *c);
		if (!c)
			return -ENOMEM;
		c->id = n->row.chunk;
		if (!err) {
			c->use = (struct kvc_use){ r.created_ns, r.last_ns, r.hits };
			c->pin_until_ns = r.pin_until_ns;
			c->ttl_s = r.ttl_s;
			c->expires_ns = r.expires_ns;
			c->rank = r.rank;
			c->known = true;
		}
		kvc_list_init(&c->nodes);
		kvc_list_init(&c->dirty_link);
		c->hash_next = *bucket(k, c->id);
		*bucket(k, c->id) = c;
	}
	n->chunk = c;
	c->inflight++;
	return 0;
}

void kvc_chunk_settle_locked(struct kvc *k, struct kvc_chunk *c)
{
	struct kvc_chunk **at = bucket(k, c->id);

	if (c->inflight || c->dirty)
		return;
	if (c->heap_at)
		heap_remove(k, c);
	while (*at != c)
		at = &(*at)->hash_next;
	*at = c->hash_next;
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

void kvc_chunk_add_locked(struct kvc *k, struct kvc_node *n)
{
	if (!n->chunk || !kvc_list_empty(&n->chunk_link))
		return;
	kvc_list_add_tail(&n->chunk->nodes, &n->chunk_link);
	n->chunk->nnodes++;
	kvc_chunk_push_locked(k, n->chunk);
}

void kvc_chunk_remove_locked(struct kvc *k, struct kvc_node *n)
{
	if (!n->chunk || kvc_list_empty(&n->chunk_link))
		return;
	kvc_list_del(&n->chunk_link);
	if (!--n->chunk->nnodes && n->chunk->heap_at)
		heap_remove(k, n->chunk);
}

void kvc_chunk_dirty_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (!c->dirty) {
		c->dirty = true;
		kvc_list_add_tail(&k->dirty_chunks, &c->dirty_link);
	}
}

/* Stamps go up with every use, so that the order of uses is total. */
void kvc_chunk_used_locked(struct kvc *k, struct kvc_chunk *c, bool hit)
{
	uint64_t now = kvc_now_ns();

	k->clock_ns = now > k->clock_ns ? now : k->clock_ns + 1;
	c->use.last_ns = k->clock_ns;
	if (!c->use.created_ns)
		c->use.created_ns = k->clock_ns;
	c->use.hits += hit;
	c->rank = rank(k, &c->use);
	if (c->heap_at)
		sift(k, c->heap_at - 1);
	kvc_chunk_dirty_locked(k, c);
}

void kvc_chunk_row(const struct kvc_chunk *c, struct kvc_chunk_row *r)
{
	*r = (struct kvc_chunk_row){ c->id, c->use.created_ns, c->use.last_ns, c->use.hits, c->rank, c->pin_until_ns, c->ttl_s,
				     c->expires_ns };
}

bool kvc_chunk_pinned(const struct kvc_chunk *c)
{
	return c->pin_until_ns && (c->pin_until_ns == INT64_MAX || c->pin_until_ns > kvc_now_ns());
}
