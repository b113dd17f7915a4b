/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves a frame of the disk tier to another device. The bytes are copied as they are stored, since
 * neither the header nor a seal depends on the place, and are compared with their checksum. The new
 * frame is put on stable storage before the catalog names it. The old extent is freed after the
 * commit, as always (deferred_free), so that after a kill or a power loss one of the two frames
 * exists.
 *
 * No other job writes the object's frame during the move (n->copying). A load may be reading the
 * old frame; then the new one is given up, and the caller tries again. The thread of a sweep runs
 * this code.
 */
#include "move.h"

#include "deferred_free.h"
#include "file.h"
#include "proof.h"
#include "spill.h"
#include "tier_queue.h"

#include <string.h>
#include <xxhash.h>

#define TRIES 3 /* attempts to store the frame, if devices fail */

struct move {
	struct kvc_tier *t;
	struct kvc_where from;
	struct kvc_frame *f;
	uint8_t *page, *tail; /* the header, and the last page */
	XXH3_state_t *sum;
	int read_err;
};

static int read_part(struct move *m, void *buf, size_t len, uint64_t off)
{
	struct iovec iov = { buf, len };

	return len ? m->t->ops->get(m->t, &m->from, KVC_FRAME_HEADER + off, &iov, 1) : 0;
}

static int move_read(void *arg, void *buf, size_t len, uint64_t off)
{
	struct move *m = arg;
	size_t whole = len / KVC_PAGE * KVC_PAGE;

	m->read_err = read_part(m, buf, whole, off);
	if (!m->read_err && len > whole)
		m->read_err = read_part(m, m->tail, KVC_PAGE, off + whole);
	if (m->read_err)
		return -ECANCELED; /* not an error of the device that is written */
	memcpy((uint8_t *)buf + whole, m->tail, len - whole);
	XXH3_128bits_update(m->sum, buf, len);
	return 0;
}

static int move_head(void *arg, uint8_t page[KVC_FRAME_HEADER])
{
	struct move *m = arg;
	struct kvc_sum sum = kvc_sum_digest(m->sum);

	if (memcmp(sum.b, m->f->stored_sum.b, sizeof sum.b) != 0) {
		m->read_err = -EBADMSG;
		return -ECANCELED;
	}
	memcpy(page, m->page, KVC_FRAME_HEADER);
	return 0;
}

/* Copies the frame of placement p, and puts the copy on stable storage. */
static int copy_frame(struct kvc *k, uint64_t ino, const struct kvc_place *p, struct move *m,
		      struct kvc_where *to)
{
	struct kvc_put put = {
		.ino = ino, .gen = p->gen, .arg = m, .read = move_read, .sync = true
	};
	struct iovec iov = { m->page, KVC_FRAME_HEADER };
	int err = m->t->ops->get(m->t, &p->where, 0, &iov, 1);

	m->from = p->where;
	put.head = move_head;
	if (err)
		return err == -EBADMSG || err == -ENOMEM ? err : -EREMOTEIO;
	err = kvc_frame_decode(m->page, m->f) ?: kvc_proof_placed(k, false, m->f);
	if (!err && (m->f->ino != ino || m->f->gen != p->gen ||
		     KVC_FRAME_HEADER + m->f->stored_len > p->where.len))
		err = -EBADMSG;
	if (err)
		return err == -ENOMEM ? err : -EBADMSG;
	put.stored_len = m->f->stored_len;
	for (int i = 0; i < TRIES; i++) {
		XXH3_128bits_reset(m->sum);
		m->read_err = 0;
		err = m->t->ops->put(m->t, &put, to);
		if (m->read_err)
			return m->read_err == -EBADMSG ? -EBADMSG : -EREMOTEIO;
		if (err != -ENODEV)
			break;
	}
	return err == -ENODEV ? -EIO : err;
}

/* Is the frame still the object's, and does no load read it? */
static bool is_current(const struct kvc_node *n, const struct kvc_place *p)
{
	const struct kvc_place *now = &n->in[KVC_DISK].place;

	return !n->commit.lost && !kvc_node_detached(n) && n->state != KVC_LOADING &&
	       now->gen == p->gen && now->where.at == p->where.at;
}

/* Records the new place. Returns 0; -EAGAIN if the frame stays; or an error of the catalog. */
static int record_move_both(struct kvc *k, struct kvc_node *n, const struct kvc_place *old,
			    const struct kvc_where *to)
{
	struct kvc_place p = n->in[KVC_DISK].place;
	int err = is_current(n, old) ? 0 : -EAGAIN;

	p.where = *to;
	err = err ?: kvc_place_put(k->cat, n->row.ino, KVC_DISK, &p);
	if (err) {
		struct kvc_place stale = { .gen = old->gen, .where = *to };

		kvc_deferred_free_extent_locked(k, KVC_DISK, &stale);
		return err;
	}
	kvc_deferred_free_extent_locked(k, KVC_DISK, old);
	kvc_file_set_place_locked(k, n, KVC_DISK, &p);
	kvc_file_copied_locked(n, kvc_catalog_txn(k->cat));
	kvc_node_dirty_locked(k, n);
	return 0;
}

/* Ends the move: other jobs of the object, which waited or were not queued, may run. */
static void end_locked(struct kvc *k, struct kvc_node *n)
{
	kvc_tier_set_copying_locked(n, KVC_DISK, false);
	if (!n->commit.lost &&
	    (n->segment.snapshot || ((n->state == KVC_RESIDENT || n->state == KVC_BOTH) &&
				     kvc_spill_needed(k, n, KVC_DISK))))
		kvc_spill_queue_locked(k, n, !kvc_list_empty(&n->wait.sync));
	else
		kvc_node_wake_sync_locked(k, n, 0);
	kvc_node_unref_locked(n);
	kvc_node_settle_locked(k, n);
}

/* Sets *n to the node, with a reference and marked as being copied, and *p to its placement. */
static int begin_both(struct kvc *k, uint64_t ino, unsigned nr, struct kvc_node **n,
		      struct kvc_place *p)
{
	int err = kvc_node_get_both(k, ino, n);

	if (err)
		return err;
	*p = (*n)->in[KVC_DISK].place;
	if ((*n)->commit.lost || kvc_node_detached(*n) || !p->gen ||
	    p->where.at >> KVC_DEVICE_BITS != nr)
		err = -ENOENT;
	else if (((*n)->copying & (1u << KVC_DISK)) || (*n)->state == KVC_LOADING)
		err = -EAGAIN;
	if (err) {
		kvc_node_settle_locked(k, *n);
		return err;
	}
	kvc_node_ref_locked(*n);
	kvc_tier_set_copying_locked(*n, KVC_DISK, true);
	return 0;
}

int kvc_move_frame(struct kvc *k, uint64_t ino, unsigned nr, uint64_t *bytes)
{
	KVC_MEM uint8_t *pages = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER + KVC_PAGE);
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	struct move m = { .t = k->tier[KVC_DISK].t, .f = f, .page = pages };
	struct kvc_where to = { .at = 0 };
	struct kvc_node *n = NULL;
	struct kvc_place p;
	int err;

	m.sum = XXH3_createState();
	if (!pages || !f || !m.sum) {
		XXH3_freeState(m.sum);
		return -ENOMEM;
	}
	m.tail = pages + KVC_FRAME_HEADER;
	kvc_lock_both(k);
	err = begin_both(k, ino, nr, &n, &p);
	kvc_unlock_both(k);
	if (err) {
		XXH3_freeState(m.sum);
		return err;
	}
	err = copy_frame(k, ino, &p, &m, &to);
	kvc_lock_both(k);
	if (!err)
		err = record_move_both(k, n, &p, &to);
	end_locked(k, n);
	kvc_unlock_both(k);
	if (!err)
		*bytes += p.where.len;
	XXH3_freeState(m.sum);
	return err;
}
