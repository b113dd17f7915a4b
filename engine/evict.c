/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The evictor: keeps the pool and the disk between their watermarks, by chunk, lowest rank first, and never inside a
 * request. A chunk leaves the pool when every object of it has a committed copy in a tier; one that has not is copied
 * first or, where no tier can take it, dropped whole. A disk that is full drops its lowest chunks whole. It also drops
 * chunks whose ttl has run out.
 *
 * Open, leased and pinned objects, and those that a client still has mapped, stay, and their chunk with them.
 */
#include "core.h"

#include <string.h>

#define LOOK_NS 10000000ull
#define IDLE_NS 250000000ull
#define STUCK_LOOKS 12
/* A chunk used so lately is not dropped: somebody may be between two of its files. */
#define YOUNG_NS 300000000ull

enum verdict { EVICT, COPY, DROP, YOUNG, KEEP };

static bool pool_tier_possible(struct kvc *k, const struct kvc_node *n)
{
	kvc_tier_each(k, t)
		if (!k->tier[t].open_until_ns && !k->tier[t].full && !(n->failing && k->tier[t].failures))
			return true;
	return false;
}

static enum verdict judge_locked(struct kvc *k, struct kvc_chunk *c)
{
	enum verdict v = EVICT;

	if (kvc_chunk_pinned(c))
		return KEEP;
	kvc_list_each(e, &c->nodes) {
		struct kvc_node *n = kvc_of(e, struct kvc_node, chunk_link);

		if (n->nopen || n->leases || n->state == KVC_OPEN || n->snapshot)
			return KEEP;
		if (n->state == KVC_BOTH && !n->verify) {
			if (n->place_txn > k->committed && v == EVICT) {
				kvc_commit_soon_locked(k, true);
				v = COPY;
			}
			continue;
		}
		if (!pool_tier_possible(k, n))
			v = DROP;
		else if (v != DROP)
			v = COPY;
	}
	return v == DROP && c->use.last_ns + YOUNG_NS > kvc_now_ns() ? YOUNG : v;
}

static bool mapped(struct kvc *k, struct kvc_chunk *c)
{
	kvc_list_each(e, &c->nodes) {
		struct kvc_node *n = kvc_of(e, struct kvc_node, chunk_link);
		struct kvc_segment s = kvc_segment_of(n);

		kvc_close_segment_locked(k, n);
		if (kvc_segment_in_use(&k->pool, &s, false))
			return true;
	}
	return false;
}

static uint64_t chunk_room(const struct kvc_chunk *c)
{
	uint64_t room = 0;

	kvc_list_each(e, &c->nodes)
		room += kvc_of(e, struct kvc_node, chunk_link)->room;
	return room;
}

static void evict_chunk_locked(struct kvc *k, struct kvc_chunk *c)
{
	c->inflight++; /* stays while its nodes leave */
	kvc_list_each_safe(e, &c->nodes) {
		struct kvc_node *n = kvc_of(e, struct kvc_node, chunk_link);
		struct kvc_segment s = kvc_segment_of(n);

		kvc_segment_remove(&k->pool, &s);
		kvc_become_locked(k, n, KVC_LOWER);
		kvc_room_set_locked(k, n, 0);
		kvc_count(&k->stats, evictions);
		kvc_node_settle_locked(k, n);
	}
	kvc_count(&k->stats, evicted_chunks);
	c->inflight--;
	kvc_chunk_settle_locked(k, c);
}

/* How many bytes the pool should lose now. */
static uint64_t wanted_locked(struct kvc *k)
{
	uint64_t high = k->pool.bytes / 100 * k->opt.high_pct, low = k->pool.bytes / 100 * k->opt.low_pct, want = 0;

	uint64_t used = kvc_max(k->used, kvc_pool_real_used(&k->pool));

	if (used > high)
		want = used - low;
	if (!kvc_list_empty(&k->room_waiters)) {
		uint64_t need = kvc_of(k->room_waiters.next, struct kvc_wait, link)->want;

		if (k->used + need > k->pool.bytes)
			want = kvc_max(want, k->used + need - k->pool.bytes);
	}
	return want;
}

/* One pass over the pool. Returns whether anything was or will soon be freed. */
static bool pool_pass(struct kvc *k)
{
	struct kvc_chunk **aside = NULL, *c;
	size_t naside = 0, aside_room = 0;
	uint64_t want, coming = 0;
	bool progress = false;

	kvc_lock(k);
	while ((want = wanted_locked(k)) > coming && (c = kvc_chunk_pop_locked(k))) {
		enum verdict v = judge_locked(k, c);
		uint64_t id = c->id;

		if ((v == EVICT || v == DROP) && mapped(k, c))
			v = KEEP;
		if (v == EVICT) {
			evict_chunk_locked(k, c);
			progress = true;
			continue;
		}
		if (v == DROP) {
			uint64_t room = chunk_room(c);

			kvc_chunk_push_locked(k, c);
			kvc_unlock(k);
			int err = kvc_chunk_drop(k, id, -1);

			kvc_lock(k);
			if (!err) {
				coming += room; /* once committed */
				progress = true;
				continue;
			}
			c = kvc_chunk_find_locked(k, id);
			if (!c || !c->heap_at)
				continue;
			struct kvc_chunk *top = kvc_chunk_pop_locked(k);

			if (top != c) { /* another came first meanwhile */
				kvc_chunk_push_locked(k, top);
				continue;
			}
		}
		if (v == YOUNG) {
			coming += chunk_room(c);
			progress = true; /* it grows older */
		}
		if (v == COPY) {
			coming += chunk_room(c);
			progress = true;
			kvc_list_each(e, &c->nodes) {
				struct kvc_node *n = kvc_of(e, struct kvc_node, chunk_link);

				if (n->state == KVC_RESIDENT || n->verify)
					kvc_spill_queue_locked(k, n, true);
			}
		}
		if (kvc_grow(&aside, naside, &aside_room, sizeof *aside)) {
			kvc_chunk_push_locked(k, c);
			break;
		}
		aside[naside++] = c;
		c->inflight++;
	}
	for (size_t i = 0; i < naside; i++) {
		aside[i]->inflight--;
		kvc_chunk_push_locked(k, aside[i]);
		kvc_chunk_settle_locked(k, aside[i]);
	}
	if (!kvc_list_empty(&k->trash)) {
		progress = true;
		kvc_commit_soon_locked(k, want > 0);
	}
	kvc_unlock(k);
	free(aside);
	return progress;
}

/* Candidates from the catalog, lowest rank first. */
struct victims {
	struct kvc_chunk_row r[64];
	size_t n;
};

static int take_victim(void *arg, const struct kvc_chunk_row *r)
{
	struct victims *v = arg;

	v->r[v->n++] = *r;
	return v->n == 64;
}

/* A tier of bounded size is above its high mark, or refused a frame: drop its lowest chunks down to the low mark. */
static void tier_pass(struct kvc *k, unsigned tier)
{
	struct kvc_tier *t = k->tier[tier].t;
	struct victims *v;
	struct kvc_tier_usage u;
	int64_t rank = INT64_MIN;
	uint64_t id = 0, freed = 0, goal;

	if (!(t->ops->caps & KVC_TIER_BOUNDED))
		return;
	t->ops->usage(t, &u);
	kvc_lock(k);
	bool full = k->tier[tier].full;
	kvc_unlock(k);
	if (!full && u.used <= u.total / 100 * k->opt.high_pct)
		return;
	goal = u.used > u.total / 100 * k->opt.low_pct ? u.used - u.total / 100 * k->opt.low_pct : u.total / 16;
	v = malloc(sizeof *v);
	do {
		if (!v)
			return;
		v->n = 0;
		kvc_catalog_lock(k->cat);
		kvc_chunk_each_ranked(k->cat, rank, id, take_victim, v);
		kvc_catalog_unlock(k->cat);
		for (size_t i = 0; i < v->n && freed < goal; i++) {
			struct kvc_tier_usage now;

			rank = v->r[i].rank;
			id = v->r[i].id;
			int err = v->r[i].last_ns + YOUNG_NS > kvc_now_ns() ? -EBUSY : kvc_chunk_drop(k, id, (int)tier);

			if (err)
				continue;
			/* Freed once committed and removed: wait for that, so as not to drop more than needed. */
			for (int look = 0; look < 50; look++) {
				kvc_lock(k);
				kvc_commit_soon_locked(k, true);
				kvc_unlock(k);
				usleep(2000);
				t->ops->usage(t, &now);
				if (now.used < u.used)
					break;
			}
			freed += u.used > now.used ? u.used - now.used : 0;
			u.used = now.used;
		}
	} while (v->n == 64 && freed < goal);
	free(v);
	kvc_lock(k);
	if (freed)
		k->tier[tier].full = false;
	kvc_unlock(k);
}

static void expire_pass(struct kvc *k)
{
	struct victims *v = malloc(sizeof *v);

	if (!v)
		return;
	v->n = 0;
	kvc_catalog_lock(k->cat);
	kvc_chunk_each_expired(k->cat, kvc_now_ns(), take_victim, v);
	kvc_catalog_unlock(k->cat);
	for (size_t i = 0; i < v->n; i++)
		if (!kvc_chunk_drop(k, v->r[i].id, -1))
			kvc_count(&k->stats, expired_chunks);
	free(v);
	if (k->shared) {
		kvc_catalog_lock(k->cat);
		kvc_gone_purge(k->cat, kvc_now_ns());
		kvc_catalog_unlock(k->cat);
	}
}

/* The members of a chunk: the files of its folder that belong to it, or the one file. */
struct members {
	struct kvc_node **n;
	size_t count;
};

/* Takes every name off a node. */
static int unname_both(struct kvc *k, struct kvc_node *n)
{
	struct kvc_entries e = { 0 };
	int err = kvc_entries_of_both(k, n->row.ino, &e);

	for (size_t i = 0; i < e.n && !err; i++) {
		struct kvc_node *folder;

		err = kvc_name_del(k->cat, e.v[i].parent, e.v[i].name);
		if (!err)
			kvc_notify_gone(k, e.v[i].parent, n->row.ino, e.v[i].name);
		if (!err && !kvc_node_get_both(k, e.v[i].parent, &folder)) {
			kvc_touch_folder_locked(k, folder, S_ISDIR(n->row.mode) ? -1 : 0);
			kvc_node_settle_locked(k, folder);
		}
	}
	free(e.v);
	return err;
}

int kvc_drop_file_both(struct kvc *k, struct kvc_node *n)
{
	int err = unname_both(k, n);

	if (err)
		return err;
	kvc_row_del(k->cat, n->row.ino);
	kvc_destroy_locked(k, n);
	n->row.nlink = 0;
	kvc_count(&k->stats, drops);
	kvc_node_settle_locked(k, n);
	return 0;
}

/* A copy of it in a tier that is here now, other than this one. */
static bool elsewhere(const struct kvc *k, const struct kvc_node *n, int tier)
{
	kvc_tier_each(k, t)
		if ((int)t != tier && n->place[t].gen && n->place[t].gen == n->object.gen)
			return true;
	return false;
}

/*
 * Looks at the members: -EBUSY where one is in use; *needed says that some have no copy but in this tier, *placed that some
 * have one there.
 */
static int members_both(struct kvc *k, uint64_t id, struct kvc_node *self, int tier, struct members *m, bool *needed, bool *placed)
{
	struct kvc_entries e = { 0 };
	int err = 0;

	*needed = *placed = false;
	if (S_ISDIR(self->row.mode))
		err = kvc_entries_in_both(k, id, &e);
	m->n = calloc(e.n + 1, sizeof *m->n);
	if (!m->n)
		err = -ENOMEM;
	for (size_t i = 0; i < (S_ISDIR(self->row.mode) ? e.n : 1) && !err; i++) {
		struct kvc_node *n = self;

		if (S_ISDIR(self->row.mode)) {
			if (!S_ISREG(e.v[i].kind))
				continue;
			if ((err = kvc_node_get_both(k, e.v[i].ino, &n)))
				break;
		}
		if (n->row.chunk != id) {
			kvc_node_settle_locked(k, n);
			continue;
		}
		n->holds++;
		m->n[m->count++] = n;
		if (n->nopen || n->leases || n->state == KVC_OPEN || n->state == KVC_LOADING || n->snapshot)
			err = -EBUSY;
		*needed |= n->state == KVC_LOWER && !elsewhere(k, n, tier);
		*placed |= tier < 0 || n->place[tier].gen;
	}
	free(e.v);
	return err;
}

int kvc_chunk_drop(struct kvc *k, uint64_t id, int tier)
{
	struct members m = { 0 };
	struct kvc_chunk_row row;
	struct kvc_node *self;
	bool needed = false, placed = false;
	int err;

	kvc_lock_both(k);
	struct kvc_chunk *c = kvc_chunk_find_locked(k, id);

	if (c)
		kvc_chunk_row(c, &row);
	else if ((err = kvc_chunk_get(k->cat, id, &row)))
		goto out;
	err = row.pin_until_ns && (row.pin_until_ns == INT64_MAX || row.pin_until_ns > kvc_now_ns()) ? -EBUSY : 0;
	if (!err)
		err = kvc_node_get_both(k, id, &self);
	if (err == -ENOENT)
		kvc_chunk_del(k->cat, id);
	if (err)
		goto out;
	self->holds++;
	err = self->creating ? -EBUSY : members_both(k, id, self, tier, &m, &needed, &placed);
	if (!err && tier >= 0 && !placed)
		err = -ENOENT;
	for (size_t i = 0; i < m.count; i++) {
		struct kvc_node *n = m.n[i];

		if (!err && tier >= 0 && !needed) {
			/* All of it is in the pool or in another tier: only this tier's copies go. */
			if (n->place[tier].gen) {
				kvc_place_del(k->cat, n->row.ino, (unsigned)tier);
				kvc_trash_extent_locked(k, (unsigned)tier, &n->place[tier]);
				n->place[tier] = (struct kvc_place){ 0 };
			}
			n->object.lower = kvc_placed_anywhere(n);
			if (n->state == KVC_BOTH && !kvc_placed(k, n))
				kvc_become_locked(k, n, KVC_RESIDENT);
			n->verify = n->verify && n->object.lower;
			kvc_node_dirty_locked(k, n);
		} else if (!err) {
			err = kvc_drop_file_both(k, n);
		}
		n->holds--;
		kvc_node_settle_locked(k, n);
	}
	if (!err && !(tier >= 0 && !needed)) {
		kvc_count(&k->stats, dropped_chunks);
		kvc_chunk_del(k->cat, id);
		c = kvc_chunk_find_locked(k, id);
		if (c && c->dirty) {
			kvc_list_del(&c->dirty_link);
			c->dirty = false;
			kvc_chunk_settle_locked(k, c);
		}
		if (S_ISDIR(self->row.mode) && kvc_folder_empty_both(k, id) == 1 && !unname_both(k, self)) {
			kvc_row_del(k->cat, id);
			self->row.nlink = 0;
			kvc_destroy_locked(k, self);
		}
	}
	self->holds--;
	kvc_node_settle_locked(k, self);
	kvc_commit_soon_locked(k, false);
out:
	kvc_unlock_both(k);
	free(m.n);
	return err;
}

void *kvc_evictor(void *arg)
{
	struct kvc *k = arg;
	uint64_t expire_ns = 0;

	kvc_lock(k);
	while (!k->stopping) {
		bool pressed = wanted_locked(k) > 0;
		struct timespec t = kvc_timespec(kvc_mono_ns() + (pressed ? LOOK_NS : IDLE_NS));

		pthread_cond_timedwait(&k->evict_cond, &k->lock, &t);
		if (k->stopping)
			break;
		pressed = wanted_locked(k) > 0;
		kvc_unlock(k);
		kvc_tier_each(k, i)
			tier_pass(k, i);
		bool progress = pressed && pool_pass(k);

		if (kvc_mono_ns() > expire_ns) {
			expire_pass(k);
			expire_ns = kvc_mono_ns() + 1000000000;
		}
		kvc_lock(k);
		if (progress || kvc_list_empty(&k->room_waiters) || k->jobs_running) {
			k->stuck = 0;
		} else if (++k->stuck >= STUCK_LOOKS) {
			/* All that is left is open, leased or pinned. */
			struct kvc_wait *w = kvc_of(k->room_waiters.next, struct kvc_wait, link);

			kvc_count(&k->stats, room_refusals);
			w->want = 0;
			kvc_wake_locked(k, w, -ENOSPC);
			k->stuck = 0;
		}
	}
	kvc_unlock(k);
	return NULL;
}
