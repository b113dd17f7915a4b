/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Out of memory in modules that stand alone: tables, options, free extents, policies and their
 * learners, frames and payloads. Each has a workload with a model, in which each allocation in turn
 * fails, once or from there on (support/alloc.h). Nothing crashes or leaks, a call that returns
 * -ENOMEM has changed nothing, and a call that continues without memory is correct.
 */
#include "alloc.h"
#include "chain.h"
#include "extent.h"
#include "ghosts.h"
#include "replacer.h"
#include "learn.h"
#include "options.h"
#include "payload.h"
#include "table.h"

#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

/* ---- base/ ---- */

#define THINGS 20000

static struct thing {
	struct kvc_slot slot;
	bool seen;
} things[THINGS];

static void use_table(void)
{
	struct kvc_table t;
	struct kvc_stack s = { 0 };
	uint64_t v, pushed = 0;

	if (!alloc_none(kvc_table_init(&t))) {
		for (size_t i = 0; i < THINGS; i++) {
			things[i] = (struct thing){ .slot.key = i * 7 };
			kvc_table_add(&t, &things[i].slot);
		}
		assert_int_equal(t.n, THINGS);
		for (size_t i = 0; i < THINGS; i++)
			assert_ptr_equal(kvc_table_find(&t, i * 7), &things[i].slot);
		kvc_table_each(&t, x) {
			assert_false(kvc_of(x, struct thing, slot)->seen);
			kvc_of(x, struct thing, slot)->seen = true;
			kvc_table_del(&t, x);
		}
		assert_int_equal(t.n, 0);
	}
	kvc_table_fini(&t);
	for (uint64_t i = 0; i < 100; i++)
		if (!alloc_none(kvc_stack_push(&s, i)))
			pushed += i;
	while (kvc_stack_pop(&s, &v))
		pushed -= v;
	assert_int_equal(pushed, 0);
	free(s.v);
}

static void table(void **state)
{
	(void)state;
	alloc_sweep("table", use_table, 0, true);
}

static void use_options(void)
{
	static struct kvc_options o, before;
	char error[256] = "";

	kvc_options_init(&o);
	before = o;
	if (alloc_none(kvc_options_parse(&o, "cpu=2G,policy=mru,ro,remote=dir:///a", error))) {
		assert_memory_equal(&o, &before, sizeof o);
		assert_non_null(strstr(error, "memory"));
	} else {
		assert_int_equal(o.cpu_bytes, 2ull << 30);
	}
}

static void options(void **state)
{
	(void)state;
	alloc_sweep("options", use_options, 0, true);
}

/* ---- free extents ---- */

#define SPACE 2048
#define HELD 200

static void mark_extent(void *arg, uint64_t at, uint64_t len)
{
	uint8_t *map = arg;

	for (uint64_t i = at; i < at + len; i++) {
		assert_int_equal(map[i], 0);
		map[i] = 2;
	}
}

/* Allocating may fail; freeing may not: fewer extents at a time than are kept in reserve. */
static void use_extents(void)
{
	struct kvct_extents *x = kvct_extents_new(SPACE);
	uint8_t used[SPACE] = { 0 };
	struct {
		uint64_t at, len;
	} held[HELD];
	unsigned n = 0, state = 7;

	if (!x) {
		assert_true(alloc_failed > 0);
		return;
	}
	for (int step = 0; step < 400; step++) {
		uint64_t len = 1 + rand_r(&state) % 20, at = rand_r(&state) % (SPACE - 20);
		int err;

		if (n && (n == HELD || step % 3 == 2)) {
			unsigned i = rand_r(&state) % n;

			assert_int_equal(kvct_extents_give(x, held[i].at, held[i].len), 0);
			memset(used + held[i].at, 0, held[i].len);
			held[i] = held[--n];
			continue;
		}
		err = step % 2 ? kvct_extents_take(x, len, &at) : kvct_extents_claim(x, at, len);
		if (err == -EEXIST || err == -ENOSPC || alloc_none(err))
			continue;
		for (uint64_t i = at; i < at + len; i++)
			assert_int_equal(used[i]++, 0);
		held[n].at = at;
		held[n++].len = len;
	}
	kvct_extents_each(x, mark_extent, used);
	for (int i = 0; i < SPACE; i++)
		assert_int_not_equal(used[i], 0); /* all free space is known */
	for (unsigned i = 0; i < n && i < 60; i++)
		assert_int_equal(kvct_extents_give(x, held[i].at, held[i].len), 0);
	kvct_extents_free(x);
}

static void extents(void **state)
{
	(void)state;
	alloc_sweep("extents", use_extents, 300, true);
}

/* ---- policy/ ---- */

#define CHUNKS 4000
#define FIT 1700 /* so arrays by slot grow twice */
#define DEPTH 100

static unsigned policy;
static uint32_t up[CHUNKS + 1];
static bool here[CHUNKS + 1];
static uint32_t nhere;

static void evict(struct kvc_replacer *k)
{
	uint32_t v = (uint32_t)kvc_replacer_victim(k);

	assert_true(v && v <= CHUNKS && here[v]);
	kvc_replacer_del(k, v, true);
	here[v] = false;
	nhere--;
}

/* One request: missed chunks are stored if there is memory. */
static void ask(struct kvc_replacer *k, struct kvc_request *r, uint32_t end)
{
	uint32_t prompt[DEPTH], n = 0;

	for (uint32_t i = end; i && n < DEPTH; i = up[i])
		prompt[n++] = i;
	kvc_replacer_begin(k, r, 0);
	while (n-- > 0) {
		uint32_t c = prompt[n];

		assert_int_equal(kvc_replacer_access(k, r, c), here[c]);
		if (here[c] || alloc_none(kvc_replacer_add(k, r, c, up[c], 4096)))
			continue;
		here[c] = true;
		nhere++;
	}
	kvc_replacer_end(k, r);
}

static void use_keep(void)
{
	struct kvc_replacer_conf conf = { policy, FIT, 1 };
	struct kvc_request r = { 0 };
	struct kvc_replacer *k = NULL;
	unsigned state = 5;
	char text[4096];

	memset(here, 0, sizeof here);
	nhere = 0;
	if (alloc_none(kvc_replacer_open(&k, &conf))) {
		assert_null(k);
		return;
	}
	for (uint32_t i = 0; i < 80; i++) {
		ask(k, &r, 1 + (uint32_t)rand_r(&state) % CHUNKS);
		assert_int_equal(kvc_replacer_chunks(k), nhere);
		while (nhere > FIT)
			evict(k);
	}
	while (nhere)
		evict(k);
	assert_int_equal(kvc_replacer_victim(k), 0);
	kvc_replacer_text(k, text, sizeof text);
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

static void keep(void **state)
{
	(void)state;
	for (uint32_t i = 1; i <= CHUNKS; i++)
		up[i] = i > 40 ? i - 40 : 0;
	for (policy = 0; kvc_policy_names[policy]; policy++)
		alloc_sweep(kvc_policy_names[policy], use_keep, 0, true);
}

static void use_learn(void)
{
	struct kvc_learn *l = kvc_learn_new();
	struct kvc_facts f = { .fresh = 1, .length = 1, .count = 1, .tail = 1 };
	const struct kvc_index *x;

	if (!l) {
		assert_true(alloc_failed > 0);
		return;
	}
	for (uint32_t now = 1; now < 10000; now++) {
		if (now % 64 == 0)
			kvc_learn_advance(l, now);
		kvc_learn_track(l, now, &f, now, 1);
		if (now % 3 == 0)
			kvc_learn_used(l, now - now % 7, now);
	}
	x = kvc_learn_index(l);
	for (uint32_t age = 1; age < 1u << 20; age *= 3)
		assert_true(isfinite(kvc_learn_index_of(x, 0, kvc_learn_score(l, &f), age)));
	kvc_learn_free(l);
}

static void use_ghosts(void)
{
	struct kvc_ghosts g;

	if (!alloc_none(kvc_ghosts_init(&g, 1000, 1)))
		kvc_ghosts_put(&g, 5)->last = 7;
	kvc_ghosts_fini(&g);
}

static void learn(void **state)
{
	(void)state;
	alloc_sweep("learn", use_learn, 0, true);
	alloc_sweep("ghosts", use_ghosts, 0, true);
}

/* A chunk that cannot be added leaves all others unchanged. */
static void use_chain(void)
{
	struct kvc_chain c;
	uint32_t slot[3000], n = 0;

	if (alloc_none(kvc_chain_init(&c, true, true)))
		return;
	for (uint32_t i = 1; i < 3000; i++) {
		uint32_t parent = n && i % 5 ? slot[i * 7 % n] : KVC_NO_SLOT, was = c.n,
			 s = kvc_chain_add(&c, i, parent, (double)(i * 31 % 1000));

		assert_int_equal(c.n, was + (s != KVC_NO_SLOT));
		assert_int_equal(kvc_chain_find(&c, i), s);
		assert_true(s != KVC_NO_SLOT || alloc_failed > 0);
		if (s != KVC_NO_SLOT)
			slot[n++] = s;
	}
	while (c.nleaf)
		kvc_chain_del(&c, c.leaf[0]);
	assert_int_equal(c.n, 0);
	kvc_chain_fini(&c);
}

static void chain(void **state)
{
	(void)state;
	alloc_sweep("chain", use_chain, 0, true);
}

/* ---- frames/ ---- */

static void use_ranges(void)
{
	struct kvc_range r[] = { { 0, 4096 }, { 8192, 100 } }, *back = r;
	static uint8_t page[4096];
	size_t n = 77;

	kvc_frame_ranges_encode(r, 2, page);
	if (alloc_none(kvc_frame_ranges_decode(page, sizeof page, 1 << 20, &back, &n))) {
		assert_ptr_equal(back, r);
		assert_int_equal(n, 77);
	} else {
		assert_memory_equal(r, back, sizeof r);
		free(back);
	}
}

#define LEN ((2u << 20) + 77)
#define WORKS 16 /* contexts that codec.c keeps */

static uint8_t raw[LEN], stored[LEN + (1 << 20)], back[LEN];
static struct kvc_keys *keys;
static enum kvc_codec codec;
static bool sealed;

static int give(void *arg, void *buf, size_t len, uint64_t off)
{
	(void)arg;
	memcpy(buf, raw + off, len);
	return 0;
}

/* Encodes in pieces that are not blocks, and decodes. */
static void code(void)
{
	struct kvc_recipe recipe = { codec, 1, sealed ? keys : NULL, sealed, NULL, NULL };
	static struct kvc_frame f;
	struct kvc_encoder *e = (struct kvc_encoder *)&f;
	uint64_t table = kvc_payload_table(LEN);
	int err;

	f = (struct kvc_frame){ .ino = 5, .gen = 6, .size = LEN, .raw_len = LEN };
	f.raw_sum = kvc_sum_of(raw, LEN);
	strcpy(f.key_model, "m");
	err = kvc_payload_encoder_new(&e, &f, &recipe, give, NULL);
	assert_true(!err || !e);
	/* OpenSSL does not report why it fails */
	if (err == -EIO && sealed && alloc_failed)
		return;
	if (alloc_none(err))
		return;
	assert_non_null(e);
	for (uint64_t at = 0; !err && at < f.stored_len; at += 300000)
		err = kvc_payload_encoder_read(e, stored + at, kvc_min(300000, f.stored_len - at));
	kvc_payload_encoder_free(e);
	if ((err == -EIO && sealed && alloc_failed) || alloc_none(err))
		return;
	err = kvc_payload_decode(&f, recipe.keys, stored, stored + f.stored_len - table, back);
	/* only damaged bytes may be reported as damaged: the copy would be discarded */
	if ((err == -EIO && sealed && alloc_failed) || alloc_none(err))
		return;
	assert_memory_equal(back, raw, LEN);
}

/* Takes all contexts that codec.c keeps, so that each test allocates a new one. */
static struct kvc_codec_work *kept[WORKS];

static void take_kept(void)
{
	for (unsigned i = 0; i < WORKS; i++)
		assert_non_null(kept[i] = kvc_codec_work_get());
}

static void use_payload(void)
{
	struct kvc_codec_work *own;

	code();
	alloc_disarm();
	own = kvc_codec_work_get(); /* the new context, if there is one */
	for (unsigned i = 0; i < WORKS; i++)
		kvc_codec_work_put(kept[i], false);
	kvc_codec_work_put(own, false); /* one too many, so it is freed */
	take_kept();
}

static void payload(void **state)
{
	char path[300], error[512];
	const char *tmp = getenv("KV_CASE_TMP");
	cpu_set_t one, all;
	int fd;

	(void)state;
	alloc_sweep("ranges", use_ranges, 0, true);
	snprintf(path, sizeof path, "%s/keys-XXXXXX", tmp ? tmp : "/tmp");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	dprintf(fd, "1 %064d\n", 7);
	close(fd);
	assert_int_equal(kvc_keys_open(&keys, path, error), 0);
	unlink(path);
	for (size_t i = 0; i < LEN; i++)
		raw[i] = (uint8_t)(i % 2 ? i / 512 % 3 : i * 2654435761u >> 24);
	/* with one CPU the blocks are coded by one thread, so that the allocations have an order */
	assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
	CPU_ZERO(&one);
	CPU_SET((size_t)sched_getcpu(), &one);
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
	take_kept();
	for (int way = 1; way < 6; way++) {
		codec = (enum kvc_codec)(way / 2);
		sealed = way % 2;
		alloc_sweep(sealed ? "sealed" : "coded", use_payload, 0, true);
	}
	for (unsigned i = 0; i < WORKS; i++)
		kvc_codec_work_put(kept[i], false);
	assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
	kvc_keys_close(keys);
}

/* If memory is short, a good header is not reported as forged. */
static void use_proof(void)
{
	static struct kvc_frame f;
	static const uint8_t key[32] = { 5 };
	enum kvc_proven proven = KVC_PROVEN_NOTHING;
	int err;

	f = (struct kvc_frame){ .ino = 42, .gen = 7 };
	strcpy(f.path, "m/c/l");
	if (alloc_none(kvc_frame_prove(&f, key)))
		return;
	err = kvc_frame_proven(&f, key, &proven);
	if (!alloc_none(err))
		assert_int_equal(proven, KVC_PROVEN_ALL);
}

static void proof(void **state)
{
	(void)state;
	use_proof(); /* lookups that happen only once are done here */
	alloc_sweep("proof", use_proof, 0, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(table),   cmocka_unit_test(options), cmocka_unit_test(extents),
		cmocka_unit_test(chain),   cmocka_unit_test(keep),    cmocka_unit_test(learn),
		cmocka_unit_test(payload), cmocka_unit_test(proof),
	};

	return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
