/* SPDX-License-Identifier: Apache-2.0 */
/* How many files a whole chunk of a model has (user.kvcachefs.layers, layers.c). k->lock. */
#ifndef KVC_MODEL_LAYERS_H
#define KVC_MODEL_LAYERS_H

#include "model.h"

#define KVC_LAYERS_MAX 1024u

/* Has any model them set? Needs no lock. */
static inline bool kvc_layers_any(struct kvc *k)
{
	return atomic_load_explicit(&k->models->nlayered, memory_order_relaxed) > 0;
}
/* 0: none are set. */
unsigned kvc_layers_of_locked(struct kvc *k, uint64_t model);
/* 0 takes them away. */
int kvc_layers_set_both(struct kvc *k, uint64_t model, unsigned layers);
/* At the start, and at the end. */
int kvc_layers_load_both(struct kvc *k);
void kvc_layers_free(struct kvc *k);

#endif
