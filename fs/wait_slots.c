/* SPDX-License-Identifier: Apache-2.0 */
/* Limits on waiting requests. See wait_slots.h. */
#include "wait_slots.h"

#include <stdlib.h>
#include <sys/random.h>

static _Thread_local struct kvfs_queue *thread_queue;

void kvfs_queue_init(struct kvfs_queue *q, unsigned depth)
{
	*q = (struct kvfs_queue){ .depth = depth };
	pthread_mutex_init(&q->lock, NULL);
	if (getrandom(&q->seed, sizeof q->seed, GRND_NONBLOCK) != sizeof q->seed)
		q->seed = (uintptr_t)q;
}

void kvfs_wait_slots_init(struct kvfs_wait_slots *p, unsigned depth, unsigned copies)
{
	*p = (struct kvfs_wait_slots){ .depth = depth };
	pthread_mutex_init(&p->lock, NULL);
	kvfs_queue_init(&p->plain, KVFS_PLAIN_SLOTS);
	kvfs_queue_init(&p->copies, copies);
}

void kvfs_wait_slots_fini(struct kvfs_wait_slots *p)
{
	for (struct kvfs_queue *q = p->rings, *next; q; q = next) {
		next = q->next;
		free(q);
	}
	p->rings = NULL;
}

struct kvfs_queue *kvfs_queue_here(struct kvfs_wait_slots *p, bool ring)
{
	struct kvfs_queue *q = thread_queue;

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
	thread_queue = q;
	return q;
}

static unsigned *user_waiting(struct kvfs_queue *q, uint32_t uid)
{
	uint64_t hash = (uid ^ q->seed) * 0x9e3779b97f4a7c15ull;

	hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9ull;
	return &q->users[(hash >> 40) % KVFS_SLOT_USERS];
}

bool kvfs_wait_slot_take(struct kvfs_queue *q, uint32_t uid, bool root, unsigned n)
{
	unsigned reserved = q->depth / (root ? 8 : 4), left, *user = user_waiting(q, uid);
	bool granted;

	pthread_mutex_lock(&q->lock);
	left = q->depth - q->waiting;
	left -= left < reserved ? left : reserved;
	granted = n <= left && *user + (uint64_t)n <= KVFS_SLOT_TIMES * (left - n + 1ull);
	if (granted) {
		q->waiting += n;
		*user += n;
	}
	pthread_mutex_unlock(&q->lock);
	return granted;
}

void kvfs_wait_slot_give(struct kvfs_queue *q, uint32_t uid, unsigned n)
{
	pthread_mutex_lock(&q->lock);
	q->waiting -= n;
	*user_waiting(q, uid) -= n;
	pthread_mutex_unlock(&q->lock);
}

bool kvfs_wait_slot_spare(struct kvfs_queue *q)
{
	bool spare;

	pthread_mutex_lock(&q->lock);
	spare = q->waiting <= q->depth / 2;
	pthread_mutex_unlock(&q->lock);
	return spare;
}

unsigned kvfs_wait_slots_used(struct kvfs_wait_slots *p)
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
