/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that makes files ready and lets go of them (ready.c says of which, and when), and the
 * bounds. It begins with the first class and ends with the process; in the child of a fork there is
 * none, and nothing is ready.
 */
#include "maps.h"
#include "ready_priv.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define FILES_MOST 128
#define LOOK_MS 500
#define END_MS 2000 /* a mount that hangs is left alone at the process's end */

struct kvcachefs_readiness kvcachefs_ready = {
	.idle_ms = 5000,
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.more = PTHREAD_COND_INITIALIZER,
	.made = PTHREAD_COND_INITIALIZER,
};
static struct kvcachefs_readiness *const r = &kvcachefs_ready;
static bool helped, stopping; /* the thread: is there, is to end */

/* ---- Bounds ---- */

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

/* ---- Letting go ---- */

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
	pthread_cond_broadcast(&r->made); /* who waits for what is made is told that none will be */
	for (struct kvcachefs_class *c = r->classes; c; c = c->next)
		if (c->place == p)
			drop_locked(c, 0, gone);
}

/*
 * What is idle, over the bounds or not wanted any more; r->classes that nobody uses any more are
 * freed.
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

/* Comes back with the lock. Who trims waits until it is over. */
static void let_go(struct kvcachefs_map *gone)
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

/* Makes one; comes back with the lock. */
static void make(struct kvcachefs_class *c)
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
		/* the bounds may be others now */
		kvcachefs_ready_trim_locked(kvcachefs_now_ms(), &gone);
	}
	let_go(gone);
	r->making--;
	pthread_cond_broadcast(&r->made);
}

/* Has anybody waited for room? Comes back with the lock. */
static void look(struct kvcachefs_place *p, uint64_t now)
{
	struct kvcachefs_map *gone = NULL;
	uint64_t waits, spare, last_ms = p->looked_ms;
	bool known;

	p->looked_ms = now;
	p->busy = true;
	pthread_mutex_unlock(&r->lock);
	known = kvcachefs_prepare_look(p->path, &waits, &spare);
	pthread_mutex_lock(&r->lock);
	/* a mount that does not answer any more gives no room either */
	if (p->waits && (!known || (waits + 1 != p->waits && now - last_ms < 4ull * LOOK_MS)))
		kvcachefs_ready_short_locked(p, now, &gone);
	p->waits = known ? waits + 1 : 0;
	p->busy = false;
	let_go(gone);
}

static struct kvcachefs_place *unlooked_locked(uint64_t now)
{
	for (const struct kvcachefs_class *c = r->classes; c; c = c->next)
		if (c->nready && now - c->place->looked_ms >= LOOK_MS)
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

/* How much of it may be ready. Comes back with the lock. */
static void ask(struct kvcachefs_place *p)
{
	p->asked = p->busy = true;
	r->making++; /* who waits for what is made has the bound then */
	pthread_mutex_unlock(&r->lock);
	kvcachefs_maps_bound(p->path, p->dev);
	pthread_mutex_lock(&r->lock);
	p->busy = false;
	r->making--;
	pthread_cond_broadcast(&r->made);
}

static void rest_locked(void)
{
	if (r->classes)
		kvcachefs_wait_ms(&r->more, &r->lock,
				  (LOOK_MS < r->idle_ms ? LOOK_MS : r->idle_ms) + 1);
	else
		pthread_cond_wait(&r->more, &r->lock);
}

static void *work(void *arg)
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
			let_go(gone);
		} else if ((p = unasked_locked())) {
			ask(p);
		} else if ((p = unlooked_locked(now))) {
			look(p, now);
		} else if ((c = next_locked(now))) {
			make(c);
		} else {
			rest_locked();
		}
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

/* At the process's end a device is not called behind its back. */
static void stop(void)
{
	uint64_t until = kvcachefs_now_ms() + END_MS, now;

	pthread_mutex_lock(&r->lock);
	stopping = true;
	pthread_cond_signal(&r->more);
	while (r->making && (now = kvcachefs_now_ms()) < until)
		kvcachefs_wait_ms(&r->made, &r->lock, until - now);
	pthread_mutex_unlock(&r->lock);
}

static void before_fork(void)
{
	pthread_mutex_lock(&r->lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&r->lock);
}

/* A child's copy of a descriptor would keep the file open: unpublished, or alive. */
static void in_child(void)
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
	after_fork();
}

static void once(void)
{
	atexit(stop);
	pthread_atfork(before_fork, after_fork, in_child);
}

bool kvcachefs_refill_locked(void)
{
	static pthread_once_t at_first = PTHREAD_ONCE_INIT;
	sigset_t all, old;
	pthread_t thread;

	if (helped || stopping)
		return helped;
	pthread_once(&at_first, once);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	helped = !pthread_create(&thread, NULL, work, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (helped)
		pthread_detach(thread);
	return helped;
}
