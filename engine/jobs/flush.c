/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sweep "flush": what is dirty now is copied to the tiers that are to have it, then committed
 * and brought to stable storage. Copies that failed before are tried at once, each once: one that
 * fails again goes back to a wait as long as it had. It ends when each is made, or has failed once
 * more: a tier that is out keeps it no longer than that. What is open for writing is not published,
 * and not part of it; but the copy of one that an fsync asked for, and which waits, is tried too.
 */
#include "admission.h"
#include "ops.h"
#include "spill.h"
#include "sweep.h"
#include "tier_queue.h"

#include <string.h>

#define LOOK_US 10000

enum stands { MADE, UNDER_WAY, FAILED };

static bool published(const struct kvc_node *n)
{
	return (n->state == KVC_RESIDENT || n->state == KVC_BOTH) && !n->lost;
}

/* How the copy of this file to this tier stands. */
static enum stands stands_locked(struct kvc *k, const struct kvc_node *n, unsigned tier)
{
	const struct kvc_job *j = n->in[tier].queued;

	if (!published(n) || !kvc_spill_needed(k, n, tier) ||
	    kvc_admission_check_locked(k, n, tier))
		return MADE;
	if (n->hopeless & (1u << tier))
		return FAILED;
	if (j)
		return j->priority >= KVC_P_PARKED && j->priority < KVC_P_SPILL ? FAILED
										: UNDER_WAY;
	if (n->spilling & (1u << tier))
		return UNDER_WAY;
	return n->failing ? FAILED : MADE; /* given up, without an error: it is not to be there */
}

/* The worst of all tiers. */
static enum stands worst_locked(struct kvc *k, const struct kvc_node *n)
{
	enum stands worst = MADE;

	kvc_tier_each(k, t) {
		enum stands s = stands_locked(k, n, t);

		if (s == UNDER_WAY || worst == UNDER_WAY)
			worst = UNDER_WAY;
		else if (s == FAILED)
			worst = FAILED;
	}
	return worst;
}

/* What lacks a copy is asked for, and noted. */
static int ask_locked(struct kvc_sweep *s, struct kvc_node *n, struct kvc_stack *asked)
{
	bool lacks = false;

	if (n->state == KVC_OPEN && n->snapshot && !n->lost)
		kvc_spill_now_locked(s->k, n);
	if (!published(n))
		return 0;
	kvc_tier_each(s->k, t)
		lacks |= kvc_spill_needed(s->k, n, t) && !kvc_admission_check_locked(s->k, n, t);
	if (!lacks)
		return 0;
	if (kvc_stack_push(asked, n->row.ino))
		return -ENOMEM;
	s->seen++;
	s->all_bytes += n->object.size;
	kvc_spill_now_locked(s->k, n);
	return 0;
}

static int ask_all(struct kvc_sweep *s, struct kvc_stack *asked)
{
	struct kvc *k = s->k;
	size_t at = 0;
	bool more = true;
	int err = 0;

	while (more && !err && !s->stop) {
		kvc_lock(k);
		for (size_t i = 0; i < KVC_SWEEP_BATCH && at < k->nodes->table.buckets; i++, at++)
			for (struct kvc_slot *x = kvc_table_bucket(&k->nodes->table, at); x && !err;
			     x = x->next)
				err = ask_locked(s, kvc_of(x, struct kvc_node, slot), asked);
		more = at < k->nodes->table.buckets;
		kvc_unlock(k);
	}
	return err;
}

/* Looks at a part of those that were asked for; made ones go out of it. */
static void look_locked(struct kvc_sweep *s, struct kvc_stack *asked, size_t *at, bool *under_way)
{
	struct kvc *k = s->k;

	for (size_t i = 0; i < KVC_SWEEP_BATCH && *at < asked->n; i++) {
		struct kvc_node *n = kvc_node_find_locked(k, asked->v[*at]);
		enum stands worst = n ? worst_locked(k, n) : MADE;

		if (worst == MADE) {
			asked->v[*at] = asked->v[--asked->n];
			s->changed++;
			s->bytes += n ? n->object.size : 0;
			continue;
		}
		*under_way |= worst == UNDER_WAY;
		++*at;
	}
}

/* Counts those that are left, by tier. */
static void count_locked(struct kvc_sweep *s, const struct kvc_stack *asked, size_t *at)
{
	struct kvc *k = s->k;

	for (size_t i = 0; i < KVC_SWEEP_BATCH && *at < asked->n; i++, ++*at) {
		struct kvc_node *n = kvc_node_find_locked(k, asked->v[*at]);

		s->failed += n && worst_locked(k, n) != MADE;
		kvc_tier_each(k, t)
			s->tier_failed[t] += n && stands_locked(k, n, t) != MADE;
	}
}

static void await_copies(struct kvc_sweep *s, struct kvc_stack *asked)
{
	struct kvc *k = s->k;
	bool under_way = true;

	while (under_way && !s->stop) {
		under_way = false;
		for (size_t at = 0; at < asked->n && !s->stop;) {
			kvc_lock(k);
			look_locked(s, asked, &at, &under_way);
			kvc_unlock(k);
		}
		if (under_way)
			usleep(LOOK_US);
	}
	for (size_t at = 0; at < asked->n;) {
		kvc_lock(k);
		count_locked(s, asked, &at);
		kvc_unlock(k);
	}
}

/* All that is committed is on stable storage. A wait that ended at the deadline goes on. */
static int sync_all(struct kvc_sweep *s)
{
	int err = -ETIMEDOUT;

	while (err == -ETIMEDOUT && !s->stop) {
		struct kvc_sweeper x;

		kvc_sweeper_init(&x);
		err = kvc_io_fsync(s->k, KVC_ROOT, &x.w);
		if (err == KVC_WAIT)
			err = kvc_sweeper_wait(&x);
	}
	return err;
}

int kvc_flush_run(struct kvc_sweep *s)
{
	struct kvc_stack asked = { 0 };
	int err = ask_all(s, &asked);

	if (!err)
		await_copies(s, &asked);
	free(asked.v);
	return err ?: kvc_sweeper_commit(s) ?: s->stop ? 0 : sync_all(s);
}
