/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the policy `prefix`: the guard, which soon finds out whether the index or the last
 * access is the better order, and evicts by it, whatever the expected size of the cache; the
 * refusal of new chunks; the work for one decision; and the memory per chunk.
 */
#include "learn_priv.h"
#include "prefix_priv.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FIT 1000
#define MANY (1u << 17) /* expected chunks, of a cache in which FIT fit */
#define DOCUMENTS 3000
#define LONGEST 64
#define REQUESTS 6000
#define SOON 640 /* requests, 18,000 chunks: enough to fill a cache of FIT many times */
#define DRAWN 64 /* leaves drawn for a victim, as in prefix_pick.c */
#define LOOKS 8  /* victims in a shadow for one new chunk, at most */
#define PROMPT 500
#define TEN_MILLION 10000000ull

static uint64_t draw(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* A random number from 0 to 1. */
static double chance(uint64_t *seed)
{
	return (double)(draw(seed) >> 11) / (double)(1ull << 53);
}

static struct kvc_replacer *opened(uint64_t chunks)
{
	struct kvc_replacer_conf conf = { 0, chunks, 1 };
	struct kvc_replacer *k;

	while (strcmp(kvc_policy_names[conf.policy], "prefix"))
		conf.policy++;
	assert_int_equal(kvc_replacer_open(&k, &conf), 0);
	return k;
}

static bool says(const struct kvc_replacer *k, const char *line)
{
	char text[4096];

	kvc_replacer_text(k, text, sizeof text);
	return strstr(text, line);
}

/* Returns how many random numbers were drawn between two states of the generator. */
static unsigned draws(uint64_t from, uint64_t to)
{
	unsigned n = 0;

	for (; from != to && n <= DRAWN * LOOKS; n++)
		draw(&from);
	return n;
}

/*
 * Returns a victim, and checks that it took a bounded number of draws, however many leaves there
 * are.
 */
static uint64_t victim_of(struct kvc_replacer *k)
{
	uint64_t before = k->chance, victim = kvc_replacer_victim(k);

	assert_in_range(draws(before, k->chance), 0, DRAWN + 8);
	return victim;
}

/* Accesses a chunk, and checks the draws for its shadows. */
static bool touched(struct kvc_replacer *k, struct kvc_request *r, uint64_t id)
{
	uint64_t before = k->chance;
	bool here = kvc_replacer_access(k, r, id);

	assert_in_range(draws(before, k->chance), 0, DRAWN * LOOKS);
	return here;
}

/* One request: a document and a question at its end. */
static void ask(struct kvc_replacer *k, struct kvc_request *r, uint64_t document, uint64_t question)
{
	uint64_t n = 5 + document * 0x9e3779b97f4a7c15u % 56, before = 0, victim;

	kvc_replacer_begin(k, r, 0);
	for (uint64_t b = 0; b <= n; before = b < n ? 1 + document * LONGEST + b : 0, b++) {
		uint64_t id = b < n ? 1 + document * LONGEST + b : question;

		if (!touched(k, r, id) && (!before || kvc_replacer_has(k, before))) {
			if (kvc_replacer_chunks(k) >= FIT && kvc_replacer_refuses(k, r, 1))
				continue;
			while (kvc_replacer_chunks(k) >= FIT && (victim = victim_of(k)))
				kvc_replacer_del(k, victim, true);
			assert_int_equal(kvc_replacer_add(k, r, id, before, 1), 0);
		}
	}
	kvc_replacer_end(k, r);
}

/* The document of request i: each is in use for a while and then never again. */
static uint64_t drifting(int i, uint64_t *seed)
{
	return (uint64_t)(.4 * i - 60 * log(1 - chance(seed)));
}

/* A load in which the last access is the best order. */
static void drift(struct kvc_replacer *k, struct kvc_request *r, uint64_t *seed, uint64_t *question)
{
	for (int i = 0; i < REQUESTS; i++)
		ask(k, r, drifting(i, seed) % DOCUMENTS, ++*question);
}

/* A load with a few documents that are always in use, and many that are not: by 1/rank. */
static void settled(struct kvc_replacer *k, struct kvc_request *r, uint64_t *seed,
		    uint64_t *question)
{
	for (int i = 0; i < REQUESTS; i++)
		ask(k, r, (uint64_t)exp(chance(seed) * log(DOCUMENTS)) % DOCUMENTS, ++*question);
}

/*
 * Replaces the learned index by one in which the oldest chunk is worth most. Returns the learned
 * index.
 */
static const struct kvc_index *mislead(struct kvc_replacer *k)
{
	static struct kvc_index worst;
	struct prefix *p = k->own;
	const struct kvc_index *learned = p->index;

	memcpy(worst.log2, learned->log2, sizeof worst.log2);
	for (int gap = 0; gap < KVC_GAPS; gap++)
		for (int score = 0; score < KVC_SCORES; score++)
			for (int b = 0; b <= KVC_AGES; b++)
				worst.of[gap][score][b] = (float)(b + 1);
	p->index = &worst;
	return learned;
}

static void guards(uint64_t chunks)
{
	struct kvc_replacer *k = opened(chunks);
	struct kvc_request r = { 0 };
	uint64_t seed = 5, question = 1ull << 40;
	const struct kvc_index *learned;

	assert_true(says(k, "by index\n") && says(k, "guard index\n"));
	learned = mislead(k);
	drift(k, &r, &seed, &question);
	assert_true(says(k, "by use\n") && says(k, "guard use\n"));
	((struct prefix *)k->own)->index = learned;
	settled(k, &r, &seed, &question);
	assert_true(says(k, "by index\n") && says(k, "guard index\n"));
	/* with so few chunks, all are in the shadows */
	assert_true(says(k, "\nsample 1\n"));
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

static void guard(void **state)
{
	(void)state;
	guards(FIT);
}

/*
 * If chunks are much larger than expected, a sample of one in 32 is too small: it grows to all
 * chunks.
 */
static void guard_of_few(void **state)
{
	struct kvc_replacer *k = opened(MANY);

	(void)state;
	assert_true(says(k, "\nsample 32\n"));
	kvc_replacer_close(k);
	guards(MANY);
}

/*
 * The index fails and the settled load ends: its documents are not requested again, and the new
 * ones are in use for a while. Earlier gains of the index are soon no reason to keep using it.
 */
static void guard_soon(void **state)
{
	struct kvc_replacer *k = opened(FIT);
	struct kvc_request r = { 0 };
	uint64_t seed = 5, question = 1ull << 40;

	(void)state;
	settled(k, &r, &seed, &question);
	settled(k, &r, &seed, &question);
	assert_true(says(k, "by index\n"));
	mislead(k);
	for (int i = 0; i < SOON; i++)
		ask(k, &r, DOCUMENTS + drifting(i, &seed), ++question);
	assert_true(says(k, "by use\n") && says(k, "guard use\n"));
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

/* Does the full cache refuse a new chunk at the end of the first document, or of a loose request?
 */
static bool refuses(struct kvc_replacer *k, struct kvc_request *r, uint64_t id, bool as_loose)
{
	r->loose = as_loose;
	for (uint64_t b = 1; b <= 5; b++)
		kvc_replacer_access(k, r, b);
	kvc_replacer_access(k, r, id);
	return kvc_replacer_refuses(k, r, 1);
}

/*
 * A question is asked once, so a new one is worth less than what the cache holds, and so is the
 * rest of its request. Nothing is refused while leaves are evicted by last access, or if the order
 * of the chunks is not known.
 */
static void refusal(void **state)
{
	struct kvc_replacer *k = opened(FIT);
	struct prefix *p = k->own;
	struct kvc_request r = { 0 };
	uint64_t seed = 7, question = 1ull << 40, victim;

	(void)state;
	settled(k, &r, &seed, &question);
	assert_true(says(k, "by index\n"));
	kvc_replacer_begin(k, &r, 0);
	assert_true(refuses(k, &r, ++question, false));
	/* a document that was requested often, but the request is refused already */
	kvc_replacer_access(k, &r, 1);
	assert_true(kvc_replacer_refuses(k, &r, 1));
	kvc_replacer_end(k, &r);
	kvc_replacer_begin(k, &r, 0);
	assert_false(refuses(k, &r, ++question, true));
	kvc_replacer_end(k, &r);
	p->by_use = true;
	kvc_replacer_begin(k, &r, 0);
	assert_false(refuses(k, &r, ++question, false));
	kvc_replacer_end(k, &r);
	p->by_use = false;
	/* the next victim is the same, whether or not a chunk was refused before */
	kvc_replacer_begin(k, &r, 0);
	assert_true(refuses(k, &r, ++question, false));
	victim = k->chain.id[p->drawn[0].best[0].slot];
	assert_true(kvc_replacer_refuses(k, &r, 1));
	assert_int_equal(victim_of(k), victim);
	kvc_replacer_end(k, &r);
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

/*
 * If parents are not known, the oldest leaf is evicted and the text says why. One in eight of the
 * last few thousand accesses is enough for this, however many accesses there were before.
 */
static void loose(void **state)
{
	struct kvc_replacer *k = opened(FIT);
	struct kvc_request r = { 0 };
	uint64_t seed = 6, question = 1ull << 40, n = 0;

	(void)state;
	settled(k, &r, &seed, &question);
	assert_true(says(k, "by index\n") && says(k, "loose 0.0000\n"));
	for (; !says(k, "guard loose\n"); n++) {
		assert_in_range(n, 0, 600);
		kvc_replacer_begin(k, &r, 0);
		r.loose = true;
		kvc_replacer_access(k, &r, ++question);
		kvc_replacer_end(k, &r);
	}
	assert_in_range(n, 500, 600); /* 4096 ln(8/7) */
	assert_true(says(k, "by use\n"));
	for (uint64_t i = 1; i <= 100; i++) {
		kvc_replacer_begin(k, &r, 0);
		r.loose = true;
		kvc_replacer_access(k, &r, ++question);
		assert_int_equal(kvc_replacer_add(k, &r, question, 0, 1), 0);
		kvc_replacer_end(k, &r);
	}
	assert_true(kvc_replacer_victim(k) < question - 100);
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

/* If all accesses so far are loose, the oldest leaf is evicted, whatever it is worth per byte. */
static void loose_at_first(void **state)
{
	struct kvc_replacer *k = opened(FIT);
	struct kvc_request r = { 0 };

	(void)state;
	for (uint64_t id = 1; id <= 200; id++) {
		kvc_replacer_begin(k, &r, 0);
		r.loose = true;
		kvc_replacer_access(k, &r, id);
		assert_int_equal(kvc_replacer_add(k, &r, id, 0, id == 1 ? 1 : 1 << 20), 0);
		kvc_replacer_end(k, &r);
	}
	assert_true(says(k, "guard loose\n"));
	assert_int_equal(kvc_replacer_victim(k), 1);
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

/* Makes `uses` accesses to 300 chunks in turn, each in a loose request of its own. */
static void use_alone(struct kvc_replacer *k, struct kvc_request *r, unsigned uses)
{
	for (uint64_t i = 0; i < uses; i++) {
		kvc_replacer_begin(k, r, 0);
		r->loose = true;
		if (!kvc_replacer_access(k, r, 1 + i % 300))
			assert_int_equal(kvc_replacer_add(k, r, 1 + i % 300, 0, 1), 0);
		kvc_replacer_end(k, r);
	}
}

/*
 * Chunks that are accessed alone, again and again, cost no learning: no record waits, and the index
 * table does not change.
 */
static void loose_is_light(void **state)
{
	struct kvc_replacer *k = opened(FIT);
	const struct prefix *p = k->own;
	struct kvc_request r = { 0 };
	uint64_t bytes = kvc_learn_bytes(p->learn);

	(void)state;
	use_alone(k, &r, 20000);
	assert_int_equal(kvc_learn_bytes(p->learn), bytes);
	assert_int_equal(p->learn->slice, 0);
	assert_int_equal(p->learn->row_at, 0);
	for (int i = 0; i < 10; i++) { /* in a normal request it is learned */
		kvc_replacer_begin(k, &r, 0);
		for (uint64_t id = 1; id <= 100; id++)
			kvc_replacer_access(k, &r, id);
		kvc_replacer_end(k, &r);
	}
	assert_true(kvc_learn_bytes(p->learn) > bytes);
	assert_true(p->learn->row_at > 0);
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

/* A loose chunk has the same value after a restart. */
static void loose_is_kept(void **state)
{
	struct kvc_replacer *k = opened(FIT), *to = opened(FIT);
	const struct prefix *p = k->own, *q = to->own;
	struct kvc_request r = { 0 };

	(void)state;
	use_alone(k, &r, 3000);
	for (uint64_t id = 1; id <= 300; id++) {
		uint32_t slot = kvc_chain_find(&k->chain, id), there;

		assert_int_equal(
			kvc_replacer_restore(to, id, 0, 1, kvc_replacer_saved_state(k, id)), 0);
		there = kvc_chain_find(&to->chain, id);
		assert_true(p->worth[slot].gap > 1);
		assert_memory_equal(&p->worth[slot], &q->worth[there], sizeof *p->worth);
	}
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
	kvc_replacer_close(to);
}

/* Returns the memory of a learner with all its records. */
static uint64_t most_of_learner(void)
{
	struct kvc_learn *l = kvc_learn_new();
	struct kvc_facts f = { .length = 1 };
	uint64_t bytes;

	assert_non_null(l);
	for (uint64_t i = 1; i <= 1u << 19; i++)
		kvc_learn_track(l, i, &f, 1, 1);
	bytes = kvc_learn_bytes(l);
	kvc_learn_free(l);
	return bytes;
}

/* Returns the memory without ghosts and the learner, whose numbers are fixed in the end. */
static uint64_t bytes_of(const struct kvc_replacer *k)
{
	const struct prefix *p = k->own;

	return kvc_replacer_bytes(k) - kvc_ghosts_bytes(&p->ghosts) - kvc_learn_bytes(p->learn);
}

static uint64_t most_of_ghosts(const struct kvc_replacer *k)
{
	const struct prefix *p = k->own;

	return p->ghosts.rows * KVC_GHOST_ROW * sizeof(struct kvc_ghost);
}

/*
 * The memory of a cache for ten million chunks, with all ghosts and a full learner: at most 48
 * bytes per chunk, including shadows. It is computed from the cache's own count and the cost of the
 * first chunks, not measured with ten million.
 */
static void memory(void **state)
{
	struct kvc_replacer *k = opened(TEN_MILLION);
	struct kvc_request r = { 0 };
	uint64_t empty = bytes_of(k), first = 0, n = 400 * PROMPT;
	double each;

	(void)state;
	for (uint64_t id = 1; id <= n; id++) {
		if (id % PROMPT == 1)
			kvc_replacer_begin(k, &r, 0);
		kvc_replacer_access(k, &r, id);
		assert_int_equal(kvc_replacer_add(k, &r, id, id % PROMPT == 1 ? 0 : id - 1, 1), 0);
		if (id % PROMPT == 0)
			kvc_replacer_end(k, &r);
		if (id == PROMPT)
			first = bytes_of(k);
	}
	assert_true(says(k, "\nsample 32\n"));
	each = (double)(bytes_of(k) - first) / (double)(n - PROMPT);
	each += (double)(empty + most_of_ghosts(k) + most_of_learner()) / (double)TEN_MILLION;
	assert_true(each > 40 && each <= 48);
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

/* Returns the number of runs that are recorded after so many requests for one chunk each. */
static uint32_t recorded(uint64_t chunks, uint64_t requests)
{
	struct kvc_replacer *k = opened(chunks);
	struct kvc_request r = { 0 };
	uint32_t n;

	for (uint64_t id = 1; id <= requests; id++) {
		kvc_replacer_begin(k, &r, 0);
		kvc_replacer_access(k, &r, id);
		kvc_replacer_end(k, &r);
	}
	n = ((struct prefix *)k->own)->learn->used;
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
	return n;
}

/* A large cache learns from one in sixteen runs, and a cache of a usual size from all. */
static void learning_sample(void **state)
{
	uint32_t n = recorded(TEN_MILLION, 3200);

	(void)state;
	assert_true(n > 100 && n < 400);
	assert_int_equal(recorded(500000, 3200), 3200);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(guard),         cmocka_unit_test(guard_of_few),
		cmocka_unit_test(guard_soon),    cmocka_unit_test(refusal),
		cmocka_unit_test(loose),         cmocka_unit_test(loose_is_light),
		cmocka_unit_test(loose_is_kept), cmocka_unit_test(loose_at_first),
		cmocka_unit_test(memory),        cmocka_unit_test(learning_sample),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
