/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue of transfers for one mount. A job (job.h) goes
 *
 *   waiting -> running -> over -> taken     cancelled while it waits: waiting -> over
 *
 * One lock guards the lists, the state of jobs and of their steps, and the count in the eventfd; no
 * call to the mount or a device is made under it. The threads take the oldest waiting job, each has
 * one at a time, and a stream of its own on the device that it last worked for. All jobs that are
 * not taken are in a table by their number, and how the last ones ended is remembered after that:
 * a thread that waits for a layer need not hurry to be there before the one that takes completions.
 *
 * The eventfd is written when the list of those that are over gets its first, and read empty when
 * its last is taken, both under the lock: it is readable exactly while there are some.
 */
#include "job.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define BUCKETS 256
#define PAST 1024 /* ends that are remembered, as kvcachefs.h says */
#define THREADS 4
#define THREADS_MOST 64

enum state { WAITING, RUNNING, OVER };

struct entry {
	struct entry *next;    /* waiting, or over */
	struct entry *in_slot; /* in the table */
	struct kvcachefs_queue *q;
	struct kvcachefs_job *j;
	uint64_t id, tag;
	enum state state;
	bool cancelled, committed, taken;
	unsigned users; /* threads that look at its steps without the lock */
};

struct list {
	struct entry *head, **tail;
};

struct kvcachefs_queue {
	pthread_mutex_t lock;
	pthread_cond_t work, moved; /* a job waits, or the end; a step or job has gone on */
	char *mount;
	int fd;
	bool stopping;
	struct list waiting, over;
	struct entry *table[BUCKETS];
	size_t n; /* not taken, with those that are being submitted */
	uint64_t last;
	struct {
		uint64_t id;
		int err;
	} past[PAST];
	unsigned nthreads;
	pthread_t threads[THREADS_MOST];
};

static void list_add(struct list *l, struct entry *e)
{
	e->next = NULL;
	*l->tail = e;
	l->tail = &e->next;
}

static struct entry *list_take(struct list *l)
{
	struct entry *e = l->head;

	if (e && !(l->head = e->next))
		l->tail = &l->head;
	return e;
}

static void list_remove(struct list *l, struct entry *e)
{
	struct entry **at = &l->head;

	while (*at != e)
		at = &(*at)->next;
	*at = e->next;
	if (!*at)
		l->tail = at;
}

static struct entry **slot_of(struct kvcachefs_queue *q, uint64_t id)
{
	struct entry **at = &q->table[id % BUCKETS];

	while (*at && (*at)->id != id)
		at = &(*at)->in_slot;
	return at;
}

static void entry_free(struct entry *e)
{
	kvcachefs_job_free(e->j);
	free(e);
}

static void over_locked(struct kvcachefs_queue *q, struct entry *e)
{
	uint64_t one = 1;

	e->state = OVER;
	if (!q->over.head && write(q->fd, &one, sizeof one) < 0)
		abort(); /* of a counter that is 0 it cannot fail */
	list_add(&q->over, e);
	pthread_cond_broadcast(&q->moved);
}

/* ---- What a running job asks and tells ---- */

static bool cancelled(void *arg)
{
	struct entry *e = arg;
	bool is;

	pthread_mutex_lock(&e->q->lock);
	is = e->cancelled;
	pthread_mutex_unlock(&e->q->lock);
	return is;
}

static bool commit(void *arg)
{
	struct entry *e = arg;
	bool may;

	pthread_mutex_lock(&e->q->lock);
	may = e->committed = !e->cancelled;
	pthread_mutex_unlock(&e->q->lock);
	return may;
}

static void tell_locked(void *arg, struct kvcachefs_step *s, enum kvcachefs_step_state state,
			void *mark, int err)
{
	struct entry *e = arg;

	s->state = state;
	s->mark = mark;
	s->err = err;
	pthread_cond_broadcast(&e->q->moved);
}

static void tell(void *arg, struct kvcachefs_step *s, enum kvcachefs_step_state state, void *mark,
		 int err)
{
	struct entry *e = arg;

	pthread_mutex_lock(&e->q->lock);
	tell_locked(arg, s, state, mark, err);
	pthread_mutex_unlock(&e->q->lock);
}

/* ---- Threads ---- */

struct own { /* a thread's stream */
	void *stream;
	int device;
};

static int stream_for(struct own *o, int device)
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

static void *work(void *arg)
{
	struct kvcachefs_queue *q = arg;
	struct own o = { NULL, -1 };
	struct entry *e;

	pthread_mutex_lock(&q->lock);
	for (;;) {
		while (!q->stopping && !q->waiting.head)
			pthread_cond_wait(&q->work, &q->lock);
		e = list_take(&q->waiting);
		if (!e)
			break;
		struct kvcachefs_job_watch w = { e, cancelled, commit, tell };

		e->state = RUNNING;
		pthread_mutex_unlock(&q->lock);
		int err = stream_for(&o, e->j->p->device);

		if (err)
			kvcachefs_job_drop(e->j, err, &w);
		else
			kvcachefs_job_run(e->j, q->mount, o.stream, &w);
		pthread_mutex_lock(&q->lock);
		e->committed = true;
		over_locked(q, e);
	}
	pthread_mutex_unlock(&q->lock);
	if (o.stream)
		kvcachefs_cuda_stream_free(o.device, o.stream);
	return NULL;
}

static int start(struct kvcachefs_queue *q, unsigned threads)
{
	sigset_t all, old;
	int err = 0;

	sigfillset(&all); /* signals are the program's, and its own threads' */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (q->nthreads < threads && !err) {
		err = pthread_create(&q->threads[q->nthreads], NULL, work, q);
		q->nthreads += !err;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return err ? kvcachefs_fail(-err, "no thread for the queue: %s", strerror(err)) : 0;
}

int kvcachefs_queue_new(struct kvcachefs_queue **out, const char *mount, unsigned threads)
{
	struct kvcachefs_queue *q;
	int err;

	if (threads > THREADS_MOST)
		return kvcachefs_fail(-EINVAL, "a queue has at most %d threads", THREADS_MOST);
	q = calloc(1, sizeof *q);
	if (!q)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->work, NULL);
	pthread_cond_init(&q->moved, NULL);
	q->waiting.tail = &q->waiting.head;
	q->over.tail = &q->over.head;
	q->mount = strdup(mount);
	q->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (q->fd < 0)
		err = kvcachefs_fail(-errno, "no eventfd for the queue: %s", strerror(errno));
	else
		err = q->mount ? start(q, threads ?: THREADS)
			       : kvcachefs_fail(-ENOMEM, "out of memory");
	if (err) {
		kvcachefs_queue_free(q);
		return err;
	}
	*out = q;
	return 0;
}

/* A job that nobody has begun. */
static void drop_locked(struct kvcachefs_queue *q, struct entry *e)
{
	struct kvcachefs_job_watch w = { e, cancelled, commit, tell_locked };

	e->cancelled = true;
	list_remove(&q->waiting, e);
	kvcachefs_job_drop(e->j, -ECANCELED, &w);
	over_locked(q, e);
}

void kvcachefs_queue_free(struct kvcachefs_queue *q)
{
	if (!q)
		return;
	pthread_mutex_lock(&q->lock);
	q->stopping = true;
	while (q->waiting.head)
		drop_locked(q, q->waiting.head);
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct entry *e = q->table[i]; e; e = e->in_slot)
			e->cancelled |= !e->committed;
	pthread_cond_broadcast(&q->work);
	pthread_mutex_unlock(&q->lock);
	for (unsigned i = 0; i < q->nthreads; i++)
		pthread_join(q->threads[i], NULL);
	for (struct entry *e; (e = list_take(&q->over));)
		entry_free(e);
	if (q->fd >= 0)
		close(q->fd);
	pthread_cond_destroy(&q->moved);
	pthread_cond_destroy(&q->work);
	pthread_mutex_destroy(&q->lock);
	free(q->mount);
	free(q);
}

int kvcachefs_queue_fd(const struct kvcachefs_queue *q)
{
	return q ? q->fd : -1;
}

/* ---- Submitting and taking ---- */

static int submit(struct kvcachefs_queue *q, bool store, const struct kvcachefs_paged *p,
		  struct kvcachefs_item *items, size_t n, void *stream, uint64_t tag, uint64_t *id)
{
	struct entry *e = calloc(1, sizeof *e), **slot;
	int err = e ? 0 : kvcachefs_fail(-ENOMEM, "out of memory");

	pthread_mutex_lock(&q->lock);
	if (!err && q->n >= KVCACHEFS_QUEUE_MOST)
		err = kvcachefs_fail(-EAGAIN, "the queue has %d transfers that were not taken",
				     KVCACHEFS_QUEUE_MOST);
	q->n += !err;
	pthread_mutex_unlock(&q->lock);
	if (err) {
		free(e);
		return err;
	}
	err = kvcachefs_job_new(&e->j, store, p, items, n, stream);
	pthread_mutex_lock(&q->lock);
	if (err) {
		q->n--;
	} else {
		e->q = q;
		e->tag = tag;
		*id = e->id = ++q->last;
		slot = slot_of(q, e->id);
		*slot = e;
		list_add(&q->waiting, e);
		pthread_cond_signal(&q->work);
	}
	pthread_mutex_unlock(&q->lock);
	if (err)
		free(e);
	return err;
}

int kvcachefs_submit_store(struct kvcachefs_queue *q, const struct kvcachefs_paged *p,
			   struct kvcachefs_item *items, size_t n, void *stream, uint64_t tag,
			   uint64_t *id)
{
	return submit(q, true, p, items, n, stream, tag, id);
}

int kvcachefs_submit_load(struct kvcachefs_queue *q, const struct kvcachefs_paged *p,
			  struct kvcachefs_item *items, size_t n, void *stream, uint64_t tag,
			  uint64_t *id)
{
	return submit(q, false, p, items, n, stream, tag, id);
}

size_t kvcachefs_take(struct kvcachefs_queue *q, struct kvcachefs_completion *v, size_t room)
{
	struct entry *done = NULL, *e;
	uint64_t count;
	size_t n = 0;

	pthread_mutex_lock(&q->lock);
	for (; n < room && (e = list_take(&q->over)); n++) {
		v[n] = (struct kvcachefs_completion){ e->tag, e->id, e->j->err, e->j->failed, "" };
		memcpy(v[n].error, e->j->error, sizeof v[n].error);
		q->past[e->id % PAST].id = e->id;
		q->past[e->id % PAST].err = e->j->err;
		*slot_of(q, e->id) = e->in_slot;
		q->n--;
		e->taken = true;
		if (!e->users) {
			e->next = done;
			done = e;
		}
	}
	if (n && !q->over.head && read(q->fd, &count, sizeof count) < 0)
		abort(); /* it was written when the first came */
	pthread_mutex_unlock(&q->lock);
	while ((e = done)) {
		done = e->next;
		entry_free(e);
	}
	return n;
}

int kvcachefs_cancel(struct kvcachefs_queue *q, uint64_t id)
{
	struct entry *e;
	int err = 0;

	pthread_mutex_lock(&q->lock);
	e = *slot_of(q, id);
	if (!e)
		err = kvcachefs_fail(-ENOENT, "there is no transfer %llu in the queue",
				     (unsigned long long)id);
	else if (e->state == WAITING)
		drop_locked(q, e);
	else if (!e->cancelled && (e->committed || e->state == OVER))
		err = kvcachefs_fail(-EALREADY, "transfer %llu is ending or has ended",
				     (unsigned long long)id);
	else
		e->cancelled = true;
	pthread_mutex_unlock(&q->lock);
	return err;
}

/* ---- Layers ---- */

/*
 * Are the steps up to that layer far enough? 0, the first error, or -EAGAIN; *mark is the last
 * step's that has one: they are on one stream.
 */
static int look_locked(const struct entry *e, uint32_t layer, void **mark)
{
	const struct kvcachefs_job *j = e->j;
	int err = 0;

	*mark = NULL;
	for (size_t k = 0; k < j->nsteps && j->steps[k].layer <= layer; k++) {
		const struct kvcachefs_step *s = &j->steps[k];

		if (s->state == KVCACHEFS_STEP_WAITS)
			return -EAGAIN;
		err = err ?: s->err;
		*mark = s->mark ?: *mark;
	}
	return err;
}

static int layer(struct kvcachefs_queue *q, uint64_t id, uint32_t n, void *stream, bool waits)
{
	struct entry *e;
	void *mark = NULL;
	int err, after = 0;
	bool last;

	pthread_mutex_lock(&q->lock);
	e = *slot_of(q, id);
	if (!e) {
		bool known = id && q->past[id % PAST].id == id;

		err = known ? q->past[id % PAST].err : -ENOENT;
		pthread_mutex_unlock(&q->lock);
		return known && !err ? 0
		       : known       ? kvcachefs_fail(err, "transfer %llu had failed",
						      (unsigned long long)id)
				     : kvcachefs_fail(err, "there is no transfer %llu in the queue",
						      (unsigned long long)id);
	}
	e->users++;
	while ((err = look_locked(e, n, &mark)) == -EAGAIN && waits)
		pthread_cond_wait(&q->moved, &q->lock);
	pthread_mutex_unlock(&q->lock);
	if (mark && err != -EAGAIN)
		after = kvcachefs_cuda_after(e->j->p->device, stream, mark);
	if (err)
		kvcachefs_fail(err,
			       err == -EAGAIN ? "layer %u of transfer %llu is not done yet"
					      : "layer %u of transfer %llu, or one before it, "
						"failed",
			       n, (unsigned long long)id);
	pthread_mutex_lock(&q->lock);
	last = !--e->users && e->taken;
	pthread_mutex_unlock(&q->lock);
	if (last)
		entry_free(e);
	return err ?: after;
}

int kvcachefs_layer_wait(struct kvcachefs_queue *q, uint64_t id, uint32_t n, void *stream)
{
	return layer(q, id, n, stream, true);
}

int kvcachefs_layer_poll(struct kvcachefs_queue *q, uint64_t id, uint32_t n, void *stream)
{
	return layer(q, id, n, stream, false);
}
