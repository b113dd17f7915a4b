/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quota keeper: a thread that keeps models and tenants within their quotas and drops chunks
 * whose ttl has expired. If the bytes that a store asks for do not fit a quota, the quota keeper
 * drops whole chunks of the same model, in the order of their policy (trimmer.c), until the model
 * is at low= of the quota. If nothing can be dropped, it refuses the first waiting store with
 * EDQUOT. Models take turns, those with waiters first, and so do expired chunks. There is no pause
 * between turns while they free space, and however much one model has to lose, the stores of the
 * other models wait for at most one of its turns. The thread also stamps the ancestors of accessed
 * chunks (access/access.h).
 */
#include "chunk.h"
#include "clock.h"
#include "committer.h"
#include "dir_invalidate.h"
#include "evict.h"
#include "pin_set.h"
#include "tenant.h"
#include "access.h"
#include "wear.h"

#include <string.h>

#define STUCK_TURNS 12
#define SAVE_NS 60000000000ull
#define IDLE_NS 250000000ull
#define WHOLE_NS 10000000000ull /* between two walks over all expired chunks */
#define PRESSED_NS 10000000ull
#define TURN 256            /* expired chunks between two rounds of quotas */
#define TRIMMERS 64u        /* models whose trimmers are kept between turns */
#define MODELS_PER_HOLD 64u /* models checked per hold of the lock */
#define WAITING_EACH 8      /* turns of models with waiters in a round */

/* The trimmers of models above their quotas, the oldest first. */
struct trimmers {
	struct kvc_trimmer *v[TRIMMERS];
	size_t n;
};

static bool pressed_locked(const struct kvc *k)
{
	return !kvc_list_empty(&k->quotas.waiting) || !kvc_list_empty(&k->quotas.over);
}

/* Returns how many bytes the model should lose now. */
static uint64_t quota_excess_locked(struct kvc *k, uint64_t model)
{
	struct kvc_quota *q = kvc_quota_of_locked(k, model);
	struct kvc_tenant *t = kvc_tenant_of_locked(k, model & ~KVC_TRIM_TENANT);

	if (k->stopping)
		return 0;
	if (model & KVC_TRIM_TENANT)
		return t ? kvc_tenant_wanted(k, t) : 0;
	return q ? kvc_quota_wanted(k, q) : 0;
}

/* Frees the trimmers of models within their quotas; all: every trimmer. */
static void trimmers_end(struct kvc *k, struct trimmers *s, bool all)
{
	size_t left = 0;

	for (size_t i = 0; i < s->n; i++) {
		uint64_t want;

		kvc_lock(k);
		want = all ? 0 : quota_excess_locked(k, kvc_trimmer_model(s->v[i]));
		kvc_unlock(k);
		if (want)
			s->v[left++] = s->v[i];
		else
			kvc_trimmer_free(s->v[i]);
	}
	s->n = left;
}

/*
 * Returns the model's trimmer, or NULL if memory is short. If there are TRIMMERS already, the
 * oldest is freed, and its walk begins again later.
 */
static struct kvc_trimmer *trimmer_of(struct kvc *k, struct trimmers *s, uint64_t model)
{
	struct kvc_trimmer *t;

	for (size_t i = 0; i < s->n; i++)
		if (kvc_trimmer_model(s->v[i]) == model)
			return s->v[i];
	if (!(t = kvc_trimmer_new(k, 0, model)))
		return NULL;
	if (s->n == TRIMMERS) {
		kvc_trimmer_free(s->v[0]);
		memmove(s->v, s->v + 1, --s->n * sizeof *s->v);
	}
	return s->v[s->n++] = t;
}

/*
 * A turn of this model found no victim. The first such turn requests a commit: after it,
 * all chunks that were stored before that turn have rows, so later walks see every victim. The
 * first waiter is refused after STUCK_TURNS turns without a victim since that commit.
 */
static void no_victim_locked(struct kvc *k, struct kvc_quota *q)
{
	if (!q->stuck_txn) {
		q->stuck_txn = kvc_catalog_txn(k->cat) + 1;
		q->stuck = 0;
	}
	if (k->committer->committed < q->stuck_txn) {
		kvc_committer_wake_locked(k, true);
	} else if (++q->stuck >= STUCK_TURNS) {
		/* everything left of the model is open, leased or pinned */
		kvc_wait_refuse_first_locked(k, &q->waiters);
		q->stuck = 0;
		q->stuck_txn = 0;
	}
}

/*
 * Returns the next model that is due and sets *goal, or NULL. The model moves to the end of its
 * list.
 */
static struct kvc_quota *next_quota_locked(struct kvc *k, struct kvc_list *list, uint64_t *goal)
{
	uint64_t now = kvc_mono_ns();

	for (unsigned i = 0; i < MODELS_PER_HOLD && !kvc_list_empty(list); i++) {
		struct kvc_quota *q = kvc_of(list->next, struct kvc_quota, press);

		kvc_list_del(&q->press);
		if (!(*goal = kvc_quota_wanted(k, q)))
			continue; /* it is added again when its bytes increase */
		kvc_list_add_tail(kvc_list_empty(&q->waiters) ? &k->quotas.over
							      : &k->quotas.waiting,
				  &q->press);
		if (now - q->examined_ns >= PRESSED_NS)
			return q;
	}
	return NULL;
}

/* Makes one turn of the next model in this list. Returns true if the model lost bytes. */
static bool quota_turn(struct kvc *k, struct trimmers *s, struct kvc_list *list)
{
	bool any = false, hopeful = false;
	struct kvc_trimmer *t;
	struct kvc_quota *q;
	uint64_t model, goal;

	kvc_lock(k);
	q = next_quota_locked(k, list, &goal);
	model = q ? q->model : 0;
	kvc_unlock(k);
	if (!q)
		return false;
	if ((t = trimmer_of(k, s, model)))
		any = kvc_trimmer_turn(t, goal, &hopeful);
	kvc_lock(k);
	if ((q = kvc_quota_of_locked(k, model))) {
		q->examined_ns = any ? 0 : kvc_mono_ns();
		if (hopeful || kvc_list_empty(&q->waiters))
			q->stuck = 0, q->stuck_txn = 0;
		else
			no_victim_locked(k, q);
	}
	kvc_unlock(k);
	return any;
}

/* Returns the next tenant above its quota, after the one whose turn was last, or NULL. */
static struct kvc_tenant *next_tenant_locked(struct kvc *k, uint64_t *goal)
{
	struct kvc_tenant *first = NULL, *next = NULL;
	uint64_t now = kvc_mono_ns();

	kvc_table_each(&k->tenants->table, s) {
		struct kvc_tenant *t = kvc_of(s, struct kvc_tenant, slot);

		if (now - t->looked_ns < PRESSED_NS || !kvc_tenant_wanted(k, t))
			continue;
		if (!first || s->key < first->slot.key)
			first = t;
		if (s->key > k->tenants->at && (!next || s->key < next->slot.key))
			next = t;
	}
	next = next ?: first;
	*goal = next ? kvc_tenant_wanted(k, next) : 0;
	k->tenants->at = next ? next->slot.key : 0;
	return next;
}

/* Makes one turn of a tenant above its quota. Returns true if it lost bytes. */
static bool tenant_turn(struct kvc *k, struct trimmers *s)
{
	bool any = false, hopeful = false;
	struct kvc_trimmer *trimmer;
	struct kvc_tenant *t;
	uint64_t number, goal;

	kvc_lock(k);
	t = next_tenant_locked(k, &goal);
	number = t ? t->slot.key : 0;
	kvc_unlock(k);
	if (!number)
		return false;
	if ((trimmer = trimmer_of(k, s, number | KVC_TRIM_TENANT)))
		any = kvc_trimmer_turn(trimmer, goal, &hopeful);
	kvc_lock(k);
	if ((t = kvc_tenant_of_locked(k, number)))
		t->looked_ns = any ? 0 : kvc_mono_ns();
	kvc_unlock(k);
	return any;
}

/*
 * Makes one turn of several models with waiters, of a model without waiters and of a tenant, so
 * that a model with much to lose delays the stores of other models by one turn only. Returns true
 * if there is more to do at once.
 */
static bool quota_round(struct kvc *k, struct trimmers *s)
{
	bool any = false;

	for (unsigned i = 0; i < WAITING_EACH; i++)
		any |= quota_turn(k, s, &k->quotas.waiting);
	any |= quota_turn(k, s, &k->quotas.over);
	any |= tenant_turn(k, s);
	trimmers_end(k, s, false);
	return any;
}

/* The position of the walk over expired chunks. */
struct expiry {
	struct kvc_chunk_row at;   /* by (expires_ns, id) */
	struct kvc_chunk_row from; /* the start of the next walk, if `again` */
	bool again, under_way;
	/* time of the next whole walk, which also finds chunks that were in use before */
	uint64_t whole_ns;
};

/*
 * Drops chunks whose ttl has expired since the last walk. Probed chunks are visited again, and at
 * intervals all chunks that were in use. Makes one turn and returns true if the walk is not
 * finished.
 */
static bool expire_some(struct kvc *k, struct expiry *x)
{
	unsigned n = 0;
	int err = 0;

	if (!x->under_way && kvc_mono_ns() > x->whole_ns) {
		x->at = (struct kvc_chunk_row){ 0 };
		x->whole_ns = kvc_mono_ns() + WHOLE_NS;
	}
	for (; n < TURN && !kvc_stopping(k); n++) {
		struct kvc_chunk_row last = x->at;

		kvc_catalog_lock(k->cat);
		err = kvc_chunk_next_expired(k->cat, kvc_clock_ns(k), &x->at);
		kvc_catalog_unlock(k->cat);
		if (err)
			break;
		err = kvc_chunk_drop(k, x->at.id, KVC_DROP_WHOLE, KVC_FOR_ttl, NULL, NULL);
		if (!err) {
			kvc_count(&k->stats, expired_chunks);
			kvc_replacers_evicted(k, KVC_FOR_ttl, KVC_FROM_ALL, x->at.policy);
		}
		if (err == -EAGAIN && !x->again) {
			x->from = last;
			x->again = true;
		}
	}
	x->under_way = n == TURN;
	if (!x->under_way && x->again) {
		x->at = x->from;
		x->again = false;
	}
	return x->under_way;
}

static void purge_gone(struct kvc *k)
{
	if (!k->shared)
		return;
	kvc_catalog_lock(k->cat);
	kvc_gone_purge(k->cat, kvc_clock_ns(k));
	kvc_catalog_unlock(k->cat);
}

/* Saves the clock if something was committed since the last time. */
static void save_clock(struct kvc *k, uint64_t *saved_ns)
{
	uint64_t now = kvc_mono_ns();

	if (now < *saved_ns + SAVE_NS)
		return;
	kvc_lock_both(k);
	if (k->committer->committed != k->evict->saved_txn && !kvc_clock_save_both(k)) {
		kvc_wear_save_both(k);
		k->evict->saved_txn = kvc_catalog_txn(k->cat);
		*saved_ns = now;
	}
	kvc_unlock_both(k);
}

static void *keeper(void *arg)
{
	struct kvc *k = arg;
	struct expiry expiry = { 0 };
	struct trimmers trimmers = { 0 };
	uint64_t expire_ns = 0, saved_ns = kvc_mono_ns();
	bool more = false, trims = false;

	kvc_lock(k);
	while (!k->stopping) {
		uint64_t pause = more || trims ? 0 : pressed_locked(k) ? PRESSED_NS : IDLE_NS;
		struct timespec until = kvc_timespec(kvc_mono_ns() + pause);

		kvc_lock_wait(&k->lock, &k->quotas.pressed, &until);
		if (k->stopping)
			break;
		kvc_quotas_check_locked(k);
		kvc_unlock(k);
		kvc_access_ancestors_stamp(k);
		trims = quota_round(k, &trimmers);
		bool due = kvc_mono_ns() > expire_ns;

		if (due || more)
			more = expire_some(k, &expiry);
		if (due) {
			purge_gone(k);
			save_clock(k, &saved_ns);
			kvc_chunk_drop_resume(k);
			kvc_pool_shrink(&k->pool);
			kvc_lock_both(k);
			while (kvc_pins_end_both(k) && !k->stopping)
				kvc_pause_both(k);
			kvc_unlock_both(k);
			expire_ns = kvc_mono_ns() + 1000000000;
			kvc_lock(k);
			kvc_dir_probes_free_locked(k, 60000000000ull);
			kvc_unlock(k);
		}
		kvc_lock(k);
	}
	kvc_unlock(k);
	trimmers_end(k, &trimmers, true);
	return NULL;
}

int kvc_quota_keeper_start(struct kvc *k)
{
	int err = -pthread_create(&k->evict->keeper, NULL, keeper, k);

	k->evict->has_keeper = !err;
	return err;
}

void kvc_quota_keeper_stop(struct kvc *k)
{
	kvc_lock(k);
	pthread_cond_signal(&k->quotas.pressed);
	kvc_unlock(k);
	if (k->evict->has_keeper)
		pthread_join(k->evict->keeper, NULL);
	k->evict->has_keeper = false;
}
