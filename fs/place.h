/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places to wait in. A request that comes through io_uring occupies an entry of its CPU's queue
 * until it is answered, and the kernel offers no other way to answer it. Requests that wait (for a
 * load, for a tier's answer about a name, for room, for a sync) could therefore fill a queue, and
 * everything else that is asked on that CPU would wait for them. So a request must take a place
 * before it waits. Of a queue's `depth` entries,
 *
 *	a quarter is never waited in, an eighth not even by root,
 *
 * and of the others a user may take a place only while he has fewer than three times as many as are
 * left: one user alone gets three quarters of them, two three sevenths each, and so on; some are
 * left for the next user. A request that gets no place is answered at once, as if its deadline had
 * passed: a lookup of a name that only a remote may have and an open for reading that needs a load
 * are misses, other opens that need a load fail with ETIMEDOUT, stores that need room with ENOSPC.
 *
 * Requests that come through /dev/fuse occupy nothing but memory while they wait. They share one
 * queue of KVFS_PLACES_PLAIN places. A write among them needs a copy of its data while it waits,
 * because libfuse uses its buffer for the next request. The pages of these copies are places of
 * another queue, with the same shares; its depth is the part of memory= for them (budget.h).
 *
 * Any thread may call these; kvfs_queue_here is for threads that serve requests.
 */
#ifndef KVFS_PLACE_H
#define KVFS_PLACE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define KVFS_PLACES_TIMES 3u
#define KVFS_PLACES_PLAIN 16384u
#define KVFS_PLACE_USERS 1024u /* users with the same hash share their places */

struct kvfs_queue {
	struct kvfs_queue *next;
	pthread_mutex_t lock;    /* a leaf; guards what follows */
	unsigned depth, waiting; /* entries; those in which a request waits */
	unsigned users[KVFS_PLACE_USERS];
	uint64_t seed; /* of the hash: which users share is not for them to choose */
};

struct kvfs_places {
	pthread_mutex_t lock; /* a leaf; guards the list */
	struct kvfs_queue *rings;
	struct kvfs_queue plain;  /* of /dev/fuse */
	struct kvfs_queue copies; /* pages of the data of its waiting writes */
	unsigned depth;           /* of each queue of io_uring */
};

/* depth: of each queue of io_uring. copies: pages that copies of waiting writes may have. */
void kvfs_places_init(struct kvfs_places *p, unsigned depth, unsigned copies);
/* When no thread serves any more and no call is left. */
void kvfs_places_fini(struct kvfs_places *p);
/*
 * The queue whose requests this thread serves. ring: they come through io_uring, where each queue
 * has one thread. If memory is short this is the queue of /dev/fuse.
 */
struct kvfs_queue *kvfs_queue_here(struct kvfs_places *p, bool ring);
void kvfs_queue_init(struct kvfs_queue *q, unsigned depth);
/*
 * Takes n places at once for a request of this user, until they are given back; n > 0. root: uid 0
 * or the daemon's own. False: they are not free, or the user has too many.
 */
bool kvfs_place_take(struct kvfs_queue *q, uint32_t uid, bool root, unsigned n);
void kvfs_place_give(struct kvfs_queue *q, uint32_t uid, unsigned n);
/* Requests that wait now, in all queues. */
unsigned kvfs_places_taken(struct kvfs_places *p);

#endif
