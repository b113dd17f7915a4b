/* SPDX-License-Identifier: Apache-2.0 */
/* Belady's optimum, which knows all future accesses. See replay.h. */
#include "replay.h"

#include "chain.h"

#define NEVER 0x1p52 /* no further access */
#define DEPTHS 65536.

/*
 * For each access, computes when its chunk is accessed next: the number of the request, with the
 * position in the prompt as the fraction, so that the end of a prompt is evicted first.
 */
static void compute_next_accesses(const struct kvm_trace *t, double *next, double *first)
{
	for (uint32_t i = 0; i < t->chunks; i++)
		first[i] = NEVER;
	for (uint32_t r = t->requests; r-- > 0;) {
		for (uint64_t a = t->at[r]; a < t->at[r + 1]; a++)
			next[a] = first[t->id[a]];
		for (uint64_t a = t->at[r]; a < t->at[r + 1]; a++)
			first[t->id[a]] = r * DEPTHS + (double)(a - t->at[r]);
	}
}

struct cache {
	struct kvc_chain chain;
	uint64_t capacity, used;
	bool in_bytes;
};

static uint64_t chunk_bytes(const struct cache *k, const struct kvm_trace *t, uint64_t chunk)
{
	return k->in_bytes ? t->bytes[chunk] : 1;
}

/* Adds the chunks of one request to the cache. Returns -1 if memory is short. */
static int add_request(struct cache *k, const struct kvm_trace *t, uint32_t r, const double *next)
{
	struct kvc_chain *c = &k->chain;

	for (uint64_t a = t->at[r]; a < t->at[r + 1]; a++) {
		uint32_t slot = kvc_chain_find(c, t->id[a] + 1ull);
		uint64_t bytes = chunk_bytes(k, t, t->id[a]);

		if (slot != KVC_NO_SLOT) {
			kvc_chain_order(c, slot, -next[a]);
			continue;
		}
		if (next[a] >= NEVER)
			continue;
		while (c->n && k->used + bytes > k->capacity && -c->key[c->leaf[0]] > next[a]) {
			k->used -= chunk_bytes(k, t, c->id[c->leaf[0]] - 1);
			kvc_chain_del(c, c->leaf[0]);
		}
		if (k->used + bytes > k->capacity)
			continue;
		if (kvc_chain_add(c, t->id[a] + 1ull, KVC_NO_SLOT, -next[a]) == KVC_NO_SLOT)
			return -1;
		k->used += bytes;
	}
	return 0;
}

double kvm_optimum(const struct kvm_trace *t, uint64_t capacity, bool in_bytes,
		   struct kvm_part *part)
{
	double *next = malloc(t->accesses * sizeof *next);
	double *first = malloc(t->chunks * sizeof *first);
	uint64_t hits = 0, asked = 0;
	struct cache k = { .capacity = capacity, .in_bytes = in_bytes };
	struct kvc_chain *c = &k.chain;
	int err = -1;

	if (!next || !first || kvc_chain_init(c, true, false)) {
		free(next);
		free(first);
		return -1;
	}
	compute_next_accesses(t, next, first);
	for (uint32_t r = 0; r < t->requests; r++) {
		uint64_t a = t->at[r];

		while (a < t->at[r + 1] && kvc_chain_find(c, t->id[a] + 1ull) != KVC_NO_SLOT)
			a++;
		if (r >= t->requests / 2) {
			part[t->model[r]].hits[0] += a - t->at[r];
			part[t->model[r]].asked += t->at[r + 1] - t->at[r];
		}
		if ((err = add_request(&k, t, r, next)))
			break;
	}
	free(next);
	free(first);
	kvc_chain_fini(c);
	for (uint32_t i = 0; i < t->models; i++) {
		hits += part[i].hits[0];
		asked += part[i].asked;
	}
	return err ? -1 : asked ? (double)hits / (double)asked : 0;
}
