/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hints of clients about chunks. Finished chunks that are in the pool are in one list, the newest
 * hint first: clients name the chunks of a prompt from its beginning, so that the end of the prompt
 * precedes its beginning in the list. The evictor (evict/evict.c) takes its victims from this list
 * before it asks any policy. So does access/retention.c when a chunk enters and others must leave.
 * Both skip chunks that should stay.
 */
#include "hinted.h"

#include "leaving.h"
#include "replacers.h"

#define LOOKS 32 /* chunks that one search for a victim looks at */

void kvc_hinted_pushed_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (c->hints.finished && c->standing != KVC_LEAVES && c->nnodes &&
	    kvc_list_empty(&c->hints.link))
		kvc_list_add_head(&k->chunks->finished, &c->hints.link);
}

void kvc_hinted_finished_locked(struct kvc *k, struct kvc_chunk *c)
{
	kvc_hinted_clear_locked(c);
	c->hints.finished = true;
	if (c->standing == KVC_LEAVES)
		kvc_list_del(&c->hints.link); /* it is unwanted now */
	if (!c->nnodes || c->detached || !kvc_leaving_pushed_locked(k, c))
		kvc_hinted_pushed_locked(k, c);
}

void kvc_hinted_until_locked(struct kvc *k, struct kvc_chunk *c, uint64_t until_ns, bool paused)
{
	kvc_hinted_clear_locked(c);
	c->hints.until_ns = until_ns;
	c->hints.paused = paused;
	kvc_leaving_back_locked(k, c);
}

void kvc_hinted_clear_locked(struct kvc_chunk *c)
{
	if (c->standing != KVC_LEAVES)
		kvc_list_del(&c->hints.link);
	c->hints.finished = c->hints.paused = false;
	c->hints.until_ns = 0;
}

void kvc_hinted_accessed_locked(struct kvc_chunk *c)
{
	if (c->hints.finished || c->hints.paused)
		kvc_hinted_clear_locked(c);
}

struct kvc_chunk *kvc_hinted_victim_locked(struct kvc *k)
{
	struct kvc_list *all = &k->chunks->finished;

	for (unsigned i = 0; i < LOOKS && !kvc_list_empty(all); i++) {
		struct kvc_chunk *c = kvc_of(all->next, struct kvc_chunk, hints.link);
		struct kvc_chunk_row r = { .id = c->id, .policy = c->policy };

		kvc_list_del(&c->hints.link);
		if (!kvc_replacers_has_locked(k, KVC_CACHE_POOL, c) || c->fresh ||
		    kvc_replacers_children_locked(k, KVC_CACHE_POOL, &r)) {
			/* a parent, or new, or not in the order: its turn is after the others */
			kvc_list_add_tail(all, &c->hints.link);
			continue;
		}
		/* if it stays, kvc_chunk_push_locked adds it to the list again */
		kvc_replacers_exclude_locked(k, KVC_CACHE_POOL, c->id, c->policy, true);
		return c;
	}
	return NULL;
}
