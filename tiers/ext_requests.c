/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the program of an ext tier; see ext_requests.h.
 *
 * The arena is a memfd with a slot for each request, of KVCTIER_VALUE_MAX bytes. It cannot shrink,
 * so reading it never raises SIGBUS. Each start of the program gets a new arena, because a process
 * that the program left behind may still write to the old one.
 *
 *            a call        sent          an answer
 *   FREE ----------> FILL -----> SENT --------------> DONE ---> FREE (data copied out)
 *                                 | deadline
 *                                 v      an answer, or the program has ended
 *                                LATE ------------------------------------------> FREE
 *
 * A slot in FILL, SENT or DONE has a thread in kvct_requests_ask; `users` counts these slots, and
 * the arena is unmapped when there are none. A LATE slot has no thread, and the program may still
 * write to it; so it is not used again. If a request stays unanswered for HANG deadlines, the
 * program is killed.
 *
 * Nothing is sent or copied while the lock is held.
 */
#include "ext_requests.h"

#include "util.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define HANG 10
#define WAIT_NS 500000000ull /* a call waits for a start within this time */
#define USED_NS 5000000000ull

void kvct_requests_init(struct kvct_requests *r, unsigned nslots, uint64_t deadline_ms)
{
	pthread_condattr_t attr;

	r->nslots = nslots;
	r->deadline_ms = deadline_ms;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->change, &attr);
	for (unsigned i = 0; i < KVCT_LINK_SLOTS; i++)
		pthread_cond_init(&r->slot[i].done, &attr);
	pthread_condattr_destroy(&attr);
}

void kvct_requests_fini(struct kvct_requests *r)
{
	for (unsigned i = 0; i < KVCT_LINK_SLOTS; i++)
		pthread_cond_destroy(&r->slot[i].done);
	pthread_cond_destroy(&r->change);
	pthread_mutex_destroy(&r->lock);
}

static bool is_busy(const struct kvct_slot *s)
{
	return s->is == KVCT_SLOT_FILL || s->is == KVCT_SLOT_SENT || s->is == KVCT_SLOT_DONE;
}

static void free_slot_locked(struct kvct_requests *r, struct kvct_slot *s)
{
	r->users -= is_busy(s);
	s->is = KVCT_SLOT_FREE;
	pthread_cond_broadcast(&r->change);
}

void kvct_requests_wait_locked(struct kvct_requests *r, uint64_t until_ns)
{
	struct timespec ts = kvc_timespec(until_ns);

	pthread_cond_timedwait(&r->change, &r->lock, &ts);
}

/* Waits until the program is ready. Returns 0, -ETIMEDOUT or -ECONNREFUSED. */
static int wait_up_locked(struct kvct_requests *r, uint64_t until_ns)
{
	while (!r->up) {
		uint64_t now = kvc_mono_ns();

		if (r->stopping || r->retry_ns > now + WAIT_NS)
			return -ECONNREFUSED;
		if (now >= until_ns)
			return -ETIMEDOUT;
		r->wanted = true;
		pthread_cond_broadcast(&r->change);
		kvct_requests_wait_locked(r, until_ns);
	}
	return 0;
}

/*
 * Must the request wait for another request for the same key? The program may handle requests in
 * any order, so it gets a request that changes a value only after all other requests for the key
 * have ended, and a get only after all changes. A LATE get is not waited for. Sets *late if the
 * request must wait for a LATE change.
 */
static bool conflicts_locked(const struct kvct_requests *r, const struct kvctier_request *q,
			     bool *late)
{
	bool found = false;

	*late = false;
	for (unsigned i = 0; i < r->nslots && q->op != KVCTIER_LIST; i++) {
		const struct kvct_slot *s = &r->slot[i];

		if (s->is == KVCT_SLOT_FREE || s->is == KVCT_SLOT_DONE ||
		    (s->request.op == KVCTIER_GET && q->op == KVCTIER_GET) ||
		    s->request.op == KVCTIER_LIST || memcmp(s->request.key, q->key, 16) != 0)
			continue;
		/* a late get changes nothing */
		found |= s->is != KVCT_SLOT_LATE || s->request.op != KVCTIER_GET;
		*late |= s->is == KVCT_SLOT_LATE && s->request.op != KVCTIER_GET;
	}
	return found;
}

/* Takes a free slot for the request. Returns 0, -ETIMEDOUT, or as wait_up_locked. */
static int take_slot_locked(struct kvct_requests *r, struct kvct_link_call *c,
			    struct kvct_slot **out)
{
	for (;;) {
		struct kvct_slot *found = NULL;
		unsigned late = 0;
		bool late_key;
		int err = wait_up_locked(r, c->until_ns);

		if (err)
			return err;
		for (unsigned i = 0; i < r->nslots; i++) {
			late += r->slot[i].is == KVCT_SLOT_LATE;
			if (r->slot[i].is == KVCT_SLOT_FREE)
				found = &r->slot[i];
		}
		if (!conflicts_locked(r, &c->request, &late_key) && found) {
			*out = found;
			break;
		}
		if (late == r->nslots || late_key || kvc_mono_ns() >= c->until_ns)
			return -ETIMEDOUT;
		kvct_requests_wait_locked(r, c->until_ns);
	}
	(*out)->is = KVCT_SLOT_FILL;
	(*out)->request = c->request;
	(*out)->request.tag = ++r->tag;
	(*out)->request.arena = (uint64_t)(*out - r->slot) * KVCTIER_VALUE_MAX;
	(*out)->request.room = KVCTIER_VALUE_MAX;
	r->users++;
	return 0;
}

/* Sends the request of the slot, and waits for the answer. The slot is then DONE, or LATE. */
static int exchange_slot(struct kvct_requests *r, struct kvct_slot *s, uint64_t until_ns)
{
	struct timespec until = kvc_timespec(until_ns);
	uint64_t now = kvc_mono_ns();
	struct kvctier_request q;
	bool up;
	int err = 0;

	pthread_mutex_lock(&r->lock);
	up = r->up;
	s->request.deadline_ms = now < until_ns ? (until_ns - now) / 1000000 + 1 : 1;
	q = s->request;
	s->is = up ? KVCT_SLOT_SENT : KVCT_SLOT_DONE;
	s->err = -ECONNRESET;
	pthread_mutex_unlock(&r->lock);
	/*
	 * The socket stays open while there are users, and has space for the requests of all
	 * slots. If send() fails nevertheless, the wait below ends when the program ends, or at
	 * the deadline.
	 */
	if (up)
		(void)!send(r->sock, &q, sizeof q, MSG_NOSIGNAL | MSG_DONTWAIT);
	pthread_mutex_lock(&r->lock);
	while (s->is == KVCT_SLOT_SENT && !err)
		err = -pthread_cond_timedwait(&s->done, &r->lock, &until);
	if (s->is == KVCT_SLOT_SENT) {
		s->is = KVCT_SLOT_LATE;
		s->late_ns = kvc_mono_ns();
		r->users--;
		pthread_cond_broadcast(&r->change);
		err = -ETIMEDOUT;
	} else {
		err = s->err;
	}
	pthread_mutex_unlock(&r->lock);
	return err;
}

/* Returns the error of tier.h for a result of the program, which may be any number. */
static int program_error(int64_t result)
{
	switch (result) {
	case 0:
	case -ENOENT:
	case -EBADMSG:
	case -EFBIG:
	case -EACCES:
	case -EROFS:
	case -ENOSPC:
	case -EDQUOT:
	case -EBUSY:
	case -ECONNREFUSED:
	case -EHOSTUNREACH:
	case -ENETUNREACH:
	case -EHOSTDOWN:
	case -ENOTCONN:
	case -ETIMEDOUT:
	case -ECONNRESET: return (int)result;
	case -EPERM: return -EACCES;
	default: return -EIO;
	}
}

int kvct_requests_ask(struct kvct_requests *r, struct kvct_link_call *c)
{
	struct kvct_slot *s;
	int err;

	pthread_mutex_lock(&r->lock);
	err = take_slot_locked(r, c, &s);
	pthread_mutex_unlock(&r->lock);
	if (err)
		return err;
	uint8_t *at = r->arena + s->request.arena;

	if (c->data && c->request.length)
		memcpy(at, c->data, c->request.length);
	err = exchange_slot(r, s, c->until_ns);
	if (err == -ETIMEDOUT)
		return err;
	if (!err) {
		c->answer = s->answer;
		err = program_error(s->answer.result);
	}
	if (!err && c->into)
		memcpy(c->into, at, c->answer.length);
	pthread_mutex_lock(&r->lock);
	free_slot_locked(r, s);
	pthread_mutex_unlock(&r->lock);
	return err;
}

static const char *take_answer_locked(struct kvct_requests *r, const struct kvctier_answer *a)
{
	struct kvct_slot *s = NULL;

	if (a->result > 0)
		return "an answer has a positive result";
	if (r->used_tag && a->tag == r->used_tag) {
		r->used_tag = 0;
		/* statistics: the program may report any number, but sums must not overflow */
		r->used = a->result ? 0 : kvc_min(a->length, INT64_MAX / 8);
		r->size = a->result ? 0 : kvc_min(a->next, INT64_MAX / 8);
		return NULL;
	}
	for (unsigned i = 0; i < r->nslots; i++)
		if ((r->slot[i].is == KVCT_SLOT_SENT || r->slot[i].is == KVCT_SLOT_LATE) &&
		    r->slot[i].request.tag == a->tag)
			s = &r->slot[i];
	if (!s)
		return "it answers a request that was not made";
	if (!a->result && a->length > (s->request.op == KVCTIER_GET || s->request.op == KVCTIER_LIST
					       ? s->request.length
					       : 0))
		return "an answer has more bytes than were asked for";
	if (s->is == KVCT_SLOT_LATE) {
		free_slot_locked(r, s);
		return NULL;
	}
	s->answer = *a;
	s->err = 0;
	s->is = KVCT_SLOT_DONE;
	pthread_cond_signal(&s->done);
	pthread_cond_broadcast(&r->change); /* the key is free */
	return NULL;
}

const char *kvct_requests_answer(struct kvct_requests *r, const struct kvctier_answer *a)
{
	const char *why;

	pthread_mutex_lock(&r->lock);
	why = take_answer_locked(r, a);
	pthread_mutex_unlock(&r->lock);
	return why;
}

bool kvct_requests_hang(struct kvct_requests *r)
{
	uint64_t long_ns = HANG * r->deadline_ms * 1000000, now;
	bool hangs;

	pthread_mutex_lock(&r->lock);
	now = kvc_mono_ns();
	hangs = r->used_tag && now - r->used_ns > long_ns;
	for (unsigned i = 0; i < r->nslots; i++)
		hangs |= r->slot[i].is == KVCT_SLOT_LATE && now - r->slot[i].late_ns > long_ns;
	pthread_mutex_unlock(&r->lock);
	return hangs;
}

bool kvct_requests_ask_used(struct kvct_requests *r, struct kvctier_request *q)
{
	uint64_t now;
	bool due;

	pthread_mutex_lock(&r->lock);
	now = kvc_mono_ns();
	due = (r->abilities & KVCTIER_CAN_USED) && !r->used_tag && now - r->used_ns >= USED_NS;
	if (due) {
		*q = (struct kvctier_request){ .op = KVCTIER_USED, .deadline_ms = r->deadline_ms };
		r->used_tag = q->tag = ++r->tag;
		r->used_ns = now;
	}
	pthread_mutex_unlock(&r->lock);
	return due;
}

void kvct_requests_start(struct kvct_requests *r, int sock)
{
	pthread_mutex_lock(&r->lock);
	r->up = true;
	r->sock = sock;
	r->wanted = false;
	r->used_ns = r->used_tag = 0;
	pthread_cond_broadcast(&r->change);
	pthread_mutex_unlock(&r->lock);
}

void kvct_requests_stop(struct kvct_requests *r)
{
	pthread_mutex_lock(&r->lock);
	r->up = r->wanted = false;
	r->used_ns = r->used_tag = 0;
	for (unsigned i = 0; i < r->nslots; i++) {
		struct kvct_slot *s = &r->slot[i];

		if (s->is == KVCT_SLOT_SENT) {
			s->is = KVCT_SLOT_DONE;
			s->err = -ECONNRESET;
			pthread_cond_signal(&s->done);
		} else if (s->is == KVCT_SLOT_LATE) {
			s->is = KVCT_SLOT_FREE;
		}
	}
	pthread_cond_broadcast(&r->change);
	pthread_mutex_unlock(&r->lock);
}

void kvct_requests_drain(struct kvct_requests *r)
{
	pthread_mutex_lock(&r->lock);
	/* threads that still copy; they do not wait for the program */
	while (r->users)
		pthread_cond_wait(&r->change, &r->lock);
	pthread_mutex_unlock(&r->lock);
}

const char *kvct_requests_ready(struct kvctier_ready *m, ssize_t n, char refusal[KVCT_REFUSAL])
{
	*refusal = 0;
	if (n <= 0)
		return "";
	if (n != sizeof *m || memcmp(m->magic, KVCTIER_MAGIC, 8) != 0)
		return "its first message is not struct kvctier_ready";
	m->name[sizeof m->name - 1] = m->text[sizeof m->text - 1] = 0;
	kvc_quote_one_line(m->name);
	kvc_quote_one_line(m->text);
	if (m->version != KVCTIER_VERSION)
		snprintf(refusal, KVCT_REFUSAL, "speaks version %u of kvcachefs-ext(7), not %u",
			 m->version, KVCTIER_VERSION);
	else if (m->result)
		snprintf(refusal, KVCT_REFUSAL, "cannot serve: %s", m->text);
	return *refusal ? refusal : NULL;
}
