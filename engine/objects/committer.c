/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests for a commit, and the lists of changes to write (committer.h). The committer thread is
 * in commit_batch.c; access_save.c writes the accesses.
 */
#include "committer.h"

#include "chunk.h"

#define PART 8
#define EACH 3 /* changes for each dirty node: row, object, chunk */
#define COMMIT_NS 15000000ull
#define CHANGES_FIRST 1024u /* until a commit was measured */
#define CHANGES_LEAST 256u
#define CHANGES_MOST 8192u
#define LATEST_NS 600000000000ull /* a row is always due when its time is behind by this much */

size_t kvc_committer_batch_max_locked(const struct kvc *k)
{
	uint64_t most = k->committer->each_ns ? COMMIT_NS * 1024 / k->committer->each_ns
					      : CHANGES_FIRST;

	return kvc_min(kvc_max(most, CHANGES_LEAST), CHANGES_MOST);
}

size_t kvc_committer_changes_locked(const struct kvc *k)
{
	return kvc_catalog_changes(k->cat) + k->committer->nnodes * EACH;
}

void kvc_committer_wake_locked(struct kvc *k, bool now)
{
	if (!k->committer->soon || (now && !k->committer->now))
		pthread_cond_signal(&k->committer->cond);
	k->committer->soon = true;
	k->committer->now |= now;
}

void kvc_committer_access_unlink_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (!c->dirty)
		return;
	kvc_list_del(&c->dirty_link);
	k->committer->accesses.nreleased -= c->accesses_only && c->queue == KVC_ACCESS_RELEASED;
	c->dirty = c->accesses_only = false;
}

void kvc_committer_access_held_locked(struct kvc *k, struct kvc_chunk *c)
{
	c->dirty = c->accesses_only = true;
	c->queue = KVC_ACCESS_HELD;
	kvc_list_add_tail(&k->committer->accesses.held, &c->dirty_link);
}

void kvc_committer_access_want_locked(struct kvc *k, struct kvc_chunk *c)
{
	if (!c->known || c->row_deleted)
		return; /* the next commit writes or deletes the whole row */
	kvc_committer_access_unlink_locked(k, c);
	c->dirty = c->accesses_only = c->due = true;
	c->queue = KVC_ACCESS_WANTED;
	kvc_list_add_tail(&k->committer->accesses.wanted, &c->dirty_link);
	pthread_cond_signal(&k->committer->cond);
}

bool kvc_committer_access_due(const struct kvc_chunk *c)
{
	uint64_t newer = c->use.last_ns - kvc_min(c->stored_ns, c->use.last_ns);
	uint64_t age = c->use.last_ns - kvc_min(c->use.created_ns, c->use.last_ns);

	return c->due || newer > kvc_min(age / PART, LATEST_NS);
}

bool kvc_committer_access_release_locked(struct kvc *k, struct kvc_chunk *c)
{
	struct kvc_accesses *a = &k->committer->accesses;

	if (!c->accesses_only || c->queue != KVC_ACCESS_HELD)
		return false;
	if (!kvc_committer_access_due(c)) {
		kvc_committer_access_unlink_locked(k, c);
		return true;
	}
	kvc_list_del(&c->dirty_link);
	kvc_list_add_tail(&a->released, &c->dirty_link);
	c->queue = KVC_ACCESS_RELEASED;
	a->nreleased++;
	return false;
}
