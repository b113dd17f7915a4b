/* SPDX-License-Identifier: Apache-2.0 */
/* The common parts of sweeps: waits, and the walk over all placements; see sweep.h. */
#include "committer.h"
#include "sweep.h"

static void sweeper_wake(struct kvc_wait *w)
{
	struct kvc_sweeper *x = kvc_of(w, struct kvc_sweeper, w);

	pthread_mutex_lock(&x->lock);
	x->woken = true;
	pthread_cond_signal(&x->cond);
	pthread_mutex_unlock(&x->lock);
}

void kvc_sweeper_init(struct kvc_sweeper *x)
{
	*x = (struct kvc_sweeper){
		.w.wake = sweeper_wake,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.cond = PTHREAD_COND_INITIALIZER,
	};
}

int kvc_sweeper_wait(struct kvc_sweeper *x)
{
	pthread_mutex_lock(&x->lock);
	while (!x->woken)
		pthread_cond_wait(&x->cond, &x->lock);
	pthread_mutex_unlock(&x->lock);
	return x->w.err;
}

int kvc_sweeper_commit(struct kvc_sweep *s)
{
	struct kvc *k = s->k;
	uint64_t failures = kvc_counted(&k->stats, commit_failures), txn;
	bool done = false, failed = false;

	kvc_catalog_lock(k->cat);
	txn = kvc_catalog_txn(k->cat);
	kvc_catalog_unlock(k->cat);
	while (!done && !failed && !s->stop) {
		kvc_lock(k);
		done = k->committer->committed >= txn;
		if (!done)
			kvc_committer_wake_locked(k, true);
		kvc_unlock(k);
		failed = kvc_counted(&k->stats, commit_failures) != failures;
		if (!done)
			usleep(1000);
	}
	return done || s->stop ? 0 : -EIO;
}

int kvc_sweeper_each_placed(struct kvc_sweep *s,
			    int (*fn)(struct kvc_sweep *s, const struct kvc_placed *p, void *arg),
			    void *arg)
{
	struct kvc_placed batch[KVC_SWEEP_BATCH];
	struct kvc *k = s->k;
	uint64_t ino = 0;
	unsigned tier = 0;
	size_t n;
	int err = 0;

	while (!err && !s->stop) {
		err = kvc_place_next(k->cat, &ino, &tier, KVC_SWEEP_BATCH, batch, &n);
		if (err || !n)
			break;
		for (size_t i = 0; i < n && !s->stop && !err; i++)
			err = fn(s, &batch[i], arg);
	}
	return err;
}
