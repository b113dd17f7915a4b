/* SPDX-License-Identifier: Apache-2.0 */
/* Accesses to a chunk that count for its ancestors, see ancestors.h. */
#include "ancestors.h"

#include "committer.h"
#include "access.h"

/* maximum length of a chain, which also ends a circle that a client may have told */
#define MOST 8192u
#define AT_ONCE 32u /* chunks under one hold of the locks */
#define TURN 8192u  /* chunks in one call, since the calling thread has other work */

void kvc_ancestors_of_locked(struct kvc *k, const struct kvc_chunk *c)
{
	struct kvc_ancestors *a = &k->access->ancestors;
	uint64_t parent = c->parent & ~KVC_TOLD;
	const struct kvc_chunk *p = parent ? kvc_chunk_find_locked(k, parent) : NULL;

	if (!parent || (p && p->use.last_ns > c->use.last_ns) || a->n == KVC_ANCESTORS)
		return;
	a->of[a->n].id = c->id;
	a->of[a->n++].parent = parent;
}

/*
 * Stamps the chunk, unless it was used after `than`; than 0 stamps nothing. Gets its last use and
 * its parent.
 */
static int stamp_both(struct kvc *k, uint64_t id, uint64_t than, uint64_t *last, uint64_t *parent)
{
	struct kvc_chunk *c = kvc_chunk_find_locked(k, id);
	struct kvc_chunk_row r;
	int err = 0;

	if (c)
		kvc_chunk_row(k, c, &r);
	else
		err = kvc_chunk_get(k->cat, id, &r);
	if (err)
		return err;
	if (than && r.last_ns > than)
		return -EEXIST;
	*parent = r.parent & ~KVC_TOLD;
	*last = r.last_ns;
	if (!than)
		return 0;
	if (!c && !(c = kvc_chunk_new_locked(k, id, &r)))
		return -ENOMEM;
	kvc_chunk_stamp_locked(k, c);
	kvc_chunk_dirty_locked(k, c);
	*last = c->use.last_ns;
	kvc_chunk_settle_locked(k, c); /* the row is written with the accesses, not at once */
	return 0;
}

/* Walks up from the chunk. Returns the number of chunks visited. */
static unsigned walk_up(struct kvc *k, uint64_t id)
{
	uint64_t last = 0, first = id;
	unsigned n = 0;

	kvc_lock_both(k);
	while (id && (id != first || !n) && n++ < MOST) {
		if (kvc_takes(k, false) || stamp_both(k, id, last, &last, &id))
			break;
		k->access->ancestors.next = id;
		if (n % AT_ONCE == 0)
			kvc_pause_both(k);
	}
	k->access->ancestors.next = 0;
	kvc_unlock_both(k);
	return n;
}

void kvc_ancestors_stamp(struct kvc *k)
{
	struct kvc_ancestors *a = &k->access->ancestors;
	uint64_t id;

	for (unsigned n = 0; n < TURN; n += walk_up(k, id)) {
		kvc_lock(k);
		/* any order will do: each walk ends at an ancestor with a later use */
		id = a->n ? a->of[--a->n].id : 0;
		a->next = id ? a->of[a->n].parent : 0;
		kvc_unlock(k);
		if (!id)
			return;
	}
}
