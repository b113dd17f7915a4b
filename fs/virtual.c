/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .kvcachefs/ in the root: not listed there, and made up here. stats, metrics and config are
 * written out at open; control takes a word that begins a sweep (engine/jobs/sweep.c) and shows
 * how it goes; lease is a transaction file (DESIGN section 8): what is written is the list, the
 * first read takes the lease and waits, and closing ends it; trace and events have for who opened
 * them what happened since (engine/report/stream.h), and a read gives what there is, which may be
 * nothing.
 *
 * A descriptor has one position for both. So the answer begins where the list ended, for who reads
 * on from there, and at 0 for who went back first or gives the position himself: the first read
 * tells which.
 */
#include "fs.h"

#include "budget.h"
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
	V_COUNT
};

static void print_config(struct kvfs *f, FILE *out);
static void print_log(struct kvfs *f, FILE *out);

/* Who may write is let in by the kernel; what gives the names of all is for root and the owner. */
static const struct {
	const char *name;
	mode_t mode;
	void (*print)(struct kvc *k, FILE *out);
	int (*stream)(struct kvc *k, struct kvc_stream **out);
	bool names_all;
	void (*print_own)(struct kvfs *f, FILE *out); /* what the engine does not know */
} files[V_COUNT] = {
	[V_DIR] = { ".", S_IFDIR | 0555 },
	[V_STATS] = { "stats", S_IFREG | 0444, kvc_text_stats },
	[V_METRICS] = { "metrics", S_IFREG | 0444, kvc_print_metrics },
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
};

static enum virtual which(uint64_t ino)
{
	return (enum virtual)(ino - KVFS_VIRTUAL);
}

#define CONTROL_MAX 4096
#define LEASE_TEXT_MAX (64u << 20)

/*
 * One is opened, read and closed by different threads; the release is the last. A lease that turns
 * out to be large is the thread's of aside.h from then on: no handler takes its lock any more, nor
 * the answerer.
 */
struct handle {
	struct kvc_list link; /* in open_handles */
	pthread_mutex_t lock;
	atomic_bool large;
	char *text;
	size_t len, capacity;
	size_t charged; /* text.h */
	struct kvc_stream *stream;
	struct kvc_lease *lease;
	bool taken;
	size_t base;           /* the position at which the answer begins */
	struct kvc_asker user; /* who opened it */
};

/*
 * Who names paths. The other groups are to be read where the kernel shows them, which it does
 * not for a caller in a pid namespace that we do not see: then he is in none.
 */
int kvfs_user_of(fuse_req_t req, struct kvc_asker *u)
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

/* The handle takes so much memory now (text.h). 0, -EDQUOT or -ENOMEM; less always goes well. */
static int charge(struct handle *h, size_t bytes)
{
	return kvfs_text_charge(h->user.uid, &h->charged, bytes);
}

/* All there are: when the daemon ends nobody closes them. */
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
	charge(h, 0);
	pthread_mutex_destroy(&h->lock);
	free(h->user.groups);
	free(h->text);
	free(h);
}

/*
 * The kernel gives the handle to whatever thread serves the next call. That orders the two, but
 * nothing in the program says so: this lock does.
 */
static pthread_mutex_t handover = PTHREAD_MUTEX_INITIALIZER;

static void hand_over(struct fuse_file_info *fi, struct handle *h)
{
	pthread_mutex_lock(&handover);
	fi->fh = (uint64_t)(uintptr_t)h;
	pthread_mutex_unlock(&handover);
}

static struct handle *handle_of(const struct fuse_file_info *fi)
{
	struct handle *h;

	pthread_mutex_lock(&handover);
	h = (struct handle *)(uintptr_t)fi->fh;
	pthread_mutex_unlock(&handover);
	return h;
}

void kvfs_virtual_stat(uint64_t ino, struct stat *st)
{
	enum virtual v = which(ino);

	*st = (struct stat){
		.st_ino = ino,
		.st_nlink = v == V_DIR ? 2 : 1,
		.st_blksize = 4096,
		.st_mode = files[v].mode,
		/* what not all may read or write is of whose daemon it is */
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
	fprintf(out, "requests_by=%s\n", kvfs_by_uring(f) ? "io_uring" : "/dev/fuse");
	if (kvfs_by_uring(f))
		fprintf(out,
			"ring_queues=%u\nring_depth=%u\n"
			"ring_payload_bytes=%u\nring_bytes=%llu\nring_waiting=%u\n",
			f->ring.queues, f->ring.depth, f->ring.payload,
			(unsigned long long)kvfs_ring_bytes(&f->ring),
			kvfs_places_taken(&f->places));
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

static int open_as(fuse_req_t req, enum virtual v, int flags, struct handle *h)
{
	uid_t uid = h->user.uid = fuse_req_ctx(req)->uid;

	if ((flags & O_ACCMODE) != O_RDONLY && !(files[v].mode & 0200))
		return EACCES;
	if (files[v].names_all && uid && uid != geteuid())
		return EACCES;
	if (v == V_LEASE) {
		h->user.ends = &kvfs_of(req)->aside.ends;
		return kvfs_user_of(req, &h->user);
	}
	return files[v].stream ? -files[v].stream(kvfs_of(req)->k, &h->stream) : 0;
}

/*
 * Nobody else knows the handle yet: what it shows is written without the lock. It is his who opened
 * it until he closes it, with what the handle itself takes.
 */
static int write_out(struct kvfs *f, enum virtual v, struct handle *h)
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
	return fclose(out) || !h->text ? ENOMEM : -charge(h, sizeof *h + h->len);
}

void kvfs_virtual_open(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi)
{
	enum virtual v = which(ino);
	struct handle *h = handle_new();

	kvfs_came(kvfs_of(req), req);
	int err = h ? open_as(req, v, fi->flags, h) : ENOMEM;

	err = err ?: write_out(kvfs_of(req), v, h);
	if (err) {
		if (h && h->stream)
			kvc_stream_close(kvfs_of(req)->k, h->stream);
		if (h)
			handle_free(h);
		fuse_reply_err(req, err);
		return;
	}
	hand_over(fi, h);
	fi->direct_io = 1;
	fuse_reply_open(req, fi);
}

/*
 * A copy of what a read asks for: the text goes with the release, which may come right behind the
 * reply.
 */
static size_t copy_part(const char *text, size_t len, size_t size, off_t off, char **part)
{
	size_t at = (size_t)off < len ? (size_t)off : len, n = len - at < size ? len - at : size;

	*part = malloc(n ? n : 1);
	if (*part && n)
		memcpy(*part, text + at, n);
	return *part ? n : 0;
}

static void reply_part(fuse_req_t req, char *part, size_t n)
{
	if (part)
		fuse_reply_buf(req, part, n);
	else
		fuse_reply_err(req, ENOMEM);
	free(part);
}

/* Locks it, for a handler; false: it is large. */
static bool enter(struct handle *h)
{
	const struct timespec moment = { .tv_nsec = 50000 };

	while (!atomic_load(&h->large)) {
		if (!pthread_mutex_trylock(&h->lock)) {
			if (!atomic_load(&h->large))
				return true;
			pthread_mutex_unlock(&h->lock);
		} else {
			nanosleep(&moment, NULL); /* another handler has it, or it is large now */
		}
	}
	return false;
}

static size_t lines(const char *list, size_t len)
{
	const char *end = list + len;
	size_t n = 1;

	while ((list = memchr(list, '\n', (size_t)(end - list)))) {
		list++;
		n++;
	}
	return n;
}

/*
 * Takes the lease for what was written; off: of the first read. -EAGAIN: it is large, and not
 * taken.
 */
static int take(struct kvfs *f, struct handle *h, off_t off)
{
	bool quick = !atomic_load(&h->large);
	static const char *const words[] = {
		[KVC_LEASE_PREFETCH] = "prefetch\n", [KVC_LEASE_LOOK] = "look\n"
	};
	const char *list = h->text;
	size_t len = h->len;
	enum kvc_lease_mode mode = KVC_LEASE_HOLD;
	int err;

	if (h->taken)
		return h->lease ? 0 : -EINVAL;
	for (unsigned m = KVC_LEASE_PREFETCH; m <= KVC_LEASE_LOOK; m++)
		if (len >= strlen(words[m]) && !memcmp(list, words[m], strlen(words[m]))) {
			mode = m;
			list += strlen(words[m]);
			len -= strlen(words[m]);
			break;
		}
	h->base = (size_t)off == h->len ? h->len : 0;
	if (quick && len && lines(list, len) > KVC_LEASE_QUICK)
		err = -EAGAIN;
	else
		err = len ? kvc_lease_new(f->k, list, len, mode, &h->user,
					  kvfs_text_left(h->user.uid), quick, &h->lease)
			  : -EINVAL;
	if (err == -EAGAIN && quick) {
		atomic_store(&h->large, true);
		return err;
	}
	h->taken = true;
	free(h->text); /* what is left is the answer, which the lease has */
	h->text = NULL;
	h->capacity = 0;
	if (!err && (err = charge(h, kvc_lease_bytes(h->lease)))) {
		kvc_lease_free(f->k, h->lease);
		h->lease = NULL;
	}
	if (err)
		charge(h, 0);
	return err;
}

static void read_large(struct call *c);

/* To the thread aside, whose queue is a wait: without a place it ends as at its deadline. */
static void put_aside(struct call *c)
{
	if (kvfs_place(c)) {
		kvfs_aside(&c->f->aside, c, read_large);
		return;
	}
	kvc_count(kvc_cache_stats(c->f->k), waits_refused);
	fuse_reply_err(c->req, ETIMEDOUT);
	kvfs_done(c);
}

/* Answers, or waits for what is loading. Under h->lock, which is let go. */
static void read_lease(struct call *c, struct handle *h)
{
	const char *text = NULL;
	char *part = NULL;
	size_t len = 0;
	bool was_large = atomic_load(&h->large); /* then it is not tried elsewhere once more */
	int err = take(c->f, h, c->off);

	if (err != -EAGAIN && (size_t)c->off < h->base)
		h->base = 0; /* gone back to read it all again */
	err = err ?: kvc_lease_text(c->f->k, h->lease, &text, &len, &c->w);
	if (!err)
		len = copy_part(text, len, (size_t)c->len, c->off - (off_t)h->base, &part);
	pthread_mutex_unlock(&h->lock);
	if (kvfs_waits(c, &err))
		return;
	if (err == -EAGAIN && !was_large) {
		put_aside(c);
		return;
	}
	if (err)
		fuse_reply_err(c->req, kvfs_errno(err));
	else
		reply_part(c->req, part, len);
	kvfs_done(c);
}

static void run_read(struct call *c)
{
	struct handle *h = handle_of(&c->fi);

	if (enter(h))
		read_lease(c, h);
	else
		put_aside(c);
}

/* In the thread aside; when it waits and is woken, the answerer brings it back here. */
static void read_large(struct call *c)
{
	struct handle *h = handle_of(&c->fi);

	if (atomic_load(&c->f->aside.ends)) {
		fuse_reply_err(c->req, ENOTCONN);
		kvfs_done(c);
		return;
	}
	pthread_mutex_lock(&h->lock);
	read_lease(c, h);
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
	reply_part(req, part, n);
}

void kvfs_virtual_read(fuse_req_t req, uint64_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	struct handle *h = handle_of(fi);
	struct call *c;

	if (h->stream) {
		read_stream(req, h, size);
		return;
	}
	if (which(ino) != V_LEASE) {
		char *part = NULL;
		size_t n;

		pthread_mutex_lock(&h->lock);
		n = copy_part(h->text, h->len, size, off, &part);
		pthread_mutex_unlock(&h->lock);
		reply_part(req, part, n);
		return;
	}
	c = kvfs_call(req, ino, run_read, NULL, NULL);
	if (!c)
		return;
	c->fi = *fi;
	c->off = off;
	c->len = (off_t)size;
	c->run(c);
}

/*
 * One command a write; its end, if it takes time, is seen by opening the file anew. What there is
 * to say at once is read by the same descriptor.
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
	struct handle *h = handle_of(fi);
	int err = 0;

	(void)off;
	if (which(ino) == V_CONTROL) {
		control(req, h, buf, size);
		return;
	}
	if (!enter(h)) {
		fuse_reply_err(req, EBUSY);
		return;
	}
	if (h->taken)
		err = EBUSY; /* one list an open */
	else if (h->len + size > LEASE_TEXT_MAX)
		err = EFBIG;
	while (!err && h->len + size > h->capacity) {
		size_t more = h->capacity ? 2 * h->capacity : 4096;
		char *p = (err = -charge(h, more)) ? NULL : realloc(h->text, more);

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

/* Nobody waits for it: no call on it is under way. */
static void release(struct kvfs *f, struct handle *h)
{
	if (h->lease)
		kvc_lease_free(f->k, h->lease);
	if (h->stream)
		kvc_stream_close(f->k, h->stream);
	handle_free(h);
}

static bool asks_by_closing(const struct handle *h)
{
	return !h->taken && h->len > 9 && !memcmp(h->text, "prefetch\n", 9);
}

static void release_large(struct call *c)
{
	struct handle *h = handle_of(&c->fi);

	if (asks_by_closing(h))
		take(c->f, h, 0);
	release(c->f, h);
	fuse_reply_err(c->req, 0);
	kvfs_done(c);
}

void kvfs_virtual_release(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi)
{
	struct handle *h = handle_of(fi);
	struct kvfs *f = kvfs_of(req);
	struct call *c;

	pthread_mutex_lock(&h->lock); /* for what other threads have done */
	if (which(ino) == V_LEASE && asks_by_closing(h))
		take(f, h, 0);
	pthread_mutex_unlock(&h->lock);
	if (!atomic_load(&h->large)) {
		release(f, h);
		fuse_reply_err(req, 0);
	} else if ((c = kvfs_call(req, ino, run_read, NULL, NULL))) {
		c->fi = *fi;
		kvfs_aside(&f->aside, c, release_large);
	} else {
		release(f, h);
	}
}

void kvfs_virtual_end(struct kvfs *f)
{
	while (!kvc_list_empty(&open_handles.list))
		release(f, kvc_of(open_handles.list.next, struct handle, link));
}
