/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote URL [SHIM]: the conformance suite of shared tiers, run against a live one. Every driver
 * must pass it, alone and behind a shim that delays its calls. Prints the failures and exits with
 * 1. With "faults" as SHIM every third call fails, and a failed call must leave either nothing or
 * the whole frame.
 */
#include "registry.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static int failures;
static uint8_t store[16] = "conformance....";

#define check(what)                                               \
	do {                                                      \
		if (!(what)) {                                    \
			printf("line %d: %s\n", __LINE__, #what); \
			failures++;                               \
		}                                                 \
	} while (0)

struct body {
	const uint8_t *data;
	struct kvc_frame f;
	int fail;
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

static int put(struct kvc_tier *t, const char *path, uint64_t gen, const uint8_t *data,
	       uint64_t len, int fail, struct kvc_where *w)
{
	struct body *b = calloc(1, sizeof *b);
	struct kvc_put p = {
		.ino = 7,
		.gen = gen,
		.stored_len = len,
		.name = kvc_frame_where_of(path),
		.arg = b,
		.read = body_read,
		.head = body_head,
	};
	int err;

	b->data = data;
	b->fail = fail;
	memcpy(b->f.store, store, 16);
	b->f.ino = 7;
	b->f.gen = gen;
	b->f.flags = KVC_FRAME_SHARED;
	b->f.size = b->f.raw_len = b->f.stored_len = len;
	b->f.stored_sum = b->f.raw_sum = kvc_sum_of(data, len);
	snprintf(b->f.path, sizeof b->f.path, "%s", path);
	err = t->ops->put(t, &p, w);
	free(b);
	return err;
}

/*
 * Reads the frame at a path. Returns its generation, 0 if it does not exist, -1 if it is not whole.
 */
static long whole(struct kvc_tier *t, const char *path, uint64_t len, const uint8_t *want)
{
	uint64_t span = kvc_round_up(len, KVC_PAGE);
	uint8_t *page = aligned_alloc(4096, 4096), *back = aligned_alloc(4096, span + 4096);
	struct iovec iov[2] = { { page, 4096 }, { back, span } };
	struct kvc_where w = kvc_frame_where_of(path);
	struct kvc_frame *f = calloc(1, sizeof *f);
	long gen = -1;
	int err = t->ops->get(t, &w, 0, iov, len ? 2 : 1);

	if (err == -ENOENT)
		gen = 0;
	else if (!err && !kvc_frame_decode(page, f) && f->stored_len == len &&
		 !strcmp(f->path, path) && !memcmp(back, want, len)) {
		gen = (long)f->gen;
		for (uint64_t i = len; i < span; i++)
			if (back[i])
				gen = -1;
	}
	free(page);
	free(back);
	free(f);
	return gen;
}

struct seen {
	unsigned n, bad;
};

static int see(void *arg, const struct kvc_where *w, const struct kvc_frame *f)
{
	struct seen *s = arg;
	struct kvc_where named;

	if (!w)
		return 0;
	named = kvc_frame_where_of(f->path);
	s->bad += named.at != w->at || named.hi != w->hi;
	s->n++;
	return 0;
}

struct many {
	struct kvc_tier *t;
	const uint8_t *data;
	int me, failed;
};

static void *many(void *arg)
{
	struct many *m = arg;
	struct kvc_where w;
	char path[64];

	for (int i = 0; i < 20; i++) {
		snprintf(path, sizeof path, "many/%d/%d", m->me, i);
		if (put(m->t, path, 3, m->data + i * 64, 100000, 0, &w) ||
		    whole(m->t, path, 100000, m->data + i * 64) != 3)
			m->failed++;
		/* all threads write this frame: whichever wins, it is whole */
		if (put(m->t, "many/one", (uint64_t)m->me + 1, m->data, 300000, 0, &w) ||
		    whole(m->t, "many/one", 300000, m->data) < 1)
			m->failed++;
		m->t->ops->remove(m->t, &(struct kvc_where){ .at = kvc_frame_where_of(path).at,
							     .hi = kvc_frame_where_of(path).hi });
	}
	return NULL;
}

static void conformance(struct kvc_tier *t, const uint8_t *data)
{
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
	struct kvc_where w, first;
	struct seen seen = { 0 };
	struct iovec iov;
	uint8_t *buf = aligned_alloc(4096, 1 << 20);
	char path[128];

	check(t->ops->caps & KVC_TIER_SHARED);
	check(*t->id);
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		snprintf(path, sizeof path, "model/chunk %zu/\xc3\xa4%%&?#+", i);
		check(whole(t, path, sizes[i], data) == 0);
		check(put(t, path, 1, data, sizes[i], 0, &w) == 0);
		check(w.len == KVC_FRAME_HEADER + kvc_round_up(sizes[i], KVC_PAGE) &&
		      w.at == kvc_frame_where_of(path).at && w.hi == kvc_frame_where_of(path).hi);
		check(whole(t, path, sizes[i], data) == 1);
	}
	/* parts of it, and beyond its end */
	iov = (struct iovec){ buf, 8192 };
	check(t->ops->get(t, &w, KVC_FRAME_HEADER + (8 << 20), &iov, 1) == 0 &&
	      !memcmp(buf, data + (8 << 20), 8192));
	iov = (struct iovec){ buf, 1 << 20 };
	check(t->ops->get(t, &w, w.len - 4096, &iov, 1) == -EBADMSG);
	/* a newer frame replaces it, shorter and longer */
	snprintf(path, sizeof path, "model/chunk 7/\xc3\xa4%%&?#+");
	check(put(t, path, 2, data + 5, 70000, 0, &first) == 0 &&
	      whole(t, path, 70000, data + 5) == 2);
	check(put(t, path, 3, data + 9, (20 << 20) + 3, 0, &first) == 0 &&
	      whole(t, path, (20 << 20) + 3, data + 9) == 3);
	/* a put that fails half way leaves the earlier frame */
	check(put(t, path, 4, data, (20 << 20) + 3, -ECANCELED, &w) == -ECANCELED);
	check(whole(t, path, (20 << 20) + 3, data + 9) == 3);
	check(put(t, "fails/anew", 1, data, 20 << 20, -ECANCELED, &w) == -ECANCELED &&
	      whole(t, "fails/anew", 20 << 20, data) == 0);
	check(t->ops->list(t, see, &seen) == 0);
	check(seen.n == sizeof sizes / sizeof sizes[0] && !seen.bad);
	check(t->ops->remove(t, &first) == 0 && whole(t, path, (20 << 20) + 3, data + 9) == 0);
	check(t->ops->remove(t, &first) == 0); /* removed already */

	struct many m[8];
	pthread_t th[8];

	for (int i = 0; i < 8; i++) {
		m[i] = (struct many){ t, data, i, 0 };
		pthread_create(&th[i], NULL, many, &m[i]);
	}
	for (int i = 0; i < 8; i++) {
		pthread_join(th[i], NULL);
		check(m[i].failed == 0);
	}
	free(buf);
}

static void faults(struct kvc_tier *t, const uint8_t *data)
{
	struct kvc_where w;
	char path[64];
	int failed = 0, good = 0;

	for (uint64_t i = 1; i <= 60; i++) {
		snprintf(path, sizeof path, "faults/%d", (int)(i % 7));
		int err = put(t, path, i, data + i, 200000, 0, &w);

		failed += err != 0;
		if (!err)
			for (int tries = 0; tries < 4; tries++)
				good += whole(t, path, 200000, data + i) == (long)i;
	}
	check(failed >= 15 && failed <= 25);
	check(good >= 80); /* two thirds of 160 reads do not fail */
}

int main(int argc, char **argv)
{
	struct kvc_options *o = calloc(1, sizeof *o);
	struct kvc_tier *t[KVCT_MAX];
	uint8_t *data = malloc(48 << 20);
	char error[512], text[1500];
	unsigned n;

	if (argc < 2 || !o || !data)
		return 2;
	for (size_t i = 0; i < 48 << 20; i++)
		data[i] = (uint8_t)(i * 2654435761u >> 11);
	kvc_options_init(o);
	snprintf(text, sizeof text, "disk=off,deadline=30000,remote=%s", argv[1]);
	if (argc > 2)
		snprintf(text + strlen(text), sizeof text - strlen(text), ",shim=%s",
			 !strcmp(argv[2], "faults") ? "fail-get:3+fail-put:3" : argv[2]);
	if (kvc_options_parse(o, text, error) || kvct_open_all(NULL, o, t, &n, error)) {
		printf("%s\n", error);
		return 1;
	}
	if (argc > 2 && !strcmp(argv[2], "faults"))
		faults(t[0], data);
	else
		conformance(t[0], data);
	kvct_close_all(t, n);
	free(data);
	free(o);
	printf("%d failures\n", failures);
	return failures != 0;
}
