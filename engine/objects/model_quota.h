/* SPDX-License-Identifier: Apache-2.0 */
/* Setting and keeping the bounds on models (model_quota.c). Both locks. */
#ifndef KVC_MODEL_QUOTA_H
#define KVC_MODEL_QUOTA_H

#include "kvc.h"

/* Sets the model's bound, and has what it holds counted; 0 takes it away. */
int kvc_quota_set_both(struct kvc *k, uint64_t model, uint64_t limit);
/* At start, and at the end of a clean run. */
int kvc_quotas_load_both(struct kvc *k, bool clean);
void kvc_quotas_save_both(struct kvc *k);

#endif
