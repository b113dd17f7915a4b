/* SPDX-License-Identifier: Apache-2.0 */
/* The struct of a queue, shared by queue.c and workers.c. queue.c describes the locks and lists. */
#ifndef KVCACHEFS_QUEUE_H
#define KVCACHEFS_QUEUE_H

#include "ask.h"
#include "job.h"

#include <pthread.h>

#define QUEUE_BUCKETS 256
#define QUEUE_PAST 1024 /* results that are remembered, as kvcachefs.h documents */
#define QUEUE_THREADS_MOST 64
#define QUEUE_ASKERS_MOST 16 /* threads for leases */

enum kvcachefs_entry_state { KVCACHEFS_WAITING, KVCACHEFS_RUNNING, KVCACHEFS_OVER };

struct kvcachefs_entry {
	struct kvcachefs_entry *next;    /* in the list of waiting or finished entries */
	struct kvcachefs_entry *in_slot; /* in its bucket of the table */
	struct kvcachefs_queue *q;
	struct kvcachefs_job *j;        /* a transfer, or NULL */
	struct kvcachefs_ask *a;        /* a lease, or NULL */
	uint64_t id, tag, began_ns, ns; /* ns: from the submission to the end */
	enum kvcachefs_entry_state state;
	bool cancelled, committed, taken;
	unsigned users; /* threads that read its steps without the lock */
};

struct kvcachefs_list {
	struct kvcachefs_entry *head, **tail;
};

struct kvcachefs_queue {
	pthread_mutex_t lock;
	/* work: a transfer waits, or the queue stops; moved: a step or an entry made progress */
	pthread_cond_t work, moved;
	char *mount;
	int fd;
	bool stopping;
	struct kvcachefs_list waiting, over;
	/* leases: not begun, and those that must wait for a tier */
	struct kvcachefs_list asks, slow;
	struct kvcachefs_entry *table[QUEUE_BUCKETS];
	size_t n; /* entries not taken, including those being submitted */
	uint64_t last;
	struct {
		uint64_t id;
		int err;
	} past[QUEUE_PAST];
	unsigned nthreads;
	pthread_t threads[QUEUE_THREADS_MOST];
	pthread_cond_t asked; /* a lease waits, or the queue stops */
	/*
	 * nslow: threads that may wait for a tier (at least one thread never does); idle: threads
	 * without a lease
	 */
	unsigned naskers, nslow, idle;
	pthread_t askers[QUEUE_ASKERS_MOST];
};

#pragma GCC visibility push(hidden)
void kvcachefs_list_add(struct kvcachefs_list *l, struct kvcachefs_entry *e);
/* Removes the first entry and returns it, or NULL. */
struct kvcachefs_entry *kvcachefs_list_take(struct kvcachefs_list *l);
/* Moves a finished entry to the list of entries that can be taken. */
void kvcachefs_over_locked(struct kvcachefs_queue *q, struct kvcachefs_entry *e);
/*
 * Starts threads, which end when q->stopping is set. Returns 0, or -EAGAIN, and then some may have
 * started.
 */
int kvcachefs_workers_start(struct kvcachefs_queue *q, unsigned threads);
/* Starts a thread for leases if none is idle. Returns 0, or -EAGAIN if there is none at all. */
int kvcachefs_asker_start_locked(struct kvcachefs_queue *q);
/* Returns the time in nanoseconds. */
uint64_t kvcachefs_queue_ns(void);
/* Ends an entry that has not begun and is in no list. */
void kvcachefs_drop_locked(struct kvcachefs_queue *q, struct kvcachefs_entry *e);
#pragma GCC visibility pop

#endif
