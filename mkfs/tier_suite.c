/* SPDX-License-Identifier: Apache-2.0 */
/* The conformance suite of shared tiers; see tier_suite.h. */
#include "tier_suite.h"

#include "util.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define DATA (48u << 20)
#define THREADS 8
#define TOP "kvcachefs-tier-test"

static const uint8_t store[16] = "conformance....";
static const uint64_t sizes[] = {
	0,
	1,
	4095,
	4096,
	65536,
	65537,
	1 << 20,
	(4 << 20) + 5,
	(16 << 20) - 4096,
	(16 << 20) + 1,
	(40 << 20) + 4097,
};
#define SIZES (sizeof sizes / sizeof sizes[0])

struct suite {
	struct kvm_tier_suite *s;
	struct kvc_tier *t;
	uint8_t *data;
	int failures;
};

static void check_that(struct suite *u, bool passed, const char *what)
{
	u->failures += !passed;
	u->s->report(u->s->arg, passed, what);
}

struct body {
	const uint8_t *data;
	struct kvc_frame f;
	int fail; /* the error of the last read; 0: none */
};

static int body_read(void *arg, void *buf, size_t len, uint64_t off)
{
	struct body *b = arg;

	if (b->fail && off + len == b->f.stored_len)
		return b->fail;
	memcpy(buf, b->data + off, len);
	return 0;
}

static int body_head(void *arg, uint8_t page[KVC_FRAME_HEADER])
{
	kvc_frame_encode(&((struct body *)arg)->f, page);
	return 0;
}

/* Waits until the file has arrived, since close() does not wait. */
static int node_publish(const char *name)
{
	char state[32];
	ssize_t n;

	for (int i = 0; i < 10000; i++) {
		n = getxattr(name, "user.kvcachefs.state", state, sizeof state);
		if (n < 0)
			return -errno;
		if (n < 4 || memcmp(state, "open", 4) != 0)
			return 0;
		usleep(1000);
	}
	return -ETIMEDOUT;
}

/*
 * Stores a frame as a file on the node. The seconds of its mtime are the generation. A file of the
 * same name is replaced at once, as by engines.
 */
static int node_put(const char *node, const char *path, uint64_t gen, const uint8_t *data,
		    uint64_t len)
{
	const struct timespec times[2] = { { (time_t)gen, 0 }, { (time_t)gen, 0 } };
	char name[256], temp[300];
	int fd, err;

	snprintf(name, sizeof name, "%s/%s", node, path);
	for (char *p = name + strlen(node) + 1; (p = strchr(p, '/')); *p++ = '/') {
		*p = 0;
		if (mkdir(name, 0755) && errno != EEXIST)
			return -errno;
	}
	snprintf(temp, sizeof temp, "%s.tmp.%llx", name, (unsigned long long)pthread_self());
	fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	err = len ? kvc_pwrite_all(fd, data, len, 0) : 0;
	if (!err && (futimens(fd, times) || rename(temp, name)))
		err = -errno;
	close(fd);
	return err ?: node_publish(name);
}

static int suite_put(struct suite *u, const char *path, uint64_t gen, const uint8_t *data,
		     uint64_t len, int fail, struct kvc_where *w)
{
	KVC_MEM struct body *b = calloc(1, sizeof *b);
	struct kvc_put p = {
		.ino = 7,
		.gen = gen,
		.stored_len = len,
		.name = kvc_frame_where_of(path),
		.arg = b,
		.read = body_read,
		.head = body_head,
	};

	if (!b)
		return -ENOMEM;
	if (u->s->node) {
		*w = p.name;
		w->len = KVC_FRAME_HEADER + kvc_round_up(len, KVC_PAGE);
		return node_put(u->s->node, path, gen, data, len);
	}
	b->data = data;
	b->fail = fail;
	memcpy(b->f.store, store, 16);
	b->f.ino = 7;
	b->f.gen = gen;
	b->f.flags = KVC_FRAME_SHARED;
	b->f.size = b->f.raw_len = b->f.stored_len = len;
	b->f.stored_sum = b->f.raw_sum = kvc_sum_of(data, len);
	snprintf(b->f.path, sizeof b->f.path, "%s", path);
	return u->t->ops->put(u->t, &p, w);
}

/*
 * Reads the frame at a path. Returns its generation, 0 if it does not exist, -1 if it is not whole.
 */
static long suite_get(struct suite *u, const char *path, uint64_t len, const uint8_t *want)
{
	uint64_t span = kvc_round_up(len, KVC_PAGE);
	KVC_MEM uint8_t *page = aligned_alloc(4096, 4096), *back = aligned_alloc(4096, span + 4096);
	struct iovec iov[2] = { { page, 4096 }, { back, span } };
	struct kvc_where w = kvc_frame_where_of(path);
	KVC_MEM struct kvc_frame *f = calloc(1, sizeof *f);
	long gen = -1;
	int err;

	if (!page || !back || !f)
		return -1;
	err = kvc_tier_get(u->t, &w, path, 0, iov, len ? 2 : 1);
	if (err == -ENOENT)
		return 0;
	if (!err && !kvc_frame_decode(page, f) && f->stored_len == len && !strcmp(f->path, path) &&
	    !memcmp(back, want, len)) {
		gen = (long)(u->s->node ? f->mtime_ns / 1000000000 : f->gen);
		for (uint64_t i = len; i < span; i++)
			if (back[i])
				gen = -1;
	}
	return gen;
}

static int suite_remove(struct suite *u, const char *path)
{
	struct kvc_where w = kvc_frame_where_of(path);
	char name[256];

	if (!u->s->node)
		return u->t->ops->remove(u->t, &w);
	snprintf(name, sizeof name, "%s/%s", u->s->node, path);
	return !unlink(name) || errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
}

static const char *path_of(char path[128], size_t i)
{
	snprintf(path, 128, TOP "/chunk %zu/\xc3\xa4%%&?#+", i);
	return path;
}

/* Frames of all sizes, stored and read back. */
static void check_sizes(struct suite *u)
{
	struct kvc_where w = { 0 }, named;
	char path[128], what[128];

	for (size_t i = 0; i < SIZES; i++) {
		path_of(path, i);
		named = kvc_frame_where_of(path);
		snprintf(what, sizeof what, "a frame of %llu bytes is stored",
			 (unsigned long long)sizes[i]);
		check_that(u,
			   suite_get(u, path, sizes[i], u->data) == 0 &&
				   suite_put(u, path, 1, u->data, sizes[i], 0, &w) == 0 &&
				   w.len == KVC_FRAME_HEADER + kvc_round_up(sizes[i], KVC_PAGE) &&
				   kvc_tier_same_name(&w, &named),
			   what);
		snprintf(what, sizeof what, "a frame of %llu bytes is read back whole",
			 (unsigned long long)sizes[i]);
		check_that(u, suite_get(u, path, sizes[i], u->data) == 1, what);
	}
}

/* Parts of the largest frame, and bytes beyond its end. */
static void check_parts(struct suite *u)
{
	KVC_MEM uint8_t *buf = aligned_alloc(4096, 1 << 20);
	struct iovec some = { buf, 8192 }, many = { buf, 1 << 20 };
	char path[128];
	struct kvc_where w = kvc_frame_where_of(path_of(path, SIZES - 1));
	uint64_t end = KVC_FRAME_HEADER + kvc_round_up(sizes[SIZES - 1], KVC_PAGE);

	check_that(u,
		   buf && !kvc_tier_get(u->t, &w, path, KVC_FRAME_HEADER + (8 << 20), &some, 1) &&
			   !memcmp(buf, u->data + (8 << 20), 8192),
		   "a part of a frame is read");
	/* the end of a frame that another node has just replaced is read as zeros */
	if (!u->s->node)
		end -= 4096;
	check_that(u, buf && kvc_tier_get(u->t, &w, path, end, &many, 1) == -EBADMSG,
		   "a read beyond the end of a frame is refused");
}

/* Newer frames, shorter and longer ones, and puts that fail. */
static void check_replacements(struct suite *u)
{
	const uint64_t large = (20 << 20) + 3;
	struct kvc_where w;
	char path[128];

	path_of(path, 7);
	check_that(u,
		   suite_put(u, path, 2, u->data + 5, 70000, 0, &w) == 0 &&
			   suite_get(u, path, 70000, u->data + 5) == 2,
		   "a shorter frame replaces a frame");
	check_that(u,
		   suite_put(u, path, 3, u->data + 9, large, 0, &w) == 0 &&
			   suite_get(u, path, large, u->data + 9) == 3,
		   "a longer frame replaces a frame");
	if (u->s->node)
		return;
	check_that(u,
		   suite_put(u, path, 4, u->data, large, -ECANCELED, &w) == -ECANCELED &&
			   suite_get(u, path, large, u->data + 9) == 3,
		   "a put that fails half way leaves the earlier frame");
	check_that(u,
		   suite_put(u, TOP "/fails", 1, u->data, 20 << 20, -ECANCELED, &w) == -ECANCELED &&
			   suite_get(u, TOP "/fails", 20 << 20, u->data) == 0,
		   "a put that fails half way leaves no new frame");
}

/* A tier that only reads refuses frames. */
static void check_lent(struct suite *u)
{
	struct kvc_where out;
	struct kvc_put p = { .name = kvc_frame_where_of("x") };

	check_that(u,
		   u->t->ops->put(u->t, &p, &out) == -EROFS &&
			   u->t->ops->remove(u->t, &p.name) == -EROFS,
		   "frames and removals are refused");
}

/* A list of names, asked for at once, has the stored ones. */
static void check_names(struct suite *u)
{
	enum { LIST = 1200, PATH = 128 }; /* more names than a driver asks for at once */
	KVC_MEM struct kvc_where *w = calloc(LIST, sizeof *w);
	KVC_MEM char *text = calloc(LIST, PATH);
	KVC_MEM const char **names = calloc(LIST, sizeof *names);
	KVC_MEM bool *has = calloc(LIST, sizeof *has);
	bool right = w && text && names && has;

	for (size_t i = 0; right && i < LIST; i++) { /* a few of them exist */
		names[i] = path_of(text + i * PATH, i % 100 ? SIZES + i : i / 100 % SIZES);
		w[i] = kvc_frame_where_of(names[i]);
	}
	right = right && !u->t->ops->have(u->t, w, names, LIST, has);
	for (size_t i = 0; right && i < LIST; i++)
		right = has[i] == !(i % 100);
	check_that(u, right, "a list of names has the stored ones");
}

struct seen {
	unsigned n, bad;
};

static int see_frame(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	struct seen *s = arg;
	struct kvc_where named;

	if (!w || strncmp(f->path, TOP "/", sizeof TOP) != 0)
		return 0;
	named = kvc_frame_where_of(f->path);
	s->bad += !kvc_tier_same_name(&named, w);
	s->n++;
	return 0;
}

static void check_list(struct suite *u)
{
	struct seen seen = { 0 };
	int err = u->s->lists ? u->t->ops->list(u->t, see_frame, &seen) : 0;

	if (u->s->lists)
		check_that(u, !err && seen.n == SIZES && !seen.bad,
			   "each stored frame is listed once");
}

static void check_removal(struct suite *u)
{
	char path[128];

	path_of(path, 7);
	check_that(u, !suite_remove(u, path) && suite_get(u, path, 1, u->data) == 0,
		   "a removed frame is missing");
	check_that(u, !suite_remove(u, path), "a missing frame can be removed");
}

struct many {
	struct suite *u;
	int me, failed;
};

/* Stores and reads frames of its own, and one frame that all threads store. */
static void *store_many(void *arg)
{
	struct many *m = arg;
	const uint8_t *data = m->u->data;
	struct kvc_where w;
	char path[64];

	for (int i = 0; i < 20; i++) {
		snprintf(path, sizeof path, TOP "/many/%d/%d", m->me, i);
		if (suite_put(m->u, path, 3, data + i * 64, 100000, 0, &w) ||
		    suite_get(m->u, path, 100000, data + i * 64) != 3)
			m->failed++;
		/* whichever thread wins, the frame is whole */
		if (!m->u->s->node &&
		    (suite_put(m->u, TOP "/many/one", (uint64_t)m->me + 1, data, 300000, 0, &w) ||
		     suite_get(m->u, TOP "/many/one", 300000, data) < 1))
			m->failed++;
		if (suite_remove(m->u, path) || suite_get(m->u, path, 100000, data))
			m->failed++;
	}
	return NULL;
}

static void check_threads(struct suite *u)
{
	struct many m[THREADS];
	pthread_t th[THREADS];
	int started = 0, failed = 0;

	for (int i = 0; i < THREADS; i++) {
		m[i] = (struct many){ u, i, 0 };
		started += !pthread_create(&th[i], NULL, store_many, &m[i]) && started == i;
	}
	for (int i = 0; i < started; i++) {
		pthread_join(th[i], NULL);
		failed += m[i].failed;
	}
	check_that(u, started == THREADS && !failed,
		   "eight threads store, read and remove frames at the same time");
}

/* Removes the suite's frames, also those of an earlier run that was interrupted. */
static void remove_all(struct suite *u)
{
	char path[128];

	for (size_t i = 0; i < SIZES; i++)
		suite_remove(u, path_of(path, i));
	for (int i = 0; i < 7; i++) {
		snprintf(path, sizeof path, TOP "/faults/%d", i);
		suite_remove(u, path);
	}
	suite_remove(u, TOP "/fails");
	suite_remove(u, TOP "/many/one");
}

static int suite_begin(struct suite *u, struct kvm_tier_suite *s)
{
	*u = (struct suite){ .s = s, .t = s->t, .data = malloc(DATA) };
	if (!u->data)
		return -ENOMEM;
	for (size_t i = 0; i < DATA; i++)
		u->data[i] = (uint8_t)(i * 2654435761u >> 11);
	remove_all(u);
	return 0;
}

static int suite_end(struct suite *u)
{
	remove_all(u);
	free(u->data);
	return u->failures;
}

int kvm_tier_suite_run(struct kvm_tier_suite *s)
{
	struct suite u;
	int err = suite_begin(&u, s);

	if (err)
		return err;
	check_sizes(&u);
	check_parts(&u);
	if (s->node)
		check_lent(&u);
	if (u.t->ops->have)
		check_names(&u);
	check_replacements(&u);
	check_list(&u);
	check_removal(&u);
	check_threads(&u);
	return suite_end(&u);
}

int kvm_tier_suite_faults(struct kvm_tier_suite *s)
{
	int failed = 0, good = 0, err;
	struct kvc_where w;
	struct suite u;
	char path[64];

	if ((err = suite_begin(&u, s)))
		return err;
	for (uint64_t i = 1; i <= 60; i++) {
		snprintf(path, sizeof path, TOP "/faults/%d", (int)(i % 7));
		err = suite_put(&u, path, i, u.data + i, 200000, 0, &w);
		failed += err != 0;
		for (int tries = 0; tries < 4 && !err; tries++)
			good += suite_get(&u, path, 200000, u.data + i) == (long)i;
	}
	if (!s->node)
		check_that(&u, failed >= 15 && failed <= 25, "a third of the puts fail");
	check_that(&u, good >= 80, "two thirds of the reads of stored frames do not fail");
	return suite_end(&u);
}
