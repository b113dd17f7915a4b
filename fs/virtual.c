/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The virtual folder .kvcachefs/ in the root, which listings do not show.
 *
 * Most files, such as stats, metrics and config, have their text written at open. control accepts a
 * command that starts a sweep (engine/jobs/sweep.c), and shows its progress. lease is a transaction
 * file: writes give the list of paths, the first read takes the lease and waits, and close ends the
 * lease. cluster works alike: writes give a request, and the first read sends it to all nodes.
 * trace and events deliver the events since the open (engine/report/stream.h); a read returns the
 * available events, which may be none. The leases are in virtual_lease.c.
 */
#include "virtual_priv.h"

#include "cluster.h"
#include "log.h"
#include "text.h"
#include "util.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum virtual {
	V_DIR,
	V_STATS,
	V_METRICS,
	V_CONFIG,
	V_LEASE,
	V_CONTROL,
	V_POLICIES,
	V_TRACE,
	V_MODELS,
	V_LOG,
	V_EVENTS,
	V_SLOWEST,
	V_TIERS,
	V_LOCKS,
	V_TENANTS,
	V_DEVICES,
	V_CLUSTER,
	V_COUNT
};

static void print_config(struct kvfs *f, FILE *out);
static void print_log(struct kvfs *f, FILE *out);

/*
 * The kernel checks write permission by the mode. names_all: the text has names that belong to all
 * users, and only root and the daemon's owner may open the file.
 */
static const struct {
	const char *name;
	mode_t mode;
	void (*print)(struct kvc *k, FILE *out);
	int (*stream)(struct kvc *k, struct kvc_stream **out);
	bool names_all;
	/* prints state of fs/ that the engine does not have */
	void (*print_own)(struct kvfs *f, FILE *out);
} files[V_COUNT] = {
	[V_DIR] = { ".", S_IFDIR | 0555 },
	[V_STATS] = { "stats", S_IFREG | 0444, kvc_text_stats },
	[V_METRICS] = { "metrics", S_IFREG | 0444, .print_own = kvfs_print_metrics },
	[V_CONFIG] = { "config", S_IFREG | 0444, .print_own = print_config },
	[V_LEASE] = { "lease", S_IFREG | 0666 },
	[V_CONTROL] = { "control", S_IFREG | 0600, kvc_sweep_print },
	[V_POLICIES] = { "policies", S_IFREG | 0444, kvc_text_policies },
	[V_TRACE] = { "trace", S_IFREG | 0400, NULL, kvc_trace_open, true },
	[V_MODELS] = { "models", S_IFREG | 0400, kvc_print_models, NULL, true },
	[V_LOG] = { "log", S_IFREG | 0400, .print_own = print_log, .names_all = true },
	[V_EVENTS] = { "events", S_IFREG | 0400, NULL, kvc_events_open, true },
	[V_SLOWEST] = { "slowest", S_IFREG | 0400, kvc_status_print_slowest, NULL, true },
	[V_TIERS] = { "tiers", S_IFREG | 0444, kvc_status_print_tiers },
	[V_LOCKS] = { "locks", S_IFREG | 0444, kvc_text_locks },
	[V_TENANTS] = { "tenants", S_IFREG | 0400, kvc_print_tenants, NULL, true },
	[V_DEVICES] = { "devices", S_IFREG | 0444, kvc_status_print_devices },
	[V_CLUSTER] = { "cluster", S_IFREG | 0600, .names_all = true },
};

static enum virtual file_of(uint64_t ino)
{
	return (enum virtual)(ino - KVFS_VIRTUAL);
}

#define CONTROL_MAX 4096
#define LEASE_TEXT_MAX (64u << 20)

/*
 * Fills in the identity of a caller that names paths. The kernel does not show the supplementary
 * groups of a caller in a PID namespace that the daemon does not see; such a caller is treated as a
 * member of none.
 */
int kvfs_asker(fuse_req_t req, struct kvc_asker *u)
{
	static atomic_flag told = ATOMIC_FLAG_INIT;
	int capacity = 0, n = 0;

	if (!fuse_req_ctx(req)->pid && fuse_req_ctx(req)->uid && !atomic_flag_test_and_set(&told))
		kvc_warn(
			"user %u names paths from another PID namespace, so only its primary group "
			"is checked: run the daemon in the machine's PID namespace (hostPID)",
			(unsigned)fuse_req_ctx(req)->uid);
	u->uid = fuse_req_ctx(req)->uid;
	u->gid = fuse_req_ctx(req)->gid;
	while (u->uid && (n = fuse_req_getgroups(req, capacity, u->groups)) > capacity) {
		free(u->groups);
		u->groups = calloc((size_t)n, sizeof *u->groups);
		if (!u->groups)
			return ENOMEM;
		capacity = n;
		u->ngroups = 0;
	}
	u->ngroups = u->uid && n > 0 ? (size_t)n : 0;
	return 0;
}

int kvfs_handle_charge(struct handle *h, size_t bytes)
{
	return kvfs_text_charge(h->user.uid, &h->charged, bytes);
}

/* All open handles: at the end of the daemon, nobody else closes them. */
static struct {
	pthread_mutex_t lock; /* a leaf */
	struct kvc_list list;
} open_handles = { PTHREAD_MUTEX_INITIALIZER, { &open_handles.list, &open_handles.list } };

static struct handle *handle_new(void)
{
	struct handle *h = calloc(1, sizeof *h);

	if (!h)
		return NULL;
	pthread_mutex_init(&h->lock, NULL);
	pthread_mutex_lock(&open_handles.lock);
	kvc_list_add_tail(&open_handles.list, &h->link);
	pthread_mutex_unlock(&open_handles.lock);
	return h;
}

static void handle_free(struct handle *h)
{
	pthread_mutex_lock(&open_handles.lock);
	kvc_list_del(&h->link);
	pthread_mutex_unlock(&open_handles.lock);
	kvfs_handle_charge(h, 0);
	pthread_mutex_destroy(&h->lock);
	free(h->user.groups);
	free(h->text);
	free(h);
}

/*
 * The kernel passes the handle to the thread that serves the next call, and thereby orders the two
 * threads. TSan does not see that, so this lock establishes the order.
 */
static pthread_mutex_t handover = PTHREAD_MUTEX_INITIALIZER;

static void set_handle(struct fuse_file_info *fi, struct handle *h)
{
	pthread_mutex_lock(&handover);
	fi->fh = (uint64_t)(uintptr_t)h;
	pthread_mutex_unlock(&handover);
}

struct handle *kvfs_handle_of(const struct fuse_file_info *fi)
{
	struct handle *h;

	pthread_mutex_lock(&handover);
	h = (struct handle *)(uintptr_t)fi->fh;
	pthread_mutex_unlock(&handover);
	return h;
}

void kvfs_virtual_stat(uint64_t ino, struct stat *st)
{
	enum virtual v = file_of(ino);

	*st = (struct stat){
		.st_ino = ino,
		.st_nlink = v == V_DIR ? 2 : 1,
		.st_blksize = 4096,
		.st_mode = files[v].mode,
		/* restricted files belong to the daemon's user */
		.st_uid = files[v].mode & 044 ? 0 : geteuid(),
	};
	clock_gettime(CLOCK_REALTIME, &st->st_mtim);
	st->st_ctim = st->st_atim = st->st_mtim;
}

bool kvfs_virtual_lookup(fuse_req_t req, uint64_t parent, const char *name)
{
	struct fuse_entry_param e = { .entry_timeout = KVFS_TIMEOUT, .attr_timeout = 1 };

	if (parent == KVC_ROOT && !strcmp(name, ".kvcachefs"))
		e.ino = KVFS_VIRTUAL;
	else if (parent != KVFS_VIRTUAL)
		return false;
	for (unsigned v = 1; v < V_COUNT && !e.ino; v++)
		if (!strcmp(name, files[v].name))
			e.ino = KVFS_VIRTUAL + v;
	if (e.ino) {
		kvfs_virtual_stat(e.ino, &e.attr);
		fuse_reply_entry(req, &e);
	} else {
		fuse_reply_err(req, ENOENT);
	}
	return true;
}

void kvfs_virtual_getattr(fuse_req_t req, uint64_t ino)
{
	struct stat st;

	kvfs_virtual_stat(ino, &st);
	fuse_reply_attr(req, &st, 1);
}

void kvfs_virtual_readdir(fuse_req_t req, uint64_t ino, size_t size, off_t off)
{
	char buf[1024];
	size_t used = 0;

	size = size < sizeof buf ? size : sizeof buf;
	for (off_t i = off; i <= V_COUNT; i++) {
		const char *name = i == 1 ? ".." : files[i ? i - 1 : 0].name;
		struct stat st = {
			.st_ino = i == 1 ? KVC_ROOT
				  : i    ? ino + (uint64_t)i - 1
					 : ino,
			.st_mode = i < 2 ? S_IFDIR : S_IFREG,
		};
		size_t n = fuse_add_direntry(req, buf + used, size - used, name, &st, i + 1);

		if (n > size - used)
			break;
		used += n;
	}
	fuse_reply_buf(req, buf, used);
}

static void print_config(struct kvfs *f, FILE *out)
{
	kvc_text_config(f->k, out);
	fprintf(out, "mountpoint=%s\nserved_by=%s\n", f->mountpoint,
		f->passthrough ? "passthrough" : "plain requests");
	if (!f->passthrough)
		fprintf(out, "passthrough_is_off=%s\n", f->passthrough_why);
	fprintf(out, "requests_by=%s\n", kvfs_uses_uring(f) ? "io_uring" : "/dev/fuse");
	if (kvfs_uses_uring(f))
		fprintf(out,
			"ring_queues=%u\nring_depth=%u\n"
			"ring_payload_bytes=%u\nring_bytes=%llu\nring_waiting=%u\n",
			f->ring.queues, f->ring.depth, f->ring.payload,
			(unsigned long long)kvfs_ring_bytes(&f->ring),
			kvfs_wait_slots_used(&f->slots));
	else
		fprintf(out, "io_uring_is_off=%s\n", kvfs_uring_why(f));
	fprintf(out, "names_kept_seconds=%.0f\n", f->entry_timeout);
	fprintf(out, "names_told=%s\n", f->prunes ? "singly" : f->epochs ? "by epoch" : "not");
	fprintf(out, "libfuse=%s\nversion=%s\n", fuse_pkgversion(), KVC_VERSION);
}

static void print_log(struct kvfs *f, FILE *out)
{
	(void)f;
	kvc_log_print(out);
}

static int open_checked(fuse_req_t req, enum virtual v, int flags, struct handle *h)
{
	uid_t uid = h->user.uid = fuse_req_ctx(req)->uid;

	if ((flags & O_ACCMODE) != O_RDONLY && !(files[v].mode & 0200))
		return EACCES;
	if (files[v].names_all && uid && uid != geteuid())
		return EACCES;
	if (v == V_LEASE) {
		h->user.ends = &kvfs_of(req)->lease_worker.ends;
		return kvfs_asker(req, &h->user);
	}
	return files[v].stream ? -files[v].stream(kvfs_of(req)->k, &h->stream) : 0;
}

/*
 * Writes the file's text into the new handle, which no other thread knows yet, and charges it to
 * the user until the release. Returns 0 or a positive errno.
 */
static int write_text(struct kvfs *f, enum virtual v, struct handle *h)
{
	FILE *out;

	if (!files[v].print && !files[v].print_own)
		return 0;
	if (!(out = open_memstream(&h->text, &h->len)))
		return ENOMEM;
	if (files[v].print)
		files[v].print(f->k, out);
	else
		files[v].print_own(f, out);
	return fclose(out) || !h->text ? ENOMEM : -kvfs_handle_charge(h, sizeof *h + h->len);
}

void kvfs_virtual_open(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi)
{
	enum virtual v = file_of(ino);
	struct handle *h = handle_new();

	kvfs_note_transport(kvfs_of(req), req);
	int err = h ? open_checked(req, v, fi->flags, h) : ENOMEM;

	err = err ?: write_text(kvfs_of(req), v, h);
	if (err) {
		if (h && h->stream)
			kvc_stream_close(kvfs_of(req)->k, h->stream);
		if (h)
			handle_free(h);
		fuse_reply_err(req, err);
		return;
	}
	set_handle(fi, h);
	fi->direct_io = 1;
	fuse_reply_open(req, fi);
}

size_t kvfs_copy_part(const char *text, size_t len, size_t size, off_t off, char **part)
{
	size_t at = (size_t)off < len ? (size_t)off : len, n = len - at < size ? len - at : size;

	*part = malloc(n ? n : 1);
	if (*part && n)
		memcpy(*part, text + at, n);
	return *part ? n : 0;
}

void kvfs_reply_part(fuse_req_t req, char *part, size_t n)
{
	if (part)
		fuse_reply_buf(req, part, n);
	else
		fuse_reply_err(req, ENOMEM);
	free(part);
}

bool kvfs_handle_lock(struct handle *h)
{
	const struct timespec moment = { .tv_nsec = 50000 };

	while (atomic_load(&h->list) == LIST_QUICK) {
		if (!pthread_mutex_trylock(&h->lock)) {
			if (atomic_load(&h->list) == LIST_QUICK)
				return true;
			pthread_mutex_unlock(&h->lock);
		} else {
			/* another handler has the lock, or a worker takes the lease now */
			nanosleep(&moment, NULL);
		}
	}
	return false;
}

void kvfs_defer_read(struct kvfs_worker *worker, struct call *c, void (*run)(struct call *c))
{
	if (kvfs_call_slot(c)) {
		kvfs_defer(worker, c, run);
		return;
	}
	kvc_count(kvc_cache_stats(c->f->k), waits_refused);
	fuse_reply_err(c->req, ETIMEDOUT);
	kvfs_call_free(c);
}

/*
 * Asks the nodes. The caller holds h->lock, so that other calls for this file wait for the answer.
 */
static int ask_cluster(struct kvfs *f, struct handle *h)
{
	char *text = NULL;
	size_t len = 0;
	int err = kvfs_handle_charge(h, h->capacity + kvfs_cluster_bytes(f));

	h->tried = true;
	err = err ?: kvfs_cluster_run(f, h->text ?: "", h->len, &text, &len);
	free(h->text);
	h->text = text;
	h->len = h->capacity = len;
	kvfs_handle_charge(h, len);
	return err;
}

/* In the cluster worker, or in a handler's thread if the worker has ended. */
static void read_in_cluster_worker(struct call *c)
{
	struct handle *h = kvfs_handle_of(&c->fi);
	char *part = NULL;
	size_t len = 0;
	int err = atomic_load(&c->f->cluster_worker.ends) ? -ENOTCONN : 0;

	if (!err) {
		pthread_mutex_lock(&h->lock);
		err = h->tried ? 0 : ask_cluster(c->f, h);
		if (!err)
			len = kvfs_copy_part(h->text, h->len, (size_t)c->len, c->off, &part);
		pthread_mutex_unlock(&h->lock);
	}
	if (err)
		fuse_reply_err(c->req, kvfs_errno(err));
	else
		kvfs_reply_part(c->req, part, len);
	kvfs_call_free(c);
}

static void run_read_cluster(struct call *c)
{
	/* from now on handlers refuse writes, and do not wait for the worker */
	atomic_store(&kvfs_handle_of(&c->fi)->list, LIST_MIDDLE);
	kvfs_defer_read(&c->f->cluster_worker, c, read_in_cluster_worker);
}

static void read_stream(fuse_req_t req, struct handle *h, size_t size)
{
	char *part = malloc(size);
	size_t n = 0;
	int err = -ENOMEM;

	pthread_mutex_lock(&h->lock);
	if (part)
		err = kvc_stream_read(kvfs_of(req)->k, h->stream, part, size, &n);
	pthread_mutex_unlock(&h->lock);
	if (err) {
		free(part);
		part = NULL;
	}
	kvfs_reply_part(req, part, n);
}

void kvfs_virtual_read(fuse_req_t req, uint64_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	struct handle *h = kvfs_handle_of(fi);
	struct call *c;

	if (h->stream) {
		read_stream(req, h, size);
		return;
	}
	if (file_of(ino) != V_LEASE && file_of(ino) != V_CLUSTER) {
		char *part = NULL;
		size_t n;

		pthread_mutex_lock(&h->lock);
		n = kvfs_copy_part(h->text, h->len, size, off, &part);
		pthread_mutex_unlock(&h->lock);
		kvfs_reply_part(req, part, n);
		return;
	}
	c = kvfs_call_new(req, ino, file_of(ino) == V_LEASE ? kvfs_lease_read : run_read_cluster,
			  NULL, NULL);
	if (!c)
		return;
	c->fi = *fi;
	c->off = off;
	c->len = (off_t)size;
	c->run(c);
}

/*
 * Executes one command per write. Output that is available at once can be read from the same
 * descriptor; the result of a long command is read by opening the file again.
 */
static void control(fuse_req_t req, struct handle *h, const char *buf, size_t size)
{
	KVC_MEM char *words = strndup(buf, size);
	char *text = NULL;
	size_t len = 0;
	FILE *answer = words && size < CONTROL_MAX ? open_memstream(&text, &len) : NULL;
	int err;

	if (!answer) {
		fuse_reply_err(req, size < CONTROL_MAX ? ENOMEM : EINVAL);
		return;
	}
	words[strcspn(words, "\n")] = 0;
	err = kvc_control(kvfs_of(req)->k, words, answer);
	fclose(answer);
	pthread_mutex_lock(&h->lock);
	free(h->text);
	h->text = text;
	h->len = text ? len : 0;
	pthread_mutex_unlock(&h->lock);
	if (err)
		fuse_reply_err(req, kvfs_errno(err));
	else
		fuse_reply_write(req, size);
}

void kvfs_virtual_write(fuse_req_t req, uint64_t ino, const char *buf, size_t size, off_t off,
			struct fuse_file_info *fi)
{
	struct handle *h = kvfs_handle_of(fi);
	int err = 0;

	(void)off;
	if (file_of(ino) == V_CONTROL) {
		control(req, h, buf, size);
		return;
	}
	if (!kvfs_handle_lock(h)) {
		fuse_reply_err(req, EBUSY);
		return;
	}
	if (h->tried)
		err = EBUSY; /* one list per open */
	else if (h->len + size > LEASE_TEXT_MAX)
		err = EFBIG;
	while (!err && h->len + size > h->capacity) {
		size_t more = h->capacity ? 2 * h->capacity : 4096;
		char *p = (err = -kvfs_handle_charge(h, more)) ? NULL : realloc(h->text, more);

		if (!p) {
			err = err ?: ENOMEM;
		} else {
			h->text = p;
			h->capacity = more;
		}
	}
	if (!err && size) {
		memcpy(h->text + h->len, buf, size);
		h->len += size;
	}
	pthread_mutex_unlock(&h->lock);
	if (err)
		fuse_reply_err(req, err);
	else
		fuse_reply_write(req, size);
}

void kvfs_handle_close(struct kvfs *f, struct handle *h)
{
	if (h->lease)
		kvc_lease_free(f->k, h->lease);
	if (h->stream)
		kvc_stream_close(f->k, h->stream);
	handle_free(h);
}

void kvfs_virtual_release(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi)
{
	struct handle *h = kvfs_handle_of(fi);
	struct kvfs *f = kvfs_of(req);
	struct call *c;

	pthread_mutex_lock(&h->lock); /* to see the changes of other threads */
	if (file_of(ino) == V_LEASE && kvfs_lease_is_prefetch(h))
		kvfs_lease_take(f, h, 0);
	pthread_mutex_unlock(&h->lock);
	if (atomic_load(&h->list) == LIST_QUICK && (!h->lease || kvc_lease_started(h->lease))) {
		kvfs_handle_close(f, h);
		fuse_reply_err(req, 0);
	} else if ((c = kvfs_call_new(req, ino, kvfs_lease_release, NULL, NULL))) {
		c->fi = *fi;
		c->w.uid = h->user.uid;
		c->run(c);
	} else {
		kvfs_handle_close(f, h);
	}
}

void kvfs_virtual_close_all(struct kvfs *f)
{
	while (!kvc_list_empty(&open_handles.list))
		kvfs_handle_close(f, kvc_of(open_handles.list.next, struct handle, link));
}
