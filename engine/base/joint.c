/* SPDX-License-Identifier: Apache-2.0 */
/* Closes and opens joint holds (joint.h). */
#include "joint.h"

#include "util.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define SPINS 240 /* before the core is given to another thread */

_Static_assert(KVC_JOINT_STRIPES == 1u << 6, "kvc_joint_stripe takes six bits");

struct kvc_joint *kvc_joint_new(void)
{
	struct kvc_joint *j = aligned_alloc(KVC_CACHE_LINE, sizeof *j);

	if (!j)
		return NULL;
	memset(j, 0, sizeof *j);
	for (unsigned i = 0; i < KVC_JOINT_STRIPES; i++)
		pthread_mutex_init(&j->stripe[i].m, NULL);
	pthread_mutex_init(&j->users.m, NULL);
	return j;
}

void kvc_joint_free(struct kvc_joint *j)
{
	if (!j)
		return;
	for (unsigned i = 0; i < KVC_JOINT_STRIPES; i++)
		pthread_mutex_destroy(&j->stripe[i].m);
	pthread_mutex_destroy(&j->users.m);
	free(j);
}

void kvc_joint_close(struct kvc_joint *j)
{
	uint64_t since_ns = kvc_mono_ns(), now;

	atomic_store(&j->open, false);
	for (unsigned i = 0; i < KVC_JOINT_SLOTS; i++)
		for (unsigned n = 1; atomic_load(&j->slot[i].in); n++) {
			kvc_joint_pause();
			if (!(n % SPINS)) /* the thread in this slot may wait for this core */
				sched_yield();
		}
	now = kvc_mono_ns();
	j->reopen_ns = now + kvc_max(KVC_JOINT_TIMES * (now - since_ns), KVC_JOINT_LEAST_NS);
	if (j->closed)
		j->closed(j->arg);
}

void kvc_joint_reopen(struct kvc_joint *j)
{
	if (j && !atomic_load_explicit(&j->open, memory_order_relaxed) &&
	    kvc_mono_ns() >= j->reopen_ns)
		atomic_store(&j->open, true);
}
