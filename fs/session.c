/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The FUSE session: negotiates passthrough and io_uring with the kernel, mounts, and runs the loop.
 * The shutdown order is: loop, the engine's callbacks, unmount, engine, session. Replies after the
 * end of the loop have no effect and do not use freed memory, because the session is destroyed
 * last.
 */
#include "fs.h"

#include "budget.h"
#include "log.h"
#include "memory.h"
#include "nodes.h"
#include "uring_probe.h"
#include "rights.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* libfuse 3.18 can lose replies that are sent from other threads, unless it was patched. */
#if defined FUSE_CAP_OVER_IO_URING && \
	(defined KVFS_LIBFUSE_PATCHED || FUSE_VERSION >= FUSE_MAKE_VERSION(3, 19))
#define HAS_IO_URING
#elif defined FUSE_CAP_OVER_IO_URING
#define NO_IO_URING "this libfuse is older than 3.19 and can lose replies"
#else
#define NO_IO_URING "this libfuse is older than 3.18"
#endif

#define EPOCH_MINOR 44 /* protocol version with epochs of names */
#define PRUNE_MINOR 45 /* protocol version with prune notifications */
#define PRUNE_MAX 512u
#define EPOCH_FROM 1024u /* for more dropped files than this, one epoch change is sent */
/* bytes, for /dev/fuse: with passthrough, requests are small */
#define PASSTHROUGH_MAX_WRITE (128u << 10)
#define FILES_WANTED ((rlim_t)1 << 20)
#define FILES_FEW ((rlim_t)16384)
#define LOOP_THREADS 2u /* libfuse needs this many threads in its loop */
#define THREADS_MAX 16u /* threads that read /dev/fuse, each with a buffer */
#define PLAIN_MAX_WRITE (1u << 20)

/* From linux/fuse.h of 6.9, which is missing in older headers. */
struct backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};
#define BACKING_OPEN _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)

static int backing_open(void *arg, int fd)
{
	struct kvfs *f = arg;
	struct backing_map m = { .fd = fd };
	int id = ioctl(fuse_session_fd(f->se), BACKING_OPEN, &m);

	return id < 0 ? -errno : id;
}

static void backing_close(void *arg, int id)
{
	struct kvfs *f = arg;
	uint32_t n = (uint32_t)id;

	ioctl(fuse_session_fd(f->se), BACKING_CLOSE, &n);
}

/* From linux/fuse.h of 6.18. */
#define NOTIFY_PRUNE 9
struct prune {
	struct {
		uint32_t len;
		int32_t code;
		uint64_t unique; /* 0: a notification */
	} head;
	uint32_t count, padding;
	uint64_t spare;
	uint64_t ino[PRUNE_MAX];
};

/*
 * Makes the kernel forget nodes, and their names, that are not in use at the moment. Returns 0 or a
 * negative errno.
 */
static int prune(struct kvfs *f, const struct kvc_notice *v, size_t n)
{
	struct prune p = { .head = { .code = NOTIFY_PRUNE } };

	for (size_t i = 0; i < n; i++) {
		if (v[i].ino && v[i].what != KVC_NOTICE_NAME)
			p.ino[p.count++] = v[i].ino;
		if (!p.count || (p.count < PRUNE_MAX && i + 1 < n))
			continue;
		p.head.len = (uint32_t)(offsetof(struct prune, ino) + p.count * sizeof *p.ino);
		if (write(fuse_session_fd(f->se), &p, p.head.len) < 0)
			return -errno;
		p.count = 0;
	}
	return 0;
}

/*
 * Notifies the kernel of dropped names, files and folders. The ordinary notification, which
 * invalidates a name, waits for the folder's lock in the kernel and ignores signals: if the daemon
 * is killed there while a client that holds the lock waits for the daemon, neither ever ends. So
 * these notifications, which do not wait, are used instead:
 *
 * - Invalidated attributes: the next use of the file, by whatever name, asks for the attributes and
 *   gets ESTALE; the kernel then looks the name up again. If the kernel does not know the node yet,
 *   the node may be in a reply that is under way; then the epoch is changed.
 * - A prune notification (6.18): the kernel forgets unused names and their nodes, and so does the
 *   daemon.
 * - A new epoch (6.16): the kernel looks up all names of the mount again.
 */
static void notify_kernel(void *arg, const struct kvc_notice *v, size_t n)
{
	struct kvfs *f = arg;
	bool epoch = false, all;
	uint64_t parent = 0;
	size_t files = 0;

	for (size_t i = 0; i < n; i++) {
		files += v[i].what == KVC_NOTICE_FILE;
		epoch |= v[i].what == KVC_NOTICE_FOLDER || v[i].what == KVC_NOTICE_NAME ||
			 v[i].what == KVC_NOTICE_PROBE_ALL ||
			 (v[i].what == KVC_NOTICE_PROBE && !f->prunes);
	}
	epoch |= files > EPOCH_FROM;
	all = epoch && f->epochs; /* the kernel looks up all names again anyway */
	for (size_t i = 0; i < n; i++) {
		if (v[i].ino && v[i].what != KVC_NOTICE_PRUNE &&
		    !(all && v[i].what == KVC_NOTICE_FILE))
			epoch |= fuse_lowlevel_notify_inval_inode(f->se, v[i].ino, -1, 0) ==
				 -ENOENT;
		if (v[i].parent && v[i].parent != parent) /* entries are sorted by folder */
			fuse_lowlevel_notify_inval_inode(f->se, parent = v[i].parent, -1, 0);
	}
	epoch |= f->prunes && prune(f, v, n);
#ifdef FUSE_CAP_OVER_IO_URING
	if (epoch && f->epochs) {
		fuse_lowlevel_notify_increment_epoch(f->se);
		kvc_count(kvc_cache_stats(f->k), epochs);
	}
#endif
}

#ifdef HAS_IO_URING
static bool kernel_allows_uring(void)
{
	FILE *p = fopen("/sys/module/fuse/parameters/enable_uring", "re");
	int c = p ? fgetc(p) : 0;

	if (p)
		fclose(p);
	return c == 'Y' || c == '1';
}
#endif

void kvfs_note_transport(struct kvfs *f, fuse_req_t req)
{
	/* The kernel uses only one transport at a time, so libfuse did not start its rings. */
	if (f->uring && !kvfs_is_uring(req) && !atomic_exchange(&f->uring_failed, true))
		kvc_warn("requests are read from /dev/fuse: %s", kvfs_uring_why(f));
}

const char *kvfs_uring_why(const struct kvfs *f)
{
	return f->uring ? "libfuse could not start its io_uring queues" : f->uring_why;
}

bool kvfs_uses_uring(struct kvfs *f)
{
	return f->uring && !atomic_load(&f->uring_failed);
}

/*
 * Negotiates the features of the session with the kernel. Only a try shows whether the daemon has
 * the right to use passthrough and the kernel supports it.
 */
static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct kvfs *f = userdata;
	const struct kvc_options *o = kvc_cache_options(f->k);
	struct kvc_events ev = { .arg = f, .notify = notify_kernel };

	atomic_store(&f->mounted, true);
	f->passthrough = f->can_passthrough && fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH);
	if (f->can_passthrough && !f->passthrough)
		snprintf(f->passthrough_why, sizeof f->passthrough_why,
			 "the kernel does not support it (6.9 or later does)");
	if (f->passthrough) {
		ev.backing_open = backing_open;
		ev.backing_close = backing_close;
	}
#ifdef FUSE_CAP_OVER_IO_URING
	f->uring = f->want_uring && fuse_set_feature_flag(conn, FUSE_CAP_OVER_IO_URING);
	if (f->want_uring && !f->uring)
		snprintf(f->uring_why, sizeof f->uring_why,
			 "the kernel does not support it (6.14 or later does)");
#endif
	fuse_set_feature_flag(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
	fuse_set_feature_flag(conn, FUSE_CAP_ATOMIC_O_TRUNC);
	fuse_set_feature_flag(conn, FUSE_CAP_NO_OPENDIR_SUPPORT);
	/*
	 * Without this the kernel sends one lookup per folder at a time, and a slow tier would
	 * delay all.
	 */
	fuse_set_feature_flag(conn, FUSE_CAP_PARALLEL_DIROPS);
	/*
	 * Without this the kernel asks for security.capability before every write, even with
	 * passthrough. The engine clears the set-id bits when a file is written, truncated or
	 * changes its owner.
	 */
	fuse_set_feature_flag(conn, FUSE_CAP_HANDLE_KILLPRIV_V2);
	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_READ);
	conn->max_write = f->uring         ? f->ring.payload
			  : f->passthrough ? PASSTHROUGH_MAX_WRITE
					   : PLAIN_MAX_WRITE;
	conn->max_backing_stack_depth = 1;
	conn->time_gran = 1;
	/*
	 * Waits end at their deadline, and libfuse would keep an interrupt for an unknown request
	 * forever.
	 */
	conn->no_interrupt = 1;
#ifdef FUSE_CAP_OVER_IO_URING
	f->epochs = conn->proto_major > 7 || conn->proto_minor >= EPOCH_MINOR;
	f->prunes = conn->proto_major > 7 || conn->proto_minor >= PRUNE_MINOR;
	if (f->epochs)
		f->entry_timeout = KVFS_TIMEOUT;
#endif
	ev.keeps_used_names = f->prunes;
	f->miss_timeout = kvc_cache_shares(f->k) ? KVFS_MISS_TIMEOUT : f->entry_timeout;
	ev.name_timeout_ns = f->entry_timeout == KVFS_TIMEOUT ? 0
							      : (uint64_t)(f->entry_timeout * 1e9);
	kvc_cache_set_events(f->k, &ev);
	kvc_info("serving by %s, requests by %s", f->passthrough ? "passthrough" : "plain requests",
		 f->uring ? "io_uring" : "/dev/fuse");
	if (f->uring)
		kvc_info("io_uring: %u queues, one per CPU, of %u entries of %u KiB: at most %llu "
			 "MiB, allocated on use",
			 f->ring.queues, f->ring.depth, (f->ring.payload + f->ring.page) >> 10,
			 (unsigned long long)(kvfs_ring_bytes(&f->ring) >> 20));
	if (!f->passthrough && o->passthrough == KVC_ON)
		kvc_warn("passthrough=on, but %s", f->passthrough_why);
	if (!f->uring && o->io_uring == KVC_ON)
		kvc_warn("io_uring=on, but %s", f->uring_why);
}

/*
 * Raises the limit of open files. Each open file has a descriptor in the daemon, and each CPU's
 * ring has two. Root may raise its hard limit up to fs.nr_open.
 */
static void allow_descriptors(void)
{
	struct rlimit r, most = { FILES_WANTED, FILES_WANTED };

	if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur >= FILES_WANTED)
		return;
	if (r.rlim_max < FILES_WANTED && !setrlimit(RLIMIT_NOFILE, &most))
		return;
	r.rlim_cur = kvc_min(r.rlim_max, FILES_WANTED);
	if (setrlimit(RLIMIT_NOFILE, &r))
		kvc_warn("cannot raise the limit of open files: %s", strerror(errno));
	if (!getrlimit(RLIMIT_NOFILE, &r) && r.rlim_cur < FILES_FEW)
		kvc_warn("at most %llu files can be open at once; raise the limit with ulimit -n, "
			 "or LimitNOFILE= of systemd",
			 (unsigned long long)r.rlim_cur);
}

/* Returns the bytes of memory that the machine, or the daemon's cgroup, has outside the pool. */
static uint64_t memory_outside_pool(const struct kvc_options *o)
{
	uint64_t all = kvc_memory_group_max();
	struct sysinfo machine;

	if (!sysinfo(&machine))
		all = kvc_min(all, (uint64_t)machine.totalram * machine.mem_unit);
	return all - kvc_min(all, o->cpu_bytes);
}

/* Returns the bytes of the buffers of the threads that read /dev/fuse. */
static uint64_t thread_bytes(const struct kvfs *f, bool uring)
{
	uint64_t most = uring && f->can_passthrough ? KVFS_RING_PAYLOAD : PLAIN_MAX_WRITE;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return THREADS_MAX * (kvc_round_up(most, page) + page);
}

/* Returns the maximum bytes of memory= that the io_uring queues may use. */
static uint64_t ring_most(const struct kvfs *f, const struct kvc_options *o, uint64_t others)
{
	uint64_t left = o->memory_bytes - kvc_min(o->memory_bytes, others + thread_bytes(f, true));

	return o->memory_bytes ? kvc_min(o->memory_bytes / 4, left) : UINT64_MAX;
}

void kvfs_choose_modes(struct kvfs *f, const struct kvc_options *o, uint64_t others)
{
	allow_descriptors();
	f->can_passthrough = o->passthrough != KVC_OFF && kvfs_admin_of_all();
	if (o->passthrough == KVC_OFF)
		snprintf(f->passthrough_why, sizeof f->passthrough_why, "passthrough=off");
	else if (!f->can_passthrough)
		snprintf(f->passthrough_why, sizeof f->passthrough_why,
			 kvfs_admin_here()
				 ? "it requires root of the machine, not of a user namespace"
				 : "it requires root (CAP_SYS_ADMIN)");
	kvfs_ring_choose(&f->ring, (unsigned)get_nprocs_conf(), (uint32_t)sysconf(_SC_PAGESIZE),
			 !f->can_passthrough, memory_outside_pool(o), ring_most(f, o, others));
#ifdef __SANITIZE_THREAD__
	/* TSan adds its own mappings for each of ours, and vm.max_map_count limits them. */
	f->ring.depth = kvc_min(f->ring.depth, 1024u);
#endif
#ifdef HAS_IO_URING
	f->want_uring = o->io_uring != KVC_OFF && kernel_allows_uring();
	if (o->io_uring == KVC_OFF)
		snprintf(f->uring_why, sizeof f->uring_why, "io_uring=off");
	else if (!f->want_uring)
		snprintf(f->uring_why, sizeof f->uring_why,
			 "enable_uring is off; to allow it: echo Y > "
			 "/sys/module/fuse/parameters/enable_uring");
	else
		f->want_uring = kvfs_uring_works(f->ring.queues, f->ring.depth, f->uring_why,
						 sizeof f->uring_why);
#else
	snprintf(f->uring_why, sizeof f->uring_why, "%s",
		 o->io_uring == KVC_OFF ? "io_uring=off" : NO_IO_URING);
#endif
	f->request_bytes = (*o->peer_listen ? KVFS_NODES_BYTES : 0) +
			   thread_bytes(f, f->want_uring) +
			   (f->want_uring ? kvfs_ring_bytes(&f->ring) : 0);
}

static int add_option(struct fuse_args *args, const char *format, const char *value)
{
	char buf[1600];

	snprintf(buf, sizeof buf, format, value);
	return fuse_opt_add_arg(args, "-o") || fuse_opt_add_arg(args, buf) ? -ENOMEM : 0;
}

/* In the background: redirects stderr to the log and lets the parent return. */
static void report_ready(int ready_fd, bool debug)
{
	char ok = 0;
	int null = open("/dev/null", O_RDWR);

	kvc_log_setup(KVC_LOG_SYSLOG, debug);
	if (write(ready_fd, &ok, 1) == 1)
		close(ready_fd);
	for (int fd = 0; fd < 3 && null >= 0; fd++)
		dup2(null, fd);
	if (null > 2)
		close(null);
}

/* Answers requests until a signal or an unmount ends the session. Returns 0 or a negative errno. */
static int serve(struct kvfs *f, int ready_fd, bool debug)
{
	struct fuse_loop_config *loop = fuse_loop_cfg_create();
	int err;

	if (!loop)
		return -ENOMEM;
	fuse_loop_cfg_set_clone_fd(loop, 0);
	fuse_loop_cfg_set_max_threads(loop, THREADS_MAX);
	fuse_loop_cfg_set_idle_threads(loop, 4);
	if (ready_fd >= 0)
		report_ready(ready_fd, debug);
	err = kvfs_shutdown_start(f) ?: kvfs_service_watch(f) ?: fuse_session_loop_mt(f->se, loop);
	kvfs_service_stopping();
	kvfs_shutdown_stop(f);
	fuse_loop_cfg_destroy(loop);
	if (err == -ECONNABORTED) /* unmounted while a request was in transfer; otherwise ENODEV */
		return 0;
	return err > 0 ? 0 : err; /* a positive value is a signal: a regular end */
}

/* Returns the device number of the new mount, without a request to it; 0 if it is not known. */
static dev_t device_of(const char *mountpoint)
{
	struct statx x;

	return statx(AT_FDCWD, mountpoint, AT_STATX_DONT_SYNC, 0, &x)
		       ? 0
		       : makedev(x.stx_dev_major, x.stx_dev_minor);
}

/*
 * Returns true if the kernel has removed the filesystem with this device number, whose connection
 * is closed. As long as a client has a file open, the filesystem exists, also after umount -l.
 * ustat(2) first waits for an unmount in progress. It fails with EINVAL if no filesystem has the
 * number. It succeeds if another filesystem has the number now; for this one it would fail,
 * because the connection is closed. Any other error comes from this filesystem, or from a sandbox
 * that forbids the call.
 */
static bool is_ended(dev_t dev)
{
#ifdef SYS_ustat
	/* the kernel's numbers have 12 bits for the major number and 20 for the minor number */
	unsigned long number = (minor(dev) & 0xff) | major(dev) << 8 | (minor(dev) & ~0xffu) << 12;
	uint64_t buf[32];

	return dev && (!syscall(SYS_ustat, number, buf) || errno == EINVAL);
#else
	(void)dev;
	return false;
#endif
}

/*
 * Returns true if an unmount has ended the session, so that no client has a file open. After a
 * signal the connection still works, and the result is false. After an abort (umount -f, or the
 * connection's file "abort") the connection is closed, but clients may have files open, even if the
 * mount was detached; is_ended() then returns false. In doubt the result is false, because a file
 * that a client may still write must not be published.
 */
static bool is_unmounted(const struct kvfs *f)
{
	struct pollfd p = { .fd = fuse_session_fd(f->se) };

	return poll(&p, 1, 0) == 1 && (p.revents & POLLERR) && is_ended(f->dev);
}

/* A comma in the store's path would end the mount option, so it is replaced. */
static const char *source_name(const char *store, char *buf, size_t capacity)
{
	snprintf(buf, capacity, "%s", store);
	for (char *p = buf; *p; p++)
		if (*p == ',')
			*p = '_';
	return buf;
}

/*
 * Sets SCHED_BATCH; the threads that serve requests are created later and inherit it. A caller
 * sleeps while it waits for an answer, so the server still runs at once. But a close, for which no
 * caller waits, no longer preempts the caller on its core. This saves two of four context switches
 * for an open and its close (16 us instead of 21 us where this was measured).
 */
static void serve_as_batch(void)
{
	const struct sched_param none = { 0 };

	if (sched_setscheduler(0, SCHED_BATCH, &none))
		kvc_info("cannot set SCHED_BATCH: %s", strerror(errno));
}

static void *wait_for_barrier(void *barrier)
{
	pthread_mutex_lock(barrier);
	pthread_mutex_unlock(barrier);
	return NULL;
}

/*
 * Checks that `want` more threads can be created. libfuse creates one for each CPU's ring, and
 * hangs if it gets only some of them. Returns 0, or a negative errno after a line in the log.
 */
static int try_threads(unsigned want)
{
	pthread_mutex_t barrier = PTHREAD_MUTEX_INITIALIZER;
	KVC_MEM pthread_t *all = calloc(want, sizeof *all);
	unsigned n = 0;
	int err = all ? 0 : -ENOMEM;

	pthread_mutex_lock(&barrier);
	while (!err && n < want)
		if (!(err = -pthread_create(&all[n], NULL, wait_for_barrier, &barrier)))
			n++;
	pthread_mutex_unlock(&barrier);
	while (n)
		pthread_join(all[--n], NULL);
	if (err)
		kvc_error("cannot start threads: %s; raise the limit (ulimit -u, or pids.max of "
			  "the cgroup)",
			  strerror(-err));
	return err;
}

static int mount_session(struct kvfs *f, const char *mountpoint)
{
	if (!fuse_session_mount(f->se, mountpoint)) {
		f->dev = device_of(mountpoint);
		return 0;
	}
	kvc_error("cannot mount on %s: %s", mountpoint,
		  kvfs_admin_here() ? strerror(errno) : "see the message of fusermount3");
	return -EPERM;
}

static int session_new(struct kvfs *f, const struct kvc_options *o, const char *store,
		       const struct fuse_lowlevel_ops *ops)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	char source[1100], number[16];
	int err;

	snprintf(number, sizeof number, "%u", f->ring.depth);
	err = fuse_opt_add_arg(&args, "kvcachefs") ? -ENOMEM : 0;
	err = err
		      ?: add_option(&args, "fsname=%s,subtype=kvcachefs,default_permissions",
				    source_name(store, source, sizeof source));
	if (!err && o->allow_other)
		err = add_option(&args, "%s", "allow_other");
	if (!err && *o->generic)
		err = add_option(&args, "%s", o->generic);
	/* only shown in the mount table; the engine implements it */
	if (!err && o->atime == KVC_ATIME_NEVER)
		err = add_option(&args, "%s", "noatime");
	if (!err && f->want_uring)
		err = add_option(&args, "io_uring,io_uring_q_depth=%s", number);
	f->se = err ? NULL : fuse_session_new(&args, ops, sizeof *ops, f);
	fuse_opt_free_args(&args);
	return err;
}

int kvfs_serve(struct kvfs *f, const struct kvc_options *o, const char *store,
	       const char *mountpoint, int ready_fd)
{
	struct fuse_lowlevel_ops ops = { .init = op_init };
	sigset_t all, old;
	bool mounted = false, signals = false;
	int err;

	f->mountpoint = mountpoint;
	f->begun_ns = kvc_mono_ns();
	kvfs_defer_init(f);
	f->entry_timeout = KVFS_SHORT_TIMEOUT;
	kvfs_wait_slots_init(&f->slots, f->ring.depth,
			     (unsigned)(kvc_budget_most(KVC_BUDGET_WRITE) / KVC_PAGE));
	kvfs_ops_names(&ops);
	kvfs_ops_xattrs(&ops);
	kvfs_ops_io(&ops);
	kvfs_ops_write(&ops);
	err = session_new(f, o, store, &ops);
	if (!f->se) {
		kvc_error("cannot set up the FUSE session");
		return err ?: -EINVAL;
	}
	/*
	 * Only the loop's thread receives signals. All other threads are created with signals
	 * blocked.
	 */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	err = kvfs_http_start(f, o);
	if (!err)
		err = kvc_cache_start(f->k) ?: kvfs_nodes_start(f, o);
	if (!err)
		err = try_threads((f->want_uring ? f->ring.queues : 0) + LOOP_THREADS);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!err && !(signals = !fuse_set_signal_handlers(f->se)))
		err = -EINVAL;
	if (!err) {
		err = mount_session(f, mountpoint);
		mounted = !err;
	}
	if (!err) {
		serve_as_batch();
		err = serve(f, ready_fd, o->debug);
	}
	kvfs_http_stop(f);
	kvfs_defer_stop(f);
	if (mounted && is_unmounted(f))
		kvc_open_release_writers(f->k);
	kvfs_nodes_end(f);
	kvc_cache_detach(f->k); /* the unmount closes the session's descriptor */
	kvfs_nodes_stop(f);
	if (mounted)
		fuse_session_unmount(f->se);
	if (signals)
		fuse_remove_signal_handlers(f->se);
	kvfs_shutdown_end_held(f);
	kvfs_virtual_close_all(f);
	kvc_cache_stop(f->k);
	kvfs_service_stop();
	f->threads_left = !kvc_cache_close(f->k);
	kvfs_wait_slots_fini(&f->slots);
	fuse_session_destroy(f->se);
	return err;
}
