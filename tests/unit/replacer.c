/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One suite for all policies, checked against a simple model: random requests, one after another or
 * several at once, with stores, victims, deletions, excluded chunks and parents that are set late,
 * over a forest of prompts. Then tests of single policies.
 */
#include "replacer.h"

#include "chain.h"
#include "learn.h"
#include "prefix_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define CHUNKS 3000 /* chunks of all prompts */
#define FIT 300
#define DEPTH 40
#define POLICIES 9
#define CLIENTS 3
#define FEW 12
#define MANY (1u << 17) /* expected chunks, for which one id in 32 is in the shadows */

/* The model: the parent of chunk i is up[i] in its prompt and link_of[i] in the cache; 0: none. */
static uint32_t up[CHUNKS + 1], link_of[CHUNKS + 1];
static bool here[CHUNKS + 1], away[CHUNKS + 1]; /* away: excluded */
static unsigned followers[CHUNKS + 1];          /* children in the cache */
/* the client, from 1 on, whose request accessed the chunk last; 0: none */
static uint8_t held[CHUNKS + 1];
static unsigned nhere, capacity;

static uint64_t draw(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static struct kvc_replacer *opened(unsigned policy, uint64_t chunks, uint64_t seed)
{
	struct kvc_replacer_conf conf = { policy, chunks, seed };
	struct kvc_replacer *k;

	assert_int_equal(kvc_replacer_open(&k, &conf), 0);
	return k;
}

static void plant(uint64_t *seed)
{
	memset(here, 0, sizeof here);
	memset(away, 0, sizeof away);
	memset(link_of, 0, sizeof link_of);
	memset(followers, 0, sizeof followers);
	memset(held, 0, sizeof held);
	nhere = 0;
	for (uint32_t i = 1; i <= CHUNKS; i++)
		up[i] = i > 8 && draw(seed) % 10 ? (uint32_t)(i - 1 - draw(seed) % 8) : 0;
}

/* Writes the prompt that ends with a chunk, from its first chunk on; returns its length. */
static unsigned prompt_of(uint32_t end, uint32_t *to)
{
	unsigned n = 0;

	for (uint32_t i = end; i && n < DEPTH; i = up[i])
		n++;
	for (unsigned j = n; j-- > 0; end = up[end])
		to[j] = end;
	return n;
}

static void model_add(uint32_t i, uint32_t parent)
{
	here[i] = true;
	nhere++;
	link_of[i] = parent;
	followers[parent]++;
}

/* The children of a deleted chunk have no parent from now on, also if the chunk is added again. */
static void model_del(uint32_t i)
{
	here[i] = away[i] = false;
	nhere--;
	followers[link_of[i]]--;
	followers[i] = 0;
	for (uint32_t j = 1; j <= CHUNKS; j++)
		if (here[j] && link_of[j] == i) {
			link_of[j] = 0;
			followers[0]++;
		}
}

static bool can_go(uint32_t v)
{
	return here[v] && !away[v] && !followers[v] && !held[v];
}

/* Evicts a victim. Returns false if there is none, after checking that none is allowed. */
static bool evict(struct kvc_replacer *k)
{
	uint32_t v = (uint32_t)kvc_replacer_victim(k);

	if (!v) {
		for (uint32_t i = 1; i <= CHUNKS; i++)
			assert_false(can_go(i));
		return false;
	}
	assert_true(v <= CHUNKS);
	assert_true(can_go(v));
	kvc_replacer_del(k, v, true);
	model_del(v);
	return true;
}

/* Excludes a random chunk or ends its exclusion, sometimes twice. */
static void put_aside(struct kvc_replacer *k, uint64_t *seed)
{
	uint32_t i = (uint32_t)(1 + draw(seed) % CHUNKS);
	bool aside = draw(seed) % 2;

	assert_int_equal(kvc_replacer_has(k, i), here[i]);
	assert_int_equal(kvc_replacer_children(k, i), here[i] ? followers[i] : 0);
	kvc_replacer_exclude(k, i, aside);
	if (here[i])
		away[i] = aside;
}

/* Sets the parent of a random chunk, mostly to that of its prompt. It takes effect where it can. */
static void tell(struct kvc_replacer *k, uint64_t *seed)
{
	uint32_t i = (uint32_t)(1 + draw(seed) % CHUNKS), parent = up[i], at;

	if (draw(seed) % 4 == 0)
		parent = (uint32_t)(draw(seed) % (CHUNKS + 1));
	kvc_replacer_set_parent(k, i, parent);
	if (!here[i] || (parent && !here[parent]))
		return;
	for (at = parent; at; at = link_of[at])
		if (at == i)
			return;
	followers[link_of[i]]--;
	link_of[i] = parent;
	followers[parent]++;
}

/* The chunk was created by this request, or it was added without a request before. */
static void claim(struct kvc_replacer *k, struct kvc_request *r, uint32_t i, uint32_t parent,
		  bool came)
{
	if (came)
		assert_int_equal(kvc_replacer_add(k, NULL, i, 0, 1), 0);
	assert_int_equal(kvc_replacer_claim(k, r, i, parent, 4096), 0);
	assert_true(kvc_replacer_has(k, i));
}

/* Changes the size of a random chunk, as its files change. */
static void resize(struct kvc_replacer *k, uint64_t *seed)
{
	kvc_replacer_resize(k, 1 + draw(seed) % CHUNKS,
			    draw(seed) % 3 ? 1ull << draw(seed) % 40 : 0);
}

/* A request in progress: its prompt, and the next chunk. */
struct client {
	struct kvc_request r;
	uint32_t prompt[DEPTH];
	unsigned n, j;
	uint8_t nr;
};

static void finish(struct kvc_replacer *k, struct client *c)
{
	kvc_replacer_end(k, &c->r);
	for (uint32_t i = 1; i <= CHUNKS; i++)
		held[i] = held[i] == c->nr ? 0 : held[i];
	c->n = c->j = 0;
}

/*
 * Accesses the next chunk of the prompt, and stores a missed chunk if there is space. Returns true
 * at the end of the prompt.
 */
static bool ask(struct kvc_replacer *k, struct client *c, uint64_t *seed)
{
	uint32_t i, parent;
	bool claims;

	if (c->j == c->n) {
		finish(k, c);
		return true;
	}
	parent = c->j ? c->prompt[c->j - 1] : 0;
	i = c->prompt[c->j++];
	claims = !here[i] && draw(seed) % 4 == 0;
	if (!claims)
		assert_int_equal(kvc_replacer_access(k, &c->r, i), here[i]);
	if (!here[i]) {
		if (nhere >= capacity && !evict(k)) {
			finish(k, c);
			return true;
		}
		if (claims)
			claim(k, &c->r, i, parent, draw(seed) % 2);
		else
			assert_int_equal(kvc_replacer_add(k, &c->r, i, parent, 4096 + c->j), 0);
		assert_int_equal(kvc_replacer_add(k, &c->r, i, 0, 1), -EEXIST);
		/*
		 * the parent may have been evicted after another request accessed it last and ended
		 */
		model_add(i, here[parent] ? parent : 0);
	}
	held[i] = c->nr;
	return false;
}

/* Runs one request from beginning to end, or one step of several requests. */
static void ask_some(struct kvc_replacer *k, struct client *c, unsigned clients, uint64_t *seed)
{
	bool over;

	c += draw(seed) % clients;
	if (!c->r.nr) {
		c->n = prompt_of((uint32_t)(1 + draw(seed) % CHUNKS), c->prompt);
		kvc_replacer_begin(k, &c->r, 0);
	}
	do
		over = ask(k, c, seed);
	while (!over && clients == 1);
}

/* The saved state is complete: another replacer loads it. */
static void saves(const struct kvc_replacer *k, unsigned policy, uint64_t chunks)
{
	struct kvc_replacer *other = opened(policy, chunks, 1);
	void *blob;
	size_t len;

	assert_int_equal(kvc_replacer_save(k, &blob, &len), 0);
	assert_int_equal(kvc_replacer_load(other, blob, len), 0);
	free(blob);
	kvc_replacer_close(other);
}

/* Excludes, sets parents and deletes at random, in the middle of requests. */
static void meddle(struct kvc_replacer *k, uint64_t *seed)
{
	for (int n = (int)(draw(seed) % 8); n > 0; n--)
		put_aside(k, seed);
	for (int n = (int)(draw(seed) % 8); n > 0; n--)
		tell(k, seed);
	for (int n = (int)(draw(seed) % 8); n > 0; n--)
		resize(k, seed);
	if (draw(seed) % 8 == 0) {
		uint32_t v = (uint32_t)(1 + draw(seed) % CHUNKS);

		kvc_replacer_del(k, v, false);
		if (here[v])
			model_del(v);
	}
}

/* fit: capacity in chunks; `chunks`: the expected number that the replacer was told. */
static void holds(unsigned policy, unsigned clients, unsigned fit, uint64_t chunks, uint64_t *seed)
{
	struct kvc_replacer *k = opened(policy, chunks, *seed);
	struct client c[CLIENTS] = { { .nr = 1 }, { .nr = 2 }, { .nr = 3 } };
	char text[4096];

	plant(seed);
	capacity = fit;
	for (int i = 0; i < (clients == 1 ? 3000 : 30000); i++) {
		ask_some(k, c, clients, seed);
		assert_int_equal(kvc_replacer_chunks(k), nhere);
		if (clients == 1 || i % 64 == 0)
			meddle(k, seed);
	}
	for (unsigned i = 0; i < clients; i++)
		if (c[i].r.nr)
			finish(k, &c[i]);
	saves(k, policy, chunks);
	while (evict(k))
		;
	for (uint32_t i = 1; i <= CHUNKS; i++)
		if (away[i]) {
			away[i] = false;
			kvc_replacer_exclude(k, i, false);
		}
	while (evict(k))
		;
	assert_int_equal(nhere, 0);
	kvc_replacer_text(k, text, sizeof text);
	for (unsigned i = 0; i < clients; i++)
		kvc_replacer_request_free(&c[i].r);
	kvc_replacer_close(k);
}

static void all_hold(void **state)
{
	uint64_t seed = (uint64_t)time(NULL) | 1;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	for (unsigned p = 0; p < POLICIES; p++) {
		holds(p, 1, FIT, FIT, &seed);
		holds(p, CLIENTS, FIT, FIT, &seed);
		holds(p, CLIENTS, FEW, FEW, &seed);
		holds(p, CLIENTS, FEW, MANY, &seed);
	}
	assert_null(kvc_policy_names[POLICIES]);
}

/* A claimed chunk keeps its place: it is evicted before the chunks that were added after it. */
static void keeps_its_place(void **state)
{
	static const char *const orders[] = { "lru", "leaf", "fifo", "lfu", "s3fifo", "arc" };

	(void)state;
	for (unsigned p = 0; p < sizeof orders / sizeof *orders; p++) {
		struct kvc_replacer *k;
		struct kvc_request r = { 0 };
		unsigned policy = 0;

		while (strcmp(kvc_policy_names[policy], orders[p]))
			policy++;
		k = opened(policy, FIT, 1);
		for (uint64_t i = 1; i <= 4; i++)
			assert_int_equal(kvc_replacer_add(k, NULL, i, 0, 1), 0);
		kvc_replacer_begin(k, &r, 0);
		assert_int_equal(kvc_replacer_claim(k, &r, 1, 0, 4096), 0);
		/* chunk 1 is in a request in progress */
		assert_int_equal(kvc_replacer_victim(k), 2);
		kvc_replacer_end(k, &r);
		assert_int_equal(kvc_replacer_victim(k), 1);
		kvc_replacer_request_free(&r);
		kvc_replacer_close(k);
	}
}

/*
 * If requests in progress accessed all chunks last, there is no victim; a loose request protects no
 * chunk.
 */
static void busy(void **state)
{
	(void)state;
	for (unsigned p = 0; p < POLICIES; p++) {
		struct kvc_replacer *k = opened(p, 8, 1);
		struct kvc_request a = { 0 }, b = { 0 };

		kvc_replacer_begin(k, &a, 0);
		kvc_replacer_begin(k, &b, 0);
		for (uint64_t i = 1; i <= 4; i++) {
			kvc_replacer_access(k, &a, i);
			assert_int_equal(kvc_replacer_add(k, &a, i, i - 1, 1), 0);
			kvc_replacer_access(k, &b, 100 + i);
			assert_int_equal(kvc_replacer_add(k, &b, 100 + i, i > 1 ? 99 + i : 0, 1),
					 0);
		}
		assert_int_equal(kvc_replacer_victim(k), 0);
		kvc_replacer_end(k, &a);
		assert_int_equal(kvc_replacer_victim(k), 4);
		kvc_replacer_end(k, &b);
		assert_true(kvc_replacer_victim(k) == 4 || kvc_replacer_victim(k) == 104);
		kvc_replacer_begin(k, &a, 0);
		a.loose = true;
		for (uint64_t i = 1; i <= 104; i = i == 4 ? 101 : i + 1)
			kvc_replacer_access(k, &a, i);
		assert_true(kvc_replacer_victim(k) == 4 || kvc_replacer_victim(k) == 104);
		kvc_replacer_end(k, &a);
		kvc_replacer_request_free(&a);
		kvc_replacer_request_free(&b);
		kvc_replacer_close(k);
	}
}

/*
 * If one of two chunks at the end of a prompt is excluded, it stays, and so does their parent; both
 * are evicted later.
 */
static void aside(void **state)
{
	(void)state;
	for (unsigned p = 0; p < POLICIES; p++) {
		struct kvc_replacer *k = opened(p, 8, 1);
		struct kvc_request r = { 0 };

		kvc_replacer_begin(k, &r, 0);
		assert_int_equal(kvc_replacer_add(k, NULL, 1, 0, 1), 0);
		assert_int_equal(kvc_replacer_add(k, NULL, 2, 1, 1), 0);
		assert_int_equal(kvc_replacer_add(k, NULL, 3, 1, 1), 0);
		kvc_replacer_end(k, &r);
		kvc_replacer_begin(k, &r, 0);
		kvc_replacer_end(k, &r);
		kvc_replacer_exclude(k, 3, true);
		kvc_replacer_exclude(k, 3, true);
		kvc_replacer_exclude(k, 7, true);
		assert_int_equal(kvc_replacer_victim(k), 2);
		kvc_replacer_del(k, 2, true);
		assert_int_equal(kvc_replacer_victim(k), 0);
		kvc_replacer_exclude(k, 3, false);
		assert_int_equal(kvc_replacer_victim(k), 3);
		kvc_replacer_exclude(k, 1, true); /* a chunk with children may be excluded too */
		kvc_replacer_del(k, 3, true);
		assert_int_equal(kvc_replacer_victim(k), 0);
		kvc_replacer_del(k, 1, false); /* and an excluded chunk may be deleted */
		assert_false(kvc_replacer_has(k, 1));
		assert_int_equal(kvc_replacer_add(k, NULL, 1, 0, 1), 0);
		kvc_replacer_begin(k, &r, 0);
		kvc_replacer_end(k, &r);
		assert_int_equal(kvc_replacer_victim(k), 1);
		kvc_replacer_request_free(&r);
		kvc_replacer_close(k);
	}
}

/*
 * Four single chunks; the second is accessed twice more, then the first. Checks the order of
 * victims.
 */
static void order_of(const char *policy, const char *want)
{
	unsigned p = 0;
	char got[8] = "";
	struct kvc_request r = { 0 };
	struct kvc_replacer *k;
	static const uint64_t uses[] = { 1, 2, 3, 4, 2, 2, 1 };

	while (strcmp(kvc_policy_names[p], policy))
		p++;
	k = opened(p, 4, 1);
	for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
		kvc_replacer_begin(k, &r, 0);
		if (!kvc_replacer_access(k, &r, uses[i]))
			kvc_replacer_add(k, &r, uses[i], 0, 1);
		kvc_replacer_end(k, &r);
	}
	for (uint64_t v; (v = kvc_replacer_victim(k));) {
		got[strlen(got)] = (char)('0' + v);
		kvc_replacer_del(k, v, true);
	}
	assert_string_equal(got, want);
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

static void orders(void **state)
{
	(void)state;
	order_of("lru", "3421");
	order_of("leaf", "3421");
	order_of("fifo", "1234");
	order_of("lfu", "3412");
	order_of("mru", "1243");
	order_of("arc", "3421");
}

/* gdsf: a large chunk is evicted before a small one, and the start of a prompt before its end. */
static void sizes(void **state)
{
	struct kvc_replacer_conf conf = { 6, 100, 1 };
	struct kvc_replacer *k;
	struct kvc_request r = { 0 };

	(void)state;
	assert_string_equal(kvc_policy_names[conf.policy], "gdsf");
	assert_int_equal(kvc_replacer_open(&k, &conf), 0);
	kvc_replacer_begin(k, &r, 0);
	assert_int_equal(kvc_replacer_add(k, NULL, 1, 0, 4096), 0);
	assert_int_equal(kvc_replacer_add(k, NULL, 2, 0, 65536), 0);
	for (uint64_t i = 10; i < 40; i++)
		assert_int_equal(kvc_replacer_add(k, NULL, i, i > 10 ? i - 1 : 0, 4096), 0);
	kvc_replacer_end(k, &r);
	kvc_replacer_begin(k, &r, 0);
	kvc_replacer_end(k, &r);
	assert_int_equal(kvc_replacer_victim(k), 2);
	kvc_replacer_del(k, 2, true);
	assert_int_equal(kvc_replacer_victim(k), 1);
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

/*
 * The last chunk of a very long prompt is evicted each time, and each choice takes a bounded time.
 */
static void deep(void **state)
{
	enum { N = 300000 };

	(void)state;
	for (unsigned p = 0; p < POLICIES; p++) {
		struct kvc_replacer *k = opened(p, FIT, 1);
		struct kvc_request r = { 0 };

		for (uint64_t i = 1; i <= N; i++)
			assert_int_equal(kvc_replacer_add(k, NULL, i, i - 1, 4096), 0);
		/* so chunks of the last request are not protected any more */
		kvc_replacer_begin(k, &r, 0);
		for (uint64_t i = N; i; i--) {
			assert_int_equal(kvc_replacer_victim(k), i);
			kvc_replacer_del(k, i, true);
		}
		kvc_replacer_end(k, &r);
		kvc_replacer_request_free(&r);
		kvc_replacer_close(k);
	}
}

/*
 * A change of size changes the order. With gdsf and prefix a larger chunk is evicted earlier and a
 * smaller one later, as if it had been added with that size. While prefix evicts by last access, as
 * its guard does at first, size has no effect.
 */
static void grows(void **state)
{
	static const struct {
		unsigned policy;
		bool by_use;
	} ways[] = { { 6, false }, { 8, false }, { 8, true } };

	(void)state;
	for (unsigned w = 0; w < sizeof ways / sizeof *ways; w++) {
		bool by_use = ways[w].by_use;
		struct kvc_replacer *k = opened(ways[w].policy, FIT, 1);
		struct kvc_request r = { 0 };
		uint64_t facts;

		if (ways[w].policy == 8)
			((struct prefix *)k->own)->by_use = by_use;
		for (uint64_t i = 1; i <= 4; i++) {
			kvc_replacer_begin(k, &r, 0);
			kvc_replacer_access(k, &r, i);
			assert_int_equal(kvc_replacer_add(k, &r, i, 0, i == 4 ? 65536 : 4096), 0);
			kvc_replacer_end(k, &r);
		}
		assert_int_equal(kvc_replacer_victim(k), by_use ? 1 : 4);
		kvc_replacer_resize(k, 3, 1 << 20);
		kvc_replacer_resize(k, 77, 1 << 20); /* not in the cache */
		assert_int_equal(kvc_replacer_victim(k), by_use ? 1 : 3);
		kvc_replacer_resize(k, 3, 4096);
		assert_int_equal(kvc_replacer_victim(k), by_use ? 1 : 4);
		facts = kvc_replacer_saved_state(k, 2);
		kvc_replacer_resize(k, 2, 4096);
		assert_int_equal(kvc_replacer_saved_state(k, 2), facts);
		kvc_replacer_resize(k, 4, 0);
		assert_int_not_equal(kvc_replacer_victim(k), 4);
		kvc_replacer_request_free(&r);
		kvc_replacer_close(k);
	}
}

/* The slot of a deleted parent is not reused while its children are in the cache. */
static void orphans(void **state)
{
	struct kvc_chain c;
	uint32_t a, b, d;

	(void)state;
	for (int family = 0; family < 2; family++) {
		assert_int_equal(kvc_chain_init(&c, false, family), 0);
		a = kvc_chain_add(&c, 1, KVC_NO_SLOT, 0);
		b = kvc_chain_add(&c, 2, a, 0);
		assert_false(kvc_chain_is_leaf(&c, a));
		kvc_chain_del(&c, a);
		assert_int_equal(kvc_chain_find(&c, 1), KVC_NO_SLOT);
		assert_true(kvc_chain_is_orphan(&c, b));
		d = kvc_chain_add(&c, 3, KVC_NO_SLOT, 0);
		assert_int_not_equal(d, a);
		kvc_chain_del(&c, b);
		assert_int_equal(kvc_chain_add(&c, 4, KVC_NO_SLOT, 0), b);
		assert_int_equal(kvc_chain_add(&c, 5, KVC_NO_SLOT, 0), a);
		assert_int_equal(c.n, 3);
		assert_int_equal(c.nleaf, 3);
		kvc_chain_fini(&c);
	}
}

/*
 * A chunk that is accessed every tenth request is worth more when it is due than a chunk that was
 * never accessed again.
 */
static void learned(void **state)
{
	struct kvc_learn *l = kvc_learn_new();
	struct kvc_facts often = { .fresh = 0, .length = 1, .count = 9, .deepest = 9, .gap = 5 };
	struct kvc_facts once = { .fresh = 1, .length = 1, .count = 1, .tail = 1 };
	const struct kvc_index *x;

	(void)state;
	assert_non_null(l);
	often.gap = kvc_learn_gap(3.3f);
	assert_int_equal(kvc_learn_gap(-1), 0);
	assert_int_equal(kvc_learn_gap(100), KVC_GAPS - 1);
	for (uint32_t now = 1; now < 5000; now++) {
		kvc_learn_advance(l, now);
		if (now % 10 == 0) {
			kvc_learn_used(l, 7, now);
			kvc_learn_track(l, 7, &often, now, 1);
		}
		kvc_learn_track(l, 1000 + now, &once, now, 1);
	}
	x = kvc_learn_index(l);
	assert_true(kvc_learn_index_of(x, often.gap, kvc_learn_score(l, &often), 9) >
		    20 * kvc_learn_index_of(x, 0, kvc_learn_score(l, &once), 9));
	/* and less when it is long overdue than when it is due */
	assert_true(kvc_learn_index_of(x, often.gap, kvc_learn_score(l, &often), 9) >
		    kvc_learn_index_of(x, often.gap, kvc_learn_score(l, &often), 2000));
	assert_true(kvc_learn_bytes(l) < 64u << 20);
	kvc_learn_free(l);
}

/*
 * Too large an allocation is to be an error and not the end of the test. The sanitizers reserve
 * this name for programs that use them.
 */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "allocator_may_return_null=1";
}
/* NOLINTEND(bugprone-reserved-identifier) */

/*
 * The capacity comes from options. Its size does not decide how much memory an empty replacer uses:
 * with the largest capacity each policy opens with less than 64 MiB, and works. (The unit test
 * memory.c makes allocations of kvc_replacer_open fail.)
 */
static void largest(void **state)
{
	(void)state;
	for (unsigned policy = 0; policy < POLICIES; policy++) {
		struct kvc_replacer_conf conf = { policy, UINT64_MAX, 1 };
		struct kvc_request r = { 0 };
		struct kvc_replacer *k;

		assert_int_equal(kvc_replacer_open(&k, &conf), 0);
		assert_in_range(kvc_replacer_bytes(k), 0, 64 << 20);
		kvc_replacer_begin(k, &r, 0);
		assert_false(kvc_replacer_access(k, &r, 1));
		assert_int_equal(kvc_replacer_add(k, &r, 1, 0, 1), 0);
		assert_true(kvc_replacer_access(k, &r, 1));
		kvc_replacer_end(k, &r);
		assert_int_equal(kvc_replacer_victim(k), 1);
		kvc_replacer_request_free(&r);
		kvc_replacer_close(k);
	}
}

/* Runs requests on a cache of FIT chunks; returns a hash of all hits, refusals and victims. */
static uint64_t decisions(unsigned policy, bool expect)
{
	struct kvc_replacer *k = opened(policy, FIT, 7);
	struct kvc_request r = { 0 };
	uint64_t seed = 5, hash = 0, id[DEPTH + 1], victim;
	uint32_t way[DEPTH];

	plant(&seed);
	for (int i = 0; i < 3000; i++) {
		unsigned n = prompt_of(1 + (uint32_t)(draw(&seed) % CHUNKS), way);

		for (unsigned j = 0; j < n; j++)
			id[j] = way[j];
		id[n] = draw(&seed); /* not accessed after all */
		kvc_replacer_begin(k, &r, 0);
		for (unsigned j = 0; j < n; j++) {
			if (expect && j % KVC_REPLACER_EXPECT == 0)
				kvc_replacer_expect(k, id + j, n + 1 - j);
			hash = hash * 31 + kvc_replacer_access(k, &r, id[j]);
			if (kvc_replacer_has(k, id[j]))
				continue;
			if (kvc_replacer_chunks(k) >= FIT) {
				hash = hash * 31 + kvc_replacer_refuses(k, &r, 1);
				victim = r.refused ? 0 : kvc_replacer_victim(k);
				hash = hash * 31 + victim;
				if (!victim)
					break;
				kvc_replacer_del(k, victim, true);
			}
			assert_int_equal(kvc_replacer_add(k, &r, id[j], j ? id[j - 1] : 0, 1), 0);
		}
		kvc_replacer_end(k, &r);
	}
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
	return hash;
}

/* Expecting accesses changes no decision, whether or not the accesses follow. */
static void expected(void **state)
{
	(void)state;
	for (unsigned policy = 0; policy < POLICIES; policy++)
		assert_true(decisions(policy, true) == decisions(policy, false));
}

/* A search for several chunks at once finds the same slots as a search for each. */
static void found_together(void **state)
{
	uint64_t seed = 3, id[KVC_CHAIN_EXPECT];
	uint32_t slot[KVC_CHAIN_EXPECT], known = 0;
	struct kvc_chain c;

	(void)state;
	assert_int_equal(kvc_chain_init(&c, false, false), 0);
	for (uint64_t i = 1; i <= CHUNKS; i++)
		assert_int_not_equal(kvc_chain_add(&c, i, KVC_NO_SLOT, 0), KVC_NO_SLOT);
	for (int n = 0; n < 100; n++) {
		for (uint32_t i = 0; i < KVC_CHAIN_EXPECT; i++)
			id[i] = 1 + draw(&seed) % (2 * CHUNKS);
		kvc_chain_expect(&c, id, KVC_CHAIN_EXPECT, slot);
		for (uint32_t i = 0; i < KVC_CHAIN_EXPECT; i++) {
			assert_int_equal(slot[i], kvc_chain_find(&c, id[i]));
			known += slot[i] != KVC_NO_SLOT;
		}
	}
	assert_in_range(known, 1000, 2200);
	kvc_chain_fini(&c);
}

/* A change of the saved state increases the number of changes; a query does not. */
static void changes(void **state)
{
	(void)state;
	for (unsigned policy = 0; policy < POLICIES; policy++) {
		struct kvc_replacer *k = opened(policy, FIT, 1);
		struct kvc_request r = { 0 };
		const uint64_t id = 1;
		uint64_t was = kvc_replacer_changes(k);

#define CHANGES(call)                                       \
	do {                                                \
		call;                                       \
		assert_true(kvc_replacer_changes(k) > was); \
		was = kvc_replacer_changes(k);              \
	} while (0)
		CHANGES(kvc_replacer_begin(k, &r, 0));
		CHANGES(kvc_replacer_access(k, &r, 1));
		CHANGES(kvc_replacer_add(k, &r, 1, 0, 1));
		CHANGES(kvc_replacer_add(k, NULL, 2, 0, 1));
		CHANGES(kvc_replacer_set_parent(k, 2, 1));
		CHANGES(kvc_replacer_end(k, &r));
		if (policy == POLICIES - 1) { /* prefix */
			CHANGES(kvc_replacer_tell(k, 1, KVC_OUTLOOK_TOOL));
			CHANGES(kvc_replacer_resize(k, 2, 9));
		}
		CHANGES(kvc_replacer_del(k, 2, true));
#undef CHANGES
		kvc_replacer_expect(k, &id, 1);
		kvc_replacer_exclude(k, 1, true);
		kvc_replacer_del(k, 2, true);
		assert_true(kvc_replacer_has(k, 1));
		assert_int_equal(kvc_replacer_victim(k), 0);
		assert_true(kvc_replacer_changes(k) == was);
		kvc_replacer_request_free(&r);
		kvc_replacer_close(k);
	}
}

/* How a chunk that was evicted or refused is made again. */
enum again { SAME_ID, RENAMED, NEW_ID };

#define AGAIN_REQUESTS 3000

/* Returns the hits of a load in which a few prompts are requested often. */
static unsigned hits_if(unsigned policy, enum again how)
{
	static uint16_t made[CHUNKS + 1];
	struct kvc_replacer *k = opened(policy, FIT, 1);
	uint64_t seed = 5, id[DEPTH], victim;
	struct kvc_request r = { 0 };
	unsigned hits = 0;

	memset(made, 0, sizeof made);
	plant(&seed);
	for (unsigned i = 0; i < AGAIN_REQUESTS; i++) {
		uint64_t rank = draw(&seed) % CHUNKS;
		uint32_t chunk[DEPTH];
		unsigned n = prompt_of((uint32_t)(1 + rank * rank / CHUNKS), chunk);

		kvc_replacer_begin(k, &r, 0);
		for (unsigned j = 0; j < n; j++) {
			uint16_t *m = &made[chunk[j]];

			/* the lower id stays the lower one */
			id[j] = (uint64_t)chunk[j] << 16 | *m;
			if (!kvc_replacer_has(k, id[j]) && how != SAME_ID) {
				uint64_t earlier = id[j];

				id[j] = (uint64_t)chunk[j] << 16 | ++*m;
				if (how == RENAMED)
					kvc_replacer_rename(k, earlier, id[j]);
			}
			if (kvc_replacer_access(k, &r, id[j])) {
				hits++;
				continue;
			}
			if (kvc_replacer_chunks(k) >= FIT && kvc_replacer_refuses(k, &r, 1))
				continue;
			while (kvc_replacer_chunks(k) >= FIT && (victim = kvc_replacer_victim(k)))
				kvc_replacer_del(k, victim, true);
			assert_int_equal(kvc_replacer_add(k, &r, id[j], j ? id[j - 1] : 0, 1), 0);
		}
		kvc_replacer_end(k, &r);
	}
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
	return hits;
}

/*
 * A chunk that was dropped by a mount and is stored again has another id. A policy that is told so
 * makes the same decisions as if the chunk had its earlier id; a policy with a history makes others
 * if it is not told.
 */
static void made_again(void **state)
{
	(void)state;
	for (unsigned policy = 0; policy < POLICIES; policy++) {
		const char *name = kvc_policy_names[policy];
		unsigned same = hits_if(policy, SAME_ID);

		printf("%s: %u hits with the same ids, %u without\n", name, same,
		       hits_if(policy, NEW_ID));
		assert_int_equal(hits_if(policy, RENAMED), same);
		if (!strcmp(name, "prefix") || !strcmp(name, "arc") || !strcmp(name, "s3fifo"))
			assert_int_not_equal(hits_if(policy, NEW_ID), same);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_hold),   cmocka_unit_test(keeps_its_place),
		cmocka_unit_test(made_again), cmocka_unit_test(busy),
		cmocka_unit_test(aside),      cmocka_unit_test(orders),
		cmocka_unit_test(sizes),      cmocka_unit_test(grows),
		cmocka_unit_test(orphans),    cmocka_unit_test(learned),
		cmocka_unit_test(largest),    cmocka_unit_test(deep),
		cmocka_unit_test(expected),   cmocka_unit_test(found_together),
		cmocka_unit_test(changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
