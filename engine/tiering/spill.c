/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spills: copies of published objects to the tiers. A file that is still open is copied if fsync
 * asks for it (a snapshot). A worker of the tier makes the copy (copy.c) and records it. If the
 * object's epoch changed during the copy, the copy is undone. Copies that the disk tier does not
 * admit (access/admission.c) are not queued for it.
 *
 * A copy that a failed sync may have lost (kvc_tier_synced) does not count for an fsync, a flush or
 * an unmount. It is made again, as after a change of the key: the new copy is synced before it
 * replaces the old one. A snapshot of a file that has an older copy is also synced first.
 *
 * One job per object and tier: n->copying has a bit for each tier with a queued or running job. A
 * copy that failed is queued again, later after each failure.
 */
#include "spill.h"

#include "admission.h"
#include "commit_sync.h"
#include "copy.h"
#include "file.h"
#include "replacers.h"
#include "log.h"
#include "rings.h"
#include "path.h"
#include "remove.h"
#include "model_stats.h"
#include "tier_queue.h"
#include "latency.h"
#include "deferred_free.h"
#include "payload.h"

#include <fcntl.h>
#include <string.h>
#include <xxhash.h>

#define AGAIN_NS 200000000ull
/* doubled after each failure, at most KVC_AGAINS - 1 times */
#define FAILED_AGAIN_NS 1000000000ull
#define QUICK 3 /* attempts after AGAIN_NS each, if no error occurred */
#define SOON_NS 10000000ull

bool kvc_spill_needed(const struct kvc *k, const struct kvc_node *n, unsigned tier)
{
	if (!kvc_tier_takes(k->tier[tier].t))
		return false;
	return !kvc_file_placed_in(n, tier) || n->segment.verify ||
	       (n->copies.resealing & (1u << tier)) || kvc_file_differs_in(n, tier);
}

/*
 * The file was open for writing and seems unchanged: has a mapping changed it? Compares its sum
 * with the recorded one. A sparse file has no comparable sum, because its holes are not read. It is
 * copied again and synced. The earlier copy, which an fsync may have stored, is removed after that.
 * If the file was opened for writing again (it has another epoch), parts that were already read may
 * have changed, so it stays in doubt. Returns 0 or a negative errno. Takes k->lock and returns with
 * it held.
 */
static int verify(struct kvc *k, struct kvc_node *n, int fd, uint64_t size, uint64_t epoch)
{
	struct kvc_sum sum;
	int err = kvc_copy_sum(fd, size, &sum);

	kvc_lock(k);
	if (err)
		return err;
	if (n->segment.verify && n->segment.epoch == epoch &&
	    (n->state == KVC_BOTH || n->state == KVC_RESIDENT)) {
		if (!n->object.has_sum || memcmp(sum.b, n->object.sum.b, 16)) {
			struct kvc_segment from = kvc_file_segment_of(n), to = from;

			to.gen++;
			if ((err = kvc_pool_segment_rename(&k->pool, &from, &to)))
				return err; /* it is compared again later */
			kvc_file_set_generation_locked(n, to.gen, n->object.decoded);
			kvc_file_unplace_locked(k, n);
			kvc_file_become_locked(k, n, KVC_RESIDENT);
			kvc_node_dirty_locked(k, n);
		}
		kvc_file_compared_locked(n, fd);
	}
	return err;
}

/*
 * The new copy replaces the earlier copy in this tier, whether the earlier copy has the same name
 * or another one.
 */
static void replace_both(struct kvc *k, struct kvc_node *n, unsigned tier, struct kvc_place p)
{
	unsigned bit = 1u << tier;

	if (n->in[tier].place.gen && (n->copies.old_name & bit)) {
		kvc_remove_note_both(k, tier, n->row.ino, &n->in[tier].place);
		kvc_deferred_free_shared_locked(k, tier, n->row.ino, &n->in[tier].place);
	}
	if (n->in[tier].place.gen)
		kvc_deferred_free_extent_locked(k, tier, &n->in[tier].place);
	kvc_file_set_place_locked(k, n, tier, &p);
	if (tier == KVC_DISK && n->chunk)
		n->chunk->on_disk = true;
	kvc_file_set_resealing_locked(n, tier, false);
	kvc_file_set_old_name_locked(n, tier, false);
}

static void count_locked(struct kvc *k, const struct kvc_node *n, uint64_t bytes)
{
	kvc_count(&k->stats, spills);
	kvc_count_by(&k->stats, spill_bytes, bytes);
	kvc_model_stats_bytes_locked(k, n->model, spill, bytes);
}

/*
 * Writes the rows of the inode and the object with the placement, which needs them. Also writes the
 * chunk's row: otherwise a flush before the next commit leaves a file that is never evicted.
 */
static void put_rows_both(struct kvc *k, struct kvc_node *n, unsigned tier)
{
	if (n->chunk && !n->chunk->known) {
		struct kvc_chunk_row r;

		kvc_chunk_row(k, n->chunk, &r);
		n->chunk->known = !kvc_chunk_put(k->cat, &r);
		n->chunk->stored_ns = r.last_ns;
	}
	if (kvc_row_put(k->cat, &n->row, &n->paid) ||
	    kvc_object_put(k->cat, n->row.ino, &n->object) ||
	    kvc_place_put(k->cat, n->row.ino, tier, &n->in[tier].place))
		kvc_warn("cannot record the copy of inode %llx in the catalog",
			 (unsigned long long)n->row.ino);
}

/*
 * The file was in doubt and this tier has a copy of its current bytes: requests new copies in the
 * other tiers that have one.
 */
static void doubt_elsewhere_locked(struct kvc *k, struct kvc_node *n, unsigned tier)
{
	kvc_tier_each(k, t)
		if (t != tier && n->in[t].place.gen)
			kvc_file_set_resealing_locked(n, t, true);
	kvc_file_set_verify_locked(n, false);
	kvc_spill_queue_locked(k, n, false);
}

/*
 * A copy of a file that is being written has all bytes written before the copy began. So it serves
 * the fsyncs that waited at that time. An fsync that arrived later, or saw a later copy to another
 * tier begin, checks again when this copy ends.
 */
static void sync_begun_locked(struct kvc_node *n, unsigned tier)
{
	kvc_list_each(e, &n->wait.sync)
		kvc_of(e, struct kvc_wait, link)->stage = KVC_SYNC_BEGUN(tier);
}

/* The bytes that these fsyncs wait for are in the tier; now they wait for the commit. */
static void sync_copied_locked(struct kvc_node *n, unsigned tier, bool snapshot_copy,
			       const struct kvc_where *where)
{
	kvc_list_each(e, &n->wait.sync) {
		struct kvc_wait *w = kvc_of(e, struct kvc_wait, link);

		if (snapshot_copy && w->stage != KVC_SYNC_BEGUN(tier))
			continue;
		w->stage = KVC_SYNC_COPIED;
		w->sync_of = kvc_commit_sync_of_place(tier, where);
	}
}

/* Records the good copy. Returns false if it is not a copy of the object's current version. */
static bool record_both(struct kvc *k, struct kvc_node *n, unsigned tier, const struct kvc_copy *c,
			uint64_t gen, bool snapshot_copy, const struct kvc_where *where)
{
	struct kvc_segment from = kvc_file_segment_of(n), to;
	struct kvc_place place = kvc_place_of(gen, where, c->f);

	if (n->commit.lost || kvc_node_detached(n) ||
	    (snapshot_copy ? n->state != KVC_OPEN || gen != n->object.gen + 1
			   : n->object.gen != gen))
		return false;
	if (snapshot_copy) {
		to = (struct kvc_segment){ 'o', n->row.ino, gen };
		if (kvc_pool_segment_rename(&k->pool, &from, &to))
			return false;
		kvc_file_unplace_locked(k, n);
		kvc_file_snapshot_copied_locked(n, gen, c->f->size);
	}
	if (c->shared) {
		struct kvc_where now;

		if (kvc_path_both(k, n->row.ino, c->f->path))
			return false; /* whether the name is still right is unknown */
		now = kvc_frame_where_of(c->f->path);
		if (!kvc_tier_same_name(&now, &c->name))
			return false; /* renamed since the copy began */
		kvc_gone_del(k->cat, &now);
	}
	if (kvc_place_lossy(&place))
		place.raw = c->back; /* the header of a sealed frame has no sum */
	replace_both(k, n, tier, place);
	/* delete the rows of copies in other tiers that may be forgotten in memory only */
	for (unsigned t = 0; t < k->tier_slots && k->shared; t++)
		if (!n->in[t].place.gen)
			kvc_place_del(k->cat, n->row.ino, t);
	if (!c->table)
		kvc_file_set_sum_locked(n, &c->raw);
	else if (snapshot_copy)
		kvc_file_set_sum_locked(n, NULL); /* it was the sum of earlier bytes */
	kvc_file_copied_locked(n, kvc_catalog_txn(k->cat));
	kvc_node_dirty_locked(k, n);
	put_rows_both(k, n, tier);
	if (n->state == KVC_RESIDENT)
		kvc_file_become_locked(k, n, KVC_BOTH);
	if (!tier && n->chunk)
		kvc_admission_stored_locked(k, n->chunk);
	n->spill.failing = false;
	n->spill.failures = 0;
	if (kvc_tier_is_durable_locked(k, tier))
		sync_copied_locked(n, tier, snapshot_copy, where);
	count_locked(k, n, c->f->stored_len);
	kvc_event_ring_put_locked(k, KVC_EVENT_RING_stored, (int)tier, n);
	return true;
}

static void queue_locked(struct kvc *k, struct kvc_node *n, unsigned tier, enum kvc_priority p,
			 uint64_t due_ns);

/* The state of one running job. */
struct spill {
	struct kvc_node *n;
	unsigned tier;
	bool snapshot_copy; /* the file is open; fsync asked for its current bytes */
	bool marked;        /* this snapshot set the mark on the segment */
	bool reseal;        /* this generation has a copy, which is replaced */
	bool check; /* The tier has the object, unless a mapping changed it: compare sums. */
	bool doubt; /* likewise, without a sum to compare: copy again */
	uint64_t model;
	uint64_t gen, epoch; /* the generation that is copied, and the epoch at the start */
	struct stat st;
	struct kvc_copy c;
	struct kvc_where where;
	uint64_t daily_bytes; /* bytes of daily= that are set aside for the copy */
	/* an fsync moved the job to the front; without that it would have waited until this time */
	uint64_t wait_ns;
	bool retry;
	bool refused;    /* the breaker refused the tier, or the tier refuses all copies */
	bool name_taken; /* another copy of ours to the same name is under way */
	int err;
};

/*
 * Snapshot: takes the segment's modification time and sets the mark instead. While the mark stays,
 * nothing was written.
 */
static void mark_locked(struct spill *s)
{
	const struct timespec mark[2] = { { .tv_nsec = UTIME_OMIT }, kvc_file_time(KVC_MARK_NS) };
	uint64_t mtime = kvc_ns(s->st.st_mtim);
	struct kvc_node *n = s->n;

	if (mtime != KVC_MARK_NS) {
		if (mtime != n->segment.mode_ns)
			kvc_node_drop_setid(&n->row);
		n->row.mtime_ns = mtime;
		kvc_file_set_mode_time_locked(n, KVC_MARK_NS);
		s->marked = true;
	}
	futimens(s->c.fd, mark);
	/* The mark erases the trace of earlier writes, so the size is read after it. */
	if (fstat(s->c.fd, &s->st))
		kvc_warn("inode %llx: fstat: %s", (unsigned long long)n->row.ino, strerror(errno));
	n->row.blocks = (uint64_t)s->st.st_blocks;
}

/*
 * The snapshot failed: the bytes written before it are in the segment only, so the mark must not
 * say that the catalog knows them. A write between the two system calls is not lost: it leaves a
 * time other than the mark.
 */
static void unmark_locked(struct spill *s)
{
	const struct timespec t[2] = {
		{ .tv_nsec = UTIME_OMIT },
		kvc_file_time(s->n->row.mtime_ns),
	};
	struct stat st;

	if (fstat(s->c.fd, &st) || kvc_ns(st.st_mtim) != KVC_MARK_NS || futimens(s->c.fd, t))
		return;
	if (s->n->segment.mode_ns == KVC_MARK_NS)
		kvc_file_set_mode_time_locked(s->n, s->n->row.mtime_ns);
}

/* Is a copy to another tier queued or running? */
static bool copying_elsewhere(const struct kvc *k, const struct spill *s)
{
	kvc_tier_each(k, t)
		if (t != s->tier && (s->n->copying & (1u << t)))
			return true;
	return false;
}

/* The same, for tiers that an fsync waits for. */
static bool copying_durably_elsewhere(const struct kvc *k, const struct spill *s)
{
	kvc_tier_each(k, t)
		if (t != s->tier && (s->n->copying & (1u << t)) && kvc_tier_is_durable_locked(k, t))
			return true;
	return false;
}

/* Checks whether there is something to copy now. If so, opens the segment and returns true. */
static bool spill_begin_locked(struct kvc *k, struct spill *s)
{
	struct kvc_node *n = s->n;
	struct kvc_segment seg;
	/* `replaces`: this snapshot replaces the copies of the previous generation */
	bool here, replaces;

	s->snapshot_copy = n->state == KVC_OPEN && n->segment.snapshot &&
			   kvc_spill_takes_snapshot(k, n, s->tier);
	if (n->commit.lost || kvc_node_detached(n) ||
	    (!s->snapshot_copy && n->state != KVC_RESIDENT && n->state != KVC_BOTH) ||
	    (!s->snapshot_copy && !kvc_spill_needed(k, n, s->tier)))
		return false;
	seg = kvc_file_segment_of(n);
	/* may a client still write through a mapping that outlived its descriptor? */
	if (!s->snapshot_copy && !k->stopping && kvc_pool_segment_in_use(&k->pool, &seg, true)) {
		s->retry = true; /* the copy is made when the mapping is gone */
		return false;
	}
	if (!kvc_tier_allowed_locked(k, s->tier, KVC_CALL_WRITE)) {
		s->err = kvc_tier_why_locked(k, s->tier, KVC_CALL_WRITE);
		s->retry = s->refused = true;
		return false;
	}
	s->model = n->model;
	s->epoch = n->segment.epoch;
	s->gen = n->object.gen + s->snapshot_copy;
	s->c.fd = kvc_pool_segment_open(&k->pool, &seg, O_RDONLY);
	if (s->c.fd < 0 || fstat(s->c.fd, &s->st)) {
		s->err = s->c.fd < 0 ? s->c.fd : -errno;
		kvc_tier_uncalled_locked(k, s->tier, KVC_CALL_WRITE);
		return false;
	}
	if (kvc_admission_begin_locked(k, n, s->tier, &s->daily_bytes)) {
		kvc_admission_refused_locked(k, n,
					     n->state == KVC_RESIDENT && !copying_elsewhere(k, s));
		kvc_tier_uncalled_locked(k, s->tier, KVC_CALL_WRITE);
		return false;
	}
	if (s->snapshot_copy) {
		sync_begun_locked(n, s->tier);
		mark_locked(s);
	}
	/*
	 * No writer has the segment, which was checked above, and a new one changes the epoch.
	 * After a failure the copy is made through buffers, in case the pages were the cause.
	 */
	s->c.stable = !s->snapshot_copy && !k->stopping && !n->spill.failures;
	here = !s->snapshot_copy && n->segment.verify && n->in[s->tier].place.gen == n->object.gen;
	s->check = here && n->object.has_sum;
	s->doubt = here && !n->object.has_sum;
	s->reseal = (n->copies.resealing & (1u << s->tier)) || s->doubt ||
		    (!s->snapshot_copy && kvc_file_differs_in(n, s->tier));
	replaces = s->snapshot_copy && kvc_file_placed_anywhere(k, n);
	/*
	 * The row of this copy replaces another one in the catalog. The previous copy may be the
	 * only one that an fsync has stored, and the commit may reach the medium before the new
	 * frame does. The sync after the commit then finds the device synced, so that an fsync
	 * makes no more syncs than it would otherwise.
	 */
	s->c.sync = s->reseal || replaces;
	if (!s->check && (k->tier[s->tier].t->ops->caps & KVC_TIER_SHARED))
		kvc_file_set_unshared_locked(n, false);
	return true;
}

/* Compares the sums. Takes k->lock and returns with it held. */
static void compare(struct kvc *k, struct spill *s)
{
	s->err = verify(k, s->n, s->c.fd, (uint64_t)s->st.st_size, s->epoch);
	kvc_tier_uncalled_locked(k, s->tier, KVC_CALL_WRITE);
	s->retry = !s->err && kvc_node_has_segment(s->n) && s->n->state != KVC_OPEN &&
		   kvc_spill_needed(k, s->n, s->tier);
}

/* The copy is not of the object's current version: undoes it. */
static void undo_both(struct kvc *k, struct spill *s)
{
	struct kvc_place stale = kvc_place_of(s->gen, &s->where, s->c.f);
	struct kvc_node *n = s->n;

	kvc_count(&k->stats, spill_stale);
	if (s->c.shared)
		kvc_deferred_free_undone_locked(k, s->tier, n->row.ino, &stale);
	else
		kvc_deferred_free_extent_locked(k, s->tier, &stale);
	s->retry = !n->commit.lost && (n->state == KVC_RESIDENT || n->state == KVC_BOTH);
	if (n->state == KVC_OPEN && n->segment.snapshot && s->snapshot_copy)
		s->retry = true;
}

/* Does the error stay until the file or the key file changes? */
static bool is_hopeless(int err)
{
	return err == -ENOKEY || err == -E2BIG || err == -EFBIG || err == -EINVAL;
}

/* Copies the object. Takes k->lock and returns with it held. */
static void copy(struct kvc *k, struct spill *s)
{
	struct kvc_node *n = s->n;
	uint64_t begun = kvc_mono_ns();
	bool marked = kvc_ns(s->st.st_mtim) == KVC_MARK_NS;

	s->err = kvc_copy_write(&s->c, s->gen, (uint64_t)s->st.st_size, (uint64_t)s->st.st_blocks,
				&s->where);
	if (!s->err)
		kvc_latency_record(k, KVC_OP_spill, s->tier, s->model, begun);
	/*
	 * A segment without the mark is not needed any more, and is closed while no caller waits
	 * for k->lock.
	 */
	if (!s->snapshot_copy && !marked)
		kvc_copy_close(&s->c);
	kvc_lock_both(k);
	kvc_tier_result_locked(k, s->tier, KVC_CALL_WRITE, n->row.ino, s->err);
	if (!s->err)
		kvc_tier_stored_locked(k, s->tier, s->c.f->stored_len);
	if (!s->err &&
	    ((s->snapshot_copy || n->segment.epoch == s->epoch) && kvc_copy_newest(&s->c) &&
	     record_both(k, n, s->tier, &s->c, s->gen, s->snapshot_copy, &s->where))) {
		s->retry = false;
		if (s->doubt && n->segment.verify)
			doubt_elsewhere_locked(k, n, s->tier);
		if (!s->snapshot_copy && !n->segment.verify && !n->copies.resealing && marked)
			/* this was the last tier to compare */
			kvc_file_compared_locked(n, s->c.fd);
	} else if (!s->err) {
		undo_both(k, s);
	} else if (s->err == -ENOSPC) {
		s->retry = true;
		if (k->tier[s->tier].trim.exists)
			kvc_tier_refused_locked(k, s->tier, s->c.f->stored_len);
		else /* no trimmer frees space: others who store here, or the server, must */
			s->refused = true;
	} else if (s->err == -ENAMETOOLONG) {
		s->err = 0; /* a path that is too long for a frame is not shared */
	} else if (s->err == -EALREADY && !s->c.has_name) {
		s->retry = s->name_taken = true;
		s->err = 0;
	} else if (s->err == -ECANCELED) {
		s->retry = n->state == KVC_RESIDENT || n->state == KVC_BOTH;
		kvc_count(&k->stats, spill_stale);
	} else if (!is_hopeless(s->err) && kvc_tier_out_locked(k, s->tier, KVC_CALL_WRITE)) {
		s->retry = s->refused = true; /* the breaker has logged the error */
	} else {
		s->retry = !is_hopeless(s->err);
		if (!s->retry) {
			kvc_file_uncopyable_locked(n, s->tier);
			kvc_count(&k->stats, spills_given_up);
		}
		if (!n->spill.failing || !s->retry)
			kvc_warn("tier %s: cannot copy inode %llx: %s; %s",
				 k->tier[s->tier].t->ops->name, (unsigned long long)n->row.ino,
				 strerror(-s->err),
				 s->retry ? "the daemon retries"
					  : "not retried before the file changes");
	}
	if (s->marked && n->state == KVC_OPEN && n->segment.snapshot)
		unmark_locked(s);
	kvc_copy_unname_locked(&s->c);
	kvc_catalog_unlock(k->cat);
}

/*
 * Queues the failed copy with a delay that grows with the number of failures. An attempt that an
 * fsync brought forward counts only if the wait that it cut short is over. Otherwise, a few fsyncs
 * would raise the delay to two minutes. The copy waits from now, because each list is in order of
 * time. The end of the first wait is kept, so that repeated fsyncs do not prevent the copy from
 * being given up.
 */
static void wait_locked(struct kvc *k, struct spill *s, uint64_t now)
{
	struct kvc_node *n = s->n;
	bool early = n->spill.failures && now < s->wait_ns;
	unsigned level = (unsigned)kvc_min((unsigned)n->spill.failures - early,
					   s->err ? KVC_AGAINS - 1u : QUICK);

	n->spill.failures += !early && n->spill.failures < UINT8_MAX;
	queue_locked(k, n, s->tier, KVC_P_AGAIN + level, now + (FAILED_AGAIN_NS << level));
	if (early && n->in[s->tier].queued)
		n->in[s->tier].queued->wait_ns = s->wait_ns;
}

/* Queues the copy again: soon if space is being freed or its name will be free. */
static void copy_again_locked(struct kvc *k, struct spill *s, bool makes_room)
{
	struct kvc_node *n = s->n;
	uint64_t now = kvc_mono_ns();

	if (makes_room || s->name_taken) {
		queue_locked(k, n, s->tier, KVC_P_URGENT, now + SOON_NS);
	} else if (s->refused) {
		queue_locked(k, n, s->tier, KVC_P_PARKED, 0);
	} else if (!s->err && !kvc_list_empty(&n->wait.sync)) {
		/* before the copies that wait for settle= */
		queue_locked(k, n, s->tier, KVC_P_URGENT, now + AGAIN_NS);
	} else if (!s->err && n->spill.failures < QUICK) {
		n->spill.failures++;
		queue_locked(k, n, s->tier, KVC_P_SPILL, now + AGAIN_NS);
	} else {
		if (s->err == -ENOSPC)
			kvc_tier_await_space_locked(k, s->tier);
		wait_locked(k, s, now);
	}
}

/* Wakes the waiters of the copy, or queues it again. */
static void spill_finish_locked(struct kvc *k, struct spill *s)
{
	const struct kvc_tier_state *ts = &k->tier[s->tier];
	bool full = s->err == -ENOSPC && ts->trim.exists;
	/* also if the tier is no longer full: the copies that wait for space were woken already */
	bool makes_room = full && (!ts->nothing_to_drop || !ts->space.full);
	bool failed = s->err && s->err != -ECANCELED;
	struct kvc_node *n = s->n;

	kvc_tier_set_copying_locked(n, s->tier, false);
	kvc_admission_end_locked(k, s->daily_bytes);
	if (failed) {
		kvc_count(&k->stats, spill_failures);
		n->spill.failing = true;
	}
	/*
	 * While unmounting, a copy is not tried again if the tier failed. It is tried again if it
	 * became stale: unmounting does not queue another copy of an object that is being copied.
	 */
	s->retry = s->retry && !n->commit.lost &&
		   (!k->stopping || ((makes_room || !failed) && !k->draining));
	if (s->retry)
		copy_again_locked(k, s, makes_room);
	if (s->retry && failed && !full && !s->refused)
		kvc_tier_failed_locked(k, s->tier);
	/* An fsync does not fail with the error of a tier that it does not wait for. */
	if (failed ? kvc_spill_takes_snapshot(k, n, s->tier) && (!s->retry || !full) &&
			     !(s->refused && copying_durably_elsewhere(k, s))
		   : !s->retry || s->err)
		kvc_node_wake_sync_locked(k, n, !failed ? 0 : s->err == -ENODEV ? -EIO : s->err);
	kvc_reservation_wake_evictor_locked(k); /* the evictor may have more to evict */
}

static void spill_run(struct kvc *k, struct kvc_job *j)
{
	struct spill s = { .n = j->node,
			   .tier = j->tier,
			   .wait_ns = j->wait_ns,
			   .c = { .k = k, .n = j->node, .tier = j->tier, .fd = -1 } };

	kvc_lock(k);
	if (spill_begin_locked(k, &s)) {
		kvc_unlock(k);
		if (s.check)
			compare(k, &s);
		else
			copy(k, &s);
	}
	spill_finish_locked(k, &s);
	/*
	 * The evictor mistakes an open segment for a segment that a client uses, and evicts the
	 * next chunk instead. So the segment is closed before other threads see that the object may
	 * be evicted. A segment with a mark was kept open until the mark was removed, so it is
	 * closed here too. The segment of an unlinked file is closed below, since that frees its
	 * pages.
	 */
	if (!s.n->commit.lost && kvc_node_has_segment(s.n))
		kvc_copy_close(&s.c);
	kvc_unlock(k);
	kvc_copy_fini(&s.c);
}

static void queue_locked(struct kvc *k, struct kvc_node *n, unsigned tier, enum kvc_priority p,
			 uint64_t due_ns)
{
	struct kvc_job *j = n->in[tier].queued;

	if (n->copies.uncopyable & (1u << tier))
		return;
	/* Brings a queued copy forward, but a failed copy only if an fsync waits for it. */
	if (j && p == KVC_P_URGENT &&
	    (j->priority == KVC_P_SPILL || k->stopping || !kvc_list_empty(&n->wait.sync)))
		kvc_tier_job_hurry_locked(&k->tier[tier], j);
	if (n->copying & (1u << tier))
		return;
	if (kvc_tier_copy_add_locked(k, p, spill_run, n, tier, due_ns)) {
		n->spill.failing = true;
		if (!n->copying)
			kvc_node_wake_sync_locked(k, n, -ENOMEM);
		return;
	}
}

void kvc_spill_queue_locked(struct kvc *k, struct kvc_node *n, bool urgent)
{
	uint64_t due = urgent ? 0 : kvc_mono_ns() + k->opt.settle_ms * 1000000;
	bool refused = false, asked = false;

	kvc_tier_each(k, t) {
		if (!(n->segment.snapshot ? kvc_spill_takes_snapshot(k, n, t)
					  : kvc_spill_needed(k, n, t)))
			continue;
		if (kvc_admission_check_locked(k, n, t)) {
			refused = true;
			continue;
		}
		asked = true;
		queue_locked(k, n, t, urgent ? KVC_P_URGENT : KVC_P_SPILL, due);
	}
	kvc_admission_refused_locked(k, n, refused && !asked);
}

bool kvc_spill_lost_locked(struct kvc *k, struct kvc_node *n, enum kvc_tier_synced least)
{
	bool any = false;

	kvc_tier_each(k, t) {
		enum kvc_tier_synced is = kvc_tier_synced(k->tier[t].t, &n->in[t].place.where);

		if (!kvc_file_placed_in(n, t) || (is < least && is != KVC_TIER_UNKNOWN))
			continue;
		any = true;
		kvc_file_set_resealing_locked(n, t, true);
	}
	return any;
}

void kvc_spill_now_locked(struct kvc *k, struct kvc_node *n)
{
	kvc_file_retry_copies_locked(n);
	n->spill.failing = false;
	kvc_spill_queue_locked(k, n, true);
	kvc_tier_each(k, t)
		if (n->in[t].queued && n->in[t].queued->priority >= KVC_P_PARKED)
			kvc_tier_job_hurry_locked(&k->tier[t], n->in[t].queued);
}
