/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory budget (budget.h). Texts, waiting writes and tier work have separate parts; copies
 * have their own limit within tier work. Threads that find their part full wait in two queues,
 * loads and copies; the queue entries are on their stacks. A thread that gives bytes back grants
 * them to the heads of the queues, loads first. A new request does not overtake a waiting one of
 * the same use.
 */
#include "budget.h"

#include "memory.h"
#include "util.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_LEAST (128ull << 20)
#define DEFAULT_MOST (1ull << 30)
#define WAIT_MOST_MS 2000
#define QUEUES 2 /* for KVC_BUDGET_LOAD and KVC_BUDGET_COPY */

struct waiter {
	struct kvc_list link;
	pthread_cond_t cond;
	uint64_t bytes;
	bool granted;
};

static struct {
	pthread_mutex_t lock;
	uint64_t fixed, rest, wait_ms; /* parts of the limit, in bytes; rest 0: no limit */
	uint64_t used[KVC_BUDGET_USES], peak;
	struct kvc_list waiters[QUEUES]; /* loads and copies */
	struct kvc_stats *stats;
	void (*release)(void);
} budget = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.waiters = {
		{ &budget.waiters[0], &budget.waiters[0] },
		{ &budget.waiters[1], &budget.waiters[1] },
	},
};

uint64_t kvc_budget_default(uint64_t pool_bytes)
{
	uint64_t all = kvc_min(kvc_memory_total(), kvc_memory_group_max());
	uint64_t beside = all - kvc_min(all, pool_bytes);

	return kvc_max(DEFAULT_LEAST, kvc_min(beside / 4, DEFAULT_MOST));
}

static void add_locked(enum kvc_budget_use use, uint64_t bytes)
{
	uint64_t all = 0;

	budget.used[use] += bytes;
	for (int i = 0; i < KVC_BUDGET_USES; i++)
		all += budget.used[i];
	budget.peak = kvc_max(budget.peak, all);
}

void kvc_budget_start(uint64_t limit, uint64_t fixed, uint64_t wait_ms, struct kvc_stats *stats)
{
	pthread_mutex_lock(&budget.lock);
	budget.rest = kvc_max(limit - kvc_min(limit, fixed), KVC_BUDGET_MIN);
	budget.fixed = fixed;
	budget.wait_ms = kvc_min(wait_ms, WAIT_MOST_MS);
	budget.stats = stats;
	budget.peak = 0;
	add_locked(KVC_BUDGET_LOAD, 0);
	pthread_mutex_unlock(&budget.lock);
}

/* Tier work waits for memory; other uses are refused at once. */
static bool is_tier_work(enum kvc_budget_use use)
{
	return use == KVC_BUDGET_LOAD || use == KVC_BUDGET_COPY;
}

static uint64_t most_locked(enum kvc_budget_use use)
{
	if (!budget.rest)
		return UINT64_MAX;
	switch (use) {
	case KVC_BUDGET_TEXT: return budget.rest / 4;
	case KVC_BUDGET_WRITE: return budget.rest / 8;
	case KVC_BUDGET_COPY: return budget.rest / 8 * 3;
	default: return budget.rest / 8 * 5;
	}
}

static bool fits_locked(enum kvc_budget_use use, uint64_t bytes)
{
	uint64_t tiers = budget.used[KVC_BUDGET_LOAD] + budget.used[KVC_BUDGET_COPY];
	uint64_t most = most_locked(use), part = use == KVC_BUDGET_LOAD ? tiers : budget.used[use];

	if (bytes > most || part > most - bytes)
		return false;
	return use != KVC_BUDGET_COPY || tiers <= most_locked(KVC_BUDGET_LOAD) - bytes;
}

/*
 * Grants loads before copies: a copy does not take bytes that the first load in the queue waits
 * for.
 */
static void grant_locked(void)
{
	for (int use = KVC_BUDGET_LOAD; use < QUEUES; use++)
		while (!kvc_list_empty(&budget.waiters[use])) {
			struct waiter *w = kvc_of(budget.waiters[use].next, struct waiter, link);

			if (!fits_locked(use, w->bytes))
				return;
			add_locked(use, w->bytes);
			kvc_list_del(&w->link);
			w->granted = true;
			pthread_cond_signal(&w->cond);
		}
}

void kvc_budget_stop(const struct kvc_stats *stats)
{
	pthread_mutex_lock(&budget.lock);
	if (budget.stats == stats) {
		budget.rest = 0;
		budget.stats = NULL;
		grant_locked();
	}
	pthread_mutex_unlock(&budget.lock);
}

static bool queued_locked(enum kvc_budget_use use)
{
	return is_tier_work(use) &&
	       (!kvc_list_empty(&budget.waiters[KVC_BUDGET_LOAD]) ||
		(use == KVC_BUDGET_COPY && !kvc_list_empty(&budget.waiters[use])));
}

static bool try_locked(enum kvc_budget_use use, uint64_t bytes)
{
	if (queued_locked(use) || !fits_locked(use, bytes))
		return false;
	add_locked(use, bytes);
	return true;
}

/*
 * Tries, and tries again after the hook has freed caches. Releases and takes the lock in between.
 */
static bool try_hard_locked(enum kvc_budget_use use, uint64_t bytes)
{
	void (*release)(void) = budget.release;

	if (try_locked(use, bytes))
		return true;
	if (!is_tier_work(use) || !release || bytes > most_locked(use))
		return false;
	pthread_mutex_unlock(&budget.lock);
	release();
	pthread_mutex_lock(&budget.lock);
	return try_locked(use, bytes);
}

static int refuse_locked(void)
{
	if (budget.stats)
		kvc_count(budget.stats, memory_refusals);
	return -ENOMEM;
}

int kvc_budget_reserve(enum kvc_budget_use use, uint64_t bytes)
{
	int err;

	pthread_mutex_lock(&budget.lock);
	err = try_hard_locked(use, bytes) ? 0 : refuse_locked();
	pthread_mutex_unlock(&budget.lock);
	return err;
}

int kvc_budget_try(enum kvc_budget_use use, uint64_t bytes)
{
	bool took;

	pthread_mutex_lock(&budget.lock);
	took = try_hard_locked(use, bytes);
	pthread_mutex_unlock(&budget.lock);
	return took ? 0 : -ENOMEM;
}

static bool wait_locked(enum kvc_budget_use use, uint64_t bytes)
{
	struct waiter w = { .bytes = bytes };
	struct timespec until;
	uint64_t at = kvc_mono_ns() + budget.wait_ms * 1000000;
	pthread_condattr_t attr;
	int err = 0;

	until = (struct timespec){ (time_t)(at / 1000000000), (long)(at % 1000000000) };
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&w.cond, &attr);
	pthread_condattr_destroy(&attr);
	kvc_list_add_tail(&budget.waiters[use], &w.link);
	if (budget.stats)
		kvc_count(budget.stats, memory_waits);
	while (!w.granted && !err)
		err = pthread_cond_timedwait(&w.cond, &budget.lock, &until);
	if (!w.granted) {
		kvc_list_del(&w.link);
		grant_locked(); /* the next one may need less */
	}
	pthread_cond_destroy(&w.cond);
	return w.granted;
}

int kvc_budget_wait(enum kvc_budget_use use, uint64_t bytes)
{
	int err = 0;

	pthread_mutex_lock(&budget.lock);
	if (!try_hard_locked(use, bytes) &&
	    (!is_tier_work(use) || bytes > most_locked(use) || !wait_locked(use, bytes)))
		err = refuse_locked();
	pthread_mutex_unlock(&budget.lock);
	return err;
}

void kvc_budget_force(enum kvc_budget_use use, uint64_t bytes)
{
	pthread_mutex_lock(&budget.lock);
	add_locked(use, bytes);
	pthread_mutex_unlock(&budget.lock);
}

void kvc_budget_release(enum kvc_budget_use use, uint64_t bytes)
{
	pthread_mutex_lock(&budget.lock);
	budget.used[use] -= bytes;
	grant_locked();
	pthread_mutex_unlock(&budget.lock);
}

uint64_t kvc_budget_most(enum kvc_budget_use use)
{
	uint64_t most;

	pthread_mutex_lock(&budget.lock);
	most = most_locked(use);
	pthread_mutex_unlock(&budget.lock);
	return most;
}

void kvc_budget_state(struct kvc_budget_state *s)
{
	pthread_mutex_lock(&budget.lock);
	*s = (struct kvc_budget_state){ .peak = budget.peak };
	if (budget.rest) {
		s->limit = budget.fixed + budget.rest;
		s->fixed = budget.fixed;
	}
	for (int i = 0; i < KVC_BUDGET_USES; i++)
		s->used += budget.used[i];
	pthread_mutex_unlock(&budget.lock);
}

void kvc_budget_on_short(void (*release)(void))
{
	pthread_mutex_lock(&budget.lock);
	budget.release = release;
	pthread_mutex_unlock(&budget.lock);
}

int kvc_budget_buffer_wait(struct kvc_buffer *b, enum kvc_budget_use use, size_t len)
{
	size_t capacity = kvc_round_up(len ? len : 1, KVC_PAGE);

	*b = (struct kvc_buffer){ .use = use };
	if (capacity < len || kvc_budget_wait(use, capacity))
		return -ENOMEM;
	b->p = aligned_alloc(KVC_PAGE, capacity);
	if (!b->p) {
		kvc_budget_release(use, capacity);
		return -ENOMEM;
	}
	b->len = capacity;
	return 0;
}

int kvc_budget_buffer_grow(struct kvc_buffer *b, size_t len)
{
	size_t capacity = kvc_round_up(kvc_max(len, b->len * 2), KVC_PAGE);
	uint8_t *p;

	if (len <= b->len)
		return 0;
	if (capacity < len || kvc_budget_reserve(b->use, capacity))
		return -ENOMEM;
	p = aligned_alloc(KVC_PAGE, capacity);
	if (!p) {
		kvc_budget_release(b->use, capacity);
		return -ENOMEM;
	}
	if (b->len)
		memcpy(p, b->p, b->len);
	kvc_budget_buffer_free(b);
	b->p = p;
	b->len = capacity;
	return 0;
}

void kvc_budget_buffer_free(struct kvc_buffer *b)
{
	free(b->p);
	if (b->len)
		kvc_budget_release(b->use, b->len);
	b->p = NULL;
	b->len = 0;
}
