/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See copiers.h. One thread reaches a third to a tenth of the speed of a device's link, so several
 * threads cooperate. A caller opens a batch on its stack. The caller and HELPERS threads, which all
 * batches share, take turns of TURN bytes from it until none is left. The call returns when the
 * helpers with a turn are done.
 *
 * One lock guards the list of open batches and their members; nothing is copied while holding it.
 * The helpers start at the first batch that is large enough, and run until the process ends. They
 * wait for that lock only, and hold nothing when the process ends. Copies work without helpers too.
 */
#include "copiers.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define HELPERS 3
#define TURN ((size_t)512 << 10)

struct batch {
	struct batch *next;
	const struct kvcachefs_copy *v;
	size_t n, i, at; /* the next turn begins at byte `at` of copy i */
	unsigned busy;   /* helpers that have a turn of it */
	pthread_cond_t done;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static struct batch *open; /* batches with turns left */
static bool started;

/* Copies one turn from *i and *at on, or only advances them. */
static void turn(const struct batch *b, size_t *i, size_t *at, bool copies)
{
	for (size_t left = TURN; left && *i < b->n;) {
		const struct kvcachefs_copy *c = &b->v[*i];
		size_t len = c->len - *at < left ? c->len - *at : left;

		if (copies)
			memcpy((uint8_t *)c->to + *at, (const uint8_t *)c->from + *at, len);
		left -= len;
		*at += len;
		if (*at == c->len) {
			++*i;
			*at = 0;
		}
	}
}

static void unlink_locked(struct batch *b)
{
	struct batch **at = &open;

	while (*at && *at != b)
		at = &(*at)->next;
	if (*at)
		*at = b->next;
}

/* Takes a turn and copies it. Releases the lock while it copies. */
static void copy_turn_locked(struct batch *b)
{
	size_t i = b->i, at = b->at;

	turn(b, &b->i, &b->at, false);
	if (b->i == b->n)
		unlink_locked(b);
	pthread_mutex_unlock(&lock);
	turn(b, &i, &at, true);
	pthread_mutex_lock(&lock);
}

static void *help(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		struct batch *b = open;

		if (!b) {
			pthread_cond_wait(&work, &lock);
			continue;
		}
		b->busy++;
		copy_turn_locked(b);
		if (!--b->busy)
			pthread_cond_signal(&b->done);
	}
	return NULL;
}

static void start_locked(void)
{
	pthread_attr_t detached;
	sigset_t all, old;
	pthread_t thread;

	if (started)
		return;
	started = true;
	sigfillset(&all); /* signals are for the program and its own threads */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	for (int i = 0; i < HELPERS; i++)
		if (pthread_create(&thread, &detached, help, NULL))
			break;
	pthread_attr_destroy(&detached);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void kvcachefs_copy_all(const struct kvcachefs_copy *v, size_t n)
{
	struct batch b = { .v = v, .n = n, .done = PTHREAD_COND_INITIALIZER };

	pthread_mutex_lock(&lock);
	turn(&b, &b.i, &b.at, false);
	if (b.i < n) { /* more than one turn */
		start_locked();
		b.next = open;
		open = &b;
		pthread_cond_broadcast(&work);
	}
	b.i = b.at = 0;
	while (b.i < n)
		copy_turn_locked(&b);
	while (b.busy)
		pthread_cond_wait(&b.done, &lock);
	pthread_mutex_unlock(&lock);
	pthread_cond_destroy(&b.done);
}
