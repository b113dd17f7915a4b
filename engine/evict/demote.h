/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that leave the pool, a tier, or all, because somebody says so (demote.c). k->lock. */
#ifndef KVC_DEMOTE_H
#define KVC_DEMOTE_H

#include "kvc.h"

struct kvc_demotes {
	struct kvc_list list; /* those under way */
	pthread_cond_t cond;
	pthread_t thread;
	bool has_thread;
};

/*
 * Demotes a chunk from "cpu" (the pool), the tier of that name, or "all". KVC_WAIT: w is woken when
 * it is done, with w->err; -EINVAL: there is no such tier; -ENOMEM.
 */
int kvc_demote_locked(struct kvc *k, uint64_t chunk, const char *from, struct kvc_wait *w);
int kvc_demote_start(struct kvc *k);
void kvc_demote_stop(struct kvc *k); /* after k->stopping was set, while the answerer runs */

#endif
