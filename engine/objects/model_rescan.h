/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rescans: in the background, a model's new quota or policy is applied to the files that it has
 * (model_rescan.c). All under k->lock unless noted.
 */
#ifndef KVC_MODEL_RESCAN_H
#define KVC_MODEL_RESCAN_H

#include "kvc.h"

struct kvc_model_rescan {
	struct kvc_list asked;   /* at most two per model: one that runs and one that waits */
	struct kvc_list waiters; /* calls that wait a short time for the rescans */
	pthread_cond_t cond;     /* a rescan was requested or has finished */
	pthread_t thread;
	bool has_thread;
};

/*
 * Requests a rescan of the model. It gives all chunks of the model the current class and quota, and
 * counts the files if the quota is being counted. Returns 0 or a negative errno.
 */
int kvc_model_rescan_ask_both(struct kvc *k, uint64_t model);
/* Resets the quota's count; the next rescan counts it. */
void kvc_model_rescan_count_locked(struct kvc *k, struct kvc_quota *q);
/*
 * Returns true if a rescan of the model is requested or runs. The rescan visits all inodes below
 * *limit, and has visited those up to *at.
 */
bool kvc_model_rescan_show_locked(struct kvc *k, uint64_t model, uint64_t *at, uint64_t *limit);
/*
 * Parks the call for a short time, so that a rescan of a small store ends before the call returns.
 * Called without locks. Returns 0, or the result of kvc_wait_park_locked. The call is complete when
 * it is woken, whatever the result. In a large store it is not parked. kvc_model_rescan_wait
 * blocks the thread instead, in a large store too; in a small store it also waits for the count of
 * all files.
 */
int kvc_model_rescan_park(struct kvc *k, struct kvc_wait *w);
void kvc_model_rescan_wait(struct kvc *k);
/* At mount, after the quotas: requests the rescans that an earlier daemon did not finish. */
int kvc_model_rescan_load_both(struct kvc *k);
int kvc_model_rescan_start(struct kvc *k);
void kvc_model_rescan_stop(struct kvc *k); /* after k->stopping was set */
void kvc_model_rescan_free(struct kvc *k);

#endif
