/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which models are shown one by one where there may be any number of them: those with the most
 * opens, KVC_TOP_MODELS at most. What is counted for all others is one sum.
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
	struct kvc_opens n, total; /* n: since it is shown */
};
struct kvc_top_models_list {
	struct kvc_top_models *v; /* the most opens first; of free() */
	size_t n, models;         /* models: of which something was opened */
	/* rest: what n leaves out, and only grows; all: of everything */
	struct kvc_opens all, rest;
};
/*
 * What is to be shown, which is chosen anew. Takes the locks, a while each. 0 or -ENOMEM; the
 * caller frees v.
 */
int kvc_top_models(struct kvc *k, struct kvc_top_models_list *out);
/* The name of a model's folder in name[256]: 1; 0: there is none; or it cannot be read now. */
int kvc_top_models_name(struct kvc *k, uint64_t model, char *name);

#endif
