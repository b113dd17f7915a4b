/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that recently left the mount or the pool, see gone.h. A slot is three words. A writer
 * clears the key, writes the rest and sets the key; a reader that sees the key change treats the
 * key that it looks for as absent.
 */
#include "gone.h"

#include <stdlib.h>

#define WAYS 8u /* places of a name in the table of ids */
#define WHY 15u /* the bits of the reason in `when` */

_Static_assert(KVC_REASONS_N < WHY, "a reason fits");

struct gone_slot {
	_Atomic uint64_t key;  /* 0: free */
	_Atomic uint64_t when; /* kvc_mono_ns, with the reason in its lowest bits */
	_Atomic uint64_t at;   /* bytes that had left for lack of space */
};

/* Under k->lock. */
struct gone_pair {
	uint64_t key, id; /* key 0: free */
};

struct kvc_gone {
	struct gone_slot names[KVC_GONE_SLOTS], chunks[KVC_GONE_SLOTS];
	/* by name: the id of the dropped chunk; by id: the id that the chunk had before */
	struct gone_pair ids[KVC_GONE_IDS], earlier[KVC_GONE_EARLIER];
	_Atomic uint64_t dropped, evicted; /* bytes that left so far for lack of space */
};

struct kvc_gone *kvc_gone_new(void)
{
	return calloc(1, sizeof(struct kvc_gone));
}

void kvc_gone_free(struct kvc_gone *g)
{
	free(g);
}

static uint64_t name_key(uint64_t parent, uint64_t hash)
{
	return ((hash ^ parent) * 0x9e3779b97f4a7c15ull ^ parent) | 1; /* not 0 */
}

static uint64_t chunk_key(uint64_t chunk)
{
	return chunk * 0x9e3779b97f4a7c15ull | 1;
}

static struct gone_slot *slot_of(struct gone_slot *v, uint64_t key)
{
	return &v[(key >> 32) % KVC_GONE_SLOTS];
}

static void put(struct gone_slot *v, uint64_t key, uint64_t when, uint64_t at)
{
	struct gone_slot *s = slot_of(v, key);

	atomic_store(&s->key, 0);
	atomic_store(&s->when, when);
	atomic_store(&s->at, at);
	atomic_store(&s->key, key);
}

static bool find(struct gone_slot *v, uint64_t key, uint64_t *when, uint64_t *at)
{
	struct gone_slot *s = slot_of(v, key);

	if (atomic_load(&s->key) != key)
		return false;
	*when = atomic_load(&s->when);
	*at = atomic_load(&s->at);
	return atomic_load(&s->key) == key;
}

/* Adds a number of bytes to a histogram whose unit is a MiB; its sum is in bytes. */
static void add_bytes(struct kvc_histogram *h, uint64_t bytes)
{
	kvc_histogram_add(h, KVC_IN_MIB, bytes);
}

/* True if a larger cache would have kept a chunk that was dropped for this reason. */
static bool lacks_space(enum kvc_reason why)
{
	return why == KVC_FOR_pool || why == KVC_FOR_tier;
}

/* Returns the place of a name among a few: its own, a free one, or that of another name. */
static struct gone_pair *place_of(struct kvc *k, uint64_t key)
{
	struct gone_pair *v = &k->gone->ids[(key >> 32) % (KVC_GONE_IDS / WAYS) * WAYS],
			 *free = NULL;

	for (unsigned i = 0; i < WAYS; i++) {
		if (v[i].key == key)
			return &v[i];
		free = v[i].key ? free : &v[i];
	}
	return free ?: &v[(key >> 24) % WAYS];
}

void kvc_gone_name_put_locked(struct kvc *k, uint64_t parent, uint64_t hash, enum kvc_reason why,
			      uint64_t chunk)
{
	uint64_t key = name_key(parent, hash);

	*place_of(k, key) = (struct gone_pair){ key, chunk };
	put(k->gone->names, key, (kvc_mono_ns() & ~(uint64_t)WHY) | why,
	    atomic_load(&k->gone->dropped));
}

void kvc_gone_name_forget(struct kvc *k, uint64_t parent, uint64_t hash)
{
	uint64_t key = name_key(parent, hash);
	struct gone_slot *s = slot_of(k->gone->names, key);

	if (atomic_load_explicit(&s->key, memory_order_relaxed) == key)
		atomic_compare_exchange_strong(&s->key, &key, 0);
}

void kvc_gone_name_made_locked(struct kvc *k, uint64_t parent, uint64_t hash, uint64_t ino)
{
	uint64_t key = name_key(parent, hash), now = chunk_key(ino);
	struct gone_pair *was = place_of(k, key);

	if (was->key != key)
		return;
	k->gone->earlier[(now >> 32) % KVC_GONE_EARLIER] = (struct gone_pair){ now, was->id };
	was->key = 0;
}

uint64_t kvc_gone_earlier_take_locked(struct kvc *k, uint64_t chunk)
{
	uint64_t key = chunk_key(chunk);
	struct gone_pair *p = &k->gone->earlier[(key >> 32) % KVC_GONE_EARLIER];

	if (p->key != key)
		return 0;
	p->key = 0;
	return p->id;
}

void kvc_gone_dropped(struct kvc *k, enum kvc_reason why, uint64_t bytes)
{
	if (lacks_space(why))
		atomic_fetch_add(&k->gone->dropped, bytes);
}

struct kvc_gone_name kvc_gone_name_find(struct kvc *k, uint64_t parent, uint64_t hash)
{
	uint64_t when, at, now = kvc_mono_ns();

	if (!find(k->gone->names, name_key(parent, hash), &when, &at))
		return (struct kvc_gone_name){ 0 };
	return (struct kvc_gone_name){
		.gap_ns = now - kvc_min(now, when & ~(uint64_t)WHY),
		.gap_bytes = atomic_load(&k->gone->dropped) - at,
		.why = (uint8_t)((when & WHY) + 1),
	};
}

void kvc_gone_name_count(struct kvc *k, const struct kvc_gone_name *name)
{
	enum kvc_reason why = name->why - 1u;

	if (!name->why)
		return;
	kvc_count_one(&k->stats.absent_after[why], 1);
	kvc_histogram_add(&k->stats.drop_gap, KVC_IN_SECONDS, name->gap_ns);
	if (lacks_space(why))
		add_bytes(&k->stats.drop_gap_bytes, name->gap_bytes);
}

void kvc_gone_chunk_put(struct kvc *k, uint64_t chunk, uint64_t bytes)
{
	put(k->gone->chunks, chunk_key(chunk), 0, atomic_fetch_add(&k->gone->evicted, bytes));
}

void kvc_gone_chunk_count(struct kvc *k, uint64_t chunk)
{
	uint64_t when, at;

	if (find(k->gone->chunks, chunk_key(chunk), &when, &at))
		add_bytes(&k->stats.evict_gap_bytes, atomic_load(&k->gone->evicted) - at);
}
