/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is particular to the policy `prefix`: the guard, which takes over where the index does worse
 * and hands back where it does better, whatever size the cache was said to have, and soon after the
 * load has changed; the work for a decision; and the memory of a chunk.
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
#define MANY (1u << 17) /* the cache was said to have, which has FIT */
#define DOCUMENTS 3000
#define LONGEST 64
#define REQUESTS 6000
#define SOON 640 /* requests, 18,000 chunks: a cache of FIT has been filled many times */
#define DRAWN 64 /* of leaves that are looked at for a victim, as prefix_pick.c has it */
#define LOOKS 8  /* victims of a shadow for one chunk that comes, at most */
#define PROMPT 500
#define TEN_MILLION 10000000ull

static uint64_t draw(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* 0 to 1. */
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

/* Random numbers from one state of the cache's on to another. */
static unsigned draws(uint64_t from, uint64_t to)
{
	unsigned n = 0;

	for (; from != to && n <= DRAWN * LOOKS; n++)
		draw(&from);
	return n;
}

/* A victim, for which it looks at so many leaves and no more, however many there are. */
static uint64_t victim_of(struct kvc_replacer *k)
{
	uint64_t before = k->chance, victim = kvc_replacer_victim(k);

	assert_in_range(draws(before, k->chance), 0, DRAWN + 8);
	return victim;
}

/* The same of a use, for its shadows. */
static bool touched(struct kvc_replacer *k, struct kvc_request *r, uint64_t id)
{
	uint64_t before = k->chance;
	bool here = kvc_replacer_access(k, r, id);

	assert_in_range(draws(before, k->chance), 0, DRAWN * LOOKS);
	return here;
}

/* A document, and a question at its end. */
static void ask(struct kvc_replacer *k, struct kvc_request *r, uint64_t document, uint64_t question)
{
	uint64_t n = 5 + document * 0x9e3779b97f4a7c15u % 56, before = 0, victim;

	kvc_replacer_begin(k, r);
	for (uint64_t b = 0; b <= n; b++) {
		uint64_t id = b < n ? 1 + document * LONGEST + b : question;

		if (!touched(k, r, id) && (!before || kvc_replacer_has(k, before))) {
			while (kvc_replacer_chunks(k) >= FIT && (victim = victim_of(k)))
				kvc_replacer_del(k, victim, true);
			assert_int_equal(kvc_replacer_add(k, r, id, before, 1), 0);
		}
		before = id;
	}
	kvc_replacer_end(k, r);
}

/* The document of request i, of those that are in use for a while and never again. */
static uint64_t drifting(int i, uint64_t *seed)
{
	return (uint64_t)(.4 * i - 60 * log(1 - chance(seed)));
}

/* What was used last is worth most. */
static void drift(struct kvc_replacer *k, struct kvc_request *r, uint64_t *seed, uint64_t *question)
{
	for (int i = 0; i < REQUESTS; i++)
		ask(k, r, drifting(i, seed) % DOCUMENTS, ++*question);
}

/* A few documents that are always in use, and many that are not: by 1/rank. */
static void settled(struct kvc_replacer *k, struct kvc_request *r, uint64_t *seed,
		    uint64_t *question)
{
	for (int i = 0; i < REQUESTS; i++)
		ask(k, r, (uint64_t)exp(chance(seed) * log(DOCUMENTS)) % DOCUMENTS, ++*question);
}

static void guards(uint64_t chunks)
{
	struct kvc_replacer *k = opened(chunks);
	struct kvc_request r = { 0 };
	uint64_t seed = 5, question = 1ull << 40;

	/* the index has to show first that it is better */
	assert_true(says(k, "by use\n") && says(k, "guard use\n"));
	settled(k, &r, &seed, &question);
	assert_true(says(k, "by index\n") && says(k, "guard index\n"));
	drift(k, &r, &seed, &question);
	assert_true(says(k, "by use\n") && says(k, "guard use\n"));
	/* so few chunks are all looked at */
	assert_true(says(k, "\nsample 1\n"));
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

static void guard(void **state)
{
	(void)state;
	guards(FIT);
}

/* Of chunks that are much larger than was thought one in 32 is not enough: all come to be seen. */
static void guard_of_few(void **state)
{
	struct kvc_replacer *k = opened(MANY);

	(void)state;
	assert_true(says(k, "\nsample 32\n"));
	kvc_replacer_close(k);
	guards(MANY);
}

/*
 * What was settled is over: nobody asks for it again, and what is asked for now is of use for a
 * while. What the index won before that is no reason to go on by it.
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
	for (int i = 0; i < SOON; i++)
		ask(k, &r, DOCUMENTS + drifting(i, &seed), ++question);
	assert_true(says(k, "by use\n") && says(k, "guard use\n"));
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

/*
 * Where nobody knows what follows what the oldest goes, and it says why: once that holds for one of
 * eight uses of the last thousands, however many there were before.
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
		kvc_replacer_begin(k, &r);
		r.loose = true;
		kvc_replacer_access(k, &r, ++question);
		kvc_replacer_end(k, &r);
	}
	assert_in_range(n, 500, 600); /* 4096 ln(8/7) */
	assert_true(says(k, "by use\n"));
	for (uint64_t i = 1; i <= 100; i++) {
		kvc_replacer_begin(k, &r);
		r.loose = true;
		kvc_replacer_access(k, &r, ++question);
		assert_int_equal(kvc_replacer_add(k, &r, question, 0, 1), 0);
		kvc_replacer_end(k, &r);
	}
	assert_true(kvc_replacer_victim(k) < question - 100);
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

/* So many uses of 300 chunks in turns, of each by itself. */
static void use_alone(struct kvc_replacer *k, struct kvc_request *r, unsigned uses)
{
	for (uint64_t i = 0; i < uses; i++) {
		kvc_replacer_begin(k, r);
		r->loose = true;
		if (!kvc_replacer_access(k, r, 1 + i % 300))
			assert_int_equal(kvc_replacer_add(k, r, 1 + i % 300, 0, 1), 0);
		kvc_replacer_end(k, r);
	}
}

/*
 * What is used alone, over and over, costs no learning: nothing waits to be learned, and the table
 * of indexes stays as it is.
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
	for (int i = 0; i < 10; i++) { /* of a request it is learned, and then it is */
		kvc_replacer_begin(k, &r);
		for (uint64_t id = 1; id <= 100; id++)
			kvc_replacer_access(k, &r, id);
		kvc_replacer_end(k, &r);
	}
	assert_true(kvc_learn_bytes(p->learn) > bytes);
	assert_true(p->learn->row_at > 0);
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

/* And is worth the same after a restart. */
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

/* The learner when it has all that it ever has. */
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

/* But of ghosts, which there are as many of in the end as there are to be. */
static uint64_t bytes_of(const struct kvc_replacer *k)
{
	const struct prefix *p = k->own;

	return kvc_replacer_bytes(k) - kvc_ghosts_bytes(&p->ghosts);
}

static uint64_t most_of_ghosts(const struct kvc_replacer *k)
{
	const struct prefix *p = k->own;

	return p->ghosts.rows * KVC_GHOST_ROW * sizeof(struct kvc_ghost);
}

/*
 * A cache for ten million chunks, with all ghosts, the learner when it is full, and for each of ten
 * million what each of the first ones takes, in the shadows too: at most 48 bytes a chunk. By the
 * cache's own count, and not with ten million.
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
			kvc_replacer_begin(k, &r);
		kvc_replacer_access(k, &r, id);
		assert_int_equal(kvc_replacer_add(k, &r, id, id % PROMPT == 1 ? 0 : id - 1, 1), 0);
		if (id % PROMPT == 0)
			kvc_replacer_end(k, &r);
		if (id == PROMPT) /* and the learner has what it needs for this */
			first = bytes_of(k);
	}
	assert_true(says(k, "\nsample 32\n"));
	each = (double)(bytes_of(k) - first) / (double)(n - PROMPT);
	each += (double)(empty + most_of_ghosts(k) + most_of_learner()) / (double)TEN_MILLION;
	assert_true(each > 40 && each <= 48);
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(guard),          cmocka_unit_test(guard_of_few),
		cmocka_unit_test(guard_soon),     cmocka_unit_test(loose),
		cmocka_unit_test(loose_is_light), cmocka_unit_test(loose_is_kept),
		cmocka_unit_test(memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
