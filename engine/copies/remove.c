/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames that leave a shared tier: copies that were made in vain, and those of files that were
 * deleted for all. A place there is a name, and the trash waits for a sync before it goes: by then
 * the name may have another node's newer frame, another file's of ours, or the same bytes again,
 * copied for good. None of these may go.
 */
#include "remove.h"

#include "file.h"
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

/* Is it needed, since it is the copy that counts of the object as it is? */
static bool wanted_both(struct kvc *k, const struct kvc_job *j)
{
	const struct kvc_place *p;
	struct kvc_node *n;
	bool wanted;
	int err = kvc_node_get_both(k, j->ino, &n);

	if (err)
		return err != -ENOENT; /* a frame too many does no harm */
	p = &n->place[j->tier];
	wanted = !n->lost && p->gen && kvc_same_name(&p->where, &j->where) &&
		 !memcmp(p->sum.b, j->sum.b, 16);
	kvc_node_settle_locked(k, n);
	return wanted;
}

int kvc_remove_shared(struct kvc *k, const struct kvc_job *j)
{
	struct kvc_tier_state *ts = &k->tier[j->tier];
	bool named, wanted;
	int err = 0;

	kvc_lock_both(k);
	/* while a copy is put there nobody knows what there will be */
	named = kvc_tier_name_take_locked(ts, &j->where);
	wanted = named && wanted_both(k, j);
	kvc_unlock_both(k);
	if (!named)
		return -EALREADY;
	if (!wanted)
		err = still_ours(k, j) ?: ts->t->ops->remove(ts->t, &j->where);
	kvc_lock(k);
	kvc_tier_name_give_locked(ts, &j->where);
	kvc_unlock(k);
	/* there may be nothing of ours to remove */
	return err == -ENOENT || err == -EBADMSG || err == -EPROTO ? 0 : err;
}
