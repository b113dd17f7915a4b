/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accesses that were made under joint holds of k->lock (base/joint.h), until
 * kvc_access_record_locked records them. A joint hold may not change the state of clients, chunks
 * and policies; it leaves an item here instead. Taking k->lock exclusively records all items first,
 * so a thread that holds it finds the queue empty. If no thread does that for a while, a thread
 * that finds many items takes only the lock's mutex, while joint holds go on, and records them. If
 * the queue is full, the call takes k->lock.
 *
 * The order of the queue is the order in which the calls were made, for calls of one client. The
 * node of an item stays in memory, and in its chunk, until the item is recorded, because a change
 * of either needs k->lock exclusively.
 */
#ifndef KVC_ACCESS_QUEUE_H
#define KVC_ACCESS_QUEUE_H

#include "node.h"

#define KVC_ACCESS_QUEUE_ITEMS 512u /* a power of two */
/* from this number of items on, a thread takes the mutex and records them */
#define KVC_ACCESS_QUEUE_MANY 64u

/* Returns an empty queue; NULL: no memory. */
struct kvc_access_queue *kvc_access_queue_new(void);
void kvc_access_queue_free(struct kvc_access_queue *q);
/*
 * Under a joint hold: call w has opened n, a file in the pool. Returns false if the queue is full.
 * Sets *many if the caller must call kvc_access_queue_record after the hold.
 */
bool kvc_access_queue_put(struct kvc *k, struct kvc_node *n, const struct kvc_wait *w, bool *many);
/* Records all accesses of the queue. arg is the struct kvc; k->lock is held exclusively. */
void kvc_access_queue_empty(void *arg);
/* Records accesses, if k->lock is free. The caller holds no lock, and no joint hold. */
void kvc_access_queue_record(struct kvc *k);

#endif
