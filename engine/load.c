/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads: LOWER -> LOADING -> BOTH. First room is asked for, then a worker reads the frame straight into the pages of
 * a new segment, checks it, and gives the segment its published name. Who opened meanwhile waits on n->waiters; all
 * share the one load. A copy that is damaged or missing is forgotten and the next tier is tried; where none is left, the
 * file is dropped.
 */
#include "core.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

struct kvc_frame *kvc_frame_new(void)
{
	return calloc(1, sizeof(struct kvc_frame));
}

/* Is this the frame that the catalog speaks of? */
static bool same_frame(const struct kvc *k, const struct kvc_frame *f, uint64_t ino, const struct kvc_place *p, uint64_t size)
{
	return !memcmp(f->store, k->store->uuid, 16) && f->ino == ino && f->gen == p->gen && f->size == size &&
	       f->codec == KVC_CODEC_NONE && f->raw_len == f->stored_len &&
	       KVC_FRAME_HEADER + f->stored_len <= p->where.len;
}

static int read_dense(struct kvc_tier *t, const struct kvc_place *p, uint8_t *page, uint8_t *map, uint64_t size)
{
	struct iovec iov[2] = { { page, KVC_FRAME_HEADER }, { map, kvc_round_up(size, KVC_PAGE) } };

	return t->ops->get(t, &p->where, 0, iov, size ? 2 : 1);
}

/* A sparse object: header and table first, then each range to its place. */
static int read_sparse(struct kvc_tier *t, const struct kvc_place *p, const struct kvc_frame *f, int fd, uint8_t *map)
{
	KVC_MEM uint8_t *payload = NULL;
	KVC_MEM struct kvc_range *r = NULL;
	uint64_t len = kvc_round_up(f->stored_len, KVC_PAGE), at;
	struct kvc_sum sum;
	size_t n;
	int err;

	payload = aligned_alloc(KVC_PAGE, len ? len : KVC_PAGE);
	if (!payload)
		return -ENOMEM;
	struct iovec iov = { payload, len };

	if ((err = t->ops->get(t, &p->where, KVC_FRAME_HEADER, &iov, 1)))
		return err;
	sum = kvc_sum_of(payload, f->stored_len);
	if (memcmp(sum.b, f->stored_sum.b, 16))
		return -EBADMSG;
	if ((err = kvc_ranges_decode(payload, f->stored_len, f->size, &r, &n)))
		return err;
	at = kvc_ranges_size(n);
	for (size_t i = 0; i < n; i++) {
		if (r[i].len > f->stored_len - at)
			return -EBADMSG;
		if (fallocate(fd, 0, (off_t)r[i].off, (off_t)r[i].len))
			return -errno;
		memcpy(map + r[i].off, payload + at, r[i].len);
		at += r[i].len;
	}
	return 0;
}

static int read_from(struct kvc *k, struct kvc_tier *t, uint64_t ino, const struct kvc_place *p, uint64_t size, uint64_t room, int fd)
{
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	uint64_t span = kvc_round_up(size, KVC_PAGE);
	bool sparse = room < span; /* the row says how much of it is there */
	uint8_t *map = NULL;
	struct kvc_sum sum;
	int err;

	if (!page || !f)
		return -ENOMEM;
	if (ftruncate(fd, (off_t)size))
		return -errno;
	if (size) {
		if (!sparse && fallocate(fd, 0, 0, (off_t)size))
			return -errno;
		map = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (map == MAP_FAILED)
			return -errno;
	}
	if (sparse) {
		struct iovec iov = { page, KVC_FRAME_HEADER };

		err = t->ops->get(t, &p->where, 0, &iov, 1);
	} else {
		err = read_dense(t, p, page, map, size);
	}
	if (!err)
		err = kvc_frame_decode(page, f);
	if (!err && !same_frame(k, f, ino, p, size))
		err = -EBADMSG;
	if (!err && sparse && (f->flags & KVC_FRAME_SPARSE)) {
		err = read_sparse(t, p, f, fd, map);
	} else if (!err && (f->flags & KVC_FRAME_SPARSE)) {
		/* The row knew no better: give the pages back and fill in the ranges. */
		munmap(map, span);
		if (ftruncate(fd, 0) || ftruncate(fd, (off_t)size))
			return -errno;
		map = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (map == MAP_FAILED)
			return -errno;
		err = read_sparse(t, p, f, fd, map);
	} else if (!err) {
		if (sparse) {
			if (fallocate(fd, 0, 0, (off_t)size))
				err = -errno;
			else
				err = read_dense(t, p, page, map, size);
		}
		if (!err) {
			sum = kvc_sum_of(map, size);
			if (f->stored_len != size || memcmp(sum.b, f->stored_sum.b, 16))
				err = -EBADMSG;
		}
	}
	if (map)
		munmap(map, span);
	return err;
}

/* Forgets the copies of this generation that a bit mask names. */
static void forget_both(struct kvc *k, struct kvc_node *n, unsigned bad)
{
	for (unsigned t = 0; t < k->ntiers; t++)
		if (bad & (1u << t)) {
			kvc_trash_extent_locked(k, t, &n->place[t].where);
			n->place[t] = (struct kvc_place){ 0 };
			kvc_place_del(k->cat, n->row.ino, t);
		}
	n->object.lower = kvc_placed(k, n);
	kvc_node_dirty_locked(k, n);
}

static void load_run(struct kvc *k, struct kvc_job *j)
{
	struct kvc_node *n = j->node;
	struct kvc_segment seg, to;
	struct kvc_place place[KVC_TIERS];
	struct stat st;
	uint64_t size, room, mtime;
	unsigned bad = 0;
	KVC_FD int fd = -1;
	int err = -EIO;

	kvc_lock(k);
	seg = (struct kvc_segment){ 'l', n->row.ino, n->object.gen };
	memcpy(place, n->place, sizeof place);
	size = n->object.size;
	room = n->room;
	mtime = n->row.mtime_ns;
	bool wanted = n->state == KVC_LOADING;
	kvc_unlock(k);

	fd = wanted ? kvc_segment_open(&k->pool, &seg, O_RDWR | O_CREAT | O_TRUNC) : -1;
	if (fd < 0 && wanted)
		err = fd;
	for (unsigned t = 0; t < k->ntiers && fd >= 0 && err; t++) {
		struct kvc_tier *tier = k->tier[t].t;

		if (!place[t].gen || place[t].gen != seg.gen)
			continue;
		kvc_lock(k);
		bool allowed = kvc_tier_allowed_locked(k, t);
		kvc_unlock(k);
		if (!allowed) {
			err = -EIO;
			continue;
		}
		err = read_from(k, tier, seg.ino, &place[t], size, room, fd);
		kvc_lock(k);
		kvc_tier_result_locked(k, t, err);
		wanted = n->state == KVC_LOADING;
		kvc_unlock(k);
		if (!wanted)
			break; /* unlinked: what was read may be anything */
		if (err == -EBADMSG || err == -ENOENT || err == -EPROTO) {
			kvc_warn("tier %s: the copy of inode %llx is %s and is discarded", tier->ops->name, (unsigned long long)seg.ino,
				 err == -ENOENT ? "missing" : "damaged");
			kvc_count(&k->stats, corrupt);
			bad |= 1u << t;
		} else if (err) {
			kvc_warn("tier %s: loading inode %llx: %s", tier->ops->name, (unsigned long long)seg.ino, strerror(-err));
		}
	}
	if (!err) {
		const struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, kvc_timespec(mtime) };

		futimens(fd, times);
		fstat(fd, &st);
	}

	kvc_lock_both(k);
	to = (struct kvc_segment){ 'p', seg.ino, seg.gen };
	if (n->state != KVC_LOADING || n->object.gen != seg.gen) {
		err = -ESTALE;
	} else if (!err) {
		err = kvc_chunk_join_both(k, n);
		if (!err)
			err = kvc_segment_rename(&k->pool, &seg, &to);
	}
	if (err) {
		if (fd >= 0)
			kvc_segment_remove(&k->pool, &seg);
		kvc_room_set_locked(k, n, 0);
	}
	if (!err) {
		n->row.blocks = (uint64_t)st.st_blocks;
		kvc_room_set_locked(k, n, (uint64_t)st.st_blocks * 512);
		kvc_become_locked(k, n, KVC_BOTH);
		n->load_error = 0;
		kvc_count(&k->stats, loads);
		kvc_count_by(&k->stats, load_bytes, size);
		if (bad) {
			forget_both(k, n, bad);
			kvc_spill_queue_locked(k, n, false);
		}
		kvc_wake_all_locked(k, &n->waiters, 0);
	} else if (n->state == KVC_LOADING) {
		kvc_count(&k->stats, load_failures);
		n->load_error = err;
		kvc_become_locked(k, n, KVC_LOWER);
		if (bad)
			forget_both(k, n, bad);
		if (!kvc_placed(k, n)) {
			kvc_drop_file_both(k, n);
			err = -ESTALE;
		}
		kvc_wake_all_locked(k, &n->waiters, err);
	}
	kvc_unlock_both(k);
}

static void fail_locked(struct kvc *k, struct kvc_node *n, int err)
{
	if (n->state != KVC_LOADING)
		return;
	n->load_error = err;
	kvc_become_locked(k, n, KVC_LOWER);
	kvc_wake_all_locked(k, &n->waiters, err);
}

/* The load has its room, or will not get it. */
static void room_ready(struct kvc_wait *w)
{
	struct kvc_node *n = kvc_of(w, struct kvc_node, load_wait);
	struct kvc *k = n->cache;
	int err = w->err;

	kvc_lock(k);
	if (!err && n->state == KVC_LOADING) {
		n->room = w->granted;
		w->granted = 0;
		err = kvc_job_add_locked(k, w->stage ? KVC_P_PREFETCH : KVC_P_LOAD, load_run, n, 0, 0, NULL);
	} else {
		kvc_room_cancel_locked(k, w);
	}
	if (err) {
		kvc_room_set_locked(k, n, 0);
		fail_locked(k, n, err);
	}
	n->holds--;
	kvc_node_settle_locked(k, n);
	kvc_unlock(k);
}

int kvc_load_start_locked(struct kvc *k, struct kvc_node *n, bool prefetch)
{
	uint64_t span = kvc_round_up(n->object.size, KVC_PAGE), room = kvc_min(n->row.blocks * 512, span);
	int err;

	if (n->state == KVC_LOADING)
		return 0;
	if (!kvc_placed(k, n))
		return -ENOENT;
	n->load_wait = (struct kvc_wait){ .wake = room_ready, .stage = prefetch };
	kvc_become_locked(k, n, KVC_LOADING);
	err = kvc_room_get_locked(k, room, &n->load_wait);
	if (err == KVC_WAIT) {
		n->holds++;
		return 0;
	}
	if (!err) {
		n->room = room;
		err = kvc_job_add_locked(k, prefetch ? KVC_P_PREFETCH : KVC_P_LOAD, load_run, n, 0, 0, NULL);
		if (err)
			kvc_room_set_locked(k, n, 0);
	}
	if (err) {
		n->load_error = err;
		kvc_become_locked(k, n, KVC_LOWER);
	}
	return err;
}
