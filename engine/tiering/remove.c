/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes frames from shared tiers: undone copies, and frames of files that a user deleted for all
 * nodes. A place in a shared tier is a name, and the removal waits for a commit or sync
 * (deferred_free). By then the name may hold a newer frame of another node, a frame of another file
 * of ours, or a new copy of the same bytes. None of these may be removed.
 *
 * Removals that a user asked for are noted in the catalog until they are done (meta
 * unshare:TIER:NAME), in the transaction that deletes the file. If the daemon is killed first or
 * the tier refuses the removal, the next mount removes the frame. Workers of the shared tiers run
 * this code.
 */
#include "remove.h"

#include "clock.h"
#include "committer.h"
#include "file.h"
#include "tier_queue.h"
#include "deferred_free.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define KEY "unshare:"
#define GONE_SOON_NS 10000000000ull

/* ---- pending removals are persisted until they complete ---- */

static const char *note_key(unsigned tier, const struct kvc_where *w, char key[64])
{
	snprintf(key, 64, KEY "%u:%016" PRIx64 "%016" PRIx64, tier, w->at, w->hi);
	return key;
}

int kvc_remove_note_both(struct kvc *k, unsigned tier, uint64_t ino, const struct kvc_place *p)
{
	char key[64], value[96], sum[33];

	snprintf(value, sizeof value, "%" PRIx64 " %" PRIx64 " %s", ino, p->where.len,
		 kvc_sum_text(&p->sum, sum));
	return kvc_meta_set(k->cat, note_key(tier, &p->where, key), value);
}

static bool note_parse(const char *key, const char *value, unsigned *tier, uint64_t *ino,
		       struct kvc_place *p)
{
	char sum[33];

	*p = (struct kvc_place){ .gen = 1 };
	if (sscanf(key, KEY "%u:%16" SCNx64 "%16" SCNx64, tier, &p->where.at, &p->where.hi) != 3 ||
	    sscanf(value, "%" SCNx64 " %" SCNx64 " %32s", ino, &p->where.len, sum) != 3 ||
	    *tier >= KVC_TIERS || strlen(sum) != 32)
		return false;
	for (int i = 0; i < 16; i++) {
		unsigned byte;

		if (sscanf(sum + 2 * i, "%2x", &byte) != 1)
			return false;
		p->sum.b[i] = (uint8_t)byte;
	}
	return true;
}

/* The frame is removed: deletes the note. From now on another node may use the name. */
static void note_delete(struct kvc *k, const struct kvc_job *j)
{
	char key[64], value[96];
	struct kvc_place p;
	unsigned tier;
	uint64_t ino;

	kvc_lock_both(k);
	if (!kvc_meta_get(k->cat, note_key(j->tier, &j->where, key), value, sizeof value) &&
	    note_parse(key, value, &tier, &ino, &p) && ino == j->ino &&
	    !kvc_meta_del(k->cat, key) && !kvc_gone_get(k->cat, &j->where, kvc_clock_ns(k)))
		kvc_gone_put(k->cat, &j->where, kvc_clock_ns(k) + GONE_SOON_NS);
	kvc_committer_wake_locked(k, false);
	kvc_unlock_both(k);
}

int kvc_remove_waits_both(struct kvc *k, unsigned tier)
{
	char prefix[16], key[64], value[96];
	int err;

	snprintf(prefix, sizeof prefix, KEY "%u:", tier);
	snprintf(key, sizeof key, "%s", prefix);
	err = kvc_meta_next(k->cat, prefix, key, value, sizeof value);
	return !err ? -EEXIST : err == -ENOENT ? 0 : err;
}

int kvc_remove_recover_both(struct kvc *k)
{
	char key[64] = KEY, value[96];
	int err;

	while (!(err = kvc_meta_next(k->cat, KEY, key, value, sizeof value))) {
		struct kvc_place p;
		unsigned tier;
		uint64_t ino;

		if (!note_parse(key, value, &tier, &ino, &p)) {
			if ((err = kvc_meta_del(k->cat, key)))
				return err;
		} else if (k->tier[tier].t && k->tier[tier].t->ops->caps & KVC_TIER_SHARED) {
			kvc_deferred_free_shared_locked(k, tier, ino, &p);
		}
	}
	return err == -ENOENT ? 0 : err;
}

/* ---- the removal itself ---- */

/*
 * Does the name still hold the frame to remove? Returns 0 if it does; -ENOENT, -EBADMSG or -EPROTO
 * if it does not; another error if that is unknown.
 */
static int still_ours(struct kvc *k, const struct kvc_job *j)
{
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	struct iovec iov = { page, KVC_FRAME_HEADER };
	struct kvc_tier *t = k->tier[j->tier].t;
	int err = page && f ? t->ops->get(t, &j->where, 0, &iov, 1) : -ENOMEM;
	bool ours;

	err = err ?: kvc_frame_decode(page, f);
	if (err)
		return err;
	ours = !memcmp(f->store, k->shared_id, 16);
	if (memcmp(f->stored_sum.b, j->sum.b, 16) || (ours && f->ino != j->ino))
		return -ENOENT;
	/*
	 * If a copy was undone, only that copy is removed: another node's frame may be that node's
	 * only copy.
	 */
	return j->copy && (!ours || f->gen != j->copy) ? -ENOENT : 0;
}

/* Does a file need the frame, as the copy of the object's current version? */
static bool wanted_both(struct kvc *k, const struct kvc_job *j)
{
	const struct kvc_place *p;
	struct kvc_node *n;
	bool wanted;
	int err = kvc_node_get_both(k, j->ino, &n);

	if (err)
		return err != -ENOENT; /* an extra frame does no harm */
	p = &n->in[j->tier].place;
	wanted = !n->commit.lost && p->gen && kvc_tier_same_name(&p->where, &j->where) &&
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
	/* during a put it is unknown which frame the name will hold */
	named = kvc_tier_name_lock_locked(ts, &j->where);
	wanted = named && wanted_both(k, j);
	kvc_unlock_both(k);
	if (!named)
		return -EALREADY;
	if (!wanted)
		err = still_ours(k, j) ?: ts->t->ops->remove(ts->t, &j->where);
	kvc_lock(k);
	kvc_tier_name_unlock_locked(ts, &j->where);
	kvc_unlock(k);
	/* none of our frames is left to remove */
	err = err == -ENOENT || err == -EBADMSG || err == -EPROTO ? 0 : err;
	if (!err)
		note_delete(k, j);
	return err ?: wanted;
}
