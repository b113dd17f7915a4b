/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parents inferred from calls: sequences of calls that engines make, and the parents inferred from
 * them.
 */
#include "chain_infer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000ull

static struct kvc_chain_infer *o;
static uint64_t now;
static uint64_t chance;

static uint32_t draw(uint32_t n)
{
	chance = chance * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((chance >> 32) * n >> 32);
}

static struct kvc_inferred by(uint32_t client, uint64_t id, bool known, uint64_t parent)
{
	struct kvc_inferred seen;

	kvc_chain_infer_access(o, client, id, now, known, parent, &seen);
	now += MS;
	return seen;
}

/*
 * A client opens a prompt whose parents are known. This proves that it accesses prompts in order.
 */
static void shows(uint32_t client)
{
	for (uint64_t i = 0; i < 17; i++)
		by(client, 5000000 + i, true, i ? 5000000 + i - 1 : 0);
}

static int begin(void **state)
{
	int err;

	(void)state;
	now = 5000 * MS;
	err = kvc_chain_infer_open(&o);
	if (err)
		return err;
	shows(1);
	now += 40000 * MS; /* so the pause ends all requests */
	return 0;
}

static int end(void **state)
{
	(void)state;
	kvc_chain_infer_close(o);
	return 0;
}

static void created(uint64_t id, uint64_t parent, bool begins)
{
	struct kvc_inferred seen = by(1, id, false, 0);

	assert_int_equal(seen.parent, parent);
	assert_int_equal(seen.begins, begins);
}

/* Opens a chunk with its known parent; checks the inferred one. */
static void opened(uint64_t id, uint64_t known, uint64_t parent, bool begins)
{
	struct kvc_inferred seen = by(1, id, true, known);

	assert_int_equal(seen.parent, parent);
	assert_int_equal(seen.begins, begins);
}

/*
 * A prompt of which a part is in the cache, with time to compute; then the next prompt, and one
 * with a pause.
 */
static void prompts(void **state)
{
	(void)state;
	opened(10, 0, 0, true);
	opened(11, 10, 10, false);
	opened(12, 11, 11, false);
	now += 4000 * MS;
	created(13, 12, false);
	created(13, 12, false); /* another layer of the chunk */
	opened(13, 12, 12, false);
	created(14, 13, false);
	opened(10, 0, 0, true);
	opened(11, 10, 10, false);
	created(20, 11, false);
	opened(12, 11, 11, true); /* the engine has the beginning itself, and opens only the end */
	opened(13, 12, 12, false);
	now += 2000 * MS;
	opened(14, 13, 13, true);
	opened(14, 13, 13, false);
	now += 2000 * MS;
	opened(14, 13, 13, true);
	now += 40000 * MS; /* so the pause is longer than a computation */
	created(30, 0, true);
}

/*
 * Prompts of which nothing is in the cache: bursts of creates, with pauses to compute between them.
 */
static void bursts(void **state)
{
	uint64_t id = 100;

	(void)state;
	for (int burst = 0; burst < 18; burst++) {
		int n = burst ? 5 + burst % 6 : 12;

		now += 200 * MS;
		for (int i = 0; i < n; i++, id++)
			if (i || burst != 1)
				created(id, i ? id - 1 : 0, !i);
			else /* the first chunk of a burst may continue the prompt */
				assert_int_equal(by(1, id, false, 0).parent, id - 1);
	}
}

/* Long prompts, in steps of 16 chunks; the last step is shorter. */
static void steps(void **state)
{
	uint64_t id = 1000;

	(void)state;
	for (int prompt = 0; prompt < 20; prompt++)
		for (int i = 0; i < 40; i++, id++) {
			if (i % 16 == 0)
				now += 300 * MS;
			if (prompt && !i)
				created(id, 0, true);
			else if (i)
				created(id, id - 1, false);
			else
				by(1, id, false, 0);
		}
}

/* Endless creates are not one prompt; a long prompt is joined when it is opened. */
static void endless(void **state)
{
	enum { N = 2000, LONG = 512 };

	(void)state;
	for (uint64_t i = 0; i < N; i++)
		created(1 + i, i % LONG ? i : 0, i % LONG == 0);
	for (uint64_t i = 0; i < N; i++)
		assert_int_equal(by(1, 1 + i, true, i % LONG ? i : 0).parent, i);
}

/* The first chunk of a burst is judged when it is opened. */
static void doubts(void **state)
{
	(void)state;
	/* all of one prompt was in the cache, and nothing of the next */
	opened(1, 0, 0, true);
	opened(2, 1, 1, false);
	created(3, 2, false);
	created(4, 3, false);
	opened(9, 0, 0, true);
	opened(3, 2, 0, true);
	opened(4, 3, 3, false);
	opened(9, 0, 0, true);
	opened(3, 0, 0, true); /* so it begins a prompt */
	/* a step was mistaken for a prompt */
	created(20, 3, false);
	created(21, 20, false);
	now += 900 * MS;
	created(22, 0, true);
	opened(21, 20, 20, true);
	opened(22, 0, 21, false);
	opened(1, 0, 0, true);
	opened(22, 21, 21, true);
}

/* Clients are separate; with more than 256, the one that has been silent longest is forgotten. */
static void clients(void **state)
{
	(void)state;
	for (uint32_t c = 1; c <= 256; c++)
		shows(c);
	now += 40000 * MS;
	for (uint32_t c = 1; c <= 256; c++, now -= MS)
		assert_true(by(c, 1000 + c, false, 0).begins);
	for (uint32_t c = 1; c <= 256; c++, now -= MS)
		assert_int_equal(by(c, 2000 + c, false, 0).parent, 1000 + c);
	shows(257);
	now += 40000 * MS;
	assert_int_equal(by(257, 3000, false, 0).parent, 0);
	now -= 40000 * MS;
	assert_int_equal(by(257, 3001, false, 0).parent, 3000);
	assert_int_equal(by(2, 3002, false, 0).parent, 2002);
	assert_int_equal(by(1, 3003, false, 0).parent, 0);
	assert_int_equal(by(3, 3004, false, 0).parent, 0); /* client 3 replaced client 1 */
	for (uint32_t c = 1000; c < 100000; c++)
		by(c * 2654435761u, c, c % 2, 0);
}

/* A thread of process 7 accesses a chunk; checks which client it is. */
static void by_thread(uint32_t thread, bool apart, uint64_t id, bool known_, uint64_t parent)
{
	uint32_t client = kvc_chain_infer_client(o, 7, thread);

	assert_int_equal(client, apart ? thread | KVC_CHAIN_INFER_THREAD : 7);
	by(client, id, known_, parent);
}

/*
 * Threads that access the chunks of one prompt in turn are one client. Threads with prompts of
 * their own are separate clients, as their opens show, whether or not they wait for each other.
 */
static void threads(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 1000; i++)
		by_thread(100 + i % 3, false, 1 + i, i % 2, i);
	for (unsigned length = 1; length <= 20; length += 19) {
		kvc_chain_infer_close(o);
		assert_int_equal(kvc_chain_infer_open(&o), 0);
		for (uint64_t i = 0; i < 400; i++) {
			uint64_t thread = i / length % 2, at = i / length / 2 * length + i % length;
			uint32_t client = kvc_chain_infer_client(o, 7, (uint32_t)(100 + thread));

			by(client, 1000 * (thread + 1) + at, true,
			   at ? 1000 * (thread + 1) + at - 1 : 0);
		}
		by_thread(100, true, 1, true, 0);
		/*
		 * the main thread is a separate client, too, although its number is the process's
		 */
		by_thread(7, true, 2, true, 0);
		by_thread(101, true, 3, true, 0);
		assert_int_equal(kvc_chain_infer_client(o, 8, 8), 8);
	}
}

/*
 * Files that are created in a row have no parents until a client has opened some of them in that
 * order. Then these files get parents, and so do new ones. The reader may be another client, which
 * creates nothing.
 */
static void proof(void **state)
{
	struct kvc_inferred seen;

	(void)state;
	for (uint32_t reader = 2; reader <= 3; reader++) {
		uint64_t of = reader * 1000;

		for (uint64_t i = 0; i < 40; i++) {
			seen = by(2, of + i, false, 0);
			assert_true(!seen.parent && seen.unsure && seen.begins == !i);
		}
		now += 2000 * MS;
		for (uint64_t i = 40; i-- > 0;) { /* in no order, or in another order */
			seen = by(reader, of + i * 7 % 40, true, 0);
			assert_true(!seen.parent && seen.unsure);
		}
		now += 40000 * MS;
		for (uint64_t i = 40; i < 80; i++)
			by(2, of + i, false, 0);
		now += 2000 * MS;
		for (uint64_t i = 40; i < 80; i++) {
			seen = by(reader, of + i, true, 0);
			assert_int_equal(seen.parent, i > 40 ? of + i - 1 : 0);
			assert_int_equal(seen.unsure, reader == 3 || i < 56);
		}
		now += 40000 * MS;
		by(2, of + 80, false, 0);
		seen = by(2, of + 81, false, 0);
		assert_true(seen.parent == of + 80 && !seen.unsure);
		kvc_chain_infer_close(o);
		assert_int_equal(kvc_chain_infer_open(&o), 0);
	}
	/* or it opens a known prompt */
	shows(2);
	now += 40000 * MS;
	by(2, 1, false, 0);
	assert_int_equal(by(2, 2, false, 0).parent, 1);
}

/*
 * Creating the same chunks again in the same order is proof, too, since all of them may have been
 * evicted.
 */
static void proof_without_opens(void **state)
{
	struct kvc_inferred seen = { 0 };

	(void)state;
	for (int round = 0; round < 4; round++) {
		for (uint64_t i = 0; i < 40; i++) { /* the first two rounds are in another order */
			uint64_t at = round == 1 ? i * 7 % 40 : i;

			seen = by(2, 100 + at, false, 0);
			assert_int_equal(seen.unsure, round < 3 || i < 16);
			assert_int_equal(seen.parent, round < 3 || i < 16 ? 0 : 99 + i);
		}
		now += 40000 * MS;
	}
}

/*
 * Prompts lose single chunks, not only their ends: a client opens the beginning of a prompt that is
 * in the cache, and creates the missing chunks of the rest. It works on one prompt at a time, and
 * most chunks get their parent at last.
 */
static void holes(void **state)
{
	enum { PROMPTS = 100, LENGTH = 24, ALL = PROMPTS * LENGTH, ROUNDS = 8 };
	static uint64_t parent[ALL + 1];
	static bool in_cache[ALL + 1];
	unsigned right = 0;

	(void)state;
	chance = 1;
	for (int round = 0; round < ROUNDS; round++)
		for (uint64_t p = 0; p < PROMPTS; p++) {
			bool opens = true;

			for (int i = 0; round < ROUNDS - 1 && i < 3; i++)
				in_cache[1 + p * LENGTH + 4 + draw(LENGTH - 4)] = false;
			for (uint64_t id = 1 + p * LENGTH; id <= (p + 1) * LENGTH; id++) {
				struct kvc_inferred seen;

				opens = opens && in_cache[id];
				if (!opens && in_cache[id])
					continue;
				seen = by(1, id, opens, opens ? parent[id] : 0);
				assert_false(seen.unsure);
				parent[id] = seen.parent;
				in_cache[id] = true;
			}
			now += 40000 * MS; /* so the next prompt does not continue this one */
		}
	for (uint64_t id = 1; id <= ALL; id++)
		right += parent[id] == (id % LENGTH == 1 ? 0 : id - 1);
	assert_true(right > ALL * .95);
}

/*
 * Wrong guesses of one thread count for all threads of the process, because they do the same work.
 * Each of eight threads alternates between two prompts, and none has many wrong guesses alone.
 */
static void threads_are_one(void **state)
{
	struct kvc_inferred seen = { 0 };
	uint64_t id = 1;

	(void)state;
	/* each thread has its own prompt, so they become separate clients */
	for (uint64_t i = 0; i < 400; i++) {
		uint32_t client = kvc_chain_infer_client(o, 7, (uint32_t)(100 + i % 8));

		by(client, 1000000 + 1000 * (i % 8) + i / 8, true,
		   i / 8 ? 1000000 + 1000 * (i % 8) + i / 8 - 1 : 0);
	}
	by_thread(100, true, 2000000, false, 0);
	for (int round = 0; round < 2; round++)
		for (uint32_t t = 100; t < 108; t++, id += 64) {
			/*
			 * creates 16 chunks of the one prompt, 16 of the other, and so on; then
			 * opens one prompt from its beginning
			 */
			for (uint64_t i = 0; i < 64; i++)
				by_thread(t, true, id + i / 16 % 2 * 32 + i / 32 * 16 + i % 16,
					  false, 0);
			now += 2000 * MS;
			for (uint64_t i = 0; i < 64; i++) /* other accesses for a long time */
				by_thread(t, true, 4000000 + i, true, i ? 4000000 + i - 1 : 0);
			now += 2000 * MS;
			for (uint64_t i = 0; i < 32; i++)
				seen = by(kvc_chain_infer_client(o, 7, t), id + i, true,
					  i == 16 ? id + 47
					  : i     ? id + i - 1
						  : 0);
			now += 2000 * MS;
		}
	assert_true(seen.unsure);
	by_thread(100, true, 3000000, false, 0);
	seen = by(kvc_chain_infer_client(o, 7, 100), 3000001, false, 0);
	assert_true(seen.unsure && !seen.parent);
}

/*
 * Documents of different popularity with a question at their end. The client works on `width` of
 * them at a time: it opens `open_turn` chunks of one document, then of the next. It creates missing
 * chunks, `make_turn` at a time. All created chunks stay. Measures the share of wrong parents among
 * the chunks created in the last quarter.
 */
#define DOCUMENTS 200
#define LONGEST 40
#define REQUESTS 4096

static uint64_t known[DOCUMENTS * LONGEST + REQUESTS + 1]; /* 1: in the cache, without a parent */
struct prompt {
	uint32_t document, question, length, at;
};

static uint64_t chunk(const struct prompt *p, uint32_t at)
{
	return at + 1 == p->length ? 1 + DOCUMENTS * LONGEST + p->question
				   : 1 + p->document * LONGEST + at;
}

static bool use(struct prompt *p, bool makes, unsigned *made, unsigned *wrong, bool *unsure)
{
	uint64_t id = chunk(p, p->at), truth = p->at ? chunk(p, p->at - 1) : 0;
	struct kvc_inferred seen;

	if (!makes && !known[id])
		return false;
	p->at++;
	if (makes && known[id])
		return true; /* another prompt has created it by now */
	seen = by(1, id, !makes, known[id] > 1 ? known[id] - 1 : 0);
	known[id] = seen.parent + 1;
	*made += makes;
	*wrong += makes && seen.parent && seen.parent != truth;
	*unsure = seen.unsure;
	return true;
}

static void play(struct prompt *p, uint32_t width, bool makes, uint32_t turn, unsigned *made,
		 unsigned *wrong, bool *unsure)
{
	for (bool more = true; more;) {
		more = false;
		for (uint32_t i = 0; i < width; i++)
			for (uint32_t n = 0; n < turn && p[i].at < p[i].length; n++) {
				if (!use(&p[i], makes, made, wrong, unsure))
					break;
				more = true;
			}
		now += makes ? 200 * MS : 20 * MS;
	}
}

static double turns(uint32_t width, uint32_t open_turn, uint32_t make_turn, bool *unsure)
{
	unsigned made = 0, wrong = 0;
	struct prompt p[32];

	kvc_chain_infer_close(o);
	assert_int_equal(kvc_chain_infer_open(&o), 0);
	memset(known, 0, sizeof known);
	for (uint32_t r = 0; r < REQUESTS; r += width) {
		if (r == REQUESTS / 4 * 3)
			made = wrong = 0;
		for (uint32_t i = 0; i < width; i++) {
			uint32_t d = kvc_min(draw(DOCUMENTS), draw(DOCUMENTS));

			p[i] = (struct prompt){ d, r + i, 3 + d * 7 % (LONGEST - 3), 0 };
		}
		now += 500 * MS;
		play(p, width, false, open_turn, &made, &wrong, unsure);
		play(p, width, true, make_turn, &made, &wrong, unsure);
	}
	return (double)wrong / made;
}

/* For a client that alternates between several prompts, wrong parents are not reported for long. */
static void in_turns(void **state)
{
	static const uint32_t turn[][2] = { { 1, 1 }, { 4, 4 }, { 1, 16 }, { LONGEST, 16 } };
	bool unsure;

	(void)state;
	for (unsigned t = 0; t < sizeof turn / sizeof *turn; t++)
		for (uint32_t width = 1; width <= 32; width *= 2) {
			double wrong;

			chance = width;
			wrong = turns(width, turn[t][0], turn[t][1], &unsure);
			assert_true(wrong < .02);
			assert_true(width > 1 || !unsure);
		}
}

/*
 * Prompts whose chunks are evicted before anything opens them, and are created again, `width` of
 * them in turns and 16 chunks at a time.
 */
static bool again(uint64_t width)
{
	struct kvc_inferred seen = { 0 };

	for (uint64_t round = 0; round < 240 / width; round++) {
		uint64_t first = draw(41), step = 1 + draw(40);

		/* in turns, the steps of a prompt do not begin at the same chunks each time */
		for (uint64_t at = width > 1 ? draw(16) : 0; at < 40; at += 16)
			for (uint64_t i = 0; i < width; i++) {
				uint64_t id = 1 + 40 * ((first + i * step) % 41) + at;

				now += 300 * MS;
				for (uint64_t b = at; b < at + 16 && b < 40; b++)
					seen = by(1, id++, false, 0);
			}
	}
	return !seen.unsure;
}

/* A client is trusted with prompts one after another, but not in turns. */
static void created_again(void **state)
{
	(void)state;
	chance = 1;
	assert_true(again(1));
	assert_false(again(8));
	assert_false(again(20));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(prompts, begin, end),
		cmocka_unit_test_setup_teardown(bursts, begin, end),
		cmocka_unit_test_setup_teardown(steps, begin, end),
		cmocka_unit_test_setup_teardown(endless, begin, end),
		cmocka_unit_test_setup_teardown(doubts, begin, end),
		cmocka_unit_test_setup_teardown(clients, begin, end),
		cmocka_unit_test_setup_teardown(in_turns, begin, end),
		cmocka_unit_test_setup_teardown(threads, begin, end),
		cmocka_unit_test_setup_teardown(proof, begin, end),
		cmocka_unit_test_setup_teardown(proof_without_opens, begin, end),
		cmocka_unit_test_setup_teardown(holes, begin, end),
		cmocka_unit_test_setup_teardown(threads_are_one, begin, end),
		cmocka_unit_test_setup_teardown(created_again, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
