/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One suite for every tier, plain and behind a shim, with and without the driver's threads: put,
 * get, rehead, remove, list, full, claims; and frames that are written from the caller's pages.
 */
#include "device_sync.h"
#include "label.h"
#include "registry.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#define SIZE (4ull << 20)

static struct kvc_store store;
static char dir[] = "/tmp/kvc-unit-XXXXXX";

static unsigned fail_syncs, syncs;

int fdatasync(int fd)
{
	syncs++;
	if (!fail_syncs)
		return (int)syscall(SYS_fdatasync, fd);
	fail_syncs--;
	errno = EIO;
	return -1;
}

struct body {
	const uint8_t *data;
	struct kvc_frame f;
	struct kvc_tier *tier;
	int fail;       /* the error of reads after the first; 0: none */
	unsigned given; /* calls of body_bytes */
};

static int body_read(void *arg, void *buf, size_t len, uint64_t off)
{
	struct body *b = arg;

	if (b->fail && off)
		return b->fail;
	memcpy(buf, b->data + off, len);
	return 0;
}

static int body_bytes(void *arg, const void **p, size_t len, uint64_t off)
{
	struct body *b = arg;

	(void)len;
	b->given++;
	*p = b->data + off;
	return b->fail && off ? b->fail : 0;
}

static int body_head(void *arg, uint8_t page[KVC_FRAME_HEADER])
{
	struct body *b = arg;

	kvc_frame_encode(&b->f, page);
	return 0;
}

static int put(struct kvc_tier *t, uint64_t ino, const uint8_t *data, uint64_t len, int fail,
	       struct kvc_where *w)
{
	struct body b = { .data = data, .fail = fail };
	struct kvc_put p = {
		.ino = ino,
		.gen = 1,
		.stored_len = len,
		.arg = &b,
		.read = body_read,
		.head = body_head,
	};

	memcpy(b.f.store, store.uuid, 16);
	b.f.ino = ino;
	b.f.gen = 1;
	b.f.size = b.f.raw_len = b.f.stored_len = len;
	b.f.stored_sum = kvc_sum_of(data, len);
	return t->ops->put(t, &p, w);
}

static struct kvc_tier *open_tier(const char *shim)
{
	struct kvc_options o;
	struct kvc_tier *tiers[KVCT_MAX];
	char error[512] = "", text[200];
	unsigned n;

	kvc_options_init(&o);
	snprintf(text, sizeof text, "shim=%s", shim);
	if (*shim)
		assert_int_equal(kvc_options_parse(&o, text, error), 0);
	assert_int_equal(kvct_open_all(&store, &o, tiers, &n, error), 0);
	assert_int_equal(n, 1);
	return tiers[0];
}

static int count_frames(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	(void)w;
	(void)f;
	++*(int *)arg;
	return 1;
}

static void conformance(struct kvc_tier *t, bool lists)
{
	uint8_t *data = aligned_alloc(4096, 3 << 20), *page = aligned_alloc(4096, 4096),
		*back = aligned_alloc(4096, 3 << 20);
	struct kvc_where w[3], none;
	struct kvc_tier_usage u;
	struct kvc_frame f;
	int n = 0;

	for (int i = 0; i < 3 << 20; i++)
		data[i] = (uint8_t)(i * 31 >> 3);
	t->ops->usage(t, &u);
	assert_int_equal(u.total, SIZE);
	assert_int_equal(u.used, 0);
	assert_int_equal(put(t, 10, data, 5000, 0, &w[0]), 0);
	assert_int_equal(put(t, 11, data, 0, 0, &w[1]), 0);
	assert_int_equal(put(t, 12, data + 1, 2 << 20, 0, &w[2]), 0);
	assert_int_equal(put(t, 13, data, 3 << 20, 0, &none), -ENOSPC);
	/* nothing of it is left */
	assert_int_equal(put(t, 14, data, (1 << 20) + 8192, -ECANCELED, &none), -ECANCELED);
	t->ops->usage(t, &u);
	assert_int_equal(u.used, w[0].len + w[1].len + w[2].len);

	struct iovec iov[2] = { { page, 4096 }, { back, 2 << 20 } };

	assert_int_equal(t->ops->get(t, &w[2], 0, iov, 2), 0);
	assert_int_equal(kvc_frame_decode(page, &f), 0);
	assert_int_equal(f.ino, 12);
	assert_memory_equal(back, data + 1, 2 << 20);
	iov[1].iov_len = 8192;
	assert_int_equal(t->ops->get(t, &w[0], 0, iov, 2), 0);
	assert_memory_equal(back, data, 5000);
	iov[1].iov_len = 3 << 20;
	assert_int_equal(t->ops->get(t, &w[0], 0, iov, 2), -EBADMSG); /* beyond the end */
	strcpy(f.path, "new/name");
	kvc_frame_encode(&f, page);
	assert_int_equal(t->ops->rehead(t, &w[2], page), 0);
	memset(page, 0, 4096);
	assert_int_equal(t->ops->get(t, &w[2], 0, iov, 1), 0);
	assert_int_equal(kvc_frame_decode(page, &f), 0);
	assert_string_equal(f.path, "new/name");
	if (lists) {
		assert_int_equal(t->ops->list(t, count_frames, &n), 0);
		assert_int_equal(n, 3);
	}
	assert_int_equal(t->ops->claim(t, &w[2]), -EEXIST);
	assert_int_equal(t->ops->claim(t, &(struct kvc_where){ .at = SIZE, .len = 4096 }), -ERANGE);
	assert_int_equal(t->ops->claim(t, &(struct kvc_where){ .at = 1, .len = 4096 }), -ERANGE);
	assert_int_equal(t->ops->remove(t, &w[2]), 0);
	assert_int_equal(t->ops->remove(t, &w[2]), -ENOENT);
	assert_int_equal(put(t, 13, data, 3 << 20, 0, &w[2]), 0);
	assert_int_equal(t->ops->sync(t), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(t->ops->remove(t, &w[i]), 0);
	n = 0;
	if (lists) {
		assert_int_equal(t->ops->list(t, count_frames, &n), 0);
		assert_int_equal(n, 0);
	}
	t->ops->close(t);
	free(data);
	free(page);
	free(back);
}

static void disk(void **state)
{
	(void)state;
	conformance(open_tier(""), true);
}

static void disk_with_helpers(void **state)
{
	struct kvc_tier *t = open_tier("");

	(void)state;
	assert_int_equal(t->ops->start(t), 0);
	conformance(t, true);
}

#define LOADED (3u << 20) /* bytes of the payload */

/* A load of a payload in parts of one MiB, or of other lengths through the thread's buffers. */
struct arrivals {
	uint8_t *to;
	const uint8_t *want;
	uint64_t begun, n, fail; /* parts so far; the number of the part with an error */
	bool buffers;
	uint64_t from; /* offset of the first part in the frame */
};

static int part(void *arg, struct kvc_part *p)
{
	struct arrivals *a = arg;

	assert_null(p->p);
	assert_int_equal(p->nr, a->begun++);
	p->off = a->from + (p->nr << 20);
	p->len = 1 << 20;
	if (!a->buffers) {
		p->p = a->to + (p->nr << 20);
	} else if (p->nr) { /* as blocks that begin and end within pages */
		p->off -= KVC_PAGE;
		p->len = p->nr % 2 ? KVC_TIER_PART : KVC_PAGE;
	}
	return 0;
}

static int arrived(void *arg, const struct kvc_part *p)
{
	const struct arrivals *a = arg;

	assert_ptr_not_equal(p->p, NULL);
	assert_memory_equal(p->p, a->want + (p->off - a->from), p->len);
	if (a->buffers && p->nr)
		memcpy(a->to + (p->nr << 20), a->want + (p->nr << 20), 1 << 20);
	else
		memmove(a->to + (p->nr << 20), p->p, 1 << 20);
	return 0;
}

static int ended(void *arg, const struct kvc_part *p)
{
	struct arrivals *a = arg;

	assert_int_equal(p->nr, a->n++);
	assert_memory_equal(p->p, a->want + (p->off - a->from), p->len);
	return p->nr == a->fail ? -ENOKEY : 0;
}

static int load(struct kvc_tier *t, const struct kvc_where *w, struct arrivals *a, uint64_t fail)
{
	struct kvc_load l = { LOADED >> 20, a, part, arrived, ended };

	a->begun = a->n = 0;
	a->fail = fail;
	memset(a->to, 0, LOADED);
	return t->ops->load(t, w, &l);
}

/* Parts that several threads read end in order; an error of the caller ends the call. */
static void loads(void **state)
{
	struct kvc_tier *t = open_tier("");
	uint8_t *data = aligned_alloc(4096, LOADED), *back = aligned_alloc(4096, LOADED);
	struct arrivals a = { .to = back, .want = data, .from = 4096 };
	struct kvc_where w, beyond;

	(void)state;
	for (unsigned i = 0; i < LOADED; i++)
		data[i] = (uint8_t)(i * 31 >> 5);
	assert_int_equal(put(t, 40, data, LOADED, 0, &w), 0);
	for (int helpers = 0; helpers < 2; helpers++) {
		for (int i = 0; i < 40; i++) {
			a.buffers = i & 1;
			assert_int_equal(load(t, &w, &a, UINT64_MAX), 0);
			assert_int_equal(a.n, 3);
			assert_memory_equal(back, data, LOADED);
			assert_int_equal(load(t, &w, &a, 1), -ENOKEY);
			assert_int_equal(a.n, 2);
		}
		if (!helpers)
			assert_int_equal(t->ops->start(t), 0);
	}
	/* a part beyond the frame is not read */
	a.from = 8192;
	a.want = data + 4096;
	a.buffers = false;
	assert_int_equal(load(t, &w, &a, UINT64_MAX), -EBADMSG);
	assert_in_range(a.n, 0, 2);
	a.from = 4096;
	a.want = data;
	beyond = (struct kvc_where){ .at = w.at + SIZE, .len = w.len };
	assert_int_equal(load(t, &beyond, &a, UINT64_MAX), -EBADMSG);
	assert_int_equal(a.begun, 0);
	t->ops->remove(t, &w);
	t->ops->close(t);
	free(data);
	free(back);
}

/* The frame's bytes are the caller's pages, except for the last piece, which is padded. */
static void own_pages(void **state)
{
	size_t len = (3 << 20) + 100;
	struct kvc_tier *t = open_tier("");
	uint8_t *data = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			     0),
		*back = aligned_alloc(4096, 4 << 20);
	struct iovec iov = { back, kvc_round_up(len, 4096) };
	struct body b = { .data = data };
	struct kvc_put p = {
		.ino = 30,
		.gen = 1,
		.stored_len = len,
		.arg = &b,
		.read = body_read,
		.bytes = body_bytes,
		.head = body_head,
	};
	struct kvc_tier_usage u;
	struct kvc_where w;

	(void)state;
	assert_ptr_not_equal(data, MAP_FAILED);
	memset(data, 7, 4 << 20);
	assert_int_equal(t->ops->start(t), 0);
	assert_int_equal(t->ops->put(t, &p, &w), 0);
	assert_int_equal(b.given, 3);
	assert_int_equal(t->ops->get(t, &w, 4096, &iov, 1), 0);
	assert_memory_equal(back, data, len);
	for (size_t i = len; i < iov.iov_len; i++)
		assert_int_equal(back[i], 0);
	assert_int_equal(t->ops->remove(t, &w), 0);
	/* pages that are gone concern this frame, not the tier, and its extent is used again */
	munmap(data + (1 << 20), 1 << 20);
	assert_int_equal(t->ops->put(t, &p, &w), -ECANCELED);
	t->ops->usage(t, &u);
	assert_int_equal(u.used, 0);
	b.fail = -EIO;
	assert_int_equal(t->ops->put(t, &p, &w), -EIO);
	t->ops->usage(t, &u);
	assert_int_equal(u.used, 0);
	t->ops->close(t);
	munmap(data, 1 << 20);
	munmap(data + (2 << 20), 2 << 20);
	free(back);
}

static void disk_behind_delay(void **state)
{
	(void)state;
	conformance(open_tier("delay-get:1+delay-put:1"), false);
}

/*
 * Writes beyond an offset fail, as on a failing disk, and are not tried there again. When the disk
 * works again, no frame is missing and no header is left.
 */
static void bad_places(void **state)
{
	struct kvc_tier *t = open_tier("");
	struct rlimit was, limit;
	uint8_t *data = calloc(1, 3 << 20);
	struct kvc_where w[4];
	struct kvc_tier_usage u;
	int n = 0;

	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &was);
	limit = (struct rlimit){ (1 << 20) + 8192, was.rlim_max };
	assert_int_equal(put(t, 20, data, 600 << 10, 0, &w[0]), 0);
	assert_int_equal(put(t, 21, data, 1 << 20, 0, &w[1]), 0);
	setrlimit(RLIMIT_FSIZE, &limit);
	/* the frame crosses the offset: half of it is good */
	assert_int_equal(t->ops->remove(t, &w[1]), 0);
	assert_true(put(t, 22, data, 700 << 10, 0, &w[2]) < 0);
	/* all of it is bad, and its header cannot be cleared either */
	setrlimit(RLIMIT_FSIZE, &was);
	assert_int_equal(put(t, 23, data, 700 << 10, 0, &w[2]), 0);
	assert_int_not_equal(w[2].at, w[1].at); /* the bad place is not used */
	limit.rlim_cur = w[2].at;
	setrlimit(RLIMIT_FSIZE, &limit);
	assert_true(t->ops->remove(t, &w[2]) < 0);
	assert_true(put(t, 24, data, 1 << 20, 0, &w[3]) < 0);
	t->ops->usage(t, &u);
	assert_true(u.used > w[0].len);
	setrlimit(RLIMIT_FSIZE, &was);
	/* later, with the next puts */
	for (int i = 0; i < 400 && u.used != w[0].len; i++) {
		usleep(50000);
		assert_int_equal(put(t, 25, data, 100, 0, &w[3]), 0);
		assert_int_equal(t->ops->remove(t, &w[3]), 0);
		t->ops->usage(t, &u);
	}
	assert_int_equal(u.used, w[0].len);
	assert_int_equal(t->ops->list(t, count_frames, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(t->ops->remove(t, &w[0]), 0);
	assert_int_equal(put(t, 26, data, 3 << 20, 0, &w[3]), 0); /* and in one piece */
	assert_int_equal(t->ops->remove(t, &w[3]), 0);
	t->ops->close(t);
	free(data);
}

static void faults(void **state)
{
	struct kvc_tier *t = open_tier("fail-put:2+fail-get:2");
	uint8_t *data = calloc(1, 4096), *page = aligned_alloc(4096, 4096);
	struct iovec iov = { page, 4096 };
	struct kvc_where w;

	(void)state;
	assert_int_equal(put(t, 1, data, 100, 0, &w), 0);
	assert_int_equal(put(t, 2, data, 100, 0, &w), -EIO);
	assert_int_equal(t->ops->get(t, &w, 0, &iov, 1), 0);
	assert_int_equal(t->ops->get(t, &w, 0, &iov, 1), -EIO);
	assert_int_equal(t->ops->remove(t, &w), 0);
	t->ops->close(t);
	free(data);
	free(page);
}

static int put_small(struct kvc_tier *t, uint64_t ino, struct kvc_where *w)
{
	static const uint8_t data[100 << 10] __attribute__((aligned(4096)));

	return put(t, ino, data, sizeof data, 0, w);
}

/* The device of a place. */
static unsigned device_of(const struct kvc_where *w)
{
	return (unsigned)(w->at >> KVC_DEVICE_BITS);
}

/* Frames go to the device with the largest share of free space, and none to one that leaves. */
static void several_devices(void **state)
{
	uint8_t *page = aligned_alloc(4096, KVC_FRAME_HEADER);
	struct iovec iov = { page, KVC_FRAME_HEADER };
	unsigned in[3] = { 0 };
	static struct kvc_store s;
	struct kvc_where w[12], absent = { .at = 7ull << KVC_DEVICE_BITS, .len = 4096 };
	struct kvc_tier_usage u;
	struct kvc_tier_device d;
	struct kvc_tier *t;
	uint64_t total;
	char error[512] = "";

	(void)state;
	s = store;
	for (unsigned i = 1; i < 3; i++) {
		s.dev[i] = (struct kvc_device){ .kind = KVC_DEVICE_FILE, .size = 2 * SIZE };
		snprintf(s.dev[i].path, sizeof s.dev[i].path, "%s/part%u", dir, i);
		assert_int_equal(kvc_label_file_make(&s, i, error), 0);
		assert_int_equal(kvc_label_file_make(&s, i, error), -EEXIST);
	}
	assert_int_equal(kvct_devices_open(&s, &t, error), 0);
	t->ops->usage(t, &u);
	total = u.total;
	for (unsigned i = 0; i < 12; i++) {
		assert_int_equal(put_small(t, 100 + i, &w[i]), 0);
		in[device_of(&w[i])]++;
		assert_int_equal(t->ops->get(t, &w[i], 0, &iov, 1), 0);
	}
	/* 4, 6 and 6 MiB: device 0 gets a quarter */
	assert_in_range(in[0], 2, 4);
	assert_in_range(in[1], 4, 5);
	assert_in_range(in[2], 4, 5);
	assert_int_equal(t->ops->get(t, &absent, 0, &iov, 1), -EBADMSG);
	assert_int_equal(t->ops->claim(t, &absent), -ERANGE);
	assert_int_equal(t->ops->device(t, 7, &d), -ENOENT);
	/* device 1 leaves: its size is not part of the total, but its frames need space */
	s.dev[1].leaving = true;
	assert_int_equal(t->ops->change(t, KVC_TIER_LEAVE, &s, 1, error), 0);
	assert_int_equal(t->ops->device(t, 1, &d), 0);
	assert_true(d.leaving && d.used > 0);
	t->ops->usage(t, &u);
	assert_int_equal(u.total, total - d.total);
	assert_int_equal(u.used, u.stored);
	for (unsigned i = 0; i < 12; i++)
		if (device_of(&w[i]) == 1) {
			struct kvc_where to;

			assert_int_equal(put_small(t, 100 + i, &to), 0);
			assert_int_not_equal(device_of(&to), 1);
			assert_int_equal(t->ops->remove(t, &w[i]), 0);
			w[i] = to;
		}
	assert_int_equal(t->ops->device(t, 1, &d), 0);
	assert_int_equal(d.used, 0);
	assert_int_equal(t->ops->change(t, KVC_TIER_REMOVE, &s, 1, error), 0);
	absent.at = 1ull << KVC_DEVICE_BITS;
	assert_int_equal(t->ops->remove(t, &absent), 0);
	/* device 2 grows: the space of the label at its old end is used */
	s.dev[2].size += SIZE;
	assert_int_equal(truncate(s.dev[2].path, (off_t)s.dev[2].size), 0);
	assert_int_equal(t->ops->change(t, KVC_TIER_GROW, &s, 2, error), 0);
	assert_int_equal(t->ops->device(t, 2, &d), 0);
	assert_int_equal(d.total, 3 * SIZE - 2 * KVC_LABEL_ROOM);
	for (unsigned i = 0; i < 12; i++)
		assert_int_equal(t->ops->remove(t, &w[i]), 0);
	t->ops->usage(t, &u);
	assert_int_equal(u.used, 0);
	t->ops->close(t);
	for (unsigned i = 1; i < 3; i++)
		unlink(s.dev[i].path);
	free(page);
}

/* The frame is stored while a sync of the device fails. */
static int head_beside_failed_sync(void *arg, uint8_t page[KVC_FRAME_HEADER])
{
	struct body *b = arg;

	fail_syncs = 1;
	assert_int_equal(b->tier->ops->sync(b->tier), -EIO);
	return body_head(b, page);
}

static enum kvc_tier_synced is(struct kvc_tier *t, const struct kvc_where *w)
{
	return t->ops->synced(t, w);
}

/*
 * After a failed sync the next one succeeds, and says nothing about the frames that were written
 * before: they are lost, now and later. All others are not.
 */
static void failed_syncs(void **state)
{
	struct kvc_tier *t = open_tier("delay-get:0");
	struct kvc_where w[5], old;
	struct body b = { .tier = t };
	struct kvc_put p = {
		.ino = 9, .gen = 1, .arg = &b, .read = body_read, .head = head_beside_failed_sync
	};

	(void)state;
	assert_int_equal(put_small(t, 1, &w[0]), 0);
	old = (struct kvc_where){ .at = w[0].at, .len = w[0].len };
	assert_int_equal(is(t, &w[0]), KVC_TIER_PENDING);
	/*
	 * an earlier mount may have written without a sync, so the first sync covers the
	 * whole device
	 */
	assert_int_equal(is(t, &old), KVC_TIER_PENDING);
	assert_int_equal(t->ops->sync(t), 0);
	assert_int_equal(is(t, &w[0]), KVC_TIER_SYNCED);
	assert_int_equal(is(t, &old), KVC_TIER_SYNCED);
	assert_int_equal(put_small(t, 2, &w[1]), 0);
	fail_syncs = 1;
	assert_int_equal(t->ops->sync(t), -EIO);
	assert_int_equal(is(t, &w[1]), KVC_TIER_LOST);
	assert_int_equal(t->ops->sync(t), 0);
	assert_int_equal(is(t, &w[1]), KVC_TIER_LOST);
	assert_int_equal(is(t, &w[0]), KVC_TIER_SYNCED);
	assert_int_equal(is(t, &old), KVC_TIER_UNKNOWN);
	assert_int_equal(put_small(t, 3, &w[2]), 0);
	assert_int_equal(t->ops->sync(t), 0);
	assert_int_equal(is(t, &w[2]), KVC_TIER_SYNCED);
	assert_int_equal(put_small(t, 5, &w[4]), 0); /* so that the sync has something to do */
	assert_int_equal(t->ops->put(t, &p, &w[3]), 0);
	assert_int_equal(t->ops->remove(t, &w[4]), 0);
	assert_int_equal(t->ops->sync(t), 0);
	assert_int_equal(is(t, &w[3]), KVC_TIER_LOST);
	/* more failures than ranges */
	for (int i = 0; i < 40; i++) {
		assert_int_equal(put_small(t, 4, &w[4]), 0);
		fail_syncs = 1;
		assert_int_equal(t->ops->sync(t), -EIO);
		assert_int_equal(is(t, &w[4]), KVC_TIER_LOST);
		assert_int_equal(t->ops->remove(t, &w[4]), 0);
		assert_int_equal(put_small(t, 4, &w[4]), 0);
		assert_int_equal(t->ops->sync(t), 0);
		assert_int_equal(is(t, &w[4]), KVC_TIER_SYNCED);
		assert_int_equal(is(t, &w[1]), KVC_TIER_LOST);
		assert_int_equal(is(t, &w[0]), KVC_TIER_SYNCED);
		assert_int_equal(t->ops->remove(t, &w[4]), 0);
	}
	for (int i = 0; i < 4; i++)
		assert_int_equal(t->ops->remove(t, &w[i]), 0);
	t->ops->close(t);
}

static void count_call(void *arg)
{
	++*(unsigned *)arg;
}

/*
 * A sync had failed in an earlier mount: no sync of this mount makes the frames of that mount
 * known. Frames of this mount are not affected. The caller is told of each failed sync.
 */
static void failed_syncs_before(void **state)
{
	struct kvc_tier *t = open_tier("delay-get:0");
	struct kvc_where w, old;
	unsigned told = 0;

	(void)state;
	assert_int_equal(put_small(t, 1, &old), 0);
	t->ops->close(t);
	t = open_tier("delay-get:0");
	old.write = 0;
	assert_int_equal(t->ops->claim(t, &old), 0);
	t->ops->watch_syncs(t, true, count_call, &told);
	assert_int_equal(is(t, &old), KVC_TIER_UNKNOWN);
	assert_int_equal(put_small(t, 2, &w), 0);
	assert_int_equal(is(t, &w), KVC_TIER_PENDING);
	assert_int_equal(t->ops->sync(t), 0);
	assert_int_equal(is(t, &old), KVC_TIER_UNKNOWN);
	assert_int_equal(is(t, &w), KVC_TIER_SYNCED);
	assert_int_equal(told, 0);
	assert_int_equal(t->ops->remove(t, &w), 0);
	assert_int_equal(put_small(t, 3, &w), 0);
	fail_syncs = 1;
	assert_int_equal(t->ops->sync(t), -EIO);
	assert_int_equal(told, 1);
	assert_int_equal(is(t, &w), KVC_TIER_LOST);
	assert_int_equal(is(t, &old), KVC_TIER_UNKNOWN);
	assert_int_equal(t->ops->remove(t, &w), 0);
	assert_int_equal(t->ops->remove(t, &old), 0);
	t->ops->close(t);
}

/* When all devices are suspended, a sync is an error, also if it calls none of them. */
static void all_devices_fail(void **state)
{
	static struct kvc_store s;
	struct kvc_where w[2];
	struct kvc_tier_device d;
	struct kvc_tier *t;
	char error[512] = "";

	(void)state;
	s = store;
	s.dev[1] = (struct kvc_device){ .kind = KVC_DEVICE_FILE, .size = SIZE };
	snprintf(s.dev[1].path, sizeof s.dev[1].path, "%s/part1", dir);
	assert_int_equal(kvc_label_file_make(&s, 1, error), 0);
	assert_int_equal(kvct_devices_open(&s, &t, error), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(put_small(t, 1 + (uint64_t)i, &w[i]), 0);
	assert_int_not_equal(device_of(&w[0]), device_of(&w[1]));
	fail_syncs = 2;
	assert_int_equal(t->ops->sync(t), -EIO);
	assert_int_equal(fail_syncs, 0);
	syncs = 0;
	assert_int_equal(t->ops->sync(t), -EIO);
	assert_int_equal(syncs, 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(is(t, &w[i]), KVC_TIER_LOST);
		assert_int_equal(t->ops->device(t, i, &d), 0);
		assert_true(d.unsynced);
	}
	t->ops->close(t);
	unlink(s.dev[1].path);
}

/* An earlier mount may have been killed before a sync, so the first sync is not left out. */
static void first_sync(void **state)
{
	struct kvc_tier *t = open_tier("");

	(void)state;
	syncs = 0;
	assert_int_equal(t->ops->sync(t), 0);
	assert_int_equal(syncs, 1);
	assert_int_equal(t->ops->sync(t), 0);
	assert_int_equal(syncs, 1); /* nothing was written */
	t->ops->close(t);
}

static int make_store(void **state)
{
	char path[1280];
	int fd;

	(void)state;
	if (!mkdtemp(dir))
		return -1;
	snprintf(store.dir, sizeof store.dir, "%s", dir);
	kvc_super_own(&store, SIZE);
	fd = open(kvc_super_path(&store, KVC_STORE_DATA, path), O_CREAT | O_RDWR, 0600);
	if (fd < 0 || ftruncate(fd, SIZE))
		return -1;
	close(fd);
	return kvc_super_create(&store);
}

static int remove_store(void **state)
{
	char path[1280];

	(void)state;
	unlink(kvc_super_path(&store, KVC_STORE_DATA, path));
	unlink(kvc_super_path(&store, KVC_STORE_SUPER, path));
	unlink(kvc_super_path(&store, KVC_STORE_COPY, path));
	return rmdir(dir);
}

/* A device whose syncs fail, the first one when the test releases it. */
static struct {
	struct kvct_device_sync s;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	_Atomic int syncs, released;
} slow = { .s = { .writes = 1 },
	   .lock = PTHREAD_MUTEX_INITIALIZER,
	   .ended = PTHREAD_COND_INITIALIZER };

static void slow_usage(struct kvc_tier *t, struct kvc_tier_usage *u)
{
	(void)t;
	memset(u, 0, sizeof *u);
}

static int slow_sync(struct kvc_tier *t)
{
	(void)t;
	atomic_fetch_add(&slow.syncs, 1);
	while (!atomic_load(&slow.released))
		usleep(1000);
	return -EIO;
}

static const struct kvc_tier_ops slow_ops = { .usage = slow_usage, .sync = slow_sync };
static struct kvc_tier slow_tier = { .ops = &slow_ops };

static void *call_sync(void *arg)
{
	atomic_store((_Atomic pid_t *)arg, gettid());
	assert_int_equal(kvct_device_sync_run(&slow.s, &slow_tier, &slow.lock, &slow.ended, false),
			 -EIO);
	return NULL;
}

static bool is_asleep(pid_t tid)
{
	char path[64], text[256] = "", *after;
	FILE *f;

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
	if (!tid || !(f = fopen(path, "r")))
		return false;
	after = fgets(text, sizeof text, f) ? strrchr(text, ')') : NULL;
	fclose(f);
	return after && after[2] == 'S';
}

/*
 * Threads that wait for a sync that fails need one more sync, which began after they were called,
 * and not one each.
 */
static void shared_failure(void **state)
{
	enum { WAITERS = 6 };
	pthread_t thread[1 + WAITERS];
	_Atomic pid_t tid[1 + WAITERS] = { 0 };

	(void)state;
	for (int i = 0; i <= WAITERS; i++) {
		assert_int_equal(pthread_create(&thread[i], NULL, call_sync, (void *)&tid[i]), 0);
		while (!atomic_load(&slow.syncs))
			usleep(1000);
	}
	for (int i = 1; i <= WAITERS; i++)
		while (!is_asleep(atomic_load(&tid[i])))
			usleep(1000);
	assert_int_equal(atomic_load(&slow.syncs), 1);
	atomic_store(&slow.released, 1);
	for (int i = 0; i <= WAITERS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(atomic_load(&slow.syncs), 2);
	/* the next caller syncs again */
	assert_int_equal(kvct_device_sync_run(&slow.s, &slow_tier, &slow.lock, &slow.ended, false),
			 -EIO);
	assert_int_equal(atomic_load(&slow.syncs), 3);
	assert_int_equal(kvct_device_sync_state_locked(&slow.s, 1), KVC_TIER_LOST);
}

/*
 * The only device of a store fails: after two syncs the calls do not each try another one, and a
 * frame that was stored in a pause is not lost. The first failure has no pause, so that the next
 * fsync can succeed at once. Without pauses there would be 1000 syncs; with pauses, that many syncs
 * would take a quarter of an hour.
 */
static void pauses_between_failures(void **state)
{
	struct kvc_tier *t = open_tier("delay-get:0");
	struct kvc_where w;

	(void)state;
	assert_int_equal(put_small(t, 1, &w), 0);
	assert_int_equal(t->ops->sync(t), 0);
	assert_int_equal(t->ops->remove(t, &w), 0);
	assert_int_equal(put_small(t, 2, &w), 0);
	syncs = 0;
	fail_syncs = 1 << 20;
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(i % 2 ? t->ops->sync(t) : t->ops->sync_place(t, &w), -EIO);
		if (i < 2)
			assert_int_equal(syncs, i + 1);
	}
	assert_in_range(syncs, 2, 500);
	assert_int_equal(is(t, &w), KVC_TIER_LOST);
	assert_int_equal(t->ops->remove(t, &w), 0);
	fail_syncs = 0;
	/* a frame of the pause: a sync that is not tried does not lose it */
	do {
		assert_int_equal(put_small(t, 3, &w), 0);
		fail_syncs = 1;
		if (t->ops->sync(t) == -EIO && fail_syncs)
			break;
		assert_int_equal(t->ops->remove(t, &w), 0);
	} while (true);
	assert_int_equal(is(t, &w), KVC_TIER_PENDING);
	fail_syncs = 0;
	while (t->ops->sync(t))
		usleep(1000);
	assert_int_equal(is(t, &w), KVC_TIER_SYNCED);
	assert_int_equal(t->ops->remove(t, &w), 0);
	t->ops->close(t);
}

/* A sync for a frame is one of its device only, and says nothing about the others. */
static void sync_of_place(void **state)
{
	static struct kvc_store s;
	struct kvc_where w[2], absent = { .at = 7ull << KVC_DEVICE_BITS, .len = 4096 };
	struct kvc_tier *t;
	char error[512] = "";

	(void)state;
	s = store;
	s.dev[1] = (struct kvc_device){ .kind = KVC_DEVICE_FILE, .size = SIZE };
	snprintf(s.dev[1].path, sizeof s.dev[1].path, "%s/part1", dir);
	assert_int_equal(kvc_label_file_make(&s, 1, error), 0);
	assert_int_equal(kvct_devices_open(&s, &t, error), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(put_small(t, 1 + (uint64_t)i, &w[i]), 0);
	assert_int_not_equal(device_of(&w[0]), device_of(&w[1]));
	syncs = 0;
	assert_int_equal(t->ops->sync_place(t, &w[0]), 0);
	assert_int_equal(syncs, 1);
	assert_int_equal(is(t, &w[0]), KVC_TIER_SYNCED);
	assert_int_equal(is(t, &w[1]), KVC_TIER_PENDING);
	/* the device fails: the first caller gets an error that asks for another device */
	fail_syncs = 1;
	assert_int_equal(t->ops->sync_place(t, &w[1]), -ENODEV);
	assert_int_equal(is(t, &w[1]), KVC_TIER_LOST);
	/* while it is suspended, no sync is tried, and its frames do not count */
	assert_int_equal(t->ops->sync_place(t, &w[1]), 0);
	assert_int_equal(is(t, &w[1]), KVC_TIER_LOST);
	assert_int_equal(t->ops->sync_place(t, &w[0]), 0);
	assert_int_equal(is(t, &w[0]), KVC_TIER_SYNCED);
	assert_int_equal(t->ops->sync_place(t, &absent), 0);
	assert_int_equal(is(t, &absent), KVC_TIER_LOST);
	assert_int_equal(syncs, 2);
	t->ops->close(t);
	unlink(s.dev[1].path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(disk),
		cmocka_unit_test(disk_with_helpers),
		cmocka_unit_test(own_pages),
		cmocka_unit_test(loads),
		cmocka_unit_test(disk_behind_delay),
		cmocka_unit_test(faults),
		cmocka_unit_test(bad_places),
		cmocka_unit_test(several_devices),
		cmocka_unit_test(failed_syncs),
		cmocka_unit_test(failed_syncs_before),
		cmocka_unit_test(all_devices_fail),
		cmocka_unit_test(first_sync),
		cmocka_unit_test(shared_failure),
		cmocka_unit_test(pauses_between_failures),
		cmocka_unit_test(sync_of_place),
	};

	return cmocka_run_group_tests(tests, make_store, remove_store);
}
