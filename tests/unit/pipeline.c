/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers in pieces (tiers/pipeline.c): with and without helpers, one and several at a time, and
 * with an error in each of the three functions at each piece. Pieces begin and end in order; after
 * an error no call is under way and no other piece begins.
 */
#include "pipeline.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define PIECES 9u
#define LEN (PIECES * (uint64_t)KVCT_PIPELINE_PIECE - 12345)
#define WRITERS 6

enum which { BEGIN, MOVE, END, NONE };

struct copy {
	uint8_t *from, *to;
	uint64_t begun, ended;    /* bytes */
	_Atomic unsigned moving;  /* calls of move under way */
	_Atomic unsigned most;    /* the maximum of moving */
	_Atomic unsigned started; /* calls of move */
	_Atomic bool in_begin, in_end;
	enum which fails; /* the function that fails, at the piece `at` */
	unsigned at;
	bool own;    /* begin gives bytes of its own */
	bool sets;   /* begin sets the place and length of each piece */
	bool direct; /* without begin: move reads `from` */
};

static int result(const struct copy *c, enum which in, uint64_t off)
{
	if (c->fails != in || off / KVCT_PIPELINE_PIECE != c->at)
		return 0;
	return -EIO - (int)in;
}

static int begin(void *arg, struct kvc_part *p)
{
	struct copy *c = arg;

	assert_false(atomic_exchange(&c->in_begin, true));
	assert_non_null(p->p);
	if (c->sets) { /* each piece is as long as the buffer, as far as there are bytes */
		assert_int_equal(p->len, 0);
		p->off = p->nr * KVCT_PIPELINE_BUFFER;
		p->len = kvc_min(LEN - p->off, KVCT_PIPELINE_BUFFER);
	}
	assert_int_equal(p->off, c->begun);
	c->begun += p->len;
	if (c->own)
		p->p = c->from + p->off;
	else
		memcpy(p->p, c->from + p->off, p->len);
	atomic_store(&c->in_begin, false);
	return result(c, BEGIN, p->off);
}

static int move(void *arg, const struct kvc_part *p)
{
	struct copy *c = arg;
	uint64_t off = p->off;
	unsigned now = atomic_fetch_add(&c->moving, 1) + 1, most = atomic_load(&c->most);

	while (now > most && !atomic_compare_exchange_weak(&c->most, &most, now))
		;
	atomic_fetch_add(&c->started, 1);
	usleep(off / KVCT_PIPELINE_PIECE % 3 * 300); /* pieces pass each other */
	memcpy(c->to + off, c->direct ? c->from + off : p->p, p->len);
	atomic_fetch_sub(&c->moving, 1);
	return result(c, MOVE, off);
}

static int end(void *arg, const struct kvc_part *p)
{
	struct copy *c = arg;

	assert_false(atomic_exchange(&c->in_end, true));
	assert_int_equal(p->off, c->ended);
	assert_memory_equal(c->to + p->off, c->from + p->off, p->len);
	c->ended += p->len;
	atomic_store(&c->in_end, false);
	return result(c, END, p->off);
}

static void copy_init(struct copy *c)
{
	*c = (struct copy){ .fails = NONE };
	c->from = aligned_alloc(4096, PIECES * KVCT_PIPELINE_PIECE);
	c->to = calloc(1, LEN);
	assert_non_null(c->from);
	assert_non_null(c->to);
	for (uint64_t i = 0; i < LEN; i += 8)
		memcpy(c->from + i, &(uint64_t){ i * 0x9e3779b97f4a7c15 }, 8);
}

static void copy_free(struct copy *c)
{
	free(c->from);
	free(c->to);
}

static struct kvct_pipeline *new_pipeline(bool helpers)
{
	struct kvct_pipeline *l = kvct_pipeline_new();

	assert_non_null(l);
	if (helpers)
		assert_int_equal(kvct_pipeline_start(l), 0);
	return l;
}

static int run_copy(struct kvct_pipeline *l, struct copy *c, uint64_t len, bool prepares,
		    bool *moving)
{
	uint8_t *buf = aligned_alloc(4096, KVCT_PIPELINE_BUFFER);
	struct kvct_transfer t = {
		.len = len, .arg = c, .begin = prepares ? begin : NULL, .move = move, .end = end
	};
	int err;

	if (c->sets) {
		t.n = (len + KVCT_PIPELINE_BUFFER - 1) / KVCT_PIPELINE_BUFFER;
		t.len = 0;
	}

	c->direct = !prepares;
	err = kvct_pipeline_run(l, &t, prepares ? buf : NULL, moving);

	assert_int_equal(atomic_load(&c->moving), 0);
	free(buf);
	return err;
}

static void all_lengths(bool helpers)
{
	const uint64_t lengths[] = { 0, 1, KVCT_PIPELINE_PIECE, KVCT_PIPELINE_PIECE + 1, LEN };
	struct kvct_pipeline *l = new_pipeline(helpers);
	struct copy c;

	for (unsigned i = 0; i < 5 * 3; i++) {
		uint64_t len = lengths[i / 3];

		copy_init(&c);
		c.own = i % 3 == 1;
		assert_int_equal(run_copy(l, &c, len, i % 3 < 2, NULL), 0);
		assert_memory_equal(c.to, c.from, len);
		assert_int_equal(c.ended, len);
		assert_in_range(c.most, 0, helpers ? KVC_TIER_HELPERS + 1 : 1);
		copy_free(&c);
	}
	copy_init(&c);
	c.sets = true;
	assert_int_equal(run_copy(l, &c, LEN, true, NULL), 0);
	assert_memory_equal(c.to, c.from, LEN);
	copy_free(&c);
	kvct_pipeline_stop(l);
	/* as at the end of a mount, when the last frames are written without helpers */
	copy_init(&c);
	assert_int_equal(run_copy(l, &c, LEN, true, NULL), 0);
	assert_memory_equal(c.to, c.from, LEN);
	copy_free(&c);
	kvct_pipeline_free(l);
}

static void alone(void **state)
{
	(void)state;
	all_lengths(false);
}

static void with_helpers(void **state)
{
	(void)state;
	all_lengths(true);
}

/* Helpers take part: one of many transfers has two pieces under way at the same time. */
static void overlaps(void **state)
{
	struct kvct_pipeline *l = new_pipeline(true);
	unsigned most = 0;
	struct copy c;

	(void)state;
	for (int i = 0; i < 1000 && most < 2; i++) {
		copy_init(&c);
		assert_int_equal(run_copy(l, &c, LEN, true, NULL), 0);
		most = c.most;
		copy_free(&c);
	}
	assert_true(most >= 2);
	kvct_pipeline_free(l);
}

static void errors(void **state)
{
	(void)state;
	for (int helpers = 0; helpers < 2; helpers++) {
		struct kvct_pipeline *l = new_pipeline(helpers);

		for (unsigned i = 0; i < NONE * PIECES; i++) {
			enum which fails = i / PIECES;
			bool moving = fails != MOVE;
			struct copy c;
			unsigned started;

			copy_init(&c);
			c.fails = fails;
			c.at = i % PIECES;
			assert_int_equal(run_copy(l, &c, LEN, true, &moving), -EIO - (int)fails);
			assert_int_equal(moving, fails == MOVE);
			/* only pieces that were under way are moved after the failure */
			assert_in_range(c.started, 0, c.at + 1 + (helpers ? KVC_TIER_HELPERS : 0));
			assert_in_range(c.ended, 0, (c.at + 1) * (uint64_t)KVCT_PIPELINE_PIECE);
			started = c.started;
			usleep(500);
			assert_int_equal(c.started, started);
			copy_free(&c);
			copy_init(&c);
			assert_int_equal(run_copy(l, &c, LEN, true, NULL), 0);
			copy_free(&c);
		}
		kvct_pipeline_free(l);
	}
}

struct writer {
	struct kvct_pipeline *l;
	pthread_t thread;
	unsigned nr;
	int wrong;
};

static void *write_many(void *arg)
{
	struct writer *w = arg;

	for (unsigned i = 0; i < 12; i++) {
		uint64_t len = LEN - (uint64_t)w->nr * KVCT_PIPELINE_PIECE;
		struct copy c;
		int want = 0;

		copy_init(&c);
		if ((i + w->nr) % 3 == 0) {
			c.fails = (i / 3 + w->nr) % NONE;
			c.at = w->nr % 3;
			want = -EIO - (int)c.fails;
		}
		w->wrong += run_copy(w->l, &c, len, true, NULL) != want ||
			    (!want && memcmp(c.to, c.from, len));
		copy_free(&c);
	}
	return NULL;
}

/* An error of one transfer does not concern the others. */
static void several(void **state)
{
	struct kvct_pipeline *l = new_pipeline(true);
	struct writer w[WRITERS] = { 0 };

	(void)state;
	for (unsigned i = 0; i < WRITERS; i++) {
		w[i].l = l;
		w[i].nr = i;
		assert_int_equal(pthread_create(&w[i].thread, NULL, write_many, &w[i]), 0);
	}
	for (unsigned i = 0; i < WRITERS; i++) {
		pthread_join(w[i].thread, NULL);
		assert_int_equal(w[i].wrong, 0);
	}
	kvct_pipeline_free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(alone),    cmocka_unit_test(with_helpers),
		cmocka_unit_test(overlaps), cmocka_unit_test(errors),
		cmocka_unit_test(several),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
