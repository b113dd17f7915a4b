/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See copiers.h. One thread reaches a third to a tenth of the speed of a device's link, so several
 * threads (share.h) take turns of TURN bytes until all is copied.
 */
#include "copiers.h"
#include "share.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define TURN ((size_t)512 << 10)

struct turns {
	const struct kvcachefs_copy *v;
	size_t n;
	pthread_mutex_t lock; /* guards the members below; nothing is copied while holding it */
	size_t i, at;         /* the next turn begins at byte `at` of copy i */
	int err;              /* of the first read that failed, which is copy `bad` */
	size_t bad;
};

/* Makes a part of a copy: `len` bytes from byte `at` on. Returns 0 or a negative errno. */
static int copy_part(const struct kvcachefs_copy *c, size_t at, size_t len)
{
	uint8_t *to = (uint8_t *)c->to + at;

	if (c->from) {
		memcpy(to, (const uint8_t *)c->from + at, len);
		return 0;
	}
	for (size_t done = 0; done < len;) {
		ssize_t n = pread(c->fd, to + done, len - done, (off_t)(c->offset + at + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EIO;
		done += (size_t)n;
	}
	return 0;
}

/*
 * Copies one turn from *i and *at on, or only advances them. Returns 0, or the error of copy *i.
 */
static int turn(const struct turns *t, size_t *i, size_t *at, bool copies)
{
	for (size_t left = TURN; left && *i < t->n;) {
		const struct kvcachefs_copy *c = &t->v[*i];
		size_t len = c->len - *at < left ? c->len - *at : left;

		int err = copies ? copy_part(c, *at, len) : 0;

		if (err)
			return err;
		left -= len;
		*at += len;
		if (*at == c->len) {
			++*i;
			*at = 0;
		}
	}
	return 0;
}

static void copy_turn(void *arg, size_t number)
{
	struct turns *t = arg;
	size_t i, at;
	int err;

	(void)number; /* each call takes the next turn */
	pthread_mutex_lock(&t->lock);
	i = t->i;
	at = t->at;
	turn(t, &t->i, &t->at, false);
	pthread_mutex_unlock(&t->lock);
	err = turn(t, &i, &at, true);
	if (!err)
		return;
	pthread_mutex_lock(&t->lock);
	if (!t->err) {
		t->err = err;
		t->bad = i;
	}
	pthread_mutex_unlock(&t->lock);
}

int kvcachefs_copy_all(const struct kvcachefs_copy *v, size_t n, size_t *bad)
{
	struct turns t = { .v = v, .n = n, .lock = PTHREAD_MUTEX_INITIALIZER };
	size_t bytes = 0;

	for (size_t i = 0; i < n; i++)
		bytes += v[i].len;
	kvcachefs_share(&kvcachefs_copiers, (bytes + TURN - 1) / TURN, true, copy_turn, &t);
	pthread_mutex_destroy(&t.lock);
	if (t.err)
		*bad = t.bad;
	return t.err;
}
