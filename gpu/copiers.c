/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See copiers.h. One thread reaches a third to a tenth of the speed of a device's link, so several
 * threads (share.h) take turns of TURN bytes until all is copied.
 */
#include "copiers.h"
#include "share.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#define TURN ((size_t)512 << 10)

struct turns {
	const struct kvcachefs_copy *v;
	size_t n;
	pthread_mutex_t lock; /* guards the next two; nothing is copied while holding it */
	size_t i, at;         /* the next turn begins at byte `at` of copy i */
};

/* Copies one turn from *i and *at on, or only advances them. */
static void turn(const struct turns *t, size_t *i, size_t *at, bool copies)
{
	for (size_t left = TURN; left && *i < t->n;) {
		const struct kvcachefs_copy *c = &t->v[*i];
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

static void copy_turn(void *arg, size_t number)
{
	struct turns *t = arg;
	size_t i, at;

	(void)number; /* each call takes the next turn */
	pthread_mutex_lock(&t->lock);
	i = t->i;
	at = t->at;
	turn(t, &t->i, &t->at, false);
	pthread_mutex_unlock(&t->lock);
	turn(t, &i, &at, true);
}

void kvcachefs_copy_all(const struct kvcachefs_copy *v, size_t n)
{
	struct turns t = { .v = v, .n = n, .lock = PTHREAD_MUTEX_INITIALIZER };
	size_t bytes = 0;

	for (size_t i = 0; i < n; i++)
		bytes += v[i].len;
	kvcachefs_share(&kvcachefs_copiers, (bytes + TURN - 1) / TURN, true, copy_turn, &t);
	pthread_mutex_destroy(&t.lock);
}
