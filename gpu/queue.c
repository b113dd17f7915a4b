/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue for one mount. An entry is a transfer (job.h) or a lease (ask.h). Its states are
 *
 *   waiting -> running -> over -> taken     cancelled while it waits: waiting -> over
 *
 * One lock guards the lists, the states of entries and steps, and the counter of the eventfd;
 * neither the mount nor a device is called while holding it. Each thread takes the oldest waiting
 * transfer, runs one at a time, and has a stream on the device of its last one. All entries that
 * are not taken are in a table by number. The results of the entries taken last are remembered, so
 * a thread that waits for a layer may arrive after the transfer was taken.
 *
 * The eventfd is written when the list of finished entries gets its first entry, and read when its
 * last entry is taken, both under the lock. So it is readable exactly while there are finished
 * entries.
 */
#include "queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define THREADS 4

static void list_remove(struct kvcachefs_list *l, struct kvcachefs_entry *e)
{
	struct kvcachefs_entry **at = &l->head;

	while (*at != e)
		at = &(*at)->next;
	*at = e->next;
	if (!*at)
		l->tail = at;
}

static struct kvcachefs_entry **slot_of(struct kvcachefs_queue *q, uint64_t id)
{
	struct kvcachefs_entry **at = &q->table[id % QUEUE_BUCKETS];

	while (*at && (*at)->id != id)
		at = &(*at)->in_slot;
	return at;
}

static void entry_free(struct kvcachefs_entry *e)
{
	if (e->j)
		kvcachefs_job_free(e->j);
	kvcachefs_ask_free(e->a);
	free(e);
}

int kvcachefs_queue_new(struct kvcachefs_queue **out, const char *mount, unsigned threads)
{
	struct kvcachefs_queue *q;
	int err;

	if (threads > QUEUE_THREADS_MOST)
		return kvcachefs_fail(-EINVAL, "a queue has at most %d threads",
				      QUEUE_THREADS_MOST);
	q = calloc(1, sizeof *q);
	if (!q)
		return kvcachefs_fail(-ENOMEM, "out of memory");
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->work, NULL);
	pthread_cond_init(&q->moved, NULL);
	pthread_cond_init(&q->asked, NULL);
	q->waiting.tail = &q->waiting.head;
	q->over.tail = &q->over.head;
	q->asks.tail = &q->asks.head;
	q->slow.tail = &q->slow.head;
	q->mount = strdup(mount);
	q->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (q->fd < 0)
		err = kvcachefs_fail(-errno, "cannot create an eventfd for the queue: %s",
				     strerror(errno));
	else
		err = q->mount ? kvcachefs_workers_start(q, threads ?: THREADS)
			       : kvcachefs_fail(-ENOMEM, "out of memory");
	if (err) {
		kvcachefs_queue_free(q);
		return err;
	}
	*out = q;
	return 0;
}

void kvcachefs_queue_free(struct kvcachefs_queue *q)
{
	if (!q)
		return;
	pthread_mutex_lock(&q->lock);
	q->stopping = true;
	while (q->waiting.head)
		kvcachefs_drop_locked(q, kvcachefs_list_take(&q->waiting));
	while (q->asks.head)
		kvcachefs_drop_locked(q, kvcachefs_list_take(&q->asks));
	while (q->slow.head)
		kvcachefs_drop_locked(q, kvcachefs_list_take(&q->slow));
	for (size_t i = 0; i < QUEUE_BUCKETS; i++)
		for (struct kvcachefs_entry *e = q->table[i]; e; e = e->in_slot)
			e->cancelled |= !e->committed;
	pthread_cond_broadcast(&q->work);
	pthread_cond_broadcast(&q->asked);
	pthread_mutex_unlock(&q->lock);
	for (unsigned i = 0; i < q->nthreads; i++)
		pthread_join(q->threads[i], NULL);
	for (unsigned i = 0; i < q->naskers; i++)
		pthread_join(q->askers[i], NULL);
	for (struct kvcachefs_entry *e; (e = kvcachefs_list_take(&q->over));)
		entry_free(e);
	if (q->fd >= 0)
		close(q->fd);
	pthread_cond_destroy(&q->asked);
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

/* Returns a new entry that counts in the queue and is not in it yet; NULL: *err is set. */
static struct kvcachefs_entry *entry_new(struct kvcachefs_queue *q, uint64_t tag, int *err)
{
	struct kvcachefs_entry *e = calloc(1, sizeof *e);

	*err = e ? 0 : kvcachefs_fail(-ENOMEM, "out of memory");
	if (*err)
		return NULL;
	e->q = q;
	e->tag = tag;
	e->began_ns = kvcachefs_queue_ns();
	pthread_mutex_lock(&q->lock);
	if (q->n >= KVCACHEFS_QUEUE_MOST)
		*err = kvcachefs_fail(
			-EAGAIN,
			"the queue is full: %d transfers and leases have not been collected",
			KVCACHEFS_QUEUE_MOST);
	q->n += !*err;
	pthread_mutex_unlock(&q->lock);
	if (*err)
		free(e);
	return *err ? NULL : e;
}

/* Puts an entry into the queue and sets its number. */
static void entry_add_locked(struct kvcachefs_queue *q, struct kvcachefs_entry *e,
			     struct kvcachefs_list *list, uint64_t *id)
{
	*id = e->id = ++q->last;
	*slot_of(q, e->id) = e;
	kvcachefs_list_add(list, e);
}

static int submit(struct kvcachefs_queue *q, bool store, const struct kvcachefs_paged *p,
		  struct kvcachefs_item *items, size_t n, void *stream, uint64_t tag, uint64_t *id)
{
	int err;
	struct kvcachefs_entry *e = entry_new(q, tag, &err);

	if (!e)
		return err;
	err = kvcachefs_job_new(&e->j, store, p, items, n, stream);
	pthread_mutex_lock(&q->lock);
	if (err) {
		q->n--;
	} else {
		entry_add_locked(q, e, &q->waiting, id);
		pthread_cond_signal(&q->work);
	}
	pthread_mutex_unlock(&q->lock);
	if (err)
		free(e);
	return err;
}

int kvcachefs_submit_lease(struct kvcachefs_queue *q, const char *const *paths, size_t n,
			   size_t per, bool prefix, uint64_t tag, uint64_t *id)
{
	int err;
	struct kvcachefs_entry *e = entry_new(q, tag, &err);

	if (!e)
		return err;
	err = kvcachefs_ask_new(&e->a, paths, n, per, prefix);
	pthread_mutex_lock(&q->lock);
	err = err ?: kvcachefs_asker_start_locked(q);
	if (err) {
		q->n--;
	} else {
		entry_add_locked(q, e, &q->asks, id);
		pthread_cond_signal(&q->asked);
	}
	pthread_mutex_unlock(&q->lock);
	if (err)
		entry_free(e);
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

/* Fills a completion. The lease becomes the caller's. */
static void complete(struct kvcachefs_completion *v, struct kvcachefs_entry *e)
{
	*v = (struct kvcachefs_completion){ .tag = e->tag, .id = e->id, .ns = e->ns };
	if (e->j) {
		v->err = e->j->err;
		v->failed = e->j->failed;
		v->skipped = e->j->skipped;
		v->bytes = e->j->bytes;
		memcpy(v->error, e->j->error, sizeof v->error);
	} else {
		v->err = e->a->err;
		v->bytes = e->a->bytes;
		v->lease = e->a->lease;
		v->count = e->a->count;
		e->a->lease = NULL;
		memcpy(v->error, e->a->error, sizeof v->error);
	}
}

size_t kvcachefs_take(struct kvcachefs_queue *q, struct kvcachefs_completion *v, size_t capacity)
{
	struct kvcachefs_entry *done = NULL, *e;
	uint64_t count;
	size_t n = 0;

	pthread_mutex_lock(&q->lock);
	for (; n < capacity && (e = kvcachefs_list_take(&q->over)); n++) {
		complete(&v[n], e);
		q->past[e->id % QUEUE_PAST].id = e->id;
		q->past[e->id % QUEUE_PAST].err = v[n].err;
		*slot_of(q, e->id) = e->in_slot;
		q->n--;
		e->taken = true;
		if (!e->users) {
			e->next = done;
			done = e;
		}
	}
	if (n && !q->over.head && read(q->fd, &count, sizeof count) < 0)
		abort(); /* it was written when the first entry was added */
	pthread_mutex_unlock(&q->lock);
	while ((e = done)) {
		done = e->next;
		entry_free(e);
	}
	return n;
}

int kvcachefs_cancel(struct kvcachefs_queue *q, uint64_t id)
{
	struct kvcachefs_entry *e;
	int err = 0;

	pthread_mutex_lock(&q->lock);
	e = *slot_of(q, id);
	if (!e) {
		err = kvcachefs_fail(-ENOENT, "transfer %llu is not in the queue",
				     (unsigned long long)id);
	} else if (e->state == KVCACHEFS_WAITING) {
		list_remove(e->j ? &q->waiting : e->a->slow ? &q->slow : &q->asks, e);
		kvcachefs_drop_locked(q, e);
	} else if (!e->cancelled && (e->committed || e->state == KVCACHEFS_OVER)) {
		err = kvcachefs_fail(-EALREADY, "transfer %llu is ending or has already ended",
				     (unsigned long long)id);
	} else {
		e->cancelled = true;
	}
	pthread_mutex_unlock(&q->lock);
	return err;
}

/* ---- Layers ---- */

/*
 * Checks the steps up to that layer. Returns 0 if they are far enough, the first error, or -EAGAIN.
 * Sets *mark to the mark of the last step that has one; all are on one stream.
 */
static int check_steps_locked(const struct kvcachefs_entry *e, uint32_t layer, void **mark)
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
	struct kvcachefs_entry *e;
	void *mark = NULL;
	int err, after = 0;
	bool last;

	pthread_mutex_lock(&q->lock);
	e = *slot_of(q, id);
	if (!e || !e->j) { /* a lease has no layers */
		bool known = id && q->past[id % QUEUE_PAST].id == id;

		err = known ? q->past[id % QUEUE_PAST].err : -ENOENT;
		pthread_mutex_unlock(&q->lock);
		return known && !err ? 0
		       : known       ? kvcachefs_fail(err, "transfer %llu has failed",
						      (unsigned long long)id)
				     : kvcachefs_fail(err, "transfer %llu is not in the queue",
						      (unsigned long long)id);
	}
	e->users++;
	while ((err = check_steps_locked(e, n, &mark)) == -EAGAIN && waits)
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
