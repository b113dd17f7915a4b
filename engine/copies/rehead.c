/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Renames, as the tiers see them. In a tier of our own the header's name part is rewritten, so that
 * a rebuild finds the new path. In a shared one the path is the place: under the new one it is
 * another frame. The old one stays until the new one is recorded (KVC_PLACE_LEFT), so that a kill
 * that takes the pool along finds a copy; but nothing leaves the pool for it, since whoever makes a
 * file of the old name writes over it. The mark stays when the name is given back: who had it
 * meanwhile may have written there.
 */
#include "rehead.h"

#include "file.h"
#include "folder.h"
#include "folders.h"
#include "path.h"
#include "proof.h"
#include "spill.h"
#include "tierq.h"
#include "trash.h"

/* Where it fails it is tried again: that is the wait of the last of those lists (spill.c). */
#define AGAIN_NS (1000000000ull << (KVC_AGAINS - 1))

/* A rename: brings the path in the frames up to date, so that a rebuild finds the new one. */
static void rehead_run(struct kvc *k, struct kvc_job *j)
{
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	struct kvc_tier *t = k->tier[j->tier].t;
	struct kvc_node *n = j->node;
	struct iovec iov = { page, KVC_FRAME_HEADER };
	struct kvc_place p;
	int err;

	kvc_lock(k);
	bool wanted = page && f && !n->lost && n->place[j->tier].gen &&
		      !(n->spilling & (1u << j->tier));

	p = n->place[j->tier];
	if (wanted)
		/* nobody else calls the tier for this object meanwhile */
		n->spilling |= 1u << j->tier;
	kvc_unlock(k);
	if (!wanted)
		return;
	err = t->ops->get(t, &p.where, 0, &iov, 1);
	if (!err && !kvc_frame_decode(page, f) && !kvc_proof_placed(k, false, f) &&
	    f->ino == n->row.ino && f->gen == p.gen) {
		pthread_mutex_lock(&k->trash->rehead_lock);
		kvc_lock_both(k);
		kvc_frame_name_both(k, n, f);
		wanted = !n->lost && n->place[j->tier].gen == p.gen &&
			 n->place[j->tier].where.at == p.where.at;
		kvc_unlock_both(k);
		wanted = wanted && !kvc_prove(k, false, f);
		kvc_frame_encode(f, page);
		if (wanted)
			err = t->ops->rehead(t, &p.where, page);
		pthread_mutex_unlock(&k->trash->rehead_lock);
	}
	kvc_lock(k);
	kvc_tier_result_locked(k, j->tier, n->row.ino, err);
	n->spilling &= ~(1u << j->tier);
	if (err && !k->stopping && !n->lost && n->place[j->tier].gen == p.gen)
		kvc_job_add_locked(k, KVC_P_AGAIN + KVC_AGAINS - 1, rehead_run, n, j->tier,
				   kvc_mono_ns() + AGAIN_NS, NULL);
	/* Asked for while we were here; by an fsync, it waits. */
	if (!n->lost && (n->snapshot || ((n->state == KVC_RESIDENT || n->state == KVC_BOTH) &&
					 kvc_spill_needed(k, n, j->tier))))
		kvc_spill_queue_locked(k, n, !kvc_list_empty(&n->sync_waiters));
	kvc_unlock(k);
}

/* Of a folder: of all that lies below it. */
static void rehead_folder_run(struct kvc *k, struct kvc_job *j)
{
	struct kvc_entries e = { 0 };
	uint64_t after = 0;
	int more = 1;

	kvc_lock_both(k);
	while (more == 1) {
		more = kvc_entries_some_both(k, j->node->row.ino, &after, &e);
		for (size_t i = 0; i < e.n && more >= 0; i++) {
			struct kvc_node *n;

			if (!kvc_node_get_both(k, e.v[i].ino, &n)) {
				kvc_rehead_both(k, n);
				kvc_node_settle_locked(k, n);
			}
		}
		kvc_pause_both(k);
	}
	kvc_unlock_both(k);
	free(e.v);
}

void kvc_moved_both(struct kvc *k, struct kvc_node *n)
{
	KVC_MEM char *path = NULL;
	struct kvc_where now = { 0 };

	for (unsigned t = 0; t < KVC_TIERS; t++) {
		const struct kvc_where *at = &n->place[t].where;

		if (!n->place[t].gen || !k->tier[t].t ||
		    !(k->tier[t].t->ops->caps & KVC_TIER_SHARED))
			continue;
		if (!path) {
			if (!(path = malloc(KVC_FRAME_PATH_MAX + 1)))
				return; /* others do not find it by its new name */
			kvc_path_both(k, n->row.ino, path);
			now = kvc_where_of(path);
		}
		if (*path && !kvc_same_name(at, &now))
			kvc_leave_both(k, n, t);
	}
}

void kvc_rehead_both(struct kvc *k, struct kvc_node *n)
{
	/* its frame has the old path */
	for (unsigned t = 0; t < KVC_TIERS && S_ISDIR(n->row.mode); t++)
		if (k->folders->put[t][n->row.ino % KVC_FOLDERS] == n->row.ino)
			k->folders->put[t][n->row.ino % KVC_FOLDERS] = 0;
	if (S_ISDIR(n->row.mode))
		kvc_job_add_locked(k, KVC_P_SPILL, rehead_folder_run, n, KVC_COMMON, kvc_mono_ns(),
				   NULL);
	if (!S_ISREG(n->row.mode))
		return;
	if (n->hopeless && k->opt.write == KVC_THROUGH && kvc_has_segment(n) &&
	    n->state != KVC_OPEN) {
		n->hopeless = 0; /* under this name there may be a key for it */
		kvc_spill_queue_locked(k, n, false);
	}
	n->hopeless = 0;
	kvc_tier_each(k, t) {
		if (!(k->tier[t].t->ops->caps & KVC_TIER_SHARED)) {
			if (n->place[t].gen)
				kvc_job_add_locked(k, KVC_P_SPILL, rehead_run, n, t, kvc_mono_ns(),
						   NULL);
		} else if (n->place[t].gen) {
			/* What is not in memory is copied when it comes there. */
			kvc_moved_both(k, n);
			if (kvc_has_segment(n) && n->state != KVC_OPEN)
				kvc_spill_queue_locked(k, n, false);
		}
	}
}
