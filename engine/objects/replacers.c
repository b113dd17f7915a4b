/* SPDX-License-Identifier: Apache-2.0 */
/* The replacers of this mount, see replacers.h. */
#include "replacers.h"

#include "pin.h"
#include "tier_queue.h"
#include "latency.h"

#include <string.h>

#define USUAL (1u << 20) /* bytes of a chunk whose size is not known */

unsigned kvc_replacers_policy_of(const struct kvc *k, enum kvc_cache cache, unsigned class)
{
	if (class)
		return class - 1;
	return (unsigned)(cache == KVC_CACHE_DISK && k->opt.disk_policy ? k->opt.disk_policy - 1
									: k->opt.policy);
}

void kvc_replacers_evicted(struct kvc *k, enum kvc_reason why, int from, unsigned class)
{
	enum kvc_cache cache = from == KVC_FROM_POOL ? KVC_CACHE_POOL : KVC_CACHE_DISK;
	unsigned place = from == KVC_FROM_POOL  ? KVC_OF_POOL
			 : from == KVC_FROM_ALL ? KVC_PLACES
						: (unsigned)from;

	kvc_count_one(&k->stats.evicted_for[why], 1);
	kvc_count_one(&k->stats.evicted_by[place][kvc_replacers_policy_of(k, cache, class)][why],
		      1);
}

bool kvc_replacers_has_order(const struct kvc *k, enum kvc_cache cache, unsigned class)
{
	return cache == KVC_CACHE_POOL ||
	       (k->tier[0].t &&
		!kvc_policy_table[kvc_replacers_policy_of(k, cache, class)].by_rank);
}

bool kvc_replacers_infer_parents(const struct kvc *k, unsigned class)
{
	for (int i = 0; i < KVC_CACHES; i++)
		if (kvc_policy_table[kvc_replacers_policy_of(k, (enum kvc_cache)i, class)].by_chain)
			return true;
	return false;
}

struct kvc_replacer *kvc_replacers_of_locked(struct kvc *k, enum kvc_cache cache, unsigned class)
{
	struct kvc_replacer **replacer = &k->replacers->replacer[cache][class];
	uint64_t bytes = cache == KVC_CACHE_POOL ? k->pool.bytes : k->pins->disk_size;
	struct kvc_replacer_conf conf = {
		kvc_replacers_policy_of(k, cache, class),
		bytes / USUAL,
		1,
	};

	if (!*replacer && kvc_replacers_has_order(k, cache, class) &&
	    kvc_replacer_open(replacer, &conf))
		*replacer = NULL;
	return *replacer;
}

bool kvc_replacers_has_locked(const struct kvc *k, enum kvc_cache cache, const struct kvc_chunk *c)
{
	struct kvc_replacer *replacer = k->replacers->replacer[cache][c->policy];

	return replacer && kvc_replacer_has(replacer, c->id);
}

static uint64_t bytes_in_cache(enum kvc_cache cache, const struct kvc_chunk *c)
{
	uint64_t bytes = cache == KVC_CACHE_POOL ? c->bytes : c->peak_bytes;

	return bytes ? bytes : USUAL;
}

void kvc_replacers_add_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c)
{
	struct kvc_replacer *replacer = kvc_replacers_of_locked(k, cache, c->policy);

	if (replacer)
		kvc_replacer_add(replacer, NULL, c->id, c->parent & ~KVC_TOLD,
				 bytes_in_cache(cache, c));
}

void kvc_replacers_claim_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c,
				struct kvc_request *r)
{
	kvc_replacer_claim(k->replacers->replacer[cache][c->policy], r, c->id,
			   c->parent & ~KVC_TOLD, bytes_in_cache(cache, c));
}

void kvc_replacers_rename_locked(struct kvc *k, uint64_t earlier, const struct kvc_chunk *c)
{
	for (int i = 0; i < KVC_CACHES; i++)
		if (k->replacers->replacer[i][c->policy])
			kvc_replacer_rename(k->replacers->replacer[i][c->policy], earlier, c->id);
}

uint64_t kvc_replacers_saved_state_locked(const struct kvc *k, enum kvc_cache cache,
					  const struct kvc_chunk *c)
{
	struct kvc_replacer *replacer = k->replacers->replacer[cache][c->policy];

	return replacer && kvc_replacer_has(replacer, c->id)
		       ? kvc_replacer_saved_state(replacer, c->id)
		       : c->saved_state[cache];
}

void kvc_replacers_resize_locked(struct kvc *k, const struct kvc_chunk *c)
{
	for (int i = 0; i < KVC_CACHES; i++)
		if (k->replacers->replacer[i][c->policy])
			kvc_replacer_resize(k->replacers->replacer[i][c->policy], c->id,
					    bytes_in_cache((enum kvc_cache)i, c));
}

void kvc_replacers_remove_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c,
				 bool evicted)
{
	struct kvc_replacer *replacer = k->replacers->replacer[cache][c->policy];

	if (!replacer || !kvc_replacer_has(replacer, c->id))
		return;
	c->saved_state[cache] = kvc_replacer_saved_state(replacer, c->id);
	kvc_replacer_del(replacer, c->id, evicted);
}

void kvc_replacers_forget_locked(struct kvc *k, uint64_t id)
{
	for (int i = 0; i < KVC_CACHES; i++)
		for (int j = 0; j < KVC_CLASSES; j++)
			if (k->replacers->replacer[i][j])
				kvc_replacer_del(k->replacers->replacer[i][j], id, true);
}

void kvc_replacers_count_victim_locked(const struct kvc *k, struct kvc_replacer_turns *turns,
				       unsigned class)
{
	const struct kvc_replacer *replacer = k->replacers->replacer[KVC_CACHE_POOL][class];

	kvc_replacer_turns_advance(turns, class, replacer ? kvc_replacer_chunks(replacer) : 0);
}

uint64_t kvc_replacers_victim_locked(struct kvc *k, enum kvc_cache cache, unsigned class)
{
	return k->replacers->replacer[cache][class]
		       ? kvc_replacer_victim(k->replacers->replacer[cache][class])
		       : 0;
}

void kvc_replacers_exclude_locked(struct kvc *k, enum kvc_cache cache, uint64_t id, unsigned class,
				  bool excluded)
{
	struct kvc_replacer *replacer = k->replacers->replacer[cache][class];

	if (replacer)
		kvc_replacer_exclude(replacer, id, excluded);
}

bool kvc_replacers_tell_locked(struct kvc *k, struct kvc_chunk *c, uint8_t outlook)
{
	bool told = false;

	for (int i = 0; i < KVC_CACHES; i++)
		if (k->replacers->replacer[i][c->policy]) {
			kvc_replacer_tell(k->replacers->replacer[i][c->policy], c->id, outlook);
			told = true;
		}
	c->due |= told;
	return told;
}

uint64_t kvc_replacers_changes_locked(const struct kvc *k)
{
	uint64_t sum = 0;

	for (int i = 0; i < KVC_CACHES; i++)
		for (int j = 0; j < KVC_CLASSES; j++)
			if (k->replacers->replacer[i][j])
				sum += kvc_replacer_changes(k->replacers->replacer[i][j]);
	return sum;
}

void kvc_replacers_set_parent_locked(struct kvc *k, struct kvc_chunk *c, uint64_t parent)
{
	for (int i = 0; i < KVC_CACHES; i++)
		if (k->replacers->replacer[i][c->policy])
			kvc_replacer_set_parent(k->replacers->replacer[i][c->policy], c->id,
						parent);
}

void kvc_replacers_unlink_parent_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (k->replacers->replacer[KVC_CACHE_POOL][c->policy])
		kvc_replacer_set_parent(k->replacers->replacer[KVC_CACHE_POOL][c->policy], c->id,
					0);
}

void kvc_replacers_restore_locked(struct kvc *k, enum kvc_cache cache,
				  const struct kvc_chunk_row *r, uint64_t bytes)
{
	struct kvc_replacer *replacer = kvc_replacers_of_locked(k, cache, r->policy);

	if (replacer)
		kvc_replacer_restore(replacer, r->id, 0, bytes ?: r->bytes ?: USUAL,
				 cache == KVC_CACHE_POOL ? r->pool_facts : r->facts);
}

void kvc_replacers_join_locked(struct kvc *k, enum kvc_cache cache, const struct kvc_chunk_row *r)
{
	struct kvc_replacer *replacer = k->replacers->replacer[cache][r->policy];

	if (replacer && r->parent)
		kvc_replacer_set_parent(replacer, r->id, r->parent & ~KVC_TOLD);
}

void kvc_replacers_extract_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk_row *r)
{
	struct kvc_replacer *replacer = k->replacers->replacer[cache][r->policy];

	if (!replacer || !kvc_replacer_has(replacer, r->id))
		return;
	*(cache == KVC_CACHE_POOL ? &r->pool_facts : &r->facts) = kvc_replacer_saved_state(replacer,
											   r->id);
	kvc_replacer_del(replacer, r->id, true);
}

bool kvc_replacers_has_row_locked(const struct kvc *k, enum kvc_cache cache,
				  const struct kvc_chunk_row *r)
{
	struct kvc_replacer *replacer = k->replacers->replacer[cache][r->policy];

	return replacer && kvc_replacer_has(replacer, r->id);
}

uint32_t kvc_replacers_children_locked(const struct kvc *k, enum kvc_cache cache,
				       const struct kvc_chunk_row *r)
{
	struct kvc_replacer *replacer = k->replacers->replacer[cache][r->policy];

	return replacer ? kvc_replacer_children(replacer, r->id) : 0;
}

void kvc_replacers_reclass_locked(struct kvc *k, const struct kvc_chunk_row *r, unsigned class)
{
	struct kvc_chunk_row to = *r;

	if (k->replacers->replacer[KVC_CACHE_DISK][r->policy])
		kvc_replacer_del(k->replacers->replacer[KVC_CACHE_DISK][r->policy], r->id, false);
	to.policy = class;
	to.facts = to.pool_facts = 0; /* another policy's state means nothing here */
	kvc_replacers_restore_locked(k, KVC_CACHE_DISK, &to, 0);
	kvc_replacers_join_locked(k, KVC_CACHE_DISK, &to);
}

void kvc_replacers_free(struct kvc *k)
{
	for (int i = 0; i < KVC_CACHES; i++)
		for (int j = 0; j < KVC_CLASSES; j++)
			kvc_replacer_close(k->replacers->replacer[i][j]);
}

void kvc_replacers_text_locked(struct kvc *k, FILE *f)
{
	for (int i = 0; i < KVC_CACHES; i++)
		for (unsigned j = 0; j < KVC_CLASSES; j++) {
			struct kvc_replacer *replacer = k->replacers->replacer[i][j];
			char text[4096], *save = NULL;

			if (!replacer)
				continue;
			fprintf(f, "%s %s%s\n  chunks %llu\n  memory %llu\n", i ? "disk" : "pool",
				kvc_policy_table[kvc_replacers_policy_of(k, (enum kvc_cache)i, j)]
					.name,
				j ? " (models of their own)" : "",
				(unsigned long long)kvc_replacer_chunks(replacer),
				(unsigned long long)kvc_replacer_bytes(replacer));
			kvc_replacer_text(replacer, text, sizeof text);
			for (char *l = strtok_r(text, "\n", &save); l;
			     l = strtok_r(NULL, "\n", &save))
				fprintf(f, "  %s\n", l);
		}
}
