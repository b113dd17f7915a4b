/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of an object: its state, its segment, publishing, destroying. The table of states is in
 * node.h. All under k->lock.
 */
#include "file.h"

#include "account.h"
#include "committer.h"
#include "folder.h"
#include "user.h"
#include "log.h"
#include "model.h"
#include "rings.h"
#include "model_use.h"
#include "tier_queue.h"
#include "deferred_free.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>

const char *const kvc_file_state_names[KVC_STATES] = {
	"none", "open", "resident", "resident+lower", "lower", "loading", "gone",
};

/* files destroyed under one hold of k->lock; each costs a system call */
#define LINGER_AT_ONCE 16

#define B(s) (1u << KVC_##s)
static const unsigned allowed[KVC_STATES] = {
	[KVC_OPEN] = B(RESIDENT) | B(BOTH) | B(GONE),
	[KVC_RESIDENT] = B(OPEN) | B(BOTH) | B(GONE),
	[KVC_BOTH] = B(OPEN) | B(RESIDENT) | B(LOWER) | B(GONE),
	[KVC_LOWER] = B(LOADING) | B(OPEN) | B(RESIDENT) | B(BOTH) | B(GONE),
	[KVC_LOADING] = B(BOTH) | B(LOWER) | B(GONE),
};

void kvc_file_become_locked(struct kvc *k, struct kvc_node *n, enum kvc_state to)
{
	bool had = kvc_node_has_segment(n);

	if (n->state == to)
		return;
	if (!(allowed[n->state] & (1u << to))) {
		kvc_error("inode %llx: %s -> %s is not a valid transition",
			  (unsigned long long)n->row.ino, kvc_file_state_names[n->state],
			  kvc_file_state_names[to]);
		assert(!"transition");
	}
	if (to == KVC_OPEN || to == KVC_LOADING)
		kvc_chunk_mark_busy(n->chunk);
	if (n->state == KVC_RESIDENT || n->state == KVC_BOTH)
		k->nodes->resident--;
	n->state = to;
	if (to == KVC_RESIDENT || to == KVC_BOTH)
		k->nodes->resident++;
	kvc_account_copied_locked(k, n);
	if (kvc_node_has_segment(n) && !had)
		kvc_chunk_add_locked(k, n);
	else if (!kvc_node_has_segment(n) && had)
		kvc_chunk_remove_locked(k, n);
	if (!kvc_node_has_segment(n))
		n->segment.inherited = false;
	kvc_user_share_recount_locked(k, n);
	kvc_model_stats_pool_bytes_locked(k, n);
	kvc_account_uncopied_locked(k, n);
}

struct kvc_segment kvc_file_segment_of(const struct kvc_node *n)
{
	char kind = n->state == KVC_LOADING ? 'l'
		    : n->state != KVC_OPEN  ? 'p'
		    : n->segment.fresh      ? 'w'
					    : 'o';

	return (struct kvc_segment){ kind, n->row.ino, n->object.gen };
}

void kvc_file_mark_old_name_both(struct kvc *k, struct kvc_node *n, unsigned tier)
{
	struct kvc_place *p = &n->in[tier].place;

	if (!p->gen || p->codec & KVC_PLACE_LEFT || n->commit.lost || kvc_node_detached(n))
		return;
	p->codec |= KVC_PLACE_LEFT;
	if (kvc_place_put(k->cat, n->row.ino, tier, p))
		kvc_warn("cannot record in the catalog that the copy of inode %llx has "
			 "another name",
			 (unsigned long long)n->row.ino);
	if (n->state == KVC_BOTH && !kvc_file_placed(k, n))
		kvc_file_become_locked(k, n, KVC_RESIDENT);
}

bool kvc_file_placed(const struct kvc *k, const struct kvc_node *n)
{
	kvc_tier_each(k, t)
		if (kvc_file_placed_in(n, t))
			return true;
	return false;
}

bool kvc_file_placed_durably(const struct kvc *k, const struct kvc_node *n)
{
	kvc_tier_each(k, t)
		if (kvc_file_placed_in(n, t) && kvc_tier_is_durable_locked(k, t) &&
		    kvc_tier_synced(k->tier[t].t, &n->in[t].place.where) < KVC_TIER_UNKNOWN)
			return true;
	return false;
}

bool kvc_file_placed_anywhere(const struct kvc *k, const struct kvc_node *n)
{
	for (unsigned t = 0; t < k->tier_slots; t++)
		if (n->in[t].place.gen && n->in[t].place.gen == n->object.gen)
			return true;
	return false;
}

/*
 * Opens the segment as n->segment.fd. An existing descriptor is replaced under the same number,
 * since another thread may be in a call with it: that call uses the old or the new one.
 */
static int set_fd_locked(struct kvc *k, struct kvc_node *n, int flags)
{
	struct kvc_segment s = kvc_file_segment_of(n);
	int fd = kvc_pool_segment_open(&k->pool, &s, flags), err;

	if (fd < 0)
		return fd;
	if (n->segment.fd < 0) {
		n->segment.fd = fd;
		return 0;
	}
	err = dup3(fd, n->segment.fd, O_CLOEXEC) < 0 ? -errno : 0;
	close(fd);
	return err;
}

void kvc_file_close_fd_locked(struct kvc_node *n)
{
	if (n->segment.fd >= 0)
		close(n->segment.fd);
	n->segment.fd = -1;
}

int kvc_file_node_fd_locked(struct kvc *k, struct kvc_node *n)
{
	int err = n->segment.fd < 0 ? set_fd_locked(k, n, n->state == KVC_OPEN ? O_RDWR : O_RDONLY)
				    : 0;

	return err ?: n->segment.fd;
}

/*
 * The file is not written any more: makes n->segment.fd read-only or closes it. A segment may be
 * open for writing only while a client writes, since copies wait until it is not (tiering/spill.c).
 */
static void make_fd_read_only_locked(struct kvc *k, struct kvc_node *n)
{
	if (!n->refs.opens)
		kvc_file_close_fd_locked(n);
	else if (n->segment.fd >= 0 && set_fd_locked(k, n, O_RDONLY))
		kvc_warn("inode %llx: cannot open its segment read-only; it is copied after its "
			 "last close",
			 (unsigned long long)n->row.ino);
}

int kvc_file_segment_new_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_segment s = { 'w', n->row.ino, n->object.gen };
	int fd = kvc_pool_segment_open(&k->pool, &s, O_RDWR | O_CREAT | O_EXCL);

	if (fd < 0)
		return fd;
	n->segment.fd = fd;
	n->segment.fresh = true;
	n->segment.mode_ns = KVC_MARK_NS;
	n->segment.prepared = 0;
	kvc_account_granted_locked(n, 0);
	kvc_account_set_preallocated_locked(k, n, 0);
	kvc_file_changed_locked(n);
	kvc_file_retry_copies_locked(n);
	kvc_file_become_locked(k, n, KVC_OPEN);
	kvc_account_quota_count_locked(k, n);
	return 0;
}

void kvc_file_changed_locked(struct kvc_node *n)
{
	static _Atomic uint64_t last;

	n->segment.epoch = ++last;
}

void kvc_file_created_locked(struct kvc_node *n, int fd, uint64_t mtime_ns)
{
	n->segment.fd = fd;
	n->segment.fresh = n->copies.unshared = n->segment.never_published = true;
	n->segment.mode_ns = mtime_ns;
	kvc_file_changed_locked(n);
}

void kvc_file_recovered_locked(struct kvc *k, struct kvc_node *n, const struct stat *st)
{
	n->object.size = n->row.size = (uint64_t)st->st_size;
	n->row.blocks = (uint64_t)st->st_blocks;
	kvc_file_update_lower_locked(k, n);
	n->segment.inherited = true;
	n->segment.verify = n->object.lower && kvc_ns(st->st_mtim) == KVC_MARK_NS;
}

bool kvc_file_decoded_both(struct kvc *k, struct kvc_node *n, const struct kvc_sum *sum)
{
	if (n->object.has_sum && !memcmp(n->object.sum.b, sum->b, sizeof sum->b))
		return false;
	for (unsigned t = 0; t < k->tier_slots && n->object.has_sum; t++) {
		struct kvc_place *p = &n->in[t].place;

		if (!p->gen || p->gen != n->object.gen || !kvc_sum_is_zero(&p->raw))
			continue;
		p->raw = n->object.sum; /* the copy still decodes to the earlier bytes */
		kvc_place_put(k->cat, n->row.ino, t, p);
	}
	n->object.sum = *sum;
	n->object.has_sum = n->object.decoded = true;
	kvc_file_changed_locked(n); /* copies under way have the earlier bytes */
	if (kvc_object_put(k->cat, n->row.ino, &n->object))
		kvc_warn("cannot record in the catalog that inode %llx was decoded",
			 (unsigned long long)n->row.ino);
	kvc_node_dirty_locked(k, n);
	return true;
}

void kvc_file_error_locked(const struct kvc *k, const struct kvc_node *n, uint32_t *error_ppm,
			   uint32_t *worst_ppm)
{
	*error_ppm = n->copies.lent_error_ppm;
	*worst_ppm = n->copies.lent_worst_ppm;
	for (unsigned t = 0; t < k->tier_slots; t++) {
		const struct kvc_place *p = &n->in[t].place;

		if (p->gen != n->object.gen || !p->error_ppm || kvc_file_differs_in(n, t))
			continue;
		*error_ppm = p->error_ppm;
		*worst_ppm = p->worst_ppm;
		return;
	}
}

void kvc_file_registered_locked(struct kvc *k, struct kvc_node *n, int backing)
{
	n->segment.backing = backing;
	k->nodes->backings++;
}

int kvc_file_begin_write_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_segment from = kvc_file_segment_of(n), to = from;
	const struct timespec mark[2] = { { .tv_nsec = UTIME_OMIT }, kvc_file_time(KVC_MARK_NS) };
	int err;

	kvc_file_changed_locked(n);
	kvc_file_retry_copies_locked(n);
	if (n->state == KVC_OPEN)
		return 0;
	if ((err = set_fd_locked(k, n, O_RDWR)))
		return err;
	to.kind = 'o';
	if ((err = kvc_pool_segment_rename(&k->pool, &from, &to))) {
		make_fd_read_only_locked(k, n);
		return err;
	}
	futimens(n->segment.fd, mark);
	n->segment.mode_ns = KVC_MARK_NS;
	n->segment.fresh = false;
	kvc_file_become_locked(k, n, KVC_OPEN);
	return 0;
}

void kvc_file_close_segment_locked(struct kvc *k, struct kvc_node *n)
{
	/* after the end of the session the kernel has released all backing files */
	if (n->segment.backing && k->ev.backing_close) {
		k->ev.backing_close(k->ev.arg, n->segment.backing);
		k->nodes->backings--;
	}
	n->segment.backing = 0;
	kvc_file_close_fd_locked(n);
}

void kvc_file_set_place_locked(struct kvc *k, struct kvc_node *n, unsigned tier,
			       const struct kvc_place *p)
{
	const struct kvc_place none = { 0 }, *was = &n->in[tier].place, *now = p ?: &none;

	kvc_model_use_place_locked(k, n, tier, was->gen ? was->where.len : 0,
				   now->gen ? now->where.len : 0);
	n->in[tier].place = *now;
}

void kvc_file_unplace_locked(struct kvc *k, struct kvc_node *n)
{
	for (unsigned t = 0; t < k->tier_slots; t++)
		if (n->in[t].place.gen) {
			if (n->copies.old_name & (1u << t))
				kvc_deferred_free_shared_locked(k, t, n->row.ino, &n->in[t].place);
			kvc_deferred_free_extent_locked(k, t, &n->in[t].place);
			kvc_file_set_place_locked(k, n, t, NULL);
		}
	n->copies.old_name = 0;
	n->object.lower = false;
}

/*
 * The segment could not be renamed to its published name: the file stays OPEN, and the committer
 * tries again.
 */
static void publish_failed_locked(struct kvc *k, struct kvc_node *n, int err)
{
	if (!n->segment.unpublished)
		kvc_warn("inode %llx cannot be published: %s; the next commit retries",
			 (unsigned long long)n->row.ino, strerror(-err));
	n->segment.unpublished = true;
	kvc_node_dirty_locked(k, n);
}

static void set_mtime(int fd, uint64_t ns)
{
	const struct timespec t[2] = { { .tv_nsec = UTIME_OMIT }, kvc_file_time(ns) };

	futimens(fd, t);
}

/* Frees preallocated pages past the end of the file, and keeps its times. */
static void free_prepared(struct kvc_node *n, int fd, struct stat *st, uint64_t mtime_ns)
{
	if (n->segment.prepared > kvc_round_up((uint64_t)st->st_size, KVC_PAGE) &&
	    !ftruncate(fd, st->st_size)) {
		set_mtime(fd, mtime_ns);
		fstat(fd, st);
	}
	n->segment.prepared = 0;
}

void kvc_file_compared_locked(struct kvc_node *n, int fd)
{
	set_mtime(fd, n->row.mtime_ns);
	n->segment.verify = false;
}

void kvc_file_publish_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_segment from = kvc_file_segment_of(n), to;
	struct stat st;
	int fd = kvc_file_node_fd_locked(k, n), err;

	if (fd < 0 || fstat(fd, &st)) {
		publish_failed_locked(k, n, fd < 0 ? fd : -errno);
		return;
	}
	uint64_t size = (uint64_t)st.st_size, mtime = kvc_ns(st.st_mtim);
	bool marked = mtime == KVC_MARK_NS, written = !marked || n->segment.snapshot;
	bool doubt = !written && n->object.lower;

	/*
	 * While a copy for an fsync is being made, the mark shows only writes since that copy
	 * began.
	 */
	if (marked && written)
		set_mtime(fd, n->row.mtime_ns);
	to = (struct kvc_segment){ 'p', n->row.ino, n->object.gen + written };
	if ((err = kvc_pool_segment_rename(&k->pool, &from, &to))) {
		publish_failed_locked(k, n, err);
		return;
	}
	n->segment.unpublished = n->segment.never_published = false;
	if (!written) {
		/*
		 * Nothing was written, except possibly through a mapping, which leaves no trace:
		 * compare the file before trusting lower copies. Until then it keeps the mark, in
		 * case of a kill.
		 */
		n->segment.verify = doubt;
		if (!doubt)
			set_mtime(fd, n->row.mtime_ns);
	} else {
		kvc_file_set_generation_locked(n, n->object.gen + 1, kvc_file_open_decoded(n));
		n->segment.verify = false;
		kvc_file_unplace_locked(k, n);
		if (mtime != n->segment.mode_ns)
			kvc_node_drop_setid(&n->row);
		if (!marked)
			n->row.mtime_ns = mtime;
		n->row.ctime_ns = kvc_node_ctime(n->row.ctime_ns, n->row.mtime_ns);
		kvc_count(&k->stats, publishes);
		if (size > n->object.size)
			kvc_folder_grew_locked(k, n, size - n->object.size);
	}
	free_prepared(n, fd, &st, doubt ? KVC_MARK_NS : n->row.mtime_ns);
	kvc_account_set_preallocated_locked(k, n, 0);
	/* the copy of the version that is published now serves the waiting fsyncs */
	n->segment.snapshot = false;
	n->object.size = n->row.size = size;
	n->row.blocks = (uint64_t)st.st_blocks;
	kvc_account_set_reserved_locked(k, n, (uint64_t)st.st_blocks * 512);
	kvc_model_hint_add_locked(k, n->model, size);
	k->hooks->made_locked(k, n);
	kvc_file_become_locked(k, n, kvc_file_placed(k, n) ? KVC_BOTH : KVC_RESIDENT);
	make_fd_read_only_locked(k, n);
	kvc_account_quota_count_locked(k, n);
	if (n->chunk)
		kvc_chunk_accessed_locked(k, n->chunk, false);
	kvc_node_dirty_locked(k, n);
	if (written)
		kvc_event_ring_put_locked(k, KVC_EVENT_RING_stored, KVC_EVENT_RING_POOL, n);
	kvc_node_wake_locked(k, n, 0); /* renames that waited for the publish */
	k->hooks->published_locked(k, n);
}

void kvc_file_publish_if_closed_locked(struct kvc *k, struct kvc_node *n)
{
	if (n->state != KVC_OPEN || n->refs.writers || n->commit.lost || n->unnamed)
		return;
	if (n->segment.temporary_ns)
		n->segment.temporary_ns = kvc_mono_ns();
	kvc_file_publish_locked(k, n);
}

bool kvc_file_should_linger_locked(const struct kvc *k, const struct kvc_node *n)
{
	return n->refs.kernel && (n->state == KVC_RESIDENT || n->state == KVC_BOTH) &&
	       !k->stopping && kvc_list_empty(&k->reservations.waiters);
}

void kvc_file_linger_locked(struct kvc *k, struct kvc_node *n)
{
	kvc_list_add_tail(&k->committer->lingering[0], &n->linger.link);
	n->linger.bytes = n->acct.reserved;
	k->reservations.leaving += n->linger.bytes;
	kvc_committer_wake_locked(k, false);
}

void kvc_file_linger_over_locked(struct kvc *k, struct kvc_node *n)
{
	kvc_list_del(&n->linger.link);
	k->reservations.leaving -= kvc_min(k->reservations.leaving, n->linger.bytes);
	n->linger.bytes = 0;
}

void kvc_file_linger_end_locked(struct kvc *k, bool all)
{
	struct kvc_list *young = &k->committer->lingering[0], *old = &k->committer->lingering[1];

	if (all)
		kvc_list_splice(old, young);
	for (unsigned i = 1; !kvc_list_empty(old); i++) {
		struct kvc_node *n = kvc_of(old->next, struct kvc_node, linger.link);

		kvc_file_destroy_locked(k, n);
		kvc_node_settle_locked(k, n);
		if (i % LINGER_AT_ONCE == 0)
			kvc_pause_locked(k);
	}
	kvc_list_splice(old, young);
}

void kvc_file_destroy_locked(struct kvc *k, struct kvc_node *n)
{
	if (n->state == KVC_GONE)
		return;
	kvc_file_linger_over_locked(k, n);
	if (kvc_node_has_segment(n)) {
		struct kvc_segment s = kvc_file_segment_of(n);

		kvc_deferred_free_segment_locked(k, &s, kvc_account_removed_locked(n));
		kvc_file_close_segment_locked(k, n);
	}
	if (S_ISREG(n->row.mode)) {
		kvc_file_unplace_locked(k, n);
		kvc_file_become_locked(k, n, KVC_GONE);
		kvc_node_wake_locked(k, n, -ESTALE);
		kvc_node_wake_sync_locked(k, n, 0);
	}
	kvc_node_set_lost_locked(n, true);
	kvc_account_set_preallocated_locked(k, n, 0);
	kvc_account_quota_count_locked(k, n);
	kvc_node_clean_locked(k, n);
	kvc_committer_wake_locked(k, false);
}
