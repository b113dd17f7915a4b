/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queues of tier work and their threads, and each tier's circuit breaker. Priorities: loads
 * that someone waits for, prefetch, removes, urgent copies, copies. Each tier has its own queues
 * and threads, so that a slow one keeps nobody else waiting, and one thread of each never takes
 * copies, so that a load does not wait for one.
 *
 * Breaker: closed; after FAILURES failures in a row open for a time that doubles with each failed
 * probe (with jitter); then half open: one call is let through, whose result closes or opens it
 * again.
 */
#include "tierq.h"

#include "log.h"
#include "node.h"
#include "trash.h"

#include <string.h>

#define COPIES_MAX 4096u /* that wait for a shared tier; then the oldest are dropped */
#define FAILURES 5
#define SETTLE_LEAST_MS 5u
#define REFUSED_NS 100000000ull /* several tries of the frame (copies/spill.c) */
#define BACKOFF_MIN_NS 500000000ull
#define BACKOFF_MAX_NS 30000000000ull

static void drop_oldest_locked(struct kvc *k, struct kvc_tier_state *ts)
{
	struct kvc_job *j = kvc_of(ts->jobs[KVC_P_SPILL].next, struct kvc_job, link);
	struct kvc_node *n = j->node;

	kvc_list_del(&j->link);
	k->work->queued--;
	ts->ncopies--;
	kvc_count(&k->stats, spills_dropped);
	if (n) {
		n->spilling &= ~(1u << j->tier);
		if (n->queued[j->tier] == j)
			n->queued[j->tier] = NULL;
		n->holds--;
		kvc_node_settle_locked(k, n);
	}
	free(j);
}

/*
 * Were there one condition for all, a copy's signal could be lost on the thread that takes no
 * copies.
 */
void kvc_tier_tell_locked(struct kvc_tier_state *ts, enum kvc_priority p)
{
	if (p < KVC_P_URGENT && ts->load_idle) {
		ts->load_idle = false; /* the next job is for another thread */
		pthread_cond_signal(&ts->load_cond);
	} else {
		pthread_cond_signal(&ts->cond);
	}
}

int kvc_job_add_locked(struct kvc *k, enum kvc_priority p,
		       void (*run)(struct kvc *, struct kvc_job *), struct kvc_node *n,
		       unsigned tier, uint64_t due_ns, struct kvc_job **out)
{
	struct kvc_tier_state *ts = &k->tier[tier];
	struct kvc_job *j = calloc(1, sizeof *j);

	if (!j)
		return -ENOMEM;
	j->run = run;
	j->node = n;
	j->tier = tier;
	j->due_ns = due_ns;
	j->priority = p;
	if (n)
		n->holds++;
	if (p == KVC_P_SPILL && ts->t && (ts->t->ops->caps & KVC_TIER_SHARED) &&
	    ts->ncopies >= COPIES_MAX)
		drop_oldest_locked(k, ts);
	/*
	 * Copies wait for their time: only the first of them tells a worker until when to sleep,
	 * which spares a store its wake.
	 */
	bool tell = p != KVC_P_SPILL || kvc_list_empty(&ts->jobs[p]) || due_ns <= kvc_mono_ns();

	kvc_list_add_tail(&ts->jobs[p], &j->link);
	ts->ncopies += p == KVC_P_SPILL;
	k->work->queued++;
	if (tell)
		kvc_tier_tell_locked(ts, p);
	if (out)
		*out = j;
	return 0;
}

bool kvc_tier_allowed_locked(struct kvc *k, unsigned tier)
{
	struct kvc_tier_state *t = &k->tier[tier];

	if (!t->open_until_ns)
		return true;
	if (t->probing || kvc_mono_ns() < t->open_until_ns)
		return false;
	t->probing = true;
	return true;
}

void kvc_tier_uncalled_locked(struct kvc *k, unsigned tier)
{
	k->tier[tier].probing = false; /* the next one is the probe */
}

void kvc_tier_result_locked(struct kvc *k, unsigned tier, int err)
{
	struct kvc_tier_state *t = &k->tier[tier];
	bool was_probe = t->probing;

	t->probing = false;
	if (!err || err == -EBADMSG || err == -ENOENT || err == -ENOSPC || err == -ENOMEM ||
	    err == -ECANCELED) {
		if (t->open_until_ns) {
			kvc_info("tier %s answers again", t->t->ops->name);
			kvc_count(&k->stats, breaker_closed);
		}
		t->failures = 0;
		t->open_until_ns = t->backoff_ns = 0;
		return;
	}
	kvc_count(&k->stats, tier_errors);
	if (++t->failures < FAILURES && !was_probe)
		return;
	t->backoff_ns = t->backoff_ns ? kvc_min(t->backoff_ns * 2, BACKOFF_MAX_NS) : BACKOFF_MIN_NS;
	t->open_until_ns = kvc_mono_ns() + t->backoff_ns + kvc_now_ns() % (t->backoff_ns / 4);
	if (!was_probe) {
		kvc_warn("tier %s fails (%s): taken out, probed again in %llu ms", t->t->ops->name,
			 strerror(-err), (unsigned long long)(t->backoff_ns / 1000000));
		kvc_count(&k->stats, breaker_opened);
	}
}

/* The next job for this thread, or NULL with the time until which none is due. */
static struct kvc_job *take_locked(struct kvc *k, struct kvc_tier_state *ts, bool copies,
				   uint64_t *until)
{
	uint64_t now = kvc_mono_ns(), early = 0;

	/* A file's rename comes at once after its close; so much they wait all the same. */
	if (kvc_pace_hurry_locked(k) && k->opt.settle_ms > SETTLE_LEAST_MS)
		early = (k->opt.settle_ms - SETTLE_LEAST_MS) * 1000000;
	for (int p = 0; p < KVC_PRIORITIES; p++) {
		if (p >= KVC_P_URGENT && !copies)
			break;
		kvc_list_each(e, &ts->jobs[p]) {
			struct kvc_job *j = kvc_of(e, struct kvc_job, link);

			uint64_t due = j->due_ns -
				       (p == KVC_P_SPILL ? kvc_min(early, j->due_ns) : 0);

			if (due <= now || (k->stopping && p == KVC_P_SPILL)) {
				kvc_list_del(&j->link);
				ts->ncopies -= p == KVC_P_SPILL;
				return j;
			}
			*until = kvc_min(*until, due);
			if (p == KVC_P_SPILL)
				break; /* in order of their time */
		}
	}
	return NULL;
}

static void *work(void *arg)
{
	struct kvc_tier_state *ts = arg;
	struct kvc *k = ts->k;

	kvc_lock(k);
	bool copies = ts->started++ > 0;

	for (;;) {
		uint64_t until = kvc_mono_ns() + 1000000000;
		struct kvc_job *j;

		if (k->work->over)
			break;
		j = take_locked(k, ts, copies, &until);
		if (j) {
			struct kvc_node *n = j->node;

			if (n && j->tier < KVC_TIERS && n->queued[j->tier] == j)
				/* from here on nobody may move it to another queue */
				n->queued[j->tier] = NULL;
			k->work->queued--;
			k->work->running++;
			if (k->work->queued)
				/* the next may be due too, and nobody else be awake */
				kvc_tier_tell_locked(ts, copies ? KVC_P_SPILL : KVC_P_LOAD);
			kvc_unlock(k);
			j->run(k, j);
			kvc_lock(k);
			k->work->running--;
			if (n) {
				n->holds--;
				kvc_node_settle_locked(k, n);
			}
			free(j);
			continue;
		}
		if (k->draining && !k->work->queued && !k->work->running)
			break;
		struct timespec t = kvc_timespec(k->draining ? kvc_mono_ns() + 10000000 : until);

		if (!copies)
			ts->load_idle = true;
		kvc_lock_wait(&k->lock, copies ? &ts->cond : &ts->load_cond, &t);
		if (!copies)
			ts->load_idle = false;
	}
	kvc_tiers_wake_locked(k);
	kvc_unlock(k);
	return NULL;
}

void kvc_tiers_wake_locked(struct kvc *k)
{
	for (unsigned t = 0; t <= KVC_COMMON; t++) {
		pthread_cond_broadcast(&k->tier[t].cond);
		pthread_cond_broadcast(&k->tier[t].load_cond);
	}
}

int kvc_tiers_start(struct kvc *k)
{
	int err = 0;

	for (unsigned t = 0; t <= KVC_COMMON && !err; t++) {
		struct kvc_tier_state *ts = &k->tier[t];
		unsigned want = t == KVC_COMMON                      ? 2
				: !ts->t                             ? 0
				: ts->t->ops->caps & KVC_TIER_SHARED ? KVC_WORKERS
								     : 5;

		while (ts->nthreads < want && !err)
			if (!(err = -pthread_create(&ts->workers[ts->nthreads], NULL, work, ts)))
				ts->nthreads++;
	}
	return err;
}

void kvc_tiers_join(struct kvc *k)
{
	for (unsigned t = 0; t <= KVC_COMMON; t++)
		for (unsigned i = 0; i < k->tier[t].nthreads; i++)
			pthread_join(k->tier[t].workers[i], NULL);
	for (unsigned t = 0; t <= KVC_COMMON && k->work->over; t++)
		for (int p = 0; p < KVC_PRIORITIES; p++)
			kvc_list_each_safe(e, &k->tier[t].jobs[p])
				free(kvc_of(e, struct kvc_job, link));
}

void kvc_tier_refused_locked(struct kvc *k, unsigned tier, uint64_t bytes)
{
	struct kvc_tier_state *ts = &k->tier[tier];

	ts->full = true;
	ts->refused = kvc_max(kvc_tier_refuses_locked(ts) ? ts->refused : 0, bytes);
	ts->refused_until_ns = kvc_mono_ns() + REFUSED_NS;
	if (ts->unsynced) /* what waits there for a sync at leisure is what the frame waits for */
		pthread_cond_signal(&k->trash->sync_cond);
	kvc_trim_tell_locked(k, tier);
}

bool kvc_tier_refuses_locked(const struct kvc_tier_state *ts)
{
	return ts->full || kvc_mono_ns() < ts->refused_until_ns;
}

void kvc_tier_took_locked(struct kvc *k, unsigned tier, uint64_t bytes)
{
	struct kvc_tier_state *ts = &k->tier[tier];

	ts->full = false;
	if (bytes >= ts->refused)
		ts->refused = ts->refused_until_ns = 0;
	kvc_trim_tell_locked(k, tier);
}

void kvc_trim_tell_locked(struct kvc *k, unsigned tier)
{
	struct kvc_tier_state *ts = &k->tier[tier];

	if (ts->has_trimmer)
		pthread_cond_signal(&ts->trim_cond);
}

bool kvc_tier_keeps_locked(const struct kvc *k, unsigned tier)
{
	unsigned caps = k->tier[tier].t->ops->caps;

	for (unsigned i = 0; (caps & KVC_TIER_SHARED) && i < k->ntiers; i++) {
		const struct kvc_tier_state *ts = &k->tier[k->order[i]];

		if ((ts->t->ops->caps & (KVC_TIER_DURABLE | KVC_TIER_SHARED)) == KVC_TIER_DURABLE &&
		    !ts->open_until_ns)
			return false;
	}
	return caps & KVC_TIER_DURABLE;
}

bool kvc_tier_takes_locked(const struct kvc *k, unsigned tier)
{
	const struct kvc_tier_state *ts = &k->tier[tier];

	if (ts->open_until_ns)
		return false;
	if (!ts->full)
		return true;
	return ts->has_trimmer ? !ts->jammed : kvc_mono_ns() >= ts->full_until_ns;
}

void kvc_job_put_locked(struct kvc *k, struct kvc_job *j)
{
	kvc_list_add_tail(&k->tier[j->tier].jobs[KVC_P_LOAD], &j->link);
	k->work->queued++;
	kvc_tier_tell_locked(&k->tier[j->tier], KVC_P_LOAD);
}
