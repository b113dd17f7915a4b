/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates the tiers after a rename. In a tier of our own the name part of the header is rewritten,
 * so that the new path is found if the catalog is rebuilt from the frames. In a shared tier the
 * path is the name of the frame, so a frame is stored under the new path. The old frame stays until
 * the new one is recorded, so that one copy remains after a kill that also loses the pool. Its
 * placement has the mark KVC_PLACE_LEFT until then. Such a copy does not count when the evictor
 * needs a copy of the object, since the next file with the old name overwrites it. The mark stays
 * even if the file is renamed back: another file may have had the name and overwritten the frame.
 */
#include "header_rewrite.h"

#include "file.h"
#include "folder.h"
#include "folders.h"
#include "log.h"
#include "path.h"
#include "proof.h"
#include "spill.h"
#include "tier_queue.h"
#include "deferred_free.h"

/* each retry list has its own delay (spill.c) */
#define AGAIN_NS(list) (1000000000ull << (list))
enum { BUSY = 0, FAILED = KVC_AGAINS - 1 };

static void rewrite_run(struct kvc *k, struct kvc_job *j);

static void rewrite_again_locked(struct kvc *k, const struct kvc_job *j, unsigned list)
{
	if (k->stopping)
		return;
	if (list == FAILED)
		kvc_tier_failed_locked(k, j->tier);
	if (kvc_tier_job_add_locked(k, KVC_P_AGAIN + list, rewrite_run, j->node, j->tier,
				    kvc_mono_ns() + AGAIN_NS(list), NULL))
		kvc_warn("inode %llx: its frame keeps the old name",
			 (unsigned long long)j->node->row.ino);
}

/*
 * Writes the file's current name to the frame of placement p, if that is still the file's
 * placement.
 */
static int write_name(struct kvc *k, const struct kvc_job *j, const struct kvc_place *p,
		      struct kvc_frame *f, uint8_t *page)
{
	struct kvc_tier *t = k->tier[j->tier].t;
	const struct kvc_node *n = j->node;
	pthread_mutex_t *lock = kvc_deferred_free_rehead_lock(k, &p->where);
	bool wanted;
	int err;

	pthread_mutex_lock(lock);
	kvc_lock_both(k);
	err = kvc_path_frame_name_both(k, j->node, f);
	wanted = !n->commit.lost && n->in[j->tier].place.gen == p->gen &&
		 n->in[j->tier].place.where.at == p->where.at;
	kvc_unlock_both(k);
	if (wanted && !err && !(err = kvc_proof_add(k, false, f))) {
		kvc_frame_encode(f, page);
		err = t->ops->rehead(t, &p->where, page);
	}
	pthread_mutex_unlock(lock);
	return err;
}

/* Does the error mean that the tier holds no frame of ours? Then no name needs an update. */
static bool is_no_frame(int err)
{
	return err == -EBADMSG || err == -EPROTO || err == -ENOENT;
}

/*
 * The job of a tier's worker: updates the path in the file's frame. If that fails, the job is
 * queued again.
 */
static void rewrite_run(struct kvc *k, struct kvc_job *j)
{
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	struct kvc_tier *t = k->tier[j->tier].t;
	struct kvc_node *n = j->node;
	struct iovec iov = { page, KVC_FRAME_HEADER };
	enum kvc_call call = KVC_CALL_READ;
	struct kvc_place p;
	int err = page && f ? 0 : -ENOMEM;

	kvc_lock(k);
	/* a copy under way may carry the old name */
	bool busy = n->copying & (1u << j->tier);
	bool wanted = !n->commit.lost && (n->in[j->tier].place.gen || busy);

	p = n->in[j->tier].place;
	if (wanted && !busy)
		/* no other job calls the tier for this object now */
		kvc_tier_set_copying_locked(n, j->tier, true);
	else if (wanted)
		rewrite_again_locked(k, j, BUSY);
	kvc_unlock(k);
	if (!wanted || busy)
		return;
	err = err ?: t->ops->get(t, &p.where, 0, &iov, 1);
	err = err ?: kvc_frame_decode(page, f) ?: kvc_proof_placed(k, false, f);
	if (!err && f->ino == n->row.ino && f->gen == p.gen) {
		call = KVC_CALL_WRITE;
		err = write_name(k, j, &p, f, page);
	}
	kvc_lock(k);
	kvc_tier_result_locked(k, j->tier, call, n->row.ino, err);
	kvc_tier_set_copying_locked(n, j->tier, false);
	if (err && !is_no_frame(err) && !n->commit.lost && n->in[j->tier].place.gen == p.gen)
		rewrite_again_locked(k, j, FAILED);
	/*
	 * A copy may have been requested during this job. The waiters of an fsync wait for it, or
	 * check again if none is made.
	 */
	if (!n->commit.lost &&
	    (n->segment.snapshot || ((n->state == KVC_RESIDENT || n->state == KVC_BOTH) &&
				     kvc_spill_needed(k, n, j->tier))))
		kvc_spill_queue_locked(k, n, !kvc_list_empty(&n->wait.sync));
	else
		kvc_node_wake_sync_locked(k, n, 0);
	kvc_unlock(k);
}

#define FILES_PER_HOLD 8 /* files per hold of the locks; each needs a few rows */

/* Updates all files below a folder. */
static void rewrite_folder_run(struct kvc *k, struct kvc_job *j)
{
	struct kvc_entries e = { 0 };
	uint64_t after = 0;
	int more = 1;

	kvc_lock_both(k);
	while (more == 1) {
		more = kvc_folder_entries_some_both(k, j->node->row.ino, &after, &e);
		for (size_t i = 0; i < e.n && more >= 0; i++) {
			struct kvc_node *n;

			if (!kvc_node_get_both(k, e.v[i].ino, &n)) {
				kvc_header_rewrite_both(k, n);
				kvc_node_settle_locked(k, n);
			}
			if (i % FILES_PER_HOLD == FILES_PER_HOLD - 1)
				kvc_pause_both(k);
		}
		kvc_pause_both(k);
	}
	kvc_unlock_both(k);
	free(e.v);
}

void kvc_header_rewrite_moved_both(struct kvc *k, struct kvc_node *n)
{
	KVC_MEM char *path = NULL;
	struct kvc_where now = { 0 };

	for (unsigned t = 0; t < k->tier_slots; t++) {
		const struct kvc_where *at = &n->in[t].place.where;

		if (!n->in[t].place.gen || !k->tier[t].t ||
		    !(k->tier[t].t->ops->caps & KVC_TIER_SHARED))
			continue;
		if (!path) {
			if (!(path = malloc(KVC_FRAME_PATH_MAX + 1)))
				return; /* other nodes do not find the file by its new name */
			if (kvc_path_both(k, n->row.ino, path))
				*path = 0; /* the next copy gets the new name */
			now = kvc_frame_where_of(path);
		}
		if (*path && !kvc_tier_same_name(at, &now))
			kvc_file_mark_old_name_both(k, n, t);
	}
}

void kvc_header_rewrite_both(struct kvc *k, struct kvc_node *n)
{
	struct kvc_job *j;

	/* the recorded frame of the folder has the old path */
	for (unsigned t = 0; t < KVC_TIERS && S_ISDIR(n->row.mode); t++)
		if (k->folders->put[t][n->row.ino % KVC_FOLDERS] == n->row.ino)
			k->folders->put[t][n->row.ino % KVC_FOLDERS] = 0;
	if (S_ISDIR(n->row.mode))
		kvc_tier_job_add_locked(k, KVC_P_SPILL, rewrite_folder_run, n, KVC_COMMON,
					kvc_mono_ns(), NULL);
	if (!S_ISREG(n->row.mode))
		return;
	if (n->copies.uncopyable && k->opt.write == KVC_THROUGH && kvc_node_has_segment(n) &&
	    n->state != KVC_OPEN) {
		kvc_file_retry_copies_locked(n); /* the key file may have a key for the new path */
		kvc_spill_queue_locked(k, n, false);
	}
	kvc_file_retry_copies_locked(n);
	kvc_tier_each(k, t) {
		if (!(k->tier[t].t->ops->caps & KVC_TIER_SHARED)) {
			/* A queued copy gets the new name. A running one may have the old name. */
			if ((n->in[t].place.gen || (n->copying & (1u << t) && !n->in[t].queued)) &&
			    !kvc_tier_job_add_locked(k, KVC_P_SPILL, rewrite_run, n, t,
						     kvc_mono_ns(), &j))
				j->at_place = true;
		} else if (n->in[t].place.gen) {
			/* objects outside the pool are copied when they are next loaded */
			kvc_header_rewrite_moved_both(k, n);
			if (kvc_node_has_segment(n) && n->state != KVC_OPEN)
				kvc_spill_queue_locked(k, n, false);
		}
	}
}
