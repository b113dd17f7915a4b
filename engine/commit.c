/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The committer: every few milliseconds it writes what is dirty into the open transaction, commits it, and frees what the
 * transaction made dispensable. k->lock is not held meanwhile, the catalog's lock is.
 */
#include "core.h"

#include <string.h>

#define CHUNKS_EVERY_NS 1000000000ull

struct dirty {
	struct kvc_row row;
	struct kvc_object_row object;
};

struct sync_job {
	struct kvc_job job;
	struct kvc_list waits;
};

void kvc_commit_soon_locked(struct kvc *k, bool now)
{
	if (!k->commit_soon || (now && !k->commit_now))
		pthread_cond_signal(&k->commit_cond);
	k->commit_soon = true;
	k->commit_now |= now;
}

static void trash_add(struct kvc *k, const struct kvc_trash *t)
{
	struct kvc_trash *copy = malloc(sizeof *copy);

	if (!copy) {
		kvc_error("out of memory: space is not given back before the next start");
		return;
	}
	*copy = *t;
	kvc_list_add_tail(&k->trash, &copy->link);
	k->leaving += t->room;
	if (t->tier >= 0)
		k->tier[t->tier].leaving += t->where.len;
	kvc_commit_soon_locked(k, !kvc_list_empty(&k->room_waiters));
}

void kvc_trash_segment_locked(struct kvc *k, const struct kvc_segment *s, uint64_t room)
{
	trash_add(k, &(struct kvc_trash){ .kind = s->kind, .ino = s->ino, .gen = s->gen, .room = room, .tier = -1 });
}

/* A shared tier's frame stays for the others: it goes only by kvc_unshare_both. */
void kvc_trash_extent_locked(struct kvc *k, unsigned tier, const struct kvc_place *p)
{
	if (k->tier[tier].t && !(k->tier[tier].t->ops->caps & KVC_TIER_SHARED))
		trash_add(k, &(struct kvc_trash){ .tier = (int)tier, .where = p->where });
}

void kvc_trash_shared_locked(struct kvc *k, unsigned tier, const struct kvc_place *p)
{
	trash_add(k, &(struct kvc_trash){ .tier = (int)tier, .where = p->where, .sum = p->sum });
}

/* A name in a shared tier may have another's newer frame by now: that one stays. */
static bool still_ours(struct kvc_tier *t, const struct kvc_job *j)
{
	KVC_MEM uint8_t *page = aligned_alloc(KVC_PAGE, KVC_FRAME_HEADER);
	KVC_MEM struct kvc_frame *f = kvc_frame_new();
	struct iovec iov = { page, KVC_FRAME_HEADER };

	return page && f && !t->ops->get(t, &j->where, 0, &iov, 1) && !kvc_frame_decode(page, f) && !memcmp(f->stored_sum.b, j->sum.b, 16);
}

static void remove_run(struct kvc *k, struct kvc_job *j)
{
	struct kvc_tier *t = k->tier[j->tier].t;
	int err;

	if (t->ops->caps & KVC_TIER_SHARED) {
		err = still_ours(t, j) ? t->ops->remove(t, &j->where) : 0;
	} else {
		pthread_mutex_lock(&k->rehead_lock);
		err = t->ops->remove(t, &j->where);
		pthread_mutex_unlock(&k->rehead_lock);
	}
	kvc_lock(k);
	kvc_tier_result_locked(k, j->tier, err);
	k->tier[j->tier].full = false;
	k->tier[j->tier].leaving -= kvc_min(k->tier[j->tier].leaving, j->where.len);
	kvc_unlock(k);
	if (err)
		kvc_warn("tier %s: cannot remove a frame: %s", t->ops->name, strerror(-err));
}

static void empty_trash(struct kvc *k, struct kvc_list *trash)
{
	kvc_list_each_safe(e, trash) {
		struct kvc_trash *t = kvc_of(e, struct kvc_trash, link);
		struct kvc_segment s = { t->kind, t->ino, t->gen };
		struct kvc_job *j;

		if (t->kind)
			kvc_segment_remove(&k->pool, &s);
		kvc_lock(k);
		k->leaving -= kvc_min(k->leaving, t->room);
		kvc_room_put_locked(k, t->room);
		if (t->tier >= 0 && k->tier[t->tier].t &&
		    !kvc_job_add_locked(k, KVC_P_REMOVE, remove_run, NULL, (unsigned)t->tier, 0, &j))
			j->where = t->where, j->sum = t->sum;
		else if (t->tier >= 0)
			k->tier[t->tier].leaving -= kvc_min(k->tier[t->tier].leaving, t->where.len);
		kvc_unlock(k);
		free(t);
	}
}

/* Copies the dirty nodes out. Under k->lock. */
static struct dirty *take_nodes(struct kvc *k, size_t *n)
{
	size_t room = 0;
	struct dirty *d;

	kvc_list_each(e, &k->dirty_nodes)
		room++;
	*n = 0;
	d = calloc(room ? room : 1, sizeof *d);
	kvc_list_each_safe(e, &k->dirty_nodes) {
		struct kvc_node *node = kvc_of(e, struct kvc_node, dirty_link);

		if (!d)
			break; /* they stay dirty for the next turn */
		d[*n].row = node->row;
		d[(*n)++].object = node->object;
		kvc_list_del(&node->dirty_link);
		node->dirty = node->touched = false;
		kvc_node_settle_locked(k, node);
	}
	return d;
}

/* The same for chunks; rows of known ones, whose use only has changed, once a second. */
static struct kvc_chunk_row *take_chunks(struct kvc *k, size_t *n, bool all)
{
	uint64_t now = kvc_mono_ns();
	struct kvc_chunk_row *r;
	size_t room = 0;

	all |= now - k->chunks_written_ns >= CHUNKS_EVERY_NS;
	if (all)
		k->chunks_written_ns = now;
	kvc_list_each(e, &k->dirty_chunks)
		room++;
	*n = 0;
	r = calloc(room ? room : 1, sizeof *r);
	kvc_list_each_safe(e, &k->dirty_chunks) {
		struct kvc_chunk *c = kvc_of(e, struct kvc_chunk, dirty_link);

		if (!r)
			break;
		if (c->known && !all)
			continue;
		kvc_chunk_row(c, &r[(*n)++]);
		kvc_list_del(&c->dirty_link);
		c->dirty = false;
		c->known = true;
		kvc_chunk_settle_locked(k, c);
	}
	return r;
}

static int write_node(struct kvc *k, const struct dirty *d)
{
	int err = kvc_row_put(k->cat, &d->row);

	if (!err && S_ISREG(d->row.mode)) {
		err = kvc_object_put(k->cat, d->row.ino, &d->object);
		for (unsigned t = 0; t < KVC_TIERS && !err && !d->object.lower; t++)
			err = kvc_place_del(k->cat, d->row.ino, t);
	}
	return err;
}

static void sync_run(struct kvc *k, struct kvc_job *j)
{
	struct sync_job *s = kvc_of(j, struct sync_job, job);
	int err = 0;

	kvc_tier_each(k, t)
		if (!err && k->tier[t].t->ops->sync)
			err = k->tier[t].t->ops->sync(k->tier[t].t);
	if (!err)
		err = kvc_catalog_sync(k->cat);
	kvc_lock(k);
	kvc_wake_all_locked(k, &s->waits, err);
	kvc_unlock(k);
}

int kvc_commit_once(struct kvc *k)
{
	KVC_MEM struct dirty *d = NULL;
	KVC_MEM struct kvc_chunk_row *c = NULL;
	struct kvc_list trash, waits;
	size_t nd, nc;
	uint64_t txn;
	int err = 0;

	kvc_list_init(&trash);
	kvc_list_init(&waits);
	kvc_lock_both(k);
	k->commit_soon = k->commit_now = false;
	d = take_nodes(k, &nd);
	c = take_chunks(k, &nc, k->stopping);
	kvc_list_splice(&trash, &k->trash);
	kvc_list_splice(&waits, &k->sync_waiters);
	kvc_unlock(k);

	for (size_t i = 0; i < nd; i++)
		err = write_node(k, &d[i]) ?: err;
	for (size_t i = 0; i < nc; i++)
		err = kvc_chunk_put(k->cat, &c[i]) ?: err;
	txn = kvc_catalog_txn(k->cat);
	err = kvc_catalog_commit(k->cat) ?: err;
	kvc_catalog_unlock(k->cat);

	kvc_lock(k);
	if (err) {
		/* What was written is still in the open transaction: it is tried again, and until then nothing is freed. */
		kvc_count(&k->stats, commit_failures);
		kvc_list_splice(&trash, &k->trash);
		kvc_list_splice(&k->trash, &trash);
		kvc_wake_all_locked(k, &waits, err);
		k->commit_soon = true;
	} else {
		kvc_count(&k->stats, commits);
		k->committed = txn;
		pthread_cond_broadcast(&k->committed_cond);
		pthread_cond_signal(&k->evict_cond);
		if (!kvc_list_empty(&waits)) {
			struct sync_job *s = calloc(1, sizeof *s);

			if (s) {
				kvc_list_init(&s->waits);
				kvc_list_splice(&s->waits, &waits);
				s->job.run = sync_run;
				s->job.tier = KVC_COMMON;
				kvc_list_add_tail(&k->tier[KVC_COMMON].jobs[KVC_P_LOAD], &s->job.link);
				k->jobs_queued++;
				kvc_tier_tell_locked(&k->tier[KVC_COMMON], KVC_P_LOAD);
			} else {
				kvc_wake_all_locked(k, &waits, -ENOMEM);
			}
		}
	}
	kvc_unlock(k);
	empty_trash(k, &trash);
	return err;
}

void *kvc_committer(void *arg)
{
	struct kvc *k = arg;
	int turns = 0;

	kvc_lock(k);
	while (!k->draining) {
		struct timespec t;

		if (!k->commit_soon) {
			t = kvc_timespec(kvc_mono_ns() + CHUNKS_EVERY_NS);
			pthread_cond_timedwait(&k->commit_cond, &k->lock, &t);
			if (!k->commit_soon && kvc_list_empty(&k->dirty_chunks))
				continue;
		}
		t = kvc_timespec(kvc_mono_ns() + k->opt.commit_ms * 1000000);
		while (!k->commit_now && !k->draining &&
		       pthread_cond_timedwait(&k->commit_cond, &k->lock, &t) != ETIMEDOUT)
			;
		kvc_unlock(k);
		if (kvc_commit_once(k))
			usleep(100000);
		if (++turns % 128 == 0)
			kvc_catalog_checkpoint(k->cat);
		kvc_lock(k);
	}
	kvc_unlock(k);
	return NULL;
}
