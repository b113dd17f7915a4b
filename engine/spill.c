/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spills: copies of published objects to the tiers, and of files still open where fsync asks for one (a snapshot).
 * A worker reads the segment through a descriptor of its own (no mapping: a client may truncate the file meanwhile),
 * sums what it reads, and the driver writes the header last. When the object changed meanwhile (its epoch tells) the
 * copy is undone.
 */
#include "core.h"

#include <fcntl.h>
#include <string.h>
#include <xxhash.h>

#define SPARSE_GAIN (256u << 10) /* holes of this much make it worth a range table */
#define AGAIN_NS 200000000ull
#define FAILED_AGAIN_NS 1000000000ull

struct copy {
	struct kvc *k;
	struct kvc_node *n;
	int fd;
	struct kvc_range *ranges;
	uint8_t *table;
	size_t nranges, table_len;
	size_t at;           /* the range that is read */
	uint64_t at_off;     /* bytes of it already read */
	XXH3_state_t *sum;
	struct kvc_frame *f;
};

bool kvc_spill_needed(const struct kvc *k, const struct kvc_node *n, unsigned tier)
{
	(void)k;
	return n->place[tier].gen != n->object.gen || n->verify;
}

/* The ranges of the file that hold data. */
static int find_ranges(struct copy *c, uint64_t size)
{
	size_t room = 0;
	off_t at = 0, end;

	while ((uint64_t)at < size && (at = lseek(c->fd, at, SEEK_DATA)) >= 0) {
		end = lseek(c->fd, at, SEEK_HOLE);
		if (end < 0)
			return -errno;
		if (kvc_grow(&c->ranges, c->nranges, &room, sizeof *c->ranges))
			return -ENOMEM;
		c->ranges[c->nranges++] = (struct kvc_range){ (uint64_t)at, kvc_min((uint64_t)end, size) - (uint64_t)at };
		at = end;
	}
	c->table_len = kvc_ranges_size(c->nranges);
	c->table = c->table_len ? calloc(1, c->table_len) : NULL;
	if (!c->table)
		return c->table_len ? -ENOMEM : -E2BIG;
	kvc_ranges_encode(c->ranges, c->nranges, c->table);
	return 0;
}

/* The payload in order: of a dense object its bytes, of a sparse one the table and the ranges. */
static int copy_read(void *arg, void *buf, size_t len, uint64_t off)
{
	struct copy *c = arg;
	uint8_t *p = buf;
	size_t left = len;
	int err;

	if (!c->table) {
		err = kvc_pread_all(c->fd, p, len, (off_t)off);
		if (err)
			return err == -ENODATA ? -ECANCELED : err; /* truncated meanwhile */
	} else {
		if (off < c->table_len) {
			size_t n = kvc_min(left, c->table_len - off);

			memcpy(p, c->table + off, n);
			p += n;
			left -= n;
		}
		while (left) {
			struct kvc_range *r = &c->ranges[c->at];
			size_t n = kvc_min(left, r->len - c->at_off);

			err = kvc_pread_all(c->fd, p, n, (off_t)(r->off + c->at_off));
			if (err)
				return err == -ENODATA ? -ECANCELED : err;
			p += n;
			left -= n;
			c->at_off += n;
			if (c->at_off == r->len) {
				c->at++;
				c->at_off = 0;
			}
		}
	}
	XXH3_128bits_update(c->sum, buf, len);
	return 0;
}

static struct kvc_sum digest(struct copy *c)
{
	XXH128_canonical_t canon;
	struct kvc_sum s;

	XXH128_canonicalFromHash(&canon, XXH3_128bits_digest(c->sum));
	memcpy(s.b, canon.digest, 16);
	return s;
}

static int copy_head(void *arg, uint8_t page[KVC_FRAME_HEADER])
{
	struct copy *c = arg;

	c->f->raw_sum = c->f->stored_sum = digest(c);
	kvc_lock_both(c->k);
	kvc_frame_name_both(c->k, c->n, c->f);
	kvc_unlock_both(c->k);
	kvc_frame_encode(c->f, page);
	return 0;
}

struct first_name {
	uint64_t parent;
	char name[256];
};

static int take_name(void *arg, const struct kvc_name *n)
{
	struct first_name *f = arg;

	f->parent = n->parent;
	snprintf(f->name, sizeof f->name, "%s", n->name);
	return 1;
}

void kvc_frame_name_both(struct kvc *k, struct kvc_node *n, struct kvc_frame *f)
{
	char path[KVC_FRAME_PATH_MAX + 1];
	size_t at = sizeof path - 1;
	uint64_t ino = n->row.ino;
	struct first_name name;

	f->mode = n->row.mode;
	f->uid = n->row.uid;
	f->gid = n->row.gid;
	f->mtime_ns = n->row.mtime_ns;
	f->btime_ns = n->row.btime_ns;
	f->path[0] = path[at] = 0;
	while (ino != KVC_ROOT) {
		size_t len;

		if (kvc_name_of(k->cat, ino, take_name, &name) != 1)
			return;
		len = strlen(name.name);
		if (len + 1 > at)
			return;
		if (path[at])
			path[--at] = '/';
		at -= len;
		memcpy(path + at, name.name, len);
		ino = name.parent;
	}
	snprintf(f->path, sizeof f->path, "%s", path + at);
}

/* The file was open for writing and seems untouched: has a mapping changed it? */
static int verify(struct kvc *k, struct kvc_node *n, int fd, uint64_t size)
{
	KVC_MEM uint8_t *buf = malloc(1 << 20);
	XXH3_state_t *x = XXH3_createState();
	struct copy c = { .sum = x };
	struct kvc_sum sum;
	uint64_t off = 0;
	int err = buf && x ? 0 : -ENOMEM;

	if (!err)
		XXH3_128bits_reset(x);
	while (!err && off < size) {
		size_t len = kvc_min(size - off, 1 << 20);

		err = kvc_pread_all(fd, buf, len, (off_t)off);
		if (!err)
			XXH3_128bits_update(x, buf, len);
		off += len;
	}
	if (!err)
		sum = digest(&c);
	XXH3_freeState(x);
	if (err)
		return err;
	kvc_lock(k);
	if (n->verify && (n->state == KVC_BOTH || n->state == KVC_RESIDENT)) {
		if (!n->object.has_sum || memcmp(sum.b, n->object.sum.b, 16)) {
			struct kvc_segment from = kvc_segment_of(n), to = from;

			to.gen = ++n->object.gen;
			kvc_segment_rename(&k->pool, &from, &to);
			n->object.has_sum = false;
			kvc_unplace_locked(k, n);
			kvc_become_locked(k, n, KVC_RESIDENT);
			kvc_node_dirty_locked(k, n);
		}
		n->verify = false;
	}
	kvc_unlock(k);
	return 0;
}

/* Makes the frame's fields and writes it. Without locks. */
static int write_copy(struct kvc *k, struct copy *c, struct kvc_tier *t, uint64_t gen, uint64_t size, uint64_t blocks, struct kvc_where *where)
{
	struct kvc_put put = { .ino = c->n->row.ino, .gen = gen, .arg = c, .read = copy_read, .head = copy_head };
	int err = 0;

	c->f = kvc_frame_new();
	c->sum = XXH3_createState();
	if (!c->f || !c->sum)
		return -ENOMEM;
	XXH3_128bits_reset(c->sum);
	memcpy(c->f->store, k->store->uuid, 16);
	c->f->ino = put.ino;
	c->f->gen = gen;
	c->f->size = put.stored_len = size;
	if (blocks * 512 + SPARSE_GAIN < size) {
		err = find_ranges(c, size);
		if (!err) {
			c->f->flags = KVC_FRAME_SPARSE;
			put.stored_len = c->table_len;
			for (size_t i = 0; i < c->nranges; i++)
				put.stored_len += c->ranges[i].len;
		} else if (err == -E2BIG) {
			err = 0; /* too many holes: as they are */
		}
	}
	c->f->raw_len = c->f->stored_len = put.stored_len;
	return err ?: t->ops->put(t, &put, where);
}

/* The copy is good: record it. Returns whether it still is of the object as it stands. */
static bool record_both(struct kvc *k, struct kvc_node *n, unsigned tier, const struct copy *c, uint64_t gen, bool snap,
			const struct kvc_where *where)
{
	struct kvc_segment from = kvc_segment_of(n), to;

	if (n->lost || (snap ? n->state != KVC_OPEN || gen != n->object.gen + 1 : n->object.gen != gen))
		return false;
	if (snap) {
		to = (struct kvc_segment){ 'o', n->row.ino, gen };
		if (kvc_segment_rename(&k->pool, &from, &to))
			return false;
		kvc_unplace_locked(k, n);
		n->object.gen = gen;
		n->object.size = n->row.size = c->f->size;
		n->fresh = n->snapshot = false;
	}
	if (n->place[tier].gen)
		kvc_trash_extent_locked(k, tier, &n->place[tier].where);
	n->place[tier] = (struct kvc_place){ gen, *where };
	if (!c->table) {
		n->object.sum = c->f->raw_sum;
		n->object.has_sum = true;
	}
	n->object.lower = true;
	n->place_txn = kvc_catalog_txn(k->cat);
	kvc_node_dirty_locked(k, n);
	/* Row and object are written with it: a placement is of no use without them. */
	if (kvc_row_put(k->cat, &n->row) || kvc_object_put(k->cat, n->row.ino, &n->object) ||
	    kvc_place_put(k->cat, n->row.ino, tier, &n->place[tier]))
		kvc_warn("the catalog does not take the placement of inode %llx", (unsigned long long)n->row.ino);
	if (n->state == KVC_RESIDENT)
		kvc_become_locked(k, n, KVC_BOTH);
	n->failing = false;
	kvc_list_each(e, &n->sync_waiters) /* what they waited for is in the tier: now the commit */
		kvc_of(e, struct kvc_wait, link)->stage = 1;
	kvc_count(&k->stats, spills);
	kvc_count_by(&k->stats, spill_bytes, c->f->stored_len);
	return true;
}

static void queue_locked(struct kvc *k, struct kvc_node *n, unsigned tier, enum kvc_priority p, uint64_t due_ns);

static void spill_run(struct kvc *k, struct kvc_job *j)
{
	struct kvc_node *n = j->node;
	struct kvc_tier *t = k->tier[j->tier].t;
	struct copy c = { .k = k, .n = n, .fd = -1 };
	struct kvc_where where = { 0 };
	struct kvc_segment seg;
	struct stat st;
	uint64_t gen, epoch;
	bool snap, again = false;
	int err = 0;

	kvc_lock(k);
	snap = n->state == KVC_OPEN && n->snapshot;
	if (n->lost || (!snap && n->state != KVC_RESIDENT && n->state != KVC_BOTH) || (!snap && !kvc_spill_needed(k, n, j->tier)))
		goto out;
	seg = kvc_segment_of(n);
	/* A mapping that outlived its file may still write; its bytes are taken when it has gone. */
	if (!snap && !k->stopping && kvc_segment_in_use(&k->pool, &seg, true)) {
		again = true;
		goto out;
	}
	if (!kvc_tier_allowed_locked(k, j->tier)) {
		err = -EIO;
		again = true;
		goto out;
	}
	epoch = n->epoch;
	gen = n->object.gen + snap;
	c.fd = kvc_segment_open(&k->pool, &seg, O_RDONLY);
	if (c.fd < 0 || fstat(c.fd, &st)) {
		err = c.fd < 0 ? c.fd : -errno;
		kvc_tier_result_locked(k, j->tier, 0);
		goto out;
	}
	if (snap) {
		const struct timespec mark[2] = { { .tv_nsec = UTIME_OMIT }, kvc_timespec(KVC_MARK_NS) };

		if (kvc_ns(st.st_mtim) != KVC_MARK_NS)
			n->row.mtime_ns = kvc_ns(st.st_mtim);
		futimens(n->fd, mark);
		n->row.blocks = (uint64_t)st.st_blocks;
	}
	bool check = n->verify && n->place[j->tier].gen == n->object.gen;
	kvc_unlock(k);

	if (check) {
		err = verify(k, n, c.fd, (uint64_t)st.st_size);
		kvc_lock(k);
		kvc_tier_result_locked(k, j->tier, 0);
		again = !err && kvc_has_segment(n) && n->state != KVC_OPEN && kvc_spill_needed(k, n, j->tier);
		goto out;
	}
	err = write_copy(k, &c, t, gen, (uint64_t)st.st_size, (uint64_t)st.st_blocks, &where);

	kvc_lock_both(k);
	kvc_tier_result_locked(k, j->tier, err);
	if (!err && (!snap && n->epoch != epoch ? true : !record_both(k, n, j->tier, &c, gen, snap, &where))) {
		kvc_count(&k->stats, spill_stale);
		kvc_trash_extent_locked(k, j->tier, &where);
		again = !n->lost && (n->state == KVC_RESIDENT || n->state == KVC_BOTH);
		if (n->state == KVC_OPEN && n->snapshot)
			again = true;
	} else if (err == -ENOSPC) {
		k->tier[j->tier].full = again = true;
		pthread_cond_signal(&k->evict_cond);
	} else if (err == -ECANCELED) {
		again = n->state == KVC_RESIDENT || n->state == KVC_BOTH;
		kvc_count(&k->stats, spill_stale);
	} else if (err) {
		again = true;
		kvc_warn("tier %s: copying inode %llx: %s; tried again", t->ops->name, (unsigned long long)n->row.ino, strerror(-err));
	}
	kvc_catalog_unlock(k->cat);
out:
	n->spilling &= ~(1u << j->tier);
	if (err && err != -ECANCELED) {
		kvc_count(&k->stats, spill_failures);
		n->failing = true;
	}
	if (again && !n->lost && !k->stopping)
		queue_locked(k, n, j->tier, err == -ENOSPC ? KVC_P_URGENT : KVC_P_SPILL,
			     kvc_mono_ns() + (err == -ENOSPC ? 20000000 : err ? FAILED_AGAIN_NS : AGAIN_NS));
	if (!again || (err && err != -ENOSPC))
		kvc_wake_all_locked(k, &n->sync_waiters, err == -ECANCELED ? 0 : err);
	pthread_cond_signal(&k->evict_cond);
	kvc_unlock(k);
	if (c.fd >= 0)
		close(c.fd);
	XXH3_freeState(c.sum);
	free(c.f);
	free(c.ranges);
	free(c.table);
}

static void queue_locked(struct kvc *k, struct kvc_node *n, unsigned tier, enum kvc_priority p, uint64_t due_ns)
{
	struct kvc_job *j = n->queued[tier];

	if (j && p == KVC_P_URGENT && j->due_ns) { /* sooner than it was going to be */
		kvc_list_del(&j->link);
		j->due_ns = 0;
		kvc_list_add_tail(&k->jobs[KVC_P_URGENT], &j->link);
		pthread_cond_signal(&k->jobs_cond);
	}
	if (n->spilling & (1u << tier))
		return;
	if (kvc_job_add_locked(k, p, spill_run, n, tier, due_ns, &n->queued[tier])) {
		n->failing = true;
		return;
	}
	n->spilling |= 1u << tier;
}

void kvc_spill_queue_locked(struct kvc *k, struct kvc_node *n, bool urgent)
{
	uint64_t due = urgent ? 0 : kvc_mono_ns() + k->opt.settle_ms * 1000000;

	for (unsigned t = 0; t < k->ntiers; t++)
		if (n->snapshot || kvc_spill_needed(k, n, t))
			queue_locked(k, n, t, urgent ? KVC_P_URGENT : KVC_P_SPILL, due);
}

/* A rename: brings the path in the frames up to date, so that a rebuild finds the new one. */
static void rehead_run(struct kvc *k, struct kvc_job *j)
{
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	struct kvc_tier *t = k->tier[j->tier].t;
	struct kvc_node *n = j->node;
	struct iovec iov = { page, KVC_FRAME_HEADER };
	struct kvc_place p;

	kvc_lock(k);
	bool wanted = page && f && !n->lost && n->place[j->tier].gen && !(n->spilling & (1u << j->tier));

	p = n->place[j->tier];
	if (wanted)
		n->spilling |= 1u << j->tier; /* nobody else calls the tier for this object meanwhile */
	kvc_unlock(k);
	if (!wanted)
		return;
	if (!t->ops->get(t, &p.where, 0, &iov, 1) && !kvc_frame_decode(page, f) && f->ino == n->row.ino && f->gen == p.gen) {
		pthread_mutex_lock(&k->rehead_lock);
		kvc_lock_both(k);
		kvc_frame_name_both(k, n, f);
		wanted = !n->lost && n->place[j->tier].gen == p.gen && n->place[j->tier].where.at == p.where.at;
		kvc_unlock_both(k);
		kvc_frame_encode(f, page);
		if (wanted)
			t->ops->rehead(t, &p.where, page);
		pthread_mutex_unlock(&k->rehead_lock);
	}
	kvc_lock(k);
	n->spilling &= ~(1u << j->tier);
	if (!n->lost && (n->state == KVC_RESIDENT || n->state == KVC_BOTH) && kvc_spill_needed(k, n, j->tier))
		kvc_spill_queue_locked(k, n, false); /* asked for while we were here */
	kvc_unlock(k);
}

/* Of a folder: of all that lies below it. */
static void rehead_folder_run(struct kvc *k, struct kvc_job *j)
{
	struct kvc_entries e = { 0 };

	kvc_lock_both(k);
	kvc_entries_in_both(k, j->node->row.ino, &e);
	for (size_t i = 0; i < e.n; i++) {
		struct kvc_node *n;

		if (!kvc_node_get_both(k, e.v[i].ino, &n)) {
			kvc_rehead_locked(k, n);
			kvc_node_settle_locked(k, n);
		}
	}
	kvc_unlock_both(k);
	free(e.v);
}

void kvc_rehead_locked(struct kvc *k, struct kvc_node *n)
{
	if (S_ISDIR(n->row.mode))
		kvc_job_add_locked(k, KVC_P_SPILL, rehead_folder_run, n, 0, kvc_mono_ns(), NULL);
	for (unsigned t = 0; t < k->ntiers && S_ISREG(n->row.mode); t++)
		if (n->place[t].gen && k->tier[t].t->ops->rehead)
			kvc_job_add_locked(k, KVC_P_SPILL, rehead_run, n, t, kvc_mono_ns(), NULL);
}
