/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs replays in parallel. Replays share the read-only trace, and each has its own state. The
 * threads take one cell after another. A waiting caller also takes cells, so the work is done even
 * if no thread can be started. See replay.h.
 */
#include "array.h"
#include "replay.h"
#include "util.h"

#include <pthread.h>

struct kvm_jobs {
	const struct kvm_trace *trace;
	const struct kvm_setup *setup;
	struct kvm_cell *cell;
	unsigned n;
	pthread_mutex_t lock; /* guards the members below, and `ready` and `err` of the cells */
	pthread_cond_t done;
	unsigned next;
	unsigned nthreads;
	pthread_t thread[];
};

/* Runs one cell. The caller does not hold j->lock. */
static int run_one(const struct kvm_jobs *j, struct kvm_cell *c)
{
	if (!c->is_optimum)
		return kvm_replay(j->trace, j->setup, c);
	c->optimum = kvm_optimum(j->trace, kvc_max(c->pool_capacity, c->disk_capacity), c->in_bytes,
				 c->part);
	return c->optimum < 0 ? -ENOMEM : 0;
}

/*
 * Runs the next cell. The caller holds j->lock, which is released during the run. Returns false if
 * no cell is left.
 */
static bool run_next(struct kvm_jobs *j)
{
	struct kvm_cell *c;
	int err;

	if (j->next == j->n)
		return false;
	c = &j->cell[j->next++];
	pthread_mutex_unlock(&j->lock);
	err = run_one(j, c);
	pthread_mutex_lock(&j->lock);
	c->err = err;
	c->ready = true;
	pthread_cond_broadcast(&j->done);
	return true;
}

static void *work(void *arg)
{
	struct kvm_jobs *j = arg;

	pthread_mutex_lock(&j->lock);
	while (run_next(j))
		;
	pthread_mutex_unlock(&j->lock);
	return NULL;
}

struct kvm_jobs *kvm_jobs_start(const struct kvm_trace *t, const struct kvm_setup *setup,
				struct kvm_cell *cell, unsigned n, unsigned threads)
{
	struct kvm_jobs *j = calloc(1, sizeof *j + threads * sizeof *j->thread);

	if (!j)
		return NULL;
	*j = (struct kvm_jobs){ .trace = t, .setup = setup, .cell = cell, .n = n };
	kvc_array_use_huge_pages();
	pthread_mutex_init(&j->lock, NULL);
	pthread_cond_init(&j->done, NULL);
	/* the waiting caller is one more */
	while (j->nthreads + 1 < kvc_min(threads, n) &&
	       !pthread_create(&j->thread[j->nthreads], NULL, work, j))
		j->nthreads++;
	return j;
}

int kvm_jobs_wait(struct kvm_jobs *j, unsigned cell)
{
	struct kvm_cell *c = &j->cell[cell];
	int err;

	pthread_mutex_lock(&j->lock);
	while (!c->ready)
		if (!run_next(j))
			pthread_cond_wait(&j->done, &j->lock);
	err = c->err;
	pthread_mutex_unlock(&j->lock);
	return err;
}

void kvm_jobs_end(struct kvm_jobs *j)
{
	if (!j)
		return;
	pthread_mutex_lock(&j->lock);
	j->next = j->n;
	pthread_mutex_unlock(&j->lock);
	for (unsigned i = 0; i < j->nthreads; i++)
		pthread_join(j->thread[i], NULL);
	pthread_cond_destroy(&j->done);
	pthread_mutex_destroy(&j->lock);
	free(j);
}
