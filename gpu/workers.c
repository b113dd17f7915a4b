/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads of a queue, and the callbacks of a running job. A thread takes the oldest waiting
 * job, runs one job at a time, and has a stream on the device of its last job.
 */
#include "queue.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void kvcachefs_list_add(struct kvcachefs_list *l, struct kvcachefs_entry *e)
{
	e->next = NULL;
	*l->tail = e;
	l->tail = &e->next;
}

struct kvcachefs_entry *kvcachefs_list_take(struct kvcachefs_list *l)
{
	struct kvcachefs_entry *e = l->head;

	if (e && !(l->head = e->next))
		l->tail = &l->head;
	return e;
}

void kvcachefs_over_locked(struct kvcachefs_queue *q, struct kvcachefs_entry *e)
{
	uint64_t one = 1;

	e->ns = kvcachefs_queue_ns() - e->began_ns;
	e->state = KVCACHEFS_OVER;
	if (!q->over.head && write(q->fd, &one, sizeof one) < 0)
		abort(); /* the counter is 0, so the write cannot fail */
	kvcachefs_list_add(&q->over, e);
	pthread_cond_broadcast(&q->moved);
}

uint64_t kvcachefs_queue_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* ---- Callbacks of a running job ---- */

static bool cancelled(void *arg)
{
	struct kvcachefs_entry *e = arg;
	bool is;

	pthread_mutex_lock(&e->q->lock);
	is = e->cancelled;
	pthread_mutex_unlock(&e->q->lock);
	return is;
}

static bool commit(void *arg)
{
	struct kvcachefs_entry *e = arg;
	bool may;

	pthread_mutex_lock(&e->q->lock);
	may = e->committed = !e->cancelled;
	pthread_mutex_unlock(&e->q->lock);
	return may;
}

static void tell_locked(void *arg, struct kvcachefs_step *s, enum kvcachefs_step_state state,
			void *mark, int err)
{
	struct kvcachefs_entry *e = arg;

	s->state = state;
	s->mark = mark;
	s->err = err;
	pthread_cond_broadcast(&e->q->moved);
}

static void tell(void *arg, struct kvcachefs_step *s, enum kvcachefs_step_state state, void *mark,
		 int err)
{
	struct kvcachefs_entry *e = arg;

	pthread_mutex_lock(&e->q->lock);
	tell_locked(arg, s, state, mark, err);
	pthread_mutex_unlock(&e->q->lock);
}

/* ---- Threads ---- */

struct thread_stream { /* a thread's stream */
	void *stream;
	int device;
};

static int stream_for(struct thread_stream *o, int device)
{
	int err;

	if (device < 0 || (o->stream && o->device == device))
		return 0;
	if (o->stream)
		kvcachefs_cuda_stream_free(o->device, o->stream);
	o->stream = NULL;
	err = kvcachefs_cuda_stream_new(device, &o->stream);
	o->device = device;
	return err;
}

static void *worker_thread(void *arg)
{
	struct kvcachefs_queue *q = arg;
	struct thread_stream o = { NULL, -1 };
	struct kvcachefs_entry *e;

	pthread_mutex_lock(&q->lock);
	for (;;) {
		while (!q->stopping && !q->waiting.head)
			pthread_cond_wait(&q->work, &q->lock);
		e = kvcachefs_list_take(&q->waiting);
		if (!e)
			break;
		struct kvcachefs_job_watch w = { e, cancelled, commit, tell };

		e->state = KVCACHEFS_RUNNING;
		pthread_mutex_unlock(&q->lock);
		int err = stream_for(&o, e->j->p->device);

		if (err)
			kvcachefs_job_drop(e->j, err, &w);
		else
			kvcachefs_job_run(e->j, q->mount, o.stream, &w);
		pthread_mutex_lock(&q->lock);
		e->committed = true;
		kvcachefs_over_locked(q, e);
	}
	pthread_mutex_unlock(&q->lock);
	if (o.stream)
		kvcachefs_cuda_stream_free(o.device, o.stream);
	return NULL;
}

/* ---- Threads for leases ---- */

/* Returns the next lease that this thread may take, or NULL. */
static struct kvcachefs_entry *ask_next_locked(struct kvcachefs_queue *q)
{
	struct kvcachefs_entry *e = kvcachefs_list_take(&q->asks);

	if (!e && q->nslow < QUEUE_ASKERS_MOST - 1) {
		e = kvcachefs_list_take(&q->slow);
		q->nslow += e != NULL;
	}
	return e;
}

/* Takes the lease. Releases the lock while it does. */
static void ask_locked(struct kvcachefs_queue *q, struct kvcachefs_entry *e)
{
	bool slow = e->a->slow, over;

	e->state = KVCACHEFS_RUNNING;
	pthread_mutex_unlock(&q->lock);
	over = kvcachefs_ask_run(e->a, q->mount, !slow);
	pthread_mutex_lock(&q->lock);
	q->nslow -= slow;
	if (slow && q->slow.head)
		pthread_cond_signal(&q->asked);
	if (e->cancelled) { /* releasing a lease calls the mount */
		pthread_mutex_unlock(&q->lock);
		kvcachefs_ask_drop(e->a, -ECANCELED, "cancelled");
		pthread_mutex_lock(&q->lock);
	} else if (!over) { /* a thread that may wait takes it */
		e->state = KVCACHEFS_WAITING;
		kvcachefs_list_add(&q->slow, e);
		kvcachefs_asker_start_locked(q); /* otherwise this thread takes it */
		pthread_cond_signal(&q->asked);
		return;
	}
	e->committed = true;
	kvcachefs_over_locked(q, e);
}

static void *asker_thread(void *arg)
{
	struct kvcachefs_queue *q = arg;
	struct kvcachefs_entry *e;

	pthread_mutex_lock(&q->lock);
	while (!q->stopping) {
		e = ask_next_locked(q);
		if (e) {
			/* a woken thread counts as idle until it reaches this line */
			if (q->asks.head)
				kvcachefs_asker_start_locked(q);
			ask_locked(q, e);
		} else {
			q->idle++;
			pthread_cond_wait(&q->asked, &q->lock);
			q->idle--;
		}
	}
	pthread_mutex_unlock(&q->lock);
	return NULL;
}

int kvcachefs_asker_start_locked(struct kvcachefs_queue *q)
{
	sigset_t all, old;
	int err;

	if (q->idle || q->naskers == QUEUE_ASKERS_MOST)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&q->askers[q->naskers], NULL, asker_thread, q);
	q->naskers += !err;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return err && !q->naskers
		       ? kvcachefs_fail(-err, "cannot start a thread for leases: %s", strerror(err))
		       : 0;
}

int kvcachefs_workers_start(struct kvcachefs_queue *q, unsigned threads)
{
	sigset_t all, old;
	int err = 0;

	sigfillset(&all); /* signals are for the program and its own threads */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (q->nthreads < threads && !err) {
		err = pthread_create(&q->threads[q->nthreads], NULL, worker_thread, q);
		q->nthreads += !err;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return err ? kvcachefs_fail(-err, "cannot start a thread for the queue: %s", strerror(err))
		   : 0;
}

void kvcachefs_drop_locked(struct kvcachefs_queue *q, struct kvcachefs_entry *e)
{
	struct kvcachefs_job_watch w = { e, cancelled, commit, tell_locked };

	e->cancelled = true;
	if (e->j)
		kvcachefs_job_drop(e->j, -ECANCELED, &w);
	else
		kvcachefs_ask_drop(e->a, -ECANCELED, "cancelled");
	kvcachefs_over_locked(q, e);
}
