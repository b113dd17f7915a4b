/* SPDX-License-Identifier: Apache-2.0 */
/* Shutdown by a signal: waits for writers, then ends the loop. See shutdown.h. */
#include "fs.h"

#include "log.h"
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WRITERS_WAIT_NS 5000000000ull /* maximum wait for writers */
#define POLL_NS 2000000l
#define RESEND_NS 20000000l
#define WAKE_SIGNAL SIGUSR1

static bool is_writing(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY;
}

/*
 * Holds the call until the daemon ends. Returns false if it gets no wait slot; the caller then
 * answers it now as it would be answered at the end.
 */
static bool hold_call(struct call *c)
{
	struct kvfs_shutdown *l = &c->f->shutdown;

	if (!kvfs_call_slot(c))
		return false;
	pthread_mutex_lock(&l->lock);
	c->next = l->held;
	l->held = c;
	pthread_mutex_unlock(&l->lock);
	return true;
}

bool kvfs_writer_begin(struct call *c)
{
	struct kvfs_shutdown *l = &c->f->shutdown;

	if (c->is_writer || !is_writing(c->fi.flags))
		return true;
	c->is_writer = true;
	/*
	 * Sequentially consistent with shutdown_thread: either it sees this writer, or the writer
	 * sees begun.
	 */
	atomic_fetch_add(&l->writers, 1);
	if (!atomic_load(&l->begun))
		return true;
	atomic_fetch_sub(&l->writers, 1);
	if (!hold_call(c)) {
		fuse_reply_err(c->req, ENOTCONN);
		kvfs_call_free(c);
	}
	return false;
}

void kvfs_writer_end(struct kvfs *f, int flags)
{
	if (is_writing(flags))
		atomic_fetch_sub(&f->shutdown.writers, 1);
}

/* Does the same as kvcachectl reload without options. */
static void reload(struct kvfs *f)
{
	char words[] = "reload", *text = NULL;
	size_t len;
	FILE *answer = open_memstream(&text, &len);
	const struct kvc_options *o = kvc_cache_options(f->k);
	bool any = *o->keyfile || *o->logfile;
	int err = !answer ? -ENOMEM : any ? kvc_control(f->k, words, answer) : 0;

	if (answer && fclose(answer))
		text = NULL;
	if (err)
		kvc_warn("SIGHUP: %.*s", text ? (int)strcspn(text, "\n") : 13,
			 text ? text : "out of memory");
	else
		kvc_info(any ? "SIGHUP: opened the key file and the log file again"
			     : "SIGHUP: the mount has no key file or log file to open again");
	free(text);
}

static void ending_signals(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGINT);
}

/*
 * Waits until no file is open for writing, WRITERS_WAIT_NS have passed, or a second signal arrives.
 */
static void wait_for_writers(struct kvfs_shutdown *l, const sigset_t *set)
{
	const struct timespec poll = { .tv_nsec = POLL_NS };
	uint64_t start = kvc_mono_ns();
	unsigned long left;

	while ((left = atomic_load(&l->writers)) && !atomic_load(&l->over)) {
		bool impatient = sigtimedwait(set, NULL, &poll) > 0;

		if (impatient || kvc_mono_ns() - start > WRITERS_WAIT_NS) {
			kvc_warn("ending with %lu files open for writing: data written to them and "
				 "not synced is lost",
				 left);
			return;
		}
	}
}

static void on_wake_signal(int sig)
{
	(void)sig; /* the signal only makes a blocking call return EINTR */
}

/*
 * Ends the session loop. The loop checks its exit flag and then blocks, so the signal is sent
 * repeatedly until the loop has ended. The daemon has its own signal for this, because others may
 * be ignored, as nohup(1) does with SIGHUP.
 */
static void end_loop(struct kvfs *f)
{
	const struct timespec resend = { .tv_nsec = RESEND_NS };

	fuse_session_exit(f->se);
	while (!atomic_load(&f->shutdown.over)) {
		pthread_kill(f->shutdown.loop, WAKE_SIGNAL);
		nanosleep(&resend, NULL);
	}
}

static void *shutdown_thread(void *arg)
{
	struct kvfs *f = arg;
	struct kvfs_shutdown *l = &f->shutdown;
	sigset_t set, hup;
	int sig;

	ending_signals(&set);
	hup = set;
	sigaddset(&hup, SIGHUP);
	while ((sig = sigwaitinfo(&hup, NULL)) < 0 || sig == SIGHUP)
		if (sig == SIGHUP && l->terminal)
			break;
		else if (sig == SIGHUP)
			reload(f);
	if (!atomic_load(&l->over)) {
		kvfs_service_notify("STOPPING=1\nSTATUS=waiting for files that are being written");
		/* the next daemon of the store waits instead of failing */
		kvc_store_ending(f->store);
		atomic_store(&l->begun, true);
		wait_for_writers(l, &set);
		end_loop(f);
	}
	return NULL;
}

int kvfs_shutdown_start(struct kvfs *f)
{
	const struct sigaction wake_action = { .sa_handler = on_wake_signal };
	struct kvfs_shutdown *l = &f->shutdown;
	sigset_t all, set, old;
	int err;

	l->loop = pthread_self();
	sigaction(WAKE_SIGNAL, &wake_action, NULL);
	sigemptyset(&set);
	sigaddset(&set, WAKE_SIGNAL);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	ending_signals(&set);
	sigaddset(&set, SIGHUP);
	l->terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	err = -pthread_create(&l->thread, NULL, shutdown_thread, f);
	l->started = !err;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!err)
		pthread_sigmask(SIG_BLOCK, &set, NULL);
	else
		kvc_error("cannot start a thread: %s", strerror(-err));
	return err;
}

void kvfs_shutdown_stop(struct kvfs *f)
{
	if (!f->shutdown.started)
		return;
	atomic_store(&f->shutdown.over, true);
	pthread_kill(f->shutdown.thread, SIGINT);
	pthread_join(f->shutdown.thread, NULL);
}

void kvfs_shutdown_end_held(struct kvfs *f)
{
	for (struct call *c = f->shutdown.held, *next; c; c = next) {
		next = c->next;
		fuse_reply_err(c->req, ENOTCONN);
		kvfs_call_free(c);
	}
	f->shutdown.held = NULL;
}
