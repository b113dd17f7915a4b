/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who makes room: the evictor in the pool, the trimmers in the tiers, the keeper in the models.
 * Under k->lock.
 */
#ifndef KVC_EVICT_H
#define KVC_EVICT_H

#include "kvc.h"

struct kvc_evict {
	bool trimming; /* the pool was above high= and is not at low= yet */
	bool over;     /* the trimmers end: no copy is made any more */
	pthread_t keeper;
	bool has_keeper;
	uint64_t saved_txn; /* up to which the store's time is kept */
};

/* evict.c: the thread, until k->stopping. */
void *kvc_evictor(void *arg);

/* trim.c */
int kvc_trim_start(struct kvc *k);
void kvc_trim_stop(struct kvc *k); /* after the last copy */

/* keeper.c */
int kvc_keeper_start(struct kvc *k);
void kvc_keeper_stop(struct kvc *k); /* after k->stopping was set */

#endif
