/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The committer thread. Every few milliseconds it writes the dirty nodes and chunks into the
 * catalog's overlay, seals the overlay as a batch, commits the batch, and releases the deferred
 * frees of that transaction (deferred_free.c). The last changes are written and sealed under one
 * hold of the catalog's lock; k->lock is held only while nodes and chunks are written, a few at a
 * time. No lock is held while the batch is committed. After a failure all changes stay and are
 * tried again.
 *
 * The deferred frees are taken before the last dirty nodes are put, so that the batch has every
 * change that they depend on.
 */
#include "commit_batch.h"

#include "access_save.h"
#include "commit_sync.h"
#include "committer.h"
#include "file.h"
#include "node.h"
#include "tier_queue.h"
#include "latency.h"
#include "deferred_free.h"

#include <string.h>

#define IDLE_NS 1000000000ull /* between two checks while there is nothing to commit */
#define AGAIN_NS 100000000ull /* after a failure */
#define AT_ONCE 64            /* nodes or chunks under one hold of k->lock */
#define FEW 256               /* nodes, and chunks, put under one hold of the catalog's lock */
#define ROUNDS 8
#define GATE_NS 500000000ull
#define GATE_FROM 256u /* with fewer changes the gate is always open */
#define MEASURED 64u   /* a commit with fewer changes is not measured */

static int put_node_both(struct kvc *k, struct kvc_node *n)
{
	int err = kvc_row_put(k->cat, &n->row, &n->paid);

	if (err || !S_ISREG(n->row.mode))
		return err;
	err = kvc_object_put(k->cat, n->row.ino, &n->object);
	for (unsigned t = 0; t < k->tier_slots && !err && n->copies.recorded && !n->object.lower;
	     t++)
		err = kvc_place_del(k->cat, n->row.ino, t);
	if (!err && !n->object.lower)
		kvc_file_unrecorded_locked(n);
	return err;
}

/* Releases k->lock for a moment; gently: the catalog's lock as well. */
static void pause_put(struct kvc *k, bool gently)
{
	if (gently)
		kvc_pause_both(k);
	else
		kvc_pause_locked(k);
}

/*
 * Puts the dirty nodes into the overlay. The caller holds the catalog's lock. Returns 0 or -ENOMEM;
 * then the remaining nodes stay dirty.
 */
static int put_nodes(struct kvc *k, bool gently)
{
	struct kvc_list todo;
	int err = 0;

	kvc_list_init(&todo);
	kvc_lock(k);
	kvc_list_splice(&todo, &k->committer->nodes);
	while (!err && !kvc_list_empty(&todo)) {
		for (int i = 0; i < AT_ONCE && !err && !kvc_list_empty(&todo); i++) {
			struct kvc_node *n = kvc_of(todo.next, struct kvc_node, commit.link);

			if ((err = put_node_both(k, n)))
				break;
			kvc_node_written_locked(k, n);
			if (n->segment.unpublished)
				kvc_file_publish_if_closed_locked(k, n);
			kvc_node_settle_locked(k, n);
		}
		if (!kvc_list_empty(&todo)) /* a pause can cost a time slice of the scheduler */
			pause_put(k, gently);
	}
	kvc_list_splice(&todo, &k->committer->nodes); /* todo has nodes only after an error */
	kvc_list_splice(&k->committer->nodes, &todo);
	kvc_unlock(k);
	return err;
}

/*
 * The same for chunks. The row of a chunk may have been written by a spill already (chunk->known):
 * then only its accesses may be newer, and those are not part of a commit (access_save.c).
 */
static int put_chunks(struct kvc *k, bool gently)
{
	struct kvc_chunk_row r;
	struct kvc_list todo;
	int err = 0;

	kvc_list_init(&todo);
	kvc_lock(k);
	kvc_list_splice(&todo, &k->committer->chunks);
	while (!err && !kvc_list_empty(&todo)) {
		for (int i = 0; i < AT_ONCE && !err && !kvc_list_empty(&todo); i++) {
			struct kvc_chunk *c = kvc_of(todo.next, struct kvc_chunk, dirty_link);

			if (c->known) {
				kvc_list_del(&c->dirty_link);
				kvc_committer_access_held_locked(k, c);
				kvc_chunk_settle_locked(k, c);
				continue;
			}
			kvc_chunk_row(k, c, &r);
			if ((err = kvc_chunk_put(k->cat, &r)))
				break;
			kvc_list_del(&c->dirty_link);
			c->dirty = c->due = false;
			c->known = true;
			c->stored_ns = r.last_ns;
			c->stored_in = c->last_request;
			kvc_chunk_settle_locked(k, c);
		}
		if (!kvc_list_empty(&todo)) /* a pause can cost a time slice of the scheduler */
			pause_put(k, gently);
	}
	kvc_list_splice(&k->committer->chunks, &todo);
	kvc_unlock(k);
	return err;
}

static bool more_than_few(const struct kvc_list *l)
{
	unsigned n = 0;

	kvc_list_each(e, l)
		if (++n > FEW)
			return true;
	return false;
}

/*
 * Puts dirty nodes and chunks into the overlay, with pauses, until few are left; the caller puts
 * the rest under one hold of the catalog's lock. A flood of stores can make changes as fast as they
 * are put, so the number of rounds is bounded. Returns with both locks held.
 */
static int put_most_lock_both(struct kvc *k)
{
	int err;

	for (int round = 0;; round++) {
		kvc_catalog_lock(k->cat);
		err = put_nodes(k, true) ?: put_chunks(k, true);
		kvc_lock(k);
		if (err || round == ROUNDS ||
		    (!more_than_few(&k->committer->nodes) && !more_than_few(&k->committer->chunks)))
			return err;
		kvc_unlock_both(k);
	}
}

void kvc_commit_gate(struct kvc *k)
{
	struct timespec until = kvc_timespec(kvc_mono_ns() + GATE_NS);
	int rc = 0;

	if (kvc_catalog_changes(k->cat) < GATE_FROM)
		return;
	kvc_lock(k);
	while (k->started && !k->stopping && !rc &&
	       kvc_committer_changes_locked(k) >= kvc_committer_batch_max_locked(k)) {
		kvc_committer_wake_locked(k, true);
		rc = kvc_lock_wait(&k->lock, &k->committer->committed_cond, &until);
	}
	kvc_unlock(k);
}

/* Updates the average time of a change, from batches that are large enough. */
static void measure_locked(struct kvc *k, size_t changes, uint64_t took_ns)
{
	uint64_t each = changes ? took_ns * 1024 / changes : 0, was = k->committer->each_ns;

	if (changes >= MEASURED)
		k->committer->each_ns = was ? (was * 3 + each) / 4 : each;
}

int kvc_commit_once(struct kvc *k)
{
	struct kvc_list freed, waits;
	uint64_t txn = 0, begun = kvc_mono_ns(), since = begun;
	size_t changes = 0;
	int err;

	kvc_list_init(&freed);
	kvc_list_init(&waits);
	kvc_catalog_gate(k->cat);
	kvc_lock(k);
	kvc_file_linger_end_locked(k, k->stopping);
	kvc_unlock(k);
	err = put_most_lock_both(k);
	k->committer->soon = !kvc_list_empty(&k->committer->lingering[1]);
	k->committer->now = false;
	kvc_list_splice(&freed, &k->deferred_free->list);
	kvc_list_splice(&waits, &k->committer->sync_waiters);
	kvc_unlock(k);
	err = err ?: put_nodes(k, false) ?: put_chunks(k, false);
	if (!err) {
		changes = kvc_catalog_changes(k->cat);
		txn = kvc_catalog_seal(k->cat);
	}
	kvc_catalog_unlock(k->cat);
	if (!err) {
		/*
		 * Wakes the callers of kvc_commit_gate(), which go on while the batch is written.
		 * The catalog's writer is locked from the seal on, so k->lock must not be taken
		 * here: a thread with k->lock may wait for the writer. A caller that misses this
		 * signal is woken at the end of the commit, or by its own timeout.
		 */
		pthread_cond_broadcast(&k->committer->committed_cond);
		since = kvc_mono_ns();
		err = kvc_catalog_write(k->cat);
	}

	kvc_lock(k);
	if (err) {
		kvc_count(&k->stats, commit_failures);
		kvc_list_splice(&freed, &k->deferred_free->list);
		kvc_list_splice(&k->deferred_free->list, &freed);
		kvc_wait_wake_all_locked(k, &waits, err);
		k->committer->soon = true;
	} else {
		kvc_count(&k->stats, commits);
		kvc_latency_record(k, KVC_OP_commit, KVC_OF_POOL, 0, begun);
		measure_locked(k, changes, kvc_mono_ns() - since);
		k->committer->committed = txn;
		pthread_cond_broadcast(&k->committer->committed_cond);
		pthread_cond_signal(&k->reservations.pressed);
		kvc_commit_sync_queue_locked(k, &waits);
	}
	kvc_unlock(k);
	kvc_deferred_free_committed(k, &freed);
	return err;
}

/*
 * There is nothing to commit: waits, writes a few accesses, and retries a failing catalog. Returns
 * true if a commit is due. Called and returns with k->lock.
 */
static bool commit_idle_locked(struct kvc *k)
{
	struct timespec t = kvc_timespec(kvc_mono_ns() + kvc_access_save_pause_locked(k, IDLE_NS));

	kvc_lock_wait(&k->lock, &k->committer->cond, &t);
	if (k->committer->soon || k->draining)
		return k->committer->soon;
	kvc_unlock(k);
	kvc_access_save_some(k);
	kvc_lock(k);
	/* a call that failed halfway may have left changes without asking for a commit */
	return k->committer->soon || !kvc_list_empty(&k->committer->chunks) ||
	       kvc_catalog_changes(k->cat) || kvc_catalog_accepts(k->cat, false);
}

void *kvc_commit_thread(void *arg)
{
	struct kvc *k = arg;

	kvc_lock(k);
	while (!k->draining) {
		struct timespec t;

		if (!k->committer->soon && !commit_idle_locked(k))
			continue;
		t = kvc_timespec(kvc_mono_ns() + k->opt.commit_ms * 1000000);
		while (!k->committer->now && !k->draining &&
		       kvc_lock_wait(&k->lock, &k->committer->cond, &t) != ETIMEDOUT)
			;
		kvc_unlock(k);
		if (kvc_commit_once(k))
			usleep(AGAIN_NS / 1000);
		else if (kvc_access_save_overdue(k))
			kvc_access_save_some(k);
		kvc_lock(k);
	}
	kvc_unlock(k);
	return NULL;
}
