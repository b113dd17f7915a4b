/* SPDX-License-Identifier: Apache-2.0 */
/* See leave.h. */
#include "fs.h"

#include "log.h"
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#define LEAVE_NS 5000000000ull /* the longest that writers are waited for */
#define LOOK_NS 2000000l
#define AGAIN_NS 20000000l
#define WAKES SIGUSR1

static bool writes(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY;
}

/* A call that is held waits: without a place it gets now what it would get at the end. */
static bool hold(struct call *c)
{
	struct kvfs_leave *l = &c->f->leave;

	if (!kvfs_place(c))
		return false;
	pthread_mutex_lock(&l->lock);
	c->next = l->held;
	l->held = c;
	pthread_mutex_unlock(&l->lock);
	return true;
}

bool kvfs_stores(struct call *c)
{
	struct kvfs_leave *l = &c->f->leave;

	if (c->stores || !writes(c->fi.flags))
		return true;
	c->stores = true;
	/* Both sequentially consistent: of this and the look at the number, one sees the other. */
	atomic_fetch_add(&l->storing, 1);
	if (!atomic_load(&l->begun))
		return true;
	atomic_fetch_sub(&l->storing, 1);
	if (!hold(c)) {
		fuse_reply_err(c->req, ENOTCONN);
		kvfs_done(c);
	}
	return false;
}

void kvfs_stored(struct kvfs *f, int flags)
{
	if (writes(flags))
		atomic_fetch_sub(&f->leave.storing, 1);
}

static void ending_signals(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGINT);
}

/* Until nobody writes any more, or it took too long, or somebody is impatient. */
static void wait_for_writers(struct kvfs_leave *l, const sigset_t *set)
{
	const struct timespec look = { .tv_nsec = LOOK_NS };
	uint64_t start = kvc_mono_ns();
	unsigned long left;

	while ((left = atomic_load(&l->storing)) && !atomic_load(&l->over)) {
		bool impatient = sigtimedwait(set, NULL, &look) > 0;

		if (impatient || kvc_mono_ns() - start > LEAVE_NS) {
			kvc_warn("ending with %lu files open for writing: data written to them and "
				 "not synced is lost",
				 left);
			return;
		}
	}
}

static void woken(int sig)
{
	(void)sig; /* a call that waits ends with EINTR, which is all */
}

/*
 * The loop looks whether it is over, and waits; so it is woken until it has seen it. By a signal of
 * our own: others may be ignored, as nohup(1) has it with SIGHUP.
 */
static void end_loop(struct kvfs *f)
{
	const struct timespec again = { .tv_nsec = AGAIN_NS };

	fuse_session_exit(f->se);
	while (!atomic_load(&f->leave.over)) {
		pthread_kill(f->leave.loop, WAKES);
		nanosleep(&again, NULL);
	}
}

static void *leaver(void *arg)
{
	struct kvfs *f = arg;
	struct kvfs_leave *l = &f->leave;
	sigset_t set;

	ending_signals(&set);
	while (sigwaitinfo(&set, NULL) < 0)
		;
	if (!atomic_load(&l->over)) {
		kvfs_notify("STOPPING=1\nSTATUS=waiting for files that are being written");
		kvc_store_ending(f->store); /* who comes next waits instead of being refused */
		atomic_store(&l->begun, true);
		wait_for_writers(l, &set);
		end_loop(f);
	}
	return NULL;
}

int kvfs_leave_start(struct kvfs *f)
{
	const struct sigaction wakes = { .sa_handler = woken };
	struct kvfs_leave *l = &f->leave;
	sigset_t all, set, old;
	int err;

	l->loop = pthread_self();
	sigaction(WAKES, &wakes, NULL);
	sigemptyset(&set);
	sigaddset(&set, WAKES);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	ending_signals(&set);
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	err = -pthread_create(&l->thread, NULL, leaver, f);
	l->started = !err;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!err)
		pthread_sigmask(SIG_BLOCK, &set, NULL);
	else
		kvc_error("cannot start a thread: %s", strerror(-err));
	return err;
}

void kvfs_leave_stop(struct kvfs *f)
{
	if (!f->leave.started)
		return;
	atomic_store(&f->leave.over, true);
	pthread_kill(f->leave.thread, SIGINT);
	pthread_join(f->leave.thread, NULL);
}

void kvfs_leave_drop(struct kvfs *f)
{
	for (struct call *c = f->leave.held, *next; c; c = next) {
		next = c->next;
		fuse_reply_err(c->req, ENOTCONN);
		kvfs_done(c);
	}
	f->leave.held = NULL;
}
