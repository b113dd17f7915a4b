/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that starts and ends the program of an ext tier, again and again; see ext_link.h.
 * ext_requests.c makes the requests, ext_program.c runs the process.
 *
 * Each start of the program gets a new arena. The thread unmaps it when the program has ended and
 * no call uses it. When the program has ended, the next call starts it again. If it ended soon
 * after its start, the thread waits before that; each such end makes the wait longer.
 */
#include "ext_link.h"

#include "ext_program.h"
#include "ext_requests.h"
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
/* waits before the program is started again; none after it has worked for STEADY_NS */
#define BACKOFF_MIN_NS 100000000ull
#define BACKOFF_MAX_NS 30000000000ull
#define STEADY_NS 10000000000ull
#define TURN_NS 1000000000ull /* between two checks whether the program hangs */
#define LEAVE_MS 5000         /* how long a program may take to end after its socket was closed */

struct kvct_link {
	/* constant */
	struct kvct_link_setup setup;
	char *options; /* of the setup */
	int wake;      /* an eventfd for the thread */
	pthread_t thread;

	struct kvct_requests r;
	/* guarded by r.lock */
	bool tried;                 /* the first start has succeeded or failed */
	bool opened;                /* kvct_link_open has succeeded: later refusals are logged */
	char refusal[KVCT_REFUSAL]; /* why the program cannot serve; "": it did not say so */
	uint64_t backoff_ns;        /* the wait before the next start */

	/* of the thread */
	struct kvct_program program;
	char name[40]; /* of the driver */
};

int kvct_link_ask(struct kvct_link *l, struct kvct_link_call *c)
{
	int err;

	if (c->request.length > KVCTIER_VALUE_MAX)
		return -EFBIG;
	err = kvct_requests_ask(&l->r, c);
	return err == -ECONNRESET ? kvct_requests_ask(&l->r, c) : err;
}

unsigned kvct_link_abilities(struct kvct_link *l)
{
	pthread_mutex_lock(&l->r.lock);
	unsigned abilities = l->r.abilities;

	pthread_mutex_unlock(&l->r.lock);
	return abilities;
}

void kvct_link_used(struct kvct_link *l, uint64_t *used, uint64_t *size)
{
	pthread_mutex_lock(&l->r.lock);
	*used = l->r.used;
	*size = l->r.size;
	pthread_mutex_unlock(&l->r.lock);
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
			return "a message does not have the size of an answer";
		if ((why = kvct_requests_answer(&l->r, &a)))
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
	if (ftruncate(fd, (off_t)l->setup.arena_bytes) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ||
	    (p = mmap(NULL, l->setup.arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) ==
		    MAP_FAILED) {
		int err = -errno;

		close(fd);
		return err;
	}
	pthread_mutex_lock(&l->r.lock);
	l->r.arena = p;
	pthread_mutex_unlock(&l->r.lock);
	return fd;
}

static int send_hello(struct kvct_link *l, int arena)
{
	struct kvctier_hello hello = {
		.magic = KVCTIER_MAGIC,
		.version = KVCTIER_VERSION,
		.options_len = (uint32_t)l->setup.options_len,
		.arena_bytes = l->setup.arena_bytes,
		.value_max = KVCTIER_VALUE_MAX,
		.deadline_ms = l->r.deadline_ms,
		.slots = l->r.nslots,
		.flags = l->setup.sealed ? KVCTIER_SEALED : 0,
	};
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec iov[2] = { { &hello, sizeof hello }, { l->options, l->setup.options_len } };
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
	pthread_mutex_lock(&l->r.lock);
	bool stopping = l->r.stopping;

	pthread_mutex_unlock(&l->r.lock);
	return stopping;
}

/* Notes the answer to the hello. Returns NULL, or why the program is to end. */
static const char *take_ready(struct kvct_link *l)
{
	struct kvctier_ready m = { 0 };
	char refusal[KVCT_REFUSAL];
	ssize_t n = recv(l->program.sock, &m, sizeof m, MSG_DONTWAIT | MSG_TRUNC);
	const char *why = kvct_requests_ready(&m, n, refusal);

	pthread_mutex_lock(&l->r.lock);
	memcpy(l->refusal, refusal, sizeof refusal);
	if (!why) {
		l->r.abilities = m.abilities;
		memcpy(l->name, m.name, sizeof l->name);
	}
	pthread_mutex_unlock(&l->r.lock);
	return *refusal ? l->refusal : why;
}

/* Starts the program and waits until it is ready. Returns NULL, or why it is to end. */
static const char *start_program(struct kvct_link *l, char why[128])
{
	uint64_t until = kvc_mono_ns() + l->r.deadline_ms * 1000000;
	KVC_FD int arena = -1;
	char error[512];
	int err;

	if (kvct_program_check(l->setup.path, error)) {
		snprintf(why, 128, "%s", "its file or folder may be changed by other users");
		return why;
	}
	arena = arena_make(l);
	err = arena < 0 ? arena : kvct_program_start(&l->program, l->setup.path);
	err = err ?: send_hello(l, arena);
	if (err) {
		snprintf(why, 128, "%s", strerror(-err));
		return why;
	}
	while (!wait_program(l, until))
		if (is_stopping(l) || kvc_mono_ns() >= until)
			return "it was not ready before the deadline";
	return take_ready(l);
}

/* Handles answers until the program ends or must end. Returns the reason; "" if it has ended. */
static const char *serve_link(struct kvct_link *l)
{
	const char *why = NULL;

	while (!why && !is_stopping(l)) {
		struct kvctier_request used;
		int news;

		if (kvct_requests_ask_used(&l->r, &used))
			(void)!send(l->program.sock, &used, sizeof used,
				    MSG_NOSIGNAL | MSG_DONTWAIT);
		if (kvct_requests_hang(&l->r)) {
			why = "a request has been unanswered for ten deadlines";
			break;
		}
		news = wait_program(l, kvc_mono_ns() + TURN_NS);
		if (news & NEWS_MESSAGE)
			why = take_answers(l);
		if ((news & NEWS_END) && !why)
			why = "";
	}
	return why ?: "";
}

/* Decides when the program is started again, and logs its end. */
static void note_end(struct kvct_link *l, const char *why, const char *ended, uint64_t since_ns)
{
	uint64_t now = kvc_mono_ns();
	bool quiet;

	pthread_mutex_lock(&l->r.lock);
	if (since_ns && now - since_ns >= STEADY_NS)
		l->backoff_ns = 0;
	else
		l->backoff_ns = kvc_max(BACKOFF_MIN_NS, kvc_min(2 * l->backoff_ns, BACKOFF_MAX_NS));
	l->r.retry_ns = now + l->backoff_ns;
	quiet = *l->refusal && !l->opened;
	pthread_cond_broadcast(&l->r.change);
	pthread_mutex_unlock(&l->r.lock);
	if (quiet) /* kvct_link_open reports it */
		return;
	kvc_warn("tier ext: %s: %s%s%s; the next call starts it again after %llu ms", l->setup.path,
		 why,
		 *why && *ended ? ": the program "
		 : *ended       ? "the program "
				: "",
		 ended, (unsigned long long)(l->backoff_ns / 1000000));
}

/* The first start has ended. */
static void note_tried(struct kvct_link *l)
{
	pthread_mutex_lock(&l->r.lock);
	l->tried = true;
	pthread_cond_broadcast(&l->r.change);
	pthread_mutex_unlock(&l->r.lock);
}

/* One life of the program. */
static void run_program(struct kvct_link *l)
{
	char text[128] = "", ended[128] = "";
	uint64_t since = 0;
	const char *why = start_program(l, text);
	bool stopping;

	if (!why) {
		kvc_info("tier ext: %s is ready (driver %s)", l->setup.path, l->name);
		since = kvc_mono_ns();
		note_tried(l);
		kvct_requests_start(&l->r, l->program.sock);
		why = serve_link(l);
	}
	kvct_requests_stop(&l->r);
	kvct_requests_drain(&l->r);
	note_tried(l);
	stopping = is_stopping(l);
	if (l->program.pid)
		kvct_program_end(&l->program, stopping ? LEAVE_MS : *why ? 0 : 200, ended);
	if (l->r.arena)
		munmap(l->r.arena, l->setup.arena_bytes);
	pthread_mutex_lock(&l->r.lock);
	l->r.arena = NULL;
	pthread_mutex_unlock(&l->r.lock);
	if (!stopping)
		note_end(l, why, ended, since);
}

static void *link_thread(void *arg)
{
	struct kvct_link *l = arg;

	run_program(l);
	pthread_mutex_lock(&l->r.lock);
	while (!l->r.stopping) {
		uint64_t now = kvc_mono_ns();

		if (!l->r.wanted || l->r.retry_ns > now) {
			kvct_requests_wait_locked(&l->r, l->r.wanted ? l->r.retry_ns
								     : now + 3600000000000ull);
			continue;
		}
		pthread_mutex_unlock(&l->r.lock);
		run_program(l);
		pthread_mutex_lock(&l->r.lock);
	}
	pthread_mutex_unlock(&l->r.lock);
	return NULL;
}

static void free_link(struct kvct_link *l)
{
	kvct_requests_fini(&l->r);
	kvc_close_fd(&l->wake);
	free(l->options);
	free(l);
}

void kvct_link_close(struct kvct_link *l)
{
	pthread_mutex_lock(&l->r.lock);
	l->r.stopping = true;
	pthread_cond_broadcast(&l->r.change);
	pthread_mutex_unlock(&l->r.lock);
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
	uint64_t until = kvc_mono_ns() + kvc_min(FIRST_NS, l->r.deadline_ms * 1000000);
	bool tried;
	int err = 0;

	pthread_mutex_lock(&l->r.lock);
	while (!l->tried && kvc_mono_ns() < until)
		kvct_requests_wait_locked(&l->r, until);
	tried = l->tried;
	if (*l->refusal) {
		snprintf(error, 512, "option remote: %.150s %s", l->setup.path, l->refusal);
		err = -EINVAL;
	}
	l->opened = !err;
	pthread_mutex_unlock(&l->r.lock);
	if (!tried)
		kvc_warn("tier ext: %s is not ready yet; the next access waits for it",
			 l->setup.path);
	return err;
}

int kvct_link_open(struct kvct_link **out, const struct kvct_link_setup *setup, char *error)
{
	struct kvct_link *l = calloc(1, sizeof *l);
	int err;

	if (!l) {
		snprintf(error, 512, "out of memory");
		return -ENOMEM;
	}
	kvct_requests_init(&l->r, (unsigned)(setup->arena_bytes / KVCTIER_VALUE_MAX),
			   setup->deadline_ms);
	l->setup = *setup;
	l->options = malloc(setup->options_len + 1);
	l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	err = !l->options ? -ENOMEM : l->wake < 0 ? -errno : 0;
	if (!err) {
		memcpy(l->options, setup->options, setup->options_len);
		l->setup.options = l->options;
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
