/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policies [CHUNKS [MORE [POLICY [ACCESSES]]]]: prints the cost of each policy (all), or of one, a
 * line each: NAME ZIPF CHAINS BYTES BYTES_MORE. The cache is full with CHUNKS (a million). ZIPF and
 * CHAINS are millions of accesses per second, measured over ACCESSES (500,000). An access is a
 * lookup and, after a miss, the eviction of a victim and an insertion. For ZIPF each request
 * is for one chunk; there are eight times as many chunks as fit, with probability 1/rank. For
 * CHAINS requests are prompts: a document of 4 to 32 chunks, with probability 1/rank, and a new
 * question at its end. BYTES is the memory per chunk after CHAINS, with CHUNKS and with MORE
 * chunks. If CHUNKS or MORE is 0 it is not measured.
 */
#include "replacer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ACCESSES 500000u
#define MOST_ACCESSES (1u << 24)
#define LONGEST 33u /* chunks of a prompt */

struct access {
	uint64_t id, parent; /* parent 0: a request begins */
};

static uint32_t measured = ACCESSES; /* accesses, after half as many that are not measured */

static uint32_t all_accesses(void)
{
	return measured + measured / 2;
}

static uint64_t draw(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Returns 0 to n - 1 with probability 1/rank. */
static uint64_t rank_of(uint64_t *state, uint64_t n)
{
	double u = (double)(draw(state) >> 11) / (double)(1ull << 53);

	return kvc_min((uint64_t)exp(u * log((double)n + 1)) - 1, n - 1);
}

static uint32_t document(uint64_t d)
{
	return 4 + (uint32_t)(d * 0x9e3779b97f4a7c15u >> 40) % (LONGEST - 4);
}

static void make_zipf(struct access *v, uint64_t chunks)
{
	uint64_t seed = 7;

	for (uint32_t i = 0; i < all_accesses(); i++)
		v[i] = (struct access){ .id = 1 + rank_of(&seed, 8 * chunks) };
}

static void make_chains(struct access *v, uint64_t chunks)
{
	uint64_t seed = 7, question = 1ull << 40;

	for (uint32_t i = 0; i < all_accesses();) {
		uint64_t d = rank_of(&seed, chunks / 2), before = 0;
		uint32_t n = document(d);

		for (uint32_t b = 0; b <= n && i < all_accesses(); b++, i++) {
			v[i].id = b == n ? question++ : 1 + d * LONGEST + b;
			v[i].parent = before;
			before = v[i].id;
		}
	}
}

/*
 * Fills the cache with the least popular chunks, from the last one on. chains: chunks of documents.
 */
static int fill(struct kvc_replacer *k, uint64_t chunks, bool chains)
{
	int err = 0;

	for (uint64_t d = chains ? chunks / 2 : 8 * chunks;
	     !err && kvc_replacer_chunks(k) < chunks;) {
		uint32_t n = chains ? document(--d) : 1;
		uint64_t first = chains ? 1 + d * LONGEST : d--;

		for (uint32_t b = 0; b < n && !err && kvc_replacer_chunks(k) < chunks; b++)
			err = kvc_replacer_add(k, NULL, first + b, b ? first + b - 1 : 0, 1);
	}
	return err;
}

static int play(struct kvc_replacer *k, struct kvc_request *r, const struct access *v, uint32_t n,
		uint64_t chunks)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t victim;

		if (!v[i].parent) {
			if (r->nr)
				kvc_replacer_end(k, r);
			kvc_replacer_begin(k, r, 0);
		}
		if (kvc_replacer_access(k, r, v[i].id) ||
		    (v[i].parent && !kvc_replacer_has(k, v[i].parent)))
			continue;
		if (kvc_replacer_chunks(k) >= chunks) {
			victim = kvc_replacer_victim(k);
			if (!victim)
				continue;
			kvc_replacer_del(k, victim, true);
		}
		if (kvc_replacer_add(k, r, v[i].id, v[i].parent, 1))
			return -ENOMEM;
	}
	return 0;
}

/*
 * Returns millions of accesses per second, and sets the bytes per chunk. Negative: out of memory.
 */
static double measure(unsigned policy, const struct access *v, uint64_t chunks, bool chains,
		      double *bytes)
{
	struct kvc_replacer_conf conf = { policy, chunks, 1 };
	struct kvc_request r = { 0 };
	struct kvc_replacer *k;
	uint64_t began, took;
	int err = kvc_replacer_open(&k, &conf);

	if (err)
		return err;
	err = fill(k, chunks, chains) ?: play(k, &r, v, measured / 2, chunks);
	began = kvc_mono_ns();
	err = err ?: play(k, &r, v + measured / 2, measured, chunks);
	took = kvc_mono_ns() - began;
	if (r.nr)
		kvc_replacer_end(k, &r);
	*bytes = (double)kvc_replacer_bytes(k) / (double)chunks;
	kvc_replacer_request_free(&r);
	kvc_replacer_close(k);
	return err ? err : measured * 1e3 / (double)(took + 1);
}

/* Prints the line of one policy. Returns a negative value if memory is short. */
static int look_at(unsigned policy, struct access *v, uint64_t chunks, uint64_t more)
{
	double bytes = 0, at_more = 0, zipf = 0, chains = 0, there = 0;

	if (chunks) {
		make_zipf(v, chunks);
		zipf = measure(policy, v, chunks, false, &bytes);
		make_chains(v, chunks);
		chains = measure(policy, v, chunks, true, &bytes);
	}
	if (more) {
		make_chains(v, more);
		there = measure(policy, v, more, true, &at_more);
	}
	if (zipf < 0 || chains < 0 || there < 0)
		return -ENOMEM;
	printf("%s %.3f %.3f %.1f %.1f\n", kvc_policy_names[policy], zipf, chains, bytes, at_more);
	return fflush(stdout);
}

int main(int argc, char **argv)
{
	uint64_t chunks = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
	uint64_t more = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
	uint64_t accesses = argc > 4 ? strtoull(argv[4], NULL, 10) : ACCESSES;
	const char *policy = argc > 3 ? argv[3] : "all";
	struct access *v = NULL;
	int rc = chunks == 1 || more == 1 || chunks > 1ull << 26 || more > 1ull << 26 ||
		 accesses < 2 || accesses > MOST_ACCESSES;

	if (!rc) {
		measured = (uint32_t)accesses;
		v = calloc(all_accesses(), sizeof *v);
		rc = !v;
	}
	for (unsigned p = 0; !rc && kvc_policy_names[p]; p++)
		if (!strcmp(policy, "all") || !strcmp(policy, kvc_policy_names[p]))
			rc = look_at(p, v, chunks, more) != 0;
	if (rc)
		fprintf(stderr, "policies: out of memory, or a number is out of range\n");
	free(v);
	return rc;
}
