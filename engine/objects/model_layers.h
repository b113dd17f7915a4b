/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The number of files in a complete chunk of a model: user.kvcachefs.layers (model_layers.c). Under
 * k->lock.
 */
#ifndef KVC_MODEL_LAYERS_H
#define KVC_MODEL_LAYERS_H

#include "model.h"

#define KVC_LAYERS_MAX 1024u

/* Returns true if any model has it set. Needs no lock. */
static inline bool kvc_model_layers_any(struct kvc *k)
{
	return atomic_load_explicit(&k->models->nlayered, memory_order_relaxed) > 0;
}
/* Returns 0 if the model has no such number. */
unsigned kvc_model_layers_of_locked(struct kvc *k, uint64_t model);
/* layers 0 removes the setting. Returns 0 or a negative errno. */
int kvc_model_layers_set_both(struct kvc *k, uint64_t model, unsigned layers);
/* At mount, and at unmount. */
int kvc_model_layers_load_both(struct kvc *k);
void kvc_model_layers_free(struct kvc *k);

#endif
