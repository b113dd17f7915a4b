/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Surveys: what is set on a model reaches the files that it has, in the background
 * (model_rescan.c). All under k->lock.
 */
#ifndef KVC_MODEL_RESCAN_H
#define KVC_MODEL_RESCAN_H

#include "kvc.h"

struct kvc_model_rescan {
	struct kvc_list asked;   /* at most two of a model: one is under way, one waits */
	struct kvc_list waiters; /* calls that give them a moment */
	pthread_cond_t cond;     /* something was asked for, or is done */
	pthread_t thread;
	bool has_thread;
};

/*
 * Brings what is in the model up to what is set on it and, where the quota is to be counted, counts
 * it.
 */
int kvc_model_rescan_ask_both(struct kvc *k, uint64_t model);
/* The quota is to be counted by the next one. */
void kvc_model_rescan_count_locked(struct kvc *k, struct kvc_quota *q);
/* How far the model's is, if there is one: inodes up to *at of those below *limit. */
bool kvc_model_rescan_show_locked(struct kvc *k, uint64_t model, uint64_t *at, uint64_t *limit);
/* Gives them a moment; without locks. The call is over when it is woken, in whatever way. */
int kvc_model_rescan_park(struct kvc *k, struct kvc_wait *w);
void kvc_model_rescan_wait(struct kvc *k);
/* Those that an earlier daemon did not end; after the quotas. */
int kvc_model_rescan_load_both(struct kvc *k);
int kvc_model_rescan_start(struct kvc *k);
void kvc_model_rescan_stop(struct kvc *k); /* after k->stopping was set */
void kvc_model_rescan_free(struct kvc *k);

#endif
