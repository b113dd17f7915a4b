/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that prepares files and removes them (ready.c describes which and when), and the
 * limits. It starts with the first class and ends with the process. The child of a fork has no
 * thread and no prepared files.
 */
#include "maps.h"
#include "ready_priv.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define FILES_MOST 128
#define CHECK_MS 500
#define END_MS 2000 /* at the process's end, how long to wait for a mount that hangs */

struct kvcachefs_readiness kvcachefs_ready = {
	.idle_ms = 5000,
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.more = PTHREAD_COND_INITIALIZER,
	.made = PTHREAD_COND_INITIALIZER,
};
static struct kvcachefs_readiness *const r = &kvcachefs_ready;
static bool helped, stopping; /* helped: the thread runs; stopping: it must end */

/* ---- Limits ---- */

bool kvcachefs_ready_fits_locked(size_t len)
{
	struct rlimit limit;
	unsigned most = FILES_MOST;

	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur / 8 < most)
		most = (unsigned)(limit.rlim_cur / 8);
	return r->nready + r->making < most && r->bytes + len <= kvcachefs_maps_bytes() / 2;
}

static unsigned wanted(const struct kvcachefs_class *c)
{
	unsigned n = c->peak > c->before ? c->peak : c->before;

	n = c->taken > 1 ? n : 0;
	return n > c->warmed ? n : c->warmed;
}

static uint64_t kept_ms(const struct kvcachefs_class *c)
{
	return c->keep_ms > r->idle_ms ? c->keep_ms : r->idle_ms;
}

/* ---- Removal ---- */

struct kvcachefs_map *kvcachefs_ready_pop_locked(struct kvcachefs_class *c)
{
	struct kvcachefs_map *m = c->ready;

	if (!m)
		return NULL;
	c->ready = m->next;
	c->nready--;
	r->nready--;
	r->bytes -= m->len;
	return m;
}

static void drop_locked(struct kvcachefs_class *c, unsigned left, struct kvcachefs_map **gone)
{
	for (struct kvcachefs_map *m; c->nready > left && (m = kvcachefs_ready_pop_locked(c));) {
		m->going = *gone;
		*gone = m;
	}
}

void kvcachefs_ready_free(struct kvcachefs_map *gone)
{
	for (struct kvcachefs_map *m = gone; m; m = m->going) {
		close(m->fd);
		m->fd = -1;
	}
	kvcachefs_maps_free(gone);
}

void kvcachefs_ready_short_locked(struct kvcachefs_place *p, uint64_t now,
				  struct kvcachefs_map **gone)
{
	p->short_ms = now + r->idle_ms;
	pthread_cond_broadcast(&r->made); /* waiters learn that no file will be prepared */
	for (struct kvcachefs_class *c = r->classes; c; c = c->next)
		if (c->place == p)
			drop_locked(c, 0, gone);
}

/*
 * Collects files that are idle, above the limits or no longer wanted. Frees classes that are no
 * longer used.
 */
void kvcachefs_ready_trim_locked(uint64_t now, struct kvcachefs_map **gone)
{
	size_t most = kvcachefs_maps_bytes() / 2;

	for (struct kvcachefs_class **at = &r->classes, *c; (c = *at);) {
		bool idle = !c->out && !c->making && now - c->used_ms >= kept_ms(c);

		if (now - c->peak_ms >= r->idle_ms) {
			c->peak_ms = now;
			c->before = c->peak;
			c->peak = c->out;
		}
		drop_locked(c, idle ? 0 : wanted(c), gone);
		while (r->bytes > most && c->nready)
			drop_locked(c, c->nready - 1, gone);
		if (!idle) {
			at = &c->next;
			continue;
		}
		*at = c->next;
		r->nclasses--;
		free(c->folder);
		free(c);
	}
}

/* ---- The thread ---- */

/* Frees the files. Releases the lock and takes it again. kvcachefs_ready_trim waits for the end. */
static void free_files(struct kvcachefs_map *gone)
{
	if (!gone)
		return;
	r->freeing = true;
	pthread_mutex_unlock(&r->lock);
	kvcachefs_ready_free(gone);
	pthread_mutex_lock(&r->lock);
	r->freeing = false;
	pthread_cond_broadcast(&r->made);
}

static struct kvcachefs_class *next_locked(uint64_t now)
{
	for (struct kvcachefs_class *c = r->classes; c; c = c->next)
		if (c->nready + c->making < wanted(c) && now >= c->refused_ms &&
		    now >= c->place->short_ms && kvcachefs_ready_fits_locked(c->w.len))
			return c;
	return NULL;
}

/* Prepares one file. Releases the lock and takes it again. */
static void prepare_one(struct kvcachefs_class *c)
{
	struct kvcachefs_map *m = NULL, *gone = NULL;
	bool makes = c->makes;
	int err;

	c->making++;
	r->making++;
	r->bytes += c->w.len;
	pthread_mutex_unlock(&r->lock);
	err = kvcachefs_prepare(c->folder, &c->w, makes, &c->teaches, &m);
	pthread_mutex_lock(&r->lock);
	c->making--;
	if (err) {
		uint64_t now = kvcachefs_now_ms();

		r->bytes -= c->w.len;
		c->err = err == -EAGAIN ? -ENOENT : err;
		strncpy(c->error, err == -EAGAIN ? "the folder does not exist" : kvcachefs_error(),
			sizeof c->error - 1);
		c->refused_ms = now + r->idle_ms;
		if (err == -ENOSPC || err == -EDQUOT)
			kvcachefs_ready_short_locked(c->place, now, &gone);
	} else {
		m->next = c->ready;
		c->ready = m;
		c->nready++;
		r->nready++;
		c->err = 0;
		/* the limits may have changed */
		kvcachefs_ready_trim_locked(kvcachefs_now_ms(), &gone);
	}
	free_files(gone);
	r->making--;
	pthread_cond_broadcast(&r->made);
}

/* Checks whether a call has waited for space. Releases the lock and takes it again. */
static void check_place(struct kvcachefs_place *p, uint64_t now)
{
	struct kvcachefs_map *gone = NULL;
	uint64_t waits, spare, last_ms = p->looked_ms;
	bool known;

	p->looked_ms = now;
	p->busy = true;
	pthread_mutex_unlock(&r->lock);
	known = kvcachefs_prepare_look(p->path, &waits, &spare);
	pthread_mutex_lock(&r->lock);
	/* a mount that does not answer counts as short of space */
	if (p->waits && (!known || (waits + 1 != p->waits && now - last_ms < 4ull * CHECK_MS)))
		kvcachefs_ready_short_locked(p, now, &gone);
	p->waits = known ? waits + 1 : 0;
	p->busy = false;
	free_files(gone);
}

static struct kvcachefs_place *unlooked_locked(uint64_t now)
{
	for (const struct kvcachefs_class *c = r->classes; c; c = c->next)
		if (c->nready && now - c->place->looked_ms >= CHECK_MS)
			return c->place;
	return NULL;
}

static struct kvcachefs_place *unasked_locked(void)
{
	for (const struct kvcachefs_class *c = r->classes; c; c = c->next)
		if (!c->place->asked)
			return c->place;
	return NULL;
}

/* Asks how much of the pool may be prepared. Releases the lock and takes it again. */
static void ask_bound(struct kvcachefs_place *p)
{
	p->asked = p->busy = true;
	r->making++; /* kvcachefs_ready_warm waits until the limit is known */
	pthread_mutex_unlock(&r->lock);
	kvcachefs_maps_bound(p->path, p->dev);
	pthread_mutex_lock(&r->lock);
	p->busy = false;
	r->making--;
	pthread_cond_broadcast(&r->made);
}

static void refill_rest_locked(void)
{
	if (r->classes)
		kvcachefs_wait_ms(&r->more, &r->lock,
				  (CHECK_MS < r->idle_ms ? CHECK_MS : r->idle_ms) + 1);
	else
		pthread_cond_wait(&r->more, &r->lock);
}

static void *refill_thread(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&r->lock);
	while (!stopping) {
		uint64_t now = kvcachefs_now_ms();
		struct kvcachefs_map *gone = NULL;
		struct kvcachefs_class *c;
		struct kvcachefs_place *p;

		kvcachefs_ready_trim_locked(now, &gone);
		if (gone) {
			free_files(gone);
		} else if ((p = unasked_locked())) {
			ask_bound(p);
		} else if ((p = unlooked_locked(now))) {
			check_place(p, now);
		} else if ((c = next_locked(now))) {
			prepare_one(c);
		} else {
			refill_rest_locked();
		}
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

/* Runs at the process's end, so that no device is called during exit. */
static void refill_stop(void)
{
	uint64_t until = kvcachefs_now_ms() + END_MS, now;

	pthread_mutex_lock(&r->lock);
	stopping = true;
	pthread_cond_signal(&r->more);
	while (r->making && (now = kvcachefs_now_ms()) < until)
		kvcachefs_wait_ms(&r->made, &r->lock, until - now);
	pthread_mutex_unlock(&r->lock);
}

static void refill_before_fork(void)
{
	pthread_mutex_lock(&r->lock);
}

static void refill_after_fork(void)
{
	pthread_mutex_unlock(&r->lock);
}

/* a child's copy of a descriptor would keep the file open */
static void refill_in_child(void)
{
	for (struct kvcachefs_class *c = r->classes; c; c = c->next)
		for (struct kvcachefs_map *m = c->ready; m; m = m->next)
			close(m->fd);
	r->classes = NULL;
	r->nclasses = r->nready = r->making = 0;
	r->bytes = 0;
	helped = r->freeing = false;
	pthread_cond_init(&r->more, NULL);
	pthread_cond_init(&r->made, NULL);
	refill_after_fork();
}

KVCACHEFS_AT_FORK(refill_before_fork, refill_after_fork, refill_in_child)

static void refill_once(void)
{
	atexit(refill_stop);
}

bool kvcachefs_refill_locked(void)
{
	static pthread_once_t at_first = PTHREAD_ONCE_INIT;
	sigset_t all, old;
	pthread_t thread;

	if (helped || stopping)
		return helped;
	pthread_once(&at_first, refill_once);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	helped = !pthread_create(&thread, NULL, refill_thread, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (helped)
		pthread_detach(thread);
	return helped;
}
