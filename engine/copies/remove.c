/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames that leave a shared tier: copies that were made in vain, and those of files that were
 * deleted for all. A place there is a name, and the trash waits for a sync before it goes: by then
 * the name may have another node's newer frame, another file's of ours, or the same bytes again,
 * copied for good. None of these may go.
 */
#include "remove.h"

#include "file.h"
#include "path.h"
#include "spill.h"
#include "tierq.h"

#include <string.h>

/*
 * Does the name have what was to go? 0: it has; -ENOENT, -EBADMSG or -EPROTO: it has not; another:
 * nobody knows.
 */
static int still_ours(struct kvc *k, const struct kvc_job *j)
{
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	struct iovec iov = { page, KVC_FRAME_HEADER };
	struct kvc_tier *t = k->tier[j->tier].t;
	int err = page && f ? t->ops->get(t, &j->where, 0, &iov, 1) : -ENOMEM;

	err = err ?: kvc_frame_decode(page, f);
	if (err)
		return err;
	return memcmp(f->stored_sum.b, j->sum.b, 16) ||
			       (!memcmp(f->store, k->store->uuid, 16) && f->ino != j->ino)
		       ? -ENOENT
		       : 0;
}

static bool same_name(const struct kvc_where *a, const struct kvc_where *b)
{
	return a->at == b->at && a->hi == b->hi;
}

/*
 * Is it needed, since the object lives under this name and has its copy there, or has one on its
 * way? If it lives there and has none, none is begun (*held) before this is over.
 */
static bool wanted_both(struct kvc *k, const struct kvc_job *j, struct kvc_node **held)
{
	KVC_MEM char *path = malloc(KVC_FRAME_PATH_MAX + 1);
	const struct kvc_place *p;
	struct kvc_where now;
	struct kvc_node *n;
	bool lives;
	int err;

	*held = NULL;
	if (!path)
		return true; /* a frame too many does no harm */
	err = kvc_node_get_both(k, j->ino, &n);
	if (err)
		return err != -ENOENT;
	kvc_path_both(k, j->ino, path);
	now = kvc_where_of(path);
	p = &n->place[j->tier];
	lives = !n->lost && *path && same_name(&now, &j->where);
	if (!lives || n->spilling & (1u << j->tier) ||
	    (p->gen && same_name(&p->where, &j->where) && !memcmp(p->sum.b, j->sum.b, 16))) {
		kvc_node_settle_locked(k, n);
		return lives;
	}
	n->spilling |= 1u << j->tier;
	n->leases++;
	*held = n;
	return false;
}

static void let_go_locked(struct kvc *k, const struct kvc_job *j, struct kvc_node *n)
{
	n->spilling &= ~(1u << j->tier);
	n->leases--;
	if (n->lost && !n->nopen && !n->leases)
		kvc_destroy_locked(k, n);
	else if (n->snapshot || ((n->state == KVC_RESIDENT || n->state == KVC_BOTH) &&
				 kvc_spill_needed(k, n, j->tier)))
		kvc_spill_queue_locked(k, n, !kvc_list_empty(&n->sync_waiters));
	kvc_node_settle_locked(k, n);
}

int kvc_remove_shared(struct kvc *k, const struct kvc_job *j)
{
	struct kvc_tier *t = k->tier[j->tier].t;
	struct kvc_node *held;
	bool wanted;
	int err = 0;

	kvc_lock_both(k);
	wanted = wanted_both(k, j, &held);
	kvc_unlock_both(k);
	if (!wanted)
		err = still_ours(k, j) ?: t->ops->remove(t, &j->where);
	if (err == -ENOENT || err == -EBADMSG || err == -EPROTO)
		err = 0; /* there is nothing of ours to remove */
	if (held) {
		kvc_lock(k);
		let_go_locked(k, j, held);
		kvc_unlock(k);
	}
	return err;
}
