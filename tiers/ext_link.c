/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the program of an ext tier; see ext_link.h.
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
 * A slot in FILL, SENT or DONE has a thread in kvct_link_ask; `users` counts these slots, and the
 * arena is unmapped when there are none. A LATE slot has no thread, and the program may still
 * write to it; so it is not used again. If a request stays unanswered for HANG deadlines, the
 * program is killed.
 *
 * l->lock guards all members that are not marked. Nothing is sent or copied while it is held.
 */
#include "ext_link.h"

#include "ext_program.h"
#include "log.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define FIRST_NS 2000000000ull /* how long a mount waits for the program to be ready */
#define HANG 10
/* waits before the program is started again; none after it has worked for STEADY_NS */
#define BACKOFF_MIN_NS 100000000ull
#define BACKOFF_MAX_NS 30000000000ull
#define STEADY_NS 10000000000ull
#define WAIT_NS 500000000ull /* a call waits for a start that is so near */
#define USED_NS 5000000000ull
#define TURN_NS 1000000000ull /* between two looks for a program that hangs */
#define LEAVE_MS 5000         /* how long a program may take to end after its socket was closed */

enum slot_is { SLOT_FREE, SLOT_FILL, SLOT_SENT, SLOT_LATE, SLOT_DONE };

struct slot {
	enum slot_is is;
	struct kvctier_request request;
	uint64_t late_ns;             /* LATE: since when */
	int err;                      /* DONE: 0, or -ECONNRESET: the program has ended */
	struct kvctier_answer answer; /* DONE, with err 0 */
	pthread_cond_t done;
};

struct kvct_link {
	/* constant */
	const char *path;
	char *options;
	size_t options_len;
	uint64_t arena_bytes, deadline_ms;
	unsigned nslots;
	int wake; /* an eventfd for the thread */
	pthread_t thread;

	pthread_mutex_t lock;
	pthread_cond_t change; /* `up`, `ended`, a slot is free, `users`, `wanted` */
	bool up;               /* the program is ready */
	bool wanted;           /* a call waits for the program */
	bool stopping;
	bool tried;                    /* the first start has ended, in success or not */
	bool opened;                   /* the mount goes on, so that failures are logged */
	char refusal[320];             /* why the program cannot serve; "": it did not say so */
	uint64_t retry_ns, backoff_ns; /* the next start, and the wait before it */
	int sock;                      /* while up */
	uint8_t *arena;                /* while up, and until `users` is 0 */
	unsigned users;
	uint64_t tag; /* of the last request */
	struct slot slot[KVCT_LINK_SLOTS];
	uint64_t used_tag, used_ns; /* of the last USED: 0 if it is answered; when it was sent */
	unsigned abilities;
	uint64_t used, size;
	char name[40]; /* of the driver */

	struct kvct_program program; /* of the thread */
};

static bool is_busy(const struct slot *s)
{
	return s->is == SLOT_FILL || s->is == SLOT_SENT || s->is == SLOT_DONE;
}

static void free_slot_locked(struct kvct_link *l, struct slot *s)
{
	l->users -= is_busy(s);
	s->is = SLOT_FREE;
	pthread_cond_broadcast(&l->change);
}

/* Waits for a change of the link until the time. The caller holds l->lock. */
static void wait_change_locked(struct kvct_link *l, uint64_t until_ns)
{
	struct timespec ts = kvc_timespec(until_ns);

	pthread_cond_timedwait(&l->change, &l->lock, &ts);
}

/* Waits until the program is ready. Returns 0, -ETIMEDOUT or -ECONNREFUSED. */
static int wait_up_locked(struct kvct_link *l, uint64_t until_ns)
{
	while (!l->up) {
		uint64_t now = kvc_mono_ns();

		if (l->stopping || l->retry_ns > now + WAIT_NS)
			return -ECONNREFUSED;
		if (now >= until_ns)
			return -ETIMEDOUT;
		l->wanted = true;
		pthread_cond_broadcast(&l->change);
		wait_change_locked(l, until_ns);
	}
	return 0;
}

/*
 * Two requests that change a value are never with the program at the same time: it answers in any
 * order. Sets *late if the other one is LATE.
 */
static bool conflicts_locked(const struct kvct_link *l, const struct kvctier_request *q, bool *late)
{
	bool found = false;

	*late = false;
	for (unsigned i = 0; i < l->nslots && q->op != KVCTIER_LIST; i++) {
		const struct slot *s = &l->slot[i];

		if (s->is == SLOT_FREE || s->is == SLOT_DONE ||
		    (s->request.op == KVCTIER_GET && q->op == KVCTIER_GET) ||
		    s->request.op == KVCTIER_LIST || memcmp(s->request.key, q->key, 16) != 0)
			continue;
		/* a late get changes nothing */
		found |= s->is != SLOT_LATE || s->request.op != KVCTIER_GET;
		*late |= s->is == SLOT_LATE && s->request.op != KVCTIER_GET;
	}
	return found;
}

/* Takes a free slot for the request. Returns 0, -ETIMEDOUT, or as wait_up_locked. */
static int take_slot_locked(struct kvct_link *l, struct kvct_link_call *c, struct slot **out)
{
	for (;;) {
		struct slot *found = NULL;
		unsigned late = 0;
		bool late_key;
		int err = wait_up_locked(l, c->until_ns);

		if (err)
			return err;
		for (unsigned i = 0; i < l->nslots; i++) {
			late += l->slot[i].is == SLOT_LATE;
			if (l->slot[i].is == SLOT_FREE)
				found = &l->slot[i];
		}
		if (!conflicts_locked(l, &c->request, &late_key) && found) {
			*out = found;
			break;
		}
		if (late == l->nslots || late_key || kvc_mono_ns() >= c->until_ns)
			return -ETIMEDOUT;
		wait_change_locked(l, c->until_ns);
	}
	(*out)->is = SLOT_FILL;
	(*out)->request = c->request;
	(*out)->request.tag = ++l->tag;
	(*out)->request.arena = (uint64_t)(*out - l->slot) * KVCTIER_VALUE_MAX;
	(*out)->request.room = KVCTIER_VALUE_MAX;
	l->users++;
	return 0;
}

/* Sends the request of the slot, and waits for the answer. The slot is then DONE, or LATE. */
static int link_exchange(struct kvct_link *l, struct slot *s, uint64_t until_ns)
{
	struct timespec until = kvc_timespec(until_ns);
	uint64_t now = kvc_mono_ns();
	struct kvctier_request q;
	bool up;
	int err = 0;

	pthread_mutex_lock(&l->lock);
	up = l->up;
	s->request.deadline_ms = now < until_ns ? (until_ns - now) / 1000000 + 1 : 1;
	q = s->request;
	s->is = up ? SLOT_SENT : SLOT_DONE;
	s->err = -ECONNRESET;
	pthread_mutex_unlock(&l->lock);
	/*
	 * The socket stays open while there are users. It has room for all slots; if not, the
	 * program has ended, or the request is LATE at its deadline.
	 */
	if (up)
		(void)!send(l->sock, &q, sizeof q, MSG_NOSIGNAL | MSG_DONTWAIT);
	pthread_mutex_lock(&l->lock);
	while (s->is == SLOT_SENT && !err)
		err = -pthread_cond_timedwait(&s->done, &l->lock, &until);
	if (s->is == SLOT_SENT) {
		s->is = SLOT_LATE;
		s->late_ns = kvc_mono_ns();
		l->users--;
		pthread_cond_broadcast(&l->change);
		err = -ETIMEDOUT;
	} else {
		err = s->err;
	}
	pthread_mutex_unlock(&l->lock);
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

static int ask_once(struct kvct_link *l, struct kvct_link_call *c)
{
	struct slot *s;
	int err;

	pthread_mutex_lock(&l->lock);
	err = take_slot_locked(l, c, &s);
	pthread_mutex_unlock(&l->lock);
	if (err)
		return err;
	uint8_t *at = l->arena + s->request.arena;

	if (c->data && c->request.length)
		memcpy(at, c->data, c->request.length);
	err = link_exchange(l, s, c->until_ns);
	if (err == -ETIMEDOUT)
		return err;
	if (!err) {
		c->answer = s->answer;
		err = program_error(s->answer.result);
	}
	if (!err && c->into)
		memcpy(c->into, at, c->answer.length);
	pthread_mutex_lock(&l->lock);
	free_slot_locked(l, s);
	pthread_mutex_unlock(&l->lock);
	return err;
}

int kvct_link_ask(struct kvct_link *l, struct kvct_link_call *c)
{
	int err;

	if (c->request.length > KVCTIER_VALUE_MAX)
		return -EFBIG;
	err = ask_once(l, c);
	return err == -ECONNRESET ? ask_once(l, c) : err;
}

unsigned kvct_link_abilities(struct kvct_link *l)
{
	pthread_mutex_lock(&l->lock);
	unsigned abilities = l->abilities;

	pthread_mutex_unlock(&l->lock);
	return abilities;
}

void kvct_link_used(struct kvct_link *l, uint64_t *used, uint64_t *size)
{
	pthread_mutex_lock(&l->lock);
	*used = l->used;
	*size = l->size;
	pthread_mutex_unlock(&l->lock);
}

/* Handles an answer. Returns NULL, or the way in which it breaks the contract. */
static const char *take_answer_locked(struct kvct_link *l, const struct kvctier_answer *a)
{
	struct slot *s = NULL;

	if (a->result > 0)
		return "an answer has a positive result";
	if (l->used_tag && a->tag == l->used_tag) {
		l->used_tag = 0;
		/* figures for people: any program may say anything, and sums of them must fit */
		l->used = a->result ? 0 : kvc_min(a->length, INT64_MAX / 8);
		l->size = a->result ? 0 : kvc_min(a->next, INT64_MAX / 8);
		return NULL;
	}
	for (unsigned i = 0; i < l->nslots; i++)
		if ((l->slot[i].is == SLOT_SENT || l->slot[i].is == SLOT_LATE) &&
		    l->slot[i].request.tag == a->tag)
			s = &l->slot[i];
	if (!s)
		return "it answers no request that was made";
	if (!a->result && a->length > (s->request.op == KVCTIER_GET || s->request.op == KVCTIER_LIST
					       ? s->request.length
					       : 0))
		return "an answer has more bytes than were asked for";
	if (s->is == SLOT_LATE) {
		free_slot_locked(l, s);
		return NULL;
	}
	s->answer = *a;
	s->err = 0;
	s->is = SLOT_DONE;
	pthread_cond_signal(&s->done);
	pthread_cond_broadcast(&l->change); /* the key is free */
	return NULL;
}

/* Receives the answers that have arrived. Returns NULL, or why the program is to end. */
static const char *take_answers(struct kvct_link *l)
{
	for (int i = 0; i < 2 * KVCT_LINK_SLOTS; i++) {
		struct kvctier_answer a;
		ssize_t n = recv(l->program.sock, &a, sizeof a, MSG_DONTWAIT | MSG_TRUNC);
		const char *why;

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return NULL;
		if (n <= 0)
			return ""; /* it has closed the socket, or ended */
		if (n != sizeof a)
			return "a message has another size than an answer";
		pthread_mutex_lock(&l->lock);
		why = take_answer_locked(l, &a);
		pthread_mutex_unlock(&l->lock);
		if (why)
			return why;
	}
	return NULL;
}

/* Makes a new arena. Returns its descriptor, or a negative errno. */
static int arena_make(struct kvct_link *l)
{
	int fd = memfd_create("kvcachefs-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *p;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)l->arena_bytes) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ||
	    (p = mmap(NULL, l->arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) ==
		    MAP_FAILED) {
		int err = -errno;

		close(fd);
		return err;
	}
	pthread_mutex_lock(&l->lock);
	l->arena = p;
	pthread_mutex_unlock(&l->lock);
	return fd;
}

static int send_hello(struct kvct_link *l, int arena)
{
	struct kvctier_hello hello = {
		.magic = KVCTIER_MAGIC,
		.version = KVCTIER_VERSION,
		.options_len = (uint32_t)l->options_len,
		.arena_bytes = l->arena_bytes,
		.value_max = KVCTIER_VALUE_MAX,
		.deadline_ms = l->deadline_ms,
		.slots = l->nslots,
	};
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec iov[2] = { { &hello, sizeof hello }, { l->options, l->options_len } };
	struct msghdr m = {
		.msg_iov = iov,
		.msg_iovlen = 2,
		.msg_control = control.bytes,
		.msg_controllen = sizeof control.bytes,
	};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof arena);
	memcpy(CMSG_DATA(c), &arena, sizeof arena);
	return sendmsg(l->program.sock, &m, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

enum { NEWS_MESSAGE = 1, NEWS_END = 2 };
/*
 * Waits for a message of the program or its end, until the time or until the link is closed, and
 * logs the program's texts. Returns a set of NEWS_*.
 */
static int wait_program(struct kvct_link *l, uint64_t until_ns)
{
	struct pollfd p[4] = {
		{ .fd = l->program.sock, .events = POLLIN },
		{ .fd = l->wake, .events = POLLIN },
		{ .fd = l->program.text, .events = POLLIN },
		{ .fd = l->program.pidfd, .events = POLLIN },
	};
	uint64_t now = kvc_mono_ns(), calm_ns;

	if (kvct_program_floods(&l->program, &calm_ns)) {
		p[2].fd = -1;
		until_ns = kvc_min(until_ns, calm_ns);
	}
	if (poll(p, 4, now < until_ns ? (int)kvc_min((until_ns - now) / 1000000 + 1, 60000) : 0) <
	    0)
		return 0;
	if (p[2].revents && !kvct_program_log(&l->program)) {
		/* it has closed its stdout and stderr, and may go on */
		close(l->program.text);
		l->program.text = -1;
	}
	return (p[0].revents ? NEWS_MESSAGE : 0) | (p[3].revents ? NEWS_END : 0);
}

static bool is_stopping(struct kvct_link *l)
{
	pthread_mutex_lock(&l->lock);
	bool stopping = l->stopping;

	pthread_mutex_unlock(&l->lock);
	return stopping;
}

/* Notes the answer to the hello. Returns NULL, or why the program is to end. */
static const char *take_ready(struct kvct_link *l, struct kvctier_ready *r, ssize_t n)
{
	if (n <= 0)
		return "";
	if (n != sizeof *r || memcmp(r->magic, KVCTIER_MAGIC, 8) != 0)
		return "its first message is not struct kvctier_ready";
	r->name[sizeof r->name - 1] = r->text[sizeof r->text - 1] = 0;
	kvc_quote_one_line(r->name);
	kvc_quote_one_line(r->text);
	pthread_mutex_lock(&l->lock);
	*l->refusal = 0;
	if (r->version != KVCTIER_VERSION)
		snprintf(l->refusal, sizeof l->refusal,
			 "speaks version %u of kvcachefs-ext(7), not %u", r->version,
			 KVCTIER_VERSION);
	else if (r->result)
		snprintf(l->refusal, sizeof l->refusal, "cannot serve: %s", r->text);
	else
		l->abilities = r->abilities;
	memcpy(l->name, r->name, sizeof l->name);
	pthread_mutex_unlock(&l->lock);
	return *l->refusal ? l->refusal : NULL;
}

/* Starts the program and waits until it is ready. Returns NULL, or why it is to end. */
static const char *start_program(struct kvct_link *l, char why[128])
{
	uint64_t until = kvc_mono_ns() + l->deadline_ms * 1000000;
	KVC_FD int arena = -1;
	struct kvctier_ready r = { 0 };
	char error[512];
	int err;

	if (kvct_program_check(l->path, error)) {
		snprintf(why, 128, "%s", "its file or folder may be changed by other users");
		return why;
	}
	arena = arena_make(l);
	err = arena < 0 ? arena : kvct_program_start(&l->program, l->path);
	err = err ?: send_hello(l, arena);
	if (err) {
		snprintf(why, 128, "%s", strerror(-err));
		return why;
	}
	while (!wait_program(l, until))
		if (is_stopping(l) || kvc_mono_ns() >= until)
			return "it was not ready before the deadline";
	return take_ready(l, &r, recv(l->program.sock, &r, sizeof r, MSG_DONTWAIT | MSG_TRUNC));
}

/* Is a request unanswered for so long that the program must be hanging? */
static bool hangs_locked(const struct kvct_link *l, uint64_t now)
{
	uint64_t long_ns = HANG * l->deadline_ms * 1000000;
	bool hangs = l->used_tag && now - l->used_ns > long_ns;

	for (unsigned i = 0; i < l->nslots; i++)
		hangs |= l->slot[i].is == SLOT_LATE && now - l->slot[i].late_ns > long_ns;
	return hangs;
}

/* Asks for the figures of the store from time to time. */
static void ask_used(struct kvct_link *l, uint64_t now)
{
	struct kvctier_request q = { .op = KVCTIER_USED, .deadline_ms = l->deadline_ms };

	pthread_mutex_lock(&l->lock);
	if ((l->abilities & KVCTIER_CAN_USED) && !l->used_tag && now - l->used_ns >= USED_NS) {
		l->used_tag = q.tag = ++l->tag;
		l->used_ns = now;
	}
	pthread_mutex_unlock(&l->lock);
	if (q.tag)
		(void)!send(l->program.sock, &q, sizeof q, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Handles answers until the program ends or must end. Returns the reason; "" if it has ended. */
static const char *serve_link(struct kvct_link *l)
{
	const char *why = NULL;

	while (!why && !is_stopping(l)) {
		uint64_t now = kvc_mono_ns();
		int news;

		ask_used(l, now);
		pthread_mutex_lock(&l->lock);
		if (hangs_locked(l, now))
			why = "a request is unanswered for ten deadlines";
		pthread_mutex_unlock(&l->lock);
		if (why)
			break;
		news = wait_program(l, now + TURN_NS);
		if (news & NEWS_MESSAGE)
			why = take_answers(l);
		if ((news & NEWS_END) && !why)
			why = "";
	}
	return why ?: "";
}

static void link_set_up(struct kvct_link *l, bool up)
{
	pthread_mutex_lock(&l->lock);
	l->up = up;
	l->sock = l->program.sock;
	l->tried = true;
	l->wanted = false;
	l->used_ns = l->used_tag = 0;
	for (unsigned i = 0; i < l->nslots && !up; i++) {
		struct slot *s = &l->slot[i];

		if (s->is == SLOT_SENT) {
			s->is = SLOT_DONE;
			s->err = -ECONNRESET;
			pthread_cond_signal(&s->done);
		} else if (s->is == SLOT_LATE) {
			s->is = SLOT_FREE;
		}
	}
	pthread_cond_broadcast(&l->change);
	/* threads that still copy; they do not wait for the program */
	while (!up && l->users)
		pthread_cond_wait(&l->change, &l->lock);
	pthread_mutex_unlock(&l->lock);
}

/* Decides when the program is started again, and logs its end. */
static void note_end(struct kvct_link *l, const char *why, const char *ended, uint64_t since_ns)
{
	uint64_t now = kvc_mono_ns();
	bool quiet;

	pthread_mutex_lock(&l->lock);
	if (since_ns && now - since_ns >= STEADY_NS)
		l->backoff_ns = 0;
	else
		l->backoff_ns = kvc_max(BACKOFF_MIN_NS, kvc_min(2 * l->backoff_ns, BACKOFF_MAX_NS));
	l->retry_ns = now + l->backoff_ns;
	quiet = *l->refusal && !l->opened;
	pthread_cond_broadcast(&l->change);
	pthread_mutex_unlock(&l->lock);
	if (quiet) /* kvct_link_open reports it */
		return;
	kvc_warn("tier ext: %s: %s%s%s; the next call starts it again after %llu ms", l->path, why,
		 *why && *ended ? ": the program "
		 : *ended       ? "the program "
				: "",
		 ended, (unsigned long long)(l->backoff_ns / 1000000));
}

/* One life of the program. */
static void run_program(struct kvct_link *l)
{
	char text[128] = "", ended[128] = "";
	uint64_t since = 0;
	const char *why = start_program(l, text);
	bool stopping;

	if (!why) {
		kvc_info("tier ext: %s is ready (driver %s)", l->path, l->name);
		since = kvc_mono_ns();
		link_set_up(l, true);
		why = serve_link(l);
	}
	link_set_up(l, false);
	stopping = is_stopping(l);
	if (l->program.pid)
		kvct_program_end(&l->program, stopping ? LEAVE_MS : *why ? 0 : 200, ended);
	if (l->arena)
		munmap(l->arena, l->arena_bytes);
	pthread_mutex_lock(&l->lock);
	l->arena = NULL;
	pthread_mutex_unlock(&l->lock);
	if (!stopping)
		note_end(l, why, ended, since);
}

static void *link_thread(void *arg)
{
	struct kvct_link *l = arg;

	run_program(l);
	pthread_mutex_lock(&l->lock);
	while (!l->stopping) {
		uint64_t now = kvc_mono_ns();

		if (!l->wanted || l->retry_ns > now) {
			wait_change_locked(l, l->wanted ? l->retry_ns : now + 3600000000000ull);
			continue;
		}
		pthread_mutex_unlock(&l->lock);
		run_program(l);
		pthread_mutex_lock(&l->lock);
	}
	pthread_mutex_unlock(&l->lock);
	return NULL;
}

static void free_link(struct kvct_link *l)
{
	for (unsigned i = 0; i < KVCT_LINK_SLOTS; i++)
		pthread_cond_destroy(&l->slot[i].done);
	pthread_cond_destroy(&l->change);
	pthread_mutex_destroy(&l->lock);
	kvc_close_fd(&l->wake);
	free(l->options);
	free(l);
}

void kvct_link_close(struct kvct_link *l)
{
	pthread_mutex_lock(&l->lock);
	l->stopping = true;
	pthread_cond_broadcast(&l->change);
	pthread_mutex_unlock(&l->lock);
	(void)!write(l->wake, &(uint64_t){ 1 }, 8);
	pthread_join(l->thread, NULL);
	free_link(l);
}

/* Starts the thread, with all signals blocked: they are for the daemon's main thread. */
static int start_thread(struct kvct_link *l)
{
	sigset_t all, old;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	err = -pthread_create(&l->thread, NULL, link_thread, l);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return err;
}

/* Waits for the first start. Returns 0, or -EINVAL if the program refuses to serve. */
static int await_first(struct kvct_link *l, char *error)
{
	uint64_t until = kvc_mono_ns() + kvc_min(FIRST_NS, l->deadline_ms * 1000000);
	bool tried;
	int err = 0;

	pthread_mutex_lock(&l->lock);
	while (!l->tried && kvc_mono_ns() < until)
		wait_change_locked(l, until);
	tried = l->tried;
	if (*l->refusal) {
		snprintf(error, 512, "option remote: %.150s %s", l->path, l->refusal);
		err = -EINVAL;
	}
	l->opened = !err;
	pthread_mutex_unlock(&l->lock);
	if (!tried)
		kvc_warn("tier ext: %s is not ready yet; the next access waits for it", l->path);
	return err;
}

int kvct_link_open(struct kvct_link **out, const char *path, const char *options,
		   size_t options_len, uint64_t arena_bytes, uint64_t deadline_ms, char *error)
{
	struct kvct_link *l = calloc(1, sizeof *l);
	pthread_condattr_t attr;
	int err;

	if (!l) {
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->change, &attr);
	for (unsigned i = 0; i < KVCT_LINK_SLOTS; i++)
		pthread_cond_init(&l->slot[i].done, &attr);
	pthread_condattr_destroy(&attr);
	l->path = path;
	l->options = malloc(options_len + 1);
	l->options_len = options_len;
	l->arena_bytes = arena_bytes;
	l->nslots = (unsigned)(arena_bytes / KVCTIER_VALUE_MAX);
	l->deadline_ms = deadline_ms;
	l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	err = !l->options ? -ENOMEM : l->wake < 0 ? -errno : 0;
	if (!err) {
		memcpy(l->options, options, options_len);
		err = start_thread(l);
	}
	if (err) {
		snprintf(error, 512, "option remote: ext: %s", kvc_why(-err));
		free_link(l);
		return err;
	}
	if ((err = await_first(l, error))) {
		kvct_link_close(l);
		return err;
	}
	*out = l;
	return 0;
}
