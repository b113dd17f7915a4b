/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wait slots: limits on the number of requests that wait. A request that arrives through io_uring
 * occupies an entry of its CPU's queue until it is answered; the kernel has no other way to answer
 * it. Requests that wait (for a load, a remote lookup, pool memory or a sync) could therefore fill
 * a queue and block all other requests of that CPU. So a request must take a slot before it waits.
 * Of the `depth` entries of a queue, a quarter has no slots; root may use half of that quarter.
 *
 * A user may take a slot only while the number of slots the user has is less than three times the
 * number of free slots. So a single user gets three quarters of them, two users get three sevenths
 * each, and so on, and some slots remain for the next user. A request that gets no slot is answered
 * at once, as if its deadline had passed: a remote lookup and an open for reading that needs a load
 * are misses, other opens that need a load fail with ETIMEDOUT, and stores that need memory fail
 * with ENOSPC.
 *
 * Requests from /dev/fuse use only memory while they wait. They share one queue of KVFS_PLAIN_SLOTS
 * slots. A waiting write from /dev/fuse needs a copy of its data, because libfuse reuses the buffer
 * for the next request. The pages of these copies are slots of another queue with the same shares;
 * its depth is the part of memory= for such copies (budget.h).
 *
 * Any thread may call these functions, except for kvfs_queue_here, which is for threads that serve
 * requests.
 */
#ifndef KVFS_WAIT_SLOTS_H
#define KVFS_WAIT_SLOTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define KVFS_SLOT_TIMES 3u
#define KVFS_PLAIN_SLOTS 16384u
#define KVFS_SLOT_USERS 1024u /* users with the same hash share their slots */

struct kvfs_queue {
	struct kvfs_queue *next;
	pthread_mutex_t lock;    /* a leaf; guards the members below */
	unsigned depth, waiting; /* entries of the queue; waiting requests */
	unsigned users[KVFS_SLOT_USERS];
	uint64_t seed; /* random, so users cannot choose whose hash they share */
};

struct kvfs_wait_slots {
	pthread_mutex_t lock; /* a leaf; guards the list */
	struct kvfs_queue *rings;
	struct kvfs_queue plain;  /* requests from /dev/fuse */
	struct kvfs_queue copies; /* pages of copies of waiting writes from /dev/fuse */
	unsigned depth;           /* of each io_uring queue */
};

/* depth: entries of each io_uring queue. copies: maximum pages of copies of waiting writes. */
void kvfs_wait_slots_init(struct kvfs_wait_slots *p, unsigned depth, unsigned copies);
/* Frees the queues. No thread serves requests any more, and all calls are freed. */
void kvfs_wait_slots_fini(struct kvfs_wait_slots *p);
/*
 * Returns the queue that the calling thread serves. ring: its requests arrive through io_uring,
 * where each queue has one thread. If malloc fails, the queue of /dev/fuse is returned.
 */
struct kvfs_queue *kvfs_queue_here(struct kvfs_wait_slots *p, bool ring);
void kvfs_queue_init(struct kvfs_queue *q, unsigned depth);
/*
 * Takes n > 0 slots for a request of this user. root: uid 0 or the daemon's own uid. Returns false,
 * and takes nothing, if the slots are not free or the user has too many. Return the slots with
 * kvfs_wait_slot_give. Does not block.
 */
bool kvfs_wait_slot_take(struct kvfs_queue *q, uint32_t uid, bool root, unsigned n);
void kvfs_wait_slot_give(struct kvfs_queue *q, uint32_t uid, unsigned n);
/* True if at most half of the queue's entries wait, so that a call may wait that need not. */
bool kvfs_wait_slot_spare(struct kvfs_queue *q);
/* Requests that wait now, in all queues. */
unsigned kvfs_wait_slots_used(struct kvfs_wait_slots *p);

#endif
