/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job queues of the tiers and their worker threads. The priorities: loads that a call waits
 * for, prefetch, removals, urgent copies, copies. Each tier has its own queues and threads, so that
 * a slow tier delays no other tier. One thread of each tier never makes copies, so that a load does
 * not wait for a copy.
 *
 * The breaker (frames/breaker.c) decides which calls may be made, separately for reads, writes,
 * lists and removals. Copies that it refuses are parked until it allows writes; refused removals
 * likewise.
 *
 * Calls to a filesystem may never return (KVC_TIER_PATIENT). If a thread is in such a call for
 * longer than deadline= plus the time that the bytes take on a slow line, its tier is out until the
 * call returns. The threads of the common queue then run the loads in that tier's queue. Since the
 * tier is out, these loads read another tier. At unmount, threads in such calls are left behind.
 *
 * If the disk tier has several devices, at most half of its threads are in calls to one of them. A
 * job about a frame whose device has enough threads is set aside, in a list of that device, until
 * one of them is done. So a device whose I/O hangs does not hold up loads from the others and
 * copies to them. Removals of one device are made one after the other.
 *
 * A copy that fails is retried after a second, then after two, and so on up to two minutes. It is
 * retried earlier if the breaker closes or space was freed, and at once if a call waits for it;
 * such retries do not lengthen the delay. Failures of a few objects do not open the breaker.
 * Therefore, if one copy succeeds after others have failed, all failed copies are retried. If such
 * a retry fails, the next one waits longer, because the copies themselves may be at fault.
 */
#include "tier_queue.h"

#include "log.h"
#include "node.h"
#include "deferred_free.h"

#include <string.h>

#define RETRY_MIN_NS 1000000000ull
#define RETRY_MAX_NS (RETRY_MIN_NS << (KVC_AGAINS - 1))
/* the trimmer is woken each time that copies have filled 1/16 of the space above high= */
#define UNSIGNALLED_PARTS 16u
/* copies that wait for a shared tier; beyond that the oldest are dropped */
#define COPIES_MAX 4096u
#define SETTLE_LEAST_MS 5u
#define REFUSED_NS 100000000ull /* time for several tries of a refused frame (tiering/spill.c) */
/* removals that wait for a tier; others are left to the next start */
#define REMOVALS_MAX 65536u
/* the lowest transfer rate, in bytes a second, that a call's time allows for */
#define SLOWEST (4ull << 20)
#define OUT_NS 10000000ull    /* between two checks of a tier that is out */
#define STUCK_NS 100000000ull /* between two checks of a tier that may hang */
#define COMMON_WORKERS 2u     /* of the common queue, in addition to those for syncs of devices */
#define HELD_AT_ONCE 64u      /* jobs that a thread sets aside under one hold of the lock */
/* other threads that call tiers: a sweep, and a verify at the same time */
#define OTHER_THREADS 2u
/* wait at unmount for the threads of a tier that does not answer */
#define LEAVE_NS 1000000000ull

/* Counts the job in the numbers of its queue, or removes it from them (by = -1). */
static void count_job_locked(struct kvc_tier_state *ts, enum kvc_priority p, int by)
{
	ts->queue.ncopies += p >= KVC_P_PARKED ? by : 0;
	ts->queue.nfailed += p >= KVC_P_AGAIN && p < KVC_P_SPILL ? by : 0;
	ts->queue.nremovals += p == KVC_P_REMOVE_AGAIN ? by : 0;
}

/* Removes a waiting job from its queue. The caller frees it, runs it or queues it elsewhere. */
static void job_unlink_locked(struct kvc_tier_state *ts, struct kvc_job *j)
{
	kvc_list_del(&j->link);
	count_job_locked(ts, j->priority, -1);
}

void kvc_tier_job_hurry_locked(struct kvc_tier_state *ts, struct kvc_job *j)
{
	job_unlink_locked(ts, j);
	if (!j->wait_ns && j->priority >= KVC_P_AGAIN && j->priority < KVC_P_SPILL)
		j->wait_ns = j->due_ns;
	j->priority = KVC_P_URGENT;
	j->due_ns = 0;
	kvc_list_add_tail(&ts->queue.jobs[KVC_P_URGENT], &j->link);
	kvc_tier_wake_locked(ts, KVC_P_URGENT);
}

void kvc_tier_set_copying_locked(struct kvc_node *n, unsigned tier, bool copying)
{
	n->copying = (uint8_t)((n->copying & ~(1u << tier)) | (unsigned)copying << tier);
}

static void drop_oldest_locked(struct kvc *k, struct kvc_tier_state *ts)
{
	int p = KVC_P_PARKED;
	struct kvc_job *j;
	struct kvc_node *n;

	while (kvc_list_empty(&ts->queue.jobs[p]))
		p++;
	j = kvc_of(ts->queue.jobs[p].next, struct kvc_job, link);
	n = j->node;
	job_unlink_locked(ts, j);
	k->work->queued--;
	kvc_count(&k->stats, spills_dropped);
	if (n) {
		kvc_tier_set_copying_locked(n, j->tier, false);
		if (n->in[j->tier].queued == j)
			n->in[j->tier].queued = NULL;
		/* an fsync requests the copy again */
		kvc_node_wake_sync_locked(k, n, 0);
		kvc_node_unref_locked(n);
		kvc_node_settle_locked(k, n);
	}
	free(j);
}

/*
 * There are two conditions, since a signal for a copy could otherwise wake the thread that makes no
 * copies, and be lost.
 */
void kvc_tier_wake_locked(struct kvc_tier_state *ts, enum kvc_priority p)
{
	if (p < KVC_P_URGENT && ts->queue.load_idle) {
		ts->queue.load_idle = false; /* the next job is for another thread */
		pthread_cond_signal(&ts->queue.load_cond);
	} else {
		pthread_cond_signal(&ts->queue.cond);
	}
}

int kvc_tier_job_add_locked(struct kvc *k, enum kvc_priority p,
			    void (*run)(struct kvc *, struct kvc_job *), struct kvc_node *n,
			    unsigned tier, uint64_t due_ns, struct kvc_job **out)
{
	struct kvc_tier_state *ts = &k->tier[tier];
	struct kvc_job *j = calloc(1, sizeof *j);

	if (!j)
		return -ENOMEM;
	if (p == KVC_P_REMOVE_AGAIN && ts->queue.nremovals >= REMOVALS_MAX) {
		free(j);
		return -ENOBUFS;
	}
	j->run = run;
	j->node = n;
	j->tier = tier;
	j->due_ns = due_ns;
	j->priority = p;
	if (n)
		kvc_node_ref_locked(n);
	if (p >= KVC_P_PARKED && ts->t && (ts->t->ops->caps & KVC_TIER_SHARED) &&
	    ts->queue.ncopies >= COPIES_MAX)
		drop_oldest_locked(k, ts);
	/*
	 * Copies wait for their due time. A worker sleeps until the first copy of the list is due,
	 * so most stores need not wake it.
	 */
	bool tell = p < KVC_P_PARKED || kvc_list_empty(&ts->queue.jobs[p]) ||
		    due_ns <= kvc_mono_ns();

	kvc_list_add_tail(&ts->queue.jobs[p], &j->link);
	count_job_locked(ts, p, 1);
	k->work->queued++;
	if (tell)
		kvc_tier_wake_locked(ts, p);
	if (out)
		*out = j;
	return 0;
}

int kvc_tier_copy_add_locked(struct kvc *k, enum kvc_priority p,
			     void (*run)(struct kvc *, struct kvc_job *), struct kvc_node *n,
			     unsigned tier, uint64_t due_ns)
{
	int err = kvc_tier_job_add_locked(k, p, run, n, tier, due_ns, &n->in[tier].queued);

	if (!err)
		kvc_tier_set_copying_locked(n, tier, true);
	return err;
}

int kvc_tier_load_add_locked(struct kvc *k, bool prefetch,
			     void (*run)(struct kvc *, struct kvc_job *), struct kvc_node *n,
			     unsigned tier, struct kvc_job **out)
{
	int err = kvc_tier_job_add_locked(k, prefetch ? KVC_P_PREFETCH : KVC_P_LOAD, run, n, tier,
					  0, out);

	if (!err) {
		(*out)->prefetch = prefetch;
		n->queued_load = *out;
	}
	return err;
}

void kvc_tier_load_awaited_locked(struct kvc *k, struct kvc_node *n)
{
	struct kvc_job *j = n->queued_load;
	struct kvc_tier_state *ts;

	if (!j || !j->prefetch)
		return;
	ts = &k->tier[j->tier];
	job_unlink_locked(ts, j);
	j->prefetch = false;
	j->priority = KVC_P_LOAD;
	kvc_list_add_tail(&ts->queue.jobs[KVC_P_LOAD], &j->link);
	count_job_locked(ts, KVC_P_LOAD, 1);
	kvc_tier_wake_locked(ts, KVC_P_LOAD);
}

/* Returns true if a thread is in an overdue call. */
static bool overdue_locked(const struct kvc_tier_state *ts)
{
	uint64_t now = 0;

	for (unsigned i = 0; i < ts->threads.wanted; i++)
		if (ts->threads.overdue_ns[i] &&
		    ts->threads.overdue_ns[i] < (now ? now : (now = kvc_mono_ns())))
			return true;
	return false;
}

bool kvc_tier_hangs_locked(const struct kvc *k, unsigned tier)
{
	return overdue_locked(&k->tier[tier]);
}

bool kvc_tiers_busy_locked(const struct kvc *k, bool removes)
{
	for (unsigned t = 0; t <= KVC_COMMON; t++) {
		const struct kvc_tier_state *ts = &k->tier[t];
		bool any = ts->threads.running > (removes ? 0 : ts->threads.removing);

		for (unsigned i = 0; i < KVC_DEVICES * KVC_ASIDE && !any; i++)
			any = !kvc_list_empty(&ts->queue.aside[i / KVC_ASIDE][i % KVC_ASIDE]) &&
			      (removes || i % KVC_ASIDE != KVC_ASIDE_REMOVE);
		for (int p = 0; p < KVC_PRIORITIES && !any; p++)
			/* removals that the tier did not make are left to the next start */
			any = !kvc_list_empty(&ts->queue.jobs[p]) && p != KVC_P_REMOVE_AGAIN &&
			      (removes || p != KVC_P_REMOVE);
		if (any && !overdue_locked(ts))
			return true;
	}
	return false;
}

bool kvc_tier_out_locked(const struct kvc *k, unsigned tier, enum kvc_call call)
{
	const struct kvc_tier_state *ts = &k->tier[tier];

	return overdue_locked(ts) || kvc_breaker_refuses(&ts->breaker, call, kvc_mono_ns());
}

int kvc_tier_why_locked(const struct kvc *k, unsigned tier, enum kvc_call call)
{
	const struct kvc_breaker_class *c = &k->tier[tier].breaker.of[call];

	return c->is == KVC_BREAKER_REFUSED ? c->why : -EIO;
}

static bool hangs_locked(struct kvc *k, struct kvc_tier_state *t)
{
	bool hangs = overdue_locked(t);

	if (!t->threads.stuck && hangs) {
		t->threads.stuck = true;
		kvc_warn("tier %s does not answer: it is suspended until it answers",
			 t->t->ops->name);
		kvc_count(&k->stats, breaker_opened);
	}
	return hangs;
}

bool kvc_tier_allowed_locked(struct kvc *k, unsigned tier, enum kvc_call call)
{
	struct kvc_tier_state *t = &k->tier[tier];

	return !hangs_locked(k, t) && kvc_breaker_allows(&t->breaker, call, kvc_mono_ns());
}

void kvc_tier_uncalled_locked(struct kvc *k, unsigned tier, enum kvc_call call)
{
	kvc_breaker_uncalled(&k->tier[tier].breaker, call);
}

void kvc_tier_retry_locked(struct kvc *k, unsigned tier)
{
	struct kvc_tier_state *ts = &k->tier[tier];

	/* The jobs keep their priority: they count as failed until they are retried. */
	for (int p = KVC_P_AGAIN; p < KVC_P_SPILL; p++)
		kvc_list_splice(&ts->queue.jobs[KVC_P_PARKED], &ts->queue.jobs[p]);
	if (!kvc_list_empty(&ts->queue.jobs[KVC_P_PARKED]))
		kvc_tier_wake_locked(ts, KVC_P_SPILL);
}

bool kvc_tier_name_lock_locked(struct kvc_tier_state *ts, const struct kvc_where *name)
{
	for (unsigned i = 0; i < ts->locked_names.n; i++)
		if (kvc_tier_same_name(&ts->locked_names.of[i], name))
			return false;
	if (ts->locked_names.n == KVC_WORKERS)
		return false; /* cannot happen: a thread locks one name at most */
	ts->locked_names.of[ts->locked_names.n++] = *name;
	return true;
}

void kvc_tier_name_unlock_locked(struct kvc_tier_state *ts, const struct kvc_where *name)
{
	for (unsigned i = 0; i < ts->locked_names.n; i++)
		if (kvc_tier_same_name(&ts->locked_names.of[i], name)) {
			ts->locked_names.of[i] = ts->locked_names.of[--ts->locked_names.n];
			return;
		}
}

static void log_suspended(const struct kvc_tier_state *t, enum kvc_call call, bool all)
{
	const struct kvc_breaker_class *c = &t->breaker.of[call];

	kvc_warn("tier %s: %s %s (%s); probed again in %llu ms%s", t->t->ops->name,
		 all ? "all calls" : kvc_breaker_call_words[call],
		 c->is == KVC_BREAKER_REFUSED ? "are refused" : "fail", kvc_breaker_reason(c->why),
		 (unsigned long long)(c->backoff_ns / 1000000),
		 all ? "" : "; other calls continue");
}

void kvc_tier_result_locked(struct kvc *k, unsigned tier, enum kvc_call call, uint64_t object,
			    int err)
{
	struct kvc_tier_state *t = &k->tier[tier];
	bool writes = t->breaker.of[KVC_CALL_WRITE].is != KVC_BREAKER_CLOSED;
	enum kvc_breaker_is was = t->breaker.of[call].is;
	enum kvc_breaker_event event;

	switch (kvc_breaker_says(t->t->ops->caps, call, err)) {
	case KVC_SAYS_ANSWER:
	case KVC_SAYS_NOTHING: break;
	case KVC_SAYS_OBJECT:
	case KVC_SAYS_REFUSED: kvc_count(&k->stats, tier_refusals); break;
	default: kvc_count(&k->stats, tier_errors);
	}
	event = kvc_breaker_result(&t->breaker, t->t->ops->caps, call, object, err, kvc_mono_ns());
	/* a refusal is not an outage: the breaker's counters count failing calls */
	if (event == KVC_BREAKER_TRIPPED || event == KVC_BREAKER_TRIPPED_ALL)
		if (t->breaker.of[call].is == KVC_BREAKER_OUT)
			kvc_count(&k->stats, breaker_opened);
	if (event == KVC_BREAKER_RESTORED && was == KVC_BREAKER_OUT)
		kvc_count(&k->stats, breaker_closed);
	if (event == KVC_BREAKER_RESTORED)
		kvc_info("tier %s: %s work again", t->t->ops->name, kvc_breaker_call_words[call]);
	else if (event != KVC_BREAKER_SAME)
		log_suspended(t, call, event == KVC_BREAKER_TRIPPED_ALL);
	if (writes && t->breaker.of[KVC_CALL_WRITE].is == KVC_BREAKER_CLOSED)
		kvc_tier_retry_locked(k, tier);
}

/*
 * Takes a load of a tier that hangs, for a thread of the common queue, since the tier's own threads
 * may never return to run it.
 */
static struct kvc_job *take_hung_load_locked(struct kvc *k, uint64_t *until)
{
	kvc_tier_each(k, t) {
		struct kvc_tier_state *ts = &k->tier[t];

		if (!ts->threads.running || !(ts->t->ops->caps & KVC_TIER_PATIENT))
			continue;
		*until = kvc_min(*until, kvc_mono_ns() + STUCK_NS);
		if (!hangs_locked(k, ts))
			continue;
		for (int p = KVC_P_LOAD; p <= KVC_P_PREFETCH; p++)
			if (!kvc_list_empty(&ts->queue.jobs[p])) {
				struct kvc_job *j = kvc_of(ts->queue.jobs[p].next, struct kvc_job,
							   link);

				job_unlink_locked(ts, j);
				return j;
			}
	}
	return NULL;
}

/*
 * Returns true if this queue waits for the breaker; then *until is at most the time of the next
 * check.
 */
static bool suspended_locked(const struct kvc *k, const struct kvc_tier_state *ts, int p,
			     uint64_t now, uint64_t *until)
{
	enum kvc_call call = p == KVC_P_PARKED ? KVC_CALL_WRITE : KVC_CALL_REMOVE;

	if ((p != KVC_P_PARKED && p != KVC_P_REMOVE_AGAIN) || kvc_list_empty(&ts->queue.jobs[p]) ||
	    !ts->t || (p == KVC_P_PARKED && k->stopping) ||
	    !kvc_tier_out_locked(k, (unsigned)(ts - k->tier), call))
		return false;
	*until = kvc_min(*until, kvc_max(ts->breaker.of[call].until_ns, now + OUT_NS));
	return true;
}

/*
 * Takes the next job for this thread. Returns NULL if none is due; then *until is when to check
 * again.
 */
static struct kvc_job *next_job_locked(struct kvc *k, struct kvc_tier_state *ts, bool copies,
				       uint64_t *until)
{
	uint64_t now = kvc_mono_ns(), early = 0;

	/*
	 * A file's rename follows its close at once. Copies wait for it even if memory is short.
	 */
	if (kvc_reservation_hurry_locked(k) && k->opt.settle_ms > SETTLE_LEAST_MS)
		early = (k->opt.settle_ms - SETTLE_LEAST_MS) * 1000000;
	for (int p = 0; p < KVC_PRIORITIES; p++) {
		if (p >= KVC_P_URGENT && !copies)
			break;
		if ((p == KVC_P_REMOVE || p == KVC_P_REMOVE_AGAIN) && k->draining)
			continue;
		if (suspended_locked(k, ts, p, now, until))
			continue;
		kvc_list_each(e, &ts->queue.jobs[p]) {
			struct kvc_job *j = kvc_of(e, struct kvc_job, link);

			uint64_t due = p == KVC_P_PARKED
					       ? 0
					       : j->due_ns - (p == KVC_P_SPILL
								      ? kvc_min(early, j->due_ns)
								      : 0);

			if (due <= now || (k->stopping && p >= KVC_P_PARKED)) {
				job_unlink_locked(ts, j);
				return j;
			}
			*until = kvc_min(*until, due);
			if (p >= KVC_P_PARKED || p == KVC_P_REMOVE_AGAIN)
				break; /* sorted by due time */
		}
	}
	return NULL;
}

/* ---- the bound of threads in one device ---- */

/* Returns the place of the frame that the job reads, writes or removes in its tier, or NULL. */
static const struct kvc_where *place_of_job(const struct kvc_job *j)
{
	if (!j->at_place || j->tier >= KVC_TIERS)
		return NULL;
	return !j->node                         ? &j->where
	       : j->node->in[j->tier].place.gen ? &j->node->in[j->tier].place.where
						: NULL;
}

static bool is_removal(const struct kvc_job *j)
{
	return j->priority == KVC_P_REMOVE || j->priority == KVC_P_REMOVE_AGAIN;
}

/*
 * A job that was taken from its queue enters the device of its place. *at is set to that place,
 * with a len of 0 if the job has none. If enough threads are in that device, returns false: the job
 * waits for one of them.
 */
static bool enter_device_locked(struct kvc_tier_state *ts, struct kvc_job *j, struct kvc_where *at)
{
	const struct kvc_where *w = ts->t && ts->t->ops->enter ? place_of_job(j) : NULL;
	enum kvc_set_aside kind = is_removal(j)               ? KVC_ASIDE_REMOVE
				  : j->priority == KVC_P_LOAD ? KVC_ASIDE_LOAD
							      : KVC_ASIDE_OTHER;

	*at = w ? *w : (struct kvc_where){ .len = 0 };
	if (!w || ts->t->ops->enter(ts->t, w, is_removal(j)))
		return true;
	kvc_list_add_tail(&ts->queue.aside[w->at >> KVC_DEVICE_BITS][kind], &j->link);
	return false;
}

/* A job has left its device: the next ones that wait for the device are queued again. */
static void leave_device_locked(struct kvc_tier_state *ts, const struct kvc_where *at, bool removes)
{
	struct kvc_list *held;
	bool load = false;

	if (!at->len)
		return;
	ts->t->ops->leave(ts->t, at, removes);
	held = ts->queue.aside[at->at >> KVC_DEVICE_BITS];
	for (int h = 0; h < KVC_ASIDE; h++) {
		struct kvc_job *j;

		if (kvc_list_empty(&held[h]) || (h == KVC_ASIDE_OTHER && load))
			continue;
		load |= h == KVC_ASIDE_LOAD;
		j = kvc_of(held[h].next, struct kvc_job, link);
		kvc_list_del(&j->link);
		kvc_list_add_head(&ts->queue.jobs[j->priority], &j->link);
		count_job_locked(ts, j->priority, 1);
		kvc_tier_wake_locked(ts, j->priority);
	}
}

/* A thread begins, or ends, a call that may never return. */
static void call_begin_locked(struct kvc *k, struct kvc_tier_state *ts, unsigned me,
			      const struct kvc_node *n)
{
	if (ts->t && (ts->t->ops->caps & KVC_TIER_PATIENT))
		ts->threads.overdue_ns[me] = kvc_mono_ns() + k->opt.deadline_ms * 1000000 +
					     (n ? n->row.size / SLOWEST * 1000000000 : 0);
}

static void call_end_locked(struct kvc *k, struct kvc_tier_state *ts, unsigned me)
{
	ts->threads.overdue_ns[me] = 0;
	if (!ts->threads.stuck || overdue_locked(ts))
		return;
	ts->threads.stuck = false;
	kvc_info("tier %s answers again", ts->t->ops->name);
	kvc_count(&k->stats, breaker_closed);
	kvc_tier_retry_locked(k, (unsigned)(ts - k->tier));
}

/* A copy succeeded: retries the copies that failed. */
static void retry_after_success_locked(struct kvc *k, struct kvc_tier_state *ts)
{
	uint64_t now = kvc_mono_ns();

	if (now < ts->retry.at_ns)
		return;
	ts->retry.wait_ns = !ts->retry.copy_failed ? 0
			    : ts->retry.wait_ns    ? kvc_min(2 * ts->retry.wait_ns, RETRY_MAX_NS)
						   : RETRY_MIN_NS;
	ts->retry.at_ns = now + ts->retry.wait_ns;
	if (ts->retry.copy_failed)
		kvc_tier_retry_locked(k, (unsigned)(ts - k->tier));
	ts->retry.copy_failed = ts->retry.copy_stored = false;
}

void kvc_tier_failed_locked(struct kvc *k, unsigned tier)
{
	k->tier[tier].retry.copy_failed = true;
	k->tier[tier].retry.copy_stored = false;
}

/* Runs a job that was taken from its queue. Releases k->lock. */
static void run_job_locked(struct kvc *k, struct kvc_tier_state *ts, struct kvc_job *j, unsigned me,
			   const struct kvc_where *at)
{
	struct kvc_node *n = j->node;
	bool removes = is_removal(j);

	k->work->queued--;
	k->work->running++;
	ts->threads.running++;
	ts->threads.removing += removes;
	if (k->work->queued)
		/* the next job may be due too, while all other threads sleep */
		kvc_tier_wake_locked(ts, me > 0 ? KVC_P_SPILL : KVC_P_LOAD);
	call_begin_locked(k, ts, me, n);
	kvc_unlock(k);
	j->run(k, j);
	kvc_lock(k);
	call_end_locked(k, ts, me);
	leave_device_locked(ts, at, removes);
	k->work->running--;
	ts->threads.running--;
	ts->threads.removing -= removes;
	if (n) {
		kvc_node_unref_locked(n);
		kvc_node_settle_locked(k, n);
	}
	free(j);
}

static void *worker(void *arg)
{
	struct kvc_tier_state *ts = arg;
	struct kvc *k = ts->k;
	unsigned held = 0;

	kvc_lock(k);
	unsigned me = ts->threads.started++;
	bool copies = me > 0;

	for (;;) {
		uint64_t until = kvc_mono_ns() + 1000000000;
		struct kvc_where at;
		struct kvc_job *j;

		if (k->work->over)
			break;
		if (ts->retry.copy_stored)
			retry_after_success_locked(k, ts);
		j = next_job_locked(k, ts, copies, &until);
		if (!j && !ts->t)
			j = take_hung_load_locked(k, &until);
		if (j) {
			if (j->node && j->tier < KVC_TIERS && j->node->in[j->tier].queued == j)
				/* from here on the job cannot be moved to another queue */
				j->node->in[j->tier].queued = NULL;
			if (j->node && j->node->queued_load == j)
				j->node->queued_load = NULL;
			if (enter_device_locked(ts, j, &at))
				run_job_locked(k, ts, j, me, &at);
			else if (++held % HELD_AT_ONCE == 0)
				kvc_pause_locked(k);
			continue;
		}
		if (k->draining && !kvc_tiers_busy_locked(k, false))
			break;
		struct timespec t = kvc_timespec(k->draining ? kvc_mono_ns() + 10000000 : until);

		if (!copies)
			ts->queue.load_idle = true;
		kvc_lock_wait(&k->lock, copies ? &ts->queue.cond : &ts->queue.load_cond, &t);
		if (!copies)
			ts->queue.load_idle = false;
	}
	kvc_tiers_wake_locked(k);
	kvc_unlock(k);
	return NULL;
}

void kvc_tiers_wake_locked(struct kvc *k)
{
	for (unsigned t = 0; t <= KVC_COMMON; t++) {
		pthread_cond_broadcast(&k->tier[t].queue.cond);
		pthread_cond_broadcast(&k->tier[t].queue.load_cond);
	}
}

/* Returns the number of devices of a tier; 0: it has none. */
static unsigned devices_of(struct kvc_tier *t)
{
	struct kvc_tier_device d;
	unsigned devices = 0;

	for (unsigned i = 0; i < KVC_DEVICES && t->ops->device; i++)
		devices += !t->ops->device(t, i, &d);
	return devices;
}

/*
 * A tier that only this node uses has disk_workers= threads for each of its devices, and one that
 * makes no copies, so that loads do not wait for copies. A device that is added gets its threads at
 * the next mount.
 */
static unsigned threads_of(struct kvc_tier *t, uint64_t disk_workers)
{
	if (t->ops->caps & KVC_TIER_SHARED)
		return KVC_WORKERS;
	return 1 + (unsigned)kvc_min(kvc_max(devices_of(t), 1) * disk_workers, KVC_THREADS_MAX - 1);
}

/*
 * Each device has at most one job that syncs it (commit_sync.c), and each such job may hang. If
 * there are several devices, there is a thread for each, so that other jobs of the common queue
 * find a free thread.
 */
static unsigned common_threads(struct kvc_tier *disk)
{
	unsigned devices = disk ? devices_of(disk) : 0;

	return COMMON_WORKERS + (devices > 1 ? devices : 0);
}

uint64_t kvc_tiers_bytes(struct kvc_tier *const *tiers, unsigned n, uint64_t disk_workers)
{
	uint64_t threads = common_threads(NULL) + OTHER_THREADS, bytes = 0;

	for (unsigned t = 0; t < n; t++) {
		threads += common_threads(tiers[t]) - common_threads(NULL);
		bytes += tiers[t]->bytes;
		threads += threads_of(tiers[t], disk_workers) +
			   (tiers[t]->ops->caps & KVC_TIER_SHARED ? 0 : KVC_TIER_HELPERS);
	}
	return threads * KVC_TIER_CALL_BYTES + bytes;
}

void kvc_tiers_init(struct kvc *k, const pthread_condattr_t *attr)
{
	for (unsigned t = 0; t <= KVC_COMMON; t++) {
		struct kvc_tier_state *ts = &k->tier[t];

		ts->k = k;
		for (int p = 0; p < KVC_PRIORITIES; p++)
			kvc_list_init(&ts->queue.jobs[p]);
		for (unsigned i = 0; i < KVC_DEVICES * KVC_ASIDE; i++)
			kvc_list_init(&ts->queue.aside[i / KVC_ASIDE][i % KVC_ASIDE]);
		pthread_cond_init(&ts->queue.cond, attr);
		pthread_cond_init(&ts->queue.load_cond, attr);
		pthread_cond_init(&ts->space.trim_cond, attr);
	}
}

int kvc_tiers_start(struct kvc *k)
{
	int err = 0;

	for (unsigned t = 0; t <= KVC_COMMON && !err; t++) {
		struct kvc_tier_state *ts = &k->tier[t];
		unsigned want = t == KVC_COMMON ? common_threads(k->tier[KVC_DISK].t)
				: ts->t         ? threads_of(ts->t, k->opt.disk_workers)
						: 0;

		if (ts->t && ts->t->ops->bound)
			ts->t->ops->bound(ts->t, kvc_max(want / 2, 1u));
		kvc_lock(k); /* threads that have started read threads.wanted */
		while (ts->threads.wanted < want && !err)
			if (!(err = -pthread_create(&ts->threads.ids[ts->threads.wanted], NULL,
						    worker, ts)))
				ts->threads.wanted++;
		kvc_unlock(k);
	}
	return err;
}

static void free_jobs(struct kvc_list *jobs)
{
	kvc_list_each_safe(e, jobs) {
		kvc_list_del(e);
		free(kvc_of(e, struct kvc_job, link));
	}
}

void kvc_tiers_join(struct kvc *k)
{
	uint64_t until = kvc_mono_ns() + LEAVE_NS;

	for (unsigned t = 0; t <= KVC_COMMON; t++) {
		struct kvc_tier_state *ts = &k->tier[t];
		bool patient = ts->t && (ts->t->ops->caps & KVC_TIER_PATIENT);

		for (unsigned i = 0; i < ts->threads.wanted; i++) {
			if (!patient)
				pthread_join(ts->threads.ids[i], NULL);
			else if (kvc_join(ts->threads.ids[i], until))
				ts->threads.abandoned += !pthread_detach(ts->threads.ids[i]);
		}
		if (ts->threads.abandoned)
			kvc_warn("tier %s does not answer: the daemon exits without waiting for %u "
				 "of its threads",
				 ts->t->ops->name, ts->threads.abandoned);
		k->work->left += ts->threads.abandoned;
	}
	for (unsigned t = 0; t <= KVC_COMMON && !k->work->left; t++) {
		for (unsigned i = 0; i < KVC_DEVICES * KVC_ASIDE; i++)
			if (k->work->over || i % KVC_ASIDE == KVC_ASIDE_REMOVE)
				free_jobs(&k->tier[t].queue.aside[i / KVC_ASIDE][i % KVC_ASIDE]);
		for (int p = 0; p < KVC_PRIORITIES; p++)
			if (k->work->over || p == KVC_P_REMOVE || p == KVC_P_REMOVE_AGAIN)
				free_jobs(&k->tier[t].queue.jobs[p]);
	}
}

void kvc_tier_refused_locked(struct kvc *k, unsigned tier, uint64_t bytes)
{
	struct kvc_tier_state *ts = &k->tier[tier];

	ts->space.full = true;
	ts->space.refused_bytes = kvc_max(kvc_tier_refuses_locked(ts) ? ts->space.refused_bytes : 0,
					  bytes);
	ts->space.refused_until_ns = kvc_mono_ns() + REFUSED_NS;
	if (ts->deferred.unsynced) /* the frame waits for space that a sync frees */
		pthread_cond_signal(&k->deferred_free->sync_cond);
	kvc_tier_trim_wake_locked(k, tier);
}

bool kvc_tier_refuses_locked(const struct kvc_tier_state *ts)
{
	return ts->space.full || kvc_mono_ns() < ts->space.refused_until_ns;
}

void kvc_tier_stored_locked(struct kvc *k, unsigned tier, uint64_t bytes)
{
	struct kvc_tier_state *ts = &k->tier[tier];

	ts->retry.copy_stored = true;
	kvc_wear_add_locked(k, tier, bytes);
	ts->space.full = false;
	if (bytes >= ts->space.refused_bytes)
		ts->space.refused_bytes = ts->space.refused_until_ns = 0;
	/* Waking the trimmer for each copy would cost more than the copy of a small file. */
	ts->space.unsignalled += bytes;
	if (ts->space.unsignalled > ts->trim.spare / UNSIGNALLED_PARTS) {
		ts->space.unsignalled = 0;
		kvc_tier_trim_wake_locked(k, tier);
	}
}

void kvc_tier_await_space_locked(struct kvc *k, unsigned tier)
{
	k->tier[tier].space.awaited = true;
}

void kvc_tier_freed_locked(struct kvc *k, unsigned tier)
{
	struct kvc_tier_state *ts = &k->tier[tier];

	if (ts->space.full || ts->space.awaited)
		kvc_tier_retry_locked(k, tier);
	ts->space.full = ts->space.awaited = false;
	/* a refusal during the removal does not mean that the space is fragmented */
	ts->space.refused_bytes = ts->space.refused_until_ns = 0;
}

void kvc_tier_trim_wake_locked(struct kvc *k, unsigned tier)
{
	struct kvc_tier_state *ts = &k->tier[tier];

	if (ts->trim.exists)
		pthread_cond_signal(&ts->space.trim_cond);
}

void kvc_tier_trim_wait_locked(struct kvc *k, unsigned tier, const struct timespec *until)
{
	kvc_lock_wait(&k->lock, &k->tier[tier].space.trim_cond, until);
}

bool kvc_tier_is_durable_locked(const struct kvc *k, unsigned tier)
{
	unsigned caps = k->tier[tier].t->ops->caps;

	for (unsigned i = 0; (caps & KVC_TIER_SHARED) && i < k->ntiers; i++) {
		const struct kvc_tier_state *ts = &k->tier[k->order[i]];

		if ((ts->t->ops->caps & (KVC_TIER_DURABLE | KVC_TIER_SHARED)) == KVC_TIER_DURABLE &&
		    ts->breaker.of[KVC_CALL_WRITE].is == KVC_BREAKER_CLOSED)
			return false;
	}
	return caps & KVC_TIER_DURABLE;
}

bool kvc_tier_accepts_locked(const struct kvc *k, unsigned tier)
{
	const struct kvc_tier_state *ts = &k->tier[tier];

	return kvc_tier_takes(ts->t) && !kvc_tier_out_locked(k, tier, KVC_CALL_WRITE) &&
	       !(ts->space.full && ts->nothing_to_drop);
}

void kvc_tier_job_put_locked(struct kvc *k, struct kvc_job *j)
{
	kvc_list_add_tail(&k->tier[j->tier].queue.jobs[KVC_P_LOAD], &j->link);
	k->work->queued++;
	kvc_tier_wake_locked(&k->tier[j->tier], KVC_P_LOAD);
}
