/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The evictor: keeps the pool and the disk between their watermarks, by chunk, lowest rank first, and never inside a
 * request. A chunk leaves the pool when every object of it has a committed copy in a tier; one that has not is copied
 * first or, where no tier can take it, dropped whole. A disk that is full drops its lowest chunks whole, and so does a model that
 * outgrows its quota (quota.c). It also drops chunks whose ttl has run out.
 *
 * Open, leased and pinned objects, and those that a client still has mapped, stay, and their chunk with them.
 */
#include "core.h"

#include <string.h>

#define LOOK_NS 10000000ull
#define IDLE_NS 250000000ull
#define STUCK_LOOKS 12

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
	return v == DROP && kvc_chunk_young(c->use.last_ns) ? YOUNG : v;
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

uint64_t kvc_trim(uint64_t used, uint64_t size, const struct kvc_options *o, bool *trimming)
{
	uint64_t high = size / 100 * o->high_pct, low = size / 100 * o->low_pct;

	*trimming = used > high || (*trimming && used > low);
	return *trimming && used > low ? used - low : 0;
}

/* How many bytes the pool should lose now. */
static uint64_t wanted_locked(struct kvc *k)
{
	uint64_t used = kvc_max(k->used, kvc_pool_real_used(&k->pool)), want = kvc_trim(used, k->pool.bytes, &k->opt, &k->trimming);

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
		unsigned class = c->policy;

		if ((v == EVICT || v == DROP) && mapped(k, c))
			v = KEEP;
		if (v != KEEP)
			kvc_class_gave_locked(k, k->turn, class);
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

/* A walk over the catalog's chunks, the first victim first. */
struct victims {
	struct kvc_chunk_row head[KVC_CLASSES]; /* the next of each class */
	enum { UNKNOWN, THERE, NONE } is[KVC_CLASSES];
	double turn[KVC_CLASSES];
};

static bool next_victim(struct kvc *k, struct victims *v, struct kvc_chunk_row *r)
{
	unsigned mask = 0;
	int class;

	kvc_catalog_lock(k->cat);
	for (int i = 0; i < KVC_CLASSES; i++) {
		if (v->is[i] == UNKNOWN) {
			v->head[i].policy = (unsigned)i;
			v->is[i] = kvc_chunk_next_ranked(k->cat, &v->head[i]) ? NONE : THERE;
		}
		mask |= v->is[i] == THERE ? 1u << i : 0;
	}
	kvc_catalog_unlock(k->cat);
	class = kvc_class_next(v->turn, mask);
	if (class < 0)
		return false;
	*r = v->head[class];
	v->is[class] = UNKNOWN;
	return true;
}

/* A tier of bounded size is above its high mark, or refused a frame: drop its first victims down to the low mark. */
static void tier_pass(struct kvc *k, unsigned tier)
{
	struct kvc_tier *t = k->tier[tier].t;
	struct victims v = { 0 };
	struct kvc_tier_usage u, now;
	struct kvc_chunk_row r;
	uint64_t freed = 0, goal;

	if (!(t->ops->caps & KVC_TIER_BOUNDED))
		return;
	t->ops->usage(t, &u);
	kvc_lock(k);
	bool full = k->tier[tier].full;
	kvc_unlock(k);
	if (!full && u.used <= u.total / 100 * k->opt.high_pct)
		return;
	goal = u.used > u.total / 100 * k->opt.low_pct ? u.used - u.total / 100 * k->opt.low_pct : u.total / 16;
	for (int i = 0; i < KVC_CLASSES; i++)
		v.head[i].rank = INT64_MIN;
	while (freed < goal && next_victim(k, &v, &r)) {
		if (kvc_chunk_drop(k, r.id, (int)tier))
			continue;
		kvc_lock(k);
		kvc_class_gave_locked(k, v.turn, r.policy);
		kvc_unlock(k);
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
	kvc_lock(k);
	if (freed)
		k->tier[tier].full = false;
	kvc_unlock(k);
}

#define EXPIRED_AT_ONCE 64

struct expired {
	uint64_t id[EXPIRED_AT_ONCE];
	size_t n;
};

static int take_expired(void *arg, const struct kvc_chunk_row *r)
{
	struct expired *x = arg;

	x->id[x->n++] = r->id;
	return x->n == EXPIRED_AT_ONCE;
}

static void expire_pass(struct kvc *k)
{
	struct expired x = { .n = 0 };

	kvc_catalog_lock(k->cat);
	kvc_chunk_each_expired(k->cat, kvc_now_ns(), take_expired, &x);
	kvc_catalog_unlock(k->cat);
	for (size_t i = 0; i < x.n; i++)
		if (!kvc_chunk_drop(k, x.id[i], -1))
			kvc_count(&k->stats, expired_chunks);
	if (k->shared) {
		kvc_catalog_lock(k->cat);
		kvc_gone_purge(k->cat, kvc_now_ns());
		kvc_catalog_unlock(k->cat);
	}
}

void *kvc_evictor(void *arg)
{
	struct kvc *k = arg;
	uint64_t expire_ns = 0;

	kvc_lock(k);
	while (!k->stopping) {
		kvc_ghosts_expire_locked(k);
		bool pressed = wanted_locked(k) > 0 || kvc_quota_pressed_locked(k);
		struct timespec t = kvc_timespec(kvc_mono_ns() + (pressed ? LOOK_NS : IDLE_NS));

		pthread_cond_timedwait(&k->evict_cond, &k->lock, &t);
		if (k->stopping)
			break;
		pressed = wanted_locked(k) > 0;
		kvc_unlock(k);
		kvc_tier_each(k, i)
			tier_pass(k, i);
		kvc_quota_pass(k);
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
