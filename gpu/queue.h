/* SPDX-License-Identifier: Apache-2.0 */
/* A queue's parts, for its two files: queue.c and workers.c. Locks and lists: queue.c says it. */
#ifndef KVCACHEFS_QUEUE_H
#define KVCACHEFS_QUEUE_H

#include "job.h"

#include <pthread.h>

#define QUEUE_BUCKETS 256
#define QUEUE_PAST 1024 /* ends that are remembered, as kvcachefs.h says */
#define QUEUE_THREADS_MOST 64

enum kvcachefs_entry_state { KVCACHEFS_WAITING, KVCACHEFS_RUNNING, KVCACHEFS_OVER };

struct kvcachefs_entry {
	struct kvcachefs_entry *next;    /* waiting, or over */
	struct kvcachefs_entry *in_slot; /* in the table */
	struct kvcachefs_queue *q;
	struct kvcachefs_job *j;
	uint64_t id, tag;
	enum kvcachefs_entry_state state;
	bool cancelled, committed, taken;
	unsigned users; /* threads that look at its steps without the lock */
};

struct kvcachefs_list {
	struct kvcachefs_entry *head, **tail;
};

struct kvcachefs_queue {
	pthread_mutex_t lock;
	pthread_cond_t work, moved; /* a job waits, or the end; a step or job has gone on */
	char *mount;
	int fd;
	bool stopping;
	struct kvcachefs_list waiting, over;
	struct kvcachefs_entry *table[QUEUE_BUCKETS];
	size_t n; /* not taken, with those that are being submitted */
	uint64_t last;
	struct {
		uint64_t id;
		int err;
	} past[QUEUE_PAST];
	unsigned nthreads;
	pthread_t threads[QUEUE_THREADS_MOST];
};

#pragma GCC visibility push(hidden)
void kvcachefs_list_add(struct kvcachefs_list *l, struct kvcachefs_entry *e);
/* The first, which leaves the list; or NULL. */
struct kvcachefs_entry *kvcachefs_list_take(struct kvcachefs_list *l);
/* It has ended: among those that can be taken. */
void kvcachefs_over_locked(struct kvcachefs_queue *q, struct kvcachefs_entry *e);
/* So many threads; -EAGAIN, and then there may be some. They end when q->stopping is set. */
int kvcachefs_workers_start(struct kvcachefs_queue *q, unsigned threads);
/* Ends a job that nobody has begun, and that is in no list. */
void kvcachefs_drop_locked(struct kvcachefs_queue *q, struct kvcachefs_entry *e);
#pragma GCC visibility pop

#endif
