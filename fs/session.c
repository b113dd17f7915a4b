/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session: what is agreed with the kernel (passthrough, io_uring), mounting, the loop, and the
 * end in the right order: loop, the engine's calls to us, unmount, engine, session. Late replies
 * after the loop's end go nowhere and touch nothing freed, because the session is destroyed last.
 */
#include "fs.h"

#include "budget.h"
#include "log.h"
#include "memory.h"
#include "probe.h"
#include "rights.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>

#define EPOCH_MINOR 44 /* of the protocol: from here on names have an epoch */
#define PRUNE_MINOR 45 /* and nodes can be pruned */
#define PRUNE_MAX 512u
#define EPOCH_FROM 1024u /* more files that went at once are told by an epoch, with one call */
#define PASSTHROUGH_MAX_WRITE                                              \
	(128u << 10) /* by /dev/fuse; what comes by requests then is small \
		      */
#define FILES_WANTED ((rlim_t)1 << 20)
#define FILES_FEW ((rlim_t)16384)
#define LOOP_THREADS 2u /* that libfuse cannot do without, nor with fewer for long */
#define THREADS_MAX 16u /* that read /dev/fuse, each with a buffer */
#define PLAIN_MAX_WRITE (1u << 20)

/* From linux/fuse.h of 6.9, which older systems' headers lack. */
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
		uint64_t unique; /* 0: a notice */
	} head;
	uint32_t count, padding;
	uint64_t spare;
	uint64_t ino[PRUNE_MAX];
};

/* Takes nodes, and their names, out of the kernel's memory where nobody uses them just now. */
static int prune(struct kvfs *f, const struct kvc_tell *v, size_t n)
{
	struct prune p = { .head = { .code = NOTIFY_PRUNE } };

	for (size_t i = 0; i < n; i++) {
		if (v[i].ino && v[i].what != KVC_TELL_NAME)
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
 * Tells the kernel what went. Invalidating a name, the call made for it, waits for the folder's
 * lock where no signal reaches: a daemon killed there, while a client in that folder waits for it,
 * would never end. These wait for nobody:
 * - Attributes made old: the next use of the file asks for them, by whatever name, and learns
 *   ESTALE; then the kernel looks the name up again. A node that the kernel does not know yet may
 *   be in a reply under way: then the epoch.
 * - A prune (6.18): names that nobody holds are forgotten, and with them the nodes, here too.
 * - The epoch (6.16): all names of the mount are looked up again.
 */
static void tell(void *arg, const struct kvc_tell *v, size_t n)
{
	struct kvfs *f = arg;
	bool epoch = false, all;
	uint64_t parent = 0;
	size_t files = 0;

	for (size_t i = 0; i < n; i++) {
		files += v[i].what == KVC_TELL_FILE;
		epoch |= v[i].what == KVC_TELL_FOLDER || v[i].what == KVC_TELL_NAME ||
			 v[i].what == KVC_TELL_KNOCK_ALL ||
			 (v[i].what == KVC_TELL_KNOCK && !f->prunes);
	}
	epoch |= files > EPOCH_FROM;
	all = epoch && f->epochs; /* names are asked for in any case */
	for (size_t i = 0; i < n; i++) {
		if (v[i].ino && v[i].what != KVC_TELL_PRUNE && !(all && v[i].what == KVC_TELL_FILE))
			epoch |= fuse_lowlevel_notify_inval_inode(f->se, v[i].ino, -1, 0) ==
				 -ENOENT;
		if (v[i].parent && v[i].parent != parent) /* they come folder by folder */
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

#ifdef FUSE_CAP_OVER_IO_URING
static bool kernel_allows_uring(void)
{
	FILE *p = fopen("/sys/module/fuse/parameters/enable_uring", "re");
	int c = p ? fgetc(p) : 0;

	if (p)
		fclose(p);
	return c == 'Y' || c == '1';
}
#endif

void kvfs_came(struct kvfs *f, fuse_req_t req)
{
	/* the kernel sends requests by one way only: libfuse has not got its rings up */
	if (f->uring && !kvfs_is_uring(req) && !atomic_exchange(&f->uring_failed, true))
		kvc_warn("requests are read from /dev/fuse: %s", kvfs_uring_why(f));
}

const char *kvfs_uring_why(const struct kvfs *f)
{
	return f->uring ? "libfuse could not start its io_uring queues" : f->uring_why;
}

bool kvfs_by_uring(struct kvfs *f)
{
	return f->uring && !atomic_load(&f->uring_failed);
}

/* Can the kernel do it for us? A try shows: the right to, and the kernel's part, both. */
static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct kvfs *f = userdata;
	const struct kvc_options *o = kvc_cache_options(f->k);
	struct kvc_events ev = { .arg = f, .tell = tell };

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
	/* else the kernel sends one lookup a folder, and all wait for one that a tier is asked */
	fuse_set_feature_flag(conn, FUSE_CAP_PARALLEL_DIROPS);
	/*
	 * Without this the kernel asks for security.capability before every write, passthrough or
	 * not. The engine takes the set-id bits off when a file was written, truncated or given
	 * away.
	 */
	fuse_set_feature_flag(conn, FUSE_CAP_HANDLE_KILLPRIV_V2);
	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_READ);
	conn->max_write = f->uring         ? f->ring.payload
			  : f->passthrough ? PASSTHROUGH_MAX_WRITE
					   : PLAIN_MAX_WRITE;
	conn->max_backing_stack_depth = 1;
	conn->time_gran = 1;
	/* waits end at their deadline; libfuse would keep an interrupt it cannot place for ever */
	conn->no_interrupt = 1;
#ifdef FUSE_CAP_OVER_IO_URING
	f->epochs = conn->proto_major > 7 || conn->proto_minor >= EPOCH_MINOR;
	f->prunes = conn->proto_major > 7 || conn->proto_minor >= PRUNE_MINOR;
	if (f->epochs)
		f->entry_timeout = KVFS_TIMEOUT;
#endif
	ev.holds_names = f->prunes;
	f->miss_timeout = kvc_cache_shares(f->k) ? KVFS_MISS_TIMEOUT : f->entry_timeout;
	ev.kept_ns = f->entry_timeout == KVFS_TIMEOUT ? 0 : (uint64_t)(f->entry_timeout * 1e9);
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
 * Each open file has a descriptor here, and each CPU's ring has two. Root may raise the limit above
 * what it was given, up to fs.nr_open.
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

/* Memory that the machine, or the daemon's cgroup, has beyond the pool. */
static uint64_t memory_beside(const struct kvc_options *o)
{
	uint64_t all = kvc_memory_group_max();
	struct sysinfo machine;

	if (!sysinfo(&machine))
		all = kvc_min(all, (uint64_t)machine.totalram * machine.mem_unit);
	return all - kvc_min(all, o->cpu_bytes);
}

/* Buffers of the threads that read /dev/fuse. */
static uint64_t thread_bytes(const struct kvfs *f, bool uring)
{
	uint64_t most = uring && f->can_passthrough ? KVFS_RING_PAYLOAD : PLAIN_MAX_WRITE;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return THREADS_MAX * (kvc_round_up(most, page) + page);
}

/* What the queues of io_uring may have of memory=. */
static uint64_t ring_most(const struct kvfs *f, const struct kvc_options *o, uint64_t others)
{
	uint64_t left = o->memory_bytes - kvc_min(o->memory_bytes, others + thread_bytes(f, true));

	return o->memory_bytes ? kvc_min(o->memory_bytes / 4, left) : UINT64_MAX;
}

void kvfs_decide(struct kvfs *f, const struct kvc_options *o, uint64_t others)
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
			 !f->can_passthrough, memory_beside(o), ring_most(f, o, others));
#ifdef __SANITIZE_THREAD__
	/* it has mappings of its own for each of ours, and vm.max_map_count is the limit */
	f->ring.depth = kvc_min(f->ring.depth, 1024u);
#endif
#ifdef FUSE_CAP_OVER_IO_URING
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
		 o->io_uring == KVC_OFF ? "io_uring=off" : "this libfuse is older than 3.18");
#endif
	f->request_bytes = thread_bytes(f, f->want_uring) +
			   (f->want_uring ? kvfs_ring_bytes(&f->ring) : 0);
}

static int add(struct fuse_args *args, const char *format, const char *value)
{
	char buf[1600];

	snprintf(buf, sizeof buf, format, value);
	return fuse_opt_add_arg(args, "-o") || fuse_opt_add_arg(args, buf) ? -ENOMEM : 0;
}

/* In the background: what was begun with stderr here goes on without it, and the parent may end. */
static void tell_ready(int ready_fd, bool debug)
{
	char ok = 0;
	int null = open("/dev/null", O_RDWR);

	kvc_log_setup(true, debug);
	if (write(ready_fd, &ok, 1) == 1)
		close(ready_fd);
	for (int fd = 0; fd < 3 && null >= 0; fd++)
		dup2(null, fd);
	if (null > 2)
		close(null);
}

/* Answers requests until the end, which a signal or an unmount makes. */
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
		tell_ready(ready_fd, debug);
	err = kvfs_leave_start(f) ?: kvfs_watch_start(f) ?: fuse_session_loop_mt(f->se, loop);
	kvfs_watch_end();
	kvfs_leave_stop(f);
	fuse_loop_cfg_destroy(loop);
	if (err == -ECONNABORTED) /* unmounted while a request was handed over; ENODEV otherwise */
		return 0;
	return err > 0 ? 0 : err; /* a signal's number is a wanted end */
}

/* A comma in the store's path would end the option there. */
static const char *source_name(const char *store, char *buf, size_t capacity)
{
	snprintf(buf, capacity, "%s", store);
	for (char *p = buf; *p; p++)
		if (*p == ',')
			*p = '_';
	return buf;
}

/*
 * The threads that serve are made after this and inherit it. A caller waits for an answer asleep,
 * so a server runs at once all the same; but a close, for which nobody waits, no longer takes the
 * core from the caller in the middle of its work: two switches of four less for an open and its
 * close (21 us before, 16 after, on the machine where this was measured).
 */
static void serve_as_batch(void)
{
	const struct sched_param none = { 0 };

	if (sched_setscheduler(0, SCHED_BATCH, &none))
		kvc_info("cannot set SCHED_BATCH: %s", strerror(errno));
}

static void *until_let_go(void *barrier)
{
	pthread_mutex_lock(barrier);
	pthread_mutex_unlock(barrier);
	return NULL;
}

/*
 * Can so many more threads be made? libfuse makes one for each CPU's ring and waits for ever where
 * it gets some of them, so it is tried here.
 */
static int try_threads(unsigned want)
{
	pthread_mutex_t barrier = PTHREAD_MUTEX_INITIALIZER;
	KVC_MEM pthread_t *all = calloc(want, sizeof *all);
	unsigned n = 0;
	int err = all ? 0 : -ENOMEM;

	pthread_mutex_lock(&barrier);
	while (!err && n < want)
		if (!(err = -pthread_create(&all[n], NULL, until_let_go, &barrier)))
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

static int mount_on(struct kvfs *f, const char *mountpoint)
{
	if (!fuse_session_mount(f->se, mountpoint))
		return 0;
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
		      ?: add(&args, "fsname=%s,subtype=kvcachefs,default_permissions",
			     source_name(store, source, sizeof source));
	if (!err && o->allow_other)
		err = add(&args, "%s", "allow_other");
	if (!err && *o->generic)
		err = add(&args, "%s", o->generic);
	if (!err && o->atime == KVC_ATIME_NEVER) /* for people: it is the engine that does so */
		err = add(&args, "%s", "noatime");
	if (!err && f->want_uring)
		err = add(&args, "io_uring,io_uring_q_depth=%s", number);
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
	kvfs_aside_init(f);
	f->entry_timeout = KVFS_SHORT_TIMEOUT;
	kvfs_places_init(&f->places, f->ring.depth,
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
	/* Signals are for the thread in the loop; all others are made with them blocked. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	err = kvfs_http_start(f, o);
	if (!err)
		err = kvc_cache_start(f->k);
	if (!err)
		err = try_threads((f->want_uring ? f->ring.queues : 0) + LOOP_THREADS);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!err && !(signals = !fuse_set_signal_handlers(f->se)))
		err = -EINVAL;
	if (!err) {
		err = mount_on(f, mountpoint);
		mounted = !err;
	}
	if (!err) {
		serve_as_batch();
		err = serve(f, ready_fd, o->debug);
	}
	kvfs_http_stop(f);
	kvfs_aside_stop(f);
	kvc_cache_detach(f->k); /* unmounting closes the session's descriptor */
	if (mounted)
		fuse_session_unmount(f->se);
	if (signals)
		fuse_remove_signal_handlers(f->se);
	kvfs_leave_drop(f);
	kvfs_virtual_end(f);
	kvc_cache_stop(f->k);
	kvfs_watch_stop();
	f->left = !kvc_cache_close(f->k);
	kvfs_places_fini(&f->places);
	fuse_session_destroy(f->se);
	return err;
}
