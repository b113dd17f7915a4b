/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See notify.h. One thread, the watch, asks a request of our own mount every third of the time that
 * the manager's watchdog allows, and pings only when it is answered. statfs is asked, which the
 * kernel never answers by itself and for which the engine takes its locks. Where nothing answers,
 * the thread hangs in the kernel until something does, or the connection ends: unmounting ends it.
 *
 * The mount is used only while the question is under way, so an unmount finds it free. What is on
 * the mount point instead of our mount (somebody has unmounted it lazily, or mounted over it) says
 * nothing of whether open files are served: then there is nothing to ask, and it is pinged.
 *
 * It asks on whatever CPU it runs, so of the queues of io_uring it sees one at a time. Going round
 * over all CPUs would make it wait for one that a real-time thread keeps, and the manager would
 * kill a daemon that is well.
 */
#include "fs.h"

#include "log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <time.h>

#define SHARE 3u /* pings in the watchdog's time */
#define LOOK_NS 1000000000ull
#define JOIN_NS 5000000000ull

static struct {
	struct sockaddr_un to;
	socklen_t len; /* 0: nobody */
	uint64_t watchdog_ns;
} manager;

static struct watch {
	struct kvfs *f;
	const char *mountpoint;
	pthread_t thread;
	pthread_mutex_t lock; /* a leaf */
	pthread_cond_t cond;
	bool started, ending, over;
	char more_time[64];
} watch = { .lock = PTHREAD_MUTEX_INITIALIZER };

void kvfs_notify_take(void)
{
	const char *path = getenv("NOTIFY_SOCKET"), *usec = getenv("WATCHDOG_USEC");
	const char *pid = getenv("WATCHDOG_PID");
	size_t len = path ? strlen(path) : 0;

	if (len > 1 && len < sizeof manager.to.sun_path && (*path == '/' || *path == '@')) {
		manager.to.sun_family = AF_UNIX;
		memcpy(manager.to.sun_path, path, len);
		if (*path == '@')
			manager.to.sun_path[0] = 0;
		manager.len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
		if (usec && (!pid || strtol(pid, NULL, 10) == getpid()))
			manager.watchdog_ns = strtoull(usec, NULL, 10) * 1000;
	} else if (path) {
		kvc_warn("NOTIFY_SOCKET=%s is not a socket address: the service manager is not "
			 "notified",
			 path);
	}
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
}

void kvfs_notify(const char *lines)
{
	KVC_FD int fd = -1;

	if (!manager.len)
		return;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || sendto(fd, lines, strlen(lines), MSG_NOSIGNAL,
			     (const struct sockaddr *)&manager.to, manager.len) < 0)
		kvc_debug("cannot notify the service manager of %s: %s", lines, strerror(errno));
}

/*
 * Does the mount answer? It may take as long as it likes. Errors of a path at which there is no
 * mount any more are answers too.
 */
static bool answers(const struct watch *w)
{
	struct statvfs v;

	return !statvfs(w->mountpoint, &v) ||
	       (errno != ENOTCONN && errno != ECONNABORTED && errno != ECANCELED);
}

/* Waits, at most this long, until somebody sets *until: true when he has. */
static bool paused(struct watch *w, uint64_t ns, const bool *until)
{
	uint64_t at = kvc_mono_ns() + ns;
	struct timespec t = { (time_t)(at / 1000000000), (long)(at % 1000000000) };
	bool done;

	pthread_mutex_lock(&w->lock);
	while (!*until && pthread_cond_timedwait(&w->cond, &w->lock, &t) != ETIMEDOUT)
		;
	done = *until;
	pthread_mutex_unlock(&w->lock);
	return done;
}

/*
 * As long as copies are made the manager is asked for more time than the engine takes to give up.
 */
static void ask_for_time(struct watch *w)
{
	uint64_t spills = UINT64_MAX;

	/* who comes here too late finds no engine any more, and `over` set */
	for (uint64_t pause = 0; !paused(w, pause, &w->over); pause = LOOK_NS) {
		uint64_t now = kvc_counted(kvc_cache_stats(w->f->k), spills);

		if (now != spills)
			kvfs_notify(w->more_time);
		spills = now;
	}
}

static void *watcher(void *arg)
{
	struct watch *w = arg;
	uint64_t every = manager.watchdog_ns ? manager.watchdog_ns / SHARE : UINT64_MAX / 4;
	bool ready = false;

	for (uint64_t pause = 0; !paused(w, pause, &w->ending);) {
		bool ok = answers(w);

		if (ok && !ready)
			kvfs_notify("READY=1\nSTATUS=serving");
		else if (ok && manager.watchdog_ns)
			kvfs_notify("WATCHDOG=1");
		ready |= ok;
		pause = ready ? every : LOOK_NS / 100;
	}
	ask_for_time(w);
	return NULL;
}

int kvfs_watch_start(struct kvfs *f)
{
	pthread_condattr_t a;
	sigset_t all, old;
	int err;

	if (!manager.len)
		return 0;
	watch.f = f;
	watch.mountpoint = f->mountpoint;
	snprintf(watch.more_time, sizeof watch.more_time, "EXTEND_TIMEOUT_USEC=%llu",
		 (unsigned long long)(60000 + 10 * kvc_cache_options(f->k)->deadline_ms) * 1000);
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&watch.cond, &a);
	pthread_condattr_destroy(&a);
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	err = -pthread_create(&watch.thread, NULL, watcher, &watch);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	watch.started = !err;
	if (!err)
		pthread_setname_np(watch.thread, "kv-watch");
	if (err)
		kvc_error("cannot start a thread: %s", strerror(-err));
	return err;
}

static void set(bool *what)
{
	if (!watch.started)
		return;
	pthread_mutex_lock(&watch.lock);
	*what = true;
	pthread_cond_signal(&watch.cond);
	pthread_mutex_unlock(&watch.lock);
}

void kvfs_watch_end(void)
{
	kvfs_notify("STOPPING=1\nSTATUS=writing queued copies");
	set(&watch.ending);
}

void kvfs_watch_stop(void)
{
	if (!watch.started)
		return;
	set(&watch.over);
	/* it may hang where the mount point's own filesystem does; the process takes it along */
	if (kvc_join(watch.thread, kvc_mono_ns() + JOIN_NS))
		pthread_detach(watch.thread);
}
