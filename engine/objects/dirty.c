/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking for a commit, and the lists of what is to be written (dirty.h). The committer is commit.c;
 * access_save.c writes the accesses.
 */
#include "dirty.h"

#include "chunk.h"

#define PART 8
#define EACH 3 /* changes that a dirty node makes: row, object, chunk */
#define COMMIT_NS 15000000ull
#define CHANGES_FIRST 1024u /* until it is known how long they take */
#define CHANGES_LEAST 256u
#define CHANGES_MOST 8192u
#define LATEST_NS 600000000000ull /* a row is due when its time is older by that */

size_t kvc_commit_most_locked(const struct kvc *k)
{
	uint64_t most = k->dirty->each_ns ? COMMIT_NS * 1024 / k->dirty->each_ns : CHANGES_FIRST;

	return kvc_min(kvc_max(most, CHANGES_LEAST), CHANGES_MOST);
}

size_t kvc_commit_changes_locked(const struct kvc *k)
{
	return kvc_catalog_changes(k->cat) + k->dirty->nnodes * EACH;
}

void kvc_commit_soon_locked(struct kvc *k, bool now)
{
	if (!k->dirty->soon || (now && !k->dirty->now))
		pthread_cond_signal(&k->dirty->cond);
	k->dirty->soon = true;
	k->dirty->now |= now;
}

void kvc_access_unlink_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (!c->dirty)
		return;
	kvc_list_del(&c->dirty_link);
	k->dirty->accesses.nreleased -= c->later && c->queue == KVC_ACCESS_RELEASED;
	c->dirty = c->later = false;
}

void kvc_access_held_locked(struct kvc *k, struct kvc_chunk *c)
{
	c->dirty = c->later = true;
	c->queue = KVC_ACCESS_HELD;
	kvc_list_add_tail(&k->dirty->accesses.held, &c->dirty_link);
}

void kvc_access_want_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (!c->known || c->gone)
		return; /* the next commit writes the whole row, or deletes it */
	kvc_access_unlink_locked(k, c);
	c->dirty = c->later = c->due = true;
	c->queue = KVC_ACCESS_WANTED;
	kvc_list_add_tail(&k->dirty->accesses.wanted, &c->dirty_link);
	pthread_cond_signal(&k->dirty->cond);
}

bool kvc_access_due(const struct kvc_chunk *c)
{
	uint64_t newer = c->use.last_ns - kvc_min(c->stored_ns, c->use.last_ns);
	uint64_t age = c->use.last_ns - kvc_min(c->use.created_ns, c->use.last_ns);

	return c->due || newer > kvc_min(age / PART, LATEST_NS);
}

bool kvc_access_release_locked(struct kvc *k, struct kvc_chunk *c)
{
	struct kvc_accesses *a = &k->dirty->accesses;

	if (!c->later || c->queue != KVC_ACCESS_HELD)
		return false;
	if (!kvc_access_due(c)) {
		kvc_access_unlink_locked(k, c);
		return true;
	}
	kvc_list_del(&c->dirty_link);
	kvc_list_add_tail(&a->released, &c->dirty_link);
	c->queue = KVC_ACCESS_RELEASED;
	a->nreleased++;
	return false;
}
