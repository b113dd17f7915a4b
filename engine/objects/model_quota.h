/* SPDX-License-Identifier: Apache-2.0 */
/* Setting and storing the quotas of models (model_quota.c). Under both locks. */
#ifndef KVC_MODEL_QUOTA_H
#define KVC_MODEL_QUOTA_H

#include "kvc.h"

/*
 * Sets the model's quota in bytes and starts a count of its files; limit 0 removes the quota.
 * Returns 0 or a negative errno.
 */
int kvc_model_quota_set_both(struct kvc *k, uint64_t model, uint64_t limit);
/* At mount, and at a clean unmount. clean: the previous daemon unmounted cleanly. */
int kvc_model_quotas_load_both(struct kvc *k, bool clean);
void kvc_model_quotas_save_both(struct kvc *k);

#endif
