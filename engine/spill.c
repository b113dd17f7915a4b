/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spills: copies of published objects to the tiers, and of files still open where fsync asks for one (a snapshot).
 * A worker reads the segment through a descriptor of its own (no mapping: a client may truncate the file meanwhile),
 * sums what it reads, codes and seals it where that is asked for (payload.h), and the driver writes the header last. When the
 * object changed meanwhile (its epoch tells) the copy is undone.
 */
#include "core.h"

#include "payload.h"

#include <fcntl.h>
#include <string.h>
#include <xxhash.h>

#define SPARSE_GAIN (256u << 10) /* holes of this much make it worth a range table */
#define AGAIN_NS 200000000ull
#define FAILED_AGAIN_NS 1000000000ull
#define ROOM_AGAIN_NS 10000000ull
#define FULL_NS 1000000000ull

struct copy {
	struct kvc *k;
	struct kvc_node *n;
	int fd;
	struct kvc_range *ranges;
	uint8_t *table;
	size_t nranges, table_len;
	size_t at;           /* the range that is read */
	uint64_t at_off;     /* bytes of it already read */
	XXH3_state_t *sum, *stored_sum; /* of the raw payload, and of what the tier gets where that is another */
	struct kvc_sum raw;
	struct kvc_encoder *enc;
	struct kvc_frame *f;
	bool shared;
	struct kvc_where name;          /* in a shared tier */
};

bool kvc_spill_needed(const struct kvc *k, const struct kvc_node *n, unsigned tier)
{
	(void)k;
	return n->place[tier].gen != n->object.gen || n->verify || (n->resealing & (1u << tier));
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

/* The raw payload in order: of a dense object its bytes, of a sparse one the table and the ranges. */
static int raw_read(void *arg, void *buf, size_t len, uint64_t off)
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

static int copy_read(void *arg, void *buf, size_t len, uint64_t off)
{
	struct copy *c = arg;
	int err;

	if (!c->enc)
		return raw_read(c, buf, len, off);
	err = kvc_encoder_read(c->enc, buf, len);
	if (!err)
		XXH3_128bits_update(c->stored_sum, buf, len);
	return err;
}

static struct kvc_sum digest(XXH3_state_t *x)
{
	XXH128_canonical_t canon;
	struct kvc_sum s;

	XXH128_canonicalFromHash(&canon, XXH3_128bits_digest(x));
	memcpy(s.b, canon.digest, 16);
	return s;
}

static int copy_head(void *arg, uint8_t page[KVC_FRAME_HEADER])
{
	struct copy *c = arg;

	c->raw = c->f->raw_sum = digest(c->sum);
	c->f->stored_sum = c->enc ? digest(c->stored_sum) : c->raw;
	if (c->f->flags & KVC_FRAME_SEALED)
		c->f->raw_sum = (struct kvc_sum){ 0 };
	if (!c->shared) {
		kvc_lock_both(c->k);
		kvc_frame_name_both(c->k, c->n, c->f);
		kvc_unlock_both(c->k);
	}
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

void kvc_path_both(struct kvc *k, uint64_t ino, char *buf)
{
	char path[KVC_FRAME_PATH_MAX + 1];
	size_t at = sizeof path - 1;
	struct first_name name;

	buf[0] = path[at] = 0;
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
	memcpy(buf, path + at, sizeof path - at);
}

void kvc_model_name(const char *path, char *name)
{
	size_t len = strcspn(path, "/");

	*name = 0;
	if (path[len] == '/' && len <= KVC_MODEL_NAME) {
		memcpy(name, path, len);
		name[len] = 0;
	}
}

void kvc_frame_name_both(struct kvc *k, struct kvc_node *n, struct kvc_frame *f)
{
	f->mode = n->row.mode;
	f->uid = n->row.uid;
	f->gid = n->row.gid;
	f->mtime_ns = n->row.mtime_ns;
	f->btime_ns = n->row.btime_ns;
	kvc_path_both(k, n->row.ino, f->path);
}

/* The file was open for writing and seems untouched: has a mapping changed it? */
static int verify(struct kvc *k, struct kvc_node *n, int fd, uint64_t size)
{
	KVC_MEM uint8_t *buf = malloc(1 << 20);
	XXH3_state_t *x = XXH3_createState();
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
		sum = digest(x);
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

/* How this object goes to this tier. Fills in the name part, which a shared tier's frame is checked by. */
static int choose_both(struct kvc *k, struct copy *c, unsigned tier, struct kvc_recipe *r)
{
	uint64_t model; /* as of now: the folder may have moved since the node came into memory */
	int codec = kvc_model_of_both(k, c->n->row.parent, &model) ? -1 : kvc_model_attr_both(k, model, KVC_MODEL_CODEC);

	kvc_frame_name_both(k, c->n, c->f);
	kvc_model_name(c->f->path, c->f->key_model);
	r->level = (int)k->opt.level;
	r->codec = codec >= 0 ? (enum kvc_codec)codec : (enum kvc_codec)(k->tier[tier].t->codec < KVC_CODECS ? k->tier[tier].t->codec : k->opt.compress);
	r->keys = k->keys;
	r->key_id = k->keys ? kvc_keys_for(k->keys, c->f->key_model) : 0;
	if (c->shared) {
		if (!*c->f->path)
			return -ENAMETOOLONG;
		c->name = kvc_where_of(c->f->path);
		c->f->flags |= KVC_FRAME_SHARED;
	}
	return k->keys && !r->key_id ? -ENOKEY : 0;
}

/* Makes the frame's fields and writes it. Without locks. */
static int write_copy(struct kvc *k, struct copy *c, unsigned tier, uint64_t gen, uint64_t size, uint64_t blocks, struct kvc_where *where)
{
	struct kvc_tier *t = k->tier[tier].t;
	struct kvc_put put = { .ino = c->n->row.ino, .gen = gen, .arg = c, .read = copy_read, .head = copy_head };
	struct kvc_recipe r = { 0 };
	int err = 0;

	c->f = kvc_frame_new();
	c->sum = XXH3_createState();
	c->stored_sum = XXH3_createState();
	if (!c->f || !c->sum || !c->stored_sum)
		return -ENOMEM;
	XXH3_128bits_reset(c->sum);
	XXH3_128bits_reset(c->stored_sum);
	c->shared = t->ops->caps & KVC_TIER_SHARED;
	memcpy(c->f->store, k->store->uuid, 16);
	c->f->ino = put.ino;
	c->f->gen = gen;
	c->f->size = c->f->raw_len = size;
	if (blocks * 512 + SPARSE_GAIN < size) {
		err = find_ranges(c, size);
		if (!err) {
			c->f->flags = KVC_FRAME_SPARSE;
			c->f->raw_len = c->table_len;
			for (size_t i = 0; i < c->nranges; i++)
				c->f->raw_len += c->ranges[i].len;
		} else if (err == -E2BIG) {
			err = 0; /* too many holes: as they are */
		}
	}
	if (!err) {
		kvc_lock_both(k);
		err = choose_both(k, c, tier, &r);
		put.expires_ns = c->n->chunk ? c->n->chunk->expires_ns : 0;
		kvc_unlock_both(k);
	}
	if (!err && c->shared)
		err = kvc_share_folders(k, c->n, tier);
	if (!err)
		err = kvc_encoder_new(&c->enc, c->f, &r, raw_read, c);
	if (err)
		return err;
	put.name = c->name;
	put.stored_len = c->f->stored_len;
	err = t->ops->put(t, &put, where);
	if (!err && c->enc) {
		kvc_count_by(&k->stats, coded_bytes, c->f->raw_len);
		kvc_count_by(&k->stats, coded_stored_bytes, c->f->stored_len);
	}
	return err;
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
	if (c->shared) {
		struct kvc_where now;

		kvc_path_both(k, n->row.ino, c->f->path);
		now = kvc_where_of(c->f->path);
		if (now.at != c->name.at || now.hi != c->name.hi)
			return false; /* renamed meanwhile */
		kvc_gone_del(k->cat, &now);
	}
	if (n->place[tier].gen)
		kvc_trash_extent_locked(k, tier, &n->place[tier]);
	n->place[tier] = kvc_place_of(gen, where, c->f);
	n->resealing &= ~(1u << tier);
	for (unsigned t = 0; t < KVC_TIERS && k->shared; t++) /* rows of an older generation, forgotten and not yet written */
		if (!n->place[t].gen)
			kvc_place_del(k->cat, n->row.ino, t);
	if (!c->table) {
		n->object.sum = c->raw;
		n->object.has_sum = true;
	} else if (snap) {
		n->object.has_sum = false; /* it was of what was there before */
	}
	n->object.lower = true;
	n->place_txn = kvc_catalog_txn(k->cat);
	n->has_places = true;
	kvc_node_dirty_locked(k, n);
	/*
	 * Row and object are written with it: a placement is of no use without them. And so is the
	 * chunk, or a flush that comes before the next commit leaves a file that nobody evicts.
	 */
	if (n->chunk && !n->chunk->known) {
		struct kvc_chunk_row r;

		kvc_chunk_row(n->chunk, &r);
		n->chunk->known = !kvc_chunk_put(k->cat, &r);
	}
	if (kvc_row_put(k->cat, &n->row) || kvc_object_put(k->cat, n->row.ino, &n->object) ||
	    kvc_place_put(k->cat, n->row.ino, tier, &n->place[tier]))
		kvc_warn("the catalog does not take the placement of inode %llx", (unsigned long long)n->row.ino);
	if (n->state == KVC_RESIDENT)
		kvc_become_locked(k, n, KVC_BOTH);
	n->failing = false;
	if (k->tier[tier].t->ops->caps & KVC_TIER_DURABLE)
		kvc_list_each(e, &n->sync_waiters) /* what they waited for is in the tier: now the commit */
			kvc_of(e, struct kvc_wait, link)->stage = 1;
	kvc_count(&k->stats, spills);
	kvc_count_by(&k->stats, spill_bytes, c->f->stored_len);
	return true;
}

static void queue_locked(struct kvc *k, struct kvc_node *n, unsigned tier, enum kvc_priority p, uint64_t due_ns);

/* The tier has no room. Returns whether the copy is tried again: somebody makes room there. */
static bool full_locked(struct kvc *k, unsigned tier)
{
	struct kvc_tier_state *ts = &k->tier[tier];

	ts->full = true;
	ts->full_until_ns = kvc_mono_ns() + FULL_NS;
	if (ts->has_trimmer)
		kvc_trim_tell_locked(k, tier);
	else
		kvc_count(&k->stats, spills_dropped); /* others fill it too: it is for them or for the server to make room */
	return ts->has_trimmer;
}

static void spill_run(struct kvc *k, struct kvc_job *j)
{
	struct kvc_node *n = j->node;
	struct kvc_tier *t = k->tier[j->tier].t;
	struct copy c = { .k = k, .n = n, .fd = -1 };
	struct kvc_where where = { 0 };
	struct kvc_segment seg;
	struct stat st;
	uint64_t gen, epoch;
	bool snap, again = false, reseal;
	int err = 0;

	kvc_lock(k);
	reseal = n->resealing & (1u << j->tier);
	snap = n->state == KVC_OPEN && n->snapshot && kvc_snapshot_takes(k, n, j->tier);
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
	bool check = !snap && n->verify && n->place[j->tier].gen == n->object.gen;
	kvc_unlock(k);

	if (check) {
		err = verify(k, n, c.fd, (uint64_t)st.st_size);
		kvc_lock(k);
		kvc_tier_result_locked(k, j->tier, 0);
		again = !err && kvc_has_segment(n) && n->state != KVC_OPEN && kvc_spill_needed(k, n, j->tier);
		goto out;
	}
	err = write_copy(k, &c, j->tier, gen, (uint64_t)st.st_size, (uint64_t)st.st_blocks, &where);
	/* The copy that it replaces may be the only one that an fsync has brought down. */
	if (!err && reseal && t->ops->sync && (err = t->ops->sync(t)))
		t->ops->remove(t, &where);

	kvc_lock_both(k);
	kvc_tier_result_locked(k, j->tier, err);
	if (!err) {
		k->tier[j->tier].full = false;
		kvc_trim_tell_locked(k, j->tier);
	}
	if (!err && (!snap && n->epoch != epoch ? true : !record_both(k, n, j->tier, &c, gen, snap, &where))) {
		kvc_count(&k->stats, spill_stale);
		struct kvc_place stale = kvc_place_of(gen, &where, c.f);

		if (c.shared)
			kvc_trash_shared_locked(k, j->tier, &stale);
		else
			kvc_trash_extent_locked(k, j->tier, &stale);
		again = !n->lost && (n->state == KVC_RESIDENT || n->state == KVC_BOTH);
		if (n->state == KVC_OPEN && n->snapshot && snap)
			again = true;
	} else if (err == -ENOSPC) {
		again = full_locked(k, j->tier);
	} else if (err == -ENAMETOOLONG) {
		err = 0; /* a path that no frame can carry is not shared */
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
	if (again && !n->lost && (!k->stopping || (err == -ENOSPC && !k->tier[j->tier].jammed)))
		queue_locked(k, n, j->tier, err == -ENOSPC ? KVC_P_URGENT : KVC_P_SPILL,
			     kvc_mono_ns() + (err == -ENOSPC && !k->tier[j->tier].jammed ? ROOM_AGAIN_NS : err ? FAILED_AGAIN_NS : AGAIN_NS));
	if (!again || (err && err != -ENOSPC))
		kvc_wake_all_locked(k, &n->sync_waiters, err == -ECANCELED ? 0 : err);
	pthread_cond_signal(&k->evict_cond);
	kvc_unlock(k);
	if (c.fd >= 0)
		close(c.fd);
	XXH3_freeState(c.sum);
	XXH3_freeState(c.stored_sum);
	kvc_encoder_free(c.enc);
	free(c.f);
	free(c.ranges);
	free(c.table);
}

static void queue_locked(struct kvc *k, struct kvc_node *n, unsigned tier, enum kvc_priority p, uint64_t due_ns)
{
	struct kvc_job *j = n->queued[tier];

	if (j && p == KVC_P_URGENT && j->due_ns) { /* sooner than it was going to be */
		struct kvc_tier_state *ts = &k->tier[tier];

		kvc_list_del(&j->link);
		ts->ncopies -= j->priority == KVC_P_SPILL;
		j->priority = KVC_P_URGENT;
		j->due_ns = 0;
		kvc_list_add_tail(&ts->jobs[KVC_P_URGENT], &j->link);
		kvc_tier_tell_locked(ts, KVC_P_URGENT);
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

	kvc_tier_each(k, t)
		if (n->snapshot ? kvc_snapshot_takes(k, n, t) : kvc_spill_needed(k, n, t))
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
	for (unsigned t = 0; t < KVC_TIERS && S_ISDIR(n->row.mode); t++) /* its frame has the old path */
		if (k->folders_put[t][n->row.ino % KVC_FOLDERS] == n->row.ino)
			k->folders_put[t][n->row.ino % KVC_FOLDERS] = 0;
	if (S_ISDIR(n->row.mode))
		kvc_job_add_locked(k, KVC_P_SPILL, rehead_folder_run, n, KVC_COMMON, kvc_mono_ns(), NULL);
	if (!S_ISREG(n->row.mode))
		return;
	kvc_tier_each(k, t) {
		if (!(k->tier[t].t->ops->caps & KVC_TIER_SHARED)) {
			if (n->place[t].gen)
				kvc_job_add_locked(k, KVC_P_SPILL, rehead_run, n, t, kvc_mono_ns(), NULL);
		} else if (kvc_has_segment(n) && n->state != KVC_OPEN && n->place[t].gen) {
			/* Known there by the old path: under the new one it is another frame. What is not in memory keeps the old. */
			n->place[t] = (struct kvc_place){ 0 };
			n->object.lower = kvc_placed_anywhere(n);
			if (n->state == KVC_BOTH && !kvc_placed(k, n))
				kvc_become_locked(k, n, KVC_RESIDENT);
			kvc_node_dirty_locked(k, n);
			kvc_spill_queue_locked(k, n, false);
		}
	}
}
