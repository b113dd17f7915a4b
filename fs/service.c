/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications to the service manager, and the watch thread. See service.h.
 *
 * The watch thread sends a statfs request to the daemon's own mount, PINGS times within the
 * manager's watchdog interval, and sends WATCHDOG=1 only if the request is answered. The kernel
 * never answers statfs by itself, and the engine takes its locks for it. If nothing answers, the
 * thread hangs in the kernel until there is an answer or the connection ends; an unmount ends the
 * connection.
 *
 * The thread uses the mount only during the request, so it does not keep an unmount busy. After a
 * lazy unmount, or if another filesystem was mounted on the same path, the request does not reach
 * the daemon, which may still serve open files. WATCHDOG=1 is sent then, too.
 *
 * The request runs on the CPU of the thread, so it tests one io_uring queue at a time. If the
 * thread visited all CPUs in turn, it would wait for a CPU that a real-time thread keeps busy, and
 * the manager would kill a healthy daemon.
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

#define PINGS 3u /* requests per watchdog interval */
#define POLL_NS 1000000000ull
#define JOIN_NS 5000000000ull

static struct {
	struct sockaddr_un to;
	socklen_t len; /* 0: no service manager */
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

void kvfs_service_init(void)
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

void kvfs_service_notify(const char *lines)
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
 * Returns true if the mount answers a request; waits for the answer without a limit. If something
 * else is at the path now, its errors count as answers.
 */
static bool mount_answers(const struct watch *w)
{
	struct statvfs v;

	return !statvfs(w->mountpoint, &v) ||
	       (errno != ENOTCONN && errno != ECONNABORTED && errno != ECANCELED);
}

/* Waits at most `ns` nanoseconds until *until is set. Returns *until. */
static bool wait_for_flag(struct watch *w, uint64_t ns, const bool *until)
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
 * Asks the manager for a longer stop timeout as long as copies are being written. Each extension is
 * longer than the engine's own time limits.
 */
static void extend_stop_time(struct watch *w)
{
	uint64_t spills = UINT64_MAX;

	/* if the engine is already closed, `over` is set */
	for (uint64_t pause = 0; !wait_for_flag(w, pause, &w->over); pause = POLL_NS) {
		uint64_t now = kvc_counted(kvc_cache_stats(w->f->k), spills);

		if (now != spills)
			kvfs_service_notify(w->more_time);
		spills = now;
	}
}

static void *watch_thread(void *arg)
{
	struct watch *w = arg;
	uint64_t every = manager.watchdog_ns ? manager.watchdog_ns / PINGS : UINT64_MAX / 4;
	bool ready = false;

	for (uint64_t pause = 0; !wait_for_flag(w, pause, &w->ending);) {
		bool ok = mount_answers(w);

		if (ok && !ready)
			kvfs_service_notify("READY=1\nSTATUS=serving");
		else if (ok && manager.watchdog_ns)
			kvfs_service_notify("WATCHDOG=1");
		ready |= ok;
		pause = ready ? every : POLL_NS / 100;
	}
	extend_stop_time(w);
	return NULL;
}

int kvfs_service_watch(struct kvfs *f)
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
	err = -pthread_create(&watch.thread, NULL, watch_thread, &watch);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	watch.started = !err;
	if (!err)
		pthread_setname_np(watch.thread, "kv-watch");
	if (err)
		kvc_error("cannot start a thread: %s", strerror(-err));
	return err;
}

static void set_flag(bool *what)
{
	if (!watch.started)
		return;
	pthread_mutex_lock(&watch.lock);
	*what = true;
	pthread_cond_signal(&watch.cond);
	pthread_mutex_unlock(&watch.lock);
}

void kvfs_service_stopping(void)
{
	kvfs_service_notify("STOPPING=1\nSTATUS=writing queued copies");
	set_flag(&watch.ending);
}

void kvfs_service_stop(void)
{
	if (!watch.started)
		return;
	set_flag(&watch.over);
	/*
	 * The thread may hang in the filesystem below the mount point. It then ends with the
	 * process.
	 */
	if (kvc_join(watch.thread, kvc_mono_ns() + JOIN_NS))
		pthread_detach(watch.thread);
}
