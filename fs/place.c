/* SPDX-License-Identifier: Apache-2.0 */
/* See place.h. */
#include "place.h"

#include <stdlib.h>
#include <sys/random.h>

static _Thread_local struct kvfs_queue *here;

void kvfs_queue_init(struct kvfs_queue *q, unsigned depth)
{
	*q = (struct kvfs_queue){ .depth = depth };
	pthread_mutex_init(&q->lock, NULL);
	if (getrandom(&q->seed, sizeof q->seed, GRND_NONBLOCK) != sizeof q->seed)
		q->seed = (uintptr_t)q;
}

void kvfs_places_init(struct kvfs_places *p, unsigned depth, unsigned copies)
{
	*p = (struct kvfs_places){ .depth = depth };
	pthread_mutex_init(&p->lock, NULL);
	kvfs_queue_init(&p->plain, KVFS_PLACES_PLAIN);
	kvfs_queue_init(&p->copies, copies);
}

void kvfs_places_fini(struct kvfs_places *p)
{
	for (struct kvfs_queue *q = p->rings, *next; q; q = next) {
		next = q->next;
		free(q);
	}
	p->rings = NULL;
}

struct kvfs_queue *kvfs_queue_here(struct kvfs_places *p, bool ring)
{
	struct kvfs_queue *q = here;

	if (!ring)
		return &p->plain;
	if (q)
		return q;
	q = malloc(sizeof *q);
	if (!q)
		return &p->plain;
	kvfs_queue_init(q, p->depth);
	pthread_mutex_lock(&p->lock);
	q->next = p->rings;
	p->rings = q;
	pthread_mutex_unlock(&p->lock);
	here = q;
	return q;
}

static unsigned *user_of(struct kvfs_queue *q, uint32_t uid)
{
	uint64_t hash = (uid ^ q->seed) * 0x9e3779b97f4a7c15ull;

	hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9ull;
	return &q->users[(hash >> 40) % KVFS_PLACE_USERS];
}

bool kvfs_place_take(struct kvfs_queue *q, uint32_t uid, bool root, unsigned n)
{
	unsigned kept = q->depth / (root ? 8 : 4), left, *user = user_of(q, uid);
	bool takes;

	pthread_mutex_lock(&q->lock);
	left = q->depth - q->waiting;
	left -= left < kept ? left : kept;
	takes = n <= left && *user + (uint64_t)n <= KVFS_PLACES_TIMES * (left - n + 1ull);
	if (takes) {
		q->waiting += n;
		*user += n;
	}
	pthread_mutex_unlock(&q->lock);
	return takes;
}

void kvfs_place_give(struct kvfs_queue *q, uint32_t uid, unsigned n)
{
	pthread_mutex_lock(&q->lock);
	q->waiting -= n;
	*user_of(q, uid) -= n;
	pthread_mutex_unlock(&q->lock);
}

unsigned kvfs_places_taken(struct kvfs_places *p)
{
	unsigned n = 0;

	pthread_mutex_lock(&p->plain.lock);
	n = p->plain.waiting;
	pthread_mutex_unlock(&p->plain.lock);
	pthread_mutex_lock(&p->lock);
	for (struct kvfs_queue *q = p->rings; q; q = q->next) {
		pthread_mutex_lock(&q->lock);
		n += q->waiting;
		pthread_mutex_unlock(&q->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return n;
}
