/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saved state of each policy. After half of a random load the state moves to a new replacer, with
 * the chunks in any order, and both have the same victims in the other half. Also state that is
 * invalid or missing.
 */
#include "replacer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define CHUNKS 1200
#define DEPTH 30
#define REQUESTS 1500
#define POLICIES 9
/* s3fifo, arc: the victim is, of the leaves below a chunk, the one that was added last */
#define BY_KIN(p) ((p) == 4 || (p) == 5)
#define BY_KEY(p) ((p) < 4 || (p) == 6 || (p) == 7) /* all but s3fifo, arc and prefix */

static uint32_t up[CHUNKS + 1], link_of[CHUNKS + 1];
static uint64_t size_of[CHUNKS + 1], came[CHUNKS + 1];
static uint64_t last_came;
static bool here[CHUNKS + 1];

static uint64_t draw(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/*
 * Returns the capacity. For prefix it is so small that prefix examines all leaves without drawing.
 */
static unsigned room_of(unsigned policy)
{
	return policy == POLICIES - 1 ? 60 : 300;
}

static struct kvc_replacer *opened(unsigned policy)
{
	struct kvc_replacer_conf conf = { policy, room_of(policy), 1 };
	struct kvc_replacer *k;

	assert_int_equal(kvc_replacer_open(&k, &conf), 0);
	return k;
}

static void plant(uint64_t *seed)
{
	memset(here, 0, sizeof here);
	for (uint32_t i = 1; i <= CHUNKS; i++) {
		up[i] = i > 8 && draw(seed) % 10 ? (uint32_t)(i - 1 - draw(seed) % 8) : 0;
		size_of[i] = 4096 << draw(seed) % 4;
	}
}

static unsigned prompt_of(uint32_t end, uint32_t *to)
{
	unsigned n = 0;

	for (uint32_t i = end; i && n < DEPTH; i = up[i])
		n++;
	for (unsigned j = n; j-- > 0; end = up[end])
		to[j] = end;
	return n;
}

/* Makes room for one chunk, in one replacer or in both alike. */
static bool make_room(struct kvc_replacer **k, unsigned n, unsigned policy)
{
	uint64_t v;

	if (kvc_replacer_chunks(k[0]) < room_of(policy))
		return true;
	v = kvc_replacer_victim(k[0]);
	for (unsigned i = 1; i < n; i++)
		assert_int_equal(kvc_replacer_victim(k[i]), v);
	if (!v)
		return false;
	for (unsigned i = 0; i < n; i++)
		kvc_replacer_del(k[i], v, true);
	here[v] = false;
	for (uint32_t j = 1; j <= CHUNKS; j++)
		link_of[j] = link_of[j] == v ? 0 : link_of[j];
	return true;
}

static void ask(struct kvc_replacer **k, struct kvc_request *r, unsigned n, unsigned policy,
		uint32_t end)
{
	uint32_t prompt[DEPTH];
	unsigned len = prompt_of(end, prompt);

	for (unsigned i = 0; i < n; i++) {
		kvc_replacer_begin(k[i], &r[i], 0);
		r[i].loose = end % 16 == 0;
	}
	for (unsigned j = 0; j < len; j++) {
		uint32_t id = prompt[j], parent = j ? prompt[j - 1] : 0;

		for (unsigned i = 0; i < n; i++)
			assert_int_equal(kvc_replacer_access(k[i], &r[i], id), here[id]);
		if (here[id])
			continue;
		if (!make_room(k, n, policy))
			break;
		for (unsigned i = 0; i < n; i++)
			assert_int_equal(kvc_replacer_add(k[i], &r[i], id, parent, size_of[id]), 0);
		here[id] = true;
		/* in a loose request, the parent may have been evicted to make room */
		link_of[id] = here[parent] ? parent : 0;
		came[id] = ++last_came;
	}
	for (unsigned i = 0; i < n; i++)
		kvc_replacer_end(k[i], &r[i]);
}

static void load_of(struct kvc_replacer **k, unsigned n, unsigned policy, uint64_t *seed)
{
	struct kvc_request r[2] = { 0 };

	for (int i = 0; i < REQUESTS; i++) {
		/* some chunks are requested far more often than others */
		uint32_t most = draw(seed) % 3 ? CHUNKS / 6 : CHUNKS;

		ask(k, r, n, policy, (uint32_t)(1 + draw(seed) % most));
	}
	for (unsigned i = 0; i < n; i++)
		kvc_replacer_request_free(&r[i]);
}

static int by_coming(const void *a, const void *b)
{
	uint64_t x = came[*(const uint32_t *)a], y = came[*(const uint32_t *)b];

	return (x > y) - (x < y);
}

/*
 * Restores all chunks in another replacer, in random order. `kin`: parents are set afterwards, in
 * the order in which the chunks were added.
 */
static void restore(struct kvc_replacer *to, const struct kvc_replacer *from, uint64_t *seed,
		    bool facts, bool kin)
{
	uint32_t first = (uint32_t)(draw(seed) % CHUNKS), all[CHUNKS];

	for (uint32_t n = 0; n < CHUNKS; n++) {
		uint32_t i = (first + n * 7u) % CHUNKS + 1;

		if (here[i])
			assert_int_equal(
				kvc_replacer_restore(to, i, kin ? 0 : link_of[i], size_of[i],
						     facts ? kvc_replacer_saved_state(from, i) : 0),
				0);
	}
	for (uint32_t i = 0; i < CHUNKS; i++)
		all[i] = i + 1;
	qsort(all, CHUNKS, sizeof *all, by_coming);
	for (uint32_t n = 0, i; n < CHUNKS && (i = all[n]); n++)
		if (here[i]) {
			assert_int_equal(kvc_replacer_restore(to, i, 0, 1, 0), -EEXIST);
			kvc_replacer_set_parent(to, i, link_of[i]);
		}
	assert_int_equal(kvc_replacer_chunks(to), kvc_replacer_chunks(from));
}

static void same_victims(void **state)
{
	uint64_t seed = (uint64_t)time(NULL) | 1;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	for (unsigned p = 0; p < POLICIES; p++) {
		struct kvc_replacer *k[2] = { opened(p), opened(p) };
		char text[2][4096];
		void *blob;
		size_t len;

		plant(&seed);
		load_of(k, 1, p, &seed);
		assert_int_equal(kvc_replacer_save(k[0], &blob, &len), 0);
		assert_int_equal(kvc_replacer_load(k[1], blob, len), 0);
		free(blob);
		restore(k[1], k[0], &seed, true, BY_KIN(p));
		load_of(k, 2, p, &seed);
		for (unsigned i = 0; i < 2; i++)
			kvc_replacer_text(k[i], text[i], sizeof text[i]);
		assert_string_equal(text[0], text[1]);
		for (uint32_t i = 1; i <= CHUNKS; i++)
			assert_int_equal(kvc_replacer_saved_state(k[0], i),
					 kvc_replacer_saved_state(k[1], i));
		kvc_replacer_close(k[0]);
		kvc_replacer_close(k[1]);
	}
}

/* Evicts all chunks; writes them in order. */
static unsigned all_go(struct kvc_replacer *k, uint64_t *to)
{
	unsigned n = 0;

	for (uint64_t v; (v = kvc_replacer_victim(k)); to[n++] = v)
		kvc_replacer_del(k, v, true);
	assert_int_equal(kvc_replacer_chunks(k), 0);
	return n;
}

static void save_in_pieces(struct kvc_replacer *k, unsigned policy, bool in_use, uint64_t *seed,
			   struct kvc_replacer *to)
{
	struct kvc_request r = { 0 };
	struct kvc_saving *s = NULL;
	unsigned n = 1;
	void *blob, *whole;
	size_t len, all;
	int more;

	/* ghosts of chunks that are never requested again */
	for (uint64_t i = 0; policy == POLICIES - 1 && i < 40000; i++) {
		if (i % 100 == 0)
			kvc_replacer_begin(k, &r, 0);
		kvc_replacer_access(k, &r, UINT64_MAX - i);
		if (i % 100 == 99)
			kvc_replacer_end(k, &r);
	}
	for (; (more = kvc_replacer_save_piece(k, &s)) > 0; n++)
		for (unsigned i = 0; in_use && i < 20; i++)
			ask(&k, &r, 1, policy, (uint32_t)(1 + draw(seed) % CHUNKS));
	assert_int_equal(more, 0);
	assert_int_equal(kvc_replacer_save_end(s, &blob, &len), 0);
	/* the 131,072 places for ghosts are read in pieces, twice: to choose and to write */
	assert_true(policy != POLICIES - 1 || n > 64);
	if (!in_use) {
		assert_int_equal(kvc_replacer_save(k, &whole, &all), 0);
		assert_int_equal(len, all);
		assert_memory_equal(blob, whole, len);
		free(whole);
	}
	assert_int_equal(kvc_replacer_load(to, blob, len), 0);
	free(blob);
	kvc_replacer_request_free(&r);
}

/* Saves in pieces, also while the cache is in use. */
static void pieces(void **state)
{
	uint64_t seed = (uint64_t)time(NULL) | 1;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	for (unsigned p = 0; p < POLICIES; p++)
		for (int in_use = 0; in_use < 2; in_use++) {
			struct kvc_replacer *a = opened(p), *b = opened(p);
			uint64_t gone[CHUNKS];

			plant(&seed);
			load_of(&a, 1, p, &seed);
			save_in_pieces(a, p, in_use, &seed, b);
			restore(b, a, &seed, true, BY_KIN(p));
			load_of(&b, 1, p, &seed);
			all_go(a, gone);
			all_go(b, gone);
			kvc_replacer_close(a);
			kvc_replacer_close(b);
		}
}

/*
 * With the 64 bits per chunk alone, policies with keys keep their order; without any state, all
 * work.
 */
static void lost(void **state)
{
	uint64_t seed = (uint64_t)time(NULL) | 1;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	for (unsigned p = 0; p < POLICIES; p++) {
		struct kvc_replacer *k = opened(p), *some = opened(p), *none = opened(p), *both[2];
		uint64_t was[CHUNKS], is[CHUNKS];
		unsigned n;

		plant(&seed);
		load_of(&k, 1, p, &seed);
		restore(some, k, &seed, true, false);
		restore(none, k, &seed, false, false);
		n = all_go(k, was);
		assert_int_equal(all_go(some, is), n);
		if (BY_KEY(p))
			assert_memory_equal(was, is, n * sizeof *was);
		assert_int_equal(all_go(none, is), n);
		memset(here, 0, sizeof here);
		both[0] = none;
		load_of(both, 1, p, &seed);
		kvc_replacer_close(k);
		kvc_replacer_close(some);
		kvc_replacer_close(none);
	}
}

/* Accesses after a restart are newer than accesses before it. */
static void goes_on(void **state)
{
	struct kvc_replacer *a = opened(0), *b = opened(0);
	struct kvc_request r = { 0 };

	(void)state;
	for (uint64_t i = 1; i <= 5; i++)
		assert_int_equal(kvc_replacer_add(a, NULL, i, 0, 1), 0);
	for (uint64_t i = 5; i; i--)
		assert_int_equal(kvc_replacer_restore(b, i, 0, 1, kvc_replacer_saved_state(a, i)),
				 0);
	kvc_replacer_begin(b, &r, 0);
	assert_true(kvc_replacer_access(b, &r, 1));
	kvc_replacer_end(b, &r);
	kvc_replacer_begin(b, &r, 0);
	kvc_replacer_end(b, &r);
	for (uint64_t i = 2; i <= 5; i++) {
		assert_int_equal(kvc_replacer_victim(b), i);
		kvc_replacer_del(b, i, true);
	}
	assert_int_equal(kvc_replacer_victim(b), 1);
	assert_int_equal(kvc_replacer_saved_state(b, 77), 0);
	kvc_replacer_request_free(&r);
	kvc_replacer_close(a);
	kvc_replacer_close(b);
}

/*
 * Queues: chunks restored in any order have their place, also if there are many, and also if a
 * chunk is excluded for a while, again and again, while others are evicted.
 */
static void places(void **state)
{
	enum { N = 200000, TAKEN = 20000 };
	uint64_t seed = (uint64_t)time(NULL) | 1, id, facts;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	for (unsigned p = 4; p < 6; p++) {
		struct kvc_replacer *a = opened(p), *b = opened(p);
		struct kvc_request r = { 0 };

		assert_true(BY_KIN(p));
		for (id = 1; id <= N; id++)
			assert_int_equal(kvc_replacer_add(a, NULL, id, 0, 1), 0);
		for (uint64_t i = 0; i < N; i++) {
			id = (i * 77773) % N + 1;
			assert_int_equal(kvc_replacer_restore(b, id, 0, 1,
							      kvc_replacer_saved_state(a, id)),
					 0);
		}
		kvc_replacer_begin(b, &r, 0);
		kvc_replacer_end(b, &r);
		kvc_replacer_begin(b, &r, 0);
		for (uint64_t i = 1; i <= TAKEN; i++) {
			id = TAKEN + 1 + draw(&seed) % (N - TAKEN);
			facts = kvc_replacer_saved_state(b, id);
			kvc_replacer_del(b, id, false);
			assert_int_equal(kvc_replacer_restore(b, id, 0, 1, facts), 0);
			assert_int_equal(kvc_replacer_saved_state(b, id), facts);
			assert_int_equal(kvc_replacer_victim(b), i);
			kvc_replacer_del(b, i, false);
		}
		/* a chunk without state is evicted first; a new chunk is evicted last */
		assert_int_equal(kvc_replacer_restore(b, N + 1, 0, 1, 0), 0);
		assert_int_equal(kvc_replacer_add(b, NULL, N + 2, 0, 1), 0);
		kvc_replacer_end(b, &r);
		assert_int_equal(kvc_replacer_victim(b), N + 1);
		kvc_replacer_del(b, N + 1, false);
		for (uint64_t i = TAKEN + 1; i <= N; i++) {
			assert_int_equal(kvc_replacer_victim(b), i);
			kvc_replacer_del(b, i, false);
		}
		kvc_replacer_request_free(&r);
		kvc_replacer_close(a);
		kvc_replacer_close(b);
	}
}

/* Invalid state, or that of another policy, is refused, and the cache is unchanged. */
static void refused(void **state)
{
	uint64_t seed = (uint64_t)time(NULL) | 1;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	for (unsigned p = 0; p < POLICIES; p++) {
		struct kvc_replacer *a = opened(p), *b = opened(p),
				    *other = opened((p + 1) % POLICIES);
		uint8_t *blob;
		size_t len;

		plant(&seed);
		load_of(&a, 1, p, &seed);
		assert_int_equal(kvc_replacer_save(a, (void **)&blob, &len), 0);
		assert_int_equal(kvc_replacer_load(other, blob, len), -EINVAL);
		assert_int_equal(kvc_replacer_load(b, blob, len - 1), -EINVAL);
		assert_int_equal(kvc_replacer_load(b, blob, 0), -EINVAL);
		for (int i = 0; i < 200; i++) {
			size_t at = draw(&seed) % len;

			blob[at] ^= 16;
			assert_int_equal(kvc_replacer_load(b, blob, len), -EINVAL);
			blob[at] ^= 16;
		}
		assert_int_equal(kvc_replacer_chunks(b), 0);
		assert_int_equal(kvc_replacer_load(b, blob, len), 0);
		assert_int_equal(kvc_replacer_add(b, NULL, 1, 0, 1), 0);
		free(blob);
		kvc_replacer_close(a);
		kvc_replacer_close(b);
		kvc_replacer_close(other);
	}
}

/* A larger cache, with larger tables, loads the state that fits. */
static void resized(void **state)
{
	uint64_t seed = (uint64_t)time(NULL) | 1;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	for (unsigned p = 0; p < POLICIES; p++) {
		struct kvc_replacer *a = opened(p), *b;
		struct kvc_replacer_conf conf = { p, 1 << 17, 1 };
		void *blob;
		size_t len;

		plant(&seed);
		load_of(&a, 1, p, &seed);
		assert_int_equal(kvc_replacer_open(&b, &conf), 0);
		assert_int_equal(kvc_replacer_save(a, &blob, &len), 0);
		assert_in_range(len, 1, 4u << 20);
		assert_int_equal(kvc_replacer_load(b, blob, len), 0);
		restore(b, a, &seed, true, false);
		load_of(&b, 1, p, &seed);
		free(blob);
		kvc_replacer_close(a);
		kvc_replacer_close(b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_victims), cmocka_unit_test(lost),
		cmocka_unit_test(goes_on),      cmocka_unit_test(refused),
		cmocka_unit_test(resized),      cmocka_unit_test(places),
		cmocka_unit_test(pieces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
