/* SPDX-License-Identifier: Apache-2.0 */
/* Demotes chunks from the pool, from a tier, or from everything, when a client asks (demote.c). */
#ifndef KVC_DEMOTE_H
#define KVC_DEMOTE_H

#include "kvc.h"

struct kvc_demotes {
	struct kvc_list list; /* demotions under way; guarded by k->lock */
	pthread_cond_t cond;
	pthread_t thread;
	bool has_thread;
};

/*
 * Starts to demote the chunk of the target, a file or a folder, from "cpu" (the pool), from the
 * tier with that name, or from "all". If the target is moved to another chunk meanwhile, that chunk
 * is demoted if w->uid may do so. Returns KVC_WAIT, and w is woken with the result in w->err;
 * -EINVAL if there is no such tier or w is NULL; or -ENOMEM. The caller holds k->lock.
 */
int kvc_demote_locked(struct kvc *k, struct kvc_node *target, uint64_t chunk, const char *from,
		      struct kvc_wait *w);
int kvc_demote_start(struct kvc *k);
/* after k->stopping was set, while the answering thread runs */
void kvc_demote_stop(struct kvc *k);

#endif
