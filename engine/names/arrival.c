/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits for names that do not exist yet. A call is parked in a hash table by the folder and the
 * name, so that each new name costs one look at a bucket, and nothing if no call waits. Places
 * limit the number of calls, and with it the work of a wake.
 *
 * Only leases wait, not lookups: the kernel holds the folder's lock during a lookup, so the create
 * that makes the name would wait behind the lookup that waits for it.
 */
#include "arrival.h"

#include "catalog.h"

#define TIMES 3u /* as for wait slots: a user may have this many times the free places */

void kvc_arrival_init(struct kvc_arrivals *a)
{
	for (unsigned i = 0; i < KVC_ARRIVAL_BUCKETS; i++)
		kvc_list_init(&a->buckets[i]);
	kvc_list_init(&a->telling);
}

static unsigned *arrivals_of(struct kvc *k, uint32_t uid)
{
	uint64_t hash = (uid ^ (uintptr_t)k->arrivals) * 0x9e3779b97f4a7c15ull;

	return &k->arrivals->users[(hash >> 40) % KVC_ARRIVAL_USERS];
}

bool kvc_arrival_begin_locked(struct kvc *k, uint32_t uid)
{
	unsigned *user = arrivals_of(k, uid), left = KVC_ARRIVALS - k->arrivals->n;

	if (!left || *user >= TIMES * left) {
		kvc_count(&k->stats, arrival_refusals);
		return false;
	}
	++*user;
	k->arrivals->n++;
	kvc_count(&k->stats, arrival_waits);
	return true;
}

void kvc_arrival_end_locked(struct kvc *k, uint32_t uid)
{
	--*arrivals_of(k, uid);
	k->arrivals->n--;
}

static uint64_t arrival_key(uint64_t parent, uint64_t name_hash)
{
	return (name_hash ^ parent) * 0x9e3779b97f4a7c15ull;
}

/* The address seeds the hash, so that users cannot choose names that share a bucket. */
static struct kvc_list *arrival_bucket(struct kvc *k, uint64_t key)
{
	uint64_t hash = (key ^ (uintptr_t)k->arrivals) * 0xd6e8feb86659fd93ull;

	return &k->arrivals->buckets[(hash >> 32) % KVC_ARRIVAL_BUCKETS];
}

int kvc_arrival_park_locked(struct kvc *k, uint64_t parent, const char *name, struct kvc_wait *w)
{
	w->arrival = arrival_key(parent, kvc_name_hash(name));
	w->arrival_in = parent;
	return kvc_wait_park_locked(k, arrival_bucket(k, w->arrival), w);
}

void kvc_arrival_named_locked(struct kvc *k, uint64_t parent, const char *name)
{
	uint64_t key;

	if (!k->arrivals->n)
		return;
	key = arrival_key(parent, kvc_name_hash(name));
	kvc_list_each_safe(e, arrival_bucket(k, key)) {
		struct kvc_wait *w = kvc_of(e, struct kvc_wait, link);

		if (w->arrival == key)
			kvc_wait_wake_locked(k, w, 0);
	}
}

void kvc_arrival_shown_locked(struct kvc *k, uint64_t parent)
{
	for (unsigned i = 0; k->arrivals->n && i < KVC_ARRIVAL_BUCKETS; i++)
		kvc_list_each_safe(e, &k->arrivals->buckets[i]) {
			struct kvc_wait *w = kvc_of(e, struct kvc_wait, link);

			if (w->arrival_in == parent)
				kvc_wait_wake_locked(k, w, 0);
		}
}
