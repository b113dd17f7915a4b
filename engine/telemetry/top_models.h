/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The models that are shown individually, of any number of models: the KVC_TOP_MODELS with the most
 * opens. The others are shown as one sum.
 */
#ifndef KVC_TOP_MODELS_H
#define KVC_TOP_MODELS_H

#include "model_stats.h"

struct kvc_opens {
	uint64_t hits, misses;
};

struct kvc_top_models {
	char name[256];
	uint64_t model;
	struct kvc_opens n, total; /* n: since the model is shown */
};
struct kvc_top_models_list {
	struct kvc_top_models *v; /* most opens first; from malloc */
	size_t n, models;         /* models: number of models with opens */
	/* all: all opens. rest: all opens that no model's n counts; it never decreases */
	struct kvc_opens all, rest;
};
/*
 * Chooses the models to show and returns their figures. Takes the locks for short times. Returns 0
 * or -ENOMEM; the caller frees out->v.
 */
int kvc_top_models(struct kvc *k, struct kvc_top_models_list *out);
/*
 * Copies the name of a model's folder to name[256]. Returns 1, 0 (it has no name), or a negative
 * errno if it cannot be read now.
 */
int kvc_top_models_name(struct kvc *k, uint64_t model, char *name);

#endif
