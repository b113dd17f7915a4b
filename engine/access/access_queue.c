/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of accesses (access_queue.h): a ring. A joint hold reserves an item by moving `tail`,
 * fills it, and then sets its turn, which is the number of the item plus 1. The thread that has the
 * mutex of k->lock takes items in their order, up to the first one that is not filled yet.
 */
#include "access_queue.h"

#include "access.h"
#include "clock.h"
#include "model_stats.h"
#include "tenant.h"

#include <stdlib.h>
#include <string.h>

struct access_item {
	_Atomic uint64_t turn;
	struct kvc_node *n;
	uint64_t client;
	/* when the call was made, by the store's clock and by kvc_mono_ns */
	uint64_t when_ns, when_mono_ns;
};

struct kvc_access_queue {
	_Alignas(KVC_CACHE_LINE) _Atomic uint64_t tail; /* items that were reserved */
	_Alignas(KVC_CACHE_LINE) _Atomic uint64_t head; /* items that were taken */
	_Alignas(KVC_CACHE_LINE) struct access_item v[KVC_ACCESS_QUEUE_ITEMS];
};

struct kvc_access_queue *kvc_access_queue_new(void)
{
	struct kvc_access_queue *q = aligned_alloc(KVC_CACHE_LINE, sizeof *q);

	if (q)
		memset(q, 0, sizeof *q);
	return q;
}

void kvc_access_queue_free(struct kvc_access_queue *q)
{
	free(q);
}

bool kvc_access_queue_put(struct kvc *k, struct kvc_node *n, const struct kvc_wait *w, bool *many)
{
	struct kvc_access_queue *q = k->access_queue;
	uint64_t at = atomic_load_explicit(&q->tail, memory_order_relaxed), waiting;
	struct access_item *item;

	do {
		waiting = at - atomic_load_explicit(&q->head, memory_order_acquire);
		if (waiting >= KVC_ACCESS_QUEUE_ITEMS)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&q->tail, &at, at + 1, memory_order_relaxed,
							memory_order_relaxed));
	item = &q->v[at % KVC_ACCESS_QUEUE_ITEMS];
	item->n = n;
	item->client = w->client;
	item->when_ns = kvc_clock_ns(k);
	item->when_mono_ns = w->begun_ns ?: kvc_mono_ns();
	atomic_store_explicit(&item->turn, at + 1, memory_order_release);
	*many = waiting >= KVC_ACCESS_QUEUE_MANY;
	return true;
}

static void record_item_locked(struct kvc *k, const struct access_item *item)
{
	struct kvc_node *n = item->n;

	/* counted together with the models' hits, because pool_hits is their sum */
	kvc_count(&k->stats, pool_hits);
	kvc_model_stats_locked(k, n->model, hits);
	kvc_tenant_tell_locked(k, n->chunk, hits);
	k->chunks->happened_ns = item->when_ns;
	k->chunks->happened_mono_ns = item->when_mono_ns;
	if (kvc_access_record_locked(k, n->chunk, n->row.ino, item->client, true) &&
	    !n->refs.leases)
		kvc_model_stats_found_locked(k, n->model, 1); /* a lease counts its files itself */
	k->chunks->happened_ns = k->chunks->happened_mono_ns = 0;
}

/* Records at most `most` items. The caller holds the mutex of k->lock. */
static void record_items_locked(struct kvc *k, unsigned most)
{
	struct kvc_access_queue *q = k->access_queue;
	uint64_t at = atomic_load_explicit(&q->head, memory_order_relaxed);

	for (; most; most--) {
		struct access_item *item = &q->v[at % KVC_ACCESS_QUEUE_ITEMS];

		if (atomic_load_explicit(&item->turn, memory_order_acquire) != at + 1)
			break;
		record_item_locked(k, item);
		atomic_store_explicit(&q->head, ++at, memory_order_release);
	}
}

void kvc_access_queue_empty(void *arg)
{
	record_items_locked(arg, KVC_ACCESS_QUEUE_ITEMS);
}

void kvc_access_queue_record(struct kvc *k)
{
	if (!kvc_lock_try_beside(&k->lock, KVC_HERE("objects")))
		return;
	record_items_locked(k, KVC_ACCESS_QUEUE_MANY);
	kvc_lock_release(&k->lock);
}
