/* SPDX-License-Identifier: Apache-2.0 */
/* See kept.h. */
#include "kept.h"

#include "pin.h"
#include "tierq.h"
#include "took.h"

#include <string.h>

#define USUAL (1u << 20) /* bytes of a chunk, where they are not known */

unsigned kvc_policy_of(const struct kvc *k, enum kvc_cache cache, unsigned class)
{
	if (class)
		return class - 1;
	return (unsigned)(cache == KVC_CACHE_DISK && k->opt.disk_policy ? k->opt.disk_policy - 1
									: k->opt.policy);
}

void kvc_kept_evicted(struct kvc *k, enum kvc_reason why, int from, unsigned class)
{
	enum kvc_cache cache = from == KVC_FROM_POOL ? KVC_CACHE_POOL : KVC_CACHE_DISK;
	unsigned place = from == KVC_FROM_POOL  ? KVC_OF_POOL
			 : from == KVC_FROM_ALL ? KVC_PLACES
						: (unsigned)from;

	kvc_count(&k->stats, evicted_for[why]);
	kvc_count(&k->stats, evicted_by[place][kvc_policy_of(k, cache, class)][why]);
}

bool kvc_kept_here(const struct kvc *k, enum kvc_cache cache, unsigned class)
{
	return cache == KVC_CACHE_POOL ||
	       (k->tier[0].t && !kvc_policies[kvc_policy_of(k, cache, class)].by_rank);
}

bool kvc_kept_learns(const struct kvc *k, unsigned class)
{
	for (int i = 0; i < KVC_CACHES; i++)
		if (kvc_policies[kvc_policy_of(k, (enum kvc_cache)i, class)].by_chain)
			return true;
	return false;
}

struct kvc_keep *kvc_kept_of_locked(struct kvc *k, enum kvc_cache cache, unsigned class)
{
	struct kvc_keep **keep = &k->kept->keep[cache][class];
	uint64_t bytes = cache == KVC_CACHE_POOL ? k->pool.bytes : k->pins->disk_size;
	struct kvc_keep_conf conf = { kvc_policy_of(k, cache, class), bytes / USUAL, 1 };

	if (!*keep && kvc_kept_here(k, cache, class) && kvc_keep_open(keep, &conf))
		*keep = NULL;
	return *keep;
}

bool kvc_kept_has_locked(const struct kvc *k, enum kvc_cache cache, const struct kvc_chunk *c)
{
	struct kvc_keep *keep = k->kept->keep[cache][c->policy];

	return keep && kvc_keep_has(keep, c->id);
}

static uint64_t bytes_of(enum kvc_cache cache, const struct kvc_chunk *c)
{
	uint64_t bytes = cache == KVC_CACHE_POOL ? c->bytes : c->most;

	return bytes ? bytes : USUAL;
}

/* Without memory it is nobody's victim until it comes again. */
void kvc_kept_in_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c)
{
	struct kvc_keep *keep = kvc_kept_of_locked(k, cache, c->policy);

	if (keep)
		kvc_keep_add(keep, NULL, c->id, c->parent & ~KVC_TOLD, bytes_of(cache, c));
}

void kvc_kept_claim_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c,
			   struct kvc_request *r)
{
	kvc_keep_claim(k->kept->keep[cache][c->policy], r, c->id, c->parent & ~KVC_TOLD,
		       bytes_of(cache, c));
}

uint64_t kvc_kept_facts_locked(const struct kvc *k, enum kvc_cache cache, const struct kvc_chunk *c)
{
	struct kvc_keep *keep = k->kept->keep[cache][c->policy];

	return keep && kvc_keep_has(keep, c->id) ? kvc_keep_facts(keep, c->id) : c->facts[cache];
}

void kvc_kept_resize_locked(struct kvc *k, const struct kvc_chunk *c)
{
	for (int i = 0; i < KVC_CACHES; i++)
		if (k->kept->keep[i][c->policy])
			kvc_keep_resize(k->kept->keep[i][c->policy], c->id,
					bytes_of((enum kvc_cache)i, c));
}

void kvc_kept_out_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk *c, bool evicted)
{
	struct kvc_keep *keep = k->kept->keep[cache][c->policy];

	if (!keep || !kvc_keep_has(keep, c->id))
		return;
	c->facts[cache] = kvc_keep_facts(keep, c->id);
	kvc_keep_del(keep, c->id, evicted);
}

void kvc_kept_forget_locked(struct kvc *k, uint64_t id)
{
	for (int i = 0; i < KVC_CACHES; i++)
		for (int j = 0; j < KVC_CLASSES; j++)
			if (k->kept->keep[i][j])
				kvc_keep_del(k->kept->keep[i][j], id, true);
}

uint64_t kvc_kept_count_locked(const struct kvc *k, enum kvc_cache cache, unsigned class)
{
	return k->kept->keep[cache][class] ? kvc_keep_chunks(k->kept->keep[cache][class]) : 0;
}

uint64_t kvc_kept_victim_locked(struct kvc *k, enum kvc_cache cache, unsigned class)
{
	return k->kept->keep[cache][class] ? kvc_keep_victim(k->kept->keep[cache][class]) : 0;
}

void kvc_kept_aside_locked(struct kvc *k, enum kvc_cache cache, uint64_t id, unsigned class,
			   bool aside)
{
	struct kvc_keep *keep = k->kept->keep[cache][class];

	if (keep && kvc_keep_has(keep, id))
		kvc_keep_aside(keep, id, aside);
}

void kvc_kept_follow_locked(struct kvc *k, struct kvc_chunk *c, uint64_t parent)
{
	for (int i = 0; i < KVC_CACHES; i++)
		if (k->kept->keep[i][c->policy])
			kvc_keep_follow(k->kept->keep[i][c->policy], c->id, parent);
}

void kvc_kept_part_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (k->kept->keep[KVC_CACHE_POOL][c->policy])
		kvc_keep_follow(k->kept->keep[KVC_CACHE_POOL][c->policy], c->id, 0);
}

void kvc_kept_restore_locked(struct kvc *k, enum kvc_cache cache, const struct kvc_chunk_row *r,
			     uint64_t bytes)
{
	struct kvc_keep *keep = kvc_kept_of_locked(k, cache, r->policy);

	if (keep)
		kvc_keep_restore(keep, r->id, 0, bytes ?: r->bytes ?: USUAL,
				 cache == KVC_CACHE_POOL ? r->pool_facts : r->facts);
}

void kvc_kept_join_locked(struct kvc *k, enum kvc_cache cache, const struct kvc_chunk_row *r)
{
	struct kvc_keep *keep = k->kept->keep[cache][r->policy];

	if (keep && r->parent)
		kvc_keep_follow(keep, r->id, r->parent & ~KVC_TOLD);
}

void kvc_kept_take_locked(struct kvc *k, enum kvc_cache cache, struct kvc_chunk_row *r)
{
	struct kvc_keep *keep = k->kept->keep[cache][r->policy];

	if (!keep || !kvc_keep_has(keep, r->id))
		return;
	*(cache == KVC_CACHE_POOL ? &r->pool_facts : &r->facts) = kvc_keep_facts(keep, r->id);
	kvc_keep_del(keep, r->id, true);
}

bool kvc_kept_holds_locked(const struct kvc *k, enum kvc_cache cache, const struct kvc_chunk_row *r)
{
	struct kvc_keep *keep = k->kept->keep[cache][r->policy];

	return keep && kvc_keep_has(keep, r->id);
}

uint32_t kvc_kept_followers_locked(const struct kvc *k, enum kvc_cache cache,
				   const struct kvc_chunk_row *r)
{
	struct kvc_keep *keep = k->kept->keep[cache][r->policy];

	return keep ? kvc_keep_followers(keep, r->id) : 0;
}

void kvc_kept_reclass_locked(struct kvc *k, const struct kvc_chunk_row *r, unsigned class)
{
	struct kvc_chunk_row to = *r;

	if (k->kept->keep[KVC_CACHE_DISK][r->policy])
		kvc_keep_del(k->kept->keep[KVC_CACHE_DISK][r->policy], r->id, false);
	to.policy = class;
	to.facts = to.pool_facts = 0; /* another policy knows nothing of it */
	kvc_kept_restore_locked(k, KVC_CACHE_DISK, &to, 0);
	kvc_kept_join_locked(k, KVC_CACHE_DISK, &to);
}

void kvc_kept_free(struct kvc *k)
{
	for (int i = 0; i < KVC_CACHES; i++)
		for (int j = 0; j < KVC_CLASSES; j++)
			kvc_keep_close(k->kept->keep[i][j]);
}

void kvc_kept_text_locked(struct kvc *k, FILE *f)
{
	for (int i = 0; i < KVC_CACHES; i++)
		for (unsigned j = 0; j < KVC_CLASSES; j++) {
			struct kvc_keep *keep = k->kept->keep[i][j];
			char text[4096], *save = NULL;

			if (!keep)
				continue;
			fprintf(f, "%s %s%s\n  chunks %llu\n  memory %llu\n", i ? "disk" : "pool",
				kvc_policies[kvc_policy_of(k, (enum kvc_cache)i, j)].name,
				j ? " (models of their own)" : "",
				(unsigned long long)kvc_keep_chunks(keep),
				(unsigned long long)kvc_keep_bytes(keep));
			kvc_keep_text(keep, text, sizeof text);
			for (char *l = strtok_r(text, "\n", &save); l;
			     l = strtok_r(NULL, "\n", &save))
				fprintf(f, "  %s\n", l);
		}
}
