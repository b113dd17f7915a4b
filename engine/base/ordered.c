/* SPDX-License-Identifier: Apache-2.0 */
/* Work on a sequence by several threads; see ordered.h. */
#include "ordered.h"

#include "util.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

struct run {
	const struct kvc_ordered *o;
	pthread_mutex_t lock; /* held during `begin` and `finish`; guards the members below */
	pthread_cond_t moved; /* `finished` or `err` has changed */
	uint64_t next, finished;
	int err;
};

static atomic_uint busy; /* callers and their threads, in the whole process */

static unsigned cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof set, &set) ? 1 : (unsigned)CPU_COUNT(&set);
}

/* Counts one more thread; false if that would be more than the CPUs. */
static bool take_cpu(unsigned most)
{
	unsigned now = atomic_load(&busy);

	while (now < most)
		if (atomic_compare_exchange_weak(&busy, &now, now + 1))
			return true;
	return false;
}

/* Works on items until none is left or a step fails. */
static void work(struct run *r, void *slot)
{
	const struct kvc_ordered *o = r->o;

	pthread_mutex_lock(&r->lock);
	while (r->next < o->n && !r->err) {
		uint64_t i = r->next++;
		int err = o->begin(o->arg, slot, i);

		if (!err) {
			pthread_mutex_unlock(&r->lock);
			err = o->work(o->arg, slot, i);
			pthread_mutex_lock(&r->lock);
		}
		/* items before this one may still fail, and then theirs is the first error */
		while (r->finished < i && !r->err)
			pthread_cond_wait(&r->moved, &r->lock);
		if (!r->err)
			r->err = err ?: o->finish(o->arg, slot, i);
		r->finished = i + 1;
		pthread_cond_broadcast(&r->moved);
	}
	pthread_mutex_unlock(&r->lock);
}

struct helper {
	struct run *run;
	void *slot;
	pthread_t thread;
};

static void *help(void *arg)
{
	struct helper *h = arg;

	work(h->run, h->slot);
	return NULL;
}

int kvc_ordered_run(const struct kvc_ordered *o, void *slot, unsigned threads)
{
	struct run r = { .o = o };
	struct helper h[KVC_ORDERED_MAX - 1];
	unsigned most = cpus(), n = 0;

	threads = (unsigned)kvc_min(kvc_min(threads, KVC_ORDERED_MAX), o->n);
	pthread_mutex_init(&r.lock, NULL);
	pthread_cond_init(&r.moved, NULL);
	atomic_fetch_add(&busy, 1);
	while (n + 1 < threads && take_cpu(most)) {
		h[n] = (struct helper){ .run = &r, .slot = o->slot_new(o->arg) };
		if (!h[n].slot || pthread_create(&h[n].thread, NULL, help, &h[n])) {
			if (h[n].slot)
				o->slot_free(o->arg, h[n].slot);
			atomic_fetch_sub(&busy, 1);
			break;
		}
		n++;
	}
	work(&r, slot);
	for (unsigned i = 0; i < n; i++) {
		pthread_join(h[i].thread, NULL);
		o->slot_free(o->arg, h[i].slot);
	}
	atomic_fetch_sub(&busy, 1 + n);
	pthread_cond_destroy(&r.moved);
	pthread_mutex_destroy(&r.lock);
	return r.err;
}
